//! The bare exchange: a few bytes there and back over each of some connections, by epoll and nothing else. What it costs the side
//! that asks is the floor of what any driver pays for a round trip.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use serde::Serialize;

use crate::address::Address;
use crate::clock::{now_ns, thread_cpu_ns};
use crate::failure::{Code, Failure};

/// Each way: about what a short statement and its answer have.
const BYTES: usize = 80;
const EVENTS: usize = 256;
/// What one who answers after work goes through.
const WALKED_BYTES: usize = 8 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What one client did.
#[derive(Debug, Serialize)]
pub struct Exchanged {
    pub exchanges: u64,
    /// Of the asking thread, connecting apart.
    pub cpu_ns: u64,
    pub wall_ns: u64,
}

/// Sends back whatever comes, until the process is ended.
pub fn answer(address: &Address) -> Result<(), Failure> {
    let listener = listen(address)?;
    let mut circle = Circle::new()?;
    circle.watch(&listener)?;
    let mut clients: Vec<Option<OwnedFd>> = Vec::new();
    let mut readable = Vec::with_capacity(EVENTS);
    loop {
        circle.wait(&mut readable)?;
        for &descriptor in &readable {
            let index = usize::try_from(descriptor).unwrap_or_default();
            if descriptor == listener.as_raw_fd() {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let client = accept_with(&listener, flags).map_err(|error| Failure::io("accept", error))?;
                let _ = rustix::net::sockopt::set_tcp_nodelay(&client, true); // a Unix socket has no delay
                circle.watch(&client)?;
                let index = usize::try_from(client.as_raw_fd()).unwrap_or_default();
                if clients.len() <= index {
                    clients.resize_with(index + 1, || None);
                }
                clients[index] = Some(client);
            } else if let Some(place) = clients.get_mut(index) {
                let is_over = |client: &OwnedFd| {
                    !matches!(take(client).and_then(|count| give(client, count).map(|()| count)), Ok(1..))
                };
                if place.as_ref().is_some_and(is_over) {
                    *place = None;
                }
            }
        }
    }
}

/// The same, but each connection has a thread of its own that works for so long before it answers: a walk over more memory than a
/// processor keeps near, so that whoever asks finds its own things far away, as beside a database.
pub fn answer_after(work: Duration, address: &Address) -> Result<(), Failure> {
    let listener = listen(address)?;
    let work_ns = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
    loop {
        let client = accept_with(&listener, SocketFlags::CLOEXEC).map_err(|error| Failure::io("accept", error))?;
        let _ = rustix::net::sockopt::set_tcp_nodelay(&client, true); // a Unix socket has no delay
        thread::spawn(move || {
            let (mut memory, mut bytes) = (vec![1_u8; WALKED_BYTES], [0; BYTES]);
            while let Ok((_, count @ 1..)) = recv(&client, &mut bytes, RecvFlags::empty()) {
                walk(&mut memory, now_ns().saturating_add(work_ns));
                if give(&client, count).is_err() {
                    break;
                }
            }
        });
    }
}

/// Changes one byte of each cache line in turn, until that time.
fn walk(memory: &mut [u8], until_ns: u64) {
    for place in (0..memory.len()).step_by(64).cycle() {
        memory[place] = memory[place].wrapping_add(1);
        if place % 4096 == 0 && now_ns() >= until_ns {
            return;
        }
    }
}

/// One exchange after the other on each of `connections`, for so long.
pub fn ask(address: &Address, connections: usize, duration: Duration) -> Result<Exchanged, Failure> {
    let mut circle = Circle::new()?;
    let mut servers: Vec<Option<(OwnedFd, usize)>> = Vec::new();
    for _ in 0..connections {
        let socket = address.connect(CONNECT_TIMEOUT)?;
        circle.watch(&socket)?;
        let index = usize::try_from(socket.as_raw_fd()).unwrap_or_default();
        servers.resize_with(servers.len().max(index + 1), || None);
        servers[index] = Some((socket, 0));
    }
    let (begin_ns, begin_cpu_ns) = (now_ns(), thread_cpu_ns());
    for (socket, _) in servers.iter().flatten() {
        give(socket, BYTES)?;
    }
    let mut exchanges = 0;
    let mut readable = Vec::with_capacity(EVENTS);
    let end_ns = begin_ns.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    while now_ns() < end_ns {
        circle.wait(&mut readable)?;
        for &descriptor in &readable {
            let place = servers.get_mut(usize::try_from(descriptor).unwrap_or_default());
            let Some((socket, received)) = place.and_then(Option::as_mut) else { continue };
            match take(socket)? {
                0 => return Err(Failure::new(Code::Io, "the echo server has gone")),
                count => *received += count,
            }
            if *received == BYTES {
                exchanges += 1;
                *received = 0;
                give(socket, BYTES)?;
            }
        }
    }
    Ok(Exchanged { exchanges, cpu_ns: thread_cpu_ns() - begin_cpu_ns, wall_ns: now_ns() - begin_ns })
}

fn listen(address: &Address) -> Result<OwnedFd, Failure> {
    match address {
        Address::Unix(path) => UnixListener::bind(path).map(OwnedFd::from),
        Address::Tcp(host, port) => TcpListener::bind((host.as_str(), *port)).map(OwnedFd::from),
    }
    .map_err(|error| Failure::io("listen", error))
}

fn take(socket: &OwnedFd) -> Result<usize, Failure> {
    let mut bytes = [0; BYTES];
    recv(socket, &mut bytes, RecvFlags::DONTWAIT).map(|(count, _)| count).map_err(|error| Failure::io("recv", error))
}

/// So few bytes always find room: nothing more is sent before they have come back.
fn give(socket: &OwnedFd, count: usize) -> Result<(), Failure> {
    send(socket, &[0; BYTES][..count], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        .map(drop)
        .map_err(|error| Failure::io("send", error))
}

/// A poll that tells which descriptors can be read.
struct Circle {
    poll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Circle {
    fn new() -> Result<Self, Failure> {
        let poll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| Failure::io("epoll_create", error))?;
        Ok(Self { poll, events: Vec::with_capacity(EVENTS) })
    }

    fn watch(&self, socket: &OwnedFd) -> Result<(), Failure> {
        let data = EventData::new_u64(u64::try_from(socket.as_raw_fd()).unwrap_or_default());
        epoll::add(&self.poll, socket, data, EventFlags::IN).map_err(|error| Failure::io("epoll_ctl", error))
    }

    fn wait(&mut self, readable: &mut Vec<RawFd>) -> Result<(), Failure> {
        self.events.clear();
        readable.clear();
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut self.events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::io("epoll_wait", error)),
        }
        readable.extend(self.events.iter().map(|event| {
            let data = event.data;
            RawFd::try_from(data.u64()).unwrap_or(-1)
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_after_work_answers_later() {
        let folder = std::env::temp_dir().join(format!("dbtoll-bare-work-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let address = Address::Unix(folder.join("socket").to_string_lossy().into_owned());
        let server = address.clone();
        thread::spawn(move || answer_after(Duration::from_millis(2), &server));
        let exchanged = (0..500).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            ask(&address, 2, Duration::from_millis(100)).ok()
        });
        std::fs::remove_dir_all(&folder).unwrap();
        let exchanged = exchanged.expect("the echo server never listened");
        let min_ns = 2_000_000 * (exchanged.exchanges / 2);
        assert!(exchanged.exchanges >= 2 && exchanged.wall_ns >= min_ns, "{exchanged:?}");
    }

    #[test]
    fn bytes_go_there_and_back_over_every_connection() {
        let folder = std::env::temp_dir().join(format!("dbtoll-bare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let address = Address::Unix(folder.join("socket").to_string_lossy().into_owned());
        let server = address.clone();
        thread::spawn(move || answer(&server));
        let exchanged = (0..500).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            ask(&address, 3, Duration::from_millis(50)).ok()
        });
        std::fs::remove_dir_all(&folder).unwrap();
        let exchanged = exchanged.expect("the echo server never listened");
        assert!(exchanged.exchanges >= 3 && exchanged.wall_ns >= 50_000_000, "{exchanged:?}");
    }
}
