"""What is said of transactions: throughput, steadiness, the driver, the page, the terminal and the exports, on planted runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from rich.console import Console

from dbtoll.analysis.checks import evidence, noise
from dbtoll.analysis.effects.stats import Interval
from dbtoll.analysis.reproduction.tables import Difference, Quantity
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import Result, Steadiness, WarningKind, WindowsResult, drop, from_json, to_json
from dbtoll.analysis.transactions import steadiness
from dbtoll.analysis.visits.metrics import quantile
from dbtoll.analysis.visits.units import totals_of_run
from dbtoll.model.experiment import Outcome, Precision, Verdict
from dbtoll.model.reply import TIME_PER_TRANSACTION
from dbtoll.papers.muehlbauer2015 import figure5
from dbtoll.report import export, page, published, tables, transactions
from dbtoll.report.figures import each_unit, forest, over_time, response_times
from dbtoll.report.text import names, numbers, sentences
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import Counters
from tests.support.make_run import COPY, DOCKER, NATIVE
from tests.support.make_windows import INTERVALS, make_windows, rising, slow_start
from tests.unit.test_report import Page, plain

CALIBRATION = {
    "null_us_per_transaction": {"statement": 18.0, "procedure": 3.0},
    "null_per_s": {"statement": 50_000.0, "procedure": 300_000.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_windows(
        tmp_path_factory.mktemp("windows") / "run",
        interactions=("statement", "procedure"),
        noise=0.01,
        driver_us={NATIVE: 20.0, COPY: 20.0, DOCKER: 30.0},
        driver=CALIBRATION,
        causes={"failed": {"deadlock": 2}, "retried": {"conflict": 5, "deadlock": 1}},
        changes={"connections_lost": 1, "reconnects": 1},
    )


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return read_run(folder)


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return results.analyze(folder)


def analyzed(folder: Path, **planted: Any) -> Result:
    return results.analyze(make_windows(folder / "run", **planted))


def of(result: Result, arm: str, interaction: str = "statement") -> WindowsResult:
    return next(w for w in result.windows if w.arm == arm and w.levels["interaction"] == interaction)


# --- throughput ------------------------------------------------------------------------------------------------------


def test_the_planted_overhead_and_drop_are_found(result: Result) -> None:
    found = [c for c in result.comparisons if c.metric == TIME_PER_TRANSACTION and c.arm == DOCKER]
    assert len(found) == 2
    for c in found:
        assert c.low is not None and c.high is not None and c.low < 0.10 < c.high and c.verdict == Verdict.LOSES
        drop = c.throughput_drop
        assert drop is not None and drop.low < 1 - 1 / 1.10 < drop.high
        assert drop.estimate == pytest.approx(1 - 1 / (1 + (c.estimate or 0)))
    assert all(c.throughput_drop is None for c in result.comparisons if c.metric != TIME_PER_TRANSACTION)
    assert {c.estimand for c in result.comparisons if c.metric.startswith("response")} >= {"geomean", "query:payment"}
    assert all(c.estimand != "ratio_of_totals" for c in result.comparisons)
    assert result.main_metric == TIME_PER_TRANSACTION and result.times == ()


def test_throughput_is_absolute_too(result: Result) -> None:
    native, docker = of(result, NATIVE), of(result, DOCKER)
    for windows, per_s in ((native, 1000), (docker, 1000 / 1.1)):
        assert (
            windows.windows == 8 and windows.per_s and windows.throughput and windows.per_s.low and windows.per_s.high
        )
        assert windows.per_s.low < 0.45 * per_s < windows.per_s.high  # 45 new orders in 100 transactions
        assert windows.unit == "tpmC" and windows.throughput.estimate == pytest.approx(60 * windows.per_s.estimate)
        assert np.mean(windows.series) == pytest.approx(per_s, rel=0.02)
        assert np.mean(windows.first_series) == pytest.approx(0.8 * per_s, rel=0.02)
    assert native.round_trips_per_transaction == 28 and of(result, NATIVE, "procedure").round_trips_per_transaction == 1


def test_one_round_has_no_interval(tmp_path: Path) -> None:
    windows = of(analyzed(tmp_path, rounds=1), NATIVE)
    assert windows.per_s and windows.per_s.low is None and windows.per_s.high is None
    assert windows.steadiness.steady is None and windows.driver.null_us_per_transaction is None


def test_response_times_are_merged_and_have_a_tail(result: Result) -> None:
    payment = next(kind for kind in of(result, NATIVE).transactions if kind.name == "payment")
    assert (payment.p50_ns, payment.p95_ns, payment.max_ns) == (2_000_000, 4_000_000, 20_000_000)
    assert payment.retried == {} and payment.committed > 12000
    fractions = [each.fraction for each in payment.quantiles]
    assert fractions == sorted(set(fractions)) and 0.999 in fractions
    assert all((1 - fraction) * payment.committed >= 10 for fraction in fractions)
    merged = [[2_000_000, 50], [4_000_000, 49], [20_000_000, 1]]
    assert [quantile(merged, fraction) for fraction in (0.5, 0.99, 0.995)] == [2_000_000, 4_000_000, 20_000_000]


# --- steady state ----------------------------------------------------------------------------------------------------


def series(rng: random.Random, shape: Any, windows: int, intervals: int = INTERVALS, mean: float = 50) -> list[Any]:
    """Windows with the noise of counting."""
    level = [mean * shape((index + 0.5) / intervals) for index in range(intervals)]
    counts = [[max(0, round(rng.gauss(each, each**0.5))) for each in level] for _ in range(windows)]
    return [{"series": each, "length_ns": intervals * 1000, "interval_ns": 1000} for each in counts]


def steady(windows: list[Any], margin: float) -> Steadiness:
    """Of one window in each round."""
    return steadiness.judge([[each] for each in windows], 0.025, Precision(margin=margin))


def test_windows_of_one_start_are_one_draw() -> None:
    windows = series(random.Random(9), rising(0.5), 12)
    found = steadiness.judge([windows[:6], windows[6:]], 0.025, Precision(margin=0.02))
    assert (found.steady, found.windows) == (None, 12)
    assert "there are 2" in (found.reason or "")
    rounds = [windows[index : index + 2] for index in range(0, 12, 2)]
    assert steadiness.judge(rounds, 0.025, Precision(margin=0.02)).steady is False


def test_what_is_flat_is_steady() -> None:
    found = steady(series(random.Random(1), lambda _: 1.0, 12), margin=0.02)
    assert found.steady is True and found.reason is None and found.windows == 12
    assert found.trend and found.trend.low < 0 < found.trend.high < 0.1


@pytest.mark.parametrize(("by", "says"), [(0.12, "ramp_up would help"), (-0.12, "begins above its level")])
def test_a_trend_is_found_with_its_size(by: float, says: str) -> None:
    found = steady(series(random.Random(2), rising(by), 12), margin=0.02)
    assert found.steady is False and found.trend and found.trend.low < by < found.trend.high
    assert found.reason and says in found.reason


def test_a_slow_start_is_found_as_what_it_is() -> None:
    found = steady(series(random.Random(3), slow_start(0.3), 12), margin=0.02)
    assert found.steady is False and found.beginning and found.beginning.low < -0.3 / 0.97 < found.beginning.high
    assert found.reason == "a longer ramp_up would help"


def test_a_trend_below_the_margin_does_not_matter() -> None:
    assert steady(series(random.Random(4), rising(0.01), 12, mean=100_000), margin=0.02).steady is True


@pytest.mark.parametrize(
    ("windows", "why"),
    [
        (series(random.Random(5), rising(0.5), 4), "no verdict rests on fewer than 5 independent starts, there are 4"),
        (series(random.Random(5), rising(0.5), 8, intervals=10), "a window has fewer than 20 intervals"),
        ([], "no verdict rests on fewer than 5 independent starts, there are 0"),
    ],
)
def test_what_is_short_is_not_judged(windows: list[Any], why: str) -> None:
    found = steady(windows, margin=0.02)
    assert (found.steady, found.reason, found.trend) == (None, why, None)


def test_noise_that_could_hide_a_trend_is_not_called_steady() -> None:
    found = steady(series(random.Random(6), lambda _: 1.0, 5, mean=1), margin=0.02)
    assert found.steady is None and found.trend and found.reason and "more rounds" in found.reason


def test_honest_windows_seldom_raise_an_alarm() -> None:
    rng = random.Random(7)
    alarms = sum(steady(series(rng, lambda _: 1.0, 8), margin=0.0).steady is False for _ in range(400))
    assert alarms <= 35  # two tests at 2.5 % each: 20 of 400 are expected at most, sd 4.4


def test_rounds_are_the_unit() -> None:
    """What all intervals of a window share makes no interval shorter: windows whose slopes differ are as many draws."""
    rng = random.Random(8)
    mixed = [each for by in (-0.5, -0.3, -0.1, 0.1, 0.3, 0.5) for each in series(rng, rising(by), 1, mean=10_000)]
    found = steady(mixed, margin=0.02)
    assert found.trend and found.trend.high - found.trend.low > 0.5 and found.steady is None


def test_the_end_that_cuts_an_interval_is_left_out() -> None:
    assert steadiness.whole_intervals({"series": [5, 5, 1], "length_ns": 2500, "interval_ns": 1000}) == [5, 5]


def test_an_arm_that_is_not_steady_is_named(tmp_path: Path) -> None:
    result = analyzed(tmp_path, per_s=100_000.0, shapes={DOCKER: rising(0.12)})
    (said,) = (each for each in result.warnings if each.kind == WarningKind.NOT_STEADY)
    assert said.arm == DOCKER and said.text.startswith(
        "not steady: throughput rises by 12% (12% … 12%) within a window"
    )
    assert said.text.endswith("a longer ramp_up would help")
    assert of(result, NATIVE).steadiness.steady is True and of(result, DOCKER).steadiness.steady is False


# --- the driver ------------------------------------------------------------------------------------------------------


def test_the_drivers_part_of_an_overhead_is_bounded(result: Result) -> None:
    docker, native = of(result, DOCKER).driver, of(result, NATIVE).driver
    assert docker.us_per_transaction == pytest.approx(30, rel=1e-3) and native.us_per_transaction == pytest.approx(
        20, rel=1e-3
    )
    assert native.bound == 0
    assert docker.bound == pytest.approx(10e-6 * 1000, rel=0.02)  # 10 us more in a millisecond of the baseline
    assert docker.share == docker.share_of_threads == pytest.approx(30e-6 * 1000 / 1.1, rel=0.02)
    assert (docker.null_us_per_transaction, docker.bottleneck) == (18.0, None)
    assert native.share_of_null_rate == pytest.approx(1000 / 50_000, rel=0.02)


def test_threads_share_the_bound_as_far_as_processors_go(tmp_path: Path) -> None:
    one = analyzed(tmp_path / "1", driver_us={DOCKER: 30.0})
    four = analyzed(tmp_path / "4", driver_us={DOCKER: 30.0}, options={"threads": 4, "terminals": 4})
    assert of(one, DOCKER).driver.bound == pytest.approx(of(four, DOCKER).driver.bound)  # every arm has one processor
    assert of(four, DOCKER).driver.share_of_threads == pytest.approx(of(one, DOCKER).driver.share_of_threads / 4)


@pytest.mark.parametrize(
    ("planted", "why"),
    [
        (
            {"driver_us": dict.fromkeys((NATIVE, COPY, DOCKER), 950.0), "docker_effect": 0.0},
            "busy for 95% of the windows",
        ),
        (
            {
                "driver": {"null_us_per_transaction": {"statement": 20}, "null_per_s": {"statement": 1100}},
                "docker_effect": 0.0,
            },
            "91% of what it can do beside a server that costs nothing",
        ),
    ],
)
def test_a_driver_that_was_the_bottleneck_is_said_to_be(tmp_path: Path, planted: Any, why: str) -> None:
    result = analyzed(tmp_path, **planted)
    for arm in (NATIVE, COPY, DOCKER):
        assert why in (of(result, arm).driver.bottleneck or "")
        assert any((w.kind, w.arm) == (WarningKind.DRIVER_BOTTLENECK, arm) and why in w.text for w in result.warnings)
    seen = Page(page.render(result, read_run(tmp_path / "run")))
    assert "the driver was the bottleneck" in seen.text.split("Throughput against native")[0]


# --- open loop -------------------------------------------------------------------------------------------------------


def test_an_open_loop_is_about_response_times(tmp_path: Path) -> None:
    result = analyzed(
        tmp_path, workload="tatp", options={"rate": 1000.0}, changes={"backlog_at_end": 100}, docker_effect=0.0
    )
    assert result.main_metric == "response_p50" and of(result, DOCKER).rate == 1000
    assert of(result, DOCKER).backlog_at_end == 800
    assert of(result, DOCKER).unit == "transactions/s" and of(result, DOCKER).throughput == of(result, DOCKER).per_s
    assert any("1000 transactions arrive in a second" in warning.text for warning in result.warnings)
    lost = "arrivals were not served when their window ended: the rate is more than it can do"
    assert [lost in (arm.reason or "") for arm in result.arms] == [True] * 3
    assert not list(figure5.tables(result, "tatp"))
    seen = Page(page.render(result, read_run(tmp_path / "run")))
    assert "800 arrivals not served when their window ended" in seen.text
    assert "+10 % means that the median response time is 10 % longer than in native" in seen.text


def test_few_unserved_arrivals_are_usual(tmp_path: Path) -> None:
    result = analyzed(tmp_path, workload="tatp", options={"rate": 1000.0}, changes={"backlog_at_end": 2})
    assert [arm.outcome for arm in result.arms] == ["ok"] * 3


# --- the page, the terminal, the tables ------------------------------------------------------------------------------


def test_the_page_speaks_of_transactions(result: Result, run: Run) -> None:
    seen = Page(page.render(result, run))
    assert {"arms", "responses", "within", "outcomes", "driver", "queries", "published", "drift"} <= set(seen.ids)
    assert "times" not in seen.ids
    head = seen.text.split("How to repeat it")[0]
    for word in ("Query by query", "All queries", "per query", "of all queries"):
        assert word not in head
    for group in transactions.groups(result):
        assert group.unit == "tpmC" and len(group.arms) == 3
        for arm in group.arms:
            for text in (arm.throughput, arm.difference, transactions.driver_bound(arm)):
                assert plain(text) in seen.text
    assert "Median response time against native" in seen.text and "response time, 99th percentile" in seen.text
    assert "48 (conflict 40, deadlock 8)" in seen.text and "16 (deadlock 16)" in seen.text
    assert "8 connections lost, 8 connections made anew" in seen.text and "No transaction was lost" in seen.text
    assert "derived from TPC-C" in seen.text and "132 397" in seen.text and "\u221218.6 %" in seen.text
    assert "ramp-up" in seen.text and "1.00 s uncounted" in seen.text


def test_the_loss_is_said_in_one_form_everywhere(result: Result, run: Run) -> None:
    """Headline, terminal, page and picture speak of what is done; the JSON has both quantities, named apart."""
    c = next(c for c in result.comparisons if (c.arm, c.metric) == (DOCKER, TIME_PER_TRANSACTION))
    assert c.estimate and c.throughput_drop
    shown = numbers.effect(c)
    assert shown.change.estimate == pytest.approx(-c.throughput_drop.estimate)
    headline = next(h for h in sentences.headlines(result) if h.arm == DOCKER)
    assert headline.phrase.lead == f"clearly loses: {shown.said}" and "% less" in shown.said
    seen = Page(page.render(result, run))
    console = Console(width=100, highlight=False)
    with console.capture() as captured:
        console.print(tables.terminal(result))
    for text in (seen.text, plain(captured.get())):
        assert plain(shown.said) in text and plain(shown.text) in text
        assert plain(numbers.percent(c.estimate, shown.change.decimals)) not in text
    rows = [(DOCKER, "", c)]
    drawn = forest.forest("", rows, result)
    assert drawn.axis.ends == ("← less done", "more done →") and "← less done" in seen.text
    (row,) = drawn.rows
    assert row.point is not None and row.point < drawn.zero


def test_curves_rise_and_time_runs_to_the_right(result: Result) -> None:
    group = transactions.groups(result)[0]
    curves = response_times.curves(group, [NATIVE, COPY, DOCKER])
    assert curves and [panel.title for panel in curves.panels][:2] == ["new order", "payment"]
    for panel in curves.panels:
        assert [curve.kind for curve in panel.curves] == [0, 1, 2]
        for curve in panel.curves:
            points = [tuple(map(int, point.split())) for point in curve.path[1:].split("L")]
            assert points == sorted(points, key=lambda point: (point[0], -point[1]))
            assert all(0 <= x <= 1000 and 0 <= y <= 1000 for x, y in points)
    assert 2 <= len(curves.time_ticks) <= 6 and [tick.label.split("\u202f")[0] for tick in curves.share_ticks][:2] == [
        "50",
        "90",
    ]
    over = over_time.over_time(group)
    assert over and len(over.panels) == 3 and over.panels[0].path.count("L") == INTERVALS - 1 and over.panels[0].first


def test_the_terminal_has_no_empty_column(result: Result) -> None:
    console = Console(width=100, highlight=False)
    with console.capture() as captured:
        console.print(tables.terminal(result))
    said = captured.get()
    text = plain(said)
    assert max(map(len, said.splitlines())) <= 100
    for word in ("total", "geometric mean", "Worst and best", "quer"):
        assert word not in text
    for arm in transactions.groups(result)[0].arms:
        assert plain(arm.throughput) in text and plain(arm.difference) in text
    assert "retried 48 (conflict 40, deadlock 8)" in text and "failed 16 (deadlock 16)" in text
    assert "steady: " in text and "new order" in text and "28.00" in text


def test_figure_5_has_published_and_measured_differences(result: Result) -> None:
    first, *others = figure5.tables(result, "tpcc")
    assert first.levels == of(result, NATIVE).levels and len(others) == 1
    assert [(row[0], row[figure5.ARM]) for row in first.rows] == [
        ("bare", NATIVE), ("docker", DOCKER), ("kvm", None), ("virtualbox", None)
    ]  # fmt: skip
    bare, docker, kvm, _ = first.rows
    assert docker[figure5.PRINTED] == 133850
    printed, measured = docker[figure5.PRINTED_DIFFERENCE], docker[figure5.MEASURED_DIFFERENCE]
    assert isinstance(printed, Difference) and printed.estimate == pytest.approx(132397 / 133850 - 1)
    assert isinstance(measured, Difference) and measured.estimate == pytest.approx(0.1, abs=0.01)
    assert isinstance(docker[figure5.MEASURED], Quantity) and docker[figure5.VERDICT] is Verdict.LOSES
    assert bare[figure5.VERDICT] == "baseline" and kvm[figure5.VERDICT] == "not measured in this run"
    shown = [plain(line) for line in published.markdown(first, result.margin).splitlines()]
    assert shown[0] == (
        "| environment | transactions/s | difference | ours: arm | ours: tpmC | ours: difference | ours: verdict |"
    )
    difference = numbers.EffectText(TIME_PER_TRANSACTION, measured.estimate, measured.low, measured.high).text
    assert (
        shown[3].startswith("| docker | 133 850 | +1.1 % | docker | ")
        and plain(f"| {difference} | loses |") in shown[3]
    )
    assert not list(figure5.tables(result, "tpch"))


def test_the_tables_of_windows_can_be_merged(folder: Path, result: Result, run: Run) -> None:
    written = export.write(folder, result, run)
    assert [path.name for path in written if path.suffix == ".csv"] == [
        "results.csv", "rounds.csv", "visits.csv", "windows.csv", "outcomes.csv", "throughput.csv", "response_times.csv"
    ]  # fmt: skip
    with duckdb.connect(":memory:") as database:

        def ask(sql: str) -> Any:
            return database.execute(sql.replace("TABLE", f"'{folder}/tables/")).fetchone()

        assert ask("select count(*), sum(connections_lost) from TABLEwindows.parquet'") == (8 * 3 * 2 * 2, 96)
        kind = next(kind for kind in of(result, DOCKER).transactions if kind.name == "new_order")
        steady = "arm = 'docker' and interaction = 'statement' and transaction = 'new_order'"
        assert ask(f"select sum(count), max(value_ns) from TABLEresponse_times.parquet' where {steady}") == (
            sum(count for _, count in [(0, kind.committed)]), kind.max_ns
        )  # fmt: skip
        assert ask(
            f"select sum(count) from TABLEoutcomes.csv' where {steady} and not first_execution and outcome = 'retried'"
            " and cause = 'conflict'"
        ) == (40,)
        assert ask("select count(*), max(from_ns) from TABLEthroughput.csv' where round = 0 and \"order\" = 0") == (
            INTERVALS, (INTERVALS - 1) * 40_000_000
        )  # fmt: skip
        assert ask(
            "select count(throughput_drop_estimate) from TABLEresults.csv' where metric = 'time_per_transaction'"
        ) == (4,)


def test_arms_keep_their_label(result: Result) -> None:
    emulated = names.with_arm_labels(from_json(to_json(result).replace('"emulated":false', '"emulated":true')))
    assert {w.arm for w in emulated.windows} == {f"{arm} (emulated)" for arm in (NATIVE, COPY, DOCKER)}
    assert len(transactions.groups(emulated)[0].arms) == 3


# --- checks -----------------------------------------------------------------------------------------------------------


def test_gates_about_statements_are_not_asked(result: Result) -> None:
    for arm in result.arms:
        checks = {check.name: check.passed for check in arm.checks}
        assert checks["consistent"] is True and checks["clock_rate"] is True
        assert checks.keys().isdisjoint({"equal_answers", "same_plans", "warm_stays_warm", "driver_cpu_share"})


def test_a_clock_that_runs_fast_is_found_in_windows_of_one_length(tmp_path: Path) -> None:
    checks = [
        check for arm in analyzed(tmp_path, clock_rate=1.05).arms for check in arm.checks if check.name == "clock_rate"
    ]
    assert len(checks) == 3 and all(check.passed is False and "1.049" in check.finding for check in checks)


def test_a_line_of_bars_is_as_high_as_its_series() -> None:
    assert transactions.bars([0, 4, 8], 8) == "\u2581\u2585\u2588"
    assert len(transactions.bars([1.0] * 100, 1.0)) == 34 and transactions.bars([], 1.0) == ""


def test_a_window_without_a_commit_leaves_no_figure(tmp_path: Path) -> None:
    result = analyzed(tmp_path, per_s=0.0, rounds=5)
    assert of(result, DOCKER).per_s is None and of(result, DOCKER).driver.us_per_transaction is None
    found = next(c for c in result.comparisons if (c.arm, c.metric) == (DOCKER, TIME_PER_TRANSACTION))
    assert (
        found.estimate is None
        and found.throughput_drop is None
        and found.reason == "mix: 5 visits of docker failed or answered wrongly"
    )
    docker = next(arm for arm in result.arms if arm.name == DOCKER)
    assert (docker.outcome, docker.reason) == (Outcome.FAILED, "10 of 10 windows failed: nothing was committed")
    assert "no figure" in Page(page.render(result, read_run(tmp_path / "run"))).text


def test_a_drop_is_finite_however_wide_the_interval() -> None:
    assert drop(None) is None
    found = drop(Interval(0.0, -800.0, 800.0, 1.0))
    assert found and found.estimate == 0 and found.high == 1 and found.low < -1e300


def test_pages_that_are_written_in_windows_are_no_background_work_but_a_checkpoint_is(tmp_path: Path) -> None:
    run = read_run(make_windows(tmp_path / "run", rounds=1))
    visits = tuple(totals_of_run(run))
    at = {"round": 0, "arm": NATIVE, "levels": visits[0].levels}

    def found(requested: int) -> bool | None:
        ends = [
            {"checkpoints_requested_count": 3 + rise, "checkpoint_buffers": 9 + 4 * rise} for rise in (0, requested)
        ]
        ends[1]["checkpoint_buffers"] += 100
        counters = tuple(
            Counters(**at, when=when, background=b) for when, b in zip(("begin", "end"), ends, strict=True)
        )
        own = tuple(visit for visit in visits if visit.arm == NATIVE)
        return noise.background_work(evidence.Evidence(NATIVE, visits=own, counters=counters)).check.passed

    assert found(0) is True and found(1) is False


# --- units -----------------------------------------------------------------------------------------------------------


def test_each_unit_is_told_over_the_rounds(tmp_path: Path) -> None:
    folder = make_windows(tmp_path / "run", rounds=3, units=4, noise=0.05)
    result = results.analyze(folder)
    units = of(result, NATIVE).units
    assert units is not None and len(units.each) == 4
    assert (units.fairness, units.fairness_low, units.fairness_high) == (1, 1, 1)  # each does the same
    for each, throughput in zip(units.each, units.throughput, strict=True):
        assert len(each.by_round) == 3 and np.mean(each.by_round) == pytest.approx(throughput)
        assert (each.p50_ns, each.p99_ns) == (1_000_000, 2_000_000)  # of new orders alone
    (group,) = transactions.groups(result)
    native, *others = each_unit.panels(group, [NATIVE, COPY, DOCKER])
    assert (native.arm, native.kind, len(native.panels), len(others)) == (NATIVE, 0, 4, 2)
    assert native.most == max(
        max(each.by_round) for arm in group.arms if arm.windows.units for each in arm.windows.units.each
    )
    assert native.panels[3].path.startswith("M0 ") and native.panels[3].path.count("L") == 2
    text = Page(page.render(result, read_run(folder))).text
    assert "tpmC of each unit by round" in text and "1.000 (1.000 … 1.000)" in text


def test_of_one_round_a_unit_has_a_level_and_fairness_no_bounds(tmp_path: Path) -> None:
    result = analyzed(tmp_path, rounds=1, units=2)
    units = of(result, NATIVE).units
    assert units is not None and units.fairness_low is None and len(units.each[0].by_round) == 1
    (group,) = transactions.groups(result)
    level = each_unit.panels(group, [NATIVE, COPY, DOCKER])[0].panels[0].path
    begin, end = (point.split()[1] for point in level.removeprefix("M").split("L"))
    assert begin == end


def test_of_many_rounds_successive_ones_are_together(tmp_path: Path) -> None:
    units = of(analyzed(tmp_path, rounds=30, units=2), NATIVE).units
    assert units is not None and [len(each.by_round) for each in units.each] == [24, 24]
