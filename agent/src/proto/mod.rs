//! The wire form of docs/PROTOCOL.md: bytes to frames and back. Knows nothing of threads, streams or methods.

pub mod frame;
pub mod hello;

pub use frame::{Decoded, Frame, FrameReader, HEADER_BYTES, Header, Kind, Violation};
pub use hello::{Hello, Role};

/// Largest payload of one frame.
pub const MAX_PAYLOAD_BYTES: usize = 262_144;
/// The protocol version that this build speaks.
pub const VERSION: u8 = 1;

/// Channels of a DATA frame.
pub const MAIN: u16 = 0;
pub const ERROR_OUTPUT: u16 = 1;
pub const CONTROL: u16 = 2;
