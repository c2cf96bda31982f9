//! Rows as lines of text: dbgen's TBL form, a `|` after each field, and that which servers load; and the method `tpch_table`.

use std::fmt::Display;
use std::io::Write;

use serde::Deserialize;
use serde_json::{Value, json};
use tpchgen::dates::TPCHDate;
use tpchgen::decimal::TPCHDecimal;

use super::{RowSink, Table, generate};
use crate::failure::Failure;
use crate::method;
use crate::stream::StreamHandle;

const CHUNK_BYTES: usize = 64 * 1024;

/// Rows as text, handed on in pieces of whole rows, with the rows so far.
pub struct TblSink<F> {
    closes_lines: bool,
    rows: u64,
    bytes: Vec<u8>,
    hand_on: F,
}

impl<F: FnMut(&[u8], u64) -> Result<(), Failure>> TblSink<F> {
    pub fn new(hand_on: F) -> Self {
        Self { closes_lines: true, rows: 0, bytes: Vec::with_capacity(2 * CHUNK_BYTES), hand_on }
    }

    /// Without the `|` at the end of a line, which servers take for one more column.
    pub fn for_servers(hand_on: F) -> Self {
        Self { closes_lines: false, ..Self::new(hand_on) }
    }

    /// Hands on what is left.
    pub fn finish(mut self) -> Result<(), Failure> {
        if self.bytes.is_empty() { Ok(()) } else { (self.hand_on)(&self.bytes, self.rows) }
    }
}

impl<F: FnMut(&[u8], u64) -> Result<(), Failure>> RowSink for TblSink<F> {
    fn begin_row(&mut self, _columns: u16) {}

    fn integer(&mut self, value: i64) {
        self.shown(&value);
    }

    fn decimal(&mut self, hundredths: i64) {
        self.shown(&TPCHDecimal(hundredths));
    }

    fn date(&mut self, date: TPCHDate) {
        self.shown(&date);
    }

    fn text(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(b'|');
    }

    fn comment(&mut self, text: &'static str) {
        self.text(text);
    }

    fn shown(&mut self, value: &impl Display) {
        // Writing into memory cannot fail.
        let _ = write!(self.bytes, "{value}|");
    }

    fn end_row(&mut self) -> Result<(), Failure> {
        if !self.closes_lines {
            self.bytes.pop();
        }
        self.bytes.push(b'\n');
        self.rows += 1;
        if self.bytes.len() >= CHUNK_BYTES {
            (self.hand_on)(&self.bytes, self.rows)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    table: Table,
    scale: f64,
    #[serde(default = "one")]
    part: i32,
    #[serde(default = "one")]
    parts: i32,
}

fn one() -> i32 {
    1
}

#[allow(clippy::needless_pass_by_value, reason = "a handler owns its stream")]
pub fn tpch_table(params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let Params { table, scale, part, parts } = method::parse(params)?;
    let mut sink = TblSink::new(|bytes: &[u8], _| stream.write(0, bytes));
    let rows = generate(table, scale, part, parts, &mut sink)?;
    sink.finish()?;
    Ok(json!({"rows": rows}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tpchgen::generators::{LineItemGenerator, SupplierGenerator};

    fn tbl(table: Table, part: i32, parts: i32) -> (String, u64) {
        let mut bytes = Vec::new();
        let mut sink = TblSink::new(|piece: &[u8], _| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        let rows = generate(table, 0.001, part, parts, &mut sink).unwrap();
        sink.finish().unwrap();
        (String::from_utf8(bytes).unwrap(), rows)
    }

    #[test]
    fn rows_are_those_of_dbgen() {
        let ours = tbl(Table::Lineitem, 1, 1).0;
        let theirs = LineItemGenerator::new(0.001, 1, 1).iter().map(|row| row.to_string());
        assert!(ours.lines().eq(theirs));
        let ours = tbl(Table::Supplier, 1, 1).0;
        let theirs = SupplierGenerator::new(0.001, 1, 1).iter().map(|row| row.to_string());
        assert!(ours.lines().eq(theirs));
    }

    #[test]
    fn parts_make_up_the_table_and_all_columns_are_there() {
        for table in Table::LONGEST_FIRST {
            let (whole, rows) = tbl(table, 1, 1);
            let parts: Vec<(String, u64)> = (1..=3).map(|part| tbl(table, part, 3)).collect();
            assert_eq!(parts.iter().map(|(text, _)| &**text).collect::<String>(), whole, "{table:?}");
            assert_eq!(parts.iter().map(|(_, rows)| rows).sum::<u64>(), rows);
            assert_eq!(whole.lines().count() as u64, rows);
            assert!(whole.lines().all(|line| line.matches('|').count() == table.columns().len()), "{table:?}");
            if table != Table::Lineitem {
                assert_eq!(rows, table.expected_rows(0.001), "{table:?}");
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let mut sink = TblSink::new(|_: &[u8], _| Ok(()));
        for (scale, part, parts) in [(0.0, 1, 1), (-1.0, 1, 1), (f64::NAN, 1, 1), (1e6, 1, 1), (1.0, 0, 1), (1.0, 2, 1)]
        {
            assert!(generate(Table::Region, scale, part, parts, &mut sink).is_err(), "{scale} {part} {parts}");
        }
    }
}
