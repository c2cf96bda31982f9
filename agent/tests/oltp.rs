//! The method `oltp` on the real binary: against the null server, and where installed against a real PostgreSQL.

mod common;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::time::{Duration, Instant};

use common::{Agent, NullServer, lines, replies};
use dbtoll_agent::driver::session::ServerSession;
use serde_json::{Value, json};
use support::Server;

const SECOND_NS: u64 = 1_000_000_000;

fn login(address: &Value) -> Value {
    json!({"wire": "postgres", "address": address, "user": "tester", "password": null, "database": "postgres"})
}

fn with(base: &Value, more: &Value) -> Value {
    let mut all = base.clone();
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

fn params(address: &Value, workload: &Value, interaction: &str, terminals: usize, more: &Value) -> Value {
    let own = json!({"workload": workload, "interaction": interaction, "terminals": terminals, "seed": 7,
        "response_timeout_ns": 10 * SECOND_NS});
    with(&with(&login(address), &own), more)
}

fn window(milliseconds: u64) -> Value {
    json!({"command": "window", "ramp_up_ns": 50_000_000, "window_ns": milliseconds * 1_000_000, "interval_ns": 100_000_000})
}

fn sum_of(report: &Value, what: &str) -> u64 {
    let kinds = report["transactions"].as_object().unwrap();
    kinds.values().map(|kind| kind[what].as_u64().unwrap()).sum()
}

fn count_of(times: &Value) -> u64 {
    times["buckets"].as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap()).sum()
}

#[test]
fn windows_against_the_null_server_are_counted_whole() {
    let server = NullServer::start("oltp-null");
    let mut agent = Agent::start();
    for (workload, interaction) in [
        (json!({"tatp": {"subscribers": 100_000, "seed": 1}}), "statement"),
        (json!({"tpcc": {"warehouses": 3, "seed": 1}}), "statement"),
        (json!({"tpcc": {"warehouses": 3, "seed": 1}}), "pipelined"),
        (json!({"tpcc": {"warehouses": 3, "seed": 1}}), "procedure"),
    ] {
        let asked = params(&server.address(), &workload, interaction, 50, &json!({"threads": 2, "imitation": true}));
        let answer = agent.call("oltp", &asked, &lines(&[window(300), window(200)]));
        assert_eq!(answer.error, None, "{:?}", answer.result);
        let replies = replies(&answer.output);
        assert_eq!(replies.len(), 3, "{replies:?}");
        for report in &replies[1..] {
            let done = sum_of(report, "committed") + sum_of(report, "rolled_back") + sum_of(report, "not_found");
            let series: u64 = report["series"].as_array().unwrap().iter().map(|each| each.as_u64().unwrap()).sum();
            assert_eq!(done, series, "{interaction} {report}");
            assert!(done > 100, "{interaction} {report}");
            assert_eq!(sum_of(report, "lost") + sum_of(report, "unknown"), 0);
            for kind in report["transactions"].as_object().unwrap().values() {
                assert_eq!(kind["failed"], json!({}), "{kind}");
            }
            let trips = report["round_trips"].as_u64().unwrap();
            let hundredths = 100 * trips / done;
            let expected = match (interaction, workload.get("tatp").is_some()) {
                (_, true) => 100..160,
                ("statement", _) => 2000..4000,
                ("pipelined", _) => 200..450,
                _ => 90..110,
            };
            assert!(expected.contains(&hundredths), "{interaction}: {hundredths} / 100 round trips a transaction");
            assert!(report["driver_cpu_ns"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn an_open_loop_keeps_its_rate_and_tells_response_from_service() {
    let server = NullServer::start("oltp-open");
    let mut agent = Agent::start();
    let workload = json!({"tatp": {"subscribers": 100_000, "seed": 1}});
    let asked = params(&server.address(), &workload, "statement", 20, &json!({"imitation": true}));
    let answer = agent.call("oltp", &asked, &lines(&[with(&window(1000), &json!({"rate": 2000.0}))]));
    assert_eq!(answer.error, None, "{:?}", answer.result);
    let report = &replies(&answer.output)[1];
    let done = sum_of(report, "committed") + sum_of(report, "not_found");
    // Poisson: the standard deviation is 45.
    assert!((1780..2220).contains(&done), "{done}");
    // Only what came at the very end can find all terminals busy.
    let backlog_at_end = report["backlog_at_end"].as_u64().unwrap();
    assert!(backlog_at_end < 100, "{backlog_at_end}");
    let count = |what: &str| -> u64 {
        report["transactions"].as_object().unwrap().values().map(|kind| count_of(&kind[what])).sum()
    };
    assert_eq!(count("response_ns"), count("service_ns") + backlog_at_end);
    for kind in report["transactions"].as_object().unwrap().values() {
        assert!(kind["response_ns"]["sum"].as_u64() >= kind["service_ns"]["sum"].as_u64());
    }
}

#[test]
fn a_held_window_tells_its_clock_and_begins_when_that_shows_what_it_is_told() {
    let server = NullServer::start("oltp-told");
    let mut agent = Agent::start();
    let workload = json!({"tatp": {"subscribers": 1000, "seed": 1}});
    let asked = params(&server.address(), &workload, "statement", 4, &json!({"imitation": true}));
    let controller = agent.controller();
    let stream = controller.sender.open("oltp", &asked);
    let connected = replies(&controller.next_of(stream).payload);
    assert_eq!(connected.len(), 1);
    controller.sender.data(stream, &lines(&[with(&window(100), &json!({"hold": true}))]));
    let mut shown = Vec::new();
    for _ in 0..3 {
        let held = replies(&controller.next_of(stream).payload).remove(0);
        assert_eq!(held["held"], true);
        shown.push(held["at_ns"].as_u64().unwrap());
        if shown.len() < 3 {
            controller.sender.data(stream, &lines(&[json!({"command": "tell"})]));
        }
    }
    assert!(shown.is_sorted(), "{shown:?}");
    let at_ns = shown[2] + 200_000_000;
    controller.sender.data(stream, &lines(&[json!({"command": "go", "at_ns": at_ns})]));
    controller.sender.end(stream);
    let report = replies(&controller.answer(stream).output).remove(0);
    let begun = ["start_ns", "begin_ns"].map(|name| report[name].as_u64().unwrap());
    // A machine that takes longer than that to hand on a line begins at once.
    assert_eq!(begun[1], at_ns.max(begun[0]), "{report}");
}

#[test]
fn a_held_window_begins_when_it_is_told_to_or_not_at_all() {
    let server = NullServer::start("oltp-held");
    let mut agent = Agent::start();
    let workload = json!({"tatp": {"subscribers": 1000, "seed": 1}});
    let asked = params(&server.address(), &workload, "statement", 4, &json!({"imitation": true}));
    let held = with(&window(100), &json!({"hold": true}));
    let go = json!({"command": "go"});
    let later = json!({"command": "go", "in_ns": 30_000_000});
    let answer = agent.call("oltp", &asked, &lines(&[held.clone(), later, window(100), held.clone()]));
    assert_eq!(answer.error, None, "{:?}", answer.result);
    let said = replies(&answer.output);
    assert_eq!(said.len(), 5, "connected, held, its window, another, held until the end: {said:?}");
    assert_eq!((&said[1]["held"], &said[4]["held"]), (&json!(true), &json!(true)));
    assert!(said[1]["at_ns"].as_u64() <= said[2]["start_ns"].as_u64());
    let at = |reply: &Value, name: &str| reply[name].as_u64().unwrap();
    assert_eq!(at(&said[2], "begin_ns"), at(&said[2], "start_ns") + 30_000_000);
    assert_eq!(at(&said[2], "from_ns"), at(&said[2], "begin_ns") + 50_000_000);
    assert_eq!(at(&said[3], "begin_ns"), at(&said[3], "start_ns"));
    assert!(sum_of(&said[2], "committed") > 0 && sum_of(&said[3], "committed") > 0);
    for (commands, done) in [
        (vec![go.clone()], 1),
        (vec![held.clone(), go.clone(), go.clone()], 3),
        (vec![held.clone(), held.clone()], 2),
        (vec![held.clone(), json!({"command": "go", "in_ns": 10_000_000_001_u64})], 2),
        (vec![held.clone(), json!({"command": "go", "at_ns": u64::MAX})], 2),
        (vec![held.clone(), json!({"command": "tell", "at_ns": 1})], 2),
        (vec![with(&held, &json!({"window_ns": 0}))], 1),
    ] {
        let answer = agent.call("oltp", &asked, &lines(&commands));
        assert_eq!(answer.error.as_deref(), Some("bad_request"), "{commands:?} {:?}", answer.result);
        assert_eq!(replies(&answer.output).len(), done, "{commands:?}");
    }
    let controller = agent.controller();
    let stream = controller.sender.open("oltp", &asked);
    controller.next_of(stream);
    controller.sender.data(stream, &lines(std::slice::from_ref(&held)));
    controller.next_of(stream);
    let begin = Instant::now();
    controller.sender.cancel(stream);
    assert_eq!(controller.answer(stream).error.as_deref(), Some("cancelled"));
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_cannot_be_is_refused() {
    let server = NullServer::start("oltp-refused");
    let mut agent = Agent::start();
    let tatp = json!({"tatp": {"subscribers": 1000, "seed": 1}});
    for (workload, terminals, more, commands, code) in [
        (json!({"tpcc": {"warehouses": 0, "seed": 1}}), 1, json!({}), vec![], "bad_request"),
        (json!({"tpch": {}}), 1, json!({}), vec![], "bad_request"),
        (tatp.clone(), 0, json!({}), vec![], "bad_request"),
        (tatp.clone(), 1, json!({"threads": 2}), vec![], "bad_request"),
        (
            tatp.clone(),
            1,
            json!({}),
            vec![json!({"command": "window", "window_ns": 0, "interval_ns": 1})],
            "bad_request",
        ),
        (tatp.clone(), 1, json!({}), vec![json!({"command": "dance"})], "bad_request"),
    ] {
        let asked = params(&server.address(), &workload, "statement", terminals, &more);
        let answer = agent.call("oltp", &asked, &lines(&commands));
        assert_eq!(answer.error.as_deref(), Some(code), "{workload} {:?}", answer.result);
    }
    let nobody = json!({"unix": "/nonexistent/socket"});
    let answer = agent.call("oltp", &params(&nobody, &tatp, "statement", 3, &json!({})), b"");
    assert_eq!(answer.error.as_deref(), Some("not_found"), "{:?}", answer.result);
}

#[test]
fn a_cancelled_session_ends_at_once() {
    let server = NullServer::start("oltp-cancelled");
    let mut agent = Agent::start();
    let workload = json!({"tatp": {"subscribers": 1000, "seed": 1}});
    let controller = agent.controller();
    let asked = params(&server.address(), &workload, "statement", 4, &json!({"imitation": true}));
    let stream = controller.sender.open("oltp", &asked);
    controller.next_of(stream);
    controller.sender.data(stream, &lines(&[window(60_000)]));
    std::thread::sleep(Duration::from_millis(100));
    let begin = Instant::now();
    controller.sender.cancel(stream);
    assert_eq!(controller.answer(stream).error.as_deref(), Some("cancelled"));
    assert!(begin.elapsed() < Duration::from_secs(5));
}

// --- on a real server ------------------------------------------------------------------------------------------------

const SQL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/dbtoll/workloads");

fn script(name: &str) -> String {
    std::fs::read_to_string(format!("{SQL}/{name}")).unwrap()
}

fn run(server: &Server, sql: &str) -> Vec<Vec<Option<String>>> {
    let result = server.session().query(sql).unwrap();
    result.unwrap_or_else(|error| panic!("{}: {sql}", error.message)).rows
}

fn unix(server: &Server) -> Value {
    serde_json::to_value(server.address()).unwrap()
}

fn load(agent: &mut Agent, server: &Server, workload: &Value) -> Value {
    let asked = with(&login(&unix(server)), &json!({"workload": workload, "connections": 2}));
    let answer = agent.call("oltp_load", &asked, b"");
    assert_eq!(answer.error, None, "{:?}", answer.result);
    answer.result
}

fn tpcc(server: &Server, agent: &mut Agent, warehouses: i32) -> Value {
    let workload = json!({"tpcc": {"warehouses": warehouses, "seed": 1}});
    run(server, &script("tpcc/schema.sql"));
    let loaded = load(agent, server, &workload);
    assert_eq!(loaded["rows"]["customer"], 30_000 * warehouses);
    // All pieces are there: nothing is done twice.
    assert_eq!(load(agent, server, &workload)["rows"], json!({}));
    for part in ["keys", "indexes", "procedures-postgres"] {
        run(server, &script(&format!("tpcc/{part}.sql")));
    }
    run(server, "vacuum analyze");
    workload
}

fn violations(server: &Server) -> Vec<String> {
    let text = script("tpcc/consistency.sql");
    text.split("\n-- ")
        .filter(|part| part.starts_with(|first: char| first.is_ascii_digit()))
        .filter_map(|part| {
            let (what, sql) = part.split_once('\n').unwrap();
            let rows = run(server, sql);
            (rows[0][0].as_deref() != Some("0")).then(|| format!("{what}: {rows:?}"))
        })
        .collect()
}

fn number(server: &Server, sql: &str) -> u64 {
    run(server, sql)[0][0].as_deref().unwrap().parse().unwrap()
}

#[test]
fn the_data_are_consistent_after_every_interaction_and_hold_what_was_acknowledged() {
    let Some(server) = Server::start() else { return };
    let mut agent = Agent::start();
    let workload = tpcc(&server, &mut agent, 2);
    assert_eq!(violations(&server), Vec::<String>::new());
    for interaction in ["statement", "pipelined", "procedure"] {
        let orders = number(&server, "select count(*) from orders");
        let payments = number(&server, "select count(*) from history");
        let asked = params(&unix(&server), &workload, interaction, 8, &json!({"threads": 2}));
        let answer = agent.call("oltp", &asked, &lines(&[window(1500)]));
        assert_eq!(answer.error, None, "{:?}", answer.result);
        let report = &replies(&answer.output)[1];
        for (name, kind) in report["transactions"].as_object().unwrap() {
            assert_eq!(kind["failed"], json!({}), "{interaction} {name} {kind}");
        }
        assert!(sum_of(report, "committed") > 50, "{report}");
        let sum = |what: &str| -> u64 {
            let ledgers = report["acknowledged"].as_array().unwrap().iter();
            let counts = ledgers.flat_map(|ledger| ledger[what].as_object().unwrap().values());
            counts.map(|count| count.as_u64().or_else(|| count[0].as_u64()).unwrap()).sum()
        };
        assert_eq!(number(&server, "select count(*) from orders") - orders, sum("new_orders"), "{interaction}");
        assert_eq!(number(&server, "select count(*) from history") - payments, sum("payments"), "{interaction}");
        assert_eq!(violations(&server), Vec::<String>::new(), "{interaction}");
    }
}

#[test]
fn a_stall_shows_in_the_responses_of_an_open_loop() {
    let Some(server) = Server::start() else { return };
    let report = stalled(&server, 4, 200.0, &json!({}), Duration::from_secs(1));
    let slow = |what: &str| -> u64 {
        let kinds = report["transactions"].as_object().unwrap().values();
        let buckets = kinds.flat_map(|kind| kind[what]["buckets"].as_array().unwrap());
        buckets.filter(|pair| pair[0].as_u64() > Some(300_000_000)).map(|pair| pair[1].as_u64().unwrap()).sum()
    };
    // 200 arrivals in the second of the stall, 140 of which waited for more than 0.3 s; only 4 were on their way.
    assert!((90..190).contains(&slow("response_ns")), "{}", slow("response_ns"));
    assert!(slow("service_ns") <= 4, "{}", slow("service_ns"));
}

#[test]
fn patience_counts_from_the_request_and_not_from_the_idle_time_before_it() {
    let Some(server) = Server::start() else { return };
    // Each of the terminals is idle for some 3 s between two transactions, and waits at most 0.5 s for an answer.
    let report = stalled(&server, 60, 20.0, &json!({"response_timeout_ns": SECOND_NS}), Duration::from_millis(500));
    assert!(sum_of(&report, "committed") > 20, "{report}");
    assert_eq!(report["connections_lost"], 0, "{report}");
    assert_eq!(sum_of(&report, "lost") + sum_of(&report, "unknown"), 0, "{report}");
}

/// What a window of 4 s of TATP's at a `rate` tells, in the middle of which all server processes stand still for a while.
fn stalled(server: &Server, terminals: usize, rate: f64, more: &Value, still: Duration) -> Value {
    let mut agent = Agent::start();
    run(server, &script("tatp/schema.sql"));
    let workload = json!({"tatp": {"subscribers": 10_000, "seed": 1}});
    load(&mut agent, server, &workload);
    for part in ["keys", "indexes", "foreign-keys"] {
        run(server, &script(&format!("tatp/{part}.sql")));
    }
    let asked = params(&unix(server), &workload, "statement", terminals, more);
    let controller = agent.controller();
    let stream = controller.sender.open("oltp", &asked);
    controller.next_of(stream);
    controller.sender.data(stream, &lines(&[with(&window(4000), &json!({"rate": rate}))]));
    std::thread::sleep(Duration::from_secs(2));
    let backends: Vec<i32> = children_of(server.pid());
    let signal = |signal| {
        for &pid in &backends {
            let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal);
        }
    };
    signal(rustix::process::Signal::STOP);
    std::thread::sleep(still);
    signal(rustix::process::Signal::CONT);
    controller.sender.end(stream);
    let answer = controller.answer(stream);
    assert_eq!(answer.error, None, "{:?}", answer.result);
    replies(&answer.output)[0].clone()
}

fn children_of(pid: u32) -> Vec<i32> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_killed_server_is_survived_and_counted() {
    let Some(server) = Server::start() else { return };
    let mut agent = Agent::start();
    let workload = tpcc(&server, &mut agent, 1);
    let asked = params(&unix(&server), &workload, "statement", 64, &json!({"response_timeout_ns": 3 * SECOND_NS}));
    let controller = agent.controller();
    let stream = controller.sender.open("oltp", &asked);
    controller.next_of(stream);
    controller.sender.data(stream, &lines(&[window(3000)]));
    std::thread::sleep(Duration::from_secs(1));
    // A backend that is killed makes the postmaster end all others and recover.
    let victim = *children_of(server.pid()).last().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(victim).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    controller.sender.end(stream);
    let answer = controller.answer(stream);
    assert_eq!(answer.error, None, "{:?}", answer.result);
    let report = &replies(&answer.output)[0];
    assert!(report["connections_lost"].as_u64().unwrap() >= 60, "{report}");
    assert!(report["reconnects"].as_u64().unwrap() >= 60, "{report}");
    assert!(sum_of(report, "lost") + sum_of(report, "unknown") >= 60, "{report}");
    assert!(sum_of(report, "committed") > 50, "{report}");
    assert_eq!(violations(&server), Vec::<String>::new());
}
