//! One server session that executes statements: connects where needed, times, checks, and survives its server's errors.
//! What all servers have in common; `PostgresSession` beneath, `mysql_session` beside it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::BytesMut;

use super::answer::{self, Row};
use super::mysql_session::MysqlSession;
use super::{DatabaseError, Execution, Outcome, QueryProtocol, Statement};
use crate::clock::now_ns;
use crate::failure::Failure;
use crate::wire::Dialect;
use crate::wire::blocking::{Address, AnswerBuffer, Connection, Exchange, Interrupter, Trouble};
use crate::wire::postgres::{self, COMMAND_COMPLETE, Login, ROW_DESCRIPTION, ServerError, messages};

/// Prepared statements kept on one connection; beyond it all are forgotten, and prepared anew when needed.
const MAX_PREPARED: usize = 500;

/// The outcome of an untimed query.
pub struct QueryResult {
    /// Of the last statement that had columns.
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
    pub command_tags: Vec<String>,
}

/// Any server's session. Outer errors of the provided methods end the stream, inner ones are the database's.
pub trait ServerSession {
    /// Opens the connection if there is none.
    fn connected(&mut self, timeout: Option<Duration>) -> Result<(), Stop>;

    /// Says goodbye if there is a connection, and waits until the server has closed its side.
    fn disconnect(&mut self);

    /// Runs SQL untimed in the simple protocol.
    fn try_query(&mut self, sql: &str) -> Result<QueryResult, Stop>;

    /// Does what can be done for a statement before it is timed. One that is to be prepared needs the connection.
    fn make_ready(&mut self, statement: &Statement, timeout: Option<Duration>) -> Result<(), Stop>;

    /// Sends what was made ready on the connection, which is open, and settles what the answer means for the connection:
    /// after it the session can go on in any case, if need be on a new connection. `since_ns`: when the time began, if
    /// before this call; `timeout` counts from there.
    fn exchange(&mut self, since_ns: Option<u64>, timeout: Option<Duration>) -> (Exchange, Result<(), Stop>);

    /// The latest answer: DataRow messages among others.
    fn answer(&self) -> &[u8];

    /// Connects if there is no connection.
    fn connect(&mut self) -> Result<Result<(), DatabaseError>, Failure> {
        match self.connected(None) {
            Ok(()) => Ok(Ok(())),
            Err(stop) => stop.into_database_error().map(Err),
        }
    }

    /// Runs SQL untimed.
    fn query(&mut self, sql: &str) -> Result<Result<QueryResult, DatabaseError>, Failure> {
        match self.try_query(sql) {
            Ok(result) => Ok(Ok(result)),
            Err(stop) => stop.into_database_error().map(Err),
        }
    }

    /// Opens the connection where needed, and does what can be done for a statement before it is timed.
    fn be_ready(&mut self, statement: &Statement) -> Result<(), Stop> {
        self.connected(None)?;
        self.make_ready(statement, statement.timeout_ns.map(Duration::from_nanos))
    }

    /// Executes a statement once on the session's connection.
    fn execute(&mut self, statement: &Statement) -> Result<Execution, Failure> {
        let timeout = statement.timeout_ns.map(Duration::from_nanos);
        let mut execution = Execution::begun(statement);
        let outcome = match self.be_ready(statement) {
            Ok(()) => {
                let (exchange, outcome) = self.exchange(None, timeout);
                execution.times(&exchange, None);
                outcome
            }
            Err(stop) => Err(stop),
        };
        self.settle(statement, execution, outcome)
    }

    /// Executes a statement once on a connection of its own, whose opening is part of its time.
    ///
    /// BIAS: the driver's share of the opening is a handful of system calls (socket, connect, timeouts); an answer's
    /// digest and comparison come before the goodbye, while the server's process waits idle.
    fn execute_alone(&mut self, statement: &Statement) -> Result<Execution, Failure> {
        self.disconnect();
        let timeout = statement.timeout_ns.map(Duration::from_nanos);
        let mut execution = Execution::begun(statement);
        let ready = self.make_ready(statement, timeout);
        let start_ns = now_ns();
        let outcome = match ready.and_then(|()| self.connected(timeout)) {
            Ok(()) => {
                let connected_ns = now_ns();
                let (exchange, outcome) = self.exchange(Some(start_ns), timeout);
                execution.times(&exchange, Some(connected_ns));
                outcome
            }
            Err(stop) => Err(stop),
        };
        let execution = self.settle(statement, execution, outcome);
        self.disconnect();
        execution
    }

    /// What is done with an answer after its time was taken.
    ///
    /// BIAS: it reads the whole answer once more, or twice with a comparison, between two executions; where driver and
    /// server share a processor it takes cache from the server, the more the larger the answer is. Equal in all arms.
    fn settle(
        &mut self,
        statement: &Statement,
        mut execution: Execution,
        outcome: Result<(), Stop>,
    ) -> Result<Execution, Failure> {
        match outcome.and_then(|()| Ok(execution.inspect(statement, self.answer())?)) {
            Ok(()) => {}
            Err(Stop::Timeout(error)) => (execution.outcome, execution.error) = (Outcome::Timeout, Some(error)),
            Err(stop) => {
                execution.error = Some(stop.into_database_error()?);
                execution.outcome = Outcome::Error;
            }
        }
        if execution.end_ns == execution.start_ns {
            execution.end_ns = now_ns();
        }
        Ok(execution)
    }
}

/// The session that speaks the server's dialect.
#[must_use]
pub fn open(dialect: Dialect, address: Address, login: Login, interrupter: Interrupter) -> Box<dyn ServerSession> {
    match dialect {
        Dialect::Postgres | Dialect::Standard => Box::new(Session::new(address, login, interrupter)),
        Dialect::Mysql => Box::new(MysqlSession::new(address, login, interrupter)),
    }
}

impl Execution {
    fn begun(statement: &Statement) -> Self {
        let at_ns = now_ns();
        Self {
            statement: statement.id.clone(),
            start_ns: at_ns,
            connected_ns: None,
            first_byte_ns: None,
            end_ns: at_ns,
            rows: 0,
            result_bytes: 0,
            outcome: Outcome::Ok,
            error: None,
            difference: None,
            digest: None,
            result: None,
        }
    }

    fn times(&mut self, exchange: &Exchange, connected_ns: Option<u64>) {
        self.start_ns = exchange.start_ns;
        self.connected_ns = connected_ns;
        self.first_byte_ns = exchange.first_byte_ns;
        self.end_ns = exchange.end_ns;
        self.rows = exchange.scan.rows;
        self.result_bytes = exchange.scan.row_bytes;
    }

    fn inspect(&mut self, statement: &Statement, answer: &[u8]) -> Result<(), postgres::Violation> {
        self.digest = Some(answer::digest(answer)?);
        if let Some(expected) = &statement.expected {
            self.difference = answer::difference(answer, expected)?;
            if self.difference.is_some() {
                self.outcome = Outcome::WrongAnswer;
            }
        }
        if statement.keep_rows {
            self.result = Some(answer::rows(answer)?);
        }
        Ok(())
    }
}

/// A session with `PostgreSQL`.
pub struct Session {
    address: Address,
    login: Login,
    interrupter: Interrupter,
    connection: Option<Connection>,
    /// The answer buffer while there is no connection.
    spare: Option<AnswerBuffer>,
    /// SQL text to name, on the present connection.
    prepared: HashMap<String, String>,
    request: BytesMut,
}

impl From<ServerError> for DatabaseError {
    fn from(error: ServerError) -> Self {
        Self { sqlstate: Some(error.sqlstate), message: error.message, position: error.position }
    }
}

/// What ends a session for good, or what one statement failed with.
pub enum Stop {
    Cancelled,
    BadRequest(String),
    Timeout(DatabaseError),
    Error(DatabaseError),
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        let plain = |message| DatabaseError { sqlstate: None, message, position: None };
        match trouble {
            Trouble::Server(error) => Self::Error(error.into()),
            Trouble::NotFound(text) | Trouble::Lost(text) => Self::Error(plain(text)),
            Trouble::TimedOut => Self::Timeout(plain("the server took longer than the statement may".to_owned())),
            Trouble::Interrupted => Self::Cancelled,
            Trouble::BadRequest(text) => Self::BadRequest(text),
        }
    }
}

impl From<postgres::Violation> for Stop {
    fn from(violation: postgres::Violation) -> Self {
        Trouble::from(violation).into()
    }
}

impl Stop {
    /// The database's error, or the failure of the whole stream.
    pub(super) fn into_database_error(self) -> Result<DatabaseError, Failure> {
        match self {
            Self::Cancelled => Err(Failure::cancelled()),
            Self::BadRequest(text) => Err(Failure::bad_request(text)),
            Self::Timeout(error) | Self::Error(error) => Ok(error),
        }
    }
}

impl Session {
    #[must_use]
    pub fn new(address: Address, login: Login, interrupter: Interrupter) -> Self {
        Self {
            address,
            login,
            interrupter,
            connection: None,
            spare: None,
            prepared: HashMap::new(),
            request: BytesMut::new(),
        }
    }

    fn prepare(&mut self, sql: &str, timeout: Option<Duration>) -> Result<(), Stop> {
        if self.prepared.contains_key(sql) {
            return Ok(());
        }
        if self.prepared.len() >= MAX_PREPARED {
            self.request.clear();
            postgres::simple_query("DEALLOCATE ALL", &mut self.request).map_err(|error| bad_request(&error))?;
            self.exchange(None, timeout).1?;
            self.prepared.clear();
        }
        let name = format!("s{}", self.prepared.len());
        self.request.clear();
        postgres::prepare(&name, sql, &mut self.request).map_err(|error| bad_request(&error))?;
        self.exchange(None, timeout).1?;
        self.prepared.insert(sql.to_owned(), name);
        Ok(())
    }

    fn encode(&mut self, statement: &Statement) -> Result<(), Stop> {
        self.request.clear();
        let (sql, parameters, out) = (&*statement.sql, &*statement.parameters, &mut self.request);
        let encoded = match statement.query_protocol {
            QueryProtocol::Simple => postgres::simple_query(sql, out),
            QueryProtocol::Extended => postgres::extended_query(sql, parameters, out),
            QueryProtocol::Prepared => {
                let name = self.prepared.get(sql).map_or("", String::as_str);
                postgres::execute_prepared(name, parameters, out)
            }
        };
        encoded.map_err(|error| bad_request(&error))
    }
}

impl ServerSession for Session {
    fn connected(&mut self, timeout: Option<Duration>) -> Result<(), Stop> {
        if self.connection.is_none() {
            self.prepared.clear();
            let buffer = self.spare.take().unwrap_or_default();
            let opened = Connection::open(&self.address, &self.login, timeout, &self.interrupter, buffer);
            self.connection = Some(opened?);
        }
        Ok(())
    }

    fn disconnect(&mut self) {
        self.spare = self.connection.take().map(Connection::close).or(self.spare.take());
        self.prepared.clear();
    }

    fn try_query(&mut self, sql: &str) -> Result<QueryResult, Stop> {
        self.request.clear();
        postgres::simple_query(sql, &mut self.request).map_err(|error| Stop::BadRequest(error.to_string()))?;
        self.connected(None)?;
        self.exchange(None, None).1?;
        let answer = self.answer();
        let mut columns = Vec::new();
        let mut command_tags = Vec::new();
        for (tag, body) in messages(answer) {
            match tag {
                ROW_DESCRIPTION => columns = postgres::column_names(body)?,
                COMMAND_COMPLETE => command_tags.push(postgres::c_string(body)),
                _ => {}
            }
        }
        Ok(QueryResult { columns, rows: answer::rows(answer)?, command_tags })
    }

    fn make_ready(&mut self, statement: &Statement, timeout: Option<Duration>) -> Result<(), Stop> {
        if statement.query_protocol == QueryProtocol::Prepared {
            self.prepare(&statement.sql, timeout)?;
        }
        self.encode(statement)
    }

    fn exchange(&mut self, since_ns: Option<u64>, timeout: Option<Duration>) -> (Exchange, Result<(), Stop>) {
        let Some(connection) = &mut self.connection else {
            unreachable!("exchange without a connection");
        };
        let (exchange, outcome) = connection.exchange(&self.request, since_ns, timeout);
        let error = match outcome {
            Ok(()) if !exchange.scan.has_error => return (exchange, Ok(())),
            Ok(()) => match connection.server_error() {
                Ok(Some(error)) => Trouble::Server(error),
                Ok(None) => Trouble::Lost("the server sent an unreadable error".to_owned()),
                Err(violation) => violation.into(),
            },
            Err(trouble) => trouble,
        };
        let is_usable = match &error {
            Trouble::Server(error) => !error.is_fatal,
            Trouble::TimedOut => exchange.scan.ready.is_some(),
            _ => false,
        };
        let is_left_in_failed_transaction = exchange.scan.ready == Some(b'E');
        if !is_usable || is_left_in_failed_transaction && connection.run("ROLLBACK").is_err() {
            self.spare = self.connection.take().map(Connection::into_buffer);
            self.prepared.clear();
        }
        (exchange, Err(error.into()))
    }

    fn answer(&self) -> &[u8] {
        self.connection.as_ref().map_or(&[], Connection::answer)
    }
}

fn bad_request(error: &std::io::Error) -> Stop {
    Stop::BadRequest(format!("the statement cannot be sent: {error}"))
}
