//! `tree`: a process and all that descend from it, put to sleep and woken by signals: for arms without a control group.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};

use super::counters::{Stat, all_stats, descendants, state_in};
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

/// How long after which a process that has not stopped is taken to wait for a child.
const PATIENCE: Duration = Duration::from_millis(5);
const PATIENCE_MAX: Duration = Duration::from_millis(200);

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
    let (began, mut patience) = (Instant::now(), PATIENCE);
    let mut before = BTreeSet::new();
    loop {
        let found = members(root)?;
        let awake: Vec<u32> = found.iter().copied().filter(|pid| !is_stopped(*pid)).collect();
        if awake.is_empty() && found == before {
            return Ok(found);
        }
        if began.elapsed() > timeout {
            let message = format!("processes {awake:?} have not stopped within {} ms", timeout.as_millis());
            return Err(Failure::new(Code::Timeout, message));
        }
        for pid in &awake {
            // Who is traced, a guest's process in User Mode Linux, stops at any signal until its tracer, which is stopped itself,
            // lets it go on. That tracer takes SIGSTOP for a fault of the guest's, and SIGALRM for nothing.
            signal(*pid, if is_traced(*pid) { Signal::ALARM } else { Signal::STOP });
        }
        let waits_for_child = |pid: &&u32| began.elapsed() > PATIENCE && !is_stopped(**pid);
        let children: Vec<u32> = awake.iter().filter(waits_for_child).flat_map(|pid| children(*pid)).collect();
        if !children.is_empty() {
            // Who waits for its child to execute a program (vfork) cannot stop before that has happened. A child that gets no
            // processor meanwhile is stopped again before it has done anything: next time it has longer.
            children.iter().filter(|pid| !is_traced(**pid)).for_each(|pid| signal(*pid, Signal::CONT));
            thread::sleep(patience);
            patience = (patience * 2).min(PATIENCE_MAX);
        } else if !awake.is_empty() {
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
        matches!(state_in(&stat), Some('T' | 't' | 'Z' | 'X') | None)
    })
}

fn children(pid: u32) -> Vec<u32> {
    let stats = all_stats().unwrap_or_default();
    stats.iter().filter(|stat| stat.parent() == pid).map(Stat::pid).collect()
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
