//! One connection: the handshake, then frames to streams. The calling thread only reads; it never writes a frame and
//! never waits for a handler's progress, so a stream that is blocked blocks no other.

use std::collections::HashMap;
use std::io::{self, Read};
use std::mem;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::failure::{Code, Failure};
use crate::lock;
use crate::method;
use crate::proto::frame::{ReadError, violation};
use crate::proto::hello::{LEAST_PAYLOAD_BYTES, MAX_STREAMS};
use crate::proto::{Decoded, Frame, FrameReader, Hello, Kind, MAIN, Role, Violation};
use crate::stream::{FrameWriter, Limits, Shared, StreamHandle};
use crate::workers::Workers;

/// DATA bytes that this agent takes per stream before it grants more.
pub const WINDOW_BYTES: u32 = 1 << 20;
/// Streams that are open, and refusals that have not been written yet. Beyond it nothing more is read until the
/// controller has read some of these.
const MAX_JOBS: usize = 2 * MAX_STREAMS as usize;
/// What handlers get for cleaning up when the connection ends.
const CLEAN_UP_TIME: Duration = Duration::from_secs(1);

/// How a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The controller closed it between two frames.
    EndOfFile,
    /// The controller broke a rule; it has been told.
    Violation(Violation),
    /// The controller ended it with an ERROR on stream 0.
    Refused(Failure),
    /// The transport failed.
    Io(io::Error),
}

/// Serves one controller to the end of the connection. Its streams are cancelled when this returns, but handlers may
/// still be stopping what they started. `line_bytes`: what the line holds, where the controller must be told what has
/// been taken from it.
pub fn serve(source: impl Read, output: OwnedFd, window_bytes: u32, line_bytes: Option<u32>) -> Ended {
    let writer = Arc::new(FrameWriter::new(output));
    let is_greeted = AtomicBool::new(false);
    let source = Granting { source, writer: &writer, line_bytes, taken_bytes: 0, is_greeted: &is_greeted };
    let mut reader = FrameReader::new(source);
    let ended = match greet(&mut reader, &writer, window_bytes, line_bytes) {
        Ok(Some(limits)) => {
            is_greeted.store(true, Ordering::Relaxed);
            let mut connection = Connection::new(Arc::clone(&writer), limits);
            let ended = connection.relay(&mut reader);
            connection.close();
            ended
        }
        Ok(None) => Ended::EndOfFile,
        Err(ended) => ended,
    };
    if let Ended::Violation(violation) = &ended {
        // Every controller takes so much, also one that has not said how much it takes.
        send_last_words(&writer, violation.payload(LEAST_PAYLOAD_BYTES as usize));
    }
    ended
}

/// Reads, and grants anew what has been taken from a line that holds little. The terminal of User Mode Linux is never
/// read again once its 4096 bytes were full (its driver's `line_throttle` drops the interrupt).
struct Granting<'a, R> {
    source: R,
    writer: &'a FrameWriter,
    line_bytes: Option<u32>,
    taken_bytes: u32,
    is_greeted: &'a AtomicBool,
}

impl<R: Read> Read for Granting<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        let Some(line_bytes) = self.line_bytes else { return Ok(count) };
        if self.is_greeted.load(Ordering::Relaxed) {
            self.taken_bytes += u32::try_from(count).unwrap_or(u32::MAX);
            if self.taken_bytes >= line_bytes / 2 {
                // The one frame that is written here: the controller reads at all times, so this does not wait for it.
                let granted = mem::take(&mut self.taken_bytes).to_le_bytes();
                self.writer.send(Kind::Credit, 0, 0, &granted).map_err(|failure| io::Error::other(failure.message))?;
            }
        }
        Ok(count)
    }
}

/// The handshake; `None` if the controller left without a word.
fn greet<R: Read>(
    reader: &mut FrameReader<R>,
    writer: &FrameWriter,
    window_bytes: u32,
    line_bytes: Option<u32>,
) -> Result<Option<Limits>, Ended> {
    let Decoded::Frame(frame) = reader.first_frame()? else { return Ok(None) };
    if frame.kind != Kind::Hello {
        return Err(violation(format!("{:?} before HELLO", frame.kind)).into());
    }
    let peer = Hello::parse(frame.payload)?;
    if peer.role != Role::Controller {
        return Err(violation("HELLO of an agent where a controller's was due").into());
    }
    let own = Hello::of_agent(window_bytes, line_bytes);
    let payload = serde_json::to_vec(&own).map_err(|e| Ended::Io(e.into()))?;
    // A controller that is gone already shows as end of file at the next read.
    let _ = writer.send(Kind::Hello, 0, 0, &payload);
    Ok(Some(Limits {
        window_bytes,
        peer_window_bytes: peer.window_bytes,
        max_payload_bytes: own.max_payload_bytes.min(peer.max_payload_bytes) as usize,
    }))
}

impl From<ReadError> for Ended {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Violation(violation) => Self::Violation(violation),
            ReadError::Io(error) => Self::Io(error),
        }
    }
}

impl From<Violation> for Ended {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// Tells the controller why. It may not be reading any more: that must not keep us.
fn send_last_words(writer: &Arc<FrameWriter>, payload: Vec<u8>) {
    let (done, wait) = mpsc::channel();
    let writer = Arc::clone(writer);
    let _ = std::thread::Builder::new().spawn(move || {
        let _ = writer.send(Kind::Error, 0, 0, &payload);
        let _ = done.send(());
    });
    let _ = wait.recv_timeout(Duration::from_secs(1));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    method: String,
    params: Map<String, Value>,
}

struct Connection {
    writer: Arc<FrameWriter>,
    limits: Limits,
    streams: Arc<Mutex<HashMap<u32, Arc<Shared>>>>,
    last_opened: u32,
    workers: Arc<Workers>,
    jobs: Arc<Jobs>,
}

/// Counts what runs for this connection.
#[derive(Default)]
struct Jobs {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Jobs {
    fn begin(&self) {
        let count = self.fewer.wait_while(lock(&self.count), |count| *count >= MAX_JOBS);
        *count.unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn end(&self) {
        *lock(&self.count) -= 1;
        self.fewer.notify_all();
    }

    fn wait_for_all(&self, limit: Duration) {
        drop(self.fewer.wait_timeout_while(lock(&self.count), limit, |count| *count > 0));
    }
}

impl Connection {
    fn new(writer: Arc<FrameWriter>, limits: Limits) -> Self {
        let (streams, workers, jobs) = (Arc::default(), Arc::default(), Arc::default());
        Self { writer, limits, streams, last_opened: 0, workers, jobs }
    }

    fn relay<R: Read>(&mut self, reader: &mut FrameReader<R>) -> Ended {
        loop {
            let step = match reader.next_frame() {
                Ok(Decoded::EndOfFile) => return Ended::EndOfFile,
                Ok(Decoded::Frame(frame)) => self.receive(&frame),
                Err(error) => return error.into(),
            };
            if let Err(ended) = step {
                return ended;
            }
        }
    }

    fn close(&self) {
        for shared in lock(&self.streams).values() {
            shared.cancel();
        }
        self.workers.close();
        self.jobs.wait_for_all(CLEAN_UP_TIME);
    }

    fn receive(&mut self, frame: &Frame<'_>) -> Result<(), Ended> {
        match (frame.kind, frame.stream) {
            (Kind::Hello, _) => return Err(violation("a second HELLO").into()),
            (Kind::Open, stream) => return self.open(stream, frame.payload),
            (Kind::Credit, 0) => return Err(violation("CREDIT for the line to an agent").into()),
            (Kind::Error, 0) => return Err(Ended::Refused(parse_failure(frame.payload)?)),
            (_, stream) if stream > self.last_opened => {
                return Err(violation(format!("{:?} on stream {stream}, which was never opened", frame.kind)).into());
            }
            _ => {}
        }
        let shared = lock(&self.streams).get(&frame.stream).cloned();
        // A stream that is closed already: the frame crossed its END on the way.
        let Some(shared) = shared else { return Ok(()) };
        match frame.kind {
            Kind::Data if frame.channel != MAIN => {
                return Err(violation(format!("input on channel {}", frame.channel)).into());
            }
            Kind::Data => shared.receive(frame.payload)?,
            Kind::Credit => {
                let amount: [u8; 4] = frame.payload.try_into().map_err(|_| violation("CREDIT is one u32"))?;
                shared.add_credit(u32::from_le_bytes(amount))?;
            }
            Kind::End => {
                serde_json::from_slice::<Map<String, Value>>(frame.payload)
                    .map_err(|error| violation(format!("END: {error}")))?;
                shared.end_input()?;
            }
            Kind::Error => {
                parse_failure(frame.payload)?;
                shared.cancel();
            }
            Kind::Hello | Kind::Open => {}
        }
        Ok(())
    }

    fn open(&mut self, stream: u32, payload: &[u8]) -> Result<(), Ended> {
        let due = self.last_opened.checked_add(1);
        if due != Some(stream) {
            return Err(violation(format!("OPEN of stream {stream} after stream {}", self.last_opened)).into());
        }
        self.last_opened = stream;
        let open: Open = serde_json::from_slice(payload).map_err(|error| violation(format!("OPEN: {error}")))?;

        self.jobs.begin();
        let shared = Arc::new(Shared::new(stream, Arc::clone(&self.writer), self.limits));
        let is_accepted = {
            let mut streams = lock(&self.streams);
            let is_accepted = streams.len() < MAX_STREAMS as usize;
            if is_accepted {
                streams.insert(stream, Arc::clone(&shared));
            }
            is_accepted
        };
        let (writer, streams, jobs) = (Arc::clone(&self.writer), Arc::clone(&self.streams), Arc::clone(&self.jobs));
        let max_payload_bytes = self.limits.max_payload_bytes;
        let job = Box::new(move || {
            let result = if is_accepted {
                answer(&open.method, Value::Object(open.params), StreamHandle::new(shared))
            } else {
                Err(Failure::new(Code::Refused, format!("{MAX_STREAMS} streams are open already")))
            };
            // Before the last frame: who reads it may open the next stream in the freed place.
            lock(&streams).remove(&stream);
            let (kind, payload) = last_frame(result, max_payload_bytes);
            // If the connection is lost there is nobody to tell.
            let _ = writer.send(kind, 0, stream, &payload);
            jobs.end();
        });
        self.workers.submit(job).map_err(Ended::Io)
    }
}

fn parse_failure(payload: &[u8]) -> Result<Failure, Violation> {
    serde_json::from_slice(payload).map_err(|error| violation(format!("ERROR: {error}")))
}

/// Runs a handler; its panic is a failure of its stream only.
fn answer(name: &str, params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let Some(handler) = method::lookup(name) else {
        return Err(Failure::new(Code::UnknownMethod, format!("no method {name:?}")));
    };
    guard(name, || handler(params, stream))
}

fn guard(name: &str, call: impl FnOnce() -> Result<Value, Failure>) -> Result<Value, Failure> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Failure::new(Code::Internal, format!("a defect in the method {name}"))))
}

/// The END or ERROR that closes a stream.
fn last_frame(result: Result<Value, Failure>, max_payload_bytes: usize) -> (Kind, Vec<u8>) {
    let failure = match result {
        Ok(value) => {
            let payload = value.to_string().into_bytes();
            if payload.len() <= max_payload_bytes {
                return (Kind::End, payload);
            }
            Failure::new(Code::TooLarge, format!("a result of {} bytes; {max_payload_bytes} fit", payload.len()))
        }
        Err(failure) => failure,
    };
    (Kind::Error, failure.payload(max_payload_bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_panic_is_an_internal_error_of_its_stream() {
        let failure = guard("shaky", || panic!("on purpose")).unwrap_err();
        assert_eq!((failure.code, failure.message.as_str()), (Code::Internal, "a defect in the method shaky"));
    }

    #[test]
    fn results_beyond_one_frame_are_too_large() {
        let (kind, payload) = last_frame(Ok(json!({"a": "x".repeat(4096)})), 4096);
        assert_eq!((kind, parse_failure(&payload).unwrap().code), (Kind::Error, Code::TooLarge));
        let (kind, payload) = last_frame(Err(Failure::new(Code::Io, "\u{1}".repeat(100_000))), 4096);
        assert_eq!((kind, parse_failure(&payload).unwrap().code), (Kind::Error, Code::Io));
        assert!(payload.len() <= 4096);
        let (kind, payload) = last_frame(Ok(json!({})), 4096);
        assert_eq!((kind, payload.as_slice()), (Kind::End, &b"{}"[..]));
    }
}
