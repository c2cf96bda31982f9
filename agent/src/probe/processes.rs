//! Processes: their start, and switching between them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use rustix::thread::CpuSet;

use super::{Made, Probe, Repeated, Request, Spent};
use crate::clock::now_ns;
use crate::failure::Failure;

/// A process of this size that ends at once, waited for (lmbench: `lat_proc fork`).
pub fn fork(_: &Request) -> Made {
    Ok(Box::new(Repeated(|| {
        let child = forked(|| ())?;
        child.wait();
        Ok(())
    })))
}

/// This program in its place, which ends at once (lmbench: `lat_proc exec`).
pub fn exec(_: &Request) -> Made {
    Ok(Box::new(Repeated(|| {
        let mut command = Command::new("/proc/self/exe");
        let status = command.arg("exit").stdin(Stdio::null()).status();
        status.map(drop).map_err(|error| Failure::io("exec", error))
    })))
}

/// A child of this process, which has one thread.
pub struct Forked(libc::pid_t);

impl Forked {
    pub fn wait(self) {
        drop(self);
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: the pointer is to a live variable.
        while unsafe { libc::waitpid(self.0, &raw mut status, 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// Runs `work` in a new process, which then ends without what else is usual.
pub fn forked(work: impl FnOnce()) -> Result<Forked, Failure> {
    // SAFETY: probes have a process of their own with one thread, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::io("fork", io::Error::last_os_error())),
        0 => {
            work();
            // SAFETY: ends at once; nothing of the parent's is flushed a second time.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(Forked(pid)),
    }
}

/// Keeps this process and what it starts on one processor, so that who is woken takes the other's place.
fn stay_on_one_processor() -> Result<(), Failure> {
    let allowed = rustix::thread::sched_getaffinity(None).map_err(|error| Failure::io("sched_getaffinity", error))?;
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(first);
    rustix::thread::sched_setaffinity(None, &one).map_err(|error| Failure::io("sched_setaffinity", error))
}

/// One byte handed to and fro between two processes on one processor: an event is one switch, with the write and the read that
/// bring it about (lmbench: `lat_ctx` takes these off, `lat_pipe` counts both ways as one).
pub fn switch_pipe(_: &Request) -> Made {
    stay_on_one_processor()?;
    let (mut their_input, mut output) = pipe()?;
    let (mut input, mut their_output) = pipe()?;
    let ours = [raw(&input), raw(&output)];
    let child = forked(|| {
        for descriptor in ours {
            // SAFETY: in the child, which does not use them; with them open it would never see the end.
            unsafe { libc::close(descriptor) };
        }
        let mut byte = [0];
        while their_input.read_exact(&mut byte).and_then(|()| their_output.write_all(&byte)).is_ok() {}
    })?;
    drop((their_input, their_output));
    Ok(Box::new(ToAndFro {
        exchange: Box::new(move || {
            let mut byte = [0];
            output.write_all(&byte).and_then(|()| input.read_exact(&mut byte))
        }),
        _child: child,
    }))
}

/// A descriptor by its number, for a child that is to close it.
pub fn raw(file: &impl AsRawFd) -> libc::c_int {
    file.as_raw_fd()
}

fn pipe() -> Result<(File, File), Failure> {
    let (read, write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| Failure::io("pipe", error))?;
    Ok((read.into(), write.into()))
}

/// Exchanges with a child; each is two switches. The fields' order matters: the child ends when its end of the pipe has gone.
struct ToAndFro {
    exchange: Box<dyn FnMut() -> io::Result<()>>,
    _child: Forked,
}

impl Probe for ToAndFro {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let exchanges = events.div_ceil(2);
        let begin_ns = now_ns();
        for _ in 0..exchanges {
            (self.exchange)().map_err(|error| Failure::io("pipe", error))?;
        }
        Ok(Spent { events: 2 * exchanges, elapsed_ns: now_ns() - begin_ns })
    }
}

/// Two threads on one processor that wake each other by a futex in turn: an event is one wake-up with the switch to it.
pub fn switch_futex(_: &Request) -> Made {
    stay_on_one_processor()?;
    let turn = Arc::new(AtomicU32::new(OURS));
    let theirs = Arc::clone(&turn);
    let other = thread::spawn(move || {
        while await_turn(&theirs, THEIRS) {
            hand_over(&theirs, OURS);
        }
    });
    Ok(Box::new(InTurn { turn, other: Some(other) }))
}

const OURS: u32 = 0;
const THEIRS: u32 = 1;
const OVER: u32 = 2;

/// Whether the turn came; false when it is over.
fn await_turn(turn: &AtomicU32, mine: u32) -> bool {
    loop {
        let now = turn.load(Ordering::Acquire);
        if now == mine {
            return true;
        }
        if now == OVER {
            return false;
        }
        // SAFETY: the word lives as long as the call; the other pointers are not used by this operation.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                turn.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                now,
                std::ptr::null::<libc::timespec>(),
            );
        }
    }
}

fn hand_over(turn: &AtomicU32, to: u32) {
    turn.store(to, Ordering::Release);
    // SAFETY: the word lives as long as the call.
    unsafe { libc::syscall(libc::SYS_futex, turn.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

struct InTurn {
    turn: Arc<AtomicU32>,
    other: Option<JoinHandle<()>>,
}

impl Probe for InTurn {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let pairs = events.div_ceil(2);
        let begin_ns = now_ns();
        for _ in 0..pairs {
            hand_over(&self.turn, THEIRS);
            await_turn(&self.turn, OURS);
        }
        Ok(Spent { events: 2 * pairs, elapsed_ns: now_ns() - begin_ns })
    }
}

impl Drop for InTurn {
    fn drop(&mut self) {
        hand_over(&self.turn, OVER);
        if let Some(other) = self.other.take() {
            let _ = other.join();
        }
    }
}
