//! Memory: how long one access takes with small and with huge pages, and how much passes in a time.

use std::fs;
use std::hint::black_box;

use super::pages::Mapping;
use super::{Made, Probe, Request, Spent, unsupported};
use crate::clock::now_ns;
use crate::failure::Failure;
use crate::random::Random;

const CHASED_BYTES: usize = 64 << 20;
const LINE_BYTES: usize = 64;
const PLACES: usize = CHASED_BYTES / LINE_BYTES;

/// From one place to the next that it names, all over 64 MiB in random order: an event is one access, which has to wait for the last
/// (lmbench: `lat_mem_rd`). With small pages nearly every one misses the translation cache too.
pub fn chase_4k_pages(_: &Request) -> Made {
    let memory = mapped()?;
    let _ = memory.advise(libc::MADV_NOHUGEPAGE); // a kernel without huge pages needs no telling
    Ok(Box::new(Chase::through(memory)))
}

/// The same with pages of 2 MiB: what `chase_4k_pages` takes longer is translation.
pub fn chase_2m_pages(_: &Request) -> Made {
    let memory = mapped()?;
    memory.advise(libc::MADV_HUGEPAGE).map_err(|_| unsupported("this kernel has no transparent huge pages"))?;
    let chase = Chase::through(memory);
    // The kernel gives them where it finds some.
    if huge_bytes() < (CHASED_BYTES / 2) as u64 {
        return Err(unsupported("the kernel gave no huge pages"));
    }
    Ok(Box::new(chase))
}

fn mapped() -> Result<Mapping, Failure> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    Mapping::new(CHASED_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, None)
}

/// Of this process, by `/proc/self/smaps_rollup`.
fn huge_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

struct Chase {
    memory: Mapping,
    at: usize,
}

impl Chase {
    /// Fills it with one circle through all places (Sattolo's).
    fn through(mut memory: Mapping) -> Self {
        let mut order: Vec<u32> = (0..u32::try_from(PLACES).unwrap_or(u32::MAX)).collect();
        let mut random = Random::new(&[4]);
        for last in (1..order.len()).rev() {
            let other = random.below(u32::try_from(last).unwrap_or(u32::MAX)) as usize;
            order.swap(last, other);
        }
        let bytes = memory.bytes_mut();
        for (place, next) in order.iter().enumerate() {
            bytes[place * LINE_BYTES..][..4].copy_from_slice(&next.to_ne_bytes());
        }
        Self { memory, at: 0 }
    }
}

impl Probe for Chase {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let bytes = self.memory.bytes_mut();
        let begin_ns = now_ns();
        let mut at = self.at;
        for _ in 0..events {
            let mut next = [0; 4];
            next.copy_from_slice(&bytes[at * LINE_BYTES..][..4]);
            at = u32::from_ne_bytes(next) as usize;
        }
        self.at = black_box(at);
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}

/// 64 MiB read from one end to the other: an event is a cache line.
pub fn read(_: &Request) -> Made {
    Ok(Box::new(Passing { from: vec![1; CHASED_BYTES / 8], to: Vec::new(), at: 0 }))
}

/// The same copied to other 64 MiB.
pub fn copy(_: &Request) -> Made {
    Ok(Box::new(Passing { from: vec![1; CHASED_BYTES / 8], to: vec![1; CHASED_BYTES / 8], at: 0 }))
}

/// Reads, or copies where there is somewhere to copy to.
struct Passing {
    from: Vec<u64>,
    to: Vec<u64>,
    at: usize,
}

impl Probe for Passing {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        const WORDS: usize = LINE_BYTES / 8;
        let mut left = usize::try_from(events).unwrap_or(usize::MAX) * WORDS;
        let begin_ns = now_ns();
        while left > 0 {
            let words = left.min(self.from.len() - self.at);
            let from = &self.from[self.at..self.at + words];
            if self.to.is_empty() {
                black_box(from.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
            } else {
                self.to[self.at..self.at + words].copy_from_slice(from);
                black_box(&mut self.to);
            }
            self.at = (self.at + words) % self.from.len();
            left -= words;
        }
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}
