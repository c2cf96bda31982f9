//! Wire protocols of database servers: what both the blocking and any other driver need.

pub mod blocking;
pub mod null;
pub mod postgres;
