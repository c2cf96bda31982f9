//! Where a process, and all that it starts, is when it is in user mode, looked up by the clock; of that only, over how many instructions
//! its time is spread (docs/method/user-mode.md). An emulator pays for each instruction and not for what the processor waits for, and
//! where it waits the time piles up on few of them.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::faults::processes_of;
use super::perf::{self, FORK, Record, Recording, SAMPLE, u32_at};

/// Also of what a probe looks up of itself.
pub const PERIOD_NS: u64 = 20_000;
/// Of code that is taken together: most of a function, and little else.
const BLOCK_BYTES: u64 = 1024;

/// How often each instruction was met, by block.
#[derive(Default)]
pub struct Samples(HashMap<u64, HashMap<u64, u64>>);

/// `instructions`: over how many of a block they are spread evenly, the geometric mean over all samples. None without samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub samples: u64,
    pub instructions: Option<f64>,
}

impl Samples {
    pub fn add(&mut self, instruction: u64) {
        *self.0.entry(instruction / BLOCK_BYTES).or_default().entry(instruction).or_default() += 1;
    }

    /// Of each block the inverse of the chance that two samples meet the same instruction, which does not depend on how many samples
    /// there are (Simpson 1949, "Measurement of diversity"). BIAS: a block of few samples seems narrower than it is.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer samples than 2^52")]
    pub fn spread(&self) -> Spread {
        let (mut samples, mut sum) = (0, 0.0);
        for block in self.0.values() {
            let met: u64 = block.values().sum();
            let same: u64 = block.values().map(|times| times * (times - 1)).sum();
            let pairs = met * (met - 1);
            samples += met;
            // One pair at least, or nobody knows.
            sum += met as f64 * (pairs as f64 / same.max(2) as f64).max(1.0).ln();
        }
        Spread { samples, instructions: (samples > 0).then(|| (sum / samples as f64).exp()) }
    }
}

/// Says `{"ready": true}` when it looks, and what it found when it is told to end (SIGTERM).
pub fn run(pid: &str) -> Result<(), String> {
    let pid = super::number_of_process(pid)?;
    let over = super::told_to_end();
    let recordings =
        Recording::by_clock(PERIOD_NS).map_err(|error| format!("where processes are is not told here: {error}"))?;
    let processes: HashSet<u32> = processes_of(pid).into_iter().collect();
    if processes.is_empty() {
        return Err(format!("no process {pid}"));
    }
    super::say_ready()?;
    let records = perf::record(recordings, &over).map_err(|error| error.to_string())?;
    super::tell(&spread_of(&records, processes))
}

/// Of those processes, and of what they start.
fn spread_of(records: &[Record], mut processes: HashSet<u32>) -> Spread {
    let mut samples = Samples::default();
    for record in records {
        match record.kind {
            SAMPLE => {
                let sample = record.sample();
                if processes.contains(&sample.process) {
                    samples.add(sample.instruction);
                }
            }
            // Process and parent.
            FORK if processes.contains(&u32_at(&record.body, 4)) => {
                processes.insert(u32_at(&record.body, 0));
            }
            _ => {}
        }
    }
    samples.spread()
}

pub(crate) fn read_records(records: &[Record]) {
    let _ = spread_of(records, HashSet::from([0]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(met: &[(u64, u64)]) -> Spread {
        let mut samples = Samples::default();
        for &(instruction, times) in met {
            (0..times).for_each(|_| samples.add(instruction));
        }
        samples.spread()
    }

    #[test]
    fn time_is_spread_over_as_many_instructions_as_share_it() {
        let even: Vec<_> = (0..10).map(|number| (4096 + 4 * number, 1000)).collect();
        let found = spread(&even);
        assert_eq!(found.samples, 10_000);
        assert!((found.instructions.unwrap() - 10.0).abs() < 0.01, "{found:?}");
        // Half of it in another block, on one instruction.
        let waits = spread(&[&even[..], &[(1 << 20, 10_000)]].concat());
        assert!((waits.instructions.unwrap() - 10.0_f64.sqrt()).abs() < 0.01, "{waits:?}");
        assert_eq!(spread(&[]), Spread { samples: 0, instructions: None });
        assert_eq!(spread(&[(1, 1), (2, 1)]), Spread { samples: 2, instructions: Some(1.0) });
    }
}
