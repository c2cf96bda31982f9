//! `connect`: a byte stream to a socket or a device.

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::parse;
use crate::address::Address;
use crate::device;
use crate::failure::{Code, Failure};
use crate::proto::MAIN;
use crate::relay::{InputEnd, Output, Relay, set_nonblocking};
use crate::stream::StreamHandle;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    #[serde(default)]
    unix: Option<String>,
    #[serde(default)]
    tcp: Option<(String, u16)>,
    #[serde(default)]
    device: Option<String>,
    #[serde(default)]
    stamps: bool,
    #[serde(default = "default_timeout_ms")]
    timeout_ms: u64,
}

fn default_timeout_ms() -> u64 {
    5000
}

pub fn connect(params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let params: Params = parse(params)?;
    let timeout = Duration::from_millis(params.timeout_ms.max(1));
    let (target, input_end): (OwnedFd, _) = match (params.unix, params.tcp, params.device) {
        (Some(path), None, None) => (Address::Unix(path).connect(timeout)?, InputEnd::ShutDownSocket),
        (None, Some((host, port)), None) => (Address::Tcp(host, port).connect(timeout)?, InputEnd::ShutDownSocket),
        (None, None, Some(path)) => (device::open(&path)?, InputEnd::Ignore),
        _ => return Err(Failure::bad_request("exactly one of unix, tcp and device")),
    };
    set_nonblocking(&target).map_err(|error| Failure::io("fcntl", error))?;
    let input = target.try_clone().map_err(|error| Failure::io("dup", error))?;
    let outputs = vec![Output { channel: MAIN, file: target }];
    let mut relay = Relay::new(stream, params.stamps, Some(input), input_end, outputs)?;
    while !relay.is_finished() {
        if relay.is_cancelled() {
            return Err(Failure::new(Code::Cancelled, "cancelled"));
        }
        relay.step(None, None)?;
    }
    Ok(json!({}))
}
