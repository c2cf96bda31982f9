//! The initial rows: the same seed makes the same rows, each range of subscribers from random numbers of its own.

use crate::failure::Failure;
use crate::oltp::bulk::Sink;
use crate::random::Random;

const CAPITALS: &[u8; 26] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const FIGURES: &[u8; 10] = b"0123456789";

/// Subscribers of one range: what has been loaded is known by whole ranges.
pub const RANGE: i32 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Subscriber,
    AccessInfo,
    SpecialFacility,
    CallForwarding,
}

impl Table {
    pub const LONGEST_FIRST: [Self; 4] =
        [Self::Subscriber, Self::SpecialFacility, Self::AccessInfo, Self::CallForwarding];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Subscriber => "subscriber",
            Self::AccessInfo => "access_info",
            Self::SpecialFacility => "special_facility",
            Self::CallForwarding => "call_forwarding",
        }
    }

    #[must_use]
    pub fn columns(self) -> &'static str {
        match self {
            Self::Subscriber => {
                "s_id, sub_nbr, bit_1, bit_2, bit_3, bit_4, bit_5, bit_6, bit_7, bit_8, bit_9, bit_10, hex_1, hex_2, hex_3, \
                 hex_4, hex_5, hex_6, hex_7, hex_8, hex_9, hex_10, byte2_1, byte2_2, byte2_3, byte2_4, byte2_5, byte2_6, \
                 byte2_7, byte2_8, byte2_9, byte2_10, msc_location, vlr_location"
            }
            Self::AccessInfo => "s_id, ai_type, data1, data2, data3, data4",
            Self::SpecialFacility => "s_id, sf_type, is_active, error_cntrl, data_a, data_b",
            Self::CallForwarding => "s_id, sf_type, start_time, end_time, numberx",
        }
    }

    /// Rows for each hundred subscribers, in the mean.
    #[must_use]
    pub fn rows_per_hundred(self) -> u64 {
        match self {
            Self::Subscriber => 100,
            Self::AccessInfo | Self::SpecialFacility => 250,
            Self::CallForwarding => 375,
        }
    }
}

/// A subscriber's number in 15 figures.
#[must_use]
pub fn number_of(subscriber: i32) -> String {
    format!("{subscriber:015}")
}

/// Writes the rows of one table for the subscribers of range number `range` (from 0), at most `subscribers` in all.
pub fn write(table: Table, range: i32, subscribers: i32, seed: u64, sink: &mut dyn Sink) -> Result<(), Failure> {
    let first = range * RANGE + 1;
    let last = subscribers.min((range + 1) * RANGE);
    let stream = |name: &[u8; 8]| Random::new(&[seed, u64::from_le_bytes(*name), u64::from(range.unsigned_abs())]);
    let mut text = Vec::with_capacity(16);
    match table {
        Table::Subscriber => {
            let mut random = stream(b"subscrib");
            (first..=last).try_for_each(|subscriber| write_subscriber(subscriber, &mut random, sink))
        }
        Table::AccessInfo => {
            let mut random = stream(b"accessin");
            for subscriber in first..=last {
                for kind in some_of_four(&mut random) {
                    sink.begin_row(6);
                    sink.int(subscriber);
                    sink.int(kind);
                    sink.int(random.between(0, 255));
                    sink.int(random.between(0, 255));
                    for length in [3, 5] {
                        text.clear();
                        random.letters(CAPITALS, length, &mut text);
                        sink.text(&text);
                    }
                    sink.end_row()?;
                }
            }
            Ok(())
        }
        Table::SpecialFacility => {
            // Which there are decides on call forwarding, too: so that is drawn apart.
            let (mut random, mut which) = (stream(b"specialf"), stream(b"facility"));
            for subscriber in first..=last {
                for kind in some_of_four(&mut which) {
                    sink.begin_row(6);
                    sink.int(subscriber);
                    sink.int(kind);
                    sink.int(i32::from(random.percent(85)));
                    sink.int(random.between(0, 255));
                    sink.int(random.between(0, 255));
                    text.clear();
                    random.letters(CAPITALS, 5, &mut text);
                    sink.text(&text);
                    sink.end_row()?;
                }
            }
            Ok(())
        }
        Table::CallForwarding => {
            let (mut random, mut which) = (stream(b"callforw"), stream(b"facility"));
            for subscriber in first..=last {
                for kind in some_of_four(&mut which) {
                    for start in forwardings(&mut random) {
                        sink.begin_row(5);
                        sink.int(subscriber);
                        sink.int(kind);
                        sink.int(start);
                        sink.int(start + random.between(1, 8));
                        text.clear();
                        random.letters(FIGURES, 15, &mut text);
                        sink.text(&text);
                        sink.end_row()?;
                    }
                }
            }
            Ok(())
        }
    }
}

fn write_subscriber(subscriber: i32, random: &mut Random, sink: &mut dyn Sink) -> Result<(), Failure> {
    sink.begin_row(34);
    sink.int(subscriber);
    sink.text(number_of(subscriber).as_bytes());
    for (low, high) in [(0, 1), (0, 15), (0, 255)] {
        for _ in 0..10 {
            sink.int(random.between(low, high));
        }
    }
    // msc_location, vlr_location: from 1 to 2^32 - 1 in the description; kept within a signed integer.
    sink.int(random.between(1, i32::MAX));
    sink.int(random.between(1, i32::MAX));
    sink.end_row()
}

/// 1 to 4 different numbers from 1 to 4, ascending.
fn some_of_four(random: &mut Random) -> impl Iterator<Item = i32> + use<> {
    let mut kinds = [1, 2, 3, 4];
    random.shuffle(&mut kinds);
    let count = random.between(1, 4).unsigned_abs() as usize;
    kinds[..count].sort_unstable();
    kinds.into_iter().take(count)
}

/// 0 to 3 of the starts 0, 8 and 16.
fn forwardings(random: &mut Random) -> impl Iterator<Item = i32> + use<> {
    let mut starts = [0, 8, 16];
    random.shuffle(&mut starts);
    let count = random.between(0, 3).unsigned_abs() as usize;
    starts[..count].sort_unstable();
    starts.into_iter().take(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oltp::bulk::Bulk;
    use crate::wire::Dialect;

    fn lines(table: Table, range: i32, subscribers: i32) -> Vec<Vec<String>> {
        let mut content = Vec::new();
        let mut bulk = Bulk::new(Dialect::Mysql, |piece: &[u8], _| {
            content.extend_from_slice(piece);
            Ok(())
        });
        write(table, range, subscribers, 1, &mut bulk).unwrap();
        bulk.finish().unwrap();
        let text = String::from_utf8(content).unwrap();
        text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn tables_have_as_many_rows_as_the_description_says() {
        for table in Table::LONGEST_FIRST {
            let rows = lines(table, 0, 20_000);
            let columns = table.columns().split(", ").count();
            assert!(rows.iter().all(|row| row.len() == columns), "{}", table.name());
            let wanted = 100 * table.rows_per_hundred();
            assert!((rows.len() as u64).abs_diff(wanted) < wanted / 40, "{} {}", table.name(), rows.len());
        }
        assert_eq!(lines(Table::Subscriber, 1, 12_345).len(), 2345);
        assert_eq!(lines(Table::Subscriber, 1, 12_345)[0][..2], ["10001", "000000000010001"]);
    }

    #[test]
    fn a_forwarding_belongs_to_a_facility() {
        let of = |table| -> Vec<(String, String)> {
            lines(table, 0, 1000).into_iter().map(|row| (row[0].clone(), row[1].clone())).collect()
        };
        let facilities: std::collections::HashSet<_> = of(Table::SpecialFacility).into_iter().collect();
        assert!(of(Table::CallForwarding).iter().all(|key| facilities.contains(key)));
        assert_eq!(facilities.len(), of(Table::SpecialFacility).len());
    }
}
