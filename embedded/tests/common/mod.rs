//! What the tests share: the engines that are there, a server on one of them, and a client that speaks the wire byte by byte.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};

/// An engine whose library is there.
#[derive(Clone)]
pub struct Setup {
    pub engine: &'static str,
    pub arguments: Vec<String>,
}

/// The engines that the environment names; of the others it says that they are left out.
pub fn setups() -> Vec<Setup> {
    let setups: Vec<Setup> = [duckdb(), monetdb()].into_iter().flatten().collect();
    if setups.is_empty() {
        println!("skipped: no engine's library is known");
    }
    setups
}

pub fn duckdb() -> Option<Setup> {
    let Some(library) = std::env::var_os("DBTOLL_DUCKDB") else {
        println!("DuckDB is left out: DBTOLL_DUCKDB names no library");
        return None;
    };
    let preload = std::env::var("DBTOLL_DUCKDB_PRELOAD").unwrap_or_default();
    let mut arguments = vec!["--engine".to_owned(), "duckdb".to_owned()];
    for path in preload.split(':').filter(|path| !path.is_empty()) {
        arguments.extend(["--preload".to_owned(), path.to_owned()]);
    }
    arguments.extend(["--library".to_owned(), library.to_string_lossy().into_owned()]);
    Some(Setup { engine: "duckdb", arguments })
}

pub fn monetdb() -> Option<Setup> {
    let Some(folder) = std::env::var_os("DBTOLL_MONETDB").map(PathBuf::from) else {
        println!("MonetDB is left out: DBTOLL_MONETDB names no folder");
        return None;
    };
    let file = |prefix: &str| {
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut found = entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix));
        found.next().unwrap_or_else(|| panic!("no {prefix}… in {}", folder.display())).to_string_lossy().into_owned()
    };
    let mut arguments = vec!["--engine".to_owned(), "monetdb".to_owned()];
    for prefix in ["libpcre", "libstream", "libbat", "libmapi", "libmonetdb5", "libmonetdbsql"] {
        arguments.extend(["--preload".to_owned(), file(prefix)]);
    }
    arguments.extend(["--library".to_owned(), file("libmonetdbe-")]);
    Some(Setup { engine: "monetdb", arguments })
}

impl Setup {
    pub fn is_duckdb(&self) -> bool {
        self.engine == "duckdb"
    }

    /// Of two texts the one for this engine.
    pub fn either<'a>(&self, duckdb: &'a str, monetdb: &'a str) -> &'a str {
        if self.is_duckdb() { duckdb } else { monetdb }
    }

    /// It takes long where `big` is big.
    pub const LONG_QUERY: &'static str = "select count(*) from big a, big b, big c where a.x + b.x + c.x = -1";
}

/// A folder that is removed.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("dbtoll-embedded-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn database(&self) -> PathBuf {
        self.0.join("database")
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join(".s.PGSQL.5432")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn command(setup: &Setup, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dbtoll-embedded"));
    command.args(&setup.arguments).args(more);
    command
}

/// Runs to the end, for what ends by itself.
pub fn run(setup: &Setup, more: &[&str]) -> Output {
    command(setup, more).output().unwrap()
}

/// A server that is ended, by force if a test fails.
pub struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    pub fn start(setup: &Setup, folder: &Folder, settings: &[&str]) -> Self {
        let (database, socket) = (folder.database(), folder.socket());
        let mut command =
            command(setup, &["--database", database.to_str().unwrap(), "--unix", socket.to_str().unwrap()]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(&socket).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "the server ended at once");
            assert!(Instant::now() < deadline, "the server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, socket }
    }

    /// How many sockets it has open. That of a client that went away is closed when its last statement has ended.
    pub fn sockets(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.process())).unwrap();
        let ends = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        ends.filter(|end| end.to_string_lossy().starts_with("socket:")).count()
    }

    pub fn process(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn client(&self) -> Client {
        let mut config = Config::new();
        config.host_path(self.socket.parent().unwrap()).user("u").dbname("d");
        config.connect(NoTls).unwrap()
    }

    pub fn raw(&self) -> Raw {
        Raw::open(&self.socket)
    }

    pub fn bare(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }

    /// Asks it, on another connection, to stop what the session with that key does.
    pub fn cancel(&self, key: [u8; 8]) {
        let mut stream = self.bare();
        stream.write_all(&[&b"\0\0\0\x10\x04\xd2\x16\x2e"[..], &key].concat()).unwrap();
        // The server closes when it has done what it can.
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }

    pub fn signal(&self, number: i32) {
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.process(), number) }, 0);
    }

    /// Sends SIGTERM and waits. What it wrote to its standard output must be nothing.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.wait()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let mut output = String::new();
                self.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
                assert_eq!(output, "");
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came up to ReadyForQuery.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Names and types of the last description.
    pub columns: Vec<(String, u32)>,
    pub rows: Vec<Vec<Option<String>>>,
    pub completed: Vec<String>,
    /// States of errors.
    pub errors: Vec<String>,
    pub messages: Vec<String>,
    /// Every message's tag.
    pub tags: String,
    pub status: char,
}

impl Answer {
    /// Values of all rows, NULL as `~`.
    pub fn values(&self) -> Vec<String> {
        let values = self.rows.iter().flatten();
        values.map(|value| value.clone().unwrap_or_else(|| "~".to_owned())).collect()
    }
}

/// A client that sends and reads messages.
pub struct Raw {
    pub stream: UnixStream,
    /// Process and secret key.
    pub key: [u8; 8],
    pub parameters: Vec<(String, String)>,
    out: Vec<u8>,
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).unwrap()
}

fn int(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes[..4].try_into().unwrap())
}

impl Raw {
    pub fn open(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
        stream.write_all(b"\0\0\0\x08\x04\xd2\x16\x2f").unwrap();
        let mut refusal = [0];
        stream.read_exact(&mut refusal).unwrap();
        assert_eq!(&refusal, b"N");
        stream.write_all(b"\0\0\0\x10\0\x03\0\0user\0u\0\0").unwrap();
        let mut raw = Self { stream, key: [0; 8], parameters: Vec::new(), out: Vec::new() };
        loop {
            let (tag, body) = raw.message();
            match tag {
                b'S' => {
                    let name = text(&body);
                    let value = text(&body[name.len() + 1..]);
                    raw.parameters.push((name, value));
                }
                b'K' => raw.key = body.try_into().unwrap(),
                b'Z' => return raw,
                b'E' => panic!("{}", String::from_utf8_lossy(&body)),
                _ => {}
            }
        }
    }

    pub fn message(&mut self) -> (u8, Vec<u8>) {
        self.try_message().expect("the server closed the connection")
    }

    pub fn try_message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).ok()?;
        let mut body = vec![0; usize::try_from(int(&head[1..])).unwrap() - 4];
        self.stream.read_exact(&mut body).ok()?;
        Some((head[0], body))
    }

    /// Keeps a message until `send`.
    pub fn add(&mut self, tag: u8, body: &[u8]) -> &mut Self {
        self.out.push(tag);
        self.out.extend(i32::try_from(body.len() + 4).unwrap().to_be_bytes());
        self.out.extend(body);
        self
    }

    pub fn parse(&mut self, name: &str, sql: &str, types: &[u32]) -> &mut Self {
        let mut body = format!("{name}\0{sql}\0").into_bytes();
        body.extend(u16::try_from(types.len()).unwrap().to_be_bytes());
        body.extend(types.iter().flat_map(|kind| kind.to_be_bytes()));
        self.add(b'P', &body)
    }

    /// Binds to the unnamed portal: integers in binary form, the rest as text.
    pub fn bind(&mut self, name: &str, values: &[Bound<'_>]) -> &mut Self {
        let mut body = format!("\0{name}\0").into_bytes();
        let count = u16::try_from(values.len()).unwrap().to_be_bytes();
        body.extend(count);
        body.extend(values.iter().flat_map(|value| u16::from(matches!(value, Bound::Int(_))).to_be_bytes()));
        body.extend(count);
        for value in values {
            let bytes = match value {
                Bound::Int(value) => Some(value.to_be_bytes().to_vec()),
                Bound::Text(value) => Some(value.as_bytes().to_vec()),
                Bound::Null => None,
            };
            body.extend(bytes.as_ref().map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap()).to_be_bytes());
            body.extend(bytes.unwrap_or_default());
        }
        body.extend([0, 0]);
        self.add(b'B', &body)
    }

    pub fn execute(&mut self) -> &mut Self {
        self.add(b'E', b"\0\0\0\0\0")
    }

    pub fn sync(&mut self) -> Answer {
        self.add(b'S', b"").send();
        self.answer()
    }

    pub fn send(&mut self) {
        let out = std::mem::take(&mut self.out);
        self.stream.write_all(&out).unwrap();
    }

    pub fn ask(&mut self, sql: &str) {
        self.add(b'Q', format!("{sql}\0").as_bytes()).send();
    }

    /// Runs SQL in the simple protocol.
    pub fn query(&mut self, sql: &str) -> Answer {
        self.ask(sql);
        self.answer()
    }

    /// As `query`, of what must succeed.
    pub fn run(&mut self, sql: &str) -> Answer {
        let answer = self.query(sql);
        assert!(answer.errors.is_empty(), "{sql}: {:?}", answer.messages);
        answer
    }

    pub fn answer(&mut self) -> Answer {
        let mut answer = Answer::default();
        loop {
            let (tag, body) = self.message();
            answer.tags.push(char::from(tag));
            match tag {
                b'T' => answer.columns = columns(&body),
                b'D' => answer.rows.push(row(&body)),
                b'C' => answer.completed.push(text(&body)),
                b'E' => {
                    for field in body.split(|byte| *byte == 0).filter(|field| !field.is_empty()) {
                        match field[0] {
                            b'C' => answer.errors.push(text(&field[1..])),
                            b'M' => answer.messages.push(text(&field[1..])),
                            _ => {}
                        }
                    }
                }
                b'Z' => {
                    answer.status = char::from(body[0]);
                    return answer;
                }
                b'G' => return answer,
                _ => {}
            }
        }
    }
}

pub enum Bound<'a> {
    Int(i32),
    Text(&'a str),
    Null,
}

fn columns(body: &[u8]) -> Vec<(String, u32)> {
    let mut rest = &body[2..];
    let mut columns = Vec::new();
    while !rest.is_empty() {
        let name = text(rest);
        let fixed = &rest[name.len() + 1..];
        columns.push((name, u32::from_be_bytes(fixed[6..10].try_into().unwrap())));
        rest = &fixed[18..];
    }
    columns
}

fn row(body: &[u8]) -> Vec<Option<String>> {
    let mut rest = &body[2..];
    let mut values = Vec::new();
    while !rest.is_empty() {
        let length = int(rest);
        rest = &rest[4..];
        if let Ok(length) = usize::try_from(length) {
            values.push(Some(String::from_utf8(rest[..length].to_vec()).unwrap()));
            rest = &rest[length..];
        } else {
            values.push(None);
        }
    }
    values
}

/// Waits until `found` gives something.
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}
