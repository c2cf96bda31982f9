"""What an arm's server and programs say may be anything. It fails that arm: the others go on, and the folder stays readable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbtoll.analysis import result as results
from dbtoll.environments.fake import FakeMachine, FakeSession
from dbtoll.model import VisitReply
from dbtoll.runner import run as runs
from dbtoll.selfbench.rig import experiment
from dbtoll.store.reader import Run, read_run
from tests.support.few_rounds import Counting, specification

SPEC = specification("base", "good", "hostile")


class Analysing(Counting):
    """Looks after each round at what a stopping rule would look at."""

    def decide(self, so_far: Run, elapsed_s: float, next_round_s: float) -> str | None:
        results.analyze_run(so_far)
        return super().decide(so_far, elapsed_s, next_round_s)


def is_hostile(machine: FakeMachine) -> bool:
    return "-hostile-" in machine.name


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


def no_json(machine: FakeMachine) -> Any:
    return json.loads("segmentation fault")


def no_row(machine: FakeMachine) -> Any:
    ((_,),) = ([],)  # type: ignore[misc]
    return {}


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
        ("counters", no_json),
        ("counters", lambda _: {"at_ns": 1, "processes": {"user_ns": nested(40)}, "machine": {}}),
        ("logs", no_json),
    ],
)
def test_what_cannot_be_read_is_the_failure_of_its_arm(
    method: str, says: Callable[[FakeMachine], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(FakeMachine, method)

    def answer(machine: FakeMachine, **asked: Any) -> Any:
        return says(machine) if is_hostile(machine) else honest(machine, **asked)

    monkeypatch.setattr(FakeMachine, method, answer)
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
    honest = FakeSession.visit

    def answer(session: FakeSession, *asked: Any, **how: Any) -> VisitReply:
        reply = honest(session, *asked, **how)
        if is_hostile(session._machine):
            object.__setattr__(reply, "end_ns", reply.start_ns - 1)
        return reply

    monkeypatch.setattr(FakeSession, "visit", answer)
    folder = runs.begin(experiment(SPEC), SPEC, tmp_path, Analysing(2))
    arms = {arm.name: arm for arm in results.analyze(folder).arms}
    assert (arms["base"].outcome, arms["good"].outcome, arms["hostile"].outcome) == ("ok", "ok", "failed")
    assert "something ends before it begins" in (arms["hostile"].reason or "")
