//! Micro-probes: what one event of the kernel, of memory or of the processor costs in this machine (docs/method/probes.md).
//!
//! Each runs in a process of its own (`dbtoll-agent probe REQUEST`), in batches of as many events as take about `batch_ns`. A batch is
//! timed as a whole, so what the clock costs and the step in which it advances are spread over all its events.

#![expect(
    clippy::unnecessary_wraps,
    reason = "probes are made by functions of one type, whether or not making one can fail"
)]

mod calls;
mod clocks;
mod compute;
mod decimals;
mod executor;
mod memory;
mod pages;
mod processes;
mod sockets;
mod storage;

pub(crate) use pages::Mapping;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::clock::{now_ns, process_cpu_ns};
use crate::collect::perf::{Recording, SAMPLE};
use crate::collect::samples::{PERIOD_NS, Samples, Spread};
use crate::failure::{Code, Failure};

const INSTANCES_MAX: u32 = 256;
const BATCHES_MAX: u32 = 10_000;
const BATCH_MAX_NS: u64 = 60_000_000_000;

/// Events of a batch that begin with cold caches: each is timed by itself.
const COLD_EVENTS: u64 = 16;
/// What is gone over before each of them: more than the caches that a core has for itself.
const WALKED_BYTES: usize = 8 << 20;
/// What is done after each of them, some 300 us that need no memory: a monitor or a sandbox goes on to work on an event after it is over.
const STEPS_AFTER: u64 = 200_000;

/// What is to be probed, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub probe: String,
    /// Where files are made that are probed; they are removed again.
    #[serde(default = "temporary")]
    pub folder: PathBuf,
    #[serde(default = "batches")]
    pub batches: u32,
    #[serde(default = "batch_ns")]
    pub batch_ns: u64,
    /// Before each event as much memory is gone over as evicts it from the core's caches: what an event costs in the midst of other work.
    #[serde(default)]
    pub cold: bool,
    /// How many processes do it at once.
    #[serde(default = "one")]
    pub instances: u32,
    /// So many in a batch, whatever they take: what is counted by others is known then.
    #[serde(default)]
    pub events: Option<u64>,
    /// Afterwards it goes on for a while and looks up where it is (`collect::samples`); one instance only.
    #[serde(default)]
    pub samples: bool,
    /// Says on standard output when it is ready and waits for a line before it begins: how instances begin together.
    #[serde(default)]
    pub waits: bool,
}

fn temporary() -> PathBuf {
    "/tmp".into()
}

fn batches() -> u32 {
    20
}

fn batch_ns() -> u64 {
    10_000_000
}

fn one() -> u32 {
    1
}

/// Events and what they took; of a cold batch that is a difference, which noise may take below zero. `cpu_ns` of the probing process
/// alone, not of others that it has to do with.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Batch {
    pub events: u64,
    pub elapsed_ns: i64,
    pub cpu_ns: u64,
}

/// What was found: batches of all instances, or why there are none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    Batches(Vec<Batch>),
    Unsupported(String),
}

/// With the time between which it was looked for, by the clock of this machine.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    start_ns: u64,
    end_ns: u64,
    #[serde(flatten)]
    found: Found,
    /// Where that was asked for and this kernel tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    samples: Option<Spread>,
}

/// What some events took, ns, without what had to be prepared for them.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    pub events: u64,
    pub elapsed_ns: u64,
}

pub trait Probe {
    /// About so many events, one after the other.
    fn run(&mut self, events: u64) -> Result<Spent, Failure>;

    /// How many of them at least come together.
    fn in_a_row(&self) -> u64 {
        1
    }
}

/// A probe whose events are all there is to it.
pub struct Repeated<F>(pub F);

impl<F: FnMut() -> Result<(), Failure>> Probe for Repeated<F> {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let begin_ns = now_ns();
        for _ in 0..events {
            (self.0)()?;
        }
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}

type Made = Result<Box<dyn Probe>, Failure>;

type Make = fn(&Request) -> Made;

/// Every probe: its name, and how it is made.
const PROBES: &[(&str, Make)] = &[
    ("nothing", calls::nothing),
    ("system_call", calls::system_call),
    ("system_call_read", calls::read),
    ("system_call_write", calls::write),
    ("system_call_stat", calls::stat),
    ("system_call_seek", calls::seek),
    ("open_file", calls::open),
    ("signal", calls::signal),
    ("clock_read", clocks::clock_read),
    ("timer_set", clocks::timer_set),
    ("timer_wakeup", clocks::timer_wakeup),
    ("fault_anonymous", pages::fault_anonymous),
    ("fault_file", pages::fault_file),
    ("fault_shared", pages::fault_shared),
    ("fault_shared_read", pages::fault_shared_read),
    ("fault_shared_around", pages::fault_shared_around),
    ("fault_copy", pages::fault_copy),
    ("unmap_page", pages::unmap_page),
    ("tlb_shootdown", pages::tlb_shootdown),
    ("fork", processes::fork),
    ("exec", processes::exec),
    ("switch_pipe", processes::switch_pipe),
    ("switch_futex", processes::switch_futex),
    ("round_trip_unix", sockets::unix),
    ("round_trip_tcp", sockets::tcp),
    ("fsync", storage::fsync),
    ("read_sequential_direct", storage::read_sequential_direct),
    ("read_random_direct", storage::read_random_direct),
    ("write_sequential_direct", storage::write_sequential_direct),
    ("write_random_direct", storage::write_random_direct),
    ("read_sequential_buffered", storage::read_sequential_buffered),
    ("read_random_buffered", storage::read_random_buffered),
    ("write_sequential_buffered", storage::write_sequential_buffered),
    ("write_random_buffered", storage::write_random_buffered),
    ("write_appended_buffered", storage::write_appended_buffered),
    ("read_sequential_uncached", storage::read_sequential_uncached),
    ("read_random_uncached", storage::read_random_uncached),
    ("primes", compute::primes),
    ("arithmetic", compute::arithmetic),
    ("floating_point", compute::floating_point),
    ("branches", compute::branches),
    ("indirect_calls", compute::indirect_calls),
    ("rows", executor::rows),
    ("descents", executor::descents),
    ("descents_cached", executor::descents_cached),
    ("descents_2m_pages", executor::descents_2m_pages),
    ("joins", executor::joins),
    ("joins_cached", executor::joins_cached),
    ("joins_2m_pages", executor::joins_2m_pages),
    ("sorts", executor::sorts),
    ("decimals", decimals::decimals),
    ("code", executor::code),
    ("lookups_60k", compute::lookups_60k),
    ("lookups_200k", compute::lookups_200k),
    ("lookups_4m", compute::lookups_4m),
    ("lookups_40m", compute::lookups_40m),
    ("chase_4k_pages", memory::chase_4k_pages),
    ("chase_2m_pages", memory::chase_2m_pages),
    ("memory_read", memory::read),
    ("memory_copy", memory::copy),
];

/// The names of all probes.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROBES.iter().map(|(name, _)| *name)
}

/// Runs one, given as JSON; prints what was found, as JSON.
pub fn run(request: &str) -> Result<(), String> {
    let request: Request = serde_json::from_str(request).map_err(|error| format!("probe: {error}"))?;
    let start_ns = now_ns();
    let (found, samples) = match find(&request) {
        Ok((batches, samples)) => (Found::Batches(batches), samples),
        Err(failure) if failure.code == Code::Refused => (Found::Unsupported(failure.message), None),
        Err(failure) => return Err(format!("probe {}: {}", request.probe, failure.message)),
    };
    let report = Report { start_ns, end_ns: now_ns(), found, samples };
    println!("{}", serde_json::to_string(&report).map_err(|error| error.to_string())?);
    Ok(())
}

fn find(request: &Request) -> Result<(Vec<Batch>, Option<Spread>), Failure> {
    let is_whole = (1..=INSTANCES_MAX).contains(&request.instances)
        && (1..=BATCHES_MAX).contains(&request.batches)
        && (1..=BATCH_MAX_NS).contains(&request.batch_ns)
        && request.folder.is_absolute();
    if !is_whole {
        return Err(Failure::bad_request(format!(
            "1 to {INSTANCES_MAX} instances, 1 to {BATCHES_MAX} batches of up to {BATCH_MAX_NS} ns, an absolute folder"
        )));
    }
    if request.instances > 1 { Ok((together(request)?, None)) } else { alone(request) }
}

/// A failure that says why this cannot be probed here.
fn unsupported(why: impl Into<String>) -> Failure {
    Failure::new(Code::Refused, why)
}

fn make(request: &Request, name: &str) -> Made {
    let (_, make) = PROBES.iter().find(|(known, _)| *known == name).ok_or_else(|| {
        Failure::bad_request(format!("no probe {name:?}; there are {}", names().collect::<Vec<_>>().join(", ")))
    })?;
    make(request)
}

fn alone(request: &Request) -> Result<(Vec<Batch>, Option<Spread>), Failure> {
    let mut probe = make(request, &request.probe)?;
    if request.cold {
        wait_for_the_others(request)?;
        let mut nothing = make(request, "nothing")?;
        let mut memory = vec![1_u8; WALKED_BYTES];
        let batches = (0..request.batches).map(|_| cold_batch(&mut *probe, &mut *nothing, &mut memory));
        return Ok((batches.collect::<Result<_, _>>()?, None));
    }
    let events = match request.events {
        Some(events) => events,
        None => events_in(&mut *probe, request.batch_ns)?,
    };
    wait_for_the_others(request)?;
    let batches = (0..request.batches).map(|_| {
        let begin_ns = process_cpu_ns();
        let Spent { events, elapsed_ns } = probe.run(events)?;
        Ok(Batch { events, elapsed_ns: signed(elapsed_ns), cpu_ns: process_cpu_ns() - begin_ns })
    });
    let batches = batches.collect::<Result<_, Failure>>()?;
    Ok((batches, if request.samples { looked_up(&mut *probe, events)? } else { None }))
}

/// Over what the probe's time is spread; None where the kernel does not tell.
fn looked_up(probe: &mut dyn Probe, events: u64) -> Result<Option<Spread>, Failure> {
    /// Enough for code that is executed once: some ten samples for each KiB of it.
    const LONG_NS: u64 = 300_000_000;
    let Ok(mut recording) = Recording::of_this_thread(PERIOD_NS) else { return Ok(None) };
    let (mut samples, mut records) = (Samples::default(), Vec::new());
    let begin_ns = now_ns();
    while now_ns() - begin_ns < LONG_NS {
        probe.run(events)?;
        recording.take(&mut records);
        let found = records.drain(..).filter(|record| record.kind == SAMPLE);
        found.for_each(|record| samples.add(record.sample().instruction));
    }
    Ok(Some(samples.spread()))
}

/// How many events take about so long; what a batch needs is warm afterwards.
fn events_in(probe: &mut dyn Probe, batch_ns: u64) -> Result<u64, Failure> {
    let mut events = probe.in_a_row();
    loop {
        let elapsed_ns = probe.run(events)?.elapsed_ns.max(1);
        if elapsed_ns >= batch_ns / 2 {
            let fitting = u128::from(events) * u128::from(batch_ns) / u128::from(elapsed_ns);
            return Ok(u64::try_from(fitting).unwrap_or(events).max(probe.in_a_row()));
        }
        events *= 2;
    }
}

/// Each event by itself, after its things have been evicted, and what it delays afterwards. What the same takes without an event is
/// taken off; of both the mean without the extremes, since not every event delays what follows.
fn cold_batch(probe: &mut dyn Probe, nothing: &mut dyn Probe, memory: &mut [u8]) -> Result<Batch, Failure> {
    let begin_ns = process_cpu_ns();
    let (mut events, mut with_ns, mut without_ns) = (0, Vec::new(), Vec::new());
    for _ in 0..COLD_EVENTS {
        walk(memory);
        without_ns.push(nothing.run(1)?.elapsed_ns + steps_ns());
        walk(memory);
        let spent = probe.run(probe.in_a_row())?;
        events += spent.events;
        with_ns.push(spent.elapsed_ns + steps_ns());
    }
    // As it comes out: were what is below zero taken for zero, or left out, an event that costs little would seem to cost what the
    // noise is.
    let elapsed_ns = signed(trimmed_sum(&mut with_ns)) - signed(trimmed_sum(&mut without_ns));
    // BIAS: the CPU time holds the walks; it is not used.
    Ok(Batch { events, elapsed_ns, cpu_ns: process_cpu_ns() - begin_ns })
}

/// What all would be together if each were the mean of those between the lowest and the highest eighth.
fn trimmed_sum(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    let extremes = values.len() / 8;
    let kept = &values[extremes..values.len() - extremes];
    kept.iter().sum::<u64>() * values.len() as u64 / (kept.len() as u64).max(1)
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

fn steps_ns() -> u64 {
    let begin_ns = now_ns();
    let number = (0..STEPS_AFTER).fold(begin_ns, |number, step| number.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ step);
    std::hint::black_box(number);
    now_ns() - begin_ns
}

fn walk(memory: &mut [u8]) {
    for place in (0..memory.len()).step_by(64) {
        memory[place] = memory[place].wrapping_add(1);
    }
    std::hint::black_box(memory);
}

// --- several at once -------------------------------------------------------------------------------------------------

const READY: &str = "ready";

fn wait_for_the_others(request: &Request) -> Result<(), Failure> {
    if !request.waits {
        return Ok(());
    }
    println!("{READY}");
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).map_err(|error| Failure::io("read", error))?;
    if read == 0 { Err(Failure::cancelled()) } else { Ok(()) }
}

/// Processes of this program, each with the whole request; they begin when the last of them is ready.
fn together(request: &Request) -> Result<Vec<Batch>, Failure> {
    let one = Request { instances: 1, waits: true, ..request.clone() };
    let one = serde_json::to_string(&one).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let mut instances = Instances(Vec::new());
    for _ in 0..request.instances {
        let mut command = Command::new("/proc/self/exe");
        command.args(["probe", &one]).stdin(Stdio::piped()).stdout(Stdio::piped());
        instances.0.push(command.spawn().map_err(|error| Failure::io("fork", error))?);
    }
    let mut outputs = Vec::new();
    for child in &mut instances.0 {
        let Some(output) = child.stdout.take() else { continue };
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).map_err(|error| Failure::io("read", error))?;
        if line.trim() != READY {
            // It has said why instead.
            return match serde_json::from_str(&line) {
                Ok(Report { found: Found::Unsupported(why), .. }) => Err(unsupported(why)),
                _ => Err(Failure::new(Code::Internal, "an instance ended before it was ready")),
            };
        }
        outputs.push(output);
    }
    for child in &mut instances.0 {
        if let Some(input) = &mut child.stdin {
            input.write_all(b"\n").map_err(|error| Failure::io("write", error))?;
        }
    }
    let mut batches = Vec::new();
    for mut output in outputs {
        let mut text = String::new();
        output.read_to_string(&mut text).map_err(|error| Failure::io("read", error))?;
        match serde_json::from_str(&text) {
            Ok(Report { found: Found::Batches(found), .. }) => batches.extend(found),
            _ => return Err(Failure::new(Code::Internal, "an instance ended without a result")),
        }
    }
    Ok(batches)
}

/// Ended when dropped.
struct Instances(Vec<Child>);

impl Drop for Instances {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(probe: &str) -> Request {
        Request {
            probe: probe.to_owned(),
            folder: std::env::temp_dir(),
            batches: 2,
            batch_ns: 200_000,
            cold: false,
            instances: 1,
            events: None,
            samples: false,
            waits: false,
        }
    }

    #[test]
    fn every_probe_finds_something_or_says_why_not() {
        for name in names() {
            // These fork or send signals: only in a process of their own (tests/probe.rs).
            if ["signal", "fork", "exec", "fault_copy", "switch_pipe", "round_trip_unix", "round_trip_tcp"]
                .contains(&name)
            {
                continue;
            }
            match find(&request(name)) {
                Ok((batches, _)) => assert!(batches.iter().all(|batch| batch.events > 0), "{name}: {batches:?}"),
                Err(failure) => assert!(failure.code == Code::Refused, "{name}: {failure}"),
            }
        }
    }

    #[test]
    fn what_is_asked_must_make_sense() {
        for wrong in [
            Request { batches: 0, ..request("nothing") },
            Request { instances: 0, ..request("nothing") },
            Request { folder: "tmp".into(), ..request("nothing") },
            Request { probe: "no_such".into(), ..request("nothing") },
        ] {
            assert_eq!(find(&wrong).unwrap_err().code, Code::BadRequest);
        }
    }

    #[test]
    fn a_cold_event_costs_more_than_a_warm_one() {
        let cost = |cold: bool| {
            let asked = Request { cold, batches: 11, batch_ns: 200_000, ..request("open_file") };
            let (batches, _) = find(&asked).unwrap();
            let mut costs: Vec<_> = batches.iter().map(|batch| batch.elapsed_ns / signed(batch.events)).collect();
            costs.sort_unstable();
            costs[costs.len() / 2]
        };
        // Other tests come and go: each kind is held against what came right before it.
        let dearer = (0..21).filter(|_| cost(true) > cost(false)).count();
        assert!(dearer > 10, "in {dearer} of 21");
    }

    #[test]
    fn a_cold_cost_that_is_less_than_the_noise_comes_out_on_either_side_of_zero() {
        let (batches, _) = find(&Request { cold: true, batches: 40, ..request("nothing") }).unwrap();
        for side in [1, -1] {
            assert!(batches.iter().any(|batch| batch.elapsed_ns.signum() == side), "{batches:?}");
        }
    }
}
