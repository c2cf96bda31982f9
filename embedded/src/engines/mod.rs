//! The engines that are known. Another one is a file, and a line in `ENGINES`.

mod duckdb;
mod monetdb;

use crate::engine::Kind;

/// Every engine, by name.
pub const ENGINES: &[Kind] = &[duckdb::KIND, monetdb::KIND];

/// The engine called `name`.
#[must_use]
pub fn named(name: &str) -> Option<&'static Kind> {
    ENGINES.iter().find(|kind| kind.name == name)
}
