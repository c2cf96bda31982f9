//! A server that speaks the PostgreSQL wire and answers every statement at once with an empty result: the floor of what
//! a driver costs. One thread, no memory per statement, a bounded amount per connection.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::postgres::{HEADER_BYTES, MAX_MESSAGE_BYTES, header};

/// One `recv`, and what is kept of a message that has not arrived whole. Of a longer one only this much is looked at.
const READ_BYTES: usize = 64 * 1024;
const MAX_STARTUP_BYTES: usize = 10_000;
const EVENTS: usize = 256;

const PROTOCOL_3: u32 = 3 << 16;
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

const AUTHENTICATION_OK: &[u8] = b"R\0\0\0\x08\0\0\0\0";
const PARAMETERS: [(&str, &str); 5] = [
    ("server_version", "15.0"),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("standard_conforming_strings", "on"),
];
const NO_COLUMNS: &[u8] = b"T\0\0\0\x06\0\0";
const NO_PARAMETERS: &[u8] = b"t\0\0\0\x06\0\0";
const COMPLETE: &[u8] = b"C\0\0\0\x0dSELECT 0\0";
const READY: &[u8] = b"Z\0\0\0\x05I";
/// A whole answer in the simple protocol: no columns, complete, ready.
const EMPTY_ANSWER: &[u8] = b"T\0\0\0\x06\0\0C\0\0\0\x0dSELECT 0\0Z\0\0\0\x05I";
const PARSE_COMPLETE: &[u8] = b"1\0\0\0\x04";
const BIND_COMPLETE: &[u8] = b"2\0\0\0\x04";
const CLOSE_COMPLETE: &[u8] = b"3\0\0\0\x04";

/// Serves at `path`, where `listen` listens, until SIGTERM or SIGINT; the socket is removed at the end.
pub fn run(path: &Path, listen: impl FnOnce() -> io::Result<UnixListener>) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    // First: whoever finds the socket may end this process at once.
    let stop = termination_signals()?;
    let listener = listen()?;
    let served = serve(&listener, stop.as_fd());
    std::fs::remove_file(path).and(served)
}

/// A descriptor that becomes readable at SIGTERM or SIGINT.
fn termination_signals() -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: an all-zero sigset_t is a valid one to be initialised by sigemptyset; the calls get pointers to it that
    // outlive them; signalfd returns a descriptor that nobody else owns.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC);
        if descriptor < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(descriptor)) }
    }
}

/// Serves until `stop` becomes readable.
pub fn serve(listener: &UnixListener, stop: BorrowedFd<'_>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    let name_of = |descriptor: RawFd| EventData::new_u64(u64::try_from(descriptor).unwrap_or_default());
    epoll::add(&poll, listener, name_of(listener.as_raw_fd()), EventFlags::IN)?;
    epoll::add(&poll, stop, name_of(stop.as_raw_fd()), EventFlags::IN)?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut shared = Shared { input: vec![0; READ_BYTES], output: Vec::with_capacity(READ_BYTES) };
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let data = event.data;
            let descriptor = RawFd::try_from(data.u64()).unwrap_or(-1);
            if descriptor == stop.as_raw_fd() {
                return Ok(());
            }
            if descriptor == listener.as_raw_fd() {
                accept(listener, &poll, &mut clients, name_of)?;
            } else if let Some(slot) = clients.get_mut(usize::try_from(descriptor).unwrap_or(usize::MAX)) {
                // Closing the descriptor takes it out of the poll.
                let is_alive = slot.as_mut().is_some_and(|client| client.attend(&mut shared, &poll).unwrap_or(false));
                if !is_alive {
                    *slot = None;
                }
            }
        }
    }
}

fn accept(
    listener: &UnixListener,
    poll: &OwnedFd,
    clients: &mut Vec<Option<Client>>,
    name_of: impl Fn(RawFd) -> EventData,
) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                let descriptor = stream.as_raw_fd();
                epoll::add(poll, &stream, name_of(descriptor), EventFlags::IN)?;
                let index = usize::try_from(descriptor).unwrap_or_default();
                if clients.len() <= index {
                    clients.resize_with(index + 1, || None);
                }
                clients[index] = Some(Client::new(stream));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Buffers that serve whichever client is being attended to.
struct Shared {
    input: Vec<u8>,
    output: Vec<u8>,
}

struct Client {
    stream: UnixStream,
    speech: Speech,
    /// The beginning of a message whose rest has not come.
    kept: Vec<u8>,
    /// What the client has not taken yet; until it has, nothing more is read from it.
    unsent: Vec<u8>,
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        Self { stream, speech: Speech::default(), kept: Vec::new(), unsent: Vec::new() }
    }

    /// False when the client is done with.
    fn attend(&mut self, shared: &mut Shared, poll: &OwnedFd) -> io::Result<bool> {
        if !self.unsent.is_empty() {
            let output = std::mem::take(&mut self.unsent);
            self.send(&output)?;
            if self.unsent.is_empty() {
                epoll::modify(poll, &self.stream, self.name(), EventFlags::IN)?;
            }
            return Ok(true);
        }
        let count = match self.stream.read(&mut shared.input) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(true),
            Err(error) => return Err(error),
        };
        shared.output.clear();
        let goes_on = if self.kept.is_empty() {
            let (used, goes_on) = self.speech.hear(&shared.input[..count], &mut shared.output);
            self.kept.extend_from_slice(&shared.input[used..count]);
            goes_on
        } else {
            self.kept.extend_from_slice(&shared.input[..count]);
            let (used, goes_on) = self.speech.hear(&self.kept, &mut shared.output);
            self.kept.drain(..used);
            goes_on
        };
        self.send(&shared.output)?;
        if !self.unsent.is_empty() {
            epoll::modify(poll, &self.stream, self.name(), EventFlags::OUT)?;
        }
        Ok(goes_on)
    }

    fn send(&mut self, mut output: &[u8]) -> io::Result<()> {
        while !output.is_empty() {
            match self.stream.write(output) {
                Ok(count) => output = &output[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.unsent = output.to_vec();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn name(&self) -> EventData {
        EventData::new_u64(u64::try_from(self.stream.as_raw_fd()).unwrap_or_default())
    }
}

/// The server's side of one conversation.
#[derive(Default)]
struct Speech {
    is_started: bool,
    /// After an error in the extended protocol everything up to the next Sync is skipped.
    is_skipping_to_sync: bool,
    /// Bytes of a long message that are still to come and of no interest.
    ignored_bytes: usize,
}

impl Speech {
    /// Takes the client's bytes and appends the answers. Returns how many were used, and false when the client is done
    /// with: it said goodbye or what nobody understands.
    fn hear(&mut self, input: &[u8], output: &mut Vec<u8>) -> (usize, bool) {
        let mut used = 0;
        loop {
            let ignored = self.ignored_bytes.min(input.len() - used);
            self.ignored_bytes -= ignored;
            used += ignored;
            let rest = &input[used..];
            let step = if self.is_started { self.message(rest, output) } else { self.startup(rest, output) };
            match step {
                Step::Took(count) => used += count,
                Step::NeedsMore => return (used, true),
                Step::Done => return (used, false),
            }
        }
    }

    fn startup(&mut self, rest: &[u8], output: &mut Vec<u8>) -> Step {
        let number = |at: usize| Some(u32::from_be_bytes(*rest.get(at..)?.first_chunk()?));
        let (Some(length), Some(code)) = (number(0), number(4)) else {
            return Step::NeedsMore;
        };
        let length = length as usize;
        if !(8..=MAX_STARTUP_BYTES).contains(&length) {
            return Step::Done;
        }
        if rest.len() < length {
            return Step::NeedsMore;
        }
        match code {
            SSL_REQUEST | GSS_REQUEST => output.push(b'N'),
            PROTOCOL_3 => {
                self.is_started = true;
                output.extend_from_slice(AUTHENTICATION_OK);
                for (name, value) in PARAMETERS {
                    push_message(output, b'S', &[name.as_bytes(), b"\0", value.as_bytes(), b"\0"]);
                }
                push_message(output, b'K', &[&std::process::id().to_be_bytes(), &[0; 4]]);
                output.extend_from_slice(READY);
            }
            CANCEL_REQUEST => return Step::Done,
            _ => {
                push_error(output, "FATAL", "08P01", "the null server speaks protocol 3.0 only");
                return Step::Done;
            }
        }
        Step::Took(length)
    }

    fn message(&mut self, rest: &[u8], output: &mut Vec<u8>) -> Step {
        let (tag, total_bytes) = match header(rest, MAX_MESSAGE_BYTES) {
            Ok(Some(header)) => (header.tag, header.total_bytes),
            Ok(None) => return Step::NeedsMore,
            Err(_) => return Step::Done,
        };
        if rest.len() < total_bytes && rest.len() < READ_BYTES {
            return Step::NeedsMore;
        }
        let here = rest.len().min(total_bytes);
        self.ignored_bytes = total_bytes - here;
        let body = &rest[HEADER_BYTES..here];
        if self.is_skipping_to_sync && !matches!(tag, b'S' | b'X') {
            return Step::Took(here);
        }
        match tag {
            b'Q' if is_copy(body) => {
                push_error(output, "ERROR", "0A000", "the null server takes no COPY");
                output.extend_from_slice(READY);
            }
            b'Q' => output.extend_from_slice(EMPTY_ANSWER),
            b'P' if is_copy(after_name(body)) => {
                push_error(output, "ERROR", "0A000", "the null server takes no COPY");
                self.is_skipping_to_sync = true;
            }
            b'P' => output.extend_from_slice(PARSE_COMPLETE),
            b'B' => output.extend_from_slice(BIND_COMPLETE),
            b'D' => {
                if body.first() == Some(&b'S') {
                    output.extend_from_slice(NO_PARAMETERS);
                }
                output.extend_from_slice(NO_COLUMNS);
            }
            b'E' => output.extend_from_slice(COMPLETE),
            b'C' => output.extend_from_slice(CLOSE_COMPLETE),
            b'S' => {
                self.is_skipping_to_sync = false;
                output.extend_from_slice(READY);
            }
            // Flush: everything is sent at once anyhow. The rest are leftovers of a refused COPY, which a server drops.
            b'H' | b'd' | b'c' | b'f' => {}
            b'X' => return Step::Done,
            _ => {
                push_error(output, "FATAL", "08P01", "the null server does not know this message");
                return Step::Done;
            }
        }
        Step::Took(here)
    }
}

enum Step {
    Took(usize),
    NeedsMore,
    Done,
}

/// What a client says, as it comes in one piece and then in small ones.
pub(crate) fn hear(bytes: &[u8]) {
    for size in [bytes.len().max(1), 7] {
        let (mut speech, mut kept, mut output) = (Speech::default(), Vec::new(), Vec::new());
        for piece in bytes.chunks(size) {
            kept.extend_from_slice(piece);
            output.clear();
            let (used, goes_on) = speech.hear(&kept, &mut output);
            kept.drain(..used);
            if !goes_on {
                break;
            }
        }
    }
}

/// The SQL text in a Parse body: what follows the statement's name.
fn after_name(body: &[u8]) -> &[u8] {
    let end = body.iter().position(|&byte| byte == 0).map_or(body.len(), |end| end + 1);
    &body[end..]
}

fn is_copy(sql: &[u8]) -> bool {
    let word = sql.trim_ascii_start().get(..5);
    word.is_some_and(|word| word[..4].eq_ignore_ascii_case(b"copy") && !word[4].is_ascii_alphanumeric())
}

fn push_message(output: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    let length = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    output.push(tag);
    output.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    for part in parts {
        output.extend_from_slice(part);
    }
}

fn push_error(output: &mut Vec<u8>, severity: &str, sqlstate: &str, message: &str) {
    let fields = format!("S{severity}\0V{severity}\0C{sqlstate}\0M{message}\0\0");
    push_message(output, b'E', &[fields.as_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::postgres::{execute_prepared, extended_query};
    use proptest::prelude::*;

    fn started() -> Speech {
        Speech { is_started: true, ..Speech::default() }
    }

    fn hear_all(speech: &mut Speech, input: &[u8]) -> (Vec<u8>, bool) {
        let mut output = Vec::new();
        let (used, goes_on) = speech.hear(input, &mut output);
        assert!(used <= input.len());
        (output, goes_on)
    }

    #[test]
    fn encryption_is_declined_and_start_up_granted() {
        let mut speech = Speech::default();
        assert_eq!(hear_all(&mut speech, b"\0\0\0\x08\x04\xd2\x16\x2f"), (b"N".to_vec(), true));
        assert_eq!(hear_all(&mut speech, b"\0\0\0\x08\x04\xd2\x16\x30"), (b"N".to_vec(), true));
        let (output, goes_on) = hear_all(&mut speech, b"\0\0\0\x10\0\x03\0\0user\0u\0\0");
        assert!(goes_on && output.starts_with(AUTHENTICATION_OK) && output.ends_with(READY));
    }

    #[test]
    fn a_long_statement_is_answered_once_and_not_kept() {
        let mut speech = started();
        let mut message = vec![b'Q'];
        message.extend(1_000_004u32.to_be_bytes());
        message.resize(1_000_005, b'x');
        let mut output = Vec::new();
        let mut kept: Vec<u8> = Vec::new();
        for piece in message.chunks(1000) {
            kept.extend(piece);
            let (used, goes_on) = speech.hear(&kept, &mut output);
            assert!(goes_on);
            kept.drain(..used);
            assert!(kept.len() < 2 * READ_BYTES);
        }
        assert_eq!((output, kept.len(), speech.ignored_bytes), (EMPTY_ANSWER.to_vec(), 0, 0));
    }

    #[test]
    fn after_a_refused_copy_everything_up_to_sync_is_skipped() {
        let mut input = bytes::BytesMut::new();
        extended_query(" copy t from stdin", &[], &mut input).unwrap();
        execute_prepared("", &[], &mut input).unwrap();
        let (output, goes_on) = hear_all(&mut started(), &input);
        assert!(goes_on);
        assert_eq!(output[0], b'E');
        let error_bytes = header(&output, MAX_MESSAGE_BYTES).unwrap().unwrap().total_bytes;
        assert_eq!(output[error_bytes..], [READY, BIND_COMPLETE, NO_COLUMNS, COMPLETE, READY].concat());
    }

    proptest! {
        #[test]
        fn garbage_never_panics_nor_is_kept(bytes in proptest::collection::vec(any::<u8>(), 0..2000), started in any::<bool>()) {
            let mut speech = Speech { is_started: started, ..Speech::default() };
            let mut output = Vec::new();
            let mut kept: Vec<u8> = Vec::new();
            for piece in bytes.chunks(97) {
                kept.extend(piece);
                let (used, goes_on) = speech.hear(&kept, &mut output);
                if !goes_on {
                    break;
                }
                kept.drain(..used);
            }
        }
    }
}
