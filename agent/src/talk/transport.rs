//! One socket that never blocks: requests are collected and sent, answers awaited.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Poll;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::address::Address;
use crate::wire::blocking::Trouble;

/// Least room for one `recv`.
const READ_BYTES: usize = 16 * 1024;
/// Longest answer to one pipeline that is kept.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Told once: `Readiness` remembers it. Otherwise the kernel would look at each socket again before it lets the thread sleep.
const WATCHED: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// What the thread knows of a connection's socket: set by the thread, looked at by the conversation.
#[derive(Debug, Default)]
pub struct Readiness {
    pub readable: Cell<bool>,
    pub writable: Cell<bool>,
    /// The server has closed its side: the end comes after what is still to be read, and is not told again.
    pub gone: Cell<bool>,
    /// Whether the conversation waits for the server.
    pub waiting: Cell<bool>,
    /// It has waited too long: it gives up.
    pub expired: Cell<bool>,
}

impl Readiness {
    /// What the poll tells of the socket.
    pub fn hear(&self, flags: EventFlags) {
        let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP);
        if gone {
            self.gone.set(true);
        }
        if gone || flags.contains(EventFlags::IN) {
            self.readable.set(true);
        }
        if gone || flags.contains(EventFlags::OUT) {
            self.writable.set(true);
        }
    }
}

/// A place in a thread's poll.
#[derive(Clone)]
pub struct Slot {
    pub poll: Rc<OwnedFd>,
    pub token: u64,
    pub readiness: Rc<Readiness>,
}

/// What has passed over a connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    pub round_trips: u64,
    pub statements: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl Traffic {
    pub fn add(&mut self, other: Self) {
        self.round_trips += other.round_trips;
        self.statements += other.statements;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
    }
}

pub struct Transport {
    socket: OwnedFd,
    slot: Slot,
    out: Vec<u8>,
    /// Where each request that has not been sent ends in `out`.
    ends: VecDeque<usize>,
    sent: usize,
    input: Vec<u8>,
    start: usize,
    end: usize,
    pub traffic: Traffic,
}

impl Transport {
    /// A connected socket in the slot's poll.
    pub async fn open(address: &Address, slot: Slot) -> Result<Self, Trouble> {
        let Readiness { readable, writable, gone, waiting, expired } = &*slot.readiness;
        for flag in [readable, writable, gone, waiting, expired] {
            flag.set(false);
        }
        let (socket, is_connected) = address.begin_connect()?;
        let flags = if is_connected { WATCHED } else { WATCHED | EventFlags::OUT };
        epoll::add(&*slot.poll, &socket, EventData::new_u64(slot.token), flags)
            .map_err(|error| lost("epoll_ctl", error))?;
        let mut transport = Self {
            socket,
            slot,
            out: Vec::with_capacity(READ_BYTES),
            ends: VecDeque::new(),
            sent: 0,
            input: vec![0; 2 * READ_BYTES],
            start: 0,
            end: 0,
            traffic: Traffic::default(),
        };
        if !is_connected {
            transport.until_writable().await?;
            match sockopt::socket_error(&transport.socket) {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => return Err(lost("connect", error)),
            }
        }
        Ok(transport)
    }

    // --- requests ----------------------------------------------------------------------------------------------------

    /// Where the bytes of the next request are written to; `end_request` ends it.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    pub fn end_request(&mut self) {
        self.ends.push_back(self.out.len());
    }

    /// Adds bytes to the last request.
    pub fn extend_last(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        if let Some(end) = self.ends.back_mut() {
            *end = self.out.len();
        }
    }

    /// Requests that have not been sent.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ends.len()
    }

    /// Sends the next `requests` requests in one go: a round trip.
    pub async fn send(&mut self, requests: usize) -> Result<(), Trouble> {
        let Some(&end) = requests.checked_sub(1).and_then(|last| self.ends.get(last)) else {
            return Ok(());
        };
        self.ends.drain(..requests);
        self.traffic.round_trips += 1;
        self.traffic.statements += requests as u64;
        self.traffic.sent_bytes += (end - self.sent) as u64;
        while self.sent < end {
            match send(&self.socket, &self.out[self.sent..end], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.until_writable().await?,
                // The server's last words, if it has left any, say more.
                Err(_) => {
                    self.sent = end;
                    break;
                }
            }
        }
        if self.ends.is_empty() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(())
    }

    /// Forgets requests that have not been sent.
    pub fn forget_waiting(&mut self) {
        self.ends.clear();
        self.out.clear();
        self.sent = 0;
    }

    /// Sends what there is room for, without waiting, as the last thing.
    pub fn say_goodbye(&mut self, bytes: &[u8]) {
        let _ = send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    async fn until_writable(&mut self) -> Result<(), Trouble> {
        self.watch(WATCHED | EventFlags::OUT)?;
        self.slot.readiness.writable.set(false);
        let readiness = Rc::clone(&self.slot.readiness);
        let outcome = poll_fn(|_| {
            let polled = match (readiness.expired.get(), readiness.writable.get()) {
                (true, _) => Poll::Ready(Err(Trouble::TimedOut)),
                (false, true) => Poll::Ready(Ok(())),
                (false, false) => Poll::Pending,
            };
            readiness.waiting.set(polled.is_pending());
            polled
        })
        .await;
        self.watch(WATCHED)?;
        outcome
    }

    fn watch(&self, flags: EventFlags) -> Result<(), Trouble> {
        epoll::modify(&*self.slot.poll, &self.socket, EventData::new_u64(self.slot.token), flags)
            .map_err(|error| lost("epoll_ctl", error))
    }

    // --- answers -----------------------------------------------------------------------------------------------------

    /// To be called before the first byte of an answer is looked at: what lay before it may be forgotten.
    pub fn begin_answer(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > READ_BYTES {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// What has arrived and has not been used.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    /// All that has been kept; positions in it hold until `begin_answer`.
    #[must_use]
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Position in `input` of the first byte that has not been used.
    #[must_use]
    pub fn position(&self) -> usize {
        self.start
    }

    pub fn advance(&mut self, count: usize) {
        self.start += count;
    }

    /// Waits until more has arrived.
    pub async fn fill(&mut self) -> Result<(), Trouble> {
        if self.input.len() - self.end < READ_BYTES {
            if self.input.len() >= MAX_ANSWER_BYTES {
                return Err(Trouble::Lost(format!("an answer of more than {MAX_ANSWER_BYTES} bytes")));
            }
            self.input.resize(2 * self.input.len(), 0);
        }
        poll_fn(|_| {
            let polled = self.poll_fill();
            self.slot.readiness.waiting.set(polled.is_pending());
            polled
        })
        .await
    }

    fn poll_fill(&mut self) -> Poll<Result<(), Trouble>> {
        let readiness = &self.slot.readiness;
        if readiness.expired.get() {
            return Poll::Ready(Err(Trouble::TimedOut));
        }
        while readiness.readable.get() {
            let room = &mut self.input[self.end..];
            let size = room.len();
            match recv(&self.socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    return Poll::Ready(Err(Trouble::Lost("the server has closed the connection".to_owned())));
                }
                Ok((count, _)) => {
                    self.end += count;
                    self.traffic.received_bytes += count as u64;
                    // What comes after this is told anew by the poll.
                    readiness.readable.set(count == size || readiness.gone.get());
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    readiness.readable.set(false);
                    readiness.gone.set(false); // that was told of a connection before this one
                }
                Err(error) => return Poll::Ready(Err(lost("recv", error))),
            }
        }
        Poll::Pending
    }
}

#[must_use]
pub fn lost(call: &str, error: Errno) -> Trouble {
    Trouble::Lost(format!("{call}: {}", std::io::Error::from(error)))
}
