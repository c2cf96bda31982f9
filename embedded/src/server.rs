//! The server's life: clients come and go, statements are cancelled, a signal ends it all.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::engine::{Engine, Interrupt};
use crate::lock;
use crate::session;

/// While a statement is to be stopped, it is told so again: it may just have begun.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a session that has to go may take to send what it has to send.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the main thread of a program has: the engines' parsers recurse.
const STACK_BYTES: usize = 8 * 1024 * 1024;

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;

/// The place of one client at the server.
pub struct Seat {
    /// What the client knows as its process.
    pub number: i32,
    /// What one must know to cancel its statements.
    pub secret: i32,
    stream: Arc<UnixStream>,
    interrupter: OnceLock<Arc<dyn Interrupt>>,
    /// An interruption holds this lock, so that it never hits the next statement.
    work: Mutex<Work>,
    is_condemned: AtomicBool,
    /// Of all seats: how many have work that is given up.
    given_up: Arc<AtomicUsize>,
}

/// What the engine does for a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    Statement,
    /// A statement whose end nobody waits for, of an engine that cannot stop one.
    GivenUp,
}

impl Seat {
    /// The client's connection.
    #[must_use]
    pub fn stream(&self) -> Arc<UnixStream> {
        Arc::clone(&self.stream)
    }

    /// Sets how its statements are stopped; the first time counts.
    pub fn interrupted_by(&self, interrupter: Arc<dyn Interrupt>) {
        let _ = self.interrupter.set(interrupter);
    }

    /// Runs `work`, which can be interrupted meanwhile.
    pub fn while_busy<T>(&self, work: impl FnOnce() -> T) -> T {
        *lock(&self.work) = Work::Statement;
        let _busy = Busy(self);
        work()
    }

    /// Whether the engine still executes a statement that was given up.
    ///
    /// BIAS: whatever is executed beside it takes longer.
    #[must_use]
    pub fn is_beside_one_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed) > 0
    }

    /// Whether the session has to end.
    #[must_use]
    pub fn is_condemned(&self) -> bool {
        self.is_condemned.load(Ordering::Relaxed)
    }

    /// Stops the statement that is executed, if there is one.
    pub fn interrupt(&self) {
        let mut work = lock(&self.work);
        if *work != Work::Statement {
            return;
        }
        if let Some(interrupter) = self.interrupter.get() {
            interrupter.interrupt();
        } else {
            *work = Work::GivenUp;
            self.given_up.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn condemn(&self) {
        self.is_condemned.store(true, Ordering::Relaxed);
        // Wakes it where it waits for its client.
        let _ = self.stream.shutdown(Shutdown::Read);
        self.interrupt();
    }
}

/// That the engine works for a client, until it is dropped.
struct Busy<'a>(&'a Seat);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if std::mem::replace(&mut *lock(&self.0.work), Work::Nothing) == Work::GivenUp {
            self.0.given_up.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

type Seats = Mutex<HashMap<i32, Arc<Seat>>>;

/// A socket to listen on, and its file, which is removed in the end.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Listens at `path`, for this user only. A socket that nobody listens on any more is replaced.
    pub fn bind(path: &Path) -> Result<Self, String> {
        let about = |error: io::Error| format!("cannot listen at {}: {error}", path.display());
        match UnixStream::connect(path) {
            Ok(_) => return Err(format!("the socket {} is in use", path.display())),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(about)?,
            Err(_) => {}
        }
        // SAFETY: umask only sets a number of this process; no other thread makes files yet.
        let mask = unsafe { libc::umask(0o177) };
        let listener = UnixListener::bind(path);
        // SAFETY: as above.
        unsafe { libc::umask(mask) };
        let listener = listener.map_err(about)?;
        listener.set_nonblocking(true).map_err(about)?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A descriptor that becomes readable at SIGTERM or SIGINT. To be called before there are other threads: they inherit that
/// these signals do not hit them.
pub fn termination_signals() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is a valid one to be initialised by sigemptyset; the calls get pointers to it that
    // outlive them; signalfd returns a descriptor that nobody else owns.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC);
        if descriptor < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(descriptor)) }
    }
}

/// Serves until `signals` is readable; then every session is ended, and waited for.
///
/// BIAS: this thread sleeps but for a client that comes or goes. It watches for clients that vanish with an empty set of
/// events, so that their statements do not wake it.
pub fn serve(engine: &Arc<dyn Engine>, socket: &Socket, signals: &OwnedFd) -> io::Result<()> {
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &socket.listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    epoll::add(&poll, signals.as_fd(), EventData::new_u64(SIGNALS), EventFlags::IN)?;
    let seats: Arc<Seats> = Arc::default();
    let given_up: Arc<AtomicUsize> = Arc::default();
    let mut next = 2;
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        let condemned: Vec<Arc<Seat>> = lock(&seats).values().filter(|seat| seat.is_condemned()).cloned().collect();
        let again = Timespec { tv_sec: 0, tv_nsec: i64::from(AGAIN.subsec_nanos()) };
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), (!condemned.is_empty()).then_some(&again))
        {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for seat in &condemned {
            seat.interrupt();
        }
        for event in &events {
            let data = event.data;
            match data.u64() {
                SIGNALS => {
                    end_all(&seats);
                    return Ok(());
                }
                LISTENER => {
                    while accept(engine, socket, &poll, &seats, &given_up, next)? {
                        next += 1;
                    }
                }
                number => {
                    let seat = i32::try_from(number).ok().and_then(|number| lock(&seats).get(&number).cloned());
                    if let Some(seat) = seat {
                        // It would be told again and again.
                        let _ = epoll::delete(&poll, &*seat.stream);
                        seat.condemn();
                    }
                }
            }
        }
    }
}

/// Takes one client that waits, if there is one.
fn accept(
    engine: &Arc<dyn Engine>,
    socket: &Socket,
    poll: &OwnedFd,
    seats: &Arc<Seats>,
    given_up: &Arc<AtomicUsize>,
    number: i32,
) -> io::Result<bool> {
    let stream = match socket.listener.accept() {
        Ok((stream, _)) => stream,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
        Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => return Ok(true),
        Err(error) => {
            // No more descriptors, for instance: this client waits, the others are served.
            eprintln!("dbtoll-embedded: a client is not taken: {error}");
            thread::sleep(AGAIN);
            return Ok(false);
        }
    };
    stream.set_nonblocking(false)?;
    let mut secret = [0; 4];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let seat = Arc::new(Seat {
        number,
        secret: i32::from_ne_bytes(secret),
        stream: Arc::new(stream),
        interrupter: OnceLock::new(),
        work: Mutex::new(Work::Nothing),
        is_condemned: AtomicBool::new(false),
        given_up: Arc::clone(given_up),
    });
    lock(seats).insert(number, Arc::clone(&seat));
    epoll::add(
        poll,
        &*seat.stream,
        EventData::new_u64(u64::try_from(number).unwrap_or_default()),
        EventFlags::empty(),
    )?;
    let (engine, all) = (Arc::clone(engine), Arc::clone(seats));
    let spawned = thread::Builder::new().name(format!("client {number}")).stack_size(STACK_BYTES).spawn(move || {
        // Also after a panic the seat is given back.
        let _leaving = Leaving { seats: &all, number };
        let cancel = |number: i32, secret: i32| {
            let seat = lock(&all).get(&number).filter(|seat| seat.secret == secret).cloned();
            if let Some(seat) = seat {
                seat.interrupt();
            }
        };
        // The client is gone: nobody is left to be told.
        let _ = session::attend(&*engine, &seat, cancel);
    });
    if let Err(error) = spawned {
        eprintln!("dbtoll-embedded: a client gets no thread: {error}");
        lock(seats).remove(&number);
    }
    Ok(true)
}

struct Leaving<'a> {
    seats: &'a Seats,
    number: i32,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        lock(self.seats).remove(&self.number);
    }
}

/// Ends every session and waits for the last. A statement that the engine cannot stop is waited for.
fn end_all(seats: &Seats) {
    let start = Instant::now();
    lock(seats).values().for_each(|seat| seat.condemn());
    loop {
        let left: Vec<Arc<Seat>> = lock(seats).values().cloned().collect();
        if left.is_empty() {
            return;
        }
        for seat in left {
            seat.interrupt();
            if start.elapsed() > PATIENCE {
                let _ = seat.stream.shutdown(Shutdown::Both);
            }
        }
        thread::sleep(AGAIN / 5);
    }
}
