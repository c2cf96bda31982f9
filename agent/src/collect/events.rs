//! Events of a process and of all that it starts, counted by the kernel itself: of its software, and of the processor where it shows
//! its counters.
//!
//! BIAS: a counter of the processor that has to share its register is scaled by the time that it had it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::perf::{Counting, EXCLUDE_KERNEL, TYPE_SOFTWARE};

/// `include/uapi/linux/perf_event.h`.
const TYPE_HARDWARE: u32 = 0;
const TYPE_CACHE: u32 = 3;
/// Misses of reads in the data translation cache: cache 3, operation 0, result 1.
const DATA_TLB_MISSES: u64 = 3 | (1 << 16);

/// Kind, number and flags.
const EVENTS: &[(&str, u32, u64, u64)] = &[
    ("task_clock_ns", TYPE_SOFTWARE, 1, 0),
    ("page_faults", TYPE_SOFTWARE, 2, 0),
    ("context_switches", TYPE_SOFTWARE, 3, 0),
    ("migrations", TYPE_SOFTWARE, 4, 0),
    ("minor_faults", TYPE_SOFTWARE, 5, 0),
    ("major_faults", TYPE_SOFTWARE, 6, 0),
    ("cycles", TYPE_HARDWARE, 0, 0),
    ("instructions", TYPE_HARDWARE, 1, 0),
    ("instructions_in_user_mode", TYPE_HARDWARE, 1, EXCLUDE_KERNEL),
    ("cache_references", TYPE_HARDWARE, 2, 0),
    ("cache_misses", TYPE_HARDWARE, 3, 0),
    ("branches", TYPE_HARDWARE, 4, 0),
    ("branch_misses", TYPE_HARDWARE, 5, 0),
    ("data_tlb_misses", TYPE_CACHE, DATA_TLB_MISSES, 0),
];

#[derive(Debug, Serialize)]
struct Report {
    /// None: this machine does not count it; `missing` says why.
    events: BTreeMap<String, Option<u64>>,
    missing: BTreeMap<String, String>,
}

/// Says `{"ready": true}` when it counts, and what it counted when it is told to end (SIGTERM).
pub fn run(pid: &str) -> Result<(), String> {
    let (tasks, over) = super::tasks_to_count(pid)?;
    let mut missing = BTreeMap::new();
    let mut counting = Vec::new();
    for &(name, kind, config, flags) in EVENTS {
        match Counting::begin(name, &tasks, kind, config, flags) {
            Ok(counters) => counting.push(counters),
            Err(error) => {
                missing.insert(name.to_owned(), error.to_string());
            }
        }
    }
    if counting.is_empty() {
        return Err(format!("this kernel counts no events: {}", missing.values().next().map_or("", String::as_str)));
    }
    super::say_ready()?;
    over.wait();
    let mut events: BTreeMap<String, Option<u64>> = missing.keys().map(|name| (name.clone(), None)).collect();
    for each in &counting {
        events.insert(each.name.clone(), each.total().map_err(|error| error.to_string())?);
    }
    super::tell(&Report { events, missing })
}
