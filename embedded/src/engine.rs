//! What an embedded engine must be able to do. `engines/` has one file for each.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::sql::{CopyIn, Dialect};
use crate::wire::answer::Answer;

/// An error of the engine, or one that we report in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineError {
    /// Five characters, as PostgreSQL's appendix A lists them.
    pub sqlstate: &'static str,
    pub message: String,
}

impl EngineError {
    #[must_use]
    pub fn new(sqlstate: &'static str, message: impl Into<String>) -> Self {
        Self { sqlstate, message: message.into() }
    }
}

/// Why a statement has no whole answer.
#[derive(Debug)]
pub enum Failure {
    Engine(EngineError),
    /// The client does not take its rows any more.
    Client(io::Error),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Client(error)
    }
}

/// What a statement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It had columns; the answer counted its rows.
    Rows,
    /// It changed so many rows.
    Changed(u64),
    /// Neither.
    Nothing,
}

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub kind: ColumnKind,
}

/// A type as PostgreSQL numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnKind {
    pub oid: u32,
    /// PostgreSQL's type modifier; -1 for none.
    pub modifier: i32,
}

impl ColumnKind {
    #[must_use]
    pub const fn of(oid: u32) -> Self {
        Self { oid, modifier: -1 }
    }

    /// `numeric(precision, scale)`.
    #[must_use]
    pub fn numeric(precision: u8, scale: u8) -> Self {
        Self { oid: oid::NUMERIC, modifier: (i32::from(precision) << 16 | i32::from(scale)) + 4 }
    }
}

/// Object identifiers of PostgreSQL's types (`pg_type.dat`).
pub mod oid {
    pub const BOOL: u32 = 16;
    pub const BYTEA: u32 = 17;
    pub const INT8: u32 = 20;
    pub const INT2: u32 = 21;
    pub const INT4: u32 = 23;
    pub const TEXT: u32 = 25;
    pub const FLOAT4: u32 = 700;
    pub const FLOAT8: u32 = 701;
    pub const BPCHAR: u32 = 1042;
    pub const VARCHAR: u32 = 1043;
    pub const DATE: u32 = 1082;
    pub const TIME: u32 = 1083;
    pub const TIMESTAMP: u32 = 1114;
    pub const TIMESTAMPTZ: u32 = 1184;
    pub const INTERVAL: u32 = 1186;
    pub const NUMERIC: u32 = 1700;
    pub const UUID: u32 = 2950;
}

/// A parameter's value as it came from the client.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Int(i64),
    Float(f64),
    Text(String),
}

/// What an engine is opened with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub library: PathBuf,
    /// Libraries that are loaded before it, in order.
    pub preload: Vec<PathBuf>,
    /// Settings of the engine, by its own names.
    pub settings: Vec<(String, String)>,
}

/// An open database, or why there is none.
pub type Opened = Result<Box<dyn Engine>, String>;

/// A kind of engine: a line in `engines::ENGINES`.
pub struct Kind {
    /// What `--engine` calls it.
    pub name: &'static str,
    /// The version that its library tells.
    pub version: fn(&Options) -> Result<String, String>,
    /// Opens the database at a path, and makes it if there is none.
    pub open: fn(&Options, &str) -> Opened,
}

/// An open database.
pub trait Engine: Send + Sync {
    /// For `server_version`: the engine's name and version.
    fn title(&self) -> String;

    /// How its SQL is cut into words.
    fn dialect(&self) -> Dialect;

    /// A session of its own in the database, used by the calling thread alone.
    fn connect(&self) -> Result<Box<dyn Connection>, EngineError>;

    /// Writes what is to be written, and closes. Called once, when every connection is gone.
    fn close(&self) -> Result<(), EngineError>;
}

/// Stops what a connection is executing; called from other threads.
pub trait Interrupt: Send + Sync {
    fn interrupt(&self);
}

/// A session in a database.
pub trait Connection {
    /// None where the engine's library cannot stop a statement.
    fn interrupter(&self) -> Option<Arc<dyn Interrupt>>;

    /// Executes one statement without parameters.
    fn query(&mut self, sql: &str, answer: &mut Answer<'_>) -> Result<Done, Failure>;

    /// `declared`: the types that the client gave for the first parameters, 0 where it gave none.
    fn prepare(&mut self, sql: &str, declared: &[u32]) -> Result<Box<dyn Statement>, EngineError>;

    /// Begins a transaction with the client's own words: `begin`, `start transaction read only` …
    fn begin(&mut self, sql: &str) -> Result<(), EngineError>;

    /// After an error the transaction is over too.
    fn commit(&mut self) -> Result<(), EngineError>;

    fn roll_back(&mut self) -> Result<(), EngineError>;

    /// Reads rows from the file at `path`, a pipe, into a table, and returns how many.
    fn copy_in(&mut self, copy: &CopyIn, path: &str) -> Result<u64, EngineError>;
}

/// A prepared statement. It lives no longer than its connection is used.
pub trait Statement {
    /// The parameters' types.
    fn parameters(&self) -> &[u32];

    /// The answer's columns as far as they are known before it is executed.
    fn columns(&self) -> &[Column];

    /// `values`: as many as there are parameters.
    fn execute(&mut self, values: &[Value], answer: &mut Answer<'_>) -> Result<Done, Failure>;
}
