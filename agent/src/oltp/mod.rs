//! Transaction workloads: the method `oltp`, a session of terminals that work in measurement windows; see docs/PROTOCOL.md.

pub mod bulk;
pub mod load;
pub mod tally;
pub mod tatp;
pub mod terminal;
pub mod thread;
pub mod tpcc;
pub mod workload;

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::clock::now_ns;
use crate::driver::lines::{Gone, Lines, MAX_LINE_BYTES};
use crate::driver::server::Server;
use crate::failure::{Code, Failure};
use crate::lock;
use crate::method;
use crate::method::counters;
use crate::stream::StreamHandle;
use crate::talk::transport::Slot;
use crate::talk::{Interaction, Target};
use crate::wire::Dialect;
use crate::wire::postgres::Login;

use tally::Tally;
use terminal::Terminal;
use thread::{Answer, Order, Plan, Window};
use workload::{Asked, Workload};

const MAX_TERMINALS: usize = 10_000;
const MAX_THREADS: usize = 256;
const MAX_INTERVALS: u64 = 1_000_000;
/// With its ramp-up.
const MAX_WINDOW_NS: u64 = 24 * 3_600_000_000_000;
/// In one window: each takes memory until it is served.
const MAX_ARRIVALS: f64 = 1e8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    workload: Value,
    interaction: Interaction,
    terminals: usize,
    #[serde(default = "one")]
    threads: usize,
    /// Of the inputs.
    seed: u64,
    /// Statements that begin each session.
    #[serde(default)]
    session: Vec<String>,
    /// How long an answer may be waited for before the connection is given up.
    response_timeout_ns: u64,
    #[serde(default = "some")]
    max_retries: u32,
    /// The server is an imitation whose answers mean nothing.
    #[serde(default)]
    imitation: bool,
}

fn one() -> usize {
    1
}

fn some() -> u32 {
    100
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowCommand {
    #[serde(default)]
    ramp_up_ns: u64,
    window_ns: u64,
    interval_ns: u64,
    /// Arrivals in a second, of all terminals together; none is a closed loop.
    #[serde(default)]
    rate: Option<f64>,
    /// It waits for `go`, so that the terminals of several servers can begin at one moment.
    #[serde(default)]
    hold: bool,
}

impl WindowCommand {
    /// Refuses what would take memory or time without end.
    fn check(&self) -> Result<(), Failure> {
        let Self { ramp_up_ns, window_ns, interval_ns, rate, hold: _ } = *self;
        if window_ns == 0 || interval_ns == 0 || window_ns / interval_ns > MAX_INTERVALS {
            return Err(Failure::bad_request("a window without length, or of too many intervals"));
        }
        let whole_ns = ramp_up_ns.saturating_add(window_ns);
        if whole_ns > MAX_WINDOW_NS {
            return Err(Failure::bad_request(format!("a window of {whole_ns} ns; at most {MAX_WINDOW_NS}")));
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        if rate.is_some_and(|rate| !(rate > 0.0 && rate * whole_ns as f64 / 1e9 <= MAX_ARRIVALS)) {
            return Err(Failure::bad_request(format!(
                "a rate that is not positive, or of over {MAX_ARRIVALS} arrivals"
            )));
        }
        Ok(())
    }
}

pub fn oltp(mut params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let server = Server::take(&mut params)?;
    let dialect = server.dialect();
    let (address, login) = server.login(Vec::new());
    let mut params: Params = method::parse(params)?;
    let workload = workload::find(params.workload.take())?;
    if !(1..=MAX_TERMINALS).contains(&params.terminals) {
        return Err(Failure::bad_request(format!("terminals {}: from 1 to {MAX_TERMINALS}", params.terminals)));
    }
    if !(1..=MAX_THREADS.min(params.terminals)).contains(&params.threads) {
        return Err(Failure::bad_request(format!("threads {}: from 1 to the number of terminals", params.threads)));
    }
    let driver = Driver::start(Arc::new(Common { params, workload, address, login, dialect }), &stream)?;
    let mut lines = Lines::new(stream);
    let result = driver.obey_all(&mut lines);
    driver.end();
    result
}

/// What all threads have in common.
struct Common {
    params: Params,
    workload: Arc<dyn Workload>,
    address: crate::address::Address,
    login: Login,
    dialect: Dialect,
}

struct Worker {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
    answers: Receiver<Answer>,
    handle: JoinHandle<Result<(), Failure>>,
}

impl Worker {
    fn tell(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            ring(&self.bell);
        }
    }

    fn answer(&self) -> Answer {
        self.answers.recv().unwrap_or_else(|_| Err(Failure::cancelled()))
    }
}

fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

struct Driver {
    common: Arc<Common>,
    workers: Vec<Worker>,
    /// What the terminals of each thread were acknowledged.
    acknowledged: Vec<Arc<Mutex<Option<Value>>>>,
    windows: std::cell::Cell<u64>,
}

impl Driver {
    /// Starts the threads and waits until every terminal is connected.
    fn start(common: Arc<Common>, stream: &StreamHandle) -> Result<Self, Failure> {
        let mut workers = Vec::new();
        let mut acknowledged = Vec::new();
        for number in 0..common.params.threads {
            let ledger = Arc::new(Mutex::new(None));
            workers.push(start_worker(&common, number, &ledger)?);
            acknowledged.push(ledger);
        }
        let bells: Vec<Arc<OwnedFd>> = workers.iter().map(|worker| Arc::clone(&worker.bell)).collect();
        let ends: Vec<Sender<Order>> = workers.iter().map(|worker| worker.orders.clone()).collect();
        stream.on_cancel(move || {
            for (end, bell) in ends.iter().zip(&bells) {
                let _ = end.send(Order::End);
                ring(bell);
            }
        });
        let driver = Self { common, workers, acknowledged, windows: std::cell::Cell::new(0) };
        let connected: Result<Vec<Tally>, Failure> = driver.workers.iter().map(Worker::answer).collect();
        match connected {
            Ok(_) => Ok(driver),
            Err(failure) => {
                driver.end();
                Err(failure)
            }
        }
    }

    fn end(self) {
        for worker in &self.workers {
            worker.tell(Order::End);
        }
        for worker in self.workers {
            drop(worker.handle.join());
        }
    }

    fn obey_all(&self, lines: &mut Lines) -> Result<Value, Failure> {
        lines.send(&json!({"at_ns": now_ns()}), too_long)?;
        while let Some(line) = lines.next_line()? {
            let not_a_command = |text: &str| Failure::bad_request(format!("not a command: {text}"));
            let mut command: Value =
                serde_json::from_slice(&line).map_err(|error| not_a_command(&error.to_string()))?;
            let object = command.as_object_mut().ok_or_else(|| not_a_command("no JSON object"))?;
            let name = object.remove("command").ok_or_else(|| not_a_command("it lacks the key \"command\""))?;
            match name.as_str().unwrap_or_default() {
                "window" => {
                    let asked: WindowCommand = method::parse(command)?;
                    asked.check()?;
                    let gone = if asked.hold {
                        let Some(gone) = lines.hold()? else { break };
                        gone
                    } else {
                        let at_ns = now_ns();
                        Gone { told_ns: at_ns, begin_ns: at_ns }
                    };
                    lines.send(&self.window(&asked, gone)?, too_long)?;
                }
                "counters" => lines.send(&counters::read(&method::parse(command)?)?, too_long)?,
                other => return Err(not_a_command(&format!("there is none named {other:?}"))),
            }
        }
        Ok(json!({}))
    }

    /// The times of what is measured follow from when it was to begin: whoever waits for a processor then works less in the window.
    fn window(&self, asked: &WindowCommand, gone: Gone) -> Result<Value, Failure> {
        let WindowCommand { ramp_up_ns, window_ns, interval_ns, rate, hold: _ } = *asked;
        let number = self.windows.get();
        self.windows.set(number + 1);
        #[expect(clippy::cast_precision_loss, reason = "a few threads")]
        let mean_gap_ns = rate.map(|rate| 1e9 * self.workers.len() as f64 / rate);
        let Gone { told_ns, begin_ns } = gone;
        let from_ns = begin_ns + ramp_up_ns;
        let mut window = Window { begin_ns, from_ns, end_ns: from_ns + window_ns, interval_ns, mean_gap_ns, seed: 0 };
        for (thread, worker) in (0u64..).zip(&self.workers) {
            window.seed = self.common.params.seed ^ number.rotate_left(32) ^ thread;
            worker.tell(Order::Measure(window));
        }
        let kinds = self.common.workload.kinds();
        // The first thread's counts become those of all: a copy would be as large as they are.
        let mut tally: Option<Tally> = None;
        for worker in &self.workers {
            let others = worker.answer()?;
            match &mut tally {
                Some(all) => all.add(&others),
                None => tally = Some(others),
            }
        }
        let tally = tally.unwrap_or_default();
        let mut report = tally.to_json(kinds);
        let acknowledged: Vec<Value> = self.acknowledged.iter().filter_map(|ledger| lock(ledger).clone()).collect();
        if let Some(object) = report.as_object_mut() {
            object.insert("start_ns".into(), json!(told_ns));
            object.insert("begin_ns".into(), json!(begin_ns));
            object.insert("from_ns".into(), json!(from_ns));
            object.insert("until_ns".into(), json!(window.end_ns));
            object.insert("end_ns".into(), json!(now_ns()));
            object.insert("interval_ns".into(), json!(interval_ns));
            object.insert("acknowledged".into(), json!(acknowledged));
        }
        Ok(report)
    }
}

fn start_worker(common: &Arc<Common>, number: usize, ledger: &Arc<Mutex<Option<Value>>>) -> Result<Worker, Failure> {
    let bell =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| Failure::io("eventfd", error))?;
    let bell = Arc::new(bell);
    let (orders, to_obey) = channel();
    let (to_answer, answers) = channel();
    let (common, ledger, rung) = (Arc::clone(common), Arc::clone(ledger), Arc::clone(&bell));
    let work = move || {
        let result = work(&common, number, &ledger, rung.as_fd(), &to_obey, &to_answer);
        if let Err(failure) = &result {
            let _ = to_answer.send(Err(failure.clone()));
        }
        result
    };
    let handle = std::thread::Builder::new()
        .name(format!("terminals-{number}"))
        .spawn(work)
        .map_err(|error| Failure::new(Code::Io, format!("a thread cannot be started: {error}")))?;
    Ok(Worker { orders, bell, answers, handle })
}

/// One thread: the terminals whose number leaves `number` when divided by the number of threads.
fn work(
    common: &Common,
    number: usize,
    ledger: &Arc<Mutex<Option<Value>>>,
    rung: impl AsFd,
    orders: &Receiver<Order>,
    answers: &Sender<Answer>,
) -> Result<(), Failure> {
    let Params {
        workload: _,
        interaction,
        terminals,
        threads,
        seed,
        session,
        response_timeout_ns,
        max_retries,
        imitation,
    } = &common.params;
    let target = Rc::new(Target {
        address: common.address.clone(),
        login: common.login.clone(),
        dialect: common.dialect,
        interaction: *interaction,
        session: session.clone(),
        statements: common.workload.statements(*interaction, common.dialect),
    });
    let plan = Plan {
        terminals: (number..*terminals).step_by(*threads).count(),
        kinds: common.workload.kinds().len(),
        response_timeout_ns: *response_timeout_ns,
    };
    let work = common.workload.work(Asked { seed: *seed, interaction: *interaction, is_imitation: *imitation });
    let make = |own: usize, slot: Slot, shared: Rc<thread::Shared>| {
        let terminal = Terminal { number: own, target: Rc::clone(&target), slot, shared, max_retries: *max_retries };
        work.live(number + own * threads, terminal)
    };
    let publish = || *lock(ledger) = work.acknowledged();
    thread::run(&plan, &make, &publish, rung, orders, answers)
}

fn too_long() -> Value {
    json!({"error": {"message": format!("the reply would be longer than {MAX_LINE_BYTES} bytes")}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_bounded() {
        let second = 1_000_000_000;
        let check = |ramp_up_ns, window_ns, interval_ns, rate| {
            WindowCommand { ramp_up_ns, window_ns, interval_ns, rate, hold: false }.check().is_ok()
        };
        assert!(check(second, 60 * second, second, None) && check(0, 60 * second, second, Some(1e6)));
        assert!(check(0, second, second, Some(1e-300)));
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e7] {
            assert!(!check(0, 60 * second, second, Some(rate)), "{rate}");
        }
        assert!(!check(u64::MAX, u64::MAX, u64::MAX, None) && !check(0, u64::MAX, u64::MAX, None));
        assert!(!check(0, 0, 1, None) && !check(0, second, 0, None) && !check(0, second, 1, None));
    }
}
