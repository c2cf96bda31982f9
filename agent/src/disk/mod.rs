//! `dbtoll-agent disk REQUEST`: a disk model. One file, whose requests cost what a given disk's would; a loop device is made of it.
//!
//! It is a process of its own, which ends with its standard input: nothing that is measured waits for what this does, and however it
//! ends the kernel answers all that is under way with errors (the file system's connection closes with its last descriptor).

pub mod exercise;
mod file_system;
mod model;
mod queue;
mod server;
mod statistics;

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{io, process, thread};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::failure::Failure;
use file_system::{OneFile, mounted};
use model::{Mechanism, Model};
use server::Server;

/// `include/uapi/linux/prctl.h`.
const PR_SET_IO_FLUSHER: i32 = 57;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// Of the file: by this the loop device is known.
    name: String,
    /// Where what is written lies, in a file without a name that ends with this process.
    folder: PathBuf,
    size_bytes: u64,
    model: Model,
    /// How many requests the disk chooses the next one from.
    queue_depth: usize,
    /// Of written data that the disk takes at once; 0: it has no such cache.
    write_cache_bytes: u64,
}

#[derive(Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    Pace { on: bool },
    Statistics,
}

/// Its first line says where the file is, or why there is none; then each command is answered by a line.
pub fn run(request: &str) -> Result<(), String> {
    let request: Request = serde_json::from_str(request).map_err(|error| format!("the disk model: {error}"))?;
    request.model.check()?;
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !is_name(&request.name) || request.size_bytes == 0 || request.size_bytes > request.model.capacity_bytes() {
        return Err("the disk model: its name is none, or its size is not the disk's".to_owned());
    }
    let is_prompt = prepare();
    let begun = begin(request);
    let (server, path) = match begun {
        Ok(begun) => begun,
        Err(failure) => return tell(&json!({"unavailable": failure.message})),
    };
    tell(&json!({"path": path, "pid": process::id(), "prompt": is_prompt}))?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| format!("the disk model: {error}"))?;
        match serde_json::from_str(&line).map_err(|error| format!("the disk model: {error}"))? {
            Command::Pace { on } => {
                server.keep_pace(on);
                tell(&json!({"at_ns": crate::clock::now_ns()}))?;
            }
            Command::Statistics => tell(&server.told())?,
        }
    }
    // Not by returning: the threads hold the file system, and have no end.
    process::exit(0);
}

fn tell(line: &Value) -> Result<(), String> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| format!("the disk model: {error}"))
}

/// Whether the kernel wakes it at once: a disk waits for no processor.
///
/// And memory that this process needs must never be made by writing to the disk that it serves (prctl(2), `PR_SET_IO_FLUSHER`).
fn prepare() -> bool {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: plain numbers, and a structure that outlives the call. Threads that are started later inherit all three.
    unsafe {
        libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0
    }
}

type Serving = Server<file_system::Transfer, file_system::Flush>;

fn begin(request: Request) -> Result<(Arc<Serving>, String), Failure> {
    let backing = backing(&request.folder, request.size_bytes)?;
    let (device, mount) = mounted()?;
    // Others come to it by our descriptor: it is mounted nowhere.
    let path = format!("/proc/{}/fd/{}/{}", process::id(), mount.as_raw_fd(), request.name);
    let server = Arc::new(Server::new(backing, request.queue_depth, request.write_cache_bytes));
    let (serving, mechanism) = (Arc::clone(&server), Mechanism::new(request.model));
    let file = OneFile { name: request.name, size_bytes: request.size_bytes, server: Arc::clone(&server) };
    started("disk", move || serving.serve(mechanism))?;
    started("fuse", move || answer_kernel(file, device, mount))?;
    Ok((server, path))
}

fn started(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let begun = thread::Builder::new().name(name.into()).spawn(work);
    begun.map(drop).map_err(|error| Failure::io("clone", error))
}

fn answer_kernel(file: OneFile, device: OwnedFd, mount: OwnedFd) {
    let ended = fuser::Session::from_fd(file, device, fuser::SessionACL::All).run();
    drop(mount);
    if let Err(error) = ended {
        eprintln!("dbtoll-agent: the disk model: {error}");
    }
    process::exit(1);
}

/// A file without a name, and without blocks until they are written.
fn backing(folder: &Path, size_bytes: u64) -> Result<File, Failure> {
    let what = |call: &str| format!("{call} {}", folder.display());
    let file = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(folder);
    let file = file.map_err(|error| Failure::io(what("open"), error))?;
    file.set_len(size_bytes).map_err(|error| Failure::io(what("ftruncate"), error))?;
    Ok(file)
}
