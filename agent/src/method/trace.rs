//! `trace_begin`, `trace_end`: which processes ask for durable writes, and what reaches block devices meanwhile.
//! `commit`: durable writes to try it with. The kernel keeps what is traced between the two calls, in an instance of its
//! own (Documentation/trace/ftrace.rst, "Instances"): the machine's global tracing is left alone.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::parse;
use crate::clock;
use crate::failure::{Code, Failure};
use crate::stream::StreamHandle;

const MOUNTED: &str = "/sys/kernel/tracing";

/// Queued by a process; done by a device that takes requests; done by one that does not (device mapper, memory).
const BLOCK_EVENTS: [&str; 3] = ["block_bio_queue", "block_rq_complete", "block_bio_complete"];
/// Only writes and flushes: a scan of somebody else's would fill the buffer.
const BLOCK_FILTER: &str = "rwbs ~ \"*W*\" || rwbs ~ \"*F*\"";
/// System calls by which a process asks that something be durable, or hands over such a request.
const CALLS: [&str; 8] =
    ["fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "pwritev2", "io_submit", "io_uring_enter"];
/// Of each processor: some thousands of events.
const BUFFER_KIB: &str = "512";
/// The pid namespace in which the kernel traces (`PROC_PID_INIT_INO`, `include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// `PF_KTHREAD`, `include/linux/sched.h`.
const KERNEL_THREAD: u64 = 0x0020_0000;

const COMMIT_MAX_BYTES: usize = 1 << 20;
const COMMITS_MAX: u32 = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    instance: String,
}

impl Named {
    fn parse(params: Value) -> Result<String, Failure> {
        let Self { instance } = parse(params)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if instance.is_empty() || instance.len() > 200 || !instance.chars().all(is_plain) {
            return Err(Failure::bad_request(format!("{instance:?} is not a name of letters, digits and -")));
        }
        Ok(instance)
    }
}

/// The kernel's tracing files: where they are mounted, else in a mount that only this process sees.
struct Tracefs {
    root: PathBuf,
    _mount: Option<OwnedFd>,
}

impl Tracefs {
    fn open() -> Result<Self, Failure> {
        if Path::new(MOUNTED).join("instances").is_dir() {
            return Ok(Self { root: MOUNTED.into(), _mount: None });
        }
        let refused =
            |call: &'static str| move |error: rustix::io::Errno| Failure::io(format!("{call} tracefs"), error);
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(refused("fsopen"))?;
        fsconfig_create(&context).map_err(refused("fsconfig"))?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let mount = mount.map_err(refused("fsmount"))?;
        Ok(Self { root: format!("/proc/self/fd/{}", mount.as_raw_fd()).into(), _mount: Some(mount) })
    }

    fn instance(&self, name: &str) -> PathBuf {
        self.root.join("instances").join(name)
    }
}

pub fn begin(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    let name = Named::parse(params)?;
    // BIAS: the kernel traces with its first namespace's numbers; elsewhere they would name other processes.
    if fs::read_link("/proc/self/ns/pid").is_ok_and(|own| own != Path::new(FIRST_PID_NAMESPACE)) {
        return Err(Failure::new(Code::Io, "traced processes cannot be told apart inside a pid namespace"));
    }
    let tracefs = Tracefs::open()?;
    let folder = tracefs.instance(&name);
    fs::create_dir(&folder).map_err(|error| Failure::io(format!("mkdir {name}"), error))?;
    let begun = switch_on(&folder);
    if begun.is_err() {
        let _ = fs::remove_dir(&folder);
    }
    begun.map(|()| json!({}))
}

fn switch_on(folder: &Path) -> Result<(), Failure> {
    set(&folder.join("buffer_size_kb"), BUFFER_KIB)?;
    set(&folder.join("options/irq-info"), "0")?;
    set(&folder.join("options/record-tgid"), "1")?;
    for event in BLOCK_EVENTS {
        let event = folder.join("events/block").join(event);
        set(&event.join("filter"), BLOCK_FILTER)?;
        set(&event.join("enable"), "1")?;
    }
    for call in CALLS {
        let event = folder.join(format!("events/syscalls/sys_enter_{call}"));
        if event.exists() {
            set(&event.join("enable"), "1")?;
        }
    }
    Ok(())
}

/// The kernel's files take one value in one write.
fn set(path: &Path, value: &str) -> Result<(), Failure> {
    let written = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|error| Failure::io(format!("write {}", path.display()), error))
}

pub fn end(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    let name = Named::parse(params)?;
    let tracefs = Tracefs::open()?;
    let folder = tracefs.instance(&name);
    if !folder.is_dir() {
        return Err(Failure::new(Code::NotFound, format!("there is no tracing instance {name}")));
    }
    let seen = collect(&folder);
    fs::remove_dir(&folder).map_err(|error| Failure::io(format!("rmdir {name}"), error))?;
    serde_json::to_value(seen?).map_err(|error| Failure::new(Code::Internal, error.to_string()))
}

fn collect(folder: &Path) -> Result<Seen, Failure> {
    let refused = |error| Failure::io("read trace", error);
    set(&folder.join("tracing_on"), "0")?;
    let text = fs::read(folder.join("trace")).map_err(refused)?;
    let mut seen = Seen { calls_traced: folder.join("events/syscalls").is_dir(), ..Seen::default() };
    for entry in fs::read_dir(folder.join("per_cpu")).map_err(refused)? {
        let stats = fs::read_to_string(entry.map_err(refused)?.path().join("stats")).map_err(refused)?;
        let overruns = stats.lines().filter_map(|line| line.strip_prefix("overrun: ")?.parse().ok());
        seen.lost = overruns.fold(seen.lost, u64::saturating_add);
    }
    seen.read(&String::from_utf8_lossy(&text));
    for process in &mut seen.processes {
        process.kernel = is_kernel_thread(process.pid);
    }
    for (number, device) in &mut seen.devices {
        device.look_up(number);
    }
    Ok(seen)
}

/// What was traced: by process what it asked for, by device what was done.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Seen {
    /// Events that the buffer was too small for.
    lost: u64,
    calls_traced: bool,
    processes: Vec<Process>,
    devices: BTreeMap<String, Device>,
}

#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    name: String,
    kernel: bool,
    calls: BTreeMap<String, u64>,
    /// By device, as `MAJOR:MINOR`.
    queued: BTreeMap<String, Queued>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Queued {
    writes: u64,
    written_bytes: u64,
    flushes: u64,
}

/// What was done is counted at the whole device, not at its partitions.
#[derive(Debug, Default, Serialize)]
struct Device {
    name: Option<String>,
    whole: Option<String>,
    /// `write back` or `write through`; the kernel sends no flushes to the latter.
    write_cache: Option<String>,
    writes_done: u64,
    flushes_done: u64,
}

impl Device {
    fn look_up(&mut self, number: &str) {
        let Ok(mut folder) = fs::canonicalize(format!("/sys/dev/block/{number}")) else { return };
        self.name = folder.file_name().map(|name| name.to_string_lossy().replace('!', "/"));
        if folder.join("partition").exists() {
            folder.pop();
        }
        let line = |file: &str| Some(fs::read_to_string(folder.join(file)).ok()?.trim().to_owned());
        self.whole = line("dev");
        self.write_cache = line("queue/write_cache");
    }
}

impl Seen {
    /// The content of the file `trace`.
    pub(crate) fn read(&mut self, text: &str) {
        text.lines().filter_map(Event::parse).for_each(|event| self.count(&event));
    }

    fn count(&mut self, event: &Event) {
        match &event.what {
            What::Call(call) => *self.process(event).calls.entry((*call).to_owned()).or_default() += 1,
            What::Queued(change) => {
                self.devices.entry(change.device.clone()).or_default();
                let queued = self.process(event).queued.entry(change.device.clone()).or_default();
                queued.writes += u64::from(change.writes());
                let bytes = if change.writes() { change.sectors.saturating_mul(512) } else { 0 };
                queued.written_bytes = queued.written_bytes.saturating_add(bytes);
                queued.flushes += u64::from(change.flushes());
            }
            What::Done(change) => {
                let device = self.devices.entry(change.device.clone()).or_default();
                device.writes_done += u64::from(change.writes());
                device.flushes_done += u64::from(change.flushes());
            }
        }
    }

    fn process(&mut self, event: &Event) -> &mut Process {
        let pid = event.process.unwrap_or_else(|| process_of(event.thread));
        let at = self.processes.iter().position(|known| known.pid == pid).unwrap_or_else(|| {
            let name = name_of(pid).unwrap_or_else(|| event.name.to_owned());
            let (calls, queued) = (BTreeMap::new(), BTreeMap::new());
            self.processes.push(Process { pid, name, kernel: false, calls, queued });
            self.processes.len() - 1
        });
        &mut self.processes[at]
    }
}

/// One line of `trace`: `NAME-THREAD ( PROCESS) [CPU] TIME: EVENT`.
struct Event<'a> {
    name: &'a str,
    thread: u32,
    /// None where the kernel did not note it.
    process: Option<u32>,
    what: What<'a>,
}

enum What<'a> {
    Call(&'a str),
    Queued(Change),
    Done(Change),
}

/// `MAJOR,MINOR RWBS … SECTOR + SECTORS …`; RWBS as in `blk_fill_rwbs`, kernel/trace/blktrace.c.
struct Change {
    device: String,
    flags: String,
    sectors: u64,
}

impl Change {
    fn writes(&self) -> bool {
        self.flags.contains('W') && self.sectors > 0
    }

    /// A flush of its own, or a write that comes after one (F before W) or is itself durable (F after it).
    fn flushes(&self) -> bool {
        self.flags.contains('F')
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let plus = words.iter().position(|word| *word == "+")?;
        Some(Self {
            device: words.first()?.replace(',', ":"),
            flags: (*words.get(1)?).to_owned(),
            sectors: words.get(plus + 1)?.parse().ok()?,
        })
    }
}

impl<'a> Event<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        // A program's name may hold anything, brackets and blanks too: take the first place where all the rest fits.
        line.match_indices('[').find_map(|(at, _)| {
            let (before, after) = (line[..at].trim_end(), &line[at + 1..]);
            let (cpu, rest) = after.split_once(']')?;
            cpu.parse::<u32>().ok()?;
            let (before, process) = before.strip_suffix(')')?.rsplit_once('(')?;
            let (name, thread) = before.trim_end().rsplit_once('-')?;
            let (_, event) = rest.split_once(": ")?;
            Some(Self {
                name: name.trim_start(),
                thread: thread.parse().ok()?,
                process: process.trim().parse().ok(),
                what: What::parse(event)?,
            })
        })
    }
}

impl<'a> What<'a> {
    fn parse(event: &'a str) -> Option<Self> {
        if let Some(call) = event.strip_prefix("sys_") {
            return Some(Self::Call(call.split('(').next()?));
        }
        let (name, text) = event.split_once(": ")?;
        let change = Change::parse(text)?;
        Some(if name == "block_bio_queue" { Self::Queued(change) } else { Self::Done(change) })
    }
}

/// The process of a thread; the thread's own number once it has ended.
fn process_of(thread: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let found = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    found.unwrap_or(thread)
}

fn name_of(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

fn is_kernel_thread(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // proc(5): `flags` is field 9, the seventh after the name.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Commit {
    folder: String,
    size_bytes: usize,
    count: u32,
}

pub fn commit(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    let Commit { folder, size_bytes, count } = parse(params)?;
    if !folder.starts_with('/') || !(1..=COMMIT_MAX_BYTES).contains(&size_bytes) || !(1..=COMMITS_MAX).contains(&count)
    {
        return Err(Failure::bad_request(format!(
            "an absolute folder, 1 to {COMMIT_MAX_BYTES} bytes, and 1 to {COMMITS_MAX} commits"
        )));
    }
    let path = Path::new(&folder).join(format!(".dbtoll-commit-{}", clock::unique()));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = made.map_err(|error| Failure::io(format!("open {}", path.display()), error))?;
    let done = commit_to(&file, size_bytes, count);
    fs::remove_file(&path).map_err(|error| Failure::io(format!("unlink {}", path.display()), error))?;
    done.map_err(|error| Failure::io(format!("fdatasync {}", path.display()), error))?;
    Ok(json!({"commits": count}))
}

/// Other bytes each time at the same place, durable before the next.
fn commit_to(file: &File, size_bytes: usize, count: u32) -> io::Result<()> {
    for number in 1..=count {
        file.write_all_at(&vec![number.to_le_bytes()[0]; size_bytes], 0)?;
        file.sync_data()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As seen on Linux 6.18: a write with its flush by two threads of one process, and a kernel's worker.
    const TRACE: &str = "\
# tracer: nop
#
 dbtoll [1] (x)-4294960001 (  10254) [001]  12609.734726: sys_fdatasync(fd: 3)
 dbtoll [1] (x)-4294960001 (  10254) [001]  12609.734758: block_bio_queue: 254,0 WS 331443056 + 8 [python3]
          <idle>-0       (-------) [001]  12609.735825: block_rq_complete: 254,0 WS () 331443056 + 8 be,0,4 [0]
         python3-4294960002 (  10254) [001]  12609.740637: block_bio_queue: 254,0 FWS 0 + 0 [python3]
              wc-10295   (  10295) [000]  12609.740685: block_rq_complete: 254,0 FF () 18446744073709551615 + 0 none,0,0 [0]
         python3-4294960002 (  10254) [001]  12609.740900: block_bio_queue: 253,1 WFSM 8 + 16 [python3]
          kworker-9      (-------) [001]  12609.740950: block_bio_complete: 253,1 WFSM 8 + 16 [0]
[broken] line
";

    fn seen(text: &str) -> Seen {
        let mut seen = Seen::default();
        seen.read(text);
        seen
    }

    #[test]
    fn counts_by_process_and_by_device() {
        let seen = seen(TRACE);
        let [process] = &seen.processes[..] else { panic!("{:?}", seen.processes) };
        assert_eq!((process.pid, process.calls.clone()), (10254, BTreeMap::from([("fdatasync".to_owned(), 1)])));
        let queued = |device: &str| &process.queued[device];
        assert_eq!(*queued("254:0"), Queued { writes: 1, written_bytes: 4096, flushes: 1 });
        assert_eq!(*queued("253:1"), Queued { writes: 1, written_bytes: 8192, flushes: 1 });
        let done = |device: &str| (seen.devices[device].writes_done, seen.devices[device].flushes_done);
        assert_eq!((done("254:0"), done("253:1")), ((1, 1), (1, 1)));
    }

    #[test]
    fn sizes_beyond_all_numbers_are_the_largest() {
        let line = " a-1 (2) [0] 1.5: block_bio_queue: 8,0 W 0 + 18446744073709551615 [a]\n";
        let seen = seen(&line.repeat(2));
        assert_eq!(seen.processes[0].queued["8:0"], Queued { writes: 2, written_bytes: u64::MAX, flushes: 0 });
    }

    #[test]
    fn takes_no_name_for_a_number() {
        let event = Event::parse(" a [0] b-12 (-------) [003] 1.5: sys_fsync(fd: 3)").unwrap();
        assert_eq!((event.name, event.thread, event.process), ("a [0] b", 12, None));
        for broken in
            ["", "[0]", "a-1 (2) [0] 1.5", "a-1 (2) [0] 1.5: block_bio_queue: 8,0 W", "a-x (2) [0] 1: sys_fsync("]
        {
            assert!(Event::parse(broken).is_none(), "{broken}");
        }
    }

    #[test]
    fn a_commit_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("dbtoll-commit-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let file = OpenOptions::new().write(true).create_new(true).open(folder.join("file")).unwrap();
        commit_to(&file, 10, 3).unwrap();
        assert_eq!(fs::read(folder.join("file")).unwrap(), [3; 10]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_instance_has_a_plain_name() {
        for bad in ["", "../x", "a/b", "a b", "a.b"] {
            assert!(Named::parse(json!({"instance": bad})).is_err(), "{bad}");
        }
        assert_eq!(Named::parse(json!({"instance": "dbtoll-7-a"})).unwrap(), "dbtoll-7-a");
    }
}
