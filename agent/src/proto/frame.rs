//! One frame: 24 bytes of header, then the payload.

use std::io::{self, Read};

use super::{CONTROL, MAX_PAYLOAD_BYTES, VERSION};
use crate::failure::{Code, Failure};

pub const HEADER_BYTES: usize = 24;
const SYNC: [u8; 4] = *b"dbtl";
/// The header bytes that the checksum covers: all before the checksum itself.
const SUMMED_BYTES: usize = 20;

/// A broken rule: it ends the connection with its code (`protocol` or `version`).
pub type Violation = Failure;

pub fn violation(message: impl Into<String>) -> Violation {
    Failure::new(Code::Protocol, message)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Open = 2,
    Data = 3,
    Credit = 4,
    End = 5,
    Error = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Hello, Self::Open, Self::Data, Self::Credit, Self::End, Self::Error]
            .into_iter()
            .find(|k| *k as u8 == byte)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub channel: u16,
    pub stream: u32,
    pub sequence: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    pub channel: u16,
    pub stream: u32,
    pub payload: &'a [u8],
}

impl Header {
    /// The 24 bytes that go before `payload`.
    ///
    /// # Panics
    /// If `payload` is longer than [`MAX_PAYLOAD_BYTES`].
    #[must_use]
    pub fn encode(self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        let length = u32::try_from(payload.len()).ok().filter(|n| *n as usize <= MAX_PAYLOAD_BYTES);
        let length = length.expect("payloads are cut to the maximum before they are framed");
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&SYNC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.channel.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.stream.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(&bytes, payload);
        bytes[20..24].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..SUMMED_BYTES]);
    hasher.update(payload);
    hasher.finalize()
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

/// Sync, version and length of the header at the start of `bytes` -> payload length.
fn check_header(bytes: &[u8]) -> Result<usize, Violation> {
    if bytes[0..4] != SYNC {
        return Err(violation("no frame begins here: bytes were lost, changed or added on the way"));
    }
    if bytes[4] != VERSION {
        let message = format!("the other side speaks protocol version {}, this one {VERSION}", bytes[4]);
        return Err(Failure::new(Code::Version, message));
    }
    payload_length(bytes).ok_or_else(|| {
        violation(format!("a payload of {} bytes; the maximum is {MAX_PAYLOAD_BYTES}", u32_at(bytes, 16)))
    })
}

fn payload_length(header: &[u8]) -> Option<usize> {
    usize::try_from(u32_at(header, 16)).ok().filter(|length| *length <= MAX_PAYLOAD_BYTES)
}

/// Checksum, sequence, kind, channel and stream of one complete frame.
fn check_frame(bytes: &[u8], sequence: u32) -> Result<Frame<'_>, Violation> {
    let payload = &bytes[HEADER_BYTES..];
    if checksum(bytes, payload) != u32_at(bytes, SUMMED_BYTES) {
        return Err(violation("checksum mismatch: bytes were changed on the way"));
    }
    let found = u32_at(bytes, 12);
    if found != sequence {
        return Err(violation(format!("frame {found} where {sequence} was due: frames were lost or repeated")));
    }
    let kind = Kind::from_byte(bytes[5]).ok_or_else(|| violation(format!("unknown kind of frame {}", bytes[5])))?;
    let channel = u16::from_le_bytes([bytes[6], bytes[7]]);
    if channel > CONTROL || (channel != 0 && kind != Kind::Data) {
        return Err(violation(format!("channel {channel} on a {kind:?} frame")));
    }
    let stream = u32_at(bytes, 8);
    match kind {
        Kind::Hello if stream != 0 => return Err(violation(format!("HELLO on stream {stream}"))),
        Kind::Open | Kind::Data | Kind::End if stream == 0 => {
            return Err(violation(format!("{kind:?} on stream 0, the connection itself")));
        }
        Kind::Data if payload.is_empty() => return Err(violation("an empty DATA frame")),
        Kind::Credit if payload.len() != 4 => return Err(violation("a CREDIT frame that is not one u32")),
        _ => {}
    }
    Ok(Frame { kind, channel, stream, payload })
}

/// What the reader found next.
#[derive(Debug)]
pub enum Decoded<'a> {
    Frame(Frame<'a>),
    /// The peer closed its side between two frames.
    EndOfFile,
}

#[derive(Debug)]
pub enum ReadError {
    Violation(Violation),
    /// The transport failed.
    Io(io::Error),
}

impl From<Violation> for ReadError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// Cuts a byte stream into frames. Memory follows what has been received, never what a length field promises:
/// the buffer grows to at most one frame of maximum size.
pub struct FrameReader<R> {
    source: R,
    buffer: Vec<u8>,
    /// Unread bytes are `buffer[start..end]`.
    start: usize,
    end: usize,
    sequence: u32,
}

/// Enough that one read takes all that a pipe holds.
const READ_BYTES: usize = 128 * 1024;
/// What may come before the first frame: boot messages of a serial line.
const MAX_SKIPPED_BYTES: usize = 65_536;

impl<R: Read> FrameReader<R> {
    pub fn new(source: R) -> Self {
        Self { source, buffer: vec![0; READ_BYTES], start: 0, end: 0, sequence: 0 }
    }

    /// The next frame. After an error the reader must not be used again.
    pub fn next_frame(&mut self) -> Result<Decoded<'_>, ReadError> {
        if !self.fill(HEADER_BYTES)? {
            if self.start == self.end {
                return Ok(Decoded::EndOfFile);
            }
            // What is wrong with the bytes that did come says more than that they are too few.
            let mut header = [0; HEADER_BYTES];
            let there = &self.buffer[self.start..self.end];
            header[..SYNC.len()].copy_from_slice(&SYNC);
            header[4] = VERSION;
            header[..there.len()].copy_from_slice(there);
            check_header(&header)?;
            return Err(violation("the stream ended inside a frame").into());
        }
        let length = check_header(&self.buffer[self.start..self.end])?;
        let total = HEADER_BYTES + length;
        if !self.fill(total)? {
            return Err(violation("the stream ended inside a frame").into());
        }
        let bytes = &self.buffer[self.start..self.start + total];
        self.start += total;
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        Ok(Decoded::Frame(check_frame(bytes, sequence)?))
    }

    /// The first frame: like [`Self::next_frame`], but bytes that are not a frame are skipped, up to a limit.
    pub fn first_frame(&mut self) -> Result<Decoded<'_>, ReadError> {
        let mut skipped = 0;
        loop {
            while self.end - self.start >= SYNC.len() && self.buffer[self.start..self.start + SYNC.len()] != SYNC {
                self.start += 1;
                skipped += 1;
            }
            if skipped > MAX_SKIPPED_BYTES {
                return Err(violation(format!("no frame within {MAX_SKIPPED_BYTES} bytes")).into());
            }
            if self.end - self.start < SYNC.len() {
                if !self.fill(SYNC.len())? {
                    return if skipped == 0 && self.start == self.end {
                        Ok(Decoded::EndOfFile)
                    } else {
                        Err(violation("the stream ended before the first frame").into())
                    };
                }
                continue;
            }
            if self.is_frame_here()? {
                return self.next_frame();
            }
            self.start += 1;
            skipped += 1;
        }
    }

    /// Whether the sync letters at `start` begin a whole and unchanged frame, of whatever version.
    fn is_frame_here(&mut self) -> Result<bool, ReadError> {
        if !self.fill(HEADER_BYTES)? {
            return Ok(false);
        }
        let Some(length) = payload_length(&self.buffer[self.start..]) else { return Ok(false) };
        let total = HEADER_BYTES + length;
        if !self.fill(total)? {
            return Ok(false);
        }
        let bytes = &self.buffer[self.start..self.start + total];
        Ok(checksum(bytes, &bytes[HEADER_BYTES..]) == u32_at(bytes, SUMMED_BYTES))
    }

    /// Reads until `wanted` bytes are there; false if the stream ends before.
    fn fill(&mut self, wanted: usize) -> Result<bool, ReadError> {
        if self.end - self.start >= wanted {
            return Ok(true);
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end < wanted {
            if self.end == self.buffer.len() {
                // Only as much as has been received already: a length field alone takes no memory.
                let grown = (self.buffer.len() * 2).min(HEADER_BYTES + MAX_PAYLOAD_BYTES);
                self.buffer.resize(grown, 0);
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadError::Io(error)),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        let frame = |sequence| Header { kind: Kind::End, channel: 0, stream: 1, sequence }.encode(b"");
        let bytes = [frame(u32::MAX), frame(0), frame(1), frame(1)].concat();
        let mut reader = FrameReader::new(bytes.as_slice());
        reader.sequence = u32::MAX;
        for _ in 0..3 {
            assert!(matches!(reader.next_frame(), Ok(Decoded::Frame(_))));
        }
        let Err(ReadError::Violation(violation)) = reader.next_frame() else { panic!("a repeated frame") };
        assert!(violation.message.contains("frame 1 where 2 was due"), "{violation}");
    }
}
