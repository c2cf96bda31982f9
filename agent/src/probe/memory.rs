//! Memory: how long one access takes with small and with huge pages, and how much passes in a time.

use std::fs;
use std::hint::black_box;

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
    Ok(Box::new(Chase::on(Pages::Small)?))
}

/// The same with pages of 2 MiB: what `chase_4k_pages` takes longer is translation.
pub fn chase_2m_pages(_: &Request) -> Made {
    Ok(Box::new(Chase::on(Pages::Huge)?))
}

/// What a processor translates addresses by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pages {
    Small,
    Huge,
}

/// Memory for so many, filled with them, on pages of that kind; refused where the kernel gives none.
pub fn room<T>(count: usize, pages: Pages, filling: impl Iterator<Item = T>) -> Result<Vec<T>, Failure> {
    const PAGE: usize = 4096;
    let mut memory = Vec::with_capacity(count);
    let start = memory.as_ptr() as usize;
    let (first, end) = (start.next_multiple_of(PAGE), (start + count * size_of::<T>()) / PAGE * PAGE);
    let advice = if pages == Pages::Huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: whole pages within memory that the vector has for itself; the advice changes nothing of what they hold.
    let told = unsafe { libc::madvise(first as *mut libc::c_void, end - first, advice) };
    if told != 0 && pages == Pages::Huge {
        return Err(unsupported(NO_HUGE_PAGES)); // small ones need no telling there
    }
    memory.extend(filling);
    if pages == Pages::Huge && huge_bytes() < (end - first) as u64 / 2 {
        return Err(unsupported(NONE_GIVEN));
    }
    Ok(memory)
}

const NO_HUGE_PAGES: &str = "this kernel has no transparent huge pages";
const NONE_GIVEN: &str = "the kernel gave no huge pages";

/// Of this process, by `/proc/self/smaps_rollup`.
fn huge_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

struct Chase {
    /// A cache line of each place, which begins with the number of the next.
    places: Vec<[u32; LINE_BYTES / 4]>,
    at: usize,
}

impl Chase {
    /// One circle through all places (Sattolo's).
    fn on(pages: Pages) -> Result<Self, Failure> {
        let mut order: Vec<u32> = (0..u32::try_from(PLACES).unwrap_or(u32::MAX)).collect();
        let mut random = Random::new(&[4]);
        for last in (1..order.len()).rev() {
            let other = random.below(u32::try_from(last).unwrap_or(u32::MAX)) as usize;
            order.swap(last, other);
        }
        let places = room(PLACES, pages, order.into_iter().map(|next| [next; LINE_BYTES / 4]))?;
        Ok(Self { places, at: 0 })
    }
}

impl Probe for Chase {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let begin_ns = now_ns();
        let mut at = self.at;
        for _ in 0..events {
            at = self.places[at][0] as usize;
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
