//! What each fuzz target does with the bytes that it is given. Also compiled into the agent's tests (tests/corpus.rs), which go over the
//! corpus without a fuzzer; so nothing here may need one.
//!
//! Every target's first byte says what the others are.

pub mod servers;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use dbtoll_agent::connection::{Ended, serve as serve_connection};
use dbtoll_agent::proto::{Decoded, Frame, FrameReader, HEADER_BYTES, Kind, MAX_PAYLOAD_BYTES};
use serde_json::{Value, json};

pub use servers::{mysql, postgres};

/// Methods that a stranger may call here: those that start nothing, change no file and end soon.
const HARMLESS: [&str; 5] = ["connect", "get", "list", "ping", "signal"];
/// The least that a controller may say it takes, so that the agent has to keep within it.
const LEAST_PAYLOAD_BYTES: usize = 4096;
/// Of a payload: the agent must refuse what is longer than [`MAX_PAYLOAD_BYTES`].
const LONGEST_BYTES: usize = MAX_PAYLOAD_BYTES + 1000;

/// A connection to the agent. First byte, lowest bit: the rest is the connection as it is; otherwise a list of frames, each
/// of kind, flags, stream, length (two bytes) and payload, which get their numbers and checksums here. Next bit: no HELLO goes before them.
pub fn serve(data: &[u8]) {
    let Some((&mode, rest)) = data.split_first() else { return };
    let input = if mode & 1 != 0 { rest.to_vec() } else { frames(rest, mode & 2 == 0) };
    if !is_harmless(&input) {
        return;
    }
    let mut output = memory();
    let own = OwnedFd::from(output.try_clone().expect("a descriptor more"));
    let ended = serve_connection(input.as_slice(), own, 4096, None);
    output.seek(SeekFrom::Start(0)).expect("memory has positions");
    check_answers(&output, &ended);
}

fn memory() -> File {
    let file = rustix::fs::memfd_create("answers", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    File::from(file)
}

/// Whatever came, the agent answers in whole frames that its controller takes, and says why it hangs up.
fn check_answers(output: &File, ended: &Ended) {
    let mut reader = FrameReader::new(output);
    let mut last = None;
    loop {
        match reader.next_frame() {
            Ok(Decoded::EndOfFile) => break,
            Ok(Decoded::Frame(Frame { kind, stream, payload, .. })) => {
                assert!(payload.len() <= LEAST_PAYLOAD_BYTES, "{kind:?} of {} bytes", payload.len());
                let value = serde_json::from_slice::<Value>(payload).unwrap_or_default();
                assert!(kind != Kind::Error || value["code"] != "internal", "{value}");
                last = Some((kind, stream));
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(!matches!(ended, Ended::Violation(_)) || last == Some((Kind::Error, 0)), "{ended:?} after {last:?}");
}

fn frames(mut rest: &[u8], greets: bool) -> Vec<u8> {
    let mut writer = Writer::default();
    if greets {
        writer.greet();
    }
    while let Some((&[kind, flags, stream, low, high], after)) = rest.split_first_chunk() {
        let (payload, after) = after.split_at(usize::from(u16::from_le_bytes([low, high])).min(after.len()));
        rest = after;
        let stream = if stream == u8::MAX { u32::MAX } else { u32::from(stream) };
        writer.sequence = writer.sequence.wrapping_add(u32::from(flags & 4 != 0));
        writer.push(kind, u16::from(flags & 3), stream, &stretched(payload, flags));
    }
    writer.bytes
}

/// With the next bits of the flags, the byte in the middle so often that all is as long as a frame may be, or a little
/// shorter or longer.
fn stretched(payload: &[u8], flags: u8) -> Vec<u8> {
    if flags & 8 == 0 || payload.is_empty() {
        return payload.to_vec();
    }
    let length = LONGEST_BYTES - 500 * usize::from(flags >> 4);
    let (before, after) = payload.split_at(payload.len() / 2);
    let more = length.saturating_sub(payload.len());
    [before, &vec![after[0]; more], after].concat()
}

/// The controller's side, which can also write what is not allowed.
#[derive(Default)]
pub struct Writer {
    pub bytes: Vec<u8>,
    sequence: u32,
}

impl Writer {
    pub fn greet(&mut self) {
        let hello = json!({"magic": "dbtoll", "role": "controller", "protocol": 1, "build": "", "architecture": "", "pid": 0,
            "max_payload_bytes": LEAST_PAYLOAD_BYTES, "max_streams": 1, "window_bytes": 4096});
        self.push(Kind::Hello as u8, 0, 0, hello.to_string().as_bytes());
    }

    pub fn push(&mut self, kind: u8, channel: u16, stream: u32, payload: &[u8]) {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend(b"dbtl\x01");
        header.push(kind);
        header.extend(channel.to_le_bytes());
        for number in [stream, self.sequence, u32::try_from(payload.len()).unwrap_or(u32::MAX)] {
            header.extend(number.to_le_bytes());
        }
        let mut sum = crc32fast::Hasher::new();
        sum.update(&header);
        sum.update(payload);
        header.extend(sum.finalize().to_le_bytes());
        self.bytes.write_all(&header).and_then(|()| self.bytes.write_all(payload)).expect("memory");
        self.sequence = self.sequence.wrapping_add(1);
    }
}

/// Whether no OPEN in it calls for anything but [`HARMLESS`] methods.
fn is_harmless(input: &[u8]) -> bool {
    let mut reader = FrameReader::new(input);
    let mut is_first = true;
    loop {
        match if std::mem::take(&mut is_first) { reader.first_frame() } else { reader.next_frame() } {
            Ok(Decoded::Frame(frame)) if frame.kind == Kind::Open => {
                let open = serde_json::from_slice::<Value>(frame.payload).unwrap_or_default();
                let method = open["method"].as_str().unwrap_or_default();
                if dbtoll_agent::method::lookup(method).is_some() && !HARMLESS.contains(&method) {
                    return false;
                }
            }
            Ok(Decoded::Frame(_)) => {}
            Ok(Decoded::EndOfFile) | Err(_) => return true,
        }
    }
}

/// What kernels and images write, by the first byte to one of its readers.
pub fn texts(data: &[u8]) {
    if let Some((&reader, text)) = data.split_first() {
        dbtoll_agent::texts::read(reader, text);
    }
}
