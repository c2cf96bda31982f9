"""What does not work may never pass: whole run folders in which something failed, and what is said of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dbtoll.analysis.effects import overhead_gate, stopping
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import Comparison, Contrast, Result
from dbtoll.analysis.visits.metrics import VALUES
from dbtoll.analysis.visits.units import totals
from dbtoll.analysis.visits.valid import Bars, ValidVisits
from dbtoll.model.experiment import GateDecision, Outcome, Verdict
from dbtoll.model.reply import TIME_PER_TRANSACTION
from dbtoll.report import page, tables
from dbtoll.report.text import gate as gate_text
from dbtoll.report.text import sentences
from dbtoll.report.text.numbers import MINUS, THIN
from dbtoll.store.reader import read_run
from dbtoll.store.schema import CheckRecord, Record, Start, Timing, Visit
from tests.support.changed import changed_run, revised, visit_of_one_unit
from tests.support.make_run import COPY, DOCKER, NATIVE, QUERIES, make_run
from tests.support.make_windows import make_windows
from tests.unit.test_report import Page

LIMIT = 0.05
WITHIN, EXCEEDED, UNDECIDED = GateDecision.WITHIN, GateDecision.EXCEEDED, GateDecision.UNDECIDED
GOOD = (Verdict.NO_DIFFERENCE, Verdict.GAINS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Docker loses nothing, which eight rounds of three executions in each visit can tell."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    return make_run(
        folder, docker_effect=0.0, q9_effect=0.0, start_sd=0.001, visit_sd=0.004, interrupted=False, executions=3
    )


def ending(visit: Visit, outcome: str, after: int) -> Visit:
    """The visit as the agent reports it whose execution number ``after`` + 1 is not ok: that is the last one."""
    executions = list(visit.units[0].executions[: after + 1])
    last = [getattr(executions[-1], name) for name in Timing.__struct_fields__[:-1]]
    executions[-1] = Timing(*last, outcome)
    problem = "" if outcome == "timeout" else "division by zero"
    return revised(visit, executions=tuple(executions), problem=problem or None)


def broken(source: Path, folder: Path, hit: Callable[[Visit], bool], outcome: str = "error", after: int = 2) -> Result:
    """The run in which the steady visits that ``hit`` names end so."""

    def change(record: Record) -> list[Record]:
        if isinstance(record, Visit) and not record.first_execution and hit(record):
            return [ending(record, outcome, min(after, len(record.units[0].executions) - 1))]
        return [record]

    return results.analyze(changed_run(source, folder, change))


def over_all(result: Result, arm: str = DOCKER, estimand: str = "geomean") -> Comparison:
    return next(c for c in result.comparisons if (c.arm, c.estimand, c.metric) == (arm, estimand, "run_time"))


def gated(result: Result, limit: float = LIMIT) -> tuple[GateDecision, str]:
    """What the gate decides, and its sentence."""
    found = overhead_gate.judge(result, limit)
    return found.decision, plain_spaces(gate_text.sentence(replace(result, gate=found)))


def plain_spaces(text: str) -> str:
    return text.replace(THIN, " ").replace(MINUS, "-")


def said(result: Result, folder: Path) -> str:
    """The terminal and the page."""
    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    console.print(tables.terminal(result))
    return console.export_text() + Page(page.render(result, read_run(folder))).text


def test_what_works_passes(plain: Path) -> None:
    result = results.analyze(plain)
    assert over_all(result).verdict is Verdict.NO_DIFFERENCE
    assert gated(result) == (WITHIN, "within: every arm takes at most 5 % longer")


@pytest.mark.parametrize("outcome", ["error", "timeout"])
def test_an_arm_of_which_one_query_in_22_works_never_passes(plain: Path, tmp_path: Path, outcome: str) -> None:
    result = broken(plain, tmp_path / "run", lambda v: v.arm == DOCKER and v.query != "Q1", outcome, after=0)
    docker = result.arms[2]
    assert docker.outcome is Outcome.FAILED
    named = (docker.reason or "").partition(" failed" if outcome == "error" else " ran")[0].split(", ")
    assert sorted(named) == sorted(query for query in QUERIES if query != "Q1")
    for estimand in ("geomean", "ratio_of_totals"):
        assert over_all(result, estimand=estimand).verdict not in GOOD
        assert over_all(result, estimand=estimand).high is None
    code, sentence = gated(result)
    assert code is UNDECIDED and DOCKER in sentence
    first = next(h for h in sentences.headlines(result) if h.arm == DOCKER)
    assert first.kind == Outcome.FAILED and first.phrase.lead == "failed"
    assert "no difference" not in "".join(h.sentence for h in sentences.headlines(result))
    assert first.sentence in said(result, tmp_path / "run").replace("\n", " ")


def test_what_failed_is_said_of_metrics_that_were_measured(plain: Path, tmp_path: Path) -> None:
    """On one connection nobody connects, so nothing failed in connecting."""
    result = broken(plain, tmp_path / "run", lambda v: v.arm == DOCKER and v.query == "Q3")
    assert {c.metric for c in result.comparisons} == {"run_time"}


def test_other_plans_are_no_failure(plain: Path) -> None:
    """The estimand over the queries with the same plans is to do without the others; Q9's plan is another one in docker."""
    found = over_all(results.analyze(plain), estimand="geomean_same_plans")
    assert found.left_out == ("Q9: another plan",)
    assert (found.verdict, found.reason) == (Verdict.NO_DIFFERENCE, None)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_visit_that_ends_in_an_error_is_no_good_visit(plain: Path, tmp_path: Path, after: int) -> None:
    """``[ok, ok, error]``: the median of a list with a NaN in it was a time."""
    result = broken(plain, tmp_path / "run", lambda v: v.arm == DOCKER, after=after)
    assert result.arms[2].outcome is Outcome.FAILED
    assert over_all(result).estimate is None and over_all(result).verdict is Verdict.CANNOT_TELL
    assert all(c.estimate is None for c in result.comparisons if c.arm == DOCKER and c.metric == "run_time")
    assert overhead_gate.judge(result, LIMIT).decision is UNDECIDED
    # One such visit of one query in one round is seen as well.
    once = broken(
        plain, tmp_path / "once", lambda v: (v.arm, v.query, v.round, v.block) == (DOCKER, "Q3", 2, 1), after=after
    )
    assert once.arms[2].outcome is Outcome.FAILED
    assert over_all(once).reason == "Q3: 1 visit of docker failed or answered wrongly"


def value(metric: str, visit: Visit) -> float | None:
    (found,) = VALUES[metric]([totals(visit)])
    return found


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (("ok",), 100.0),
        (("ok", "ok"), 100.0),
        (("timeout",), math.inf),
        (("ok", "timeout"), math.inf),  # half of them: the median lies between one that ended and one that did not
        (("ok", "ok", "timeout"), 100.0),
        (("ok", "ok", "ok", "timeout"), 100.0),
        (("error",), math.nan),
        (("ok", "error"), math.nan),
        (("ok", "ok", "error"), math.nan),
        (("ok", "ok", "ok", "ok", "wrong_answer"), math.nan),
    ],
)
def test_the_value_of_a_visit(outcomes: tuple[str, ...], expected: float) -> None:
    visit = visit_of_one_unit(
        round=0, arm=DOCKER, levels={"connection": "persistent"}, block=0, query="Q1", order=1, first_execution=False,
        asleep_ok=True, host_start_ns=None, host_end_ns=None, start_ns=0, end_ns=1000,
        executions=tuple(Timing(n * 100, None, None, n * 100 + 100, 1, 1, what) for n, what in enumerate(outcomes)),  # type: ignore[arg-type]
    )  # fmt: skip
    assert value("run_time", visit) == pytest.approx(expected, nan_ok=True)


def test_timeouts_bound_the_arm_from_below(plain: Path, tmp_path: Path) -> None:
    """Docker's Q9 was ended by a timeout after a hundred times what it takes: the gate is exceeded, nobody knows by how much."""

    def change(record: Record) -> list[Record]:
        if isinstance(record, Visit) and (record.arm, record.query) == (DOCKER, "Q9"):
            only = record.units[0].executions[0]
            late = only.start_ns + 100 * (only.end_ns - only.start_ns)
            timing = Timing(only.start_ns, None, None, late, None, None, "timeout")
            shift = late - record.units[0].executions[-1].end_ns
            host_end_ns = None if record.units[0].host_end_ns is None else record.units[0].host_end_ns + shift
            return [
                revised(record, executions=(timing,), end_ns=record.units[0].end_ns + shift, host_end_ns=host_end_ns)
            ]
        return [record]

    result = results.analyze(changed_run(plain, tmp_path / "run", change))
    found = over_all(result)
    assert found.estimate is None and found.high is None and found.low is not None
    assert found.low == pytest.approx(100 ** (1 / 22) - 1, abs=0.01)
    assert found.low == found.low_decisive  # what is said to be the least is what the verdict rests on
    assert found.verdict is Verdict.LOSES
    assert "16 visits of docker ran into the statement timeout" in (found.reason or "")
    headlines = [h.sentence for h in sentences.headlines(result) if h.arm == DOCKER]
    assert headlines[0].startswith("Docker: failed: Q9 ran into the statement timeout")
    assert "at least" in headlines[1]
    code, sentence = gated(result)
    assert code is EXCEEDED
    assert sentence == "exceeded: docker takes more than 5 % longer; docker: at least 22.9 % longer, 8 rounds"
    assert overhead_gate.judge(result, 0.5).decision is UNDECIDED
    assert "at least" in said(result, tmp_path / "run")


def test_a_start_that_failed_bars_a_clean_verdict(plain: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        if isinstance(record, Start) and (record.arm, record.round) == (DOCKER, 5):
            return [record, Start(round=5, arm=DOCKER, outcome="failed", reason="the server ended")]
        return [record]

    result = results.analyze(changed_run(plain, tmp_path / "run", change))
    found = over_all(result)
    assert found.rounds == 7 and found.estimate is not None
    assert found.verdict is Verdict.CANNOT_TELL
    assert found.reason == "1 of 8 starts failed: the server ended"
    assert over_all(result, estimand="query:Q1").verdict is Verdict.CANNOT_TELL
    assert overhead_gate.judge(result, LIMIT).decision is UNDECIDED


def test_a_gate_does_not_hide_what_failed(plain: Path, tmp_path: Path) -> None:
    """A statement that fails at once is not bracketed like those that work; being void it was not missed."""

    def change(record: Record) -> list[Record]:
        if isinstance(record, Visit) and (record.arm, record.query) == (DOCKER, "Q4") and not record.first_execution:
            assert record.units[0].host_end_ns is not None
            return [
                revised(ending(record, "error", 0), host_end_ns=record.units[0].host_end_ns + 10**9, asleep_ok=False)
            ]
        return [record]

    result = results.analyze(changed_run(plain, tmp_path / "run", change))
    assert "Q4 failed (16 visits" in (result.arms[2].reason or "")
    assert over_all(result).verdict is Verdict.CANNOT_TELL


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_the_gate_decides_nothing_by_few_rounds(tmp_path: Path, rounds: int) -> None:
    folder = make_run(
        tmp_path / "run", rounds=rounds, docker_effect=0.5, start_sd=0.0001, visit_sd=0.0001, interrupted=False
    )
    result = results.analyze(folder)
    found = over_all(result)
    assert found.low is not None and found.low > LIMIT
    code, sentence = gated(result)
    assert code is UNDECIDED and f"there are {rounds}" in sentence


def test_the_gate_on_transactions_speaks_of_what_is_done(tmp_path: Path) -> None:
    """Its limit is of the time per transaction: 25 % longer is 20 % less."""
    result = results.analyze(make_windows(tmp_path / "run", docker_effect=0.5))
    code, sentence = gated(result, 0.25)
    assert code is EXCEEDED
    assert sentence.startswith("exceeded: docker does more than 20 % less; docker: -32.5 %")
    assert gated(result, 1.0) == (WITHIN, "within: every arm does at most 50 % less")


def test_transactions_that_fail_are_no_work_done(tmp_path: Path) -> None:
    """An arm whose payments all fail at once has more time for new orders."""
    lossy = make_windows(tmp_path / "lossy", rounds=6, docker_effect=-0.2, causes={"failed": {"error": 4000}})
    result = results.analyze(lossy)
    assert result.arms[2].outcome is Outcome.FAILED
    assert "transactions failed" in (result.arms[2].reason or "")
    found = next(c for c in result.comparisons if (c.arm, c.metric) == (DOCKER, TIME_PER_TRANSACTION))
    assert found.verdict is Verdict.CANNOT_TELL
    assert overhead_gate.judge(result, LIMIT).decision is UNDECIDED
    refused = results.analyze(tmp_path_with_refusals(tmp_path))
    assert next(c for c in refused.comparisons if (c.arm, c.metric) == (DOCKER, TIME_PER_TRANSACTION)).estimate is None


def tmp_path_with_refusals(tmp_path: Path) -> Path:
    source = make_windows(tmp_path / "refusing", rounds=6)

    def change(record: Record) -> list[Record]:
        hit = isinstance(record, Visit) and (record.arm, record.round) == (DOCKER, 3)
        return [revised(record, problem="connections were refused: too many clients") if hit else record]

    return changed_run(source, tmp_path / "refused", change)


def test_what_decides_is_longer_than_what_is_shown(tmp_path: Path) -> None:
    """Eight rounds that lie 3 % above 0 cannot tell whether starts depend on each other: the verdict waits, and both are said."""
    folder = make_run(
        tmp_path / "run", docker_effect=0.03, q9_effect=0.03, start_sd=0.02, visit_sd=0.004, interrupted=False
    )
    result = results.analyze(folder)
    found = over_all(result)
    assert found.low is not None and found.low_decisive is not None and found.high_decisive is not None
    assert found.low_decisive < 0 < found.low
    assert found.verdict is Verdict.CANNOT_TELL
    sentence = next(h.sentence for h in sentences.headlines(result) if h.arm == DOCKER)
    assert "if starts depend on each other; more rounds would be needed" in sentence
    (cell,) = overhead_gate.judge(result, 0.001).cells
    assert (cell.decision, cell.low, cell.high) == (UNDECIDED, found.low_decisive, found.high_decisive)
    assert cell.reason == "the limit lies inside the interval"


# --- one rule for all that decides ------------------------------------------------------------------------------------


def voiding(rounds: set[int]) -> Callable[[Record], list[Record]]:
    def change(record: Record) -> list[Record]:
        hit = isinstance(record, CheckRecord) and (record.arm, record.check) == (DOCKER, "commit_reaches_device")
        if hit and record.round in rounds:
            return [revised(record, passed=False, finding="none reached a device")]
        return [record]

    return change


def test_a_round_that_a_gate_voids_is_no_reason_to_stop(tmp_path: Path) -> None:
    """ "target reached" after five rounds, and then "cannot tell" by four."""
    source = make_run(tmp_path / "source", rounds=5, start_sd=0.001, visit_sd=0.004, interrupted=False, ended=False)

    def reason(folder: Path) -> str | None:
        run = read_run(folder)
        return stopping.look(run, run.plan.experiment.precision, elapsed_s=1, next_round_s=1).reason

    assert reason(source) == "target reached"
    assert reason(changed_run(source, tmp_path / "void", voiding({2}))) is None


def contrasts_of(folder: Path) -> dict[str, Contrast]:
    return {each.arm: each for each in results.analyze(folder).contrasts}


def two_levels(tmp_path: Path, rounds: int = 8) -> Path:
    return make_run(
        tmp_path / "levels", rounds=rounds, connections=("persistent", "per_statement"), start_sd=0.0005, visit_sd=0.002,
        docker_effect=0.0, q9_effect=0.0, interrupted=False,
    )  # fmt: skip


def slower(arms: dict[str, float], level: str) -> Callable[[Record], list[Record]]:
    """These arms' executions take so many times as long at that level."""

    def change(record: Record) -> list[Record]:
        if isinstance(record, Visit) and record.levels["connection"] == level and record.arm in arms:
            factor, begin = arms[record.arm], record.units[0].start_ns
            executions = tuple(
                Timing(
                    begin + round((t.start_ns - begin) * factor), None, None, begin + round((t.end_ns - begin) * factor),
                    t.rows, t.result_bytes, t.outcome,
                )
                for t in record.units[0].executions
            )  # fmt: skip
            longer = round((record.units[0].end_ns - begin) * (factor - 1))
            host_end_ns = None if record.units[0].host_end_ns is None else record.units[0].host_end_ns + longer
            return [
                revised(record, executions=executions, end_ns=record.units[0].end_ns + longer, host_end_ns=host_end_ns)
            ]
        return [record]

    return change


def test_a_contrast_is_widened_by_what_two_copies_show(tmp_path: Path) -> None:
    source = two_levels(tmp_path)
    found = contrasts_of(changed_run(source, tmp_path / "honest", slower({DOCKER: 1.2}, "per_statement")))
    assert found[DOCKER].verdict is Verdict.LOSES and found[DOCKER].widened_by == 0
    shifted = slower({DOCKER: 1.2, COPY: 1.25}, "per_statement")
    result = results.analyze(changed_run(source, tmp_path / "shifted", shifted))
    overhead = next(
        c for c in result.comparisons
        if (c.arm, c.estimand, c.metric) == (DOCKER, "geomean", "run_time") and c.levels["connection"] == "per_statement"
    )  # fmt: skip
    contrast = next(each for each in result.contrasts if each.arm == DOCKER)
    assert overhead.verdict is Verdict.CANNOT_TELL and contrast.verdict is Verdict.CANNOT_TELL
    assert contrast.widened_by >= overhead.widened_by > 0.2


def test_a_contrast_has_no_verdict_where_a_comparison_has_none(tmp_path: Path) -> None:
    source = changed_run(two_levels(tmp_path), tmp_path / "slower", slower({DOCKER: 1.2}, "per_statement"))

    def wrong(record: Record) -> list[Record]:
        hit = isinstance(record, Visit) and (record.arm, record.query, record.round) == (DOCKER, "Q7", 3)
        return [ending(record, "wrong_answer", 0) if hit and not record.first_execution else record]

    found = contrasts_of(changed_run(source, tmp_path / "wrong", wrong))[DOCKER]
    assert (found.verdict, found.estimate) == (Verdict.CANNOT_TELL, None) and "Q7" in (found.reason or "")

    def inconsistent(record: Record) -> list[Record]:
        if isinstance(record, CheckRecord) and (record.arm, record.check, record.round) == (DOCKER, "answers_known", 3):
            return [record, CheckRecord(round=record.round, arm=DOCKER, check="consistent", passed=False, finding="no")]
        return [record]

    found = contrasts_of(changed_run(source, tmp_path / "invalid", inconsistent))[DOCKER]
    assert found.low is not None and found.low > 0 and found.verdict is Verdict.CANNOT_TELL
    few = contrasts_of(
        changed_run(two_levels(tmp_path / "few", rounds=4), tmp_path / "four", slower({DOCKER: 1.2}, "per_statement"))
    )[DOCKER]
    assert few.verdict is Verdict.CANNOT_TELL and "there are 4" in (few.reason or "")


def test_voids_in_the_baseline_move_no_total(tmp_path: Path) -> None:
    """Parameters differ between blocks; without any effect +33 % were seen where visits of the baseline were void."""
    source = make_run(
        tmp_path / "run", blocks=3, docker_effect=0.0, q9_effect=0.0, start_sd=0.0005, visit_sd=0.002, interrupted=False
    )
    chance = random.Random(1)

    def change(record: Record) -> list[Record]:
        if not isinstance(record, Visit) or record.first_execution:
            return [record]
        factor, begin = (1, 4, 16)[record.block], record.units[0].start_ns
        executions = tuple(
            Timing(begin + (t.start_ns - begin) * factor, None, None, begin + (t.end_ns - begin) * factor, 1, 1, "ok")
            for t in record.units[0].executions
        )
        longer = (record.units[0].end_ns - begin) * (factor - 1)
        assert record.units[0].host_end_ns is not None
        void = record.arm == NATIVE and record.block == 2 and chance.random() < 0.7
        return [
            revised(
                record, executions=executions, end_ns=record.units[0].end_ns + longer, asleep_ok=not void,
                host_end_ns=record.units[0].host_end_ns + longer,
            )
        ]  # fmt: skip

    result = results.analyze(changed_run(source, tmp_path / "changed", change))
    for estimand in ("ratio_of_totals", "geomean"):
        assert over_all(result, estimand=estimand).estimate == pytest.approx(0, abs=0.005)


def test_a_baseline_that_fails_bars_what_is_held_against_it_and_nothing_else(tmp_path: Path) -> None:
    """A limit is of one arm, a neighbour's work of an arm and itself, and a sweep compares any two."""
    measured = ValidVisits(read_run(make_windows(tmp_path / "run", rounds=6)))
    measured.__dict__["_failed_windows"] = {NATIVE: ("500 of 10000 arrivals were not served",)}
    assert measured.bars(DOCKER).all_of_them is not None
    assert measured.own_bars(DOCKER) == Bars(None, ())
    assert measured.own_bars(NATIVE).good_news and measured.own_bars(NATIVE).all_of_them is None
    assert measured.bars_within(DOCKER) == Bars(None, ())
    assert measured.bars_within(NATIVE).all_of_them, "what it is held against is its own"
    measured.__dict__["_failed_windows"] = {COPY: ("500 of 10000 arrivals were not served",)}
    assert measured.own_bars(NATIVE).good_news, "it is averaged with its copy"
