//! Files on the device that is probed: durable writes, and the four patterns of zhang2014's Table 1, past the kernel's cache and by it.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::pages::{Mapping, Scratch};
use super::{Made, Probe, Repeated, Request, Spent, unsupported};
use crate::clock::now_ns;
use crate::failure::Failure;
use crate::random::Random;

/// `PostgreSQL`'s page, and what zhang2014 §3.1 reads and writes.
const PAGE_BYTES: usize = 8192;
/// BIAS: a device's own cache may hold as much; so may a host's, where a guest's device is a file there.
const FILE_PAGES: usize = 8192;

/// A page written at the same place and made durable: a commit's part of the device (PostgreSQL: `wal_sync_method` fdatasync).
pub fn fsync(request: &Request) -> Made {
    let scratch = Scratch::new(request, 0)?;
    let page = vec![1; PAGE_BYTES];
    let write = move || {
        let written = scratch.file.write_all_at(&page, 0).and_then(|()| scratch.file.sync_data());
        written.map_err(|error| Failure::io("fdatasync", error))
    };
    Ok(Box::new(Repeated(write)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Sequential,
    Random,
}

struct Access {
    scratch: Scratch,
    /// Aligned as direct transfers want it.
    page: Mapping,
    writes: bool,
    pattern: Pattern,
    next: usize,
    random: Random,
}

impl Probe for Access {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let begin_ns = now_ns();
        for _ in 0..events {
            let place = match self.pattern {
                Pattern::Sequential => (self.next + 1) % FILE_PAGES,
                Pattern::Random => self.random.below(u32::try_from(FILE_PAGES).unwrap_or(u32::MAX)) as usize,
            };
            self.next = place;
            let offset = (place * PAGE_BYTES) as u64;
            let page = self.page.bytes_mut();
            if self.writes {
                self.scratch.file.write_all_at(page, offset).map_err(|error| Failure::io("pwrite", error))?;
            } else {
                self.scratch.file.read_exact_at(page, offset).map_err(|error| Failure::io("pread", error))?;
            }
        }
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}

fn access(request: &Request, writes: bool, pattern: Pattern, direct: bool) -> Made {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let page = Mapping::new(PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, None)?;
    let scratch = Scratch::new(request, 0)?;
    let rows = vec![1; PAGE_BYTES];
    for number in 0..FILE_PAGES {
        let written = scratch.file.write_all_at(&rows, (number * PAGE_BYTES) as u64);
        written.map_err(|error| Failure::io("write", error))?;
    }
    scratch.file.sync_all().map_err(|error| Failure::io("fsync", error))?;
    if direct {
        let flags = rustix::fs::fcntl_getfl(scratch.file.as_fd()).map_err(|error| Failure::io("fcntl", error))?;
        rustix::fs::fcntl_setfl(scratch.file.as_fd(), flags | rustix::fs::OFlags::DIRECT)
            .map_err(|error| unsupported(format!("its file system has no direct access: {error}")))?;
    }
    let random = Random::new(&[FILE_PAGES as u64]);
    Ok(Box::new(Access { scratch, page, writes, pattern, next: 0, random }))
}

pub fn read_sequential_direct(request: &Request) -> Made {
    access(request, false, Pattern::Sequential, true)
}

pub fn read_random_direct(request: &Request) -> Made {
    access(request, false, Pattern::Random, true)
}

pub fn write_sequential_direct(request: &Request) -> Made {
    access(request, true, Pattern::Sequential, true)
}

pub fn write_random_direct(request: &Request) -> Made {
    access(request, true, Pattern::Random, true)
}

/// Of pages that the kernel's cache holds: nothing comes from the device.
pub fn read_sequential_buffered(request: &Request) -> Made {
    access(request, false, Pattern::Sequential, false)
}

/// As `read_sequential_buffered`.
pub fn read_random_buffered(request: &Request) -> Made {
    access(request, false, Pattern::Random, false)
}

/// BIAS: into the kernel's cache; it writes back in its own time, which can fall into these or later events.
pub fn write_sequential_buffered(request: &Request) -> Made {
    access(request, true, Pattern::Sequential, false)
}

/// At the end of a file that is emptied again when it has 2 MiB: what is written beside in a sort or a join that memory does not hold.
pub fn write_appended_buffered(request: &Request) -> Made {
    Ok(Box::new(Appending { scratch: Scratch::new(request, 0)?, pages: 0 }))
}

struct Appending {
    scratch: Scratch,
    pages: u64,
}

impl Probe for Appending {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        const MOST: u64 = 256;
        let page = [1; PAGE_BYTES];
        let begin_ns = now_ns();
        for _ in 0..events {
            let place = self.pages * PAGE_BYTES as u64;
            self.scratch.file.write_all_at(&page, place).map_err(|error| Failure::io("pwrite", error))?;
            self.pages += 1;
            if self.pages == MOST {
                self.scratch.file.set_len(0).map_err(|error| Failure::io("ftruncate", error))?;
                self.pages = 0;
            }
        }
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}

/// As `write_sequential_buffered`.
pub fn write_random_buffered(request: &Request) -> Made {
    access(request, true, Pattern::Random, false)
}

/// One page after the other of a file that was there before, each once.
struct Uncached {
    file: File,
    places: std::vec::IntoIter<u64>,
}

impl Probe for Uncached {
    fn run(&mut self, events: u64) -> Result<Spent, Failure> {
        let mut page = [0; PAGE_BYTES];
        let begin_ns = now_ns();
        for _ in 0..events {
            let place = self.places.next().ok_or_else(|| unsupported("every page of the file has been read"))?;
            self.file.read_exact_at(&mut page, place).map_err(|error| Failure::io("pread", error))?;
        }
        Ok(Spent { events, elapsed_ns: now_ns() - begin_ns })
    }
}

/// Of the largest file that lies in the folder, a table say. Whoever asks has dropped all caches before, or reads from them.
fn uncached(request: &Request, pattern: Pattern) -> Made {
    let Some(events) = request.events else {
        return Err(unsupported("a page is read for the first time only once: say how many events a batch has"));
    };
    let needed = events * u64::from(request.batches);
    let found = largest(&request.folder).filter(|(bytes, _)| bytes / PAGE_BYTES as u64 >= needed);
    let Some((bytes, path)) = found else {
        return Err(unsupported(format!("no file of {needed} pages lies in {}", request.folder.display())));
    };
    let file = File::open(&path).map_err(|error| Failure::io(format!("open {}", path.display()), error))?;
    let mut places: Vec<u64> = (0..bytes / PAGE_BYTES as u64).map(|page| page * PAGE_BYTES as u64).collect();
    if pattern == Pattern::Random {
        Random::new(&[needed]).shuffle(&mut places);
    }
    Ok(Box::new(Uncached { file, places: places.into_iter() }))
}

/// Its length and path; the folder's own folders are looked into, what cannot be read is not there.
fn largest(folder: &Path) -> Option<(u64, PathBuf)> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let found = entries.filter_map(|entry| {
        let kind = entry.file_type().ok()?;
        if kind.is_dir() {
            return largest(&entry.path());
        }
        kind.is_file().then(|| Some((entry.metadata().ok()?.len(), entry.path()))).flatten()
    });
    found.max()
}

pub fn read_sequential_uncached(request: &Request) -> Made {
    uncached(request, Pattern::Sequential)
}

pub fn read_random_uncached(request: &Request) -> Made {
    uncached(request, Pattern::Random)
}
