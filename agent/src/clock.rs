//! The one clock of all reported times.

use rustix::time::{ClockId, clock_getres, clock_gettime};

pub const SOURCE: &str = "CLOCK_MONOTONIC";

/// Nanoseconds since an arbitrary point, the same for all processes of this machine.
#[must_use]
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// The step in which the clock advances.
#[must_use]
pub fn resolution_ns() -> u64 {
    nanoseconds(clock_getres(ClockId::Monotonic))
}

/// CPU time of the calling thread so far.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time of this process so far.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    // Neither clock is ever negative.
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
