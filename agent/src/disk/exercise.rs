//! `dbtoll-agent disk-exercise REQUEST`: requests to a block device or a file past the kernel's cache, some at a time, each timed.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use hdrhistogram::Histogram;
use serde::Deserialize;
use serde_json::json;

use crate::clock::now_ns;
use crate::probe::Mapping;
use crate::random::Random;

const IN_FLIGHT_MAX: u64 = 128;
const MOST_BYTES: u64 = 1 << 20;
const ALIGNED_BYTES: u64 = 512;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    path: PathBuf,
    writes: bool,
    /// Each at a place of its own, anywhere on the device; else one after the other from its beginning.
    random: bool,
    bytes: u64,
    in_flight: u64,
    /// No request begins after so long.
    duration_ns: u64,
    seed: u64,
}

/// Prints `{"requests", "elapsed_ns", "mean_ns", "least_ns", "median_ns"}`.
pub fn run(request: &str) -> Result<(), String> {
    let request: Request = serde_json::from_str(request).map_err(|error| error.to_string())?;
    let what = |error: std::io::Error| format!("{}: {error}", request.path.display());
    let sound = (1..=MOST_BYTES).contains(&request.bytes) && request.bytes % ALIGNED_BYTES == 0;
    if !sound || !(1..=IN_FLIGHT_MAX).contains(&request.in_flight) {
        return Err("a size or a number of requests that cannot be asked for".to_owned());
    }
    let file = File::options().read(true).write(request.writes).custom_flags(libc::O_DIRECT).open(&request.path);
    let file = Arc::new(file.map_err(what)?);
    // A block device has no size in its metadata.
    let size = rustix::fs::seek(&*file, rustix::fs::SeekFrom::End(0)).map_err(|error| what(error.into()))?;
    let places = size / request.bytes;
    if places == 0 {
        return Err(format!("{}: smaller than a request", request.path.display()));
    }
    let (begin_ns, next) = (now_ns(), Arc::new(AtomicU64::new(0)));
    let until_ns = begin_ns.saturating_add(request.duration_ns);
    let threads: Vec<_> = (0..request.in_flight)
        .map(|number| {
            let (file, next) = (Arc::clone(&file), Arc::clone(&next));
            let (writes, is_random, bytes, seed) = (request.writes, request.random, request.bytes, request.seed);
            thread::spawn(move || -> Result<Histogram<u64>, String> {
                let mut times = new_times()?;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let length = usize::try_from(bytes).map_err(|error| error.to_string())?;
                let mut memory = Mapping::new(length, libc::PROT_READ | libc::PROT_WRITE, flags, None)
                    .map_err(|failure| failure.message)?;
                let mut random = Random::new(&[seed, number]);
                loop {
                    let start_ns = now_ns();
                    if start_ns >= until_ns {
                        return Ok(times);
                    }
                    let place = if is_random {
                        random.next_u64() % places
                    } else {
                        next.fetch_add(1, Ordering::Relaxed) % places
                    };
                    let page = memory.bytes_mut();
                    let done = if writes {
                        file.write_all_at(page, place * bytes)
                    } else {
                        file.read_exact_at(page, place * bytes)
                    };
                    done.map_err(|error| error.to_string())?;
                    times.saturating_record(now_ns() - start_ns);
                }
            })
        })
        .collect();
    let mut times = new_times()?;
    for thread in threads {
        let of_one = thread.join().map_err(|_| "a thread has ended in a defect".to_owned())??;
        times.add(of_one).map_err(|error| error.to_string())?;
    }
    let elapsed_ns = now_ns() - begin_ns;
    println!(
        "{}",
        json!({
            "requests": times.len(),
            "elapsed_ns": elapsed_ns,
            "mean_ns": times.mean(),
            "least_ns": times.min(),
            "median_ns": times.value_at_quantile(0.5),
        })
    );
    Ok(())
}

/// From a microsecond to an hour.
fn new_times() -> Result<Histogram<u64>, String> {
    Histogram::new_with_bounds(1_000, 3_600_000_000_000, 3).map_err(|error| error.to_string())
}
