//! What a client sends, cut into messages.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// One read.
const READ_BYTES: usize = 64 * 1024;
/// The longest message that is taken. Memory is used only as its bytes come.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// `MAX_STARTUP_PACKET_LENGTH` of PostgreSQL.
const MAX_STARTUP_BYTES: usize = 10_000;
const LENGTH_BYTES: usize = 4;

/// A client's bytes.
pub struct Input {
    stream: Arc<UnixStream>,
    buffer: Vec<u8>,
    /// What has not been handed out lies here in `buffer`.
    pending: Range<usize>,
}

/// A message: its tag, and its body until the next one is read.
pub struct Message<'a> {
    pub tag: u8,
    pub body: &'a [u8],
}

impl Input {
    #[must_use]
    pub fn new(stream: Arc<UnixStream>) -> Self {
        Self { stream, buffer: vec![0; READ_BYTES], pending: 0..0 }
    }

    /// The body of a start-up message, which has no tag. None: the client is gone.
    pub fn startup(&mut self) -> io::Result<Option<&[u8]>> {
        if !self.fill(LENGTH_BYTES)? {
            return Ok(None);
        }
        let length = self.length_at(0, MAX_STARTUP_BYTES)?;
        if !self.fill(length)? {
            return Ok(None);
        }
        Ok(Some(&self.take(length)[LENGTH_BYTES..]))
    }

    /// The next message. None: the client is gone.
    pub fn message(&mut self) -> io::Result<Option<Message<'_>>> {
        if !self.fill(1 + LENGTH_BYTES)? {
            return Ok(None);
        }
        let total = 1 + self.length_at(1, MAX_MESSAGE_BYTES)?;
        if !self.fill(total)? {
            return Ok(None);
        }
        let bytes = self.take(total);
        Ok(Some(Message { tag: bytes[0], body: &bytes[1 + LENGTH_BYTES..] }))
    }

    fn length_at(&self, offset: usize, limit: usize) -> io::Result<usize> {
        let start = self.pending.start + offset;
        let bytes: [u8; 4] = self.buffer[start..start + LENGTH_BYTES].try_into().unwrap_or_default();
        let length = usize::try_from(i32::from_be_bytes(bytes)).unwrap_or_default();
        if (LENGTH_BYTES..=limit).contains(&length) {
            Ok(length)
        } else {
            Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("a message of {length} bytes; from 4 to {limit} are taken"),
            ))
        }
    }

    fn take(&mut self, count: usize) -> &[u8] {
        let start = self.pending.start;
        self.pending.start += count;
        &self.buffer[start..start + count]
    }

    /// Reads until `count` bytes are pending. False: the client is gone.
    fn fill(&mut self, count: usize) -> io::Result<bool> {
        while self.pending.len() < count {
            if self.pending.is_empty() {
                self.pending = 0..0;
                // One huge message must not keep its memory for the session's life.
                if self.buffer.len() > 16 * READ_BYTES {
                    self.buffer = vec![0; READ_BYTES];
                }
            }
            if self.pending.start > 0 && self.pending.start + count > self.buffer.len() {
                self.buffer.copy_within(self.pending.clone(), 0);
                self.pending = 0..self.pending.len();
            }
            if self.pending.end == self.buffer.len() {
                // Grows with what came, not with what was announced.
                let longer = (2 * self.buffer.len()).min(count.max(READ_BYTES));
                self.buffer.resize(longer.max(self.pending.end + 1), 0);
            }
            match (&*self.stream).read(&mut self.buffer[self.pending.end..]) {
                Ok(0) => return Ok(false),
                Ok(read) => self.pending.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
