//! Where a server listens, and how to reach it without a resolver.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};

use crate::failure::{Code, Failure};
use crate::small_text;

/// `{"unix": PATH}` or `{"tcp": [HOST, PORT]}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    Unix(String),
    Tcp(String, u16),
}

impl Address {
    /// A connected, blocking stream socket; TCP without delay.
    pub fn connect(&self, timeout: Duration) -> Result<OwnedFd, Failure> {
        match self {
            Self::Unix(path) => connect_unix(path, timeout),
            Self::Tcp(host, port) => {
                let address = SocketAddr::new(resolve(host)?, *port);
                let stream = TcpStream::connect_timeout(&address, timeout)
                    .map_err(|error| refusal(&format!("connect {address}"), error))?;
                stream.set_nodelay(true).map_err(|error| Failure::io("setsockopt", error))?;
                Ok(stream.into())
            }
        }
    }
}

impl Address {
    /// A socket that does not block, and whether it is connected already; else it will be when it can be written to.
    pub fn begin_connect(&self) -> Result<(OwnedFd, bool), Failure> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = |family| {
            rustix::net::socket_with(family, SocketType::STREAM, flags, None)
                .map_err(|error| Failure::io("socket", error))
        };
        match self {
            Self::Unix(path) => {
                let socket = socket(AddressFamily::UNIX)?;
                // A full queue of the listener is a refusal here; whoever asks may ask again.
                rustix::net::connect(&socket, &unix_address(path)?)
                    .map_err(|error| refusal(&format!("connect {path}"), error.into()))?;
                Ok((socket, true))
            }
            Self::Tcp(host, port) => {
                let address = SocketAddr::new(resolve(host)?, *port);
                let socket = socket(if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
                sockopt::set_tcp_nodelay(&socket, true).map_err(|error| Failure::io("setsockopt", error))?;
                match rustix::net::connect(&socket, &address) {
                    Ok(()) => Ok((socket, true)),
                    Err(rustix::io::Errno::INPROGRESS) => Ok((socket, false)),
                    Err(error) => Err(refusal(&format!("connect {address}"), error.into())),
                }
            }
        }
    }
}

fn unix_address(path: &str) -> Result<SocketAddrUnix, Failure> {
    SocketAddrUnix::new(path)
        .map_err(|_| Failure::bad_request(format!("{path}: the path of a socket has at most 107 bytes, no NUL")))
}

fn connect_unix(path: &str, timeout: Duration) -> Result<OwnedFd, Failure> {
    let address = unix_address(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| Failure::io("socket", error))?;
    // Bounds the wait for a place in the listener's queue; taken off again for the stream itself.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))
        .map_err(|error| Failure::io("setsockopt", error))?;
    rustix::net::connect(&socket, &address).map_err(|error| refusal(&format!("connect {path}"), error.into()))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)
        .map_err(|error| Failure::io("setsockopt", error))?;
    Ok(socket)
}

fn refusal(what: &str, error: io::Error) -> Failure {
    if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
        return Failure::new(Code::Timeout, format!("{what}: no answer in time"));
    }
    Failure::io(what, error)
}

/// A number, or a name in `/etc/hosts`.
fn resolve(host: &str) -> Result<IpAddr, Failure> {
    if let Ok(address) = host.parse() {
        return Ok(address);
    }
    let local = (host == "localhost").then_some(IpAddr::from([127, 0, 0, 1]));
    listed(host, &small_text("/etc/hosts").unwrap_or_default()).or(local).ok_or_else(|| {
        Failure::new(Code::NotFound, format!("host {host:?} is neither a number nor a name in /etc/hosts"))
    })
}

pub(crate) fn listed(host: &str, hosts: &str) -> Option<IpAddr> {
    hosts.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|name| name == host).then_some(address)
    })
}
