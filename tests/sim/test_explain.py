"""What is planted in the simulated world is found again: in the ledger, in predictions, and on the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from dbtoll.analysis.attribution import prediction
from dbtoll.analysis.attribution.cost_model import CostModel
from dbtoll.analysis.attribution.counts import Events
from dbtoll.analysis.attribution.items import CACHES, OTHER_CALLS, TRANSLATION, USER_MODE
from dbtoll.analysis.attribution.prediction import PredictedArm
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result import schema
from dbtoll.analysis.result.schema import Result
from dbtoll.analysis.visits.metrics import levels_key
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.errors import Stopped
from dbtoll.model.experiment import Verdict
from dbtoll.model.probes import CACHED, EXECUTOR_PROBES, HUGE_PAGES
from dbtoll.report import attribution, page, predictions
from dbtoll.report.text import names, sentences
from dbtoll.runner import run as runs
from dbtoll.selfbench.explanations import ledger, predict, unexplained
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import Fingerprint, Record, Start, Visit
from tests.support.changed import revised
from tests.support.program import only_run

PLANTED = ledger.PLANTED.replace('"60s"', '"10s"')
ROUNDS = 6


class Brief(Quiet):
    """As many rounds, however busy the machine is."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        return "enough" if len(run.counted) >= ROUNDS else None


def measured(text: str, folder: Path) -> Run:
    return read_run(runs.begin(experiment(text), text, folder, Brief()))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return measured(PLANTED, tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def result(planted: Run) -> Result:
    return results.analyze_run(planted)


class Impatient(Quiet):
    """Its user ends it after the first round."""

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        os.kill(os.getpid(), signal.SIGTERM)  # an interrupt is ignored where the tests run in the background
        return None


def test_nothing_follows_a_part_that_its_user_stopped(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="stopped by the user") as stopped:
        runs.begin_part(experiment(ledger.PLANTED), ledger.PLANTED, tmp_path, Impatient(lambda _: None))
    folder = only_run(tmp_path)
    assert stopped.value.hint == f"go on with it: dbtoll run {folder} --resume"
    assert stopped.value.exit_code == 130


def test_every_planted_item_is_recovered_and_little_is_left(result: Result) -> None:
    errors = ledger.planted_errors(result)
    assert set(errors) == {*ledger.PLANTED_COSTS, "unexplained"}
    assert max(errors.values()) < 0.05


def test_what_no_event_explains_is_said_to_be_unexplained(tmp_path: Path) -> None:
    text = PLANTED.replace("slowdown=1.2", "slowdown=1.2,effect=0.5")
    found = results.analyze_run(measured(text, tmp_path))
    (arm,) = (each for each in found.ledgers if each.arm == "planted")
    # Half as much again of everything that it would take: a third of its time.
    whole_ns = sum(query.overhead.ns * (1 + 1 / query.measured) for query in arm.queries if query.measured)
    assert arm.unexplained.ns == pytest.approx(whole_ns / 3, rel=0.1)
    assert arm.unexplained_fraction is not None
    assert arm.unexplained_fraction.low > 0.2


def test_items_and_the_rest_add_up_for_each_query(result: Result) -> None:
    for arm in result.ledgers:
        for each in (*arm.queries, arm):
            total = sum(entry.amount.ns for entry in each.items) + each.unexplained.ns
            assert total == pytest.approx(each.overhead.ns, abs=1)


def test_how_time_is_spread_is_told_of_the_baseline_alone(planted: Run) -> None:
    book = CostModel(ValidVisits(planted))
    levels = book.measured.levels[0]
    assert book.spread("rows") == pytest.approx(4)
    assert book.spread((levels_key(levels), "Q1")) == pytest.approx(6)
    assert all("missing" in counts["samples"] for counts in book.counts("planted", levels, "Q1").values())


@pytest.mark.parametrize(("emulated", "wanted"), [(True, 6.13), (False, (4.75 + 8) / 2)])
def test_where_instructions_are_emulated_a_query_is_slowed_down_like_probes_as_spread_as_it(
    planted: Run, emulated: bool, wanted: float
) -> None:
    """The simulated world spreads a probe's time over as many instructions as its name has letters, a query's over six. Half way
    to the middle of all, 6.4, that is 6.2; and 6.13 is the mean of quartiles around it."""

    def told(record: Record) -> Record:
        if isinstance(record, Start) and record.arm == "planted":
            return structs.replace(record, servers=({**record.facts, "environment": {"emulated": emulated}},))
        if isinstance(record, Visit) and record.arm == "planted" and record.units[0].batches is not None:
            name = record.query.removesuffix(CACHED).removesuffix(HUGE_PAGES)
            times = len(name) if name in EXECUTOR_PROBES else 1
            batches = tuple(
                structs.replace(each, elapsed_ns=each.elapsed_ns * times) for each in record.units[0].batches
            )
            return revised(record, batches=batches)
        return record

    attempts = tuple(replace(each, records=tuple(map(told, each.records))) for each in planted.attempts)
    found = next(
        each for each in results.analyze_run(replace(planted, attempts=attempts)).ledgers if each.arm == "planted"
    )
    in_user_mode = sum(each.cost_ns for each in found.items if each.amount.name in (USER_MODE, CACHES, TRANSLATION))
    assert in_user_mode == pytest.approx(1.2 * wanted, rel=0.01)


def of_arm(run: Run, arm: str, told: Callable[[Visit], Visit]) -> Run:
    """The same history, but for visits of one arm."""

    def changed(record: Record) -> Record:
        return told(record) if isinstance(record, Visit) and record.arm == arm else record

    return replace(
        run, attempts=tuple(replace(each, records=tuple(map(changed, each.records))) for each in run.attempts)
    )


def with_calls_by_the_clock(visit: Visit) -> Visit:
    """Of the calls that are counted half come by the clock, and the passes count in a quarter of the time that they took."""
    if visit.counts is None or not visit.counts.get("calls", {}).get("executions"):
        return visit
    told = visit.counts["calls"]
    counted = {name: {**call, "background": call["count"] // 2} for name, call in told["counted"].items()}
    calls = {**told, "counted": counted, "elapsed_ns": told["elapsed_ns"] // 4}
    return structs.replace(visit, counts={**visit.counts, "calls": calls})


def slower(visit: Visit, times: float) -> Visit:
    """A timed visit that takes so many times as long."""
    if visit.counts is not None or visit.units[0].batches is not None:
        return visit
    executions = (
        structs.replace(each, end_ns=each.start_ns + round(times * (each.end_ns - each.start_ns)))
        for each in visit.units[0].executions
    )
    return revised(visit, executions=tuple(executions))


def test_no_measured_time_of_an_arm_enters_what_is_explained_or_predicted(planted: Run) -> None:
    clocked = of_arm(planted, "planted", with_calls_by_the_clock)
    book, late = (
        CostModel(ValidVisits(run)) for run in (clocked, of_arm(clocked, "planted", lambda visit: slower(visit, 3)))
    )
    levels = book.measured.levels[0]
    before, after = (each.ledgers("planted", levels) for each in (book, late))
    assert [each.query for each in before] == [each.query for each in after]
    for own, other in zip(before, after, strict=True):
        assert other.overhead_ns == pytest.approx(3 * own.overhead_ns + 2 * own.baseline_ns)
        for item, same in zip(own.items, other.items, strict=True):
            assert same.explained_ns == pytest.approx(item.explained_ns, rel=1e-12)
    assert late.predicted("planted", levels) == book.predicted("planted", levels)


def test_what_comes_by_the_clock_comes_in_the_time_that_the_ledger_foretells(planted: Run) -> None:
    book = CostModel(ValidVisits(of_arm(planted, "planted", with_calls_by_the_clock)))
    levels = book.measured.levels[0]
    for each in book.ledgers("planted", levels):
        (calls,) = (item for item in each.items if item.name == OTHER_CALLS.name)
        told = (Events.counted(counts) for _, counts in sorted(book.counts("planted", levels, each.query).items()))
        asked, per_ns, _ = np.array([events.of(OTHER_CALLS.name) for events in told]).T
        time_ns = each.baseline_ns + sum(item.explained_ns for item in each.items)
        assert np.all(per_ns * time_ns > 1)
        assert calls.count == pytest.approx(asked + per_ns * time_ns, rel=1e-9)


def test_the_unexplained_fraction_is_covered_by_its_interval_and_its_bias_is_found() -> None:
    found = unexplained.measure({"experiments": 25, "seed": 3}, lambda _: None)
    assert found.holds(), found.failure
    worlds = {name: figures for name, figures in found.figures.items() if isinstance(figures, dict)}
    assert len(worlds) == 24
    noisy = worlds["all, +20 %, noisy"]
    assert noisy["truth"] == 0
    assert noisy["found"] > 0.1
    # What disturbs an arm only makes it slower, so it fills up what costs explain too much.
    assert worlds["too much, +1000 %, disturbed"]["found"] < worlds["too much, +1000 %, disturbed"]["truth"] - 0.02
    assert worlds["too little, +1000 %, disturbed"]["found"] > worlds["too little, +1000 %, disturbed"]["truth"] + 0.02


def with_another_plan(run: Run, query: str) -> Run:
    """The same history, in which the planted arm's server has another plan for a query."""
    told = (
        Fingerprint(round=0, arm=arm, query=query, parameter_set=0, fingerprint=mark, plan=None)
        for arm, mark in (("native", "scan"), ("planted", "index"))
    )
    first, *rest = run.attempts
    return replace(run, attempts=(replace(first, records=(*first.records, *told)), *rest))


def test_a_query_with_another_plan_is_left_out_and_named(planted: Run, result: Result) -> None:
    whole = next(each for each in result.ledgers if each.arm == "planted")
    query, *others = (each.query for each in whole.queries)
    changed = with_another_plan(planted, query)
    found = next(each for each in results.analyze_run(changed).ledgers if each.arm == "planted")
    assert [each.query for each in found.queries] == others
    assert any(each.startswith(f"{query} left out") for each in found.assumed)
    assert found.overhead.ns < whole.overhead.ns


def test_a_query_that_always_fails_in_the_arm_is_named_as_left_out(planted: Run, result: Result) -> None:
    query = result.ledgers[0].queries[0].query

    def failing(visit: Visit) -> Visit:
        if visit.query != query:
            return visit
        failed = tuple(structs.replace(timing, outcome="error") for timing in visit.units[0].executions)
        return revised(visit, executions=failed)

    arm = next(
        each for each in results.analyze_run(of_arm(planted, "planted", failing)).ledgers if each.arm == "planted"
    )
    assert query not in [each.query for each in arm.queries]
    assert f"{query} left out, for some visits failed or ran into the timeout" in arm.assumed


def test_the_accounted_ledger_adds_up_to_the_extra_time(result: Result) -> None:
    arm = next(each for each in result.ledgers if each.arm == "planted")
    assert next(amount.name for amount in arm.accounted) == "user mode"
    assert sum(amount.ns for amount in arm.accounted) == pytest.approx(arm.overhead.ns, rel=0.15)


def test_counts_times_costs_are_the_items(result: Result) -> None:
    arm = next(each for each in result.ledgers if each.arm == "planted")
    for entry in arm.items:
        booked = entry.count * entry.cost_ns - entry.baseline_count * entry.baseline_cost_ns
        # Of what is not planted, differences of the probes' noise, only the size can be told.
        noise_ns = 0.001 * arm.overhead.ns if entry.amount.name in (CACHES, TRANSLATION) else 0.0
        assert booked == pytest.approx(entry.amount.ns, rel=0.02, abs=noise_ns)


def test_a_profile_and_probes_foretell_what_is_measured(planted: Run, result: Result, tmp_path: Path) -> None:
    """From another run, in which no statement was asked of the arm."""
    text = PLANTED.replace("explain = true", "")
    text = text.replace('name = "noop"', 'name = "no_server"').replace('"tpch"', '"probes"')
    probes = measured(text, tmp_path)
    (found,) = prediction.find_all(planted, probes, [])
    assert found.arm == "planted"
    arm = next(each for each in result.ledgers if each.arm == "planted")
    for query in arm.queries:
        told = found.queries[query.query]
        assert query.measured is not None
        assert told.estimate == pytest.approx(query.measured, rel=0.1, abs=0.02)
        assert told.low is not None and told.high is not None
        assert told.low < told.estimate < told.high
    for rounds, is_short in ((4, True), (5, False)):
        shown = predictions.terminal([replace(found, rounds=rounds)]).renderables  # type: ignore[attr-defined]
        assert "planted: predicted +" in str(shown[0])
        assert any("only 4 rounds, and 5 are needed" in str(each) for each in shown) == is_short


def test_the_score_of_predictions(result: Result) -> None:
    (arm,) = predict.predicted_arms(result, chosen=True)
    found = prediction.score([arm], 0.05)
    assert found.error.estimate < 0.05
    assert found.of_one.estimate > 0.2
    assert found.ratio.estimate < 0.25
    assert found.ranks[arm.arm].estimate > 0.9
    assert found.error.low is not None
    assert found.error.high is not None
    assert found.error.low <= found.error.estimate <= found.error.high


def test_how_many_measured_factors_lie_inside_is_counted_over_queries() -> None:
    measured = np.full(20, 2.0)
    names = tuple(f"Q{number}" for number in range(20))
    high = np.where(np.arange(20) < 18, 2.1, 1.95)
    arms = [PredictedArm(name, names, measured, measured - 0.1, high, measured, 1.0) for name in ("uml", "qemu")]
    found = prediction.share_inside(arms, 0.05)
    assert found.estimate == pytest.approx(0.9)
    # Clopper and Pearson of 18 out of 20, though there are 40: both arms miss the same two queries.
    assert (found.low, found.high) == pytest.approx((0.683, 0.988), abs=0.001)
    whole = prediction.share_inside([replace(arms[0], high=measured + 1)], 0.05)
    assert (whole.estimate, whole.high) == (1.0, 1.0)
    assert whole.low == pytest.approx(0.832, abs=0.001)
    nothing = np.full(20, np.nan)
    assert np.isnan(prediction.share_inside([replace(arms[0], low=nothing, high=nothing)], 0.05).estimate)


def test_the_certificate_of_predictions_is_whole_and_its_picture_is_drawn(planted: Run, tmp_path: Path) -> None:
    options = {**{name: option.default for name, option in predict.OPTIONS.items()}, "run": str(planted.folder)}
    found = predict.measure(options, lambda _: None)
    assert found.failure is not None
    assert "arms is 1 and should be at least 3" in found.failure
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told["figures"]["inside"] > 0.5
    assert told["figures"]["everything"]["factors"] == len(told["facts"]["predicted"]["planted (persistent)"])
    pytest.importorskip("matplotlib")
    (tmp_path / "predict.json").write_text(json.dumps(told))
    plot = Path(__file__).parents[2] / "docs/plot_predictions.py"
    subprocess.run([sys.executable, plot, tmp_path / "predict.json", tmp_path / "picture.png"], check=True)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_what_loses_little_or_has_another_plan_is_not_left_out_of_every_figure(planted: Run, result: Result) -> None:
    slow, level = (next(each for each in result.ledgers if each.arm == name) for name in ("planted", "native (A/A)"))
    changed = with_another_plan(planted, slow.queries[0].query)
    found = next(each for each in results.analyze_run(changed).ledgers if each.arm == "planted")
    (left_out,) = found.unbooked
    assert left_out.query == slow.queries[0].query
    assert left_out.predicted is not None
    assert left_out.measured == pytest.approx(slow.queries[0].measured)
    together = replace(result, ledgers=(found, replace(level, arm="docker")))
    (one,) = predict.predicted_arms(together, chosen=True)
    assert left_out.query not in one.queries
    everything = {each.arm: each for each in predict.predicted_arms(together, chosen=False)}
    assert set(everything) == {one.arm, ledger.named(replace(level, arm="docker"))}
    assert set(everything[one.arm].queries) == {*one.queries, left_out.query}


def test_the_page_says_why(planted: Run, result: Result) -> None:
    (bill,) = attribution.bills(result)
    assert "page faults" in bill.sentence
    assert "Not explained" in bill.sentence
    assert sum(segment.width for segment in bill.segments) == pytest.approx(100, abs=0.1)
    text = page.render(result, planted)
    assert '<section id="why"' in text
    assert "predicted" in text


def test_a_bill_says_nothing_of_a_loss_that_is_not_shown(result: Result) -> None:
    """Also not that there is none."""
    arm = next(each for each in result.ledgers if each.arm == "planted")
    assert arm.verdict == Verdict.LOSES
    less = schema.Amount("overhead", -2e6, -5e6, 1e6)
    unknown = replace(arm, overhead=less, verdict=Verdict.CANNOT_TELL)
    few = replace(unknown, overhead=replace(less, low_ns=None, high_ns=None), rounds=1)
    for changed, said in (
        (unknown, "cannot be told from"),
        (few, "cannot be told from 1 round beside the noise floor: −2.00"),
        (replace(unknown, verdict=Verdict.GAINS), "takes no longer than native"),
        (replace(unknown, verdict=Verdict.NO_DIFFERENCE), "within the margin"),
    ):
        text = attribution.sentence(changed)
        assert said in text
        assert "page faults" not in text
        assert "nothing to explain" not in text
    (bill,) = attribution.bills(replace(result, ledgers=(unknown,)))
    assert not any("%" in segment.text for segment in bill.segments)


def test_a_few_rounds_decide_nothing_of_a_ledger(planted: Run) -> None:
    early = replace(planted, attempts=tuple(each for each in planted.attempts if each.round < 3))
    found = results.analyze_run(early)
    arm = next(each for each in found.ledgers if each.arm == "planted")
    assert arm.rounds == 3
    assert arm.overhead.low_ns is not None and arm.overhead.low_ns > 0
    assert arm.verdict == Verdict.CANNOT_TELL
    (bill,) = attribution.bills(found)
    assert "cannot be told from 3 rounds" in bill.sentence


def test_copies_that_differ_by_more_than_chance_widen_what_is_said_of_a_ledger(planted: Run, result: Result) -> None:
    copy = next(each for each in result.comparisons if each.is_aa).arm
    apart = of_arm(planted, copy, lambda visit: slower(visit, 3))
    found = {each.arm: each for each in results.analyze_run(apart).ledgers}
    # Against the other copy, not against the mean of both.
    assert found[copy].overhead.ns == pytest.approx(
        sum(2 * query.overhead.ns / query.measured for query in found[copy].queries if query.measured), rel=0.05
    )
    assert found[copy].verdict == Verdict.LOSES
    assert found["planted"].verdict == Verdict.CANNOT_TELL


def test_a_machine_that_is_slow_in_some_rounds_hides_no_loss(planted: Run, result: Result) -> None:
    """Both sides are, so that the ratio says what the difference hides: its verdict is that of the comparison."""
    run = planted
    for arm in {visit.arm for visit in planted.records(Visit)}:
        run = of_arm(run, arm, lambda visit: slower(visit, 8) if visit.round % 3 == 0 else visit)
    found = results.analyze_run(run)
    before, after = (next(each for each in its.ledgers if each.arm == "planted") for its in (result, found))
    compared = next(each for each in found.comparisons if each.arm == "planted")
    assert after.overhead.low_ns is not None and after.overhead.low_ns < 0, "the difference alone tells nothing"
    assert before.verdict == after.verdict == compared.verdict == Verdict.LOSES


def test_the_headline_names_a_cause_no_surer_than_its_interval(result: Result) -> None:
    (headline,) = (each for each in sentences.headlines(result) if each.arm == "planted")
    assert "most of it: page faults (" in headline.sentence

    def told(reach: float) -> str:
        def wide(entry: schema.LedgerItem) -> schema.LedgerItem:
            ns = entry.amount.ns
            low_ns, high_ns = ns - reach * abs(ns), ns + reach * abs(ns)
            return replace(entry, amount=replace(entry.amount, low_ns=low_ns, high_ns=high_ns))

        ledgers = tuple(replace(each, items=tuple(map(wide, each.items))) for each in result.ledgers)
        (found,) = (each for each in sentences.headlines(replace(result, ledgers=ledgers)) if each.arm == "planted")
        return found.sentence

    assert "most of it: page faults" in told(0.05)
    assert "the largest part: page faults" in told(0.2)
    assert "in part: page faults" in told(0.4)
    assert "page faults" not in told(0.95)
    unsure = tuple(replace(each, verdict=Verdict.CANNOT_TELL) for each in result.ledgers)
    (found,) = (each for each in sentences.headlines(replace(result, ledgers=unsure)) if each.arm == "planted")
    assert "page faults" not in found.sentence


def test_the_headline_names_the_largest_item(result: Result) -> None:
    (arm,) = (each for each in result.ledgers if each.arm == "planted")
    families: dict[str, float] = {}
    for entry in arm.items:
        family = names.family(entry.amount.name)
        families[family] = families.get(family, 0.0) + entry.amount.ns
    largest = max(families, key=families.__getitem__)
    (headline,) = (each for each in sentences.headlines(result) if each.arm == "planted")
    assert f"{largest} ({100 * families[largest] / arm.overhead.ns:.0f}" in headline.sentence.replace("\u202f", "")
