//! What is counted in one measurement window.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::talk::transport::Traffic;

/// Times are kept from 1 us to an hour with three digits: 1 in 1000.
const LEAST_NS: u64 = 1_000;
const MOST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// How a transaction ended that was not abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Committed,
    /// Rolled back because its input asks for it (TPC-C clause 2.4.1.4).
    RolledBack,
    /// Found nothing, or something in its way, as its input was drawn to do now and then (TATP).
    NotFound,
}

/// Of one kind of transaction.
#[derive(Debug, Clone)]
pub struct Kind {
    pub committed: u64,
    pub rolled_back: u64,
    pub not_found: u64,
    /// Given up, by cause: a server's error, or too many retries.
    pub failed: BTreeMap<String, u64>,
    /// Attempts that were repeated with the same input, by cause.
    pub retried: BTreeMap<String, u64>,
    /// The connection was lost before it could have been committed.
    pub lost: u64,
    /// The connection was lost while the commit was under way.
    pub unknown: u64,
    /// From the scheduled start.
    pub response: Histogram<u64>,
    /// From the actual start. None in a closed loop: every transaction starts when it is scheduled.
    pub service: Option<Histogram<u64>>,
}

/// BIAS: all buckets are there before the first time is recorded, 190 KB, so that no window waits for memory when a time is
/// longer than all before it. They are most of what the driver of a tenant takes: no more of them than are needed.
fn no_times() -> Histogram<u64> {
    let mut times = Histogram::new_with_bounds(LEAST_NS, MOST_NS, DIGITS).expect("valid bounds");
    times.auto(true);
    times
}

impl Kind {
    fn new(is_closed: bool) -> Self {
        Self {
            committed: 0,
            rolled_back: 0,
            not_found: 0,
            failed: BTreeMap::new(),
            retried: BTreeMap::new(),
            lost: 0,
            unknown: 0,
            response: no_times(),
            service: (!is_closed).then(no_times),
        }
    }

    fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.not_found += other.not_found;
        self.lost += other.lost;
        self.unknown += other.unknown;
        for (mine, others) in [(&mut self.failed, &other.failed), (&mut self.retried, &other.retried)] {
            for (cause, count) in others {
                *mine.entry(cause.clone()).or_default() += count;
            }
        }
        self.response.add(&other.response).expect("histograms of equal bounds");
        if let (Some(mine), Some(others)) = (&mut self.service, &other.service) {
            mine.add(others).expect("histograms of equal bounds");
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "committed": self.committed,
            "rolled_back": self.rolled_back,
            "not_found": self.not_found,
            "failed": self.failed,
            "retried": self.retried,
            "lost": self.lost,
            "unknown": self.unknown,
            "response_ns": times(&self.response),
            "service_ns": times(self.service.as_ref().unwrap_or(&self.response)),
        })
    }
}

/// The filled buckets as pairs of the highest value that falls into one, and a count: to be added up by whoever reads them.
fn times(histogram: &Histogram<u64>) -> Value {
    let filled: Vec<(u64, u64)> =
        histogram.iter_recorded().map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value())).collect();
    json!({"min": histogram.min(), "max": histogram.max(), "sum": sum(histogram), "buckets": filled})
}

fn sum(histogram: &Histogram<u64>) -> u64 {
    histogram
        .iter_recorded()
        .map(|bucket| histogram.median_equivalent(bucket.value_iterated_to()) * bucket.count_at_value())
        .sum()
}

/// All of one thread, or of all threads together.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub kinds: Vec<Kind>,
    /// Transactions that ended well in each interval of the window.
    pub series: Vec<u64>,
    pub traffic: Traffic,
    /// CPU time of the driver's threads in the window.
    pub cpu_ns: u64,
    /// Arrivals that nobody served before the window ended; they are among the response times with as long as they waited.
    pub backlog_at_end: u64,
    pub connections_lost: u64,
    pub reconnects: u64,
    /// Why connecting failed the last time.
    pub refusal: Option<String>,
}

impl Tally {
    #[must_use]
    pub fn new(kinds: usize, intervals: usize, is_closed: bool) -> Self {
        let kinds = (0..kinds).map(|_| Kind::new(is_closed)).collect();
        Self { kinds, series: vec![0; intervals], ..Self::default() }
    }

    pub fn add(&mut self, other: &Self) {
        for (mine, others) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.add(others);
        }
        for (mine, others) in self.series.iter_mut().zip(&other.series) {
            *mine += others;
        }
        self.traffic.add(other.traffic);
        self.cpu_ns += other.cpu_ns;
        self.backlog_at_end += other.backlog_at_end;
        self.connections_lost += other.connections_lost;
        self.reconnects += other.reconnects;
        if self.refusal.is_none() {
            self.refusal.clone_from(&other.refusal);
        }
    }

    /// `names`: of the kinds.
    #[must_use]
    pub fn to_json(&self, names: &[&str]) -> Value {
        let kinds: Map<String, Value> =
            names.iter().zip(&self.kinds).map(|(name, kind)| ((*name).to_owned(), kind.to_json())).collect();
        json!({
            "transactions": kinds,
            "series": self.series,
            "round_trips": self.traffic.round_trips,
            "statements": self.traffic.statements,
            "sent_bytes": self.traffic.sent_bytes,
            "received_bytes": self.traffic.received_bytes,
            "driver_cpu_ns": self.cpu_ns,
            "backlog_at_end": self.backlog_at_end,
            "connections_lost": self.connections_lost,
            "reconnects": self.reconnects,
            "refusal": self.refusal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let mut first = Tally::new(2, 3, true);
        first.kinds[0].committed = 2;
        first.kinds[0].response.record(1_000_000).unwrap();
        first.kinds[0].failed.insert("40001".into(), 1);
        first.series[1] = 2;
        let mut second = first.clone();
        second.kinds[0].response.record(2_000_000).unwrap();
        second.refusal = Some("nobody there".into());
        first.add(&second);
        let told = first.to_json(&["a", "b"]);
        let a = &told["transactions"]["a"];
        assert_eq!(
            (&a["committed"], &a["failed"]["40001"], &told["series"]),
            (&json!(4), &json!(2), &json!([0, 4, 0]))
        );
        let counts: u64 =
            a["response_ns"]["buckets"].as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap()).sum();
        assert_eq!(counts, 3);
        let sum = a["response_ns"]["sum"].as_u64().unwrap();
        assert!((3_996_000..4_004_000).contains(&sum), "{sum}");
        assert_eq!(told["refusal"], "nobody there");
        assert_eq!(a["service_ns"], a["response_ns"], "each starts when it is scheduled");
    }

    #[test]
    fn an_open_loop_has_times_of_service() {
        let mut tallies = [Tally::new(1, 1, false), Tally::new(1, 1, false)];
        for tally in &mut tallies {
            tally.kinds[0].response.record(5_000_000).unwrap();
            tally.kinds[0].service.as_mut().unwrap().record(1_000_000).unwrap();
        }
        let [mut all, other] = tallies;
        all.add(&other);
        let told = all.to_json(&["a"]);
        let counts = |times: &str| told["transactions"]["a"][times]["buckets"][0].clone();
        assert_eq!(counts("service_ns")[1], 2);
        assert!(counts("service_ns")[0].as_u64() < counts("response_ns")[0].as_u64(), "{told}");
    }
}
