//! Messages of a COPY in `PostgreSQL`'s binary form: what stands before and after the rows, and around a part of them. Source:
//! `PostgreSQL` 15 documentation, COPY, "Binary Format"; 55.7, `CopyData`.

use super::postgres::HEADER_BYTES;

pub const SIGNATURE: &[u8; 19] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
pub const TRAILER: [u8; 2] = (-1i16).to_be_bytes();
/// Content of one `CopyData` message, before the row that exceeds it.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// The first message: room for its header, and what stands before the rows.
#[must_use]
pub fn begin() -> Vec<u8> {
    let mut message = Vec::with_capacity(2 * CHUNK_BYTES);
    message.resize(HEADER_BYTES, 0);
    message.extend_from_slice(SIGNATURE);
    message
}

/// Hands the message on with its header, and empties it for the next one.
pub fn send<E>(message: &mut Vec<u8>, hand_on: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let length = u32::try_from(message.len() - 1).unwrap_or(u32::MAX);
    message[0] = b'd';
    message[1..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    hand_on(message)?;
    message.truncate(HEADER_BYTES);
    Ok(())
}
