//! The methods that a controller can call, by name.

mod connect;
pub mod counters;
pub(crate) mod files;
mod ping;
mod run;
pub(crate) mod trace;
mod tree;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::driver::serial;
use crate::failure::Failure;
use crate::oltp;
use crate::stream::StreamHandle;
use crate::tpch::{load, tbl};

/// Runs on a thread of its own; its result is the stream's END, its failure the stream's ERROR.
pub type Handler = fn(params: Value, stream: StreamHandle) -> Result<Value, Failure>;

#[must_use]
pub fn lookup(name: &str) -> Option<Handler> {
    Some(match name {
        "commit" => trace::commit,
        "connect" => connect::connect,
        "counters" => counters::counters,
        "get" => files::get,
        "list" => files::list,
        "mkdir" => files::mkdir,
        "oltp" => oltp::oltp,
        "oltp_load" => oltp::load::oltp_load,
        "ping" => ping::ping,
        "put" => files::put,
        "remove" => files::remove,
        "run" => run::run,
        "serial" => serial::serial,
        "signal" => run::signal,
        "tpch_load" => load::tpch_load,
        "tpch_table" => tbl::tpch_table,
        "trace_begin" => trace::begin,
        "trace_end" => trace::end,
        "tree" => tree::tree,
        _ => return None,
    })
}

/// The typed parameters of a method; their types carry `deny_unknown_fields`.
pub fn parse<T: DeserializeOwned>(params: Value) -> Result<T, Failure> {
    serde_json::from_value(params).map_err(|error| Failure::bad_request(error.to_string()))
}
