//! One terminal: a connection on which one transaction follows the other.

use std::rc::Rc;

use super::tally::{Ending, Kind};
use super::thread::{Shared, Window};
use crate::clock::now_ns;
use crate::failure::Failure;
use crate::talk::transport::Slot;
use crate::talk::{Connection, Target};
use crate::wire::ServerError;
use crate::wire::blocking::Trouble;

/// After a failed attempt to connect.
const PAUSE_NS: u64 = 50_000_000;

/// Why an attempt at a transaction did not come to its end.
#[derive(Debug)]
pub enum Stop {
    Trouble(Trouble),
    /// Another transaction was faster: what this one wanted to work on is gone.
    Conflict,
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// What a terminal is asked to do, one transaction after the other.
pub trait Work {
    /// A drawn transaction: kind and input.
    type Job;

    /// The next transaction, drawn from the terminal's own random numbers.
    fn draw(&mut self) -> Self::Job;

    /// Its number among the workload's kinds.
    fn kind(job: &Self::Job) -> usize;

    /// Pauses before (keying) and after (thinking), ns.
    fn pauses_ns(&mut self, job: &Self::Job) -> (u64, u64);

    /// One attempt. It begins and ends the transaction; `Committing` is set while its end is under way.
    fn attempt(
        &mut self,
        connection: &mut Connection,
        job: &Self::Job,
        committing: &mut Committing,
    ) -> impl Future<Output = Result<Ending, Stop>>;

    /// It was committed, or (not `certain`) its connection was lost while it was being committed.
    fn acknowledge(&mut self, job: &Self::Job, certain: bool);
}

/// Whether a transaction's end has been sent and not been answered.
#[derive(Debug, Default)]
pub struct Committing(pub bool);

/// What one terminal has beside its work.
pub struct Terminal {
    pub number: usize,
    pub target: Rc<Target>,
    pub slot: Slot,
    pub shared: Rc<Shared>,
    pub max_retries: u32,
}

enum Abandoned {
    Failed(String),
    Lost,
    Unknown,
}

impl Terminal {
    /// Connects, then works in window after window, for ever.
    pub async fn live<W: Work>(self, mut work: W) {
        let mut connection = match self.connect().await {
            Ok(connection) => Some(connection),
            Err(trouble) => {
                self.shared.refused.borrow_mut().get_or_insert(trouble.into());
                None
            }
        };
        let mut last = 0;
        loop {
            let window = self.shared.next_window(&mut last).await;
            while let Some(scheduled_ns) = self.shared.next_arrival(&window, self.number).await {
                self.serve(&mut connection, &mut work, &window, scheduled_ns).await;
                if let Some(connection) = &mut connection {
                    let traffic = connection.take_traffic();
                    // BIAS: what is still under way when a window ends is counted in it.
                    if window.holds(scheduled_ns) {
                        self.shared.tally.borrow_mut().traffic.add(traffic);
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Trouble> {
        Connection::open(&self.target, self.slot.clone()).await
    }

    /// One transaction with all its attempts; a lost connection is made anew before, or the arrival given up at the end.
    async fn serve<W: Work>(
        &self,
        connection: &mut Option<Connection>,
        work: &mut W,
        window: &Window,
        mut scheduled_ns: u64,
    ) {
        if !self.reconnect(connection, window).await {
            return;
        }
        let job = work.draw();
        let is_closed = window.mean_gap_ns.is_none();
        let (keying_ns, thinking_ns) = if is_closed { work.pauses_ns(&job) } else { (0, 0) };
        if keying_ns > 0 {
            self.shared.sleep_until(scheduled_ns + keying_ns, self.number).await;
        }
        let start_ns = now_ns();
        if is_closed {
            scheduled_ns = start_ns;
        }
        let outcome = self.attempts(connection, work, window, &job).await;
        let end_ns = now_ns();
        let is_counted = window.holds(end_ns);
        {
            let mut tally = self.shared.tally.borrow_mut();
            let index =
                usize::try_from(end_ns.saturating_sub(window.from_ns) / window.interval_ns).unwrap_or(usize::MAX);
            if let Some(interval) = tally.series.get_mut(index).filter(|_| is_counted && outcome.is_ok()) {
                *interval += 1;
            }
            let kind = &mut tally.kinds[W::kind(&job)];
            if is_counted {
                count(kind, &outcome);
            }
            if outcome.is_ok() && window.holds(scheduled_ns) {
                kind.response.saturating_record(end_ns - scheduled_ns);
                if let Some(service) = &mut kind.service {
                    service.saturating_record(end_ns - start_ns);
                }
            }
        }
        match outcome {
            Ok(Ending::Committed) => work.acknowledge(&job, true),
            Err(Abandoned::Unknown) => work.acknowledge(&job, false),
            _ => {}
        }
        if thinking_ns > 0 {
            self.shared.sleep_until(end_ns + thinking_ns, self.number).await;
        }
    }

    async fn attempts<W: Work>(
        &self,
        connection: &mut Option<Connection>,
        work: &mut W,
        window: &Window,
        job: &W::Job,
    ) -> Result<Ending, Abandoned> {
        let mut retries = 0;
        loop {
            let Some(open) = connection.as_mut() else { return Err(Abandoned::Lost) };
            let mut committing = Committing::default();
            let stop = match work.attempt(open, job, &mut committing).await {
                Ok(ending) => return Ok(ending),
                Err(stop) => stop,
            };
            let (cause, is_repeated) = match stop {
                Stop::Conflict => ("conflict".to_owned(), true),
                Stop::Trouble(Trouble::Server(error)) if !error.is_fatal => (cause_of(&error), is_passing(&error)),
                Stop::Trouble(_) => {
                    self.lose(connection);
                    return Err(if committing.0 { Abandoned::Unknown } else { Abandoned::Lost });
                }
            };
            if open.roll_back().await.is_err() {
                self.lose(connection);
                return Err(Abandoned::Lost);
            }
            if !is_repeated || retries >= self.max_retries {
                return Err(Abandoned::Failed(cause));
            }
            retries += 1;
            if window.holds(now_ns()) {
                let mut tally = self.shared.tally.borrow_mut();
                *tally.kinds[W::kind(job)].retried.entry(cause).or_default() += 1;
            }
        }
    }

    fn lose(&self, connection: &mut Option<Connection>) {
        *connection = None;
        self.shared.tally.borrow_mut().connections_lost += 1;
    }

    /// False if there is no connection to be had before the window ends.
    async fn reconnect(&self, connection: &mut Option<Connection>, window: &Window) -> bool {
        while connection.is_none() {
            match self.connect().await {
                Ok(made) => {
                    *connection = Some(made);
                    self.shared.tally.borrow_mut().reconnects += 1;
                }
                Err(trouble) => {
                    self.shared.tally.borrow_mut().refusal = Some(Failure::from(trouble).message);
                    let again_ns = now_ns() + PAUSE_NS;
                    if again_ns >= window.end_ns {
                        return false;
                    }
                    self.shared.sleep_until(again_ns, self.number).await;
                }
            }
        }
        true
    }
}

fn count(kind: &mut Kind, outcome: &Result<Ending, Abandoned>) {
    match outcome {
        Ok(Ending::Committed) => kind.committed += 1,
        Ok(Ending::RolledBack) => kind.rolled_back += 1,
        Ok(Ending::NotFound) => kind.not_found += 1,
        Err(Abandoned::Failed(cause)) => *kind.failed.entry(cause.clone()).or_default() += 1,
        Err(Abandoned::Lost) => kind.lost += 1,
        Err(Abandoned::Unknown) => kind.unknown += 1,
    }
}

/// `40P01`, or `1213` of `MariaDB`.
fn cause_of(error: &ServerError) -> String {
    error.number.map_or_else(|| error.sqlstate.clone(), |number| number.to_string())
}

/// Whether the same transaction may well succeed when it is tried again: serialization failures and deadlocks, in `MariaDB`
/// also a lock that was waited for too long.
fn is_passing(error: &ServerError) -> bool {
    const LOCK_WAIT_TIMEOUT: u16 = 1205;
    matches!(&*error.sqlstate, "40001" | "40P01") || error.number == Some(LOCK_WAIT_TIMEOUT)
}
