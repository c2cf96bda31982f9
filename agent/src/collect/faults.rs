//! Page faults of a process and of all that it starts, by what they do: each is recorded by the kernel (`exceptions:page_fault_user`,
//! `page_fault_kernel`) with its address, which the mappings of its process explain.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;

use serde::Serialize;

use super::calls::tasks_of;
use super::perf::{self, FORK, MAPPING, Record, Recording, SAMPLE, Tracepoint, WITH_MAPPINGS, u32_at, u64_at};

/// Of the flags of a mapping, `libc::MAP_SHARED`.
const MAP_SHARED: u32 = 1;
/// Of the error code (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, 4.7).
const PAGE_WAS_THERE: u64 = 1;
const WRITE: u64 = 1 << 1;

/// Each as the probe of that name has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Faults {
    /// A new page.
    anonymous: u64,
    /// A page of a file, which is mapped as it is.
    file: u64,
    /// A page of memory that processes share, which is written to.
    shared: u64,
    /// One that is read; the kernel maps those around it too.
    shared_read: u64,
    /// A page that is copied because it is written to.
    copy: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Anonymous,
    File,
    Shared,
}

/// Start -> end and kind.
type Mappings = BTreeMap<u64, (u64, Kind)>;

/// Says `{"ready": true}` when it records, and what it found when it is told to end (SIGTERM).
pub fn run(pid: &str) -> Result<(), String> {
    let pid = super::number_of_process(pid)?;
    let over = super::told_to_end();
    let begin = || -> io::Result<_> {
        let (user, kernel) =
            (Tracepoint::find("exceptions/page_fault_user")?, Tracepoint::find("exceptions/page_fault_kernel")?);
        let fields = (user.field("address")?.0, user.field("error_code")?.0);
        let mut recordings = Recording::everywhere(&user, WITH_MAPPINGS)?;
        recordings.extend(Recording::everywhere(&kernel, perf::WITH_TIMES)?);
        Ok((fields, recordings))
    };
    let (fields, recordings) = begin().map_err(|error| format!("page faults are not recorded here: {error}"))?;
    let mut processes: HashMap<u32, Mappings> =
        processes_of(pid).into_iter().map(|process| (process, mappings_of(process))).collect();
    if processes.is_empty() {
        return Err(format!("no process {pid}"));
    }
    super::say_ready()?;
    let records = perf::record(recordings, &over).map_err(|error| error.to_string())?;
    let mut faults = Faults::default();
    for record in &records {
        follow(record, fields, &mut processes, &mut faults);
    }
    super::tell(&faults)
}

fn follow(record: &Record, fields: (usize, usize), processes: &mut HashMap<u32, Mappings>, faults: &mut Faults) {
    match record.kind {
        SAMPLE => {
            let (process, body) = record.sample();
            let (address, error) = (u64_at(body, fields.0), u64_at(body, fields.1));
            // The kernel's own half of the address space is nobody's.
            if let Some(mappings) = processes.get(&process).filter(|_| address.leading_zeros() > 0) {
                *faults.of(mappings, address, error) += 1;
            }
        }
        // Process and parent, thread and the parent's.
        FORK => {
            let (process, parent) = (u32_at(&record.body, 0), u32_at(&record.body, 4));
            if let Some(mappings) = processes.get(&parent).filter(|_| process != parent).cloned() {
                processes.insert(process, mappings);
            }
        }
        // Process, thread, start, length, offset, device, inode and its generation, protection, flags.
        MAPPING => {
            if let Some(mappings) = processes.get_mut(&u32_at(&record.body, 0)) {
                let (start, bytes) = (u64_at(&record.body, 8), u64_at(&record.body, 16));
                let is_shared = u32_at(&record.body, 60) & MAP_SHARED != 0;
                let kind = kind_of(is_shared, u64_at(&record.body, 40) != 0);
                put(mappings, start, start.saturating_add(bytes), kind);
            }
        }
        _ => {}
    }
}

impl Faults {
    fn of(&mut self, mappings: &Mappings, address: u64, error: u64) -> &mut u64 {
        let found = mappings.range(..=address).next_back().filter(|(_, (end, _))| address < *end);
        match found.map(|(_, (_, kind))| *kind) {
            Some(Kind::Shared) if error & WRITE != 0 => &mut self.shared,
            Some(Kind::Shared) => &mut self.shared_read,
            _ if error & PAGE_WAS_THERE != 0 => &mut self.copy,
            Some(Kind::File) if error & WRITE != 0 => &mut self.copy,
            Some(Kind::File) => &mut self.file,
            // BIAS: the kernel tells of no mapping that is moved (mremap) or that grows by itself (a stack): both are anonymous.
            Some(Kind::Anonymous) | None => &mut self.anonymous,
        }
    }
}

fn kind_of(is_shared: bool, is_file: bool) -> Kind {
    match (is_shared, is_file) {
        (true, _) => Kind::Shared,
        (false, true) => Kind::File,
        (false, false) => Kind::Anonymous,
    }
}

/// What was mapped there is no more.
fn put(mappings: &mut Mappings, start: u64, end: u64, kind: Kind) {
    let covered: Vec<u64> = mappings.range(start..end).map(|(start, _)| *start).collect();
    for each in covered {
        if let Some((old_end, old)) = mappings.remove(&each).filter(|(old_end, _)| *old_end > end) {
            mappings.insert(end, (old_end, old));
        }
    }
    if let Some((_, before)) = mappings.range_mut(..start).next_back().filter(|(_, (old_end, _))| *old_end > start) {
        let (old_end, old) = *before;
        before.0 = start;
        if old_end > end {
            mappings.insert(end, (old_end, old));
        }
    }
    mappings.insert(start, (end, kind));
}

/// Processes among the tasks: those whose number is their group's.
fn processes_of(pid: u32) -> Vec<u32> {
    let tasks = tasks_of(pid).into_iter().filter_map(|task| u32::try_from(task).ok());
    tasks.filter(|task| fs::exists(format!("/proc/{task}/task/{task}")).unwrap_or(false)).collect()
}

fn mappings_of(process: u32) -> Mappings {
    let text = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    text.lines().filter_map(mapping).collect()
}

/// `7f0000000000-7f0000021000 rw-s 00000000 00:01 1025 /dev/zero (deleted)`: memory that is shared has an inode too.
fn mapping(line: &str) -> Option<(u64, (u64, Kind))> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_shared = words.next()?.ends_with('s');
    let inode: u64 = words.nth(2)?.parse().ok()?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?, (number(end)?, kind_of(is_shared, inode != 0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_tell_what_a_fault_does() {
        let lines = [
            "5000-8000 r-xp 00000000 fe:00 77 /usr/bin/postgres",
            "9000-a000 rw-p 00000000 00:00 0 [heap]",
            "f000-ff00 rw-s 00000000 00:01 1025 /dev/zero (deleted)",
        ];
        let mappings: Mappings = lines.iter().filter_map(|line| mapping(line)).collect();
        let mut faults = Faults::default();
        for (address, error) in
            [(0x5000, 4), (0x7fff, 6), (0x9001, 6), (0x9fff, 7), (0xf100, 6), (0xf100, 7), (0xf200, 4), (0x8000, 4)]
        {
            *faults.of(&mappings, address, error) += 1;
        }
        assert_eq!(faults, Faults { anonymous: 2, file: 1, shared: 2, shared_read: 1, copy: 2 });
    }

    #[test]
    fn a_new_mapping_replaces_what_was_there() {
        let mut mappings = Mappings::from([(0x1000, (0x9000, Kind::File))]);
        put(&mut mappings, 0x3000, 0x5000, Kind::Shared);
        assert_eq!(
            mappings.iter().map(|(start, (end, kind))| (*start, *end, *kind)).collect::<Vec<_>>(),
            [(0x1000, 0x3000, Kind::File), (0x3000, 0x5000, Kind::Shared), (0x5000, 0x9000, Kind::File)]
        );
        put(&mut mappings, 0x2000, 0x6000, Kind::Anonymous);
        assert_eq!(
            mappings.iter().map(|(start, (end, kind))| (*start, *end, *kind)).collect::<Vec<_>>(),
            [(0x1000, 0x2000, Kind::File), (0x2000, 0x6000, Kind::Anonymous), (0x6000, 0x9000, Kind::File)]
        );
    }
}
