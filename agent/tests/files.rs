//! Small files, directories and counters.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use common::{Agent, Scratch};
use dbtoll_agent::proto::Kind;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

#[test]
fn put_and_get() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("put");
    let path = scratch.path("a/b/file");
    let content: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).take(700_001).collect();
    let put = |more: Value| {
        let mut params = json!({"path": path, "size_bytes": content.len()});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    assert_eq!(agent.call("put", &put(json!({})), &content).error.as_deref(), Some("not_found"));
    let answer = agent.call("put", &put(json!({"parents": true, "mode": 0o640})), &content);
    assert_eq!(answer.result, json!({"size_bytes": content.len()}), "{answer:?}");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    let answer = agent.call("get", &json!({"path": path}), b"");
    assert_eq!((answer.output == content, answer.result), (true, json!({"size_bytes": content.len()})));

    // Replaced as a whole, or not at all.
    let short = agent.call("put", &put(json!({})), b"short");
    assert_eq!(short.error.as_deref(), Some("bad_request"));
    assert_eq!(
        agent.call("put", &json!({"path": path, "size_bytes": 3}), b"long").error.as_deref(),
        Some("bad_request")
    );
    assert_eq!(fs::read(&path).unwrap(), content);
    let before = fs::metadata(&path).unwrap().ino();
    assert_eq!(agent.call("put", &json!({"path": path, "size_bytes": 0}), b"").error, None);
    assert_eq!((fs::metadata(&path).unwrap().len(), fs::metadata(&path).unwrap().ino() == before), (0, false));
    assert_eq!(fs::read_dir(scratch.path("a/b")).unwrap().count(), 1, "no temporary files are left");

    let inode = fs::metadata(&path).unwrap().ino();
    let answer = agent.call("put", &json!({"path": path, "size_bytes": 2, "in_place": true}), b"hi");
    assert_eq!((answer.error, fs::read(&path).unwrap().as_slice()), (None, &b"hi"[..]));
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    let absent = json!({"path": scratch.path("absent"), "size_bytes": 2, "in_place": true});
    assert_eq!(agent.call("put", &absent, b"hi").error.as_deref(), Some("not_found"));

    if rustix::process::geteuid().is_root() {
        let answer = agent.call("put", &json!({"path": path, "size_bytes": 0, "mode": 0o4755, "user": "12:34"}), b"");
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((answer.error, metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (None, 12, 34, 0o4755));
    }
}

#[test]
fn sizes_are_bounded() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("sizes");
    let path = scratch.path("file");
    let put = agent.call("put", &json!({"path": path, "size_bytes": 64 * MIB + 1}), b"");
    assert_eq!(put.error.as_deref(), Some("too_large"));
    fs::write(&path, vec![7; 2_000_000]).unwrap();
    assert_eq!(agent.call("get", &json!({"path": path}), b"").error.as_deref(), Some("too_large"));
    assert_eq!(
        agent.call("get", &json!({"path": path, "max_bytes": 1_999_999}), b"").error.as_deref(),
        Some("too_large")
    );
    assert_eq!(agent.call("get", &json!({"path": path, "max_bytes": 2_000_000}), b"").output.len(), 2_000_000);
    let beyond = agent.call("get", &json!({"path": path, "max_bytes": 64 * MIB + 1}), b"");
    assert_eq!(beyond.error.as_deref(), Some("bad_request"));
    // Files of /proc have no size; what they hold is counted while it is read.
    let stat = agent.call("get", &json!({"path": "/proc/self/stat"}), b"");
    assert!(stat.output.len() > 50 && stat.result["size_bytes"] == stat.output.len());
    assert_eq!(
        agent.call("get", &json!({"path": "/proc/stat", "max_bytes": 100}), b"").error.as_deref(),
        Some("too_large")
    );
    for path in ["/proc", "/dev/zero", "relative", ""] {
        assert_eq!(agent.call("get", &json!({"path": path}), b"").error.as_deref(), Some("bad_request"), "{path:?}");
    }
    assert_eq!(agent.call("get", &json!({"path": scratch.path("x")}), b"").error.as_deref(), Some("not_found"));
    let pipe = scratch.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    assert_eq!(agent.call("get", &json!({"path": pipe}), b"").error.as_deref(), Some("bad_request"));
}

#[test]
fn directories() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("directories");
    let deep = scratch.path("one/two");
    assert_eq!(agent.call("mkdir", &json!({"path": deep, "parents": false}), b"").error.as_deref(), Some("not_found"));
    assert_eq!(agent.call("mkdir", &json!({"path": deep, "mode": 0o1777}), b"").error, None);
    assert_eq!(fs::metadata(&deep).unwrap().permissions().mode() & 0o7777, 0o1777);
    // A directory that is there stays as it is.
    assert_eq!(agent.call("mkdir", &json!({"path": deep, "mode": 0o700}), b"").error, None);
    assert_eq!(fs::metadata(&deep).unwrap().permissions().mode() & 0o7777, 0o1777);
    assert_eq!(agent.call("mkdir", &json!({"path": deep, "parents": false}), b"").error.as_deref(), Some("io"));

    fs::write(scratch.path("one/file"), "12345").unwrap();
    symlink("/etc", scratch.path("one/link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path("one/socket")).unwrap();
    let listed = agent.call("list", &json!({"path": scratch.path("one")}), b"").result;
    let kinds: Vec<_> =
        listed["entries"].as_array().unwrap().iter().map(|e| (e["name"].as_str(), e["kind"].as_str())).collect();
    let expected = [("file", "file"), ("link", "link"), ("socket", "socket"), ("two", "directory")];
    assert_eq!(kinds, expected.map(|(name, kind)| (Some(name), Some(kind))));
    assert_eq!(listed["entries"][0]["size_bytes"], 5);
    assert_eq!(agent.call("list", &json!({"path": scratch.path("x")}), b"").error.as_deref(), Some("not_found"));

    for n in 0..6000 {
        fs::write(scratch.path(&format!("one/two/{n:0>60}")), "").unwrap();
    }
    assert_eq!(agent.call("list", &json!({"path": deep}), b"").error.as_deref(), Some("too_large"));
}

#[test]
fn removal_reaches_the_bottom_of_any_tree() {
    // Deeper than this process may have descriptors, and than a path may be long.
    const DEPTH: usize = 6000;
    let mut agent = Agent::start();
    let scratch = Scratch::new("depth");
    fs::create_dir(scratch.path("tree")).unwrap();
    let mut here: std::os::fd::OwnedFd = fs::File::open(scratch.path("tree")).unwrap().into();
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&here, "d", rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        here = rustix::fs::openat(&here, "d", flags, rustix::fs::Mode::empty()).unwrap();
    }
    drop(here);
    let answer = agent.call("remove", &json!({"path": scratch.path("tree"), "recursive": true}), b"");
    assert_eq!((answer.error, fs::symlink_metadata(scratch.path("tree")).is_err()), (None, true));
}

#[test]
fn removal_follows_no_links_and_crosses_no_mounts() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("removal");
    fs::create_dir_all(scratch.path("tree/a/b/c")).unwrap();
    fs::create_dir_all(scratch.path("other")).unwrap();
    fs::write(scratch.path("other/precious"), "").unwrap();
    fs::write(scratch.path("tree/a/file"), "").unwrap();
    symlink(scratch.path("other"), scratch.path("tree/a/b/link")).unwrap();
    symlink(scratch.path("other"), scratch.path("link")).unwrap();

    assert_eq!(agent.call("remove", &json!({"path": scratch.path("tree")}), b"").error.as_deref(), Some("io"));
    assert_eq!(agent.call("remove", &json!({"path": scratch.path("tree"), "recursive": true}), b"").error, None);
    assert_eq!(agent.call("remove", &json!({"path": scratch.path("link"), "recursive": true}), b"").error, None);
    assert!(fs::metadata(scratch.path("other/precious")).is_ok());
    assert!(fs::metadata(scratch.path("tree")).is_err() && fs::symlink_metadata(scratch.path("link")).is_err());
    for (path, code) in
        [(scratch.path("tree"), "not_found"), ("/".into(), "bad_request"), ("/..".into(), "bad_request")]
    {
        let answer = agent.call("remove", &json!({"path": path, "recursive": true}), b"");
        assert_eq!(answer.error.as_deref(), Some(code), "{path}");
    }

    // In a mount namespace of its own, an inner agent meets a bind mount of the same file system inside the tree.
    fs::create_dir_all(scratch.path("tree/mounted")).unwrap();
    let mounts = json!([{"kind": "bind", "source": scratch.path("other"), "target": scratch.path("tree/mounted")}]);
    let mut inner = common::Sender::new(Vec::new());
    inner.hello();
    inner.open("remove", &json!({"path": scratch.path("tree"), "recursive": true}));
    let bytes = inner.into_output();
    let controller = agent.controller();
    let stream = controller.sender.open("run", &json!({"argv": [common::AGENT], "mounts": mounts}));
    let first = controller.next_of(stream);
    if first.kind == Kind::Error {
        eprintln!("skipped: {} (mount namespaces need root)", first.json()["message"]);
        return;
    }
    controller.sender.data(stream, &bytes);
    let mut seen = String::new();
    while !seen.contains("is a mount point") {
        seen.push_str(&String::from_utf8_lossy(&controller.next_of(stream).payload));
    }
    assert!(fs::metadata(scratch.path("other/precious")).is_ok());
}

#[test]
fn counters_of_processes_and_machine() {
    let mut agent = Agent::start();
    let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 100 & echo ready; wait";
    let stream = agent.controller().sender.open("run", &json!({"argv": ["sh", "-c", script]}));
    let pid = agent.controller().next_of(stream).json()["pid"].as_i64().unwrap();
    assert_eq!(agent.controller().next_of(stream).payload, b"ready\n");

    let mut counters = |params: Value| agent.call("counters", &params, b"").result;
    let tree = counters(json!({"tree_of": pid, "machine": false}));
    assert_eq!((&tree["processes"]["count"], &tree["machine"]), (&json!(2), &Value::Null));
    // The busy child has ended; its time is its parent's.
    assert!(tree["processes"]["user_ns"].as_u64() > Some(20_000_000), "{tree}");
    let own = counters(json!({"pids": [pid]}));
    assert_eq!(own["processes"]["count"], 1);
    assert!(own["processes"]["user_ns"].as_u64() < tree["processes"]["user_ns"].as_u64(), "{own}");
    assert!(own["processes"]["voluntary_switches"].as_u64() > Some(0), "{own}");
    let machine = &own["machine"];
    assert!(machine["idle_ns"].as_u64() > Some(0) && machine["forks"].as_u64() > Some(0), "{machine}");
    assert!(counters(json!({"all": true}))["processes"]["count"].as_u64() > Some(2));
    assert_eq!(counters(json!({}))["processes"], Value::Null);
    assert_eq!(counters(json!({"pids": [0]}))["code"], "not_found");
    assert_eq!(counters(json!({"tree_of": 4_294_967_295_u32}))["code"], "not_found");
    assert_eq!(counters(json!({"pids": [1], "all": true}))["code"], "bad_request");
    assert_eq!(counters(json!({"pids": 1}))["code"], "bad_request");
}
