"""One self-contained HTML file: no script, no font, no request; folds and layout are HTML and CSS alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps

from dbtoll import __version__
from dbtoll.analysis.result import provenance
from dbtoll.analysis.result.schema import EMULATED, varied_factors
from dbtoll.model.experiment import GateDecision, Outcome
from dbtoll.model.json import Json
from dbtoll.report import attribution, neighbours, published, scaling, transactions
from dbtoll.report.absolute import Absolutes
from dbtoll.report.figures import axis, beside, distances, each_unit, forest, over_time, response_times, run_order
from dbtoll.report.figures import scaling as scaling_figure
from dbtoll.report.text import gate, names, numbers, sentences, warnings

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Comparison, QueryTimes, Result
    from dbtoll.report.transactions import AtLevels
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
    rows: list[tuple[str, list[QueryTimes | None]]]


@dataclass(frozen=True, slots=True)
class TransactionGroup:
    """What the page shows of the transactions at one combination of levels."""

    group: AtLevels
    curves: response_times.Curves | None
    over_time: over_time.OverTime | None
    distances: response_times.Curves | None
    units: list[each_unit.UnitPanels]
    arms: list[tuple[str, int]]
    """Each with its number among all arms of the result: its colour."""
    steadiness: list[str]


@dataclass(frozen=True, slots=True)
class ForestSet:
    """Figures under a heading of their own. ``open``: shown without being asked for."""

    title: str
    forests: list[forest.Forest]
    open: bool


def render(result: Result, run: Run) -> str:
    """The whole page. Everything that comes from a spec, a server or a host is escaped."""
    whole, result = result.to_json(), names.with_arm_labels(result)
    matrices, did = neighbours.matrices(result), neighbours.did_lines(result)
    result = neighbours.undisturbed(result)
    experiment = run.plan.experiment
    varied = varied_factors(c.levels for c in result.comparisons)
    groups = list(_groups(result, varied))
    arm_forests, query_forests = list(_arm_forests(result, varied)), list(_query_forests(result, varied))
    drawn = [each for figures in (*arm_forests, *query_forests) for each in figures.forests]
    queries = list(dict.fromkeys(names.query_of(c.estimand) for c in result.comparisons if names.query_of(c.estimand)))
    groups_of_transactions = list(_transaction_groups(result))
    template = environment().get_template("report.html.j2")
    return template.render(
        result=result,
        facts=_facts(result),
        version=__version__,
        run_version=run.begin.dbtoll,
        started_at=run.begin.started_at,
        seed=experiment.seed,
        spec=run.spec,
        workload=run.descriptions.workload.title,
        disclaimer=run.descriptions.workload.disclaimer,
        context=list(_context(run, result)),
        gate=gate.sentence(result),
        gate_class=_GATE_CLASS[result.gate.decision] if result.gate else "",
        answers=_answers(sentences.headlines(result)),
        care=warnings.cautions(result),
        meaning=sentences.meaning(result.main_metric, _baseline(result, run)),
        rounds=_rounds(result),
        not_set=names.NOT_SET,
        differing=[arm for arm in result.arms if arm.differences],
        confidence=numbers.percent(result.confidence, 0, plus=False),
        arm_forests=arm_forests,
        drawn=drawn,
        transaction_groups=groups_of_transactions,
        of="transactions" if groups_of_transactions else "queries",
        ramp_up=numbers.time_of(experiment.configuration.workload.options.get("ramp_up"))
        if groups_of_transactions
        else "",
        query_forests=query_forests,
        query_count=len(queries),
        comparison_groups=groups,
        without_figures=_without_figures(result),
        allowance=sentences.allowance(result),
        engine=", ".join(each.title for each in run.descriptions.engines.values()),
        published=list(published.beside(result, experiment)),
        repeat=" ".join(
            ["./dbtoll run question.toml"]
            + [shlex.quote(f"--set={name}={value}") for name, value in experiment.variables.items()]
        ),
        order=run_order.run_order(result.series, [arm.name for arm in result.arms]),
        time_tables=list(_time_tables(result)),
        plans=sentences.changed_plans(result),
        contrasts=sentences.contrasts(result),
        scalings=_scalings(result, experiment.cpus),
        matrices=matrices,
        neighbours_did=did,
        cpus=experiment.cpus,
        pools=list(sentences.buffer_pools(experiment)),
        bills=attribution.bills(result),
        json=htmlsafe_json_dumps(whole, separators=(",", ":")),
    )


def environment() -> Environment:
    """In which pages are made: all of it escaped, and what templates call."""
    made = Environment(
        loader=PackageLoader("dbtoll.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals.update(
        decides=lambda c: numbers.decisive(c).bounds or numbers.NOTHING,
        causes=names.causes,
        cell_class=published.cell_class,
        published_lines=beside.line_panels,
        published_marks=beside.beside,
        cell_text=published.cell_text,
        count=numbers.count,
        css=_css,
        estimand_text=names.estimand_text,
        fact_name=_fact_name,
        fact_text=_fact_text,
        check_cost=warnings.check_cost,
        typeset=numbers.typeset,
        check_text=names.check_text,
        effect=numbers.EffectText,
        effect_of=numbers.effect,
        kind_of=forest.kind_of,
        levels_of=published.levels_of,
        margin_text=numbers.margin,
        noise_lead=sentences.NOISE_LEAD,
        nothing=numbers.NOTHING,
        order_decimals=partial(_limit_decimals),
        outcome_phrase=sentences.outcome_phrase,
        p_value=numbers.p_value,
        percent=numbers.percent,
        plain_facts=_plain_facts,
        plural=numbers.plural,
        round_figure=numbers.figure,
        speed_text=scaling.speed_text,
        time_of=numbers.time_of,
        transaction_text=names.transaction_text,
        transactions=transactions,
        verdict_of=sentences.verdict_of,
        is_beyond=sentences.is_beyond,
    )
    return made


def _rounds(result: Result) -> str:
    """Over how many an interval is: ``9 rounds (uml 5, qemu 3)``."""
    by_arm = {arm.name: arm.rounds for arm in result.arms if arm.rounds}
    most = max(by_arm.values(), default=0)
    fewer = ", ".join(f"{name} {rounds}" for name, rounds in by_arm.items() if rounds < most)
    return numbers.plural(most, "round") + (f" ({fewer})" if fewer else "")


def _facts(result: Result) -> Json:
    """Without what things are called, which is said wherever they are named."""
    labels = {arm.name.removesuffix(EMULATED): arm.name for arm in result.arms}
    facts = {name: value for name, value in result.facts.items() if name != "descriptions"}
    if "configurations" in facts:
        facts["configurations"] = [
            {**each, "arms": [labels.get(name, name) for name in each["arms"]]} for each in facts["configurations"]
        ]
    return facts


def _baseline(result: Result, run: Run) -> str:
    """As it is shown; of several what they are."""
    if len(names.baselines(result)) > 1:
        return "the arm that it is held against"
    name = run.plan.experiment.baseline
    return next((arm.name for arm in result.arms if arm.name.removesuffix(EMULATED) == name), name)


def _context(run: Run, result: Result) -> Iterator[tuple[str, ...]]:
    """The lines above the answers: what was measured and on what, also on which other hosts; then when and for how long."""
    described, origin, experiment = run.descriptions, provenance.of(run), run.plan.experiment
    servers = dict.fromkeys(arm.server for arm in result.arms)
    engine = ", ".join(filter(None, servers))
    workload = " ".join(filter(None, (described.workload.title, described.workload.size)))
    machine = (origin.machine or "", f"Linux {origin.kernel}" if origin.kernel else "")
    yield tuple(filter(None, (engine, workload, *machine)))
    yield from ((line,) for line in provenance.remote_hosts(run))
    rounds = max((arm.rounds for arm in result.arms), default=0)
    spent = f"{numbers.plural(rounds, 'round')} in {numbers.span(run.elapsed_s)}"
    budget = f"budget {numbers.span(experiment.precision.budget_s)}"
    date = f"{origin.date[:16].replace('T', ' ')} UTC" if origin.date else run.begin.started_at[:10]
    yield spent, budget, date, f"run {origin.run_name}"


def _answers(headlines: Iterable[sentences.Headline]) -> list[tuple[str, list[sentences.Headline]]]:
    """The headlines by arm."""
    by_arm: dict[str, list[sentences.Headline]] = {}
    for headline in headlines:
        by_arm.setdefault(headline.arm, []).append(headline)
    return [(lines[0].name, lines) for lines in by_arm.values()]


def _transaction_groups(result: Result) -> Iterator[TransactionGroup]:
    arms = [arm.name for arm in result.arms]
    for group in transactions.groups(result):
        yield TransactionGroup(
            group=group,
            curves=response_times.curves(group, arms),
            over_time=over_time.over_time(group),
            distances=distances.curves(group, arms),
            units=each_unit.panels(group, arms),
            arms=[(each.arm, arms.index(each.arm)) for each in group.arms],
            steadiness=[transactions.steadiness_text(each.windows) for each in group.arms],
        )


def _scalings(result: Result, cpus: int) -> list[tuple[scaling.AtLevels, scaling_figure.Scaling | None]]:
    """The speed-ups at each combination of the other levels, and their figure."""
    arms = [arm.name for arm in result.arms]
    return [(group, scaling_figure.scaling(group, arms, cpus)) for group in scaling.groups(result)]


def _css(kind: str) -> str:
    """The class of a headline's verdict: an arm that failed is as bad news as one that loses."""
    if kind in (Outcome.FAILED, Outcome.INVALID):
        return "loses"
    return kind if kind == "noise" else forest.kind_of(kind)


def _groups(result: Result, varied: Sequence[str]) -> Iterator[ComparisonGroup]:
    """By arm, levels and metric; A/A last; without those of an arm that has no figure."""
    grouped: dict[tuple[str, str, str], list[Comparison]] = {}
    silent = _without_figures(result)
    for c in sorted(result.comparisons, key=lambda c: c.is_aa):
        if c.arm not in silent:
            grouped.setdefault((c.arm, names.levels_text(c.levels, varied), c.metric), []).append(c)
    for (arm, levels, metric), comparisons in grouped.items():
        comparisons.sort(key=lambda c: (names.query_of(c.estimand) is not None, names.natural_key(c.estimand)))
        where = ", ".join(part for part in (levels, names.metric_text(metric)) if part)
        yield ComparisonGroup(f"{arm} against {comparisons[0].baseline}: {where}", comparisons)


def _without_figures(result: Result) -> dict[str, str]:
    """Arms that are compared but have no estimate at all, each with why."""
    with_figures = {c.arm for c in result.comparisons if c.estimate is not None or c.low is not None}
    return {c.arm: c.reason or "" for c in reversed(result.comparisons) if c.arm not in with_figures}


def _arm_forests(result: Result, varied: Sequence[str]) -> Iterator[ForestSet]:
    """All arms by both estimands over all queries, A/A last: a figure per metric, and per estimand if levels vary.

    Only the main metric's stand open.
    """
    silent, absolutes = _without_figures(result), Absolutes(result)
    rows: dict[str, dict[str, list[tuple[str, Comparison]]]] = {}
    for c in sorted(result.comparisons, key=lambda c: (c.metric != result.main_metric, c.is_aa)):
        if names.query_of(c.estimand) is None and c.arm not in silent:
            title = _capital(f"{names.metric_text(c.metric)} against {c.baseline}")
            levels, estimand = names.levels_text(c.levels, varied), names.estimand_text(c.estimand, c.metric)
            figure, group = (f"{title}: {estimand}", levels) if varied else (title, estimand)
            if baseline := absolutes.of_baseline(c):
                group += f"; {c.baseline}: {baseline}"
            rows.setdefault(c.metric, {}).setdefault(figure, []).append((group, c))
    for metric, figures in rows.items():
        forests = []
        for title, grouped in figures.items():
            order = list(dict.fromkeys(group for group, _ in grouped))
            entries = [(c.arm, group, c) for group, c in sorted(grouped, key=lambda row: order.index(row[0]))]
            forests.append(forest.forest(title, entries, result))
        yield ForestSet(_capital(names.metric_text(metric)), forests, metric == result.main_metric)


def _query_forests(result: Result, varied: Sequence[str]) -> Iterator[ForestSet]:
    """For each combination of levels and metric the panels that stand side by side: one per arm, a row per query.

    The first stands open, but none of transactions.
    """
    # Those of transactions are of several metrics, each of which has to be named.
    metrics = bool(result.windows)
    panels: dict[tuple[str, str], dict[str, list[forest.ForestEntry]]] = {}
    for c in sorted(result.comparisons, key=lambda c: (c.is_aa, names.natural_key(c.estimand))):
        if (query := names.query_of(c.estimand)) and c.arm not in _without_figures(result):
            levels = names.levels_text(c.levels, varied)
            label = names.transaction_text(query) if metrics else query
            panels.setdefault((levels, c.metric), {}).setdefault(c.arm, []).append((label, "", c))
    for index, ((levels, metric), by_arm) in enumerate(panels.items()):
        shared = axis.shared_axis(map(forest.changes_of, by_arm.values()), result.margin)
        where = ", ".join(filter(None, (levels, names.metric_text(metric) if metrics else "")))
        forests = [
            forest.forest(", ".join(filter(None, (arm, where))), entries, result, shared)
            for arm, entries in by_arm.items()
        ]
        yield ForestSet(_capital(where), forests, not metrics and index == 0)


def _time_tables(result: Result) -> Iterator[TimeTable]:
    varied = varied_factors(t.levels for t in result.times)
    by_levels: dict[str, list[QueryTimes]] = {}
    for t in result.times:
        by_levels.setdefault(names.levels_text(t.levels, varied), []).append(t)
    for levels, times in by_levels.items():
        cells = {(t.query, t.arm): t for t in times}
        arms = [arm.name for arm in result.arms if any(t.arm == arm.name for t in times)]
        queries = sorted({t.query for t in times}, key=names.natural_key)
        yield TimeTable(_capital(levels), arms, [(q, [cells.get((q, arm)) for arm in arms]) for q in queries])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _limit_decimals(limit: float) -> int:
    return 0 if limit >= 0.1 else 1


_GATE_CLASS = {GateDecision.WITHIN: "same", GateDecision.EXCEEDED: "loses", GateDecision.UNDECIDED: "unknown"}
"""The colour of what the gate decided."""

_UNITS = ("_bytes", "_ns", "_s")


def _fact_name(key: str) -> str:
    """A fact's key for people; the unit is said by the value. Settings (with a dot or known by their name) stay verbatim."""
    for unit in _UNITS:
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _plain_facts(facts: Json) -> Json:
    """Those at the top that have no parts."""
    return {name: value for name, value in facts.items() if not isinstance(value, dict)}


def _fact_text(key: str, value: Any) -> str:
    match value:
        case None:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case int() if key.endswith("bytes"):
            return numbers.size_of(value)
        case int() | float() if key.endswith("_ns"):
            return numbers.time_of(value)
        case int():
            return numbers.count(value)
        case _:
            return str(value)
