//! The method `oltp_load`: makes a workload's rows and streams them into empty tables, several at a time, resumable.
//!
//! The rows of a table come in *pieces*, each loaded in one transaction that also writes its name into the table
//! `dbtoll_loaded`: what is named there is there. In `PostgreSQL` the only piece of a table begins with a truncation, so that
//! COPY may FREEZE the rows and (with `wal_level=minimal`) write no log. Of several pieces none may: it would take with it
//! what another connection has loaded before.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::bulk::Bulk;
use super::workload::{self, Table, Workload};
use crate::clock::{now_ns, thread_cpu_ns};
use crate::driver::server::{self, Server};
use crate::failure::Failure;
use crate::loading::Loading;
use crate::lock;
use crate::method;
use crate::stream::{StreamHandle, StreamSender};
use crate::wire::Dialect;
use crate::wire::blocking::{Address, Interrupter};
use crate::wire::postgres::Login;

const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
const CONTROL_CHANNEL: u16 = 2;
const MAX_CONNECTIONS: usize = 16;
/// Parts (warehouses, ranges of subscribers) of a table in one transaction.
const PARTS_IN_PIECE: i32 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    workload: Value,
    connections: usize,
}

/// Part of a table that is loaded in one transaction.
#[derive(Debug, Clone)]
struct Piece {
    /// Of its table.
    number: usize,
    table: Table,
    first: i32,
    last: i32,
    is_whole: bool,
}

impl Piece {
    fn name(&self) -> String {
        format!("{} {}-{}", self.table.name, self.first, self.last)
    }
}

/// All pieces, those of the table that takes longest first.
fn pieces(tables: &[Table]) -> Vec<Piece> {
    let pieces_of = |(number, &table): (usize, &Table)| {
        let parts = table.parts;
        (0..parts).step_by(usize::try_from(PARTS_IN_PIECE).unwrap_or(1)).map(move |first| Piece {
            number,
            table,
            first,
            last: (first + PARTS_IN_PIECE).min(parts) - 1,
            is_whole: parts <= PARTS_IN_PIECE,
        })
    };
    tables.iter().enumerate().flat_map(pieces_of).collect()
}

pub fn oltp_load(mut params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let server = Server::take(&mut params)?;
    let dialect = server.dialect();
    let (address, login) = server.login(Vec::new());
    let Params { workload, connections } = method::parse(params)?;
    let workload = workload::find(workload)?;
    if !(1..=MAX_CONNECTIONS).contains(&connections) {
        return Err(Failure::bad_request(format!("connections {connections}: from 1 to {MAX_CONNECTIONS}")));
    }
    let interrupter = server::interrupter_of(&stream);
    let sender: Mutex<StreamSender> = Mutex::new(stream.sender());
    let load = Load { workload, dialect, address, login, interrupter, sender };
    load.run(connections)
}

struct Load {
    workload: Arc<dyn Workload>,
    dialect: Dialect,
    address: Address,
    login: Login,
    interrupter: Interrupter,
    sender: Mutex<StreamSender>,
}

#[derive(Default)]
struct Loaded {
    rows: Vec<(&'static str, u64)>,
    generate_ns: u64,
    failed: Option<Failure>,
}

impl Load {
    fn run(&self, connections: usize) -> Result<Value, Failure> {
        let start_ns = now_ns();
        let done = loaded(&mut self.open()?)?;
        let all = pieces(&self.workload.tables());
        let resumed = all.iter().filter(|piece| done.contains(&piece.name())).count();
        let waiting = Mutex::new(all.into_iter().filter(|piece| !done.contains(&piece.name())));
        let outcome = Mutex::new(Loaded::default());
        let work = || -> Result<(), Failure> {
            let mut connection = self.open()?;
            while let Some(piece) = { lock(&waiting).next() } {
                let rows = self.load(&mut connection, &piece)?;
                lock(&outcome).rows.push((piece.table.name, rows));
            }
            lock(&outcome).generate_ns += thread_cpu_ns();
            Ok(())
        };
        thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(|| {
                    if let Err(failure) = work() {
                        lock(&outcome).failed.get_or_insert(failure);
                        self.interrupter.interrupt();
                    }
                });
            }
        });
        let loaded = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = loaded.failed {
            return Err(failure);
        }
        let mut rows = Map::new();
        for (table, count) in loaded.rows {
            let sum = rows.get(table).and_then(Value::as_u64).unwrap_or(0) + count;
            rows.insert(table.to_owned(), json!(sum));
        }
        let wall_ns = now_ns() - start_ns;
        Ok(json!({"rows": rows, "resumed": resumed, "generate_ns": loaded.generate_ns, "wall_ns": wall_ns}))
    }

    fn open(&self) -> Result<Loading, Failure> {
        Loading::open(self.dialect, &self.address, &self.login, &self.interrupter)
    }

    fn load(&self, connection: &mut Loading, piece: &Piece) -> Result<u64, Failure> {
        let table = piece.table;
        let about = |failure: Failure| {
            let message = format!("loading {}: {}", table.name, failure.message);
            Failure { message, ..failure }
        };
        connection.begin(table.name, table.columns, piece.is_whole).map_err(about)?;
        let mut reported = Instant::now();
        let of_rows = u64::from((piece.last - piece.first + 1).unsigned_abs()) * table.rows_of_part;
        let rows = {
            let mut sink = Bulk::new(self.dialect, |content: &[u8], rows: u64| {
                connection.send(content).map_err(about)?;
                if reported.elapsed() >= PROGRESS_INTERVAL {
                    reported = Instant::now();
                    self.report(table, rows, of_rows.max(rows))?;
                }
                Ok(())
            });
            for part in piece.first..=piece.last {
                self.workload.write(piece.number, part, &mut sink)?;
            }
            sink.finish()?
        };
        connection.end().map_err(about)?;
        connection.run(&format!("insert into dbtoll_loaded values ('{}')", piece.name())).map_err(about)?;
        connection.run("commit").map_err(about)?;
        self.report(table, rows, rows)?;
        Ok(rows)
    }

    fn report(&self, table: Table, rows: u64, of_rows: u64) -> Result<(), Failure> {
        let message = json!({"table": table.name, "rows": rows, "of_rows": of_rows});
        lock(&self.sender).write(CONTROL_CHANNEL, message.to_string().as_bytes())
    }
}

/// Names of the pieces that are there.
fn loaded(connection: &mut Loading) -> Result<HashSet<String>, Failure> {
    connection.run("create table if not exists dbtoll_loaded (piece varchar(64) not null)")?;
    let rows = connection.rows("select piece from dbtoll_loaded")?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_part_once() {
        let of = |workload: Value| pieces(&workload::find(workload).unwrap().tables());
        let all = of(json!({"tpcc": {"warehouses": 250, "seed": 1}}));
        let stock: Vec<(i32, i32)> =
            all.iter().filter(|piece| piece.table.name == "stock").map(|piece| (piece.first, piece.last)).collect();
        assert_eq!(stock, [(0, 99), (100, 199), (200, 249)]);
        assert_eq!(all.iter().filter(|piece| piece.table.name == "item").count(), 1);
        // A truncation in one of several pieces would end what another one has loaded.
        assert!(all.iter().all(|piece| piece.is_whole == (piece.table.name == "item")));
        assert_eq!(of(json!({"tatp": {"subscribers": 25_000, "seed": 1}}))[0].last, 2);
    }
}
