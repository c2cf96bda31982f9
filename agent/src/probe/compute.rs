//! The processor: nothing here enters the kernel, so a difference is emulation, its caches, or somebody else's use of it.

use std::hint::black_box;

use super::{Made, Probe, Repeated, Request, Spent};
use crate::clock::now_ns;
use crate::failure::Failure;
use crate::random::Random;

/// Those up to 10 000, each tried by all numbers up to its root: an event is the whole search (sysbench cpu, `cpu-max-prime` 10000;
/// zhang2014 Figure 12).
pub fn primes(_: &Request) -> Made {
    Ok(Box::new(Repeated(|| {
        let mut found = 0_u64;
        for candidate in 3_u64..black_box(10_000) {
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            let root = (candidate as f64).sqrt();
            let mut divisor = 2_u64;
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            while divisor as f64 <= root && candidate % divisor != 0 {
                divisor += 1;
            }
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            {
                found += u64::from(divisor as f64 > root);
            }
        }
        black_box(found);
        Ok(())
    })))
}

/// What one event of the short ones does in a row, so that the loop around it does not matter.
const STEPS: u64 = 1000;

/// Additions, shifts and multiplications of integers, each of which needs the last one's result: an event is a thousand of each.
pub fn arithmetic(_: &Request) -> Made {
    let mut value = 1_u64;
    Ok(Box::new(Repeated(move || {
        for step in 0..STEPS {
            value = (value ^ (value >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(step);
        }
        value = black_box(value);
        Ok(())
    })))
}

/// Additions and multiplications of doubles, each of which needs the last one's result: an event is a thousand of each.
pub fn floating_point(_: &Request) -> Made {
    let mut value = 1.0_f64;
    Ok(Box::new(Repeated(move || {
        for _ in 0..STEPS {
            value = value * 0.999_999 + 0.5;
        }
        value = black_box(value);
        Ok(())
    })))
}

/// Branches that nobody can foretell: an event is a thousand.
pub fn branches(_: &Request) -> Made {
    let mut random = Random::new(&[1]);
    let bits: Vec<u64> = (0..4096).map(|_| random.next_u64()).collect();
    let (mut at, mut left, mut right) = (0, 0_u64, 1_u64);
    Ok(Box::new(Repeated(move || {
        for step in 0..STEPS {
            at = (at + 1) % bits.len();
            if bits[at] & 1 == 0 {
                left = black_box(left.wrapping_add(step));
            } else {
                right = black_box(right ^ left);
            }
        }
        Ok(())
    })))
}

/// Calls of one of many functions through a pointer, as an executor calls the next node of a plan or the next operator of an
/// expression: an event is a thousand.
pub fn indirect_calls(_: &Request) -> Made {
    const FUNCTIONS: [fn(u64, u64) -> u64; 8] = [
        |a, b| a.wrapping_add(b),
        |a, b| a ^ b,
        |a, b| a.wrapping_sub(b),
        |a, b| a.rotate_left(7) | b,
        |a, b| a.min(b),
        |a, b| a.max(b),
        |a, b| a.wrapping_mul(b | 1),
        |a, b| a & !b,
    ];
    let mut random = Random::new(&[2]);
    let program: Vec<fn(u64, u64) -> u64> = (0..512).map(|_| FUNCTIONS[random.below(8) as usize]).collect();
    let mut value = 1;
    let mut at = 0;
    Ok(Box::new(Repeated(move || {
        for step in 0..STEPS {
            at = (at + 1) % program.len();
            value = black_box(program[at])(value, step);
        }
        value = black_box(value);
        Ok(())
    })))
}

/// A thousand look-ups in random places of an array of so many bytes, none of which waits for another (zhang2014 Figure 13).
struct Lookups {
    array: Vec<u32>,
    random: Random,
}

impl Probe for Lookups {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let bound = u32::try_from(self.array.len()).unwrap_or(u32::MAX);
        let begin_ns = now_ns();
        let mut sum = 0_u32;
        for _ in 0..events * STEPS {
            sum = sum.wrapping_add(self.array[self.random.below(bound) as usize]);
        }
        black_box(sum);
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}

fn lookups(bytes: usize) -> Lookups {
    let entries = u32::try_from(bytes / size_of::<u32>()).unwrap_or(u32::MAX);
    Lookups { array: (0..entries).collect(), random: Random::new(&[3]) }
}

pub fn lookups_60k(_: &Request) -> Made {
    Ok(Box::new(lookups(60_000)))
}

pub fn lookups_200k(_: &Request) -> Made {
    Ok(Box::new(lookups(200_000)))
}

pub fn lookups_4m(_: &Request) -> Made {
    Ok(Box::new(lookups(4_000_000)))
}

pub fn lookups_40m(_: &Request) -> Made {
    Ok(Box::new(lookups(40_000_000)))
}
