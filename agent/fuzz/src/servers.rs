//! A server that says what it likes, whatever it is asked.

use std::cell::RefCell;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use dbtoll_agent::address::Address;
use dbtoll_agent::driver::answer::{Comparison, Expected};
use dbtoll_agent::driver::session;
use dbtoll_agent::driver::{QueryProtocol, Statement};
use dbtoll_agent::oltp::terminal::{Committing, Stop, Work};
use dbtoll_agent::oltp::workload::Own;
use dbtoll_agent::oltp::{tatp, tpcc};
use dbtoll_agent::talk::alone::Alone;
use dbtoll_agent::talk::mysql::{Mysql, Times};
use dbtoll_agent::talk::statement;
use dbtoll_agent::talk::{Connection, Interaction, Target};
use dbtoll_agent::wire::Dialect;
use dbtoll_agent::wire::blocking::{self, AnswerBuffer, Interrupter, Trouble};
use dbtoll_agent::wire::postgres::Login;

/// What socket buffers hold in any case.
const AT_ONCE_BYTES: usize = 64 * 1024;
/// Transactions of each kind of workload that are tried with one input.
const TRANSACTIONS: usize = 30;

/// Says the same to every client.
pub struct Server {
    pub address: Address,
    speech: Arc<Mutex<Vec<u8>>>,
    /// Clients of this input; closed with the next one, for what is closed with unread requests resets its connection.
    clients: Arc<Mutex<Vec<UnixStream>>>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let path = socket_path();
    let _ = std::fs::remove_file(&path);
    // SAFETY: the function lives as long as the process; it is called once, when the process ends.
    unsafe { libc::atexit(remove_socket) };
    let listener = UnixListener::bind(&path).expect("a socket in the directory for temporary files");
    let server = Server {
        address: Address::Unix(path.to_string_lossy().into_owned()),
        speech: Arc::default(),
        clients: Arc::default(),
    };
    let (speech, clients) = (Arc::clone(&server.speech), Arc::clone(&server.clients));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let speech = speech.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let Ok(writer) = client.try_clone() else { continue };
            clients.lock().unwrap_or_else(PoisonError::into_inner).push(client);
            if speech.len() > AT_ONCE_BYTES {
                thread::spawn(move || say(&writer, &speech));
            } else {
                say(&writer, &speech);
            }
        }
    });
    server
});

fn socket_path() -> PathBuf {
    std::env::temp_dir().join(format!("dbtoll-fuzz-{}", std::process::id()))
}

extern "C" fn remove_socket() {
    let _ = std::fs::remove_file(socket_path());
}

fn say(mut client: &UnixStream, speech: &[u8]) {
    let _ = client.write_all(speech);
    let _ = client.shutdown(Shutdown::Write);
}

/// There is one server, which says one thing at a time.
static TURN: Mutex<()> = Mutex::new(());

impl Server {
    /// Every client hears this and then the end, until the guard is dropped.
    pub fn says(speech: Vec<u8>) -> (&'static Self, MutexGuard<'static, ()>) {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        SERVER.clients.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *SERVER.speech.lock().unwrap_or_else(PoisonError::into_inner) = speech;
        (&SERVER, turn)
    }
}

pub fn login() -> Login {
    Login { user: "u".into(), password: Some("p".into()), database: "d".into(), options: Vec::new() }
}

/// First byte: bits 0 to 2 say what the server is asked for, 3 and 4 in which interaction, the highest one that it lets the client in.
pub fn postgres(data: &[u8]) {
    const WELCOME: &[u8] = b"R\0\0\0\x08\0\0\0\0K\0\0\0\x0c\0\0\0\x07\0\0\0\x08Z\0\0\0\x05I";
    let Some((&asked, rest)) = data.split_first() else { return };
    let speech = if asked & 0x80 != 0 { [WELCOME, rest].concat() } else { rest.to_vec() };
    let (server, _turn) = Server::says(speech);
    match asked & 7 {
        4 => copy(server),
        5 => oltp(server, Dialect::Postgres, asked, &tpcc_statements(asked, Dialect::Postgres)),
        6 => oltp(server, Dialect::Postgres, asked, &tatp::transactions::statements(true)),
        _ => ask(server, Dialect::Postgres, asked),
    }
}

/// As `postgres`.
pub fn mysql(data: &[u8]) {
    let Some((&asked, rest)) = data.split_first() else { return };
    let statements = match asked & 7 {
        5 => tpcc_statements(asked, Dialect::Mysql),
        6 => tatp::transactions::statements(true),
        _ => Vec::new(),
    };
    let mut speech = Vec::new();
    if asked & 0x80 != 0 {
        welcome_to_mysql(&mut speech, &statements);
    }
    speech.extend_from_slice(rest);
    let (server, _turn) = Server::says(speech);
    match asked & 7 {
        4 => load(server),
        5 | 6 => oltp(server, Dialect::Mysql, asked, &statements),
        _ => ask(server, Dialect::Mysql, asked),
    }
}

/// A greeting, the leave to come in, and an answer to each request to prepare.
pub fn welcome_to_mysql(speech: &mut Vec<u8>, statements: &[statement::Statement]) {
    let mut packet = |body: &[u8]| {
        speech.extend_from_slice(&u32::try_from(body.len()).unwrap_or(0).to_le_bytes()[..3]);
        speech.push(0);
        speech.extend_from_slice(body);
    };
    packet(&[&b"\x0a10.11.6\0\x07\0\0\0abcdefgh\0"[..], &[0; 18], &b"ijklmnopqrst\0"[..]].concat());
    packet(b"\0\0\0\x02\0\0\0");
    for statement in statements {
        let parameters = u8::try_from(statement.parameters.len()).unwrap_or(0);
        packet(&[0, 1, 0, 0, 0, 0, 0, parameters, 0, 0, 0, 0]);
        (0..parameters).for_each(|_| packet(b"\x03def"));
    }
}

/// Statements through a session, as the serial driver has them.
fn ask(server: &Server, dialect: Dialect, asked: u8) {
    let mut session = session::open(dialect, server.address.clone(), login(), Interrupter::default());
    if asked & 7 == 7 {
        let _ = session.connect();
        let _ = session.query("select 1");
    } else {
        let query_protocol = match asked & 3 {
            1 if dialect == Dialect::Postgres => QueryProtocol::Extended,
            2 if dialect == Dialect::Postgres => QueryProtocol::Prepared,
            _ => QueryProtocol::Simple,
        };
        let statement = Statement {
            query_protocol,
            parameters: if query_protocol == QueryProtocol::Simple { Vec::new() } else { vec![None, Some("x".into())] },
            keep_rows: true,
            expected: Some(Arc::new(Expected {
                columns: vec![Comparison::Numeric, Comparison::Trimmed],
                relative_tolerance: 1e-9,
                absolute_tolerance: 1e-12,
                rows: vec![vec![Some("1.5".into()), Some("a".into())], vec![None, Some("b".into())]],
            })),
            ..Statement::simple("q1", "select a, b from t".into())
        };
        let _ = if asked & 3 == 3 { session.execute_alone(&statement) } else { session.execute(&statement) };
        let _ = session.execute(&statement);
    }
    session.disconnect();
}

fn copy(server: &Server) {
    let opened =
        blocking::Connection::open(&server.address, &login(), None, &Interrupter::default(), AnswerBuffer::default());
    let Ok(mut connection) = opened else { return };
    let _ = connection.begin_copy("copy t from stdin").and_then(|()| connection.copy(b"d\0\0\0\x05x"));
    let _ = connection.finish_copy();
    let _ = connection.run("commit");
    drop(connection.close());
}

fn tpcc_statements(asked: u8, dialect: Dialect) -> Vec<statement::Statement> {
    tpcc::transactions::statements(interaction(asked), dialect)
}

fn interaction(asked: u8) -> Interaction {
    match asked >> 3 & 3 {
        0 => Interaction::Statement,
        1 | 2 => Interaction::Pipelined,
        _ => Interaction::Procedure,
    }
}

fn target(server: &Server, dialect: Dialect, interaction: Interaction) -> Target {
    let (session, statements) = (Vec::new(), Vec::new());
    Target { address: server.address.clone(), login: login(), dialect, interaction, session, statements }
}

fn load(server: &Server) {
    let Ok(alone) = Alone::new() else { return };
    let target = Rc::new(target(server, Dialect::Mysql, Interaction::Statement));
    let slot = alone.slot();
    let talk = async {
        let mut connection = Mysql::open(target, slot).await?;
        connection.begin_load("load data local infile 'rows' into table t").await?;
        connection.send_load(b"1\t2\n").await?;
        connection.end_load().await?;
        connection.text("select a from t", &mut Times::default()).await
    };
    let _ = alone.wait(talk, || true);
}

/// Transactions as a terminal makes them, until one loses its connection.
fn oltp(server: &Server, dialect: Dialect, asked: u8, statements: &[statement::Statement]) {
    let Ok(alone) = Alone::new() else { return };
    let interaction = interaction(asked);
    let target = Rc::new(Target {
        session: vec!["set x = 1".into()],
        statements: statements.to_vec(),
        ..target(server, dialect, interaction)
    });
    let slot = alone.slot();
    let talk = async {
        let Ok(mut connection) = Connection::open(&target, slot).await else { return };
        if asked & 7 == 5 {
            let inputs = tpcc::input::Inputs::new(1, 1, 0, Own(1, 1));
            let ledger = Rc::new(RefCell::default());
            transact(&mut connection, tpcc::transactions::Terminal::new(inputs, interaction, false, false, ledger))
                .await;
        } else {
            transact(&mut connection, tatp::transactions::Terminal::new(1, 0, Own(1, 1000), true, false)).await;
        }
        connection.close();
    };
    let _ = alone.wait(talk, || true);
}

async fn transact<W: Work>(connection: &mut Connection, mut work: W) {
    for _ in 0..TRANSACTIONS {
        let job = work.draw();
        match work.attempt(connection, &job, &mut Committing::default()).await {
            Err(Stop::Trouble(Trouble::Server(error))) if !error.is_fatal => {
                if connection.roll_back().await.is_err() {
                    return;
                }
            }
            Err(Stop::Trouble(_)) => return,
            Ok(_) => work.acknowledge(&job, true),
            Err(Stop::Conflict) => {}
        }
    }
}
