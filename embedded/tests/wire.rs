//! Statements through the wire, on every engine that is there.

mod common;

use std::io::Write;

use common::{Bound, Folder, Raw, Server, Setup, duckdb, monetdb, setups, until};
use postgres::SimpleQueryMessage;

/// A server on a new database of each engine, and a session.
fn for_each(test: impl Fn(&Setup, &Server, Raw)) {
    for setup in setups() {
        let folder = Folder::new();
        let server = Server::start(&setup, &folder, &[]);
        test(&setup, &server, server.raw());
        assert!(server.stop().success());
        assert!(!folder.socket().exists(), "the socket is left");
    }
}

#[test]
fn values_of_every_kind_are_written_as_postgresql_does() {
    let shared = [
        ("cast(1 as smallint)", 21, "1"),
        ("cast(-2147483647 as integer)", 23, "-2147483647"),
        ("cast(9223372036854775807 as bigint)", 20, "9223372036854775807"),
        ("cast(170141183460469231731687303715884105727 as hugeint)", 1700, "170141183460469231731687303715884105727"),
        ("cast(-0.05 as decimal(4,2))", 1700, "-0.05"),
        ("cast(12345678901.50 as decimal(15,2))", 1700, "12345678901.50"),
        ("cast(1.5 as decimal(38,10))", 1700, "1.5000000000"),
        ("cast(0.1 as double)", 701, "0.1"),
        ("cast(1e300 as double)", 701, "1e+300"),
        ("cast(1.25 as real)", 700, "1.25"),
        ("true", 16, "t"),
        ("1 = 2", 16, "f"),
        ("'it''s äö€'", 25, "it's äö€"),
        ("''", 25, ""),
        ("date '2026-01-31'", 1082, "2026-01-31"),
        ("timestamp '2026-01-01 00:00:00'", 1114, "2026-01-01 00:00:00"),
        ("timestamp '2026-01-01 10:20:30.125'", 1114, "2026-01-01 10:20:30.125"),
        ("time '10:20:30'", 1083, "10:20:30"),
    ];
    let duckdb_only = [
        ("cast(200 as utinyint)", 21, "200"),
        ("cast(18446744073709551615 as ubigint)", 1700, "18446744073709551615"),
        ("'-170141183460469231731687303715884105728'::hugeint", 1700, "-170141183460469231731687303715884105728"),
        ("timestamp '2026-01-01 10:20:30.123456'", 1114, "2026-01-01 10:20:30.123456"),
        ("timestamptz '2026-01-01 10:20:30+02'", 1184, "2026-01-01 08:20:30+00"),
        ("date 'infinity'", 1082, "infinity"),
        ("interval '14 months -3 days'", 1186, "1 year 2 mons -3 days"),
        ("'\\x00\\xAF'::blob", 17, "\\x00af"),
        ("'550e8400-e29b-41d4-a716-446655440000'::uuid", 2950, "550e8400-e29b-41d4-a716-446655440000"),
        ("'b'::enum('a', 'b')", 25, "b"),
        ("[1, null, 3]", 25, "[1, NULL, 3]"),
        ("['a', 'b, c']", 25, "[a, 'b, c']"),
        ("[[true], []]", 25, "[[true], []]"),
        ("[1.5, 2.5]::double[2]", 25, "[1.5, 2.5]"),
        ("map {'k': date '2026-01-01'}", 25, "{k=2026-01-01}"),
        ("'nan'::double", 701, "NaN"),
    ];
    let monetdb_only = [
        ("blob '00AF'", 17, "\\x00af"),
        ("uuid '550e8400-e29b-41d4-a716-446655440000'", 25, "550e8400-e29b-41d4-a716-446655440000"),
        ("interval '1' day", 1700, "86400000"),
        ("interval '14' month", 1700, "14"),
        ("sum(cast(1.25 as decimal(5,2)))", 1700, "1.25"),
    ];
    for_each(|setup, _, mut raw| {
        let own: &[_] = if setup.is_duckdb() { &duckdb_only } else { &monetdb_only };
        for (expression, kind, expected) in shared.iter().chain(own) {
            let answer = raw.run(&format!("select {expression} as x"));
            assert_eq!(answer.values(), [*expected], "{expression} in {}", setup.engine);
            assert_eq!(answer.columns, [("x".to_owned(), *kind)], "{expression} in {}", setup.engine);
        }
        raw.run("create table v (a smallint, b integer, c bigint, d decimal(12,2), e double, f varchar(9), g date, h timestamp, \
                 i time, j boolean, k blob)");
        raw.run("insert into v (a) values (null)");
        assert_eq!(raw.run("select * from v").rows, [vec![None; 11]]);
    });
}

#[test]
fn statements_are_completed_with_postgresqls_tags() {
    for_each(|_, _, mut raw| {
        for (sql, tag, status) in [
            ("create table t (a integer primary key, b varchar(9))", "CREATE TABLE", 'I'),
            ("insert into t values (1, 'x'), (2, null)", "INSERT 0 2", 'I'),
            ("select * from t", "SELECT 2", 'I'),
            ("begin", "BEGIN", 'T'),
            ("update t set b = 'y' where a = 1", "UPDATE 1", 'T'),
            ("commit", "COMMIT", 'I'),
            ("start transaction", "BEGIN", 'T'),
            ("delete from t", "DELETE 2", 'T'),
            ("rollback", "ROLLBACK", 'I'),
            ("with q as (select 3 as a) select * from q", "SELECT 1", 'I'),
            ("create index i on t (b)", "CREATE INDEX", 'I'),
            ("truncate table t", "TRUNCATE TABLE", 'I'),
            ("drop table t", "DROP TABLE", 'I'),
            ("set extra_float_digits = 3", "SET", 'I'),
            ("deallocate all", "DEALLOCATE ALL", 'I'),
            ("discard all", "DISCARD ALL", 'I'),
        ] {
            let answer = raw.run(sql);
            assert_eq!((&*answer.completed, answer.status), (&[tag.to_owned()][..], status), "{sql}");
        }
        assert_eq!(raw.run(" ; -- nothing\n").tags, "IZ");
        let answer = raw.run("select 1 as a; ; select 2 as b, ';' as c");
        assert_eq!((answer.values(), &*answer.tags), (vec!["1".into(), "2".into(), ";".into()], "TDCTDCZ"));
    });
}

#[test]
fn errors_have_states_and_spare_the_session() {
    for_each(|_, _, mut raw| {
        raw.run("create table t (a integer primary key, b integer not null)");
        raw.run("insert into t values (1, 1)");
        for (sql, state) in [
            ("selec 1", "42601"),
            ("select * from nothing", "42P01"),
            ("select nothing from t", "42703"),
            ("insert into t values (1, 2)", "23505"),
            ("insert into t values (2, null)", "23502"),
            ("copy t from stdin", "0A000"),
            ("execute nothing", ""),
        ] {
            let answer = raw.query(sql);
            assert_eq!((answer.errors.len(), answer.status), (1, 'I'), "{sql}: {answer:?}");
            assert!(state.is_empty() || answer.errors == [state], "{sql}: {answer:?}");
            assert_eq!(raw.run("select b from t").values(), ["1"]);
        }
        // What stands before the error is done, what stands behind it is not.
        let answer = raw.query("insert into t values (5, 5); selec; insert into t values (6, 6)");
        assert_eq!((&*answer.completed, &*answer.errors), (&["INSERT 0 1".to_owned()][..], &["42601".to_owned()][..]));
        assert_eq!(raw.run("select max(a) from t").values(), ["5"]);
    });
}

#[test]
fn a_failed_transaction_refuses_everything_but_its_end() {
    for_each(|_, _, mut raw| {
        raw.run("create table t (a integer)");
        for end in ["rollback", "commit"] {
            raw.run("begin; insert into t values (1)");
            assert_eq!(raw.query("select * from nothing").status, 'E');
            for _ in 0..2 {
                let answer = raw.query("select 1");
                assert_eq!((&*answer.errors, answer.status), (&["25P02".to_owned()][..], 'E'));
            }
            assert_eq!(raw.parse("s", "select 1", &[]).sync().errors, ["25P02"]);
            let answer = raw.run(end);
            assert_eq!((&*answer.completed, answer.status), (&["ROLLBACK".to_owned()][..], 'I'));
            assert_eq!(raw.run("select count(*) from t").values(), ["0"]);
        }
        // Warnings, as PostgreSQL has them.
        assert_eq!(raw.run("commit").tags, "NCZ");
        assert_eq!(raw.run("rollback").tags, "NCZ");
        assert_eq!(raw.run("begin; begin").tags, "CNCZ");
    });
}

#[test]
fn prepared_statements_take_integers_numerics_and_texts() {
    for_each(|setup, _, mut raw| {
        raw.run("create table t (a integer, b decimal(12,2), c varchar(20), d date, e timestamp, f bigint)");
        raw.parse("s0", "insert into t values ($1, $2, $3, $4, $5, $6)", &[23, 1700, 25, 25, 25, 23]);
        raw.parse("s1", "select a, b, c, d, e, f from t where a = $1", &[23]);
        raw.parse("s2", "update t set b = b + $1 where a = $2", &[1700, 23]);
        assert_eq!(raw.sync().tags, "111Z");
        let insert = |raw: &mut Raw, a: i32, b: &str, c: &str| {
            let values = [
                Bound::Int(a),
                Bound::Text(b),
                Bound::Text(c),
                Bound::Text("2026-01-31"),
                Bound::Text("2026-01-31 10:20:30"),
                Bound::Int(-7),
            ];
            raw.bind("s0", &values).execute();
        };
        insert(&mut raw, 1, "-1.05", "it's \\ $1 'x'");
        insert(&mut raw, -2, "1234567890.12", "");
        let answer = raw.sync();
        assert_eq!((&*answer.tags, &*answer.completed), ("2C2CZ", &["INSERT 0 1".to_owned(), "INSERT 0 1".into()][..]));
        let answer = raw.bind("s1", &[Bound::Int(1)]).execute().sync();
        let expected = ["1", "-1.05", "it's \\ $1 'x'", "2026-01-31", "2026-01-31 10:20:30", "-7"];
        assert_eq!((answer.values(), &*answer.tags), (expected.map(String::from).to_vec(), "2DCZ"), "{}", setup.engine);
        let answer = raw.bind("s2", &[Bound::Text("2.10"), Bound::Int(1)]).execute().sync();
        assert_eq!(answer.completed, ["UPDATE 1"]);
        assert_eq!(raw.bind("s1", &[Bound::Int(1)]).execute().sync().values()[1], "1.05");
        assert!(raw.bind("s1", &[Bound::Int(99)]).execute().sync().rows.is_empty());
        // NULL as a value, and as an answer.
        let nulls = [Bound::Int(3), Bound::Null, Bound::Null, Bound::Null, Bound::Null, Bound::Null];
        assert_eq!(raw.bind("s0", &nulls).execute().sync().completed, ["INSERT 0 1"]);
        let answer = raw.bind("s1", &[Bound::Int(3)]).execute().sync();
        assert_eq!(answer.values(), ["3", "~", "~", "~", "~", "~"]);
    });
}

#[test]
fn parameters_may_come_twice_in_any_order_and_without_a_type() {
    for_each(|setup, _, mut raw| {
        raw.run("create table t (a integer, b varchar(20))");
        raw.run("insert into t values (1, 'one'), (2, 'two'), (3, 'three')");
        raw.parse(
            "",
            "select a from t where b <> $2 and a >= $1 and a <> cast($1 as integer) + 5 and b <> $2 order by a",
            &[],
        );
        let answer = raw.bind("", &[Bound::Text("2"), Bound::Text("three")]).execute().sync();
        assert_eq!((answer.values(), answer.errors.len()), (vec!["2".to_owned()], 0), "{}: {answer:?}", setup.engine);
        // The simple protocol's text, with a day interval as TPC-H's Q1 has it.
        raw.parse("q", "select date '1998-12-01' - cast($1 as integer) * interval '1' day", &[]);
        let value = raw.bind("q", &[Bound::Text("90")]).execute().sync().values()[0].clone();
        assert!(value.starts_with("1998-09-02"), "{value}");
    });
}

#[test]
fn descriptions_tell_parameters_and_columns() {
    for_each(|setup, _, mut raw| {
        raw.run("create table t (a integer, b decimal(12,2), c varchar(20))");
        raw.parse("s", "select a, b, c as d from t where a = $1 and c = $2", &[]);
        let answer = raw.add(b'D', b"Ss\0").sync();
        assert_eq!(answer.tags, "1tTZ");
        let columns = [("a".to_owned(), 23), ("b".to_owned(), 1700), ("d".to_owned(), 25)];
        assert_eq!(answer.columns, columns, "{}", setup.engine);
        let answer = raw.bind("s", &[Bound::Text("1"), Bound::Text("x")]).add(b'D', b"P\0").execute().sync();
        assert_eq!((&*answer.tags, &*answer.columns), ("2TCZ", &columns[..]));
        assert_eq!(raw.parse("i", "insert into t (a) values ($1)", &[23]).add(b'D', b"Si\0").sync().tags, "1tnZ");
        for sql in ["begin", "", "create table u (a integer)"] {
            assert_eq!(raw.parse("x", sql, &[]).add(b'D', b"Sx\0").add(b'C', b"Sx\0").sync().tags, "1tn3Z", "{sql}");
        }
        assert_eq!(raw.parse("", "", &[]).bind("", &[]).execute().sync().tags, "12IZ");
    });
}

#[test]
fn an_error_in_a_pipeline_skips_to_its_end() {
    for_each(|_, _, mut raw| {
        raw.run("create table t (a integer primary key)");
        raw.parse("s0", "insert into t values ($1)", &[23]).sync();
        raw.run("begin");
        for a in [1, 2, 2, 3] {
            raw.bind("s0", &[Bound::Int(a)]).execute();
        }
        let answer = raw.sync();
        assert_eq!((&*answer.tags, &*answer.errors, answer.status), ("2C2C2EZ", &["23505".to_owned()][..], 'E'));
        raw.run("rollback");
        // After it the statement is as good as before, whatever the engine forgot.
        for a in 10..200 {
            raw.bind("s0", &[Bound::Int(a)]).execute();
        }
        let answer = raw.sync();
        assert_eq!((answer.completed.len(), answer.status), (190, 'I'));
        assert_eq!(raw.run("select count(*), min(a), max(a) from t").values(), ["190", "10", "199"]);
        for (state, answer) in [
            ("26000", raw.bind("nothing", &[]).execute().sync()),
            ("34000", raw.add(b'E', b"nothing\0\0\0\0\0").sync()),
            ("42P05", raw.parse("s0", "select 1", &[]).sync()),
            ("42601", raw.parse("x", "select 1; select 2", &[]).sync()),
            ("08P01", raw.bind("s0", &[]).sync()),
            ("08P01", raw.add(b'B', b"\0s0\0\0\x01").sync()),
            ("42P01", raw.parse("x", "select * from nothing", &[]).bind("x", &[]).execute().sync()),
        ] {
            assert_eq!(answer.errors, [state]);
        }
        assert_eq!(raw.run("deallocate s0").completed, ["DEALLOCATE"]);
        assert_eq!(raw.bind("s0", &[Bound::Int(1)]).sync().errors, ["26000"]);
    });
}

#[test]
fn prepared_statements_live_through_changes_of_the_catalogue() {
    for_each(|_, server, mut raw| {
        raw.run("create table t (a integer)");
        raw.parse("s0", "select count(*) from t where a < $1", &[23])
            .parse("s1", "insert into t values ($1)", &[23])
            .sync();
        let mut other = server.raw();
        for round in 0..3 {
            other.run(&format!("create table other{round} (a integer)"));
            raw.run("begin");
            raw.bind("s1", &[Bound::Int(round)]).execute();
            let answer = raw.bind("s0", &[Bound::Int(100)]).execute().sync();
            assert_eq!(answer.values(), [(round + 1).to_string()], "{answer:?}");
            raw.run("commit");
            raw.run(&format!("create table own{round} (a integer)"));
        }
        raw.run("begin; create table undone (a integer); rollback");
        assert_eq!(raw.bind("s0", &[Bound::Int(100)]).execute().sync().values(), ["3"]);
    });
}

#[test]
fn copy_takes_a_hundred_thousand_rows() {
    for_each(|setup, server, mut raw| {
        raw.run("create table t (a integer, b decimal(12,2), c varchar(40), d date)");
        raw.ask("copy t (a, b, c, d) from stdin (format csv, delimiter '|', null '')");
        assert_eq!(raw.answer().tags, "G");
        let mut rows = Vec::new();
        for number in 0..100_000 {
            writeln!(rows, "{number}|{number}.25|\"text \"\"{number}\"\" | \\\"|2026-01-01").unwrap();
        }
        // Cut anywhere, also within a row.
        for piece in rows.chunks(30_011) {
            raw.add(b'd', piece).send();
        }
        raw.add(b'c', b"").send();
        assert_eq!(raw.answer().completed, ["COPY 100000"]);
        let sums = raw.run("select count(*), sum(a), sum(b), min(d), max(d) from t").values();
        assert_eq!(sums, ["100000", "4999950000", "4999975000.00", "2026-01-01", "2026-01-01"]);
        assert_eq!(raw.run("select c from t where a = 77777").values(), ["text \"77777\" | \\"], "{}", setup.engine);
        // Nulls, other columns, an empty COPY.
        raw.run("truncate table t");
        for (statement, rows, tag) in [
            ("copy t (c, a) from stdin with (format csv)", "x,1\n,2\n", "COPY 2"),
            ("copy t from stdin (format csv, delimiter ';', header false)", "3;;;\n", "COPY 1"),
            ("copy t (a) from stdin (format csv, header true)", "a\n4\n", "COPY 1"),
            ("copy t from stdin (format csv)", "", "COPY 0"),
        ] {
            raw.ask(statement);
            raw.answer();
            assert_eq!(raw.add(b'd', rows.as_bytes()).add(b'c', b"").send_and_answer().completed, [tag], "{statement}");
        }
        let rows = raw.run("select a, b, c, d from t order by a").values().join(" ");
        assert_eq!(rows, "1 ~ x ~ 2 ~ ~ ~ 3 ~ ~ ~ 4 ~ ~ ~");
        // The client crate's own way: COPY in the extended protocol.
        let mut client = server.client();
        let mut writer = client.copy_in("copy t (a) from stdin (format csv)").unwrap();
        writer.write_all(b"5\n6\n").unwrap();
        assert_eq!(writer.finish().unwrap(), 2);
    });
}

trait SendAndAnswer {
    fn send_and_answer(&mut self) -> common::Answer;
}

impl SendAndAnswer for Raw {
    fn send_and_answer(&mut self) -> common::Answer {
        self.send();
        self.answer()
    }
}

#[test]
fn a_copy_that_fails_leaves_no_rows() {
    for_each(|setup, server, mut raw| {
        raw.run("create table t (a integer)");
        let rows = "1\n".repeat(200_000);
        raw.ask("copy t from stdin (format csv)");
        raw.answer();
        let answer = raw.add(b'd', rows.as_bytes()).add(b'f', b"changed my mind\0").send_and_answer();
        assert_eq!((&*answer.errors, answer.status), (&["57014".to_owned()][..], 'I'));
        assert!(answer.messages[0].contains("changed my mind"));
        raw.ask("copy t from stdin (format csv)");
        raw.answer();
        let answer = raw.add(b'd', b"1\nx\n").add(b'd', rows.as_bytes()).add(b'c', b"").send_and_answer();
        assert_eq!((answer.errors.len(), answer.status), (1, 'I'), "{}", setup.engine);
        assert_eq!(raw.run("select count(*) from t").values(), ["0"]);
        // In a transaction: what came before it is gone with it too.
        raw.run("begin; insert into t values (7)");
        raw.ask("copy t from stdin (format csv)");
        raw.answer();
        assert_eq!(raw.add(b'd', b"x\n").add(b'c', b"").send_and_answer().status, 'E');
        raw.run("rollback");
        let answer = raw.query("copy nothing from stdin (format csv)");
        if answer.tags == "G" {
            assert_eq!(raw.add(b'c', b"").send_and_answer().errors.len(), 1);
        }
        // A client that is gone in the middle.
        let before = server.sockets();
        let mut lost = server.raw();
        lost.ask("copy t from stdin (format csv)");
        lost.answer();
        lost.add(b'd', rows.as_bytes()).send();
        drop(lost);
        // MonetDB cannot stop it, and begins nothing else meanwhile.
        until("the end of the copy", || (server.sockets() == before).then_some(()));
        assert_eq!(raw.run("select count(*) from t").values(), ["0"]);
    });
}

#[test]
fn a_large_answer_comes_whole() {
    for_each(|_, _, mut raw| {
        raw.run("create table t (a integer, b varchar(100))");
        raw.ask("copy t from stdin (format csv)");
        raw.answer();
        for number in 0..300_000 {
            raw.add(b'd', format!("{number},{}\n", "x".repeat(number % 90)).as_bytes());
        }
        assert_eq!(raw.add(b'c', b"").send_and_answer().completed, ["COPY 300000"]);
        let answer = raw.run("select a, b from t order by a");
        assert_eq!((answer.rows.len(), &*answer.completed), (300_000, &["SELECT 300000".to_owned()][..]));
        for (number, row) in answer.rows.iter().enumerate() {
            assert_eq!(row[0].as_deref(), Some(&*number.to_string()));
            assert_eq!(row[1].as_ref().map_or(0, String::len), number % 90);
        }
    });
}

#[test]
fn a_client_crate_is_served() {
    for_each(|setup, server, _| {
        let mut client = server.client();
        client.batch_execute("create table t (a integer, b varchar(20)); insert into t values (1, 'x')").unwrap();
        assert_eq!(client.execute("insert into t values ($1, $2)", &[&2i32, &"y"]).unwrap(), 1);
        assert_eq!(client.query_one("select b from t where a = $1", &[&2i32]).unwrap().get::<_, String>(0), "y");
        let error = client.query("select a from t", &[]).unwrap_err();
        assert_eq!(error.code().unwrap().code(), "0A000", "{}: numbers in binary form are not written", setup.engine);
        let mut transaction = client.transaction().unwrap();
        transaction.execute("delete from t", &[]).unwrap();
        transaction.rollback().unwrap();
        let rows = client.simple_query("select a, b from t order by a").unwrap();
        let rows: Vec<_> = rows
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some((row.get(0).unwrap(), row.get(1).unwrap())),
                _ => None,
            })
            .collect();
        assert_eq!(rows, [("1", "x"), ("2", "y")]);
    });
}

#[test]
fn sessions_work_side_by_side() {
    for_each(|_, server, mut raw| {
        raw.run("create table t (a integer, b integer)");
        std::thread::scope(|scope| {
            for client in 0..6 {
                scope.spawn(move || {
                    let mut raw = server.raw();
                    raw.parse("s", "insert into t values ($1, $2)", &[23, 23]).sync();
                    for number in 0..50 {
                        raw.run("begin");
                        let answer = raw.bind("s", &[Bound::Int(client), Bound::Int(number)]).execute().sync();
                        assert!(answer.errors.is_empty(), "{answer:?}");
                        raw.run("commit");
                        raw.run("select count(*), sum(b) from t");
                    }
                });
            }
        });
        assert_eq!(raw.run("select count(*), sum(b) from t").values(), ["300", "7350"]);
        // Neither sees what the other has not committed.
        let mut other = server.raw();
        raw.run("begin; update t set b = -1");
        assert_eq!(other.run("select count(*) from t where b = -1").values(), ["0"]);
        // Two writers of the same rows: the second one is told of a conflict, at once or when it commits.
        other.run("begin");
        let mut states = other.query("update t set b = -2").errors;
        raw.run("commit");
        states.extend(other.query("commit").errors);
        assert_eq!(states, ["40001"]);
        assert_eq!(other.run("select min(b), max(b) from t").values(), ["-1", "-1"]);
    });
}

#[test]
fn versions_are_told() {
    for_each(|setup, _, mut raw| {
        let version = &raw.parameters.iter().find(|(name, _)| name == "server_version").unwrap().1.clone();
        assert!(version.starts_with(setup.either("15.0 (DuckDB v", "15.0 (MonetDB 11.")), "{version}");
        assert_eq!(raw.run("show server_version").values(), std::slice::from_ref(version));
        let output = common::run(setup, &["--version"]);
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && told.lines().count() == 1 && version.contains(told.trim()), "{told}");
    });
}

#[test]
fn duckdb_streams_plans_and_returns() {
    let Some(setup) = duckdb() else { return };
    let folder = Folder::new();
    let server = Server::start(&setup, &folder, &["threads=1", "memory_limit=200MB"]);
    let mut raw = server.raw();
    assert_eq!(raw.run("select current_setting('threads')").values(), ["1"]);
    raw.run("create table t (a integer primary key, b varchar)");
    let answer = raw.run("insert into t values (1, 'x') returning a, b");
    assert_eq!((answer.values(), &*answer.completed), (vec!["1".into(), "x".into()], &["INSERT 0 1".to_owned()][..]));
    assert!(raw.run("explain select sum(a) from t").values().concat().to_lowercase().contains("scan"));
    assert_eq!(raw.run("create table u as select * from range(10)").completed, ["CREATE TABLE"]);
    // An answer that is far larger than the engine's memory: to a statement that was parsed before, it is never there as a whole.
    raw.parse("", "select range, repeat('x', 1000) from range(1000000)", &[])
        .bind("", &[])
        .execute()
        .add(b'S', b"")
        .send();
    let mut rows = 0;
    loop {
        match raw.message().0 {
            b'D' => rows += 1,
            b'Z' => break,
            b'E' => panic!("no whole answer"),
            _ => {}
        }
    }
    assert_eq!(rows, 1_000_000);
    let resident = std::fs::read_to_string(format!("/proc/{}/status", server.process())).unwrap();
    let peak = resident.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 600_000, "{peak_kib} KiB for rows of 1 GB");
    // An error in the middle of the rows.
    let failing = "select error('row ' || range) from range(3)";
    for answer in [raw.query(failing), raw.parse("", failing, &[]).bind("", &[]).execute().sync()] {
        assert_eq!((answer.errors.len(), answer.status), (1, 'I'));
    }
    assert_eq!(raw.query("select '101'::bit").errors, ["0A000"]);
    assert!(server.stop().success());
}

#[test]
fn monetdb_shows_plans() {
    let Some(setup) = monetdb() else { return };
    let folder = Folder::new();
    let server = Server::start(&setup, &folder, &["nr_threads=1", "memorylimit=500"]);
    let mut raw = server.raw();
    raw.run("create table t (a integer)");
    assert_eq!(raw.run("Show nr_threads;").rows, [[Some("1".to_owned())]]);
    let plan = raw.run("plan select sum(a) from t");
    assert!(plan.values().concat().contains("table(\"sys\".\"t\")"), "{plan:?}");
    assert_eq!(raw.query("explain select 1").errors, ["0A000"]);
    assert_eq!(raw.run("select value from sys.env() where name = 'gdk_vm_maxsize'").values(), ["524288000"]);
    assert!(server.stop().success());
}
