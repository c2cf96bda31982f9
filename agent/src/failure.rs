//! What a stream or a connection can fail with; the codes are those of docs/PROTOCOL.md.

use std::fmt::{self, Write};
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Protocol,
    Version,
    BadRequest,
    UnknownMethod,
    Refused,
    NotFound,
    Io,
    Timeout,
    Cancelled,
    TooLarge,
    Server,
    Internal,
}

/// What is left of a message that is too long for its frame, or is printed: it may quote anything that was sent to us.
const SHORT_CHARACTERS: usize = 500;

/// The payload of an ERROR frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub code: Code,
    pub message: String,
    #[serde(default)]
    pub detail: Value,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: json!({}) }
    }

    #[must_use]
    pub fn with_detail(mut self, detail: Value) -> Self {
        self.detail = detail;
        self
    }

    /// As JSON; shortened and without its detail where all of it has more than `max_bytes`.
    #[must_use]
    pub fn payload(&self, max_bytes: usize) -> Vec<u8> {
        let payload = serde_json::to_vec(self).unwrap_or_default();
        if payload.len() <= max_bytes {
            return payload;
        }
        let message: String = self.message.chars().take(SHORT_CHARACTERS).collect();
        serde_json::to_vec(&Self::new(self.code, message)).unwrap_or_default()
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message)
    }

    #[must_use]
    pub fn cancelled() -> Self {
        Self::new(Code::Cancelled, "cancelled")
    }

    /// A refused system call; `what` is its name and, after a blank, what it was called on. A missing file is `not_found`.
    pub fn io(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        let (what, error) = (what.into(), error.into());
        let code = if error.kind() == io::ErrorKind::NotFound { Code::NotFound } else { Code::Io };
        let call = what.split(' ').next().unwrap_or_default();
        let detail = json!({"call": call, "errno": error.raw_os_error()});
        Self::new(code, format!("{what}: {error}")).with_detail(detail)
    }
}

/// One short line, whatever the message holds.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.chars().take(SHORT_CHARACTERS).try_for_each(|letter| {
            if letter.is_control() { write!(f, "{}", letter.escape_default()) } else { f.write_char(letter) }
        })
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_fits_its_frame_and_its_line() {
        for letter in ["a", "\u{1}", "\n", "ä", "\u{1f600}"] {
            let failure = Failure::new(Code::Io, letter.repeat(262_144)).with_detail(json!({"call": "x".repeat(5000)}));
            let payload = failure.payload(4096);
            assert!(payload.len() <= 4096, "{letter:?}: {} bytes", payload.len());
            let read: Failure = serde_json::from_slice(&payload).unwrap();
            assert!(read.code == Code::Io && failure.message.starts_with(&read.message));
            let line = failure.to_string();
            assert!(line.len() <= 4096 && !line.contains(char::is_control), "{letter:?}: {line}");
        }
        let short = Failure::io("open /x", io::Error::from_raw_os_error(2));
        assert_eq!(serde_json::from_slice::<Failure>(&short.payload(4096)).unwrap(), short);
    }
}
