//! Serves what comes, one request at a time and each when the model says that it is done.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::Timespec;
use serde_json::{Value, json};

use super::model::{Access, Mechanism, Plan};
use super::queue::{Queue, Waiting};
use super::statistics::Statistics;
use crate::clock::{now_ns, process_cpu_ns};
use crate::lock;

/// A sleep ends late, in a guest by some 100 us. So each is asked to end as much earlier as sleeps have lately been late, and what is
/// left is spent looking at the clock; of no wait more than this.
///
/// BIAS: it takes a processor that long for each request, from whoever is measured.
const SPIN_MAX_NS: u64 = 150_000;
/// Of its cache a disk looks at so many pieces for the next one to write.
const CACHE_DEPTH: usize = 64;

/// Who is told how it went: the kernel, or nobody any more.
pub trait Answer: Send {
    /// `read`: what was read.
    fn done(self, read: &[u8]);
    fn failed(self, error: &io::Error);
}

#[derive(Debug)]
struct Request<A> {
    answer: A,
    /// Of writes.
    data: Vec<u8>,
}

/// `A`: of reads and writes, `F`: of flushes.
#[derive(Debug)]
pub struct Server<A, F> {
    backing: File,
    /// What the disk's own cache holds that is not written yet; 0: it has none for writes.
    cache_bytes: u64,
    state: Mutex<State<A, F>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<A, F> {
    queue: Queue<Request<A>>,
    cached: Queue<()>,
    cached_bytes: u64,
    /// They wait until nothing is cached. As on a disk they are not queued: meanwhile no write is taken into the cache.
    flushes: Vec<F>,
    is_serving: bool,
    keeps_pace: bool,
    seen: Statistics,
}

impl<A: Answer, F: Answer> Server<A, F> {
    #[must_use]
    pub fn new(backing: File, queue_depth: usize, cache_bytes: u64) -> Self {
        let state = State {
            queue: Queue::new(queue_depth),
            cached: Queue::new(CACHE_DEPTH),
            cached_bytes: 0,
            flushes: Vec::new(),
            is_serving: false,
            keeps_pace: false,
            seen: Statistics::default(),
        };
        Self { backing, cache_bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// From now on requests take what the model says, or as long as they happen to take.
    pub fn keep_pace(&self, keeps_pace: bool) {
        lock(&self.state).keeps_pace = keeps_pace;
        self.changed.notify_one();
    }

    #[must_use]
    pub fn told(&self) -> Value {
        let state = lock(&self.state);
        let mut told = state.seen.told();
        let now = [("at_ns", json!(now_ns())), ("cpu_ns", json!(process_cpu_ns())), ("pace", json!(state.keeps_pace))];
        for (key, value) in now {
            told[key] = value;
        }
        told
    }

    /// A read of so many bytes, or a write of `data`.
    pub fn request(&self, access: Access, data: &[u8], answer: A) {
        let arrived_ns = now_ns();
        let mut state = lock(&self.state);
        if state.keeps_pace {
            let before = state.queue.len() + usize::from(state.is_serving);
            state.seen.arrived(before + 1);
            let has_room = state.cached_bytes + access.bytes <= self.cache_bytes;
            // Writes that found no room come first: what they write may be the same place.
            if access.writes && has_room && state.flushes.is_empty() && !state.queue.has_writes() {
                // BIAS: it is answered as soon as it is stored here, which is what a disk's interface takes or a little more.
                if let Err(error) = self.backing.write_all_at(data, access.offset) {
                    state.seen.failed();
                    return answer.failed(&error);
                }
                state.seen.cached();
                state.cached_bytes += access.bytes;
                state.cached.push(access, arrived_ns, ());
                drop(state);
                answer.done(&[]);
                return self.changed.notify_one();
            }
        }
        state.queue.push(access, arrived_ns, Request { answer, data: data.to_vec() });
        drop(state);
        self.changed.notify_one();
    }

    /// What the disk has taken is to be written.
    pub fn flush(&self, answer: F) {
        let mut state = lock(&self.state);
        if state.keeps_pace {
            state.seen.flushed();
        }
        if state.cached_bytes == 0 {
            drop(state);
            answer.done(&[]);
        } else {
            state.flushes.push(answer);
        }
    }

    /// Never ends.
    pub fn serve(&self, mut mechanism: Mechanism) {
        let (mut buffer, mut waiter) = (Vec::new(), Waiter::new());
        // By the model, not by when we came to it: delays of ours do not add up.
        let mut free_ns = 0;
        loop {
            let mut state = lock(&self.state);
            state.is_serving = false;
            if !state.keeps_pace {
                state.cached.clear();
            }
            if state.cached.is_empty() {
                state.cached_bytes = 0;
                for flush in std::mem::take(&mut state.flushes) {
                    flush.done(&[]);
                }
            }
            if state.queue.is_empty() && state.cached.is_empty() {
                drop(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            state.is_serving = true;
            if !state.keeps_pace {
                let next = state.queue.pop();
                drop(state);
                if let Some(Waiting { access, of, .. }) = next {
                    self.answer(of, &access, &mut buffer, None, &mut waiter);
                }
                continue;
            }
            // The host's requests go first, unless it waits for the cache.
            if !state.queue.is_empty() && state.flushes.is_empty() {
                let next = state.queue.next(&mechanism, free_ns);
                drop(state);
                let Some((Waiting { access, arrived_ns, of, .. }, plan)) = next else { continue };
                self.served(&access, arrived_ns, free_ns, &plan);
                mechanism.done(&access, &plan);
                free_ns = plan.end_ns;
                self.answer(of, &access, &mut buffer, Some(plan.end_ns), &mut waiter);
            } else if let Some((Waiting { access, arrived_ns, .. }, plan)) = state.cached.next(&mechanism, free_ns) {
                drop(state);
                self.served(&access, arrived_ns, free_ns, &plan);
                mechanism.done(&access, &plan);
                free_ns = plan.end_ns;
                waiter.wait_until(free_ns);
                let mut state = lock(&self.state);
                state.cached_bytes = state.cached_bytes.saturating_sub(access.bytes);
            }
        }
    }

    fn served(&self, access: &Access, arrived_ns: u64, free_ns: u64, plan: &Plan) {
        let turned_ns = arrived_ns.max(free_ns);
        lock(&self.state).seen.served(access, turned_ns - arrived_ns, plan.end_ns.saturating_sub(turned_ns));
    }

    /// At `due_ns`; without it at once.
    fn answer(
        &self,
        request: Request<A>,
        access: &Access,
        buffer: &mut Vec<u8>,
        due_ns: Option<u64>,
        waiter: &mut Waiter,
    ) {
        let Request { answer, data } = request;
        let transferred = if access.writes {
            self.backing.write_all_at(&data, access.offset)
        } else {
            buffer.resize(usize::try_from(access.bytes).unwrap_or(usize::MAX), 0);
            self.backing.read_exact_at(buffer, access.offset)
        };
        if let Some(due_ns) = due_ns {
            waiter.wait_until(due_ns);
        }
        match transferred {
            Ok(()) => answer.done(if access.writes { &[] } else { buffer }),
            Err(error) => {
                lock(&self.state).seen.failed();
                answer.failed(&error);
            }
        }
        if let Some(due_ns) = due_ns {
            lock(&self.state).seen.answered(now_ns().saturating_sub(due_ns));
        }
    }
}

/// Waits by absolute times.
struct Waiter {
    /// How much too late sleeps have ended lately.
    late_ns: u64,
}

impl Waiter {
    fn new() -> Self {
        Self { late_ns: SPIN_MAX_NS / 2 }
    }

    fn wait_until(&mut self, due_ns: u64) {
        let until_ns = due_ns.saturating_sub(self.late_ns);
        if now_ns() < until_ns {
            let until = Timespec {
                tv_sec: i64::try_from(until_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(until_ns % 1_000_000_000).unwrap_or(0),
            };
            // A signal may end it early: then once more.
            while clock_nanosleep_absolute(ClockId::Monotonic, &until).is_err() {}
            let late_ns = now_ns().saturating_sub(until_ns).min(SPIN_MAX_NS);
            self.late_ns = (self.late_ns * 7 + late_ns) / 8;
        }
        while now_ns() < due_ns {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::super::model::{Fixed, Model};
    use super::*;

    const SERVICE_NS: u64 = 3_000_000;

    /// What was answered, and when.
    struct Told(Sender<(Result<Vec<u8>, String>, u64)>);

    impl Answer for Told {
        fn done(self, read: &[u8]) {
            let _ = self.0.send((Ok(read.to_vec()), now_ns()));
        }

        fn failed(self, error: &io::Error) {
            let _ = self.0.send((Err(error.to_string()), now_ns()));
        }
    }

    type Answers = Receiver<(Result<Vec<u8>, String>, u64)>;

    fn begun(name: &str, cache_bytes: u64) -> (Arc<Server<Told, Told>>, impl Fn() -> (Told, Answers)) {
        let path = std::env::temp_dir().join(format!("dbtoll-disk-{name}-{}", std::process::id()));
        let backing = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        backing.set_len(1 << 20).unwrap();
        let device = Fixed {
            capacity_bytes: 1 << 20,
            unit_bytes: 8192,
            sequential_read_ns: SERVICE_NS,
            random_read_ns: SERVICE_NS,
            sequential_write_ns: SERVICE_NS,
            random_write_ns: SERVICE_NS,
        };
        let server = Arc::new(Server::new(backing, 1, cache_bytes));
        let serving = Arc::clone(&server);
        std::thread::spawn(move || serving.serve(Mechanism::new(Model::Fixed(device))));
        let asked = || {
            let (tell, told) = channel();
            (Told(tell), told)
        };
        (server, asked)
    }

    fn at(offset: u64, writes: bool) -> Access {
        Access { offset, bytes: 8192, writes }
    }

    #[test]
    fn several_in_flight_are_served_one_after_the_other_and_keep_their_data() {
        let (server, asked) = begun("several", 0);
        server.keep_pace(true);
        let begin_ns = now_ns();
        let answers: Vec<Answers> = (0..4_u8)
            .map(|number| {
                let (tell, told) = asked();
                server.request(at(u64::from(number) * 8192, true), &[number; 8192], tell);
                told
            })
            .collect();
        let ends: Vec<u64> = answers.into_iter().map(|told| told.recv().unwrap().1).collect();
        for (number, end_ns) in (1..).zip(&ends) {
            assert!(end_ns - begin_ns >= number * SERVICE_NS, "{number}: {}", end_ns - begin_ns);
        }
        let (tell, told) = asked();
        server.request(at(2 * 8192, false), &[], tell);
        assert_eq!(told.recv().unwrap().0.unwrap(), [2; 8192]);
        let seen = server.told();
        assert_eq!(seen["writes"]["service"]["sum_ns"], 4 * SERVICE_NS);
        assert_eq!((&seen["writes"]["count"], &seen["reads"]["count"]), (&json!(4), &json!(1)));
    }

    #[test]
    fn a_flush_waits_for_what_the_cache_took_at_once() {
        let (server, asked) = begun("cache", 3 * 8192);
        server.keep_pace(true);
        let begin_ns = now_ns();
        let writes: Vec<Answers> = (0..3)
            .map(|number| {
                let (tell, told) = asked();
                server.request(at(number * 8192, true), &[7; 8192], tell);
                told
            })
            .collect();
        let (tell, flushed) = asked();
        server.flush(tell);
        for told in &writes {
            assert!(told.recv().unwrap().0.is_ok());
        }
        let flushed_ns = flushed.recv().unwrap().1;
        assert!(flushed_ns - begin_ns >= 3 * SERVICE_NS, "{}", flushed_ns - begin_ns);
        let seen = server.told();
        assert_eq!((&seen["cached_writes"], &seen["flushes"]), (&json!(3), &json!(1)));
        assert_eq!(seen["writes"]["count"], 3);
    }

    #[test]
    fn without_the_pace_nothing_is_counted_and_what_is_refused_is_told() {
        let (server, asked) = begun("filling", 0);
        let (tell, told) = asked();
        server.request(at(0, true), &[1; 8192], tell);
        assert!(told.recv().unwrap().0.is_ok());
        let (tell, told) = asked();
        server.request(at(1 << 21, false), &[], tell);
        assert!(told.recv().unwrap().0.is_err());
        let seen = server.told();
        assert_eq!((&seen["writes"]["count"], &seen["errors"]), (&json!(0), &json!(1)));
    }
}
