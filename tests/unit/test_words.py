"""Numbers and verdicts in plain words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dbtoll.analysis.checks.catalog import CATALOG
from dbtoll.analysis.result.schema import (
    ArmResult,
    CheckResult,
    Comparison,
    ComponentsResult,
    Contrast,
    Result,
    RunWarning,
    WarningKind,
    varied_factors,
)
from dbtoll.model.experiment import Outcome, Verdict
from dbtoll.report.text import names, numbers, sentences, warnings
from dbtoll.report.text.numbers import MINUS, NOTHING, THIN


def comparison(arm: str = "docker", estimate: float | None = 0.003, **changes: object) -> Comparison:
    half = 0.011
    made = Comparison(
        arm=arm, baseline="native", is_aa=False, levels={"cache": "warm"}, metric="run_time", estimand="geomean",
        estimate=estimate, low=None if estimate is None else estimate - half,
        high=None if estimate is None else estimate + half, p=0.5, p_holm=None, low_decisive=None, high_decisive=None,
        verdict=Verdict.NO_DIFFERENCE, rounds=8, first_execution=None, reason=None, left_out=(),
        components=ComponentsResult(None, None), widened_by=0.0,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def check(name: str = "steal", **changes: object) -> CheckResult:
    made = CheckResult(name, False, "at most 5 % of CPU time was stolen", False, (1,), (), 0)
    return replace(made, **changes)  # type: ignore[arg-type]


def arm(
    name: str = "docker", *checks: CheckResult, outcome: Outcome = Outcome.OK, reason: str | None = None
) -> ArmResult:
    return ArmResult(name, "docker", outcome, reason, 8, 8, 16, checks, False)


FACTS = {"descriptions": {"environments": {"docker": {"title": "Docker"}}}}


def result(arms: tuple[ArmResult, ...], comparisons: tuple[Comparison, ...] = (), **changes: object) -> Result:
    made = Result(
        run="r", schema_version=1, confidence=0.95, margin=0.02, target=0.01, question="q?", expected="",
        stopped="budget ended", warnings=(), arms=arms, comparisons=comparisons, contrasts=(), noise_floor=(),
        not_inside_the_interval=(), series=(), times=(), windows=(), plans_changed=(), facts=FACTS,
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
    assert said(numbers.IntervalText(*interval).text) == text


@pytest.mark.parametrize(
    ("metric", "overhead", "shown", "told"),
    [
        ("run_time", (0.24, 0.21, 0.27), "+24.0 % (21.0 … 27.0)", "takes 24.0 % longer (21.0 … 27.0)"),
        ("run_time", (-0.12, -0.14, -0.1), "-12.0 % (-14.0 … -10.0)", "takes 12.0 % less time (10.0 … 14.0)"),
        ("run_time", (1.99, 1.8, 2.2), "+199 % (180 … 220)", "takes 199 % longer (180 … 220)"),
        ("run_time", (2.0, 1.5, 2.5), "3.00× (2.50 … 3.50)", "takes 3.00 times as long (2.50 … 3.50)"),
        ("run_time", (106.8, 103.5, 108.2), "107.8× (104.5 … 109.2)", "takes 107.8 times as long (104.5 … 109.2)"),
        ("run_time", (9.8, None, None), "10.8×", "takes 10.8 times as long"),
        ("event_time", (0.24, None, None), "+24.0 %", "an event takes 24.0 % longer"),
        ("response_p50", (0.24, None, None), "+24.0 %", "answers take 24.0 % longer"),
        ("time_per_transaction", (6.85, 6.5, 7.2), "-87.26 % (-87.80 … -86.67)", "does 87.26 % less (86.67 … 87.80)"),
        ("time_per_transaction", (-0.1, -0.2, -0.05), "+11.1 % (5.3 … 25.0)", "does 11.1 % more (5.3 … 25.0)"),
        ("time_per_transaction", (-0.8, -0.85, -0.75), "5.0× (4.0 … 6.7)", "does 5.0 times as much (4.0 … 6.7)"),
        ("time_per_transaction", (None, None, None), NOTHING, NOTHING),
    ],
)
def test_an_effect_is_said_as_people_say_it(
    metric: str, overhead: tuple[float | None, float | None, float | None], shown: str, told: str
) -> None:
    effect = numbers.EffectText(metric, *overhead)
    assert said(effect.text) == shown
    assert said(effect.said + (f" ({effect.said_bounds})" if effect.said_bounds else "")) == told


def test_an_estimate_with_a_wide_interval_does_not_read_as_nothing() -> None:
    assert said(numbers.EffectText("run_time", 50.2, -0.98, 25_169).text) == "50× (0 … 25 170)"
    assert said(numbers.figure(0.004, 0.0, 3.0)) == "0.004 (0.000 … 3.000)"
    assert said(numbers.figure(0.004, -3.0, 3.0)) == "0.0 (-3.0 … 3.0)", "it may be either side of zero"


@pytest.mark.parametrize(
    ("metric", "low", "size"),
    [
        ("run_time", 0.24, "at least 24.0 % longer"),
        ("run_time", 9.8, "at least 10.8 times as long"),
        ("time_per_transaction", 6.85, "at least 87.3 % less"),
    ],
)
def test_what_is_known_from_below_alone_says_at_least(metric: str, low: float, size: str) -> None:
    effect = numbers.EffectText(metric, None, low, None)
    assert said(effect.text) == size and said(effect.said).endswith(size)
    phrase = sentences.verdict_phrase(Verdict.LOSES, effect, 0.02, "Q1 ran into the timeout")
    assert said(str(phrase)) == f"{said(effect.said)}: Q1 ran into the timeout"


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, NOTHING), (0, "0 ns"), (999.6e3, "1.00 ms"), (14.2e6, "14.2 ms"), (1.414e9, "1.41 s"), (1234e9, "1 234 s")],
)
def test_times_have_three_digits_and_the_unit_that_fits(ns: float | None, text: str) -> None:
    assert said(numbers.time_of(ns)) == text


def test_spans_sizes_counts_and_p_values() -> None:
    spans = (45, 119.6, 270, 284, 286, 300, 594, 650, 7500)
    assert [said(numbers.span(s)) for s in spans] == [
        "45 s", "2 min", "4½ min", "4½ min", "5 min", "5 min", "10 min", "11 min", "2 h 5 min"
    ]  # fmt: skip
    assert [said(numbers.size_of(size)) for size in (512, 4 << 30, 287 << 20)] == ["512 B", "4 GiB", "287 MiB"]
    assert said(numbers.count(-12345)) == "-12 345"
    assert [said(numbers.p_value(p)) for p in (None, 0.0314, 1e-9)] == [NOTHING, "0.031", "< 0.001"]
    assert numbers.plural(1, "round") == "1 round" and numbers.plural(2, "query", "queries") == "2 queries"


def test_names() -> None:
    assert names.arm_title("docker:runsc", result(())) == "Docker with runsc"
    assert names.arm_title("my arm", result(())) == names.arm_title("my arm", replace(result(()), facts={})) == "my arm"
    assert names.levels_text({"cache": "cold", "connection": "per_statement"}) == "cold, a connection per statement"
    assert varied_factors([{"a": "1", "b": "1"}, {"a": "2", "b": "1"}]) == ["a"]
    assert sorted(["Q10", "Q2", "Q1"], key=names.natural_key) == ["Q1", "Q2", "Q10"]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (comparison(), "Docker: no difference within ±2 % (+0.3 %, -0.8 … 1.4)"),
        (comparison(estimate=0.05, verdict=Verdict.LOSES), "Docker clearly loses: takes 5.0 % longer (3.9 … 6.1)"),
        (comparison(estimate=0.025, verdict=Verdict.LOSES), "Docker loses: takes 2.5 % longer (1.4 … 3.6)"),
        (comparison(estimate=-0.05, verdict=Verdict.GAINS), "Docker clearly gains: takes 5.0 % less time (3.9 … 6.1)"),
        (
            comparison(estimate=2.0, low=1.5, high=2.5, verdict=Verdict.LOSES),
            "Docker clearly loses: takes 3.00 times as long (2.50 … 3.50)",
        ),
        (
            comparison(metric="time_per_transaction", estimate=6.85, low=6.5, high=7.2, verdict=Verdict.LOSES),
            "Docker clearly loses: does 87.26 % less (86.67 … 87.80)",
        ),
        (
            comparison(verdict=Verdict.CANNOT_TELL),
            "Docker: cannot tell (+0.3 %, -0.8 … 1.4): more rounds would be needed",
        ),
        (comparison(estimate=None, reason="no complete round"), "Docker: no figure: no complete round"),
    ],
)
def test_an_arm_has_a_sentence(made: Comparison, sentence: str) -> None:
    (headline,) = sentences.headlines(result((arm(),), (made,), main_metric=made.metric))
    assert said(headline.sentence) == sentence


@pytest.mark.parametrize(
    ("metric", "verdict", "effect", "sentence"),
    [
        ("run_time", Verdict.LOSES, (0.31, 0.28, 0.34), "takes 31.0 % longer (28.0 … 34.0)"),
        ("time_per_transaction", Verdict.LOSES, (0.31, 0.28, 0.34), "does 23.7 % less (21.9 … 25.4)"),
        ("run_time", Verdict.NO_DIFFERENCE, (0.003, -0.008, 0.014), "no difference within ±2 % (+0.3 %, -0.8 … 1.4)"),
        (
            "run_time",
            Verdict.CANNOT_TELL,
            (0.1, -0.1, 0.3),
            "cannot tell (+10 %, -10 … 30): more rounds would be needed",
        ),
    ],
)
def test_a_contrast_is_said_in_the_same_form(
    metric: str, verdict: Verdict, effect: tuple[float, float, float], sentence: str
) -> None:
    contrast = Contrast(
        arm="docker", baseline="native", is_aa=False, factor="connection", level="per_statement", against="persistent", levels={},
        estimate=effect[0], low=effect[1], high=effect[2], p=0.5, verdict=verdict, rounds=8,
    )  # fmt: skip
    (line,) = sentences.contrasts(result((arm(),), (comparison(),), contrasts=(contrast,), main_metric=metric))
    assert (
        said(line)
        == f"Docker: a connection per statement, not one connection, beyond what that does to native: {sentence}"
    )


def test_an_arm_that_failed_says_why_and_nothing_else() -> None:
    failed = arm(outcome=Outcome.FAILED, reason="no daemon")
    (headline,) = sentences.headlines(result((failed,), (comparison(estimate=None, reason="no round"),)))
    assert headline.sentence == "Docker: failed: no daemon"


def test_the_noise_floor_is_last_and_names_only_its_own_widening() -> None:
    copies = comparison("native (A/A)", 0.02, is_aa=True)
    widened = comparison(widened_by=0.031)
    other_metric = comparison(metric="connect_time", widened_by=0.5)
    heads = sentences.headlines(result((arm("native (A/A)"), arm()), (copies, widened, other_metric)))
    assert [head.kind for head in heads] == [Verdict.NO_DIFFERENCE, "noise"]
    assert said(heads[1].sentence) == (
        "Noise floor: two identical copies differ by +2.0 % (0.9 … 3.1): more than chance, "
        "so 3.1 % was added to every interval"
    )


def test_each_caution_is_said_once_and_by_what_it_did() -> None:
    visit = check("host_brackets", finding="the clocks disagree", voids=True, void_visits=1)
    start = check("same_settings", finding="jit is on", voids=True, void_rounds=(1, 2))
    wrong = check("equal_answers", finding="wrong answers: Q7", voids=True)
    silent = check("clock_rate", passed=None, finding="too little time")
    arms = (
        arm("native", check()),
        arm("docker", check(), visit, start, wrong, silent, reason="1 of 8 starts do not count: it died"),
        arm("lost", check(finding="never said"), outcome=Outcome.FAILED, reason="no daemon"),
    )
    few = RunWarning(WarningKind.FEW_ROUNDS, "only 4 complete rounds")
    care = warnings.cautions(result(arms, warnings=(few,)))
    assert [[each.sentence for each in caution.findings] for caution in care.left_out] == [
        ["only 4 complete rounds"],
        ["docker: 1 of 8 starts do not count: it died"],
        ["docker: 1 visit left out: the clocks disagree"],
        ["docker: 2 rounds left out: jit is on"],
        ["docker: no verdict over all queries: wrong answers: Q7"],
    ]
    assert [caution.sentence for caution in care.labels] == [
        "native and docker: at most 5 % of CPU time was stolen. Times are longer and scatter more than on a machine of one's own. "
        "Repeat the run on a host that is not shared."
    ]
    assert len(care.shown) == warnings.SHOWN and care.folded == care.all[warnings.SHOWN :]
    assert not warnings.cautions(result((arm(),)))


def test_every_kind_of_warning_has_a_consequence_and_a_hint() -> None:
    assert warnings.ADVICE.keys() == set(WarningKind)
    told = [(each.consequence, each.hint) for each in (*warnings.ADVICE.values(), *CATALOG.values())]
    for text in (part for pair in told for part in pair):
        assert text[0].isupper() or text.startswith("`"), text
        assert text.endswith("."), text


def test_warnings_of_a_kind_are_one_and_name_only_levels_that_vary() -> None:
    levels = [{"cache": cache, "connection": "persistent"} for cache in ("warm", "cold")]
    far = [
        RunWarning(WarningKind.FAR_OUT_STARTS, "starts that lie far out, round 1: +8.1%", "docker", each, metric)
        for each, metric in zip(levels, ("run_time", "connect_time"), strict=True)
    ]
    both = tuple(comparison(levels=each) for each in levels)
    (caution,) = warnings.cautions(result((arm(),), both, warnings=tuple(far))).all
    assert [said(each.sentence) for each in caution.findings] == [
        "docker (warm): starts that lie far out, round 1: +8.1 %",
        "docker (cold, time to connect): starts that lie far out, round 1: +8.1 %",
    ]
    assert said(caution.brief.sentence).startswith(
        "docker (warm): starts that lie far out, round 1: +8.1 %; and 1 more of the kind. They are counted"
    )


def test_a_long_finding_is_shortened_and_stands_in_full_in_the_fold() -> None:
    long = "other than in the baseline: " + "; ".join(f"setting number {n} is {n}" for n in range(20))
    care = warnings.cautions(result((arm("docker", check("same_resources", finding=long)),)))
    (shown,) = care.shown
    assert len(shown.findings[0].text) <= 102 and shown.findings[0].text.endswith(" …")
    assert [each.findings[0].text for each in care.folded] == [long]


@pytest.mark.parametrize(
    ("plain", "typeset"),
    [
        ("-0.9% and +1.2%", "-0.9 % and +1.2 %"),
        ("cpu 62.8%, io 0%", "cpu 62.8 %, io 0 %"),
        ("between -0.0% and +10%", "between 0.0 % and +10 %"),
        ("kernel 6.1-5 (3-4)", "kernel 6.1-5 (3-4)"),
    ],
)
def test_figures_of_findings_are_set_as_all_others(plain: str, typeset: str) -> None:
    done = numbers.typeset(plain)
    assert said(done) == typeset
    assert (MINUS in done) is plain.startswith("-0.9") and (THIN in done) is ("%" in plain)


def test_where_the_total_has_another_verdict_one_sentence_says_which_answers_what() -> None:
    total = comparison(
        estimate=0.042, low=0.029, high=0.055, estimand="ratio_of_totals", verdict=Verdict.LOSES, low_decisive=0.01
    )
    geomean = comparison(verdict=Verdict.CANNOT_TELL)
    (headline,) = sentences.headlines(result((arm(),), (geomean, total)))
    assert said(headline.note) == (
        "All queries weigh alike here; your total time, in which long ones weigh more, has another answer: "
        "loses: takes 4.2 % longer (2.9 … 5.5)."
    )
    agreeing = replace(total, verdict=Verdict.CANNOT_TELL)
    assert sentences.headlines(result((arm(),), (geomean, agreeing)))[0].note == ""


def test_beyond_the_margin_has_a_word_of_its_own_and_rests_on_what_decides() -> None:
    above = comparison(estimate=0.05, verdict=Verdict.LOSES, low_decisive=0.015, high_decisive=0.09)
    assert sentences.verdict_of(above, 0.02) == "loses"
    assert sentences.verdict_of(replace(above, low_decisive=0.021), 0.02) == "clearly loses"
    assert sentences.verdict_of(replace(above, is_aa=True), 0.02) == "A/A"
    assert said(sentences.verdict_of(comparison(), 0.02)) == "no difference within ±2 %"


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
    assert said(numbers.figure(*bounds)) == text


def test_causes_come_most_frequent_first() -> None:
    assert names.causes({"deadlock": 2, "lock_timeout": 40}) == "42 (lock timeout 40, deadlock 2)"
    assert names.causes({}) == "0"


def test_metrics_of_transactions_have_names() -> None:
    assert names.metric_text("response_p50") == "median response time"
    assert names.metric_text("response_p95") == "response time, 95th percentile"
    assert names.estimand_text("geomean", "time_per_transaction") == "all transactions"
    assert names.estimand_text("geomean", "response_p99") == "geometric mean of all transactions"
    assert names.estimand_text("query:payment", "response_p99") == "payment"
    assert said(numbers.round_time(2e6)) == "2 ms" and said(numbers.round_time(3e8)) == "300 ms"
