//! A conversation with a server, whichever it is, that never blocks its thread.
//!
//! The same transaction text serves both interactions. *Statement*: each request goes alone, when its answer is asked for.
//! *Pipelined*: all that was queued goes at once, with the first answer that is asked for.

pub mod alone;
pub mod mysql;
pub mod postgres;
pub mod rows;
pub mod statement;
pub mod transport;

use std::rc::Rc;

use serde::Deserialize;

use crate::address::Address;
use crate::wire::Dialect;
use crate::wire::blocking::Trouble;
use crate::wire::postgres::Login;
use mysql::Mysql;
use postgres::Postgres;
use rows::Rows;
use statement::{Statement, Value};
use transport::{Slot, Traffic};

/// How the statements of one transaction go to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interaction {
    Statement,
    Pipelined,
    /// One call of a procedure for each transaction.
    Procedure,
}

/// Where to connect, as whom, and what is set and prepared on each connection.
pub struct Target {
    pub address: Address,
    pub login: Login,
    pub dialect: Dialect,
    pub interaction: Interaction,
    /// Statements that begin each session, such as its isolation level.
    pub session: Vec<String>,
    pub statements: Vec<Statement>,
}

pub enum Connection {
    Postgres(Postgres),
    Mysql(Mysql),
}

impl Connection {
    /// Connects, logs in, begins the session and prepares all statements.
    pub async fn open(target: &Rc<Target>, slot: Slot) -> Result<Self, Trouble> {
        let mut connection = match target.dialect {
            Dialect::Postgres | Dialect::Standard => Self::Postgres(Postgres::open(Rc::clone(target), slot).await?),
            Dialect::Mysql => Self::Mysql(Mysql::open(Rc::clone(target), slot).await?),
        };
        for sql in &target.session {
            connection.command(sql).await?;
        }
        connection.take_traffic();
        Ok(connection)
    }

    /// Adds a request to those that wait to be sent. `values`: one for each parameter of the statement.
    pub fn queue(&mut self, statement: usize, values: &[Value<'_>]) {
        match self {
            Self::Postgres(connection) => connection.queue(statement, values),
            Self::Mysql(connection) => connection.queue(statement, values),
        }
    }

    /// The answer to the oldest request whose answer has not been taken; sends what has to be sent for it.
    pub async fn answer(&mut self) -> Result<Rows<'_>, Trouble> {
        match self {
            Self::Postgres(connection) => connection.answer().await,
            Self::Mysql(connection) => connection.answer().await,
        }
    }

    /// A request and its answer; only while no other answer is outstanding.
    pub async fn ask(&mut self, statement: usize, values: &[Value<'_>]) -> Result<Rows<'_>, Trouble> {
        self.queue(statement, values);
        self.answer().await
    }

    /// Takes `count` answers whose content does not matter.
    pub async fn pass(&mut self, count: usize) -> Result<(), Trouble> {
        for _ in 0..count {
            self.answer().await?;
        }
        Ok(())
    }

    /// Whether a transaction's end may be sent before all else of it was answered: `PostgreSQL` skips it after an error;
    /// `MariaDB` does not.
    #[must_use]
    pub fn may_pipeline_commit(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// Forgets what is queued, reads what is still to come, and ends the transaction if there is one.
    pub async fn roll_back(&mut self) -> Result<(), Trouble> {
        match self {
            Self::Postgres(connection) => connection.roll_back().await,
            Self::Mysql(connection) => connection.roll_back().await,
        }
    }

    /// Runs a statement in the text form and forgets its rows; only while no answer is outstanding.
    pub async fn command(&mut self, sql: &str) -> Result<(), Trouble> {
        match self {
            Self::Postgres(connection) => connection.command(sql).await,
            Self::Mysql(connection) => connection.command(sql).await,
        }
    }

    /// Traffic since it was last asked for.
    pub fn take_traffic(&mut self) -> Traffic {
        let traffic = match self {
            Self::Postgres(connection) => &mut connection.transport.traffic,
            Self::Mysql(connection) => &mut connection.transport.traffic,
        };
        std::mem::take(traffic)
    }

    /// Says goodbye, without waiting for an answer.
    pub fn close(self) {
        match self {
            Self::Postgres(connection) => connection.close(),
            Self::Mysql(connection) => connection.close(),
        }
    }
}
