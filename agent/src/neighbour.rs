//! `dbtoll-agent neighbour REQUEST`: what a neighbour does that may disturb others (docs/method/neighbours.md), until it is ended.
//!
//! It says on standard output what it has done so far: a line when every thread has done something, one each 100 ms after that, and one
//! when all have ended what they were at, as SIGTERM asks them to. Its files have no name, so nothing of it is left, however it ends.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::clock::{now_ns, process_cpu_ns, unique};
use crate::driver::server::Server;
use crate::failure::Failure;
use crate::loading::Loading;
use crate::random::Random;
use crate::wire::blocking::Interrupter;

const TOLD_EVERY: Duration = Duration::from_millis(100);
const THREADS_MAX: usize = 256;
const MEMORY_MAX_BYTES: usize = 16 << 30;
const DEADLINE_MAX_NS: u64 = 25 * 3_600_000_000_000;

const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 8192;
/// Of each thread's file that is written durably.
const SYNCED_PAGES: u64 = 128;
/// What is copied, or read, in one turn.
const PIECE_BYTES: usize = 1 << 20;
/// Between the pieces that a reader of files begins: 512 MiB a second, as a fast device would bring them, leave it time to rest.
const READ_EVERY_NS: u64 = 1_000_000_000 / 512;
/// Where a processor does not tell the size of its last cache.
const CACHE_BYTES: usize = 32 << 20;
/// After a session was refused.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    kind: Kind,
    threads: usize,
    /// At most, of all threads together, for what works on memory.
    memory_bytes: usize,
    /// Where files are.
    folder: PathBuf,
    /// Of the files that are read, together; they are of holes, so they take no room there.
    file_bytes: u64,
    /// It ends by itself after so long.
    deadline_ns: u64,
    /// Where sessions are opened, as of the method `serial`.
    #[serde(default)]
    server: Value,
    /// What is asked there, one after the other, again and again.
    #[serde(default)]
    statements: Vec<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Next to nothing: what the others' figures show of it is noise.
    Idle,
    Processor,
    MemoryBandwidth,
    Cache,
    Fsync,
    PageCache,
    Connections,
    Statements,
}

impl Kind {
    /// What is counted of it; the first is what it is to do.
    fn counted(self) -> &'static [&'static str] {
        match self {
            Self::Idle => &["wakes"],
            Self::Processor => &["loops"],
            Self::MemoryBandwidth => &["bytes_copied"],
            Self::Cache => &["lines_touched"],
            Self::Fsync => &["fsyncs", "bytes_written"],
            Self::PageCache => &["bytes_read"],
            Self::Connections => &["connections", "refused"],
            Self::Statements => &["statements"],
        }
    }
}

type Counts = [AtomicU64; 2];

/// One turn of a thread's work, a few milliseconds at most where nothing has to be waited for.
type Turn = Box<dyn FnMut(&Counts) -> Result<(), Failure>>;

/// Somebody wants it to end.
static ENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: libc::c_int) {
    ENDED.store(true, Ordering::Relaxed);
}

pub fn run(request: &str) -> Result<(), String> {
    let handler: extern "C" fn(libc::c_int) = end;
    // SAFETY: the handler does nothing but to store a flag.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
    act(request)
}

fn act(request: &str) -> Result<(), String> {
    let request: Request = serde_json::from_str(request).map_err(|error| error.to_string())?;
    let Request { kind, threads, memory_bytes, deadline_ns, .. } = request;
    if !(1..=THREADS_MAX).contains(&threads)
        || !(1..=MEMORY_MAX_BYTES).contains(&memory_bytes)
        || deadline_ns > DEADLINE_MAX_NS
    {
        return Err("threads, memory or a time that cannot be asked for".to_owned());
    }
    let until_ns = now_ns() + deadline_ns;
    let (request, counts) = (Arc::new(request), Arc::new(Counts::default()));
    let (tell, told) = channel();
    for number in 0..threads {
        let (request, counts, tell) = (Arc::clone(&request), Arc::clone(&counts), tell.clone());
        let work = move || {
            // Nobody listens once another thread has failed.
            let _ = tell.send(work(&request, number, &counts, &tell, until_ns).map(|()| false));
        };
        thread::Builder::new().name(format!("neighbour-{number}")).spawn(work).map_err(|error| error.to_string())?;
    }
    drop(tell);
    let mut acting = 0;
    loop {
        match told.recv_timeout(TOLD_EVERY) {
            Ok(result) => {
                let begins = result.map_err(|failure| failure.message)?;
                acting += usize::from(begins);
                if begins && acting == threads {
                    say(kind, &counts)?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if acting == threads {
                    say(kind, &counts)?;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return say(kind, &counts),
        }
    }
}

fn say(kind: Kind, counts: &Counts) -> Result<(), String> {
    let done: Map<String, Value> = (kind.counted().iter().zip(counts))
        .map(|(name, count)| ((*name).to_owned(), json!(count.load(Ordering::Relaxed))))
        .collect();
    let line = json!({"at_ns": now_ns(), "cpu_ns": process_cpu_ns(), "done": done});
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| error.to_string())
}

/// `tell`: true when it has done something for the first time.
fn work(
    request: &Request,
    number: usize,
    counts: &Counts,
    tell: &Sender<Result<bool, Failure>>,
    until_ns: u64,
) -> Result<(), Failure> {
    let mut turn = make(request, number)?;
    turn(counts)?;
    let _ = tell.send(Ok(true));
    while !ENDED.load(Ordering::Relaxed) && now_ns() < until_ns {
        turn(counts)?;
    }
    Ok(())
}

fn count(counts: &Counts, place: usize, more: usize) {
    counts[place].fetch_add(more as u64, Ordering::Relaxed);
}

fn make(request: &Request, number: usize) -> Result<Turn, Failure> {
    let own_bytes = request.memory_bytes / request.threads;
    Ok(match request.kind {
        Kind::Idle => Box::new(|counts| {
            thread::sleep(TOLD_EVERY);
            count(counts, 0, 1);
            Ok(())
        }),
        Kind::Processor => Box::new(|counts| {
            const STEPS: u64 = 1 << 16;
            black_box(
                (0..STEPS).fold(1_u64, |value, step| black_box(value.wrapping_mul(6_364_136_223_846_793_005) + step)),
            );
            count(counts, 0, 1);
            Ok(())
        }),
        Kind::MemoryBandwidth => copying(own_bytes / 2),
        Kind::Cache => touching(own_bytes.min(last_cache_bytes() / request.threads), number),
        Kind::Fsync => syncing(&request.folder)?,
        Kind::PageCache => reading(&request.folder, request.file_bytes / request.threads as u64)?,
        Kind::Connections => connecting(request.server.clone())?,
        Kind::Statements => asking(request.server.clone(), request.statements.clone())?,
    })
}

/// From one piece of memory to another, piece after piece.
fn copying(bytes: usize) -> Turn {
    let bytes = bytes.max(PIECE_BYTES) / PIECE_BYTES * PIECE_BYTES;
    let (from, mut to, mut at) = (vec![1_u8; bytes], vec![0_u8; bytes], 0);
    Box::new(move |counts| {
        to[at..at + PIECE_BYTES].copy_from_slice(&from[at..at + PIECE_BYTES]);
        black_box(&mut to);
        at = (at + PIECE_BYTES) % bytes;
        count(counts, 0, PIECE_BYTES);
        Ok(())
    })
}

/// Changes a word in cache lines here and there: each has to be brought, and what it takes the place of, written back.
fn touching(bytes: usize, number: usize) -> Turn {
    const LINES: usize = 4096;
    let mut places = vec![[0_u8; LINE_BYTES]; (bytes / LINE_BYTES).max(1)];
    let mut random = Random::new(&[number as u64]);
    let many = u32::try_from(places.len()).unwrap_or(u32::MAX);
    Box::new(move |counts| {
        for _ in 0..LINES {
            let line = &mut places[random.below(many) as usize];
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&mut places);
        count(counts, 0, LINES);
        Ok(())
    })
}

/// Of the first processor; all are taken to be alike.
fn last_cache_bytes() -> usize {
    let sizes = (0..8).filter_map(|index| {
        let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        let (number, unit) = text.trim().split_at(text.trim().find(|letter: char| letter.is_alphabetic())?);
        let factor = if unit == "M" { 1 << 20 } else { 1 << 10 };
        number.parse::<usize>().ok().map(|many| many * factor)
    });
    sizes.max().unwrap_or(CACHE_BYTES)
}

/// A file that has lost its name.
fn nameless(folder: &Path) -> Result<File, Failure> {
    let path = folder.join(format!(".dbtoll-neighbour-{}", unique()));
    let about = |error| Failure::io(format!("open {}", path.display()), error);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(about)?;
    fs::remove_file(&path).map_err(about)?;
    Ok(file)
}

/// Small durable writes, as of a log that is written at each commit.
fn syncing(folder: &Path) -> Result<Turn, Failure> {
    let (file, page, mut next) = (nameless(folder)?, vec![1; PAGE_BYTES], 0);
    Ok(Box::new(move |counts| {
        let written = file.write_all_at(&page, next % SYNCED_PAGES * PAGE_BYTES as u64).and_then(|()| file.sync_data());
        written.map_err(|error| Failure::io("fdatasync", error))?;
        next += 1;
        count(counts, 0, 1);
        count(counts, 1, PAGE_BYTES);
        Ok(())
    }))
}

/// Holes of a file, from its begin to its end again and again: each page of them takes one of the page cache, and no device is asked.
/// Each piece twice in a row, so that the kernel takes its pages for pages that are used again. All of them are read once before: from
/// its first turn on it takes the place of others.
fn reading(folder: &Path, bytes: u64) -> Result<Turn, Failure> {
    let (file, piece) = (nameless(folder)?, PIECE_BYTES as u64);
    let bytes = bytes.max(piece) / piece * piece;
    file.set_len(bytes).map_err(|error| Failure::io("ftruncate", error))?;
    let (mut buffer, mut at) = (vec![0; PIECE_BYTES], 0);
    let mut read = move |at| file.read_exact_at(&mut buffer, at).map_err(|error| Failure::io("pread", error));
    for first in (0..bytes / piece).take_while(|_| !ENDED.load(Ordering::Relaxed)) {
        read(first * piece)?;
    }
    let mut due_ns = now_ns();
    Ok(Box::new(move |counts| {
        thread::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns())));
        due_ns = due_ns.max(now_ns()) + READ_EVERY_NS;
        for _ in 0..2 {
            read(at)?;
            count(counts, 0, PIECE_BYTES);
        }
        at = (at + piece) % bytes;
        Ok(())
    }))
}

/// A session after the other, each ended when it has begun.
fn connecting(server: Value) -> Result<Turn, Failure> {
    let open = opening(server)?;
    Ok(Box::new(move |counts| {
        if open().is_ok() {
            count(counts, 0, 1);
        } else {
            count(counts, 1, 1);
            thread::sleep(PAUSE);
        }
        Ok(())
    }))
}

/// In one session.
fn asking(server: Value, statements: Vec<String>) -> Result<Turn, Failure> {
    if statements.is_empty() {
        return Err(Failure::bad_request("no statements"));
    }
    let (mut session, mut next) = (opening(server)?()?, 0);
    Ok(Box::new(move |counts| {
        session.rows(&statements[next % statements.len()])?;
        next += 1;
        count(counts, 0, 1);
        Ok(())
    }))
}

fn opening(mut server: Value) -> Result<impl Fn() -> Result<Loading, Failure>, Failure> {
    let server = Server::take(&mut server)?;
    let dialect = server.dialect();
    let (address, login) = server.login(Vec::new());
    let interrupter = Interrupter::default();
    Ok(move || Loading::open(dialect, &address, &login, &interrupter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: &str, server: Value) -> Request {
        let folder = std::env::temp_dir();
        let made = json!({"kind": kind, "threads": 2, "memory_bytes": 8 << 20, "folder": folder, "file_bytes": 4 << 20,
            "deadline_ns": 1_000_000_000, "server": server});
        serde_json::from_value(made).unwrap()
    }

    #[test]
    fn each_kind_counts_what_it_does() {
        let before = leftovers();
        for (kind, first, second) in [
            ("idle", 1, 0),
            ("processor", 1, 0),
            ("memory_bandwidth", PIECE_BYTES, 0),
            ("cache", 4096, 0),
            ("fsync", 1, PAGE_BYTES),
            ("page_cache", 2 * PIECE_BYTES, 0),
        ] {
            let (asked, counts) = (request(kind, Value::Null), Counts::default());
            let mut turn = make(&asked, 0).unwrap();
            // More turns than a file or a piece of memory has pieces: each begins anew.
            for _ in 0..9 {
                turn(&counts).unwrap();
            }
            let found = [0, 1].map(|place: usize| counts[place].load(Ordering::Relaxed));
            assert_eq!(found, [9 * first as u64, 9 * second as u64], "{kind}");
        }
        assert_eq!(leftovers(), before);
    }

    fn leftovers() -> usize {
        let entries = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        let own = format!(".dbtoll-neighbour-{}-", std::process::id());
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).count()
    }

    #[test]
    fn sessions_that_are_refused_are_counted_apart() {
        let nowhere = json!({"wire": "postgres", "address": {"unix": "/nowhere"}, "user": "u", "database": "d"});
        let (asked, counts) = (request("connections", nowhere), Counts::default());
        make(&asked, 0).unwrap()(&counts).unwrap();
        assert_eq!([0, 1].map(|place: usize| counts[place].load(Ordering::Relaxed)), [0, 1]);
        assert!(make(&request("connections", Value::Null), 0).is_err());
        assert!(make(&request("statements", Value::Null), 0).is_err());
    }

    #[test]
    fn it_ends_in_time_and_refuses_what_it_cannot_do() {
        let ask = |kind: &str, threads: usize, folder: &str| {
            act(&json!({"kind": kind, "threads": threads, "memory_bytes": 1, "folder": folder, "file_bytes": 0, "deadline_ns": 1})
                .to_string())
        };
        assert_eq!(ask("processor", 1, "/"), Ok(()));
        assert!(ask("processor", 0, "/").is_err() && ask("anger", 1, "/").is_err());
        let late = json!({"kind": "fsync", "threads": 1, "memory_bytes": 1, "folder": "/nowhere", "file_bytes": 0,
            "deadline_ns": 5_000_000_000_u64});
        assert!(act(&late.to_string()).unwrap_err().contains("/nowhere"));
    }
}
