//! Events of a process and of all that it starts, counted by the kernel itself (`perf_event_open(2)`): of its software, of the
//! processor where it shows its counters, and system calls by name where the kernel has their tracepoints.
//!
//! BIAS: a counter of the processor that has to share its register is scaled by the time that it had it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};
use serde::Serialize;

use super::calls::tasks_of;
use super::names::known;
use crate::failure::Failure;

/// `include/uapi/linux/perf_event.h`.
const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
const TYPE_CACHE: u32 = 3;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const FORMAT_ENABLED_AND_RUNNING: u64 = 3;
/// Misses of reads in the data translation cache: cache 3, operation 0, result 1.
const DATA_TLB_MISSES: u64 = 3 | (1 << 16);

/// Kind, number and whether the kernel's own part is left out.
const EVENTS: &[(&str, u32, u64, bool)] = &[
    ("task_clock_ns", TYPE_SOFTWARE, 1, false),
    ("page_faults", TYPE_SOFTWARE, 2, false),
    ("context_switches", TYPE_SOFTWARE, 3, false),
    ("migrations", TYPE_SOFTWARE, 4, false),
    ("minor_faults", TYPE_SOFTWARE, 5, false),
    ("major_faults", TYPE_SOFTWARE, 6, false),
    ("cycles", TYPE_HARDWARE, 0, false),
    ("instructions", TYPE_HARDWARE, 1, false),
    ("instructions_in_user_mode", TYPE_HARDWARE, 1, true),
    ("cache_references", TYPE_HARDWARE, 2, false),
    ("cache_misses", TYPE_HARDWARE, 3, false),
    ("branches", TYPE_HARDWARE, 4, false),
    ("branch_misses", TYPE_HARDWARE, 5, false),
    ("data_tlb_misses", TYPE_CACHE, DATA_TLB_MISSES, false),
];

/// `PERF_EVENT_IOC_SET_FILTER`: `_IOW('$', 6, char *)`.
const SET_FILTER: libc::Ioctl = 0x4008_2406;
/// What is told beside the calls by name.
const ALL_CALLS: &str = "all";

/// Where the kernel shows its tracepoints; also mounted here, for this process alone, where nobody has.
const TRACING: &[&str] = &["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// `perf_event_attr`, the version of 112 bytes (`PERF_ATTR_SIZE_VER5`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    rest: [u64; 8],
}

#[derive(Debug, Serialize)]
struct Report {
    /// None: this machine does not count it; `missing` says why.
    events: BTreeMap<String, Option<u64>>,
    /// By name, and `all` of them, also those without one; None: this kernel has no tracepoints, or does not let us.
    calls: Option<BTreeMap<String, u64>>,
    missing: BTreeMap<String, String>,
}

/// Counters of one event, one for each task that was there when it began; what these start is in them.
struct Counting {
    name: String,
    counters: Vec<OwnedFd>,
}

/// Says `{"ready": true}` when it counts, and what it counted when it is told to end (SIGTERM).
pub fn run(pid: &str) -> Result<(), String> {
    let pid = pid.parse().map_err(|_| format!("{pid} is not the number of a process"))?;
    let over = super::told_to_end();
    let tasks = tasks_of(pid);
    if tasks.is_empty() {
        return Err(format!("no process {pid}"));
    }
    raise_limit_of_files();
    let mut missing = BTreeMap::new();
    let mut counting = Vec::new();
    for &(name, kind, config, user_only) in EVENTS {
        match count(name, &tasks, kind, config, user_only) {
            Ok(counters) => counting.push(counters),
            Err(error) => {
                missing.insert(name.to_owned(), error.to_string());
            }
        }
    }
    if counting.is_empty() {
        return Err(format!("this kernel counts no events: {}", missing.values().next().map_or("", String::as_str)));
    }
    let calls = calls_of(&tasks);
    println!("{{\"ready\":true}}");
    io::stdout().flush().map_err(|error| error.to_string())?;
    over.wait();
    let mut events: BTreeMap<String, Option<u64>> = missing.keys().map(|name| (name.clone(), None)).collect();
    for each in &counting {
        events.insert(each.name.clone(), total(each).map_err(|failure| failure.message)?);
    }
    let calls = match calls {
        Ok(calls) => {
            let mut found = BTreeMap::new();
            for each in &calls {
                if let Some(made) = total(each).map_err(|failure| failure.message)?.filter(|made| *made > 0) {
                    found.insert(each.name.clone(), made);
                }
            }
            Some(found)
        }
        Err(error) => {
            missing.insert("calls".to_owned(), error.to_string());
            None
        }
    };
    let report = Report { events, calls, missing };
    println!("{}", serde_json::to_string(&report).map_err(|error| error.to_string())?);
    Ok(())
}

fn count(name: &str, tasks: &[libc::pid_t], kind: u32, config: u64, user_only: bool) -> io::Result<Counting> {
    let mut counters = Vec::new();
    for &task in tasks {
        let attributes = Attributes {
            kind,
            size: u32::try_from(size_of::<Attributes>()).unwrap_or(u32::MAX),
            config,
            read_format: FORMAT_ENABLED_AND_RUNNING,
            flags: INHERIT | if user_only { EXCLUDE_KERNEL } else { 0 },
            ..Attributes::default()
        };
        // SAFETY: the structure is of the size that it says and lives as long as the call; the others are numbers.
        let opened = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, task, -1, -1, 0) };
        match libc::c_int::try_from(opened) {
            // SAFETY: the kernel has just given us this descriptor.
            Ok(descriptor) if descriptor >= 0 => counters.push(unsafe { OwnedFd::from_raw_fd(descriptor) }),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ESRCH) => {} // it has just ended
                error => return Err(error),
            },
        }
    }
    Ok(Counting { name: name.to_owned(), counters })
}

/// Of all tasks; None where the processor never got round to it.
fn total(counting: &Counting) -> Result<Option<u64>, Failure> {
    let mut sum = 0;
    for counter in &counting.counters {
        let mut words = [0_u8; 24];
        let file = counter.try_clone().map_err(|error| Failure::io("dup", error))?;
        fs::File::from(file).read_exact(&mut words).map_err(|error| Failure::io("read", error))?;
        let word = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&words[8 * index..8 * (index + 1)]);
            u64::from_ne_bytes(bytes)
        };
        let (value, enabled, running) = (word(0), word(1), word(2));
        sum += match running {
            0 if enabled == 0 || value == 0 => value,
            0 => return Ok(None),
            _ => u64::try_from(u128::from(value) * u128::from(enabled) / u128::from(running)).unwrap_or(u64::MAX),
        };
    }
    Ok(Some(sum))
}

/// One counter for each system call that has a name, all at the one tracepoint that every call passes: to switch on a tracepoint of
/// each takes the kernel many ms.
fn calls_of(tasks: &[libc::pid_t]) -> io::Result<Vec<Counting>> {
    let id = fs::read_to_string(tracing()?.join("events/raw_syscalls/sys_enter/id"))?;
    let id = id.trim().parse().map_err(|_| io::Error::other("the tracepoint has no number"))?;
    let mut found = vec![count(ALL_CALLS, tasks, TYPE_TRACEPOINT, id, false)?];
    for (number, name) in known() {
        let counting = count(name, tasks, TYPE_TRACEPOINT, id, false)?;
        let filter = CString::new(format!("id == {number}")).map_err(io::Error::other)?;
        for counter in &counting.counters {
            // SAFETY: the text ends with a zero and lives as long as the call.
            if unsafe { libc::ioctl(counter.as_raw_fd(), SET_FILTER, filter.as_ptr()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        found.push(counting);
    }
    Ok(found)
}

fn tracing() -> io::Result<PathBuf> {
    if let Some(folder) = TRACING.iter().map(Path::new).find(|folder| folder.join("events/raw_syscalls").is_dir()) {
        return Ok(folder.to_owned());
    }
    let target = Path::new(TRACING[0]);
    // SAFETY: this process has one thread that cares about its mounts.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let private = rustix::mount::MountPropagationFlags::REC | rustix::mount::MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private)?;
    mount("tracefs", target, "tracefs", MountFlags::empty(), None)?;
    Ok(target.to_owned())
}

/// Some hundred system calls times some ten processes.
fn raise_limit_of_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
