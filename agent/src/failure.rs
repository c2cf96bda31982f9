//! What a stream or a connection can fail with; the codes are those of docs/PROTOCOL.md.

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

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
