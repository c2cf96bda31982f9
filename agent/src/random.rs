//! Random choices that no later version may change: the same seed makes the same rows, inputs and schedules.
//!
//! xoshiro256++ (Blackman, Vigna: Scrambled Linear Pseudorandom Number Generators, ACM TOMS 47, 2021), its state filled
//! by `SplitMix64`, as its authors advise.

/// A stream of random numbers of its own for each list of `parts`.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    #[must_use]
    pub fn new(parts: &[u64]) -> Self {
        let mut seed = 0;
        for part in parts {
            seed = split_mix(&mut (seed ^ part));
        }
        let mut state = [0; 4];
        state.fill_with(|| split_mix(&mut seed));
        Self { state }
    }

    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// From 0 to `bound` - 1. The bias (below `bound` / 2^64) is of no account for any bound used here.
    pub fn below(&mut self, bound: u32) -> u32 {
        scaled(self.next_u64(), bound)
    }

    /// From `low` to `high`, both possible: the specifications' `random(x .. y)`.
    pub fn between(&mut self, low: i32, high: i32) -> i32 {
        low.wrapping_add_unsigned(self.below(high.abs_diff(low) + 1))
    }

    pub fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    /// In [0, 1).
    pub fn fraction(&mut self) -> f64 {
        const STEP: f64 = 1.0 / 9_007_199_254_740_992.0; // 2 to the power of -53
        #[expect(clippy::cast_precision_loss, reason = "53 bits are what a double holds")]
        let high_bits = (self.next_u64() >> 11) as f64;
        high_bits * STEP
    }

    /// Negative-exponential with that mean, in nanoseconds: inter-arrival and think times.
    pub fn exponential_ns(&mut self, mean_ns: f64) -> u64 {
        let drawn = -(1.0 - self.fraction()).ln() * mean_ns;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "finite and not negative")]
        {
            drawn as u64
        }
    }

    /// Fisher and Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(u32::try_from(last + 1).unwrap_or(u32::MAX)) as usize;
            items.swap(last, other);
        }
    }

    /// Appends `length` of `alphabet`; eight to a random number, whose last one still has 16 bits of it.
    pub fn letters(&mut self, alphabet: &[u8], length: usize, out: &mut Vec<u8>) {
        const IN_ONE: usize = 8;
        let size = u128::try_from(alphabet.len()).unwrap_or(1);
        let mut left = length;
        while left > 0 {
            let mut bits = self.next_u64();
            for _ in 0..left.min(IN_ONE) {
                let product = u128::from(bits) * size;
                #[expect(clippy::cast_possible_truncation, reason = "the high half is below the alphabet's size")]
                {
                    out.push(alphabet[(product >> 64) as usize]);
                    bits = product as u64;
                }
            }
            left -= left.min(IN_ONE);
        }
    }
}

fn scaled(bits: u64, bound: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the high half of the product is below the bound")]
    {
        ((u128::from(bits) * u128::from(bound)) >> 64) as u32
    }
}

fn split_mix(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *seed;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_generator() {
        // The first outputs of the reference implementation for the state 1, 2, 3, 4.
        let mut random = Random { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let numbers = |parts: &[u64]| -> Vec<u64> {
            let mut random = Random::new(parts);
            (0..8).map(|_| random.next_u64()).collect()
        };
        assert_eq!(numbers(&[1, 2]), numbers(&[1, 2]));
        assert_ne!(numbers(&[1, 2]), numbers(&[2, 1]));
        assert_ne!(numbers(&[1, 2]), numbers(&[1, 3]));
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut random = Random::new(&[7]);
        let mut seen = [0u32; 5];
        for _ in 0..5000 {
            seen[usize::try_from(random.between(-2, 2) + 2).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
        let mean = (0..20_000).map(|_| random.exponential_ns(1000.0)).sum::<u64>() / 20_000;
        assert!((960..1040).contains(&mean), "{mean}");
    }

    #[test]
    fn letters_are_all_used() {
        let mut text = Vec::new();
        Random::new(&[3]).letters(b"abc", 3000, &mut text);
        assert_eq!(text.len(), 3000);
        for letter in b"abc" {
            let others = text.split(|each| each == letter).count();
            assert!((880..1120).contains(&others), "{others}");
        }
    }
}
