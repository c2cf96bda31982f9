"""An arm's image is data, so the agent in it may be anybody: it can fail its arm, and nothing else."""

from __future__ import annotations

import copy
import json
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbtoll.channel import replies
from dbtoll.channel.client import Channel
from dbtoll.channel.frames import DEPTH_MAX, FrameError, Kind, json_object
from dbtoll.channel.output_buffer import SAID_MAX, Head, Tail, said
from dbtoll.channel.pipe import PipeStream
from dbtoll.channel.stream import CONTROL, MAIN, WAITING_MAX
from dbtoll.errors import AgentFailure, ChannelError, DbtollError
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.agent.machine_facts import read_facts
from dbtoll.model.experiment import VisitTiming
from dbtoll.model.machine import Address
from dbtoll.model.reply import Statement, VisitReply, WindowReply
from tests.support.scripted_agent import ENDED, HELLO, Later, ScriptedAgent

COUNTERS = {
    "at_ns": 1,
    "processes": None,
    "machine": {
        **dict.fromkeys(
            ("user_ns", "nice_ns", "system_ns", "idle_ns", "iowait_ns", "irq_ns", "softirq_ns", "steal_ns"), 1
        ),
        **dict.fromkeys(("context_switches", "forks", "kvm_exits", "pages_in_bytes", "pages_out_bytes"), None),
        **dict.fromkeys(("minor_faults", "major_faults"), 1),
        "disk": {"vda": dict.fromkeys(replies.Disk.__annotations__, 1)},
        "pressure": dict.fromkeys(("cpu_some_ns", "memory_some_ns", "io_some_ns"), None),
    },
}
VISIT = {
    "start_ns": 1,
    "end_ns": 9,
    "lead_in": {"executions": 1, "elapsed_ns": 1},
    "executions": [
        {
            "statement": "q1",
            "start_ns": 2,
            "connected_ns": None,
            "first_byte_ns": 3,
            "end_ns": 4,
            "rows": 1,
            "result_bytes": 10,
            "outcome": "ok",
            "error": None,
            "difference": None,
            "digest": "ab",
            "result": None,
        }
    ],
    "counters": {"before": COUNTERS, "after": COUNTERS},
}
TIMES = {"min": 1, "max": 2, "sum": 3, "buckets": [[1, 1], [2, 1]]}
WINDOW = {
    **dict.fromkeys(
        ("start_ns", "begin_ns", "from_ns", "until_ns", "end_ns", "interval_ns", "round_trips", "statements"), 5
    ),
    **dict.fromkeys(
        ("sent_bytes", "received_bytes", "driver_cpu_ns", "backlog_at_end", "connections_lost", "reconnects"), 5
    ),
    "transactions": {
        "payment": {
            **dict.fromkeys(("committed", "rolled_back", "not_found", "lost", "unknown"), 1),
            "failed": {"40001": 1},
            "retried": {},
            "response_ns": TIMES,
            "service_ns": TIMES,
        }
    },
    "series": [1, 2],
    "refusal": None,
    "acknowledged": [
        {"new_orders": {"1 2": 3}, "payments": {"1": [2, 500]}, "unknown_new_orders": {}, "unknown_payments": {}}
    ],
}
TRACED = {
    "lost": 0,
    "calls_traced": True,
    "processes": [
        {
            "pid": 7,
            "name": "postgres",
            "kernel": False,
            "calls": {"fdatasync": 1},
            "queued": {"8:0": {"writes": 1, "written_bytes": 512, "flushes": 1}},
        }
    ],
    "devices": {"8:0": {"name": None, "whole": None, "write_cache": None, "writes_done": 1, "flushes_done": 1}},
}
VALID: dict[str, list[tuple[Kind, Any, int]]] = {
    "run": [(Kind.DATA, b"out", MAIN), (Kind.END, ENDED, 0)],
    "spawn": [(Kind.DATA, {"pid": 4, "at_ns": 1}, CONTROL)],
    "get": [(Kind.DATA, b"x", MAIN), (Kind.END, {"size_bytes": 1}, 0)],
    "entries": [(Kind.END, {"entries": [{"name": "a", "kind": "file", "size_bytes": 1}]}, 0)],
    "counters": [(Kind.END, COUNTERS, 0)],
    "load": [
        (Kind.DATA, {"table": "t", "rows": 1, "of_rows": 2}, CONTROL),
        (Kind.END, {"rows": {"t": 1}, "generate_ns": 1, "wall_ns": 1}, 0),
    ],
    "trace": [(Kind.END, TRACED, 0)],
    "query": [(Kind.DATA, {"rows": [["1", None]]}, MAIN)],
    "visit": [(Kind.DATA, VISIT, MAIN)],
    "window": [(Kind.DATA, {"at_ns": 1}, MAIN), (Kind.DATA, WINDOW, MAIN)],
}
"""What an agent says to each of CALLS when all is well."""
ASKED = {"query": 0, "visit": 0, "window": 1}
"""Before which of these frames a driver has been given its command."""

ADDRESS = Address("postgres", "me", "db", unix="/run/pg")
STATEMENT = Statement("q1", "select 1", "select 1")
CALLS: dict[str, Callable[[AgentMachine], Any]] = {
    "run": lambda machine: machine.run(["/bin/true"]),
    "spawn": lambda machine: machine.spawn(["/bin/../server"]).pid,
    "get": lambda machine: machine.get("/x"),
    "entries": lambda machine: machine.entries("/"),
    "counters": lambda machine: machine.counters(),
    "load": lambda machine: machine.call("tpch_load", {}, progress=lambda told: None),
    "trace": lambda machine: machine.call("trace_end", {}),
    "query": lambda machine: machine.serial(ADDRESS, connection="persistent").query("select 1"),
    "visit": lambda machine: (
        machine.serial(ADDRESS, connection="persistent")
        .visit([STATEMENT], query_protocol="simple", timing=VisitTiming(), answers={})
        .result()
    ),
    "window": lambda machine: (
        machine.terminals(ADDRESS, {"response_timeout_ns": 1}).window(ramp_up_ns=0, window_ns=1, rate=None).result()
    ),
}


@contextmanager
def nothing_dies_unheard() -> Iterator[None]:
    """No thread may end by an exception that nobody catches: whoever waits for it would wait for ever."""
    died: list[object] = []
    before, threading.excepthook = threading.excepthook, lambda details: died.append(details.exc_value)
    try:
        yield
    finally:
        threading.excepthook = before
    assert died == []


def outcome(call: str, frames: list[tuple[Kind, Any, int]], *, patient: bool = True) -> Any:
    """What the call gives, or its DbtollError, where the agent answers its OPEN with these frames, and then hangs up.

    ``patient``: it waits for what it is asked (ASKED).
    """
    agent = ScriptedAgent()

    def heard(kind: Kind) -> int:
        while (frame := agent.receive()).kind is not kind:
            pass
        return frame.stream

    def answer() -> None:
        try:
            stream = heard(Kind.OPEN)
            for number, (kind, value, channel) in enumerate(frames):
                if patient and number == ASKED.get(call):
                    heard(Kind.DATA)
                payload = value if isinstance(value, bytes) else json.dumps(value).encode()
                line = payload + b"\n" if call in ASKED and kind is Kind.DATA else payload
                for start in range(0, max(len(line), 1), 1 << 18):
                    agent.send(kind, stream, line[start : start + (1 << 18)], channel)
        except (AssertionError, OSError, FrameError):
            pass  # hung up on, or a frame that cannot be written
        finally:
            with suppress(OSError):
                agent.end.shutdown(socket.SHUT_WR)

    with nothing_dies_unheard():
        agent.send(Kind.HELLO, 0, HELLO)
        machine = AgentMachine("arm", Channel(agent.line, "arm"))
        answering = Later(answer)
        try:
            return Later(lambda: CALLS[call](machine)).get()
        except DbtollError as error:
            assert len(error.message) < 2 * SAID_MAX
            assert all(letter.isprintable() or letter in "\n\t" for letter in error.message)
            return error
        finally:
            machine.close()
            answering.get()
            agent.end.close()


@pytest.mark.parametrize("call", CALLS)
def test_what_is_valid_is_taken(call: str) -> None:
    assert not isinstance(outcome(call, VALID[call]), DbtollError)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything in a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from paths(child, (*path, key))


def changed(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    """A copy with one thing replaced, or left out."""
    value = copy.deepcopy(value)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    if by is LEFT_OUT:
        del inside[path[-1]]
    else:
        inside[path[-1]] = by
    return value


LEFT_OUT = object()
NASTY = [
    *(LEFT_OUT, None, True, -1, 0.5, 1 << 63, 10**4000, "", "x" * 100_000, "\ud800", "\x1b]0;owned\x07", [], {}),
    *([[]], [{}], {"": []}, json.loads("[" * 100 + "]" * 100), "../../../etc/passwd"),
]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_an_answer_it_is_refused_or_taken_whole(data: st.DataObject) -> None:
    call = data.draw(st.sampled_from(list(CALLS)))
    frames = list(VALID[call])
    place = data.draw(st.sampled_from([at for at, frame in enumerate(frames) if not isinstance(frame[1], bytes)]))
    kind, value, channel = frames[place]
    path = data.draw(st.sampled_from(list(paths(value))))
    frames[place] = (kind, changed(value, path, data.draw(st.sampled_from(NASTY))), channel)
    found = outcome(call, frames)
    if isinstance(found, VisitReply):
        assert all(0 <= each.start_ns <= each.end_ns < 1 << 63 for each in found.executions)
        assert {each.statement for each in found.executions} <= {"q1"}
    elif call == "spawn" and not isinstance(found, DbtollError):
        assert 0 < found < 1 << 31
    if isinstance(found, dict | list | VisitReply | WindowReply):
        repr(found).encode()  # it can be written, and is not nested without end


PAYLOADS = st.one_of(
    st.binary(max_size=50),
    st.sampled_from([b"{}", b"[]", b"\n", b"{}\n", b'{"code": [], "message": ""}', b'{"code": {}, "message": []}']),
    st.sampled_from(
        [
            b"[" * 100_000,
            b'{"a":' * 5000 + b"1" + b"}" * 5000,
            b'{"code":"io","message":"' + b"\\u001b" * 40_000 + b'"}',
        ]
    ),
    st.sampled_from(
        [b'{"error": 1}\n', b'{"error": {"message": 7}}\n', b'{"error": {"message": "\\ud800"}}\n', b"\xff\xfe\n"]
    ),
    st.integers(0, (1 << 32) - 1).map(lambda credit: credit.to_bytes(4, "little")),
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(CALLS)),
    st.lists(
        st.tuples(st.sampled_from([Kind.DATA, Kind.CREDIT, Kind.END, Kind.ERROR]), PAYLOADS, st.integers(0, 2)),
        max_size=6,
    ),
)
def test_whatever_frames_come_a_call_ends(call: str, frames: list[tuple[Kind, bytes, int]]) -> None:
    frames = [(kind, payload, channel if kind is Kind.DATA else 0) for kind, payload, channel in frames]
    outcome(call, frames, patient=False)


@pytest.mark.parametrize("code", [[], {}, None, 7, "no such code"])
def test_an_error_with_a_strange_code_ends_the_line(code: Any) -> None:
    found = outcome("run", [(Kind.ERROR, {"code": code, "message": ""}, 0)])
    assert isinstance(found, ChannelError)
    assert "an ERROR without a known code" in found.message


def test_an_agents_words_command_no_terminal() -> None:
    failure = {"code": "io", "message": "\x1b[2J\x1b]0;title\x07" + "x" * 200_000, "detail": {}}
    found = outcome("run", [(Kind.ERROR, failure, 0)])
    assert isinstance(found, AgentFailure)
    assert "\ufffd[2J" in found.message
    assert said("a\u202eb\r\n\tc\x9b") == "a\ufffdb\ufffd\n\tc\ufffd"


@pytest.mark.parametrize("pid", [0, -1, True, "4", 1 << 31, 10**30, 4.0, None])
def test_a_program_has_a_number_or_is_none(pid: Any) -> None:
    found = outcome("spawn", [(Kind.DATA, {"pid": pid, "at_ns": 1}, CONTROL)])
    assert isinstance(found, ChannelError)


def test_small_frames_take_no_more_memory_than_large_ones() -> None:
    tail, head = Tail(1 << 16), Head(1 << 16)
    tracemalloc.start()
    for number in range(200_000):
        tail.take((number & 0xFFFF).to_bytes(2, "little"))
        head.take((number & 0xFFFF).to_bytes(2, "little"))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert head.content()[:4] == b"\0\0\1\0"
    assert len(head.content()) == 1 << 16
    assert tail.content().endswith((199_999 & 0xFFFF).to_bytes(2, "little"))


def test_waiting_frames_are_bounded() -> None:
    agent = ScriptedAgent()
    agent.send(Kind.HELLO, 0, HELLO)
    channel = Channel(agent.line, "arm")
    channel.open("connect", {})

    def flood() -> None:
        agent.end.sendall(b"".join(agent.encoder.encode(Kind.DATA, 1, b"x") for _ in range(WAITING_MAX + 1)))

    flooding = Later(flood)
    channel._threads[0].join(30)
    assert channel.failure is not None
    assert f"{WAITING_MAX} DATA frames wait" in channel.failure.message
    channel.close()
    agent.end.close()
    flooding.thread.join(10)


def test_json_is_of_bounded_depth_and_of_numbers_that_are_finite() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' * depth + b"1" + b"}" * depth

    assert json_object(nested(DEPTH_MAX), "x")
    for bad in [
        nested(DEPTH_MAX + 1),
        nested(100_000),
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b"[]",
        b"",
    ]:
        with pytest.raises(FrameError, match="x is "):
            json_object(bad, "x")
    assert json_object(b'{"a":[' + b"[]," * 1000 + b"[]]}", "x")  # wide is not deep


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.text(max_size=50), st.integers(0, 30))
def test_facts_of_a_machine_that_shows_nonsense_are_missing(content: bytes, text: str, width: int) -> None:
    lines = (
        f"MemTotal: {text}\nflags: {text}\nMax open files {text}\n0::/{text}\n1 2 3 / /sys {text} - cgroup2 x {text}\n"
    )
    answers = [content, lines.encode(errors="replace"), b"max 0", b"7", b"1 0", b"x" * (1 << width % 16)]

    def get(path: str) -> bytes:
        return answers[(len(path) + width) % len(answers)]

    facts = read_facts(HELLO, get, lambda path: [text])
    assert all(isinstance(why, str) for why in facts["missing"].values())
    json.dumps(facts)


def test_a_program_that_a_signal_without_a_name_ended_is_said() -> None:
    line = PipeStream(["/bin/sh", "-c", "kill -35 $$"])
    assert line.read(10) == b""
    assert line.last_words() == "killed by signal 35"
    line.close()
