//! Every process that this agent started: one thread reaps them all, also orphans that fall to the agent, so that the
//! agent can be process 1; a process is signalled only while it is known not to be reaped.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, mem, ptr};

use rustix::event::{EventfdFlags, eventfd};

use crate::{clock, elsewhere, lock};

/// Resources that a process used, or how it ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub user_ns: u64,
    pub system_ns: u64,
    pub max_rss_bytes: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Exit {
    pub status: ExitStatus,
    pub usage: Usage,
    pub at_ns: u64,
}

/// How a process is asked to end, and how long it may take before it is killed.
#[derive(Clone, Copy, Debug)]
pub struct StopRule {
    pub signal: i32,
    pub grace: Duration,
}

/// One process that the agent started: the leader of a session.
pub struct Child {
    pub pid: i32,
    pub stop_rule: StopRule,
    exited: OwnedFd,
    state: Mutex<ChildState>,
}

#[derive(Default)]
struct ChildState {
    exit: Option<Exit>,
    is_stopping: bool,
}

#[derive(Default)]
struct Registry {
    running: Mutex<HashMap<i32, Arc<Child>>>,
    changed: Condvar,
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);

impl Child {
    /// Readable from the moment that the process has ended.
    pub fn exited(&self) -> &OwnedFd {
        &self.exited
    }

    pub fn exit(&self) -> Option<Exit> {
        lock(&self.state).exit
    }

    /// Asks the process to end; only the first call does.
    pub fn stop(&self) {
        if !mem::replace(&mut lock(&self.state).is_stopping, true) {
            // If it has ended already there is nothing to ask.
            let _ = signal(self.pid, self.stop_rule.signal, false);
        }
    }

    /// Kills the process and all that it started, also what left its process group.
    pub fn kill(&self) {
        // First what is below: without its parent it could not be told from others.
        kill_descendants(self.pid);
        let _ = signal(self.pid, libc::SIGKILL, true);
        // Alone as well: before its start is complete it is in the agent's group.
        let _ = signal(self.pid, libc::SIGKILL, false);
        // And what it started in between.
        kill_descendants(self.pid);
    }
}

/// Prepares this process for having children: call it first, while there is one thread only.
/// When `SIGTERM`, `SIGINT` or `SIGHUP` comes, all children are ended and the process exits with 0.
pub fn supervise() -> io::Result<()> {
    // What a child leaves behind falls to the agent, so that it ends with the agent.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let signals = watched_signals();
    // SAFETY: the set is initialised, and no other thread exists yet that could keep another mask.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, ptr::null_mut()) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    std::thread::Builder::new().name("children".into()).spawn(move || {
        loop {
            let mut signal = 0;
            // SAFETY: both pointers are to live variables of the right type.
            let result = unsafe { libc::sigwait(&raw const signals, &raw mut signal) };
            if result == 0 && signal == libc::SIGCHLD {
                reap();
            } else if result == 0 {
                // Ending takes time during which this thread must go on reaping.
                let _ = std::thread::Builder::new().spawn(|| {
                    end_all();
                    elsewhere::leave();
                    std::process::exit(0);
                });
            }
        }
    })?;
    Ok(())
}

fn watched_signals() -> libc::sigset_t {
    // SAFETY: `sigemptyset` initialises the set; the signal numbers are valid.
    unsafe {
        let mut signals = mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut signals, signal);
        }
        signals
    }
}

fn reap() {
    loop {
        let mut running = lock(&REGISTRY.running);
        let mut status = 0;
        // SAFETY: an all-zero `rusage` is valid, and both pointers are to live variables.
        let (pid, usage) = unsafe {
            let mut usage: libc::rusage = mem::zeroed();
            (libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
        };
        if pid <= 0 {
            return;
        }
        if let Some(child) = running.remove(&pid) {
            let status = ExitStatus::from_raw(status);
            lock(&child.state).exit = Some(Exit { status, usage: usage_of(&usage), at_ns: clock::now_ns() });
            // The counter is far from its maximum, so this cannot fail.
            let _ = rustix::io::write(&child.exited, &1_u64.to_ne_bytes());
            drop(running);
            REGISTRY.changed.notify_all();
        }
    }
}

fn usage_of(usage: &libc::rusage) -> Usage {
    let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
    let time = |value: libc::timeval| {
        let (seconds, microseconds) = (i128::from(value.tv_sec), i128::from(value.tv_usec));
        u64::try_from(seconds * 1_000_000_000 + microseconds * 1000).unwrap_or(0)
    };
    Usage {
        user_ns: time(usage.ru_utime),
        system_ns: time(usage.ru_stime),
        max_rss_bytes: count(usage.ru_maxrss) * 1024,
        minor_faults: count(usage.ru_minflt),
        major_faults: count(usage.ru_majflt),
    }
}

/// What this process has used so far.
#[must_use]
pub fn own_usage() -> Usage {
    // SAFETY: an all-zero `rusage` is valid, and the pointer is to a live variable.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    usage_of(&usage)
}

/// Starts a process. No reaping goes on meanwhile, so it is known before its end can be seen.
pub fn spawn(command: &mut Command, stop_rule: StopRule) -> io::Result<Arc<Child>> {
    let mut running = lock(&REGISTRY.running);
    let pid = command.spawn()?.id();
    enlist(&mut running, i32::try_from(pid).map_err(io::Error::other)?, stop_rule)
}

/// Takes over a child of this process that another child created in its place and that has not been reaped.
pub fn adopt(pid: i32, stop_rule: StopRule) -> io::Result<Arc<Child>> {
    enlist(&mut lock(&REGISTRY.running), pid, stop_rule)
}

fn enlist(running: &mut HashMap<i32, Arc<Child>>, pid: i32, stop_rule: StopRule) -> io::Result<Arc<Child>> {
    let exited = eventfd(0, EventfdFlags::CLOEXEC)?;
    let child = Arc::new(Child { pid, stop_rule, exited, state: Mutex::default() });
    running.insert(pid, Arc::clone(&child));
    Ok(child)
}

/// Signals a process that this agent started, or its whole process group; false if there is none (any more).
#[must_use]
pub fn signal(pid: i32, signal: i32, group: bool) -> bool {
    let running = lock(&REGISTRY.running);
    // SAFETY: plain system call. The lock keeps the process from being reaped, so the number is not another's by now.
    running.contains_key(&pid) && unsafe { libc::kill(if group { -pid } else { pid }, signal) } == 0
}

/// Ends every process that this agent started: first by their stop rules, then by force; returns when they are gone
/// or cannot be ended (a frozen control group, a lost disk).
pub fn end_all() {
    let children: Vec<_> = lock(&REGISTRY.running).values().cloned().collect();
    let grace = children.iter().map(|child| child.stop_rule.grace).max().unwrap_or_default();
    for child in &children {
        child.stop();
    }
    wait_until_none(grace);
    let deadline = Instant::now() + Duration::from_secs(5);
    while kill_descendants(0) > 0 && Instant::now() < deadline {
        // Orphans are not in the registry, so nothing tells when the last of them is gone.
        std::thread::sleep(Duration::from_millis(2));
    }
    wait_until_none(deadline.saturating_duration_since(Instant::now()));
}

fn wait_until_none(limit: Duration) {
    let running = lock(&REGISTRY.running);
    let wait = REGISTRY.changed.wait_timeout_while(running, limit, |running| !running.is_empty());
    drop(wait.unwrap_or_else(PoisonError::into_inner));
}

/// Kills all that descends from process `ancestor`, or is in its session, but not the process itself; 0: the agent.
/// Returns how many there were. Without `/proc` it finds none.
fn kill_descendants(ancestor: i32) -> usize {
    let ancestor = if ancestor == 0 { rustix::process::getpid().as_raw_nonzero().get() } else { ancestor };
    let relations = relations();
    let parents: HashMap<i32, i32> = relations.iter().map(|r| (r.pid, r.parent)).collect();
    let descends = |mut pid: i32| {
        // The snapshot is not atomic: do not walk in circles.
        for _ in 0..parents.len() {
            match parents.get(&pid) {
                Some(parent) if *parent == ancestor => return true,
                Some(parent) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    let is_self = ancestor == rustix::process::getpid().as_raw_nonzero().get();
    let doomed =
        relations.iter().filter(|r| r.pid != ancestor && ((r.session == ancestor && !is_self) || descends(r.pid)));
    let doomed: Vec<i32> = doomed.map(|relation| relation.pid).collect();
    for pid in &doomed {
        // SAFETY: plain system call. The snapshot is microseconds old: numbers are not given anew that soon.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
    doomed.len()
}

struct Relation {
    pid: i32,
    parent: i32,
    session: i32,
}

/// All live processes that `/proc` shows.
fn relations() -> Vec<Relation> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets may itself contain anything.
        let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        (state != "Z").then_some(Relation { pid, parent, session })
    })
    .collect()
}
