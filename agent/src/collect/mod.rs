//! Collectors that are programs of their own, run beside a server in a counting pass (docs/method/ledgers.md).

pub mod blocks;
pub mod calls;
pub mod events;
pub mod faults;
mod names;
pub(crate) mod perf;
pub mod samples;
pub mod tracepoints;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{mem, ptr, thread};

use serde::Serialize;

fn number_of_process(pid: &str) -> Result<u32, String> {
    pid.parse().map_err(|_| format!("{pid} is not the number of a process"))
}

/// Of the process and of its descendants, and when to end; each may need some hundred counters.
fn tasks_to_count(pid: &str) -> Result<(Vec<libc::pid_t>, ToldToEnd), String> {
    let tasks = calls::tasks_of(number_of_process(pid)?);
    if tasks.is_empty() {
        return Err(format!("no process {pid}"));
    }
    perf::raise_limit_of_files();
    Ok((tasks, told_to_end()))
}

fn say_ready() -> Result<(), String> {
    println!("{{\"ready\":true}}");
    io::stdout().flush().map_err(|error| error.to_string())
}

fn tell(found: &impl Serialize) -> Result<(), String> {
    println!("{}", serde_json::to_string(found).map_err(|error| error.to_string())?);
    Ok(())
}

/// Whether SIGTERM has come.
pub(crate) struct ToldToEnd(Arc<AtomicBool>);

impl ToldToEnd {
    pub(crate) fn is_so(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns when it is so.
    pub(crate) fn wait(&self) {
        while !self.is_so() {
            thread::park_timeout(Duration::from_millis(100));
        }
    }
}

extern "C" fn wake(_: libc::c_int) {}

/// The thread that calls this is interrupted when SIGTERM comes, also in the middle of a wait.
pub(crate) fn told_to_end() -> ToldToEnd {
    // SAFETY: all-zero sets and actions are valid, the handler does nothing, and it is installed without flags, so that waits are
    // interrupted. No other thread exists yet that could take the signal.
    let (this, told_by) = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = wake as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut());
        let mut signals: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, ptr::null_mut());
        (libc::pthread_self(), signals)
    };
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both pointers are to live variables of the right type.
        unsafe { libc::sigwait(&raw const told_by, &raw mut signal) };
        told.store(true, Ordering::SeqCst);
        loop {
            // Again and again: the first may come right before a wait begins. The process ends soon.
            // SAFETY: the main thread lives as long as the process.
            unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
            thread::sleep(Duration::from_millis(20));
        }
    });
    ToldToEnd(over)
}
