"""From visits to comparisons: what is paired with what, and what becomes of values that are missing."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from dbtoll.analysis.effects import stopping
from dbtoll.analysis.effects.comparisons import Effect, compare, mean, round_effects, round_totals
from dbtoll.analysis.reproduction.tables import Difference
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result import series
from dbtoll.analysis.result.schema import Comparison, Result, WarningKind, from_json, json_schema, to_json
from dbtoll.analysis.visits.arrays import TimeArray
from dbtoll.model.experiment import Outcome, Precision, Verdict
from dbtoll.papers import minhas2008
from dbtoll.papers.minhas2008 import side_by_side
from dbtoll.store.reader import read_run
from dbtoll.store.schema import CheckRecord, PlanFile, Record, RunEnd, Start, Timing, Visit
from dbtoll.store.writer import RunWriter
from tests.support import changed
from tests.support.changed import Change, revised
from tests.support.make_run import BASE_MS, COPY, DOCKER, FACTS, NATIVE, QUERIES, experiment, make_run

ROOT = Path(__file__).parents[2]
ARMS = (NATIVE, COPY, DOCKER)


def times(ns: np.ndarray, failed: np.ndarray | None = None, cut_ns: np.ndarray | None = None) -> TimeArray:
    """[round, block, query, arm] with the arms of the simulated run."""
    queries = tuple(f"Q{n + 1}" for n in range(ns.shape[2]))
    none_failed = np.zeros(ns.shape[2:])
    return TimeArray(tuple(range(len(ns))), queries, ARMS, ns, none_failed if failed is None else failed, cut_ns)


def noisy(effect: float = 0.0, rounds: int = 8, seed: int = 1, sd: float = 0.01, copy: float = 0.0) -> np.ndarray:
    chance = np.random.default_rng(seed)
    logs = np.log([1e8, 2e7, 5e6])[:, np.newaxis] + chance.normal(0, sd, (rounds, 3, 3, 3))
    logs += np.array([0, copy, math.log1p(effect)])
    return np.exp(logs)


def effects(measured: TimeArray, first: TimeArray | None = None) -> dict[tuple[str, str], Effect]:
    found = compare(measured, first, {COPY: NATIVE, DOCKER: NATIVE}, {COPY: NATIVE}, Precision(), per_query=True)
    return {(effect.arm, effect.estimand): effect for effect in found}


def test_an_arm_is_set_against_the_geometric_mean_of_both_copies() -> None:
    ns = np.array([[[[100.0, 400.0, 300.0]]]])
    assert round_effects(ns, 2, [0, 1])[0, 0] == pytest.approx(math.log(300 / 200))
    assert round_effects(ns, 1, [0])[0, 0] == pytest.approx(math.log(4))


def test_blocks_are_paired() -> None:
    """A machine that slows down fourfold from block to block changes no effect at all."""
    ns = np.array([100.0, 100.0, 107.0]) * np.array([1.0, 4.0, 16.0])[:, np.newaxis, np.newaxis]
    assert round_effects(ns[np.newaxis], 2, [0, 1])[0, 0] == pytest.approx(math.log(1.07))


def test_the_ratio_of_totals_is_of_sums() -> None:
    ns = np.array([[[[100.0, 100.0, 110.0], [10.0, 10.0, 20.0]]]])
    assert round_totals(ns, 2, [0, 1])[0] == pytest.approx(math.log(130 / 110))
    doubled = np.concatenate([ns, 3 * ns], axis=1)
    assert round_totals(doubled, 2, [0, 1], mean)[0] == pytest.approx(math.log(130 / 110))


def test_leading_axes_give_the_same_as_one_by_one() -> None:
    ns = np.stack([noisy(seed=1), noisy(seed=2)])
    ns[0, 2, 1, 0, 2] = math.nan
    many, totals = round_effects(ns, 2, [0, 1]), round_totals(ns, 2, [0, 1])
    for index in range(2):
        assert many[index] == pytest.approx(round_effects(ns[index], 2, [0, 1]))
        assert totals[index] == pytest.approx(round_totals(ns[index], 2, [0, 1]))


def test_a_planted_effect_is_found() -> None:
    found = effects(times(noisy(0.07, sd=0.005)))
    for estimand in ("geomean", "ratio_of_totals", "query:Q2"):
        shown = found[DOCKER, estimand].shown
        assert shown is not None and shown.low < math.log1p(0.07) < shown.high
        assert found[DOCKER, estimand].verdict is Verdict.LOSES
    assert found[COPY, "geomean"].is_aa
    assert found[COPY, "geomean"].verdict is Verdict.NO_DIFFERENCE


def test_a_query_that_failed_leaves_no_figure_over_all() -> None:
    """A mean over what worked says nothing of an arm in which something did not."""
    failed = np.zeros((3, 3))
    failed[1, 2] = 2
    ns = noisy(0.07)
    ns[3, :, 1, 2] = math.nan
    found = effects(times(ns, failed))
    assert found[DOCKER, "query:Q2"].shown is None
    assert found[DOCKER, "query:Q2"].reason == "2 visits of docker failed or answered wrongly"
    for estimand in ("geomean", "ratio_of_totals"):
        assert found[DOCKER, estimand].shown is None
        assert found[DOCKER, estimand].reason == "Q2: 2 visits of docker failed or answered wrongly"
        assert found[DOCKER, estimand].verdict is Verdict.CANNOT_TELL
    assert found[DOCKER, "query:Q1"].verdict is Verdict.LOSES  # its own visits all worked
    assert found[COPY, "geomean"].shown is not None
    assert found[COPY, "geomean"].left_out == ()


def test_a_query_that_failed_in_the_baseline_fails_everywhere() -> None:
    failed = np.zeros((3, 3))
    failed[0, 1] = 1
    found = effects(times(noisy(), failed))
    for arm in (COPY, DOCKER):
        assert found[arm, "query:Q1"].reason == "1 visit of native (A/A) failed or answered wrongly"


def censored(effect: float, share: float = 1.0) -> TimeArray:
    """Of Q1 in docker so many of the visits were ended after a tenth more than the baseline takes."""
    ns = noisy(effect)
    cut_ns = ns.copy()
    for round_ in range(round(share * len(ns))):
        cut_ns[round_, :, 0, 2] = 1.1 * ns[round_, :, 0, 0]
        ns[round_, :, 0, 2] = math.inf
    return times(ns, cut_ns=cut_ns)


def test_a_censored_query_bounds_its_arm_from_below() -> None:
    found = effects(censored(0.07))
    for estimand in ("query:Q1", "geomean", "ratio_of_totals"):
        shown = found[DOCKER, estimand].shown
        assert shown is not None and shown.is_bound and not shown.estimate < math.inf
        assert shown.low > math.log1p(0.03)
        assert found[DOCKER, estimand].verdict is Verdict.LOSES
        assert "24 visits of docker ran into the statement timeout" in (found[DOCKER, estimand].reason or "")
    # As if it had ended there.
    as_cut = effects(times(np.asarray(censored(0.07).cut_ns)))
    assert found[DOCKER, "geomean"].shown.low == as_cut[DOCKER, "geomean"].decisive.low  # type: ignore[union-attr]
    assert found[COPY, "geomean"].shown is not None and not found[COPY, "geomean"].shown.is_bound


@pytest.mark.parametrize("effect", [-0.3, 0.0, 0.07])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_no_arm_with_a_timeout_is_said_to_lose_nothing_or_to_gain(effect: float, share: float) -> None:
    found = effects(censored(effect, share))
    for estimand in ("query:Q1", "geomean", "ratio_of_totals"):
        assert found[DOCKER, estimand].verdict in (Verdict.LOSES, Verdict.CANNOT_TELL)


def test_a_query_that_is_censored_in_the_baseline_leaves_no_figure() -> None:
    ns = noisy(0.07)
    ns[2, 1, 0, 1] = math.inf
    found = effects(times(ns, cut_ns=np.where(np.isinf(ns), 1e9, ns)))
    assert found[DOCKER, "query:Q1"].reason == "1 visit of native (A/A) ran into the statement timeout"
    assert found[DOCKER, "geomean"].shown is None
    bound = found[COPY, "geomean"].shown  # of the copy, it is a bound
    assert bound is not None and bound.is_bound


def test_a_query_that_is_left_out_bars_what_would_clear_the_arm() -> None:
    ns = noisy(0.0, sd=0.001)
    assert effects(times(ns))[DOCKER, "geomean"].verdict is Verdict.NO_DIFFERENCE
    ns[:5, :, 1, 2] = math.nan  # void visits
    found = effects(times(ns))[DOCKER, "geomean"]
    assert found.left_out == ("Q2: it has a value in 3 of 8 rounds",)
    assert found.shown is not None and found.verdict is Verdict.CANNOT_TELL
    slow = noisy(0.5)
    slow[:5, :, 1, 2] = math.nan
    assert effects(times(slow))[DOCKER, "geomean"].verdict is Verdict.LOSES


def test_a_query_with_a_value_below_zero_is_left_out_whole() -> None:
    """Were only that visit left out, the rest would be too much."""
    ns = noisy()
    ns[3, 1, 1, 2] = -500.0
    found = effects(times(ns))
    assert found[DOCKER, "query:Q2"].shown is None
    why = "Q2: 1 visit of docker found a cost below zero: noise is more than it"
    assert found[DOCKER, "geomean"].left_out == (why,)
    assert found[DOCKER, "geomean"].shown == effects(times(ns[:, :, [0, 2]]))[DOCKER, "geomean"].shown
    assert found[COPY, "geomean"].left_out == ()


def test_first_executiones_that_failed_count() -> None:
    failed = np.zeros((3, 3))
    failed[1, 2] = 1
    found = effects(times(noisy(0.0, sd=0.001)), times(noisy(0.0)[:, :1], failed))
    assert found[DOCKER, "geomean"].shown is None
    assert found[DOCKER, "query:Q2"].shown is None
    assert found[DOCKER, "query:Q1"].verdict is Verdict.NO_DIFFERENCE


def test_a_void_visit_costs_a_block_and_a_missing_round_its_round() -> None:
    ns = noisy(0.07)
    ns[1, 0, 0, 2] = math.nan  # one block of three
    assert effects(times(ns))[DOCKER, "geomean"].rounds == 8
    ns[4, :, 1, 2] = math.nan  # a query's whole round
    found = effects(times(ns))
    assert found[DOCKER, "query:Q2"].rounds == 7
    assert found[DOCKER, "geomean"].rounds == 7
    assert found[DOCKER, "query:Q1"].rounds == 8
    ns[:4, :, 1, 2] = math.nan  # more than half of the rounds
    found = effects(times(ns))
    assert found[DOCKER, "query:Q2"].reason == "it has a value in 3 of 8 rounds"
    assert found[DOCKER, "geomean"].rounds == 8


def test_an_arm_that_sat_out_rounds_keeps_the_others() -> None:
    ns = noisy(0.07)
    ns[:3, :, :, 2] = math.nan
    found = effects(times(ns))
    assert found[DOCKER, "geomean"].rounds == 5
    assert found[DOCKER, "geomean"].left_out == ()
    assert found[COPY, "geomean"].rounds == 8


def test_one_baseline_copy_can_stand_alone() -> None:
    ns = noisy(0.07)
    ns[2, :, :, 1] = math.nan
    found = effects(times(ns))
    assert found[DOCKER, "geomean"].rounds == 8
    assert found[COPY, "geomean"].rounds == 7


def test_too_few_rounds_say_so() -> None:
    one = effects(times(noisy(0.5, rounds=1)))[DOCKER, "geomean"]
    assert one.shown is None
    assert one.reason == "an interval needs two complete rounds, there is one"
    four = effects(times(noisy(0.5, rounds=4)))[DOCKER, "geomean"]
    assert four.shown is not None and four.shown.low > 0.3
    assert four.verdict is Verdict.CANNOT_TELL


def test_an_alarm_of_the_copies_widens_everything_but_itself() -> None:
    quiet, alarmed = effects(times(noisy(0.07))), effects(times(noisy(0.07, copy=0.05)))
    floor = alarmed[COPY, "geomean"].decisive
    assert floor is not None and floor.low > 0
    assert quiet[DOCKER, "geomean"].widened_by == 0
    assert alarmed[COPY, "geomean"].widened_by == 0
    effect = alarmed[DOCKER, "geomean"]
    assert effect.widened_by == pytest.approx(floor.high)
    # Half of the copy's offset is in the baseline's mean; the interval holds the truth none the less.
    assert effect.shown is not None and effect.shown.low < math.log1p(0.07) < effect.shown.high
    query = alarmed[DOCKER, "query:Q1"]
    assert query.decisive is not None and query.shown is not None
    assert query.decisive.half_width > floor.high


def test_what_decides_is_drawn_where_holm_tests() -> None:
    found = effects(times(noisy(0.02, sd=0.02)))
    queries = [found[DOCKER, f"query:Q{n}"] for n in (1, 2, 3)]
    assert any(effect.p_holm != effect.shown.p for effect in queries if effect.shown)
    for effect in queries:
        assert effect.decisive is not None and effect.p_holm is not None and effect.shown is not None
        assert effect.decisive.excludes_zero == (effect.p_holm < 0.05)
        assert effect.decisive.half_width >= effect.shown.half_width - 1e-12


def test_first_execution_is_apart() -> None:
    first = times(noisy(0.30)[:, :1])
    found = effects(times(noisy(0.0)), first)
    touch = found[DOCKER, "geomean"].first_execution
    assert touch is not None and touch.low < math.log1p(0.30) < touch.high
    assert effects(times(noisy(0.0)))[DOCKER, "geomean"].shown == found[DOCKER, "geomean"].shown


# --- a whole run folder ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    return make_run(path, cold=True, connections=("persistent", "per_statement"), docker_effect=0.08, start_sd=0.003)


@pytest.fixture(scope="module")
def analysed(folder: Path) -> Result:
    return results.analyze(folder)


def pick(result: Result, arm: str, estimand: str, metric: str = "run_time", **levels: str) -> Comparison:
    found = [
        c
        for c in result.comparisons
        if (c.arm, c.estimand, c.metric) == (arm, estimand, metric) and levels.items() <= c.levels.items()
    ]
    assert len(found) == 1
    return found[0]


def test_the_result_is_of_the_published_shape(analysed: Result) -> None:
    text = (ROOT / "docs" / "result.schema.json").read_text(encoding="utf-8")
    assert text == json_schema(), (
        "the types changed: write docs/result.schema.json anew with dbtoll.analysis.result.schema.json_schema()"
    )
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads(to_json(analysed))
    jsonschema.validate(document, schema)
    assert document == analysed.to_json()
    assert from_json(to_json(analysed)) == analysed
    for damage in ({"comparisons": None}, {"confidence": "95 %"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document, **damage}, schema)


def test_every_level_and_metric_is_compared(analysed: Result) -> None:
    levels = {tuple(c.levels.items()) for c in analysed.comparisons}
    assert len(levels) == 4
    for cache in ("warm", "cold"):
        for connection in ("persistent", "per_statement"):
            geomean = pick(analysed, DOCKER, "geomean", cache=cache, connection=connection)
            assert geomean.low is not None and geomean.high is not None
            assert geomean.low < 0.0885 < geomean.high  # 8 % on 21 queries and 25 % on Q9
            assert geomean.verdict is Verdict.LOSES
            pick(analysed, COPY, "query:Q22", cache=cache, connection=connection)
    connect = pick(analysed, DOCKER, "geomean", "connect_time", cache="warm")
    assert connect.estimate == pytest.approx(math.expm1(0.2), abs=0.02)
    assert connect.levels["connection"] == "per_statement"
    assert not [c for c in analysed.comparisons if c.metric == "connect_time" and c.estimand.startswith("query:")]


def test_first_execution_is_of_warm_phases_only(analysed: Result) -> None:
    warm = pick(analysed, DOCKER, "geomean", cache="warm", connection="persistent").first_execution
    assert warm is not None and warm.estimate == pytest.approx(1.0885 * math.exp(0.05) - 1, abs=0.01)
    assert pick(analysed, DOCKER, "geomean", cache="cold", connection="persistent").first_execution is None


def test_arms_times_series_and_plans(analysed: Result) -> None:
    assert [(arm.name, arm.outcome, arm.rounds, arm.boots) for arm in analysed.arms] == [
        (name, Outcome.OK, 8, 8) for name in ARMS
    ]
    assert {arm.blocks for arm in analysed.arms} == {8 * 2 * 4}
    row = next(t for t in analysed.times if (t.arm, t.query) == (NATIVE, "Q9") and t.levels["cache"] == "warm")
    assert row.executions == 8 * 2 * 3
    assert row.median_ns == pytest.approx(BASE_MS["Q9"] * 1e6, rel=0.1)
    assert row.first_execution_median_ns is not None and row.median_ns is not None
    assert row.first_execution_median_ns > 1.3 * row.median_ns
    assert [(p.arm, p.query) for p in analysed.plans_changed] == [(DOCKER, "Q9")]
    assert sum(each.visits for each in analysed.series) == 8 * 2 * 4 * 3 * 22
    for arm in analysed.arms:
        own = [each for each in analysed.series if each.arm == arm.name]
        assert len(own) <= series.BINS_MAX
        for levels in [each.levels for each in own]:
            moments = [at for each in own if each.levels == levels for at in (each.from_s, each.to_s)]
            assert moments == sorted(moments)
    assert all(each.min <= each.q1 <= each.median <= each.q3 <= each.max for each in analysed.series)
    assert abs(float(np.median([each.median for each in analysed.series]))) < 0.01


def test_what_the_figures_do_not_say_is_said(analysed: Result) -> None:
    assert "rounds that were begun but not completed do not count: 2 (docker: the server died)" in [
        each.text for each in analysed.warnings
    ]
    assert not any("same_plans" in each.text for each in analysed.warnings)  # the arm's check says it
    assert any("system image" in text for text in analysed.not_inside_the_interval)
    assert analysed.stopped == "budget ended"
    assert len(analysed.noise_floor) == 6


def test_tables_of_minhas2008_beside_ours(folder: Path, analysed: Result) -> None:
    tables = list(minhas2008.Paper().beside(analysed, read_run(folder).plan.experiment))
    assert [(each.name, each.arm) for each in tables] == [(f"Table {n}", DOCKER) for n in (1, 4, 5)]
    for each, base_s, factor in zip(tables, (10.99, 10.52, 798.9), (1, 1, 1.5), strict=True):
        assert len(each.rows) == 22 and [column.name for column in each.columns][3:5] == ["native", DOCKER]
        for row in each.rows:
            assert isinstance(row[6], Difference) and row[4] and row[5]
        (q9,) = (row for row in each.rows if row[0] == "Q9")
        assert q9[1] == base_s and q9[4] == pytest.approx(BASE_MS["Q9"] * factor, rel=0.1)
    assert [row[3] for row in tables[1].rows].count(None) == 12
    only_warm = replace(analysed, comparisons=tuple(c for c in analysed.comparisons if "warm" in c.levels.values()))
    assert [each.name for each in side_by_side.tables(only_warm)] == ["Table 1", "Table 4"]


def test_the_progress_line_and_the_report_agree(folder: Path, analysed: Result) -> None:
    run = read_run(folder)
    seen = stopping.look(run, run.plan.experiment.precision, elapsed_s=1e9, next_round_s=10)
    assert seen.reason == "budget ended"
    geomean = pick(analysed, DOCKER, "geomean", cache="cold", connection="persistent")
    line = seen.intervals["docker (cold, persistent)"]
    assert (line.estimate, line.low, line.high) == pytest.approx((geomean.estimate, geomean.low, geomean.high))


# --- runs in which something went wrong ------------------------------------------------------------------------------


def changed_run(source: Path, folder: Path, change: Change) -> Result:
    """What is said of the run with every record passed through ``change``."""
    return results.analyze(changed.changed_run(source, folder, change))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("plain") / "run", start_sd=0.003, interrupted=False)


def with_outcome(visit: Visit, outcome: str) -> Visit:
    executions = [getattr(visit.units[0].executions[0], name) for name in Timing.__struct_fields__[:-1]]
    return revised(visit, executions=(Timing(*executions, outcome),), problem="row 3, column 2: 4 is not 5")


def test_a_wrong_answer_takes_the_verdict_away(plain: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        hit = isinstance(record, Visit) and (record.arm, record.query, record.round) == (DOCKER, "Q7", 3)
        return [with_outcome(record, "wrong_answer") if hit and not record.first_execution else record]

    result = changed_run(plain, tmp_path / "run", change)
    docker = result.arms[2]
    assert docker.outcome is Outcome.INVALID
    check = next(check for check in docker.checks if check.name == "equal_answers")
    assert check.passed is False and check.voids and check.rounds_failed == (3,)
    assert "Q7 (2)" in check.finding and "row 3, column 2" in check.finding
    assert pick(result, DOCKER, "query:Q7").estimate is None
    geomean = pick(result, DOCKER, "geomean")
    assert geomean.estimate is None and geomean.verdict is Verdict.CANNOT_TELL
    assert geomean.reason == "Q7: 2 visits of docker failed or answered wrongly"
    assert result.arms[0].outcome is Outcome.OK
    row = next(t for t in result.times if (t.arm, t.query) == (DOCKER, "Q7"))
    assert row.failed == 2


def test_a_start_that_failed_costs_its_round(plain: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        if isinstance(record, Start) and (record.arm, record.round) == (DOCKER, 5):
            return [Start(round=5, arm=DOCKER, outcome="failed", reason="the daemon went away")]
        return [] if isinstance(record, Visit) and (record.arm, record.round) == (DOCKER, 5) else [record]

    result = changed_run(plain, tmp_path / "run", change)
    assert result.arms[2].rounds == 7
    assert result.arms[2].outcome is Outcome.FAILED
    assert result.arms[2].reason == "1 of 8 starts failed: the daemon went away"
    assert pick(result, DOCKER, "geomean").rounds == 7
    assert pick(result, COPY, "geomean").rounds == 8


def test_a_voiding_gate_takes_its_round_out(plain: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        hit = isinstance(record, CheckRecord) and (record.arm, record.check) == (DOCKER, "commit_reaches_device")
        if hit and record.round in {1, 2}:
            return [revised(record, passed=False, finding="none reached a device")]
        return [record]

    result = changed_run(plain, tmp_path / "run", change)
    check = next(check for check in result.arms[2].checks if check.name == "commit_reaches_device")
    assert (check.passed, check.finding, check.rounds_failed) == (False, "none reached a device", (1, 2))
    assert (check.void_rounds, check.void_visits) == ((1, 2), 0)
    assert pick(result, DOCKER, "geomean").rounds == 6


def test_visits_that_the_host_did_not_see_like_that_are_void(plain: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        if isinstance(record, Visit) and (record.arm, record.round, record.query) == (DOCKER, 2, "Q1"):
            assert record.units[0].host_end_ns is not None
            return [revised(record, host_end_ns=record.units[0].host_end_ns + 200_000_000)]
        return [record]

    result = changed_run(plain, tmp_path / "run", change)
    check = next(check for check in result.arms[2].checks if check.name == "host_brackets")
    assert check.passed is False and check.rounds_failed == (2,)
    assert (check.void_rounds, check.void_visits) == ((), 3)  # its first execution and two blocks
    assert pick(result, DOCKER, "query:Q1").rounds == 7
    assert pick(result, DOCKER, "query:Q2").rounds == 8
    assert next(t for t in result.times if (t.arm, t.query) == (DOCKER, "Q1")).executions == 7 * 2 * 3


def test_a_clock_that_runs_slow_is_found(plain: Path, tmp_path: Path) -> None:
    """A guest that is told 99 ms for every 100 would look 1 % faster than it is."""

    def change(record: Record) -> list[Record]:
        if isinstance(record, Visit) and record.arm == DOCKER:
            start = record.units[0].start_ns

            def slow(at: int) -> int:
                return start + round((at - start) * 0.99)

            executions = tuple(
                Timing(slow(t.start_ns), None, None, slow(t.end_ns), t.rows, t.result_bytes, "ok")
                for t in record.units[0].executions
            )
            return [revised(record, start_ns=start, end_ns=slow(record.units[0].end_ns), executions=executions)]
        return [record]

    result = changed_run(plain, tmp_path / "run", change)
    check = next(check for check in result.arms[2].checks if check.name == "clock_rate")
    assert check.passed is False and check.voids and len(check.rounds_failed) == 8
    assert result.arms[2].outcome is Outcome.INVALID
    assert "clock_rate" in (result.arms[2].reason or "")
    assert not [c for c in result.comparisons if c.arm == DOCKER and c.estimate is not None]


def test_labels_do_not_void(plain: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        if isinstance(record, Visit) and (record.arm, record.round) == (DOCKER, 2) and not record.first_execution:
            return [revised(record, disk_read_bytes=1 << 20)]
        return [record]

    result = changed_run(plain, tmp_path / "run", change)
    check = next(check for check in result.arms[2].checks if check.name == "warm_stays_warm")
    assert check.passed is False and not check.voids and check.rounds_failed == (2,)
    assert pick(result, DOCKER, "geomean") == pick(results.analyze(plain), DOCKER, "geomean")


def test_timeouts_are_counted_as_censored(plain: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        hit = isinstance(record, Visit) and (record.arm, record.query) == (DOCKER, "Q9")
        return [with_outcome(record, "timeout") if hit else record]

    result = changed_run(plain, tmp_path / "run", change)
    row = next(t for t in result.times if (t.arm, t.query) == (DOCKER, "Q9"))
    assert (row.median_ns, row.censored, row.failed) == (None, 16, 0)
    assert pick(result, DOCKER, "query:Q9").reason == "16 visits of docker ran into the statement timeout"
    assert result.arms[2].outcome is Outcome.FAILED
    assert "Q9 ran into the statement timeout (24 visits" in (result.arms[2].reason or "")


def test_a_run_without_a_complete_round(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan = PlanFile(experiment=experiment(), queries=QUERIES, blocks=1)
    with RunWriter.create(folder, spec=b"", plan=plan, facts=FACTS) as writer:
        writer.append(Start(round=0, arm=DOCKER, outcome="unsupported", reason="there is no Docker daemon"))
        writer.append(RunEnd(reason="no arm left", elapsed_s=1.0))
    result = results.analyze(folder)
    assert result.comparisons == ()
    assert [(arm.outcome, arm.reason) for arm in result.arms][2] == (
        Outcome.UNSUPPORTED,
        "there is no Docker daemon",
    )
    assert "there is no complete round: nothing can be said" in [each.text for each in result.warnings]
    jsonschema.validate(result.to_json(), json.loads(json_schema()))


def test_what_an_engine_lacks_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asked = replace(experiment(), unsupported={"interaction": {"procedure": "it has no stored procedures"}})
    plan = PlanFile(experiment=asked, queries=QUERIES, blocks=1)
    with RunWriter.create(folder, spec=b"", plan=plan, facts=FACTS) as writer:
        writer.append(RunEnd(reason="no arm left", elapsed_s=1.0))
    (said,) = [each.text for each in results.analyze(folder).warnings if each.kind is WarningKind.UNSUPPORTED]
    assert said == "unsupported by PostgreSQL: interaction procedure (it has no stored procedures)"


def test_a_large_run_is_analysed_in_seconds(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rounds=20, blocks=4, executions=19)
    begun = time.process_time()
    result = results.analyze(folder)
    assert sum(row.executions for row in result.times) == 20 * 4 * 22 * 3 * 19  # 100 320
    assert time.process_time() - begun < 10


def test_precision_of_the_experiment_is_that_of_the_result(plain: Path) -> None:
    result = results.analyze(plain)
    asked = Precision()
    assert (result.confidence, result.margin, result.target) == (asked.confidence, asked.margin, asked.target)


# --- starts ----------------------------------------------------------------------------------------------------------


def stretched(visit: Visit, factor: float) -> Visit:
    executions = []
    for timing in visit.units[0].executions:
        values = {name: getattr(timing, name) for name in Timing.__struct_fields__}
        length = timing.end_ns - timing.start_ns
        executions.append(Timing(**{**values, "end_ns": timing.start_ns + round(length * factor)}))
    return revised(visit, executions=tuple(executions))


def starts_slower(plain: Path, folder: Path, factors: dict[int, float]) -> Result:
    """Docker's starts are slower by round."""

    def change(record: Record) -> list[Record]:
        hit = isinstance(record, Visit) and record.arm == DOCKER and not record.first_execution
        return [stretched(record, factors.get(record.round, 1.0)) if hit else record]

    return changed_run(plain, folder / "run", change)


def test_every_round_stands_beside_its_interval(analysed: Result) -> None:
    for found in analysed.comparisons:
        if found.estimate is not None:
            assert len(found.by_round) == found.rounds
            logs = [math.log1p(each.effect) for each in found.by_round]
            assert math.expm1(sum(logs) / len(logs)) == pytest.approx(found.estimate)
            assert len({each.round for each in found.by_round}) == found.rounds
            assert found.lengthened is not None and found.lengthened >= 1


def test_a_start_that_lies_far_out_is_named_and_stays_in(plain: Path, tmp_path: Path) -> None:
    result = starts_slower(plain, tmp_path, {4: 1.5})
    found = pick(result, DOCKER, "geomean")
    assert [each.round for each in found.by_round if each.far_out] == [4]
    assert len(found.by_round) == found.rounds == 8
    (warning,) = [each for each in result.warnings if "far out" in each.text]
    assert (warning.arm, warning.metric) == (DOCKER, "run_time") and "round 4: +5" in warning.text
    assert not any("far out" in each.text for each in results.analyze(plain).warnings)


def test_starts_that_depend_on_each_other_are_named_and_make_the_interval_longer(plain: Path, tmp_path: Path) -> None:
    result = starts_slower(plain, tmp_path, {number: 1.02**number for number in range(8)})
    found = pick(result, DOCKER, "geomean")
    assert found.dependence is not None and found.dependence > 0.5
    assert found.lengthened is not None and found.lengthened > 2
    assert any("starts depend on the ones before them" in each.text for each in result.warnings)
    assert pick(results.analyze(plain), DOCKER, "geomean").dependence is None


def test_how_rare_a_slow_start_would_have_been_missed_is_said(analysed: Result) -> None:
    told = "one that is slow one time in ten has been missed with a chance of 43% (8 rounds)"
    assert any(told in each for each in analysed.not_inside_the_interval)
