//! Page faults of a process and of all that it starts, by what they do: each is recorded by the kernel (`exceptions:page_fault_user`,
//! `page_fault_kernel`) with its address, which the mappings of its process explain.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::io;

use serde::Serialize;

use super::calls::tasks_of;
use super::perf::{self, FORK, MAPPING, Record, Recording, SAMPLE, Sample, Tracepoint, WITH_MAPPINGS, u32_at, u64_at};

/// Of the flags of a mapping, `libc::MAP_SHARED`.
const MAP_SHARED: u32 = 1;
/// Of the error code (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, 4.7).
const PAGE_WAS_THERE: u64 = 1;
const WRITE: u64 = 1 << 1;

/// A new page. Each is as the probe of that name has it.
const ANONYMOUS: &str = "anonymous";
/// A page of a file, which is mapped as it is.
const FILE: &str = "file";
/// A page of memory that processes share, which is written to.
const SHARED: &str = "shared";
/// One that is read; the kernel maps those around it too.
const SHARED_READ: &str = "shared_read";
/// A page that is copied because it is written to.
const COPY: &str = "copy";

type Faults = BTreeMap<&'static str, u64>;

/// How many there were, and how many of each did not come in a row: far from the last few of their kind in the process.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    all: Faults,
    alone: Faults,
}

impl Report {
    fn empty() -> Self {
        let none: Faults = [ANONYMOUS, FILE, SHARED, SHARED_READ, COPY].map(|name| (name, 0)).into();
        Self { all: none.clone(), alone: none }
    }

    fn add(&mut self, name: &'static str, in_a_row: bool) {
        *self.all.entry(name).or_default() += 1;
        *self.alone.entry(name).or_default() += u64::from(!in_a_row);
    }
}

/// Twice what a kernel maps around a fault, and then some. A plan may go over so many tables at once.
const NEAR_BYTES: u64 = 256 << 10;
const ROWS: usize = 8;

/// Addresses of the last faults of a kind, in each process.
#[derive(Default)]
struct Rows(HashMap<(u32, &'static str), VecDeque<u64>>);

impl Rows {
    fn goes_on(&mut self, process: u32, kind: &'static str, address: u64) -> bool {
        let last = self.0.entry((process, kind)).or_default();
        let row = last.iter().position(|before| before.abs_diff(address) <= NEAR_BYTES);
        if let Some(row) = row {
            last.remove(row);
        } else if last.len() == ROWS {
            last.pop_front();
        }
        last.push_back(address);
        row.is_some()
    }
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
    let (mut report, mut rows) = (Report::empty(), Rows::default());
    for record in &records {
        follow(record, fields, &mut processes, &mut rows, &mut report);
    }
    super::tell(&report)
}

fn follow(
    record: &Record,
    fields: (usize, usize),
    processes: &mut HashMap<u32, Mappings>,
    rows: &mut Rows,
    report: &mut Report,
) {
    match record.kind {
        SAMPLE => {
            let Sample { process, fields: body, .. } = record.sample();
            let (address, error) = (u64_at(body, fields.0), u64_at(body, fields.1));
            // The kernel's own half of the address space is nobody's.
            if let Some(mappings) = processes.get(&process).filter(|_| address.leading_zeros() > 0) {
                let name = name_of(mappings, address, error);
                report.add(name, rows.goes_on(process, name, address));
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

fn name_of(mappings: &Mappings, address: u64, error: u64) -> &'static str {
    let found = mappings.range(..=address).next_back().filter(|(_, (end, _))| address < *end);
    match found.map(|(_, (_, kind))| *kind) {
        Some(Kind::Shared) if error & WRITE != 0 => SHARED,
        Some(Kind::Shared) => SHARED_READ,
        _ if error & PAGE_WAS_THERE != 0 => COPY,
        Some(Kind::File) if error & WRITE != 0 => COPY,
        Some(Kind::File) => FILE,
        // BIAS: the kernel tells of no mapping that is moved (mremap) or that grows by itself (a stack): both are anonymous.
        Some(Kind::Anonymous) | None => ANONYMOUS,
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
    if start >= end {
        return;
    }
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
pub(super) fn processes_of(pid: u32) -> Vec<u32> {
    let tasks = tasks_of(pid).into_iter().filter_map(|task| u32::try_from(task).ok());
    tasks.filter(|task| fs::exists(format!("/proc/{task}/task/{task}")).unwrap_or(false)).collect()
}

fn mappings_of(process: u32) -> Mappings {
    let text = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    text.lines().filter_map(mapping).collect()
}

/// The content of a file `maps`.
pub(crate) fn read_mappings(text: &str) {
    let mut mappings = Mappings::new();
    for (start, (end, kind)) in text.lines().filter_map(mapping) {
        put(&mut mappings, start, end, kind);
        let _ = name_of(&mappings, start, WRITE);
    }
}

pub(crate) fn read_records(records: Vec<Record>) {
    let mut processes = HashMap::from([(0, Mappings::new())]);
    let (mut rows, mut report) = (Rows::default(), Report::empty());
    for record in records {
        follow(&record, (0, 8), &mut processes, &mut rows, &mut report);
    }
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
        let mut report = Report::empty();
        for (address, error) in
            [(0x5000, 4), (0x7fff, 6), (0x9001, 6), (0x9fff, 7), (0xf100, 6), (0xf100, 7), (0xf200, 4), (0x8000, 4)]
        {
            report.add(name_of(&mappings, address, error), true);
        }
        assert_eq!(report.all, [(ANONYMOUS, 2), (FILE, 1), (SHARED, 2), (SHARED_READ, 1), (COPY, 2)].into());
        assert_eq!(report.alone, Report::empty().all);
    }

    #[test]
    fn what_goes_on_near_one_of_the_last_is_of_its_row() {
        let mut rows = Rows::default();
        let mut alone = 0;
        for step in 0..100 {
            // Two tables at once, in order, and an index here and there.
            for address in [step << 16, (1 << 32) + (step << 16), (1 << 40) + (step << 30)] {
                alone += u64::from(!rows.goes_on(1, SHARED_READ, address));
            }
        }
        assert_eq!(alone, 2 + 100);
        assert!(!rows.goes_on(2, SHARED_READ, 99 << 16), "another process");
        assert!(!rows.goes_on(1, FILE, 99 << 16), "another kind");
    }

    #[test]
    fn a_mapping_that_ends_before_it_begins_is_none() {
        let mut mappings = Mappings::from([(0x1000, (0x9000, Kind::File))]);
        for (start, end) in [(0x3000, 0x2000), (0x3000, 0x3000), (u64::MAX, 0)] {
            put(&mut mappings, start, end, Kind::Shared);
        }
        assert_eq!(mappings, Mappings::from([(0x1000, (0x9000, Kind::File))]));
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
