"""The serial load driver's session against the real agent and its null server, bracketed by an agent in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbtoll.errors import AgentFailure, EngineError, Unavailable
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.agent.nested import open_nested
from dbtoll.model.experiment import VisitTiming
from dbtoll.model.machine import Address
from dbtoll.model.reply import AnswerReference, Statement

try:
    AGENT = str(find_agent())
except Unavailable as lack:
    pytest.skip(f"{lack.message}: {lack.hint}", allow_module_level=True)

pytestmark = pytest.mark.timeout(60)

PACE = VisitTiming(lead_in_ns=2_000_000, measurement_time_ns=5_000_000)
STATEMENTS = [Statement("Q1", "SELECT 1", "SELECT $1", ("1",)), Statement("Q2", "SELECT 2", "SELECT $1", ("2",))]


@pytest.fixture
def arm() -> Iterator[AgentMachine]:
    with open_local() as local, open_nested(local, "arm", [AGENT, "serve"])[0] as nested:
        yield nested


@pytest.fixture
def address(arm: AgentMachine, tmp_path: Path) -> Address:
    path = tmp_path / "null"
    arm.spawn([AGENT, "null-server", "--unix", str(path)])
    until = time.monotonic() + 10
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return Address("postgres", "nobody", "nothing", unix=str(path))


@pytest.mark.parametrize(
    ("query_protocol", "connection"),
    [
        ("simple", "persistent"),
        ("extended", "persistent"),
        ("prepared", "persistent"),
        ("simple", "per_statement"),
        ("extended", "per_statement"),
    ],
)
def test_a_visit_is_bracketed(arm: AgentMachine, address: Address, query_protocol: str, connection: str) -> None:
    session = arm.serial(address, connection=connection)
    for _ in range(5):
        reply = session.visit(STATEMENTS, query_protocol=query_protocol, timing=PACE, answers={}).result()
        assert {each.outcome for each in reply.executions} == {"ok"}
        assert [query for query in ("Q1", "Q2") if any(each.statement == query for each in reply.executions)] == [
            "Q1",
            "Q2",
        ]
        for query in ("Q1", "Q2"):
            spent_ns = sum(each.end_ns - each.start_ns for each in reply.executions if each.statement == query)
            assert (
                spent_ns >= PACE.measurement_time_ns
                or sum(each.statement == query for each in reply.executions) == 1000
            )
        assert reply.lead_in is not None
        assert reply.lead_in["executions"] >= 1
        assert reply.host_start_ns is not None
        assert reply.host_end_ns is not None
        # One kernel, one clock: the timed work lies inside what the agent in between saw pass.
        assert reply.host_start_ns < reply.executions[0].start_ns
        assert reply.executions[-1].end_ns < reply.host_end_ns
        for execution in reply.executions:
            assert (execution.connected_ns is not None) == (connection == "per_statement")
            assert execution.first_byte_ns is not None
            assert execution.start_ns <= execution.first_byte_ns <= execution.end_ns
    session.close()


def test_a_visit_that_is_held_is_stamped_when_it_is_ready_and_when_it_goes(arm: AgentMachine, address: Address) -> None:
    session = arm.serial(address, connection="persistent")
    begun = session.visit(STATEMENTS, query_protocol="simple", timing=PACE, answers={}, hold=True)
    begun.ready()
    time.sleep(0.05)
    begun.go()
    reply = begun.result()
    session.close()
    assert reply.held_ns is not None and reply.host_held_ns is not None and reply.host_start_ns is not None
    # One kernel, one clock.
    assert reply.held_ns < reply.host_held_ns < reply.host_start_ns < reply.start_ns < reply.executions[0].start_ns
    # One clock: it was asked before it said so.
    assert reply.host_asked_ns is not None and reply.host_asked_ns < reply.held_ns


def test_a_visit_that_is_held_begins_when_its_own_clock_shows_the_moment(arm: AgentMachine, address: Address) -> None:
    session = arm.serial(address, connection="persistent")
    begun = session.visit(STATEMENTS, query_protocol="simple", timing=PACE, answers={}, hold=True)
    begun.ready()
    moment_ns = time.monotonic_ns() + 100_000_000
    begun.go(100_000_000)
    reply = begun.result()
    session.close()
    # One kernel, one clock, which is known within half of what the quickest line took there and back.
    assert begun.ahead_within_ns < 50_000_000
    assert reply.start_ns < moment_ns
    assert reply.executions[0].start_ns > moment_ns - begun.ahead_within_ns


def test_prepared_needs_a_connection_that_stays(arm: AgentMachine, address: Address) -> None:
    session = arm.serial(address, connection="per_statement")
    with pytest.raises(AgentFailure) as caught:
        session.visit(STATEMENTS, query_protocol="prepared", timing=PACE, answers={}).result()
    assert caught.value.code == "bad_request"


def test_without_lead_in_and_repetition(arm: AgentMachine, address: Address) -> None:
    session = arm.serial(address, connection="persistent")
    reply = session.visit(
        STATEMENTS, query_protocol="simple", timing=PACE, answers={}, lead_in=False, repeat=False
    ).result()
    assert reply.lead_in is None
    assert [each.statement for each in reply.executions] == ["Q1", "Q2"]


def test_answers_are_compared(arm: AgentMachine, address: Address) -> None:
    session = arm.serial(address, connection="persistent")
    answers = {"Q1": AnswerReference((), ()), "Q2": AnswerReference(("exact",), (("2",),))}
    reply = session.visit(
        STATEMENTS, query_protocol="simple", timing=PACE, answers=answers, repeat=False, keep_rows=True
    ).result()
    first, second = reply.executions
    assert (first.outcome, first.result) == ("ok", [])
    assert second.outcome == "wrong_answer"
    assert second.difference


def test_counters_around_a_visit(arm: AgentMachine, address: Address) -> None:
    session = arm.serial(address, connection="persistent")
    pid = arm.hello()["pid"]
    reply = session.visit(STATEMENTS, query_protocol="simple", timing=PACE, answers={}, counters_of=pid).result()
    assert reply.counters is not None
    before, after = reply.counters["before"], reply.counters["after"]
    assert before["at_ns"] < reply.executions[0].start_ns < reply.executions[-1].end_ns < after["at_ns"]
    assert after["processes"]["voluntary_switches"] >= before["processes"]["voluntary_switches"]


def test_query_disconnect_and_on(arm: AgentMachine, address: Address) -> None:
    session = arm.serial(address, connection="persistent")
    assert session.query("SELECT 1") == []
    session.disconnect()
    assert session.query("SELECT 1") == []
    session.close()
    session.close()


def test_no_server(arm: AgentMachine, tmp_path: Path) -> None:
    session = arm.serial(Address("postgres", "a", "b", unix=str(tmp_path / "none")), connection="persistent")
    with pytest.raises(EngineError) as caught:
        session.query("SELECT 1")
    assert "arm" in caught.value.message
    session.close()


def test_a_server_that_ends_is_missed_and_comes_again(arm: AgentMachine, tmp_path: Path) -> None:
    path = str(tmp_path / "null")
    address = Address("postgres", "nobody", "nothing", unix=path)
    session = None
    for _ in range(2):
        Path(path).unlink(missing_ok=True)
        server = arm.spawn([AGENT, "null-server", "--unix", path])
        until = time.monotonic() + 10
        while not Path(path).exists() and time.monotonic() < until:
            time.sleep(0.01)
        session = session or arm.serial(address, connection="persistent")
        assert session.query("SELECT 1") == []
        server.signal(9)
        assert server.wait(10).signal == 9
        with pytest.raises(EngineError):
            session.query("SELECT 1")
