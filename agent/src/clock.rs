//! The one clock of all reported times.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

use crate::failure::Failure;

pub const SOURCE: &str = "CLOCK_MONOTONIC";

/// Nanoseconds since an arbitrary point, the same for all processes of this machine.
#[must_use]
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// For the name of a file: a text that nobody else on this machine is given. The clock alone may tell two threads the same time.
#[must_use]
pub fn unique() -> String {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}-{}", std::process::id(), now_ns(), GIVEN.fetch_add(1, Ordering::Relaxed))
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

/// Returns when `now_ns` has reached `due_ns`.
pub fn sleep_until(due_ns: u64) -> Result<(), Failure> {
    let at = Timespec {
        tv_sec: i64::try_from(due_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(due_ns % 1_000_000_000).unwrap_or(0),
    };
    loop {
        match rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &at) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::io("clock_nanosleep", error)),
        }
    }
}

fn nanoseconds(time: Timespec) -> u64 {
    // Neither clock is ever negative.
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::*;

    #[test]
    fn what_is_unique_is_so_in_all_threads() {
        let take = || (0..20_000).map(|_| unique()).collect::<Vec<_>>();
        let threads = [(); 4].map(|()| thread::spawn(take));
        let taken = threads.into_iter().flat_map(|each| each.join().unwrap()).collect::<Vec<_>>();
        assert_eq!(taken.iter().collect::<HashSet<_>>().len(), taken.len());
    }
}
