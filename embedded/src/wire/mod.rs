//! The server's side of PostgreSQL's wire protocol 3.0, whatever the engine ("Frontend/Backend Protocol", chapters 55.2 to 55.8).
//!
//! The crates at hand either want an async runtime's types, a newer compiler, or know only the client's side.

pub mod answer;
pub mod input;
pub mod messages;
pub mod output;
