//! Requests to the block devices of this machine, as its kernel issues them (`block:block_rq_issue`): how many, how large, and how far
//! each lies from the end of the one before it of its direction on the same device. A flush carries nothing and lies nowhere (the
//! kernel says sector 0), so it is only counted.
//!
//! BIAS: everybody's requests are in it, and a device that several use sees their requests mixed: that is what it has to serve.

use std::collections::{BTreeMap, HashMap};
use std::io;

use serde::Serialize;

use super::perf::{self, Record, Recording, SAMPLE, Tracepoint, u32_at, u64_at};

/// What the kernel counts in, whatever the device's sectors are.
const SECTOR_BYTES: u64 = 512;

/// Of one device and direction.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Requests {
    count: u64,
    bytes: u64,
    /// Those that begin where the one before ended.
    sequential: u64,
    /// Power of two -> how many of the others lie at most so many bytes away, and more than half of that.
    by_distance: BTreeMap<u64, u64>,
}

/// By device (its name; `major:minor` of one that has none), then `reads`, `writes`, `others` (discards, flushes).
type Found = BTreeMap<String, BTreeMap<&'static str, Requests>>;

/// Where the tracepoint has what is needed of it.
struct Fields {
    device: usize,
    sector: usize,
    sectors: usize,
    kind: usize,
}

/// Says `{"ready": true}` when it records, and what it found when it is told to end (SIGTERM).
pub fn run() -> Result<(), String> {
    let over = super::told_to_end();
    let begin = || -> io::Result<_> {
        let issued = Tracepoint::find("block/block_rq_issue")?;
        let at = |name| issued.field(name).map(|(offset, _)| offset);
        let fields = Fields { device: at("dev")?, sector: at("sector")?, sectors: at("nr_sector")?, kind: at("rwbs")? };
        Ok((fields, Recording::everywhere(&issued, perf::WITH_TIMES)?))
    };
    let (fields, recordings) = begin().map_err(|error| format!("requests are not recorded here: {error}"))?;
    super::say_ready()?;
    let records = perf::record(recordings, &over).map_err(|error| error.to_string())?;
    let named = found(&records, &fields).into_iter().map(|(numbers, its)| (name_of(&numbers).unwrap_or(numbers), its));
    super::tell(&named.collect::<Found>())
}

/// As /proc/diskstats calls the device of these numbers; None where /sys does not tell.
fn name_of(numbers: &str) -> Option<String> {
    let link = std::fs::read_link(format!("/sys/dev/block/{numbers}")).ok()?;
    Some(link.file_name()?.to_str()?.replace('!', "/"))
}

pub(crate) fn read_records(records: Vec<Record>) {
    let _ = found(&records, &Fields { device: 0, sector: 8, sectors: 16, kind: 20 });
}

fn found(records: &[Record], fields: &Fields) -> Found {
    let mut found = Found::new();
    let mut ends: HashMap<(u32, &str), u64> = HashMap::new();
    for record in records.iter().filter(|record| record.kind == SAMPLE) {
        let body = record.sample().fields;
        let (device, sector) = (u32_at(body, fields.device), u64_at(body, fields.sector));
        let bytes = u64::from(u32_at(body, fields.sectors)) * SECTOR_BYTES;
        // The kernel's own numbers: 12 bits and 20 bits (include/linux/kdev_t.h).
        let name = format!("{}:{}", device >> 20, device & 0xf_ffff);
        let direction = direction(body.get(fields.kind..).unwrap_or_default());
        let requests = found.entry(name).or_default().entry(direction).or_default();
        requests.count += 1;
        requests.bytes = requests.bytes.saturating_add(bytes);
        if bytes == 0 {
            continue;
        }
        let start = sector.wrapping_mul(SECTOR_BYTES);
        match ends.insert((device, direction), start.wrapping_add(bytes)).map(|end| start.abs_diff(end)) {
            None => {}
            Some(0) => requests.sequential += 1,
            Some(distance) => {
                let most = distance.checked_next_power_of_two().unwrap_or(u64::MAX);
                *requests.by_distance.entry(most).or_default() += 1;
            }
        }
    }
    found
}

/// By the letters of `rwbs` (kernel/trace/blktrace.c: `blk_fill_rwbs`); one F before them asks for a flush first.
fn direction(letters: &[u8]) -> &'static str {
    match letters {
        [b'R', ..] | [b'F', b'R', ..] => "reads",
        [b'W', ..] | [b'F', b'W', ..] => "writes",
        _ => "others",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_by_their_distance() {
        let fields = Fields { device: 0, sector: 8, sectors: 16, kind: 20 };
        let record = |device: u32, sector: u64, sectors: u32, kind: &[u8]| {
            // Instruction, process and thread, time, and how long the fields are.
            let mut body = vec![0; 28];
            body.extend(device.to_ne_bytes());
            body.extend([0; 4]);
            body.extend(sector.to_ne_bytes());
            body.extend(sectors.to_ne_bytes());
            body.extend(kind);
            Record { kind: SAMPLE, time_ns: 0, body }
        };
        let disk = (254 << 20) | 1;
        let records = [
            record(disk, 8, 16, b"R\0"),
            record(disk, 24, 8, b"RA"),
            record(7, 0, 8, b"FWS"),
            record(disk, 40, 8, b"W\0"),
            record(disk, 0, 0, b"FF"),
            record(disk, 32, 8, b"R\0"),
            record(disk, 48, 8, b"WFS"),
            record(disk, 64, 8, b"W\0"),
        ];
        let found = found(&records, &fields);
        assert_eq!(
            found["254:1"]["reads"],
            Requests { count: 3, bytes: 32 * 512, sequential: 2, ..Requests::default() }
        );
        let writes = Requests { count: 3, bytes: 24 * 512, sequential: 1, by_distance: BTreeMap::from([(8 * 512, 1)]) };
        assert_eq!(found["254:1"]["writes"], writes, "reads and flushes in between move nothing");
        assert_eq!(found["254:1"]["others"].count, 1);
        assert_eq!(found["0:7"]["writes"].count, 1);
    }

    #[test]
    fn strange_records_are_no_reason_to_stop() {
        let fields = Fields { device: 0, sector: 8, sectors: 16, kind: 20 };
        let record = |body: Vec<u8>| Record { kind: SAMPLE, time_ns: 0, body };
        let at = |sector: u64| [&[0; 36][..], &sector.to_ne_bytes(), &[0xff; 4], b"R"].concat();
        let records =
            [record(Vec::new()), record(vec![0; 30]), record(at(u64::MAX >> 9)), record(at(0)), record(at(1 << 54))];
        assert_eq!(found(&records, &fields)["0:0"]["reads"].count, 3);
    }
}
