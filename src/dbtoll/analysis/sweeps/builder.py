"""Runs of one sweep in, a `SweepResult` out: what `sweep.json` holds (docs/method/sweeps.md)."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.comparisons import GEOMEAN, compare, missing, reach
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.reproduction.parts import Part
from dbtoll.analysis.result.schema import NOT_FINISHED, Bounds, Levels
from dbtoll.analysis.sweeps import price
from dbtoll.analysis.sweeps.crossovers import Banded, banded, crossings, segments
from dbtoll.analysis.sweeps.schema import (
    SWEEP_SCHEMA_VERSION,
    Best,
    Contrast,
    Crossover,
    Curve,
    DesignAt,
    Point,
    RatioPoint,
    Stretch,
    SweepResult,
    ValueRun,
)
from dbtoll.analysis.visits.arrays import TimeArray
from dbtoll.analysis.visits.metrics import (
    QUANTILES,
    Metric,
    buckets_together,
    failed,
    levels_key,
    quantile,
    response_quantile_together,
)
from dbtoll.analysis.visits.units import VisitTotals
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.errors import RunFolderError
from dbtoll.model.devices import KEYS
from dbtoll.model.experiment import Arm, Precision, Verdict
from dbtoll.model.reply import TIME_PER_TRANSACTION, TIME_PER_TRANSACTION_LEAST
from dbtoll.model.sweep import LeftOut, Limit, Sweep, Value
from dbtoll.store.reader import Run

THROUGHPUT, PER_TENANT, LEAST, TIME = "throughput", "throughput_per_tenant", "throughput_of_the_least", "time"
"""Names of measures; those of response times are quantiles, such as ``p99`` or ``new_order.p99``."""
MEDIAN, TAIL = "p50", "p99"

SECOND_NS = 1e9


def analyze(runs: Sequence[Run]) -> SweepResult:
    """All that may be said about the runs of one sweep, in any order. RunFolderError where they are none."""
    return Swept([Part(run) for run in runs]).result()


@dataclass(frozen=True, slots=True)
class Paired:
    """Two arms of a run: the log ratio of each round, what A/A of both widens its interval by, and see `comparisons.Effect`."""

    logs: Floats
    widened_by: float
    reason: str | None
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Swept:
    """The parts of a sweep, one for each value that was measured. ``asked``: for what, where that is known better than from their
    plans: costs may be given later, and what did not get through at a value is known after it."""

    parts: Sequence[Part]
    asked: Sweep | None = None

    def __post_init__(self) -> None:
        sweeps = [part.run.plan.experiment.sweep for part in self.parts] + ([self.asked] if self.asked else [])
        if len({each and (each.id, each.variable) for each in sweeps}) != 1 or None in sweeps:
            raise RunFolderError("these are not runs of one sweep", "name a run that `dbtoll sweep` made")

    @cached_property
    def sweep(self) -> Sweep:
        """As the last of them says: what one that was resumed is asked for may have grown."""
        return self.asked or self._of(max(self.parts, key=lambda part: part.run.begin.run))

    @staticmethod
    def _of(part: Part) -> Sweep:
        sweep = part.run.plan.experiment.sweep
        assert sweep is not None
        return sweep

    @cached_property
    def by_value(self) -> Mapping[Value, Part]:
        """In the order of the values that were asked for. A value that was measured twice is its later run."""
        found = {self._of(part).value: part for part in sorted(self.parts, key=lambda part: part.run.begin.run)}
        return {value: found[value] for value in self.sweep.values if value in found}

    @cached_property
    def precision(self) -> Precision:
        return next(iter(self.by_value.values())).run.plan.experiment.precision

    @cached_property
    def designs_at(self) -> Mapping[Value, Mapping[str, Arm]]:
        """Value -> design -> its arm. A design is an arm without its number of tenants, and without its devices where these are
        what the sweep changes, as long as that tells all of them apart."""
        return self._named[0]

    @cached_property
    def _named(self) -> tuple[Mapping[Value, Mapping[str, Arm]], Callable[[str], str]]:
        """The designs, and from the name of an arm that was left out to its design: of such a one nothing else is known."""
        arms = {
            value: [arm for arm in part.run.plan.experiment.arms if arm.copy_of is None and arm.clock == "time"]
            for value, part in self.by_value.items()
        }

        def by(name_of: Callable[[Arm], str]) -> dict[Value, dict[str, Arm]]:
            return {value: {name_of(arm): arm for arm in its} for value, its in arms.items()}

        def apart(found: Mapping[Value, Mapping[str, Arm]]) -> bool:
            return all(len(found[value]) == len(its) for value, its in arms.items())

        short, usual = by(lambda arm: without_devices(design_of(arm))), by(design_of)
        devices = {(name, arm.configuration.devices) for its in short.values() for name, arm in its.items()}
        if apart(short) and len(devices) > len({name for name, _ in devices}):
            return short, lambda name: without_devices(TENANTS.sub("", name))
        if apart(usual):
            return usual, lambda name: TENANTS.sub("", name)
        return by(lambda arm: arm.name), lambda name: name

    @cached_property
    def designs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(design for its in self.designs_at.values() for design in its))

    @cached_property
    def never_measured(self) -> tuple[str, ...]:
        """Designs that did not fit wherever a run was measured."""
        _, design_of_left_out = self._named
        left_out = dict.fromkeys(design_of_left_out(each.arm) for each in self.sweep.left_out if each.arm)
        return tuple(design for design in left_out if design not in self.designs)

    @cached_property
    def levels(self) -> list[Levels]:
        """Those that were asked for: passes beside them (probes) compare no designs."""
        keys = dict.fromkeys(
            levels_key(each) for part in self.by_value.values() for each in part.run.plan.experiment.combinations
        )
        return [dict(key) for key in keys]

    @cached_property
    def has_windows(self) -> bool:
        """Whether the workload is of transactions."""
        return any(part.result.windows for part in self.by_value.values())

    @cached_property
    def measures(self) -> Mapping[str, str | Metric]:
        """By name, that of what the sweep is about first; each a cost."""
        if not self.has_windows:
            first = next(iter(self.by_value.values()))
            return {TIME: first.book.measured.main_metric}
        throughput: dict[str, str | Metric] = {THROUGHPUT: TIME_PER_TRANSACTION, TAIL: response(Limit(TAIL, "", 1))}
        median: dict[str, str | Metric] = {MEDIAN: response(Limit(MEDIAN, "", 1))}
        options = next(iter(self.by_value.values())).run.plan.experiment.configuration.workload.options
        found = {**median, **throughput} if options.get("rate") else throughput
        if any(len(arm.layout.units) > 1 for its in self.designs_at.values() for arm in its.values()):
            found |= {LEAST: TIME_PER_TRANSACTION_LEAST}
        if (limit := self.sweep.limit) is not None:
            found.setdefault(limit.measure, response(limit))
        return found

    def measured(self, value: Value) -> ValidVisits:
        return self.by_value[value].book.measured

    @cached_property
    def _times(self) -> dict[object, TimeArray | None]:
        return {}

    def times(self, value: Value, levels: Levels, measure: str) -> TimeArray | None:
        key = (value, levels_key(levels), measure)
        if key not in self._times:
            self._times[key] = self.measured(value).times(levels, self.measures[measure], False)
        return self._times[key]

    def logs(self, value: Value, levels: Levels, measure: str, design: str) -> Floats | str:
        """[round]: log of the cost, ns; or why there is none."""
        arm = self.designs_at[value].get(design)
        if arm is None:
            return self.why_left_out(value, design)
        if measure == LEAST and self.tenants(value, design) == 1:
            return "one tenant of it is measured"
        times = self.times(value, levels, measure)
        if times is None or arm.name not in times.arms:
            return f"no visit of {arm.name} counts"
        index = times.arm(arm.name)
        if times.failed[:, index].any():
            return "; ".join(self.measured(value).failures(arm.name)) or "a visit failed"
        ns = times.ns[..., index]
        if np.isposinf(ns).any():
            return "statements ran into the timeout"
        with np.errstate(invalid="ignore", divide="ignore"):
            of_rounds = stats.midmean(np.log(ns), -2)
        found = of_rounds[np.isfinite(of_rounds).all(axis=1)].mean(axis=1)
        return found if len(found) else f"no visit of {arm.name} counts"

    def logs_of_units(self, value: Value, levels: Levels, limit: Limit, design: str) -> list[Floats]:
        """[unit][round]: log of the limit's quantile, ns, of what all windows of the round answered; NaN where that is nothing, or
        a window failed."""
        arm, fraction = self.designs_at[value][design].name, QUANTILES[f"response_{limit.quantile}"]
        rounds: dict[int, list[VisitTotals]] = defaultdict(list)
        for visit in self.measured(value).of(levels):
            if visit.arm == arm and visit.window is not None and not visit.first_execution:
                rounds[visit.round].append(visit)
        found = [
            [quantile_of_unit(its, unit, fraction, limit.transaction) for unit in range(len(its[0].units))]
            for its in rounds.values()
        ]
        return [np.log(each) for each in np.array(found).T]

    def why_left_out(self, value: Value, design: str) -> str:
        found = self._left_out(value, design)
        return f"left out: {found.why}" if found else "it is not among the arms at this value"

    def fits_not(self, value: Value, design: str) -> bool:
        """Whether it was left out there for its size; not where no run could begin, for whatever reason."""
        found = self._left_out(value, design)
        return found is not None and found.arm != ""

    def _left_out(self, value: Value, design: str) -> LeftOut | None:
        _, design_of_left_out = self._named
        for each in self.sweep.left_out:
            if each.value == value and (not each.arm or design == design_of_left_out(each.arm)):
                return each
        return None

    # --- the result ----------------------------------------------------------------------------------------------------------

    def result(self) -> SweepResult:
        contrasts = tuple(self.contrasts())
        brackets = tuple(price.brackets(self)) if self.sweep.limit else ()
        costs = self.sweep.costs
        tenant_prices = tuple(price.of_tenants(self, brackets, costs)) if costs and brackets else ()
        main = next(iter(self.measures))
        return SweepResult(
            sweep=self.sweep.id,
            schema_version=SWEEP_SCHEMA_VERSION,
            question=next(iter(self.by_value.values())).run.plan.experiment.question,
            variable=self.sweep.variable,
            asked=self.sweep.values,
            scale=self.scale,
            confidence=self.precision.confidence,
            margin=self.precision.margin,
            values=tuple(
                ValueRun(
                    value, part.run.begin.run, len(part.run.complete_rounds),
                    part.run.end.reason if part.run.end else NOT_FINISHED,
                )
                for value, part in self.by_value.items()
            ),
            designs=self.designs,
            parts=tuple(self.parts_of_designs()),
            left_out=self.sweep.left_out,
            main_measure=main,
            units={measure: self.unit(measure) for measure in (*self.measures, *([PER_TENANT] if LEAST in self.measures else ()))},
            curves=tuple(self.curves()),
            contrasts=contrasts,
            best=tuple(best_of(contrasts, self.here)),
            limit=self.sweep.limit,
            brackets=brackets,
            costs=costs,
            prices=tuple(price.prices(self, costs)) if costs else (),
            cheapest=tuple(best_of(tuple(price.contrasts(self, costs)), self.here)) if costs else (),
            tenant_prices=tenant_prices,
            cheapest_tenant=tuple(price.cheapest_tenants(tenant_prices)),
        )  # fmt: skip

    @cached_property
    def scale(self) -> str | None:
        values = list(self.by_value)
        if len(values) < 2 or any(isinstance(each, bool | str) for each in values):
            return None
        return "log" if all(isinstance(each, int | float) and each > 0 for each in values) else "linear"

    def place(self, value: Value) -> float:
        """On the axis."""
        number = float(value)
        return math.log(number) if self.scale == "log" else number

    def value_at(self, place: float) -> float:
        return math.exp(place) if self.scale == "log" else place

    def here(self, value: Value) -> list[str]:
        """The designs that were measured there."""
        return list(self.designs_at[value])

    def parts_of_designs(self) -> Iterator[DesignAt]:
        for value, designs in self.designs_at.items():
            for design, arm in designs.items():
                asked = arm.configuration.resources
                pool = asked.buffer_pool_bytes
                yield DesignAt(
                    value, design, arm.name,
                    tenants=len(arm.layout.units), machines=arm.layout.machines, servers=arm.layout.all_servers,
                    cpus=asked.cpus, memory_bytes=asked.memory_bytes,
                    pool_bytes=None if pool is None else pool // arm.layout.all_servers,
                    emulated=arm.name in self.measured(value).emulated,
                )  # fmt: skip

    def unit(self, measure: str) -> str:
        if measure in (THROUGHPUT, PER_TENANT, LEAST):
            return next(iter(self.by_value.values())).run.descriptions.workload.throughput_unit.name
        return "ns"

    def shown(self, measure: str) -> Callable[[float], float]:
        """From the log of a cost to the figure that is shown: of throughput its inverse, in its unit."""
        if measure not in (THROUGHPUT, PER_TENANT, LEAST):
            return lambda log: math.exp(min(log, 700.0))
        seconds = next(iter(self.by_value.values())).run.descriptions.workload.throughput_unit.seconds
        return lambda log: seconds * SECOND_NS * math.exp(min(-log, 700.0))

    def point(self, value: Value, logs: Floats | str, shown: Callable[[float], float]) -> Point:
        if isinstance(logs, str):
            return Point(value, None, None, None, 0, logs)
        found = stats.interval(logs, 1 - self.precision.confidence, self.precision.rounds_min)
        low, high = sorted((shown(found.shown.low), shown(found.shown.high))) if found else (None, None)
        return Point(value, shown(float(logs.mean())), low, high, len(logs))

    def curves(self) -> Iterator[Curve]:
        for levels in self.levels:
            for measure in self.measures:
                for design in self.designs:
                    logs = {value: self.logs(value, levels, measure, design) for value in self.by_value}
                    shown = self.shown(measure)
                    yield Curve(measure, levels, design, tuple(self.point(v, each, shown) for v, each in logs.items()))
                    if measure == THROUGHPUT and LEAST in self.measures:
                        each_s = {
                            v: each if isinstance(each, str) else each + math.log(self.tenants(v, design))
                            for v, each in logs.items()
                        }
                        points = tuple(self.point(v, each, shown) for v, each in each_s.items())
                        yield Curve(PER_TENANT, levels, design, points)

    def tenants(self, value: Value, design: str) -> int:
        """How many are measured: all but a neighbour."""
        arm = self.designs_at[value][design]
        counted = (len(visit.units) for visit in self.measured(value).visits if visit.arm == arm.name)
        return max(counted, default=len(arm.layout.units))

    # --- designs against one another -----------------------------------------------------------------------------------------

    def contrasts(self) -> Iterator[Contrast]:
        """Of every two designs, of every measure."""
        for levels in self.levels:
            for measure in self.measures:
                for design, against in combinations(self.designs, 2):
                    yield self.contrast(levels, measure, design, against)

    def contrast(
        self,
        levels: Levels,
        measure: str,
        design: str,
        against: str,
        shift: Callable[[Value], float | str] = lambda _: 0.0,
    ) -> Contrast:
        """``shift``: is added to the log ratio at a value (of prices), or why there is none."""
        values = list(self.by_value)
        pairs = {value: self.paired(value, levels, measure, design, against) for value in values}
        for value, each in pairs.items():
            moved = shift(value)
            if isinstance(each, Paired):
                pairs[value] = moved if isinstance(moved, str) else replace(each, logs=each.logs + moved)
        by_round = [each.logs if isinstance(each, Paired) else np.empty(0) for each in pairs.values()]
        widths = [each.widened_by if isinstance(each, Paired) else 0.0 for each in pairs.values()]
        bands = [
            self.barred(value, design, against, pairs[value], each)
            for value, each in zip(values, banded(by_round, self.precision, widened_by=widths), strict=True)
        ]
        points = tuple(
            _ratio_point(value, pairs[value], each, len(logs), why, self.precision)
            for value, (each, why), logs in zip(values, bands, by_round, strict=True)
        )
        stretches, crossovers = self.regions(design, against, [each for each, _ in bands])
        return Contrast(measure, levels, design, against, points, stretches, crossovers)

    def paired(self, value: Value, levels: Levels, measure: str, design: str, against: str) -> Paired | str:
        """The two arms against each other, A/A of both beside it; or why there is nothing.

        As in the run's own report: the one that the run holds the other against is averaged with its copies. Of two that are
        both held against another one none is: so what is said of them is the ratio of what is said of each.
        """
        arms = self.designs_at[value]
        for each in (design, against):
            if each not in arms:
                return f"{each}: {self.why_left_out(value, each)}"
        times = self.times(value, levels, measure)
        if times is None:
            return "nothing was measured"
        held = self.by_value[value].run.plan.experiment.held_against
        one, other = arms[design].name, arms[against].name
        arm, baseline = (other, one) if held.get(other) == one else (one, other)
        if missed := [each for each in (arm, baseline) if each not in times.arms]:
            return f"no visit of {missed[0]} counts"
        copies = {copy: of for copy, of in self.measured(value).copies.items() if of in (one, other)}
        averaged = copies if held.get(arm) == baseline else {}
        set_against = partial(compare, times, None, precision=self.precision, per_query=False)
        noise = [each for each in set_against(copies, copies) if each.estimand == GEOMEAN]
        (effect,) = (each for each in set_against({arm: baseline}, averaged) if each.estimand == GEOMEAN)
        logs = np.array([each for _, each in effect.by_round])
        return Paired(-logs if arm == other else logs, reach(noise), effect.reason, effect.left_out)

    def barred(
        self, value: Value, design: str, against: str, pair: Paired | str, found: Banded
    ) -> tuple[Banded, str | None]:
        """What may be said of it, and why not more: what bars verdicts of either arm bars these. A baseline of the run that is
        neither of them bars nothing."""
        if isinstance(pair, str) or found.shown is None:
            return found, pair if isinstance(pair, str) else pair.reason
        one, other = (self.measured(value).own_bars(self.designs_at[value][each].name) for each in (design, against))
        if why := one.all_of_them or other.all_of_them:
            return Banded(found.shown, None, Verdict.CANNOT_TELL), why
        lacking = missing(pair.left_out)
        better, worse = found.verdict in GOOD, found.verdict in (Verdict.LOSES, Verdict.NO_DIFFERENCE)
        sign = 0 if found.band is None else int(found.band.low > 0) - int(found.band.high < 0)
        if (one.good_news or lacking) and (better or sign < 0):
            return Banded(found.shown, None, Verdict.CANNOT_TELL), "; ".join((*one.good_news, *lacking))
        if other.good_news and (worse or sign > 0):
            return Banded(found.shown, None, Verdict.CANNOT_TELL), "; ".join(other.good_news)
        return found, None

    def regions(
        self, design: str, against: str, bands: Sequence[Banded]
    ) -> tuple[tuple[Stretch, ...], tuple[Crossover, ...]]:
        if self.scale is None:
            return (), ()
        at = [self.place(value) for value in self.by_value]
        better = {-1: design, 0: None, 1: against}
        found = segments(at, [each.band for each in bands])
        estimates = [each.shown.estimate if each.shown else None for each in bands]
        crossed = [
            Crossover(
                self.value_at(each.low),
                self.value_at(each.estimate),
                self.value_at(each.high),
                better_before=design if each.before < 0 else against,
                better_after=against if each.before < 0 else design,
            )
            for each in crossings(at, estimates, found)
        ]
        stretches = (Stretch(self.value_at(e.low), self.value_at(e.high), better[e.sign]) for e in found)
        return tuple(stretches), tuple(crossed)


GOOD = (Verdict.GAINS, Verdict.NO_DIFFERENCE)


TENANTS = re.compile(r" x\d+(?=, |$)")


def design_of(arm: Arm) -> str:
    """An arm's name without its number of tenants, where it was not given one by its user (`model.tenancy.arm_name`)."""
    head, found, rest = arm.name.partition(f" {arm.design} x{len(arm.layout.units)}")
    is_made = bool(arm.design and found) and (not rest or rest.startswith(", "))
    return f"{head} {arm.design}{rest}" if is_made else arm.name


def without_devices(design: str) -> str:
    """Of an arm whose name says on which devices it lies (`spec.devices.name_with`)."""
    return re.sub(rf", ({'|'.join(KEYS)})=.*", "", design)


def quantile_of_unit(windows: Sequence[VisitTotals], unit: int, fraction: float, transaction: str) -> float:
    """Of the response times of all of them together, of all transactions or of one kind, ns. NaN of nothing, or of a failure."""
    if any(map(failed, windows)):
        return math.nan
    its = [window for visit in windows if (window := visit.units[unit].window) is not None]
    found = quantile(buckets_together(its, transaction), fraction)
    return math.nan if found is None else float(found)


def response(limit: Limit) -> Metric:
    """What a limit is about, of all units of an arm together."""
    return response_quantile_together(QUANTILES[f"response_{limit.quantile}"], limit.transaction)


def _ratio_point(
    value: Value, pair: Paired | str, found: Banded, rounds: int, why: str | None, precision: Precision
) -> RatioPoint:
    shown, decisive = Bounds.of(found.shown), Bounds.of(found.band)
    widened = 0.0 if isinstance(pair, str) or found.shown is None else math.expm1(pair.widened_by)
    reason = why or (stats.too_few(rounds, precision) if found.shown else None)
    return RatioPoint(
        value,
        shown.estimate,
        shown.low,
        shown.high,
        decisive.low,
        decisive.high,
        found.verdict,
        rounds,
        widened,
        reason,
    )


def best_of(contrasts: Sequence[Contrast], here: Callable[[Value], Sequence[str]]) -> Iterator[Best]:
    """At each value the designs that none is better than. ``here``: those at a value."""
    groups: dict[tuple[str, str], list[Contrast]] = {}
    for each in contrasts:
        groups.setdefault((each.measure, str(each.levels)), []).append(each)
    for group in groups.values():
        for index, point in enumerate(group[0].points):
            told = [(each.design, each.against, each.points[index].verdict) for each in group]
            beaten = {a for a, _, verdict in told if verdict == Verdict.LOSES}
            beaten |= {b for _, b, verdict in told if verdict == Verdict.GAINS}
            left = tuple(design for design in here(point.value) if design not in beaten)
            alike = all(v == Verdict.NO_DIFFERENCE for a, b, v in told if a in left and b in left)
            yield Best(group[0].measure, group[0].levels, point.value, left, len(left) == 1 or alike)
