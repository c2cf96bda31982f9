//! The serial driver's session against the null server and, where installed, against a real PostgreSQL.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dbtoll_agent::driver::answer::{Comparison, Expected};
use dbtoll_agent::driver::session::{ServerSession, Session};
use dbtoll_agent::driver::{Execution, Outcome, QueryProtocol, Statement};
use dbtoll_agent::failure::Code;
use dbtoll_agent::wire::blocking::{Address, Interrupter};
use support::{PASSWORD, Server, login};

const QUERY_PROTOCOLS: [QueryProtocol; 3] = [QueryProtocol::Simple, QueryProtocol::Extended, QueryProtocol::Prepared];

fn statement(query_protocol: QueryProtocol, sql: &str) -> Statement {
    Statement { query_protocol, keep_rows: true, ..Statement::simple("s", sql.to_owned()) }
}

fn rows(execution: &Execution) -> Vec<Vec<&str>> {
    let rows = execution.result.as_ref().expect("rows");
    rows.iter().map(|row| row.iter().map(|value| value.as_deref().unwrap_or("null")).collect()).collect()
}

fn assert_times_are_in_order(execution: &Execution) {
    let first_byte_ns = execution.first_byte_ns.expect("first_byte_ns");
    let connected_ns = execution.connected_ns.unwrap_or(execution.start_ns);
    assert!(execution.start_ns <= connected_ns && connected_ns < first_byte_ns, "{execution:?}");
    assert!(first_byte_ns <= execution.end_ns, "{execution:?}");
}

/// A null server in a thread; ends when this is dropped.
struct NullServer {
    address: Address,
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<()>>,
    directory: std::path::PathBuf,
}

impl NullServer {
    fn start() -> Self {
        let directory = support::temporary_directory();
        let path = directory.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let serve = move || dbtoll_agent::wire::null::serve(&listener, stopped.as_fd()).unwrap();
        let address = Address::Unix(path.to_str().unwrap().to_owned());
        Self { address, stop: Some(stop), thread: Some(thread::spawn(serve)), directory }
    }

    fn session(&self) -> Session {
        Session::new(self.address.clone(), login("u", None), Interrupter::default())
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

#[test]
fn the_null_server_answers_every_mode_with_an_empty_result() {
    let server = NullServer::start();
    let mut session = server.session();
    for query_protocol in QUERY_PROTOCOLS {
        for _ in 0..3 {
            let execution = session.execute(&statement(query_protocol, "select 1")).unwrap();
            assert_eq!(
                (execution.outcome, execution.rows, execution.result_bytes),
                (Outcome::Ok, 0, 0),
                "{query_protocol:?}"
            );
            assert_times_are_in_order(&execution);
        }
    }
    let alone = session.execute_alone(&statement(QueryProtocol::Simple, "select 1")).unwrap();
    assert_eq!(alone.outcome, Outcome::Ok);
    assert!(alone.connected_ns.is_some());
    let result = session.query("select 1").unwrap().unwrap();
    assert_eq!((result.rows.len(), result.command_tags), (0, vec!["SELECT 0".to_owned()]));
    let refused = session.query("copy t from stdin").unwrap().err().unwrap();
    assert_eq!(refused.sqlstate.as_deref(), Some("0A000"));
}

#[test]
fn the_null_server_serves_many_connections_at_once() {
    let server = NullServer::start();
    let mut sessions: Vec<Session> = (0..100).map(|_| server.session()).collect();
    for _ in 0..3 {
        for session in &mut sessions {
            assert_eq!(session.execute(&statement(QueryProtocol::Extended, "select 1")).unwrap().outcome, Outcome::Ok);
        }
    }
}

#[test]
fn all_modes_return_the_same_rows() {
    let Some(server) = Server::shared() else { return };
    let mut session = server.session();
    for query_protocol in QUERY_PROTOCOLS {
        let execution =
            session.execute(&statement(query_protocol, "select g, null, 'ä' from generate_series(1, 3) g")).unwrap();
        assert_eq!(execution.outcome, Outcome::Ok, "{:?}", execution.error);
        assert_eq!(rows(&execution), [["1", "null", "ä"], ["2", "null", "ä"], ["3", "null", "ä"]]);
        // 5 (header) + 2 (columns) + 3 lengths + 1 + 2 bytes of values, in each row.
        assert_eq!((execution.rows, execution.result_bytes), (3, 3 * (5 + 2 + 12 + 3)));
        assert_times_are_in_order(&execution);
        let mut session = server.session();
        if query_protocol != QueryProtocol::Prepared {
            let alone = session.execute_alone(&statement(query_protocol, "select 1")).unwrap();
            assert_eq!(rows(&alone), [["1"]]);
            assert_times_are_in_order(&alone);
        }
    }
}

#[test]
fn tcp_works_like_a_unix_socket() {
    let Some(server) = Server::shared() else { return };
    let mut session = Session::new(server.tcp_address(), login("tester", None), Interrupter::default());
    assert_eq!(rows(&session.execute(&statement(QueryProtocol::Extended, "select 1")).unwrap()), [["1"]]);
    let slow = Statement { timeout_ns: Some(100_000_000), ..statement(QueryProtocol::Simple, "select pg_sleep(30)") };
    assert_eq!(session.execute(&slow).unwrap().outcome, Outcome::Timeout);
    let alone =
        session.execute_alone(&statement(QueryProtocol::Simple, "select inet_server_port() is not null")).unwrap();
    assert_eq!(rows(&alone), [["t"]]);
}

#[test]
fn parameters_are_bound_as_text_and_null() {
    let Some(server) = Server::shared() else { return };
    let mut session = server.session();
    for query_protocol in [QueryProtocol::Extended, QueryProtocol::Prepared] {
        for value in [Some("41"), None] {
            let parameters = vec![value.map(str::to_owned)];
            let statement = Statement { parameters, ..statement(query_protocol, "select $1::int + 1") };
            let execution = session.execute(&statement).unwrap();
            assert_eq!(rows(&execution), [[if value.is_some() { "42" } else { "null" }]], "{:?}", execution.error);
        }
    }
    let prepared = session.query("select count(*) from pg_prepared_statements").unwrap().unwrap();
    assert_eq!(prepared.rows, [[Some("1".to_owned())]], "prepared once");
}

#[test]
fn more_prepared_statements_than_are_kept_work_all_the_same() {
    let Some(server) = Server::shared() else { return };
    let mut session = server.session();
    for number in 0..1100 {
        let execution = session.execute(&statement(QueryProtocol::Prepared, &format!("select {number}"))).unwrap();
        assert_eq!(rows(&execution), [[&*number.to_string()]]);
    }
}

#[test]
fn a_large_answer_arrives_whole() {
    let Some(server) = Server::shared() else { return };
    let mut session = server.session();
    let sql = "select g, repeat('x', 1000) from generate_series(1, 20000) g";
    for _ in 0..2 {
        let execution = session.execute(&statement(QueryProtocol::Simple, sql)).unwrap();
        assert_eq!(execution.rows, 20000);
        let result = execution.result.unwrap();
        assert_eq!(result[19999], [Some("20000".to_owned()), Some("x".repeat(1000))]);
    }
    let one_value = session.execute(&statement(QueryProtocol::Simple, "select repeat('y', 30000000)")).unwrap();
    assert_eq!(one_value.result.unwrap()[0][0].as_ref().map(String::len), Some(30_000_000));
}

#[test]
fn a_statement_of_several_has_all_their_rows() {
    let Some(server) = Server::shared() else { return };
    let mut session = server.session();
    let sql = "create temp view v as select 7 as x; select x from v; drop view v";
    for _ in 0..2 {
        assert_eq!(rows(&session.execute(&statement(QueryProtocol::Simple, sql)).unwrap()), [["7"]]);
    }
    let result = session.query(sql).unwrap().unwrap();
    assert_eq!(result.columns, ["x"]);
    assert_eq!(result.command_tags, ["CREATE VIEW", "SELECT 1", "DROP VIEW"]);
}

#[test]
fn answers_are_compared() {
    let Some(server) = Server::shared() else { return };
    let mut session = server.session();
    let expected = |value: &str| {
        let columns = vec![Comparison::Trimmed, Comparison::Numeric];
        let rows = vec![vec![Some("a".to_owned()), Some(value.to_owned())]];
        Some(Arc::new(Expected { columns, relative_tolerance: 1e-9, absolute_tolerance: 1e-12, rows }))
    };
    let sql = "select 'a'::char(5), 12345678901234.50::numeric";
    let right = Statement { expected: expected("12345678901234.5"), ..statement(QueryProtocol::Simple, sql) };
    assert_eq!(session.execute(&right).unwrap().outcome, Outcome::Ok);
    let wrong = Statement { expected: expected("12345678.5"), ..statement(QueryProtocol::Simple, sql) };
    let execution = session.execute(&wrong).unwrap();
    assert_eq!(execution.outcome, Outcome::WrongAnswer);
    let text = execution.difference.unwrap();
    assert_eq!(text, "row 1, column 2: \"12345678901234.50\", expected \"12345678.5\"");
}

#[test]
fn an_error_leaves_the_session_usable() {
    let Some(server) = Server::shared() else { return };
    let mut session = server.session();
    session.query("create temp table kept (x int)").unwrap().unwrap();
    for query_protocol in QUERY_PROTOCOLS {
        let execution = session.execute(&statement(query_protocol, "select 1/0")).unwrap();
        assert_eq!(execution.outcome, Outcome::Error);
        assert_eq!(execution.error.unwrap().sqlstate.as_deref(), Some("22012"));
        let execution = session.execute(&statement(query_protocol, "selec 1")).unwrap();
        assert_eq!((execution.error.as_ref().unwrap().position, execution.digest), (Some(1), None));
        let copy = session.execute(&statement(query_protocol, "copy kept from stdin")).unwrap();
        assert_eq!(copy.error.unwrap().sqlstate.as_deref(), Some("57014"), "{query_protocol:?}");
        let after = session.execute(&statement(query_protocol, "select count(*) from kept")).unwrap();
        assert_eq!(rows(&after), [["0"]], "the same connection is used on");
    }
    session.query("begin").unwrap().unwrap();
    assert!(session.query("select 1/0").unwrap().is_err());
    let after = session.execute(&statement(QueryProtocol::Simple, "select 1")).unwrap();
    assert_eq!(after.outcome, Outcome::Ok, "a failed transaction does not spoil what follows");
}

#[test]
fn a_statement_beyond_its_timeout_is_cancelled_and_the_session_goes_on() {
    let Some(server) = Server::shared() else { return };
    let mut session = server.session();
    session.query("create temp table kept (x int)").unwrap().unwrap();
    // One waits silently, the other sends rows all the time.
    let slow = ["select pg_sleep(30)", "select g, repeat('x', 100) from generate_series(1, 2000000000) g"];
    for query_protocol in QUERY_PROTOCOLS {
        for sql in slow {
            let timeout_ns = Some(200_000_000);
            let execution = session.execute(&Statement { timeout_ns, ..statement(query_protocol, sql) }).unwrap();
            assert_eq!(execution.outcome, Outcome::Timeout, "{query_protocol:?} {sql}");
            let elapsed_ns = execution.end_ns - execution.start_ns;
            assert!((200_000_000..3_000_000_000).contains(&elapsed_ns), "{query_protocol:?} {sql}: {elapsed_ns}");
            let after = session.execute(&statement(query_protocol, "select count(*) from kept")).unwrap();
            assert_eq!(rows(&after), [["0"]], "the same connection is used on");
        }
    }
    let alone = Statement { timeout_ns: Some(200_000_000), ..statement(QueryProtocol::Simple, slow[0]) };
    assert_eq!(session.execute_alone(&alone).unwrap().outcome, Outcome::Timeout);
    let in_time = Statement { timeout_ns: Some(60_000_000_000), ..statement(QueryProtocol::Simple, "select 1") };
    assert_eq!(session.execute(&in_time).unwrap().outcome, Outcome::Ok);
}

#[test]
fn per_statement_connections_are_gone_before_the_next_begins() {
    let Some(server) = Server::start() else { return };
    let mut session = server.session();
    let sql = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    let mut is_alone = || rows(&session.execute_alone(&statement(QueryProtocol::Extended, sql)).unwrap()) == [["1"]];
    // Whoever found out that the server is ready did not wait for the end of that connection.
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_alone() {
        assert!(Instant::now() < deadline, "an earlier connection does not end");
    }
    assert!((0..20).all(|_| is_alone()));
}

#[test]
fn a_backend_killed_in_mid_statement_is_an_error_and_the_session_reconnects() {
    let Some(server) = Server::start() else { return };
    for (signal, sqlstate) in [("TERM", Some("57P01")), ("KILL", None)] {
        let mut session = server.session();
        let pid = session.query("select pg_backend_pid()").unwrap().unwrap().rows[0][0].clone().unwrap();
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            std::process::Command::new("kill").args(["-s", signal, &pid]).status().unwrap();
        });
        let execution = session.execute(&statement(QueryProtocol::Simple, "select pg_sleep(30)")).unwrap();
        killer.join().unwrap();
        assert_eq!(execution.outcome, Outcome::Error);
        let error = execution.error.unwrap();
        assert_eq!(error.sqlstate.as_deref(), sqlstate, "{}", error.message);
        if sqlstate.is_none() {
            assert!(error.message.contains("closed the connection"), "{}", error.message);
        }
        // After a kill the server restarts its other processes; until then it refuses.
        let deadline = Instant::now() + Duration::from_secs(20);
        while session.execute(&statement(QueryProtocol::Simple, "select 1")).unwrap().outcome != Outcome::Ok {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_session_closed_by_the_server_while_idle_says_why() {
    let Some(server) = Server::shared() else { return };
    let (mut session, mut other) = (server.session(), server.session());
    let pid = session.query("select pg_backend_pid()").unwrap().unwrap().rows[0][0].clone().unwrap();
    other.query(&format!("select pg_terminate_backend({pid}, 5000)")).unwrap().unwrap();
    let execution = session.execute(&statement(QueryProtocol::Simple, "select 1")).unwrap();
    assert_eq!(execution.error.unwrap().sqlstate.as_deref(), Some("57P01"));
    assert_eq!(session.execute(&statement(QueryProtocol::Simple, "select 1")).unwrap().outcome, Outcome::Ok);
}

#[test]
fn no_server_is_an_error_that_names_the_address() {
    let nowhere = Address::Unix("/nonexistent/socket".to_owned());
    let mut session = Session::new(nowhere, login("u", None), Interrupter::default());
    let execution = session.execute(&statement(QueryProtocol::Simple, "select 1")).unwrap();
    let error = execution.error.unwrap();
    assert!(error.sqlstate.is_none() && error.message.contains("/nonexistent/socket"), "{}", error.message);
    assert!(session.connect().unwrap().is_err());
}

#[test]
fn an_interrupted_statement_ends_at_once_and_nothing_runs_after_it() {
    let Some(server) = Server::shared() else { return };
    let interrupter = Interrupter::default();
    let mut session = server.session_of(login("tester", None), interrupter.clone());
    let interrupt = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        interrupter.interrupt();
    });
    let start = Instant::now();
    let failure = session.execute(&statement(QueryProtocol::Simple, "select pg_sleep(30)")).unwrap_err();
    interrupt.join().unwrap();
    assert_eq!(failure.code, Code::Cancelled);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(session.execute(&statement(QueryProtocol::Simple, "select 1")).unwrap_err().code, Code::Cancelled);
}

#[test]
fn a_frozen_server_times_out_and_the_connection_is_dropped() {
    // A peer that logs one client in and then never says anything again, nor takes a cancel request.
    let directory = support::temporary_directory();
    let path = directory.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let frozen = thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut first, _) = listener.accept().unwrap();
        assert!(first.read(&mut [0; 1000]).unwrap() > 0);
        first.write_all(b"R\0\0\0\x08\0\0\0\0K\0\0\0\x0c\0\0\0\x01\0\0\0\x02Z\0\0\0\x05I").unwrap();
        let mut rest = Vec::new();
        first.read_to_end(&mut rest).unwrap();
    });
    let address = Address::Unix(path.to_str().unwrap().to_owned());
    let mut session = Session::new(address, login("u", None), Interrupter::default());
    let start = Instant::now();
    let slow = Statement { timeout_ns: Some(100_000_000), ..statement(QueryProtocol::Simple, "select 1") };
    let execution = session.execute(&slow).unwrap();
    assert_eq!(execution.outcome, Outcome::Timeout);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    frozen.join().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn passwords_are_sent_as_the_server_asks_for_them() {
    let Some(server) = Server::start() else { return };
    let mut owner = server.session();
    let users = format!(
        "set password_encryption = 'md5'; create user md5 password '{PASSWORD}';
         set password_encryption = 'scram-sha-256'; create user scram password '{PASSWORD}';
         create user plain password '{PASSWORD}'"
    );
    owner.query(&users).unwrap().unwrap();
    for user in ["md5", "scram", "plain"] {
        let connect = |password| {
            let mut session = server.session_of(login(user, password), Interrupter::default());
            session.query("select current_user").unwrap().map(|result| result.rows[0][0].clone())
        };
        assert_eq!(connect(Some(PASSWORD)).unwrap().as_deref(), Some(user));
        assert_eq!(connect(Some("wrong")).unwrap_err().sqlstate.as_deref(), Some("28P01"), "{user}");
        let missing = connect(None).unwrap_err();
        assert!(missing.sqlstate.is_none() && missing.message.contains("password"), "{}", missing.message);
    }
}

#[test]
fn options_and_unknown_databases_reach_the_server() {
    let Some(server) = Server::shared() else { return };
    let mut wanted = login("tester", None);
    wanted.options.push(("work_mem".to_owned(), "123MB".to_owned()));
    let mut session = server.session_of(wanted.clone(), Interrupter::default());
    let result = session.query("select current_setting('work_mem'), current_setting('client_encoding')");
    assert_eq!(result.unwrap().unwrap().rows[0], [Some("123MB".to_owned()), Some("UTF8".to_owned())]);
    wanted.database = "nosuch".to_owned();
    let mut session = server.session_of(wanted, Interrupter::default());
    assert_eq!(session.connect().unwrap().unwrap_err().sqlstate.as_deref(), Some("3D000"));
    assert!(server.pid() > 1);
}
