//! TPC-H's tables: generated, loaded into a real PostgreSQL, and compared there with their text form.

mod common;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{AGENT, Agent, Scratch};
use dbtoll_agent::driver::session::{ServerSession, Session};
use dbtoll_agent::tpch::Table;
use dbtoll_agent::wire::blocking::Interrupter;
use serde_json::{Value, json};
use support::{Server, login};

const SCALE: f64 = 0.01;
const SCHEMA: &str = "
create table region (r_regionkey int, r_name char(25), r_comment varchar(152));
create table nation (n_nationkey int, n_name char(25), n_regionkey int, n_comment varchar(152));
create table supplier (s_suppkey int, s_name char(25), s_address varchar(40), s_nationkey int, s_phone char(15),
    s_acctbal numeric(15,2), s_comment varchar(101));
create table customer (c_custkey int, c_name varchar(25), c_address varchar(40), c_nationkey int, c_phone char(15),
    c_acctbal numeric(15,2), c_mktsegment char(10), c_comment varchar(117));
create table part (p_partkey int, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25), p_size int,
    p_container char(10), p_retailprice numeric(15,2), p_comment varchar(23));
create table partsupp (ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost numeric(15,2),
    ps_comment varchar(199));
create table orders (o_orderkey bigint, o_custkey int, o_orderstatus char(1), o_totalprice numeric(15,2),
    o_orderdate date, o_orderpriority char(15), o_clerk char(15), o_shippriority int, o_comment varchar(79));
create table lineitem (l_orderkey bigint, l_partkey int, l_suppkey int, l_linenumber int, l_quantity numeric(15,2),
    l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), l_returnflag char(1),
    l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct char(25),
    l_shipmode char(10), l_comment varchar(44));
";

fn database(server: &Server, name: &str, schema: &str) -> Session {
    server.session().query(&format!("create database {name}")).unwrap().unwrap();
    let mut session = server.session_of(
        dbtoll_agent::wire::postgres::Login { database: name.to_owned(), ..login("tester", None) },
        Interrupter::default(),
    );
    session.query(schema).unwrap().unwrap();
    session
}

fn params(server: &Server, database: &str, scale: f64) -> Value {
    let dbtoll_agent::wire::blocking::Address::Unix(path) = server.address() else { unreachable!() };
    json!({"wire": "postgres", "address": {"unix": path}, "user": "tester", "database": database, "scale": scale})
}

fn one_value(session: &mut Session, sql: &str) -> String {
    let result = session.query(sql).unwrap().unwrap_or_else(|error| panic!("{sql}: {}", error.message));
    result.rows[0][0].clone().unwrap()
}

/// What lies in the table's pages, in order, with the row's place: equal datasets have equal pages.
fn fingerprint(session: &mut Session, table: Table) -> String {
    let name = table.name();
    one_value(session, &format!("select md5(string_agg(ctid::text || t::text, ',' order by ctid)) from {name} t"))
}

#[test]
fn loaded_tables_equal_their_text_form_and_are_the_same_every_time() {
    let Some(server) = Server::shared() else { return };
    let scratch = Scratch::new("tpch");
    let mut loaded = database(&server, "loaded", SCHEMA);
    let mut agent = Agent::start();
    let answer = agent.call("tpch_load", &params(&server, "loaded", SCALE), b"");
    assert_eq!(answer.error, None, "{:?}", answer.result);
    for table in Table::LONGEST_FIRST {
        let name = table.name();
        let path = scratch.path(name);
        let text = agent.call("tpch_table", &json!({"table": name, "scale": SCALE}), b"");
        std::fs::write(&path, text.output).unwrap();
        // Each line ends with a bar, which COPY takes for one more column.
        let copy = format!(
            "create temp table plain (like {name}); alter table plain add end_of_line text;
             copy plain from program $$cat {path}$$ (delimiter '|')"
        );
        loaded.query(&copy).unwrap().unwrap_or_else(|error| panic!("{}", error.message));
        let columns = table.columns().join(", ");
        let difference = format!(
            "select count(*) from ((select {columns} from plain except all select {columns} from {name}) union all
             (select {columns} from {name} except all select {columns} from plain)) d"
        );
        assert_eq!(one_value(&mut loaded, &difference), "0", "{name}");
        let count = one_value(&mut loaded, &format!("select count(*) from {name}"));
        assert_eq!(answer.result["rows"][name].to_string(), count);
        if table != Table::Lineitem {
            assert_eq!(table.expected_rows(SCALE).to_string(), count, "{name}");
        }
        let last = answer.control.iter().rfind(|message| message["table"] == name).unwrap();
        assert_eq!((last["rows"].to_string(), last["of_rows"].to_string()), (count.clone(), count));
        loaded.query("drop table plain").unwrap().unwrap();
    }
    let unfrozen = "select count(*) from pg_class where relname = 'lineitem' and relallvisible < relpages";
    loaded.query("analyze").unwrap().unwrap();
    assert_eq!(one_value(&mut loaded, unfrozen), "0", "freeze makes every page all-visible");
    assert!(answer.result["wall_ns"].as_u64() > Some(0) && answer.result["generate_ns"].as_u64() > Some(0));

    let mut again = database(&server, "again", SCHEMA);
    let mut params = params(&server, "again", SCALE);
    params["connections"] = json!(5);
    assert_eq!(agent.call("tpch_load", &params, b"").error, None);
    for table in Table::LONGEST_FIRST {
        assert_eq!(fingerprint(&mut loaded, table), fingerprint(&mut again, table), "{table:?}");
    }
    let refused = agent.call("tpch_load", &params, b"");
    assert_eq!(refused.error.as_deref(), Some("bad_request"), "tables that hold rows are not touched");
    assert!(refused.result["message"].as_str().unwrap().contains("not empty"), "{}", refused.result);
}

#[test]
fn rows_as_lines_are_the_same_rows() {
    let Some(server) = Server::shared() else { return };
    let mut agent = Agent::start();
    let contents = ["postgres", "standard"].map(|wire| {
        let mut session = database(&server, &format!("in_words_of_{wire}"), SCHEMA);
        let mut params = params(&server, &format!("in_words_of_{wire}"), SCALE);
        params["wire"] = json!(wire);
        assert_eq!(agent.call("tpch_load", &params, b"").error, None, "{wire}");
        Table::LONGEST_FIRST.map(|table| {
            let name = table.name();
            one_value(&mut session, &format!("select md5(string_agg(t::text, ',' order by t::text)) from {name} t"))
        })
    });
    assert_eq!(contents[0], contents[1]);
}

#[test]
fn other_column_types_and_orders_are_filled_too() {
    let Some(server) = Server::shared() else { return };
    let schema = SCHEMA
        .replace("numeric(15,2)", "double precision")
        .replace("bigint", "numeric")
        .replace("(r_regionkey int, r_name char(25),", "(more text default 'x', r_name text, r_regionkey smallint,");
    let mut session = database(&server, "other", &schema);
    let mut agent = Agent::start();
    let answer = agent.call("tpch_load", &params(&server, "other", SCALE), b"");
    assert_eq!(answer.error, None, "{:?}", answer.result);
    assert_eq!(
        one_value(&mut session, "select r_name from region where r_regionkey = 4 and more = 'x'"),
        "MIDDLE EAST"
    );
    assert_eq!(one_value(&mut session, "select o_totalprice from orders where o_orderkey = 1"), "172799.49");
}

#[test]
fn tables_that_do_not_fit_are_named() {
    let Some(server) = Server::shared() else { return };
    let cases = [
        ("create table region (x int)", "not_found", "has no column"),
        (
            "create table nation (n_nationkey bytea, n_name text, n_regionkey int, n_comment text)",
            "bad_request",
            "bytea",
        ),
        ("create table nation (n_nationkey int, n_name date, n_regionkey int, n_comment text)", "bad_request", "Date"),
        (
            "create table nation (n_nationkey int, n_name char(3), n_regionkey int, n_comment text)",
            "server",
            "too long",
        ),
    ];
    let mut agent = Agent::start();
    for (index, (table, code, words)) in cases.into_iter().enumerate() {
        let name = format!("misfit{index}");
        let broken = table.split(' ').nth(2).unwrap();
        database(&server, &name, &SCHEMA.replace(&format!("create table {broken} "), "create table unused "))
            .query(table)
            .unwrap()
            .unwrap();
        let answer = agent.call("tpch_load", &params(&server, &name, 0.001), b"");
        assert_eq!(answer.error.as_deref(), Some(code), "{}", answer.result);
        assert!(answer.result["message"].as_str().unwrap().contains(words), "{}", answer.result);
    }
    database(&server, "bare", "");
    let answer = agent.call("tpch_load", &params(&server, "bare", 0.001), b"");
    assert_eq!(answer.error.as_deref(), Some("not_found"), "{}", answer.result);
    let answer = agent.call("tpch_load", &params(&server, "nosuch", 0.001), b"");
    assert_eq!(answer.result["detail"]["sqlstate"], "3D000");
    for (key, value) in [("scale", json!(0)), ("connections", json!(0)), ("connections", json!(9)), ("x", json!(1))] {
        let mut wrong = params(&server, "bare", 0.001);
        wrong[key] = value;
        assert_eq!(agent.call("tpch_load", &wrong, b"").error.as_deref(), Some("bad_request"), "{key}");
    }
}

#[test]
fn a_cancelled_load_ends_soon_and_leaves_the_tables_empty() {
    let Some(server) = Server::shared() else { return };
    let mut session = database(&server, "cancelled", SCHEMA);
    let mut agent = Agent::start();
    let controller = agent.controller();
    let stream = controller.sender.open("tpch_load", &params(&server, "cancelled", 10.0));
    // Its first progress shows that it is under way.
    while controller.next_of(stream).channel != 2 {}
    let start = Instant::now();
    controller.sender.cancel(stream);
    assert_eq!(controller.answer(stream).error.as_deref(), Some("cancelled"));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(one_value(&mut session, "select count(*) from lineitem"), "0");
}

#[test]
fn a_table_streams_as_text() {
    let mut agent = Agent::start();
    let answer = agent.call("tpch_table", &json!({"table": "supplier", "scale": SCALE, "part": 2, "parts": 2}), b"");
    assert_eq!((answer.error, &answer.result["rows"]), (None, &json!(50)));
    let text = String::from_utf8(answer.output).unwrap();
    assert!(text.starts_with("51|Supplier#000000051|") && text.lines().count() == 50, "{text}");
    for wrong in [json!({"table": "lineitems", "scale": 1}), json!({"table": "region", "scale": -1}), json!({})] {
        assert_eq!(agent.call("tpch_table", &wrong, b"").error.as_deref(), Some("bad_request"), "{wrong}");
    }
}

#[test]
fn files_hold_the_same_rows_as_the_stream() {
    let scratch = Scratch::new("tpch-files");
    let mut agent = Agent::start();
    let streamed = agent.call("tpch_table", &json!({"table": "nation", "scale": 1}), b"").output;
    for format in ["tbl", "copy"] {
        let path = scratch.path(format);
        let options = ["tpch", "--output", &path, "--format", format, "--scale", "1", "--table", "nation"];
        assert!(Command::new(AGENT).args(options).status().unwrap().success());
    }
    assert_eq!(std::fs::read(scratch.path("tbl")).unwrap(), streamed);
    let copy = std::fs::read(scratch.path("copy")).unwrap();
    assert!(copy.starts_with(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\x04\0\0\0\0\0\0\0\x07ALGERIA"));
    assert!(copy.ends_with(b"\xff\xff"));
}

#[test]
fn the_command_line_says_what_it_does_not_understand() {
    for wrong in [&["--table"][..], &["--table", "x"], &["--scale", "1"], &["--table", "region", "--scale", "x"]] {
        let output = Command::new(AGENT).arg("tpch").args(wrong).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{wrong:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1, "{wrong:?}");
    }
}
