//! One stream of a connection as its handler sees it, and the one writer that all streams share.

use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

pub use crate::failure::{Code, Failure};
use crate::lock;
use crate::proto::frame::violation;
use crate::proto::{Header, Kind, Violation};

/// More outstanding credit than this breaks the protocol.
const MAX_CREDIT: u32 = i32::MAX as u32;

/// Writes whole frames, one at a time, and numbers them.
pub struct FrameWriter {
    output: Mutex<Output>,
}

struct Output {
    file: std::fs::File,
    sequence: u32,
    /// Set by the first failed write: half a frame may be on the line, so nothing may follow it.
    lost: bool,
}

impl FrameWriter {
    #[must_use]
    pub fn new(output: OwnedFd) -> Self {
        Self { output: Mutex::new(Output { file: output.into(), sequence: 0, lost: false }) }
    }

    /// Blocks until the transport has taken the frame. Fails with `cancelled` once the connection is lost.
    pub fn send(&self, kind: Kind, channel: u16, stream: u32, payload: &[u8]) -> Result<(), Failure> {
        let mut output = lock(&self.output);
        if output.lost {
            return Err(Failure::cancelled());
        }
        let header = Header { kind, channel, stream, sequence: output.sequence }.encode(payload);
        output.sequence = output.sequence.wrapping_add(1);
        write_both(&mut output.file, &header, payload).map_err(|_| {
            output.lost = true;
            Failure::cancelled()
        })
    }
}

fn write_both(file: &mut std::fs::File, header: &[u8], payload: &[u8]) -> io::Result<()> {
    let mut parts = [IoSlice::new(header), IoSlice::new(payload)];
    let mut rest = &mut parts[..];
    // A payload may be empty, and `write_all_vectored` is not stable.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match file.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut rest, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What both sides agreed on in their HELLOs.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// DATA bytes that this side takes per stream before it grants more.
    pub window_bytes: u32,
    pub peer_window_bytes: u32,
    /// Largest payload that both sides take.
    pub max_payload_bytes: usize,
}

/// What the connection's reader and the stream's handler share.
pub(crate) struct Shared {
    id: u32,
    writer: Arc<FrameWriter>,
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Received and not yet taken by the handler; the window bounds it.
    input: Vec<u8>,
    input_ended: bool,
    /// DATA bytes that the controller may still send.
    room: u32,
    /// Taken by the handler but not yet granted again.
    ungranted: u32,
    /// DATA bytes that this side may still send.
    credit: u32,
    cancelled: bool,
    on_cancel: Option<Box<dyn FnOnce() + Send>>,
    /// Signalled at each change, for a handler that polls descriptors.
    event: Option<Arc<OwnedFd>>,
}

impl Shared {
    pub(crate) fn new(id: u32, writer: Arc<FrameWriter>, limits: Limits) -> Self {
        let state = State {
            input: Vec::new(),
            input_ended: false,
            room: limits.window_bytes,
            ungranted: 0,
            credit: limits.peer_window_bytes,
            cancelled: false,
            on_cancel: None,
            event: None,
        };
        Self { id, writer, limits, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A DATA frame arrived.
    pub(crate) fn receive(&self, bytes: &[u8]) -> Result<(), Violation> {
        self.change(|state| {
            if state.input_ended {
                return Err(violation(format!("DATA after END on stream {}", self.id)));
            }
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            state.room = state
                .room
                .checked_sub(length)
                .ok_or_else(|| violation(format!("more DATA than credit on stream {}", self.id)))?;
            state.input.extend_from_slice(bytes);
            Ok(())
        })
    }

    /// A CREDIT frame arrived.
    pub(crate) fn add_credit(&self, bytes: u32) -> Result<(), Violation> {
        self.change(|state| {
            let credit = state.credit.checked_add(bytes).filter(|sum| *sum <= MAX_CREDIT);
            state.credit = credit.ok_or_else(|| violation(format!("too much credit on stream {}", self.id)))?;
            Ok(())
        })
    }

    /// An END frame arrived.
    pub(crate) fn end_input(&self) -> Result<(), Violation> {
        self.change(|state| {
            if std::mem::replace(&mut state.input_ended, true) {
                return Err(violation(format!("a second END on stream {}", self.id)));
            }
            Ok(())
        })
    }

    pub(crate) fn cancel(&self) {
        let action = self.change(|state| {
            state.cancelled = true;
            state.on_cancel.take()
        });
        if let Some(action) = action {
            action();
        }
    }

    fn change<T>(&self, apply: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let result = apply(&mut state);
        if let Some(event) = &state.event {
            // Can fail only when the counter is at its maximum, and then it is readable anyhow.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
        drop(state);
        self.changed.notify_all();
        result
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handler's end of one stream.
pub struct StreamHandle {
    shared: Arc<Shared>,
}

impl StreamHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// All input bytes that have come since the last call, at least one; waits for them. `None` after END.
    /// Fails with `cancelled` when the controller gave up or the connection is lost.
    pub fn read(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let mut state = lock(&self.shared.state);
        loop {
            if state.cancelled {
                return Err(Failure::cancelled());
            }
            if !state.input.is_empty() {
                break;
            }
            if state.input_ended {
                return Ok(None);
            }
            state = self.shared.wait(state);
        }
        let input = std::mem::take(&mut state.input);
        drop(state);
        self.grant(input.len())?;
        Ok(Some(input))
    }

    /// Sends all `bytes` on `channel`, in as many frames as it takes; waits for credit.
    /// Fails with `cancelled` when the controller gave up or the connection is lost.
    pub fn write(&self, channel: u16, bytes: &[u8]) -> Result<(), Failure> {
        self.sender().write(channel, bytes)
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        lock(&self.shared.state).cancelled
    }

    /// Has `action` called once, when the stream is cancelled or the connection is lost (at once if that has happened):
    /// for a handler that waits for something else. It runs on the connection's reader and must be short.
    pub fn on_cancel(&self, action: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.shared.state);
        if state.cancelled {
            drop(state);
            action();
        } else {
            state.on_cancel = Some(Box::new(action));
        }
    }

    /// A second handle that only sends, for the handler's other threads.
    #[must_use]
    pub fn sender(&self) -> StreamSender {
        StreamSender { shared: Arc::clone(&self.shared) }
    }

    /// A descriptor that becomes readable at each change of this stream (input, END, credit, cancel).
    pub(crate) fn event(&self) -> Result<Arc<OwnedFd>, Failure> {
        let event =
            eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| Failure::io("eventfd", e))?;
        let event = Arc::new(event);
        lock(&self.shared.state).event = Some(Arc::clone(&event));
        Ok(event)
    }

    /// The state at this moment, for a handler that polls.
    pub(crate) fn peek(&self) -> Peek {
        let state = lock(&self.shared.state);
        Peek { input_ended: state.input_ended, credit: state.credit as usize }
    }

    /// Takes what input there is without waiting and without granting it again.
    pub(crate) fn take_input(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.shared.state).input)
    }

    /// Lets the controller send as many bytes again as the handler is done with.
    pub(crate) fn grant(&self, bytes: usize) -> Result<(), Failure> {
        let mut state = lock(&self.shared.state);
        state.ungranted += u32::try_from(bytes).unwrap_or(u32::MAX);
        // A quarter of the window at a time: three quarters are always open, and few frames are spent on it.
        if state.ungranted < self.shared.limits.window_bytes / 4 || state.input_ended {
            return Ok(());
        }
        let granted = std::mem::take(&mut state.ungranted);
        state.room += granted;
        drop(state);
        self.shared.writer.send(Kind::Credit, 0, self.shared.id, &granted.to_le_bytes())
    }
}

/// A momentary view of a stream.
pub(crate) struct Peek {
    pub input_ended: bool,
    pub credit: usize,
}

#[derive(Clone)]
pub struct StreamSender {
    shared: Arc<Shared>,
}

impl StreamSender {
    /// As [`StreamHandle::write`]. Calls of several threads may interleave at frame boundaries.
    pub fn write(&self, channel: u16, bytes: &[u8]) -> Result<(), Failure> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut state = lock(&self.shared.state);
            while state.credit == 0 && !state.cancelled {
                state = self.shared.wait(state);
            }
            if state.cancelled {
                return Err(Failure::cancelled());
            }
            let count = rest.len().min(state.credit as usize).min(self.shared.limits.max_payload_bytes);
            state.credit -= u32::try_from(count).unwrap_or(u32::MAX);
            drop(state);
            let (now, later) = rest.split_at(count);
            self.shared.writer.send(Kind::Data, channel, self.shared.id, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Sends within the credit that [`StreamHandle::peek`] showed, also on a cancelled stream; never waits for credit.
    pub(crate) fn write_within_credit(&self, channel: u16, bytes: &[u8]) -> Result<(), Failure> {
        for part in bytes.chunks(self.shared.limits.max_payload_bytes) {
            let mut state = lock(&self.shared.state);
            let left = state.credit.checked_sub(u32::try_from(part.len()).unwrap_or(u32::MAX));
            state.credit = left.ok_or_else(|| Failure::new(Code::Internal, "sent beyond the credit"))?;
            drop(state);
            self.shared.writer.send(Kind::Data, channel, self.shared.id, part)?;
        }
        Ok(())
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        lock(&self.shared.state).cancelled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { window_bytes: 8000, peer_window_bytes: 5000, max_payload_bytes: 4096 };

    /// A stream, and the agent's output as a controller would read it.
    fn stream() -> (Arc<Shared>, StreamHandle, std::fs::File) {
        let (output, input) = rustix::pipe::pipe().unwrap();
        let shared = Arc::new(Shared::new(1, Arc::new(FrameWriter::new(input)), LIMITS));
        (Arc::clone(&shared), StreamHandle::new(shared), output.into())
    }

    fn next(reader: &mut crate::proto::FrameReader<std::fs::File>) -> (Kind, u16, Vec<u8>) {
        match reader.next_frame() {
            Ok(crate::proto::Decoded::Frame(frame)) => (frame.kind, frame.channel, frame.payload.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn input_is_bounded_by_the_window_and_granted_again() {
        let (shared, mut handle, output) = stream();
        shared.receive(&[1; 8000]).unwrap();
        assert_eq!(shared.receive(&[1]).unwrap_err().code, Code::Protocol);
        assert_eq!(handle.read().unwrap().unwrap().len(), 8000);
        let mut reader = crate::proto::FrameReader::new(output);
        assert_eq!(next(&mut reader), (Kind::Credit, 0, 8000_u32.to_le_bytes().to_vec()));
        shared.receive(&[2; 8000]).unwrap();
        shared.end_input().unwrap();
        assert_eq!(handle.read().unwrap().unwrap(), [2; 8000]);
        assert_eq!(handle.read().unwrap(), None);
        assert_eq!(shared.end_input().unwrap_err().code, Code::Protocol);
        assert_eq!(shared.receive(&[3]).unwrap_err().code, Code::Protocol);
    }

    #[test]
    fn output_is_cut_to_payloads_and_waits_for_credit() {
        let (shared, handle, output) = stream();
        let mut reader = crate::proto::FrameReader::new(output);
        let writer = std::thread::spawn(move || handle.write(1, &[7; 6000]));
        assert_eq!(next(&mut reader), (Kind::Data, 1, vec![7; 4096]));
        assert_eq!(next(&mut reader), (Kind::Data, 1, vec![7; 5000 - 4096]));
        assert!(!writer.is_finished());
        shared.add_credit(400).unwrap();
        assert_eq!(next(&mut reader), (Kind::Data, 1, vec![7; 400]));
        shared.add_credit(1000).unwrap();
        assert_eq!(next(&mut reader), (Kind::Data, 1, vec![7; 600]));
        writer.join().unwrap().unwrap();
        assert_eq!(shared.add_credit(u32::MAX).unwrap_err().code, Code::Protocol);
        assert_eq!(shared.add_credit(i32::MAX as u32).unwrap_err().code, Code::Protocol);
        shared.add_credit(i32::MAX as u32 - 400).unwrap();
    }

    #[test]
    fn cancelling_wakes_reader_and_writer() {
        let (shared, mut handle, _output) = stream();
        let sender = handle.sender();
        let writer = std::thread::spawn(move || sender.write(0, &[0; 6000]));
        let reader = std::thread::spawn(move || handle.read());
        shared.cancel();
        assert_eq!(writer.join().unwrap().unwrap_err().code, Code::Cancelled);
        assert_eq!(reader.join().unwrap().unwrap_err().code, Code::Cancelled);
    }

    #[test]
    fn a_lost_connection_cancels() {
        let (_, handle, output) = stream();
        drop(output);
        assert_eq!(handle.write(0, b"x").unwrap_err().code, Code::Cancelled);
    }
}
