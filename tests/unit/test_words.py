"""Numbers and verdicts in plain words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dbtoll.analysis.result import ArmResult, Comparison, ComponentsResult, Gate, Result
from dbtoll.model import Outcome, Verdict
from dbtoll.report import words
from dbtoll.report.words import MINUS, NOTHING, THIN


def comparison(arm: str = "docker", estimate: float | None = 0.003, **changes: object) -> Comparison:
    half = 0.011
    made = Comparison(
        arm=arm, baseline="native", is_aa=False, levels={"temperature": "warm"}, metric="run_time", estimand="geomean",
        estimate=estimate, low=None if estimate is None else estimate - half,
        high=None if estimate is None else estimate + half, p=0.5, p_holm=None, low_holm=None, high_holm=None,
        verdict=Verdict.NO_DIFFERENCE, rounds=8, first_touch=None, reason=None, left_out=(),
        components=ComponentsResult(None, None), widened_by=0.0,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def gate(name: str = "steal", **changes: object) -> Gate:
    made = Gate(name, False, "at most 5 % of CPU time was stolen", False, (1,), (), 0)
    return replace(made, **changes)  # type: ignore[arg-type]


def arm(name: str = "docker", *gates: Gate, outcome: Outcome = Outcome.OK, reason: str | None = None) -> ArmResult:
    return ArmResult(name, "docker", outcome, reason, 8, 8, 16, gates, False)


def result(arms: tuple[ArmResult, ...], comparisons: tuple[Comparison, ...] = (), **changes: object) -> Result:
    made = Result(
        run="r", schema_version=1, confidence=0.95, margin=0.02, target=0.01, question="q?", expected="",
        stopped="budget ended", warnings=(), arms=arms, comparisons=comparisons, contrasts=(), noise_floor=(),
        not_inside_the_interval=(), series=(), times=(), windows=(), plans_changed=(), facts={},
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def said(text: str) -> str:
    return text.replace(THIN, " ").replace(MINUS, "-")


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((0.003, -0.008, 0.014), "+0.3 % (-0.8 … 1.4)"),
        ((0.0151, 0.0149, 0.0153), "+1.510 % (1.490 … 1.530)"),
        ((1.5, 1.1, 2.0), "+150 % (110 … 200)"),
        ((-0.0004, -0.01, 0.01), "0.0 % (-1.0 … 1.0)"),
        ((0.003, None, None), "+0.3 %"),
        ((None, None, None), NOTHING),
    ],
)
def test_an_interval_has_the_digits_that_another_run_would_repeat(
    interval: tuple[float | None, float | None, float | None], text: str
) -> None:
    assert said(words.Interval(*interval).text) == text


def test_a_loss_and_a_gain_are_both_told_without_a_sign() -> None:
    assert said(words.Interval(0.38, 0.36, 0.41).size) == "38.0 % (36.0 … 41.0)"
    assert said(words.Interval(-0.38, -0.41, -0.36).size) == "38.0 % (36.0 … 41.0)"


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, NOTHING), (0, "0 ns"), (999.6e3, "1.00 ms"), (14.2e6, "14.2 ms"), (1.414e9, "1.41 s"), (1234e9, "1 234 s")],
)
def test_times_have_three_digits_and_the_unit_that_fits(ns: float | None, text: str) -> None:
    assert said(words.time_of(ns)) == text


def test_spans_sizes_counts_and_p_values() -> None:
    assert [said(words.span(s)) for s in (45, 300, 7500)] == ["45 s", "5 min", "2 h 5 min"]
    assert [said(words.size_of(size)) for size in (512, 4 << 30, 287 << 20)] == ["512 B", "4 GiB", "287 MiB"]
    assert said(words.count(-12345)) == "-12 345"
    assert [said(words.p_value(p)) for p in (None, 0.0314, 1e-9)] == [NOTHING, "0.031", "< 0.001"]
    assert words.plural(1, "round") == "1 round" and words.plural(2, "query", "queries") == "2 queries"


def test_names() -> None:
    assert words.spoken("docker:runsc") == "Docker with runsc"
    assert words.spoken("my arm") == "my arm"
    assert (
        words.levels_text({"temperature": "cold", "connection": "per_statement"}) == "cold, a connection per statement"
    )
    assert words.varied_factors([{"a": "1", "b": "1"}, {"a": "2", "b": "1"}]) == ["a"]
    assert sorted(["Q10", "Q2", "Q1"], key=words.natural_key) == ["Q1", "Q2", "Q10"]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (comparison(), "Docker: no difference within ±2 % (+0.3 %, -0.8 … 1.4)"),
        (comparison(estimate=0.05, verdict=Verdict.LOSES), "Docker: loses 5.0 % (3.9 … 6.1)"),
        (comparison(estimate=-0.05, verdict=Verdict.GAINS), "Docker: gains 5.0 % (3.9 … 6.1)"),
        (
            comparison(estimate=2.0, low=1.5, high=2.5, verdict=Verdict.LOSES),
            "Docker: loses 200 % (150 … 250): 3.0 times as long",
        ),
        (
            comparison(verdict=Verdict.CANNOT_TELL),
            "Docker: cannot tell (+0.3 %, -0.8 … 1.4): more rounds would be needed",
        ),
        (comparison(estimate=None, reason="no complete round"), "Docker: no figure: no complete round"),
    ],
)
def test_an_arm_has_a_sentence(made: Comparison, sentence: str) -> None:
    (headline,) = words.headlines(result((arm(),), (made,)))
    assert said(headline.sentence) == sentence


def test_an_arm_that_failed_says_why_and_nothing_else() -> None:
    failed = arm(outcome=Outcome.FAILED, reason="no daemon")
    (headline,) = words.headlines(result((failed,), (comparison(estimate=None, reason="no round"),)))
    assert headline.sentence == "Docker: failed: no daemon"


def test_the_noise_floor_is_last_and_names_only_its_own_widening() -> None:
    copies = comparison("native (A/A)", 0.02, is_aa=True)
    widened = comparison(widened_by=0.031)
    other_metric = comparison(metric="connect_time", widened_by=0.5)
    heads = words.headlines(result((arm("native (A/A)"), arm()), (copies, widened, other_metric)))
    assert [head.kind for head in heads] == [Verdict.NO_DIFFERENCE, "noise"]
    assert said(heads[1].sentence) == (
        "Noise floor: two identical copies differ by +2.0 % (0.9 … 3.1): more than chance, "
        "so 3.1 % was added to every interval"
    )


def test_each_caution_is_said_once_and_by_what_it_did() -> None:
    visit = gate("host_brackets", finding="the clocks disagree", voids=True, void_visits=1)
    start = gate("same_settings", finding="jit is on", voids=True, void_rounds=(1, 2))
    wrong = gate("equal_answers", finding="wrong answers: Q7", voids=True)
    silent = gate("clock_rate", passed=None, finding="too little time")
    arms = (
        arm("native", gate()),
        arm("docker", gate(), visit, start, wrong, silent, reason="1 of 8 starts do not count: it died"),
        arm("lost", gate(finding="never said"), outcome=Outcome.FAILED, reason="no daemon"),
    )
    care = words.cautions(result(arms, warnings=("only 4 complete rounds",)))
    assert [caution.sentence for caution in care.left_out] == [
        "only 4 complete rounds",
        "docker: 1 of 8 starts do not count: it died",
        "docker: 1 visit left out: the clocks disagree",
        "docker: 2 rounds left out: jit is on",
        "docker: no verdict over all queries: wrong answers: Q7",
    ]
    assert [caution.sentence for caution in care.labels] == ["native and docker: at most 5 % of CPU time was stolen"]
    assert not words.cautions(result((arm(),)))


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((27708.0, 17598.0, 43625.0), "28 000 (18 000 … 44 000)"),
        ((1468.7, 1434.2, 1503.9), "1 469 (1 434 … 1 504)"),
        ((0.5, 0.4, 0.61), "0.50 (0.40 … 0.61)"),
        ((1468.7,), "1 470"),
        ((0.01234,), "0.0123"),
        ((0.0,), "0"),
        ((5.0, 5.0, 5.0), "5 (5 … 5)"),
    ],
)
def test_a_figure_has_the_digits_of_its_interval(bounds: tuple[float, ...], text: str) -> None:
    assert said(words.figure(*bounds)) == text


def test_causes_come_most_frequent_first() -> None:
    assert words.causes({"deadlock": 2, "lock_timeout": 40}) == "42 (lock timeout 40, deadlock 2)"
    assert words.causes({}) == "0"


def test_metrics_of_transactions_have_names() -> None:
    assert words.metric_text("response_p50") == "median response time"
    assert words.metric_text("response_p95") == "response time, 95th percentile"
    assert words.estimand_text("geomean", "throughput") == "all transactions"
    assert words.estimand_text("geomean", "response_p99") == "geometric mean of all transactions"
    assert words.estimand_text("query:payment", "response_p99") == "payment"
    assert said(words.round_time(2e6)) == "2 ms" and said(words.round_time(3e8)) == "300 ms"
