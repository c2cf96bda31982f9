//! What a database's executor does most of its time, in small: none of these enters the kernel, each has its own mix of instructions and
//! of memory that is not in the caches, so that together they tell what both cost in a machine.

#![expect(
    clippy::cast_possible_truncation,
    reason = "keys, places and digits of tables whose sizes are constants here, far below 2^32"
)]

use std::cmp::Ordering;
use std::hint::black_box;

use super::memory::{Pages, room};
use super::{Made, Probe, Repeated, Request, Spent};
use crate::clock::now_ns;
use crate::failure::Failure;
use crate::random::Random;

/// What one event does in a row, so that the loop around it does not matter.
const STEPS: u64 = 1000;

/// What an executor does with a row: finds its columns one after the other, each as long as it says itself, compares two of them by
/// functions that it reaches through pointers, looks its group up by the hash of a text, and adds up a decimal number digit group by
/// digit group (base 10 000, as PostgreSQL's `numeric`): an event is a thousand rows.
pub fn rows(_: &Request) -> Made {
    let mut table = Table::new();
    Ok(Box::new(Repeated(move || {
        table.pass();
        Ok(())
    })))
}

const ROWS: usize = 4096;
const GROUPS: usize = 256;
const DIGITS: usize = 6;
const DIGIT_BASE: u32 = 10_000;

type Compare = fn(&[u8], &[u8]) -> bool;

struct Table {
    /// Rows one after the other: of each column its length in a byte, then its bytes.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    groups: Vec<Group>,
    filters: [(usize, Compare, Vec<u8>); 2],
    at: usize,
}

#[derive(Clone, Default)]
struct Group {
    key: Vec<u8>,
    count: u64,
    sum: [u32; DIGITS],
}

impl Table {
    fn new() -> Self {
        let mut random = Random::new(&[5]);
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for row in 0..ROWS {
            starts.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            let name = format!("group#{:06}", random.below(GROUPS as u32 / 2));
            let comment = "x".repeat(10 + random.below(30) as usize);
            let price: Vec<u8> = (0..3).flat_map(|_| (random.below(DIGIT_BASE) as u16).to_le_bytes()).collect();
            let date = random.below(2500).to_be_bytes();
            let columns: [&[u8]; 5] = [&(row as u64).to_be_bytes(), &date, name.as_bytes(), comment.as_bytes(), &price];
            for column in columns {
                bytes.push(u8::try_from(column.len()).unwrap_or(u8::MAX));
                bytes.extend_from_slice(column);
            }
        }
        let filters: [(usize, Compare, Vec<u8>); 2] = [
            (1, |value, bound| value <= bound, 2300_u32.to_be_bytes().to_vec()),
            (3, |value, bound| value.len() >= bound.len(), vec![0; 12]),
        ];
        Self { bytes, starts, groups: vec![Group::default(); GROUPS], filters, at: 0 }
    }

    /// A thousand rows further on.
    fn pass(&mut self) {
        for _ in 0..STEPS {
            self.at = (self.at + 1) % ROWS;
            let mut columns: [&[u8]; 5] = [&[]; 5];
            let mut rest = &self.bytes[self.starts[self.at] as usize..];
            for column in &mut columns {
                let (length, behind) = (usize::from(rest[0]), &rest[1..]);
                *column = &behind[..length];
                rest = &behind[length..];
            }
            if self.filters.iter().all(|(column, compare, bound)| black_box(*compare)(columns[*column], bound)) {
                let group = Self::find(&mut self.groups, columns[2]);
                group.count += 1;
                let mut carry = 0;
                for (place, digit) in group.sum.iter_mut().enumerate() {
                    let added =
                        columns[4].get(2 * place..2 * place + 2).map_or(0, |d| u32::from(d[0]) | u32::from(d[1]) << 8);
                    let sum = *digit + added + carry;
                    carry = sum / DIGIT_BASE;
                    *digit = sum % DIGIT_BASE;
                }
            }
        }
        black_box(&mut self.groups);
    }

    /// The group of a key, new if there is none: open addressing.
    fn find<'a>(groups: &'a mut [Group], key: &[u8]) -> &'a mut Group {
        let hash = key
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let mut place = (hash >> 20) as usize % GROUPS;
        while !groups[place].key.is_empty() && groups[place].key != key {
            place = (place + 1) % GROUPS;
        }
        let group = &mut groups[place];
        if group.key.is_empty() {
            group.key = key.to_vec();
        }
        group
    }
}

/// Descents from the root of a tree to the leaf of a random key, by binary search in each page with a comparison that is called through a
/// pointer, as in an index: an event is a thousand. The pages have 8 KiB, the leaves 16 MiB together.
pub fn descents(_: &Request) -> Made {
    Ok(Box::new(Tree::new(LEAVES, Pages::Small)?))
}

/// The same in the same tree, but to a few leaves that stay in the caches: the same instructions.
pub fn descents_cached(_: &Request) -> Made {
    Ok(Box::new(Tree::new(CACHED_LEAVES, Pages::Small)?))
}

/// To all leaves again, in memory of huge pages: the caches are missed as often, the translation cache is not.
pub fn descents_2m_pages(_: &Request) -> Made {
    Ok(Box::new(Tree::new(LEAVES, Pages::Huge)?))
}

const PAGE_KEYS: usize = 512;
const LEAVES: usize = 2048;
const CACHED_LEAVES: usize = 2;

type Ordered = fn(&(u64, u64), u64) -> Ordering;

struct Tree {
    /// Root first: pages of keys and of the numbers of the pages below.
    levels: Vec<Vec<(u64, u64)>>,
    compare: Ordered,
    random: Random,
    /// Keys that are looked for are below it.
    bound: u32,
}

impl Tree {
    /// In which only keys of the first so many leaves are looked for.
    fn new(leaves_used: usize, pages: Pages) -> Result<Self, Failure> {
        let leaves = room(LEAVES * PAGE_KEYS, pages, (0..(LEAVES * PAGE_KEYS) as u64).map(|key| (key * 3, key)))?;
        let mut levels = vec![leaves];
        while levels[0].len() > PAGE_KEYS {
            let above = levels[0].chunks(PAGE_KEYS).zip(0..).map(|(page, number)| (page[0].0, number)).collect();
            levels.insert(0, above);
        }
        let bound = (leaves_used * PAGE_KEYS * 3) as u32;
        Ok(Self { levels, compare: |entry, key| entry.0.cmp(&key), random: Random::new(&[6]), bound })
    }

    /// What the leaf says of the largest key that is not above `key`.
    fn descend(&self, key: u64) -> u64 {
        let compare = black_box(self.compare);
        let mut page = 0;
        for level in &self.levels {
            let start = page * PAGE_KEYS;
            let entries = &level[start..level.len().min(start + PAGE_KEYS)];
            let above = entries.partition_point(|entry| compare(entry, key) != Ordering::Greater);
            page = entries[above.saturating_sub(1)].1 as usize;
        }
        page as u64
    }
}

impl Probe for Tree {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let begin_ns = now_ns();
        let mut sum = 0_u64;
        for _ in 0..events * STEPS {
            let key = u64::from(self.random.below(self.bound));
            sum = sum.wrapping_add(self.descend(key));
        }
        black_box(sum);
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}

/// Look-ups of random keys in a hash table of 16 MiB, with a comparison of the key and a copy of the row that is found, as in a join: an
/// event is a thousand.
pub fn joins(_: &Request) -> Made {
    Ok(Box::new(Join::new(KEYS, Pages::Small)?))
}

/// The same in the same table, but of a few keys whose rows stay in the caches: the same instructions.
pub fn joins_cached(_: &Request) -> Made {
    Ok(Box::new(Join::new(CACHED_KEYS, Pages::Small)?))
}

/// Of all keys again, in memory of huge pages: the caches are missed as often, the translation cache is not.
pub fn joins_2m_pages(_: &Request) -> Made {
    Ok(Box::new(Join::new(KEYS, Pages::Huge)?))
}

const BUCKETS: usize = 1 << 18;
const KEYS: u32 = BUCKETS as u32 / 2;
const CACHED_KEYS: u32 = 128;
const ROW_WORDS: usize = 8;

struct Join {
    /// Of each bucket its key and the row's other words; open addressing, half full. Key 0: empty.
    table: Vec<[u64; ROW_WORDS]>,
    random: Random,
    keys_used: u32,
}

impl Join {
    /// In which only the first so many keys are looked for.
    fn new(keys_used: u32, pages: Pages) -> Result<Self, Failure> {
        let table = room(BUCKETS, pages, (0..BUCKETS).map(|_| [0; ROW_WORDS]))?;
        let mut join = Self { table, random: Random::new(&[7]), keys_used };
        for key in 1..=u64::from(KEYS) {
            let place = join.place_of(key);
            join.table[place] = [key; ROW_WORDS];
        }
        Ok(join)
    }

    /// Where the key is, or the empty place where it would be.
    fn place_of(&self, key: u64) -> usize {
        let mut hash = key.wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        let mut place = (hash >> 40) as usize % BUCKETS;
        while self.table[place][0] != 0 && self.table[place][0] != key {
            place = (place + 1) % BUCKETS;
        }
        place
    }
}

impl Probe for Join {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let begin_ns = now_ns();
        let mut row = [0; ROW_WORDS];
        for _ in 0..events * STEPS {
            let key = u64::from(self.random.below(self.keys_used)) + 1;
            row = black_box(self.table[self.place_of(key)]);
        }
        black_box(row);
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}

/// A thousand rows sorted by a text, which is reached through a pointer and compared through another: an event is the whole sort.
pub fn sorts(_: &Request) -> Made {
    let mut random = Random::new(&[8]);
    let texts: Vec<String> =
        (0..STEPS).map(|_| format!("Customer#{:09} {}", random.below(1_000_000), random.next_u64())).collect();
    let compare: fn(&&String, &&String) -> Ordering = |one, other| one.as_bytes().cmp(other.as_bytes());
    Ok(Box::new(Repeated(move || {
        let mut rows: Vec<&String> = texts.iter().collect();
        rows.sort_by(black_box(compare));
        black_box(rows);
        Ok(())
    })))
}

/// Much code, as a server's parser, planner and executor are, in place of a loop: a thousand calls, each of another of 1024 functions in
/// 256 KiB and more, which no core's first cache holds. What is executed seldom is what emulators do slowest.
pub fn code(_: &Request) -> Made {
    let mut random = Random::new(&[9]);
    let mut paths: Vec<Path> = PATHS.iter().flatten().copied().collect();
    for last in (1..paths.len()).rev() {
        paths.swap(last, random.below(last as u32 + 1) as usize);
    }
    let data: Vec<u64> = (0..256).map(|_| random.next_u64()).collect();
    let mut at = 0;
    Ok(Box::new(Repeated(move || {
        let mut value = 1;
        for _ in 0..STEPS {
            at = (at + 1) % paths.len();
            value = paths[at](value, &data);
        }
        black_box(value);
        Ok(())
    })))
}

type Path = fn(u64, &[u64]) -> u64;

/// A function of its own for each pair of numbers: some tests, look-ups and arithmetic.
#[inline(never)]
fn path<const A: u64, const B: u64>(mut value: u64, data: &[u64]) -> u64 {
    for (turn, shift) in [3 + A % 7, 11 + B % 5, 17 + (A ^ B) % 9, 29 + (A + B) % 11].into_iter().enumerate() {
        let found = data[(value >> shift) as usize % 256];
        value = if found & (1 << (A % 32)) == 0 {
            value.rotate_left((A + 1) as u32) ^ found.wrapping_mul(2 * B + 1)
        } else {
            value.wrapping_add(found ^ (A * 0x9e37 + B)) >> (1 + (B + turn as u64) % 3)
        };
        if value % (A + 3) == B % (A + 3) {
            value = value.wrapping_sub(found).wrapping_mul(A * 37 + B * 2 + 1);
        }
    }
    value | 1 << (B % 60)
}

macro_rules! row {
    ($a:literal: $($b:literal)*) => { [$(path::<$a, $b> as Path),*] };
}
macro_rules! table {
    ($($a:literal)*) => {
        [$(row!($a: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)),*]
    };
}
static PATHS: [[Path; 32]; 32] =
    table![0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31];
