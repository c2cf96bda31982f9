//! Round trips to another process: what a statement and its answer pay on their way.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use super::processes::{Forked, forked, raw};
use super::{Made, Probe, Request, Spent, unsupported};
use crate::clock::now_ns;
use crate::failure::Failure;

/// Each way: about what a short statement and its answer have.
const BYTES: usize = 80;

/// Over a pair of Unix sockets (lmbench: `lat_unix`).
pub fn unix(_: &Request) -> Made {
    let (ours, mut theirs) = UnixStream::pair().map_err(|error| Failure::io("socketpair", error))?;
    let not_theirs = raw(&ours);
    let child = forked(|| {
        // SAFETY: in the child, which does not use it; else it would never see the end.
        unsafe { libc::close(not_theirs) };
        echo(&mut theirs);
    })?;
    Ok(Box::new(Asking { stream: ours, _child: child }))
}

/// Over TCP on the loopback device, without delay (lmbench: `lat_tcp`).
pub fn tcp(_: &Request) -> Made {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|error| unsupported(format!("nothing can listen on the loopback device: {error}")))?;
    let address = listener.local_addr().map_err(|error| Failure::io("getsockname", error))?;
    let child = forked(|| {
        if let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.set_nodelay(true);
            echo(&mut stream);
        }
    })?;
    let stream = TcpStream::connect(address).map_err(|error| unsupported(format!("connect: {error}")))?;
    stream.set_nodelay(true).map_err(|error| Failure::io("setsockopt", error))?;
    Ok(Box::new(Asking { stream, _child: child }))
}

fn echo(stream: &mut (impl Read + Write)) {
    let mut bytes = [0; BYTES];
    while stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes)).is_ok() {}
}

/// The fields' order matters: the child ends when the stream has gone.
struct Asking<S> {
    stream: S,
    _child: Forked,
}

impl<S: Read + Write> Probe for Asking<S> {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let mut bytes = [0; BYTES];
        let begin_ns = now_ns();
        for _ in 0..events {
            let answered = self.stream.write_all(&bytes).and_then(|()| self.stream.read_exact(&mut bytes));
            answered.map_err(|error| Failure::io("exchange", error))?;
        }
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}
