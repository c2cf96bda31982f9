//! Threads for the handlers, kept for the next one: a stream costs no thread start in the steady state.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::lock;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
}

impl Workers {
    /// Runs `job` at once, on an idle thread or a new one; never waits for another job.
    pub fn submit(self: &Arc<Self>, job: Job) -> io::Result<()> {
        let mut queue = lock(&self.queue);
        if queue.idle > queue.jobs.len() {
            queue.jobs.push_back(job);
            drop(queue);
            self.changed.notify_one();
            return Ok(());
        }
        drop(queue);
        let workers = Arc::clone(self);
        std::thread::Builder::new().name("handler".into()).spawn(move || workers.work(job)).map(drop)
    }

    /// Lets the threads end once their jobs have.
    pub fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    fn work(&self, first: Job) {
        first();
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = lock(&self.queue);
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}
