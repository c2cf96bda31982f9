//! Bytes between a stream and descriptors (a program's pipes, a socket, a device), on one thread that waits for all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;

use crate::clock;
use crate::failure::Failure;
use crate::proto::{CONTROL, MAIN};
use crate::stream::{StreamHandle, StreamSender};

/// More than the longest stamp: room that is kept for one before anything is read or written.
const STAMP_BYTES: usize = 128;
const READ_BYTES: usize = 128 * 1024;

pub struct Output {
    pub channel: u16,
    pub file: OwnedFd,
}

/// What happens to the target when the controller's input has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InputEnd {
    Close,
    ShutDownSocket,
    Ignore,
}

pub struct Relay {
    stream: StreamHandle,
    sender: StreamSender,
    event: Arc<OwnedFd>,
    stamps: bool,
    input: Option<OwnedFd>,
    input_end: InputEnd,
    outputs: Vec<Output>,
    /// Taken from the stream; `pending[written..]` is still to be written to the target.
    pending: Vec<u8>,
    written: usize,
    written_bytes: u64,
    read_bytes: u64,
    buffer: Vec<u8>,
    /// What is in the outputs now is all that will come: take it and do not wait for more.
    is_draining: bool,
}

impl Relay {
    /// All descriptors must be non-blocking.
    pub fn new(
        stream: StreamHandle,
        stamps: bool,
        input: Option<OwnedFd>,
        input_end: InputEnd,
        outputs: Vec<Output>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            sender: stream.sender(),
            event: stream.event()?,
            stream,
            stamps,
            input,
            input_end,
            outputs,
            pending: Vec::new(),
            written: 0,
            written_bytes: 0,
            read_bytes: 0,
            buffer: vec![0; READ_BYTES],
            is_draining: false,
        })
    }

    pub fn is_cancelled(&self) -> bool {
        self.stream.is_cancelled()
    }

    /// Whether all outputs have reached their end of file.
    pub fn is_finished(&self) -> bool {
        self.outputs.is_empty()
    }

    /// The target has ended: relays what its outputs hold now and returns. What others that still hold these outputs
    /// write later is not waited for.
    pub fn drain(&mut self) -> Result<(), Failure> {
        self.is_draining = true;
        self.input = None;
        while !self.is_finished() {
            if self.is_cancelled() && !self.has_credit() {
                self.abandon();
            } else {
                self.step(None, None)?;
            }
        }
        Ok(())
    }

    /// Nobody wants the rest.
    pub fn abandon(&mut self) {
        self.input = None;
        self.outputs.clear();
    }

    /// A control message of the method itself.
    pub fn tell(&self, message: &serde_json::Value) -> Result<(), Failure> {
        self.sender.write(CONTROL, message.to_string().as_bytes())
    }

    /// Whether something may be read from the target, and its stamp be sent.
    fn has_credit(&self) -> bool {
        self.stream.peek().credit > self.reserved_bytes()
    }

    /// Credit that is kept for a stamp.
    fn reserved_bytes(&self) -> usize {
        if self.stamps { STAMP_BYTES } else { 0 }
    }

    /// Waits until something can be done (or `other` is readable, or `deadline` has come) and does it.
    /// An error is the target's; that the connection is lost shows as `is_cancelled`, and nothing more is relayed.
    pub fn step(&mut self, other: Option<BorrowedFd<'_>>, deadline: Option<Instant>) -> Result<(), Failure> {
        let has_credit = self.has_credit();
        let waits_to_write = self.written < self.pending.len() && (has_credit || !self.stamps);

        let mut polled = vec![PollFd::new(&*self.event, PollFlags::IN)];
        let watched_outputs = if has_credit { self.outputs.as_slice() } else { &[] };
        polled.extend(watched_outputs.iter().map(|output| PollFd::new(&output.file, PollFlags::IN)));
        if let Some(input) = self.input.as_ref().filter(|_| waits_to_write) {
            polled.push(PollFd::new(input, PollFlags::OUT));
        }
        if let Some(other) = other {
            polled.push(PollFd::from_borrowed_fd(other, PollFlags::IN));
        }
        // What is drained does not wait for more output, only for credit.
        let is_ready = self.is_draining && has_credit;
        wait(&mut polled, if is_ready { Some(Instant::now()) } else { deadline })?;

        let is_event = !polled[0].revents().is_empty();
        let readable: Vec<bool> =
            (0..watched_outputs.len()).map(|n| self.is_draining || !polled[1 + n].revents().is_empty()).collect();
        drop(polled);
        if is_event {
            // Only resets the counter; what changed is looked up in the stream itself.
            let _ = rustix::io::read(&*self.event, &mut [0_u8; 8][..]);
        }
        // Backwards: an output that ends is removed.
        for index in (0..readable.len()).rev().filter(|n| readable[*n]) {
            self.forward_output(index)?;
        }
        self.forward_input()
    }

    fn forward_output(&mut self, index: usize) -> Result<(), Failure> {
        let credit = self.stream.peek().credit;
        let Some(room) = credit.checked_sub(self.reserved_bytes()).filter(|room| *room > 0) else { return Ok(()) };
        let room = room.min(self.buffer.len());
        let Output { channel, file } = &self.outputs[index];
        let channel = *channel;
        match rustix::io::read(file, &mut self.buffer[..room]) {
            Ok(count) if count > 0 => {
                let at_ns = clock::now_ns();
                if self.send_output(channel, count, at_ns).is_err() {
                    self.abandon();
                }
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(Errno::AGAIN) if !self.is_draining => Ok(()),
            // EIO: the other end of a terminal was hung up.
            Ok(_) | Err(Errno::AGAIN | Errno::IO) => {
                self.outputs.remove(index);
                Ok(())
            }
            Err(error) => Err(Failure::io("read", error)),
        }
    }

    fn send_output(&mut self, channel: u16, count: usize, at_ns: u64) -> Result<(), Failure> {
        if self.stamps && channel == MAIN {
            self.read_bytes += count as u64;
            let stamp = json!({"read_bytes": self.read_bytes, "at_ns": at_ns}).to_string();
            self.sender.write_within_credit(CONTROL, stamp.as_bytes())?;
        }
        self.sender.write_within_credit(channel, &self.buffer[..count])
    }

    fn forward_input(&mut self) -> Result<(), Failure> {
        loop {
            if self.written == self.pending.len() {
                self.written = 0;
                // Before the input is taken: what arrives in between is not its end.
                let has_ended = self.stream.peek().input_ended;
                self.pending = self.stream.take_input();
                if self.pending.is_empty() {
                    if has_ended {
                        self.end_input();
                    }
                    return Ok(());
                }
            }
            let rest = &self.pending[self.written..];
            let Some(input) = &self.input else {
                // Nobody reads it any more: let the controller go on nevertheless.
                let count = rest.len();
                self.written += count;
                let _ = self.stream.grant(count);
                continue;
            };
            if self.stamps && !self.has_credit() {
                return Ok(());
            }
            // Before the write: preempted after it, the stamp would come when the other side has long begun.
            let at_ns = clock::now_ns();
            match rustix::io::write(input, rest) {
                Ok(count) => {
                    self.written += count;
                    self.written_bytes += count as u64;
                    let _ = self.stream.grant(count);
                    if self.stamps {
                        let stamp = json!({"written_bytes": self.written_bytes, "at_ns": at_ns}).to_string();
                        let _ = self.sender.write_within_credit(CONTROL, stamp.as_bytes());
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                // The target reads no more, which is its right.
                Err(Errno::PIPE | Errno::CONNRESET) => self.input = None,
                Err(error) => return Err(Failure::io("write", error)),
            }
        }
    }

    /// The target gets no more input.
    pub fn end_input(&mut self) {
        match (&self.input, self.input_end) {
            (Some(socket), InputEnd::ShutDownSocket) => {
                // Fails only if the peer is gone, which the output shows.
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
                self.input = None;
            }
            (Some(_), InputEnd::Close) => self.input = None,
            (Some(_), InputEnd::Ignore) | (None, _) => {}
        }
    }
}

fn wait(polled: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<(), Failure> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.map(|left| Timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match poll(polled, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Failure::io("poll", error)),
    }
}

/// Makes a descriptor fit for [`Relay`].
pub fn set_nonblocking(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(file, true)?)
}
