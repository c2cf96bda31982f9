"""Which collectors look on in which pass, and what is kept where one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbtoll.collectors import blocks, calls, machine, processes
from dbtoll.errors import Unavailable
from dbtoll.model.json import Json
from dbtoll.model.plan import Block, Phase
from dbtoll.runner.drivers import counting, transactions
from dbtoll.runner.drivers.counting import CountingDriver
from dbtoll.runner.drivers.protocol import VisitDriver, VisitResult
from dbtoll.runner.drivers.statements import StatementDriver
from dbtoll.runner.drivers.transactions import TransactionDriver
from dbtoll.store.schema import UnitVisit

WARM, COLD = Phase({}, (), "counted"), Phase({"cache": "cold"}, (), "counted")
WINDOW = {
    "transactions": {
        "payment": {"committed": 7, "rolled_back": 0, "not_found": 0, "lost": 0, "unknown": 0, "failed": {}}
    },
    "round_trips": 7,
    "length_ns": 1,
}


class Talkative:
    """A power and nothing else."""

    query_statistics = server_statistics = wait_events = serving = staticmethod(lambda *_: {})


class Windows:
    """A driver of windows that notes who looked on."""

    def __init__(self) -> None:
        self.looking: list[str] = []
        self.seen: list[list[str]] = []

    def make_ready(self, *_: Any, **__: Any) -> None:
        """Nothing to do."""

    def drive(self, *_: Any, **__: Any) -> VisitResult:
        self.seen.append(sorted(self.looking))
        own: Json = {"start_ns": 0, "end_ns": 1, "host_start_ns": 0, "host_end_ns": 1, "executions": ()}
        return VisitResult((UnitVisit(**own, window=WINDOW),))


def counted(driver: Windows, *collectors: Any, phase: Phase = WARM) -> Json:
    server = SimpleNamespace(machine=driver, server=SimpleNamespace(pid=1))
    running = SimpleNamespace(
        arm=SimpleNamespace(name="a"), engine=Talkative(), uncounted={}, servers=(server,),
        servers_by_kernel=lambda: [(server,)], units_of=lambda _: (None,), first_unit_of=lambda _: None,
    )  # fmt: skip
    counts = CountingDriver(cast(VisitDriver, driver), collectors, {"a"})
    result = counts.drive(cast(Any, running), phase, Block(0, 0, ()), "mix", first_execution=False)
    assert result.counts is not None
    return result.counts


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server tells of a window."""

    @contextmanager
    def account_of_window(running: Any) -> Iterator[Json]:
        driver, told = running.servers[0].machine, {}
        driver.looking.append("engine")
        yield told
        driver.looking.remove("engine")
        told["waits"] = 3

    monkeypatch.setattr(counting, "account_of_window", account_of_window)


class Looking:
    """A collector; ``fails``: at its end."""

    of_kernel, everywhere, least_s = False, True, 0.0

    def __init__(
        self, name: str, *, disturbs: bool = False, beside_questions: bool = False, fails: bool = False
    ) -> None:
        self.name, self.disturbs, self.beside_questions, self.fails = name, disturbs, beside_questions, fails

    @contextmanager
    def around(self, driver: Windows, pid: int) -> Iterator[Callable[[], Json]]:
        del pid
        driver.looking.append(self.name)
        yield lambda: {"of": self.name}
        driver.looking.remove(self.name)
        if self.fails:
            raise Unavailable(f"{self.name} broke")


QUIET, LOUD = Looking("quiet"), Looking("loud", disturbs=True)


def test_the_server_is_asked_in_the_last_window_beside_those_whom_that_does_not_matter() -> None:
    driver = Windows()
    counts = counted(driver, QUIET, Looking("beside", beside_questions=True), LOUD)
    assert driver.seen == [[], ["quiet"], ["loud"], ["beside", "engine"]]  # the first is the sessions' own
    assert counts["engine"] == {"executions": 7, "round_trips": 7, "elapsed_ns": 1, "counted": {"waits": 3}}
    assert [counts[name]["counted"] for name in ("quiet", "loud", "beside")] == [
        {"of": name} for name in ("quiet", "loud", "beside")
    ]


def test_the_server_is_asked_alone_where_nobody_else_looks_on() -> None:
    driver = Windows()
    assert counted(driver)["engine"]["counted"] == {"waits": 3} and driver.seen == [[], ["engine"]]


def test_a_collector_that_breaks_takes_nothing_of_what_the_server_told() -> None:
    counts = counted(Windows(), Looking("beside", beside_questions=True, fails=True))
    assert counts["beside"] == {"missing": "beside broke"} and counts["engine"]["counted"] == {"waits": 3}


def test_where_the_server_is_not_asked_in_a_window_all_that_disturb_nothing_look_on_together() -> None:
    """A pass costs a restart of each cold statement."""
    every = [processes.Collector(), machine.Collector(), blocks.Collector(), calls.Collector()]
    statements = CountingDriver(cast(VisitDriver, StatementDriver.__new__(StatementDriver)), every, set())
    running = cast(Any, SimpleNamespace(arm=SimpleNamespace(name="a")))
    passes, left_out = statements._passes(running, COLD, asked_beside=False)
    assert [[each.name for each in together] for together in passes] == [["processes", "machine", "blocks"]]
    assert set(left_out) == {"calls"}
    passes, _ = statements._passes(running, WARM, asked_beside=False)
    assert [[each.name for each in together] for together in passes] == [["processes", "machine", "blocks"], ["calls"]]
    driver = Windows()
    counted(driver, QUIET, Looking("beside", beside_questions=True), phase=COLD)
    assert driver.seen == [["beside", "quiet"]]


class Asked(Exception):
    """Ends a visit where its terminals are asked."""


@pytest.mark.parametrize(
    ("kind", "first_execution", "checkpoint", "ramp_up_ns", "window_ns"),
    [
        ("timed", True, True, 1, 3),
        ("timed", False, True, 1, 3),
        ("counted", True, False, 0, 1),
        ("counted", False, True, 0, 3),
    ],
)
def test_what_goes_before_a_counted_window_is_as_long_as_a_ramp_up(
    monkeypatch: pytest.MonkeyPatch, kind: Any, first_execution: bool, checkpoint: bool, ramp_up_ns: int, window_ns: int
) -> None:
    def window(**asked: Any) -> None:
        raise Asked(asked)

    settled: list[Any] = []
    monkeypatch.setattr(transactions, "settle", settled.append)
    monkeypatch.setattr(transactions, "driver_parameters", lambda *_: {})
    monkeypatch.setattr("dbtoll.runner.drivers.devices.around", lambda _, work: work())
    unit = SimpleNamespace(terminals=lambda *_: SimpleNamespace(window=window))
    running = cast(Any, SimpleNamespace(units=(unit,)))
    workload = SimpleNamespace(window_timing=lambda: (1, 3, None))
    driver = TransactionDriver(cast(Any, SimpleNamespace(seed=1)), cast(Any, workload))
    phase = Phase({"placement": "inside"}, (), kind)
    driver.make_ready(running, phase, first_execution=first_execution)
    assert bool(settled) == checkpoint
    with pytest.raises(Asked) as asked:
        driver.drive(running, phase, Block(0, 0, ()), "mix", first_execution=first_execution)
    (said,) = asked.value.args
    assert (said["ramp_up_ns"], said["window_ns"]) == (ramp_up_ns, window_ns)
