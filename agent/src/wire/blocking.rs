//! One blocking PostgreSQL session: connect, exchange a request for its whole answer, cancel, copy in.
//!
//! Blocking on purpose: between the request and its answer lies nothing but one `send`, the waiting and the `recv`s.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout as Direction, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use serde_json::json;

use super::postgres::{
    self, AnswerScan, BackendKey, ERROR_RESPONSE, HEADER_BYTES, Login, MAX_STARTUP_MESSAGE_BYTES, ServerError, Startup,
    StartupError, Violation, messages,
};
pub use crate::address::Address;
use crate::clock::now_ns;
use crate::failure::{Code, Failure};

/// How long a server may take to accept a connection, and then for the whole start-up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a server may take to give in after a cancel request, and to close its side after a goodbye.
const GIVE_IN_TIMEOUT: Duration = Duration::from_secs(10);
/// All that a server may say before its session is ready.
const MAX_STARTUP_BYTES: usize = 1 << 20;
/// Longest answer that is kept whole in memory.
const MAX_ANSWER_BYTES: usize = 1 << 30;
/// Least room for one `recv`. The server sends in pieces of 8 KiB; a slow reader finds more.
const READ_BYTES: usize = 64 * 1024;
const FIRST_BUFFER_BYTES: usize = 1 << 20;
/// With a statement timeout, how far behind the real deadline the socket's own may be while an answer trickles in.
const DEADLINE_SLACK_NS: u64 = 1_000_000;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The server's own error; the session goes on unless it is fatal.
    Server(ServerError),
    /// The statement took longer than it may. The session goes on if the server gave in, and is dropped if not.
    TimedOut,
    /// There is nobody at the address.
    NotFound(String),
    /// The connection is gone or cannot be understood any more; it must be dropped.
    Lost(String),
    /// Somebody ended all this through the `Interrupter`.
    Interrupted,
    /// The request itself cannot be sent.
    BadRequest(String),
}

impl From<Violation> for Trouble {
    fn from(violation: Violation) -> Self {
        Self::Lost(format!("the server broke the protocol: {}", violation.0))
    }
}

impl From<StartupError> for Trouble {
    fn from(error: StartupError) -> Self {
        match error {
            StartupError::Refused(error) => Self::Server(error),
            StartupError::Violation(violation) => violation.into(),
            StartupError::Authentication(text) => Self::Lost(text),
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Server(error) => {
                Self::new(Code::Server, error.to_string()).with_detail(json!({"sqlstate": error.sqlstate}))
            }
            Trouble::TimedOut => Self::new(Code::Timeout, "the server does not answer"),
            Trouble::NotFound(text) => Self::new(Code::NotFound, text),
            Trouble::Lost(text) => Self::new(Code::Io, text),
            Trouble::Interrupted => Self::cancelled(),
            Trouble::BadRequest(text) => Self::bad_request(text),
        }
    }
}

/// Of connecting.
impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        match failure.code {
            Code::BadRequest => Self::BadRequest(failure.message),
            Code::NotFound => Self::NotFound(failure.message),
            _ => Self::Lost(failure.message),
        }
    }
}

fn connect(address: &Address, timeout: Duration) -> Result<Arc<OwnedFd>, Trouble> {
    Ok(Arc::new(address.connect(timeout)?))
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Appends what has arrived to `buffer`; 0 at the end of the stream.
fn receive_into(socket: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Ok((count, _)) => return Ok(count),
            Err(error) => return Err(error),
        }
    }
}

/// Ends, from another thread, whatever a session waits for, and keeps it from connecting again.
#[derive(Clone, Default)]
pub struct Interrupter(Arc<Mutex<InterrupterState>>);

#[derive(Default)]
struct InterrupterState {
    is_interrupted: bool,
    sockets: Vec<Arc<OwnedFd>>,
}

impl Interrupter {
    pub fn interrupt(&self) {
        let mut state = self.state();
        state.is_interrupted = true;
        for socket in &state.sockets {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.state().is_interrupted
    }

    fn watch(&self, socket: &Arc<OwnedFd>) -> Result<(), Trouble> {
        let mut state = self.state();
        if state.is_interrupted {
            return Err(Trouble::Interrupted);
        }
        state.sockets.push(Arc::clone(socket));
        Ok(())
    }

    fn forget(&self, socket: &Arc<OwnedFd>) {
        self.state().sockets.retain(|other| !Arc::ptr_eq(other, socket));
    }

    fn state(&self) -> MutexGuard<'_, InterrupterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When things happened in one exchange, and what the scan of its answer counted.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    pub start_ns: u64,
    pub first_byte_ns: Option<u64>,
    pub end_ns: u64,
    pub scan: AnswerScan,
}

/// A session with a server. Its buffer lives on from answer to answer (and, through `reconnect`, from connection to
/// connection), so that steady runs neither allocate nor touch fresh memory.
pub struct Connection {
    address: Address,
    socket: Arc<OwnedFd>,
    key: Option<BackendKey>,
    interrupter: Interrupter,
    buffer: AnswerBuffer,
    socket_timeout: Option<Duration>,
}

/// Where answers are collected: raw, all messages of one answer one after the other.
pub struct AnswerBuffer {
    /// Always initialised over its whole length; `filled` tells how much of it counts.
    bytes: Vec<u8>,
    filled: usize,
    /// End of the latest answer: what lies beyond it came unasked and belongs to the next one.
    end: usize,
}

impl Default for AnswerBuffer {
    fn default() -> Self {
        // Ones, not zeros: zeroed memory would be lent by the kernel only when the first answer touches it.
        Self { bytes: vec![1; FIRST_BUFFER_BYTES], filled: 0, end: 0 }
    }
}

impl AnswerBuffer {
    fn start_next_answer(&mut self) {
        self.bytes.copy_within(self.end..self.filled, 0);
        self.filled -= self.end;
        self.end = 0;
    }

    /// BIAS: an answer larger than any before it grows the buffer in its timed part, which costs page faults; the first
    /// execution of a statement with a large answer therefore is slower than the later ones on the driver's account.
    fn room(&mut self) -> Result<&mut [u8], Trouble> {
        if self.bytes.len() - self.filled < READ_BYTES {
            if self.filled >= MAX_ANSWER_BYTES {
                return Err(Trouble::Lost(format!("the answer is longer than {MAX_ANSWER_BYTES} bytes")));
            }
            self.bytes.resize((self.bytes.len() * 2).min(MAX_ANSWER_BYTES + READ_BYTES), 0);
        }
        Ok(&mut self.bytes[self.filled..])
    }
}

impl Connection {
    /// Connects and logs in. `buffer` is that of an earlier connection, or a new one.
    pub fn open(
        address: &Address,
        login: &Login,
        timeout: Option<Duration>,
        interrupter: &Interrupter,
        buffer: AnswerBuffer,
    ) -> Result<Self, Trouble> {
        let timeout = timeout.unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT);
        let socket = connect(address, timeout)?;
        interrupter.watch(&socket)?;
        let interrupter = interrupter.clone();
        let buffer = AnswerBuffer { filled: 0, end: 0, ..buffer };
        let mut connection =
            Self { address: address.clone(), socket, key: None, interrupter, buffer, socket_timeout: None };
        connection.log_in(login, timeout)?;
        Ok(connection)
    }

    fn log_in(&mut self, login: &Login, timeout: Duration) -> Result<(), Trouble> {
        self.set_socket_timeout(Some(timeout))?;
        let deadline_ns = now_ns().saturating_add(nanoseconds(timeout));
        let mut startup = Startup::new(login);
        let mut out = BytesMut::new();
        startup.begin(&mut out)?;
        self.send(&out)?;
        loop {
            let scanned = postgres::header(self.pending(), MAX_STARTUP_MESSAGE_BYTES)?;
            if let Some((tag, body)) = scanned.and_then(|_| messages(self.pending()).next()) {
                out.clear();
                let ready = startup.receive(tag, body, &mut out)?;
                self.buffer.end += HEADER_BYTES + body.len();
                if !out.is_empty() {
                    self.send(&out)?;
                }
                if let Some(key) = ready {
                    self.key = key;
                    return Ok(());
                }
            } else if self.buffer.filled > MAX_STARTUP_BYTES {
                let text = format!("the server said more than {MAX_STARTUP_BYTES} bytes without being ready");
                return Err(self.lost(&text));
            } else if now_ns() >= deadline_ns {
                return Err(Trouble::TimedOut);
            } else if self.receive()? == 0 {
                return Err(self.lost("the server closed the connection while it was being opened"));
            }
        }
    }

    /// The server's process, where the server told it.
    #[must_use]
    pub fn server_pid(&self) -> Option<i32> {
        self.key.map(|key| key.process_id)
    }

    /// Sends `request` and reads until ReadyForQuery. The answer then lies in `answer()`, also when it holds an error.
    ///
    /// `since_ns`: when the statement's time began, if before this call; `timeout` counts from there.
    ///
    /// BIAS: inside the timed part the driver adds one `send`, one `recv` for each piece that the server sends (with
    /// the wake-up of this thread, on an arm with one CPU a switch away from the server), a look at each message's
    /// header, and two readings of the clock; with a timeout one more reading for each piece.
    pub fn exchange(
        &mut self,
        request: &[u8],
        since_ns: Option<u64>,
        timeout: Option<Duration>,
    ) -> (Exchange, Result<(), Trouble>) {
        self.buffer.start_next_answer();
        let prepared = self.set_socket_timeout(timeout);
        let start_ns = since_ns.unwrap_or_else(now_ns);
        let mut exchange = Exchange { start_ns, first_byte_ns: None, end_ns: start_ns, scan: AnswerScan::default() };
        let deadline_ns = timeout.map(|timeout| start_ns.saturating_add(nanoseconds(timeout)));
        let outcome = prepared.and_then(|()| self.exchange_timed(request, deadline_ns, &mut exchange));
        if outcome.is_err() {
            exchange.end_ns = now_ns();
        }
        let outcome = match outcome {
            Err(Trouble::TimedOut) => Err(self.make_give_in(is_extended(request), &mut exchange)),
            other => other,
        };
        self.buffer.end = exchange.scan.end().min(self.buffer.filled);
        (exchange, outcome)
    }

    fn exchange_timed(
        &mut self,
        request: &[u8],
        deadline_ns: Option<u64>,
        exchange: &mut Exchange,
    ) -> Result<(), Trouble> {
        // A server that has gone may have left its last words, which say more than the failed sending.
        match send_all(&self.socket, request) {
            Err(Errno::AGAIN) => Err(Trouble::TimedOut),
            _ => self.read_answer(is_extended(request), deadline_ns, exchange),
        }
    }

    fn read_answer(
        &mut self,
        is_extended: bool,
        deadline_ns: Option<u64>,
        exchange: &mut Exchange,
    ) -> Result<(), Trouble> {
        let mut armed_ns = exchange.start_ns;
        loop {
            let has_come = match self.receive() {
                Ok(0) => return Err(self.last_words()),
                Ok(_) => true,
                Err(Trouble::TimedOut) => false,
                Err(Trouble::Lost(text)) => return Err(self.last_words_or(&text)),
                Err(trouble) => return Err(trouble),
            };
            if has_come {
                if exchange.first_byte_ns.is_none() {
                    exchange.first_byte_ns = Some(now_ns());
                }
                if exchange.scan.advance(&self.buffer.bytes[..self.buffer.filled])? {
                    exchange.end_ns = now_ns();
                    return Ok(());
                }
                if std::mem::take(&mut exchange.scan.wants_copy_data) {
                    self.refuse_copy(is_extended)?;
                }
            }
            if let Some(deadline_ns) = deadline_ns {
                let at_ns = now_ns();
                if at_ns >= deadline_ns {
                    return Err(Trouble::TimedOut);
                }
                if !has_come || at_ns - armed_ns > DEADLINE_SLACK_NS {
                    self.set_socket_timeout(Some(Duration::from_nanos(deadline_ns - at_ns)))?;
                    armed_ns = at_ns;
                }
            }
        }
    }

    /// Cancels the running statement and reads what the server still says. The connection is good afterwards only if
    /// `exchange.scan.ready` is set.
    fn make_give_in(&mut self, is_extended: bool, exchange: &mut Exchange) -> Trouble {
        let deadline_ns = now_ns() + nanoseconds(GIVE_IN_TIMEOUT);
        if self.cancel_statement().is_ok() && self.set_socket_timeout(Some(GIVE_IN_TIMEOUT)).is_ok() {
            match self.read_answer(is_extended, Some(deadline_ns), exchange) {
                Ok(()) => return Trouble::TimedOut,
                Err(Trouble::Interrupted) => return Trouble::Interrupted,
                Err(_) => {}
            }
        }
        exchange.end_ns = now_ns();
        if self.interrupter.is_interrupted() { Trouble::Interrupted } else { Trouble::TimedOut }
    }

    /// Asks the server, on a connection of its own, to give up the running statement. Returns when the server has
    /// passed the request on: it then closes that connection. Returning earlier could cancel the next statement.
    fn cancel_statement(&self) -> Result<(), Trouble> {
        let key = self.key.ok_or_else(|| Trouble::Lost("the server gave no key to cancel with".to_owned()))?;
        let socket = connect(&self.address, GIVE_IN_TIMEOUT)?;
        self.interrupter.watch(&socket)?;
        let mut request = BytesMut::new();
        frontend::cancel_request(key.process_id, key.secret_key, &mut request);
        let closed = set_socket_timeout(&socket, Direction::Recv, Some(GIVE_IN_TIMEOUT))
            .and_then(|()| send_all(&socket, &request))
            .and_then(|()| receive_into(&socket, &mut [0]));
        self.interrupter.forget(&socket);
        closed.map(|_| ()).map_err(|error| self.lost(&format!("the cancel request failed: {error}")))
    }

    /// A statement that turns out to be a COPY FROM STDIN waits for data; we have none.
    fn refuse_copy(&mut self, is_extended: bool) -> Result<(), Trouble> {
        let mut out = BytesMut::new();
        frontend::copy_fail("the driver sends no COPY data", &mut out).map_err(|error| bad_request(&error))?;
        if is_extended {
            // The COPY has swallowed the Sync that came with the statement.
            frontend::sync(&mut out);
        }
        self.send(&out)
    }

    /// The latest answer, raw: complete messages, to be read with `postgres::messages`.
    #[must_use]
    pub fn answer(&self) -> &[u8] {
        &self.buffer.bytes[..self.buffer.end]
    }

    /// The first error in the latest answer.
    pub fn server_error(&self) -> Result<Option<ServerError>, Violation> {
        let error = messages(self.answer()).find(|(tag, _)| *tag == ERROR_RESPONSE);
        error.map(|(_, body)| postgres::server_error(body)).transpose()
    }

    /// Runs untimed statements of ours and insists that they succeed; the answer lies in `answer()`.
    pub fn run(&mut self, sql: &str) -> Result<(), Trouble> {
        let mut request = BytesMut::new();
        postgres::simple_query(sql, &mut request).map_err(|error| bad_request(&error))?;
        self.exchange(&request, None, None).1?;
        self.server_error()?.map_or(Ok(()), |error| Err(Trouble::Server(error)))
    }

    /// Says goodbye and waits until the server has closed its side, so that its process no longer competes with what
    /// is measured next. The kernel tears down a process's memory before it closes its sockets.
    #[must_use]
    pub fn close(mut self) -> AnswerBuffer {
        let mut out = BytesMut::new();
        frontend::terminate(&mut out);
        let deadline_ns = now_ns() + nanoseconds(GIVE_IN_TIMEOUT);
        if self.set_socket_timeout(Some(GIVE_IN_TIMEOUT)).is_ok() && self.send(&out).is_ok() {
            self.buffer.filled = 0;
            while now_ns() < deadline_ns && matches!(self.receive(), Ok(1..)) {
                self.buffer.filled = 0;
            }
        }
        self.into_buffer()
    }

    /// Drops the connection as it is.
    #[must_use]
    pub fn into_buffer(mut self) -> AnswerBuffer {
        std::mem::replace(&mut self.buffer, AnswerBuffer { bytes: Vec::new(), filled: 0, end: 0 })
    }

    /// Starts a COPY FROM STDIN.
    pub fn begin_copy(&mut self, sql: &str) -> Result<(), Trouble> {
        let mut request = BytesMut::new();
        postgres::simple_query(sql, &mut request).map_err(|error| bad_request(&error))?;
        self.buffer.start_next_answer();
        self.send(&request)?;
        let mut scan = AnswerScan::default();
        while !scan.wants_copy_data || self.buffer.filled < scan.end() {
            if self.receive()? == 0 {
                return Err(self.last_words());
            }
            if scan.advance(&self.buffer.bytes[..self.buffer.filled])? {
                self.buffer.end = scan.end();
                return Err(self.server_error()?.map_or_else(|| self.lost("COPY took no data"), Trouble::Server));
            }
        }
        self.buffer.end = scan.end();
        Ok(())
    }

    /// Sends bytes that are CopyData messages already; fails early when the server has refused something before.
    pub fn copy(&mut self, copy_data_messages: &[u8]) -> Result<(), Trouble> {
        if has_input(&self.socket) {
            if self.receive()? == 0 {
                return Err(self.last_words());
            }
            if messages(self.pending()).any(|(tag, _)| tag == ERROR_RESPONSE) {
                return self.finish_copy();
            }
        }
        self.send(copy_data_messages)
    }

    /// Ends the COPY and waits for the server's verdict.
    pub fn finish_copy(&mut self) -> Result<(), Trouble> {
        let mut out = BytesMut::new();
        frontend::copy_done(&mut out);
        self.exchange(&out, None, None).1?;
        self.server_error()?.map_or(Ok(()), |error| Err(Trouble::Server(error)))
    }

    /// Bytes received and not yet consumed.
    fn pending(&self) -> &[u8] {
        &self.buffer.bytes[self.buffer.end..self.buffer.filled]
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        send_all(&self.socket, bytes).map_err(|error| {
            if error == Errno::AGAIN {
                return Trouble::TimedOut;
            }
            // A server that has gone may have left its last words.
            let _ = self.receive();
            self.last_words_or(&format!("the connection to the server broke: {error}"))
        })
    }

    /// Appends what has arrived to the buffer; 0 at the end of the stream.
    fn receive(&mut self) -> Result<usize, Trouble> {
        match receive_into(&self.socket, self.buffer.room()?) {
            Ok(count) => {
                self.buffer.filled += count;
                Ok(count)
            }
            Err(Errno::AGAIN) => Err(Trouble::TimedOut),
            Err(error) => Err(self.lost(&format!("the connection to the server broke: {error}"))),
        }
    }

    fn last_words(&self) -> Trouble {
        self.last_words_or("the server closed the connection before it had answered")
    }

    /// What a server that went away said at last, or else `text`.
    fn last_words_or(&self, text: &str) -> Trouble {
        let said = messages(&self.buffer.bytes[..self.buffer.filled])
            .filter(|(tag, _)| *tag == ERROR_RESPONSE)
            .find_map(|(_, body)| postgres::server_error(body).ok().filter(|error| error.is_fatal));
        said.map_or_else(|| self.lost(text), Trouble::Server)
    }

    fn lost(&self, text: &str) -> Trouble {
        if self.interrupter.is_interrupted() { Trouble::Interrupted } else { Trouble::Lost(text.to_owned()) }
    }

    /// A system call only when the timeout changes, and never between `start_ns` and the request.
    fn set_socket_timeout(&mut self, timeout: Option<Duration>) -> Result<(), Trouble> {
        // Zero would mean for ever.
        let timeout = timeout.map(|timeout| timeout.max(Duration::from_micros(1)));
        if timeout != self.socket_timeout {
            let set = set_socket_timeout(&self.socket, Direction::Recv, timeout)
                .and_then(|()| set_socket_timeout(&self.socket, Direction::Send, timeout));
            set.map_err(|error| Trouble::Lost(format!("cannot set a socket's timeout: {error}")))?;
            self.socket_timeout = timeout;
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.interrupter.forget(&self.socket);
    }
}

/// A request is either one Query message or messages of the extended protocol with a Sync at their end.
fn is_extended(request: &[u8]) -> bool {
    request.first() != Some(&b'Q')
}

/// True when something can be read at once: bytes or the end.
fn has_input(socket: &OwnedFd) -> bool {
    let peeked = recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(peeked, Err(Errno::AGAIN | Errno::INTR))
}

fn bad_request(error: &io::Error) -> Trouble {
    Trouble::BadRequest(format!("the statement cannot be sent: {error}"))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
