//! System calls by name, counted at the one tracepoint that every call passes: to switch on a tracepoint of each takes the kernel many
//! ms.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;

use super::names::known;
use super::perf::{Counting, TYPE_TRACEPOINT, Tracepoint};

/// What is told beside the calls by name.
const ALL_CALLS: &str = "all";

#[derive(Debug, Serialize)]
struct Report {
    /// By name, and `all` of them, also those without one.
    calls: BTreeMap<String, u64>,
}

/// Says `{"ready": true}` when it counts, and what it counted when it is told to end (SIGTERM).
pub fn run(pid: &str) -> Result<(), String> {
    let (tasks, over) = super::tasks_to_count(pid)?;
    let counting = begin(&tasks).map_err(|error| format!("no tracepoints of system calls: {error}"))?;
    super::say_ready()?;
    over.wait();
    let mut calls = BTreeMap::new();
    for each in &counting {
        if let Some(made) = each.total().map_err(|error| error.to_string())?.filter(|made| *made > 0) {
            calls.insert(each.name.clone(), made);
        }
    }
    super::tell(&Report { calls })
}

fn begin(tasks: &[libc::pid_t]) -> io::Result<Vec<Counting>> {
    let tracepoint = Tracepoint::find("raw_syscalls/sys_enter")?;
    let count = |name| Counting::begin(name, tasks, TYPE_TRACEPOINT, tracepoint.number, 0);
    let mut found = vec![count(ALL_CALLS)?];
    for (number, name) in known() {
        let counting = count(name)?;
        counting.filter(&format!("id == {number}"))?;
        found.push(counting);
    }
    Ok(found)
}
