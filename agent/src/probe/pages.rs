//! Page faults, unmapping, and telling other processors that a mapping has changed.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::{io, mem, ptr};

use super::processes::forked;
use super::{Made, Probe, Request, Spent, unsupported};
use crate::clock::{now_ns, unique};
use crate::failure::Failure;

/// Of each mapping: enough that setting up and tearing down are a small part, little enough for any machine.
const PAGES: usize = 4096;

/// Pages that Linux maps in one fault where it only has to map them (`mm/memory.c`: `fault_around_bytes`).
const MAPPED_AROUND: usize = 16;

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
        let path = request.folder.join(format!(".dbtoll-probe-{}", unique()));
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).custom_flags(flags).open(&path);
        let file = file.map_err(|error| Failure::io(format!("open {}", path.display()), error))?;
        Ok(Self { file, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
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

/// Of the thread that asks: another may start or end meanwhile.
fn minor_faults() -> u64 {
    // SAFETY: an all-zero `rusage` is valid, and the pointer is to a live variable.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

/// Touches one page after the other of a mapping that has none, again and again; what it is emptied by is not timed.
///
/// The events are the faults that the kernel counted: where it maps pages around the one that was touched, a fault is of several.
/// BIAS: where it counts none (gVisor) they are as many as Linux would have had: one for each `around` neighbours that any was touched of.
struct Touching {
    mapping: Mapping,
    writes: bool,
    around: usize,
    /// From one touched page to the next; odd, so that it comes to each.
    stride: usize,
    _file: Option<Scratch>,
}

/// Page faults come in rows: a new process, a heap that grows by 256 KiB.
const FAULTS_IN_A_ROW: u64 = 64;
/// What is allocated is used from one end to the other.
const IN_ORDER: usize = 1;
/// What is there already is used here and there: no kernel maps two of these pages in one fault.
const HERE_AND_THERE: usize = 1657;

impl Touching {
    fn new(mapping: Mapping, writes: bool, around: usize, stride: usize, file: Option<Scratch>) -> Self {
        Self { mapping, writes, around, stride, _file: file }
    }

    /// Which page is touched as the `number`th.
    fn page(&self, number: usize) -> usize {
        number * self.stride % PAGES
    }

    /// How many faults the first so many touches are to Linux.
    fn expected_faults(&self, touches: usize) -> u64 {
        (0..touches).map(|number| self.page(number) / self.around).collect::<BTreeSet<_>>().len() as u64
    }
}

impl Probe for Touching {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let mut spent = Spent { events: 0, elapsed_ns: 0 };
        let mut left = usize::try_from(events).unwrap_or(usize::MAX).saturating_mul(self.around);
        while left > 0 {
            self.mapping.advise(libc::MADV_DONTNEED)?;
            let pages = left.min(PAGES);
            let (faults, begin_ns) = (minor_faults(), now_ns());
            for number in 0..pages {
                let place = self.page(number) * page_bytes();
                if self.writes {
                    self.mapping.write_at(place);
                } else {
                    self.mapping.read_at(place);
                }
            }
            spent.elapsed_ns += now_ns() - begin_ns;
            let counted = minor_faults() - faults;
            spent.events += if counted == 0 { self.expected_faults(pages) } else { counted };
            left -= pages;
        }
        Ok(spent)
    }

    fn in_a_row(&self) -> u64 {
        FAULTS_IN_A_ROW
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// New zeroed pages, one each (lmbench has no such; minhas2008 §4.1.2 counts these).
pub fn fault_anonymous(_: &Request) -> Made {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mapping = Mapping::new(PAGES * page_bytes(), READ_WRITE, flags, None)?;
    let _ = mapping.advise(libc::MADV_NOHUGEPAGE); // a kernel without huge pages needs no telling
    Ok(Box::new(Touching::new(mapping, true, 1, IN_ORDER, None)))
}

/// Pages of a file that the kernel holds, mapped for reading (lmbench: `lat_pagefault`, which makes it touch the disk's cache too).
pub fn fault_file(request: &Request) -> Made {
    let scratch = filled(request)?;
    let mapping = Mapping::new(PAGES * page_bytes(), libc::PROT_READ, libc::MAP_PRIVATE, Some(&scratch.file))?;
    Ok(Box::new(Touching::new(mapping, false, MAPPED_AROUND, HERE_AND_THERE, Some(scratch))))
}

/// Shared memory as `PostgreSQL` maps its buffers (`MAP_SHARED|MAP_ANONYMOUS`, `src/backend/port/sysv_shmem.c`): the pages are there, this
/// process has not mapped them yet.
pub fn fault_shared(_: &Request) -> Made {
    shared(true)
}

/// The same read first, as most of a new server process's buffers are: the kernel maps the pages around it in the same fault.
pub fn fault_shared_read(_: &Request) -> Made {
    shared(false)
}

/// Sixteen neighbouring pages of it, one after the other: what a kernel that maps them in one fault spares, another one pays for.
pub fn fault_shared_around(_: &Request) -> Made {
    Ok(Box::new(Windows(there()?)))
}

struct Windows(Mapping);

impl Probe for Windows {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        const WINDOWS: usize = PAGES / MAPPED_AROUND;
        let mut spent = Spent { events, elapsed_ns: 0 };
        let mut left = usize::try_from(events).unwrap_or(usize::MAX);
        while left > 0 {
            self.0.advise(libc::MADV_DONTNEED)?;
            let windows = left.min(WINDOWS);
            let begin_ns = now_ns();
            for number in 0..windows {
                let window = number * HERE_AND_THERE % WINDOWS;
                for page in window * MAPPED_AROUND..(window + 1) * MAPPED_AROUND {
                    self.0.read_at(page * page_bytes());
                }
            }
            spent.elapsed_ns += now_ns() - begin_ns;
            left -= windows;
        }
        Ok(spent)
    }

    fn in_a_row(&self) -> u64 {
        FAULTS_IN_A_ROW
    }
}

fn shared(writes: bool) -> Made {
    let around = if writes { 1 } else { MAPPED_AROUND };
    Ok(Box::new(Touching::new(there()?, writes, around, HERE_AND_THERE, None)))
}

/// Shared memory whose pages are there.
fn there() -> Result<Mapping, Failure> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let mut mapping = Mapping::new(PAGES * page_bytes(), READ_WRITE, flags, None)?;
    for page in 0..PAGES {
        mapping.write_at(page * page_bytes());
    }
    Ok(mapping)
}

/// A copy of a page that another process has too: what a new server process pays when it first writes to what it inherited.
pub fn fault_copy(_: &Request) -> Made {
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut inherited = Mapping::new((PAGES + APART) * page_bytes(), READ_WRITE, private, None)?;
    let _ = inherited.advise(libc::MADV_NOHUGEPAGE);
    for page in 0..PAGES + APART {
        inherited.write_at(page * page_bytes());
    }
    let told = Mapping::new(page_bytes(), READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None)?;
    Ok(Box::new(Copying { inherited, told }))
}

/// Pages of 2 MiB: so far from all others that no kernel copies them together.
const APART: usize = 1024;

struct Copying {
    inherited: Mapping,
    /// By the new process: events and what they took.
    told: Mapping,
}

impl Probe for Copying {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let mut spent = Spent { events: 0, elapsed_ns: 0 };
        while spent.events < events {
            let pages = usize::try_from(events - spent.events).map_or(PAGES, |left| left.min(PAGES));
            let child = forked(|| {
                // What a new process needs before it can do anything is not a copy's.
                self.inherited.write_at((PAGES + APART - 1) * page_bytes());
                self.told.write_at(0);
                let (faults, begin_ns) = (minor_faults(), now_ns());
                for page in 0..pages {
                    self.inherited.write_at(page * page_bytes());
                }
                let elapsed_ns = now_ns() - begin_ns;
                let counted = minor_faults() - faults;
                let events = if counted == 0 { pages as u64 } else { counted };
                let told = self.told.bytes_mut();
                told[..8].copy_from_slice(&events.to_ne_bytes());
                told[8..16].copy_from_slice(&elapsed_ns.to_ne_bytes());
            })?;
            child.wait();
            let mut words = [[0; 8]; 2];
            words[0].copy_from_slice(&self.told.bytes_mut()[..8]);
            words[1].copy_from_slice(&self.told.bytes_mut()[8..16]);
            spent.events += u64::from_ne_bytes(words[0]);
            spent.elapsed_ns += u64::from_ne_bytes(words[1]);
        }
        Ok(spent)
    }

    fn in_a_row(&self) -> u64 {
        FAULTS_IN_A_ROW
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_faults_are_expected_as_the_kernel_counts() {
        let shared = Touching::new(there().unwrap(), false, MAPPED_AROUND, HERE_AND_THERE, None);
        for touches in [1, 64, 1024, PAGES] {
            shared.mapping.advise(libc::MADV_DONTNEED).unwrap();
            let before = minor_faults();
            (0..touches).for_each(|number| shared.mapping.read_at(shared.page(number) * page_bytes()));
            let (counted, expected) = (minor_faults() - before, shared.expected_faults(touches));
            assert!(
                counted.abs_diff(expected) <= expected / 10 + 3,
                "{touches} touches: {counted} faults, not {expected}"
            );
        }
    }
}
