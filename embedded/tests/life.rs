//! The server's life: what is refused, what is cancelled, what is left when it ends, and how.

mod common;

use std::io::{Read, Write};
use std::time::Duration;

use common::{Folder, Raw, Server, Setup, duckdb, monetdb, setups, until};

fn make_big(raw: &mut Raw, rows: u32) {
    raw.run("create table big (x integer)");
    raw.run("insert into big values (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)");
    for _ in 0..rows.ilog10() - 1 {
        raw.run("insert into big select a.x * 10 + b.x from big a, (select x from big limit 10) b");
        raw.run("delete from big where x < 0");
    }
}

fn refusal(setup: &Setup, more: &[&str]) -> String {
    let output = common::run(setup, more);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty());
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("dbtoll-embedded: ")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    lines[0].to_owned()
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() {
    for setup in setups() {
        let folder = Folder::new();
        let (database, socket) = (folder.database(), folder.socket());
        let place = ["--database", database.to_str().unwrap(), "--unix", socket.to_str().unwrap()];
        let with = |more: &[&'static str]| [&place[..], more].concat();
        let text = refusal(&setup, &with(&["--set", "no_such_setting=1"]));
        assert!(text.contains("no_such_setting"), "{text}");
        assert!(refusal(&setup, &with(&["--set", "x"])).contains("NAME=VALUE"));
        assert!(refusal(&setup, &["--unix", "x"]).contains("--database is missing"));
        assert!(refusal(&setup, &with(&["--nonsense"])).contains("usage"));
        let broken = |library: &str| Setup {
            engine: setup.engine,
            arguments: ["--engine", setup.engine, "--library", library].map(String::from).to_vec(),
        };
        assert!(refusal(&broken("/no/such/library.so"), &["--version"]).contains("/no/such/library.so"));
        assert!(refusal(&broken("libm.so.6"), &["--version"]).contains("has no function"));
        // An object of another architecture: the same file with another machine in its header.
        let foreign = folder.0.join("foreign.so");
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        bytes[18] = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
        std::fs::write(&foreign, bytes).unwrap();
        let text = refusal(&broken(foreign.to_str().unwrap()), &["--version"]);
        assert!(text.contains("cannot load"), "{text}");
        // A database that is none.
        let file = folder.0.join("text");
        std::fs::write(&file, "this is no database, and as long as one page of one must be".repeat(100)).unwrap();
        let text = refusal(&setup, &["--database", file.to_str().unwrap(), "--unix", socket.to_str().unwrap()]);
        assert!(text.contains("cannot open"), "{text}");
        // A socket that is in use, and a database that is.
        let server = Server::start(&setup, &folder, &[]);
        let other = folder.0.join("other");
        let text = refusal(&setup, &["--database", other.to_str().unwrap(), "--unix", socket.to_str().unwrap()]);
        assert!(text.contains("in use"), "{text}");
        let other_socket = folder.0.join("other.socket");
        let second = ["--database", database.to_str().unwrap(), "--unix", other_socket.to_str().unwrap()];
        let text = refusal(&setup, &second);
        assert!(text.contains("cannot open"), "{text}");
        assert_eq!(server.raw().run("select 1").values(), ["1"]);
        assert!(server.stop().success());
    }
    let nothing = Setup { engine: "", arguments: vec!["--engine".into(), "nothing".into()] };
    assert!(refusal(&nothing, &["--library", "x", "--version"]).contains("duckdb, monetdb"));
}

#[test]
fn the_socket_is_for_its_user_alone_and_replaces_one_that_is_left() {
    use std::os::unix::fs::PermissionsExt;
    for setup in setups() {
        let folder = Folder::new();
        drop(std::os::unix::net::UnixListener::bind(folder.socket()).unwrap());
        let server = Server::start(&setup, &folder, &[]);
        assert_eq!(std::fs::metadata(folder.socket()).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(server.stop().success());
    }
}

#[test]
fn broken_clients_hurt_nobody() {
    for setup in setups() {
        let folder = Folder::new();
        let server = Server::start(&setup, &folder, &[]);
        let mut raw = server.raw();
        for bytes in [
            &b""[..],
            b"\0",
            b"\0\0\0\x04",
            b"\0\0\0\x08\0\x02\0\0",
            b"\x7f\xff\xff\xff\0\x03\0\0",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\0",
        ] {
            let mut stream = server.bare();
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
        }
        for bytes in [
            &b"Q\0\0\0\x03"[..],
            b"Q\x7f\xff\xff\xff",
            b"Q\xff\xff\xff\xffselect 1\0",
            b"?\0\0\0\x04",
            b"d\0\0\0\x04p\0\0\0\x04",
        ] {
            let mut client = server.raw();
            client.stream.write_all(bytes).unwrap();
            let (tag, body) = client.message();
            let text = String::from_utf8_lossy(&body).into_owned();
            assert!(tag == b'E' && text.contains("FATAL") && text.contains("08P01"), "{bytes:?}: {text}");
            assert!(client.try_message().is_none(), "{bytes:?}");
        }
        // Bodies that break off, and texts that are none, cost the statement only.
        let mut client = server.raw();
        for (tag, body) in
            [(b'P', &b"x"[..]), (b'B', b"\0\0\0\x05"), (b'D', b"X\0"), (b'E', b"\0"), (b'P', b"\0\xff\0\0\0")]
        {
            assert_eq!(client.add(tag, body).sync().errors.len(), 1, "{body:?}");
        }
        assert_eq!(client.add(b'Q', b"select '\xff'\0").sync().errors, ["22021"]);
        assert_eq!(client.answer().tags, "Z");
        // A client that never reads is no hindrance, and goes when it goes.
        let deaf = server.raw();
        let flood = b"Q\0\0\0\x0dselect 1\0".repeat(100_000);
        let mut stream = deaf.stream.try_clone().unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let _ = stream.write_all(&flood);
        assert_eq!(raw.run("select 1").values(), ["1"]);
        assert!(server.stop().success(), "{}", setup.engine);
        drop(deaf);
    }
}

#[test]
fn a_long_statement_is_cancelled_where_the_engine_can() {
    let Some(setup) = duckdb() else { return };
    let folder = Folder::new();
    let server = Server::start(&setup, &folder, &[]);
    let mut raw = server.raw();
    make_big(&mut raw, 10_000);
    raw.run("begin; insert into big values (-5)");
    raw.ask(Setup::LONG_QUERY);
    let (key, mut wrong) = (raw.key, raw.key);
    wrong[7] ^= 1;
    server.cancel(wrong);
    raw.stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert_eq!(raw.stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    raw.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    server.cancel(key);
    let answer = raw.answer();
    assert_eq!((&*answer.errors, answer.status), (&["57014".to_owned()][..], 'E'));
    raw.run("rollback");
    // Nothing is cancelled where nothing is executed.
    server.cancel(key);
    assert_eq!(raw.run("select count(*) from big where x < 0").values(), ["0"]);
    assert!(server.stop().success());
}

#[test]
fn a_statement_whose_client_vanished_is_stopped_and_undone() {
    let Some(setup) = duckdb() else { return };
    let folder = Folder::new();
    let server = Server::start(&setup, &folder, &[]);
    let mut raw = server.raw();
    make_big(&mut raw, 10_000);
    let mut lost = server.raw();
    lost.run("begin; update big set x = -7 where x = 7");
    lost.ask(Setup::LONG_QUERY);
    std::thread::sleep(Duration::from_millis(300));
    drop(lost);
    // Its transaction held the row: another one can change it as soon as it is rolled back.
    until("the rollback", || raw.query("update big set x = 8 where x = 7").errors.is_empty().then_some(()));
    assert_eq!(raw.run("select count(*) from big where x = -7").values(), ["0"]);
    assert!(server.stop().success());
}

#[test]
fn sigterm_ends_a_running_query_and_keeps_what_was_committed() {
    for setup in setups() {
        let folder = Folder::new();
        let server = Server::start(&setup, &folder, &[]);
        let mut raw = server.raw();
        // MonetDB cannot stop a statement: its one must end by itself.
        make_big(&mut raw, if setup.is_duckdb() { 10_000 } else { 100 });
        raw.run("create table t (a integer); insert into t values (1)");
        let mut open = server.raw();
        open.run("begin; insert into t values (2)");
        raw.ask(Setup::LONG_QUERY);
        std::thread::sleep(Duration::from_millis(200));
        assert!(server.stop().success(), "{}", setup.engine);
        assert!(!folder.socket().exists());
        assert!(!folder.database().join(".gdk_lock").exists());
        let server = Server::start(&setup, &folder, &[]);
        assert_eq!(server.raw().run("select a from t").values(), ["1"], "{}", setup.engine);
        assert!(server.stop().success());
    }
}

#[test]
fn what_was_committed_outlives_a_server_that_is_killed() {
    for setup in setups() {
        let folder = Folder::new();
        let mut server = Server::start(&setup, &folder, &[]);
        let mut raw = server.raw();
        raw.run("create table t (a integer, b varchar(20))");
        for number in 0..20 {
            raw.run(&format!("insert into t values ({number}, 'row')"));
        }
        raw.run("begin; insert into t values (100, 'committed'); update t set b = 'changed' where a = 3; commit");
        raw.run("begin; insert into t values (200, 'open')");
        server.signal(libc::SIGKILL);
        server.wait();
        drop(server);
        let server = Server::start(&setup, &folder, &[]);
        let mut raw = server.raw();
        assert_eq!(raw.run("select count(*), max(a) from t").values(), ["21", "100"], "{}", setup.engine);
        assert_eq!(raw.run("select b from t where a = 3").values(), ["changed"]);
        raw.run("insert into t values (300, 'after')");
        assert!(server.stop().success());
    }
}

#[test]
fn monetdbs_statements_run_to_their_end_and_nothing_begins_beside_one_that_was_given_up() {
    let Some(setup) = monetdb() else { return };
    let folder = Folder::new();
    let server = Server::start(&setup, &folder, &[]);
    let (mut raw, mut other) = (server.raw(), server.raw());
    make_big(&mut raw, 1000);
    other.run("begin; insert into big values (-2)");
    raw.ask("select count(*) from big a, big b, (select x from big limit 20) c where a.x + b.x + c.x = -1");
    let key = raw.key;
    assert_eq!(other.run("select count(*) from big where x = -2").values(), ["1"]);
    server.cancel(key);
    let refused = until("the refusal", || {
        let answer = other.query("select 1");
        (!answer.errors.is_empty()).then_some(answer.errors)
    });
    assert_eq!(refused, ["55000"]);
    // A transaction can be ended, and a new client is told the same.
    assert!(other.query("rollback").errors.is_empty());
    assert_eq!(server.raw().query("select 1").errors, ["55000"]);
    let answer = raw.answer();
    assert_eq!((answer.values(), answer.errors.len()), (vec!["0".to_owned()], 0));
    assert_eq!(other.run("select count(*) from big where x = -2").values(), ["0"]);
    // So it is where the client is gone.
    raw.ask("select count(*) from big a, big b, (select x from big limit 20) c where a.x + b.x + c.x = -1");
    std::thread::sleep(Duration::from_millis(300));
    drop(raw);
    until("the refusal", || (other.query("select 1").errors == ["55000"]).then_some(()));
    until("its end", || other.query("select 1").errors.is_empty().then_some(()));
    assert!(server.stop().success());
}
