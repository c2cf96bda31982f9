//! TPC-C: what its rows, inputs and transactions are (TPC Benchmark C, Standard Specification, revision 5.11).
//!
//! Derived from the benchmark; results are not comparable with published TPC results.

pub mod input;
pub mod population;
pub mod transactions;

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::bulk::Sink;
use super::terminal::Terminal;
use super::workload::{Asked, Own, Table, ThreadWork, Workload, check_size};
use crate::failure::Failure;
use crate::method;
use crate::random::Random;
use crate::talk::Interaction;
use crate::talk::statement::Statement;
use crate::wire::Dialect;
use transactions::Acknowledged;

/// Which rows, and whether terminals pause.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    warehouses: i32,
    seed: u64,
    /// Home warehouses of a tenant who shares the tables with others; no row of another's is touched.
    #[serde(default)]
    own: Option<Own>,
    /// Keying and think times.
    #[serde(default)]
    has_pauses: bool,
}

#[derive(Debug, Clone, Copy)]
struct Tpcc {
    params: Params,
    own: Own,
}

pub fn workload(params: Value) -> Result<Arc<dyn Workload>, Failure> {
    let params: Params = method::parse(params)?;
    check_size("warehouses", params.warehouses, 100_000)?;
    let own = Own::of(params.own, "warehouses", params.warehouses)?;
    Ok(Arc::new(Tpcc { params, own }))
}

impl Workload for Tpcc {
    fn kinds(&self) -> &'static [&'static str] {
        &input::KINDS
    }

    fn statements(&self, interaction: Interaction, dialect: Dialect) -> Vec<Statement> {
        transactions::statements(interaction, dialect)
    }

    fn tables(&self) -> Vec<Table> {
        let table = |table: population::Table| Table {
            name: table.name(),
            columns: table.columns(),
            parts: if table.is_per_warehouse() { self.params.warehouses } else { 1 },
            rows_of_part: table.rows(),
        };
        population::Table::LONGEST_FIRST.map(table).to_vec()
    }

    fn write(&self, table: usize, part: i32, sink: &mut dyn Sink) -> Result<(), Failure> {
        population::write(population::Table::LONGEST_FIRST[table], part + 1, self.params.seed, sink)
    }

    fn work(&self, asked: Asked) -> Box<dyn ThreadWork> {
        Box::new(Terminals { of: *self, asked, acknowledged: Rc::default() })
    }
}

struct Terminals {
    of: Tpcc,
    asked: Asked,
    acknowledged: Rc<RefCell<Acknowledged>>,
}

impl ThreadWork for Terminals {
    fn live(&self, number: usize, terminal: Terminal) -> Pin<Box<dyn Future<Output = ()>>> {
        let Asked { seed, interaction, is_imitation } = self.asked;
        let inputs = input::Inputs::new(seed, self.of.params.seed, number, self.of.own);
        let acknowledged = Rc::clone(&self.acknowledged);
        Box::pin(terminal.live(transactions::Terminal::new(
            inputs,
            interaction,
            self.of.params.has_pauses,
            is_imitation,
            acknowledged,
        )))
    }

    fn acknowledged(&self) -> Option<Value> {
        Some(json!(*self.acknowledged.borrow()))
    }
}

pub const DISTRICTS: i32 = 10;
pub const CUSTOMERS: i32 = 3000;
pub const ITEMS: i32 = 100_000;
pub const ORDERS: i32 = 3000;
/// The first order that has not been delivered.
pub const FIRST_NEW_ORDER: i32 = 2101;

/// Clause 2.1.6: `NURand(A, x, y)` and its constants, one for each A.
#[derive(Debug, Clone, Copy)]
pub struct Skew {
    last_name: i32,
    customer: i32,
    item: i32,
}

impl Skew {
    /// The constants of the population and those of a run, which must differ for last names by 65 to 119, but not by 96 or
    /// 112 (clause 2.1.6.1).
    #[must_use]
    pub fn pair(seed: u64) -> (Self, Self) {
        let mut random = Random::new(&[seed, u64::from_le_bytes(*b"NURand C")]);
        let mut drawn = || Self {
            last_name: random.between(0, 255),
            customer: random.between(0, 1023),
            item: random.between(0, 8191),
        };
        let (load, run) = (drawn(), drawn());
        let mut apart = 65 + run.last_name % 55;
        if matches!(apart, 96 | 112) {
            apart += 1;
        }
        let down = load.last_name - apart;
        let last_name = if down < 0 { load.last_name + apart } else { down };
        (load, Self { last_name, ..run })
    }

    /// From 0 to 999.
    pub fn last_name(&self, random: &mut Random) -> i32 {
        uneven(random, 255, self.last_name, 0, 999)
    }

    pub fn customer(&self, random: &mut Random) -> i32 {
        uneven(random, 1023, self.customer, 1, CUSTOMERS)
    }

    pub fn item(&self, random: &mut Random) -> i32 {
        uneven(random, 8191, self.item, 1, ITEMS)
    }
}

fn uneven(random: &mut Random, a: i32, c: i32, low: i32, high: i32) -> i32 {
    ((random.between(0, a) | random.between(low, high)) + c) % (high - low + 1) + low
}

/// Clause 4.3.2.3.
#[must_use]
pub fn last_name(number: i32) -> String {
    const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    let digit = |place: i32| SYLLABLES[usize::try_from(number / place % 10).unwrap_or(0)];
    [digit(100), digit(10), digit(1)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_those_of_the_specification() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
        assert_eq!(last_name(999), "EINGEINGEING");
    }

    #[test]
    fn the_constants_of_load_and_run_are_as_far_apart_as_they_must_be() {
        for seed in 0..2000 {
            let (load, run) = Skew::pair(seed);
            let apart = (load.last_name - run.last_name).abs();
            assert!((65..=119).contains(&apart) && apart != 96 && apart != 112, "{apart}");
            assert!((0..=255).contains(&run.last_name) && (0..=255).contains(&load.last_name));
        }
    }

    #[test]
    fn uneven_choices_stay_in_their_range_and_are_uneven() {
        let (_, run) = Skew::pair(1);
        let mut random = Random::new(&[1]);
        let mut seen = vec![0u32; 3001];
        for _ in 0..300_000 {
            seen[usize::try_from(run.customer(&mut random)).unwrap()] += 1;
        }
        assert_eq!(seen[0], 0);
        let (most, least) = (seen[1..].iter().max().unwrap(), seen[1..].iter().min().unwrap());
        assert!(*most > 300 && *least < 60, "{most} {least}");
    }
}
