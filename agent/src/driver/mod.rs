//! Load drivers: they run statements against a server and time them.

pub mod answer;
pub mod lines;
pub mod mysql_session;
pub mod serial;
pub mod server;
pub mod session;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use answer::{Expected, Row};

/// How a statement is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryProtocol {
    /// One Query message; may hold several statements.
    Simple,
    /// Parse, Bind, Describe, Execute, Sync in one go.
    Extended,
    /// Parsed once per connection; then Bind, Describe, Execute, Sync.
    Prepared,
}

/// What to execute, and how often.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    pub id: String,
    pub sql: String,
    #[serde(default)]
    pub parameters: Vec<Option<String>>,
    pub query_protocol: QueryProtocol,
    #[serde(default = "one")]
    pub min_executions: u64,
    #[serde(default)]
    pub measurement_time_ns: u64,
    #[serde(default = "thousand")]
    pub max_executions: u64,
    #[serde(default)]
    pub timeout_ns: Option<u64>,
    /// The name of an answer that was told before.
    #[serde(default)]
    pub answer: Option<String>,
    #[serde(skip)]
    pub expected: Option<Arc<Expected>>,
    #[serde(default)]
    pub keep_rows: bool,
}

impl Statement {
    /// SQL without parameters, executed once.
    #[must_use]
    pub fn simple(id: &str, sql: String) -> Self {
        Self {
            id: id.to_owned(),
            sql,
            parameters: Vec::new(),
            query_protocol: QueryProtocol::Simple,
            min_executions: 1,
            measurement_time_ns: 0,
            max_executions: 1,
            timeout_ns: None,
            answer: None,
            expected: None,
            keep_rows: false,
        }
    }
}

fn one() -> u64 {
    1
}

fn thousand() -> u64 {
    1000
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    Timeout,
    Error,
    WrongAnswer,
}

/// A database's error, or (without an SQLSTATE) the loss of its connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DatabaseError {
    pub sqlstate: Option<String>,
    pub message: String,
    /// Character in the statement, from 1.
    pub position: Option<u32>,
}

/// One execution of a statement. Times are those of the agent's clock.
#[derive(Debug, Clone, Serialize)]
pub struct Execution {
    pub statement: String,
    pub start_ns: u64,
    pub connected_ns: Option<u64>,
    pub first_byte_ns: Option<u64>,
    pub end_ns: u64,
    pub rows: u64,
    pub result_bytes: u64,
    pub outcome: Outcome,
    pub error: Option<DatabaseError>,
    pub difference: Option<String>,
    pub digest: Option<String>,
    pub result: Option<Vec<Row>>,
}
