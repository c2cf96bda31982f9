//! The handshake: each side says who it is and what it takes.

use serde::{Deserialize, Serialize};

use super::frame::violation;
use super::{MAX_PAYLOAD_BYTES, VERSION, Violation};
use crate::clock;

pub const MAX_STREAMS: u32 = 512;
/// Below this not even a control message fits into a frame.
pub const LEAST_PAYLOAD_BYTES: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Agent,
    Controller,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    pub source: String,
    pub resolution_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub magic: String,
    pub role: Role,
    pub protocol: u32,
    pub build: String,
    pub architecture: String,
    pub pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    pub max_payload_bytes: u32,
    pub max_streams: u32,
    pub window_bytes: u32,
    /// Only of an agent whose line must never hold more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u32>,
}

impl Hello {
    /// This agent's own.
    #[must_use]
    pub fn of_agent(window_bytes: u32, line_bytes: Option<u32>) -> Self {
        Self {
            magic: "dbtoll".into(),
            role: Role::Agent,
            protocol: u32::from(VERSION),
            build: env!("CARGO_PKG_VERSION").into(),
            architecture: std::env::consts::ARCH.into(),
            pid: std::process::id(),
            clock: Some(Clock { source: clock::SOURCE.into(), resolution_ns: clock::resolution_ns() }),
            max_payload_bytes: u32::try_from(MAX_PAYLOAD_BYTES).unwrap_or(u32::MAX),
            max_streams: MAX_STREAMS,
            window_bytes,
            line_bytes,
        }
    }

    /// The payload of a HELLO frame; whose role it is not the codec's to judge.
    pub fn parse(payload: &[u8]) -> Result<Self, Violation> {
        let hello: Self = serde_json::from_slice(payload).map_err(|e| violation(format!("HELLO: {e}")))?;
        if hello.magic != "dbtoll" {
            return Err(violation("HELLO without the magic word: not dbtoll on the other side"));
        }
        if hello.protocol != u32::from(VERSION) {
            return Err(violation(format!("HELLO of protocol {} in a frame of version {VERSION}", hello.protocol)));
        }
        let payload_range = LEAST_PAYLOAD_BYTES as usize..=MAX_PAYLOAD_BYTES;
        if !payload_range.contains(&(hello.max_payload_bytes as usize)) {
            return Err(violation(format!("HELLO: max_payload_bytes must be in {payload_range:?}")));
        }
        if !(LEAST_PAYLOAD_BYTES..=i32::MAX as u32).contains(&hello.window_bytes) {
            return Err(violation(format!("HELLO: window_bytes must be from {LEAST_PAYLOAD_BYTES} to {}", i32::MAX)));
        }
        Ok(hello)
    }
}
