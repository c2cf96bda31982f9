//! Credits, limits and independence of streams, on the real binary.

mod common;

use std::io::Read;
use std::time::{Duration, Instant};

use common::{Agent, Scratch, WINDOW, spawn, wait_for};
use dbtoll_agent::proto::Kind;
use dbtoll_agent::proto::hello::MAX_STREAMS;
use serde_json::json;

#[test]
fn ping_answers() {
    let mut agent = Agent::start();
    let first = agent.call("ping", &json!({}), b"").result["at_ns"].as_u64().unwrap();
    let second = agent.call("ping", &json!({}), b"").result["at_ns"].as_u64().unwrap();
    assert!(first > 0 && second > first);
    assert_eq!(agent.call("ping", &json!({"x": 1}), b"").error.as_deref(), Some("bad_request"));
    assert_eq!(agent.call("pong", &json!({}), b"").error.as_deref(), Some("unknown_method"));
    assert!(agent.finish().success());
}

#[test]
fn output_stops_at_the_window_and_goes_on_with_credit() {
    let mut agent = Agent::start();
    let controller = agent.controller();
    let stream = controller.sender.open("run", &json!({"argv": ["head", "-c", "3000000", "/dev/zero"]}));
    let (mut received, mut since_credit) = (0, 0);
    // The window fills to the last byte: control messages count as well.
    while since_credit < WINDOW {
        let frame = controller.next().unwrap();
        assert_eq!(frame.kind, Kind::Data);
        since_credit += frame.payload.len();
        received += if frame.channel == 0 { frame.payload.len() } else { 0 };
    }
    assert_eq!(since_credit, WINDOW);
    // Nothing more comes on this stream, but another is answered.
    let ping = controller.sender.open("ping", &json!({}));
    let frame = controller.next().unwrap();
    assert_eq!((frame.kind, frame.stream), (Kind::End, ping));

    controller.sender.credit(stream, 10_000);
    let mut extra = 0;
    while extra < 10_000 {
        extra += controller.next().unwrap().payload.len();
    }
    assert_eq!(extra, 10_000);
    controller.sender.credit(stream, WINDOW);
    let answer = controller.answer(stream);
    assert_eq!(received + extra + answer.output.len(), 3_000_000);
    assert_eq!(answer.result["exit_code"], 0);
}

#[test]
fn a_program_that_does_not_read_blocks_only_its_own_stream() {
    let mut agent = Agent::start();
    let controller = agent.controller();
    let deaf = controller.sender.open("run", &json!({"argv": ["sleep", "100"]}));
    let started = controller.next_of(deaf);
    assert_eq!(started.channel, 2);
    // All that the window allows; the pipe takes only a part of it.
    for _ in 0..4 {
        controller.sender.data(deaf, &vec![b'x'; WINDOW / 4]);
    }
    let start = Instant::now();
    let answer = controller.call("run", &json!({"argv": ["wc", "-c"]}), &vec![b'y'; 500_000]);
    assert_eq!(answer.output, b"500000\n");
    assert!(start.elapsed() < Duration::from_secs(5));
    controller.sender.cancel(deaf);
    assert_eq!(controller.answer(deaf).result["signal"], 9);
    assert!(agent.finish().success());
}

#[test]
fn input_beyond_the_window_flows_as_the_program_reads() {
    let mut agent = Agent::start();
    let controller = agent.controller();
    let stream = controller.sender.open("run", &json!({"argv": ["wc", "-c"]}));
    let (mut room, mut left) = (WINDOW, 20 * WINDOW);
    while left > 0 {
        if room == 0 {
            let frame = controller.next().unwrap();
            if frame.kind == Kind::Credit {
                room += u32::from_le_bytes(frame.payload.try_into().unwrap()) as usize;
            }
            continue;
        }
        let count = room.min(left).min(100_000);
        controller.sender.data(stream, &vec![0; count]);
        (room, left) = (room - count, left - count);
    }
    controller.sender.end(stream);
    assert_eq!(controller.answer(stream).output, format!("{}\n", 20 * WINDOW).as_bytes());
}

#[test]
fn streams_beyond_the_maximum_are_refused_and_places_come_free() {
    let mut agent = Agent::start();
    let controller = agent.controller();
    let sink = Scratch::new("max-streams");
    // `put` waits for its input and costs no process.
    let put = json!({"path": sink.path("file"), "size_bytes": 1});
    let streams: Vec<_> = (0..MAX_STREAMS).map(|_| controller.sender.open("put", &put)).collect();
    let extra = controller.sender.open("ping", &json!({}));
    assert_eq!(controller.answer(extra).error.as_deref(), Some("refused"));
    controller.sender.cancel(streams[0]);
    assert_eq!(controller.answer(streams[0]).error.as_deref(), Some("cancelled"));
    let again = controller.sender.open("ping", &json!({}));
    assert_eq!(controller.answer(again).error, None);
    assert!(agent.finish().success());
    assert_eq!(std::fs::read_dir(&sink.0).unwrap().count(), 0, "unfinished files are removed");
}

#[test]
fn every_refusal_is_answered() {
    let mut agent = Agent::start();
    let controller = agent.controller();
    let sink = Scratch::new("flood");
    let put = json!({"path": sink.path("file"), "size_bytes": 1});
    let too_many = 744;
    for _ in 0..MAX_STREAMS as usize + too_many {
        controller.sender.open("put", &put);
    }
    let refused = (0..too_many).map(|_| controller.next().unwrap()).filter(|frame| frame.kind == Kind::Error);
    assert_eq!(refused.filter(|frame| frame.json()["code"] == "refused").count(), too_many);
}

#[test]
fn idle_agents_use_no_cpu() {
    let mut agent = Agent::start();
    agent.call("run", &json!({"argv": ["true"]}), b"");
    let stream = agent.controller().sender.open("run", &json!({"argv": ["sleep", "100"]}));
    agent.controller().next_of(stream);
    let cpu = |pid| {
        let schedstat = |path: std::path::PathBuf| std::fs::read_to_string(path.join("schedstat")).unwrap();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let run_ns =
            tasks.map(|task| schedstat(task.unwrap().path()).split(' ').next().unwrap().parse::<u64>().unwrap());
        run_ns.sum::<u64>()
    };
    // On a busy machine it may still be at what it was asked for; one that wakes by itself does so in every half second.
    let is_idle = |_| {
        let before = cpu(agent.process.id());
        std::thread::sleep(Duration::from_millis(500));
        cpu(agent.process.id()) == before
    };
    assert!((0..10).any(is_idle), "CPU time while idle");
    assert!(is_idle(0), "CPU time while idle, after half a second of none");
}

#[test]
fn wrong_command_lines_are_one_line() {
    for arguments in
        [&["serve", "--nonsense"][..], &["serve", "--unix"], &["serve", "--unix", "/nonexistent/socket"], &["x"]]
    {
        let mut process = spawn(arguments);
        drop(process.stdin.take());
        assert_eq!(wait_for(&mut process).code(), Some(1));
        let mut message = String::new();
        process.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}
