"""Channel and machine against the real agent, over pipes and sockets, nested and broken."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dbtoll.channel.client import Channel
from dbtoll.channel.frames import Decoder, Encoder, Frame, Kind, json_payload
from dbtoll.channel.handshake import controller_hello
from dbtoll.channel.pipe import PipeStream
from dbtoll.errors import AgentFailure, ChannelError, ProgramFailed, Unavailable
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits
from dbtoll.machines.agent.nested import agent_stream, connect_agent, open_nested
from dbtoll.model.machine import Artifact

try:
    AGENT = str(find_agent())
except Unavailable as lack:
    pytest.skip(f"{lack.message}: {lack.hint}", allow_module_level=True)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def machine() -> Iterator[AgentMachine]:
    with open_local() as local:
        yield local


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_hello_and_ping(machine: AgentMachine) -> None:
    assert machine.hello()["magic"] == "dbtoll"
    assert machine.hello()["clock"]["source"].startswith("CLOCK_MONOTONIC")
    times = [machine.call("ping", {})["at_ns"] for _ in range(10)]
    assert times == sorted(times)


# --- programs ---


def test_run(machine: AgentMachine) -> None:
    script = 'cat; echo "$GREETING" >&2; pwd; exit 3'
    completed = machine.run(["/bin/sh", "-c", script], input=b"in\n", env={"GREETING": "hi"}, cwd="/tmp", check=False)
    assert (completed.exit_code, completed.signal) == (3, None)
    assert completed.output == b"in\n/tmp\n"
    assert completed.error_output == b"hi\n"
    assert completed.usage["wall_ns"] > 0
    with pytest.raises(ProgramFailed, match="/bin/sh on local ended with exit code 3: hi"):
        machine.run(["/bin/sh", "-c", script], env={"GREETING": "hi"})


def test_run_searches_the_path_and_passes_no_other_environment(machine: AgentMachine) -> None:
    assert machine.run(["env"], env={"A": "1"}).output.splitlines()[0] == b"A=1"
    assert b"PYTHON" not in machine.run(["env"]).output


def test_run_ended_by_a_signal(machine: AgentMachine) -> None:
    completed = machine.run(["/bin/sh", "-c", "kill -9 $$"], check=False)
    assert (completed.exit_code, completed.signal) == (None, 9)


def test_no_such_program(machine: AgentMachine) -> None:
    with pytest.raises(AgentFailure) as caught:
        machine.run(["/no/such/program"])
    assert caught.value.code == "not_found"
    assert caught.value.detail["call"]


def test_a_program_beyond_its_time_is_killed_with_its_children(machine: AgentMachine) -> None:
    with pytest.raises(ProgramFailed, match="did not end within"):
        machine.run(["/bin/sh", "-c", "sleep 1000 & echo $! > $0; wait", f"/tmp/dbtoll-{os.getpid()}"], timeout_s=0.3)
    file = Path(f"/tmp/dbtoll-{os.getpid()}")
    child = int(file.read_text())
    file.unlink()
    until = time.monotonic() + 5
    while not gone(child) and time.monotonic() < until:
        time.sleep(0.02)
    assert gone(child)


def test_much_in_and_out_at_once(machine: AgentMachine) -> None:
    """Eight windows through a program that writes as it reads: neither side may wait for the other."""
    data = os.urandom(1 << 20) * 8
    assert machine.run(["/bin/cat"], input=data).output == data


def test_input_that_a_program_does_not_read(machine: AgentMachine) -> None:
    assert machine.run(["/bin/true"], input=bytes(4 << 20)).exit_code == 0


def test_too_much_output_is_an_error(machine: AgentMachine) -> None:
    with pytest.raises(ProgramFailed, match="at most 67108864 are taken"):
        machine.run(["/usr/bin/head", "-c", str((64 << 20) + 1), "/dev/zero"])


def test_spawn(machine: AgentMachine) -> None:
    process = machine.spawn(["/bin/sh", "-c", 'trap "echo bye; exit 7" TERM; echo ready; while :; do sleep 0.02; done'])
    until = time.monotonic() + 10
    while process.output() != b"ready\n" and time.monotonic() < until:
        time.sleep(0.01)
    assert process.running()
    assert not gone(process.pid)
    process.signal(signal.SIGTERM)
    completed = process.wait(10)
    assert completed.exit_code == 7
    assert completed.output == b"ready\nbye\n"
    assert not process.running()
    process.signal(signal.SIGTERM)
    assert machine.logs() == {f"sh-{process.pid}.log": b"ready\nbye\n"}


def test_a_spawned_program_may_write_without_end(machine: AgentMachine) -> None:
    process = machine.spawn(["/bin/sh", "-c", "head -c 20000000 /dev/zero; echo; echo the end"])
    assert process.wait(30).exit_code == 0
    assert process.output().startswith(b"[")
    assert process.output().endswith(b"\nthe end\n")
    assert len(process.output()) < (1 << 20) + 100


def test_cancel_stops_with_the_chosen_signal(machine: AgentMachine) -> None:
    process = machine.spawn(["/bin/sh", "-c", "trap 'exit 9' INT; while :; do sleep 0.02; done"], stop_signal=2)
    time.sleep(0.2)
    process.cancel()
    assert process.wait(10).exit_code == 9


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to mount")
def test_confinement(machine: AgentMachine) -> None:
    cpu = min(os.sched_getaffinity(0))
    script = "ulimit -n; grep Cpus_allowed_list /proc/self/status; cat /mnt/*; echo $$"
    here = str(Path(__file__).parent)
    mounts = ({"kind": "bind", "source": here, "target": "/mnt", "writable": False},)
    within = LaunchLimits(rlimits={"nofile": 77}, cpus=(cpu,), mounts=mounts)
    lines = machine.run(["/bin/sh", "-c", script], within=within).output.decode()
    assert lines.startswith("77\n")
    assert f"Cpus_allowed_list:\t{cpu}\n" in lines
    assert "def test_confinement" in lines
    assert not list(Path("/mnt").glob("test_agent.py"))


def test_local_affinity() -> None:
    own = os.sched_getaffinity(0)
    with open_local(cpus=[min(own)]) as pinned:
        assert pinned.facts()["cpus_allowed"] == str(min(own))
    assert os.sched_getaffinity(0) == own
    with pytest.raises(Unavailable, match="cannot be used here"):
        open_local(cpus=[100_000])


# --- files ---


def test_files(machine: AgentMachine, tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b")
    with pytest.raises(AgentFailure) as caught:
        machine.get(path)
    assert caught.value.code == "not_found"
    data = os.urandom(3_000_000)
    machine.put(path, data, mode=0o600, parents=True)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o600
    assert machine.get(path, max_bytes=3_000_000) == data
    with pytest.raises(AgentFailure) as caught:
        machine.get(path, max_bytes=2_999_999)
    assert caught.value.code == "too_large"
    machine.put(path, b"", in_place=False)
    assert machine.get(path) == b""
    assert machine.entries(str(tmp_path / "a")) == [{"name": "b", "kind": "file", "size_bytes": 0}]
    machine.mkdir(str(tmp_path / "c" / "d"))
    machine.remove(str(tmp_path / "a"), recursive=True)
    machine.remove(str(tmp_path / "c" / "d"), recursive=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
    with pytest.raises(AgentFailure) as caught:
        machine.remove(path)
    assert caught.value.code == "not_found"


def test_put_beyond_the_limit_sends_nothing_in_vain(machine: AgentMachine, tmp_path: Path) -> None:
    with pytest.raises(AgentFailure) as caught:
        machine.put(str(tmp_path / "big"), bytes((64 << 20) + 1))
    assert caught.value.code == "too_large"
    assert list(tmp_path.iterdir()) == []
    assert machine.call("ping", {})["at_ns"] > 0


def test_provide(machine: AgentMachine, tmp_path: Path) -> None:
    assert machine.provide(Artifact("k", str(tmp_path))) == str(tmp_path)
    with pytest.raises(Unavailable, match="local has no directory"):
        machine.provide(Artifact("k", str(tmp_path / "no")))


def test_facts(machine: AgentMachine) -> None:
    facts = machine.facts()
    assert facts["kernel_release"] == os.uname().release
    assert facts["page_bytes"] == os.sysconf("SC_PAGE_SIZE")
    assert facts["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert set(facts["missing"]) == {name for name, value in facts.items() if value is None}


def test_counters(machine: AgentMachine) -> None:
    process = machine.spawn(["/bin/sh", "-c", "while :; do :; done"])
    first = machine.counters(tree_of=process.pid)
    time.sleep(0.3)
    second = machine.counters(tree_of=process.pid)
    assert second["processes"]["count"] == 1
    assert second["processes"]["user_ns"] > first["processes"]["user_ns"]
    assert second["machine"]["context_switches"] > first["machine"]["context_switches"]
    brief = machine.counters(tree_of=process.pid, brief=True)
    assert (brief["machine"], brief["processes"]["run_ns"]) == (None, None)
    assert brief["processes"]["user_ns"] >= second["processes"]["user_ns"]


# --- many streams ---


def test_many_streams_at_once(machine: AgentMachine) -> None:
    """More than the windows hold, in and out, on sixteen streams of one line."""
    data = [os.urandom(1 << 16) * 24 for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        outputs = list(pool.map(lambda each: machine.run(["/bin/cat"], input=each).output, data))
    assert outputs == data


def test_a_relay_that_nobody_reads_blocks_no_other(machine: AgentMachine) -> None:
    blocked = agent_stream(machine, ["/usr/bin/yes"])
    deaf = agent_stream(machine, ["/bin/sleep", "1000"])
    writing = ThreadPoolExecutor(1).submit(deaf.write, bytes(4 << 20))
    time.sleep(0.3)
    data = os.urandom(4 << 20)
    started = time.monotonic()
    assert machine.run(["/bin/cat"], input=data).output == data
    assert time.monotonic() - started < 10
    assert blocked.read(4) == b"y\ny\n"
    assert not writing.done()
    for stream in (deaf, blocked):
        stream._stream.cancel()
        stream.close()
    assert isinstance(writing.exception(10), ChannelError)


def test_too_many_streams_are_refused(machine: AgentMachine) -> None:
    allowed = machine.hello()["max_streams"]
    streams = [machine.channel.open("connect", {"tcp": ["127.0.0.1", 9], "timeout_ms": 60_000}) for _ in range(2)]
    for stream in streams:
        stream.wait(5)
    sleeping = [machine.channel.open("run", {"argv": ["/bin/sleep", "1000"]}) for _ in range(allowed)]
    with pytest.raises(AgentFailure) as caught:
        machine.call("ping", {})
    assert caught.value.code == "refused"
    for stream in sleeping:
        stream.cancel()
    for stream in sleeping:
        assert stream.wait(30)
    assert machine.call("ping", {})["at_ns"] > 0


# --- sockets ---


@pytest.fixture
def echo_server(tmp_path: Path) -> Iterator[str]:
    """A Unix socket that answers with everything it got once its input has ended, one connection."""
    path = str(tmp_path / "echo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield path
    listener.close()


def read_all(stream: object) -> bytes:
    return b"".join(iter(lambda: stream.read(1 << 16), b""))  # type: ignore[attr-defined]


def test_connect(machine: AgentMachine, echo_server: str) -> None:
    stream = machine.connect(unix=echo_server, stamps=True)
    before_ns = machine.call("ping", {})["at_ns"]
    data = os.urandom(3_000_000)
    stream.write(data)
    stream.half_close()
    assert read_all(stream) == data
    after_ns = machine.call("ping", {})["at_ns"]
    written_ns, read_ns = stream.written_at(len(data)), stream.read_at(1)
    assert written_ns is not None
    assert read_ns is not None
    assert before_ns < written_ns < read_ns < after_ns
    assert stream.read_at(len(data)) >= read_ns
    assert stream.written_at(1) <= written_ns
    assert stream.written_at(len(data) + 1) is None
    stream.close()


def test_nobody_listens(machine: AgentMachine, tmp_path: Path) -> None:
    with pytest.raises(AgentFailure) as caught:
        machine.connect(unix=str(tmp_path / "no")).read(1)
    assert caught.value.code == "not_found"
    with pytest.raises(ChannelError) as broken:
        connect_agent(machine, "inner", str(tmp_path / "no"), patience_s=0.1)
    assert "inner" in broken.value.message


def test_an_agent_behind_a_socket_that_comes_late(machine: AgentMachine, tmp_path: Path) -> None:
    path = str(tmp_path / "agent")
    process = machine.spawn(["/bin/sh", "-c", f"sleep 0.3; exec {AGENT} serve --unix {path}"])
    with AgentMachine("inner", connect_agent(machine, "inner", path)) as inner:
        assert inner.run(["/bin/echo", "hi"]).output == b"hi\n"
    assert process.wait(10).exit_code == 0


# --- nested ---


def test_nested_agents_are_bracketed_by_the_outermost(machine: AgentMachine) -> None:
    with (
        open_nested(machine, "middle", [AGENT, "serve"])[0] as middle,
        open_nested(middle, "inner", [AGENT, "serve"])[0] as inner,
    ):
        data = os.urandom(2 << 20)
        assert inner.run(["/bin/cat"], input=data).output == data
        for nested in (middle, inner):
            before_ns = machine.call("ping", {})["at_ns"]
            stream = nested.channel.open("ping", {})
            at_ns = stream.result()["at_ns"]
            line = nested.channel.line
            written_ns = line.written_at(stream.written_count)
            read_ns = line.read_at(line._read_count)
            after_ns = machine.call("ping", {})["at_ns"]
            # One kernel, one clock: the bracket of the outermost agent closes around what the innermost says.
            assert before_ns < written_ns < after_ns
            assert before_ns < at_ns < read_ns < after_ns
        assert middle.channel.line._outer is None
        assert inner.channel.line._outer is middle.channel.line


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to mount")
def test_a_nested_agent_in_namespaces(machine: AgentMachine) -> None:
    within = LaunchLimits(unshare=("pid",), mounts=({"kind": "proc", "target": "/proc"},))
    inner, line = open_nested(machine, "inner", [AGENT, "serve"], within=within)
    with inner:
        assert inner.run(["/bin/sh", "-c", "echo $$; cat /proc/1/comm"]).output.splitlines()[-1] == b"dbtoll-agent"
        assert inner.hello()["pid"] < 10
    assert line.last_words() == "exit code 0"


def test_close_ends_every_program(machine: AgentMachine) -> None:
    inner, _ = open_nested(machine, "inner", [AGENT, "serve"])
    stubborn = inner.spawn(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"], stop_grace_ms=200)
    forked = inner.spawn(["/bin/sh", "-c", "sleep 1000 & sleep 1000"])
    pids = [stubborn.pid, forked.pid, inner.hello()["pid"]]
    inner.close()
    assert all(gone(pid) for pid in pids)
    assert machine.run(["/bin/true"]).exit_code == 0
    with pytest.raises(ChannelError, match="the line to inner was closed here"):
        inner.run(["/bin/true"])


# --- broken lines ---


def test_a_killed_agent_fails_everything_with_one_error() -> None:
    machine = open_local()
    process = machine.spawn(["/bin/sleep", "1000"])
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(machine.run, ["/bin/sleep", "1000"]) for _ in range(3)]
        time.sleep(0.3)
        os.kill(machine.hello()["pid"], signal.SIGKILL)
        errors = [each.exception(timeout=10) for each in running]
    assert {str(error) for error in errors} == {str(machine.channel.failure)}
    assert all(isinstance(error, ChannelError) for error in errors)
    assert machine.channel.failure is not None
    assert "the line to local broke" in machine.channel.failure.message
    assert "killed by SIGKILL" in machine.channel.failure.message
    assert not process.running()
    machine.close()
    until = time.monotonic() + 5
    while not gone(process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert gone(process.pid)


def test_a_killed_nested_agent_leaves_its_parent_well(machine: AgentMachine) -> None:
    inner, _ = open_nested(machine, "inner", [AGENT, "serve"])
    os.kill(inner.hello()["pid"], signal.SIGKILL)
    with pytest.raises(ChannelError, match=r"the line to inner broke: .*killed by signal 9"):
        inner.run(["/bin/sleep", "10"])
    inner.close()
    assert machine.run(["/bin/true"]).exit_code == 0


def test_what_is_no_agent_says_why(machine: AgentMachine) -> None:
    with pytest.raises(ChannelError, match=r"the line to inner broke: its agent ended \(exit code 3; no agent here\)"):
        open_nested(machine, "inner", ["/bin/sh", "-c", "echo no agent here >&2; exit 3"])
    with pytest.raises(ChannelError, match="/no/such/agent"):
        open_nested(machine, "inner", ["/no/such/agent"])


def answers(data: bytes) -> tuple[list[Frame], int]:
    """What a fresh agent answers to these bytes, and its exit code."""
    process = subprocess.run([AGENT, "serve"], input=data, capture_output=True, timeout=20, check=False)
    assert b"panic" not in process.stderr
    decoder, frames = Decoder(), []
    decoder.feed(process.stdout)
    while (frame := decoder.take()) is not None:
        frames.append(frame)
    return frames, process.returncode


def hello_bytes(encoder: Encoder) -> bytes:
    return encoder.encode(Kind.HELLO, 0, json_payload(controller_hello()))


def hostile(length: int, version: int = 1, kind: int = 3) -> bytes:
    header = b"dbtl" + bytes([version, kind]) + bytes(2) + b"".join(n.to_bytes(4, "little") for n in (1, 1, length))
    return header + zlib.crc32(header).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("after_hello", "code"),
    [
        (b"garbage, much more than a header holds" * 3, "protocol"),
        (hostile(0xFFFFFFFF), "protocol"),
        (hostile(262_145), "protocol"),
        (hostile(0, version=2), "version"),
        (hostile(0, kind=9), "protocol"),
    ],
)
def test_the_agent_refuses_garbage(after_hello: bytes, code: str) -> None:
    frames, _ = answers(hello_bytes(Encoder()) + after_hello)
    assert [frame.kind for frame in frames] == [Kind.HELLO, Kind.ERROR]
    assert frames[1].json()["code"] == code
    if code == "version":
        assert "2" in frames[1].json()["message"]
        assert "1" in frames[1].json()["message"]


def test_the_agent_refuses_endless_boot_messages() -> None:
    frames, _ = answers(b"#" * 70_000)
    assert [frame.kind for frame in frames] == [Kind.ERROR]
    assert frames[0].json()["code"] == "protocol"


def test_garbage_from_the_line_is_one_clear_error() -> None:
    with pytest.raises(ChannelError, match="no HELLO within the first 65536 bytes") as caught:
        Channel(PipeStream(["/usr/bin/head", "-c", "100000", "/dev/zero"]), "noise")
    assert "raw" in caught.value.hint
    with pytest.raises(ChannelError, match="without a HELLO"):
        Channel(PipeStream(["/bin/echo", "login:"]), "noise")
