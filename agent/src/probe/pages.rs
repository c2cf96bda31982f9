//! Page faults, unmapping, and telling other processors that a mapping has changed.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::{io, mem, ptr};

use super::{Made, Probe, Request, Spent, unsupported};
use crate::clock::now_ns;
use crate::failure::Failure;

/// Of each mapping: enough that setting up and tearing down are a small part, little enough for any machine.
const PAGES: usize = 4096;

/// Memory that is mapped as long as this lives.
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// `flags` as of mmap(2); `file` for those that are not anonymous.
    pub fn new(bytes: usize, protection: i32, flags: i32, file: Option<&File>) -> Result<Self, Failure> {
        let descriptor = file.map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: no address is asked for, so nothing that is mapped is replaced.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, descriptor, 0) };
        if start == libc::MAP_FAILED {
            return Err(Failure::io("mmap", io::Error::last_os_error()));
        }
        Ok(Self { start: start.cast(), bytes })
    }

    pub fn advise(&self, advice: i32) -> Result<(), Failure> {
        // SAFETY: the range is this mapping's own, and nothing keeps a reference into it.
        let result = unsafe { libc::madvise(self.start.cast(), self.bytes, advice) };
        if result == 0 { Ok(()) } else { Err(Failure::io("madvise", io::Error::last_os_error())) }
    }

    /// The memory; only for mappings that can be read and written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, initialised by the kernel, and borrowed from the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    fn read_at(&self, offset: usize) {
        debug_assert!(offset < self.bytes);
        // SAFETY: inside the mapping, which can be read.
        unsafe { ptr::read_volatile(self.start.add(offset)) };
    }

    fn write_at(&mut self, offset: usize) {
        debug_assert!(offset < self.bytes);
        // SAFETY: inside the mapping; only called on those that can be written.
        unsafe { ptr::write_volatile(self.start.add(offset), 1) };
    }

    fn protect(&self, protection: i32) -> Result<(), Failure> {
        // SAFETY: the range is this mapping's own; whoever takes the right to write away gives it back before writing.
        let result = unsafe { libc::mprotect(self.start.cast(), self.bytes, protection) };
        if result == 0 { Ok(()) } else { Err(Failure::io("mprotect", io::Error::last_os_error())) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own and nothing keeps a reference into it.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// A file that goes when this does.
pub struct Scratch {
    pub file: File,
    path: PathBuf,
}

impl Scratch {
    /// New and empty, in the folder that is probed. `flags` as of open(2).
    pub fn new(request: &Request, flags: i32) -> Result<Self, Failure> {
        use std::os::unix::fs::OpenOptionsExt;
        let path = request.folder.join(format!(".dbtoll-probe-{}-{}", std::process::id(), now_ns()));
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).custom_flags(flags).open(&path);
        let file = file.map_err(|error| Failure::io(format!("open {}", path.display()), error))?;
        Ok(Self { file, path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn page_bytes() -> usize {
    rustix::param::page_size()
}

fn minor_faults() -> u64 {
    // SAFETY: an all-zero `rusage` is valid, and the pointer is to a live variable.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

/// Touches a page of each of a mapping that has none, again and again; what it is emptied by is not timed.
///
/// The events are the faults that the kernel counted: where it maps pages around the one that was touched, a fault is of several.
struct Touching {
    mapping: Mapping,
    writes: bool,
    _file: Option<Scratch>,
}

impl Probe for Touching {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let mut spent = Spent { events: 0, elapsed_ns: 0 };
        let mut left = usize::try_from(events).unwrap_or(usize::MAX);
        while left > 0 {
            self.mapping.advise(libc::MADV_DONTNEED)?;
            let pages = left.min(PAGES);
            let (faults, begin_ns) = (minor_faults(), now_ns());
            for page in 0..pages {
                if self.writes {
                    self.mapping.write_at(page * page_bytes());
                } else {
                    self.mapping.read_at(page * page_bytes());
                }
            }
            spent.elapsed_ns += now_ns() - begin_ns;
            spent.events += minor_faults() - faults;
            left -= pages;
        }
        if spent.events == 0 {
            return Err(unsupported("the kernel counts no page faults here"));
        }
        Ok(spent)
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// New zeroed pages, one each (lmbench has no such; minhas2008 §4.1.2 counts these).
pub fn fault_anonymous(_: &Request) -> Made {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mapping = Mapping::new(PAGES * page_bytes(), READ_WRITE, flags, None)?;
    let _ = mapping.advise(libc::MADV_NOHUGEPAGE); // a kernel without huge pages needs no telling
    Ok(Box::new(Touching { mapping, writes: true, _file: None }))
}

/// Pages of a file that the kernel holds, mapped for reading (lmbench: `lat_pagefault`, which makes it touch the disk's cache too).
pub fn fault_file(request: &Request) -> Made {
    let scratch = filled(request)?;
    let mapping = Mapping::new(PAGES * page_bytes(), libc::PROT_READ, libc::MAP_PRIVATE, Some(&scratch.file))?;
    Ok(Box::new(Touching { mapping, writes: false, _file: Some(scratch) }))
}

/// Shared memory as `PostgreSQL` maps its buffers (`MAP_SHARED|MAP_ANONYMOUS`, `src/backend/port/sysv_shmem.c`): the pages are there, this
/// process has not mapped them yet.
pub fn fault_shared(_: &Request) -> Made {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let mut mapping = Mapping::new(PAGES * page_bytes(), READ_WRITE, flags, None)?;
    for page in 0..PAGES {
        mapping.write_at(page * page_bytes());
    }
    Ok(Box::new(Touching { mapping, writes: true, _file: None }))
}

/// A copy of a page that others have too: what a new server process pays when it first writes to what it inherited.
pub fn fault_copy(request: &Request) -> Made {
    let scratch = filled(request)?;
    let mapping = Mapping::new(PAGES * page_bytes(), READ_WRITE, libc::MAP_PRIVATE, Some(&scratch.file))?;
    Ok(Box::new(Touching { mapping, writes: true, _file: Some(scratch) }))
}

fn filled(request: &Request) -> Result<Scratch, Failure> {
    use std::io::Write;
    let mut scratch = Scratch::new(request, 0)?;
    let written = scratch.file.write_all(&vec![1; PAGES * page_bytes()]).and_then(|()| scratch.file.sync_all());
    written.map_err(|error| Failure::io("write", error))?;
    Ok(scratch)
}

/// A page's part of unmapping many that had been touched.
pub fn unmap_page(_: &Request) -> Made {
    Ok(Box::new(Unmapping))
}

struct Unmapping;

impl Probe for Unmapping {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rounds = events.div_ceil(PAGES as u64);
        let mut elapsed_ns = 0;
        for _ in 0..rounds {
            let mut mapping = Mapping::new(PAGES * page_bytes(), READ_WRITE, flags, None)?;
            let _ = mapping.advise(libc::MADV_NOHUGEPAGE);
            for page in 0..PAGES {
                mapping.write_at(page * page_bytes());
            }
            let begin_ns = now_ns();
            drop(mapping);
            elapsed_ns += now_ns() - begin_ns;
        }
        Ok(Spent { events: rounds * PAGES as u64, elapsed_ns })
    }
}

/// Taking the right to write from one page and giving it back while another thread runs on another processor: each time that processor
/// is interrupted to forget the page. An event is one of the two; half of them change the other's mapping.
pub fn tlb_shootdown(_: &Request) -> Made {
    let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    if processors < 2 {
        return Err(unsupported("this arm has one processor, so there is no other one to tell"));
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mapping = Mapping::new(page_bytes(), READ_WRITE, flags, None)?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let other = thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    Ok(Box::new(Shootdown { mapping, stop, other: Some(other) }))
}

struct Shootdown {
    mapping: Mapping,
    stop: Arc<AtomicBool>,
    other: Option<JoinHandle<()>>,
}

impl Probe for Shootdown {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let pairs = events.div_ceil(2);
        let begin_ns = now_ns();
        for _ in 0..pairs {
            self.mapping.write_at(0);
            self.mapping.protect(libc::PROT_READ)?;
            self.mapping.protect(READ_WRITE)?;
        }
        Ok(Spent { events: 2 * pairs, elapsed_ns: now_ns() - begin_ns })
    }
}

impl Drop for Shootdown {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(other) = self.other.take() {
            let _ = other.join();
        }
    }
}
