//! Between fork and exec: the agent starts itself as `exec-child`, which becomes the program step by step. It has one
//! thread and memory of its own, so it may do what a forked child of a threaded process must not.
//!
//! Agent and helper talk over one socket, a JSON object per line: the agent sends [`Program`]; the helper sends
//! [`Report`]s. The socket closes when the program is executed: end of file is success.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::{fs, mem, ptr};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use rustix::thread::{CpuSet, UnshareFlags};
use serde::{Deserialize, Serialize};

use crate::failure::{Code, Failure};
use crate::{children, clock, users};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Everything about a program that is settled before it is executed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Program {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub user: Option<String>,
    pub cgroups: Vec<String>,
    pub mounts: Option<Vec<Mount>>,
    pub root: Option<String>,
    pub unshare: Vec<Namespace>,
    pub rlimits: BTreeMap<Limit, u64>,
    pub cpus: Option<Vec<usize>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    pub kind: MountKind,
    #[serde(default)]
    pub source: Option<String>,
    pub target: String,
    #[serde(default = "yes")]
    pub writable: bool,
    #[serde(default)]
    pub size_bytes: Option<u64>,
    #[serde(default)]
    pub mode: Option<u32>,
    /// Makes the directory `target` before, in a directory that an earlier mount has brought.
    #[serde(default)]
    pub make: bool,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountKind {
    Bind,
    Rbind,
    Ext4,
    Tmpfs,
    Proc,
    Devpts,
    Mqueue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespace {
    Pid,
    Ipc,
    Uts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    As,
    Core,
    Cpu,
    Data,
    Fsize,
    Memlock,
    Msgqueue,
    Nice,
    Nofile,
    Nproc,
    Rss,
    Rtprio,
    Rttime,
    Sigpending,
    Stack,
}

/// What the helper says on its way.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The program will be this process, another child of the agent. The helper's child waits for one byte, `go`, so
    /// that the agent knows it before it can end.
    Forked {
        pid: i32,
    },
    /// The last word before exec, with what the helper itself has used.
    Executing {
        at_ns: u64,
        user_ns: u64,
        system_ns: u64,
        minor_faults: u64,
        major_faults: u64,
    },
    Failed(Failure),
}

impl Program {
    /// Refuses what can be known to be wrong before anything is started.
    pub fn check(&self) -> Result<(), Failure> {
        let bad = |message: &str| Err(Failure::bad_request(message));
        if self.argv.first().is_none_or(String::is_empty) {
            return bad("argv must name a program");
        }
        let texts =
            self.argv.iter().chain(self.env.keys()).chain(self.env.values()).chain([&self.cwd]).chain(&self.root);
        if texts.chain(&self.cgroups).any(|text| text.contains('\0')) {
            return bad("a text holds the character NUL");
        }
        if self.env.keys().any(|key| key.is_empty() || key.contains('=')) {
            return bad("a name in env is empty or holds '='");
        }
        if !self.cwd.starts_with('/') || self.root.as_ref().is_some_and(|root| !root.starts_with('/')) {
            return bad("cwd and root must be absolute paths");
        }
        if self.cpus.as_ref().is_some_and(|cpus| cpus.is_empty() || cpus.iter().any(|cpu| *cpu >= CpuSet::MAX_CPU)) {
            return bad("cpus must be a list of CPU numbers below 1024");
        }
        self.mounts.iter().flatten().try_for_each(Mount::check)
    }
}

impl Mount {
    fn check(&self) -> Result<(), Failure> {
        let has_source = matches!(self.kind, MountKind::Bind | MountKind::Rbind | MountKind::Ext4);
        let texts = [Some(&self.target), self.source.as_ref()];
        if texts.into_iter().flatten().any(|path| !path.starts_with('/') || path.contains('\0')) {
            return Err(Failure::bad_request("mounts: source and target must be absolute paths"));
        }
        if has_source != self.source.is_some() {
            return Err(Failure::bad_request("mounts: bind, rbind and ext4 need a source, the others have none"));
        }
        if self.kind != MountKind::Tmpfs && (self.size_bytes.is_some() || self.mode.is_some()) {
            return Err(Failure::bad_request("mounts: size_bytes and mode are for tmpfs"));
        }
        Ok(())
    }

    fn perform(&self) -> Result<(), Failure> {
        let target = self.target.as_str();
        let source = self.source.as_deref().unwrap_or_default();
        let read_only = if self.writable { MountFlags::empty() } else { MountFlags::RDONLY };
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        if self.make {
            fs::create_dir(target).map_err(|error| Failure::io(format!("mkdir {target}"), error))?;
        }
        let result = match self.kind {
            MountKind::Bind => mount_bind(source, target).map_err(io::Error::from),
            MountKind::Rbind => mount_bind_recursive(source, target).map_err(io::Error::from),
            MountKind::Ext4 => mount(source, target, "ext4", read_only, None).map_err(io::Error::from),
            MountKind::Tmpfs => {
                let size = self.size_bytes.map(|size| format!("size={size},")).unwrap_or_default();
                let data = c_string(&format!("{size}mode={:o}", self.mode.unwrap_or(0o1777)))?;
                mount("tmpfs", target, "tmpfs", safe | read_only, &*data).map_err(io::Error::from)
            }
            MountKind::Proc => {
                mount("proc", target, "proc", safe | MountFlags::NOEXEC | read_only, None).map_err(io::Error::from)
            }
            MountKind::Devpts => {
                let flags = MountFlags::NOSUID | MountFlags::NOEXEC | read_only;
                mount("devpts", target, "devpts", flags, c"newinstance,ptmxmode=0666,mode=0620")
                    .map_err(io::Error::from)
            }
            MountKind::Mqueue => {
                mount("mqueue", target, "mqueue", safe | MountFlags::NOEXEC | read_only, None).map_err(io::Error::from)
            }
        };
        result.map_err(|error| Failure::io(format!("mount {:?} {source} on {target}", self.kind), error))?;
        match self.kind {
            MountKind::Bind if !self.writable => make_read_only(target, false),
            MountKind::Rbind if !self.writable => make_read_only(target, true),
            _ => Ok(()),
        }
    }
}

/// Unlike a remount it keeps the mount's other flags, and reaches the mounts below (Linux 5.12).
fn make_read_only(target: &str, recursive: bool) -> Result<(), Failure> {
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    const READ_ONLY: u64 = 1;
    let attributes = Attributes { set: READ_ONLY, clear: 0, propagation: 0, user_namespace: 0 };
    let path = c_string(target)?;
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string, and the structure is the first version of the kernel's `mount_attr`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    check(result, || format!("mount_setattr {target}"))
}

fn check(result: libc::c_long, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if result < 0 { Err(Failure::io(what(), io::Error::last_os_error())) } else { Ok(()) }
}

fn c_string(text: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::bad_request("a text holds the character NUL"))
}

/// The helper's whole life: `socket` is the inherited descriptor, `agent` the process that must stay alive.
pub fn exec_child(socket: i32, agent: u32) -> ! {
    // SAFETY: the agent passed this descriptor for us alone; nothing else in this process knows it.
    let mut socket = unsafe { UnixStream::from_raw_fd(socket) };
    let failure = match become_program(&mut socket, agent) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    // If the agent is gone there is nobody to tell.
    let _ = report(&mut socket, &Report::Failed(failure));
    std::process::exit(127)
}

enum Never {}

fn report(socket: &mut UnixStream, report: &Report) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(report).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    line.push(b'\n');
    socket.write_all(&line).map_err(|error| Failure::io("write", error))
}

fn become_program(socket: &mut UnixStream, agent: u32) -> Result<Never, Failure> {
    die_with_agent()?;
    close_at_exec(socket)?;
    let mut lines = BufReader::new(&*socket);
    let mut line = String::new();
    lines.read_line(&mut line).map_err(|error| Failure::io("read", error))?;
    let program: Program =
        serde_json::from_str(&line).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;

    for cgroup in &program.cgroups {
        let path = format!("{}/cgroup.procs", cgroup.trim_end_matches('/'));
        fs::write(&path, "0").map_err(|error| Failure::io(format!("cgroup {path}"), error))?;
    }
    unshare(&program)?;
    if program.unshare.contains(&Namespace::Pid) {
        fork_into_namespace(socket)?;
        die_with_agent()?;
    }
    let _ = rustix::process::setsid();
    enter_root(&program)?;
    let ids = program.user.as_deref().map(users::look_up).transpose()?;
    set_limits(&program)?;
    if let Some(ids) = ids {
        become_user(&ids)?;
    }
    // Again: the kernel forgets it when the user changes.
    die_with_agent()?;
    let parent = std::os::unix::process::parent_id();
    // 0: the agent is outside this process namespace.
    if parent != agent && parent != 0 {
        return Err(Failure::cancelled());
    }
    std::env::set_current_dir(&program.cwd).map_err(|error| Failure::io(format!("chdir {}", program.cwd), error))?;
    reset_signals();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    execute(&program, socket)
}

fn die_with_agent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| Failure::io("prctl", error))
}

/// The socket, and whatever the agent was started with: the program gets its three streams only.
fn close_at_exec(socket: &UnixStream) -> Result<(), Failure> {
    // SAFETY: plain system call. A kernel before 5.11 refuses it, which leaves foreign descriptors as they are.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC).map_err(|error| Failure::io("fcntl", error))
}

fn unshare(program: &Program) -> Result<(), Failure> {
    let mut flags = UnshareFlags::empty();
    flags.set(UnshareFlags::NEWNS, program.mounts.is_some());
    for namespace in &program.unshare {
        flags |= match namespace {
            Namespace::Pid => UnshareFlags::NEWPID,
            Namespace::Ipc => UnshareFlags::NEWIPC,
            Namespace::Uts => UnshareFlags::NEWUTS,
        };
    }
    // Container runtimes forbid the call, also where it asks for nothing.
    if flags.is_empty() {
        return Ok(());
    }
    // SAFETY: no flag touches the descriptor table.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|error| Failure::io("unshare", error))?;
    if program.mounts.is_some() {
        match receive_mounts_only() {
            Err(rustix::io::Errno::INVAL) => {
                enter_mounted_root()?;
                receive_mounts_only()
            }
            done => done,
        }
        .map_err(|error| Failure::io("mount --make-rslave /", error))?;
    }
    Ok(())
}

/// Down only: what is unmounted outside must not be held here, what is mounted here must not show outside.
fn receive_mounts_only() -> rustix::io::Result<()> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
}

/// In a chroot `/` may be no mount point, whose propagation could not be changed and which no program such as runc could
/// leave. Then the same tree is bound in one place more, and that place becomes `/`.
fn enter_mounted_root() -> Result<(), Failure> {
    let place = ["/mnt", "/tmp"].into_iter().find(|path| Path::new(path).is_dir()).unwrap_or("/dev");
    mount_bind_recursive("/", place).map_err(|error| Failure::io(format!("mount --rbind / {place}"), error))?;
    if is_shared(place) {
        // A mount below a shared one is shared, so this one shows outside: it must not stay.
        let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
        return Err(Failure::new(
            Code::Io,
            "this is a chroot whose root is no mount point, on a file system whose mounts are shared: nothing can be mounted unseen",
        ));
    }
    rustix::process::chroot(place).map_err(|error| Failure::io(format!("chroot {place}"), error))?;
    rustix::process::chdir("/").map_err(|error| Failure::io("chdir /", error))
}

/// Whether the topmost mount at `place` is in a peer group (proc(5), mountinfo, field 7).
fn is_shared(place: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let topmost = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(place));
    topmost.is_some_and(|line| line.split(" - ").next().unwrap_or_default().contains(" shared:"))
}

/// Goes on as process 1 of the new namespace, as a sibling of the helper, which ends: so the program is the agent's own
/// child, with its status and resource usage.
fn fork_into_namespace(socket: &mut UnixStream) -> Result<(), Failure> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: like fork, in a process with one thread; no new stack, no thread-local storage, no identifiers to store.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0_usize, 0_usize, 0_usize, 0_usize) };
    check(pid, || "clone".to_owned())?;
    if pid > 0 {
        let pid = i32::try_from(pid).unwrap_or_default();
        let told = report(socket, &Report::Forked { pid });
        std::process::exit(i32::from(told.is_err()));
    }
    let mut go = [0];
    io::Read::read_exact(socket, &mut go).map_err(|error| Failure::io("read", error))
}

fn enter_root(program: &Program) -> Result<(), Failure> {
    if let (Some(root), Some(_)) = (&program.root, &program.mounts) {
        // Programs such as runc want `/` to be a mount point, and so does the way there.
        mount_bind_recursive(root, root).map_err(|error| Failure::io(format!("mount root {root}"), error))?;
    }
    program.mounts.iter().flatten().try_for_each(Mount::perform)?;
    if let Some(root) = &program.root {
        if program.mounts.is_none() || !pivot_into(root)? {
            rustix::process::chroot(root).map_err(|error| Failure::io(format!("chroot {root}"), error))?;
        }
    }
    rustix::process::chdir("/").map_err(|error| Failure::io("chdir /", error))
}

/// Makes `root` the root of our mount namespace and lets go of all that lay around it. Whatever is started in there may then
/// do what the kernel refuses to programs in a chroot: gVisor makes user namespaces, runc changes the root again.
///
/// False where the kernel cannot: the root so far is its first file system (initramfs), or a chroot at no mount point.
fn pivot_into(root: &str) -> Result<bool, Failure> {
    rustix::process::chdir(root).map_err(|error| Failure::io(format!("chdir {root}"), error))?;
    match rustix::process::pivot_root(".", ".") {
        Err(rustix::io::Errno::INVAL) => return Ok(false),
        done => done.map_err(|error| Failure::io(format!("pivot_root {root}"), error))?,
    }
    // The old root lies over the new one now, as pivot_root(2) says, and is what `.` leads to.
    rustix::mount::unmount(".", rustix::mount::UnmountFlags::DETACH)
        .map(|()| true)
        .map_err(|error| Failure::io("umount the former root", error))
}

fn set_limits(program: &Program) -> Result<(), Failure> {
    for (limit, value) in &program.rlimits {
        let resource = match limit {
            Limit::As => Resource::As,
            Limit::Core => Resource::Core,
            Limit::Cpu => Resource::Cpu,
            Limit::Data => Resource::Data,
            Limit::Fsize => Resource::Fsize,
            Limit::Memlock => Resource::Memlock,
            Limit::Msgqueue => Resource::Msgqueue,
            Limit::Nice => Resource::Nice,
            Limit::Nofile => Resource::Nofile,
            Limit::Nproc => Resource::Nproc,
            Limit::Rss => Resource::Rss,
            Limit::Rtprio => Resource::Rtprio,
            Limit::Rttime => Resource::Rttime,
            Limit::Sigpending => Resource::Sigpending,
            Limit::Stack => Resource::Stack,
        };
        setrlimit(resource, Rlimit { current: Some(*value), maximum: Some(*value) })
            .map_err(|error| Failure::io(format!("setrlimit {limit:?} {value}"), error))?;
    }
    if let Some(cpus) = &program.cpus {
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.set(*cpu);
        }
        rustix::thread::sched_setaffinity(None, &set)
            .map_err(|error| Failure::io(format!("sched_setaffinity {cpus:?}"), error))?;
    }
    Ok(())
}

fn become_user(ids: &users::Ids) -> Result<(), Failure> {
    // SAFETY: plain system calls in a process with one thread; the list is as long as stated.
    unsafe {
        check(libc::setgroups(ids.groups.len(), ids.groups.as_ptr()).into(), || "setgroups".to_owned())?;
        check(libc::setresgid(ids.gid, ids.gid, ids.gid).into(), || format!("setgid {}", ids.gid))?;
        check(libc::setresuid(ids.uid, ids.uid, ids.uid).into(), || format!("setuid {}", ids.uid))
    }
}

/// Whatever the agent blocks or ignores, or was started with, the program begins as from a fresh login.
fn reset_signals() {
    const SIGNAL_SET_BYTES: usize = 8;
    // All zero is the default action in the kernel's own structure, which is no longer than this. The C library's
    // function would leave out the two signals that it keeps to itself, which whoever started the agent may ignore.
    let default_action = [0_u64; 8];
    // SAFETY: the structure and the set are valid; calls that are refused (`SIGKILL`) change nothing.
    unsafe {
        for signal in 1..=64 {
            let action = default_action.as_ptr();
            libc::syscall(libc::SYS_rt_sigaction, signal, action, ptr::null_mut::<u64>(), SIGNAL_SET_BYTES);
        }
        let mut none = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

fn execute(program: &Program, socket: &mut UnixStream) -> Result<Never, Failure> {
    let mut env = program.env.clone();
    let path = env.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into()).clone();
    let argv = program.argv.iter().map(|text| c_string(text)).collect::<Result<Vec<_>, _>>()?;
    let env = env.iter().map(|(key, value)| c_string(&format!("{key}={value}"))).collect::<Result<Vec<_>, _>>()?;
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv_pointers, env_pointers) = (pointers(&argv), pointers(&env));

    let name = program.argv[0].as_str();
    let candidates: Vec<_> = if name.contains('/') {
        vec![Path::new(name).to_path_buf()]
    } else {
        path.split(':').map(|folder| Path::new(if folder.is_empty() { "." } else { folder }).join(name)).collect()
    };
    let candidates = candidates.iter().map(|path| CString::new(path.as_os_str().as_bytes()));
    let candidates =
        candidates.collect::<Result<Vec<_>, _>>().map_err(|error| Failure::bad_request(error.to_string()))?;

    let used = children::own_usage();
    report(
        socket,
        &Report::Executing {
            user_ns: used.user_ns,
            system_ns: used.system_ns,
            minor_faults: used.minor_faults,
            major_faults: used.major_faults,
            at_ns: clock::now_ns(),
        },
    )?;
    let mut refusal = io::Error::from_raw_os_error(libc::ENOENT);
    for path in &candidates {
        // SAFETY: C strings that live on, in lists that end with a null pointer.
        unsafe { libc::execve(path.as_ptr(), argv_pointers.as_ptr(), env_pointers.as_ptr()) };
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // Go on searching, but if nothing else is found this says more.
            Some(libc::EACCES) => refusal = error,
            _ => return Err(Failure::io(format!("exec {name}"), error)),
        }
    }
    Err(Failure::io(format!("exec {name}"), refusal))
}
