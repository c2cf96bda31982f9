//! What an agent needs on a host that its controller reaches over a network: it ends also when the network has gone without a
//! word, and leaves nothing of what was copied there for it.

use std::fs::File;
use std::io::{self, Read};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Code;
use crate::method::files;

static OWN: OnceLock<String> = OnceLock::new();

/// `folder` goes with the agent.
pub fn own(folder: &str) {
    let _ = OWN.set(folder.to_owned());
}

/// Removes it, once all that was started has ended. What cannot be removed the controller's journal knows of.
pub fn leave() {
    if let Some(folder) = OWN.get() {
        match files::remove_own(folder) {
            Err(failure) if failure.code != Code::NotFound => eprintln!("dbtoll-agent: {folder} is left: {failure}"),
            _ => {}
        }
    }
}

/// Standard input that ends when nothing has come for so long. A line that is cut without a word looks like one on which nothing
/// is said: the kernel's own look at it comes after two hours (tcp(7), `tcp_keepalive_time`).
pub struct Heard {
    input: File,
    silence: Timespec,
}

impl Heard {
    #[must_use]
    pub fn new(input: File, silence: Duration) -> Self {
        let tv_sec = i64::try_from(silence.as_secs()).unwrap_or(i64::MAX);
        Self { input, silence: Timespec { tv_sec, tv_nsec: 0 } }
    }
}

impl Read for Heard {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut waited = [PollFd::new(&self.input, PollFlags::IN)];
        match poll(&mut waited, Some(&self.silence)) {
            Ok(0) => Ok(0),
            Ok(_) => self.input.read(buffer),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_an_end() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut heard = Heard::new(File::from(reader), Duration::from_secs(1));
        rustix::io::write(&writer, b"word").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(heard.read(&mut buffer).unwrap(), 4);
        assert_eq!(heard.read(&mut buffer).unwrap(), 0, "nothing came, and the writer is still there");
    }
}
