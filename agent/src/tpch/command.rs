//! `dbtoll-agent tpch`: a table's rows as a file, as TBL or ready for COPY in PostgreSQL's binary form.

use std::fs::File;
use std::io::{self, Write};

use super::binary::{BinarySink, ColumnType};
use super::tbl::TblSink;
use super::{Table, generate};
use crate::failure::Failure;
use crate::wire::postgres::HEADER_BYTES;

/// Takes the options that stand behind `tpch`, in any order.
pub fn run(options: &[&str]) -> Result<(), String> {
    let (mut table, mut scale, mut format, mut part, mut parts, mut output) = (None, None, "tbl", 1, 1, None);
    for pair in options.chunks(2) {
        let &[name, value] = pair else {
            return Err(format!("tpch: {} lacks its value", pair[0]));
        };
        let wrong = || format!("tpch: {name} {value}: not understood");
        match name {
            "--table" => table = Some(Table::of_name(value).ok_or_else(wrong)?),
            "--scale" => scale = Some(value.parse().map_err(|_| wrong())?),
            "--format" if matches!(value, "tbl" | "copy") => format = value,
            "--part" => part = value.parse().map_err(|_| wrong())?,
            "--parts" => parts = value.parse().map_err(|_| wrong())?,
            "--output" => output = Some(value),
            _ => return Err(wrong()),
        }
    }
    let table = table.ok_or("tpch: --table is missing")?;
    let scale = scale.ok_or("tpch: --scale is missing")?;
    let mut file: Box<dyn Write> = match output {
        Some(path) => Box::new(File::create(path).map_err(|error| format!("tpch: {path}: {error}"))?),
        None => Box::new(io::stdout().lock()),
    };
    let mut write = |bytes: &[u8]| file.write_all(bytes).map_err(|error| Failure::io("write", error));
    let written = if format == "tbl" {
        let mut sink = TblSink::new(|bytes: &[u8], _| write(bytes));
        generate(table, scale, part, parts, &mut sink).and_then(|_| sink.finish())
    } else {
        let types = table.columns().iter().map(|column| ColumnType::usual(column)).collect();
        let mut sink = BinarySink::new(types, |message: &[u8], _| write(&message[HEADER_BYTES..]));
        generate(table, scale, part, parts, &mut sink).and_then(|_| sink.finish())
    };
    written.map_err(|failure| format!("tpch: {failure}"))
}
