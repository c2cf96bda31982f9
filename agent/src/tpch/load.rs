//! The method `tpch_load`: generates TPC-H's tables and streams them into a server (`loading.rs`).
//!
//! One connection loads a whole table, in key order, inside one transaction: so the same scale always makes the same
//! pages, and COPY may FREEZE the rows and (with `wal_level=minimal`) write no log. Lineitem is three quarters of the
//! server's work and starts first; on two cores the other tables and the generator fill the second core meanwhile.
//! Two connections that share lineitem lose both savings. Measured with ready files at scale 1 (PostgreSQL 15, two
//! busy cores, four runs in turn, medians): server CPU for load and vacuum (freeze, analyze) 9.5 s frozen, 11.6 s
//! shared; their wall time 9.8 s and 11.5 s.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::binary::{BinarySink, ColumnType};
use super::tbl::TblSink;
use super::{Table, check_size, generate};
use crate::clock::{now_ns, thread_cpu_ns};
use crate::driver::answer;
use crate::driver::server::{self, Server};
use crate::failure::{Code, Failure};
use crate::loading::Loading;
use crate::lock;
use crate::method;
use crate::stream::{StreamHandle, StreamSender};
use crate::wire::blocking::{Connection, Interrupter, Trouble};

const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
const CONTROL_CHANNEL: u16 = 2;
const MAX_CONNECTIONS: usize = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    #[serde(default = "tenth")]
    scale: f64,
    #[serde(default = "two")]
    connections: usize,
}

fn tenth() -> f64 {
    0.1
}

fn two() -> usize {
    2
}

/// Called with a table, its rows so far and (about) the rows that it will have.
pub type Progress<'a> = &'a (dyn Fn(Table, u64, u64) -> Result<(), Failure> + Sync);

/// What a load was.
pub struct Loaded {
    pub rows: Vec<(Table, u64)>,
    /// CPU time of the generating threads: making, encoding and sending the rows.
    pub generate_ns: u64,
    pub wall_ns: u64,
}

#[allow(clippy::needless_pass_by_value, reason = "a handler owns its stream")]
pub fn tpch_load(mut params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let server = Server::take(&mut params)?;
    let dialect = server.dialect();
    let (address, login) = server.login(Vec::new());
    let Params { scale, connections } = method::parse(params)?;
    let interrupter = server::interrupter_of(&stream);
    let sender: Mutex<StreamSender> = Mutex::new(stream.sender());
    let progress = |table: Table, rows: u64, of_rows: u64| {
        let message = json!({"table": table, "rows": rows, "of_rows": of_rows});
        lock(&sender).write(CONTROL_CHANNEL, message.to_string().as_bytes())
    };
    let open = || Loading::open(dialect, &address, &login, &interrupter);
    let loaded = load(scale, connections, &open, &interrupter, &progress)?;
    let rows: Map<String, Value> =
        loaded.rows.iter().map(|(table, rows)| (table.name().to_owned(), json!(rows))).collect();
    Ok(json!({"rows": rows, "generate_ns": loaded.generate_ns, "wall_ns": loaded.wall_ns}))
}

/// Loads all tables; the first failure interrupts all connections.
fn load(
    scale: f64,
    connections: usize,
    open: &(dyn Fn() -> Result<Loading, Failure> + Sync),
    interrupter: &Interrupter,
    progress: Progress<'_>,
) -> Result<Loaded, Failure> {
    check_size(scale, 1, 1)?;
    if !(1..=MAX_CONNECTIONS).contains(&connections) {
        let text = format!("connections {connections}: from 1 to {MAX_CONNECTIONS}");
        return Err(Failure::bad_request(text));
    }
    let start_ns = now_ns();
    let waiting = Mutex::new(Table::LONGEST_FIRST.into_iter());
    let outcome = Mutex::new((Loaded { rows: Vec::new(), generate_ns: 0, wall_ns: 0 }, None::<Failure>));
    let work = || -> Result<(), Failure> {
        let mut connection = open()?;
        while let Some(table) = { lock(&waiting).next() } {
            let rows = load_table(&mut connection, table, scale, progress)?;
            lock(&outcome).0.rows.push((table, rows));
        }
        lock(&outcome).0.generate_ns += thread_cpu_ns();
        Ok(())
    };
    thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                if let Err(failure) = work() {
                    lock(&outcome).1.get_or_insert(failure);
                    interrupter.interrupt();
                }
            });
        }
    });
    let (mut loaded, failed) = outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    loaded.wall_ns = now_ns() - start_ns;
    failed.map_or(Ok(loaded), Err)
}

fn load_table(connection: &mut Loading, table: Table, scale: f64, progress: Progress<'_>) -> Result<u64, Failure> {
    let name = table.name();
    let about = |failure: Failure| Failure { message: format!("loading {name}: {}", failure.message), ..failure };
    let types = match connection {
        Loading::Binary(connection) => Some(column_types(connection, table)?),
        _ => None,
    };
    if !connection.rows(&format!("select 1 from {name} limit 1")).map_err(about)?.is_empty() {
        let text = format!("the table {name} is not empty; tpch_load fills empty tables only");
        return Err(Failure::bad_request(text));
    }
    connection.begin(name, &table.columns().join(", "), true).map_err(about)?;
    let of_rows = table.expected_rows(scale);
    let mut reported = Instant::now();
    let send = |content: &[u8], rows: u64| {
        connection.send(content).map_err(about)?;
        if reported.elapsed() >= PROGRESS_INTERVAL {
            reported = Instant::now();
            progress(table, rows, of_rows.max(rows))?;
        }
        Ok(())
    };
    let rows = if let Some(types) = types {
        let mut sink = BinarySink::new(types, send);
        let rows = generate(table, scale, 1, 1, &mut sink)?;
        sink.finish()?;
        rows
    } else {
        let mut sink = TblSink::for_servers(send);
        let rows = generate(table, scale, 1, 1, &mut sink)?;
        sink.finish()?;
        rows
    };
    connection.end().map_err(about)?;
    connection.run("commit").map_err(about)?;
    progress(table, rows, rows)?;
    Ok(rows)
}

/// The types of the table's columns, in the rows' order, from the server's catalog.
fn column_types(connection: &mut Connection, table: Table) -> Result<Vec<ColumnType>, Failure> {
    let name = table.name();
    let sql = format!(
        "select attname, atttypid, format_type(atttypid, null) from pg_attribute
         where attrelid = to_regclass('{name}') and attnum > 0 and not attisdropped"
    );
    connection.run(&sql).map_err(Failure::from)?;
    let rows = answer::rows(connection.answer()).map_err(Trouble::from).map_err(Failure::from)?;
    let found: Vec<Vec<String>> = rows.into_iter().map(|row| row.into_iter().flatten().collect()).collect();
    if found.is_empty() {
        return Err(Failure::new(Code::NotFound, format!("there is no table {name}; create it before tpch_load")));
    }
    let type_of = |column: &&str| {
        let Some([_, oid, type_name]) =
            found.iter().map(Vec::as_slice).find(|row| row.first().is_some_and(|name| name == column))
        else {
            return Err(Failure::new(Code::NotFound, format!("the table {name} has no column {column}")));
        };
        oid.parse().ok().and_then(ColumnType::of_oid).ok_or_else(|| {
            let usual = "smallint, integer, bigint, numeric, double precision, date, char(n), varchar(n) and text";
            Failure::bad_request(format!("{name}.{column} is of type {type_name}; tpch_load can fill {usual}"))
        })
    };
    table.columns().iter().map(type_of).collect()
}
