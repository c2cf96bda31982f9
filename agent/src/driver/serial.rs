//! The method `serial`: one server session, commands and replies as JSON lines; see docs/PROTOCOL.md.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answer::Expected;
use super::lines::{Lines, MAX_LINE_BYTES};
use super::server::{self, Server};
use super::session::{self, ServerSession};
use super::{DatabaseError, Execution, Outcome, QueryProtocol, Statement};
use crate::clock::now_ns;
use crate::failure::Failure;
use crate::method;
use crate::method::counters::{self, Selection};
use crate::stream::StreamHandle;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ConnectionPer {
    Persistent,
    PerStatement,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    connection: ConnectionPer,
    #[serde(default)]
    options: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    sql: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// To be compared with what statements answer that name it. It is told once and before: a thousand rows in the command of each visit
/// would be read between the host's start of the visit and the driver's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    name: String,
    answer: Expected,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeadIn {
    sql: String,
    min_ns: u64,
    min_executions: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Visit {
    #[serde(default)]
    lead_in: Option<LeadIn>,
    statements: Vec<Statement>,
    #[serde(default)]
    counters: bool,
    #[serde(default)]
    server_pid: Option<u32>,
    /// After the lead-in, and ready to execute, it waits for `go`, so that several sessions can begin at one moment.
    #[serde(default)]
    hold: bool,
}

#[derive(Serialize)]
struct LeadInReport {
    executions: u64,
    elapsed_ns: u64,
}

#[derive(Serialize)]
struct VisitReport {
    start_ns: u64,
    end_ns: u64,
    lead_in: Option<LeadInReport>,
    executions: Vec<Execution>,
    counters: Option<Value>,
}

pub fn serial(mut params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let server = Server::take(&mut params)?;
    let dialect = server.dialect();
    let params: Params = method::parse(params)?;
    let (address, login) = server.login(params.options.into_iter().collect());
    let session = session::open(dialect, address, login, server::interrupter_of(&stream));
    let mut driver = Driver { session, connection_per: params.connection, answers: BTreeMap::new() };
    let mut lines = Lines::new(stream);
    while let Some(line) = lines.next_line()? {
        let received_ns = now_ns();
        driver.obey(&line, received_ns, &mut lines)?;
    }
    driver.session.disconnect();
    Ok(json!({}))
}

struct Driver {
    session: Box<dyn ServerSession>,
    connection_per: ConnectionPer,
    answers: BTreeMap<String, Arc<Expected>>,
}

impl Driver {
    fn obey(&mut self, line: &[u8], received_ns: u64, lines: &mut Lines) -> Result<(), Failure> {
        let not_a_command = |text: &str| Failure::bad_request(format!("not a command: {text}"));
        let mut command: Value = serde_json::from_slice(line).map_err(|error| not_a_command(&error.to_string()))?;
        let object = command.as_object_mut().ok_or_else(|| not_a_command("no JSON object"))?;
        let name = object.remove("command").ok_or_else(|| not_a_command("it lacks the key \"command\""))?;
        match name.as_str().unwrap_or_default() {
            "query" => {
                let query: Query = method::parse(command)?;
                let reply = match self.session.query(&query.sql)? {
                    Ok(result) => json!({
                        "columns": result.columns, "rows": result.rows, "command_tags": result.command_tags,
                    }),
                    Err(error) => json!({"error": error}),
                };
                lines.send(&reply, too_long)
            }
            "connect" => {
                let Nothing {} = method::parse(command)?;
                let reply = match self.session.connect()? {
                    Ok(()) => json!({"at_ns": now_ns()}),
                    Err(error) => json!({"error": error}),
                };
                lines.send(&reply, too_long)
            }
            "disconnect" => {
                let Nothing {} = method::parse(command)?;
                self.session.disconnect();
                lines.send(&json!({"at_ns": now_ns()}), too_long)
            }
            "answer" => {
                let told: Answer = method::parse(command)?;
                if told.answer.rows.iter().any(|row| row.len() != told.answer.columns.len()) {
                    return Err(Failure::bad_request(format!(
                        "answer {:?}: a row has not as many values as there are columns",
                        told.name
                    )));
                }
                self.answers.insert(told.name, Arc::new(told.answer));
                lines.send(&json!({"at_ns": now_ns()}), too_long)
            }
            "counters" => lines.send(&counters::read(&method::parse(command)?)?, too_long),
            "visit" => match self.visit(method::parse(command)?, received_ns, lines)? {
                Some(Ok(report)) => lines.send(&report, too_long),
                Some(Err(error)) => lines.send(&json!({"error": error}), too_long),
                None => Ok(()),
            },
            other => Err(not_a_command(&format!("there is none named {other:?}"))),
        }
    }

    /// One waking of an arm. The inner error is the lead-in's; `None`: it was held until the end of input.
    fn visit(
        &mut self,
        mut visit: Visit,
        received_ns: u64,
        lines: &mut Lines,
    ) -> Result<Option<Result<VisitReport, DatabaseError>>, Failure> {
        for statement in &mut visit.statements {
            self.check(statement)?;
            statement.expected = self.expected(statement)?;
        }
        let lead_in = match visit.lead_in.map(|lead_in| self.lead_in(lead_in)).transpose()? {
            Some(Ok(report)) => Some(report),
            Some(Err(error)) => return Ok(Some(Err(error))),
            None => None,
        };
        let start_ns = if visit.hold {
            if let Some(statement) = visit.statements.first() {
                self.make_ready(statement)?;
            }
            let Some(gone) = lines.hold()? else { return Ok(None) };
            gone.told_ns
        } else {
            received_ns
        };
        let tree_of = visit.server_pid;
        let selection = Selection { tree_of, machine: true, ..Selection::default() };
        let sample = || visit.counters.then(|| counters::read(&selection)).transpose();
        let before = sample()?;
        let mut executions = Vec::new();
        for statement in &visit.statements {
            self.repeat(statement, &mut executions)?;
        }
        let after = sample()?;
        let counters = before.zip(after).map(|(before, after)| json!({"before": before, "after": after}));
        Ok(Some(Ok(VisitReport { start_ns, end_ns: now_ns(), lead_in, executions, counters })))
    }

    fn check(&self, statement: &Statement) -> Result<(), Failure> {
        let refuse = |text: &str| Err(Failure::bad_request(format!("statement {:?}: {text}", statement.id)));
        if statement.query_protocol == QueryProtocol::Simple && !statement.parameters.is_empty() {
            return refuse("the simple protocol has no parameters");
        }
        if statement.query_protocol == QueryProtocol::Prepared && self.connection_per == ConnectionPer::PerStatement {
            return refuse("prepared, but each execution has a connection of its own");
        }
        if statement.min_executions > statement.max_executions || statement.max_executions == 0 {
            return refuse("min_executions beyond max_executions, or none at all");
        }
        Ok(())
    }

    fn expected(&self, statement: &Statement) -> Result<Option<Arc<Expected>>, Failure> {
        let Some(name) = &statement.answer else { return Ok(None) };
        let unknown = || Failure::bad_request(format!("statement {:?}: no answer {name:?} was told", statement.id));
        self.answers.get(name).cloned().map(Some).ok_or_else(unknown)
    }

    fn lead_in(&mut self, lead_in: LeadIn) -> Result<Result<LeadInReport, DatabaseError>, Failure> {
        let statement = Statement::simple("lead-in", lead_in.sql);
        let start_ns = now_ns();
        let mut report = LeadInReport { executions: 0, elapsed_ns: 0 };
        while report.executions < lead_in.min_executions || report.elapsed_ns < lead_in.min_ns {
            if let Some(error) = self.execute(&statement)?.error {
                return Ok(Err(error));
            }
            report.executions += 1;
            report.elapsed_ns = now_ns() - start_ns;
        }
        Ok(Ok(report))
    }

    /// Does what is not timed of a first execution before the session is told to go: it would be done beside others that work already.
    /// What goes wrong here goes wrong again, and is told, in that execution.
    fn make_ready(&mut self, statement: &Statement) -> Result<(), Failure> {
        if self.connection_per == ConnectionPer::PerStatement {
            return Ok(());
        }
        match self.session.be_ready(statement) {
            Ok(()) => Ok(()),
            Err(stop) => stop.into_database_error().map(drop),
        }
    }

    /// Executes a statement as often as it asks for; the first execution that is not `ok` is the last.
    fn repeat(&mut self, statement: &Statement, executions: &mut Vec<Execution>) -> Result<(), Failure> {
        let (mut count, mut elapsed_ns) = (0, 0);
        while count < statement.max_executions
            && (count < statement.min_executions || elapsed_ns < statement.measurement_time_ns)
        {
            let execution = self.execute(statement)?;
            count += 1;
            elapsed_ns += execution.end_ns.saturating_sub(execution.start_ns);
            let is_ok = execution.outcome == Outcome::Ok;
            executions.push(execution);
            if !is_ok {
                break;
            }
        }
        Ok(())
    }

    fn execute(&mut self, statement: &Statement) -> Result<Execution, Failure> {
        match self.connection_per {
            ConnectionPer::Persistent => self.session.execute(statement),
            ConnectionPer::PerStatement => self.session.execute_alone(statement),
        }
    }
}

fn too_long() -> Value {
    let message = format!("the reply would be longer than {MAX_LINE_BYTES} bytes");
    json!({"error": DatabaseError { sqlstate: None, message, position: None }})
}
