//! A connection that fills tables, in the form of rows that its server takes.
//!
//! *`PostgreSQL`*: COPY in binary form, which costs the server least. *Standard*: COPY of lines of CSV. *`MariaDB`*: LOAD DATA of
//! lines.

use std::rc::Rc;

use crate::driver::answer::{self, Row};
use crate::failure::Failure;
use crate::talk::alone::Alone;
use crate::talk::mysql::{self, Mysql};
use crate::talk::{Interaction, Target};
use crate::wire::Dialect;
use crate::wire::blocking::{Address, AnswerBuffer, Connection, Interrupter};
use crate::wire::copy_data;
use crate::wire::postgres::{HEADER_BYTES, Login};

/// Between the values of a line.
pub const SEPARATOR: u8 = b'|';
/// A value that is missing, in a line of CSV.
pub const CSV_NULL: &[u8] = b"";
/// The same for LOAD DATA.
pub const MYSQL_NULL: &[u8] = b"\\N";

pub enum Loading {
    Binary(Connection),
    Csv { connection: Connection, message: Vec<u8> },
    Mysql { alone: Alone, connection: Box<Mysql>, interrupter: Interrupter },
}

impl Loading {
    pub fn open(
        dialect: Dialect,
        address: &Address,
        login: &Login,
        interrupter: &Interrupter,
    ) -> Result<Self, Failure> {
        let open = || Connection::open(address, login, None, interrupter, AnswerBuffer::default());
        match dialect {
            Dialect::Postgres => Ok(Self::Binary(open()?)),
            Dialect::Standard => Ok(Self::Csv { connection: open()?, message: Vec::new() }),
            Dialect::Mysql => {
                let target = Rc::new(Target {
                    address: address.clone(),
                    login: login.clone(),
                    dialect,
                    interaction: Interaction::Statement,
                    session: Vec::new(),
                    statements: Vec::new(),
                });
                let alone = Alone::new()?;
                let interrupter = interrupter.clone();
                let connection = alone.wait(Mysql::open(target, alone.slot()), || !interrupter.is_interrupted())??;
                let mut loading = Self::Mysql { alone, connection: Box::new(connection), interrupter };
                loading.run("set autocommit = 0, unique_checks = 0, foreign_key_checks = 0")?;
                Ok(loading)
            }
        }
    }

    pub fn run(&mut self, sql: &str) -> Result<(), Failure> {
        match self {
            Self::Binary(connection) | Self::Csv { connection, .. } => Ok(connection.run(sql)?),
            Self::Mysql { alone, connection, interrupter } => {
                Ok(alone.wait(connection.command(sql), || !interrupter.is_interrupted())??)
            }
        }
    }

    pub fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Failure> {
        let rows = match self {
            Self::Binary(connection) | Self::Csv { connection, .. } => {
                connection.run(sql)?;
                answer::rows(connection.answer())
            }
            Self::Mysql { alone, connection, interrupter } => {
                let mut times = mysql::Times::default();
                let told = alone.wait(connection.text(sql, &mut times), || !interrupter.is_interrupted())??;
                answer::rows(&told.rows)
            }
        };
        rows.map_err(|violation| Failure::bad_request(violation.0))
    }

    /// Begins a transaction, and in it the rows of a table. `is_fresh`: the table is empty and nobody else fills it; then
    /// `PostgreSQL` gives it a new file in this transaction, the condition for rows that are frozen and (with
    /// `wal_level=minimal`) for no log.
    pub fn begin(&mut self, table: &str, columns: &str, is_fresh: bool) -> Result<(), Failure> {
        match self {
            Self::Binary(connection) => {
                let begin = if is_fresh { format!("begin; truncate {table}") } else { "begin".to_owned() };
                connection.run(&begin)?;
                let freeze = if is_fresh { ", freeze true" } else { "" };
                Ok(connection.begin_copy(&format!("copy {table} ({columns}) from stdin (format binary{freeze})"))?)
            }
            Self::Csv { connection, .. } => {
                connection.run("begin")?;
                Ok(connection
                    .begin_copy(&format!("copy {table} ({columns}) from stdin (format csv, delimiter '|')"))?)
            }
            Self::Mysql { alone, connection, interrupter } => {
                let sql = format!(
                    "load data local infile 'rows' into table {table} character set latin1 fields terminated by '|' ({columns})"
                );
                Ok(alone.wait(connection.begin_load(&sql), || !interrupter.is_interrupted())??)
            }
        }
    }

    /// `content`: for `PostgreSQL` `CopyData` messages, else lines.
    pub fn send(&mut self, content: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Binary(connection) => Ok(connection.copy(content)?),
            Self::Csv { connection, message } => {
                message.resize(HEADER_BYTES, 0);
                message.extend_from_slice(content);
                Ok(copy_data::send(message, |message| connection.copy(message))?)
            }
            Self::Mysql { alone, connection, interrupter } => {
                Ok(alone.wait(connection.send_load(content), || !interrupter.is_interrupted())??)
            }
        }
    }

    /// Ends the rows; the transaction goes on.
    pub fn end(&mut self) -> Result<(), Failure> {
        match self {
            Self::Binary(connection) | Self::Csv { connection, .. } => Ok(connection.finish_copy()?),
            Self::Mysql { alone, connection, interrupter } => {
                Ok(alone.wait(connection.end_load(), || !interrupter.is_interrupted())??)
            }
        }
    }
}
