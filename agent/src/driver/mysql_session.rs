//! A session with `MariaDB`, in the text form only.

use std::rc::Rc;
use std::time::Duration;

use super::answer;
use super::session::{QueryResult, ServerSession, Stop};
use super::{QueryProtocol, Statement};
use crate::clock::now_ns;
use crate::talk::alone::Alone;
use crate::talk::mysql::{Mysql, TextAnswer, Times};
use crate::talk::{Interaction, Target};
use crate::wire::Dialect;
use crate::wire::blocking::{Address, Exchange, Interrupter, Trouble};
use crate::wire::postgres::{AnswerScan, Login};

/// How long a server may take to accept a connection, and to end a statement that it is told to end.
const GIVE_IN_TIMEOUT: Duration = Duration::from_secs(10);

pub struct MysqlSession {
    target: Rc<Target>,
    interrupter: Interrupter,
    connection: Option<(Alone, Mysql)>,
    /// The statement that was made ready.
    sql: String,
    answer: Vec<u8>,
}

impl MysqlSession {
    #[must_use]
    pub fn new(address: Address, login: Login, interrupter: Interrupter) -> Self {
        let target = Target {
            address,
            login,
            dialect: Dialect::Mysql,
            interaction: Interaction::Statement,
            session: Vec::new(),
            statements: Vec::new(),
        };
        Self { target: Rc::new(target), interrupter, connection: None, sql: String::new(), answer: Vec::new() }
    }

    fn open(&self, timeout: Duration) -> Result<(Alone, Mysql), Stop> {
        let alone = Alone::new().map_err(Trouble::from)?;
        let opened = self.wait(&alone, Mysql::open(Rc::clone(&self.target), alone.slot()), Some(timeout))?;
        Ok((alone, opened))
    }

    /// What the future yields, unless it takes too long or the session is interrupted.
    ///
    /// BIAS: a timeout is noticed up to a tenth of a second late; then the time is censored anyway.
    fn wait<T>(
        &self,
        alone: &Alone,
        future: impl Future<Output = Result<T, Trouble>>,
        timeout: Option<Duration>,
    ) -> Result<T, Stop> {
        let longest_ns = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let deadline_ns = longest_ns.map(|longest_ns| now_ns().saturating_add(longest_ns));
        let is_in_time = || deadline_ns.is_none_or(|deadline_ns| now_ns() < deadline_ns);
        let outcome = alone.wait(future, || !self.interrupter.is_interrupted() && is_in_time());
        if self.interrupter.is_interrupted() {
            return Err(Trouble::Interrupted.into());
        }
        Ok(outcome.map_err(Trouble::from)??)
    }

    /// One statement on the open connection, which is given up when it cannot be used any more.
    fn ask(&mut self, sql: &str, times: &mut Times, timeout: Option<Duration>) -> Result<TextAnswer, Stop> {
        let Some((alone, mut connection)) = self.connection.take() else {
            unreachable!("an exchange without a connection")
        };
        let outcome = self.wait(&alone, connection.text(sql, times), timeout);
        match &outcome {
            Ok(_) => self.connection = Some((alone, connection)),
            Err(Stop::Error(error)) if error.sqlstate.is_some() => self.connection = Some((alone, connection)),
            Err(Stop::Timeout(_)) => self.end_session(connection.thread()),
            Err(_) => {}
        }
        outcome
    }

    /// Tells the server to end a session; else what it is at would go on beside what comes next.
    fn end_session(&self, thread: u32) {
        if let Ok((alone, mut connection)) = self.open(GIVE_IN_TIMEOUT) {
            let _ = self.wait(&alone, connection.command(&format!("kill {thread}")), Some(GIVE_IN_TIMEOUT));
        }
    }
}

impl ServerSession for MysqlSession {
    fn connected(&mut self, timeout: Option<Duration>) -> Result<(), Stop> {
        if self.connection.is_none() {
            self.connection = Some(self.open(timeout.unwrap_or(GIVE_IN_TIMEOUT))?);
        }
        Ok(())
    }

    fn disconnect(&mut self) {
        if let Some((_, connection)) = self.connection.take() {
            connection.close();
        }
    }

    fn try_query(&mut self, sql: &str) -> Result<QueryResult, Stop> {
        self.connected(None)?;
        let told = self.ask(sql, &mut Times::default(), None)?;
        Ok(QueryResult { columns: told.columns, rows: answer::rows(&told.rows)?, command_tags: Vec::new() })
    }

    fn make_ready(&mut self, statement: &Statement, _timeout: Option<Duration>) -> Result<(), Stop> {
        if statement.query_protocol != QueryProtocol::Simple {
            return Err(Stop::BadRequest("this server is asked in the simple form only".to_owned()));
        }
        self.sql.clone_from(&statement.sql);
        Ok(())
    }

    fn exchange(&mut self, since_ns: Option<u64>, timeout: Option<Duration>) -> (Exchange, Result<(), Stop>) {
        let mut times = Times::default();
        let sql = std::mem::take(&mut self.sql);
        let outcome = self.ask(&sql, &mut times, timeout);
        let mut scan = AnswerScan::default();
        let outcome = outcome.map(|told| {
            scan.rows = told.count;
            scan.row_bytes = told.rows.len() as u64;
            self.answer = told.rows;
        });
        let start_ns = since_ns.unwrap_or(times.start_ns);
        (Exchange { start_ns, first_byte_ns: times.first_byte_ns, end_ns: times.end_ns, scan }, outcome)
    }

    fn answer(&self) -> &[u8] {
        &self.answer
    }
}
