//! Attacks: the corpus of the fuzz targets (agent/fuzz) with some mutants of each input, the same in every run, and what was found by
//! looking.

mod common;
#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, reason = "the fuzz targets use all of it")]
mod targets;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use common::{spawn, wait_for};
use dbtoll_agent::connection::{Ended, serve};
use dbtoll_agent::driver::session;
use dbtoll_agent::proto::{Decoded, FrameReader, Kind, MAX_PAYLOAD_BYTES};
use dbtoll_agent::random::Random;
use dbtoll_agent::wire::Dialect;
use dbtoll_agent::wire::blocking::{AnswerBuffer, Connection, Interrupter, Trouble};
use serde_json::{Value, json};
use targets::Writer;
use targets::servers::{Server, login, welcome_to_mysql};

const MUTANTS_OF_EACH: u64 = 10;

/// Every input of a target's corpus, and changes of it.
fn go_over(target: &str, attack: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let inputs: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(inputs.len() > 10, "{} inputs in {}", inputs.len(), folder.display());
    for (input, path) in inputs.iter().zip(&paths) {
        let of_path = |what: String| println!("{}: {what}", path.display());
        of_path("as it is".into());
        attack(input);
        for seed in 0..MUTANTS_OF_EACH {
            of_path(format!("mutant {seed}"));
            attack(&mutant(input, &inputs, seed));
        }
    }
}

/// A few changes: bytes, numbers, pieces left out, doubled or taken from another input.
fn mutant(input: &[u8], others: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = Random::new(&[seed, input.len() as u64, u64::from(crc32fast::hash(input))]);
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(3) {
        let length = u32::try_from(bytes.len()).unwrap();
        let at = random.below(length + 1) as usize;
        let end = at + random.below(length + 1 - u32::try_from(at).unwrap()) as usize;
        match random.below(5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xfb, 0xfe, 0xff][random.below(7) as usize],
            2 => drop(bytes.drain(at..end)),
            3 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
            _ => {
                let other = &others[random.below(u32::try_from(others.len()).unwrap()) as usize];
                let from = random.below(u32::try_from(other.len()).unwrap() + 1) as usize;
                bytes.splice(at..end, other[from..].iter().copied().take(64));
            }
        }
    }
    bytes
}

#[test]
fn serve_survives_its_corpus() {
    go_over("serve", targets::serve);
}

#[test]
fn the_driver_survives_hostile_postgresql_servers() {
    go_over("postgres", targets::postgres);
}

#[test]
fn the_driver_survives_hostile_mysql_servers() {
    go_over("mysql", targets::mysql);
}

#[test]
fn readers_of_texts_survive_their_corpus() {
    go_over("texts", targets::texts);
}

/// Gives a real agent HELLO and one frame more: its last frame, and what it prints.
fn last_words(kind: Kind, stream: u32, payload: &[u8]) -> (Kind, Value, String) {
    let mut input = Writer::default();
    input.greet();
    input.push(kind as u8, 0, stream, payload);
    let mut agent = spawn(&["serve"]);
    let _ = agent.stdin.take().unwrap().write_all(&input.bytes);
    let (mut output, mut printed) = (Vec::new(), String::new());
    agent.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    agent.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(wait_for(&mut agent).code(), Some(1), "{printed}");
    let mut reader = FrameReader::new(output.as_slice());
    let mut last = None;
    while let Ok(Decoded::Frame(frame)) = reader.next_frame() {
        assert!(frame.payload.len() <= 4096);
        last = Some((frame.kind, serde_json::from_slice(frame.payload).unwrap()));
    }
    let (kind, value) = last.unwrap();
    (kind, value, printed)
}

#[test]
fn last_words_fit_their_frame_whatever_they_quote() {
    // As long as a frame may be, so that the quotation is longer.
    let filled = |before: &str, letter: &str, after: &str| {
        let count = (MAX_PAYLOAD_BYTES - before.len() - after.len()) / letter.len();
        [before, &letter.repeat(count), after].concat()
    };
    for letter in ["a", "\\u0001", "\\n", "ä"] {
        let malformed = [
            (Kind::Open, 1, filled(r#"{"method": "ping", "params": {}, ""#, letter, r#"": 1}"#)),
            (Kind::Open, 1, filled(r#"{"method": ""#, letter, r#""}"#)),
            (Kind::Open, 1, filled(r#"{"params": ""#, letter, r#""}"#)),
            (Kind::Error, 0, filled(r#"{"message": "", "code": ""#, letter, r#""}"#)),
        ];
        for (kind, stream, payload) in malformed {
            let (told, value, printed) = last_words(kind, stream, payload.as_bytes());
            assert_eq!((told, &value["code"]), (Kind::Error, &json!("protocol")), "{kind:?} {letter}");
            assert!(printed.lines().count() == 1 && printed.len() < 8000, "{printed}");
        }
        // Well-formed: the controller's own words, which the agent prints.
        let goodbye = filled(r#"{"code": "protocol", "message": ""#, letter, r#""}"#);
        let (told, _, printed) = last_words(Kind::Error, 0, goodbye.as_bytes());
        assert_eq!(told, Kind::Hello);
        assert!(printed.lines().count() == 1 && printed.len() < 8000 && !printed.contains('\u{1}'), "{printed}");
    }
}

#[test]
fn payloads_of_every_size_are_taken_or_refused() {
    const LEAST: &[u8] = br#"{"method":"ping","params":{}}"#;
    let powers = (5..=18).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]);
    for size in powers.chain([LEAST.len(), MAX_PAYLOAD_BYTES + 100_000, 1 << 20]) {
        // Blanks are allowed in JSON.
        let payload = [&vec![b' '; size - LEAST.len()], LEAST].concat();
        let mut input = Writer::default();
        input.greet();
        input.push(Kind::Open as u8, 0, 1, &payload);
        let (answers, output) = rustix::pipe::pipe().unwrap();
        let ended = serve(input.bytes.as_slice(), output, 4096, None);
        let mut reader = FrameReader::new(fs::File::from(answers));
        let Ok(Decoded::Frame(_hello)) = reader.next_frame() else { panic!("no HELLO") };
        let Ok(Decoded::Frame(answer)) = reader.next_frame() else { panic!("no answer to {size} bytes") };
        let expected = if size > MAX_PAYLOAD_BYTES { (Kind::Error, 0) } else { (Kind::End, 1) };
        assert_eq!((answer.kind, answer.stream), expected, "{size} bytes: {ended:?}");
        assert_eq!(matches!(ended, Ended::Violation(_)), size > MAX_PAYLOAD_BYTES, "{size} bytes: {ended:?}");
    }
}

fn open(server: &Server) -> Result<Connection, Trouble> {
    Connection::open(
        &server.address,
        &login(),
        Some(Duration::from_secs(60)),
        &Interrupter::default(),
        AnswerBuffer::default(),
    )
}

#[test]
fn a_server_that_is_never_ready_is_given_up() {
    // ParameterStatus again and again.
    let (server, _turn) = Server::says(b"S\0\0\0\x08a\0b\0".repeat(200_000));
    let Err(Trouble::Lost(text)) = open(server) else { panic!("it has been heard to the end") };
    assert!(text.contains("without being ready"), "{text}");
}

fn packet(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes()[..3], b"\0", body].concat()
}

#[test]
fn nulls_without_bytes_do_not_fill_the_memory() {
    const COLUMNS: usize = 4096;
    let mut speech = Vec::new();
    welcome_to_mysql(&mut speech, &[]);
    speech.extend(packet(&[0xfc, 0x00, 0x10]));
    let column = packet(&[&[0; 6][..], &[0x0c], &[0; 6], &[253, 0, 0, 0, 0, 0]].concat());
    speech.extend(column.repeat(COLUMNS));
    // In the text form a null has one byte.
    speech.extend(packet(&[0xfb; COLUMNS]).repeat(5000));
    let (server, _turn) = Server::says(speech);
    let mut session = session::open(Dialect::Mysql, server.address.clone(), login(), Interrupter::default());
    let Ok(Err(error)) = session.query("select") else { panic!("twenty million nulls were kept") };
    assert!(error.message.contains("values"), "{error:?}");
}

#[test]
fn a_statement_longer_than_a_packet_is_refused() {
    let mut speech = Vec::new();
    welcome_to_mysql(&mut speech, &[]);
    let (server, _turn) = Server::says(speech);
    let mut session = session::open(Dialect::Mysql, server.address.clone(), login(), Interrupter::default());
    let refused = session.query(&"x".repeat(0xff_ffff)).err().unwrap();
    assert!(refused.message.contains("at most"), "{refused}");
}
