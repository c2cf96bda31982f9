//! TATP: rows, inputs and transactions (Telecommunication Application Transaction Processing Benchmark Description 1.0,
//! IBM Software Group Information Management, 2009).

pub mod population;
pub mod transactions;

use std::pin::Pin;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::bulk::Sink;
use super::terminal::Terminal;
use super::workload::{Asked, Own, Table, ThreadWork, Workload, check_size};
use crate::failure::Failure;
use crate::method;
use crate::talk::Interaction;
use crate::talk::statement::Statement;
use crate::wire::Dialect;
use population::RANGE;

/// Which rows.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    subscribers: i32,
    seed: u64,
    /// Subscribers of a tenant who shares the tables with others; no row of another's is touched.
    #[serde(default)]
    own: Option<Own>,
    /// Whether an insertion fails by itself where there is such a row already, or no such facility.
    #[serde(default = "yes")]
    has_keys: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Copy)]
struct Tatp {
    params: Params,
    own: Own,
}

pub fn workload(params: Value) -> Result<Arc<dyn Workload>, Failure> {
    let params: Params = method::parse(params)?;
    check_size("subscribers", params.subscribers, 1_000_000_000)?;
    let own = Own::of(params.own, "subscribers", params.subscribers)?;
    Ok(Arc::new(Tatp { params, own }))
}

impl Workload for Tatp {
    fn kinds(&self) -> &'static [&'static str] {
        &transactions::KINDS
    }

    fn statements(&self, _: Interaction, _: Dialect) -> Vec<Statement> {
        transactions::statements(self.params.has_keys)
    }

    fn tables(&self) -> Vec<Table> {
        let table = |table: population::Table| Table {
            name: table.name(),
            columns: table.columns(),
            parts: (self.params.subscribers + RANGE - 1) / RANGE,
            rows_of_part: u64::from(RANGE.unsigned_abs()) / 100 * table.rows_per_hundred(),
        };
        population::Table::LONGEST_FIRST.map(table).to_vec()
    }

    fn write(&self, table: usize, part: i32, sink: &mut dyn Sink) -> Result<(), Failure> {
        let Params { subscribers, seed, .. } = self.params;
        population::write(population::Table::LONGEST_FIRST[table], part, subscribers, seed, sink)
    }

    fn work(&self, asked: Asked) -> Box<dyn ThreadWork> {
        Box::new(Terminals { of: *self, asked })
    }
}

struct Terminals {
    of: Tatp,
    asked: Asked,
}

impl ThreadWork for Terminals {
    fn live(&self, number: usize, terminal: Terminal) -> Pin<Box<dyn Future<Output = ()>>> {
        let Asked { seed, is_imitation, .. } = self.asked;
        Box::pin(terminal.live(transactions::Terminal::new(
            seed,
            number,
            self.of.own,
            self.of.params.has_keys,
            is_imitation,
        )))
    }
}

/// Clause 2.4 (non-uniform subscriber numbers): A by the number of subscribers.
#[must_use]
pub fn skew(subscribers: i32) -> i32 {
    if subscribers <= 1_000_000 {
        65_535
    } else if subscribers <= 10_000_000 {
        1_048_575
    } else {
        2_097_151
    }
}
