//! What a transaction workload is to driver and loader. One is a folder beside this file, and a line in `WORKLOADS`.

use std::pin::Pin;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::bulk::Sink;
use super::terminal::Terminal;
use super::{tatp, tpcc};
use crate::failure::Failure;
use crate::talk::Interaction;
use crate::talk::statement::Statement;
use crate::wire::Dialect;

type Make = fn(Value) -> Result<Arc<dyn Workload>, Failure>;

/// Its name in the protocol, and how it is made from its parameters.
const WORKLOADS: &[(&str, Make)] = &[("tpcc", tpcc::workload), ("tatp", tatp::workload)];

/// The one that is asked for: `{NAME: PARAMETERS}`.
pub fn find(asked: Value) -> Result<Arc<dyn Workload>, Failure> {
    let known = || WORKLOADS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let no_choice = || Failure::bad_request(format!("a workload is an object with one key: {}", known()));
    let Value::Object(object) = asked else {
        return Err(no_choice());
    };
    let mut named = object.into_iter();
    let (Some((name, params)), None) = (named.next(), named.next()) else {
        return Err(no_choice());
    };
    let found = WORKLOADS.iter().find(|(each, _)| *each == name);
    let (_, make) =
        found.ok_or_else(|| Failure::bad_request(format!("no workload {name:?}; there are: {}", known())))?;
    make(params)
}

/// Rows and transactions.
pub trait Workload: Send + Sync {
    /// Names of the kinds of transactions.
    fn kinds(&self) -> &'static [&'static str];

    /// What is prepared on each connection.
    fn statements(&self, interaction: Interaction, dialect: Dialect) -> Vec<Statement>;

    /// Those first that take longest to load.
    fn tables(&self) -> Vec<Table>;

    /// The rows of one part of a table. `table`: its place in `tables`.
    fn write(&self, table: usize, part: i32, sink: &mut dyn Sink) -> Result<(), Failure>;

    /// What the terminals of one thread do.
    fn work(&self, asked: Asked) -> Box<dyn ThreadWork>;
}

/// A table, whose rows come in `parts` parts of about `rows_of_part`. `columns`: in the order in which the rows have them.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    pub name: &'static str,
    pub columns: &'static str,
    pub parts: i32,
    pub rows_of_part: u64,
}

/// How the transactions are to be made.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Of the inputs.
    pub seed: u64,
    pub interaction: Interaction,
    /// The server's answers mean nothing, so that what is not in them is made up.
    pub is_imitation: bool,
}

/// The terminals of one thread: they may share something.
pub trait ThreadWork {
    /// Terminal `number` of all threads, for ever.
    fn live(&self, number: usize, terminal: Terminal) -> Pin<Box<dyn Future<Output = ()>>>;

    /// What these terminals were acknowledged since they began, to be found in the data; None where nothing is kept.
    fn acknowledged(&self) -> Option<Value> {
        None
    }
}

/// What a tenant works on of what is numbered from 1: the first and the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Own(pub i32, pub i32);

impl Own {
    /// What was asked for; else all that there are. Refuses what is not there.
    pub fn of(asked: Option<Self>, what: &str, count: i32) -> Result<Self, Failure> {
        let Self(first, last) = asked.unwrap_or(Self(1, count));
        if 1 <= first && first <= last && last <= count {
            return Ok(Self(first, last));
        }
        Err(Failure::bad_request(format!("own {what} {first} to {last}: there are 1 to {count}")))
    }

    #[must_use]
    pub fn first(self) -> i32 {
        self.0
    }

    #[must_use]
    pub fn count(self) -> i32 {
        self.1 - self.0 + 1
    }
}

/// Refuses a size out of its bounds.
pub fn check_size(what: &str, count: i32, most: i32) -> Result<(), Failure> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(Failure::bad_request(format!("{what} {count}: from 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_workload_is_found_by_its_name() {
        assert_eq!(find(json!({"tatp": {"subscribers": 5, "seed": 1}})).map(|found| found.kinds().len()).unwrap(), 7);
        let refused = |asked: Value| find(asked).err().unwrap().message;
        assert_eq!(refused(json!({"ycsb": {}})), "no workload \"ycsb\"; there are: tpcc, tatp");
        for asked in [json!("tpcc"), json!({}), json!({"tatp": {}, "tpcc": {}})] {
            assert_eq!(refused(asked), "a workload is an object with one key: tpcc, tatp");
        }
        assert_eq!(refused(json!({"tpcc": {"warehouses": 0, "seed": 1}})), "warehouses 0: from 1 to 100000");
        assert!(refused(json!({"tpcc": {"warehouses": 1}})).contains("seed"));
        for own in [[0, 1], [2, 1], [3, 5]] {
            let said = format!("own warehouses {} to {}: there are 1 to 4", own[0], own[1]);
            assert_eq!(refused(json!({"tpcc": {"warehouses": 4, "seed": 1, "own": own}})), said);
        }
        assert!(refused(json!({"tatp": {"subscribers": 4, "seed": 1, "own": [1, 5]}})).contains("own subscribers"));
        assert!(find(json!({"tpcc": {"warehouses": 4, "seed": 1, "own": [3, 4]}})).is_ok());
    }
}
