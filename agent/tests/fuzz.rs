//! Hostile bytes: the decoder and the whole connection must end with an error or go on, never panic, never hang.

use std::io::{self, Read};

use dbtoll_agent::connection::{Ended, serve};
use dbtoll_agent::failure::Code;
use dbtoll_agent::proto::frame::ReadError;
use dbtoll_agent::proto::{Decoded, FrameReader, Header, Kind, MAX_PAYLOAD_BYTES};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

type Owned = (Kind, u16, u32, Vec<u8>);

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![Kind::Hello, Kind::Open, Kind::Data, Kind::Credit, Kind::End, Kind::Error])
}

/// Frames that the codec must accept.
fn proper_frame() -> impl Strategy<Value = Owned> {
    let payload = prop_oneof![4 => vec(any::<u8>(), 1..200), 1 => vec(any::<u8>(), 60_000..70_000)];
    (kind(), 0..=2_u16, 1..=u32::MAX, payload).prop_map(|(kind, channel, stream, mut payload)| {
        if kind == Kind::Credit {
            payload.resize(4, 7);
        }
        let channel = if kind == Kind::Data { channel } else { 0 };
        (kind, channel, if kind == Kind::Hello { 0 } else { stream }, payload)
    })
}

fn encode(frames: &[Owned]) -> Vec<u8> {
    let numbered = frames.iter().zip(0..);
    let bytes = numbered.flat_map(|((kind, channel, stream, payload), sequence)| {
        let header = Header { kind: *kind, channel: *channel, stream: *stream, sequence }.encode(payload);
        [&header[..], payload].concat()
    });
    bytes.collect()
}

/// Hands out its bytes in pieces of the given sizes, over and over.
struct Pieces<'a> {
    bytes: &'a [u8],
    sizes: Vec<usize>,
    turn: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.turn += 1;
        let size = self.sizes[self.turn % self.sizes.len()].min(buffer.len()).min(self.bytes.len());
        let (now, later) = self.bytes.split_at(size);
        buffer[..size].copy_from_slice(now);
        self.bytes = later;
        Ok(size)
    }
}

fn decode(source: impl Read, is_first_special: bool) -> (Vec<Owned>, Result<(), Code>) {
    let mut reader = FrameReader::new(source);
    let mut frames = Vec::new();
    loop {
        let is_first = is_first_special && frames.is_empty();
        match if is_first { reader.first_frame() } else { reader.next_frame() } {
            Ok(Decoded::Frame(frame)) => frames.push((frame.kind, frame.channel, frame.stream, frame.payload.to_vec())),
            Ok(Decoded::EndOfFile) => return (frames, Ok(())),
            Err(ReadError::Violation(violation)) => return (frames, Err(violation.code)),
            Err(ReadError::Io(error)) => panic!("{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn frames_survive_any_fragmentation(frames in vec(proper_frame(), 0..8), sizes in vec(1..100_000_usize, 1..5)) {
        let bytes = encode(&frames);
        let source = Pieces { bytes: &bytes, sizes, turn: 0 };
        prop_assert_eq!(decode(source, false), (frames, Ok(())));
    }

    #[test]
    fn any_changed_byte_is_noticed(
        frames in vec(proper_frame(), 1..6), at in any::<prop::sample::Index>(), change in 1..=255_u8, first in any::<bool>(),
    ) {
        let mut bytes = encode(&frames);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let (decoded, end) = decode(bytes.as_slice(), first);
        prop_assert!(end.is_err());
        prop_assert!(decoded.len() < frames.len() && frames.starts_with(&decoded));
    }

    #[test]
    fn any_lost_or_doubled_piece_is_noticed(
        frames in vec(proper_frame(), 2..6), from in any::<prop::sample::Index>(), length in 1..300_usize, twice in any::<bool>(),
    ) {
        let bytes = encode(&frames);
        let from = from.index(bytes.len());
        let to = (from + length).min(bytes.len());
        let piece: &[u8] = if twice { &bytes[from..to] } else { &[] };
        let middle = if twice { &bytes[from..to] } else { &[] };
        let changed = [&bytes[..from], middle, piece, &bytes[to..]].concat();
        // A piece that is lost from the end up to a frame's border is a shorter stream, not a broken one.
        let (decoded, end) = decode(changed.as_slice(), false);
        prop_assert!(frames.starts_with(&decoded));
        prop_assert!(end.is_err() || encode(&decoded) == changed);
    }

    #[test]
    fn truncation_yields_a_prefix(frames in vec(proper_frame(), 1..5), at in any::<prop::sample::Index>()) {
        let bytes = encode(&frames);
        let cut = &bytes[..at.index(bytes.len())];
        let (decoded, end) = decode(cut, false);
        prop_assert!(frames.starts_with(&decoded));
        prop_assert_eq!(end.is_ok(), encode(&decoded).len() == cut.len());
    }

    #[test]
    fn garbage_never_panics(bytes in vec(any::<u8>(), 0..2000), first in any::<bool>()) {
        let (_, end) = decode(bytes.as_slice(), first);
        prop_assert!(end.is_err() || bytes.is_empty());
    }

    #[test]
    fn garbage_after_sync_letters_never_panics(
        version in 0..3_u8, head in vec(any::<u8>(), 0..40), length in prop::option::of(0..400_000_u32), first in any::<bool>(),
    ) {
        let mut bytes = [b"dbtl".to_vec(), vec![version], head].concat();
        if let (Some(length), true) = (length, bytes.len() >= 20) {
            bytes[16..20].copy_from_slice(&length.to_le_bytes());
        }
        bytes.resize(bytes.len() + 3000, b'd');
        let (frames, _) = decode(bytes.as_slice(), first);
        prop_assert!(frames.is_empty());
    }
}

/// Payloads that mostly mean something: JSON of the right shape with the wrong things in it. Nothing that starts a
/// program or changes a file is named.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let method = prop::sample::select(vec!["ping", "get", "list", "counters", "signal", "connect", "nope", ""]);
    let params = prop::sample::select(vec![
        json!({}),
        json!([]),
        json!({"path": "/etc/hostname"}),
        json!({"path": "/"}),
        json!({"path": "relative"}),
        json!({"path": "/etc/hostname", "max_bytes": -1}),
        json!({"pids": [0, 1, 4_294_967_295_u32]}),
        json!({"tree_of": 1}),
        json!({"pid": 1, "signal": 9}),
        json!({"unix": "/nowhere", "tcp": ["", 0]}),
        json!({"unix": "\u{0}"}),
    ]);
    let open = (method, params).prop_map(|(method, params)| json!({"method": method, "params": params}).to_string());
    prop_oneof![
        4 => open.prop_map(String::into_bytes),
        1 => Just(b"{}".to_vec()),
        1 => Just(b"{\"code\":\"cancelled\",\"message\":\"\"}".to_vec()),
        1 => Just(vec![b'['; 5000]),
        1 => vec(any::<u8>(), 0..50),
        1 => prop::sample::select(vec![0_u32, 1, 1 << 30, u32::MAX]).prop_map(|credit| credit.to_le_bytes().to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn connections_end_whatever_comes(frames in vec((kind(), 0..3_u16, 0..5_u32, payload()), 0..30)) {
        let hello = json!({"magic": "dbtoll", "role": "controller", "protocol": 1, "build": "", "architecture": "", "pid": 0,
            "max_payload_bytes": 4096, "max_streams": 1, "window_bytes": 4096});
        let mut all = vec![(Kind::Hello, 0, 0, hello.to_string().into_bytes())];
        // Streams in order, so that not every case ends at the first OPEN.
        let mut opened = 0;
        all.extend(frames.into_iter().map(|(kind, channel, stream, payload)| {
            opened += u32::from(kind == Kind::Open);
            let channel = if kind == Kind::Data { channel } else { 0 };
            (kind, channel, if kind == Kind::Open { opened } else { stream }, payload)
        }));
        let output = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let ended = serve(encode(&all).as_slice(), output.into(), 4096, None);
        prop_assert!(!matches!(ended, Ended::Io(_)), "{:?}", ended);
    }
}

/// Counts the memory that a decoder asks for.
#[test]
fn a_length_takes_no_memory() {
    struct Watched<'a>(&'a [u8], usize);
    impl Read for Watched<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            // The reader offers all the room that it has.
            self.1 = self.1.max(buffer.len());
            let count = self.0.len().min(buffer.len()).min(10);
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }
    let mut bytes = encode(&[(Kind::Open, 0, 1, b"{}".to_vec())]);
    bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut source = Watched(&bytes, 0);
    let (_, end) = decode(&mut source, false);
    assert_eq!(end, Err(Code::Protocol));
    assert!(source.1 <= MAX_PAYLOAD_BYTES, "{} bytes of buffer", source.1);
}
