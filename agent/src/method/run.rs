//! `run` and `signal`: programs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::parse;
use crate::children::{self, Child, Exit, StopRule, Usage};
use crate::failure::{Code, Failure};
use crate::launch::{Limit, Mount, Namespace, Program, Report};
use crate::proto::{ERROR_OUTPUT, MAIN};
use crate::relay::{InputEnd, Output, Relay, set_nonblocking};
use crate::stream::StreamHandle;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Params {
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: String,
    user: Option<String>,
    cgroups: Vec<String>,
    mounts: Option<Vec<Mount>>,
    root: Option<String>,
    unshare: Vec<Namespace>,
    rlimits: BTreeMap<Limit, u64>,
    cpus: Option<Vec<usize>>,
    timeout_ms: Option<u64>,
    stamps: bool,
    stop_signal: i32,
    stop_grace_ms: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            argv: Vec::new(),
            env: BTreeMap::new(),
            cwd: "/".into(),
            user: None,
            cgroups: Vec::new(),
            mounts: None,
            root: None,
            unshare: Vec::new(),
            rlimits: BTreeMap::new(),
            cpus: None,
            timeout_ms: None,
            stamps: false,
            stop_signal: libc::SIGKILL,
            stop_grace_ms: 5000,
        }
    }
}

pub fn run(params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let params: Params = parse(params)?;
    if !(1..=libc::SIGRTMAX()).contains(&params.stop_signal) {
        return Err(Failure::bad_request("stop_signal is not the number of a signal"));
    }
    let stop_rule = StopRule { signal: params.stop_signal, grace: Duration::from_millis(params.stop_grace_ms) };
    let program = Program {
        argv: params.argv,
        env: params.env,
        cwd: params.cwd,
        user: params.user,
        cgroups: params.cgroups,
        mounts: params.mounts,
        root: params.root,
        unshare: params.unshare,
        rlimits: params.rlimits,
        cpus: params.cpus,
    };
    program.check()?;
    let started = start(&program, stop_rule)?;
    let child = Arc::clone(&started.child);
    let timeout = params.timeout_ms.map(Duration::from_millis);
    follow(started, params.stamps, timeout, stream).inspect_err(|_| child.kill())
}

pub fn signal(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Params {
        pid: i32,
        signal: i32,
        #[serde(default)]
        group: bool,
    }
    let params: Params = parse(params)?;
    if !(1..=libc::SIGRTMAX()).contains(&params.signal) {
        return Err(Failure::bad_request("not the number of a signal"));
    }
    if !children::signal(params.pid, params.signal, params.group) {
        let message = format!("process {} was not started by this agent, or has ended", params.pid);
        return Err(Failure::new(Code::NotFound, message));
    }
    Ok(json!({}))
}

struct Started {
    child: Arc<Child>,
    at_ns: u64,
    /// What the process had used before it became the program.
    used: Usage,
    input: OwnedFd,
    output: OwnedFd,
    error_output: OwnedFd,
}

fn start(program: &Program, stop_rule: StopRule) -> Result<Started, Failure> {
    let pipe = || {
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        pipe.map_err(|error| Failure::io("pipe", error))
    };
    let ((their_input, input), (output, their_output), (error_output, their_error_output)) =
        (pipe()?, pipe()?, pipe()?);
    for ours in [&input, &output, &error_output] {
        set_nonblocking(ours).map_err(|error| Failure::io("fcntl", error))?;
    }
    let (mut socket, their_socket) = UnixStream::pair().map_err(|error| Failure::io("socketpair", error))?;

    let mut command = Command::new(own_program());
    command.arg("exec-child").arg(their_socket.as_raw_fd().to_string()).arg(std::process::id().to_string());
    command.env_clear().stdin(their_input).stdout(their_output).stderr(Stdio::from(their_error_output));
    let inherited = their_socket.as_raw_fd();
    // SAFETY: one system call that is allowed after fork; the descriptor is open until `spawn` has returned.
    unsafe {
        command.pre_exec(move || {
            let result = libc::fcntl(inherited, libc::F_SETFD, 0);
            if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let helper = children::spawn(&mut command, stop_rule).map_err(|error| Failure::io("fork", error))?;
    drop((command, their_socket));

    let result = settle(&mut socket, program, helper, stop_rule);
    let (child, at_ns, used) = result?;
    Ok(Started { child, at_ns, used, input, output, error_output })
}

/// Follows the helper on its way to the program.
fn settle(
    socket: &mut UnixStream,
    program: &Program,
    helper: Arc<Child>,
    stop_rule: StopRule,
) -> Result<(Arc<Child>, u64, Usage), Failure> {
    let mut line = serde_json::to_vec(program).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    line.push(b'\n');
    // A helper that ended before it read this is found out below.
    let _ = socket.write_all(&line);

    let mut child = helper;
    let mut executing = None;
    let mut reply = socket.try_clone().map_err(|error| Failure::io("dup", error))?;
    for line in BufReader::new(&*socket).lines() {
        let line = line.map_err(|error| Failure::io("read", error))?;
        match serde_json::from_str(&line) {
            Ok(Report::Forked { pid }) => {
                child = children::adopt(pid, stop_rule).map_err(|error| Failure::io("eventfd", error))?;
                let _ = reply.write_all(b"\n");
            }
            Ok(Report::Executing { at_ns, user_ns, system_ns, minor_faults, major_faults }) => {
                let used = Usage { user_ns, system_ns, max_rss_bytes: 0, minor_faults, major_faults };
                executing = Some((at_ns, used));
            }
            Ok(Report::Failed(failure)) => return Err(failure),
            Err(error) => return Err(Failure::new(Code::Internal, format!("exec-child: {error}"))),
        }
    }
    let (at_ns, used) = executing.ok_or_else(|| Failure::new(Code::Internal, "the program ended before its start"))?;
    Ok((child, at_ns, used))
}

/// This very binary, also when its file has been replaced or removed.
fn own_program() -> &'static Path {
    let link = Path::new("/proc/self/exe");
    if link.exists() { link } else { Path::new(executed_path()) }
}

/// The path by which the kernel executed this process: for roots without `/proc`.
fn executed_path() -> &'static str {
    // SAFETY: the kernel puts a C string there that lives as long as the process; null if it has none.
    unsafe {
        let path = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        if path.is_null() { "" } else { std::ffi::CStr::from_ptr(path).to_str().unwrap_or_default() }
    }
}

/// Relays until the program has ended.
fn follow(started: Started, stamps: bool, timeout: Option<Duration>, stream: StreamHandle) -> Result<Value, Failure> {
    let Started { child, at_ns, used, input, output, error_output } = started;
    let outputs = vec![Output { channel: MAIN, file: output }, Output { channel: ERROR_OUTPUT, file: error_output }];
    let mut relay = Relay::new(stream, stamps, Some(input), InputEnd::Close, outputs)?;
    // On a cancelled stream there is nobody to tell, and the loop sees it too.
    let _ = relay.tell(&json!({"pid": child.pid, "at_ns": at_ns}));

    let mut kill_at = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let (mut is_stopping, mut has_timed_out) = (false, false);
    let exit = loop {
        if let Some(exit) = child.exit() {
            break exit;
        }
        if relay.is_cancelled() && !is_stopping {
            is_stopping = true;
            relay.end_input();
            child.stop();
            let grace_ends = Instant::now().checked_add(child.stop_rule.grace);
            kill_at = [kill_at, grace_ends].into_iter().flatten().min();
        }
        if kill_at.is_some_and(|at| Instant::now() >= at) {
            kill_at = None;
            has_timed_out = !is_stopping;
            child.kill();
        }
        relay.step(Some(child.exited().as_fd()), kill_at)?;
    };
    if is_stopping || has_timed_out {
        child.kill();
    }
    relay.drain()?;
    if has_timed_out {
        let message =
            format!("the program ran longer than {} ms and was killed", timeout.unwrap_or_default().as_millis());
        return Err(Failure::new(Code::Timeout, message));
    }
    Ok(result(&exit, at_ns, used))
}

fn result(exit: &Exit, at_ns: u64, used: Usage) -> Value {
    json!({
        "exit_code": exit.status.code(),
        "signal": exit.status.signal(),
        "wall_ns": exit.at_ns.saturating_sub(at_ns),
        "user_ns": exit.usage.user_ns.saturating_sub(used.user_ns),
        "system_ns": exit.usage.system_ns.saturating_sub(used.system_ns),
        // BIAS: not below the few MiB that the process held before it became the program.
        "max_rss_bytes": exit.usage.max_rss_bytes,
        "minor_faults": exit.usage.minor_faults.saturating_sub(used.minor_faults),
        "major_faults": exit.usage.major_faults.saturating_sub(used.major_faults),
    })
}
