//! What kernels, images and clients write, each to the function that reads it: for the fuzz target `texts` (agent/fuzz) alone.

use crate::collect::{blocks, faults, perf, samples};
use crate::launch::{Program, Report};
use crate::method::{counters, trace};
use crate::{address, users, wire};

/// `reader`: which of them, modulo their number.
pub fn read(reader: u8, bytes: &[u8]) {
    let text = &*String::from_utf8_lossy(bytes);
    match reader % 10 {
        0 => trace::Seen::default().read(text),
        1 => counters::read_texts(text),
        2 => drop(users::find("postgres", text, text)),
        3 => faults::read_mappings(text),
        4 => blocks::read_records(perf::records_of(bytes)),
        5 => faults::read_records(perf::records_of(bytes)),
        6 => samples::read_records(&perf::records_of(bytes)),
        7 => drop(perf::Tracepoint::parse("1", text.to_owned()).and_then(|tracepoint| tracepoint.field("sector"))),
        8 => {
            drop(serde_json::from_str(text).map(|program: Program| program.check()));
            drop(serde_json::from_str::<Report>(text));
            let _ = address::listed("db.internal", text);
        }
        _ => wire::null::hear(bytes),
    }
}
