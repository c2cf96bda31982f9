//! One client's session: the simple and the extended protocol, the state of its transaction, COPY.
//!
//! BIAS: the thread that reads a statement executes it and writes its answer. A hand-over to another thread would add
//! switches between threads, which the engine alone does not make, to every statement.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::{Column, ColumnKind, Connection, Done, Engine, EngineError, Failure, Statement, Value, oid};
use crate::server::Seat;
use crate::sql::{self, Action, CopyIn, Dialect, Verb};
use crate::wire::answer::{Answer, row_description};
use crate::wire::input::Input;
use crate::wire::messages::{Bind, Body, Parse, violation};
use crate::wire::output::{Output, Status};

/// What a session says about itself before the first statement.
const PARAMETERS: [(&str, &str); 5] = [
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
];

/// Statements of one connection that are prepared at the same time: each keeps a plan in the engine.
const MAX_PREPARED: usize = 10_000;

/// A statement that was parsed.
struct Prepared {
    action: Action,
    verb: Verb,
    sql: String,
    /// None for what the server does itself.
    statement: Option<RefCell<Box<dyn Statement>>>,
    types: Vec<u32>,
}

struct Portal {
    prepared: Rc<Prepared>,
    values: Vec<Value>,
    wants_binary: bool,
}

/// A session that is logged in.
pub struct Session<'a> {
    seat: &'a Seat,
    title: String,
    dialect: Dialect,
    input: Input,
    output: Output,
    status: Status,
    // Statements go before the connection that they belong to.
    portals: HashMap<String, Rc<Portal>>,
    statements: HashMap<String, Rc<Prepared>>,
    connection: Box<dyn Connection>,
    /// An error in the extended protocol: everything up to the next Sync is skipped.
    is_skipping: bool,
}

/// What ends a session: its client is gone, or breaks the protocol.
enum End {
    Gone(io::Error),
    Refused(EngineError),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl From<EngineError> for End {
    fn from(error: EngineError) -> Self {
        Self::Refused(error)
    }
}

impl<'a> Session<'a> {
    /// Connects to the engine and greets the client, whose start-up message was read.
    pub fn open(engine: &dyn Engine, seat: &'a Seat, input: Input, mut output: Output) -> io::Result<Option<Self>> {
        let connection = match engine.connect() {
            Ok(connection) => connection,
            Err(error) => {
                output.error(&error, true);
                output.flush()?;
                return Ok(None);
            }
        };
        if let Some(interrupter) = connection.interrupter() {
            seat.interrupted_by(interrupter);
        }
        let title = engine.title();
        output.message(b'R', |out| out.extend_from_slice(&0u32.to_be_bytes()));
        output.parameter("server_version", &format!("15.0 ({title})"));
        for (name, value) in PARAMETERS {
            output.parameter(name, value);
        }
        output.message(b'K', |out| {
            out.extend_from_slice(&seat.number.to_be_bytes());
            out.extend_from_slice(&seat.secret.to_be_bytes());
        });
        output.ready(Status::Idle)?;
        Ok(Some(Self {
            seat,
            title,
            dialect: engine.dialect(),
            input,
            output,
            status: Status::Idle,
            portals: HashMap::new(),
            statements: HashMap::new(),
            connection,
            is_skipping: false,
        }))
    }

    /// Serves until the client says goodbye, is gone, or has to go.
    pub fn serve(mut self) -> io::Result<()> {
        let end = self.converse();
        if self.status != Status::Idle {
            // The connection is dropped in any case; nothing is left to tell.
            let _ = self.connection.roll_back();
        }
        match end {
            Ok(()) if self.seat.is_condemned() => {
                let error = EngineError::new("57P01", "terminating connection: the server stops");
                self.output.error(&error, true);
                self.output.flush()
            }
            Ok(()) => Ok(()),
            Err(End::Gone(error)) => Err(error),
            Err(End::Refused(error)) => {
                self.output.error(&error, true);
                self.output.flush()
            }
        }
    }

    fn converse(&mut self) -> Result<(), End> {
        while !self.seat.is_condemned() {
            let message = match self.input.message() {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(violation(&error.to_string()).into());
                }
                Err(error) => return Err(error.into()),
            };
            let (tag, body) = (message.tag, message.body);
            match tag {
                b'X' => return Ok(()),
                b'S' => {
                    self.is_skipping = false;
                    self.portals.clear();
                    self.output.ready(self.status)?;
                }
                b'H' => self.output.flush()?,
                b'Q' => {
                    let sql = Body::new(body).text().map(str::to_owned);
                    self.is_skipping = false;
                    let outcome = match sql {
                        Ok(sql) => self.simple(&sql),
                        Err(error) => Err(error.into()),
                    };
                    self.report(outcome)?;
                    self.output.ready(self.status)?;
                }
                // What is left of a COPY that failed.
                b'd' | b'c' | b'f' => {}
                b'P' | b'B' | b'D' | b'E' | b'C' => {
                    if !self.is_skipping {
                        let body = body.to_vec();
                        let outcome = self.extended(tag, &body);
                        self.is_skipping = outcome.is_err();
                        self.report(outcome)?;
                    }
                    self.output.flush_if_full()?;
                }
                _ => return Err(violation(&format!("a message {:?}", char::from(tag))).into()),
            }
        }
        Ok(())
    }

    /// Tells the client of an error; within a transaction it makes that a failed one.
    fn report(&mut self, outcome: Result<(), Failure>) -> Result<(), End> {
        match outcome {
            Ok(()) => Ok(()),
            Err(Failure::Client(error)) => Err(End::Gone(error)),
            Err(Failure::Engine(error)) => {
                if self.status == Status::InTransaction {
                    self.status = Status::Failed;
                }
                self.output.error(&error, false);
                Ok(())
            }
        }
    }

    /// Every statement of a text in turn, up to the first that fails.
    fn simple(&mut self, text: &str) -> Result<(), Failure> {
        let statements = sql::split(text, self.dialect);
        if statements.is_empty() {
            self.output.message(b'I', |_| {});
        }
        for sql in statements {
            let action = Action::of(sql, self.dialect)?;
            let verb = Verb::of(sql, self.dialect);
            self.check_status(&action)?;
            if action == Action::Execute {
                self.run(&verb, true, |session, answer| session.query(sql, answer))?;
            } else {
                self.act(&action, sql, true)?;
            }
        }
        Ok(())
    }

    fn extended(&mut self, tag: u8, body: &[u8]) -> Result<(), Failure> {
        match tag {
            b'P' => self.parse(&Parse::read(body)?),
            b'B' => self.bind(&Bind::read(body)?),
            b'D' | b'C' => {
                let mut body = Body::new(body);
                let (kind, name) = (body.byte()?, body.text()?);
                body.end()?;
                match (tag, kind) {
                    (b'D', b'S') => self.describe_statement(name),
                    (b'D', b'P') => self.describe_portal(name),
                    (b'C', b'S') => {
                        self.statements.remove(name);
                        self.output.message(b'3', |_| {});
                        Ok(())
                    }
                    (b'C', b'P') => {
                        self.portals.remove(name);
                        self.output.message(b'3', |_| {});
                        Ok(())
                    }
                    _ => Err(violation("neither a statement nor a portal").into()),
                }
            }
            _ => {
                let mut body = Body::new(body);
                let name = body.text()?;
                // All rows are sent, whatever the limit: no portal is suspended.
                body.u32()?;
                body.end()?;
                self.execute(name)
            }
        }
    }

    fn parse(&mut self, parse: &Parse<'_>) -> Result<(), Failure> {
        if !parse.name.is_empty() && self.statements.contains_key(parse.name) {
            let text = format!("the prepared statement {:?} exists already", parse.name);
            return Err(EngineError::new("42P05", text).into());
        }
        if self.statements.len() >= MAX_PREPARED {
            return Err(
                EngineError::new("53400", format!("{MAX_PREPARED} statements are prepared; no more are")).into()
            );
        }
        let mut statements = sql::split(parse.sql, self.dialect).into_iter();
        let sql = statements.next().unwrap_or_default();
        if statements.next().is_some() {
            return Err(EngineError::new("42601", "several statements cannot be prepared as one").into());
        }
        let action = Action::of(sql, self.dialect)?;
        self.check_status(&action)?;
        let statement = if sql.is_empty() || action != Action::Execute {
            None
        } else {
            let seat = self.seat;
            Some(RefCell::new(seat.while_busy(|| self.connection.prepare(sql, &parse.types))?))
        };
        let types = statement.as_ref().map_or_else(Vec::new, |statement| statement.borrow().parameters().to_vec());
        let prepared = Prepared { action, verb: Verb::of(sql, self.dialect), sql: sql.to_owned(), statement, types };
        self.statements.insert(parse.name.to_owned(), Rc::new(prepared));
        self.output.message(b'1', |_| {});
        Ok(())
    }

    fn prepared(&self, name: &str) -> Result<Rc<Prepared>, EngineError> {
        let missing = || EngineError::new("26000", format!("there is no prepared statement {name:?}"));
        self.statements.get(name).cloned().ok_or_else(missing)
    }

    fn portal(&self, name: &str) -> Result<Rc<Portal>, EngineError> {
        self.portals.get(name).cloned().ok_or_else(|| EngineError::new("34000", format!("there is no portal {name:?}")))
    }

    fn bind(&mut self, bind: &Bind<'_>) -> Result<(), Failure> {
        let prepared = self.prepared(bind.statement)?;
        self.check_status(&prepared.action)?;
        let values = bind.values(&prepared.types)?;
        let portal = Portal { prepared, values, wants_binary: bind.wants_binary };
        self.portals.insert(bind.portal.to_owned(), Rc::new(portal));
        self.output.message(b'2', |_| {});
        Ok(())
    }

    fn describe_statement(&mut self, name: &str) -> Result<(), Failure> {
        let prepared = self.prepared(name)?;
        self.output.message(b't', |out| {
            out.extend_from_slice(&u16::try_from(prepared.types.len()).unwrap_or(u16::MAX).to_be_bytes());
            for kind in &prepared.types {
                out.extend_from_slice(&kind.to_be_bytes());
            }
        });
        self.describe(&prepared);
        Ok(())
    }

    fn describe_portal(&mut self, name: &str) -> Result<(), Failure> {
        let prepared = Rc::clone(&self.portal(name)?.prepared);
        self.describe(&prepared);
        Ok(())
    }

    fn describe(&mut self, prepared: &Prepared) {
        let columns = match (&prepared.statement, &prepared.action) {
            (Some(statement), _) => statement.borrow().columns().to_vec(),
            (None, Action::ShowVersion) => vec![version_column()],
            _ => Vec::new(),
        };
        if columns.is_empty() {
            self.output.message(b'n', |_| {});
        } else {
            row_description(&mut self.output, &columns);
        }
    }

    fn execute(&mut self, name: &str) -> Result<(), Failure> {
        let portal = self.portal(name)?;
        let prepared = &portal.prepared;
        self.check_status(&prepared.action)?;
        let Some(statement) = &prepared.statement else {
            if prepared.sql.is_empty() {
                self.output.message(b'I', |_| {});
                return Ok(());
            }
            return self.act(&prepared.action, &prepared.sql, false);
        };
        let mut statement = statement.borrow_mut();
        if portal.wants_binary
            && statement.columns().iter().any(|column| !matches!(column.kind.oid, oid::TEXT | oid::VARCHAR))
        {
            return Err(EngineError::new("0A000", "results are sent as text only").into());
        }
        self.run(&prepared.verb, false, |_, answer| statement.execute(&portal.values, answer))
    }

    /// Executes a statement in the engine and completes its answer.
    fn run(
        &mut self,
        verb: &Verb,
        has_description: bool,
        execute: impl FnOnce(&mut dyn Connection, &mut Answer<'_>) -> Result<Done, Failure>,
    ) -> Result<(), Failure> {
        let mut answer = Answer::new(&mut self.output, has_description);
        let connection = &mut *self.connection;
        let done = self.seat.while_busy(|| execute(connection, &mut answer))?;
        let tag = verb.tag(done, answer.rows());
        self.output.command_complete(&tag);
        Ok(())
    }

    /// In a failed transaction only its end is allowed; so it is while the engine executes what was given up.
    fn check_status(&self, action: &Action) -> Result<(), EngineError> {
        let is_allowed = matches!(
            action,
            Action::Commit | Action::RollBack | Action::RollBackTo | Action::Deallocate(_) | Action::ClientSetting
        );
        if is_allowed {
            return Ok(());
        }
        if self.status == Status::Failed {
            let text = "current transaction is aborted, commands ignored until end of transaction block";
            return Err(EngineError::new("25P02", text));
        }
        if self.seat.is_beside_one_given_up() {
            let text = format!("a statement that was cancelled still runs: {} cannot stop one", self.title);
            return Err(EngineError::new("55000", text));
        }
        Ok(())
    }

    /// Does what the server does itself.
    fn act(&mut self, action: &Action, sql: &str, has_description: bool) -> Result<(), Failure> {
        let tag = match action {
            Action::Begin => self.begin(sql)?,
            Action::Commit => self.commit()?,
            Action::RollBack => self.roll_back()?,
            Action::RollBackTo => {
                self.run(&Verb::of("rollback", self.dialect), false, |connection, answer| {
                    connection.query(sql, answer)
                })?;
                self.status = Status::InTransaction;
                return Ok(());
            }
            Action::CopyIn(copy) => return self.copy_in(copy),
            Action::Deallocate(Some(name)) => {
                self.prepared(name)?;
                self.statements.remove(name);
                "DEALLOCATE"
            }
            Action::Deallocate(None) => {
                self.statements.clear();
                "DEALLOCATE ALL"
            }
            Action::DiscardAll => {
                if self.status == Status::InTransaction {
                    return Err(EngineError::new("25001", "DISCARD ALL cannot run inside a transaction block").into());
                }
                self.portals.clear();
                self.statements.clear();
                "DISCARD ALL"
            }
            Action::ClientSetting => "SET",
            Action::ShowVersion => {
                let version = format!("15.0 ({})", self.title);
                let mut answer = Answer::new(&mut self.output, has_description);
                answer.columns(&[version_column()]);
                answer.begin_row();
                answer.value(|out| out.extend_from_slice(version.as_bytes()));
                answer.end_row()?;
                "SHOW"
            }
            Action::Execute => unreachable!("the engine's statements are executed by `run`"),
        };
        self.output.command_complete(tag);
        Ok(())
    }

    fn begin(&mut self, sql: &str) -> Result<&'static str, EngineError> {
        if self.status == Status::Idle {
            self.connection.begin(sql)?;
            self.status = Status::InTransaction;
        } else {
            self.output.warning("25001", "there is already a transaction in progress");
        }
        Ok("BEGIN")
    }

    fn commit(&mut self) -> Result<&'static str, EngineError> {
        match self.status {
            Status::Idle => self.output.warning("25P01", "there is no transaction in progress"),
            Status::Failed => return self.roll_back(),
            Status::InTransaction => {
                self.status = Status::Idle;
                let (seat, connection) = (self.seat, &mut self.connection);
                seat.while_busy(|| connection.commit())?;
            }
        }
        Ok("COMMIT")
    }

    fn roll_back(&mut self) -> Result<&'static str, EngineError> {
        if self.status == Status::Idle {
            self.output.warning("25P01", "there is no transaction in progress");
        } else {
            self.status = Status::Idle;
            self.connection.roll_back()?;
        }
        Ok("ROLLBACK")
    }

    /// Hands the client's rows to the engine through a pipe, in the present transaction or in one of its own.
    ///
    /// BIAS: a second thread moves the rows, as the engine reads its file while it executes. Only loading works so.
    fn copy_in(&mut self, copy: &CopyIn) -> Result<(), Failure> {
        let is_own = self.status == Status::Idle;
        if is_own {
            self.connection.begin("begin transaction")?;
        }
        // Text, and as many columns as the client has.
        self.output.message(b'G', |out| out.extend_from_slice(&[0, 0, 0]));
        self.output.flush()?;
        let outcome = self.copy_rows(copy);
        if is_own {
            let ended = if outcome.is_ok() { self.connection.commit() } else { self.connection.roll_back() };
            if outcome.is_ok() {
                ended?;
            }
        }
        let count = outcome?;
        self.output.command_complete(&format!("COPY {count}"));
        Ok(())
    }

    fn copy_rows(&mut self, copy: &CopyIn) -> Result<u64, Failure> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        // The engine opens the pipe a second time, by this name.
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let (input, seat, connection) = (&mut self.input, self.seat, &mut self.connection);
        let (copied, fed) = std::thread::scope(|scope| {
            let feeder = scope.spawn(move || feed(input, writer.into()));
            let copied = seat.while_busy(|| connection.copy_in(copy, &path));
            // Where the engine stopped before the end, the feeder must not wait for it.
            drop(reader);
            (copied, feeder.join())
        });
        match fed.unwrap_or(Fed::Gone) {
            Fed::Done => Ok(copied?),
            Fed::Failed(text) => Err(EngineError::new("57014", format!("COPY from stdin failed: {text}")).into()),
            Fed::Broken(error) => Err(error.into()),
            Fed::Gone => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// How the client's rows ended.
enum Fed {
    Done,
    /// CopyFail, with the client's reason.
    Failed(String),
    /// By something else than rows.
    Broken(EngineError),
    Gone,
}

/// Moves the client's rows into the pipe. What the engine does not take any more is dropped, so that the client is not stuck.
fn feed(input: &mut Input, pipe: std::fs::File) -> Fed {
    let mut pipe = Some(pipe);
    loop {
        let Ok(Some(message)) = input.message() else { return Fed::Gone };
        match message.tag {
            b'd' => {
                if pipe.as_mut().is_some_and(|pipe| pipe.write_all(message.body).is_err()) {
                    pipe = None;
                }
            }
            b'c' => return Fed::Done,
            b'f' => {
                let text = Body::new(message.body).text().unwrap_or_default();
                return Fed::Failed(text.to_owned());
            }
            b'H' | b'S' => {}
            tag => return Fed::Broken(violation(&format!("a message {:?} during COPY", char::from(tag)))),
        }
    }
}

fn version_column() -> Column {
    Column { name: "server_version".to_owned(), kind: ColumnKind::of(oid::TEXT) }
}

/// The connection of a client from its first byte: start-up, session, end. Errors are the client's going away.
pub fn attend(engine: &dyn Engine, seat: &Seat, cancel: impl Fn(i32, i32)) -> io::Result<()> {
    const PROTOCOL_3: u32 = 3 << 16;
    const CANCEL_REQUEST: u32 = 80_877_102;
    const SSL_REQUEST: u32 = 80_877_103;
    const GSS_REQUEST: u32 = 80_877_104;
    let stream = seat.stream();
    let (mut input, mut output) = (Input::new(Arc::clone(&stream)), Output::new(stream));
    loop {
        let Some(body) = input.startup()? else { return Ok(()) };
        let mut body = Body::new(body);
        match body.u32() {
            Ok(SSL_REQUEST | GSS_REQUEST) => {
                output.bytes().push(b'N');
                output.flush()?;
            }
            Ok(CANCEL_REQUEST) => {
                if let (Ok(number), Ok(secret)) = (body.i32(), body.i32()) {
                    cancel(number, secret);
                }
                return Ok(());
            }
            Ok(version) if version & 0xffff_0000 == PROTOCOL_3 => {
                if version != PROTOCOL_3 {
                    // NegotiateProtocolVersion: 3.0 and no options of later ones.
                    output.message(b'v', |out| out.extend_from_slice(&[0; 8]));
                }
                break;
            }
            _ => {
                output.error(&EngineError::new("0A000", "this server speaks protocol 3.0"), true);
                return output.flush();
            }
        }
    }
    Session::open(engine, seat, input, output)?.map_or(Ok(()), Session::serve)
}
