//! JSON objects, one per line, over a stream's main channel.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clock::{now_ns, sleep_until};
use crate::failure::{Code, Failure};
use crate::stream::StreamHandle;

pub const MAX_LINE_BYTES: usize = 64 << 20;

/// What may be said to a driver that is held.
#[derive(Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
enum HeldCommand {
    /// What its clock shows, once more.
    Tell {},
    /// It begins so long after this was read, or where its own clock is known when that shows `at_ns`, whichever is later.
    Go {
        #[serde(default)]
        in_ns: u64,
        #[serde(default)]
        at_ns: u64,
    },
}

/// Far more than it takes to tell it all others.
const MAX_IN_NS: u64 = 10_000_000_000;

/// `told_ns`: when a driver that was held was told to go; `begin_ns`: when it was to begin, which has come.
#[derive(Clone, Copy)]
pub struct Gone {
    pub told_ns: u64,
    pub begin_ns: u64,
}

/// A stream that is read and written line by line.
pub struct Lines {
    stream: StreamHandle,
    received: Vec<u8>,
    /// How much of `received` is known to hold no end of line.
    searched: usize,
}

impl Lines {
    #[must_use]
    pub fn new(stream: StreamHandle) -> Self {
        Self { stream, received: Vec::new(), searched: 0 }
    }

    /// The next line without its end; `None` at the end of input. A last line may lack its end.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(offset) = self.received[self.searched..].iter().position(|&byte| byte == b'\n') {
                let rest = self.received.split_off(self.searched + offset + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.received.len();
            if self.searched > MAX_LINE_BYTES {
                let text = format!("a command line of more than {MAX_LINE_BYTES} bytes");
                return Err(Failure::new(Code::TooLarge, text));
            }
            match self.stream.read()? {
                Some(bytes) => self.received.extend(bytes),
                None if self.received.is_empty() => return Ok(None),
                None => self.received.push(b'\n'),
            }
        }
    }

    /// Says that everything is ready, as often as it is asked, and waits for `go` and until it is time, by this agent's clock.
    /// `None` at the end of input: nobody wants it any more.
    pub fn hold(&mut self) -> Result<Option<Gone>, Failure> {
        let (told_ns, begin_ns) = loop {
            self.send(&json!({"held": true, "at_ns": now_ns()}), || Value::Null)?;
            let Some(line) = self.next_line()? else { return Ok(None) };
            let told_ns = now_ns();
            let asked: HeldCommand = serde_json::from_slice(&line)
                .map_err(|error| Failure::bad_request(format!("what is held waits for the command \"go\": {error}")))?;
            if let HeldCommand::Go { in_ns, at_ns } = asked {
                break (told_ns, told_ns.saturating_add(in_ns).max(at_ns));
            }
        };
        if begin_ns - told_ns > MAX_IN_NS {
            return Err(Failure::bad_request(format!("to go in {} ns; at most {MAX_IN_NS}", begin_ns - told_ns)));
        }
        sleep_until(begin_ns)?;
        Ok(Some(Gone { told_ns, begin_ns }))
    }

    /// Sends one object, unless its line would be longer than the other side takes: then `too_long`.
    pub fn send(&self, reply: &impl Serialize, too_long: impl FnOnce() -> Value) -> Result<(), Failure> {
        let internal = |error: serde_json::Error| Failure::new(Code::Internal, format!("a reply: {error}"));
        let mut line = serde_json::to_vec(reply).map_err(internal)?;
        if line.len() >= MAX_LINE_BYTES {
            line = serde_json::to_vec(&too_long()).map_err(internal)?;
        }
        line.push(b'\n');
        self.stream.write(0, &line)
    }
}
