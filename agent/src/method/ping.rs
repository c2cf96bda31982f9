//! `ping`: the shortest answer.

use serde::Deserialize;
use serde_json::{Value, json};

use super::parse;
use crate::clock;
use crate::failure::Failure;
use crate::stream::StreamHandle;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {}

pub fn ping(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    let Params {} = parse(params)?;
    Ok(json!({"at_ns": clock::now_ns()}))
}
