//! What an answer was: its digest, its rows as text, and whether they are the expected ones.

use std::fmt::Write;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::wire::postgres::{DATA_ROW, RowValues, Violation, messages};

const SHOWN_CHARACTERS: usize = 200;
const DIGEST_BYTES: usize = 16;

pub type Row = Vec<Option<String>>;

/// How a column is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// Bytes equal.
    Exact,
    /// Bytes equal after dropping trailing blanks: SQL's `char(n)`.
    Trimmed,
    /// Equal within one of the answer's tolerances.
    Numeric,
}

/// The expected answer of a statement.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    pub columns: Vec<Comparison>,
    #[serde(default = "default_relative_tolerance")]
    pub relative_tolerance: f64,
    #[serde(default = "default_absolute_tolerance")]
    pub absolute_tolerance: f64,
    pub rows: Vec<Row>,
}

fn default_relative_tolerance() -> f64 {
    1e-9
}

/// Differences smaller than this are rounding of a sum that should be zero.
fn default_absolute_tolerance() -> f64 {
    1e-12
}

/// The bodies of the DataRow messages in a raw answer.
fn row_bodies(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
    messages(answer).filter(|(tag, _)| *tag == DATA_ROW).map(|(_, body)| body)
}

/// SHA-256, first 16 bytes in hex, of the rows in order: for each row its number of columns (u16), for each value its
/// length (u32, 0xFFFFFFFF for null) and bytes; all numbers little-endian.
pub fn digest(answer: &[u8]) -> Result<String, Violation> {
    let mut hash = Sha256::new();
    for body in row_bodies(answer) {
        let values = RowValues::new(body)?;
        hash.update(values.columns.to_le_bytes());
        for value in values {
            let value = value?;
            // The wire's own lengths are signed 32-bit integers, so every length fits and none is the mark of null.
            let length = value.map_or(u32::MAX, |bytes| u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            hash.update(length.to_le_bytes());
            hash.update(value.unwrap_or_default());
        }
    }
    Ok(hash.finalize()[..DIGEST_BYTES].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

/// Longest answer whose rows are kept as text: each value takes several times what it takes on the wire, and no longer line is sent.
const MAX_KEPT_BYTES: usize = super::lines::MAX_LINE_BYTES;

/// All rows as text. What is not UTF-8 (a database without an encoding) is replaced.
pub fn rows(answer: &[u8]) -> Result<Vec<Row>, Violation> {
    if answer.len() > MAX_KEPT_BYTES {
        return Err(Violation(format!("{} bytes of rows; at most {MAX_KEPT_BYTES} are kept", answer.len())));
    }
    let text = |value: Option<&[u8]>| value.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    row_bodies(answer).map(|body| RowValues::new(body)?.map(|value| Ok(text(value?))).collect()).collect()
}

/// Compares an answer with the expected one; `Some` names the first difference.
pub fn difference(answer: &[u8], expected: &Expected) -> Result<Option<String>, Violation> {
    let mut wanted_rows = expected.rows.iter();
    let mut row_number = 0;
    for body in row_bodies(answer) {
        row_number += 1;
        let Some(wanted_row) = wanted_rows.next() else {
            let count = row_bodies(answer).count();
            return Ok(Some(format!("{count} rows, expected {}", expected.rows.len())));
        };
        let values = RowValues::new(body)?;
        if usize::from(values.columns) != wanted_row.len() {
            let (columns, wanted) = (values.columns, wanted_row.len());
            return Ok(Some(format!("row {row_number}: {columns} columns, expected {wanted}")));
        }
        for (index, (value, wanted)) in values.zip(wanted_row).enumerate() {
            let (value, wanted) = (value?, wanted.as_deref());
            let comparison = expected.columns.get(index).copied().unwrap_or(Comparison::Exact);
            if !is_equal(value, wanted.map(str::as_bytes), comparison, expected) {
                let column = index + 1;
                let (value, wanted) = (shown(value), shown(wanted.map(str::as_bytes)));
                return Ok(Some(format!("row {row_number}, column {column}: {value}, expected {wanted}")));
            }
        }
    }
    if row_number < expected.rows.len() {
        return Ok(Some(format!("{row_number} rows, expected {}", expected.rows.len())));
    }
    Ok(None)
}

fn is_equal(value: Option<&[u8]>, wanted: Option<&[u8]>, comparison: Comparison, expected: &Expected) -> bool {
    let (Some(value), Some(wanted)) = (value, wanted) else {
        return value.is_none() && wanted.is_none();
    };
    match comparison {
        _ if value == wanted => true,
        Comparison::Exact => false,
        Comparison::Trimmed => without_trailing_blanks(value) == without_trailing_blanks(wanted),
        Comparison::Numeric => {
            number(value).zip(number(wanted)).is_some_and(|(value, wanted)| is_close(value, wanted, expected))
        }
    }
}

fn is_close(a: f64, b: f64, expected: &Expected) -> bool {
    let distance = (a - b).abs();
    distance <= expected.absolute_tolerance || distance <= expected.relative_tolerance * a.abs().max(b.abs())
}

/// Finite numbers only: infinities and NaN are equal by their bytes or not at all.
fn number(bytes: &[u8]) -> Option<f64> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

fn without_trailing_blanks(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., b' '] = bytes {
        bytes = rest;
    }
    bytes
}

fn shown(value: Option<&[u8]>) -> String {
    let Some(bytes) = value else {
        return "null".to_owned();
    };
    let text = String::from_utf8_lossy(bytes);
    if text.chars().nth(SHOWN_CHARACTERS).is_none() {
        return format!("{text:?}");
    }
    format!("{:?}…", text.chars().take(SHOWN_CHARACTERS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(rows: &[&[Option<&str>]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for row in rows {
            let mut body = u16::try_from(row.len()).unwrap().to_be_bytes().to_vec();
            for value in *row {
                let length = value.map_or(-1, |text| i32::try_from(text.len()).unwrap());
                body.extend(length.to_be_bytes());
                body.extend(value.unwrap_or_default().as_bytes());
            }
            bytes.push(DATA_ROW);
            bytes.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
            bytes.extend(body);
        }
        bytes.extend(b"C\0\0\0\x0dSELECT 2\0Z\0\0\0\x05I");
        bytes
    }

    fn expected(columns: &[Comparison], rows: &[&[Option<&str>]]) -> Expected {
        Expected {
            columns: columns.to_vec(),
            relative_tolerance: 1e-9,
            absolute_tolerance: 1e-12,
            rows: rows.iter().map(|row| row.iter().map(|value| value.map(str::to_owned)).collect()).collect(),
        }
    }

    fn one(comparison: Comparison, value: &str, wanted: &str) -> bool {
        difference(&answer(&[&[Some(value)]]), &expected(&[comparison], &[&[Some(wanted)]])).unwrap().is_none()
    }

    #[test]
    fn exact_columns_are_compared_byte_by_byte() {
        assert!(one(Comparison::Exact, "a", "a"));
        assert!(!one(Comparison::Exact, "a ", "a"));
        assert!(!one(Comparison::Exact, "1.0", "1"));
        assert!(!one(Comparison::Exact, "", "a"));
    }

    #[test]
    fn trimmed_columns_ignore_only_trailing_blanks() {
        assert!(one(Comparison::Trimmed, "a  ", "a"));
        assert!(one(Comparison::Trimmed, "", "   "));
        assert!(!one(Comparison::Trimmed, " a", "a"));
        assert!(!one(Comparison::Trimmed, "a\t", "a"));
    }

    #[test]
    fn numeric_columns_are_equal_up_to_the_tolerance() {
        assert!(one(Comparison::Numeric, "1.000000000999", "1"));
        assert!(!one(Comparison::Numeric, "1.0000000011", "1"));
        assert!(one(Comparison::Numeric, "123456789012.34", "123456789012.340000"));
        assert!(one(Comparison::Numeric, "-5e2", "-500"));
        assert!(!one(Comparison::Numeric, "5", "-5"));
        assert!(one(Comparison::Numeric, "0", "0.0000000000009"));
        assert!(!one(Comparison::Numeric, "0", "0.0000000000011"));
        assert!(one(Comparison::Numeric, "NaN", "NaN"));
        assert!(!one(Comparison::Numeric, "NaN", "1"));
        assert!(!one(Comparison::Numeric, "Infinity", "1e300"));
        assert!(!one(Comparison::Numeric, "", "0"));
        assert!(!one(Comparison::Numeric, "x", "0"));
    }

    #[test]
    fn null_equals_only_null() {
        let columns = [Comparison::Numeric, Comparison::Exact];
        let wanted = expected(&columns, &[&[None, Some("")]]);
        assert_eq!(difference(&answer(&[&[None, Some("")]]), &wanted), Ok(None));
        let text = difference(&answer(&[&[None, None]]), &wanted).unwrap().unwrap();
        assert_eq!(text, "row 1, column 2: null, expected \"\"");
        let text = difference(&answer(&[&[Some("0"), Some("")]]), &wanted).unwrap().unwrap();
        assert_eq!(text, "row 1, column 1: \"0\", expected null");
    }

    #[test]
    fn the_number_of_rows_and_columns_counts() {
        let wanted = expected(&[Comparison::Exact], &[&[Some("a")], &[Some("b")]]);
        let text = |rows: &[&[Option<&str>]]| difference(&answer(rows), &wanted).unwrap();
        assert_eq!(text(&[&[Some("a")], &[Some("b")]]), None);
        assert_eq!(text(&[&[Some("a")]]).unwrap(), "1 rows, expected 2");
        assert_eq!(text(&[]).unwrap(), "0 rows, expected 2");
        assert_eq!(text(&[&[Some("a")], &[Some("b")], &[Some("c")]]).unwrap(), "3 rows, expected 2");
        assert_eq!(text(&[&[Some("a"), None]]).unwrap(), "row 1: 2 columns, expected 1");
        assert_eq!(text(&[&[Some("a")], &[Some("c")]]).unwrap(), "row 2, column 1: \"c\", expected \"b\"");
    }

    #[test]
    fn long_values_are_cut() {
        let text = difference(
            &answer(&[&[Some(&"ä".repeat(500))]]),
            &expected(&[Comparison::Exact], &[&[Some(&"b".repeat(200))]]),
        );
        let wanted = format!("row 1, column 1: \"{}\"…, expected \"{}\"", "ä".repeat(200), "b".repeat(200));
        assert_eq!(text.unwrap().unwrap(), wanted);
    }

    #[test]
    fn the_digest_is_the_documented_one() {
        // printf '\x02\x00\x01\x00\x00\x00a\xff\xff\xff\xff\x02\x00\x00\x00\x00\x00\x01\x00\x00\x00b' | sha256sum
        let rows: [&[Option<&str>]; 2] = [&[Some("a"), None], &[Some(""), Some("b")]];
        assert_eq!(digest(&answer(&rows)).unwrap(), "a6bbb55afe388946b9464acd5aad11a0");
        assert_eq!(digest(&answer(&[])).unwrap(), "e3b0c44298fc1c149afbf4c8996fb924");
    }

    #[test]
    fn a_row_that_lies_about_its_length_is_a_violation() {
        let broken = b"D\0\0\0\x0b\0\x01\0\0\0\x09a";
        assert!(digest(broken).is_err());
        assert!(rows(broken).is_err());
        assert!(difference(broken, &expected(&[Comparison::Exact], &[&[Some("a")]])).is_err());
    }
}
