//! One thread of the driver: its terminals are futures, polled when their sockets or timers are ready.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::task::{Context, Poll, Waker};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::tally::Tally;
use crate::clock::{now_ns, thread_cpu_ns};
use crate::failure::Failure;
use crate::random::Random;
use crate::talk::transport::{Readiness, Slot};

/// How often it is looked whether a server has gone silent.
const TICK_NS: u64 = 100_000_000;
const EVENTS: usize = 256;
/// Tokens of the descriptors by which the thread is told of orders and of the time.
const ORDERS: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;

/// One window, the same for all threads.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub begin_ns: u64,
    /// After the ramp-up.
    pub from_ns: u64,
    pub end_ns: u64,
    pub interval_ns: u64,
    /// Mean time between two arrivals at this thread, exponentially distributed; None: closed loop.
    pub mean_gap_ns: Option<f64>,
    pub seed: u64,
}

impl Window {
    fn intervals(&self) -> usize {
        usize::try_from((self.end_ns - self.from_ns).div_ceil(self.interval_ns)).unwrap_or(0)
    }

    /// Whether a time is in the measured part.
    #[must_use]
    pub fn holds(&self, at_ns: u64) -> bool {
        (self.from_ns..self.end_ns).contains(&at_ns)
    }
}

pub enum Order {
    Measure(Window),
    End,
}

/// What a thread answers an order with; the first comes when all its terminals are connected.
pub type Answer = Result<Tally, Failure>;

/// What the terminals of one thread share.
pub struct Shared {
    pub poll: Rc<OwnedFd>,
    now_ns: Cell<u64>,
    window: Cell<Option<Window>>,
    number: Cell<u64>,
    at_rest: Cell<usize>,
    timers: RefCell<BinaryHeap<Reverse<(u64, usize)>>>,
    arrivals: RefCell<Arrivals>,
    pub tally: RefCell<Tally>,
    /// A terminal could not connect at the very beginning.
    pub refused: RefCell<Option<Failure>>,
}

/// Scheduled arrivals of an open loop.
struct Arrivals {
    random: Random,
    next_ns: u64,
    due: VecDeque<u64>,
    idle: VecDeque<usize>,
}

impl Shared {
    /// Waits for the next window; meanwhile the terminal is at rest. `last`: number of the one before.
    pub async fn next_window(&self, last: &mut u64) -> Window {
        self.at_rest.set(self.at_rest.get() + 1);
        let window = poll_fn(|_| match self.window.get() {
            Some(window) if self.number.get() > *last => Poll::Ready(window),
            _ => Poll::Pending,
        })
        .await;
        *last = self.number.get();
        self.at_rest.set(self.at_rest.get() - 1);
        window
    }

    /// When the next transaction of this terminal was to start: now in a closed loop; None when the window is over.
    pub async fn next_arrival(&self, window: &Window, terminal: usize) -> Option<u64> {
        if window.mean_gap_ns.is_none() {
            let at_ns = now_ns();
            return (at_ns < window.end_ns).then_some(at_ns);
        }
        poll_fn(|_| {
            let mut arrivals = self.arrivals.borrow_mut();
            if let Some(scheduled_ns) = arrivals.due.pop_front() {
                return Poll::Ready(Some(scheduled_ns));
            }
            if self.now_ns.get() >= window.end_ns {
                return Poll::Ready(None);
            }
            if !arrivals.idle.contains(&terminal) {
                arrivals.idle.push_back(terminal);
            }
            Poll::Pending
        })
        .await
    }

    pub async fn sleep_until(&self, at_ns: u64, terminal: usize) {
        self.timers.borrow_mut().push(Reverse((at_ns, terminal)));
        poll_fn(|_| if self.now_ns.get() >= at_ns { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

type Terminal<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Makes the terminal with that number in this thread.
pub type MakeTerminal<'a> = &'a dyn Fn(usize, Slot, Rc<Shared>) -> Terminal<'a>;

struct Seat<'a> {
    terminal: Terminal<'a>,
    readiness: Rc<Readiness>,
    /// Since when the server owes it an answer, or the next part of one; means nothing while it does not wait.
    waits_from_ns: u64,
}

/// What a thread has to know.
pub struct Plan {
    pub terminals: usize,
    pub kinds: usize,
    /// How long an answer may be waited for.
    pub response_timeout_ns: u64,
}

/// Runs until it is told to end. `publish` is called before each answer. `woken`: readable when there may be orders.
pub fn run(
    plan: &Plan,
    make: MakeTerminal<'_>,
    publish: &dyn Fn(),
    woken: impl AsFd,
    orders: &Receiver<Order>,
    answers: &Sender<Answer>,
) -> Result<(), Failure> {
    let poll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| Failure::io("epoll_create", error))?;
    epoll::add(&poll, &woken, EventData::new_u64(ORDERS), EventFlags::IN)
        .map_err(|error| Failure::io("epoll_ctl", error))?;
    let shared = Rc::new(Shared {
        poll: Rc::new(poll),
        now_ns: Cell::new(now_ns()),
        window: Cell::new(None),
        number: Cell::new(0),
        at_rest: Cell::new(0),
        timers: RefCell::default(),
        arrivals: RefCell::new(Arrivals {
            random: Random::new(&[]),
            next_ns: 0,
            due: VecDeque::new(),
            idle: VecDeque::new(),
        }),
        tally: RefCell::default(),
        refused: RefCell::new(None),
    });
    let seats = (0..plan.terminals).map(|number| {
        let readiness = Rc::new(Readiness::default());
        let slot = Slot { poll: Rc::clone(&shared.poll), token: number as u64, readiness: Rc::clone(&readiness) };
        Seat { terminal: make(number, slot, Rc::clone(&shared)), readiness, waits_from_ns: now_ns() }
    });
    let seats = seats.collect();
    let alarm = Alarm::new(&shared.poll)?;
    let mut thread = Thread {
        shared,
        seats,
        alarm,
        response_timeout_ns: plan.response_timeout_ns,
        kinds: plan.kinds,
        cpu_from_ns: None,
    };
    thread.poll_all();
    thread.work(publish, &woken, orders, answers)
}

/// Ends a wait at a due time. Set only when that changes: cheaper than a timeout of each wait, which is also whole milliseconds.
struct Alarm {
    timer: OwnedFd,
    due_ns: u64,
}

impl Alarm {
    fn new(poll: &OwnedFd) -> Result<Self, Failure> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(|error| Failure::io("timerfd_create", error))?;
        epoll::add(poll, &timer, EventData::new_u64(ALARM), EventFlags::IN | EventFlags::ET)
            .map_err(|error| Failure::io("epoll_ctl", error))?;
        Ok(Self { timer, due_ns: 0 })
    }

    /// `due_ns`: not 0.
    fn set(&mut self, due_ns: u64, at_ns: u64) -> Result<(), Failure> {
        if due_ns == self.due_ns && due_ns > at_ns {
            return Ok(());
        }
        self.due_ns = due_ns;
        let once = Itimerspec { it_interval: timespec(0), it_value: timespec(due_ns) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)
            .map(drop)
            .map_err(|error| Failure::io("timerfd_settime", error))
    }
}

struct Thread<'a> {
    shared: Rc<Shared>,
    seats: Vec<Seat<'a>>,
    alarm: Alarm,
    response_timeout_ns: u64,
    kinds: usize,
    /// CPU time of this thread when the measured part began.
    cpu_from_ns: Option<u64>,
}

impl Thread<'_> {
    fn work(
        &mut self,
        publish: &dyn Fn(),
        woken: &impl AsFd,
        orders: &Receiver<Order>,
        answers: &Sender<Answer>,
    ) -> Result<(), Failure> {
        let mut events = Vec::with_capacity(EVENTS);
        // Something is owed: first that all are connected, later each window's tally.
        let mut owes = true;
        let mut looked_ns = now_ns();
        loop {
            let at_ns = now_ns();
            self.shared.now_ns.set(at_ns);
            self.keep_time(at_ns);
            if at_ns - looked_ns >= TICK_NS {
                looked_ns = at_ns;
                self.end_long_waits(at_ns);
            }
            if owes && self.is_over(at_ns) {
                owes = false;
                publish();
                if answers.send(self.settle()).is_err() {
                    return Ok(());
                }
            }
            events.clear();
            self.alarm.set(self.next_ns(at_ns, looked_ns, owes), at_ns)?;
            match epoll::wait(&*self.shared.poll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::io("epoll_wait", error)),
            }
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                if data.u64() == ORDERS {
                    let mut counter = [0; 8];
                    let _ = rustix::io::read(woken, &mut counter);
                    // One wake may stand for several orders.
                    loop {
                        match orders.try_recv() {
                            Ok(Order::Measure(window)) => {
                                self.begin(window);
                                owes = true;
                            }
                            Ok(Order::End) | Err(TryRecvError::Disconnected) => return Ok(()),
                            Err(TryRecvError::Empty) => break,
                        }
                    }
                } else if data.u64() != ALARM {
                    self.hear(usize::try_from(data.u64()).unwrap_or(usize::MAX), flags);
                }
            }
        }
    }

    fn begin(&mut self, window: Window) {
        let shared = &self.shared;
        let is_closed = window.mean_gap_ns.is_none();
        *shared.tally.borrow_mut() = Tally::new(self.kinds, window.intervals(), is_closed);
        let mut random = Random::new(&[window.seed]);
        let first_ns =
            window.mean_gap_ns.map_or(u64::MAX, |mean| window.begin_ns.saturating_add(random.exponential_ns(mean)));
        *shared.arrivals.borrow_mut() =
            Arrivals { random, next_ns: first_ns, due: VecDeque::new(), idle: VecDeque::new() };
        shared.now_ns.set(now_ns());
        shared.window.set(Some(window));
        shared.number.set(shared.number.get() + 1);
        self.cpu_from_ns = None;
        self.poll_all();
    }

    /// Timers, arrivals, the begin and the end of the measured part.
    fn keep_time(&mut self, at_ns: u64) {
        loop {
            let due = match self.shared.timers.borrow_mut().peek() {
                Some(&Reverse((due_ns, terminal))) if due_ns <= at_ns => terminal,
                _ => break,
            };
            self.shared.timers.borrow_mut().pop();
            self.poll(due);
        }
        let Some(window) = self.shared.window.get() else { return };
        if let Some(mean_ns) = window.mean_gap_ns {
            self.let_arrive(&window, mean_ns, at_ns);
        }
        if self.cpu_from_ns.is_none() && at_ns >= window.from_ns {
            self.cpu_from_ns = Some(thread_cpu_ns());
        }
        if at_ns >= window.end_ns {
            let mut tally = self.shared.tally.borrow_mut();
            if tally.cpu_ns == 0 {
                tally.cpu_ns = thread_cpu_ns() - self.cpu_from_ns.unwrap_or(0);
            }
        }
    }

    fn let_arrive(&mut self, window: &Window, mean_ns: f64, at_ns: u64) {
        loop {
            let next = {
                let mut arrivals = self.shared.arrivals.borrow_mut();
                while arrivals.next_ns <= at_ns.min(window.end_ns - 1) {
                    let due_ns = arrivals.next_ns;
                    arrivals.due.push_back(due_ns);
                    arrivals.next_ns = due_ns.saturating_add(arrivals.random.exponential_ns(mean_ns).max(1));
                }
                if arrivals.due.is_empty() { None } else { arrivals.idle.pop_front() }
            };
            match next {
                Some(terminal) => self.poll(terminal),
                None => break,
            }
        }
        if at_ns >= window.end_ns {
            let idle = {
                let mut arrivals = self.shared.arrivals.borrow_mut();
                self.count_backlog(&mut arrivals.due, window);
                std::mem::take(&mut arrivals.idle)
            };
            for terminal in idle {
                self.poll(terminal);
            }
        }
    }

    /// BIAS: what was never served has waited for at least so long; its real response time would be longer.
    fn count_backlog(&self, due: &mut VecDeque<u64>, window: &Window) {
        let mut tally = self.shared.tally.borrow_mut();
        for scheduled_ns in due.drain(..).filter(|&scheduled_ns| window.holds(scheduled_ns)) {
            tally.backlog_at_end += 1;
            // Which kind it would have been is not drawn; it waits as the first, the most frequent one.
            if let Some(kind) = tally.kinds.first_mut() {
                kind.response.saturating_record(window.end_ns - scheduled_ns);
            }
        }
    }

    fn is_over(&self, at_ns: u64) -> bool {
        let is_past = self.shared.window.get().is_none_or(|window| at_ns >= window.end_ns);
        is_past && self.shared.at_rest.get() == self.seats.len() || self.shared.refused.borrow().is_some()
    }

    fn settle(&mut self) -> Answer {
        self.shared.window.set(None);
        if let Some(failure) = self.shared.refused.borrow_mut().take() {
            return Err(failure);
        }
        Ok(self.shared.tally.take())
    }

    fn next_ns(&self, at_ns: u64, looked_ns: u64, owes: bool) -> u64 {
        if !owes {
            return at_ns + 10 * TICK_NS; // asleep between windows, but for this
        }
        let mut next_ns = looked_ns + TICK_NS;
        if let Some(&Reverse((due_ns, _))) = self.shared.timers.borrow().peek() {
            next_ns = next_ns.min(due_ns);
        }
        if let Some(window) = self.shared.window.get() {
            let arrival_ns = self.shared.arrivals.borrow().next_ns;
            for due_ns in [window.from_ns, window.end_ns, arrival_ns] {
                if due_ns > at_ns {
                    next_ns = next_ns.min(due_ns);
                }
            }
        }
        next_ns
    }

    fn hear(&mut self, terminal: usize, flags: EventFlags) {
        let Some(seat) = self.seats.get_mut(terminal) else { return };
        seat.readiness.hear(flags);
        seat.waits_from_ns = self.shared.now_ns.get();
        self.poll(terminal);
    }

    fn end_long_waits(&mut self, at_ns: u64) {
        for number in 0..self.seats.len() {
            let seat = &self.seats[number];
            if seat.readiness.waiting.get() && at_ns.saturating_sub(seat.waits_from_ns) > self.response_timeout_ns {
                seat.readiness.expired.set(true);
                self.poll(number);
            }
        }
    }

    fn poll(&mut self, terminal: usize) {
        if let Some(seat) = self.seats.get_mut(terminal) {
            let was_waiting = seat.readiness.waiting.get();
            let mut context = Context::from_waker(Waker::noop());
            // A terminal never ends by itself.
            let _ = seat.terminal.as_mut().poll(&mut context);
            if !was_waiting {
                seat.waits_from_ns = self.shared.now_ns.get();
            }
        }
    }

    fn poll_all(&mut self) {
        for number in 0..self.seats.len() {
            self.poll(number);
        }
    }
}

fn timespec(ns: u64) -> Timespec {
    const SECOND_NS: u64 = 1_000_000_000;
    #[expect(clippy::cast_possible_wrap, reason = "seconds since the machine started")]
    Timespec { tv_sec: (ns / SECOND_NS) as i64, tv_nsec: (ns % SECOND_NS) as i64 }
}
