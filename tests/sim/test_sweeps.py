"""Sweeps, in the simulated world and on planted figures: runs of values, crossovers that cover what was planted, limit, price."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

from dbtoll import spec
from dbtoll.analysis.reproduction.parts import Part
from dbtoll.analysis.sweeps.builder import Swept
from dbtoll.analysis.sweeps.crossovers import banded, crossings, segments
from dbtoll.analysis.sweeps.schema import Bracket, SweepResult
from dbtoll.cli import app
from dbtoll.commands import sweep
from dbtoll.environments.simulated.world import World
from dbtoll.errors import RunFolderError, Unavailable, UsageError
from dbtoll.model.experiment import Precision, Verdict
from dbtoll.report.sweep import bracket_text, limit_title
from dbtoll.runner import run
from dbtoll.spec import sweeps as spec_sweeps
from dbtoll.store.folders import run_folders
from dbtoll.store.reader import read_run
from dbtoll.store.schema import HISTORY_FILE
from dbtoll.store.sweeps import runs_of, sweep_of
from tests.support.planted_sweep import PLANTED

VALUES = (0.1, 0.2, 0.4, 0.8)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    path = tmp_path / "planted.toml"
    path.write_text(PLANTED, encoding="utf-8")
    return path


@pytest.fixture
def short(planted: Path) -> Path:
    """The same in the fewest rounds on which anything is decided."""
    planted.write_text(PLANTED.replace("= 10\n", "= 5\n"), encoding="utf-8")
    return planted


def asked(*words: str) -> Any:
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0, found.output + repr(found.exception)
    return found


def test_every_value_is_a_run_and_the_planted_crossover_is_found(planted: Path, tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    told = asked(
        "sweep",
        str(planted),
        "--over",
        "effect=0.1,0.2,0.4,0.8",
        "--runs-dir",
        str(runs_dir),
        "--name",
        "planted",
        "--json",
        "-q",
    )
    result = json.loads(told.stdout)
    schema = json.loads((Path(__file__).parents[2] / "docs" / "sweep.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(result, schema)
    folders = run_folders(runs_dir)
    assert len(folders) == len(VALUES)
    assert {each.value for folder in folders if (each := sweep_of(folder))} == set(VALUES)
    assert runs_of(result["sweep"], runs_dir) == folders[::-1]
    for folder in folders:
        assert (folder / "report.html").exists()
        assert read_run(folder).plan.experiment.variables["effect"] == sweep_of(folder).value  # type: ignore[union-attr]
    assert result["scale"] == "log" and result["designs"] == ["grows", "fixed"]
    (contrast,) = [each for each in result["contrasts"] if each["measure"] == "throughput"]
    (crossed,) = contrast["crossovers"]
    assert crossed["low"] < 0.3 < crossed["high"] and 0.2 < crossed["estimate"] < 0.4
    assert (crossed["better_before"], crossed["better_after"]) == ("grows", "fixed")
    assert [each["better"] for each in contrast["stretches"]] == ["grows", None, "fixed"]
    best = [each for each in result["best"] if each["measure"] == "throughput"]
    assert [each["designs"] for each in best] == [["grows"], ["grows"], ["fixed"], ["fixed"]]
    assert all(each["certain"] for each in best)
    curves = {(each["measure"], each["design"]): each["points"] for each in result["curves"]}
    for all_of_them, one in zip(curves["throughput", "fixed"], curves["throughput_per_tenant", "fixed"], strict=True):
        assert all_of_them["estimate"] == pytest.approx(2 * one["estimate"])
        assert all_of_them["low"] < all_of_them["estimate"] < all_of_them["high"]
    ratio = contrast["points"][0]["estimate"]
    first = [curves["throughput", design][0]["estimate"] for design in ("grows", "fixed")]
    assert 1 + ratio == pytest.approx(first[1] / first[0], rel=0.03)  # of times, so the other way round
    again = asked("report", "planted", "--runs-dir", str(runs_dir), "-q")
    assert "grows" in again.stdout
    page = (folders[-1] / "sweep" / "sweep.html").read_text(encoding="utf-8")
    assert "crossover at" in page and "report.html" in page
    assert json.loads((folders[-1] / "sweep" / "sweep.json").read_text(encoding="utf-8")) == result


def test_a_sweep_that_was_interrupted_goes_on_where_it_stopped(short: Path, tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    planned = sweep.planned_from(short, over="effect=0.1,0.2,0.4,0.8", variables=["many=1"])

    def stop(swept: Swept) -> None:
        if len(swept.parts) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.measure(planned, runs_dir, quiet=True, yes=True, after=stop)
    second, first = run_folders(runs_dir)
    history = second / HISTORY_FILE
    lines = history.read_bytes().splitlines(keepends=True)
    begun = [number for number, line in enumerate(lines) if b'"record":"round_begin"' in line]
    history.write_bytes(b"".join(lines[: begun[4]]))  # killed after four rounds
    before = (first / HISTORY_FILE).read_bytes()
    result = json.loads(asked("sweep", str(second), "--resume", "--runs-dir", str(runs_dir), "--json", "-q").stdout)
    assert [each["value"] for each in result["values"]] == list(VALUES)
    assert (first / HISTORY_FILE).read_bytes() == before
    assert len(run_folders(runs_dir)) == len(VALUES)
    assert [each["rounds"] for each in result["values"]] == [5] * 4
    assert history.read_bytes().startswith(b"".join(lines[: begun[4]]))  # it went on, and did not begin anew
    told = CliRunner().invoke(
        app, ["sweep", str(second), "--resume", "--over", "effect=1,2", "--runs-dir", str(runs_dir)]
    )
    assert isinstance(told.exception, UsageError)


def test_values_that_are_measured_later_have_the_rounds_that_were_asked_for(planted: Path, tmp_path: Path) -> None:
    """On the command line, which the specification does not know."""
    planned = sweep.planned_from(planted, over="effect=0.1,0.2", variables=["many=1"])
    seven = {
        value: replace(each, precision=replace(each.precision, rounds_min=7, rounds_max=7))
        for value, each in planned.experiments.items()
    }

    def stop(swept: Swept) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.measure(replace(planned, experiments=seven), tmp_path, quiet=True, yes=True, after=stop)
    (first,) = run_folders(tmp_path)
    result = json.loads(asked("sweep", str(first), "--resume", "--runs-dir", str(tmp_path), "--json", "-q").stdout)
    assert [each["rounds"] for each in result["values"]] == [7, 7]


def test_one_value_is_a_run_of_its_own(planted: Path) -> None:
    with pytest.raises(UsageError, match="a sweep has several values") as refused:
        sweep.planned_from(planted, over="effect=0.1")
    assert refused.value.hint == f"one is: dbtoll run {planted} --set effect=0.1"


def test_the_largest_value_within_a_limit_is_found_with_its_price(planted: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.toml"
    costs.write_text('currency = "EUR"\nperiod = "hour"\nhost = 10\nmachine = 5\n', encoding="utf-8")
    told = asked(
        "sweep", str(planted), "--over", "effect=0.05,0.1,0.2,0.4,0.8,1.6", "--limit", "p99=50ms", "--costs", str(costs),
        "--set", "many=1", "--runs-dir", str(tmp_path / "runs"), "--json", "-q",
    )  # fmt: skip
    result = json.loads(told.stdout)
    brackets = {each["design"]: each for each in result["brackets"]}
    assert (brackets["grows"]["holds"], brackets["grows"]["breaks"]) == (0.2, 0.4)
    assert brackets["fixed"]["breaks"] is None and brackets["fixed"]["holds"] == max(
        e["value"] for e in result["values"]
    )
    assert 3 <= len(result["values"]) < 6
    for each in result["prices"]:
        assert each["cost"] == 15
        done = next(
            point["estimate"]
            for curve in result["curves"]
            for point in curve["points"]
            if (curve["measure"], curve["design"], point["value"]) == ("throughput", each["design"], each["value"])
        )
        assert each["per_money"]["estimate"] == pytest.approx(done * 3600 / 15)
        assert each["per_money"]["low"] < each["per_money"]["estimate"] < each["per_money"]["high"]
    best = [each for each in result["best"] if each["measure"] == "throughput"]
    # Both cost the same, so the cheaper one is the one that does more.
    assert [each["designs"] for each in result["cheapest"]] == [each["designs"] for each in best]
    prices = {each["design"]: each for each in result["tenant_prices"]}
    assert prices["grows"]["tenants"] == 1 and prices["grows"]["cost_most"] == 15
    shown = asked("sweep", result["values"][0]["run"], "--resume", "--runs-dir", str(tmp_path / "runs"), "-q")
    assert "largest effect with p99 below" in shown.stdout and "EUR" in shown.stdout


def test_a_neighbour_is_none_of_the_tenants_whose_throughput_is_told(short: Path, tmp_path: Path) -> None:
    text = short.read_text(encoding="utf-8").replace("[precision]", '[factors]\nneighbour = ["processor"]\n[precision]')
    short.write_text(text, encoding="utf-8")
    told = asked("sweep", str(short), "--over", "many=3,4", "--runs-dir", str(tmp_path / "runs"), "--json", "-q")
    done = {
        (curve["measure"], curve["levels"]["neighbour"], curve["design"], point["value"]): point["estimate"]
        for curve in json.loads(told.stdout)["curves"]
        for point in curve["points"]
    }
    alike = [key for key in done if key[0] == "throughput"]
    assert len(alike) == 2 * 2 * 2
    for measure, *rest in alike:
        *_, many = rest
        assert done["throughput_per_tenant", *rest] == pytest.approx(done[measure, *rest] / (many - 1))


def test_queries_for_the_money_are_those_of_all_tenants(short: Path, tmp_path: Path) -> None:
    text = short.read_text(encoding="utf-8").replace(
        'name = "tatp"\nwindow = "4s"\nramp_up = "0s"', 'name = "tpch"\nscale = 0.01\nqueries = ["Q1", "Q6"]'
    )
    short.write_text(text, encoding="utf-8")
    costs = tmp_path / "costs.toml"
    costs.write_text('currency = "EUR"\nperiod = "hour"\nhost = 10\n', encoding="utf-8")
    told = asked(
        "sweep", str(short), "--over", "many=1,2", "--costs", str(costs), "--runs-dir", str(tmp_path / "runs"), "--json", "-q"
    )  # fmt: skip
    result = json.loads(told.stdout)
    took_ns = {
        (curve["design"], point["value"]): point["estimate"]
        for curve in result["curves"]
        if curve["measure"] == "time"
        for point in curve["points"]
    }
    assert len(result["prices"]) == 4
    for each in result["prices"]:
        many = each["value"]
        an_hour = many * 3600e9 / took_ns[each["design"], many]
        assert each["per_money"]["estimate"] == pytest.approx(an_hour / 10)
        assert each["per_gib_s"]["estimate"] == pytest.approx(an_hour / 3600 / 4)


def test_a_tenant_that_is_slower_than_the_others_breaks_the_limit_for_all(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The median of all four together is that of the other three."""
    slow = 3

    def start_offset(world: World, arm: str, start: int) -> float:
        return math.log(3.0) * (arm.startswith("fixed") and start % 4 == slow) + math.log1p(0.001) * (start // 4 % 2)

    monkeypatch.setattr(World, "start_offset", start_offset)
    planned = sweep.planned_from(short, over="effect=0.05,0.1", variables=["many=4"])
    swept = sweep.measure(planned, tmp_path, quiet=True, yes=True)

    def limited(limit_us: float) -> SweepResult:
        """What the limit is changes nothing of the runs."""
        return Swept(swept.parts, replace(swept.sweep, limit=spec_sweeps.limit(f"p50={limit_us:.0f}us"))).result()

    def brackets(result: SweepResult) -> dict[str, Bracket]:
        return {each.design: each for each in result.brackets}

    together_us = max(
        point.estimate / 1e3
        for curve in limited(1_000_000).curves
        for point in curve.points
        if curve.measure == "p50" and point.estimate is not None
    )
    result = limited(1.5 * together_us)
    found = brackets(result)
    assert (found["grows"].holds, found["grows"].breaks) == (0.1, None)
    assert found["fixed"].holds is None and found["fixed"].breaks is not None
    (slowest,) = {point.slowest for point in found["fixed"].points}
    assert slowest == slow + 1
    assert all((point.slowest_ns or 0) > 2e3 * together_us for point in found["fixed"].points)
    assert "of every unit" in limit_title(result)
    assert f"unit {slow + 1}, the slowest" in bracket_text(found["fixed"], result)
    assert brackets(limited(6 * together_us))["fixed"].holds == 0.1, "where the slow one keeps it, all do"


def test_costs_that_are_given_later_count(short: Path, tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    words = [
        "sweep",
        str(short),
        "--over",
        "effect=0.1,0.8",
        "--set",
        "many=1",
        "--runs-dir",
        str(runs_dir),
        "--json",
        "-q",
    ]
    first = json.loads(asked(*words).stdout)["values"][0]["run"]
    for host in (10, 20):
        (tmp_path / "costs.toml").write_text(f'currency = "EUR"\nperiod = "hour"\nhost = {host}\n', encoding="utf-8")
        again = [
            "sweep",
            first,
            "--resume",
            "--costs",
            str(tmp_path / "costs.toml"),
            "--runs-dir",
            str(runs_dir),
            "--json",
            "-q",
        ]
        assert {each["cost"] for each in json.loads(asked(*again).stdout)["prices"]} == {host}
    asked("report", first, "--runs-dir", str(runs_dir), "-q")
    page = json.loads(next(runs_dir.glob("*/sweep/sweep.json")).read_text(encoding="utf-8"))
    assert {each["cost"] for each in page["prices"]} == {20}


def test_a_device_that_costs_and_that_no_arm_has_is_said_before_the_start(planted: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.toml"
    costs.write_text('currency = "EUR"\nperiod = "hour"\n[devices]\nhdd = 3\n"0.002" = 1\n', encoding="utf-8")
    lines = list(sweep.preview(sweep.planned_from(planted, over="effect=0.1,0.2", costs=costs)))
    assert [line for line in lines if "costs" in line] == [
        "  costs: no arm has a device hdd"
    ]  # an option has the other value


@pytest.mark.parametrize("limit", [None, "p99=50ms"])
def test_a_value_at_which_no_run_can_begin_is_left_out(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None
) -> None:
    begin = run.begin

    def refused(experiment: Any, *rest: Any) -> Path:
        if experiment.variables["effect"] > 0.15:
            raise Unavailable("there is no room", "make some")
        return begin(experiment, *rest)

    monkeypatch.setattr(run, "begin", refused)
    made = sweep.planned_from(short, over="effect=0.05,0.1,0.2,0.4", variables=["many=1"], limit=limit)
    swept = sweep.measure(made, tmp_path, quiet=True, yes=True, after=sweep.write)
    result, page = sweep.write(swept)
    assert set(swept.by_value) <= {0.05, 0.1} and 0.1 in swept.by_value
    assert {each.why for each in result.left_out} == {"there is no room; make some"}
    if limit is None:
        assert [each.value for each in result.left_out] == [0.2, 0.4]
    else:
        assert not any(each.does_not_fit for each in result.brackets), "nobody knows whether it would fit"
    assert "there is no room" in page.read_text(encoding="utf-8")
    monkeypatch.setattr(run, "begin", begin)  # it has room now: another try
    first = str(next(iter(swept.by_value.values())).run.folder)
    again = json.loads(asked("sweep", first, "--resume", "--runs-dir", str(tmp_path), "--json", "-q").stdout)
    assert again["left_out"] == [] and len(again["values"]) > len(swept.parts)


def test_where_no_value_can_be_measured_the_reason_is_the_error(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Path:
        raise Unavailable("there is no room", "make some")

    monkeypatch.setattr(run, "begin", refused)
    made = sweep.planned_from(short, over="effect=0.1,0.2", variables=["many=1"])
    with pytest.raises(Unavailable, match="there is no room"):
        sweep.measure(made, tmp_path, quiet=True, yes=True)


def test_values_that_are_no_numbers_have_contrasts_and_no_crossover(planted: Path, tmp_path: Path) -> None:
    planned = sweep.planned_from(
        planted, over="kind=simulated,simulated:drift=0.01", variables=["effect=0.6", "many=1"]
    )
    result, _ = sweep.write(sweep.measure(planned, tmp_path, quiet=True, yes=True))
    assert result.scale is None
    (contrast,) = [each for each in result.contrasts if each.measure == "throughput"]
    assert contrast.crossovers == contrast.stretches == ()
    assert [each.verdict for each in contrast.points] == [Verdict.LOSES, Verdict.LOSES]


def test_what_does_not_fit_is_in_the_result(short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit(experiment: Any) -> dict[str, tuple[str, str]]:
        large = experiment.variables["effect"] > 0.3
        return {arm.name: ("it is too large", "") for arm in experiment.arms if large and arm.name == "grows"}

    monkeypatch.setattr(sweep, "unfit", unfit)
    planned = sweep.planned_from(short, over="effect=0.1,0.4", variables=["many=1"])
    assert any("effect = 0.4: grows is left out: it is too large" in line for line in sweep.preview(planned))
    result, page = sweep.write(sweep.measure(planned, tmp_path, quiet=True, yes=True))
    assert [(each.value, each.arm, each.why) for each in result.left_out] == [(0.4, "grows", "it is too large")]
    points = {(curve.measure, curve.design): curve.points for curve in result.curves}
    assert points["throughput", "grows"][1].reason == "left out: it is too large"
    assert next(each.designs for each in result.best if each.value == 0.4) == ("fixed",)
    assert "left out at effect 0.4" in page.read_text(encoding="utf-8")


def test_a_design_that_fits_only_below_is_looked_for_there(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search begins in the middle, where it does not fit."""

    def unfit(experiment: Any) -> dict[str, tuple[str, str]]:
        large = experiment.variables["effect"] > 0.06
        return {arm.name: ("it is too large", "") for arm in experiment.arms if large and arm.name == "grows"}

    def brackets(swept: Swept) -> dict[str, tuple[Any, Any, bool]]:
        return {each.design: (each.holds, each.breaks, each.does_not_fit) for each in swept.result().brackets}

    monkeypatch.setattr(sweep, "unfit", unfit)
    (tmp_path / "costs.toml").write_text('currency = "EUR"\nperiod = "hour"\nhost = 10\n', encoding="utf-8")
    planned = sweep.planned_from(
        short, over="effect=0.05,0.1,0.2", variables=["many=1"], limit="p99=100s", costs=tmp_path / "costs.toml"
    )
    swept = sweep.measure(planned, tmp_path / "runs", quiet=True, yes=True)
    first = Swept(swept.parts[:1], swept.sweep)
    assert set(first.by_value) == {0.1}
    assert brackets(first) == {"fixed": (0.1, None, False), "grows": (None, 0.1, True)}
    assert first.result().cheapest_tenant[0].designs == ("fixed", "grows"), "nobody knows yet what it costs below"
    sweep.write(first)
    assert brackets(swept) == {"fixed": (0.2, None, False), "grows": (0.05, 0.1, True)}


def test_above_a_value_at_which_a_unit_does_not_answer_nothing_is_measured(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the limit is kept there cannot be told; that of the other design, which keeps it, is looked for above."""
    planned = sweep.planned_from(short, over="effect=0.05,0.1,0.2", variables=["many=2"], limit="p99=100s")
    measured = Swept.logs_of_units

    def starved(self: Swept, value: Any, levels: Any, limit: Any, design: str) -> list[Any]:
        units = measured(self, value, levels, limit, design)
        if value > 0.06 and design in silent:
            units[1] = np.full_like(units[1], math.nan)
        return units

    monkeypatch.setattr(Swept, "logs_of_units", starved)
    silent = {"fixed", "grows"}
    swept = sweep.measure(planned, tmp_path / "both", quiet=True, yes=True)
    assert set(swept.by_value) == {0.05, 0.1}
    assert {(each.holds, each.breaks) for each in swept.result().brackets} == {(0.05, None)}
    silent = {"fixed"}
    swept = sweep.measure(planned, tmp_path / "one", quiet=True, yes=True)
    assert set(swept.by_value) == {0.05, 0.1, 0.2}
    assert {each.design: each.holds for each in swept.result().brackets} == {"fixed": 0.05, "grows": 0.2}


def test_runs_of_several_sweeps_are_no_sweep(short: Path, planted: Path, tmp_path: Path) -> None:
    parts: list[Part] = []

    def stop(swept: Swept) -> None:
        parts.extend(swept.parts)
        raise KeyboardInterrupt

    for over in ("effect=0.1,0.2", "effect=0.4,0.8"):
        planned = sweep.planned_from(short, over=over, variables=["many=1"])
        with pytest.raises(KeyboardInterrupt):
            sweep.measure(planned, tmp_path, quiet=True, yes=True, after=stop)
    assert len(parts) == 2
    with pytest.raises(RunFolderError, match="not runs of one sweep"):
        Swept(parts)
    with pytest.raises(UsageError, match="the sweep gives it its values"):
        sweep.planned_from(planted, over="effect=0.1,0.2", variables=["effect=3"])
    with pytest.raises(UsageError, match="no numbers among which to search"):
        sweep.planned_from(planted, over="kind=simulated,native", limit="p99=20ms")


# --- planted curves ------------------------------------------------------------------------------------------------------------

AT = np.log([1, 2, 4, 8, 16, 32])
REPEATS = 300
PRECISION = Precision()


def simulated(truth: np.ndarray, start_sd: float, rounds: int, chance: np.random.Generator) -> tuple[Any, Any, Any]:
    values = [each + chance.normal(0, start_sd, rounds) for each in truth]
    found = banded(values, PRECISION)
    parts = segments(AT, [each.band for each in found])
    return found, parts, crossings(AT, [each.shown.estimate if each.shown else None for each in found], parts)


@pytest.mark.parametrize("rounds", [5, 12])
@pytest.mark.parametrize("crossover", [math.log(1.3), math.log(4), math.log(11)])
def test_the_interval_covers_the_planted_crossover(crossover: float, rounds: int) -> None:
    """At least as often as it says, where designs differ by much and by little beside the noise."""
    chance = np.random.default_rng(18)
    for slope in (0.02, 0.1):
        covered = found = 0
        for _ in range(REPEATS):
            _, parts, crossed = simulated(slope * (AT - crossover), 0.02, rounds, chance)
            covered += any(part.sign == 0 and part.low <= crossover <= part.high for part in parts)
            found += len(crossed) == 1
            assert len(crossed) <= 1
        assert covered >= 0.95 * REPEATS
        if slope == 0.1 and rounds == 12 and crossover != math.log(1.3):
            assert found > 0.8 * REPEATS  # so that what covers is not only what says nothing


def test_equal_designs_are_not_told_apart() -> None:
    """At most as often as it says is any value decided, and no crossover is found."""
    chance = np.random.default_rng(18)
    told = 0
    for _ in range(REPEATS):
        found, parts, crossed = simulated(np.zeros(len(AT)), 0.02, 8, chance)
        told += any(part.sign for part in parts) or any(e.verdict in (Verdict.LOSES, Verdict.GAINS) for e in found)
        assert not crossed
    assert told <= 0.05 * REPEATS
    found, _, _ = simulated(np.zeros(len(AT)), 0.0005, 8, chance)
    assert {each.verdict for each in found} == {Verdict.NO_DIFFERENCE}


def test_two_crossings_are_two_crossovers() -> None:
    chance = np.random.default_rng(18)
    truth = np.array([-0.3, -0.2, 0.2, 0.3, -0.2, -0.3])
    _, parts, crossed = simulated(truth, 0.01, 10, chance)
    assert len(crossed) == 2 and [part.sign for part in parts] == [-1, 0, 1, 0, -1]
    for each, planted_at in zip(crossed, (math.log(2 * math.sqrt(2)), AT[3] + (AT[4] - AT[3]) * 0.6), strict=True):
        assert each.low < planted_at < each.high


def test_nothing_is_decided_on_too_few_rounds() -> None:
    chance = np.random.default_rng(18)
    found, parts, crossed = simulated(np.linspace(-1, 1, 6), 0.001, 4, chance)
    assert [part.sign for part in parts] == [0] and not crossed
    assert all(each.shown is not None and each.verdict == Verdict.CANNOT_TELL for each in found)


def test_the_shipped_example_can_be_swept_over_each_of_its_variables() -> None:
    path = Path(__file__).parents[2] / "examples" / "designs.toml"
    declared = spec.variables_of(path)
    assert list(declared) == ["tenants", "warehouses", "terminals", "cpus", "engine", "device", "memory"]
    for over in (
        "tenants=1:32",
        "warehouses=1:8",
        "terminals=1,4",
        "cpus=1,2",
        "memory=2 GiB,4 GiB",
        "engine=postgres,mariadb",
        "device=own,hdd7200",
    ):
        planned = sweep.planned_from(path, over=over)
        assert [each.sweep.value for each in planned.experiments.values() if each.sweep] == list(planned.experiments)
        assert next(iter(sweep.preview(planned))).startswith("sweep over ")


def test_a_limit_is_of_a_transaction_that_there_is(planted: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tatp has no transaction 'new_order'"):
        sweep.planned_from(planted, over="effect=0.1,0.2", limit="new_order.p99=20ms")
    statements = tmp_path / "statements.toml"
    text = PLANTED.replace('name = "tatp"\nwindow = "4s"\nramp_up = "0s"', 'name = "tpch"\nqueries = ["Q1", "Q6"]')
    statements.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="tpch has no transactions"):
        sweep.planned_from(statements, over="effect=0.1,0.2", limit="p99=20ms")


def test_statements_are_swept_by_their_time(tmp_path: Path) -> None:
    path = tmp_path / "statements.toml"
    text = PLANTED.replace('name = "tatp"\nwindow = "4s"\nramp_up = "0s"', 'name = "tpch"\nqueries = ["Q1", "Q6"]')
    path.write_text(
        text.replace("rounds_min = 10\nrounds_max = 10", "rounds_min = 5\nrounds_max = 5"), encoding="utf-8"
    )
    planned = sweep.planned_from(path, over="effect=0.1,0.6", variables=["many=1"])
    result, _ = sweep.write(sweep.measure(planned, tmp_path / "runs", quiet=True, yes=True))
    assert (result.main_measure, result.units) == ("time", {"time": "ns"})
    (contrast,) = result.contrasts
    assert [each.verdict for each in contrast.points] == [Verdict.GAINS, Verdict.LOSES]
    assert len(contrast.crossovers) == 1
