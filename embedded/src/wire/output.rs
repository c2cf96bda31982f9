//! What is to be sent: messages are collected and sent in large pieces.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::engine::EngineError;

/// So much is sent in one go.
const FLUSH_BYTES: usize = 64 * 1024;

/// Transaction status of a session, as ReadyForQuery says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Idle,
    InTransaction,
    Failed,
}

impl Status {
    fn letter(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }
}

/// Messages on their way to a client.
pub struct Output {
    stream: Arc<UnixStream>,
    bytes: Vec<u8>,
}

impl Output {
    #[must_use]
    pub fn new(stream: Arc<UnixStream>) -> Self {
        Self { stream, bytes: Vec::with_capacity(FLUSH_BYTES) }
    }

    /// Sends everything.
    pub fn flush(&mut self) -> io::Result<()> {
        let sent = (&*self.stream).write_all(&self.bytes);
        self.bytes.clear();
        // One huge row must not keep its memory for the session's life.
        self.bytes.shrink_to(2 * FLUSH_BYTES);
        sent
    }

    /// Sends everything if there is enough of it.
    pub fn flush_if_full(&mut self) -> io::Result<()> {
        if self.bytes.len() >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    /// The bytes that have not been sent.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// One message: its tag, and what `write` writes.
    pub fn message(&mut self, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.push(tag);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        write(&mut self.bytes);
        self.patch_length(start, 0);
    }

    /// Writes the bytes from `start` on as a length at `start`, `less` of them not counted.
    pub fn patch_length(&mut self, start: usize, less: usize) {
        let length = i32::try_from(self.bytes.len() - start - less).unwrap_or(i32::MAX);
        self.bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    pub fn command_complete(&mut self, tag: &str) {
        self.message(b'C', |out| push_c_string(out, tag));
    }

    pub fn error(&mut self, error: &EngineError, is_fatal: bool) {
        self.message(b'E', |out| push_fields(out, if is_fatal { "FATAL" } else { "ERROR" }, error));
    }

    pub fn warning(&mut self, sqlstate: &'static str, message: &str) {
        self.message(b'N', |out| push_fields(out, "WARNING", &EngineError::new(sqlstate, message)));
    }

    pub fn parameter(&mut self, name: &str, value: &str) {
        self.message(b'S', |out| {
            push_c_string(out, name);
            push_c_string(out, value);
        });
    }

    pub fn ready(&mut self, status: Status) -> io::Result<()> {
        self.message(b'Z', |out| out.push(status.letter()));
        self.flush()
    }
}

fn push_fields(out: &mut Vec<u8>, severity: &str, error: &EngineError) {
    for (field, text) in [(b'S', severity), (b'V', severity), (b'C', error.sqlstate), (b'M', error.message.trim_end())]
    {
        out.push(field);
        push_c_string(out, text);
    }
    out.push(0);
}

/// `text` up to its first NUL, and a NUL.
pub fn push_c_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.split('\0').next().unwrap_or_default().as_bytes());
    out.push(0);
}
