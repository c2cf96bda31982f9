//! The answer to one statement, as it lies in the input of a connection.

use crate::wire::blocking::Trouble;

/// No workload has longer texts; they go back to the server in other statements.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// A value: what it is, or where it lies in the input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Held {
    Null,
    Int(i64),
    Bytes { start: usize, end: usize },
}

/// The answer to one statement.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    pub(super) input: &'a [u8],
    pub(super) held: &'a [Held],
    pub(super) columns: usize,
    /// Rows inserted, changed or removed; of a query, its rows.
    pub affected: u64,
}

impl<'a> Rows<'a> {
    #[must_use]
    pub fn count(&self) -> usize {
        self.held.len().checked_div(self.columns).unwrap_or(0)
    }

    fn at(&self, row: usize, column: usize) -> Result<Held, Trouble> {
        let known = (column < self.columns).then(|| self.held.get(row * self.columns + column)).flatten();
        known.copied().ok_or_else(|| strange(&format!("an answer without column {column} in row {row}")))
    }

    /// None for null.
    pub fn bytes(&self, row: usize, column: usize) -> Result<Option<&'a [u8]>, Trouble> {
        match self.at(row, column)? {
            Held::Null => Ok(None),
            Held::Bytes { start, end } => Ok(Some(&self.input[start..end])),
            Held::Int(value) => Err(strange(&format!("the number {value} where a text is expected"))),
        }
    }

    pub fn int(&self, row: usize, column: usize) -> Result<i32, Trouble> {
        let value = match self.at(row, column)? {
            Held::Int(value) => Some(value),
            Held::Bytes { start, end } => integer(&self.input[start..end]),
            Held::Null => None,
        };
        let value = value.and_then(|value| i32::try_from(value).ok());
        value.ok_or_else(|| strange(&format!("no integer in column {column}")))
    }

    /// A number with at most `places` decimal places, in units of the last one; None for null.
    pub fn decimal(&self, row: usize, column: usize, places: u32) -> Result<Option<i64>, Trouble> {
        let value = match self.at(row, column)? {
            Held::Null => return Ok(None),
            Held::Int(value) => value.checked_mul(10i64.pow(places)),
            Held::Bytes { start, end } => decimal(&self.input[start..end], places as usize),
        };
        value.map(Some).ok_or_else(|| strange(&format!("no decimal number in column {column}")))
    }

    // The values of the first row; from an imitation, whose answers are empty, any value will do.

    pub fn int_at(&self, column: usize, imitation: bool) -> Result<i32, Trouble> {
        if imitation { Ok(1) } else { self.int(0, column) }
    }

    /// Null as 0.
    pub fn decimal_at(&self, column: usize, places: u32, imitation: bool) -> Result<i64, Trouble> {
        if imitation { Ok(1) } else { Ok(self.decimal(0, column, places)?.unwrap_or(0)) }
    }

    /// Null as the empty text.
    pub fn text_at(&self, column: usize, imitation: bool) -> Result<String, Trouble> {
        let bytes =
            if imitation { &b"imitated by nobody in a"[..] } else { self.bytes(0, column)?.unwrap_or_default() };
        if bytes.len() > MAX_TEXT_BYTES {
            return Err(strange(&format!("a text of {} bytes in column {column}", bytes.len())));
        }
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The first value of the row in the middle, of an even number that before it (TPC-C clause 2.5.2.2: n/2 rounded up).
    pub fn middle_int(&self, imitation: bool) -> Result<i32, Trouble> {
        if imitation { Ok(1) } else { self.int(self.count().div_ceil(2).saturating_sub(1), 0) }
    }
}

#[must_use]
pub fn strange(text: &str) -> Trouble {
    Trouble::Lost(format!("the server sent {text}"))
}

fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn decimal(text: &[u8], places: usize) -> Option<i64> {
    let (is_negative, digits) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = match digits.iter().position(|&byte| byte == b'.') {
        Some(point) => (&digits[..point], &digits[point + 1..]),
        None => (digits, &[][..]),
    };
    if whole.is_empty() || fraction.len() > places {
        return None;
    }
    let padding = std::iter::repeat_n(&b'0', places - fraction.len());
    let magnitude = whole.iter().chain(fraction).chain(padding).try_fold(0i64, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })?;
    Some(if is_negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_exactly() {
        for (text, places, value) in [
            ("12.34", 2, Some(1234)),
            ("-0.05", 2, Some(-5)),
            ("7", 4, Some(70_000)),
            ("0.1234", 4, Some(1234)),
            ("1.234", 2, None),
            ("", 2, None),
            (".5", 2, None),
            ("1e3", 2, None),
            ("99999999999999999999", 0, None),
        ] {
            assert_eq!(decimal(text.as_bytes(), places), value, "{text}");
        }
    }

    #[test]
    fn values_are_found_by_row_and_column() {
        let held = [Held::Int(7), Held::Bytes { start: 0, end: 3 }, Held::Int(8), Held::Null];
        let rows = Rows { input: b"abc", held: &held, columns: 2, affected: 2 };
        assert_eq!(rows.count(), 2);
        assert_eq!((rows.int(1, 0), rows.bytes(0, 1), rows.bytes(1, 1)), (Ok(8), Ok(Some(&b"abc"[..])), Ok(None)));
        assert!(rows.int(2, 0).is_err() && rows.int(0, 2).is_err() && rows.int(1, 1).is_err());
        assert_eq!(Rows { columns: 0, held: &[], ..rows }.count(), 0);
    }
}
