//! The PostgreSQL wire protocol 3.0 without any input or output: framing, start-up, authentication, errors.
//!
//! Every length that a server sends is checked before it is used, and none of them makes us take memory: a buffer
//! grows only by bytes that have arrived. Source: PostgreSQL 15 documentation, chapter 55 "Frontend/Backend Protocol".

use std::fmt;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{ErrorFields, Message};
use postgres_protocol::message::frontend;

/// Longest message that either side may send, without its tag: PostgreSQL's own limit (`MaxAllocSize`).
pub const MAX_MESSAGE_BYTES: usize = 0x3fff_ffff;
/// Longest message accepted before the session is ready, where nothing longer has any business.
pub const MAX_STARTUP_MESSAGE_BYTES: usize = 64 * 1024;

pub const DATA_ROW: u8 = b'D';
pub const ROW_DESCRIPTION: u8 = b'T';
pub const COMMAND_COMPLETE: u8 = b'C';
pub const COPY_IN_RESPONSE: u8 = b'G';
pub const ERROR_RESPONSE: u8 = b'E';
pub const READY_FOR_QUERY: u8 = b'Z';

/// A server chooses how often its password is hashed, and could keep us busy for hours; its own default is 4096.
const MAX_SCRAM_ITERATIONS: u64 = 100_000;

const TAG_BYTES: usize = 1;
/// A tag and the length of the rest.
pub const HEADER_BYTES: usize = 5;

/// The peer broke the protocol; nothing more that it sends on this connection can be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// An ErrorResponse of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    pub sqlstate: String,
    /// `MariaDB`'s own number of the error.
    pub number: Option<u16>,
    pub message: String,
    /// Character position in the statement, from 1.
    pub position: Option<u32>,
    /// FATAL or PANIC: the server ends the session.
    pub is_fatal: bool,
}

impl fmt::Display for ServerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (SQLSTATE {})", self.message, self.sqlstate)
    }
}

/// One message's tag and its whole length in bytes, tag included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub tag: u8,
    pub total_bytes: usize,
}

/// Reads the header at the start of `bytes`; `None` while fewer than five bytes are there.
pub fn header(bytes: &[u8], max_message_bytes: usize) -> Result<Option<Header>, Violation> {
    let Some((&[tag, a, b, c, d], _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if !(HEADER_BYTES - TAG_BYTES..=max_message_bytes).contains(&length) {
        return Err(Violation(format!("a message {:?} of {length} bytes", char::from(tag))));
    }
    Ok(Some(Header { tag, total_bytes: TAG_BYTES + length }))
}

/// Finds the end of an answer in a buffer that fills up, by looking at nothing but the message headers.
#[derive(Debug, Default, Clone, Copy)]
pub struct AnswerScan {
    next: usize,
    pub rows: u64,
    /// Bytes of all DataRow messages, headers included.
    pub row_bytes: u64,
    pub has_error: bool,
    /// The server waits for COPY data, which no statement of ours sends.
    pub wants_copy_data: bool,
    /// Transaction status of the ReadyForQuery that ended the answer: `I`dle, in a `T`ransaction, `E` in a failed one.
    pub ready: Option<u8>,
}

impl AnswerScan {
    /// Looks at the messages that `filled` (the whole answer so far) now holds; true when ReadyForQuery is among them.
    pub fn advance(&mut self, filled: &[u8]) -> Result<bool, Violation> {
        while self.ready.is_none() {
            let Some(Header { tag, total_bytes }) = header(&filled[self.next.min(filled.len())..], MAX_MESSAGE_BYTES)?
            else {
                return Ok(false);
            };
            match tag {
                DATA_ROW => {
                    // Counted once, on the header; whether the rest has arrived shows at the next header.
                    self.rows += 1;
                    self.row_bytes += total_bytes as u64;
                }
                READY_FOR_QUERY => {
                    let Some(message) = filled.get(self.next..self.next + total_bytes) else {
                        return Ok(false);
                    };
                    self.ready = Some(*message.get(HEADER_BYTES).unwrap_or(&b'I'));
                }
                ERROR_RESPONSE => self.has_error = true,
                COPY_IN_RESPONSE => self.wants_copy_data = true,
                _ => {}
            }
            self.next += total_bytes;
        }
        Ok(true)
    }

    /// Length of the answer in bytes, once `ready`.
    #[must_use]
    pub fn end(&self) -> usize {
        self.next
    }
}

/// The complete messages in `bytes`, as tag and body.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let Header { tag, total_bytes } = header(bytes, MAX_MESSAGE_BYTES).ok()??;
        let (message, rest) = bytes.split_at_checked(total_bytes)?;
        bytes = rest;
        Some((tag, &message[HEADER_BYTES..]))
    })
}

/// The values of a DataRow body, `None` being SQL's null; after a violation there are no more.
pub struct RowValues<'a> {
    pub columns: u16,
    left: u16,
    rest: &'a [u8],
}

impl<'a> RowValues<'a> {
    pub fn new(body: &'a [u8]) -> Result<Self, Violation> {
        let (&count, rest) = body.split_first_chunk().ok_or_else(cut_short)?;
        let columns = u16::from_be_bytes(count);
        Ok(Self { columns, left: columns, rest })
    }

    fn take(&mut self) -> Result<Option<&'a [u8]>, Violation> {
        let (&length, after) = self.rest.split_first_chunk().ok_or_else(cut_short)?;
        self.rest = after;
        let Ok(length) = usize::try_from(i32::from_be_bytes(length)) else {
            return Ok(None);
        };
        let (value, after) = self.rest.split_at_checked(length).ok_or_else(cut_short)?;
        self.rest = after;
        Ok(Some(value))
    }
}

impl<'a> Iterator for RowValues<'a> {
    type Item = Result<Option<&'a [u8]>, Violation>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let value = self.take();
        if value.is_err() {
            self.left = 0;
        }
        Some(value)
    }
}

fn cut_short() -> Violation {
    Violation("a message that is shorter than it says".to_owned())
}

/// Column names of a RowDescription body.
pub fn column_names(body: &[u8]) -> Result<Vec<String>, Violation> {
    const REST_OF_FIELD_BYTES: usize = 18;
    let (&count, mut rest) = body.split_first_chunk::<2>().ok_or_else(cut_short)?;
    (0..u16::from_be_bytes(count))
        .map(|_| {
            let end = rest.iter().position(|&byte| byte == 0).ok_or_else(cut_short)?;
            let name = String::from_utf8_lossy(&rest[..end]).into_owned();
            rest = rest.get(end + 1 + REST_OF_FIELD_BYTES..).ok_or_else(cut_short)?;
            Ok(name)
        })
        .collect()
}

/// Text up to the first NUL: the tag of a CommandComplete body.
#[must_use]
pub fn c_string(body: &[u8]) -> String {
    String::from_utf8_lossy(body.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// Reads an ErrorResponse body.
pub fn server_error(body: &[u8]) -> Result<ServerError, Violation> {
    let Ok(Some(Message::ErrorResponse(parsed))) = parse_message(ERROR_RESPONSE, body) else {
        return Err(Violation("an unreadable error message".to_owned()));
    };
    error_of_fields(parsed.fields())
}

fn error_of_fields(mut fields: ErrorFields<'_>) -> Result<ServerError, Violation> {
    let mut error =
        ServerError { sqlstate: String::new(), number: None, message: String::new(), position: None, is_fatal: false };
    while let Some(field) = fields.next().map_err(|_| Violation("an unreadable error message".to_owned()))? {
        let value = String::from_utf8_lossy(field.value_bytes());
        match field.type_() {
            b'C' => error.sqlstate = value.into_owned(),
            b'M' => error.message = value.into_owned(),
            b'P' => error.position = value.parse().ok(),
            // Severity that is never translated; servers before 9.6 and imitations send only the first kind.
            b'V' | b'S' => error.is_fatal |= matches!(&*value, "FATAL" | "PANIC"),
            _ => {}
        }
    }
    Ok(error)
}

/// Hands one message that is known to be complete to postgres-protocol's own parser.
fn parse_message(tag: u8, body: &[u8]) -> std::io::Result<Option<Message>> {
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + body.len());
    frame.extend_from_slice(&[tag]);
    frame.extend_from_slice(&u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(body);
    Message::parse(&mut frame)
}

/// Who wants to connect to what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: Option<String>,
    pub database: String,
    /// Server settings of the session.
    pub options: Vec<(String, String)>,
}

/// What a session that is ready knows of its server process: enough to cancel a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendKey {
    pub process_id: i32,
    pub secret_key: i32,
}

/// Why no session came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartupError {
    Refused(ServerError),
    Violation(Violation),
    /// The server asks for an authentication or a password that we do not have.
    Authentication(String),
}

impl From<Violation> for StartupError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// The client's side of start-up and authentication: feed it the server's messages until it is ready.
pub struct Startup<'a> {
    login: &'a Login,
    scram: Option<ScramSha256>,
    key: Option<BackendKey>,
}

impl<'a> Startup<'a> {
    #[must_use]
    pub fn new(login: &'a Login) -> Self {
        Self { login, scram: None, key: None }
    }

    /// The first message.
    pub fn begin(&self, out: &mut BytesMut) -> Result<(), StartupError> {
        let Login { user, database, options, .. } = self.login;
        let fixed = [("client_encoding", "UTF8"), ("user", user)];
        // Without one the server enters none, or that of the user's name.
        let database = (!database.is_empty()).then_some(("database", &**database));
        let options = options.iter().map(|(name, value)| (&**name, &**value));
        frontend::startup_message(fixed.into_iter().chain(database).chain(options), out)
            .map_err(|error| cannot_encode(&error))
    }

    /// Takes one message and writes the reply that it calls for into `out`. Some when the session is ready; a server
    /// that gives no key (some imitations) yields `Some(None)`: its statements cannot be cancelled.
    pub fn receive(
        &mut self,
        tag: u8,
        body: &[u8],
        out: &mut BytesMut,
    ) -> Result<Option<Option<BackendKey>>, StartupError> {
        let unreadable = |_| Violation(format!("an unreadable message {:?} at start-up", char::from(tag)));
        match parse_message(tag, body).map_err(unreadable)? {
            Some(Message::ErrorResponse(error)) => {
                return Err(StartupError::Refused(error_of_fields(error.fields())?));
            }
            Some(Message::AuthenticationCleartextPassword) => {
                frontend::password_message(self.password()?.as_bytes(), out).map_err(|error| cannot_encode(&error))?;
            }
            Some(Message::AuthenticationMd5Password(request)) => {
                let hash = md5_hash(self.login.user.as_bytes(), self.password()?.as_bytes(), request.salt());
                frontend::password_message(hash.as_bytes(), out).map_err(|error| cannot_encode(&error))?;
            }
            Some(Message::AuthenticationSasl(request)) => {
                let offered: Vec<String> =
                    request.mechanisms().map(|name| Ok(name.to_owned())).collect().map_err(unreadable)?;
                if !offered.iter().any(|name| name == SCRAM_SHA_256) {
                    return Err(StartupError::Authentication(format!("the server offers only {}", offered.join(", "))));
                }
                let scram = ScramSha256::new(self.password()?.as_bytes(), ChannelBinding::unsupported());
                frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), out)
                    .map_err(|error| cannot_encode(&error))?;
                self.scram = Some(scram);
            }
            Some(Message::AuthenticationSaslContinue(challenge)) => {
                let scram = self.scram.as_mut().ok_or_else(|| unexpected(tag))?;
                check_iterations(challenge.data())?;
                scram.update(challenge.data()).map_err(|error| StartupError::Authentication(error.to_string()))?;
                frontend::sasl_response(scram.message(), out).map_err(|error| cannot_encode(&error))?;
            }
            Some(Message::AuthenticationSaslFinal(proof)) => {
                let scram = self.scram.as_mut().ok_or_else(|| unexpected(tag))?;
                scram.finish(proof.data()).map_err(|error| StartupError::Authentication(error.to_string()))?;
            }
            Some(Message::BackendKeyData(key)) => {
                self.key = Some(BackendKey { process_id: key.process_id(), secret_key: key.secret_key() });
            }
            Some(Message::ReadyForQuery(_)) => return Ok(Some(self.key)),
            Some(
                Message::AuthenticationOk
                | Message::ParameterStatus(_)
                | Message::NoticeResponse(_)
                | Message::NotificationResponse(_),
            ) => {}
            Some(
                Message::AuthenticationGss
                | Message::AuthenticationSspi
                | Message::AuthenticationKerberosV5
                | Message::AuthenticationScmCredential
                | Message::AuthenticationGssContinue(_),
            ) => {
                let text = "the server asks for a kind of authentication other than password, md5 and SCRAM-SHA-256";
                return Err(StartupError::Authentication(text.to_owned()));
            }
            _ => return Err(unexpected(tag).into()),
        }
        Ok(None)
    }

    fn password(&self) -> Result<&str, StartupError> {
        self.login.password.as_deref().ok_or_else(|| {
            StartupError::Authentication(format!("the server asks for a password of user {:?}", self.login.user))
        })
    }
}

/// RFC 5802, section 5.1: `i=` and a number, among attributes between commas. What is no number is not ours to refuse.
fn check_iterations(challenge: &[u8]) -> Result<(), StartupError> {
    let attributes = challenge.split(|&byte| byte == b',').filter_map(|attribute| attribute.strip_prefix(b"i="));
    for asked in attributes.filter_map(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok()) {
        if asked > MAX_SCRAM_ITERATIONS {
            let most = MAX_SCRAM_ITERATIONS;
            let text = format!("the server wants the password hashed {asked} times; at most {most} times are taken");
            return Err(StartupError::Authentication(text));
        }
    }
    Ok(())
}

fn unexpected(tag: u8) -> Violation {
    Violation(format!("an unexpected message {:?} at start-up", char::from(tag)))
}

/// The only way in which our own messages cannot be written: a NUL byte in a text.
fn cannot_encode(error: &std::io::Error) -> StartupError {
    StartupError::Violation(Violation(format!("a login that cannot be sent: {error}")))
}

/// A request in the simple protocol.
pub fn simple_query(sql: &str, out: &mut BytesMut) -> std::io::Result<()> {
    frontend::query(sql, out)
}

/// Parse and Sync: makes the prepared statement `name`, its parameters' types left to the server.
pub fn prepare(name: &str, sql: &str, out: &mut BytesMut) -> std::io::Result<()> {
    frontend::parse(name, sql, [], out)?;
    frontend::sync(out);
    Ok(())
}

/// Bind, Describe, Execute and Sync of the prepared statement `name`, all values as text: what libpq's
/// `PQexecPrepared` sends.
pub fn execute_prepared(name: &str, parameters: &[Option<String>], out: &mut BytesMut) -> std::io::Result<()> {
    let values = parameters.iter().map(Option::as_deref);
    let serialize = |value: Option<&str>, out: &mut BytesMut| match value {
        Some(text) => {
            out.extend_from_slice(text.as_bytes());
            Ok(postgres_protocol::IsNull::No)
        }
        None => Ok(postgres_protocol::IsNull::Yes),
    };
    frontend::bind("", name, [], values, serialize, [], out).map_err(|error| match error {
        frontend::BindError::Conversion(error) => std::io::Error::other(error),
        frontend::BindError::Serialization(error) => error,
    })?;
    frontend::describe(b'P', "", out)?;
    frontend::execute("", 0, out)?;
    frontend::sync(out);
    Ok(())
}

/// Parse, Bind, Describe, Execute and Sync in one go: what libpq's `PQexecParams` sends.
pub fn extended_query(sql: &str, parameters: &[Option<String>], out: &mut BytesMut) -> std::io::Result<()> {
    frontend::parse("", sql, [], out)?;
    execute_prepared("", parameters, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[tag][..], &length.to_be_bytes(), body].concat()
    }

    fn row(values: &[Option<&str>]) -> Vec<u8> {
        let mut body = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
        for value in values {
            match value {
                Some(text) => {
                    body.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
                    body.extend(text.as_bytes());
                }
                None => body.extend((-1i32).to_be_bytes()),
            }
        }
        message(DATA_ROW, &body)
    }

    #[test]
    fn an_answer_ends_at_ready_for_query_wherever_it_is_cut() {
        let rows = [row(&[Some("1"), None]), row(&[Some(""), Some("äö")])].concat();
        let answer = [&rows[..], &message(COMMAND_COMPLETE, b"SELECT 2\0"), &message(READY_FOR_QUERY, b"T")].concat();
        for cut in 0..answer.len() {
            let mut scan = AnswerScan::default();
            assert_eq!(scan.advance(&answer[..cut]), Ok(false), "cut at {cut}");
            assert_eq!(scan.advance(&answer), Ok(true), "cut at {cut}");
            assert_eq!((scan.rows, scan.row_bytes, scan.end()), (2, rows.len() as u64, answer.len()));
            assert_eq!(scan.ready, Some(b'T'));
        }
    }

    #[test]
    fn hostile_lengths_are_refused_before_they_are_used() {
        for length in [0u32, 3, 0x4000_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let bytes = [&[DATA_ROW][..], &length.to_be_bytes()].concat();
            assert!(header(&bytes, MAX_MESSAGE_BYTES).is_err(), "{length}");
            assert!(AnswerScan::default().advance(&bytes).is_err(), "{length}");
        }
        let longest = [&[DATA_ROW][..], &0x3fff_ffffu32.to_be_bytes()].concat();
        assert!(header(&longest, MAX_MESSAGE_BYTES).unwrap().is_some());
        assert!(header(&longest, MAX_STARTUP_MESSAGE_BYTES).is_err());
    }

    #[test]
    fn an_error_is_read_with_its_state_and_position() {
        let error = server_error(b"SFEHLER\0VERROR\0C42601\0Msyntax error\0P8\0\0").unwrap();
        assert_eq!((&*error.sqlstate, &*error.message, error.position), ("42601", "syntax error", Some(8)));
        assert!(!error.is_fatal);
        assert!(server_error(b"SFATAL\0VFATAL\0C57P01\0Mbye\0\0").unwrap().is_fatal);
    }

    fn login(password: Option<&str>) -> Login {
        Login {
            user: "u".into(),
            password: password.map(str::to_owned),
            database: "d".into(),
            options: vec![("application_name".into(), "x".into())],
        }
    }

    #[test]
    fn a_password_that_is_asked_for_but_missing_is_said() {
        for request in [&3u32.to_be_bytes()[..], &[0, 0, 0, 5, 1, 2, 3, 4], b"\0\0\0\x0aSCRAM-SHA-256\0\0"] {
            let login = login(None);
            let error = Startup::new(&login).receive(b'R', request, &mut BytesMut::new()).unwrap_err();
            assert!(matches!(error, StartupError::Authentication(_)), "{error:?}");
        }
    }

    #[test]
    fn a_forged_scram_proof_is_refused() {
        let login = login(Some("secret"));
        let mut startup = Startup::new(&login);
        let mut out = BytesMut::new();
        startup.receive(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0", &mut out).unwrap();
        let sent = String::from_utf8_lossy(&out).into_owned();
        let nonce = sent.rsplit("r=").next().unwrap();
        let challenge = format!("\0\0\0\x0br={nonce}x,s=QSXCR+Q6sek8bf92,i=4096");
        startup.receive(b'R', challenge.as_bytes(), &mut out).unwrap();
        let forged = b"\0\0\0\x0cv=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert!(matches!(startup.receive(b'R', forged, &mut out), Err(StartupError::Authentication(_))));
    }

    #[test]
    fn a_server_cannot_have_its_password_hashed_for_hours() {
        let login = login(Some("secret"));
        let mut startup = Startup::new(&login);
        let mut out = BytesMut::new();
        startup.receive(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0", &mut out).unwrap();
        let sent = String::from_utf8_lossy(&out).into_owned();
        let nonce = sent.rsplit("r=").next().unwrap();
        let challenge = format!("\0\0\0\x0br={nonce}x,s=QSXCR+Q6sek8bf92,i=4294967295");
        let StartupError::Authentication(text) = startup.receive(b'R', challenge.as_bytes(), &mut out).unwrap_err()
        else {
            panic!("not for its password")
        };
        assert!(text.contains("4294967295 times"), "{text}");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let mut scan = AnswerScan::default();
            if scan.advance(&bytes[..cut.min(bytes.len())]).is_ok() {
                let _ = scan.advance(&bytes);
            }
            for (_, body) in messages(&bytes) {
                if let Ok(values) = RowValues::new(body) {
                    let columns = usize::from(values.columns);
                    prop_assert!(values.count() <= columns);
                }
            }
            let _ = column_names(&bytes);
            let _ = server_error(&bytes);
            let login = login(Some("p"));
            for tag in 0u8..=255 {
                let _ = Startup::new(&login).receive(tag, &bytes, &mut BytesMut::new());
            }
        }

        #[test]
        fn rows_come_back_as_they_were(
            values in proptest::collection::vec(proptest::option::of(".{0,20}"), 0..10)
        ) {
            let values: Vec<Option<&str>> = values.iter().map(Option::as_deref).collect();
            let bytes = row(&values);
            let (_, body) = messages(&bytes).next().unwrap();
            let read = RowValues::new(body).unwrap();
            prop_assert_eq!(usize::from(read.columns), values.len());
            let read: Vec<Option<&[u8]>> = read.map(Result::unwrap).collect();
            prop_assert_eq!(read, values.iter().map(|value| value.map(str::as_bytes)).collect::<Vec<_>>());
        }
    }
}
