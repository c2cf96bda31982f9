//! A conversation with `PostgreSQL`: the extended protocol with values in binary form where that is cheaper, results as text.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use super::{Interaction, Target};
use crate::talk::rows::{Held, Rows};
use crate::talk::statement::{Kind, Value, push_cents};
use crate::talk::transport::{Slot, Transport};
use crate::wire::blocking::Trouble;
use crate::wire::postgres::{
    self, COMMAND_COMPLETE, DATA_ROW, ERROR_RESPONSE, HEADER_BYTES, MAX_MESSAGE_BYTES, MAX_STARTUP_MESSAGE_BYTES,
    READY_FOR_QUERY, RowValues, Startup, header,
};
use crate::wire::{Dialect, ServerError};

const SYNC: &[u8] = b"S\0\0\0\x04";
const TERMINATE: &[u8] = b"X\0\0\0\x04";
const EMPTY_QUERY: u8 = b'I';
/// Execute of the unnamed portal, all rows.
const EXECUTE: &[u8] = b"E\0\0\0\x09\0\0\0\0\0";

pub struct Postgres {
    target: Rc<Target>,
    pub(super) transport: Transport,
    /// Answers to come, each with whether it is the last before a ReadyForQuery.
    awaited: VecDeque<bool>,
    held: Vec<Held>,
    columns: usize,
    /// Transaction status of the last ReadyForQuery.
    status: u8,
    /// Where the statements' names begin in a Bind message.
    names: Vec<String>,
}

impl Postgres {
    pub async fn open(target: Rc<Target>, slot: Slot) -> Result<Self, Trouble> {
        let transport = Transport::open(&target.address, slot).await?;
        let names = (0..target.statements.len()).map(|number| format!("s{number}")).collect();
        let mut connection =
            Self { target, transport, awaited: VecDeque::new(), held: Vec::new(), columns: 0, status: b'I', names };
        connection.log_in().await?;
        connection.prepare().await?;
        Ok(connection)
    }

    async fn log_in(&mut self) -> Result<(), Trouble> {
        let target = Rc::clone(&self.target);
        let mut startup = Startup::new(&target.login);
        let mut out = BytesMut::new();
        startup.begin(&mut out)?;
        loop {
            if !out.is_empty() {
                self.transport.out().extend_from_slice(&out);
                self.transport.end_request();
                self.transport.send(1).await?;
                out.clear();
            }
            let (tag, start, end) = self.message(MAX_STARTUP_MESSAGE_BYTES).await?;
            if startup.receive(tag, &self.transport.input()[start..end], &mut out)?.is_some() {
                return Ok(());
            }
        }
    }

    async fn prepare(&mut self) -> Result<(), Trouble> {
        const OF_INT: u32 = 23;
        const OF_TEXT: u32 = 25;
        const OF_NUMERIC: u32 = 1700;
        /// The server finds it by the place where the value stands; a numeric without digits behind the point may not fit there.
        const OPEN: u32 = 0;
        let target = Rc::clone(&self.target);
        let mut out = BytesMut::new();
        for (statement, name) in target.statements.iter().zip(&self.names) {
            let types = statement.parameters.iter().map(|kind| match kind {
                Kind::Int => OF_INT,
                Kind::Cents if target.dialect == Dialect::Standard => OPEN,
                Kind::Cents => OF_NUMERIC,
                Kind::Text => OF_TEXT,
            });
            frontend::parse(name, &statement.text(target.dialect), types, &mut out)
                .map_err(|error| bad_request(&error))?;
        }
        out.extend_from_slice(SYNC);
        self.simple(&out).await
    }

    pub fn queue(&mut self, statement: usize, values: &[Value<'_>]) {
        let out = self.transport.out();
        push_bind(out, &self.names[statement], values);
        out.extend_from_slice(EXECUTE);
        if self.target.interaction != Interaction::Pipelined {
            out.extend_from_slice(SYNC);
        }
        self.transport.end_request();
    }

    pub async fn answer(&mut self) -> Result<Rows<'_>, Trouble> {
        if self.awaited.is_empty() {
            self.send().await?;
        }
        let Some(is_last) = self.awaited.pop_front() else {
            return Err(Trouble::BadRequest("an answer without a request".to_owned()));
        };
        let affected = self.read_answer(is_last).await?;
        Ok(Rows { input: self.transport.input(), held: &self.held, columns: self.columns, affected })
    }

    async fn send(&mut self) -> Result<(), Trouble> {
        self.transport.begin_answer();
        let count = if self.target.interaction == Interaction::Pipelined {
            self.transport.extend_last(SYNC);
            self.transport.waiting()
        } else {
            self.transport.waiting().min(1)
        };
        self.transport.send(count).await?;
        self.awaited.extend((1..=count).map(|number| number == count));
        Ok(())
    }

    /// Reads the answer to one statement, and after the last one also that the server is ready. Returns the rows affected.
    async fn read_answer(&mut self, is_last: bool) -> Result<u64, Trouble> {
        self.held.clear();
        self.columns = 0;
        let mut affected = 0;
        loop {
            let (tag, start, end) = self.message(MAX_MESSAGE_BYTES).await?;
            match tag {
                DATA_ROW => self.hold(start, end)?,
                COMMAND_COMPLETE => {
                    affected = rows_of_tag(&self.transport.input()[start..end]);
                    if !is_last {
                        return Ok(affected);
                    }
                }
                EMPTY_QUERY if !is_last => return Ok(affected),
                READY_FOR_QUERY => {
                    self.status = *self.transport.input()[start..end].first().unwrap_or(&b'I');
                    return Ok(affected);
                }
                ERROR_RESPONSE => {
                    let error = postgres::server_error(&self.transport.input()[start..end])?;
                    return Err(self.after_error(error).await);
                }
                // BindComplete, notices, parameters that changed …
                _ => {}
            }
        }
    }

    /// The server skips what is left up to the next Sync.
    async fn after_error(&mut self, error: ServerError) -> Trouble {
        self.awaited.clear();
        if error.is_fatal {
            return Trouble::Server(error);
        }
        loop {
            match self.message(MAX_MESSAGE_BYTES).await {
                Ok((READY_FOR_QUERY, start, end)) => {
                    self.status = *self.transport.input()[start..end].first().unwrap_or(&b'E');
                    return Trouble::Server(error);
                }
                Ok(_) => {}
                Err(trouble) => return trouble,
            }
        }
    }

    fn hold(&mut self, start: usize, end: usize) -> Result<(), Trouble> {
        let input = self.transport.input();
        let values = RowValues::new(&input[start..end])?;
        self.columns = usize::from(values.columns);
        let origin = input.as_ptr() as usize;
        for value in values {
            self.held.push(value?.map_or(Held::Null, |bytes| {
                let start = bytes.as_ptr() as usize - origin;
                Held::Bytes { start, end: start + bytes.len() }
            }));
        }
        Ok(())
    }

    /// The next whole message: its tag and where its body lies in the input.
    async fn message(&mut self, max_message_bytes: usize) -> Result<(u8, usize, usize), Trouble> {
        loop {
            let pending = self.transport.pending();
            let whole = header(pending, max_message_bytes)?.filter(|header| header.total_bytes <= pending.len());
            if let Some(header) = whole {
                let start = self.transport.position();
                self.transport.advance(header.total_bytes);
                return Ok((header.tag, start + HEADER_BYTES, start + header.total_bytes));
            }
            self.transport.fill().await?;
        }
    }

    pub async fn roll_back(&mut self) -> Result<(), Trouble> {
        self.transport.forget_waiting();
        while let Some(is_last) = self.awaited.pop_front() {
            match self.read_answer(is_last).await {
                Ok(_) => {}
                Err(Trouble::Server(error)) if !error.is_fatal => {}
                Err(trouble) => return Err(trouble),
            }
        }
        if self.status == b'I' { Ok(()) } else { self.command("rollback").await }
    }

    pub async fn command(&mut self, sql: &str) -> Result<(), Trouble> {
        let mut out = BytesMut::new();
        postgres::simple_query(sql, &mut out).map_err(|error| bad_request(&error))?;
        self.simple(&out).await
    }

    /// Sends messages that are answered by one ReadyForQuery, and waits for it.
    async fn simple(&mut self, messages: &[u8]) -> Result<(), Trouble> {
        self.transport.begin_answer();
        self.transport.out().extend_from_slice(messages);
        self.transport.end_request();
        self.transport.send(1).await?;
        self.read_answer(true).await.map(drop)
    }

    pub fn close(mut self) {
        self.transport.say_goodbye(TERMINATE);
    }
}

fn bad_request(error: &std::io::Error) -> Trouble {
    Trouble::BadRequest(format!("a statement cannot be sent: {error}"))
}

/// Bind of the prepared statement `name` to the unnamed portal: integers in binary form, the rest and the results as text.
fn push_bind(out: &mut Vec<u8>, name: &str, values: &[Value<'_>]) {
    let start = out.len();
    out.extend_from_slice(b"B\0\0\0\0\0");
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    // No workload has more than a few dozen parameters.
    let count = u16::try_from(values.len()).unwrap_or(u16::MAX).to_be_bytes();
    out.extend_from_slice(&count);
    for value in values {
        out.extend_from_slice(&u16::from(matches!(value, Value::Int(_))).to_be_bytes());
    }
    out.extend_from_slice(&count);
    for value in values {
        let length_at = out.len();
        out.extend_from_slice(&[0; 4]);
        match value {
            Value::Int(value) => out.extend_from_slice(&value.to_be_bytes()),
            Value::Cents(cents) => push_cents(out, *cents),
            Value::Text(text) => out.extend_from_slice(text.as_bytes()),
        }
        let length = u32::try_from(out.len() - length_at - 4).unwrap_or(u32::MAX);
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    }
    out.extend_from_slice(&0u16.to_be_bytes());
    let length = u32::try_from(out.len() - start - 1).unwrap_or(u32::MAX);
    out[start + 1..start + HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
}

/// The number at the end of a CommandComplete: `INSERT 0 3`, `UPDATE 1`.
fn rows_of_tag(body: &[u8]) -> u64 {
    let digits = body.strip_suffix(b"\0").unwrap_or(body);
    let number = digits.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_has_integers_in_binary_form_and_the_rest_as_text() {
        let mut out = Vec::new();
        push_bind(&mut out, "s7", &[Value::Int(258), Value::Cents(-105), Value::Text("x")]);
        let body = b"\0s7\0\0\x03\0\x01\0\0\0\0\0\x03\0\0\0\x04\0\0\x01\x02\0\0\0\x05-1.05\0\0\0\x01x\0\0";
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        assert_eq!(out, [&b"B"[..], &length, &body[..]].concat());
    }

    #[test]
    fn tags_tell_how_many_rows() {
        assert_eq!(rows_of_tag(b"INSERT 0 3\0"), 3);
        assert_eq!(rows_of_tag(b"UPDATE 12\0"), 12);
        assert_eq!(rows_of_tag(b"BEGIN\0"), 0);
    }
}
