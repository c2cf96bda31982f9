//! PostgreSQL's binary COPY form, as CopyData messages. Source: PostgreSQL 15 documentation, COPY, "Binary Format";
//! the values' forms are those of the types' `recv` functions.

use std::fmt::Display;
use std::io::Write;

use tpchgen::dates::TPCHDate;

use super::RowSink;
use crate::failure::{Code, Failure};
use crate::wire::copy_data::{self, CHUNK_BYTES, TRAILER};
use crate::wire::postgres_numeric::push_numeric;

/// PostgreSQL counts days from 2000-01-01, tpchgen from 1992-01-01.
const DAYS_1992_TO_2000: i32 = 2922;

/// The types that a TPC-H column may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    Int2,
    Int4,
    Int8,
    Numeric,
    Float8,
    Date,
    /// char(n), varchar(n) and text have the same binary form; the server pads and checks the length.
    Text,
}

impl ColumnType {
    /// By the type's fixed object identifier in PostgreSQL's catalog.
    #[must_use]
    pub fn of_oid(oid: u32) -> Option<Self> {
        Some(match oid {
            21 => Self::Int2,
            23 => Self::Int4,
            20 => Self::Int8,
            1700 => Self::Numeric,
            701 => Self::Float8,
            1082 => Self::Date,
            25 | 1042 | 1043 => Self::Text,
            _ => return None,
        })
    }

    /// The type of a column where no catalog says it: order keys are int8, all other integers int4.
    #[must_use]
    pub fn usual(column: &str) -> Self {
        match column {
            "o_orderkey" | "l_orderkey" => Self::Int8,
            "l_quantity" | "l_extendedprice" | "l_discount" | "l_tax" | "o_totalprice" | "ps_supplycost"
            | "c_acctbal" | "s_acctbal" | "p_retailprice" => Self::Numeric,
            "l_linenumber" | "p_size" | "ps_availqty" | "o_shippriority" => Self::Int4,
            _ if column.ends_with("key") => Self::Int4,
            _ if column.ends_with("date") => Self::Date,
            _ => Self::Text,
        }
    }
}

/// Rows in binary COPY form, handed on as CopyData messages (five bytes of header, then content) with the rows so far.
pub struct BinarySink<F> {
    types: Vec<ColumnType>,
    column: usize,
    message: Vec<u8>,
    /// The first value that does not fit its column.
    misfit: Option<(usize, String)>,
    rows: u64,
    /// Places in `message` whose text is still to be copied.
    pending: Vec<(usize, &'static str)>,
    hand_on: F,
}

impl<F: FnMut(&[u8], u64) -> Result<(), Failure>> BinarySink<F> {
    pub fn new(types: Vec<ColumnType>, hand_on: F) -> Self {
        Self { types, column: 0, message: copy_data::begin(), misfit: None, rows: 0, pending: Vec::new(), hand_on }
    }

    /// Writes the end mark and hands on what is left.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.message.extend_from_slice(&TRAILER);
        self.send()
    }

    fn send(&mut self) -> Result<(), Failure> {
        self.copy_pending();
        copy_data::send(&mut self.message, |message| (self.hand_on)(message, self.rows))
    }

    fn copy_pending(&mut self) {
        for (start, text) in self.pending.drain(..) {
            self.message[start..start + text.len()].copy_from_slice(text.as_bytes());
        }
    }

    fn next_type(&mut self) -> ColumnType {
        let column_type = self.types.get(self.column).copied().unwrap_or(ColumnType::Text);
        self.column += 1;
        column_type
    }

    fn value<const N: usize>(&mut self, bytes: [u8; N]) {
        // Every fixed value is at most eight bytes.
        #[expect(clippy::cast_possible_truncation)]
        self.message.extend_from_slice(&(N as u32).to_be_bytes());
        self.message.extend_from_slice(&bytes);
    }

    #[cold]
    fn does_not_fit(&mut self, value: &dyn Display) {
        self.misfit.get_or_insert((self.column - 1, value.to_string()));
    }
}

impl<F: FnMut(&[u8], u64) -> Result<(), Failure>> RowSink for BinarySink<F> {
    #[inline]
    fn begin_row(&mut self, columns: u16) {
        self.column = 0;
        self.message.extend_from_slice(&columns.to_be_bytes());
    }

    #[inline]
    fn integer(&mut self, value: i64) {
        match self.next_type() {
            ColumnType::Int8 => self.value(value.to_be_bytes()),
            ColumnType::Int4 => match i32::try_from(value) {
                Ok(value) => self.value(value.to_be_bytes()),
                Err(_) => self.does_not_fit(&value),
            },
            ColumnType::Int2 => match i16::try_from(value) {
                Ok(value) => self.value(value.to_be_bytes()),
                Err(_) => self.does_not_fit(&value),
            },
            ColumnType::Numeric => push_numeric(&mut self.message, value, 0),
            #[expect(clippy::cast_precision_loss, reason = "a double column cannot hold more")]
            ColumnType::Float8 => self.value((value as f64).to_be_bytes()),
            ColumnType::Date | ColumnType::Text => self.does_not_fit(&value),
        }
    }

    #[inline]
    fn decimal(&mut self, hundredths: i64) {
        match self.next_type() {
            ColumnType::Numeric => push_numeric(&mut self.message, hundredths, 2),
            #[expect(clippy::cast_precision_loss, reason = "a double column cannot hold more")]
            ColumnType::Float8 => self.value((hundredths as f64 / 100.0).to_be_bytes()),
            _ => self.does_not_fit(&tpchgen::decimal::TPCHDecimal(hundredths)),
        }
    }

    #[inline]
    fn date(&mut self, date: TPCHDate) {
        match self.next_type() {
            ColumnType::Date => self.value((date.into_inner() - DAYS_1992_TO_2000).to_be_bytes()),
            _ => self.does_not_fit(&date),
        }
    }

    #[inline]
    fn text(&mut self, text: &str) {
        if self.next_type() != ColumnType::Text {
            return self.does_not_fit(&text);
        }
        // No text of TPC-H is longer than 200 bytes.
        #[expect(clippy::cast_possible_truncation)]
        self.message.extend_from_slice(&(text.len() as u32).to_be_bytes());
        self.message.extend_from_slice(text.as_bytes());
    }

    #[inline]
    fn comment(&mut self, text: &'static str) {
        if self.next_type() != ColumnType::Text {
            return self.does_not_fit(&text);
        }
        #[expect(clippy::cast_possible_truncation)]
        self.message.extend_from_slice(&(text.len() as u32).to_be_bytes());
        self.pending.push((self.message.len(), text));
        self.message.resize(self.message.len() + text.len(), 0);
    }

    #[inline]
    fn shown(&mut self, value: &impl Display) {
        if self.next_type() != ColumnType::Text {
            return self.does_not_fit(value);
        }
        let start = self.message.len();
        self.message.extend_from_slice(&[0; 4]);
        // Writing into memory cannot fail.
        let _ = write!(self.message, "{value}");
        #[expect(clippy::cast_possible_truncation)]
        let length = (self.message.len() - start - 4) as u32;
        self.message[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    #[inline]
    fn end_row(&mut self) -> Result<(), Failure> {
        if let Some((column, value)) = &self.misfit {
            let column_type = self.types.get(*column);
            let text = format!("column {} has the type {column_type:?}, which cannot hold {value:?}", column + 1);
            return Err(Failure::new(Code::BadRequest, text));
        }
        self.rows += 1;
        if self.message.len() >= CHUNK_BYTES { self.send() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::copy_data::SIGNATURE;
    use crate::wire::postgres::HEADER_BYTES;
    use tpchgen::dates::MIN_GENERATE_DATE;

    #[test]
    fn dates_count_from_2000() {
        let date = |offset: i32| {
            let mut sink = BinarySink::new(vec![ColumnType::Date], |_: &[u8], _| Ok(()));
            sink.date(TPCHDate::new(MIN_GENERATE_DATE + offset));
            i32::from_be_bytes(sink.message[HEADER_BYTES + SIGNATURE.len() + 4..].try_into().unwrap())
        };
        assert_eq!(date(0), -2922);
        // 1992 is a leap year: 1993-01-01.
        assert_eq!(date(366), -2556);
        assert_eq!(TPCHDate::new(MIN_GENERATE_DATE + 366).to_string(), "1993-01-01");
    }

    #[test]
    fn a_column_that_cannot_hold_its_value_is_named() {
        let mut sink = BinarySink::new(vec![ColumnType::Int4, ColumnType::Int4], |_: &[u8], _| Ok(()));
        sink.begin_row(2);
        sink.integer(7);
        sink.integer(1 << 40);
        let failure = sink.end_row().unwrap_err();
        assert!(failure.message.contains("column 2") && failure.message.contains("1099511627776"), "{failure}");
    }
}
