//! Wire protocols of database servers: what both the blocking and any other driver need.

use serde::Deserialize;

pub mod bare;
pub mod blocking;
pub mod copy_data;
pub mod mysql;
pub mod null;
pub mod postgres;
pub mod postgres_numeric;

pub use postgres::{ServerError, Violation};

/// Which protocol a server speaks, and with whose words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    Postgres,
    /// `PostgreSQL`'s protocol, and standard SQL alone: no rows in binary form, no locks on rows that are read.
    Standard,
    Mysql,
}
