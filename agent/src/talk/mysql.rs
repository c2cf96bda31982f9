//! A conversation with `MariaDB`: prepared statements in the binary form.
//!
//! The server reads one request after the other, so several may be sent at once; each is answered for itself, also after an
//! error.

use std::rc::Rc;

use super::{Interaction, Target};
use crate::clock::now_ns;
use crate::talk::rows::{Held, Rows, strange};
use crate::talk::statement::{Value, push_cents};
use crate::talk::transport::{MAX_ANSWER_BYTES, Slot, Transport};
use crate::wire::Dialect;
use crate::wire::blocking::Trouble;
use crate::wire::mysql::{self, Body, Bound, Cell, Column, HEADER_BYTES, packet};
use crate::wire::postgres::DATA_ROW;

const OK: u8 = 0x00;
const LOCAL_INFILE: u8 = 0xfb;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;
const MORE_PROOF: u8 = 0xfe;
const MAX_COLUMNS: u64 = 4096;
/// Of one answer: as many as an answer of `PostgreSQL` can hold. A null needs no byte here, but a place.
const MAX_VALUES: usize = MAX_ANSWER_BYTES / 4;

pub struct Mysql {
    target: Rc<Target>,
    pub(super) transport: Transport,
    awaited: usize,
    held: Vec<Held>,
    columns: Vec<Column>,
    is_in_transaction: bool,
    prepared: Vec<u32>,
    /// Decimal numbers of the request that is being written.
    decimals: Vec<u8>,
    /// Of the next packet of a load.
    sequence: u8,
    /// Of the columns of an answer in the text form.
    names: Vec<String>,
    thread: u32,
}

/// When bytes of an exchange passed.
#[derive(Debug, Default, Clone, Copy)]
pub struct Times {
    pub start_ns: u64,
    pub first_byte_ns: Option<u64>,
    pub end_ns: u64,
}

/// The answer to a statement in the text form.
pub struct TextAnswer {
    pub columns: Vec<String>,
    /// As `PostgreSQL` sends them, DataRow messages: so answers of both are looked at in one way (`driver::answer`).
    pub rows: Vec<u8>,
    pub count: u64,
}

fn push_data_row(out: &mut Vec<u8>, row: &[Held], input: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&[DATA_ROW, 0, 0, 0, 0]);
    out.extend_from_slice(&u16::try_from(row.len()).unwrap_or(u16::MAX).to_be_bytes());
    for value in row {
        match value {
            Held::Bytes { start, end } => {
                out.extend_from_slice(&u32::try_from(end - start).unwrap_or(u32::MAX).to_be_bytes());
                out.extend_from_slice(&input[*start..*end]);
            }
            Held::Null | Held::Int(_) => out.extend_from_slice(&(-1i32).to_be_bytes()),
        }
    }
    let length = u32::try_from(out.len() - start - 1).unwrap_or(u32::MAX);
    out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
}

/// How the rows of an answer come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Binary,
    Text,
    /// As text, and nobody wants them.
    Skipped,
}

impl Mysql {
    pub async fn open(target: Rc<Target>, slot: Slot) -> Result<Self, Trouble> {
        let transport = Transport::open(&target.address, slot).await?;
        let mut connection = Self {
            target,
            transport,
            awaited: 0,
            held: Vec::new(),
            columns: Vec::new(),
            is_in_transaction: false,
            prepared: Vec::new(),
            decimals: Vec::new(),
            sequence: 0,
            names: Vec::new(),
            thread: 0,
        };
        connection.log_in().await?;
        connection.prepare().await?;
        Ok(connection)
    }

    async fn log_in(&mut self) -> Result<(), Trouble> {
        let target = Rc::clone(&self.target);
        let login = &target.login;
        let (start, end, _) = self.packet().await?;
        let greeting = match self.transport.input()[start..end].first() {
            Some(&ERROR) => return Err(Trouble::Server(mysql::server_error(&self.transport.input()[start..end]))),
            _ => mysql::greeting(&self.transport.input()[start..end])?,
        };
        self.thread = greeting.thread;
        let password = login.password.as_deref();
        mysql::push_login(self.transport.out(), &login.user, password, &login.database, &greeting.scramble);
        loop {
            self.transport.end_request();
            self.transport.send(1).await?;
            let (start, end, sequence) = self.packet().await?;
            let body = &self.transport.input()[start..end];
            match body.first() {
                Some(&OK) => return Ok(()),
                Some(&MORE_PROOF) => {
                    let proof = mysql::proof_on_request(body, password)?;
                    mysql::push_packet(self.transport.out(), sequence.wrapping_add(1), |out| out.extend(proof));
                }
                Some(&ERROR) => return Err(Trouble::Server(mysql::server_error(body))),
                _ => return Err(strange("an unknown answer to a login")),
            }
        }
    }

    async fn prepare(&mut self) -> Result<(), Trouble> {
        let target = Rc::clone(&self.target);
        for statement in &target.statements {
            mysql::push_prepare(self.transport.out(), &statement.text(Dialect::Mysql));
            self.transport.end_request();
        }
        self.transport.send(target.statements.len()).await?;
        for statement in &target.statements {
            let (start, end, _) = self.packet().await?;
            let body = &self.transport.input()[start..end];
            if body.first() == Some(&ERROR) {
                return Err(Trouble::Server(mysql::server_error(body)));
            }
            let prepared = mysql::prepared(body)?;
            if usize::from(prepared.parameters) != statement.parameters.len() {
                return Err(strange("another number of parameters than the statement has"));
            }
            self.prepared.push(prepared.statement);
            for _ in 0..u32::from(prepared.parameters) + u32::from(prepared.columns) {
                self.packet().await?;
            }
        }
        Ok(())
    }

    pub fn queue(&mut self, statement: usize, values: &[Value<'_>]) {
        self.decimals.clear();
        let mut ends = [0; 64];
        for (value, end) in values.iter().zip(&mut ends) {
            if let Value::Cents(cents) = value {
                push_cents(&mut self.decimals, *cents);
            }
            *end = self.decimals.len();
        }
        let (decimals, ends) = (&self.decimals, &ends);
        let bound = values.iter().enumerate().map(|(index, value)| match value {
            Value::Int(value) => Bound::Int(*value),
            Value::Cents(_) => {
                let start = index.checked_sub(1).map_or(0, |before| ends[before]);
                Bound::Decimal(&decimals[start..ends[index]])
            }
            Value::Text(text) => Bound::Text(text.as_bytes()),
        });
        mysql::push_execute(self.transport.out(), self.prepared[statement], bound);
        self.transport.end_request();
    }

    pub async fn answer(&mut self) -> Result<Rows<'_>, Trouble> {
        if self.awaited == 0 {
            self.transport.begin_answer();
            let waiting = self.transport.waiting();
            let count = if self.target.interaction == Interaction::Pipelined { waiting } else { waiting.min(1) };
            self.transport.send(count).await?;
            self.awaited = count;
        }
        if self.awaited == 0 {
            return Err(Trouble::BadRequest("an answer without a request".to_owned()));
        }
        self.awaited -= 1;
        let affected = self.read_answer(Form::Binary).await?;
        let columns = self.columns.len();
        Ok(Rows { input: self.transport.input(), held: &self.held, columns, affected })
    }

    /// Reads all results of one request; keeps the rows of the first that has any. Returns the rows affected.
    async fn read_answer(&mut self, form: Form) -> Result<u64, Trouble> {
        self.held.clear();
        self.columns.clear();
        let mut affected: u64 = 0;
        loop {
            let (start, end, _) = self.packet().await?;
            let body = &self.transport.input()[start..end];
            let done = match body.first() {
                Some(&OK) => mysql::done(body)?,
                Some(&ERROR) => {
                    let error = mysql::server_error(body);
                    // After a deadlock the transaction is gone, after other errors it goes on; a rollback does no harm.
                    return Err(Trouble::Server(error));
                }
                Some(&LOCAL_INFILE) => return Err(strange("a request for a file")),
                _ => self.read_rows(start, end, form).await?,
            };
            affected = affected.saturating_add(done.affected);
            self.is_in_transaction = done.is_in_transaction;
            if !done.has_more {
                return Ok(if self.columns.is_empty() { affected } else { self.rows_held() });
            }
        }
    }

    fn rows_held(&self) -> u64 {
        (self.held.len() / self.columns.len().max(1)) as u64
    }

    /// Column definitions and rows, up to the end of one result, whose first packet lies there.
    async fn read_rows(&mut self, start: usize, end: usize, form: Form) -> Result<mysql::Done, Trouble> {
        let count = Body(&self.transport.input()[start..end]).length()?;
        if count > MAX_COLUMNS {
            return Err(strange("a result of too many columns"));
        }
        let is_first = self.columns.is_empty();
        for _ in 0..count {
            let (start, end, _) = self.packet().await?;
            if is_first {
                let (column, name) = mysql::column(&self.transport.input()[start..end])?;
                if form == Form::Text {
                    self.names.push(String::from_utf8_lossy(name).into_owned());
                }
                self.columns.push(column);
            }
        }
        loop {
            let (start, end, _) = self.packet().await?;
            let body = &self.transport.input()[start..end];
            match body.first() {
                Some(&END) => return Ok(mysql::done(body)?),
                Some(&ERROR) => return Err(Trouble::Server(mysql::server_error(body))),
                _ if is_first && form != Form::Skipped => {
                    if self.held.len() + self.columns.len() > MAX_VALUES {
                        return Err(strange(&format!("an answer of more than {MAX_VALUES} values")));
                    }
                    let origin = self.transport.input().as_ptr() as usize;
                    let held = &mut self.held;
                    let at = |bytes: &[u8]| {
                        let start = bytes.as_ptr() as usize - origin;
                        Held::Bytes { start, end: start + bytes.len() }
                    };
                    if form == Form::Text {
                        mysql::text_row(body, self.columns.len(), |value| held.push(value.map_or(Held::Null, at)))?;
                    } else {
                        mysql::binary_row(body, &self.columns, |cell| {
                            held.push(match cell {
                                Cell::Null => Held::Null,
                                Cell::Int(value) => Held::Int(value),
                                Cell::Bytes(bytes) => at(bytes),
                            });
                        })?;
                    }
                }
                _ => {}
            }
        }
    }

    /// The next whole packet: where its body lies in the input, and its number.
    async fn packet(&mut self) -> Result<(usize, usize, u8), Trouble> {
        loop {
            if let Some((sequence, body)) = packet(self.transport.pending())? {
                let length = body.len();
                let start = self.transport.position() + HEADER_BYTES;
                self.transport.advance(HEADER_BYTES + length);
                return Ok((start, start + length, sequence));
            }
            self.transport.fill().await?;
        }
    }

    pub async fn roll_back(&mut self) -> Result<(), Trouble> {
        self.transport.forget_waiting();
        while self.awaited > 0 {
            self.awaited -= 1;
            match self.read_answer(Form::Binary).await {
                Ok(_) => {}
                Err(Trouble::Server(error)) if !error.is_fatal => {}
                Err(trouble) => return Err(trouble),
            }
        }
        self.command("rollback").await
    }

    pub async fn command(&mut self, sql: &str) -> Result<(), Trouble> {
        self.transport.begin_answer();
        self.queue_text(sql)?;
        self.transport.send(1).await?;
        self.read_answer(Form::Skipped).await.map(drop)
    }

    fn queue_text(&mut self, sql: &str) -> Result<(), Trouble> {
        if sql.len() + 1 >= mysql::MAX_PACKET_BYTES {
            let most = mysql::MAX_PACKET_BYTES - 2;
            return Err(Trouble::BadRequest(format!("a statement of {} bytes; at most {most} are sent", sql.len())));
        }
        mysql::push_query(self.transport.out(), sql);
        self.transport.end_request();
        Ok(())
    }

    /// Runs SQL in the text form; the answer is that to its first statement with rows. When bytes passed is in `times`,
    /// also after an error.
    pub async fn text(&mut self, sql: &str, times: &mut Times) -> Result<TextAnswer, Trouble> {
        self.transport.begin_answer();
        self.queue_text(sql)?;
        self.names.clear();
        times.start_ns = now_ns();
        let outcome = self.text_timed(times).await;
        times.end_ns = now_ns();
        outcome?;
        let mut rows = Vec::new();
        for row in self.held.chunks(self.columns.len().max(1)) {
            push_data_row(&mut rows, row, self.transport.input());
        }
        Ok(TextAnswer { columns: std::mem::take(&mut self.names), rows, count: self.rows_held() })
    }

    async fn text_timed(&mut self, times: &mut Times) -> Result<u64, Trouble> {
        self.transport.send(1).await?;
        self.transport.fill().await?;
        times.first_byte_ns = Some(now_ns());
        self.read_answer(Form::Text).await
    }

    /// The server's number of this session.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.thread
    }

    // --- LOAD DATA LOCAL: the server asks for a file, and gets rows ----------------------------------------------------

    pub async fn begin_load(&mut self, sql: &str) -> Result<(), Trouble> {
        self.transport.begin_answer();
        self.queue_text(sql)?;
        self.transport.send(1).await?;
        let (start, end, sequence) = self.packet().await?;
        let body = &self.transport.input()[start..end];
        match body.first() {
            Some(&LOCAL_INFILE) => {
                self.sequence = sequence.wrapping_add(1);
                Ok(())
            }
            Some(&ERROR) => Err(Trouble::Server(mysql::server_error(body))),
            _ => Err(strange("no request for the rows")),
        }
    }

    pub async fn send_load(&mut self, content: &[u8]) -> Result<(), Trouble> {
        for piece in content.chunks(mysql::MAX_PACKET_BYTES - 1) {
            let sequence = self.next_sequence();
            mysql::push_packet(self.transport.out(), sequence, |out| out.extend_from_slice(piece));
            self.transport.end_request();
            self.transport.send(1).await?;
        }
        Ok(())
    }

    pub async fn end_load(&mut self) -> Result<(), Trouble> {
        let sequence = self.next_sequence();
        mysql::push_packet(self.transport.out(), sequence, |_| {});
        self.transport.end_request();
        self.transport.send(1).await?;
        self.read_answer(Form::Skipped).await.map(drop)
    }

    fn next_sequence(&mut self) -> u8 {
        let next = self.sequence.wrapping_add(1);
        std::mem::replace(&mut self.sequence, next)
    }

    pub fn close(mut self) {
        let mut out = Vec::new();
        mysql::push_quit(&mut out);
        self.transport.say_goodbye(&out);
    }
}
