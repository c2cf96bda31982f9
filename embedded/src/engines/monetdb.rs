//! MonetDB, by the C API of its embedded form, `monetdbe.h`.
//!
//! What it cannot do, it cannot do here either:
//!
//! - No function stops a statement: cancelled and abandoned statements run to their end, and until then no other one begins.
//! - A result is there as a whole before the first row is sent, and each of its columns is copied by `monetdbe_result_fetch`.
//! - `sys.sessions()` and `sys.queue()` crash the library, and the server with it.
//! - 64 sessions are all, one of them the server's own.
//! - Times have milliseconds. Intervals are numbers: of months, or of milliseconds.
//! - No SQL tells how many threads a query has: `SHOW nr_threads` is answered here, from the library's own variable.
//! - `EXPLAIN` is executed without any output; `PLAN` writes to the standard output, where it is collected.

use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::engine::{
    Column, ColumnKind, Connection, Done, Engine, EngineError, Failure, Interrupt, Kind, Opened, Options, Statement,
    Value, oid,
};
use crate::lock;
use crate::sql::{self, CopyIn, Dialect, Verb};
use crate::text::{
    parse_decimal, push_blob, push_bool, push_date_parts, push_decimal, push_f32, push_f64, push_int, push_time,
};
use crate::wire::answer::Answer;

pub const KIND: Kind = Kind { name: "monetdb", version, open };

/// The series whose `monetdbe.h` the structures here are from. Later ones have other columns.
const SERIES: &str = "11.41.";

const DIALECT: Dialect =
    Dialect { has_escapes: true, has_nested_comments: false, has_dollar_quotes: false, has_bodies: true };

/// Statements that MonetDB can prepare; others are executed as they are.
const PREPARABLE: [&str; 6] = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES"];

/// Statements that leave the catalogue as it is.
const HARMLESS: [&str; 10] =
    ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES", "PLAN", "EXPLAIN", "COPY", "SAVEPOINT"];

/// `monetdbe_options`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawOptions {
    memory_limit: c_int,
    query_timeout: c_int,
    session_timeout: c_int,
    threads: c_int,
    remote: *const c_void,
    mapi_server: *const c_void,
    trace_file: *const c_char,
}

/// `monetdbe_result`.
#[repr(C)]
struct RawResult {
    rows: i64,
    columns: usize,
    name: *const c_char,
    last_id: i64,
}

/// `monetdbe_column`: how those of all types begin.
#[repr(C)]
struct RawColumn {
    kind: c_int,
    data: *const c_void,
    count: usize,
    name: *const c_char,
}

/// `monetdbe_column_…` of a type.
#[repr(C)]
struct Typed<T> {
    head: RawColumn,
    null_value: T,
    /// 10 to the power of the digits behind the point; 0 for what is no decimal.
    scale: f64,
    is_null: unsafe extern "C" fn(*const T) -> c_int,
}

/// `monetdbe_data_blob`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawBlob {
    size: usize,
    data: *const u8,
}

/// `monetdbe_data_date`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawDate {
    day: u8,
    month: u8,
    year: i16,
}

/// `monetdbe_data_time`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawTime {
    millis: u32,
    seconds: u8,
    minutes: u8,
    hours: u8,
}

/// `monetdbe_data_timestamp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawTimestamp {
    date: RawDate,
    time: RawTime,
}

type Handle = *mut c_void;

crate::functions! { Functions, "",
    fn GDKversion() -> *const c_char;
    fn monetdbe_open(*mut Handle, *const c_char, *const RawOptions) -> c_int;
    fn monetdbe_close(Handle) -> c_int;
    fn monetdbe_error(Handle) -> *const c_char;
    fn monetdbe_query(Handle, *const c_char, *mut *mut RawResult, *mut i64) -> *const c_char;
    fn monetdbe_result_fetch(*mut RawResult, *mut *const RawColumn, usize) -> *const c_char;
    fn monetdbe_cleanup_result(Handle, *mut RawResult) -> *const c_char;
}

fn load(options: &Options) -> Result<(&'static Functions, String), String> {
    let functions = Functions::load(&options.library, &options.preload)?;
    // SAFETY: the function gives a constant text.
    let version = unsafe { text_of((functions.GDKversion)()) };
    if version.starts_with(SERIES) {
        Ok((functions, version))
    } else {
        Err(format!("MonetDB {version}: only {SERIES}x is understood, whose columns are laid out as expected"))
    }
}

/// How many threads a query has at most (`GDKnr_threads` of `gdk.h`, an int that is written when a database is opened).
fn thread_limit(options: &Options) -> Result<&'static AtomicI32, String> {
    let library = crate::library::open(&options.library, &options.preload)?;
    // SAFETY: the type is that of the library's C header, and as large and as aligned as an atomic one of its size.
    let place = unsafe { library.get::<*const AtomicI32>(b"GDKnr_threads\0") }.map(|symbol| *symbol);
    std::mem::forget(library);
    // SAFETY: the library stays loaded as long as the process lives.
    place.map(|place| unsafe { &*place }).map_err(|_| "MonetDB has no variable GDKnr_threads".to_owned())
}

fn version(options: &Options) -> Result<String, String> {
    load(options).map(|(_, version)| version)
}

/// # Safety
///
/// `text` is null or a C string.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn c_string(text: &str) -> Result<CString, EngineError> {
    CString::new(text).map_err(|_| EngineError::new("22021", "a text has a NUL in it"))
}

fn open(options: &Options, database: &str) -> Opened {
    let (functions, version) = load(options)?;
    let mut settings = RawOptions {
        memory_limit: 0,
        query_timeout: 0,
        session_timeout: 0,
        threads: 0,
        remote: null(),
        mapi_server: null(),
        trace_file: null(),
    };
    for (name, value) in &options.settings {
        let place = match &**name {
            "memorylimit" => &mut settings.memory_limit,
            "querytimeout" => &mut settings.query_timeout,
            "sessiontimeout" => &mut settings.session_timeout,
            "nr_threads" => &mut settings.threads,
            _ => {
                let known = "memorylimit (MiB), nr_threads, querytimeout (s), sessiontimeout (s)";
                return Err(format!("MonetDB has no setting {name}; it has {known}"));
            }
        };
        let number = value.parse().ok().filter(|number| *number >= 0);
        *place = number.ok_or_else(|| format!("MonetDB's setting {name}={value} is not a number of at least 0"))?;
    }
    // MonetDB knows a database by this text, and makes its files relative to it.
    let path = std::path::absolute(database).map_err(|error| format!("{database}: {error}"))?;
    let path = c_string(&path.to_string_lossy()).map_err(|error| error.message)?;
    let catalogue = Arc::new(AtomicU64::new(0));
    let threads = thread_limit(options)?;
    let farm = Farm { functions, path, settings, version, threads, catalogue, first: Mutex::new(null_mut()) };
    let handle = farm.open().map_err(|error| format!("cannot open {database}: {}", error.message))?;
    *lock(&farm.first) = handle;
    Ok(Box::new(farm))
}

/// An open database. MonetDB has at most one in a process.
struct Farm {
    functions: &'static Functions,
    path: CString,
    settings: RawOptions,
    version: String,
    threads: &'static AtomicI32,
    /// Counts changes of the catalogue: each makes MonetDB forget all prepared statements.
    catalogue: Arc<AtomicU64>,
    /// A session that does nothing: with the last one the database would be closed.
    first: Mutex<Handle>,
}

// SAFETY: every session has a handle of its own, and `monetdbe_open` and `monetdbe_close` take a lock of MonetDB's; `first`
// is behind a lock; the settings hold null pointers only.
unsafe impl Send for Farm {}
// SAFETY: as above.
unsafe impl Sync for Farm {}

impl Farm {
    fn open(&self) -> Result<Handle, EngineError> {
        let mut handle: Handle = null_mut();
        // SAFETY: path and settings live as long as the call.
        let state =
            unsafe { (self.functions.monetdbe_open)(&raw mut handle, self.path.as_ptr(), &raw const self.settings) };
        if state == 0 {
            return Ok(handle);
        }
        // A handle that failed is left alone: MonetDB may not have got far enough to close it.
        // SAFETY: the handle is null or what MonetDB made; the function takes both.
        let text = unsafe { text_of((self.functions.monetdbe_error)(handle)) };
        Err(error_of(if text.is_empty() { "MonetDB makes no session" } else { &text }))
    }
}

impl Engine for Farm {
    fn title(&self) -> String {
        format!("MonetDB {}", self.version)
    }

    fn dialect(&self) -> Dialect {
        DIALECT
    }

    fn connect(&self) -> Result<Box<dyn Connection>, EngineError> {
        let session = Session {
            functions: self.functions,
            handle: self.open()?,
            threads: self.threads,
            catalogue: Arc::clone(&self.catalogue),
            losses: Cell::new(0),
            has_changed_catalogue: Cell::new(false),
            is_in_transaction: Cell::new(false),
        };
        Ok(Box::new(Client { session: Rc::new(session) }))
    }

    fn close(&self) -> Result<(), EngineError> {
        // SAFETY: closed once, as `close` is called once, and no other session is left.
        match unsafe { (self.functions.monetdbe_close)(*lock(&self.first)) } {
            0 => {}
            state => return Err(EngineError::new("58030", format!("MonetDB's shutdown failed with {state}"))),
        }
        // MonetDB lets go of its lock and leaves the file (gdk_storage.c, GDKunlockHome); nobody else opens this database.
        let lock = Path::new(OsStr::from_bytes(self.path.as_bytes())).join(".gdk_lock");
        std::fs::remove_file(&lock).map_err(|error| EngineError::new("58030", format!("{}: {error}", lock.display())))
    }
}

/// A handle, kept by its client and the client's statements.
struct Session {
    functions: &'static Functions,
    handle: Handle,
    threads: &'static AtomicI32,
    catalogue: Arc<AtomicU64>,
    /// Counts errors: each makes MonetDB forget the prepared statements of the session.
    losses: Cell<u64>,
    /// In the present transaction.
    has_changed_catalogue: Cell<bool>,
    is_in_transaction: Cell<bool>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the handle is closed once, here, and no result of it is left.
        unsafe { (self.functions.monetdbe_close)(self.handle) };
    }
}

/// When a statement was prepared: it is there as long as this is the same.
type Epoch = (u64, u64);

impl Session {
    fn epoch(&self) -> Epoch {
        (self.catalogue.load(Ordering::Acquire), self.losses.get())
    }

    fn catalogue_changes(&self) {
        self.catalogue.fetch_add(1, Ordering::AcqRel);
    }

    fn run(&self, sql: &str) -> Result<Outcome<'_>, EngineError> {
        let text = c_string(sql)?;
        let mut outcome = Outcome { session: self, raw: null_mut(), changed: 0 };
        // SAFETY: the text lives as long as the call; the result is owned by `Outcome`.
        let error = unsafe {
            let query = self.functions.monetdbe_query;
            text_of(query(self.handle, text.as_ptr(), &raw mut outcome.raw, &raw mut outcome.changed))
        };
        if error.is_empty() {
            return Ok(outcome);
        }
        self.losses.set(self.losses.get() + 1);
        Err(error_of(&error))
    }

    /// Runs what a client asks for.
    fn execute(&self, sql: &str, verb: &Verb, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        match verb.as_str() {
            "PLAN" => return self.plan(sql, answer),
            "SHOW" if is_about_threads(sql) => return self.show_threads(answer),
            "EXPLAIN" => {
                let text = "MonetDB's library shows no EXPLAIN; PLAN shows the relational plan";
                return Err(EngineError::new("0A000", text).into());
            }
            verb if !HARMLESS.contains(&verb) => {
                self.catalogue_changes();
                self.has_changed_catalogue.set(self.is_in_transaction.get());
            }
            _ => {}
        }
        let outcome = self.run(sql);
        if !HARMLESS.contains(&verb.as_str()) {
            self.catalogue_changes();
        }
        outcome?.send(answer)
    }

    /// A transaction ends; its changes are there, or are gone.
    fn end(&self, sql: &str) -> Result<(), EngineError> {
        self.is_in_transaction.set(false);
        let ended = self.run(sql).map(drop);
        if self.has_changed_catalogue.take() {
            self.catalogue_changes();
        }
        ended
    }

    fn show_threads(&self, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        answer.columns(&[Column { name: "nr_threads".to_owned(), kind: ColumnKind::of(oid::INT4) }]);
        answer.begin_row();
        answer.value(|out| push_int(out, self.threads.load(Ordering::Relaxed)));
        answer.end_row()?;
        Ok(Done::Rows)
    }

    /// A relational plan, which MonetDB writes to the standard output.
    fn plan(&self, sql: &str, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        let (outcome, text) = collect_output(|| self.run(sql).map(drop))
            .map_err(|error| EngineError::new("58030", format!("the plan cannot be collected: {error}")))?;
        outcome?;
        answer.columns(&[Column { name: "rel".to_owned(), kind: ColumnKind::of(oid::TEXT) }]);
        // MonetDB's own form of a result with one column: `=` before each value.
        for line in text.lines().filter_map(|line| line.strip_prefix('=')) {
            answer.begin_row();
            answer.value(|out| out.extend_from_slice(line.as_bytes()));
            answer.end_row()?;
        }
        Ok(Done::Rows)
    }
}

/// `SHOW nr_threads`
fn is_about_threads(sql: &str) -> bool {
    let mut words = sql::tokens(sql, DIALECT).map(|token| token.text.to_ascii_lowercase());
    words.next().as_deref() == Some("show") && words.next().as_deref() == Some("nr_threads") && words.next().is_none()
}

/// What the library writes to the standard output while `work` is done. One at a time, as there is one standard output.
fn collect_output<T>(work: impl FnOnce() -> T) -> std::io::Result<(T, String)> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    let file = rustix::fs::memfd_create("plan", rustix::fs::MemfdFlags::CLOEXEC)?;
    let before = rustix::io::dup(std::io::stdout())?;
    rustix::stdio::dup2_stdout(&file)?;
    let outcome = work();
    // SAFETY: null: all of the C library's streams, the one that MonetDB wrote to among them.
    unsafe { libc::fflush(null_mut()) };
    rustix::stdio::dup2_stdout(&before)?;
    let mut text = Vec::new();
    let mut file = std::fs::File::from(file);
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok((outcome, String::from_utf8_lossy(&text).into_owned()))
}

/// What a statement left behind.
struct Outcome<'a> {
    session: &'a Session,
    raw: *mut RawResult,
    changed: i64,
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the result is this session's, and is cleaned up once, here.
            unsafe { (self.session.functions.monetdbe_cleanup_result)(self.session.handle, self.raw) };
        }
    }
}

impl Outcome<'_> {
    fn shape(&self) -> (usize, usize) {
        if self.raw.is_null() {
            return (0, 0);
        }
        // SAFETY: the result lives as long as `self`.
        let raw = unsafe { &*self.raw };
        (usize::try_from(raw.rows).unwrap_or_default(), raw.columns)
    }

    fn lanes(&self) -> Result<Vec<Lane>, EngineError> {
        (0..self.shape().1)
            .map(|index| {
                let mut column: *const RawColumn = null();
                // SAFETY: the result lives as long as `self`; the index is one of its columns; the error's text is copied.
                unsafe {
                    let fetch = self.session.functions.monetdbe_result_fetch;
                    let error = text_of(fetch(self.raw, &raw mut column, index));
                    if error.is_empty() { Ok(Lane::of(column)) } else { Err(error_of(&error)) }
                }
            })
            .collect()
    }

    fn send(&self, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        let (rows, columns) = self.shape();
        if columns == 0 {
            return Ok(Done::Changed(u64::try_from(self.changed).unwrap_or_default()));
        }
        let lanes = self.lanes()?;
        let columns: Vec<Column> = lanes.iter().map(Lane::column).collect();
        answer.columns(&columns);
        for row in 0..rows {
            answer.begin_row();
            for lane in &lanes {
                // SAFETY: the columns live as long as the result, and have all of its rows.
                unsafe { lane.write(row, answer) };
            }
            answer.end_row()?;
        }
        Ok(Done::Rows)
    }

    /// A small result as texts, for our own questions.
    fn texts(&self) -> Result<Vec<Vec<Option<String>>>, EngineError> {
        let lanes = self.lanes()?;
        // SAFETY: as in `send`.
        let row = |row: usize| lanes.iter().map(|lane| unsafe { lane.text(row) }).collect();
        Ok((0..self.shape().0).map(row).collect())
    }
}

/// Numbers of `monetdbe_types`, in a build with integers of 128 bits.
mod type_id {
    pub const BOOL: i32 = 0;
    pub const INT8: i32 = 1;
    pub const INT16: i32 = 2;
    pub const INT32: i32 = 3;
    pub const INT64: i32 = 4;
    pub const INT128: i32 = 5;
    pub const SIZE: i32 = 6;
    pub const FLOAT: i32 = 7;
    pub const DOUBLE: i32 = 8;
    pub const BLOB: i32 = 10;
    pub const DATE: i32 = 11;
    pub const TIME: i32 = 12;
    pub const TIMESTAMP: i32 = 13;
}

/// A column of a result.
struct Lane {
    raw: *const RawColumn,
    kind: i32,
    /// Digits behind the point; None for what is no decimal.
    scale: Option<usize>,
    name: String,
}

impl Lane {
    /// # Safety
    ///
    /// `raw` is a column that MonetDB made.
    unsafe fn of(raw: *const RawColumn) -> Self {
        // SAFETY: by this function's contract: the type tells which structure it is.
        unsafe {
            let kind = (*raw).kind;
            let scale = match kind {
                type_id::INT8 => scale_of::<i8>(raw),
                type_id::INT16 => scale_of::<i16>(raw),
                type_id::INT32 => scale_of::<i32>(raw),
                type_id::INT64 => scale_of::<i64>(raw),
                type_id::INT128 => scale_of::<i128>(raw),
                _ => 0.0,
            };
            // 10 to a power of at most 38.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 38")]
            let scale = (scale >= 1.0).then(|| scale.log10().round() as usize);
            Self { raw, kind, scale, name: text_of((*raw).name) }
        }
    }

    fn column(&self) -> Column {
        let kind = match (self.scale, self.kind) {
            (Some(scale), _) => ColumnKind::numeric(38, u8::try_from(scale).unwrap_or(38)),
            (None, kind) => ColumnKind::of(match kind {
                type_id::BOOL => oid::BOOL,
                type_id::INT8 | type_id::INT16 => oid::INT2,
                type_id::INT32 => oid::INT4,
                type_id::INT64 | type_id::SIZE => oid::INT8,
                type_id::INT128 => oid::NUMERIC,
                type_id::FLOAT => oid::FLOAT4,
                type_id::DOUBLE => oid::FLOAT8,
                type_id::BLOB => oid::BYTEA,
                type_id::DATE => oid::DATE,
                type_id::TIME => oid::TIME,
                type_id::TIMESTAMP => oid::TIMESTAMP,
                _ => oid::TEXT,
            }),
        };
        Column { name: self.name.clone(), kind }
    }

    /// None: NULL.
    ///
    /// # Safety
    ///
    /// The column is of `T`, alive, and has that row.
    unsafe fn get<T: Copy>(&self, row: usize) -> Option<T> {
        // SAFETY: by this function's contract.
        unsafe {
            let column = self.raw.cast::<Typed<T>>();
            let value = (*column).head.data.cast::<T>().add(row).read_unaligned();
            (((*column).is_null)(&raw const value) == 0).then_some(value)
        }
    }

    /// # Safety
    ///
    /// The column is alive and has that row.
    unsafe fn text(&self, row: usize) -> Option<String> {
        let mut out = Vec::new();
        // SAFETY: by this function's contract.
        unsafe { self.push(row, &mut out) }.then(|| String::from_utf8_lossy(&out).into_owned())
    }

    /// # Safety
    ///
    /// The column is alive and has that row.
    unsafe fn write(&self, row: usize, answer: &mut Answer<'_>) {
        // SAFETY: by this function's contract.
        answer.value_or_null(|out| unsafe { self.push(row, out) });
    }

    /// False: NULL.
    ///
    /// # Safety
    ///
    /// The column is alive and has that row.
    unsafe fn push(&self, row: usize, out: &mut Vec<u8>) -> bool {
        // SAFETY: by this function's contract: `kind` says which type it is of.
        let pushed = unsafe {
            match self.kind {
                type_id::BOOL => self.get::<i8>(row).map(|value| push_bool(out, value != 0)),
                type_id::INT8 => self.get::<i8>(row).map(|value| self.push_integer(out, value.into())),
                type_id::INT16 => self.get::<i16>(row).map(|value| self.push_integer(out, value.into())),
                type_id::INT32 => self.get::<i32>(row).map(|value| self.push_integer(out, value.into())),
                type_id::INT64 => self.get::<i64>(row).map(|value| self.push_integer(out, value.into())),
                type_id::INT128 => self.get::<i128>(row).map(|value| self.push_integer(out, value)),
                type_id::SIZE => self.get::<usize>(row).map(|value| push_int(out, value)),
                // NULL is a NaN, which MonetDB's own `is_null` does not see: it compares.
                type_id::FLOAT => self.get(row).filter(|value: &f32| !value.is_nan()).map(|value| push_f32(out, value)),
                type_id::DOUBLE => {
                    self.get(row).filter(|value: &f64| !value.is_nan()).map(|value| push_f64(out, value))
                }
                type_id::BLOB => self.get::<RawBlob>(row).map(|blob| {
                    // An empty one may have no data.
                    let bytes = if blob.size == 0 { &[] } else { std::slice::from_raw_parts(blob.data, blob.size) };
                    push_blob(out, bytes);
                }),
                type_id::DATE => self.get::<RawDate>(row).map(|value| push_raw_date(out, value)),
                type_id::TIME => self.get::<RawTime>(row).map(|value| push_time(out, micros(value))),
                type_id::TIMESTAMP => self.get::<RawTimestamp>(row).map(|value| {
                    push_raw_date(out, value.date);
                    out.push(b' ');
                    push_time(out, micros(value.time));
                }),
                // Texts, and types that MonetDB gives as its own text.
                _ => self.get::<*const c_char>(row).map(|text| out.extend_from_slice(CStr::from_ptr(text).to_bytes())),
            }
        };
        pushed.is_some()
    }

    fn push_integer(&self, out: &mut Vec<u8>, value: i128) {
        match self.scale {
            Some(scale) => push_decimal(out, value, scale),
            None => push_int(out, value),
        }
    }
}

/// # Safety
///
/// `raw` is a column of `T`.
unsafe fn scale_of<T>(raw: *const RawColumn) -> f64 {
    // SAFETY: by this function's contract.
    unsafe { (*raw.cast::<Typed<T>>()).scale }
}

fn push_raw_date(out: &mut Vec<u8>, date: RawDate) {
    push_date_parts(out, date.year.into(), date.month.into(), date.day.into());
}

fn micros(time: RawTime) -> i64 {
    let seconds = i64::from(time.hours) * 3600 + i64::from(time.minutes) * 60 + i64::from(time.seconds);
    seconds * 1_000_000 + i64::from(time.millis) * 1000
}

/// A client's session.
struct Client {
    session: Rc<Session>,
}

impl Connection for Client {
    fn interrupter(&self) -> Option<Arc<dyn Interrupt>> {
        None
    }

    fn query(&mut self, sql: &str, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        self.session.execute(sql, &Verb::of(sql, DIALECT), answer)
    }

    fn prepare(&mut self, sql: &str, declared: &[u32]) -> Result<Box<dyn Statement>, EngineError> {
        let verb = Verb::of(sql, DIALECT);
        let (text, numbers) = sql::with_question_marks(sql, DIALECT);
        let mut statement = Prepared {
            session: Rc::clone(&self.session),
            is_direct: !PREPARABLE.contains(&verb.as_str()),
            verb,
            sql: text,
            casts: vec![None; numbers.len()],
            numbers,
            plan: None,
            types: Vec::new(),
            columns: Vec::new(),
        };
        if !statement.is_direct {
            let plan = statement.make_plan()?;
            statement.describe(&plan, declared)?;
            statement.plan = Some(plan);
        }
        Ok(Box::new(statement))
    }

    fn begin(&mut self, sql: &str) -> Result<(), EngineError> {
        // MonetDB's is START TRANSACTION, with the same modes behind it.
        let words = sql::tokens(sql, DIALECT)
            .skip(1)
            .skip_while(|token| ["transaction", "work"].iter().any(|word| token.text.eq_ignore_ascii_case(word)));
        let modes: Vec<&str> = words.map(|token| token.text).collect();
        self.session.run(&format!("start transaction {}", modes.join(" ")))?;
        self.session.is_in_transaction.set(true);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), EngineError> {
        self.session.end("commit").inspect_err(|_| {
            // Where the transaction is left, it is ended; where it is not, this is refused.
            let _ = self.session.end("rollback");
        })
    }

    fn roll_back(&mut self) -> Result<(), EngineError> {
        self.session.end("rollback")
    }

    fn copy_in(&mut self, copy: &CopyIn, path: &str) -> Result<u64, EngineError> {
        let outcome = self.session.run(&format!(
            "copy {} into {} from {} {} using delimiters {}, E'\\n', {} no escape null as {}",
            if copy.has_header { "offset 2" } else { "" },
            copy.table,
            literal(path),
            // Behind the file it says what the file has. Behind the table it would change nothing, not even the order.
            copy.columns,
            literal(&copy.delimiter.to_string()),
            literal(&copy.quote.to_string()),
            literal(&copy.null),
        ))?;
        Ok(u64::try_from(outcome.changed).unwrap_or_default())
    }
}

/// `text` as a string of MonetDB's SQL, which knows escapes with a backslash.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// A type `decimal(digits, scale)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decimal {
    digits: u8,
    scale: u8,
}

impl Decimal {
    /// One that holds `value`, and what `before` held; None if `kind` or `before` holds it.
    fn needed(value: &Value, kind: ColumnKind, before: Option<Self>) -> Option<Self> {
        let Value::Text(text) = value else { return None };
        let is_exact = matches!(kind.oid, oid::INT2 | oid::INT4 | oid::INT8 | oid::NUMERIC);
        let (unscaled, scale) = parse_decimal(text).filter(|_| is_exact)?;
        let held = u8::try_from((kind.modifier.max(4) - 4) & 0xffff).unwrap_or_default();
        if scale <= before.map_or(held, |before| before.scale) {
            return None;
        }
        // So many are stored in 8 bytes, which leaves room for products.
        let digits = if unscaled.unsigned_abs() < 10u128.pow(18) { 18 } else { 38 };
        Some(Self { digits: digits.max(before.map_or(0, |before| before.digits)), scale })
    }
}

/// A plan in MonetDB.
struct Plan {
    id: i64,
    epoch: Epoch,
    /// What the parameters are, in the order of the question marks.
    parameters: Vec<ColumnKind>,
    columns: Vec<Column>,
}

/// A statement that was prepared, and is prepared again where MonetDB forgot it.
///
/// Values go as literals to `EXECUTE`, as other clients of MonetDB send them: `monetdbe_bind` knows neither NULL nor decimals.
struct Prepared {
    session: Rc<Session>,
    verb: Verb,
    /// Executed as it is.
    is_direct: bool,
    sql: String,
    /// The number of the client's parameter for each question mark.
    numbers: Vec<usize>,
    /// For each question mark the decimal that it is cast to; None as long as MonetDB's own choice of a type will do.
    casts: Vec<Option<Decimal>>,
    plan: Option<Plan>,
    types: Vec<u32>,
    columns: Vec<Column>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.forget_plan();
    }
}

impl Prepared {
    fn make_plan(&self) -> Result<Plan, EngineError> {
        // Before it: what happens to the catalogue from here on makes this plan an old one.
        let epoch = self.session.epoch();
        drop(self.session.run(&format!("prepare {}", self.with_casts()))?);
        // Taken behind it: the number is that of the newest statement of this session, and none of its errors lies between.
        let arguments = self.session.run(
            "select statementid, \"inout\", type, type_digits, type_scale, \"column\" from sys.prepared_statements_args() \
             where statementid = (select max(statementid) from sys.prepared_statements()) order by number",
        )?;
        let mut plan = Plan { id: -1, epoch, parameters: Vec::new(), columns: Vec::new() };
        for row in arguments.texts()? {
            let number =
                |index: usize| row[index].as_deref().and_then(|text| text.parse::<i64>().ok()).unwrap_or_default();
            let text = |index: usize| row[index].clone().unwrap_or_default();
            plan.id = number(0);
            let kind = kind_of(&text(2), number(3), number(4));
            if number(1) == 0 {
                plan.columns.push(Column { name: text(5), kind });
            } else {
                plan.parameters.push(kind);
            }
        }
        if plan.id < 0 {
            let id = self.session.run("select max(statementid) from sys.prepared_statements()")?.texts()?;
            let id = id.first().and_then(|row| row.first()).cloned().flatten().and_then(|text| text.parse().ok());
            plan.id =
                id.ok_or_else(|| EngineError::new("XX000", "MonetDB does not show the statement that it prepared"))?;
        }
        Ok(plan)
    }

    /// The statement, its parameters cast as is needed.
    fn with_casts(&self) -> String {
        let mut text = String::with_capacity(self.sql.len());
        let mut copied = 0;
        let marks = sql::tokens(&self.sql, DIALECT).filter(|token| token.text == "?");
        for (mark, cast) in marks.zip(&self.casts) {
            if let Some(Decimal { digits, scale }) = cast {
                let _ = write!(text, "{}cast(? as decimal({digits}, {scale}))", &self.sql[copied..mark.start]);
                copied = mark.start + 1;
            }
        }
        text.push_str(&self.sql[copied..]);
        text
    }

    /// MonetDB takes the parameter of `d + ?` for a decimal without digits behind the point, or for an integer, and would
    /// round what is bound to it. Where a value has more digits, the parameter gets a cast, and keeps it.
    fn cast_where_needed(&mut self, values: &[Value]) {
        let Some(plan) = &self.plan else { return };
        let mut is_same = true;
        for ((number, kind), cast) in self.numbers.iter().zip(&plan.parameters).zip(&mut self.casts) {
            if let Some(needed) = Decimal::needed(values.get(*number).unwrap_or(&Value::Null), *kind, *cast) {
                *cast = Some(needed);
                is_same = false;
            }
        }
        if !is_same {
            self.forget_plan();
        }
    }

    fn forget_plan(&mut self) {
        // A refusal would end the client's transaction: what MonetDB may have forgotten is left to it.
        if let Some(plan) = self.plan.take().filter(|plan| plan.epoch == self.session.epoch()) {
            let _ = self.session.run(&format!("deallocate {}", plan.id));
        }
    }

    fn describe(&mut self, plan: &Plan, declared: &[u32]) -> Result<(), EngineError> {
        let count = self.numbers.iter().map(|number| number.saturating_add(1)).max().unwrap_or_default();
        if count > usize::from(u16::MAX) || plan.parameters.len() != self.numbers.len() {
            return Err(EngineError::new("42P02", "the statement's parameters are not numbered from $1 on"));
        }
        self.types = vec![oid::TEXT; count.max(declared.len())];
        for (number, kind) in self.numbers.iter().zip(&plan.parameters) {
            self.types[*number] = kind.oid;
        }
        for (place, kind) in self.types.iter_mut().zip(declared).filter(|(_, kind)| **kind != 0) {
            *place = *kind;
        }
        self.columns.clone_from(&plan.columns);
        Ok(())
    }
}

impl Statement for Prepared {
    fn parameters(&self) -> &[u32] {
        &self.types
    }

    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn execute(&mut self, values: &[Value], answer: &mut Answer<'_>) -> Result<Done, Failure> {
        let session = Rc::clone(&self.session);
        if self.is_direct {
            return session.execute(&self.sql, &self.verb, answer);
        }
        self.cast_where_needed(values);
        if self.plan.as_ref().is_none_or(|plan| plan.epoch != session.epoch()) {
            self.plan = None;
            self.plan = Some(self.make_plan()?);
        }
        let Some(plan) = &self.plan else { unreachable!("a plan was made") };
        let mut call = format!("execute {}(", plan.id);
        for (index, (number, kind)) in self.numbers.iter().zip(&plan.parameters).enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            let _ = write!(call, "{separator}{}", literal_of(values.get(*number).unwrap_or(&Value::Null), *kind));
        }
        call.push(')');
        session.run(&call)?.send(answer)
    }
}

/// A parameter's value as MonetDB's SQL writes it.
fn literal_of(value: &Value, kind: ColumnKind) -> String {
    let is_number = matches!(kind.oid, oid::INT2 | oid::INT4 | oid::INT8 | oid::NUMERIC | oid::FLOAT4 | oid::FLOAT8);
    match value {
        Value::Null => "null".to_owned(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => format!("{value:e}"),
        Value::Text(text) if is_number && parse_decimal(text).is_some() => text.trim().to_owned(),
        Value::Text(text) => literal(text),
    }
}

/// MonetDB's name of a type.
fn kind_of(name: &str, digits: i64, scale: i64) -> ColumnKind {
    ColumnKind::of(match name {
        "decimal" => {
            let bounded = |number: i64| u8::try_from(number).unwrap_or(38);
            return ColumnKind::numeric(bounded(digits), bounded(scale));
        }
        "boolean" => oid::BOOL,
        "tinyint" | "smallint" => oid::INT2,
        "int" => oid::INT4,
        "bigint" | "oid" => oid::INT8,
        "hugeint" | "month_interval" | "day_interval" | "sec_interval" => oid::NUMERIC,
        "real" => oid::FLOAT4,
        "double" => oid::FLOAT8,
        "date" => oid::DATE,
        "time" | "timetz" => oid::TIME,
        "timestamp" | "timestamptz" => oid::TIMESTAMP,
        "blob" => oid::BYTEA,
        _ => oid::TEXT,
    })
}

/// MonetDB's message: `SQLException:sql.execute:25005!Current transaction is aborted`.
fn error_of(message: &str) -> EngineError {
    let has = |text: &str| message.contains(text);
    let state = message.split_once('!').and_then(|(head, _)| head.rsplit(':').next()).unwrap_or_default();
    let sqlstate = match state {
        _ if has("malloc") || has("allocate") || has("out of memory") => "53200",
        _ if has("onflict") || has("transaction is aborted, will ROLLBACK") => "40001",
        _ if has("aborted due to") || has("Query aborted") => "57014",
        _ if has("Failed to initialize client") => "53300",
        "42S02" => "42P01",
        "42S01" => "42P07",
        "42S22" => "42703",
        "40002" if has("PRIMARY KEY") || has("UNIQUE") => "23505",
        "40002" if has("FOREIGN KEY") => "23503",
        "40002" if has("NOT NULL") => "23502",
        "40002" => "23000",
        "40000" | "40001" => "40001",
        "25005" => "25P02",
        "42000" if has("identifier") && has("unknown") => "42703",
        "42000" if has("syntax error") || has("mandatory") => "42601",
        "42000" => "42000",
        "0A000" => "0A000",
        "22003" => "22003",
        "22012" => "22012",
        "28000" | "42501" => "42501",
        _ => "XX000",
    };
    EngineError::new(sqlstate, message.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_monetdbs_own() {
        for (message, sqlstate) in [
            ("ParseException:SQLparser:42S02!SELECT: no such table 'nope'", "42P01"),
            ("ParseException:SQLparser:42000!syntax error, unexpected IDENT in: \"selec\"", "42601"),
            ("SQLException:assert:40002!INSERT INTO: PRIMARY KEY constraint 't.t_a_pkey' violated", "23505"),
            ("SQLException:assert:40002!INSERT INTO: FOREIGN KEY constraint 'f.x' violated", "23503"),
            ("SQLException:sql.update:42000!Update failed due to conflict with another transaction", "40001"),
            ("SQLException:sql.commit:40000!COMMIT: transaction is aborted, will ROLLBACK instead", "40001"),
            ("SQLException:sql.execute:25005!Current transaction is aborted (please ROLLBACK)", "25P02"),
            ("MALException:calc.int:operation failed", "XX000"),
        ] {
            assert_eq!(error_of(message).sqlstate, sqlstate, "{message}");
        }
    }

    #[test]
    fn a_decimal_is_cast_only_where_digits_would_be_lost() {
        let text = |text: &str| Value::Text(text.into());
        let needed = |value, kind, before| Decimal::needed(&text(value), kind, before);
        assert_eq!(needed("2.10", ColumnKind::numeric(12, 2), None), None);
        assert_eq!(needed("2", ColumnKind::of(oid::NUMERIC), None), None);
        assert_eq!(needed("2.10", ColumnKind::numeric(18, 0), None), Some(Decimal { digits: 18, scale: 2 }));
        assert_eq!(needed("2.1", ColumnKind::of(oid::INT8), None), Some(Decimal { digits: 18, scale: 1 }));
        let before = Some(Decimal { digits: 38, scale: 2 });
        assert_eq!(needed("-2.10", ColumnKind::numeric(38, 2), before), None);
        assert_eq!(needed("2.105", ColumnKind::numeric(38, 2), before), Some(Decimal { digits: 38, scale: 3 }));
        assert_eq!(needed("2.5", ColumnKind::of(oid::FLOAT8), None), None);
        assert_eq!(needed("2.5", ColumnKind::of(oid::TEXT), None), None);
    }

    #[test]
    fn values_become_literals() {
        let number = ColumnKind::numeric(12, 2);
        assert_eq!(literal_of(&Value::Text(" -1.50".into()), number), "-1.50");
        assert_eq!(literal_of(&Value::Text("1); drop table t --".into()), number), "'1); drop table t --'");
        assert_eq!(literal_of(&Value::Text("it's \\".into()), ColumnKind::of(oid::TEXT)), "'it''s \\\\'");
        assert_eq!(literal_of(&Value::Null, number), "null");
        assert_eq!(literal_of(&Value::Int(-7), number), "-7");
    }
}
