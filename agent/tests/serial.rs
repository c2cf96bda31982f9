//! The method `serial` on the real binary: commands, replies, refusals, cancellation.

mod common;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::time::{Duration, Instant};

use common::{Agent, NullServer, Scratch, lines, replies, wait_for, wait_until};
use serde_json::{Value, json};
use support::Server;

fn params(address: &Value, connection: &str) -> Value {
    json!({"wire": "postgres", "address": address, "user": "tester", "password": null, "database": "postgres",
        "connection": connection, "options": {"application_name": "dbtoll test"}})
}

fn statement(sql: &str, more: &Value) -> Value {
    let mut statement = json!({"id": "s", "sql": sql, "query_protocol": "simple"});
    statement.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    statement
}

fn visit(statements: &[Value]) -> Value {
    json!({"command": "visit", "statements": statements})
}

fn told(name: &str, answer: &Value) -> Value {
    json!({"command": "answer", "name": name, "answer": answer})
}

#[test]
fn a_visit_leads_in_repeats_and_counts() {
    let server = NullServer::start("visit");
    let mut agent = Agent::start();
    let pid = server.process.id();
    let commands = [
        json!({"command": "connect"}),
        json!({"command": "visit", "lead_in": {"sql": "select 1", "min_ns": 2_000_000, "min_executions": 7},
            "statements": [
                statement("select 1", &json!({"id": "often", "min_executions": 5})),
                statement("select 2", &json!({"id": "dwelling", "measurement_time_ns": 3_000_000, "query_protocol": "extended",
                    "parameters": ["x", null]})),
                statement("select 3", &json!({"id": "bounded", "measurement_time_ns": 60_000_000_000_u64, "max_executions": 9,
                    "query_protocol": "prepared"})),
            ], "counters": true, "server_pid": pid}),
        json!({"command": "counters", "tree_of": pid, "machine": false}),
        json!({"command": "disconnect"}),
        json!({"command": "query", "sql": "select 1"}),
    ];
    let answer = agent.call("serial", &params(&server.address(), "persistent"), &lines(&commands));
    assert_eq!(answer.error, None, "{:?}", answer.result);
    let replies = replies(&answer.output);
    assert_eq!(replies.len(), 5);
    let visit = &replies[1];
    assert!(visit["lead_in"]["executions"].as_u64().unwrap() >= 7, "{visit}");
    assert!(visit["lead_in"]["elapsed_ns"].as_u64().unwrap() >= 2_000_000);
    let executions = visit["executions"].as_array().unwrap();
    let of = |id: &str| executions.iter().filter(|execution| execution["statement"] == id).collect::<Vec<_>>();
    assert_eq!((of("often").len(), of("bounded").len()), (5, 9));
    let elapsed = |execution: &&Value| execution["end_ns"].as_u64().unwrap() - execution["start_ns"].as_u64().unwrap();
    let dwelt: Vec<u64> = of("dwelling").iter().map(elapsed).collect();
    let total: u64 = dwelt.iter().sum();
    assert!(dwelt.len() == 1000 || (3_000_000..3_000_000 + dwelt[dwelt.len() - 1]).contains(&total), "{dwelt:?}");
    // In order, inside the visit, and none overlaps.
    let mut last = visit["start_ns"].as_u64().unwrap();
    for execution in executions {
        assert_eq!(execution["outcome"], "ok");
        assert!(execution["start_ns"].as_u64().unwrap() > last);
        last = execution["end_ns"].as_u64().unwrap();
    }
    assert!(last < visit["end_ns"].as_u64().unwrap());
    let used = |when: &str| visit["counters"][when]["processes"]["voluntary_switches"].as_u64().unwrap();
    assert!(used("after") > used("before"), "{}", visit["counters"]);
    assert_eq!(replies[2]["processes"]["count"], 1);
    assert!(replies[0]["at_ns"].as_u64() < replies[3]["at_ns"].as_u64());
    assert_eq!(replies[4]["command_tags"], json!(["SELECT 0"]));
}

fn go() -> Value {
    json!({"command": "go"})
}

fn held_visit() -> Value {
    json!({"command": "visit", "hold": true, "lead_in": {"sql": "select 1", "min_ns": 0, "min_executions": 3},
        "statements": [statement("select 1", &json!({"min_executions": 2}))]})
}

#[test]
fn a_held_visit_begins_when_it_is_told_to() {
    let server = NullServer::start("held");
    let mut agent = Agent::start();
    let controller = agent.controller();
    let streams = [0, 1].map(|_| controller.sender.open("serial", &params(&server.address(), "persistent")));
    for stream in streams {
        controller.sender.data(stream, &lines(&[held_visit()]));
        let held = replies(&controller.next_of(stream).payload).remove(0);
        assert_eq!(held["held"], true, "{held}");
    }
    // The second is told after the first has ended: what two streams are told at once comes in either order.
    let visits = streams.map(|stream| {
        controller.sender.data(stream, &lines(&[go()]));
        controller.sender.end(stream);
        replies(&controller.answer(stream).output).remove(0)
    });
    for visit in &visits {
        assert_eq!(visit["lead_in"]["executions"], 3, "{visit}");
        let executions = visit["executions"].as_array().unwrap();
        assert_eq!(executions.len(), 2);
        assert!(executions[0]["start_ns"].as_u64() > visit["start_ns"].as_u64(), "{visit}");
    }
    assert!(visits[0]["end_ns"].as_u64().unwrap() < visits[1]["start_ns"].as_u64().unwrap(), "{visits:?}");
}

/// A connection has a place of its own in /proc/net/unix, with the name of the socket that accepted it.
fn connections_to(path: &str) -> usize {
    let listener = 1;
    std::fs::read_to_string("/proc/net/unix").unwrap().lines().filter(|line| line.ends_with(path)).count() - listener
}

#[test]
fn a_held_visit_has_connected_and_prepared_before_it_is_told_to_begin() {
    let server = NullServer::start("ready");
    let socket = server.scratch.path("socket");
    let mut agent = Agent::start();
    for (connection, query_protocol, expected) in [("persistent", "prepared", 1), ("per_statement", "extended", 0)] {
        let controller = agent.controller();
        let stream = controller.sender.open("serial", &params(&server.address(), connection));
        let statements = [statement("select 1", &json!({"query_protocol": query_protocol}))];
        controller.sender.data(stream, &lines(&[json!({"command": "visit", "hold": true, "statements": statements})]));
        assert_eq!(replies(&controller.next_of(stream).payload)[0]["held"], true);
        assert_eq!(connections_to(&socket), expected, "{connection}");
        controller.sender.data(stream, &lines(&[go()]));
        controller.sender.end(stream);
        let visit = &replies(&controller.answer(stream).output)[0];
        assert_eq!(visit["executions"][0]["outcome"], "ok", "{visit}");
        wait_until("the goodbye", || (connections_to(&socket) == 0).then_some(()));
    }
}

#[test]
fn what_keeps_a_held_visit_from_being_ready_is_told_by_its_execution() {
    let scratch = Scratch::new("held-nowhere");
    let mut agent = Agent::start();
    let nowhere = json!({"unix": scratch.path("socket")});
    let statements = [statement("select 1", &json!({"query_protocol": "prepared"}))];
    let held = json!({"command": "visit", "hold": true, "statements": statements});
    let answer = agent.call("serial", &params(&nowhere, "persistent"), &lines(&[held, go()]));
    assert_eq!(answer.error, None, "{:?}", answer.result);
    let said = replies(&answer.output);
    assert_eq!((said.len(), &said[0]["held"]), (2, &json!(true)));
    assert_eq!(said[1]["executions"][0]["outcome"], "error", "{}", said[1]);
}

#[test]
fn a_held_visit_that_is_never_told_to_begin_ends_with_its_stream() {
    let server = NullServer::start("never");
    let mut agent = Agent::start();
    let answer = agent.call("serial", &params(&server.address(), "persistent"), &lines(&[held_visit()]));
    assert_eq!(answer.error, None, "{:?}", answer.result);
    let said = replies(&answer.output);
    assert_eq!((said.len(), &said[0]["held"]), (1, &json!(true)));
    let controller = agent.controller();
    let stream = controller.sender.open("serial", &params(&server.address(), "persistent"));
    controller.sender.data(stream, &lines(&[held_visit()]));
    controller.next_of(stream);
    controller.sender.cancel(stream);
    assert_eq!(controller.answer(stream).error.as_deref(), Some("cancelled"));
}

#[test]
fn what_is_held_is_told_to_begin_once_and_nothing_else() {
    let server = NullServer::start("once");
    let mut agent = Agent::start();
    for (commands, done) in [
        (vec![go()], 0),
        (vec![held_visit(), go(), go()], 2),
        (vec![held_visit(), json!({"command": "disconnect"})], 1),
        (vec![held_visit(), json!({"command": "go", "when_ns": 5})], 1),
        (vec![held_visit(), json!([])], 1),
        (vec![visit(&[statement("select 1", &json!({}))]), go()], 1),
    ] {
        let answer = agent.call("serial", &params(&server.address(), "persistent"), &lines(&commands));
        assert_eq!(answer.error.as_deref(), Some("bad_request"), "{commands:?}");
        assert_eq!(replies(&answer.output).len(), done, "{commands:?}");
    }
}

#[test]
fn per_statement_reports_when_it_was_connected() {
    let server = NullServer::start("per-statement");
    let mut agent = Agent::start();
    let commands = [visit(&[statement("select 1", &json!({"min_executions": 3}))])];
    let answer = agent.call("serial", &params(&server.address(), "per_statement"), &lines(&commands));
    for execution in replies(&answer.output)[0]["executions"].as_array().unwrap() {
        assert_eq!(execution["outcome"], "ok");
        let at = |key: &str| execution[key].as_u64().unwrap();
        assert!(at("start_ns") < at("connected_ns") && at("connected_ns") < at("first_byte_ns"), "{execution}");
    }
}

#[test]
fn what_is_not_a_command_ends_the_stream() {
    let server = NullServer::start("refusals");
    let mut agent = Agent::start();
    let bad = [
        json!({"command": "sing"}),
        json!({"sql": "select 1"}),
        json!([1]),
        json!({"command": "query", "sql": "select 1", "extra": 1}),
        json!({"command": "query"}),
        visit(&[statement("select $1", &json!({"parameters": ["x"]}))]),
        visit(&[statement("select 1", &json!({"min_executions": 2, "max_executions": 1}))]),
        visit(&[statement("select 1", &json!({"query_protocol": "telepathic"}))]),
        visit(&[statement("select 1", &json!({"answer": "never told"}))]),
        told("about", &json!({"columns": ["about"], "rows": []})),
        told("ragged", &json!({"columns": ["exact"], "rows": [["a", "b"]]})),
        visit(&[statement("nul \0 byte", &json!({}))]),
    ];
    for command in bad {
        let answer =
            agent.call("serial", &params(&server.address(), "persistent"), &lines(std::slice::from_ref(&command)));
        assert_eq!(answer.error.as_deref(), Some("bad_request"), "{command}");
        assert!(answer.output.is_empty());
    }
    let answer = agent.call("serial", &params(&server.address(), "persistent"), b"not json\n");
    assert_eq!(answer.error.as_deref(), Some("bad_request"));
    let prepared = visit(&[statement("select 1", &json!({"query_protocol": "prepared"}))]);
    let answer = agent.call("serial", &params(&server.address(), "per_statement"), &lines(&[prepared]));
    assert_eq!(answer.error.as_deref(), Some("bad_request"));
    for (key, value) in [("wire", json!("carrier pigeon")), ("connection", json!("two")), ("tls", json!(true))] {
        let mut wrong = params(&server.address(), "persistent");
        wrong[key] = value;
        assert_eq!(agent.call("serial", &wrong, b"").error.as_deref(), Some("bad_request"), "{key}");
    }
}

#[test]
fn a_server_that_is_not_there_is_a_reply_and_not_the_end() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("nowhere");
    let address = json!({"unix": scratch.path("socket")});
    let commands = [
        json!({"command": "connect"}),
        json!({"command": "query", "sql": "select 1"}),
        json!({"command": "visit", "lead_in": {"sql": "select 1", "min_ns": 0, "min_executions": 1}, "statements": []}),
        visit(&[statement("select 1", &json!({"min_executions": 3}))]),
    ];
    let answer = agent.call("serial", &params(&address, "persistent"), &lines(&commands));
    assert_eq!(answer.error, None);
    let replies = replies(&answer.output);
    for reply in &replies[..3] {
        assert_eq!(reply["error"]["sqlstate"], Value::Null);
        assert!(reply["error"]["message"].as_str().unwrap().contains("socket"), "{reply}");
    }
    let executions = replies[3]["executions"].as_array().unwrap();
    assert_eq!((executions.len(), &executions[0]["outcome"]), (1, &json!("error")), "an error is not repeated");
}

#[test]
fn cancelling_the_stream_ends_a_running_statement() {
    let Some(server) = Server::shared() else { return };
    let dbtoll_agent::wire::blocking::Address::Unix(path) = server.address() else { unreachable!() };
    let mut agent = Agent::start();
    let controller = agent.controller();
    let stream = controller.sender.open("serial", &params(&json!({"unix": path}), "persistent"));
    controller.sender.data(stream, &lines(&[visit(&[statement("select pg_sleep(60)", &json!({}))])]));
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    controller.sender.cancel(stream);
    assert_eq!(controller.answer(stream).error.as_deref(), Some("cancelled"));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn answers_errors_and_rows_come_back_in_a_visit() {
    let Some(server) = Server::shared() else { return };
    let dbtoll_agent::wire::blocking::Address::Unix(path) = server.address() else { unreachable!() };
    let mut agent = Agent::start();
    let answer = |value: &str| json!({"columns": ["numeric"], "rows": [[value]]});
    let commands = [
        told("right", &answer("2.5")),
        told("wrong", &answer("2.5")),
        told("wrong", &answer("2.6")),
        visit(&[
            statement("select 2.50", &json!({"answer": "right", "keep_rows": true})),
            statement("select 2.50", &json!({"answer": "wrong", "min_executions": 3})),
            statement("select * from nosuch", &json!({})),
            statement("select pg_sleep(20)", &json!({"timeout_ns": 50_000_000})),
            statement("select repeat('x', 70 * 1024 * 1024)", &json!({"query_protocol": "extended"})),
        ]),
        json!({"command": "query", "sql": "select repeat('x', 70 * 1024 * 1024)"}),
        json!({"command": "query", "sql": "select 1 as one, null as two"}),
    ];
    let answer = agent.call("serial", &params(&json!({"unix": path}), "persistent"), &lines(&commands));
    assert_eq!(answer.error, None, "{:?}", answer.result);
    let replies = &replies(&answer.output)[3..];
    let executions = replies[0]["executions"].as_array().unwrap();
    let outcomes: Vec<&str> = executions.iter().map(|execution| execution["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["ok", "wrong_answer", "error", "timeout", "ok"]);
    assert_eq!(executions[0]["result"], json!([["2.50"]]));
    assert_eq!(executions[0]["digest"], executions[1]["digest"]);
    assert_eq!(executions[1]["result"], Value::Null);
    assert_eq!(executions[2]["error"]["sqlstate"], "42P01");
    assert!(executions[4]["result_bytes"].as_u64().unwrap() > 70 << 20);
    assert!(replies[1]["error"]["message"].as_str().unwrap().contains("67108864"), "a reply that would be too long");
    assert_eq!(replies[2], json!({"columns": ["one", "two"], "rows": [["1", null]], "command_tags": ["SELECT 1"]}));
}

#[test]
fn the_null_server_ends_on_sigterm_and_takes_its_socket_with_it() {
    // As soon as there is a socket, too: several times, for that is a race.
    for _ in 0..20 {
        let mut server = NullServer::start("sigterm");
        let pid = rustix::process::Pid::from_child(&server.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(wait_for(&mut server.process).success());
        assert!(!std::path::Path::new(&server.scratch.path("socket")).exists());
    }
}
