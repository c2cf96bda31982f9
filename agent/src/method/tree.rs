//! `tree`: a process and all that descend from it, put to sleep and woken by signals: for arms without a control group.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};

use super::counters::{Stat, all_stats, descendants};
use super::parse;
use crate::failure::{Code, Failure};
use crate::stream::StreamHandle;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    pid: u32,
    /// None: only which processes there are.
    #[serde(default)]
    make: Option<Make>,
    #[serde(default = "ten_seconds")]
    timeout_ms: u64,
}

fn ten_seconds() -> u64 {
    10_000
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Make {
    Stopped,
    Running,
}

/// Between two looks at processes that have not stopped yet.
const PAUSE: Duration = Duration::from_micros(200);

pub fn tree(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    let params: Params = parse(params)?;
    let pids = match params.make {
        None => members(params.pid)?,
        Some(Make::Stopped) => stopped(params.pid, Duration::from_millis(params.timeout_ms))?,
        Some(Make::Running) => running(params.pid)?,
    };
    Ok(json!({"pids": pids}))
}

/// The parents before their children, as far as numbers tell.
fn members(root: u32) -> Result<BTreeSet<u32>, Failure> {
    Ok(descendants(root, all_stats()?)?.iter().map(Stat::pid).collect())
}

/// Returns when no thread of the tree can run. Two looks that find the same processes, all of them stopped: whoever is stopped
/// starts no other, so the second would have shown whom the first had overlooked.
fn stopped(root: u32, timeout: Duration) -> Result<BTreeSet<u32>, Failure> {
    let deadline = Instant::now() + timeout;
    let mut before = BTreeSet::new();
    loop {
        let found = members(root)?;
        let awake: Vec<u32> = found.iter().copied().filter(|pid| !is_stopped(*pid)).collect();
        if awake.is_empty() && found == before {
            return Ok(found);
        }
        if Instant::now() > deadline {
            let message = format!("processes {awake:?} have not stopped within {} ms", timeout.as_millis());
            return Err(Failure::new(Code::Timeout, message));
        }
        // A process that is traced stops when its tracer, which is stopped, does not let it go on: a guest's process in
        // User Mode Linux. A signal would be told to the tracer, which takes it for the guest's.
        awake.iter().filter(|pid| !is_traced(**pid)).for_each(|pid| signal(*pid, Signal::STOP));
        if !awake.is_empty() {
            thread::sleep(PAUSE);
        }
        before = found;
    }
}

fn running(root: u32) -> Result<BTreeSet<u32>, Failure> {
    let found = members(root)?;
    found.iter().filter(|pid| !is_traced(**pid)).for_each(|pid| signal(*pid, Signal::CONT));
    Ok(found)
}

/// Whether none of its threads can run: stopped, stopped by a tracer, or ended.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { return true };
        let state = stat.rfind(')').and_then(|end| stat[end + 1..].trim_start().chars().next());
        matches!(state, Some('T' | 't' | 'Z' | 'X') | None)
    })
}

fn is_traced(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("TracerPid:")).any(|tracer| tracer.trim() != "0")
}

/// Who has ended meanwhile gets none.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
