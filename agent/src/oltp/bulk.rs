//! Rows on their way into a table, in the form that the server loads fastest.

use crate::failure::Failure;
use crate::loading::{CSV_NULL, MYSQL_NULL, SEPARATOR};
use crate::wire::Dialect;
use crate::wire::copy_data::{self, CHUNK_BYTES, TRAILER};
use crate::wire::postgres_numeric::push_numeric;

/// The time that all rows of a population bear, so that the same seed makes the same pages: 2026-01-01 00:00:00.
const TIME_TEXT: &[u8] = b"2026-01-01 00:00:00";
/// The same in microseconds since 2000-01-01, `PostgreSQL`'s epoch.
const TIME_US: i64 = 9497 * 86_400 * 1_000_000;

/// Takes one row after the other: values in the order of the table's columns.
pub trait Sink {
    fn begin_row(&mut self, columns: u16);
    fn int(&mut self, value: i32);
    /// `units` of 10^-`places`.
    fn decimal(&mut self, units: i64, places: u16);
    /// Printable ASCII without backslashes.
    fn text(&mut self, text: &[u8]);
    /// The time of the population.
    fn time(&mut self);
    fn null(&mut self);
    fn end_row(&mut self) -> Result<(), Failure>;
}

/// Rows in the form that `dialect` takes, handed on in pieces (`loading.rs`).
pub enum Bulk<F> {
    Binary(BinaryCopy<F>),
    Lines(Lines<F>),
}

/// Gets a piece of the content, and the rows so far.
pub trait HandOn: FnMut(&[u8], u64) -> Result<(), Failure> {}
impl<F: FnMut(&[u8], u64) -> Result<(), Failure>> HandOn for F {}

/// `PostgreSQL`'s binary COPY form, as `CopyData` messages.
pub struct BinaryCopy<F> {
    message: Vec<u8>,
    rows: u64,
    hand_on: F,
}

impl<F: HandOn> BinaryCopy<F> {
    pub fn new(hand_on: F) -> Self {
        Self { message: copy_data::begin(), rows: 0, hand_on }
    }

    fn value(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.message.extend_from_slice(&length.to_be_bytes());
        self.message.extend_from_slice(bytes);
    }

    fn send(&mut self) -> Result<(), Failure> {
        copy_data::send(&mut self.message, |message| (self.hand_on)(message, self.rows))
    }
}

impl<F: HandOn> Sink for BinaryCopy<F> {
    fn begin_row(&mut self, columns: u16) {
        self.message.extend_from_slice(&columns.to_be_bytes());
    }

    fn int(&mut self, value: i32) {
        self.value(&value.to_be_bytes());
    }

    fn decimal(&mut self, units: i64, places: u16) {
        push_numeric(&mut self.message, units, places);
    }

    fn text(&mut self, text: &[u8]) {
        self.value(text);
    }

    fn time(&mut self) {
        self.value(&TIME_US.to_be_bytes());
    }

    fn null(&mut self) {
        self.message.extend_from_slice(&(-1i32).to_be_bytes());
    }

    fn end_row(&mut self) -> Result<(), Failure> {
        self.rows += 1;
        if self.message.len() >= CHUNK_BYTES { self.send() } else { Ok(()) }
    }
}

/// Lines of values with `SEPARATOR` between them. No text of a population is empty, needs a quote or holds a separator.
pub struct Lines<F> {
    null: &'static [u8],
    content: Vec<u8>,
    is_first: bool,
    rows: u64,
    hand_on: F,
}

impl<F: HandOn> Lines<F> {
    pub fn new(null: &'static [u8], hand_on: F) -> Self {
        Self { null, content: Vec::with_capacity(2 * CHUNK_BYTES), is_first: true, rows: 0, hand_on }
    }

    fn value(&mut self, bytes: &[u8]) {
        if !std::mem::replace(&mut self.is_first, false) {
            self.content.push(SEPARATOR);
        }
        self.content.extend_from_slice(bytes);
    }

    fn send(&mut self) -> Result<(), Failure> {
        (self.hand_on)(&self.content, self.rows)?;
        self.content.clear();
        Ok(())
    }
}

impl<F: HandOn> Sink for Lines<F> {
    fn begin_row(&mut self, _columns: u16) {
        self.is_first = true;
    }

    fn int(&mut self, value: i32) {
        let mut text = [0; 12];
        let written = written(&mut text, format_args!("{value}"));
        self.value(&text[..written]);
    }

    fn decimal(&mut self, units: i64, places: u16) {
        let one = 10u64.pow(u32::from(places));
        let (whole, rest) = (units.unsigned_abs() / one, units.unsigned_abs() % one);
        let sign = if units < 0 { "-" } else { "" };
        let mut text = [0; 40];
        let written = written(&mut text, format_args!("{sign}{whole}.{rest:0width$}", width = usize::from(places)));
        self.value(&text[..written]);
    }

    fn text(&mut self, text: &[u8]) {
        self.value(text);
    }

    fn time(&mut self) {
        self.value(TIME_TEXT);
    }

    fn null(&mut self) {
        self.value(self.null);
    }

    fn end_row(&mut self) -> Result<(), Failure> {
        self.rows += 1;
        self.content.push(b'\n');
        if self.content.len() >= CHUNK_BYTES { self.send() } else { Ok(()) }
    }
}

/// Length of a short number, written without taking memory.
fn written(text: &mut [u8], arguments: std::fmt::Arguments<'_>) -> usize {
    use std::io::Write;
    let mut rest = &mut *text;
    // The room is enough for every value of its type.
    let _ = rest.write_fmt(arguments);
    let left = rest.len();
    text.len() - left
}

impl<F: HandOn> Bulk<F> {
    pub fn new(dialect: Dialect, hand_on: F) -> Self {
        match dialect {
            Dialect::Postgres => Self::Binary(BinaryCopy::new(hand_on)),
            Dialect::Standard => Self::Lines(Lines::new(CSV_NULL, hand_on)),
            Dialect::Mysql => Self::Lines(Lines::new(MYSQL_NULL, hand_on)),
        }
    }

    /// Hands on what is left; returns the rows.
    pub fn finish(self) -> Result<u64, Failure> {
        match self {
            Self::Binary(mut copy) => {
                copy.message.extend_from_slice(&TRAILER);
                copy.send()?;
                Ok(copy.rows)
            }
            Self::Lines(mut load) => {
                load.send()?;
                Ok(load.rows)
            }
        }
    }
}

impl<F: HandOn> Sink for Bulk<F> {
    fn begin_row(&mut self, columns: u16) {
        match self {
            Self::Binary(sink) => sink.begin_row(columns),
            Self::Lines(sink) => sink.begin_row(columns),
        }
    }

    fn int(&mut self, value: i32) {
        match self {
            Self::Binary(sink) => sink.int(value),
            Self::Lines(sink) => sink.int(value),
        }
    }

    fn decimal(&mut self, units: i64, places: u16) {
        match self {
            Self::Binary(sink) => sink.decimal(units, places),
            Self::Lines(sink) => sink.decimal(units, places),
        }
    }

    fn text(&mut self, text: &[u8]) {
        match self {
            Self::Binary(sink) => sink.text(text),
            Self::Lines(sink) => sink.text(text),
        }
    }

    fn time(&mut self) {
        match self {
            Self::Binary(sink) => sink.time(),
            Self::Lines(sink) => sink.time(),
        }
    }

    fn null(&mut self) {
        match self {
            Self::Binary(sink) => sink.null(),
            Self::Lines(sink) => sink.null(),
        }
    }

    fn end_row(&mut self) -> Result<(), Failure> {
        match self {
            Self::Binary(sink) => sink.end_row(),
            Self::Lines(sink) => sink.end_row(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::copy_data::SIGNATURE;

    fn one_row(sink: &mut impl Sink) {
        sink.begin_row(6);
        sink.int(-7);
        sink.decimal(1234, 4);
        sink.decimal(-1005, 2);
        sink.text(b"abc");
        sink.null();
        sink.time();
        sink.end_row().unwrap();
    }

    #[test]
    fn rows_as_lines() {
        let mut seen = Vec::new();
        let mut bulk = Bulk::new(Dialect::Mysql, |piece: &[u8], _| {
            seen.extend_from_slice(piece);
            Ok(())
        });
        one_row(&mut bulk);
        one_row(&mut bulk);
        assert_eq!(bulk.finish().unwrap(), 2);
        let line = b"-7|0.1234|-10.05|abc|\\N|2026-01-01 00:00:00\n";
        assert_eq!(seen, [&line[..], &line[..]].concat());
        seen.clear();
        let mut bulk = Bulk::new(Dialect::Standard, |piece: &[u8], _| {
            seen.extend_from_slice(piece);
            Ok(())
        });
        one_row(&mut bulk);
        assert_eq!(bulk.finish().unwrap(), 1);
        assert_eq!(seen, b"-7|0.1234|-10.05|abc||2026-01-01 00:00:00\n");
    }

    #[test]
    fn rows_in_binary_form() {
        let mut seen = Vec::new();
        let mut bulk = Bulk::new(Dialect::Postgres, |piece: &[u8], _| {
            seen.extend_from_slice(piece);
            Ok(())
        });
        one_row(&mut bulk);
        assert_eq!(bulk.finish().unwrap(), 1);
        assert_eq!(&seen[5..24], SIGNATURE);
        assert_eq!(&seen[24..34], b"\0\x06\0\0\0\x04\xff\xff\xff\xf9");
        assert_eq!(seen[seen.len() - 14..][..4], 8u32.to_be_bytes());
        assert!(seen.ends_with(&TRAILER));
        let length = u32::from_be_bytes(seen[1..5].try_into().unwrap());
        assert_eq!((seen[0], length as usize), (b'd', seen.len() - 1));
    }
}
