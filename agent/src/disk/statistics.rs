//! What a modelled disk was asked for since it began, while it kept the model's pace: counts and sums that only grow, so that whoever
//! reads twice has what was between.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

use super::model::Access;

/// From 100 ns to an hour with two digits.
const LEAST_NS: u64 = 100;
const MOST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 2;

#[derive(Debug)]
struct Times {
    sum_ns: u64,
    histogram: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(LEAST_NS, MOST_NS, DIGITS).expect("valid bounds");
        Self { sum_ns: 0, histogram }
    }
}

impl Times {
    fn add(&mut self, ns: u64) {
        self.sum_ns += ns;
        self.histogram.saturating_record(ns);
    }
}

impl Serialize for Times {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let filled: BTreeMap<u64, u64> =
            self.histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        json!({"sum_ns": self.sum_ns, "buckets": filled}).serialize(serializer)
    }
}

/// Of reads, or of writes.
#[derive(Debug, Default, Serialize)]
struct Direction {
    count: u64,
    bytes: u64,
    /// What the disk did for them: together with the other direction's it is never more than the time that passed.
    service: Times,
    /// From arrival until the disk turned to them.
    waited_ns: u64,
    /// Those that begin where the one before of this direction ended.
    sequential: u64,
    /// Power of two -> how many of the others begin at most so many bytes from there, and more than half of that.
    by_distance: BTreeMap<u64, u64>,
    #[serde(skip)]
    end: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
pub struct Statistics {
    reads: Direction,
    writes: Direction,
    /// Those that the disk's own cache took at once; it has written them when they are among `writes`.
    cached_writes: u64,
    flushes: u64,
    /// How many were there when a request came, itself included -> how often.
    queue: BTreeMap<usize, u64>,
    /// How much later than the model says a request was answered.
    late: Times,
    /// Requests that what lies behind the disk has refused.
    errors: u64,
}

impl Statistics {
    pub fn arrived(&mut self, queued: usize) {
        *self.queue.entry(queued).or_default() += 1;
    }

    pub fn cached(&mut self) {
        self.cached_writes += 1;
    }

    pub fn flushed(&mut self) {
        self.flushes += 1;
    }

    pub fn failed(&mut self) {
        self.errors += 1;
    }

    pub fn served(&mut self, access: &Access, waited_ns: u64, service_ns: u64) {
        let direction = if access.writes { &mut self.writes } else { &mut self.reads };
        direction.count += 1;
        direction.bytes += access.bytes;
        direction.service.add(service_ns);
        direction.waited_ns += waited_ns;
        match direction.end.replace(access.end()).map(|end| access.offset.abs_diff(end)) {
            None => {}
            Some(0) => direction.sequential += 1,
            Some(distance) => *direction.by_distance.entry(distance.next_power_of_two()).or_default() += 1,
        }
    }

    pub fn answered(&mut self, late_ns: u64) {
        self.late.add(late_ns);
    }

    #[must_use]
    pub fn told(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_between_requests_of_one_direction() {
        let mut seen = Statistics::default();
        let access = |offset, writes| Access { offset, bytes: 4096, writes };
        for (offset, writes) in [(0, true), (1 << 20, false), (4096, true), (65_536, true), (0, true)] {
            seen.served(&access(offset, writes), 5, 1000);
        }
        seen.arrived(1);
        seen.arrived(1);
        let told = seen.told();
        assert_eq!(told["writes"]["count"], 4);
        assert_eq!(told["writes"]["sequential"], 1);
        assert_eq!(told["writes"]["by_distance"], json!({"65536": 1, "131072": 1}));
        assert_eq!(told["reads"]["by_distance"], json!({}));
        assert_eq!((&told["writes"]["service"]["sum_ns"], &told["writes"]["waited_ns"]), (&json!(4000), &json!(20)));
        assert_eq!(told["writes"]["service"]["buckets"].as_object().unwrap().len(), 1);
        assert_eq!(told["queue"], json!({"1": 2}));
    }
}
