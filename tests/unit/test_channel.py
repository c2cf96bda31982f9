"""The controller's side against a scripted agent: the other end of a socket pair, spoken to frame by frame."""

from __future__ import annotations

import json
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbtoll.channel.client import Channel
from dbtoll.channel.frames import FrameError, Kind, credit_payload, json_payload
from dbtoll.channel.output_buffer import Head, Tail
from dbtoll.channel.relay import ByteTimestamps, RelayStream
from dbtoll.channel.stream import CONTROL, ERROR_OUTPUT, MAIN
from dbtoll.errors import AgentFailure, ChannelError, EngineError, ProgramFailed, Unavailable
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.agent.session import SerialSession
from dbtoll.model.experiment import VisitTiming
from dbtoll.model.json import Json
from dbtoll.model.machine import Address, Artifact
from dbtoll.model.reply import AnswerReference, Statement, VisitReply
from tests.support.scripted_agent import ENDED, HELLO, USAGE, Later, ScriptedAgent

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    scripted = ScriptedAgent()
    yield scripted
    scripted.end.close()
    scripted.line.close()


# --- handshake ---


def test_hello(agent: ScriptedAgent) -> None:
    channel = agent.connect({"unknown": 1})
    assert channel.hello["build"] == "0.1.0"
    assert channel.hello["unknown"] == 1
    channel.close()
    channel.close()


def test_boot_messages_are_skipped(agent: ScriptedAgent) -> None:
    agent.end.sendall(b"[    0.000000] Linux version 6.1\r\nlogin: dbt")
    assert agent.connect().hello["pid"] == 17


def test_nobody_there(agent: ScriptedAgent) -> None:
    agent.end.sendall(b"login: ")
    with pytest.raises(ChannelError, match=r"no agent answered on the line to arm within 0\.1 s"):
        Channel(agent.line, "arm", greeting_timeout_s=0.1)
    assert agent.line.closed


def test_nothing_is_said_before_a_booting_machine_gives_a_sign(agent: ScriptedAgent) -> None:
    greeted = Later(lambda: Channel(agent.line, "arm", waits_for_sign=True))
    agent.end.settimeout(0.2)
    with pytest.raises(TimeoutError):
        agent.receive()
    agent.end.settimeout(10)
    agent.end.sendall(b"dbtoll-agent is ready\n")
    agent.expect(Kind.HELLO, 0)
    agent.send(Kind.HELLO, 0, HELLO)
    assert greeted.get().hello["pid"] == 17


def test_a_machine_that_gives_no_sign_is_given_up(agent: ScriptedAgent) -> None:
    with pytest.raises(ChannelError, match="no agent answered"):
        Channel(agent.line, "arm", waits_for_sign=True, greeting_timeout_s=0.1)


def test_no_byte_beyond_what_the_line_holds(agent: ScriptedAgent) -> None:
    """An agent on a terminal: so many bytes may be on their way, until it grants what it has taken."""
    channel = agent.connect({"line_bytes": 100})
    call = Later(lambda: channel.call("ping", {"filler": "x" * 500}))
    pieces = []
    while (frame := agent.decoder.take()) is None:
        agent.end.settimeout(10)
        piece = agent.end.recv(1 << 16)
        agent.end.settimeout(0.05)
        with pytest.raises(TimeoutError):
            piece += agent.end.recv(1)
        pieces.append(len(piece))
        agent.decoder.feed(piece)
        agent.send(Kind.CREDIT, 0, credit_payload(len(piece)))
    agent.end.settimeout(10)
    assert frame.kind is Kind.OPEN
    assert max(pieces) == 100
    agent.send(Kind.END, 1, {"at_ns": 1})
    assert call.get() == {"at_ns": 1}


def test_credit_for_a_line_that_needs_none_breaks_the_protocol(agent: ScriptedAgent) -> None:
    channel = agent.connect()
    agent.send(Kind.CREDIT, 0, credit_payload(1))
    with pytest.raises(ChannelError, match="needs none"):
        channel.call("ping", {})


def test_an_echoing_line(agent: ScriptedAgent) -> None:
    def echo() -> None:
        agent.end.sendall(agent.end.recv(4096))

    echoing = Later(echo)
    with pytest.raises(ChannelError) as caught:
        Channel(agent.line, "arm")
    echoing.get()
    assert "raw" in caught.value.hint


def test_an_agent_of_a_newer_version(agent: ScriptedAgent) -> None:
    frame = bytearray(agent.encoder.encode(Kind.HELLO, 0, json_payload(HELLO)))
    frame[4] = 2
    frame[20:24] = zlib.crc32(frame[24:], zlib.crc32(frame[:20])).to_bytes(4, "little")
    agent.end.sendall(frame)
    with pytest.raises(ChannelError) as caught:
        Channel(agent.line, "arm")
    assert "arm" in caught.value.message
    assert "version 2" in caught.value.message
    assert "version 1" in caught.value.message
    assert "./dbtoll setup" in caught.value.hint
    agent.expect(Kind.HELLO, 0)
    assert agent.expect(Kind.ERROR, 0).json()["code"] == "version"


def test_an_agent_that_finds_us_too_new(agent: ScriptedAgent) -> None:
    message = "the other side speaks protocol version 1, this one 0"
    agent.send(Kind.ERROR, 0, {"code": "version", "message": message, "detail": {}})
    with pytest.raises(ChannelError) as caught:
        Channel(agent.line, "arm")
    assert message in caught.value.message
    assert "./dbtoll setup" in caught.value.hint


def controller_vectors(name: str) -> list[Any]:
    read = json.loads((VECTORS / name).read_text())
    chosen = [each for each in read if each["context"] is None or each["context"]["receiver"] == "controller"]
    return [pytest.param(each, id=each["name"]) for each in chosen]


def play(agent: ScriptedAgent, vector: Any) -> tuple[ChannelError, list[Any]]:
    """How a connection ends that carries a vector's bytes; streams that it presupposes are opened after its HELLO."""
    context = vector["context"] or {}
    data = bytes.fromhex(vector["hex"])
    opened = context.get("opened", [])
    hello_bytes = 24 + int.from_bytes(data[16:20], "little") if opened else len(data)
    agent.end.sendall(data[:hello_bytes])
    if not opened:
        agent.end.shutdown(socket.SHUT_WR)
    try:
        channel = Channel(agent.line, "arm", window_bytes=context.get("window_bytes", 1 << 20), greeting_timeout_s=5)
    except ChannelError as failure:
        return failure, []
    streams = [channel.open("connect", {}) for _ in opened]
    if opened:
        agent.end.sendall(data[hello_bytes:])
        agent.end.shutdown(socket.SHUT_WR)
    channel._threads[0].join(10)
    assert channel.failure is not None
    return channel.failure, streams


@pytest.mark.parametrize("vector", controller_vectors("invalid.json"))
def test_invalid_vectors(agent: ScriptedAgent, vector: Any) -> None:
    failure, streams = play(agent, vector)
    # Those for the codec alone open with a controller's HELLO: refused here before their own violation is reached.
    expected = vector["error"] if vector["context"] or not vector["good_frames"] else "protocol"
    assert f"{expected}: " in failure.message
    assert all(stream.closed for stream in streams)
    while (frame := agent.receive()).kind is not Kind.ERROR:
        pass
    assert frame.stream == 0
    assert frame.json()["code"] == expected


@pytest.mark.parametrize("vector", [v for v in controller_vectors("valid.json") if v.values[0]["context"]])
def test_valid_vectors(agent: ScriptedAgent, vector: Any) -> None:
    failure, _ = play(agent, vector)
    said_goodbye = any(f["kind"] == "ERROR" and f["stream"] == 0 for f in vector["frames"])
    assert ("ended the connection" if said_goodbye else "its agent ended") in failure.message


# --- calls and streams ---


def test_call(agent: ScriptedAgent) -> None:
    channel = agent.connect()
    answer = Later(lambda: channel.call("ping", {}))
    assert agent.expect(Kind.OPEN, 1).json() == {"method": "ping", "params": {}}
    agent.send(Kind.END, 1, {"at_ns": 5})
    assert answer.get() == {"at_ns": 5}
    again = Later(lambda: channel.call("ping", {}))
    agent.expect(Kind.OPEN, 2)
    agent.send(Kind.END, 2, {"at_ns": 6})
    assert again.get() == {"at_ns": 6}


def test_an_agents_error(agent: ScriptedAgent) -> None:
    channel = agent.connect()
    answer = Later(lambda: channel.call("get", {"path": "/x"}))
    agent.expect(Kind.OPEN, 1)
    agent.send(Kind.ERROR, 1, {"code": "not_found", "message": "open /x: no such file", "detail": {"errno": 2}})
    with pytest.raises(AgentFailure) as caught:
        answer.get()
    assert caught.value.code == "not_found"
    assert caught.value.detail == {"errno": 2}
    assert caught.value.message == "arm: `get` failed: open /x: no such file"
    assert channel.failure is None


def test_no_byte_beyond_the_credit(agent: ScriptedAgent) -> None:
    channel = agent.connect({"window_bytes": 10_000, "max_payload_bytes": 4096})
    data = bytes(range(256)) * 100
    answer = Later(lambda: channel.call("put", {}, data=data))
    agent.expect(Kind.OPEN, 1)
    received = b""
    for granted, then_received in ((1, 10_000), (5000, 10_001), (len(data), 15_001), (1, len(data))):
        while len(received) < then_received:
            frame = agent.expect(Kind.DATA, 1)
            assert len(frame.payload) <= 4096
            received += frame.payload
        assert len(received) == then_received
        agent.send(Kind.CREDIT, 1, credit_payload(granted))
    assert received == data
    agent.expect(Kind.END, 1)
    agent.send(Kind.END, 1, {"size_bytes": len(data)})
    assert answer.get() == {"size_bytes": len(data)}


def test_an_end_before_the_input_is_taken(agent: ScriptedAgent) -> None:
    channel = agent.connect({"window_bytes": 4096})
    answer = Later(lambda: channel.call("run", {}, data=bytes(100_000)))
    agent.expect(Kind.OPEN, 1)
    agent.send(Kind.END, 1, ENDED)
    assert answer.get() == ENDED


@pytest.mark.parametrize("sink", [True, False])
def test_credit_is_granted_as_bytes_are_taken(agent: ScriptedAgent, sink: bool) -> None:
    channel = agent.connect(window_bytes=8192)
    content = Head(1 << 20)
    answer = Later(lambda: channel.call("get", {}, output=content.take if sink else None))
    agent.expect(Kind.OPEN, 1)
    room = 8192
    for _ in range(50):
        while room < 4096:
            room += agent.expect(Kind.CREDIT, 1).credit()
        agent.send(Kind.DATA, 1, bytes(4096))
        room -= 4096
        assert room <= 8192
    agent.send(Kind.END, 1, {"size_bytes": 50 * 4096})
    assert answer.get() == {"size_bytes": 50 * 4096}
    assert content.seen_bytes == (50 * 4096 if sink else 0)


def test_a_stream_that_nobody_reads_blocks_no_other(agent: ScriptedAgent) -> None:
    channel = agent.connect(window_bytes=8192)
    idle = channel.open("run", {})
    agent.expect(Kind.OPEN, 1)
    agent.send(Kind.DATA, 1, bytes(8192))
    answer = Later(lambda: channel.call("ping", {}))
    agent.expect(Kind.OPEN, 2)
    agent.send(Kind.END, 2, {"at_ns": 1})
    assert answer.get() == {"at_ns": 1}
    piece = idle.receive()
    assert piece is not None
    assert len(piece.payload) == 8192
    assert agent.expect(Kind.CREDIT, 1).credit() == 8192


def test_a_broken_line_fails_all_that_wait_with_the_same_words(agent: ScriptedAgent) -> None:
    channel = agent.connect({"window_bytes": 4096})
    waiting = [Later(lambda: channel.call("ping", {})) for _ in range(3)]
    writing = Later(lambda: channel.call("put", {}, data=bytes(10_000)))
    for _ in range(5):
        agent.receive()
    agent.leave()
    messages = set()
    for each in [*waiting, writing]:
        with pytest.raises(ChannelError) as caught:
            each.get()
        messages.add(str(caught.value))
    with pytest.raises(ChannelError) as caught:
        channel.call("ping", {})
    messages.add(str(caught.value))
    assert len(messages) == 1
    assert "the line to arm broke" in messages.pop()


def test_a_changed_byte_is_said_in_plain_words(agent: ScriptedAgent) -> None:
    channel = agent.connect()
    answer = Later(lambda: channel.call("ping", {}))
    agent.expect(Kind.OPEN, 1)
    frame = bytearray(agent.encoder.encode(Kind.END, 1, b'{"at_ns":1}'))
    frame[-2] ^= 1
    agent.end.sendall(frame)
    with pytest.raises(ChannelError, match="the line to arm broke: protocol: a frame arrived changed"):
        answer.get()
    assert agent.expect(Kind.ERROR, 0).json()["code"] == "protocol"


def test_a_deadline_breaks_a_hang_and_cancels(agent: ScriptedAgent) -> None:
    channel = agent.connect()
    answer = Later(lambda: channel.call("ping", {}, timeout_s=0.1))
    agent.expect(Kind.OPEN, 1)
    with pytest.raises(ChannelError, match="arm did not answer `ping` in time"):
        answer.get()
    assert agent.expect(Kind.ERROR, 1).json()["code"] == "cancelled"
    agent.send(Kind.ERROR, 1, {"code": "cancelled", "message": "cancelled", "detail": {}})
    again = Later(lambda: channel.call("ping", {}))
    while agent.receive().kind is not Kind.OPEN:
        pass
    agent.send(Kind.END, 2, {"at_ns": 1})
    assert again.get() == {"at_ns": 1}


def test_close_fails_what_still_waits(agent: ScriptedAgent) -> None:
    channel = agent.connect()
    answer = Later(lambda: channel.call("ping", {}))
    agent.expect(Kind.OPEN, 1)
    channel.close()
    with pytest.raises(ChannelError, match="closed here"):
        answer.get()


def test_parameters_that_fit_no_frame(agent: ScriptedAgent) -> None:
    channel = agent.connect()
    with pytest.raises(AgentFailure) as caught:
        channel.open("run", {"argv": ["x" * 300_000]})
    assert caught.value.code == "too_large"


# --- what keeps output ---


@given(st.lists(st.binary(max_size=50)), st.integers(1, 100))
def test_head_and_tail(pieces: list[bytes], limit_bytes: int) -> None:
    head, tail, whole = Head(limit_bytes), Tail(limit_bytes), b"".join(pieces)
    for piece in pieces:
        head.take(piece)
        tail.take(piece)
    assert head.content() == whole[:limit_bytes]
    assert head.seen_bytes == len(whole)
    if len(whole) <= limit_bytes:
        assert tail.content() == whole
    else:
        note = f"[{len(whole) - limit_bytes} bytes before this were not kept]\n".encode()
        assert tail.content() == note + whole[-limit_bytes:]


# --- relayed streams and their stamps ---


def test_passages() -> None:
    passages = ByteTimestamps()
    assert passages.mark_of(1) is None
    for count, mark in ((10, 100), (20, 200), (20, 250), (30, 300)):
        passages.add(count, mark)
    assert [passages.mark_of(count) for count in (1, 10, 11, 20, 21, 30, 31)] == [100, 100, 200, 200, 300, 300, None]
    late = Later(lambda: passages.mark_of(35, wait_s=5.0))
    passages.add(40, 400)
    assert late.get() == 400


def test_passages_forget() -> None:
    passages = ByteTimestamps()
    for count in range(1, 20_001):
        passages.add(count, count * 2)
    assert passages.mark_of(20_000) == 40_000
    assert passages.mark_of(1) is None
    assert passages.mark_of(20_000 - 16_384) is None
    assert passages.mark_of(20_000 - 16_383) == 2 * (20_000 - 16_383)


def test_a_relayed_stream(agent: ScriptedAgent) -> None:
    stream = RelayStream(agent.connect(), "connect", {"unix": "/s"}, stamps=True)
    assert agent.expect(Kind.OPEN, 1).json()["params"] == {"unix": "/s", "stamps": True}
    stream.write(b"hello")
    assert agent.expect(Kind.DATA, 1).payload == b"hello"
    agent.send(Kind.DATA, 1, {"written_bytes": 5, "at_ns": 1000}, CONTROL)
    agent.send(Kind.DATA, 1, {"read_bytes": 3, "at_ns": 2000}, CONTROL)
    agent.send(Kind.DATA, 1, b"abc")
    agent.send(Kind.DATA, 1, {"read_bytes": 7, "at_ns": 3000}, CONTROL)
    agent.send(Kind.DATA, 1, b"defg")
    agent.send(Kind.DATA, 1, b"what went wrong", ERROR_OUTPUT)
    agent.send(Kind.END, 1, ENDED | {"exit_code": 3})
    assert stream.read(2) == b"ab"
    assert stream.read(100) == b"c"
    assert stream.read(100) == b"defg"
    assert stream.read(100) == b""
    assert [stream.read_at(count) for count in (1, 3, 4, 7)] == [2000, 2000, 3000, 3000]
    assert stream.written_at(5) == 1000
    assert stream.last_words() == "exit code 3; what went wrong"
    with pytest.raises(ChannelError, match="far end"):
        stream.write(b"more")
    stream.close()


# --- machines ---


def serve(agent: ScriptedAgent, answers: dict[str, Any]) -> Later:
    """Answer every OPEN by its method: a JSON END, or bytes as DATA before it, or an AgentFailure as ERROR."""

    def loop() -> None:
        while True:
            try:
                frame = agent.receive()
            except (AssertionError, OSError):
                return
            if frame.kind is not Kind.OPEN:
                continue
            request = frame.json()
            answer = answers[request["method"]]
            answer = answer(request["params"]) if callable(answer) else answer
            if isinstance(answer, AgentFailure):
                agent.send(
                    Kind.ERROR, frame.stream, {"code": answer.code, "message": answer.message, "detail": answer.detail}
                )
                continue
            if isinstance(answer, bytes):
                if answer:
                    agent.send(Kind.DATA, frame.stream, answer)
                answer = {"size_bytes": len(answer)}
            agent.send(Kind.END, frame.stream, answer)

    return Later(loop)


def test_run_failures_hold_the_last_words(agent: ScriptedAgent) -> None:
    machine = AgentMachine("arm", agent.connect())
    running = Later(lambda: machine.run(["/bin/false"]))
    agent.expect(Kind.OPEN, 1)
    agent.send(Kind.DATA, 1, {"pid": 4, "at_ns": 1}, CONTROL)
    agent.send(Kind.DATA, 1, b"line one\nline two\n", ERROR_OUTPUT)
    agent.send(Kind.END, 1, ENDED | {"exit_code": 3})
    with pytest.raises(ProgramFailed) as caught:
        running.get()
    assert caught.value.message == "/bin/false on arm ended with exit code 3: line one\nline two"


def test_a_program_beyond_its_time(agent: ScriptedAgent) -> None:
    machine = AgentMachine("arm", agent.connect())
    serving = serve(agent, {"run": AgentFailure("timeout", "5 ms are over")})
    with pytest.raises(ProgramFailed, match=r"/bin/sleep on arm did not end within 0\.005 s"):
        machine.run(["/bin/sleep", "9"], timeout_s=0.005)
    machine.close()
    serving.get()


def test_a_spawned_program(agent: ScriptedAgent) -> None:
    machine = AgentMachine("arm", agent.connect())
    starting = Later(lambda: machine.spawn(["/usr/bin/server", "-D", "/data"], user="postgres"))
    parameters = agent.expect(Kind.OPEN, 1).json()["params"]
    assert parameters["user"] == "postgres"
    assert (parameters["stop_signal"], parameters["stop_grace_ms"]) == (15, 5000)
    agent.expect(Kind.END, 1)
    agent.send(Kind.DATA, 1, {"pid": 44, "at_ns": 1}, CONTROL)
    process = starting.get()
    assert process.pid == 44
    agent.send(Kind.DATA, 1, b"ready\n", MAIN)
    agent.send(Kind.DATA, 1, b"careful\n", ERROR_OUTPUT)
    assert process.running()
    with pytest.raises(ProgramFailed, match="has not ended within"):
        process.wait(0.01)
    agent.send(Kind.END, 1, ENDED)
    completed = process.wait(5)
    assert completed.exit_code == 0
    assert completed.output == b"ready\ncareful\n"
    assert completed.usage == USAGE
    assert not process.running()
    assert machine.logs() == {"server-44.log": b"ready\ncareful\n"}


def test_a_program_that_cannot_be_started(agent: ScriptedAgent) -> None:
    machine = AgentMachine("arm", agent.connect())
    serve(agent, {"run": AgentFailure("not_found", "exec /nowhere: no such file", {"call": "exec"})})
    with pytest.raises(AgentFailure) as caught:
        machine.spawn(["/nowhere"])
    assert caught.value.detail == {"call": "exec"}


def test_provide_sends_nothing(agent: ScriptedAgent) -> None:
    machine = AgentMachine("arm", agent.connect())
    here = {"/cache": [{"name": "image", "kind": "directory", "size_bytes": 0}]}

    def entries(parameters: Json) -> Any:
        if parameters["path"] not in here:
            return AgentFailure("not_found", "no such directory")
        return {"entries": here[parameters["path"]]}

    serve(agent, {"list": entries})
    assert machine.provide(Artifact("k", "/cache/image")) == "/cache/image"
    for absent in (Artifact("k", "/cache/other"), Artifact("k", "/cache/image", "file"), Artifact("k", "/no/where")):
        with pytest.raises(Unavailable) as caught:
            machine.provide(absent)
        assert absent.path in caught.value.message
        assert "rsync" in caught.value.hint


def test_close_unwinds_also_after_the_line_broke(agent: ScriptedAgent) -> None:
    unwound: list[str] = []
    on_close = ExitStack()
    on_close.callback(unwound.append, "cgroup")
    machine = AgentMachine("arm", agent.connect(), on_close)
    agent.leave()
    machine.close()
    machine.close()
    assert unwound == ["cgroup"]


FILES = {
    "/proc/sys/kernel/hostname": b"box\n",
    "/proc/sys/kernel/osrelease": b"6.1.0\n",
    "/proc/sys/kernel/version": b"#1 SMP\n",
    "/proc/cpuinfo": b"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu vme\n",
    "/sys/devices/system/cpu/online": b"0-3\n",
    "/proc/self/status": b"Name:\tagent\nCpus_allowed:\tf\nCpus_allowed_list:\t1,3\n",
    "/proc/meminfo": b"MemTotal:       1000 kB\nSwapTotal:         0 kB\n",
    "/proc/self/auxv": (6).to_bytes(8, "little") + (4096).to_bytes(8, "little") + bytes(16),
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": b"tsc\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": b"always [madvise] never\n",
    "/sys/devices/system/cpu/vulnerabilities/meltdown": b"Not affected\n",
    "/proc/self/limits": b"Max processes             1  2 processes\nMax open files            1024  4096 files\n",
}
CGROUP_1 = {
    "/proc/self/cgroup": b"4:memory:/a/b\n3:cpuset:/\n2:cpu,cpuacct:/a\n0::/\n",
    "/proc/self/mountinfo": b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    b"36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    b"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
    "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": b"9223372036854771712\n",
    "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": b"4294967296\n",
    "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": b"50000\n",
    "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": b"100000\n",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": b"-1\n",
    "/sys/fs/cgroup/cpu/cpu.cfs_period_us": b"100000\n",
}
CGROUP_2 = {
    "/proc/self/cgroup": b"0::/arm/x\n",
    "/proc/self/mountinfo": b"41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    "/sys/fs/cgroup/arm/x/memory.max": b"max\n",
    "/sys/fs/cgroup/arm/memory.max": b"1073741824\n",
    "/sys/fs/cgroup/arm/x/cpu.max": b"150000 100000\n",
    "/sys/fs/cgroup/arm/cpu.max": b"max 100000\n",
}


@pytest.mark.parametrize(
    ("cgroup", "limit_bytes", "quota"), [(CGROUP_1, 4 << 30, 0.5), (CGROUP_2, 1 << 30, 1.5), ({}, None, None)]
)
def test_facts(agent: ScriptedAgent, cgroup: dict[str, bytes], limit_bytes: int | None, quota: float | None) -> None:
    machine = AgentMachine("arm", agent.connect())
    files = FILES | cgroup
    listed = {"entries": [{"name": "meltdown", "kind": "file", "size_bytes": 4096}]}
    lacking = AgentFailure("not_found", "no such file")
    serve(agent, {"get": lambda asked: files.get(asked["path"], lacking), "list": listed})
    facts = machine.facts()
    assert facts["cpu_flags"] == ["fpu", "vme"]
    assert facts["mitigations"] == {"meltdown": "Not affected"}
    assert (facts["open_files"], facts["cpu_quota"]) == (1024, quota)
    assert facts["huge_pages"] is None and "HugePages_Total" in facts["missing"]["huge_pages"]
    assert facts["hostname"] == "box"
    assert facts["cpu_model"] == "Some CPU"
    assert facts["cpus_allowed"] == "1,3"
    assert facts["memory_bytes"] == 1_024_000
    assert facts["swap_bytes"] == 0
    assert facts["page_bytes"] == 4096
    assert facts["transparent_hugepages"] == "madvise"
    assert facts["agent_clock"] == HELLO["clock"]
    assert facts["memory_limit_bytes"] == limit_bytes
    assert (limit_bytes is None) == ("memory_limit_bytes" in facts["missing"])


# --- the serial load driver's session ---

ADDRESS = Address("postgres", "me", "db", unix="/run/pg")
STATEMENT = Statement("Q1", "SELECT 1+2", "SELECT 1+$1", ("2",))
EXECUTION: Json = {
    "statement": "Q1",
    "start_ns": 10,
    "connected_ns": None,
    "first_byte_ns": 15,
    "end_ns": 20,
    "rows": 1,
    "result_bytes": 7,
    "outcome": "ok",
    "error": None,
    "difference": None,
    "digest": "00",
    "result": None,
}
VISIT: Json = {
    "start_ns": 1,
    "end_ns": 30,
    "lead_in": {"executions": 3, "elapsed_ns": 5},
    "executions": [EXECUTION],
    "counters": None,
}


class Driver:
    """A scripted ``serial`` stream."""

    def __init__(self, agent: ScriptedAgent, hello: Json | None = None) -> None:
        self.agent = agent
        self.session = SerialSession(agent.connect(hello), ADDRESS, "one")
        self.parameters = agent.expect(Kind.OPEN, 1).json()["params"]

    def asked(self) -> Json:
        line = b""
        while not line.endswith(b"\n"):
            line += self.agent.expect(Kind.DATA, 1).payload
        command: Json = json.loads(line)
        return command

    def answer(self, value: Json | bytes, piece_bytes: int = 1000) -> None:
        line = (value if isinstance(value, bytes) else json_payload(value)) + b"\n"
        for start in range(0, len(line), piece_bytes):
            self.agent.send(Kind.DATA, 1, line[start : start + piece_bytes])


def test_a_visit(agent: ScriptedAgent) -> None:
    driver = Driver(agent)
    assert driver.parameters["address"] == {"unix": "/run/pg"}
    reference = AnswerReference(("numeric",), (("3",),))

    def visiting() -> Later:
        return Later(
            lambda: driver.session.visit(
                [STATEMENT], query_protocol="prepared", timing=VisitTiming(), answers={"Q1": reference}
            ).result()
        )

    first = visiting()
    tolerances = {"relative_tolerance": 1e-9, "absolute_tolerance": 1e-12}
    rows = {"columns": ["numeric"], "rows": [["3"]], **tolerances}
    assert driver.asked() == {"command": "answer", "name": "0", "answer": rows}
    driver.answer({"at_ns": 1})
    command = driver.asked()
    assert command["lead_in"] == {"sql": "SELECT 1", "min_ns": 5_000_000, "min_executions": 1}
    (asked,) = command["statements"]
    assert (asked["id"], asked["sql"], asked["parameters"], asked["measurement_time_ns"]) == (
        "Q1",
        "SELECT 1+$1",
        ["2"],
        50_000_000,
    )
    assert asked["answer"] == "0"
    driver.answer(VISIT, piece_bytes=7)
    reply = first.get()
    assert (reply.start_ns, reply.end_ns, reply.host_start_ns, reply.host_end_ns) == (1, 30, None, None)
    assert reply.executions[0].first_byte_ns == 15
    assert reply.lead_in == {"executions": 3, "elapsed_ns": 5}
    # What was told is not told again.
    second = visiting()
    assert driver.asked() == command
    driver.answer(VISIT)
    second.get()


def test_a_visit_that_is_held_says_when_it_was_ready(agent: ScriptedAgent) -> None:
    driver = Driver(agent)

    def visit() -> VisitReply:
        begun = driver.session.visit(
            [STATEMENT], query_protocol="simple", timing=VisitTiming(), answers={}, lead_in=False, hold=True
        )
        begun.ready()
        begun.go(7_000_000)
        return begun.result()

    visiting = Later(visit)
    assert driver.asked()["hold"] is True
    driver.answer({"held": True, "at_ns": 1})
    assert driver.asked() == {"command": "go", "in_ns": 7_000_000}
    driver.answer(VISIT)
    reply = visiting.get()
    assert (reply.held_ns, reply.host_held_ns, reply.start_ns) == (1, None, 1)  # nobody relays this line


def test_a_visit_without_repetition_and_lead_in(agent: ScriptedAgent) -> None:
    driver = Driver(agent)
    visiting = Later(
        lambda: driver.session.visit(
            [STATEMENT],
            query_protocol="simple",
            timing=VisitTiming(),
            answers={},
            lead_in=False,
            repeat=False,
            keep_rows=True,
        ).result()
    )
    command = driver.asked()
    assert command["lead_in"] is None
    (asked,) = command["statements"]
    assert (asked["sql"], asked["parameters"], asked["measurement_time_ns"], asked["answer"]) == (
        "SELECT 1+2",
        [],
        0,
        None,
    )
    assert asked["keep_rows"] is True
    driver.answer(VISIT)
    assert len(visiting.get().executions) == 1


def test_query_and_the_servers_errors(agent: ScriptedAgent) -> None:
    driver = Driver(agent)
    asking = Later(lambda: driver.session.query("SHOW x"))
    assert driver.asked() == {"command": "query", "sql": "SHOW x"}
    driver.answer({"columns": ["x"], "rows": [["1", None]], "command_tags": ["SHOW"]})
    assert asking.get() == [["1", None]]
    asking = Later(lambda: driver.session.query("SHOW y"))
    driver.asked()
    driver.answer({"error": {"sqlstate": "42704", "message": "unrecognized parameter", "position": None}})
    with pytest.raises(EngineError, match=r"arm refused: unrecognized parameter \(42704\)"):
        asking.get()


@pytest.mark.parametrize(
    "answer", [b"[]", b"{", b"\xff", b'{"start_ns": 1}', b'{"executions": [{"x": 1}], "start_ns": 1}']
)
def test_strange_answers(agent: ScriptedAgent, answer: bytes) -> None:
    driver = Driver(agent)
    visiting = Later(
        lambda: driver.session.visit([STATEMENT], query_protocol="simple", timing=VisitTiming(), answers={}).result()
    )
    driver.asked()
    driver.answer(answer)
    with pytest.raises(ChannelError, match="the load driver on arm"):
        visiting.get()


def test_a_driver_that_ends(agent: ScriptedAgent) -> None:
    driver = Driver(agent)
    asking = Later(lambda: driver.session.query("SELECT 1"))
    driver.asked()
    agent.send(Kind.END, 1, {})
    with pytest.raises(ChannelError, match="ended without an answer"):
        asking.get()
    driver.session.close()
    driver.session.close()


def test_the_frame_error_carries_its_code() -> None:
    assert FrameError("version", "x").code == "version"


def test_deadlines_run_only_inside_calls(agent: ScriptedAgent) -> None:
    """What is open but not waited for has no deadline: a machine may sleep as long as it likes."""
    channel = agent.connect()
    stream = channel.open("run", {})
    agent.expect(Kind.OPEN, 1)
    time.sleep(0.2)
    agent.send(Kind.END, 1, ENDED)
    assert stream.result(time.monotonic() + 5) == ENDED
