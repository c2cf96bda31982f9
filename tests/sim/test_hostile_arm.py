"""What an arm's server and programs say may be anything. It fails that arm: the others go on, and the folder stays readable."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dbtoll.analysis.result import builder as results
from dbtoll.commands import inspect
from dbtoll.environments.simulated.machine import SimulatedMachine
from dbtoll.environments.simulated.session import SimulatedSession, SimulatedTerminals
from dbtoll.errors import EngineError
from dbtoll.images import dataset
from dbtoll.machines.cgroups.layout import own_cpus
from dbtoll.model.json import Json
from dbtoll.model.reply import VisitReply, WindowReply
from dbtoll.runner import run as runs
from dbtoll.runner.preparation import baseline_answers, data
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import Start
from tests.support.few_rounds import Counting, specification

SPEC = specification("base", "good", "hostile")


class Analysing(Counting):
    """Looks after each round at what a stopping rule would look at."""

    def decide(self, so_far: Run, elapsed_s: float, next_round_s: float) -> str | None:
        results.analyze_run(so_far)
        return super().decide(so_far, elapsed_s, next_round_s)


def is_hostile(machine: SimulatedMachine) -> bool:
    return "-hostile-" in machine.name


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


def no_json(machine: SimulatedMachine) -> Any:
    return json.loads("segmentation fault")


def no_row(machine: SimulatedMachine) -> Any:
    ((_,),) = ([],)  # type: ignore[misc]
    return {}


def no_object(machine: SimulatedMachine) -> Any:
    return json.loads("[]").get("batches")


def too_deep(machine: SimulatedMachine) -> Any:
    return json.loads("[" * 100_000 + "]" * 100_000)


def no_such_line(machine: SimulatedMachine) -> Any:
    return next(line for line in "Name: x".splitlines() if line.startswith("CapEff:"))


def all_processors(machine: SimulatedMachine) -> Any:
    class Machine:
        def get(self, path: str) -> bytes:
            return b"Cpus_allowed_list:\t0-9999999999\n"

    return {"cpus": own_cpus(Machine())}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("facts", lambda _: {"memory_bytes": 2**70}),
        ("facts", lambda _: {"memory_bytes": -1}),
        ("facts", lambda _: {"cpus_allowed": "all of them"}),
        ("facts", lambda _: nested(40)),
        ("facts", lambda _: {"\ud800": 1}),
        ("facts", no_json),
        ("facts", no_row),
        ("facts", no_object),
        ("facts", too_deep),
        ("facts", no_such_line),
        ("facts", all_processors),
        ("counters", no_object),
        ("counters", no_json),
        ("counters", lambda _: {"at_ns": 1, "processes": {"user_ns": nested(40)}, "machine": {}}),
        ("logs", no_json),
    ],
)
def test_what_cannot_be_read_is_the_failure_of_its_arm(
    method: str, says: Callable[[SimulatedMachine], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(SimulatedMachine, method)

    def answer(machine: SimulatedMachine, **asked: Any) -> Any:
        return says(machine) if is_hostile(machine) else honest(machine, **asked)

    monkeypatch.setattr(SimulatedMachine, method, answer)
    folder = runs.begin(experiment(SPEC), SPEC, tmp_path, Analysing(2))
    found = results.analyze(folder)
    arms = {arm.name: arm for arm in found.arms}
    assert len(read_run(folder).complete_rounds) == 2
    assert arms["base"].outcome == arms["good"].outcome == "ok"
    if method == "logs":  # after all that counts
        assert arms["hostile"].outcome == "ok"
    else:
        assert arms["hostile"].outcome == "failed"
        assert "hostile: what it said cannot be read (" in (arms["hostile"].reason or "")


def test_a_visit_that_no_history_could_hold_fails_its_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SimulatedSession._visit

    def answer(session: SimulatedSession, *asked: Any, **how: Any) -> VisitReply:
        reply = honest(session, *asked, **how)
        if is_hostile(session._machine):
            object.__setattr__(reply, "end_ns", reply.start_ns - 1)
        return reply

    monkeypatch.setattr(SimulatedSession, "_visit", answer)
    folder = runs.begin(experiment(SPEC), SPEC, tmp_path, Analysing(2))
    arms = {arm.name: arm for arm in results.analyze(folder).arms}
    assert (arms["base"].outcome, arms["good"].outcome, arms["hostile"].outcome) == ("ok", "ok", "failed")
    assert "something ends before it begins" in (arms["hostile"].reason or "")


def at_once(reply: VisitReply) -> VisitReply:
    return replace(reply, executions=tuple(replace(each, end_ns=each.start_ns) for each in reply.executions))


def quoting_all(reply: VisitReply) -> VisitReply:
    wrong = [replace(each, outcome="wrong_answer", difference="x" * (30 << 20)) for each in reply.executions[:1]]
    return replace(reply, executions=tuple(wrong))


@pytest.mark.parametrize(("says", "outcome"), [(at_once, "failed"), (quoting_all, "invalid")])
def test_what_no_table_could_hold_is_not_written(
    says: Callable[[VisitReply], VisitReply], outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = SimulatedSession._visit

    def answer(session: SimulatedSession, *asked: Any, **how: Any) -> VisitReply:
        reply = honest(session, *asked, **how)
        return says(reply) if is_hostile(session._machine) else reply

    monkeypatch.setattr(SimulatedSession, "_visit", answer)
    folder = runs.begin(experiment(SPEC), SPEC, tmp_path, Analysing(2))
    inspect.report(folder, as_json=False)
    arms = {arm.name: arm for arm in results.analyze(folder).arms}
    assert (arms["base"].outcome, arms["good"].outcome, arms["hostile"].outcome) == ("ok", "ok", outcome)


class Changing(Analysing):
    """After the first round some arms are as they were not before."""

    changed = False

    def decide(self, so_far: Run, elapsed_s: float, next_round_s: float) -> str | None:
        self.changed = True
        return super().decide(so_far, elapsed_s, next_round_s)


@pytest.fixture
def answering_wrongly(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[str], Changing], None]:
    """``answering_wrongly(arms, watch)``: that is how these arms change."""
    honest = SimulatedSession._visit

    def wrong(arms: set[str], watch: Changing) -> None:
        def answer(session: SimulatedSession, *asked: Any, **how: Any) -> VisitReply:
            reply = honest(session, *asked, **how)
            if not watch.changed or not any(f"-{arm}-" in session._machine.name for arm in arms):
                return reply
            bad = replace(reply.executions[-1], outcome="wrong_answer", difference="row 1 differs")
            return replace(reply, executions=(*reply.executions[:-1], bad))

        monkeypatch.setattr(SimulatedSession, "_visit", answer)

    return wrong


@pytest.mark.parametrize(
    ("arms", "rounds", "reason"),
    [
        ({"hostile"}, {"base": 4, "good": 4, "hostile": 2}, "rounds_max"),
        ({"good", "hostile"}, {"base": 2, "good": 2, "hostile": 2}, "no arm left"),
        ({"base", "base (A/A)"}, {"base": 2, "good": 2, "hostile": 2}, "no arm left"),
    ],
)
def test_an_arm_that_answers_wrongly_takes_part_in_no_more_rounds(
    arms: set[str],
    rounds: dict[str, int],
    reason: str,
    answering_wrongly: Callable[[set[str], Changing], None],
    tmp_path: Path,
) -> None:
    said: list[str] = []
    watch = Changing(4)
    watch.say = said.append
    answering_wrongly(arms, watch)
    run = read_run(runs.begin(experiment(SPEC), SPEC, tmp_path, watch))
    took_part = Counter(start.arm for attempt in run.counted for start in attempt.records if isinstance(start, Start))
    assert {arm: took_part[arm] for arm in rounds} == rounds
    assert run.end is not None and run.end.reason == reason
    assert {text.partition(" answers Q")[0] for text in said if text.endswith("no more rounds")} == arms


def test_a_baseline_that_answers_wrongly_is_not_measured(
    answering_wrongly: Callable[[set[str], Changing], None], tmp_path: Path
) -> None:
    watch = Changing(3)
    watch.changed = True
    answering_wrongly({"base"}, watch)
    with pytest.raises(EngineError, match=r"the baseline cannot be measured: base.* answers Q. wrongly"):
        runs.begin(experiment(SPEC), SPEC, tmp_path, watch)


def transactions(seed: int) -> str:
    text = specification("base", "good", "hostile").replace("[precision]", 'window = "1s"\nramp_up = "0s"\n[precision]')
    return f"seed = {seed}\n" + text.replace('name = "tpch"\nqueries = ["Q1", "Q6"]', 'name = "tatp"')


def of_all_kinds(counts: Json, **changes: Any) -> None:
    for kind in counts["transactions"].values():
        kind.update(changes)


def renamed(counts: Json) -> None:
    counts["transactions"] = {f"other_{name}": kind for name, kind in counts["transactions"].items()}


@pytest.mark.parametrize("seed", [1, 2], ids=["it comes first", "it comes later"])
@pytest.mark.parametrize(
    "says",
    [
        renamed,
        lambda counts: counts.update(transactions={}),
        lambda counts: counts.update(interval_ns=2**62, series=[1] * 5),
        lambda counts: of_all_kinds(counts, committed=2**62),
        lambda counts: of_all_kinds(counts, response_ns={"buckets": [[5, 2**62]] * 3}),
        lambda counts: of_all_kinds(counts, failed={f"cause {number}": 1 for number in range(5000)}),
    ],
    ids=["other names", "no names", "long intervals", "many", "many in buckets", "many causes"],
)
def test_a_window_that_cannot_be_fails_its_arm_alone(
    says: Callable[[Json], None], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = SimulatedTerminals._window

    def answer(terminals: SimulatedTerminals, *asked: Any) -> WindowReply:
        reply = honest(terminals, *asked)
        if not is_hostile(terminals._machine):
            return reply
        counts = copy.deepcopy(dict(reply.counts))
        says(counts)
        return replace(reply, counts=counts)

    monkeypatch.setattr(SimulatedTerminals, "_window", answer)
    text = transactions(seed)
    folder = runs.begin(experiment(text), text, tmp_path, Analysing(2))
    inspect.report(folder, as_json=False)
    arms = {arm.name: arm for arm in results.analyze(folder).arms}
    assert len(read_run(folder).complete_rounds) == 2
    assert (arms["base"].outcome, arms["good"].outcome, arms["hostile"].outcome) == ("ok", "ok", "failed")


@pytest.mark.parametrize("said", [b"", b"all of it"])
def test_before_the_first_round_nonsense_is_one_error_too(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server says that loads the data; here its `du`."""

    def build(*asked: Any, **how: Any) -> Any:
        return int(said.split()[0])

    monkeypatch.setattr(dataset, "build", build)
    prepared = data.masters_of
    with pytest.raises(EngineError, match="the server that loads the data: what it said cannot be read"):
        prepared(*[_Anything()] * 6)  # type: ignore[arg-type, list-item]


class _Anything:
    """Whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __getitem__(self, key: object) -> Any:
        return self

    def __call__(self, *asked: Any, **how: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())


def test_rows_of_unlike_width_are_no_answer() -> None:
    with pytest.raises(ValueError, match="not all of one width"):
        baseline_answers._reference([["1.5", "2"], ["3.5"]])
