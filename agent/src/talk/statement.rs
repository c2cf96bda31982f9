//! Statements that are prepared once on each connection, and the values that are bound to them.

use crate::wire::Dialect;

/// How a parameter is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A four-byte integer.
    Int,
    /// A decimal number with two places.
    Cents,
    Text,
}

/// One value of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    Int(i32),
    /// Hundredths.
    Cents(i64),
    Text(&'a str),
}

/// Appends hundredths as a decimal number.
pub fn push_cents(out: &mut Vec<u8>, cents: i64) {
    let (whole, rest) = (cents.unsigned_abs() / 100, cents.unsigned_abs() % 100);
    if cents < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    let digit = |number: u64| b'0' + u8::try_from(number).unwrap_or(0);
    out.extend_from_slice(&[b'.', digit(rest / 10), digit(rest % 10)]);
}

/// At the end of a query: its rows are locked until the transaction ends. Who reads from a snapshot and lets the first writer of a
/// row win needs none: who would have waited is told to try again.
const LOCKING: &str = " for update";

/// One prepared statement, the same for all terminals. Its number in the workload's list is its name.
#[derive(Debug, Clone)]
pub struct Statement {
    /// With parameters $1, $2 … in the order in which they stand in the text, each once.
    pub sql: String,
    pub parameters: &'static [Kind],
}

impl Statement {
    #[must_use]
    pub fn new(sql: impl Into<String>, parameters: &'static [Kind]) -> Self {
        Self { sql: sql.into(), parameters }
    }

    /// The text as that server wants it.
    #[must_use]
    pub fn text(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::Postgres => self.sql.clone(),
            Dialect::Standard => self.sql.strip_suffix(LOCKING).unwrap_or(&self.sql).to_owned(),
            Dialect::Mysql => with_question_marks(&self.sql),
        }
    }
}

fn with_question_marks(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        text.push('?');
        rest = rest[at + 1..].trim_start_matches(|letter: char| letter.is_ascii_digit());
    }
    text.push_str(rest);
    text
}

/// Whether the parameters stand in the text as `Statement::sql` demands.
#[cfg(test)]
pub(crate) fn is_well_formed(statement: &Statement) -> bool {
    let numbers: Vec<usize> = statement
        .sql
        .split('$')
        .skip(1)
        .map(|after| after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap())
        .collect();
    numbers == (1..=statement.parameters.len()).collect::<Vec<_>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_question_marks() {
        let statement = Statement::new("select a from t where b = $1 and c = $2 limit 1", &[Kind::Int, Kind::Text]);
        assert!(is_well_formed(&statement));
        assert_eq!(statement.text(Dialect::Mysql), "select a from t where b = ? and c = ? limit 1");
        assert_eq!(statement.text(Dialect::Postgres), statement.sql);
        assert_eq!(statement.text(Dialect::Standard), statement.sql);
        assert!(!is_well_formed(&Statement::new("select $2, $1", &[Kind::Int, Kind::Int])));
    }

    #[test]
    fn standard_words_lock_no_rows() {
        let statement = Statement::new("select a from t where b = $1 for update", &[Kind::Int]);
        assert_eq!(statement.text(Dialect::Standard), "select a from t where b = $1");
        assert_eq!(statement.text(Dialect::Postgres), statement.sql);
    }
}
