//! `counters`: what processes and the machine have used, from `/proc`. A value that the kernel does not give is null.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::parse;
use crate::clock;
use crate::failure::{Code, Failure};
use crate::stream::StreamHandle;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    #[serde(default)]
    pub pids: Option<Vec<u32>>,
    #[serde(default)]
    pub tree_of: Option<u32>,
    #[serde(default)]
    pub all: bool,
    #[serde(default)]
    pub threads: OfThreads,
    /// Numbers of single threads, beside whatever processes are chosen.
    #[serde(default)]
    pub single_threads: Vec<u32>,
    #[serde(default = "yes")]
    pub machine: bool,
}

/// What only threads are asked: switches, run time and waits. It is the larger part of what the counters cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OfThreads {
    Nothing,
    #[default]
    Sums,
    /// Also by process.
    Each,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Serialize)]
pub struct Counters {
    pub at_ns: u64,
    /// None where no process was asked for.
    pub processes: Option<Processes>,
    /// By number; who has ended is left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub single_threads: BTreeMap<u32, Thread>,
    pub machine: Option<Machine>,
}

/// One thread; of a process with a single one its number is the process's.
#[derive(Debug, PartialEq, Serialize)]
pub struct Thread {
    /// A letter of proc(5).
    pub state: char,
    pub run_ns: Option<u64>,
    pub run_queue_wait_ns: Option<u64>,
    /// How often it was given a processor.
    pub time_slices: Option<u64>,
}

/// Sums over the chosen processes with all their threads.
#[derive(Debug, Default, Serialize)]
pub struct Processes {
    pub count: u64,
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    pub minor_faults: Option<u64>,
    pub major_faults: Option<u64>,
    /// Of live threads: the kernel keeps none of those that ended.
    pub voluntary_switches: Option<u64>,
    pub involuntary_switches: Option<u64>,
    /// From and to block devices, with those of children that were waited for.
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    /// Of live threads.
    pub run_ns: Option<u64>,
    pub run_queue_wait_ns: Option<u64>,
    /// Waiting for block devices, of live threads; None where the kernel's delay accounting is off.
    pub block_io_wait_ns: Option<u64>,
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each: Option<BTreeMap<String, Threads>>,
}

#[derive(Debug, Default, Serialize)]
pub struct Machine {
    pub user_ns: Option<u64>,
    pub nice_ns: Option<u64>,
    pub system_ns: Option<u64>,
    pub idle_ns: Option<u64>,
    pub iowait_ns: Option<u64>,
    pub irq_ns: Option<u64>,
    pub softirq_ns: Option<u64>,
    pub steal_ns: Option<u64>,
    pub context_switches: Option<u64>,
    pub forks: Option<u64>,
    /// Of all its guests, where it has KVM.
    pub kvm_exits: Option<u64>,
    pub pages_in_bytes: Option<u64>,
    pub pages_out_bytes: Option<u64>,
    pub minor_faults: Option<u64>,
    pub major_faults: Option<u64>,
    /// Whole devices; None where the kernel does not show them.
    pub disk: Option<BTreeMap<String, Disk>>,
    pub pressure: Pressure,
}

/// Of one device, as Documentation/admin-guide/iostats.rst has them.
#[derive(Debug, Serialize)]
pub struct Disk {
    pub reads: u64,
    pub read_bytes: u64,
    /// From when each read was made until it was done, summed over all of them; so with the next two.
    pub read_ns: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub write_ns: u64,
    /// None before Linux 5.5, which began to count them.
    pub flushes: Option<u64>,
    pub flush_ns: Option<u64>,
    /// While it had any request.
    pub io_ns: u64,
    /// The same times how many requests it had.
    pub queue_ns: u64,
}

#[derive(Debug, Default, Serialize)]
pub struct Pressure {
    pub cpu_some_ns: Option<u64>,
    pub memory_some_ns: Option<u64>,
    pub io_some_ns: Option<u64>,
}

pub fn counters(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    serde_json::to_value(read(&parse(params)?)?).map_err(|error| Failure::new(Code::Internal, error.to_string()))
}

/// The counters at this moment; a process that is named but not there is `not_found`.
pub fn read(selection: &Selection) -> Result<Counters, Failure> {
    let units = Units::of_kernel();
    let at_ns = clock::now_ns();
    let chosen = match (selection.pids.as_ref(), selection.tree_of, selection.all) {
        (None, None, false) => None,
        (Some(pids), None, false) => {
            let stats = pids.iter().map(|pid| Stat::read(*pid).ok_or_else(|| no_process(*pid)));
            Some((stats.collect::<Result<Vec<_>, _>>()?, false))
        }
        (None, Some(root), false) => Some((descendants(root, all_stats()?)?, true)),
        (None, None, true) => Some((all_stats()?, false)),
        _ => return Err(Failure::bad_request("only one of pids, tree_of and all")),
    };
    let processes = chosen.map(|(stats, ended_children)| {
        let each = || stats.iter().map(|stat| (title(stat.pid), Threads::read(stat.pid, &units))).collect();
        let by_process = (selection.threads == OfThreads::Each).then(each);
        Processes { each: by_process, ..sum(&stats, &units, ended_children, selection.threads) }
    });
    let single_threads =
        selection.single_threads.iter().filter_map(|number| Some((*number, Thread::read(*number)?))).collect();
    let machine = selection.machine.then(|| Machine::read(&units));
    Ok(Counters { at_ns, processes, single_threads, machine })
}

fn no_process(pid: u32) -> Failure {
    Failure::new(Code::NotFound, format!("no process {pid}"))
}

struct Units {
    tick_ns: u64,
    page_bytes: u64,
}

impl Units {
    fn of_kernel() -> Self {
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        Self { tick_ns: 1_000_000_000 / ticks_per_second, page_bytes: rustix::param::page_size() as u64 }
    }
}

/// `/proc/PID/stat`.
pub(super) struct Stat {
    pid: u32,
    parent: u32,
    fields: Vec<u64>,
}

/// Positions in proc(5), which counts from 1.
mod field {
    pub const PARENT: usize = 4;
    pub const MINOR_FAULTS: usize = 10;
    pub const CHILDREN_MINOR_FAULTS: usize = 11;
    pub const MAJOR_FAULTS: usize = 12;
    pub const CHILDREN_MAJOR_FAULTS: usize = 13;
    pub const USER: usize = 14;
    pub const SYSTEM: usize = 15;
    pub const CHILDREN_USER: usize = 16;
    pub const CHILDREN_SYSTEM: usize = 17;
    pub const RSS: usize = 24;
    pub const BLOCK_IO_DELAY: usize = 42;
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: u32, text: &str) -> Option<Self> {
        // The name in brackets may itself hold blanks and brackets.
        let after_name = text.get(text.rfind(')')? + 1..)?;
        // Negative numbers stand only in fields that are not used here.
        let fields: Vec<u64> = after_name.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        let stat = Self { pid, parent: 0, fields };
        let parent = u32::try_from(stat.get(field::PARENT)?).ok()?;
        Some(Self { parent, ..stat })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn parent(&self) -> u32 {
        self.parent
    }

    /// A field by its number in proc(5); the first after the name is 3.
    fn get(&self, number: usize) -> Option<u64> {
        self.fields.get(number - 3).copied()
    }
}

pub(super) fn all_stats() -> Result<Vec<Stat>, Failure> {
    let entries = fs::read_dir("/proc").map_err(|error| Failure::io("open /proc", error))?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // A process that has ended since it was listed is left out.
    Ok(pids.filter_map(Stat::read).collect())
}

/// The process `root` and all that descend from it.
pub(super) fn descendants(root: u32, stats: Vec<Stat>) -> Result<Vec<Stat>, Failure> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for stat in &stats {
        children.entry(stat.parent).or_default().push(stat.pid);
    }
    if !stats.iter().any(|stat| stat.pid == root) {
        return Err(no_process(root));
    }
    let (mut members, mut waiting) = (HashSet::from([root]), vec![root]);
    while let Some(pid) = waiting.pop() {
        waiting.extend(children.get(&pid).into_iter().flatten().filter(|child| members.insert(**child)));
    }
    Ok(stats.into_iter().filter(|stat| members.contains(&stat.pid)).collect())
}

/// None if a summand is, or if the sum is no number that a kernel could mean.
fn total(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.into_iter().try_fold(0_u64, |sum, value| sum.checked_add(value?))
}

/// With `ended_children`, what ended children left to their parents is added: right for whole trees only.
fn sum(stats: &[Stat], units: &Units, ended_children: bool, of_threads: OfThreads) -> Processes {
    let of_all = |of: &dyn Fn(&Stat) -> Option<u64>| total(stats.iter().map(of));
    let with_children = |own: usize, children: usize, unit: u64| {
        of_all(&|stat| {
            let ended = if ended_children { stat.get(children)? } else { 0 };
            stat.get(own)?.checked_add(ended)?.checked_mul(unit)
        })
    };
    // Who has ended since the stats were read is left out; if that is everybody, nothing is known.
    let read = |pid: u32| {
        let folder = Path::new("/proc").join(pid.to_string());
        let wanted = of_threads != OfThreads::Nothing;
        let threads = if wanted { Threads::read(pid, units) } else { Threads::default() };
        let found = (fs::read_to_string(folder.join("io")).ok(), threads);
        folder.exists().then_some(found)
    };
    let (io, threads): (Vec<_>, Vec<_>) = stats.iter().filter_map(|stat| read(stat.pid)).unzip();
    let all_ended = threads.is_empty() && !stats.is_empty();
    let io_total = |key: &str| total(io.iter().map(|text| labelled(text.as_deref()?, key))).filter(|_| !all_ended);
    let threads_total = |of: &dyn Fn(&Threads) -> Option<u64>| total(threads.iter().map(of)).filter(|_| !all_ended);
    Processes {
        count: stats.len() as u64,
        user_ns: with_children(field::USER, field::CHILDREN_USER, units.tick_ns),
        system_ns: with_children(field::SYSTEM, field::CHILDREN_SYSTEM, units.tick_ns),
        // A kernel in which this program has had none does not count them (gVisor).
        minor_faults: with_children(field::MINOR_FAULTS, field::CHILDREN_MINOR_FAULTS, 1)
            .filter(|_| Stat::read(std::process::id()).and_then(|own| own.get(field::MINOR_FAULTS)) != Some(0)),
        major_faults: with_children(field::MAJOR_FAULTS, field::CHILDREN_MAJOR_FAULTS, 1),
        voluntary_switches: threads_total(&|threads| threads.voluntary_switches),
        involuntary_switches: threads_total(&|threads| threads.involuntary_switches),
        read_bytes: io_total("read_bytes:"),
        written_bytes: io_total("write_bytes:"),
        run_ns: threads_total(&|threads| threads.run_ns),
        run_queue_wait_ns: threads_total(&|threads| threads.run_queue_wait_ns),
        block_io_wait_ns: threads_total(&|threads| threads.block_io_wait_ns),
        rss_bytes: of_all(&|stat| stat.get(field::RSS)?.checked_mul(units.page_bytes)),
        each: None,
    }
}

/// Sums over the live threads of one process.
#[derive(Debug, Default, Serialize)]
pub struct Threads {
    voluntary_switches: Option<u64>,
    involuntary_switches: Option<u64>,
    run_ns: Option<u64>,
    run_queue_wait_ns: Option<u64>,
    block_io_wait_ns: Option<u64>,
}

impl Thread {
    /// A thread's number leads to its process too, though no listing shows it there (proc(5), `/proc/tid`).
    fn read(number: u32) -> Option<Self> {
        let text = |name| fs::read_to_string(format!("/proc/{number}/task/{number}/{name}")).ok();
        let schedule = text("schedstat");
        let of = |word| schedule.as_deref()?.split_ascii_whitespace().nth(word)?.parse().ok();
        // Who lives has run. A kernel without these accounts may write three zeros (fs/proc/base.c, `proc_pid_schedstat`).
        let time_slices = of(2).filter(|slices| *slices > 0);
        let [run_ns, run_queue_wait_ns] = [0, 1].map(|word| time_slices.and_then(|_: u64| of(word)));
        Some(Self { state: state_in(&text("stat")?)?, run_ns, run_queue_wait_ns, time_slices })
    }
}

/// The letter for what it does, in a text of `/proc/PID/stat`.
pub(super) fn state_in(stat: &str) -> Option<char> {
    stat.get(stat.rfind(')')? + 1..)?.trim_start().chars().next()
}

/// Without delay accounting its column is 0 all the time; kernels before 5.14 do not say whether they have it.
const DELAY_ACCOUNTING: &str = "/proc/sys/kernel/task_delayacct";

impl Threads {
    fn read(pid: u32, units: &Units) -> Self {
        let listing = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        let folders: Vec<_> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
        let accounts_delays = fs::read_to_string(DELAY_ACCOUNTING).is_ok_and(|text| text.trim() == "1");
        let texts = |folder: &PathBuf| {
            let text = |name| fs::read_to_string(folder.join(name)).ok();
            let texts = (text("status"), text("schedstat"), accounts_delays.then(|| text("stat")).flatten());
            // A thread that has ended since it was listed adds nothing.
            folder.exists().then_some(texts)
        };
        let threads: Vec<_> = folders.iter().filter_map(texts).collect();
        let known = |sum: Option<u64>| sum.filter(|_| !folders.is_empty());
        let status = |key: &str| known(total(threads.iter().map(|(status, ..)| labelled(status.as_deref()?, key))));
        let schedule = |word: usize| {
            let of = |text: &Option<String>| text.as_deref()?.split_ascii_whitespace().nth(word)?.parse().ok();
            known(total(threads.iter().map(|(_, schedule, _)| of(schedule))))
        };
        let delay = |(.., stat): &(_, _, Option<String>)| {
            Stat::parse(pid, stat.as_deref()?)?.get(field::BLOCK_IO_DELAY)?.checked_mul(units.tick_ns)
        };
        Self {
            voluntary_switches: status("voluntary_ctxt_switches:"),
            involuntary_switches: status("nonvoluntary_ctxt_switches:"),
            run_ns: schedule(0),
            run_queue_wait_ns: schedule(1),
            block_io_wait_ns: accounts_delays.then(|| known(total(threads.iter().map(delay)))).flatten(),
        }
    }
}

/// The number after `label` on the line that begins with it.
fn labelled(text: &str, label: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(label)?.split_ascii_whitespace().next()?.parse().ok())
}

/// Number and name of a process, as `PostgreSQL` has them in its title (`postgres: checkpointer`) without what changes; empty where it
/// has ended.
fn title(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    let name = text.split('[').next().unwrap_or_default();
    format!("{pid} {}", name.trim().chars().take(TITLE_MAX).collect::<String>())
}

const TITLE_MAX: usize = 60;

const KVM_EXITS: &str = "/sys/kernel/debug/kvm/exits";

impl Machine {
    fn read(units: &Units) -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            kvm_exits: text(KVM_EXITS).trim().parse().ok(),
            disk: disks(),
            pressure: Pressure {
                cpu_some_ns: pressure("cpu"),
                memory_some_ns: pressure("memory"),
                io_some_ns: pressure("io"),
            },
            ..Self::of_texts(units, &text("/proc/stat"), &text("/proc/vmstat"))
        }
    }

    /// What these two files say.
    fn of_texts(units: &Units, stat: &str, memory: &str) -> Self {
        let cpu: Vec<Option<u64>> = stat
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))
            .map(|words| words.split_ascii_whitespace().map(|word| word.parse().ok()).collect())
            .unwrap_or_default();
        let time = |column: usize| cpu.get(column).copied()??.checked_mul(units.tick_ns);
        let major_faults = labelled(memory, "pgmajfault ");
        Self {
            user_ns: time(0),
            nice_ns: time(1),
            system_ns: time(2),
            idle_ns: time(3),
            iowait_ns: time(4),
            irq_ns: time(5),
            softirq_ns: time(6),
            steal_ns: time(7),
            context_switches: labelled(stat, "ctxt "),
            forks: labelled(stat, "processes "),
            // The kernel counts these two in KiB.
            pages_in_bytes: labelled(memory, "pgpgin ").and_then(|kib| kib.checked_mul(1024)),
            pages_out_bytes: labelled(memory, "pgpgout ").and_then(|kib| kib.checked_mul(1024)),
            // The kernel's number holds both kinds.
            minor_faults: labelled(memory, "pgfault ").zip(major_faults).map(|(all, major)| all.saturating_sub(major)),
            major_faults,
            ..Self::default()
        }
    }
}

/// What the kernel writes of its processes and of itself, in whatever file.
pub(crate) fn read_texts(text: &str) {
    let units = Units::of_kernel();
    let stats: Vec<Stat> = text.lines().filter_map(|line| Stat::parse(u32::MAX, line)).collect();
    let _ = sum(&stats, &units, true, OfThreads::Sums);
    let _ = Machine::of_texts(&units, text, text);
    let _ = (text.lines().filter_map(disk).count(), pressure_of(text));
}

fn disks() -> Option<BTreeMap<String, Disk>> {
    let text = fs::read_to_string("/proc/diskstats").ok()?;
    let lines = text.lines().filter_map(disk);
    // A partition's traffic is its device's too. Without /sys all are listed.
    let is_whole = |name: &str| Path::new("/sys/block").join(name.replace('/', "!")).exists();
    let can_tell = Path::new("/sys/block").exists();
    Some(lines.filter(|(name, _)| !can_tell || is_whole(name)).collect())
}

/// One line of `/proc/diskstats`, which counts in sectors of 512 bytes whatever the device's are, and in ms.
fn disk(line: &str) -> Option<(String, Disk)> {
    let mut words = line.split_ascii_whitespace().skip(2);
    let name = words.next()?.to_owned();
    let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let [
        reads,
        _,
        read_sectors,
        read_ms,
        writes,
        _,
        written_sectors,
        write_ms,
        _,
        io_ms,
        queue_ms,
        ref since_4_18 @ ..,
    ] = numbers[..]
    else {
        return None;
    };
    let (flushes, flush_ms) = match *since_4_18 {
        [_, _, _, _, flushes, flush_ms, ..] => (Some(flushes), Some(flush_ms)),
        _ => (None, None),
    };
    let (bytes, ns) = (|sectors: u64| sectors.checked_mul(512), |ms: u64| ms.checked_mul(1_000_000));
    let disk = Disk {
        reads,
        read_bytes: bytes(read_sectors)?,
        read_ns: ns(read_ms)?,
        writes,
        written_bytes: bytes(written_sectors)?,
        write_ns: ns(write_ms)?,
        flushes,
        flush_ns: flush_ms.and_then(ns),
        io_ns: ns(io_ms)?,
        queue_ns: ns(queue_ms)?,
    };
    Some((name, disk))
}

fn pressure(resource: &str) -> Option<u64> {
    pressure_of(&fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?)
}

fn pressure_of(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let microseconds: u64 = some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()?;
    microseconds.checked_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAUGHTY: &str =
        "7 (a) b) S) R 3 7 7 0 -1 4194304 10 20 1 2 30 40 300 400 20 0 1 0 55 1000 12 18446744073709551615";

    #[test]
    fn reads_past_names_with_brackets() {
        let stat = Stat::parse(7, NAUGHTY).unwrap();
        assert_eq!((stat.parent, stat.get(field::USER), stat.get(field::RSS)), (3, Some(30), Some(12)));
        assert!(
            Stat::parse(7, "7 (x").is_none() && Stat::parse(7, "").is_none() && Stat::parse(7, "7 (x) R").is_none()
        );
    }

    #[test]
    fn sums_trees_with_their_ended_children() {
        let units = Units { tick_ns: 10_000_000, page_bytes: 4096 };
        let mut stat = Stat::parse(7, NAUGHTY).unwrap();
        stat.pid = u32::MAX; // no such process: its thread counters are unknown
        let stats = [stat];
        let tree = sum(&stats, &units, true, OfThreads::Sums);
        assert_eq!((tree.user_ns, tree.system_ns), (Some(330 * 10_000_000), Some(440 * 10_000_000)));
        assert_eq!((tree.minor_faults, tree.major_faults, tree.rss_bytes), (Some(30), Some(3), Some(12 * 4096)));
        assert_eq!((tree.run_ns, tree.read_bytes, tree.voluntary_switches), (None, None, None));
        assert_eq!(sum(&stats, &units, false, OfThreads::Sums).user_ns, Some(30 * 10_000_000));
    }

    #[test]
    fn a_process_that_has_ended_since_it_was_listed_hides_nothing_of_the_others() {
        let units = Units::of_kernel();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = Stat::read(child.id()).unwrap();
        child.wait().unwrap();
        let own = || Stat::read(std::process::id()).unwrap();
        let summed = sum(&[own(), ended], &units, true, OfThreads::Sums);
        assert_eq!(summed.count, 2);
        assert!(summed.run_ns.is_some() && summed.voluntary_switches.is_some());
        assert_eq!(summed.read_bytes.is_some(), sum(&[own()], &units, true, OfThreads::Sums).read_bytes.is_some());
    }

    #[test]
    fn numbers_that_no_kernel_means_are_unknown() {
        let units = Units { tick_ns: 10_000_000, page_bytes: 4096 };
        let most = u64::MAX;
        let stat = Stat::parse(u32::MAX, &format!("7 (a) R{}", format!(" {}", most >> 1).repeat(45))).map(|_| ());
        assert!(stat.is_none(), "a parent of more than 32 bits");
        let text = format!("7 (a) R 3{}", format!(" {most}").repeat(45));
        let stats = || Stat::parse(u32::MAX, &text).unwrap();
        let summed = sum(&[stats(), stats()], &units, true, OfThreads::Sums);
        assert_eq!((summed.user_ns, summed.rss_bytes, summed.minor_faults), (None, None, None));
        let machine =
            Machine::of_texts(&units, &format!("cpu  {most}\nctxt 5\n"), &format!("pgpgin {most}\npgpgout 1\n"));
        assert_eq!((machine.user_ns, machine.context_switches, machine.pages_in_bytes), (None, Some(5), None));
        assert_eq!(machine.pages_out_bytes, Some(1024));
        assert!(disk(&format!("8 0 sda {}", format!("{most} ").repeat(17))).is_none());
        assert_eq!((pressure_of(&format!("some total={most}")), pressure_of("some total=2")), (None, Some(2000)));
    }

    #[test]
    fn tells_of_single_threads_what_each_did() {
        let (told, number) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let asleep = std::thread::spawn(move || {
            told.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = ended.recv();
        });
        let (thread, none) = (number.recv().unwrap(), u32::MAX);
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let look = || {
            let single_threads = vec![thread, own, none];
            let selection = Selection { threads: OfThreads::Nothing, single_threads, ..Selection::default() };
            read(&selection).unwrap()
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while look().single_threads[&thread].state != 'S' {
            assert!(std::time::Instant::now() < deadline, "it does not sleep");
        }
        let (before, after) = (look(), look());
        assert!(before.processes.is_none() && !before.single_threads.contains_key(&none));
        assert_eq!(before.single_threads[&thread], after.single_threads[&thread], "it slept all the while");
        assert!(after.single_threads[&own].state == 'R' && after.single_threads[&own].run_ns > Some(0), "{after:?}");
        assert_ne!(after.single_threads[&own].run_ns, after.single_threads[&thread].run_ns);
        assert!(after.single_threads[&thread].time_slices > Some(0), "{after:?}");
        drop(end);
        asleep.join().unwrap();
    }

    #[test]
    fn selects_whole_trees() {
        let stat = |pid, parent| Stat { pid, parent, fields: vec![] };
        let stats = || vec![stat(1, 0), stat(2, 1), stat(3, 2), stat(4, 1), stat(5, 3)];
        let mut pids: Vec<_> = descendants(2, stats()).unwrap().iter().map(|stat| stat.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [2, 3, 5]);
        assert_eq!(descendants(9, stats()).err().unwrap().code, Code::NotFound);
    }

    #[test]
    fn reads_disks_and_itself() {
        let (name, disk) = disk(" 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17").unwrap();
        assert_eq!((name.as_str(), disk.reads, disk.read_bytes, disk.written_bytes), ("vda", 1, 3 * 512, 7 * 512));
        assert_eq!((disk.read_ns, disk.write_ns, disk.io_ns), (4_000_000, 8_000_000, 10_000_000));
        assert_eq!((disk.queue_ns, disk.flushes, disk.flush_ns), (11_000_000, Some(16), Some(17_000_000)));
        let (_, old) = super::disk("8 0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15").unwrap();
        assert_eq!((old.queue_ns, old.flushes, old.flush_ns), (11_000_000, None, None));
        assert!(super::disk("8 1 sda1 1 2 3 4").is_none(), "a partition's line before Linux 2.6.25");
        let pids = || Some(vec![std::process::id()]);
        let selection = Selection { pids: pids(), threads: OfThreads::Each, machine: true, ..Selection::default() };
        let counters = read(&selection).unwrap();
        let processes = counters.processes.unwrap();
        assert_eq!(processes.count, 1);
        assert!(processes.minor_faults > Some(100) && processes.rss_bytes > Some(100_000), "{processes:?}");
        let each = processes.each.unwrap();
        let (name, waits) = each.iter().next().unwrap();
        assert!(name.starts_with(&format!("{} ", std::process::id())) && waits.run_ns > Some(0), "{each:?}");
        let machine = counters.machine.unwrap();
        assert!(machine.idle_ns > Some(0) && machine.context_switches > Some(0), "{machine:?}");
        assert!(processes.run_ns > Some(0) && processes.voluntary_switches.is_some());
        let brief =
            read(&Selection { pids: pids(), threads: OfThreads::Nothing, machine: false, ..selection }).unwrap();
        let of_processes = brief.processes.unwrap();
        assert!(brief.machine.is_none() && of_processes.run_ns.is_none() && of_processes.voluntary_switches.is_none());
        assert!(of_processes.minor_faults > Some(100) && of_processes.read_bytes == processes.read_bytes);
    }
}
