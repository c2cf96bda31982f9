//! DuckDB, by its C API: <https://duckdb.org/docs/stable/clients/c/api>.

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use crate::engine::{
    Column, ColumnKind, Connection, Done, Engine, EngineError, Failure, Interrupt, Kind, Opened, Options, Statement,
    Value, oid,
};
use crate::lock;
use crate::sql::{CopyIn, Dialect};
use crate::text::{
    MICROS_PER_SECOND, parse_bool, parse_date, parse_decimal, parse_timestamp, push_blob, push_bool, push_date,
    push_decimal, push_f32, push_f64, push_int, push_interval, push_time, push_timestamp, push_uuid,
};
use crate::wire::answer::Answer;

pub const KIND: Kind = Kind { name: "duckdb", version, open };

/// `duckdb_state`: success.
const SUCCESS: u32 = 0;

/// `duckdb_result`. All of it is the library's.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawResult([u64; 6]);

/// `duckdb_hugeint`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HugeInt {
    lower: u64,
    upper: i64,
}

/// `duckdb_decimal`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawDecimal {
    width: u8,
    scale: u8,
    value: HugeInt,
}

/// `duckdb_interval`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawInterval {
    months: i32,
    days: i32,
    micros: i64,
}

/// `duckdb_list_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ListEntry {
    offset: u64,
    length: u64,
}

type Handle = *mut c_void;

crate::functions! { Functions, "duckdb_",
    fn library_version() -> *const c_char;
    fn create_config(*mut Handle) -> u32;
    fn set_config(Handle, *const c_char, *const c_char) -> u32;
    fn destroy_config(*mut Handle);
    fn open_ext(*const c_char, *mut Handle, Handle, *mut *mut c_char) -> u32;
    fn close(*mut Handle);
    fn connect(Handle, *mut Handle) -> u32;
    fn disconnect(*mut Handle);
    fn interrupt(Handle);
    fn free(*mut c_void);
    fn query(Handle, *const c_char, *mut RawResult) -> u32;
    fn prepare(Handle, *const c_char, *mut Handle) -> u32;
    fn prepare_error(Handle) -> *const c_char;
    fn destroy_prepare(*mut Handle);
    fn nparams(Handle) -> u64;
    fn param_logical_type(Handle, u64) -> Handle;
    fn prepared_statement_column_count(Handle) -> u64;
    fn prepared_statement_column_name(Handle, u64) -> *const c_char;
    fn prepared_statement_column_logical_type(Handle, u64) -> Handle;
    fn prepared_statement_type(Handle) -> u32;
    fn bind_null(Handle, u64) -> u32;
    fn bind_boolean(Handle, u64, bool) -> u32;
    fn bind_int8(Handle, u64, i8) -> u32;
    fn bind_int16(Handle, u64, i16) -> u32;
    fn bind_int32(Handle, u64, i32) -> u32;
    fn bind_int64(Handle, u64, i64) -> u32;
    fn bind_double(Handle, u64, f64) -> u32;
    fn bind_decimal(Handle, u64, RawDecimal) -> u32;
    fn bind_date(Handle, u64, i32) -> u32;
    fn bind_timestamp(Handle, u64, i64) -> u32;
    fn bind_varchar_length(Handle, u64, *const c_char, u64) -> u32;
    fn pending_prepared_streaming(Handle, *mut Handle) -> u32;
    fn pending_error(Handle) -> *const c_char;
    fn execute_pending(Handle, *mut RawResult) -> u32;
    fn destroy_pending(*mut Handle);
    fn result_error(*mut RawResult) -> *const c_char;
    fn result_return_type(RawResult) -> u32;
    fn destroy_result(*mut RawResult);
    fn column_count(*mut RawResult) -> u64;
    fn column_name(*mut RawResult, u64) -> *const c_char;
    fn column_logical_type(*mut RawResult, u64) -> Handle;
    fn fetch_chunk(RawResult) -> Handle;
    fn destroy_data_chunk(*mut Handle);
    fn data_chunk_get_size(Handle) -> u64;
    fn data_chunk_get_vector(Handle, u64) -> Handle;
    fn vector_get_data(Handle) -> *mut c_void;
    fn vector_get_validity(Handle) -> *mut u64;
    fn list_vector_get_child(Handle) -> Handle;
    fn array_vector_get_child(Handle) -> Handle;
    fn struct_vector_get_child(Handle, u64) -> Handle;
    fn get_type_id(Handle) -> u32;
    fn destroy_logical_type(*mut Handle);
    fn decimal_width(Handle) -> u8;
    fn decimal_scale(Handle) -> u8;
    fn decimal_internal_type(Handle) -> u32;
    fn enum_internal_type(Handle) -> u32;
    fn enum_dictionary_size(Handle) -> u32;
    fn enum_dictionary_value(Handle, u64) -> *mut c_char;
    fn list_type_child_type(Handle) -> Handle;
    fn array_type_child_type(Handle) -> Handle;
    fn array_type_array_size(Handle) -> u64;
    fn struct_type_child_count(Handle) -> u64;
    fn struct_type_child_name(Handle, u64) -> *mut c_char;
    fn struct_type_child_type(Handle, u64) -> Handle;
    fn map_type_key_type(Handle) -> Handle;
    fn map_type_value_type(Handle) -> Handle;
}

/// Numbers of `DUCKDB_TYPE`.
mod type_id {
    pub const INVALID: u32 = 0;
    pub const BOOLEAN: u32 = 1;
    pub const TINYINT: u32 = 2;
    pub const SMALLINT: u32 = 3;
    pub const INTEGER: u32 = 4;
    pub const BIGINT: u32 = 5;
    pub const UTINYINT: u32 = 6;
    pub const USMALLINT: u32 = 7;
    pub const UINTEGER: u32 = 8;
    pub const UBIGINT: u32 = 9;
    pub const FLOAT: u32 = 10;
    pub const DOUBLE: u32 = 11;
    pub const TIMESTAMP: u32 = 12;
    pub const DATE: u32 = 13;
    pub const TIME: u32 = 14;
    pub const INTERVAL: u32 = 15;
    pub const HUGEINT: u32 = 16;
    pub const VARCHAR: u32 = 17;
    pub const BLOB: u32 = 18;
    pub const DECIMAL: u32 = 19;
    pub const TIMESTAMP_S: u32 = 20;
    pub const TIMESTAMP_MS: u32 = 21;
    pub const TIMESTAMP_NS: u32 = 22;
    pub const ENUM: u32 = 23;
    pub const LIST: u32 = 24;
    pub const STRUCT: u32 = 25;
    pub const MAP: u32 = 26;
    pub const UUID: u32 = 27;
    pub const TIMESTAMP_TZ: u32 = 31;
    pub const UHUGEINT: u32 = 32;
    pub const ARRAY: u32 = 33;
    pub const SQLNULL: u32 = 36;
}

/// Numbers of `duckdb_statement_type` that change rows.
const CHANGES_ROWS: [u32; 6] = [
    2,  // INSERT
    3,  // UPDATE
    5,  // DELETE
    7,  // CREATE … AS
    11, // COPY
    30, // MERGE INTO
];

/// Numbers of `duckdb_result_type`.
const CHANGED_ROWS: u32 = 1;
const QUERY_RESULT: u32 = 3;

fn load(options: &Options) -> Result<&'static Functions, String> {
    Functions::load(&options.library, &options.preload)
}

fn version(options: &Options) -> Result<String, String> {
    let functions = load(options)?;
    // SAFETY: the function gives a constant text.
    Ok(unsafe { text_of((functions.library_version)()) })
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
    let functions = load(options)?;
    let plain = |error: EngineError| error.message;
    let path = c_string(database).map_err(plain)?;
    let mut config: Handle = null_mut();
    let mut handle: Handle = null_mut();
    // SAFETY: all texts live as long as the calls; the config is destroyed once, after its last use.
    unsafe {
        if (functions.create_config)(&raw mut config) != SUCCESS {
            return Err("DuckDB makes no configuration".to_owned());
        }
        let mut opened = Ok(());
        for (name, value) in &options.settings {
            let (c_name, c_value) = (c_string(name).map_err(plain)?, c_string(value).map_err(plain)?);
            if (functions.set_config)(config, c_name.as_ptr(), c_value.as_ptr()) != SUCCESS {
                opened = Err(format!("DuckDB does not take the setting {name}={value}"));
            }
        }
        if opened.is_ok() {
            let mut error: *mut c_char = null_mut();
            if (functions.open_ext)(path.as_ptr(), &raw mut handle, config, &raw mut error) != SUCCESS {
                opened = Err(format!("cannot open {database}: {}", text_of(error)));
                (functions.free)(error.cast());
            }
        }
        (functions.destroy_config)(&raw mut config);
        opened?;
    }
    // SAFETY: the function gives a constant text.
    let version = unsafe { text_of((functions.library_version)()) };
    Ok(Box::new(Database { functions, handle: Mutex::new(handle), version }))
}

/// An open database.
struct Database {
    functions: &'static Functions,
    handle: Mutex<Handle>,
    version: String,
}

// SAFETY: DuckDB's database object may be used by all threads; the handle itself is behind a lock.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Engine for Database {
    fn title(&self) -> String {
        format!("DuckDB {}", self.version)
    }

    fn dialect(&self) -> Dialect {
        Dialect { has_escapes: false, has_nested_comments: true, has_dollar_quotes: true, has_bodies: false }
    }

    fn connect(&self) -> Result<Box<dyn Connection>, EngineError> {
        let mut handle: Handle = null_mut();
        // SAFETY: the database is open until `close`, which comes after the last connection.
        if unsafe { (self.functions.connect)(*lock(&self.handle), &raw mut handle) } != SUCCESS {
            return Err(EngineError::new("08006", "DuckDB makes no connection"));
        }
        Ok(Box::new(Client { link: Arc::new(Link { functions: self.functions, handle }) }))
    }

    fn close(&self) -> Result<(), EngineError> {
        let checkpointed = self.connect().map(|mut connection| connection.as_mut().begin("checkpoint"));
        // SAFETY: closed once, as `close` is called once, and no connection is left.
        unsafe { (self.functions.close)(&raw mut *lock(&self.handle)) };
        checkpointed?
    }
}

/// A connection, kept by its session, its statements, and whoever may interrupt it.
struct Link {
    functions: &'static Functions,
    handle: Handle,
}

// SAFETY: only `interrupt` is called by other threads, which DuckDB allows.
unsafe impl Send for Link {}
// SAFETY: as above.
unsafe impl Sync for Link {}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: the handle is disconnected once, here.
        unsafe { (self.functions.disconnect)(&raw mut self.handle) }
    }
}

impl Interrupt for Link {
    fn interrupt(&self) {
        // SAFETY: the connection is open as long as this object lives.
        unsafe { (self.functions.interrupt)(self.handle) }
    }
}

impl Link {
    fn query(&self, sql: &str) -> Result<Rows, EngineError> {
        let text = c_string(sql)?;
        let mut raw = RawResult([0; 6]);
        // SAFETY: the text lives as long as the call; the result is owned by `Rows` from then on.
        let state = unsafe { (self.functions.query)(self.handle, text.as_ptr(), &raw mut raw) };
        let mut rows = Rows { functions: self.functions, raw };
        if state == SUCCESS { Ok(rows) } else { Err(rows.error()) }
    }

    /// Runs SQL that has no rows.
    fn run(&self, sql: &str) -> Result<u64, EngineError> {
        Ok(self.query(sql)?.changed())
    }

    fn prepare(self: &Arc<Self>, sql: &str) -> Result<Plan, EngineError> {
        let text = c_string(sql)?;
        let mut plan = Plan { link: Arc::clone(self), handle: null_mut() };
        // SAFETY: the text lives as long as the call; the statement is destroyed by `Plan`, also where it failed.
        unsafe {
            if (self.functions.prepare)(self.handle, text.as_ptr(), &raw mut plan.handle) != SUCCESS {
                return Err(error_of(&text_of((self.functions.prepare_error)(plan.handle))));
            }
        }
        Ok(plan)
    }
}

/// A session.
struct Client {
    link: Arc<Link>,
}

impl Connection for Client {
    fn interrupter(&self) -> Option<Arc<dyn Interrupt>> {
        Some(Arc::clone(&self.link) as Arc<dyn Interrupt>)
    }

    fn query(&mut self, sql: &str, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        // BIAS: not prepared, since DuckDB plans a prepared statement again for each execution. The price: all rows of the
        // answer are in memory before the first is sent, beside what `memory_limit` bounds. DuckDB's own clients do the same.
        self.link.query(sql)?.finish(answer)
    }

    fn prepare(&mut self, sql: &str, declared: &[u32]) -> Result<Box<dyn Statement>, EngineError> {
        let plan = self.link.prepare(sql)?;
        let targets = plan.targets()?;
        let declared_of = |index: usize| declared.get(index).copied().unwrap_or_default();
        let kind_of = |(index, target): (usize, &Target)| match declared_of(index) {
            0 => target.oid(),
            kind => kind,
        };
        let types = targets.iter().enumerate().map(kind_of).collect();
        let columns = plan.columns();
        Ok(Box::new(PreparedStatement { plan, targets, types, columns }))
    }

    fn begin(&mut self, sql: &str) -> Result<(), EngineError> {
        self.link.run(sql).map(drop)
    }

    fn commit(&mut self) -> Result<(), EngineError> {
        self.link.run("commit").map(drop).inspect_err(|_| {
            // A commit that failed has ended its transaction, or has left one that can only be ended so.
            let _ = self.link.run("rollback");
        })
    }

    fn roll_back(&mut self) -> Result<(), EngineError> {
        self.link.run("rollback").map(drop)
    }

    fn copy_in(&mut self, copy: &CopyIn, path: &str) -> Result<u64, EngineError> {
        let quote = CopyIn::quoted(&copy.quote.to_string());
        // Everything is said, so that nothing is guessed from the first rows, which a pipe cannot give twice.
        self.link.run(&format!(
            "copy {} {} from '{path}' (format csv, auto_detect false, delimiter {}, quote {quote}, escape {quote}, header {}, \
             nullstr {}, allow_quoted_nulls false)",
            copy.table,
            copy.columns,
            CopyIn::quoted(&copy.delimiter.to_string()),
            copy.has_header,
            CopyIn::quoted(&copy.null),
        ))
    }
}

/// What a parameter is bound as, so that the plan need not be made anew for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Bool,
    /// Of so many bytes.
    Int(u8),
    Decimal {
        width: u8,
        scale: u8,
    },
    Double,
    Date,
    Timestamp,
    Text,
    /// DuckDB will know when it has a value.
    Open,
}

impl Target {
    fn oid(self) -> u32 {
        match self {
            Self::Bool => oid::BOOL,
            Self::Int(1 | 2) => oid::INT2,
            Self::Int(4) => oid::INT4,
            Self::Int(_) => oid::INT8,
            Self::Decimal { .. } => oid::NUMERIC,
            Self::Double => oid::FLOAT8,
            Self::Date => oid::DATE,
            Self::Timestamp => oid::TIMESTAMP,
            Self::Text | Self::Open => oid::TEXT,
        }
    }

    fn of_oid(kind: u32) -> Self {
        match kind {
            oid::BOOL => Self::Bool,
            oid::INT2 => Self::Int(2),
            oid::INT4 => Self::Int(4),
            oid::INT8 => Self::Int(8),
            oid::NUMERIC => Self::Decimal { width: 0, scale: 0 },
            oid::FLOAT4 | oid::FLOAT8 => Self::Double,
            oid::DATE => Self::Date,
            oid::TIMESTAMP => Self::Timestamp,
            _ => Self::Text,
        }
    }
}

/// A statement that DuckDB has parsed and planned.
struct Plan {
    link: Arc<Link>,
    handle: Handle,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the statement is destroyed once, here.
        unsafe { (self.link.functions.destroy_prepare)(&raw mut self.handle) }
    }
}

impl Plan {
    fn targets(&self) -> Result<Vec<Target>, EngineError> {
        let functions = self.link.functions;
        // SAFETY: the statement lives as long as `self`; parameters are numbered from 1.
        unsafe {
            let count = (functions.nparams)(self.handle);
            if count > u64::from(u16::MAX) {
                return Err(EngineError::new("54023", format!("{count} parameters")));
            }
            Ok((1..=count)
                .map(|index| target_of(functions, (functions.param_logical_type)(self.handle, index)))
                .collect())
        }
    }

    /// What Describe says. Empty if the statement has no rows, or if DuckDB does not know yet.
    fn columns(&self) -> Vec<Column> {
        let functions = self.link.functions;
        // SAFETY: the statement lives as long as `self`; names are DuckDB's to allocate and ours to free.
        let (columns, changes_rows) = unsafe {
            let columns = (0..(functions.prepared_statement_column_count)(self.handle)).map(|index| {
                let name = (functions.prepared_statement_column_name)(self.handle, index);
                let shape =
                    Shape::of(functions, (functions.prepared_statement_column_logical_type)(self.handle, index));
                let column = Column { name: text_of(name), kind: shape.kind() };
                (functions.free)(name.cast_mut().cast());
                column
            });
            (columns.collect::<Vec<_>>(), CHANGES_ROWS.contains(&(functions.prepared_statement_type)(self.handle)))
        };
        match &*columns {
            [column] if changes_rows && column.name == "Count" => Vec::new(),
            [column] if column.name == "Success" => Vec::new(),
            _ => columns,
        }
    }

    fn bind(&self, number: usize, value: &Value, target: Target, declared: u32) -> Result<(), EngineError> {
        let functions = self.link.functions;
        let index = number as u64 + 1;
        let declared = Target::of_oid(declared);
        let of_target = bound(value, target);
        // What does not fit into the type that DuckDB found is bound as what the client calls it: the comparison of a small
        // column with a large number has an answer.
        let bound = of_target.or_else(|| bound(value, declared)).or_else(|| match value {
            Value::Text(text) => Some(Bound::Text(text)),
            _ => None,
        });
        let Some(bound) = bound else {
            return Err(EngineError::new("22P02", format!("parameter {index} cannot be {target:?}: {value:?}")));
        };
        // SAFETY: the statement lives as long as `self`; texts are copied by the call.
        let state = unsafe {
            match bound {
                Bound::Null => (functions.bind_null)(self.handle, index),
                Bound::Bool(value) => (functions.bind_boolean)(self.handle, index, value),
                Bound::Int8(value) => (functions.bind_int8)(self.handle, index, value),
                Bound::Int16(value) => (functions.bind_int16)(self.handle, index, value),
                Bound::Int32(value) => (functions.bind_int32)(self.handle, index, value),
                Bound::Int64(value) => (functions.bind_int64)(self.handle, index, value),
                Bound::Double(value) => (functions.bind_double)(self.handle, index, value),
                Bound::Decimal(value) => (functions.bind_decimal)(self.handle, index, value),
                Bound::Date(value) => (functions.bind_date)(self.handle, index, value),
                Bound::Timestamp(value) => (functions.bind_timestamp)(self.handle, index, value),
                Bound::Text(text) => {
                    (functions.bind_varchar_length)(self.handle, index, text.as_ptr().cast(), text.len() as u64)
                }
            }
        };
        if state == SUCCESS {
            Ok(())
        } else {
            Err(EngineError::new("22P02", format!("DuckDB does not take parameter {index}: {value:?}")))
        }
    }

    fn execute(&self, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        let functions = self.link.functions;
        let mut pending: Handle = null_mut();
        let mut raw = RawResult([0; 6]);
        // SAFETY: the statement lives as long as `self`; the pending result is destroyed once; the result goes to `Rows`.
        let executed = unsafe {
            // Streaming: the rows of a large answer are never all in memory.
            let executed = if (functions.pending_prepared_streaming)(self.handle, &raw mut pending) == SUCCESS {
                Ok((functions.execute_pending)(pending, &raw mut raw))
            } else {
                Err(error_of(&text_of((functions.pending_error)(pending))))
            };
            (functions.destroy_pending)(&raw mut pending);
            executed
        };
        let mut rows = Rows { functions, raw };
        if executed? != SUCCESS {
            return Err(rows.error().into());
        }
        rows.finish(answer)
    }
}

struct PreparedStatement {
    plan: Plan,
    targets: Vec<Target>,
    types: Vec<u32>,
    columns: Vec<Column>,
}

impl Statement for PreparedStatement {
    fn parameters(&self) -> &[u32] {
        &self.types
    }

    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn execute(&mut self, values: &[Value], answer: &mut Answer<'_>) -> Result<Done, Failure> {
        for (number, ((value, target), declared)) in values.iter().zip(&self.targets).zip(&self.types).enumerate() {
            self.plan.bind(number, value, *target, *declared)?;
        }
        self.plan.execute(answer)
    }
}

/// A value as DuckDB's functions take it.
enum Bound<'a> {
    Null,
    Bool(bool),
    Int8(i8),
    Int16(i16),
    Int32(i32),
    Int64(i64),
    Double(f64),
    Decimal(RawDecimal),
    Date(i32),
    Timestamp(i64),
    Text(&'a str),
}

/// None if the value has no such form.
fn bound(value: &Value, target: Target) -> Option<Bound<'_>> {
    let as_int = |value: i64, bytes: u8| {
        Some(match bytes {
            1 => Bound::Int8(value.try_into().ok()?),
            2 => Bound::Int16(value.try_into().ok()?),
            4 => Bound::Int32(value.try_into().ok()?),
            _ => Bound::Int64(value),
        })
    };
    match (value, target) {
        (Value::Null, _) => Some(Bound::Null),
        (Value::Int(value), Target::Int(bytes)) => as_int(*value, bytes),
        (Value::Int(value), Target::Decimal { width, scale }) => decimal((i128::from(*value), 0), width, scale),
        #[expect(clippy::cast_precision_loss, reason = "what a double cannot hold is rounded, as PostgreSQL does")]
        (Value::Int(value), Target::Double) => Some(Bound::Double(*value as f64)),
        (Value::Float(value), Target::Double | Target::Open) => Some(Bound::Double(*value)),
        (Value::Text(text), Target::Bool) => parse_bool(text).map(Bound::Bool),
        (Value::Text(text), Target::Int(bytes)) => as_int(text.trim().parse().ok()?, bytes),
        (Value::Text(text), Target::Decimal { width, scale }) => decimal(parse_decimal(text)?, width, scale),
        (Value::Text(text), Target::Double) => text.trim().parse().ok().map(Bound::Double),
        (Value::Text(text), Target::Date) => parse_date(text).map(Bound::Date),
        (Value::Text(text), Target::Timestamp) => parse_timestamp(text).map(Bound::Timestamp),
        (Value::Text(text), Target::Text) => Some(Bound::Text(text)),
        _ => None,
    }
}

/// `width` 0: as wide as it must be.
fn decimal((unscaled, found): (i128, u8), width: u8, scale: u8) -> Option<Bound<'static>> {
    let (width, scale) = if width == 0 { (38, found) } else { (width, scale) };
    let value = unscaled.checked_mul(10i128.checked_pow(u32::from(scale.checked_sub(found)?))?)?;
    if value.unsigned_abs() >= 10u128.pow(u32::from(width)) {
        return None;
    }
    Some(Bound::Decimal(RawDecimal { width, scale, value: HugeInt::from(value) }))
}

impl From<i128> for HugeInt {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the two halves")]
    fn from(value: i128) -> Self {
        Self { lower: value as u64, upper: (value >> 64) as i64 }
    }
}

impl HugeInt {
    fn value(self) -> i128 {
        i128::from(self.upper) << 64 | i128::from(self.lower)
    }
}

/// A result, while and after it is executed.
struct Rows {
    functions: &'static Functions,
    raw: RawResult,
}

impl Drop for Rows {
    fn drop(&mut self) {
        // SAFETY: the result is destroyed once, here.
        unsafe { (self.functions.destroy_result)(&raw mut self.raw) }
    }
}

/// A count of things in memory.
fn size(count: u64) -> usize {
    usize::try_from(count).expect("what is in memory can be counted")
}

/// Some of a result's rows.
struct Chunk {
    functions: &'static Functions,
    handle: Handle,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the chunk is destroyed once, here.
        unsafe { (self.functions.destroy_data_chunk)(&raw mut self.handle) }
    }
}

impl Chunk {
    fn rows(&self) -> usize {
        // SAFETY: the chunk lives as long as `self`.
        size(unsafe { (self.functions.data_chunk_get_size)(self.handle) })
    }
}

impl Rows {
    fn message(&mut self) -> Option<String> {
        // SAFETY: the result lives as long as `self`; its text is copied.
        let message = unsafe { text_of((self.functions.result_error)(&raw mut self.raw)) };
        (!message.is_empty()).then_some(message)
    }

    fn error(&mut self) -> EngineError {
        error_of(&self.message().unwrap_or_else(|| "DuckDB tells of no reason".to_owned()))
    }

    fn chunk(&mut self) -> Option<Chunk> {
        // SAFETY: the result lives as long as `self`.
        let handle = unsafe { (self.functions.fetch_chunk)(self.raw) };
        if handle.is_null() { None } else { Some(Chunk { functions: self.functions, handle }) }
    }

    /// The count of a statement that changes rows: its only value.
    fn changed(&mut self) -> u64 {
        // SAFETY: the result lives as long as `self`; types are ours to destroy.
        let shapes = unsafe {
            (0..(self.functions.column_count)(&raw mut self.raw))
                .map(|index| Shape::of(self.functions, (self.functions.column_logical_type)(&raw mut self.raw, index)))
                .collect::<Vec<_>>()
        };
        let Some(chunk) = self.chunk().filter(|chunk| chunk.rows() > 0) else { return 0 };
        if !matches!(&*shapes, [Shape::Plain(type_id::BIGINT)]) {
            return 0;
        }
        // SAFETY: the chunk has one column of 8-byte integers and at least one row.
        let count = unsafe {
            let vector = (self.functions.data_chunk_get_vector)(chunk.handle, 0);
            (self.functions.vector_get_data)(vector).cast::<i64>().read()
        };
        u64::try_from(count).unwrap_or_default()
    }

    /// Sends the rows, where the statement has some.
    fn finish(&mut self, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        // SAFETY: the result lives as long as `self`.
        match unsafe { (self.functions.result_return_type)(self.raw) } {
            CHANGED_ROWS => Ok(Done::Changed(self.changed())),
            QUERY_RESULT => self.send(answer),
            _ => Ok(Done::Nothing),
        }
    }

    fn send(&mut self, answer: &mut Answer<'_>) -> Result<Done, Failure> {
        let functions = self.functions;
        // SAFETY: the result lives as long as `self`; names belong to it and are copied.
        let (columns, shapes): (Vec<Column>, Vec<Shape>) = unsafe {
            (0..(functions.column_count)(&raw mut self.raw))
                .map(|index| {
                    let name = text_of((functions.column_name)(&raw mut self.raw, index));
                    let shape = Shape::of(functions, (functions.column_logical_type)(&raw mut self.raw, index));
                    (Column { name, kind: shape.kind() }, shape)
                })
                .unzip()
        };
        for (column, shape) in columns.iter().zip(&shapes) {
            if shape.is_strange() {
                let text = format!("column {:?} has a type that is not written: cast it to varchar", column.name);
                return Err(EngineError::new("0A000", text).into());
            }
        }
        answer.columns(&columns);
        while let Some(chunk) = self.chunk() {
            // SAFETY: the vectors belong to the chunk, which lives until all of its rows are written.
            unsafe {
                let vector = |index: usize| (functions.data_chunk_get_vector)(chunk.handle, index as u64);
                let lanes: Vec<Lane<'_>> =
                    shapes.iter().enumerate().map(|(index, shape)| Lane::of(functions, shape, vector(index))).collect();
                send_rows(&lanes, chunk.rows(), answer)?;
            }
        }
        match self.message() {
            Some(message) => Err(error_of(&message).into()),
            None => Ok(Done::Rows),
        }
    }
}

/// # Safety
///
/// The lanes' vectors are alive and have so many rows.
unsafe fn send_rows(lanes: &[Lane<'_>], rows: usize, answer: &mut Answer<'_>) -> io::Result<()> {
    for row in 0..rows {
        answer.begin_row();
        for lane in lanes {
            // SAFETY: by this function's contract.
            unsafe {
                if lane.is_null(row) {
                    answer.null();
                } else {
                    answer.value(|out| lane.write(row, out, false));
                }
            }
        }
        answer.end_row()?;
    }
    Ok(())
}

/// A type, as far as it must be known to read values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    /// One of `type_id`.
    Plain(u32),
    Decimal {
        width: u8,
        scale: u8,
        /// The integer that it is stored as.
        stored: u32,
    },
    Enum {
        words: Vec<String>,
        stored: u32,
    },
    List(Box<Shape>),
    Array(Box<Shape>, usize),
    Struct(Vec<(String, Shape)>),
    /// Stored as a list of structures.
    Map(Box<Shape>),
}

/// # Safety
///
/// `handle` is a logical type that nobody else uses; it is destroyed.
unsafe fn target_of(functions: &'static Functions, handle: Handle) -> Target {
    // SAFETY: by this function's contract.
    match unsafe { Shape::of(functions, handle) } {
        Shape::Plain(type_id::BOOLEAN) => Target::Bool,
        Shape::Plain(type_id::TINYINT) => Target::Int(1),
        Shape::Plain(type_id::SMALLINT) => Target::Int(2),
        Shape::Plain(type_id::INTEGER) => Target::Int(4),
        Shape::Plain(type_id::BIGINT) => Target::Int(8),
        Shape::Plain(type_id::FLOAT | type_id::DOUBLE) => Target::Double,
        Shape::Plain(type_id::DATE) => Target::Date,
        Shape::Plain(type_id::TIMESTAMP) => Target::Timestamp,
        Shape::Plain(type_id::VARCHAR) => Target::Text,
        Shape::Decimal { width, scale, .. } => Target::Decimal { width, scale },
        _ => Target::Open,
    }
}

impl Shape {
    /// # Safety
    ///
    /// `handle` is null or a logical type that nobody else uses; it is destroyed.
    unsafe fn of(functions: &'static Functions, mut handle: Handle) -> Self {
        if handle.is_null() {
            return Self::Plain(type_id::INVALID);
        }
        // SAFETY: by this function's contract; children and names are ours to destroy and free.
        unsafe {
            let owned_text = |text: *mut c_char| {
                let copied = text_of(text);
                (functions.free)(text.cast());
                copied
            };
            let shape = match (functions.get_type_id)(handle) {
                type_id::DECIMAL => Self::Decimal {
                    width: (functions.decimal_width)(handle),
                    scale: (functions.decimal_scale)(handle),
                    stored: (functions.decimal_internal_type)(handle),
                },
                type_id::ENUM => Self::Enum {
                    words: (0..u64::from((functions.enum_dictionary_size)(handle)))
                        .map(|index| owned_text((functions.enum_dictionary_value)(handle, index)))
                        .collect(),
                    stored: (functions.enum_internal_type)(handle),
                },
                type_id::LIST => Self::List(Box::new(Self::of(functions, (functions.list_type_child_type)(handle)))),
                type_id::ARRAY => Self::Array(
                    Box::new(Self::of(functions, (functions.array_type_child_type)(handle))),
                    size((functions.array_type_array_size)(handle)),
                ),
                type_id::STRUCT => Self::Struct(
                    (0..(functions.struct_type_child_count)(handle))
                        .map(|index| {
                            let name = owned_text((functions.struct_type_child_name)(handle, index));
                            (name, Self::of(functions, (functions.struct_type_child_type)(handle, index)))
                        })
                        .collect(),
                ),
                type_id::MAP => Self::Map(Box::new(Self::Struct(vec![
                    ("key".to_owned(), Self::of(functions, (functions.map_type_key_type)(handle))),
                    ("value".to_owned(), Self::of(functions, (functions.map_type_value_type)(handle))),
                ]))),
                plain => Self::Plain(plain),
            };
            (functions.destroy_logical_type)(&raw mut handle);
            shape
        }
    }

    /// The type that PostgreSQL calls it. What has no equivalent is text.
    fn kind(&self) -> ColumnKind {
        let plain = match self {
            Self::Decimal { width, scale, .. } => return ColumnKind::numeric(*width, *scale),
            Self::Plain(plain) => *plain,
            _ => return ColumnKind::of(oid::TEXT),
        };
        ColumnKind::of(match plain {
            type_id::BOOLEAN => oid::BOOL,
            type_id::TINYINT | type_id::SMALLINT | type_id::UTINYINT => oid::INT2,
            type_id::INTEGER | type_id::USMALLINT => oid::INT4,
            type_id::BIGINT | type_id::UINTEGER => oid::INT8,
            type_id::UBIGINT | type_id::HUGEINT | type_id::UHUGEINT => oid::NUMERIC,
            type_id::FLOAT => oid::FLOAT4,
            type_id::DOUBLE => oid::FLOAT8,
            type_id::TIMESTAMP | type_id::TIMESTAMP_S | type_id::TIMESTAMP_MS | type_id::TIMESTAMP_NS => oid::TIMESTAMP,
            type_id::TIMESTAMP_TZ => oid::TIMESTAMPTZ,
            type_id::DATE => oid::DATE,
            type_id::TIME => oid::TIME,
            type_id::INTERVAL => oid::INTERVAL,
            type_id::BLOB => oid::BYTEA,
            type_id::UUID => oid::UUID,
            _ => oid::TEXT,
        })
    }

    /// Whether it has a part that `Lane::write` does not write.
    fn is_strange(&self) -> bool {
        match self {
            Self::Plain(plain) => !matches!(
                *plain,
                type_id::BOOLEAN
                    ..=type_id::BLOB
                        | type_id::TIMESTAMP_S
                        | type_id::TIMESTAMP_MS
                        | type_id::TIMESTAMP_NS
                        | type_id::UUID
                        | type_id::TIMESTAMP_TZ
                        | type_id::UHUGEINT
                        | type_id::SQLNULL
            ),
            Self::Decimal { .. } | Self::Enum { .. } => false,
            Self::List(item) | Self::Array(item, _) | Self::Map(item) => item.is_strange(),
            Self::Struct(fields) => fields.iter().any(|(_, shape)| shape.is_strange()),
        }
    }
}

/// One column of a chunk: where its values lie.
struct Lane<'a> {
    shape: &'a Shape,
    data: *const u8,
    /// One bit for each row; null if none is NULL.
    validity: *const u64,
    children: Vec<Lane<'a>>,
}

impl<'a> Lane<'a> {
    /// # Safety
    ///
    /// `vector` is alive as long as the lane is used, and has the shape.
    unsafe fn of(functions: &'static Functions, shape: &'a Shape, vector: Handle) -> Self {
        // SAFETY: by this function's contract: children have the shapes of the type's parts.
        unsafe {
            let children = match shape {
                Shape::Plain(_) | Shape::Decimal { .. } | Shape::Enum { .. } => Vec::new(),
                Shape::List(item) | Shape::Map(item) => {
                    vec![Self::of(functions, item, (functions.list_vector_get_child)(vector))]
                }
                Shape::Array(item, _) => vec![Self::of(functions, item, (functions.array_vector_get_child)(vector))],
                Shape::Struct(fields) => {
                    let child = |index: usize| (functions.struct_vector_get_child)(vector, index as u64);
                    let fields = fields.iter().enumerate();
                    fields.map(|(index, (_, shape))| Self::of(functions, shape, child(index))).collect()
                }
            };
            let data = (functions.vector_get_data)(vector).cast_const().cast();
            Self { shape, data, validity: (functions.vector_get_validity)(vector), children }
        }
    }

    /// # Safety
    ///
    /// The vector is alive and has that row.
    unsafe fn is_null(&self, row: usize) -> bool {
        // SAFETY: by this function's contract: 64 rows to a word.
        !self.validity.is_null() && unsafe { self.validity.add(row / 64).read() } >> (row % 64) & 1 == 0
    }

    /// # Safety
    ///
    /// `T` is how the vector stores values, and it has that row.
    unsafe fn get<T: Copy>(&self, row: usize) -> T {
        // SAFETY: by this function's contract.
        unsafe { self.data.cast::<T>().add(row).read_unaligned() }
    }

    /// # Safety
    ///
    /// The vector holds `duckdb_string_t`, and has that row.
    unsafe fn bytes(&self, row: usize) -> &[u8] {
        const INLINE_BYTES: usize = 12;
        // SAFETY: by this function's contract: a length of 4 bytes, then up to 12 bytes, or 4 of them and a pointer to all.
        unsafe {
            let string = self.data.add(16 * row);
            let length = string.cast::<u32>().read_unaligned() as usize;
            let start =
                if length <= INLINE_BYTES { string.add(4) } else { string.add(8).cast::<*const u8>().read_unaligned() };
            std::slice::from_raw_parts(start, length)
        }
    }

    /// # Safety
    ///
    /// The vector stores integers as `stored` says, and has that row.
    unsafe fn integer(&self, row: usize, stored: u32) -> i128 {
        // SAFETY: by this function's contract.
        unsafe {
            match stored {
                type_id::TINYINT => self.get::<i8>(row).into(),
                type_id::UTINYINT => self.get::<u8>(row).into(),
                type_id::SMALLINT => self.get::<i16>(row).into(),
                type_id::USMALLINT => self.get::<u16>(row).into(),
                type_id::INTEGER => self.get::<i32>(row).into(),
                type_id::UINTEGER => self.get::<u32>(row).into(),
                type_id::BIGINT => self.get::<i64>(row).into(),
                type_id::UBIGINT => self.get::<u64>(row).into(),
                _ => self.get::<HugeInt>(row).value(),
            }
        }
    }

    /// Writes a value that is not NULL. Inside of another value, texts that could be mistaken have quotes, as DuckDB's have.
    ///
    /// # Safety
    ///
    /// The vector is alive and has that row.
    unsafe fn write(&self, row: usize, out: &mut Vec<u8>, is_inside: bool) {
        // SAFETY: by this function's contract: each shape reads what DuckDB stores for it.
        unsafe {
            match self.shape {
                Shape::Plain(plain) => self.write_plain(*plain, row, out, is_inside),
                Shape::Decimal { scale, stored, .. } => {
                    push_decimal(out, self.integer(row, *stored), usize::from(*scale));
                }
                Shape::Enum { words, stored } => {
                    let word = usize::try_from(self.integer(row, *stored)).ok().and_then(|index| words.get(index));
                    push_text(out, word.map_or(&b""[..], |word| word.as_bytes()), is_inside);
                }
                Shape::List(_) => {
                    let entry: ListEntry = self.get(row);
                    let start = size(entry.offset);
                    self.write_items(start..start + size(entry.length), out);
                }
                Shape::Array(_, size) => self.write_items(row * size..(row + 1) * size, out),
                Shape::Struct(fields) => {
                    out.push(b'{');
                    for (index, ((name, _), child)) in fields.iter().zip(&self.children).enumerate() {
                        if index > 0 {
                            out.extend_from_slice(b", ");
                        }
                        push_text(out, name.as_bytes(), false);
                        out.extend_from_slice(b": ");
                        child.write_or_null(row, out);
                    }
                    out.push(b'}');
                }
                Shape::Map(_) => {
                    let entry: ListEntry = self.get(row);
                    out.push(b'{');
                    for (index, item) in (entry.offset..entry.offset + entry.length).enumerate() {
                        if index > 0 {
                            out.extend_from_slice(b", ");
                        }
                        let pair = &self.children[0].children;
                        pair[0].write_or_null(size(item), out);
                        out.push(b'=');
                        pair[1].write_or_null(size(item), out);
                    }
                    out.push(b'}');
                }
            }
        }
    }

    /// # Safety
    ///
    /// As for `write`.
    unsafe fn write_items(&self, items: std::ops::Range<usize>, out: &mut Vec<u8>) {
        out.push(b'[');
        for item in items.clone() {
            if item > items.start {
                out.extend_from_slice(b", ");
            }
            // SAFETY: by this function's contract: the child has the items of the entry.
            unsafe { self.children[0].write_or_null(item, out) };
        }
        out.push(b']');
    }

    /// # Safety
    ///
    /// As for `write`.
    unsafe fn write_or_null(&self, row: usize, out: &mut Vec<u8>) {
        // SAFETY: by this function's contract.
        unsafe {
            if self.is_null(row) {
                out.extend_from_slice(b"NULL");
            } else {
                self.write(row, out, true);
            }
        }
    }

    /// # Safety
    ///
    /// As for `write`; the vector is of that type.
    unsafe fn write_plain(&self, plain: u32, row: usize, out: &mut Vec<u8>, is_inside: bool) {
        // SAFETY: by this function's contract.
        unsafe {
            match plain {
                type_id::BOOLEAN if is_inside => {
                    out.extend_from_slice(if self.get::<u8>(row) != 0 { b"true" } else { b"false" });
                }
                type_id::BOOLEAN => push_bool(out, self.get::<u8>(row) != 0),
                type_id::TINYINT..=type_id::UBIGINT | type_id::HUGEINT => push_int(out, self.integer(row, plain)),
                type_id::UHUGEINT => {
                    let [lower, upper]: [u64; 2] = self.get(row);
                    push_int(out, u128::from(upper) << 64 | u128::from(lower));
                }
                type_id::FLOAT => push_f32(out, self.get(row)),
                type_id::DOUBLE => push_f64(out, self.get(row)),
                type_id::DATE => match self.get::<i32>(row) {
                    i32::MAX => out.extend_from_slice(b"infinity"),
                    days if days == -i32::MAX => out.extend_from_slice(b"-infinity"),
                    days => push_date(out, i64::from(days)),
                },
                type_id::TIME => push_time(out, self.get(row)),
                type_id::TIMESTAMP | type_id::TIMESTAMP_S | type_id::TIMESTAMP_MS | type_id::TIMESTAMP_NS => {
                    push_moment(out, self.get(row), plain, "");
                }
                // DuckDB keeps points in time in UTC.
                type_id::TIMESTAMP_TZ => push_moment(out, self.get(row), plain, "+00"),
                type_id::INTERVAL => {
                    let RawInterval { months, days, micros } = self.get(row);
                    push_interval(out, months, days, micros);
                }
                type_id::UUID => {
                    // The highest bit is turned, so that signed integers sort as the texts do.
                    let bits = self.get::<HugeInt>(row).value() ^ i128::MIN;
                    push_uuid(out, u128::from_ne_bytes(bits.to_ne_bytes()));
                }
                type_id::BLOB => push_blob(out, self.bytes(row)),
                _ => push_text(out, self.bytes(row), is_inside),
            }
        }
    }
}

/// A point in time, in the unit that its type has.
fn push_moment(out: &mut Vec<u8>, value: i64, plain: u32, zone: &str) {
    match value {
        i64::MAX => out.extend_from_slice(b"infinity"),
        value if value == -i64::MAX => out.extend_from_slice(b"-infinity"),
        value => {
            let micros = match plain {
                type_id::TIMESTAMP_S => value.saturating_mul(MICROS_PER_SECOND),
                type_id::TIMESTAMP_MS => value.saturating_mul(1000),
                // PostgreSQL's have no nanoseconds.
                type_id::TIMESTAMP_NS => value.div_euclid(1000),
                _ => value,
            };
            push_timestamp(out, micros, zone);
        }
    }
}

/// A text; inside of another value with quotes where it has characters that mean something there.
fn push_text(out: &mut Vec<u8>, text: &[u8], is_inside: bool) {
    let is_special = |byte: &u8| b"\"'\\()[]{},=: ".contains(byte);
    if !is_inside || !text.is_empty() && !text.eq_ignore_ascii_case(b"null") && !text.iter().any(is_special) {
        return out.extend_from_slice(text);
    }
    out.push(b'\'');
    for byte in text {
        if matches!(byte, b'\'' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'\'');
}

/// DuckDB's message begins with the kind of error.
fn error_of(message: &str) -> EngineError {
    let has = |text: &str| message.contains(text);
    let kind = message.split(" Error:").next().unwrap_or_default();
    let sqlstate = match kind {
        "Parser" => "42601",
        "Catalog" if has("already exists") => "42P07",
        "Catalog" if has("Table with name") || has("View with name") => "42P01",
        "Catalog" if has("Function with name") => "42883",
        "Catalog" => "42704",
        "Binder" if has("Referenced table") => "42P01",
        "Binder" if has("Referenced column") || has("does not have a column") => "42703",
        "Binder" => "42000",
        "Constraint" if has("uplicate key") || has("violates primary key") || has("violates unique") => "23505",
        "Constraint" if has("foreign key") || has("still referenced") => "23503",
        "Constraint" if has("NOT NULL") => "23502",
        "Constraint" if has("CHECK") => "23514",
        "Constraint" => "23000",
        "TransactionContext" | "Transaction" if has("onflict") => "40001",
        "TransactionContext" | "Transaction" if has("aborted") => "25P02",
        "INTERRUPT" => "57014",
        "Out of Memory" => "53200",
        "Not implemented" => "0A000",
        "Conversion" => "22P02",
        "Out of Range" => "22003",
        "Invalid Input" => "22023",
        "IO" => "58030",
        "Permission" => "42501",
        _ => "XX000",
    };
    EngineError::new(sqlstate, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_the_kinds_of_errors() {
        for (message, sqlstate) in [
            ("Parser Error: syntax error at or near \"selec\"", "42601"),
            ("Catalog Error: Table with name x does not exist!", "42P01"),
            ("Constraint Error: Duplicate key \"a: 1\" violates primary key constraint.", "23505"),
            ("TransactionContext Error: Conflict on update!", "40001"),
            ("INTERRUPT Error: Interrupted!", "57014"),
            ("Out of Memory Error: failed to allocate", "53200"),
            ("Not implemented Error: x", "0A000"),
            ("something else", "XX000"),
        ] {
            assert_eq!(error_of(message).sqlstate, sqlstate, "{message}");
        }
    }

    #[test]
    fn a_value_takes_the_form_of_its_target_or_none() {
        let text = |text: &str| Value::Text(text.to_owned());
        let Some(Bound::Decimal(found)) = bound(&text("-1.5"), Target::Decimal { width: 4, scale: 2 }) else {
            panic!("no decimal")
        };
        assert_eq!((found.width, found.scale, found.value.value()), (4, 2, -150));
        assert!(bound(&text("123"), Target::Decimal { width: 4, scale: 2 }).is_none());
        assert!(bound(&text("1.234"), Target::Decimal { width: 4, scale: 2 }).is_none());
        assert!(matches!(bound(&Value::Int(-3), Target::Int(2)), Some(Bound::Int16(-3))));
        assert!(bound(&Value::Int(40_000), Target::Int(2)).is_none());
        assert!(matches!(bound(&text("1970-01-03"), Target::Date), Some(Bound::Date(2))));
        assert!(bound(&text("today"), Target::Date).is_none());
    }
}
