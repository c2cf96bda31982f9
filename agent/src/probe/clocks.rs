//! Clocks and timers.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{Made, Probe, Repeated, Request, Spent};
use crate::clock::{now_ns, sleep_until};
use crate::failure::Failure;

/// How long each wait for a timer is: long enough for a processor to go idle.
const WAIT_NS: u64 = 100_000;

/// The clock of all reported times; where the kernel lets it be read without a system call, that is what it costs.
pub fn clock_read(_: &Request) -> Made {
    Ok(Box::new(Repeated(|| {
        std::hint::black_box(now_ns());
        Ok(())
    })))
}

/// A timer set to a time far away, anew each time.
pub fn timer_set(_: &Request) -> Made {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)
        .map_err(|error| Failure::io("timerfd_create", error))?;
    let once =
        Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: Timespec { tv_sec: 1000, tv_nsec: 0 } };
    Ok(Box::new(Repeated(move || {
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)
            .map(drop)
            .map_err(|error| Failure::io("timerfd_settime", error))
    })))
}

/// How much later than asked for a sleeper runs: the timer's interrupt, the wake-up, the way out of idling. BIAS: the kernel rounds
/// up by the timer slack, 50 us for ordinary processes (prctl(2), `PR_SET_TIMERSLACK`); it is set to the least.
pub fn timer_wakeup(_: &Request) -> Made {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    Ok(Box::new(Wakeup))
}

struct Wakeup;

impl Probe for Wakeup {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let mut elapsed_ns = 0;
        for _ in 0..events {
            let due_ns = now_ns() + WAIT_NS;
            sleep_until(due_ns)?;
            elapsed_ns += now_ns().saturating_sub(due_ns);
        }
        Ok(Spent { events, elapsed_ns })
    }
}
