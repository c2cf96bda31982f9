"""Where the time of a server's sessions goes: by hand-made samples and counters whose shares are known."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbtoll import registry
from dbtoll.analysis.transactions import sessions
from dbtoll.engines.postgres import WAITS
from dbtoll.machines.observers import added
from dbtoll.model.description import ASLEEP, ON_DISK, RUNNING, EngineDescription, Wait
from dbtoll.model.json import Json
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers import wait_samples

SECOND_NS = 1_000_000_000


def told(run_ns: int | None, waited_ns: int | None, **waiting: int) -> Json:
    """Of a window of one second."""
    names = {name.replace("__", ": "): count for name, count in waiting.items()}
    processes = {"run_ns": run_ns, "run_queue_wait_ns": waited_ns, "elapsed_ns": SECOND_NS}
    return {"waiting": names, "processes": processes}


def found(*windows: Json, of: int = 1) -> dict[str, float]:
    shares = sessions.shares(windows, WAITS, of)
    assert shares is not None and sum(shares.values()) == pytest.approx(1)
    return {name: share for name, share in shares.items() if share}


def test_the_kernel_tells_of_processors_and_samples_of_the_rest() -> None:
    # The example of docs/method/transactions.md.
    shares = found(told(SECOND_NS * 3 // 10, SECOND_NS // 10, looks=50, running=20, IO__WALSync=5))
    assert shares == pytest.approx({"on_cpu": 0.3, "run_queue": 0.1, "log_files": 0.1, "client": 0.5})


def test_windows_of_a_round_and_servers_are_one() -> None:
    # Two windows of two sessions each: 4 s of their time together.
    one = told(SECOND_NS, 0, looks=10, LWLock__WALInsert=10)
    other = told(0, SECOND_NS, looks=10, LWLock__WALWrite=5, Lock__tuple=5)
    shares = found(one, other, of=2)
    rest = {"log_insert_lock": 0.125, "log_write_lock": 0.0625, "other_locks": 0.0625, "client": 0.25}
    assert shares == pytest.approx({"on_cpu": 0.25, "run_queue": 0.25, **rest})


def test_what_a_kernel_does_not_tell_is_what_samples_say() -> None:
    shares = found(told(None, None, looks=10, running=4, IO__DataFileRead=1))
    assert shares == pytest.approx({"running": 0.4, "data_files": 0.1, "client": 0.5})


def test_sessions_that_only_run_still_have_a_rest() -> None:
    shares = found(told(SECOND_NS // 2, 0, looks=10, running=10))
    assert shares == pytest.approx({"on_cpu": 0.5, "other": 0.5})
    # Processes that had more than the sessions' time, by a clock that ticks.
    assert found(told(2 * SECOND_NS, 2 * SECOND_NS, looks=1)) == pytest.approx({"on_cpu": 0.5, "run_queue": 0.5})


def test_without_a_sample_nothing_is_known() -> None:
    assert sessions.shares([told(1, 1)], WAITS, 1) is None


@pytest.mark.parametrize("engine", ["postgres", "mariadb"])
def test_no_share_is_said_of_what_the_server_cannot_tell(engine: str) -> None:
    """MariaDB does not tell the locks of its log from the log: that nobody waits for them would be no finding."""
    waits = registry.find("engines", engine).description.waits
    visits = [
        SimpleNamespace(
            arm="a", levels={}, round=index, counts={"engine": {"counted": told(SECOND_NS // 2, 0, looks=10)}}
        )
        for index in range(5)
    ]
    asked = SimpleNamespace(
        configuration=SimpleNamespace(engine=SimpleNamespace(name=engine), workload=SimpleNamespace(options={})),
        layout=SimpleNamespace(in_server=SimpleNamespace(units=(1,))),
    )
    experiment = SimpleNamespace(arm=lambda _: asked, precision=SimpleNamespace(confidence=0.95))
    run = SimpleNamespace(
        plan=SimpleNamespace(experiment=experiment),
        descriptions=SimpleNamespace(engines={engine: EngineDescription(engine, waits=waits)}),
    )
    result = sessions.find(cast(Any, SimpleNamespace(run=run, counting_passes=visits)), "a", {})
    assert result is not None
    names = {each.name for each in result.shares}
    assert names >= {"on_cpu", "log_files", "data_files", "other_locks", "client"}
    assert (names >= {"log_insert_lock", "log_write_lock"}) == (engine == "postgres")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("IO: DataFileRead", Wait.DATA_FILES),
        ("IO: WALSync", Wait.LOG_FILES),
        ("IO: WalSync", Wait.LOG_FILES),
        ("IO: WALInitWrite", Wait.LOG_FILES),
        ("LWLock: WALInsert", Wait.LOG_INSERT_LOCK),
        ("LWLock: WALWrite", Wait.LOG_WRITE_LOCK),
        ("LWLock: WALBufMapping", Wait.OTHER_LOCKS),
        ("Lock: transactionid", Wait.OTHER_LOCKS),
        ("Client: ClientRead", Wait.CLIENT),
        ("IPC: ProcarrayGroupUpdate", Wait.OTHER),
        ("Timeout: SpinDelay", Wait.OTHER),
    ],
)
def test_names_of_waits_are_of_a_kind(name: str, kind: Wait) -> None:
    assert sessions.state(name, registry.find("engines", "postgres").description.waits) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Commit", Wait.LOG_FILES),
        ("Waiting for table metadata lock", Wait.OTHER_LOCKS),
        (ASLEEP, Wait.OTHER_LOCKS),
        (ON_DISK, Wait.DATA_FILES),
        ("User sleep", Wait.OTHER),
    ],
)
def test_states_of_mariadbs_threads_are_of_a_kind(name: str, kind: Wait) -> None:
    assert sessions.state(name, registry.find("engines", "mariadb").description.waits) == kind


def test_counts_of_servers_are_added_at_whatever_depth() -> None:
    one = {"reads": 1, "waits": {"log": {"count": 2}}, "unknown": None, "missing": {"cycles": "no such counter"}}
    other = {
        "reads": 10,
        "waits": {"log": {"count": 20}, "data": {"count": 5}},
        "unknown": 3,
        "missing": {"cycles": "?"},
    }
    assert added([one]) == one
    assert added([one, other]) == {
        "reads": 11,
        "waits": {"log": {"count": 22}, "data": {"count": 5}},
        "unknown": None,
        "missing": {"cycles": "no such counter"},
    }


class Talkative:
    """An engine whose server N is found to wait for its number, and is served by the thread N."""

    def wait_events(self, session: Any) -> dict[int, str]:
        return {session.number: f"{session.number}"}

    def serving(self, session: Any) -> list[int]:
        return [session.number]


def sleeping(state: str = "S", run_ns: int = 1) -> Json:
    return {"state": state, "run_ns": run_ns, "run_queue_wait_ns": 0, "time_slices": 1}


def arm_of(servers: int) -> tuple[RunningArm, list[int]]:
    closed: list[int] = []

    def server(number: int) -> Any:
        clock = iter(range(1, 1_000_000))

        def counters(*, brief: bool, single_threads: Sequence[int]) -> Json:
            at = next(clock)
            asked = {f"{thread}": sleeping(run_ns=at * thread) for thread in single_threads}
            return {"at_ns": at, "processes": None, "single_threads": asked}

        session = SimpleNamespace(number=number, close=lambda: closed.append(number))
        unit = SimpleNamespace(new_session=lambda: session)
        return SimpleNamespace(machine=SimpleNamespace(counters=counters), server=SimpleNamespace(pid=1), units=(unit,))

    every = tuple(server(number) for number in range(1, servers + 1))
    engine = SimpleNamespace(description=EngineDescription("Talkative"))
    running = SimpleNamespace(servers=every, first_unit_of=lambda one: one.units[0], engine=engine)
    return cast(RunningArm, running), closed


def test_every_server_is_looked_at_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_samples, "LOOK_EVERY_S", 0.001)
    running, closed = arm_of(3)
    seen: Json = {}
    with wait_samples._looks(running, cast(Any, Talkative()), seen):
        time.sleep(0.2)
    waiting = Counter(seen["waiting"])
    looks = waiting.pop("looks")
    assert set(waiting) == {"1", "2", "3"} and sum(waiting.values()) == looks >= 9
    assert max(waiting.values()) - min(waiting.values()) <= 1 and sorted(closed) == [1, 2, 3]
    # Each server's clock is read twice, and its own thread ran meanwhile for as long as its number.
    assert seen["processes"] == {"run_ns": 1 + 2 + 3, "run_queue_wait_ns": 0, "elapsed_ns": 3}


class Quiet:
    """An engine that knows of no wait but a commit's: of the threads 1 to 7 the last two are in one."""

    def wait_events(self, session: Any) -> dict[int, str]:
        return {**dict.fromkeys(range(1, 6), RUNNING), 6: "Commit", 7: "Commit"}


def test_the_kernel_knows_who_slept_all_the_while() -> None:
    reader, waiter, awake, woken, new = range(1, 6)
    before = {reader: sleeping("D"), waiter: sleeping(), awake: sleeping("R"), woken: sleeping("D")}
    before |= {6: sleeping("D"), 7: sleeping("R")}  # in a commit: one waits for the log, one for a processor
    after = before | {woken: sleeping("D", run_ns=2), new: sleeping("D"), 6: sleeping("S", run_ns=2)}
    looks = iter([before, after])

    def counters(*, brief: bool, single_threads: Sequence[int]) -> Json:
        asked = {f"{thread}": told for thread, told in next(looks).items() if thread in single_threads}
        return {"at_ns": 1, "processes": None, "single_threads": asked}

    machine = cast(Any, SimpleNamespace(counters=counters))
    server = wait_samples.WatchedServer(machine, cast(Any, Quiet()), cast(Any, None), [*before], asks_kernel=True)
    assert server.waits() == [ON_DISK, ASLEEP, RUNNING, RUNNING, RUNNING, "Commit", RUNNING]


def test_nothing_is_known_of_sleeps_where_the_kernel_counts_no_time_slices() -> None:
    def counters(*, brief: bool, single_threads: Sequence[int]) -> Json:
        asked = {f"{thread}": {**sleeping("D"), "time_slices": None} for thread in single_threads}
        return {"at_ns": 1, "processes": None, "single_threads": asked}

    machine = cast(Any, SimpleNamespace(counters=counters))
    server = wait_samples.WatchedServer(machine, cast(Any, Quiet()), cast(Any, None), range(1, 8), asks_kernel=True)
    assert server.waits() == [*[RUNNING] * 5, "Commit", "Commit"]


def test_a_window_that_fails_leaves_no_session_behind() -> None:
    running, closed = arm_of(2)

    @contextmanager
    def looking() -> Any:
        with wait_samples._looks(running, cast(Any, Talkative()), {}):
            yield

    with pytest.raises(ZeroDivisionError), looking():
        raise ZeroDivisionError
    assert sorted(closed) == [1, 2]
