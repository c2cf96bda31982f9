//! Bytes to sockets, devices and agents within agents.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use common::{AGENT, Agent, Controller, Scratch, spawn, wait_for, wait_until};
use dbtoll_agent::proto::Kind;
use serde_json::{Value, json};

/// One exchange with a server that upper-cases until end of file, then says goodbye and closes.
fn exchange(agent: &mut Agent, target: &Value) {
    let answer = agent.call("connect", target, b"hello");
    assert_eq!((answer.error.as_deref(), answer.output.as_slice()), (None, &b"HELLO bye"[..]), "{:?}", answer.result);
    assert_eq!(answer.result, json!({}));
}

fn serve_one(mut stream: impl Read + Write) {
    let mut input = Vec::new();
    stream.read_to_end(&mut input).unwrap();
    input.make_ascii_uppercase();
    stream.write_all(&[&input, &b" bye"[..]].concat()).unwrap();
}

#[test]
fn sockets() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("sockets");
    let path = scratch.path("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || serve_one(listener.accept().unwrap().0));
    exchange(&mut agent, &json!({"unix": path}));
    server.join().unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        serve_one(listener.accept().unwrap().0);
        serve_one(listener.accept().unwrap().0);
    });
    exchange(&mut agent, &json!({"tcp": ["127.0.0.1", port]}));
    exchange(&mut agent, &json!({"tcp": ["localhost", port]}));
    server.join().unwrap();

    let failures = [
        (json!({"unix": scratch.path("absent")}), "not_found"),
        (json!({"unix": path}), "io"),
        (json!({"unix": "/".repeat(200)}), "bad_request"),
        (json!({"tcp": ["127.0.0.1", port]}), "io"),
        (json!({"tcp": ["no.such.host", 1]}), "not_found"),
        (json!({"tcp": ["127.0.0.1", 65_536]}), "bad_request"),
        (json!({"device": scratch.path("absent")}), "not_found"),
        (json!({}), "bad_request"),
        (json!({"unix": path, "tcp": ["127.0.0.1", port]}), "bad_request"),
    ];
    for (target, code) in failures {
        assert_eq!(agent.call("connect", &target, b"").error.as_deref(), Some(code), "{target}");
    }
}

#[test]
fn a_full_listener_is_a_timeout() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("full");
    let path = scratch.path("socket");
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(path.as_str()).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let answer = agent.call("connect", &json!({"unix": path, "timeout_ms": 50}), b"");
    assert_eq!(answer.error.as_deref(), Some("timeout"));
}

#[test]
fn a_cancelled_connection_is_closed() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("cancelled");
    let path = scratch.path("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let stream = agent.controller().sender.open("connect", &json!({"unix": path}));
    let (mut server, _) = listener.accept().unwrap();
    agent.controller().sender.cancel(stream);
    assert_eq!(agent.controller().answer(stream).error.as_deref(), Some("cancelled"));
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn stamps_tell_when_bytes_passed() {
    let mut agent = Agent::start();
    let controller = agent.controller();
    let stream = controller.sender.open("run", &json!({"argv": ["cat"], "stamps": true}));
    controller.next_of(stream);
    for round in 1..=3_u64 {
        let before = controller.call("ping", &json!({}), b"").result["at_ns"].as_u64().unwrap();
        controller.sender.data(stream, b"12345");
        let [written, read, data] = [(); 3].map(|()| controller.next_of(stream));
        let after = controller.call("ping", &json!({}), b"").result["at_ns"].as_u64().unwrap();
        assert_eq!(
            (written.json()["written_bytes"].as_u64(), read.json()["read_bytes"].as_u64()),
            (Some(5 * round), Some(5 * round))
        );
        assert_eq!((data.channel, data.payload.as_slice()), (0, &b"12345"[..]));
        let stamps = [before, written.json()["at_ns"].as_u64().unwrap(), read.json()["at_ns"].as_u64().unwrap(), after];
        assert!(stamps.is_sorted(), "{stamps:?}");
    }
    controller.sender.end(stream);
    assert_eq!(controller.answer(stream).result["exit_code"], 0);
}

#[test]
fn stamped_bulk_keeps_count_within_the_window() {
    let mut agent = Agent::start();
    let params = json!({"argv": ["sh", "-c", "head -c 5000000 /dev/zero"], "stamps": true});
    let answer = agent.call("run", &params, b"");
    assert_eq!(answer.output.len(), 5_000_000);
    assert_eq!(answer.control.last().unwrap()["read_bytes"], 5_000_000);
}

#[test]
fn devices_are_opened_raw() {
    let mut agent = Agent::start();
    let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::CLOEXEC).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let path = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let controller = agent.controller();
    let stream = controller.sender.open("connect", &json!({"device": path}));
    // Bytes that a terminal would translate, echo or take for commands.
    let awkward = b"a\r\nb\x03\x04\x11\x13\x1a\x7f\xff\x00c";
    controller.sender.data(stream, awkward);
    let mut line = std::fs::File::from(master);
    let mut seen = [0; 13];
    line.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, awkward);
    line.write_all(b"x\r\ny\xfe\x03").unwrap();
    let mut back = Vec::new();
    while back.len() < 6 {
        back.extend(controller.next_of(stream).payload);
    }
    assert_eq!(back, b"x\r\ny\xfe\x03");
    controller.sender.end(stream);
    drop(line);
    assert_eq!(controller.answer(stream).error, None, "hanging up is the end of file");
}

#[test]
fn a_whole_agent_over_a_terminal_line() {
    let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::CLOEXEC).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let path = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    // Held open so that the line does not hang up before the agent has opened it.
    let slave = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut agent = spawn(&["serve", "--device", &path]);
    wait_until("raw mode", || {
        let settings = rustix::termios::tcgetattr(&slave).unwrap();
        (!settings.local_modes.contains(rustix::termios::LocalModes::ECHO)).then_some(())
    });
    let line = std::fs::File::from(master);
    let mut controller = Controller::new(line.try_clone().unwrap(), line);
    assert_eq!(controller.hello["line_bytes"], 2048);
    let content = vec![0x0a; 50_000];
    assert_eq!(controller.call("run", &json!({"argv": ["wc", "-c"]}), &content).output, b"50000\n");
    // Up to half of the line may have been taken and not yet granted.
    assert!(controller.line_credit + 1024 > 50_000, "what was taken from the line is granted anew");
    drop((controller, slave));
    // The line hangs up: a broken connection at worst, but the end in any case.
    wait_for(&mut agent);
}

/// The inner agent's bytes as a byte stream to the outer agent's `run`: reading and writing on threads of their own.
struct Nested {
    incoming: mpsc::Receiver<Vec<u8>>,
    rest: Vec<u8>,
}

impl Read for Nested {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = self.incoming.recv().unwrap_or_default();
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

struct ToOuter(mpsc::Sender<Vec<u8>>);

impl Write for ToOuter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.send(bytes.to_vec()).unwrap();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn agents_within_agents() {
    let mut outer = spawn(&["serve"]);
    let mut controller = Controller::new(outer.stdout.take().unwrap(), outer.stdin.take().unwrap());
    let params = json!({"argv": [AGENT, "serve"], "stamps": true, "stop_signal": 15});
    let stream = controller.sender.open("run", &params);
    let (sender, mut incoming) = controller.split();
    let sender = Arc::new(Mutex::new(sender));

    let (to_inner, from_outer) = mpsc::channel();
    let (to_outer, from_inner) = mpsc::channel::<Vec<u8>>();
    let (stamps_out, stamps) = mpsc::channel::<Value>();
    // One thread per direction, as in a real controller.
    let writing = Arc::clone(&sender);
    let writer = std::thread::spawn(move || {
        for bytes in from_inner {
            bytes.chunks(262_144).for_each(|part| writing.lock().unwrap().data(stream, part));
        }
        writing.lock().unwrap().end(stream);
    });
    let reader = std::thread::spawn(move || {
        loop {
            let frame = incoming.next().unwrap();
            match (frame.kind, frame.channel) {
                (Kind::Data, channel) => {
                    sender.lock().unwrap().credit(stream, frame.payload.len());
                    match channel {
                        // The inner controller may be gone already.
                        0 => drop(to_inner.send(frame.payload)),
                        2 => drop(stamps_out.send(frame.json())),
                        _ => panic!("{}", String::from_utf8_lossy(&frame.payload)),
                    }
                }
                (Kind::End, _) => return frame.json(),
                (Kind::Credit, _) => {}
                _ => panic!("{frame:?}"),
            }
        }
    });

    let mut inner = Controller::new(Nested { incoming: from_outer, rest: Vec::new() }, ToOuter(to_outer));
    // The inner agent's clock is the same here, so the outer's stamps must bracket its own.
    let at_ns = inner.call("ping", &json!({}), b"").result["at_ns"].as_u64().unwrap();
    let seen: Vec<Value> = stamps.try_iter().collect();
    assert!(seen.iter().any(|s| s["written_bytes"].is_u64() && s["at_ns"].as_u64().unwrap() <= at_ns), "{seen:?}");
    assert!(seen.iter().any(|s| s["read_bytes"].is_u64() && s["at_ns"].as_u64().unwrap() >= at_ns), "{seen:?}");
    let answer = inner.call("run", &json!({"argv": ["wc", "-c"]}), &vec![b'z'; 900_000]);
    assert_eq!(answer.output, b"900000\n");
    let bulk = inner.call("run", &json!({"argv": ["head", "-c", "20000000", "/dev/zero"]}), b"");
    assert_eq!(bulk.output.len(), 20_000_000);
    drop(inner);
    assert_eq!(reader.join().unwrap()["exit_code"], 0, "the inner agent ends cleanly at its end of input");
    writer.join().unwrap();
    assert!(wait_for(&mut outer).success());
}

#[test]
fn one_or_many_connections_on_a_socket() {
    let scratch = Scratch::new("listen");
    let path = scratch.path("agent");
    let connect = || {
        let stream = wait_until("the socket", || UnixStream::connect(&path).ok());
        Controller::new(stream.try_clone().unwrap(), stream)
    };
    let mut once = spawn(&["serve", "--unix", &path]);
    let mut controller = connect();
    assert!(controller.call("ping", &json!({}), b"").error.is_none());
    assert!(UnixStream::connect(&path).is_err(), "one connection only");
    drop(controller);
    assert!(wait_for(&mut once).success());

    // A leftover socket of an agent that was killed is in nobody's way.
    drop(UnixListener::bind(&path).unwrap());
    let mut many = spawn(&["serve", "--unix", &path, "--keep"]);
    let (mut first, mut second) = (connect(), connect());
    let stream = first.sender.open("run", &json!({"argv": ["sleep", "91"]}));
    let pid = first.next_of(stream).json()["pid"].as_i64().unwrap();
    assert!(second.call("ping", &json!({}), b"").error.is_none());
    drop(first);
    wait_until("the program's end", || (!common::is_alive(pid)).then_some(()));
    assert!(second.call("ping", &json!({}), b"").error.is_none(), "the other connection goes on");
    let start = Instant::now();
    rustix::process::kill_process(rustix::process::Pid::from_child(&many), rustix::process::Signal::TERM).unwrap();
    assert!(wait_for(&mut many).success() && start.elapsed() < Duration::from_secs(2));
}
