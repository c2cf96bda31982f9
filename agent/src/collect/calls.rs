//! System calls of a process and of all that it starts, by name and with their time, seen by ptrace(2): it works wherever a debugger
//! does, and slows down what it looks at many times over, so it belongs into a counting pass and never into a timed one.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::{fs, mem, ptr};

use serde::Serialize;

use super::names::name_of;
use crate::clock::now_ns;
use crate::failure::{Code, Failure};

/// New threads and processes are traced from their first instruction; stops at calls are told from others; tracees outlive us.
const OPTIONS: libc::c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC;
const CALL_STOP: libc::c_int = libc::SIGTRAP | 0x80;
/// ptrace(2): not in every version of the C library's headers.
const EVENT_STOP: libc::c_int = 128;

/// A call that comes so long after the one before it finds no one who still waits for it: what serves it in a sandbox has gone to sleep
/// (docs/method/ledgers.md).
const ALONE_AFTER_NS: u64 = 60_000;

/// Of these calls whoever serves somebody makes at least one: a client, or a query that is to have workers.
const SERVING: &[&str] = &["recvfrom", "recvmsg", "accept", "accept4", "fork", "vfork", "clone", "clone3"];

/// One kind of call. BIAS: `elapsed_ns` holds two stops and what the tracer does in them, some 10 us each; counts are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Calls {
    pub count: u64,
    pub failed: u64,
    /// Of them, how many did not come in a row: the task had executed for a while since its last call.
    pub alone: u64,
    /// Of them, how many were made by tasks that were there all the time and served nobody: they come by the clock.
    pub background: u64,
    pub elapsed_ns: u64,
}

impl Calls {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.failed += other.failed;
        self.alone += other.alone;
        self.background += other.background;
        self.elapsed_ns += other.elapsed_ns;
    }
}

#[derive(Debug, Serialize)]
struct Report {
    calls: BTreeMap<String, Calls>,
    /// Threads and processes that were seen.
    tasks: u64,
}

/// Says `{"ready": true}` when it looks, and what it saw when it is told to end (SIGTERM) or nothing is left to look at.
pub fn run(pid: &str) -> Result<(), String> {
    let pid = super::number_of_process(pid)?;
    let over = super::told_to_end();
    let mut tracer = Tracer::attach(pid).map_err(|failure| failure.message)?;
    super::say_ready()?;
    let seen = tracer.follow(&over);
    tracer.detach();
    seen.map_err(|failure| failure.message)?;
    if let Some(error) = tracer.refusal {
        return Err(format!("this kernel does not tell a tracer which system calls there are: {error}"));
    }
    let tasks = tracer.seen.len() as u64;
    super::tell(&Report { calls: by_name(tracer.seen.into_values()), tasks })
}

fn by_name(seen: impl Iterator<Item = Seen>) -> BTreeMap<String, Calls> {
    let mut all: BTreeMap<String, Calls> = BTreeMap::new();
    for Seen { from_the_start, calls } in seen {
        let named: Vec<_> = calls.into_iter().map(|(number, calls)| (name_of(number), calls)).collect();
        let serves = named.iter().any(|(name, _)| SERVING.contains(&name.as_str()));
        for (name, calls) in named {
            let background = if from_the_start && !serves { calls.count } else { 0 };
            all.entry(name).or_default().add(&Calls { background, ..calls });
        }
    }
    all
}

/// What one task did.
#[derive(Default)]
struct Seen {
    /// And not started since.
    from_the_start: bool,
    calls: HashMap<u64, Calls>,
}

/// Between its entry and its exit a call is under way.
struct Call {
    number: u64,
    since_ns: u64,
    alone: bool,
}

/// A traced task. BIAS: the time that it executes holds its way back onto the processor after a stop, a few microseconds.
#[derive(Default)]
struct Task {
    call: Option<Call>,
    executes_since_ns: u64,
}

struct Tracer {
    tasks: HashMap<libc::pid_t, Task>,
    /// BIAS: numbers of tasks that have ended are given to new ones, after some ten thousand others.
    seen: HashMap<libc::pid_t, Seen>,
    /// Why the kernel does not tell which calls there are.
    refusal: Option<io::Error>,
}

impl Tracer {
    /// All threads of the process and of its descendants.
    fn attach(pid: u32) -> Result<Self, Failure> {
        let mut tracer = Self { tasks: HashMap::new(), seen: HashMap::new(), refusal: None };
        // What is started meanwhile by what is not traced yet is found in the next turn.
        loop {
            let new: Vec<_> = tasks_of(pid).into_iter().filter(|task| !tracer.tasks.contains_key(task)).collect();
            if new.is_empty() {
                break;
            }
            for task in new {
                tracer.seize(task)?;
            }
        }
        tracer.seen.values_mut().for_each(|seen| seen.from_the_start = true);
        if tracer.tasks.is_empty() {
            return Err(Failure::new(Code::NotFound, format!("no process {pid}")));
        }
        Ok(tracer)
    }

    fn seize(&mut self, task: libc::pid_t) -> Result<(), Failure> {
        match request(libc::PTRACE_SEIZE, task, OPTIONS) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()), // it has just ended
            Err(error) if error.raw_os_error() == Some(libc::EPERM) && is_ours_or_over(task) => {
                self.know(task);
                return Ok(());
            }
            Err(error) => return Err(Failure::io(format!("ptrace {task}"), error)),
        }
        self.know(task);
        // Only a stopped task can be let go on to its next call.
        request(libc::PTRACE_INTERRUPT, task, 0).map_err(|error| Failure::io(format!("ptrace {task}"), error))
    }

    fn know(&mut self, task: libc::pid_t) {
        self.tasks.entry(task).or_default();
        self.seen.entry(task).or_default();
    }

    fn follow(&mut self, over: &super::ToldToEnd) -> Result<(), Failure> {
        while !over.is_so() && !self.tasks.is_empty() {
            match next_stop() {
                Ok((task, status)) => self.stopped(task, status),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
                Err(error) => return Err(Failure::io("waitpid", error)),
            }
        }
        Ok(())
    }

    fn stopped(&mut self, task: libc::pid_t, status: libc::c_int) {
        if !libc::WIFSTOPPED(status) {
            self.tasks.remove(&task); // it has ended, in the midst of a call perhaps
            return;
        }
        self.know(task);
        let signal = libc::WSTOPSIG(status);
        let event = status >> 16;
        let deliver = if signal == CALL_STOP {
            self.entered_or_left(task, now_ns());
            0
        } else if event == EVENT_STOP && is_stopping(signal) {
            // The whole process is stopped by a signal: it is to stay so until it is continued.
            let _ = request(libc::PTRACE_LISTEN, task, 0);
            return;
        } else if event == 0 {
            signal
        } else {
            0
        };
        self.tasks.entry(task).or_default().executes_since_ns = now_ns();
        // One that has been killed meanwhile tells of it in the next wait.
        let _ = request(libc::PTRACE_SYSCALL, task, deliver);
    }

    fn entered_or_left(&mut self, task: libc::pid_t, at_ns: u64) {
        let info = match call_info(task).or_else(|error| told_by_registers(task, error)) {
            Ok(info) => info,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return, // it has just been killed
            Err(error) => {
                self.refusal = Some(error);
                return;
            }
        };
        let (traced, seen) = (self.tasks.entry(task).or_default(), self.seen.entry(task).or_default());
        match info {
            Info::Entry(number) => {
                let alone = at_ns - traced.executes_since_ns >= ALONE_AFTER_NS;
                traced.call = Some(Call { number, since_ns: at_ns, alone });
            }
            Info::Exit { failed } => {
                // Without an entry: the call was under way when we came.
                if let Some(Call { number, since_ns, alone }) = traced.call.take() {
                    let (failed, alone, elapsed_ns) = (u64::from(failed), u64::from(alone), at_ns - since_ns);
                    let one = Calls { count: 1, failed, alone, background: 0, elapsed_ns };
                    seen.calls.entry(number).or_default().add(&one);
                }
            }
            Info::Other => {}
        }
    }

    /// Lets all of them go. A running task has to stop for that.
    fn detach(&mut self) {
        for &task in self.tasks.keys() {
            let _ = request(libc::PTRACE_INTERRUPT, task, 0);
        }
        while !self.tasks.is_empty() {
            match next_stop() {
                Ok((task, status)) => {
                    let signal = if libc::WIFSTOPPED(status) && status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 };
                    let deliver = if signal == CALL_STOP { 0 } else { signal };
                    let _ = request(libc::PTRACE_DETACH, task, deliver);
                    self.tasks.remove(&task);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// What a traced task starts is traced by the kernel itself, and what has ended and is not waited for cannot be: neither is permitted
/// to be seized (kernel/ptrace.c: `ptrace_attach`).
fn is_ours_or_over(task: libc::pid_t) -> bool {
    let status = fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    status.is_empty()
        || value("TracerPid:").parse() == Ok(std::process::id())
        || value("State:").starts_with(['Z', 'X'])
}

fn is_stopping(signal: libc::c_int) -> bool {
    [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}

/// Threads of a process and of its descendants.
pub(super) fn tasks_of(pid: u32) -> Vec<libc::pid_t> {
    let mut found = Vec::new();
    let mut waiting = vec![pid];
    while let Some(process) = waiting.pop() {
        let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for entry in entries.flatten() {
            let Some(task) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            found.push(task);
            let children = fs::read_to_string(entry.path().join("children")).unwrap_or_default();
            waiting.extend(children.split_ascii_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    found
}

fn next_stop() -> io::Result<(libc::pid_t, libc::c_int)> {
    let mut status = 0;
    // SAFETY: the pointer is to a live variable.
    let task = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
    if task < 0 { Err(io::Error::last_os_error()) } else { Ok((task, status)) }
}

fn request(what: libc::c_uint, task: libc::pid_t, data: libc::c_int) -> io::Result<()> {
    // SAFETY: these requests take a number as data and no address.
    let result = unsafe { libc::ptrace(what, task, ptr::null_mut::<libc::c_void>(), libc::c_long::from(data)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

enum Info {
    Entry(u64),
    Exit { failed: bool },
    Other,
}

fn call_info(task: libc::pid_t) -> io::Result<Info> {
    // SAFETY: all-zero is valid for these numbers, and the kernel writes at most as many bytes as it is told there are.
    let info = unsafe {
        let mut info: libc::ptrace_syscall_info = mem::zeroed();
        let size = size_of::<libc::ptrace_syscall_info>();
        if libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, task, size, &raw mut info) < 0 {
            return Err(io::Error::last_os_error());
        }
        info
    };
    Ok(match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: the operation says that this is the part that was filled.
            Info::Entry(unsafe { info.u.entry.nr })
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: as above.
            Info::Exit { failed: unsafe { info.u.exit.is_error } != 0 }
        }
        _ => Info::Other,
    })
}

/// Where the kernel has no such request (Linux before 5.3; User Mode Linux) the registers tell: at the entry to a call the result is
/// preset to "no such call" (arch/x86/entry/common.c, arch/um/kernel/skas/syscall.c).
///
/// BIAS: a call that really ends with that error is taken for an entry, and is not counted.
#[cfg(target_arch = "x86_64")]
fn told_by_registers(task: libc::pid_t, error: io::Error) -> io::Result<Info> {
    if ![Some(libc::EIO), Some(libc::EINVAL)].contains(&error.raw_os_error()) {
        return Err(error);
    }
    // SAFETY: all-zero is valid for these numbers, and the kernel writes one of this type.
    let registers = unsafe {
        let mut registers: libc::user_regs_struct = mem::zeroed();
        if libc::ptrace(libc::PTRACE_GETREGS, task, ptr::null_mut::<libc::c_void>(), &raw mut registers) < 0 {
            return Err(io::Error::last_os_error());
        }
        registers
    };
    let result = i64::from_ne_bytes(registers.rax.to_ne_bytes());
    Ok(if result == -i64::from(libc::ENOSYS) {
        Info::Entry(registers.orig_rax)
    } else {
        Info::Exit { failed: (-4095..0).contains(&result) }
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn told_by_registers(_: libc::pid_t, error: io::Error) -> io::Result<Info> {
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serves_nobody_and_was_there_all_the_time_goes_by_the_clock() {
        let number = |name: &str| (0..1000).find(|&number| name_of(number) == name).unwrap();
        let made = |names: &[&str], from_the_start| Seen {
            from_the_start,
            calls: names.iter().map(|name| (number(name), Calls { count: 1, ..Calls::default() })).collect(),
        };
        let seen = [
            made(&["recvfrom", "fdatasync"], true),
            made(&["accept4", "close"], true),
            made(&["clone", "close"], true),
            made(&["fdatasync", "pwrite64"], true),
            made(&["pwrite64"], false),
        ];
        let told = by_name(seen.into_iter());
        let found: Vec<_> = told.iter().map(|(name, calls)| (name.as_str(), calls.count, calls.background)).collect();
        assert_eq!(
            found,
            [
                ("accept4", 1, 0),
                ("clone", 1, 0),
                ("close", 2, 0),
                ("fdatasync", 2, 1),
                ("pwrite64", 2, 1),
                ("recvfrom", 1, 0)
            ]
        );
    }
}
