"""One self-contained HTML file: no script, no font, no request; folds and layout are HTML and CSS alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps

from dbtoll import __version__
from dbtoll.report import figures, words

if TYPE_CHECKING:
    from dbtoll.analysis.result import Comparison, Result, Times
    from dbtoll.store.reader import Run


@dataclass(frozen=True, slots=True)
class ComparisonGroup:
    """The comparisons of one arm, levels and metric."""

    title: str
    comparisons: list[Comparison]


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Queries down, arms across; None where an arm has no time for a query."""

    title: str
    arms: list[str]
    rows: list[tuple[str, list[Times | None]]]


def render(result: Result, run: Run) -> str:
    """The whole page. Everything that comes from a spec, a server or a host is escaped."""
    experiment = run.plan.experiment
    varied = words.varied_factors(c.levels for c in result.comparisons)
    groups = list(_groups(result, varied))
    queries = list(dict.fromkeys(words.query_of(c.estimand) for c in result.comparisons if words.query_of(c.estimand)))
    spec = (run.folder / "spec.toml").read_text(encoding="utf-8", errors="replace")
    template = _environment().get_template("report.html.j2")
    return template.render(
        result=result,
        version=__version__,
        run_version=run.begin.dbtoll,
        started_at=run.begin.started_at,
        seed=experiment.seed,
        spec=spec,
        workload=words.proper(experiment.workload.name),
        derived_from_tpc=words.is_tpc(experiment.workload.name),
        context=list(_context(run)),
        answers=_answers(words.headlines(result)),
        meaning=words.meaning(next((c.metric for c in result.comparisons), "run_time"), experiment.baseline),
        rounds=max((c.rounds for c in result.comparisons), default=0),
        confidence=words.percent(result.confidence, 0, plus=False),
        failed_gates=[(arm.name, gate) for arm in result.arms for gate in arm.gates if gate.passed is False],
        arm_forests=list(_arm_forests(result, varied)),
        query_forests=list(_query_forests(result, groups)),
        query_count=len(queries),
        comparison_groups=groups,
        order=figures.run_order(result.series, [arm.name for arm in result.arms]),
        time_tables=list(_time_tables(result)),
        json=htmlsafe_json_dumps(result.to_json(), separators=(",", ":")),
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dbtoll.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(
        count=words.count,
        css=_css,
        estimand_text=words.estimand_text,
        fact_name=_fact_name,
        fact_text=_fact_text,
        gate_text=words.gate_text,
        interval=words.Interval,
        kind_of=figures.kind_of,
        margin_text=words.margin,
        nothing=words.NOTHING,
        order_decimals=partial(_limit_decimals),
        outcome_phrase=words.outcome_phrase,
        p_value=words.p_value,
        percent=words.percent,
        plural=words.plural,
        time_of=words.time_of,
        verdict_text=words.verdict_text,
    )
    return environment


def _context(run: Run) -> Iterator[str]:
    experiment = run.plan.experiment
    yield words.proper(experiment.engine.name)
    scale = experiment.workload.options.get("scale")
    yield words.proper(experiment.workload.name) + (f" at scale {scale}" if scale is not None else "")
    yield run.begin.started_at[:10]
    yield f"run {run.begin.run}"


def _answers(headlines: Iterable[words.Headline]) -> list[tuple[str, list[words.Headline]]]:
    """The headlines by arm."""
    by_arm: dict[str, list[words.Headline]] = {}
    for headline in headlines:
        by_arm.setdefault(headline.arm, []).append(headline)
    return [(lines[0].name, lines) for lines in by_arm.values()]


def _css(kind: str) -> str:
    return kind if kind == "noise" else figures.kind_of(kind)


def _groups(result: Result, varied: Sequence[str]) -> Iterator[ComparisonGroup]:
    grouped: dict[tuple[str, str, str], list[Comparison]] = {}
    for c in result.comparisons:
        grouped.setdefault((c.arm, words.levels_text(c.levels, varied), c.metric), []).append(c)
    for (arm, levels, metric), comparisons in grouped.items():
        comparisons.sort(key=lambda c: (words.query_of(c.estimand) is not None, words.natural_key(c.estimand)))
        where = ", ".join(part for part in (levels, words.metric_text(metric)) if part)
        yield ComparisonGroup(f"{arm} against {comparisons[0].baseline}: {where}", comparisons)


def _arm_forests(result: Result, varied: Sequence[str]) -> Iterator[figures.Forest]:
    """A figure per metric: all arms at all levels, A/A last."""
    for metric in dict.fromkeys(c.metric for c in result.comparisons):
        entries = [
            (words.spoken(c.arm), words.levels_text(c.levels, varied), c)
            for c in sorted(result.comparisons, key=lambda c: c.is_aa)
            if c.metric == metric and c.estimand == "geomean"
        ]
        order = list(dict.fromkeys(group for _, group, _ in entries))
        entries.sort(key=lambda entry: order.index(entry[1]))
        if entries:
            baseline = words.spoken(entries[0][2].baseline)
            yield figures.forest(_capital(f"{words.metric_text(metric)} against {baseline}"), entries, result)


def _query_forests(result: Result, groups: Iterable[ComparisonGroup]) -> Iterator[figures.Forest]:
    """A figure per arm, levels and metric with a row per query; A/A last."""
    ordered = sorted(groups, key=lambda group: group.comparisons[0].is_aa)
    for group in ordered:
        entries = [(query, "", c) for c in group.comparisons if (query := words.query_of(c.estimand))]
        if entries:
            yield figures.forest(_capital(group.title), entries, result)


def _time_tables(result: Result) -> Iterator[TimeTable]:
    varied = words.varied_factors(t.levels for t in result.times)
    by_levels: dict[str, list[Times]] = {}
    for t in result.times:
        by_levels.setdefault(words.levels_text(t.levels, varied), []).append(t)
    for levels, times in by_levels.items():
        cells = {(t.query, t.arm): t for t in times}
        arms = [arm.name for arm in result.arms if any(t.arm == arm.name for t in times)]
        queries = sorted({t.query for t in times}, key=words.natural_key)
        yield TimeTable(_capital(levels), arms, [(q, [cells.get((q, arm)) for arm in arms]) for q in queries])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _limit_decimals(limit: float) -> int:
    return 0 if limit >= 0.1 else 1


_UNITS = ("_bytes", "_ns", "_s")


def _fact_name(key: str) -> str:
    """A fact's key for people; the unit is said by the value. Settings (with a dot or known by their name) stay verbatim."""
    for unit in _UNITS:
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _fact_text(key: str, value: Any) -> str:
    match value:
        case None:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case int() if key.endswith("bytes"):
            return words.size_of(value)
        case int() | float() if key.endswith("_ns"):
            return words.time_of(value)
        case int():
            return words.count(value)
        case _:
            return str(value)
