//! `probe` and `calls` on the real binary.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use common::AGENT;
use serde_json::{Value, json};

/// A number of events that nothing makes by chance.
const PRIME: u64 = 7919;

fn found(request: &Value) -> Value {
    let output = Command::new(AGENT).args(["probe", &request.to_string()]).output().unwrap();
    assert!(output.status.success(), "{request}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn probe(name: &str) -> Value {
    json!({"probe": name, "batches": 3, "batch_ns": 300_000, "folder": std::env::temp_dir()})
}

fn cost_ns(found: &Value) -> f64 {
    let batches = found["batches"].as_array().unwrap();
    let sum = |what: &str| batches.iter().map(|batch| batch[what].as_f64().unwrap()).sum::<f64>();
    sum("elapsed_ns") / sum("events")
}

#[test]
fn every_probe_finds_a_cost_or_says_why_there_is_none() {
    let usage =
        String::from_utf8(Command::new(AGENT).args(["probe", "{\"probe\":\"?\"}"]).output().unwrap().stderr).unwrap();
    let names = usage.split("there are ").nth(1).unwrap().trim();
    let names: Vec<&str> = names.split(", ").collect();
    assert!(names.len() > 40, "{usage}");
    for name in names {
        let found = found(&probe(name));
        assert!(found["end_ns"].as_u64() > found["start_ns"].as_u64());
        if let Some(why) = found["unsupported"].as_str() {
            assert!(why.len() > 10, "{name}: {why}");
            continue;
        }
        assert_eq!(found["batches"].as_array().unwrap().len(), 3, "{name}");
        // From less than a cycle to what a start of a process may take on a loaded machine.
        assert!((0.0..1e9).contains(&cost_ns(&found)), "{name}: {found}");
    }
}

#[test]
fn what_is_larger_by_nature_is_found_larger() {
    let cost = |name: &str| cost_ns(&found(&probe(name)));
    for (larger, smaller) in
        [("fork", "switch_pipe"), ("switch_pipe", "system_call"), ("system_call", "nothing"), ("exec", "fork")]
    {
        // A busy machine may take anybody's time now and then, but not always the same one's.
        assert!((0..20).any(|_| cost(larger) > cost(smaller)), "{larger} is never dearer than {smaller}");
    }
}

#[test]
fn several_at_once_bring_the_batches_of_all() {
    let mut request = probe("arithmetic");
    request["instances"] = json!(3);
    assert_eq!(found(&request)["batches"].as_array().unwrap().len(), 9);
}

#[test]
fn nothing_is_left_in_the_folder() {
    let folder = std::env::temp_dir().join(format!("dbtoll-probe-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["fsync", "read_random_direct", "write_sequential_buffered", "fault_file"] {
        let mut request = probe(name);
        request["folder"] = json!(folder);
        found(&request);
    }
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn pages_of_the_largest_file_are_read_once_each() {
    let folder = std::env::temp_dir().join(format!("dbtoll-uncached-test-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("base")).unwrap();
    std::fs::write(folder.join("small"), vec![1; 8192]).unwrap();
    std::fs::write(folder.join("base/large"), vec![1; 6 * 8192]).unwrap();
    for name in ["read_sequential_uncached", "read_random_uncached"] {
        let mut request = probe(name);
        request["folder"] = json!(folder);
        request["events"] = json!(2);
        let batches = &found(&request)["batches"];
        assert_eq!(batches.as_array().unwrap().len(), 3, "{batches}");
        assert!(batches.as_array().unwrap().iter().all(|batch| batch["events"] == json!(2)));
        request["events"] = json!(3);
        assert!(found(&request)["unsupported"].as_str().unwrap().contains("no file of 9 pages"));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A process that waits for a line before it does `PRIME` events.
fn waiting(name: &str) -> Child {
    let mut request = probe(name);
    request["events"] = json!(PRIME);
    request["batches"] = json!(1);
    request["waits"] = json!(true);
    let mut command = Command::new(AGENT);
    command.args(["probe", &request.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

fn end(tracer: &Child) {
    let killed = Command::new("kill").args(["-TERM", &tracer.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

/// What the tracer tells of a process that does `PRIME` system calls in a row.
fn traced_calls() -> Value {
    let mut subject = waiting("system_call");
    let mut said = BufReader::new(subject.stdout.take().unwrap());
    assert_eq!(line(&mut said), "ready\n");
    let mut tracer = Command::new(AGENT);
    tracer.args(["calls", &subject.id().to_string()]).stdout(Stdio::piped());
    let mut tracer = tracer.spawn().unwrap();
    let mut told = BufReader::new(tracer.stdout.take().unwrap());
    assert_eq!(line(&mut told), "{\"ready\":true}\n");
    subject.stdin.take().unwrap().write_all(b"\n").unwrap();
    let report = line(&mut said);
    assert!(report.contains("batches"), "{report}");
    end(&tracer);
    let seen: Value = serde_json::from_str(&line(&mut told)).unwrap();
    assert!(tracer.wait().unwrap().success());
    assert!(subject.wait().unwrap().success());
    seen["calls"]["getppid"].clone()
}

#[test]
fn calls_are_counted_exactly() {
    // Counts hold every time. Whether a call follows the one before it at once is told by a clock, to which a wait for a
    // processor is added where other tests run; so one quiet time of several is enough.
    let in_a_row = (0..10).any(|_| {
        let calls = traced_calls();
        assert_eq!(calls["count"], json!(PRIME), "{calls}");
        assert_eq!(calls["failed"], json!(0));
        assert_eq!(calls["background"], json!(PRIME), "it serves nobody");
        calls["alone"].as_u64().unwrap() < PRIME / 10
    });
    assert!(in_a_row, "they come in a row, yet a tenth of them is told as alone every time");
}

#[test]
fn what_starts_others_all_the_time_can_be_looked_at() {
    // It ends by itself, too.
    let script = "i=0; while [ $i -lt 20000 ]; do /bin/true; i=$((i+1)); done";
    let mut subject = Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
    for _ in 0..50 {
        let mut tracer = Command::new(AGENT);
        tracer.args(["calls", &subject.id().to_string()]).stdout(Stdio::piped());
        let mut tracer = tracer.spawn().unwrap();
        let mut told = BufReader::new(tracer.stdout.take().unwrap());
        assert_eq!(line(&mut told), "{\"ready\":true}\n");
        end(&tracer);
        assert!(tracer.wait().unwrap().success());
    }
    subject.kill().unwrap();
    subject.wait().unwrap();
}

#[test]
fn events_are_counted_by_the_kernel_itself() {
    let mut subject = waiting("fault_anonymous");
    let mut said = BufReader::new(subject.stdout.take().unwrap());
    assert_eq!(line(&mut said), "ready\n");
    let mut counting = Command::new(AGENT);
    counting.args(["events", &subject.id().to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut counting = counting.spawn().unwrap();
    let mut told = BufReader::new(counting.stdout.take().unwrap());
    let first = line(&mut told);
    if first.is_empty() {
        // A kernel without them says so.
        assert!(!counting.wait().unwrap().success());
        let _ = (subject.kill(), subject.wait());
        return;
    }
    assert_eq!(first, "{\"ready\":true}\n");
    subject.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(line(&mut said).contains("batches"));
    end(&counting);
    let seen: Value = serde_json::from_str(&line(&mut told)).unwrap();
    assert!(counting.wait().unwrap().success());
    let faults = seen["events"]["minor_faults"].as_u64().unwrap();
    assert!((PRIME..PRIME + 600).contains(&faults), "{seen}");
    for (name, count) in seen["events"].as_object().unwrap() {
        assert_eq!(count.is_null(), seen["missing"].get(name).is_some(), "{seen}");
    }
    assert!(subject.wait().unwrap().success());
}

#[test]
fn what_a_traced_process_starts_is_traced_and_what_is_let_go_lives_on() {
    let script = "read line; for i in 1 2 3; do /bin/true; done; echo done; read line; echo alive";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut said = BufReader::new(shell.stdout.take().unwrap());
    let mut tracer = Command::new(AGENT);
    tracer.args(["calls", &shell.id().to_string()]).stdout(Stdio::piped());
    let mut tracer = tracer.spawn().unwrap();
    let mut told = BufReader::new(tracer.stdout.take().unwrap());
    assert_eq!(line(&mut told), "{\"ready\":true}\n");
    let mut input = shell.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    assert_eq!(line(&mut said), "done\n");
    end(&tracer);
    let seen: Value = serde_json::from_str(&line(&mut told)).unwrap();
    assert!(tracer.wait().unwrap().success());
    assert_eq!(seen["tasks"], json!(4), "{seen}");
    assert_eq!(seen["calls"]["execve"]["count"], json!(3), "{seen}");
    input.write_all(b"\n").unwrap();
    assert_eq!(line(&mut said), "alive\n");
    assert!(shell.wait().unwrap().success());
}

#[test]
fn who_is_not_there_cannot_be_traced() {
    let output = Command::new(AGENT).args(["calls", "4194305"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no process 4194305"));
}
