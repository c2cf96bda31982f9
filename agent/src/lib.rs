//! `dbtoll-agent`: runs, relays and times inside every machine that dbtoll measures. docs/PROTOCOL.md is its contract.

pub mod address;
pub mod children;
pub mod clock;
pub mod collect;
pub mod connection;
pub mod device;
pub mod disk;
pub mod driver;
pub mod elsewhere;
pub mod failure;
pub mod guest;
pub mod hypervisor;
pub mod launch;
pub mod loading;
pub mod method;
pub mod neighbour;
pub mod oltp;
pub mod probe;
pub mod proto;
pub mod random;
mod relay;
pub mod stream;
pub mod talk;
#[doc(hidden)]
pub mod texts;
pub mod tpch;
pub mod uml;
mod users;
pub mod wire;
mod workers;

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks also after another holder panicked: what our mutexes guard is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file of an image that should be small, as text. It may be anything: a pipe that nobody writes to, a link to an endless device, and
/// bytes that are no UTF-8.
pub(crate) fn small_text(path: &str) -> io::Result<String> {
    const MAX_BYTES: u64 = 16 << 20;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut bytes = Vec::new();
    if file.take(MAX_BYTES + 1).read_to_end(&mut bytes)? as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_texts_are_files_and_small() {
        let folder = std::env::temp_dir().join(format!("dbtoll-small-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        std::fs::write(path("text"), b"a\xffb").unwrap();
        std::fs::File::create(path("long")).unwrap().set_len((16 << 20) + 1).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("endless")).unwrap();
        let found = ["text", "long", "pipe", "endless", "none"].map(|name| small_text(&path(name)).ok());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [Some("a\u{fffd}b".to_owned()), None, None, None, None]);
    }
}
