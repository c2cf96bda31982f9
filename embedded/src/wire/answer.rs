//! The rows of one statement on their way to the client.

use std::io;

use super::output::{Output, push_c_string};
use crate::engine::{Column, ColumnKind, oid};

/// Takes an engine's rows and sends them while they come: never more than one piece of them is in memory here.
pub struct Answer<'a> {
    output: &'a mut Output,
    /// The simple protocol describes rows before it sends them; in the extended one the client asks for that.
    has_description: bool,
    columns: u16,
    rows: u64,
    row_start: usize,
}

impl<'a> Answer<'a> {
    #[must_use]
    pub fn new(output: &'a mut Output, has_description: bool) -> Self {
        Self { output, has_description, columns: 0, rows: 0, row_start: 0 }
    }

    /// Called once, before the first row.
    pub fn columns(&mut self, columns: &[Column]) {
        self.columns = u16::try_from(columns.len()).unwrap_or(u16::MAX);
        if self.has_description {
            row_description(self.output, columns);
        }
    }

    pub fn begin_row(&mut self) {
        let bytes = self.output.bytes();
        bytes.push(b'D');
        let start = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.columns.to_be_bytes());
        self.row_start = start;
    }

    pub fn null(&mut self) {
        self.output.bytes().extend_from_slice(&(-1i32).to_be_bytes());
    }

    /// A value's text.
    pub fn value(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let bytes = self.output.bytes();
        let start = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        write(bytes);
        self.output.patch_length(start, 4);
    }

    /// A value's text, or NULL where `write` returns false.
    pub fn value_or_null(&mut self, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let bytes = self.output.bytes();
        let start = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        if write(bytes) {
            self.output.patch_length(start, 4);
        } else {
            bytes.truncate(start);
            self.null();
        }
    }

    pub fn end_row(&mut self) -> io::Result<()> {
        self.output.patch_length(self.row_start, 0);
        self.rows += 1;
        self.output.flush_if_full()
    }

    /// How many rows there were.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// RowDescription: all values as text.
pub fn row_description(output: &mut Output, columns: &[Column]) {
    output.message(b'T', |out| {
        out.extend_from_slice(&u16::try_from(columns.len()).unwrap_or(u16::MAX).to_be_bytes());
        for Column { name, kind } in columns {
            push_c_string(out, name);
            // No table, no number of a column in it.
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&kind.oid.to_be_bytes());
            out.extend_from_slice(&bytes_of(*kind).to_be_bytes());
            out.extend_from_slice(&kind.modifier.to_be_bytes());
            out.extend_from_slice(&0u16.to_be_bytes());
        }
    });
}

/// `pg_type.typlen`.
fn bytes_of(kind: ColumnKind) -> i16 {
    match kind.oid {
        oid::BOOL => 1,
        oid::INT2 => 2,
        oid::INT4 | oid::FLOAT4 | oid::DATE => 4,
        oid::INT8 | oid::FLOAT8 | oid::TIME | oid::TIMESTAMP | oid::TIMESTAMPTZ => 8,
        oid::INTERVAL | oid::UUID => 16,
        _ => -1,
    }
}
