//! The golden frames of protocol/vectors, which the controller's tests read too.

mod common;

use std::io::{Read, Write};
use std::process::Child;
use std::sync::Mutex;

use common::{Controller, Received, spawn, wait_for};
use dbtoll_agent::connection::{Ended, serve};
use dbtoll_agent::failure::Code;
use dbtoll_agent::proto::frame::ReadError;
use dbtoll_agent::proto::{Decoded, FrameReader, Header, Kind};
use serde_json::Value;

fn vectors(file: &str) -> Vec<Value> {
    let path = format!("{}/../protocol/vectors/{file}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes(value: &Value) -> Vec<u8> {
    let hex = value.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn is_for_agent(vector: &Value) -> bool {
    vector["context"]["receiver"] != "controller"
}

/// All frames up to the end or the first violation.
fn decode(bytes: &[u8]) -> (Vec<Received>, Result<(), Code>) {
    let mut reader = FrameReader::new(bytes);
    let mut frames = Vec::new();
    loop {
        let next = if frames.is_empty() { reader.first_frame() } else { reader.next_frame() };
        match next {
            Ok(Decoded::Frame(frame)) => {
                let payload = frame.payload.to_vec();
                frames.push(Received { kind: frame.kind, channel: frame.channel, stream: frame.stream, payload });
            }
            Ok(Decoded::EndOfFile) => return (frames, Ok(())),
            Err(ReadError::Violation(violation)) => return (frames, Err(violation.code)),
            Err(ReadError::Io(error)) => panic!("{error}"),
        }
    }
}

#[test]
fn valid_frames_are_decoded_and_encoded_again() {
    for vector in vectors("valid") {
        let input = bytes(&vector["hex"]);
        let (frames, end) = decode(&input);
        assert_eq!(end, Ok(()), "{}", vector["name"]);
        let expected = vector["frames"].as_array().unwrap();
        assert_eq!(frames.len(), expected.len(), "{}", vector["name"]);
        let mut encoded = input[..usize::try_from(vector["skipped_bytes"].as_u64().unwrap()).unwrap()].to_vec();
        for (sequence, (frame, expected)) in frames.iter().zip(expected).enumerate() {
            assert_eq!(format!("{:?}", frame.kind).to_uppercase(), expected["kind"].as_str().unwrap());
            assert_eq!(u64::from(frame.channel), expected["channel"]);
            assert_eq!(u64::from(frame.stream), expected["stream"]);
            assert_eq!(frame.payload, bytes(&expected["payload_hex"]));
            if !expected["json"].is_null() {
                assert_eq!(frame.json(), expected["json"]);
            }
            let header = Header {
                kind: frame.kind,
                channel: frame.channel,
                stream: frame.stream,
                sequence: u32::try_from(sequence).unwrap(),
            };
            encoded.extend(header.encode(&frame.payload));
            encoded.extend(&frame.payload);
        }
        assert_eq!(encoded, input, "{}", vector["name"]);
    }
}

#[test]
fn codec_refuses_what_it_alone_can_and_no_more() {
    for vector in vectors("invalid") {
        let (frames, end) = decode(&bytes(&vector["hex"]));
        let good = usize::try_from(vector["good_frames"].as_u64().unwrap()).unwrap();
        if vector["context"].is_null() {
            let code: Code = serde_json::from_value(vector["error"].clone()).unwrap();
            assert_eq!((frames.len(), end), (good, Err(code)), "{}", vector["name"]);
        } else {
            assert_eq!((frames.len(), end), (good + 1, Ok(())), "{}", vector["name"]);
        }
    }
}

/// Feeds a real agent and returns the code of its ERROR on stream 0, its exit code and its standard error.
fn feed(input: &[u8]) -> (Option<String>, Option<i32>, String) {
    let mut agent: Child = spawn(&["serve"]);
    // A refused connection may be closed before all is written.
    let _ = agent.stdin.take().unwrap().write_all(input);
    let mut output = Vec::new();
    agent.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    let mut message = String::new();
    agent.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    let (frames, end) = decode(&output);
    assert_eq!(end, Ok(()));
    let error = frames.iter().find(|frame| frame.kind == Kind::Error && frame.stream == 0);
    let code = error.map(|frame| frame.json()["code"].as_str().unwrap().to_owned());
    (code, wait_for(&mut agent).code(), message)
}

#[test]
fn agent_accepts_the_valid() {
    for vector in vectors("valid").iter().filter(|vector| is_for_agent(vector)) {
        assert_eq!(feed(&bytes(&vector["hex"])), (None, Some(0), String::new()), "{}", vector["name"]);
    }
}

#[test]
fn agent_refuses_the_invalid_with_one_line() {
    for vector in vectors("invalid").iter().filter(|vector| is_for_agent(vector)) {
        let input = bytes(&vector["hex"]);
        let expected = vector["error"].as_str().unwrap();
        if let Some(window) = vector["context"]["window_bytes"].as_u64() {
            let output = rustix::pipe::pipe().unwrap();
            let ended = serve(input.as_slice(), output.1, u32::try_from(window).unwrap(), None);
            assert!(matches!(ended, Ended::Violation(v) if v.code == Code::Protocol), "{}", vector["name"]);
            continue;
        }
        let (code, exit, message) = feed(&input);
        assert_eq!((code.as_deref(), exit), (Some(expected), Some(1)), "{}: {message}", vector["name"]);
        assert_eq!(message.lines().count(), 1, "{}: {message}", vector["name"]);
    }
}

#[test]
fn a_version_refusal_names_both() {
    let vector = vectors("invalid").into_iter().find(|vector| vector["name"] == "other version first").unwrap();
    let (_, _, message) = feed(&bytes(&vector["hex"]));
    assert!(message.contains("version 2") && message.contains('1'), "{message}");
}

#[test]
fn boot_messages_reach_no_stream() {
    // The harness itself begins with HELLO; here a login prompt goes before it, as on a serial line.
    struct Noisy<W>(W, Mutex<bool>);
    impl<W: Write> Write for Noisy<W> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if !std::mem::replace(&mut *self.1.lock().unwrap(), true) {
                self.0.write_all(b"Debian GNU/Linux 13 arm ttyS1\r\n\r\narm login: dbtl")?;
            }
            self.0.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            self.0.flush()
        }
    }
    let mut agent = spawn(&["serve"]);
    let (input, output) = (agent.stdout.take().unwrap(), agent.stdin.take().unwrap());
    let mut controller = Controller::new(input, Noisy(output, Mutex::default()));
    assert!(controller.call("ping", &serde_json::json!({}), b"").result["at_ns"].as_u64() > Some(0));
    drop(controller);
    assert!(wait_for(&mut agent).success());
}
