//! A conversation that has a thread to itself: what never blocks is waited for.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::event::epoll::{self, CreateFlags};
use rustix::time::Timespec;

use crate::failure::Failure;
use crate::talk::transport::{Readiness, Slot};

/// A poll with one place.
pub struct Alone {
    slot: Slot,
}

impl Alone {
    pub fn new() -> Result<Self, Failure> {
        let poll: OwnedFd = epoll::create(CreateFlags::CLOEXEC).map_err(|error| Failure::io("epoll_create", error))?;
        Ok(Self { slot: Slot { poll: Rc::new(poll), token: 0, readiness: Rc::new(Readiness::default()) } })
    }

    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot.clone()
    }

    /// Waits for the future. `goes_on` is asked every tenth of a second: false makes what waits give up.
    pub fn wait<F: Future>(&self, future: F, goes_on: impl Fn() -> bool) -> Result<F::Output, Failure> {
        const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut events = Vec::with_capacity(4);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            events.clear();
            match epoll::wait(&*self.slot.poll, rustix::buffer::spare_capacity(&mut events), Some(&TICK)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::io("epoll_wait", error)),
            }
            let readiness = &self.slot.readiness;
            for event in &events {
                readiness.hear(event.flags);
            }
            if !goes_on() {
                readiness.expired.set(true);
            }
        }
    }
}
