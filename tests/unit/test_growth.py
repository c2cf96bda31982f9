"""What is said of a run, and the page that shows it, stay small however long it was."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dbtoll.analysis.result import bins, run_warnings, series
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import Result, to_json
from dbtoll.report import page
from dbtoll.store.reader import Run, read_run
from tests.support.make_run import DOCKER, QUERIES, make_run
from tests.support.program import selfbench

ROUNDS = 300


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("long") / "run"
    return read_run(make_run(folder, rounds=ROUNDS, blocks=1, executions=1, interrupted=False))


@pytest.fixture(scope="module")
def result(run: Run) -> Result:
    return results.analyze_run(run)


def test_result_and_page_of_300_rounds_are_small(run: Run, result: Result, tmp_path: Path) -> None:
    text, html = to_json(result), page.render(result, run)
    assert len(text) < 3e6
    assert len(html.encode()) < 3e6
    fewer = read_run(make_run(tmp_path / "fewer", rounds=ROUNDS // 5, blocks=1, executions=1, interrupted=False))
    analysed = results.analyze_run(fewer)
    assert len(text) < 1.3 * len(to_json(analysed))
    assert len(html) < 1.3 * len(page.render(analysed, fewer))


def test_all_visits_are_in_the_bins(result: Result) -> None:
    for arm in result.arms:
        own = [each for each in result.series if each.arm == arm.name]
        assert len(own) == series.BINS_MAX
        assert sum(each.visits for each in own) == ROUNDS * len(QUERIES)
        assert all(each.min <= each.q1 <= each.median <= each.q3 <= each.max for each in own)
        assert all(earlier.to_s <= later.from_s for earlier, later in pairwise(own))


def test_all_rounds_are_beside_their_interval(result: Result) -> None:
    found = next(c for c in result.comparisons if c.arm == DOCKER and c.estimand == "geomean")
    assert len(found.by_round) <= bins.ROUNDS_MAX + bins.FAR_OUT_MAX
    assert sum(each.rounds for each in found.by_round) == found.rounds == ROUNDS
    assert [each.round for each in found.by_round] == sorted(each.round for each in found.by_round)
    ends = [end for each in found.by_round for end in each.ends]
    assert min(ends) < (found.low or 0) < (found.high or 0) < max(ends)


def test_few_rounds_have_an_entry_each() -> None:
    effects = [(number, 0.01 * number) for number in range(bins.ROUNDS_MAX)]
    assert [(each.round, each.rounds) for each in bins.by_round(effects)] == [(n, 1) for n in range(bins.ROUNDS_MAX)]
    assert bins.by_round([]) == ()


def test_rounds_that_lie_far_out_stay_alone_and_are_named() -> None:
    values = np.random.default_rng(1).normal(0, 0.01, 200)
    values[[30, 77]] = (0.5, -0.5)
    entries = bins.by_round([(number, float(value)) for number, value in enumerate(values)])
    assert [(each.round, each.rounds) for each in entries if each.far_out] == [(30, 1), (77, 1)]
    assert sum(each.rounds for each in entries) == 200
    assert all(each.ends[-1] < 0.05 for each in entries if not each.far_out)
    values[50:80] = 0.5  # more than have an entry of their own
    entries = bins.by_round([(number, float(value)) for number, value in enumerate(values)])
    assert sum(each.far_out and each.rounds == 1 for each in entries) == bins.FAR_OUT_MAX
    assert sum(each.rounds for each in entries) == 200
    assert max(end for each in entries if each.far_out for end in each.ends) == pytest.approx(math.expm1(0.5))
    said = [run_warnings._far_out("run_time", each) for each in entries if each.far_out]
    assert said[0] == "round 30: +64.9%"
    assert any("some of" in each for each in said)


@pytest.mark.parametrize(("count", "most"), [(0, 3), (1, 3), (3, 3), (10, 3), (301, 200)])
def test_parts_are_all_and_nearly_equal(count: int, most: int) -> None:
    cut = bins.parts(count, most)
    assert [index for part in cut for index in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in cut]
    assert len(cut) == min(count, most)
    assert not sizes or 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_what_a_long_run_costs_is_measured() -> None:
    found = selfbench("growth", rounds=60, samples=20_000, queries=2, repetitions=1)
    figures = found["figures"]
    assert found["bounds"]["stopping_exponent"]["max"] == 1.15
    assert math.isfinite(figures["stopping_exponent"])  # of times, which others on these processors lengthen
    assert figures["stopping_s"] > 0
    assert figures["page_mb"] < 3
    assert 20_000 <= figures["samples"] < found["facts"]["long_run"]["samples"]
    assert figures["visits"] < found["facts"]["long_run"]["visits"] == 60 * 2 * 5 * 11
    assert figures["analysis_cpu_s"] > 0
    assert 20 < figures["analysis_mb"] < 600
