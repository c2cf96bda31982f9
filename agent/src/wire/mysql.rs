//! The protocol of `MariaDB` (and `MySQL`) without any input or output: packets, the greeting, native passwords, prepared
//! statements in the binary form, results.
//!
//! Every length that a server sends is checked before it is used. Source: `MariaDB` Knowledge Base, "Client/Server
//! Protocol"; the numbers are those of `MariaDB`'s `include/mysql_com.h`.

use sha1::{Digest, Sha1};

use super::postgres::{ServerError, Violation};

/// Length of what follows (three bytes) and a sequence number.
pub const HEADER_BYTES: usize = 4;
/// A packet of this length is continued in the next one. What is longer is not understood here: no statement of ours has
/// such answers.
pub const MAX_PACKET_BYTES: usize = 0xff_ffff;

const COM_QUIT: u8 = 0x01;
const COM_QUERY: u8 = 0x03;
const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_EXECUTE: u8 = 0x17;

const CLIENT_LONG_PASSWORD: u32 = 1;
/// "Affected" are the rows that a statement found, as in PostgreSQL, and not only those that it gave another value.
const CLIENT_FOUND_ROWS: u32 = 1 << 1;
const CLIENT_LONG_FLAG: u32 = 1 << 2;
const CLIENT_CONNECT_WITH_DB: u32 = 1 << 3;
const CLIENT_LOCAL_FILES: u32 = 1 << 7;
const CLIENT_PROTOCOL_41: u32 = 1 << 9;
const CLIENT_TRANSACTIONS: u32 = 1 << 13;
const CLIENT_SECURE_CONNECTION: u32 = 1 << 15;
const CLIENT_MULTI_STATEMENTS: u32 = 1 << 16;
const CLIENT_MULTI_RESULTS: u32 = 1 << 17;
const CLIENT_PS_MULTI_RESULTS: u32 = 1 << 18;
const CLIENT_PLUGIN_AUTH: u32 = 1 << 19;
const CLIENT_DEPRECATE_EOF: u32 = 1 << 24;

const CAPABILITIES: u32 = CLIENT_LONG_PASSWORD
    | CLIENT_FOUND_ROWS
    | CLIENT_LONG_FLAG
    | CLIENT_CONNECT_WITH_DB
    | CLIENT_LOCAL_FILES
    | CLIENT_PROTOCOL_41
    | CLIENT_TRANSACTIONS
    | CLIENT_SECURE_CONNECTION
    | CLIENT_MULTI_STATEMENTS
    | CLIENT_MULTI_RESULTS
    | CLIENT_PS_MULTI_RESULTS
    | CLIENT_PLUGIN_AUTH
    | CLIENT_DEPRECATE_EOF;

/// `SERVER_STATUS_IN_TRANS` and `SERVER_MORE_RESULTS_EXISTS` of the status in an OK packet.
const STATUS_IN_TRANSACTION: u16 = 1;
const STATUS_MORE_RESULTS: u16 = 8;

/// `utf8mb4_general_ci`. The server's own default decides how columns compare.
const CHARACTER_SET: u8 = 45;
const NATIVE_PASSWORD: &[u8] = b"mysql_native_password";
const SCRAMBLE_BYTES: usize = 20;

const TYPE_TINY: u8 = 1;
const TYPE_SHORT: u8 = 2;
const TYPE_LONG: u8 = 3;
const TYPE_FLOAT: u8 = 4;
const TYPE_DOUBLE: u8 = 5;
const TYPE_NULL: u8 = 6;
const TYPE_TIMESTAMP: u8 = 7;
const TYPE_LONGLONG: u8 = 8;
const TYPE_INT24: u8 = 9;
const TYPE_DATE: u8 = 10;
const TYPE_TIME: u8 = 11;
const TYPE_DATETIME: u8 = 12;
const TYPE_YEAR: u8 = 13;
const TYPE_VAR_STRING: u8 = 253;
const TYPE_NEW_DECIMAL: u8 = 246;
const FLAG_UNSIGNED: u16 = 32;

fn cut_short() -> Violation {
    Violation("a packet that is shorter than it says".to_owned())
}

/// The packet at the start of `bytes`, without its header, and its sequence number; `None` while it is not whole.
pub fn packet(bytes: &[u8]) -> Result<Option<(u8, &[u8])>, Violation> {
    let Some((&[a, b, c, sequence], rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes([a, b, c, 0]) as usize;
    if length == MAX_PACKET_BYTES {
        return Err(Violation(format!("a packet of {MAX_PACKET_BYTES} bytes or more")));
    }
    Ok(rest.get(..length).map(|body| (sequence, body)))
}

/// Appends a packet whose body `write` makes.
pub fn push_packet(out: &mut Vec<u8>, sequence: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, sequence]);
    write(out);
    let length = u32::try_from(out.len() - start - HEADER_BYTES).unwrap_or(u32::MAX);
    debug_assert!((length as usize) < MAX_PACKET_BYTES);
    out[start..start + 3].copy_from_slice(&length.to_le_bytes()[..3]);
}

/// What is left of a packet's body.
#[derive(Debug, Clone, Copy)]
pub struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Violation> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, Violation> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self, bytes: usize) -> Result<u64, Violation> {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(self.take(bytes)?);
        Ok(u64::from_le_bytes(number))
    }

    fn short(&mut self) -> Result<u16, Violation> {
        let taken = self.take(2)?;
        Ok(u16::from_le_bytes([taken[0], taken[1]]))
    }

    /// A length-encoded integer.
    pub fn length(&mut self) -> Result<u64, Violation> {
        match self.byte()? {
            small @ 0..=0xfa => Ok(u64::from(small)),
            0xfc => self.number(2),
            0xfd => self.number(3),
            0xfe => self.number(8),
            other => Err(Violation(format!("a length that begins with {other:#x}"))),
        }
    }

    /// A length-encoded text.
    pub fn text(&mut self) -> Result<&'a [u8], Violation> {
        let length = usize::try_from(self.length()?).map_err(|_| cut_short())?;
        self.take(length)
    }

    fn until_zero(&mut self) -> Result<&'a [u8], Violation> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or_else(cut_short)?;
        let text = self.take(end)?;
        self.byte()?;
        Ok(text)
    }
}

/// The server's first packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    pub version: String,
    pub thread: u32,
    pub scramble: [u8; SCRAMBLE_BYTES],
}

pub fn greeting(body: &[u8]) -> Result<Greeting, Violation> {
    const REST_OF_FIXED_BYTES: usize = 1 + 2 + 1 + 2 + 2 + 1 + 10;
    let mut body = Body(body);
    let version = body.byte()?;
    if version != 10 {
        return Err(Violation(format!("a greeting of protocol {version}")));
    }
    let server = String::from_utf8_lossy(body.until_zero()?).into_owned();
    let thread = u32::try_from(body.number(4)?).unwrap_or(0);
    let mut scramble = [0; SCRAMBLE_BYTES];
    scramble[..8].copy_from_slice(body.take(8)?);
    body.take(REST_OF_FIXED_BYTES)?;
    scramble[8..].copy_from_slice(body.take(SCRAMBLE_BYTES - 8)?);
    Ok(Greeting { version: server, thread, scramble })
}

/// The answer to the greeting; with a native password, whatever the server would rather have.
pub fn push_login(out: &mut Vec<u8>, user: &str, password: Option<&str>, database: &str, scramble: &[u8]) {
    push_packet(out, 1, |out| {
        out.extend_from_slice(&CAPABILITIES.to_le_bytes());
        out.extend_from_slice(&u32::try_from(MAX_PACKET_BYTES).unwrap_or(u32::MAX).to_le_bytes());
        out.push(CHARACTER_SET);
        out.extend_from_slice(&[0; 23]);
        out.extend_from_slice(user.as_bytes());
        out.push(0);
        let proof = native_proof(password, scramble);
        out.push(u8::try_from(proof.len()).unwrap_or(0));
        out.extend_from_slice(&proof);
        out.extend_from_slice(database.as_bytes());
        out.push(0);
        out.extend_from_slice(NATIVE_PASSWORD);
        out.push(0);
    });
}

/// The proof for a request to authenticate in another way, if that is by native password; else its name.
pub fn proof_on_request(body: &[u8], password: Option<&str>) -> Result<Vec<u8>, Violation> {
    let mut body = Body(body);
    body.byte()?;
    let plugin = body.until_zero()?;
    if plugin != NATIVE_PASSWORD {
        let name = String::from_utf8_lossy(plugin);
        return Err(Violation(format!("it asks to authenticate by {name}, which is not known here")));
    }
    let scramble = body.0.get(..SCRAMBLE_BYTES).ok_or_else(cut_short)?;
    Ok(native_proof(password, scramble))
}

/// SHA1(password) XOR SHA1(scramble + SHA1(SHA1(password))); empty without a password.
fn native_proof(password: Option<&str>, scramble: &[u8]) -> Vec<u8> {
    let Some(password) = password.filter(|password| !password.is_empty()) else {
        return Vec::new();
    };
    let once = Sha1::digest(password.as_bytes());
    let twice = Sha1::digest(once);
    let mixed = Sha1::new().chain_update(scramble).chain_update(twice).finalize();
    once.iter().zip(mixed).map(|(a, b)| a ^ b).collect()
}

pub fn push_quit(out: &mut Vec<u8>) {
    push_packet(out, 0, |out| out.push(COM_QUIT));
}

/// A request in the text form; may hold several statements.
pub fn push_query(out: &mut Vec<u8>, sql: &str) {
    push_packet(out, 0, |out| {
        out.push(COM_QUERY);
        out.extend_from_slice(sql.as_bytes());
    });
}

pub fn push_prepare(out: &mut Vec<u8>, sql: &str) {
    push_packet(out, 0, |out| {
        out.push(COM_STMT_PREPARE);
        out.extend_from_slice(sql.as_bytes());
    });
}

/// One bound value.
#[derive(Debug, Clone, Copy)]
pub enum Bound<'a> {
    Int(i32),
    /// A decimal number, written out.
    Decimal(&'a [u8]),
    Text(&'a [u8]),
}

/// Executes a prepared statement. `values` is gone through three times: for nulls (there are none), types and values.
pub fn push_execute<'a>(out: &mut Vec<u8>, statement: u32, values: impl ExactSizeIterator<Item = Bound<'a>> + Clone) {
    push_packet(out, 0, |out| {
        out.push(COM_STMT_EXECUTE);
        out.extend_from_slice(&statement.to_le_bytes());
        out.push(0); // no cursor
        out.extend_from_slice(&1u32.to_le_bytes());
        if values.len() == 0 {
            return;
        }
        out.resize(out.len() + values.len().div_ceil(8), 0);
        out.push(1); // types follow
        for value in values.clone() {
            out.extend_from_slice(&match value {
                Bound::Int(_) => [TYPE_LONG, 0],
                Bound::Decimal(_) => [TYPE_NEW_DECIMAL, 0],
                Bound::Text(_) => [TYPE_VAR_STRING, 0],
            });
        }
        for value in values {
            match value {
                Bound::Int(value) => out.extend_from_slice(&value.to_le_bytes()),
                Bound::Decimal(text) | Bound::Text(text) => push_text(out, text),
            }
        }
    });
}

fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    let length = text.len().to_le_bytes();
    match text.len() {
        0..=0xfa => out.push(length[0]),
        0xfb..=0xffff => out.extend_from_slice(&[0xfc, length[0], length[1]]),
        _ => out.extend_from_slice(&[0xfd, length[0], length[1], length[2]]),
    }
    out.extend_from_slice(text);
}

/// The end of a result, or of a statement that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    pub affected: u64,
    pub is_in_transaction: bool,
    pub has_more: bool,
}

/// An OK packet, whatever its first byte.
pub fn done(body: &[u8]) -> Result<Done, Violation> {
    let mut body = Body(body);
    body.byte()?;
    let affected = body.length()?;
    body.length()?;
    let status = body.short()?;
    Ok(Done {
        affected,
        is_in_transaction: status & STATUS_IN_TRANSACTION != 0,
        has_more: status & STATUS_MORE_RESULTS != 0,
    })
}

/// An ERR packet.
#[must_use]
pub fn server_error(body: &[u8]) -> ServerError {
    /// The server has gone, or has ended this session: `ER_SERVER_SHUTDOWN`, `ER_CONNECTION_KILLED`.
    const FATAL: [u16; 2] = [1053, 1927];
    let number = body.get(1..3).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let rest = body.get(3..).unwrap_or_default();
    let (state, message) = match rest.strip_prefix(b"#").and_then(|rest| rest.split_at_checked(5)) {
        Some((state, message)) => (String::from_utf8_lossy(state).into_owned(), message),
        None => ("HY000".to_owned(), rest),
    };
    ServerError {
        sqlstate: state,
        number: Some(number),
        message: String::from_utf8_lossy(message).into_owned(),
        position: None,
        is_fatal: FATAL.contains(&number),
    }
}

/// What the server knows of a prepared statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    pub statement: u32,
    pub columns: u16,
    pub parameters: u16,
}

/// The first packet of the answer to a request to prepare; a packet for each parameter and each column follows (without
/// marks between them, as those are deprecated).
pub fn prepared(body: &[u8]) -> Result<Prepared, Violation> {
    let mut body = Body(body);
    body.byte()?;
    let statement = u32::try_from(body.number(4)?).unwrap_or(0);
    Ok(Prepared { statement, columns: body.short()?, parameters: body.short()? })
}

/// How the values of one column come in the binary form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    kind: u8,
    is_unsigned: bool,
}

/// Reads a column's definition, and its name.
pub fn column(body: &[u8]) -> Result<(Column, &[u8]), Violation> {
    let mut body = Body(body);
    for _ in 0..4 {
        body.text()?; // catalog, schema, table, original table
    }
    let name = body.text()?;
    body.text()?; // original name
    body.length()?;
    body.take(2 + 4)?; // character set, length
    let kind = body.byte()?;
    let flags = body.short()?;
    Ok((Column { kind, is_unsigned: flags & FLAG_UNSIGNED != 0 }, name))
}

/// A value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell<'a> {
    Null,
    Int(i64),
    Bytes(&'a [u8]),
}

/// The values of a row in the binary form, one for each of `columns`.
pub fn binary_row<'a>(body: &'a [u8], columns: &[Column], mut take: impl FnMut(Cell<'a>)) -> Result<(), Violation> {
    let mut body = Body(body);
    body.byte()?;
    let nulls = body.take((columns.len() + 2).div_ceil(8))?;
    for (index, column) in columns.iter().enumerate() {
        let bit = index + 2;
        let cell = if nulls[bit / 8] & (1 << (bit % 8)) == 0 { binary_cell(&mut body, *column)? } else { Cell::Null };
        take(cell);
    }
    Ok(())
}

fn binary_cell<'a>(body: &mut Body<'a>, column: Column) -> Result<Cell<'a>, Violation> {
    let bytes = match column.kind {
        TYPE_TINY => 1,
        TYPE_SHORT | TYPE_YEAR => 2,
        TYPE_LONG | TYPE_INT24 => 4,
        TYPE_LONGLONG => 8,
        // No workload has columns of these; kept as they come.
        TYPE_FLOAT => return Ok(Cell::Bytes(body.take(4)?)),
        TYPE_DOUBLE => return Ok(Cell::Bytes(body.take(8)?)),
        TYPE_NULL => return Ok(Cell::Null),
        // Their parts, after a byte that says how many: kept as they come.
        TYPE_DATE | TYPE_DATETIME | TYPE_TIMESTAMP | TYPE_TIME => {
            let length = usize::from(body.byte()?);
            return Ok(Cell::Bytes(body.take(length)?));
        }
        _ => return Ok(Cell::Bytes(body.text()?)),
    };
    let number = body.number(bytes)?;
    let shift = 64 - 8 * u32::try_from(bytes).unwrap_or(8);
    #[expect(clippy::cast_possible_wrap, reason = "signed numbers come so; unsigned ones beyond 2^63 are in no column")]
    let signed = number as i64;
    // The sign is in the highest bit of as many bytes as there are.
    Ok(Cell::Int(if column.is_unsigned { signed } else { signed << shift >> shift }))
}

/// The values of a row in the text form.
pub fn text_row<'a>(body: &'a [u8], columns: usize, mut take: impl FnMut(Option<&'a [u8]>)) -> Result<(), Violation> {
    const NULL: u8 = 0xfb;
    let mut body = Body(body);
    for _ in 0..columns {
        if body.0.first() == Some(&NULL) {
            body.byte()?;
            take(None);
        } else {
            take(Some(body.text()?));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_are_framed() {
        let mut out = Vec::new();
        push_query(&mut out, "select 1");
        assert_eq!(out, b"\x09\0\0\0\x03select 1");
        assert_eq!(packet(&out).unwrap(), Some((0, &b"\x03select 1"[..])));
        for cut in 0..out.len() {
            assert_eq!(packet(&out[..cut]).unwrap(), None);
        }
        assert!(packet(b"\xff\xff\xff\0").is_err());
    }

    #[test]
    fn a_native_password_is_proved() {
        // Seen between libmariadb 3.3 and MariaDB 10.11 for this scramble and password would be the same: the formula's
        // own inverse is what the server does.
        let scramble = *b"abcdefghijklmnopqrst";
        let proof = native_proof(Some("secret"), &scramble);
        let twice = Sha1::digest(Sha1::digest(b"secret"));
        let mixed = Sha1::new().chain_update(scramble).chain_update(twice).finalize();
        let once: Vec<u8> = proof.iter().zip(mixed).map(|(a, b)| a ^ b).collect();
        assert_eq!(Sha1::digest(&once), twice);
        assert!(native_proof(None, &scramble).is_empty() && native_proof(Some(""), &scramble).is_empty());
    }

    #[test]
    fn values_are_bound_in_order() {
        let mut out = Vec::new();
        push_execute(&mut out, 7, [Bound::Int(-2), Bound::Decimal(b"1.50"), Bound::Text(b"x")].into_iter());
        let (_, body) = packet(&out).unwrap().unwrap();
        assert_eq!(body[..10], [COM_STMT_EXECUTE, 7, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(body[10..12], [0, 1]);
        assert_eq!(body[12..18], [TYPE_LONG, 0, TYPE_NEW_DECIMAL, 0, TYPE_VAR_STRING, 0]);
        assert_eq!(&body[18..], b"\xfe\xff\xff\xff\x041.50\x01x");
    }

    #[test]
    fn rows_are_read_by_their_columns_types() {
        let column = |kind, is_unsigned| Column { kind, is_unsigned };
        let columns = [
            column(TYPE_LONG, false),
            column(TYPE_TINY, true),
            column(TYPE_NEW_DECIMAL, false),
            column(TYPE_VAR_STRING, false),
        ];
        // The last one is null: bit 5.
        let body = b"\0\x20\xff\xff\xff\xff\xff\x0512.34";
        let mut cells = Vec::new();
        binary_row(body, &columns, |cell| cells.push(cell)).unwrap();
        assert_eq!(cells, [Cell::Int(-1), Cell::Int(255), Cell::Bytes(b"12.34"), Cell::Null]);
    }

    #[test]
    fn errors_have_a_state_and_a_number() {
        let error = server_error(b"\xff\xbd\x04#40001Deadlock found");
        assert_eq!((error.number, &*error.sqlstate, &*error.message), (Some(1213), "40001", "Deadlock found"));
        assert!(server_error(b"\xff\x1d\x04#08S01bye").is_fatal);
        assert_eq!(server_error(b"\xff").sqlstate, "HY000");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), kinds in proptest::collection::vec(any::<u8>(), 0..9)) {
            let _ = packet(&bytes);
            let _ = greeting(&bytes);
            let _ = proof_on_request(&bytes, Some("x"));
            let _ = done(&bytes);
            let _ = server_error(&bytes);
            let _ = prepared(&bytes);
            let _ = column(&bytes);
            let columns: Vec<Column> = kinds.iter().map(|&kind| Column { kind, is_unsigned: false }).collect();
            let _ = binary_row(&bytes, &columns, |_| {});
            let _ = text_row(&bytes, columns.len(), |_| {});
        }
    }
}
