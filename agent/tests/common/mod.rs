//! A small controller that drives the real binary.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use dbtoll_agent::proto::{Decoded, FrameReader, Header, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

pub const AGENT: &str = env!("CARGO_BIN_EXE_dbtoll-agent");
pub const WINDOW: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub struct Received {
    pub kind: Kind,
    pub channel: u16,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Received {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.payload).unwrap()
    }
}

/// Writes frames; the other half of a [`Controller`].
pub struct Sender<W> {
    output: W,
    sequence: u32,
    last_stream: u32,
}

impl<W: Write> Sender<W> {
    pub fn new(output: W) -> Self {
        Self { output, sequence: 0, last_stream: 0 }
    }

    pub fn into_output(self) -> W {
        self.output
    }

    pub fn send(&mut self, kind: Kind, channel: u16, stream: u32, payload: &[u8]) {
        let header = Header { kind, channel, stream, sequence: self.sequence }.encode(payload);
        self.sequence += 1;
        self.output.write_all(&[&header, payload].concat()).unwrap();
        self.output.flush().unwrap();
    }

    pub fn hello(&mut self) {
        let hello = json!({"magic": "dbtoll", "role": "controller", "protocol": 1, "build": "test", "architecture": "any",
            "pid": 1, "max_payload_bytes": 262_144, "max_streams": 256, "window_bytes": WINDOW});
        self.send(Kind::Hello, 0, 0, hello.to_string().as_bytes());
    }

    pub fn open(&mut self, method: &str, params: &Value) -> u32 {
        self.last_stream += 1;
        let open = json!({"method": method, "params": params});
        self.send(Kind::Open, 0, self.last_stream, open.to_string().as_bytes());
        self.last_stream
    }

    pub fn data(&mut self, stream: u32, bytes: &[u8]) {
        self.send(Kind::Data, 0, stream, bytes);
    }

    pub fn end(&mut self, stream: u32) {
        self.send(Kind::End, 0, stream, b"{}");
    }

    pub fn credit(&mut self, stream: u32, bytes: usize) {
        self.send(Kind::Credit, 0, stream, &u32::try_from(bytes).unwrap().to_le_bytes());
    }

    pub fn cancel(&mut self, stream: u32) {
        let cancelled = json!({"code": "cancelled", "message": "enough", "detail": {}});
        self.send(Kind::Error, 0, stream, cancelled.to_string().as_bytes());
    }
}

/// Reads frames; the other half of a [`Controller`].
pub struct Incoming<R>(FrameReader<R>);

impl<R: Read> Incoming<R> {
    /// The next frame from the agent; `None` at the end.
    pub fn next(&mut self) -> Option<Received> {
        received(self.0.next_frame().expect("valid frames"))
    }

    /// The first one, after what may stand before it on a line.
    fn first(&mut self) -> Option<Received> {
        received(self.0.first_frame().expect("a valid frame"))
    }
}

fn received(decoded: Decoded<'_>) -> Option<Received> {
    match decoded {
        Decoded::Frame(frame) => Some(Received {
            kind: frame.kind,
            channel: frame.channel,
            stream: frame.stream,
            payload: frame.payload.to_vec(),
        }),
        Decoded::EndOfFile => None,
    }
}

/// A connection to an agent over any pair of byte streams.
pub struct Controller<R, W> {
    pub sender: Sender<W>,
    pub hello: Value,
    /// Granted for the line so far.
    pub line_credit: u64,
    incoming: Incoming<R>,
    kept: HashMap<u32, Vec<Received>>,
}

/// What a stream brought from its opening to its end.
#[derive(Debug, Default)]
pub struct Answer {
    pub output: Vec<u8>,
    pub error_output: Vec<u8>,
    pub control: Vec<Value>,
    pub result: Value,
    /// The code of the ERROR, if it was one.
    pub error: Option<String>,
}

impl<R: Read, W: Write> Controller<R, W> {
    pub fn new(input: R, output: W) -> Self {
        let incoming = Incoming(FrameReader::new(input));
        let sender = Sender::new(output);
        let mut controller = Self { sender, hello: Value::Null, line_credit: 0, incoming, kept: HashMap::new() };
        controller.sender.hello();
        let hello = controller.incoming.first().expect("an answer to HELLO");
        controller.hello = hello.json();
        assert_eq!((hello.kind, controller.hello["role"].as_str()), (Kind::Hello, Some("agent")));
        controller
    }

    pub fn next(&mut self) -> Option<Received> {
        self.incoming.next()
    }

    /// For a thread per direction.
    pub fn split(self) -> (Sender<W>, Incoming<R>) {
        (self.sender, self.incoming)
    }

    /// The next frame of one stream; those of others are kept for later. Gives credit back at once.
    pub fn next_of(&mut self, stream: u32) -> Received {
        if let Some(frames) = self.kept.get_mut(&stream).filter(|frames| !frames.is_empty()) {
            return frames.remove(0);
        }
        loop {
            let frame = self.next().expect("the agent ended the connection");
            if (frame.kind, frame.stream) == (Kind::Credit, 0) {
                let granted: [u8; 4] = frame.payload.try_into().unwrap();
                self.line_credit += u64::from(u32::from_le_bytes(granted));
                continue;
            }
            assert_ne!(frame.stream, 0, "{frame:?}");
            if frame.kind == Kind::Data {
                self.sender.credit(frame.stream, frame.payload.len());
            }
            if frame.stream == stream {
                return frame;
            }
            self.kept.entry(frame.stream).or_default().push(frame);
        }
    }

    pub fn answer(&mut self, stream: u32) -> Answer {
        let mut answer = Answer::default();
        loop {
            let frame = self.next_of(stream);
            match (frame.kind, frame.channel) {
                (Kind::Data, 0) => answer.output.extend(frame.payload),
                (Kind::Data, 1) => answer.error_output.extend(frame.payload),
                (Kind::Data, _) => answer.control.push(frame.json()),
                (Kind::End, _) => {
                    answer.result = frame.json();
                    return answer;
                }
                (Kind::Error, _) => {
                    answer.result = frame.json();
                    answer.error = answer.result["code"].as_str().map(str::to_owned);
                    return answer;
                }
                _ => {}
            }
        }
    }

    /// A whole call: `input` (at most one window), END, answer.
    pub fn call(&mut self, method: &str, params: &Value, input: &[u8]) -> Answer {
        let stream = self.sender.open(method, params);
        for part in input.chunks(262_144) {
            self.sender.data(stream, part);
        }
        self.sender.end(stream);
        self.answer(stream)
    }
}

/// What an agent says; a test that waits for more than comes fails, and does not hang.
pub struct Patient(ChildStdout);

const PATIENCE: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ready = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&PATIENCE))?;
        assert!(ready > 0, "the agent says nothing for {} s", PATIENCE.tv_sec);
        self.0.read(buffer)
    }
}

pub struct Agent {
    pub controller: Option<Controller<Patient, ChildStdin>>,
    pub process: Child,
}

impl Agent {
    pub fn start() -> Self {
        let mut process = spawn(&["serve"]);
        let (input, output) = (process.stdout.take().unwrap(), process.stdin.take().unwrap());
        Self { controller: Some(Controller::new(Patient(input), output)), process }
    }

    pub fn controller(&mut self) -> &mut Controller<Patient, ChildStdin> {
        self.controller.as_mut().unwrap()
    }

    pub fn call(&mut self, method: &str, params: &Value, input: &[u8]) -> Answer {
        self.controller().call(method, params, input)
    }

    /// Closes the connection and waits for the agent's end.
    pub fn finish(mut self) -> ExitStatus {
        self.controller = None;
        wait_for(&mut self.process)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.controller = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn spawn(arguments: &[&str]) -> Child {
    let mut command = Command::new(AGENT);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

pub fn wait_for(process: &mut Child) -> ExitStatus {
    wait_until("the agent's end", || process.try_wait().unwrap())
}

pub fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_alive(pid: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// A folder of its own for each test, removed at its end.
pub struct Scratch(pub std::path::PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dbtoll-agent-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `dbtoll-agent null-server` as a process of its own.
pub struct NullServer {
    pub process: Child,
    pub scratch: Scratch,
}

impl NullServer {
    pub fn start(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let process = spawn(&["null-server", "--unix", &scratch.path("socket")]);
        wait_until("the null server", || std::os::unix::net::UnixStream::connect(scratch.path("socket")).ok());
        Self { process, scratch }
    }

    pub fn address(&self) -> Value {
        json!({"unix": self.scratch.path("socket")})
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What goes in, one JSON object per line.
pub fn lines(commands: &[Value]) -> Vec<u8> {
    commands.iter().flat_map(|command| (command.to_string() + "\n").into_bytes()).collect()
}

pub fn replies(output: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
