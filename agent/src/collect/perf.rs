//! Events of the kernel, counted or recorded one by one (`perf_event_open(2)`).

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

/// `include/uapi/linux/perf_event.h`.
pub const TYPE_SOFTWARE: u32 = 1;
pub const TYPE_TRACEPOINT: u32 = 2;
const CPU_CLOCK: u64 = 0;
pub const INHERIT: u64 = 1 << 1;
pub const EXCLUDE_KERNEL: u64 = 1 << 5;
/// Records that are no samples have their time too.
pub const WITH_TIMES: u64 = 1 << 18;
/// Also a record of each process that is started.
pub const WITH_PROCESSES: u64 = WITH_TIMES | 1 << 13;
/// And of each mapping that is made.
pub const WITH_MAPPINGS: u64 = WITH_PROCESSES | 1 << 8 | 1 << 17 | 1 << 23;
const FORMAT_ENABLED_AND_RUNNING: u64 = 3;
/// In this order: instruction, process and thread, time.
const SAMPLED: u64 = 1 | 1 << 1 | 1 << 2;
/// After these the length of a tracepoint's own fields, and they.
const FIELDS: u64 = 1 << 10;

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

fn open(attributes: &Attributes, task: libc::pid_t, processor: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the structure is of the size that it says and lives as long as the call; the others are numbers.
    let opened = unsafe { libc::syscall(libc::SYS_perf_event_open, ptr::from_ref(attributes), task, processor, -1, 0) };
    match libc::c_int::try_from(opened) {
        // SAFETY: the kernel has just given us this descriptor.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn clock(period_ns: u64) -> Attributes {
    Attributes {
        kind: TYPE_SOFTWARE,
        size: size_of_attributes(),
        config: CPU_CLOCK,
        sample_period: period_ns,
        sample_type: SAMPLED,
        ..Attributes::default()
    }
}

fn size_of_attributes() -> u32 {
    u32::try_from(size_of::<Attributes>()).unwrap_or(u32::MAX)
}

/// Counters of one event, one for each task that was there when it began; what these start is in them.
pub struct Counting {
    pub name: String,
    counters: Vec<OwnedFd>,
}

impl Counting {
    pub fn begin(name: &str, tasks: &[libc::pid_t], kind: u32, config: u64, flags: u64) -> io::Result<Self> {
        let attributes = Attributes {
            kind,
            size: size_of_attributes(),
            config,
            read_format: FORMAT_ENABLED_AND_RUNNING,
            flags: INHERIT | flags,
            ..Attributes::default()
        };
        let mut counters = Vec::new();
        for &task in tasks {
            match open(&attributes, task, -1) {
                Ok(counter) => counters.push(counter),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // it has just ended
                Err(error) => return Err(error),
            }
        }
        Ok(Self { name: name.to_owned(), counters })
    }

    /// Only events of a tracepoint for which this holds.
    pub fn filter(&self, condition: &str) -> io::Result<()> {
        /// `PERF_EVENT_IOC_SET_FILTER`: `_IOW('$', 6, char *)`.
        const SET_FILTER: libc::Ioctl = 0x4008_2406;
        let condition = std::ffi::CString::new(condition).map_err(io::Error::other)?;
        for counter in &self.counters {
            // SAFETY: the text ends with a zero and lives as long as the call.
            if unsafe { libc::ioctl(counter.as_raw_fd(), SET_FILTER, condition.as_ptr()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Of all tasks; None where the processor never got round to it.
    pub fn total(&self) -> io::Result<Option<u64>> {
        let mut sum = 0;
        for counter in &self.counters {
            let mut words = [0_u8; 24];
            fs::File::from(counter.try_clone()?).read_exact(&mut words)?;
            let (value, enabled, running) = (u64_at(&words, 0), u64_at(&words, 8), u64_at(&words, 16));
            sum += match running {
                0 if enabled == 0 || value == 0 => value,
                0 => return Ok(None),
                _ => u64::try_from(u128::from(value) * u128::from(enabled) / u128::from(running)).unwrap_or(u64::MAX),
            };
        }
        Ok(Some(sum))
    }
}

/// Where the kernel shows its tracepoints; also mounted here, for this process alone, where nobody has.
const TRACING: &[&str] = &["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

fn tracing() -> io::Result<PathBuf> {
    if let Some(folder) = TRACING.iter().map(Path::new).find(|folder| folder.join("events").is_dir()) {
        return Ok(folder.to_owned());
    }
    let target = Path::new(TRACING[0]);
    // SAFETY: this process has one thread that cares about its mounts.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    mount("tracefs", target, "tracefs", MountFlags::empty(), None)?;
    Ok(target.to_owned())
}

/// A tracepoint and where its fields are in a record.
pub struct Tracepoint {
    pub number: u64,
    format: String,
}

impl Tracepoint {
    /// By a name such as `block/block_rq_issue`.
    pub fn find(name: &str) -> io::Result<Self> {
        let folder = tracing()?.join("events").join(name);
        Self::parse(&fs::read_to_string(folder.join("id"))?, fs::read_to_string(folder.join("format"))?)
    }

    /// The contents of its files.
    pub(crate) fn parse(id: &str, format: String) -> io::Result<Self> {
        let number = id.trim().parse().map_err(|_| io::Error::other("the tracepoint has no number"))?;
        Ok(Self { number, format })
    }

    /// Offset and size, bytes.
    pub fn field(&self, name: &str) -> io::Result<(usize, usize)> {
        let found = self.format.lines().find_map(|line| {
            let mut parts = line.trim().split(';').map(str::trim);
            let declared = parts.next()?.strip_prefix("field:")?.split('[').next()?.rsplit(' ').next()?;
            let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
            let size = parts.next()?.strip_prefix("size:")?.parse().ok()?;
            (declared == name).then_some((offset, size))
        });
        found.ok_or_else(|| io::Error::other(format!("the tracepoint has no field {name}")))
    }
}

/// What the kernel recorded, of one processor.
pub struct Recording {
    /// Numbers of both sides; the data follow.
    first_page: *mut AtomicU64,
    data_bytes: usize,
    _event: OwnedFd,
}

/// Of records: `enum perf_event_type`.
pub const LOST: u32 = 2;
pub const FORK: u32 = 7;
pub const SAMPLE: u32 = 9;
pub const MAPPING: u32 = 10;

/// One, without its header, `time_ns` by the kernel's own clock.
pub struct Record {
    pub kind: u32,
    pub time_ns: u64,
    pub body: Vec<u8>,
}

/// Where a process was when something happened, or when it was looked up; `fields`: of the tracepoint.
pub struct Sample<'a> {
    pub instruction: u64,
    pub process: u32,
    pub fields: &'a [u8],
}

impl Record {
    fn of(kind: u32, body: Vec<u8>) -> Self {
        // The time stands last of what every sample has, and at the end of every other record (`sample_id_all`).
        let time_at = if kind == SAMPLE { 16 } else { body.len().saturating_sub(8) };
        Self { kind, time_ns: u64_at(&body, time_at), body }
    }

    /// Only of those of that kind.
    pub fn sample(&self) -> Sample<'_> {
        let fields = self.body.get(28..).unwrap_or_default();
        Sample { instruction: u64_at(&self.body, 0), process: u32_at(&self.body, 8), fields }
    }
}

const PAGE_BYTES: usize = 4096;
const DATA_PAGES: usize = 256;

impl Recording {
    /// Each time that the tracepoint is passed, on every processor that is there, whoever runs on it. Needs the right to look at
    /// everybody (`CAP_PERFMON`).
    pub fn everywhere(tracepoint: &Tracepoint, flags: u64) -> io::Result<Vec<Self>> {
        Self::on_every_processor(&Attributes {
            kind: TYPE_TRACEPOINT,
            size: size_of_attributes(),
            config: tracepoint.number,
            sample_period: 1,
            sample_type: SAMPLED | FIELDS,
            flags,
            ..Attributes::default()
        })
    }

    /// Where everybody is in user mode, again and again; as above.
    pub fn by_clock(period_ns: u64) -> io::Result<Vec<Self>> {
        Self::on_every_processor(&Attributes { flags: EXCLUDE_KERNEL | WITH_PROCESSES, ..clock(period_ns) })
    }

    /// Where this thread is in user mode, again and again.
    pub fn of_this_thread(period_ns: u64) -> io::Result<Self> {
        Self::of(open(&Attributes { flags: EXCLUDE_KERNEL | WITH_TIMES, ..clock(period_ns) }, 0, -1)?)
    }

    fn on_every_processor(attributes: &Attributes) -> io::Result<Vec<Self>> {
        let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
        in_list(online.trim()).map(|processor| Self::of(open(attributes, -1, processor)?)).collect()
    }

    fn of(event: OwnedFd) -> io::Result<Self> {
        let bytes = (1 + DATA_PAGES) * PAGE_BYTES;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: no address is asked for, so nothing that is mapped is replaced.
        let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, event.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { first_page: memory.cast(), data_bytes: DATA_PAGES * PAGE_BYTES, _event: event })
    }

    /// What is new, put behind `records`; their order is that of one processor.
    pub fn take(&mut self, records: &mut Vec<Record>) {
        /// `struct perf_event_mmap_page`: `data_head` and `data_tail`, in words.
        const HEAD: usize = 1024 / 8;
        const TAIL: usize = 1032 / 8;
        // SAFETY: both lie in the first page of the mapping; the kernel writes the one, we the other.
        let (head, tail) = unsafe { (&*self.first_page.add(HEAD), &*self.first_page.add(TAIL)) };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        while at < end {
            let header = self.bytes(at, 8);
            let (kind, size) = (u32_at(&header, 0), usize::from(u16::from_ne_bytes([header[6], header[7]])));
            if size < 8 {
                break; // no record is smaller than its header
            }
            let body = self.bytes(at + 8, size - 8);
            records.push(Record::of(kind, body));
            at += size as u64;
        }
        tail.store(at, Ordering::Release);
    }

    /// Of the data, which go round.
    fn bytes(&self, from: u64, count: usize) -> Vec<u8> {
        let start = usize::try_from(from % self.data_bytes as u64).unwrap_or(0);
        let first = count.min(self.data_bytes - start);
        let mut found = vec![0; count];
        // SAFETY: both parts lie within the data, which begin after the first page; the kernel writes behind `head` only.
        unsafe {
            let data = self.first_page.cast::<u8>().add(PAGE_BYTES);
            ptr::copy_nonoverlapping(data.add(start), found.as_mut_ptr(), first);
            ptr::copy_nonoverlapping(data, found.as_mut_ptr().add(first), count - first);
        }
        found
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own and nothing keeps a reference into it.
        unsafe { libc::munmap(self.first_page.cast(), PAGE_BYTES + self.data_bytes) };
    }
}

/// Everything that is recorded until it is time to end, in the order of time. An error if records were lost.
pub fn record(mut recordings: Vec<Recording>, over: &super::ToldToEnd) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    loop {
        let is_last = over.is_so();
        for recording in &mut recordings {
            recording.take(&mut records);
        }
        if is_last {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    if let Some(lost) = records.iter().find(|record| record.kind == LOST) {
        return Err(io::Error::other(format!("the kernel lost {} records", u64_at(&lost.body, 8))));
    }
    records.sort_by_key(|record| record.time_ns);
    Ok(records)
}

/// As they would lie in a buffer of the kernel's, one behind the other.
pub(crate) fn records_of(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<8>() {
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        let Some((body, rest)) = size.checked_sub(8).and_then(|size| rest.split_at_checked(size)) else { break };
        records.push(Record::of(u32_at(header, 0), body.to_vec()));
        bytes = rest;
    }
    records
}

/// `0-3,8`.
fn in_list(list: &str) -> impl Iterator<Item = libc::c_int> + '_ {
    list.split(',').flat_map(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        from.parse().unwrap_or(0)..=to.parse().unwrap_or(0)
    })
}

/// A number as this machine writes it; 0 where the bytes end before it does.
pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).map_or(0, |found| u64::from_ne_bytes(*found))
}

/// As `u64_at`.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).map_or(0, |found| u32::from_ne_bytes(*found))
}

/// Some hundred events times some ten processes.
pub fn raise_limit_of_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_processors_and_fields() {
        assert_eq!(in_list("0-2,5").collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(in_list("0").collect::<Vec<_>>(), [0]);
        let format = "name: x\n\tfield:unsigned int bytes;\toffset:28;\tsize:4;\tsigned:0;\n\tfield:char rwbs[10];\toffset:34;\tsize:10;\n";
        let tracepoint = Tracepoint { number: 1, format: format.to_owned() };
        assert_eq!(tracepoint.field("bytes").unwrap(), (28, 4));
        assert_eq!(tracepoint.field("rwbs").unwrap(), (34, 10));
        assert!(tracepoint.field("sector").is_err());
    }
}
