//! Serial lines and virtio ports.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::termios::{OptionalActions, isatty, tcgetattr, tcsetattr};

use crate::failure::Failure;

/// Opens a device for bytes as they are: no echo, no translation, 8 bit.
pub fn open(path: &str) -> Result<OwnedFd, Failure> {
    // Non-blocking only for the opening: some lines wait for a carrier.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Failure::io(format!("open {path}"), e))?;
    rustix::io::ioctl_fionbio(&device, false).map_err(|error| Failure::io("ioctl", error))?;
    if isatty(&device) {
        let mut settings = tcgetattr(&device).map_err(|error| Failure::io("tcgetattr", error))?;
        settings.make_raw();
        tcsetattr(&device, OptionalActions::Now, &settings).map_err(|error| Failure::io("tcsetattr", error))?;
    }
    Ok(device)
}

/// What may be on its way to a terminal that nobody has read from yet: half of the kernel's buffer for it (`N_TTY_BUF_SIZE`).
const TERMINAL_BYTES: u32 = 2048;

/// What the line holds: little where it is a terminal.
#[must_use]
pub fn line_bytes(device: &impl AsFd) -> Option<u32> {
    isatty(device).then_some(TERMINAL_BYTES)
}

/// A port whose other side may not be open yet: end of file counts only once something has been read.
pub struct PatientReader {
    file: File,
    has_read: bool,
}

impl PatientReader {
    #[must_use]
    pub fn new(file: File) -> Self {
        Self { file, has_read: false }
    }
}

impl Read for PatientReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.file.read(buffer)?;
            self.has_read |= count > 0;
            if self.has_read {
                return Ok(count);
            }
            // A virtio port has no event for "the host has opened it" that a reader could wait for.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
