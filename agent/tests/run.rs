//! Programs: their surroundings, their end, and what the agent does to them.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use common::{AGENT, Agent, Answer, Scratch, is_alive, spawn, wait_for, wait_until};
use serde_json::{Value, json};

fn shell(script: &str) -> Value {
    json!({"argv": ["sh", "-c", script]})
}

fn with(mut params: Value, more: Value) -> Value {
    let (Value::Object(params_map), Value::Object(more)) = (&mut params, more) else { unreachable!() };
    params_map.extend(more);
    params
}

fn text(answer: &Answer) -> &str {
    assert_eq!(answer.error, None, "{:?}", answer.result);
    std::str::from_utf8(&answer.output).unwrap()
}

/// Whether this machine lets us do what only root may; says so where not.
fn may_mount(agent: &mut Agent) -> bool {
    let answer = agent.call("run", &json!({"argv": ["true"], "mounts": []}), b"");
    if answer.error.is_some() {
        eprintln!("skipped: {} (mount namespaces need root)", answer.result["message"]);
    }
    answer.error.is_none()
}

#[test]
fn output_input_and_result() {
    let mut agent = Agent::start();
    let answer = agent.call("run", &shell("tr a-z A-Z; echo problem >&2; exit 7"), b"words\n");
    assert_eq!((answer.output.as_slice(), answer.error_output.as_slice()), (&b"WORDS\n"[..], &b"problem\n"[..]));
    let result = &answer.result;
    assert_eq!((result["exit_code"].as_i64(), result["signal"].as_i64()), (Some(7), None));
    assert!(result["wall_ns"].as_u64() > Some(100_000) && result["max_rss_bytes"].as_u64() > Some(500_000));
    assert!(answer.control[0]["pid"].as_i64() > Some(1) && answer.control[0]["at_ns"].as_u64() > Some(0));
    assert_eq!(agent.call("run", &shell("kill -TERM $$"), b"").result["signal"], 15);
}

#[test]
fn usage_is_the_programs_own() {
    let mut agent = Agent::start();
    let result = agent.call("run", &shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"), b"").result;
    let time = |key: &str| result[key].as_u64().unwrap();
    assert!(
        time("user_ns") > 10_000_000 && time("user_ns") + time("system_ns") <= time("wall_ns") * 11 / 10,
        "{result}"
    );
}

#[test]
fn the_environment_is_what_was_given() {
    let mut agent = Agent::start();
    let answer = agent.call("run", &json!({"argv": ["env"], "env": {"A": "b c"}}), b"");
    let mut lines: Vec<_> = text(&answer).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["A=b c", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
    assert_eq!(text(&agent.call("run", &json!({"argv": ["pwd"]}), b"")), "/\n");
    assert_eq!(text(&agent.call("run", &json!({"argv": ["pwd"], "cwd": "/usr"}), b"")), "/usr\n");
    let limits = with(shell("ulimit -n; ulimit -c"), json!({"rlimits": {"nofile": 123, "core": 0}}));
    assert_eq!(text(&agent.call("run", &limits, b"")), "123\n0\n");
    let cpus = with(shell("grep Cpus_allowed_list /proc/self/status"), json!({"cpus": [0]}));
    assert_eq!(text(&agent.call("run", &cpus, b"")), "Cpus_allowed_list:\t0\n");
    // Nothing of the agent leaks in: three descriptors and ls's own, no ignored or blocked signals, a session of its own.
    assert_eq!(text(&agent.call("run", &json!({"argv": ["ls", "/proc/self/fd"]}), b"")), "0\n1\n2\n3\n");
    let signals = text(&agent.call("run", &shell("grep -E 'SigBlk|SigIgn' /proc/self/status"), b"")).to_owned();
    assert!(signals.lines().all(|line| line.ends_with("\t0000000000000000")), "{signals}");
    let answer = agent.call("run", &shell("cut -d' ' -f1,5,6 /proc/self/stat; echo $$"), b"");
    let words: Vec<i64> = text(&answer).split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!((words[1], words[2]), (words[3], words[3]), "process group and session");
}

#[test]
fn no_shell_and_no_other_search() {
    let mut agent = Agent::start();
    let hostile = ["/bin/echo", "$(id)", "; id", "`id`", "*", "|id"];
    assert_eq!(text(&agent.call("run", &json!({"argv": hostile}), b"")), "$(id) ; id `id` * |id\n");
    let answer = agent.call("run", &json!({"argv": ["true"], "env": {"PATH": "/nowhere"}}), b"");
    assert_eq!((answer.error.as_deref(), answer.result["detail"]["call"].as_str()), (Some("not_found"), Some("exec")));
}

#[test]
fn failures_name_their_step() {
    let mut agent = Agent::start();
    let steps = [
        (json!({"argv": ["/nonexistent"]}), "not_found", "exec"),
        (json!({"argv": ["/etc/passwd"]}), "io", "exec"),
        (json!({"argv": ["true"], "cwd": "/nonexistent"}), "not_found", "chdir"),
        (json!({"argv": ["true"], "cgroups": ["/nonexistent"]}), "not_found", "cgroup"),
        (json!({"argv": ["true"], "root": "/nonexistent"}), "not_found", "chroot"),
        (json!({"argv": ["true"], "cpus": [1000]}), "io", "sched_setaffinity"),
    ];
    for (params, code, call) in steps {
        let answer = agent.call("run", &params, b"");
        let got = (answer.error.as_deref(), answer.result["detail"]["call"].as_str());
        // Without root, chroot is refused before the path is looked at.
        if call != "chroot" || rustix::process::geteuid().is_root() {
            assert_eq!(got, (Some(code), Some(call)), "{:?}", answer.result);
        }
        assert!(answer.result["detail"]["errno"].as_i64() > Some(0));
    }
    let refused = [
        json!({}),
        json!({"argv": []}),
        json!({"argv": "true"}),
        json!({"argv": ["true"], "colour": "blue"}),
        json!({"argv": ["true\u{0}"]}),
        json!({"argv": ["true"], "env": {"A=": "b"}}),
        json!({"argv": ["true"], "cwd": "relative"}),
        json!({"argv": ["true"], "unshare": ["user"]}),
        json!({"argv": ["true"], "rlimits": {"files": 3}}),
        json!({"argv": ["true"], "rlimits": {"nofile": -1}}),
        json!({"argv": ["true"], "cpus": []}),
        json!({"argv": ["true"], "cpus": [1024]}),
        json!({"argv": ["true"], "stop_signal": 0}),
        json!({"argv": ["true"], "mounts": [{"kind": "bind", "target": "/mnt"}]}),
        json!({"argv": ["true"], "mounts": [{"kind": "ext4", "target": "/mnt"}]}),
        json!({"argv": ["true"], "mounts": [{"kind": "proc", "target": "mnt"}]}),
        json!({"argv": ["true"], "mounts": [{"kind": "overlay", "target": "/mnt"}]}),
    ];
    for params in refused {
        assert_eq!(agent.call("run", &params, b"").error.as_deref(), Some("bad_request"), "{params}");
    }
}

#[test]
fn a_timeout_kills_all_of_it() {
    let mut agent = Agent::start();
    let start = Instant::now();
    let answer =
        agent.call("run", &with(shell("setsid sleep 98 & echo $!; sleep 99"), json!({"timeout_ms": 200})), b"");
    assert_eq!(answer.error.as_deref(), Some("timeout"));
    assert!(start.elapsed() < Duration::from_secs(3));
    let left: i64 = String::from_utf8(answer.output).unwrap().trim().parse().unwrap();
    wait_until("the daemon's end", || (!is_alive(left)).then_some(()));
}

#[test]
fn cancelling_stops_politely_and_then_by_force() {
    let mut agent = Agent::start();
    let polite =
        with(shell("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done"), json!({"stop_signal": 15}));
    let stream = agent.controller().sender.open("run", &polite);
    assert!(agent.controller().next_of(stream).json()["pid"].is_number());
    assert_eq!(agent.controller().next_of(stream).payload, b"up\n");
    agent.controller().sender.cancel(stream);
    let answer = agent.controller().answer(stream);
    assert_eq!((answer.output.as_slice(), answer.result["exit_code"].as_i64()), (&b"bye\n"[..], Some(3)));

    let stubborn = with(
        shell("trap '' TERM; echo up; while :; do sleep 0.01; done"),
        json!({"stop_signal": 15, "stop_grace_ms": 100}),
    );
    let stream = agent.controller().sender.open("run", &stubborn);
    agent.controller().next_of(stream);
    agent.controller().next_of(stream);
    agent.controller().sender.cancel(stream);
    assert_eq!(agent.controller().answer(stream).result["signal"], 9);
}

#[test]
fn signals_reach_own_children_only() {
    let mut agent = Agent::start();
    let stream = agent.controller().sender.open("run", &json!({"argv": ["sleep", "100"]}));
    let pid = agent.controller().next_of(stream).json()["pid"].as_i64().unwrap();
    for (foreign, signal) in [(1, 9), (i64::from(std::process::id()), 15), (0, 9), (-1, 9)] {
        let answer = agent.call("signal", &json!({"pid": foreign, "signal": signal}), b"");
        assert_eq!(answer.error.as_deref(), Some("not_found"), "{foreign}");
    }
    assert_eq!(agent.call("signal", &json!({"pid": pid, "signal": 99}), b"").error.as_deref(), Some("bad_request"));
    assert_eq!(agent.call("signal", &json!({"pid": pid, "signal": 15, "group": true}), b"").error, None);
    assert_eq!(agent.controller().answer(stream).result["signal"], 15);
    assert_eq!(agent.call("signal", &json!({"pid": pid, "signal": 15}), b"").error.as_deref(), Some("not_found"));
}

#[test]
fn a_daemon_does_not_hold_its_starters_stream() {
    let mut agent = Agent::start();
    let start = Instant::now();
    let answer = agent.call("run", &shell("sleep 97 & echo $!"), b"");
    assert!(start.elapsed() < Duration::from_secs(5));
    let daemon = text(&answer).trim().parse().unwrap();
    assert!(is_alive(daemon), "a daemon outlives its starter");
    assert!(agent.finish().success());
    assert!(!is_alive(daemon), "but not the agent");
}

#[test]
fn all_output_before_the_end_arrives() {
    let mut agent = Agent::start();
    for _ in 0..20 {
        let answer = agent.call("run", &shell("head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2"), b"");
        assert_eq!((answer.output.len(), answer.error_output.len()), (60_000, 60_000));
    }
}

#[test]
fn programs_end_with_the_connection() {
    let mut agent = Agent::start();
    let scratch = Scratch::new("ends");
    let flag = scratch.path("flag");
    let script = format!("trap 'echo stopped > {flag}; exit' TERM; while :; do sleep 0.01; done");
    let polite = agent.controller().sender.open("run", &with(shell(&script), json!({"stop_signal": 15})));
    let abrupt = agent.controller().sender.open("run", &shell("sleep 96 & sleep 95"));
    let pids = [polite, abrupt].map(|stream| agent.controller().next_of(stream).json()["pid"].as_i64().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    assert!(agent.finish().success());
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    assert_eq!(fs::read_to_string(flag).unwrap(), "stopped\n");
}

#[test]
fn programs_end_with_a_terminated_or_killed_agent() {
    for (signal, code) in [(rustix::process::Signal::TERM, Some(0)), (rustix::process::Signal::KILL, None)] {
        let mut agent = Agent::start();
        let stream = agent.controller().sender.open("run", &json!({"argv": ["sleep", "94"]}));
        let pid = agent.controller().next_of(stream).json()["pid"].as_i64().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&agent.process), signal).unwrap();
        assert_eq!(wait_for(&mut agent.process).code(), code);
        wait_until("the program's end", || (!is_alive(pid)).then_some(()));
    }
}

#[test]
fn root_user_and_mounts() {
    let mut agent = Agent::start();
    if !may_mount(&mut agent) {
        return;
    }
    let scratch = Scratch::new("root");
    for folder in ["etc", "proc", "dev", "dev/shm", "dev/pts", "tmp", "usr", "shared", "readonly"] {
        fs::create_dir_all(scratch.path(&format!("root/{folder}"))).unwrap();
    }
    for link in ["bin", "lib", "lib64", "sbin"].into_iter().filter(|link| fs::metadata(format!("/{link}")).is_ok()) {
        std::os::unix::fs::symlink(format!("usr/{link}"), scratch.path(&format!("root/{link}"))).unwrap();
    }
    fs::write(scratch.path("root/etc/passwd"), "keeper:x:4321:4322::/:/bin/sh\n").unwrap();
    fs::write(scratch.path("root/etc/group"), "keepers:x:4322:\nmore:x:4323:other,keeper\n").unwrap();
    fs::create_dir(scratch.path("outside")).unwrap();
    fs::set_permissions(scratch.path("outside"), fs::Permissions::from_mode(0o777)).unwrap();

    let root = scratch.path("root");
    let inside = |path: &str| format!("{root}/{path}");
    let mounts = json!([
        {"kind": "rbind", "source": "/usr", "target": inside("usr"), "writable": false},
        {"kind": "proc", "target": inside("proc")},
        {"kind": "tmpfs", "target": inside("dev/shm"), "size_bytes": 1_048_576, "mode": 0o1777},
        {"kind": "devpts", "target": inside("dev/pts")},
        {"kind": "bind", "source": scratch.path("outside"), "target": inside("shared")},
        {"kind": "bind", "source": scratch.path("outside"), "target": inside("readonly"), "writable": false},
        {"kind": "bind", "source": scratch.path("outside"), "target": inside("dev/shm/made"), "make": true},
    ]);
    let script = "id; echo $$; pwd; df -k /dev/shm | tail -1; echo yes > /shared/made; \
        touch /readonly/x || echo refused; touch /usr/x || echo refused; cut -d' ' -f5 /proc/self/mountinfo | sort; hostname";
    let params = with(
        shell(script),
        json!({"root": root, "mounts": mounts, "user": "keeper", "unshare": ["pid", "ipc", "uts"], "cwd": "/shared"}),
    );
    let answer = agent.call("run", &params, b"");
    let output = text(&answer);
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines[0], "uid=4321(keeper) gid=4322(keepers) groups=4322(keepers),4323(more)", "{output}");
    assert_eq!(&lines[1..3], ["1", "/shared"], "{output}");
    assert!(lines[3].starts_with("tmpfs") && lines[3].contains(" 1024 "), "{output}");
    assert_eq!(&lines[4..6], ["refused", "refused"]);
    // The root is a mount point itself.
    assert_eq!(
        &lines[6..14],
        ["/", "/dev/pts", "/dev/shm", "/dev/shm/made", "/proc", "/readonly", "/shared", "/usr"],
        "{output}"
    );
    let made = fs::metadata(scratch.path("outside/made")).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o777), (4321, 0o644));
    assert_eq!(answer.result["exit_code"], 0);

    let outside = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!outside.contains(&root), "mounts show outside");

    // The kernel refuses a user namespace to a program in a chroot. Some hosts refuse it to all.
    let unshare = ["unshare", "--user", "true"];
    let free = agent.call("run", &json!({"argv": unshare}), b"").result["exit_code"].clone();
    let answer = agent.call("run", &json!({"argv": unshare, "root": root, "mounts": mounts}), b"");
    assert_eq!(answer.result["exit_code"], free, "{answer:?}");
    let chrooted = agent.call("run", &json!({"argv": ["true"], "root": "/"}), b"");
    assert_eq!(chrooted.result["exit_code"], 0, "without mounts of its own it shares the namespace: {chrooted:?}");

    // A program that is process 1 of its own namespace is timed, signalled and ended like any other.
    let params = json!({"argv": ["sleep", "93"], "unshare": ["pid"], "mounts": []});
    let stream = agent.controller().sender.open("run", &params);
    let pid = agent.controller().next_of(stream).json()["pid"].as_i64().unwrap();
    assert!(is_alive(pid));
    agent.controller().sender.cancel(stream);
    assert_eq!(agent.controller().answer(stream).result["signal"], 9);

    for (user, code) in [("nobody-here", "not_found"), ("1:x", "bad_request")] {
        let answer = agent.call("run", &json!({"argv": ["true"], "user": user}), b"");
        assert_eq!(answer.error.as_deref(), Some(code), "{user}");
    }
    let failed = json!([{"kind": "bind", "source": "/nonexistent", "target": inside("tmp")}]);
    let answer = agent.call("run", &json!({"argv": ["true"], "mounts": failed}), b"");
    assert_eq!(
        (answer.error.as_deref(), answer.result["detail"]["call"].as_str()),
        (Some("not_found"), Some("mount")),
        "{:?}",
        answer.result
    );
}

#[test]
fn as_process_1_it_reaps_orphans_and_obeys_sigterm() {
    let mut outer = Agent::start();
    if !may_mount(&mut outer) {
        return;
    }
    let mounts = json!([{"kind": "proc", "target": "/proc"}]);
    let params = json!({"argv": [AGENT, "serve"], "unshare": ["pid"], "mounts": mounts, "stop_signal": 15});
    let stream = outer.controller().sender.open("run", &params);
    outer.controller().next_of(stream);
    let mut inner = common::Sender::new(Vec::new());
    inner.hello();
    // Orphans by the dozen, and a program of its own whose status must not be lost among them.
    inner.open("run", &shell("for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.05 &) ; done; sleep 0.1; exit 5"));
    inner.end(1);
    inner.open("run", &shell("sleep 0.5; cat /proc/[0-9]*/stat | grep -c ' Z '; sleep 92"));
    let bytes = inner.into_output();
    outer.controller().sender.data(stream, &bytes);
    // The inner frames come in pieces; the answers to look for are text in them.
    let mut seen = String::new();
    while !(seen.contains("\"exit_code\":5") && seen.contains("dbtl") && seen.ends_with("0\n")) {
        seen.push_str(&String::from_utf8_lossy(&outer.controller().next_of(stream).payload));
    }
    outer.controller().sender.cancel(stream);
    let answer = outer.controller().answer(stream);
    assert_eq!(answer.result["exit_code"], 0, "{:?}", answer.result);
}

#[test]
fn a_removed_binary_still_starts_programs() {
    let scratch = Scratch::new("removed");
    let copy = scratch.path("agent");
    // By a process of its own: a program that is open for writing cannot be started, and a file that this process has open is
    // open in all children that the tests beside this one fork meanwhile (execve(2), ETXTBSY).
    assert!(std::process::Command::new("cp").args([AGENT, &copy]).status().unwrap().success());
    let mut command = std::process::Command::new(&copy);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut process = command.spawn().unwrap();
    let (input, output) = (process.stdout.take().unwrap(), process.stdin.take().unwrap());
    let mut controller = common::Controller::new(input, output);
    fs::remove_file(&copy).unwrap();
    assert_eq!(text(&controller.call("run", &json!({"argv": ["echo", "still"]}), b"")), "still\n");
    drop(controller);
    assert!(wait_for(&mut process).success());
}

#[test]
fn version_is_told() {
    let mut process = spawn(&["version"]);
    let mut output = String::new();
    process.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(output.starts_with("dbtoll-agent 0.") && wait_for(&mut process).success(), "{output}");
}
