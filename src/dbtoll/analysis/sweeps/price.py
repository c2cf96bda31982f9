"""What designs cost: up to which value a limit is kept, what is done for the money, what a tenant costs (docs/method/sweeps.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Floats
from dbtoll.analysis.result.schema import Levels
from dbtoll.analysis.sweeps.schema import Bracket, CheapestTenant, Contrast, LimitPoint, Price, TenantPrice
from dbtoll.analysis.visits.metrics import levels_key
from dbtoll.model.experiment import Arm
from dbtoll.model.sweep import PERIODS_S, Costs, Value
from dbtoll.model.tenancy import layout_of

if TYPE_CHECKING:
    from dbtoll.analysis.sweeps.builder import Swept

GIB = 1 << 30


def brackets(swept: Swept) -> Iterator[Bracket]:
    """Of each design."""
    for levels in swept.levels:
        for design in (*swept.designs, *swept.never_measured):
            here = [value for value in swept.by_value if design in swept.designs_at[value]]
            points = [_point(swept, value, levels, design, len(here)) for value in here]
            unfit = [value for value in swept.sweep.values if swept.fits_not(value, design)]
            yield _bracket(levels, design, points, [v for v in unfit if design not in swept.designs_at.get(v, {})])


def _point(swept: Swept, value: Value, levels: Levels, design: str, values: int) -> LimitPoint:
    """By the intervals of all units, adjusted for the number of ``values``. That all keep the limit is what each of them has to
    show, so it needs no other level for many (Berger 1982). What failed or answered wrongly keeps no limit for sure."""
    limit, precision = swept.sweep.limit, swept.precision
    assert limit is not None
    units = [each - math.log(limit.ns) for each in swept.logs_of_units(value, levels, limit, design)]
    known = [each for each in units if np.isfinite(each).all()]
    if not known or stats.too_few(len(known[0]), precision):
        return LimitPoint(value, None)
    alpha = (1 - precision.confidence) / values
    keeps = None
    bars = swept.measured(value).own_bars(swept.designs_at[value][design].name)
    if any_is_above(known, len(units), alpha, precision.rounds_min):
        keeps = False
    elif len(known) == len(units) and not bars.all_of_them and not bars.good_news:
        found = [stats.interval(each, alpha, precision.rounds_min) for each in known]
        keeps = True if all(each is not None and each.high < 0 for each in found) else None
    if len(known) < len(units):
        return LimitPoint(value, keeps)
    means = [float(each.mean()) for each in units]
    slowest = int(np.argmax(means))
    return LimitPoint(value, keeps, slowest + 1, limit.ns * math.exp(means[slowest]))


def any_is_above(known: Sequence[Floats], units: int, alpha: float, rounds_min: int) -> bool:
    """Whether some unit lies above 0. ``known``: [round] of each of the ``units`` that has a value in every round.

    By its own interval, or by that of their mean: where each of them is below, that is too. What is done to all alike shows in the
    mean, at a level that their number does not change; what is done to one shows in its own interval.
    """

    def is_above(values: Floats, level: float) -> bool:
        found = stats.interval(values, level, rounds_min)
        return found is not None and found.low > 0

    if units == 1:
        return is_above(known[0], alpha)
    return is_above(np.mean(known, axis=0), alpha / 2) or any(is_above(each, alpha / (2 * units)) for each in known)


def _bracket(levels: Levels, design: str, points: Sequence[LimitPoint], unfit: Sequence[Value]) -> Bracket:
    """``points`` and ``unfit`` in the order of the values."""
    broken = next((each.value for each in points if each.keeps is False), None)
    first_unfit = next(iter(unfit), None)
    fits_not = first_unfit is not None and (broken is None or _before(first_unfit, broken))
    breaks = first_unfit if fits_not else broken
    below = [each.value for each in points if each.keeps and (breaks is None or _before(each.value, breaks))]
    return Bracket(levels, design, tuple(points), below[-1] if below else None, breaks, fits_not)


def _before(one: Value, other: Value) -> bool:
    return float(one) < float(other)


def cost_of(arm: Arm, costs: Costs) -> float:
    """Of what an arm stands on and has, for the period."""
    resources, layout = arm.configuration.resources, arm.layout
    return (
        costs.host
        + costs.processor * resources.cpus
        + costs.memory_gib * resources.memory_bytes / GIB
        + costs.machine * layout.machines
        + costs.server * layout.all_servers
        + sum(next((costs.devices[name] for name in names if name in costs.devices), 0.0) for names in devices_of(arm))
    )


def devices_of(arm: Arm) -> list[tuple[str, ...]]:
    """What a table of costs may call each device of an arm: a value of an option; or its name, its model or path, its class."""
    options = sorted({str(value) for step in arm.stack for value in step.options.values()})
    return [(text,) for text in options] + [(each.name, each.of, each.kind) for each in arm.configuration.devices.all]


def _paid_for(arm: Arm) -> object:
    """What of it costs something whatever its layout."""
    return arm.configuration.resources.cpus, arm.configuration.resources.memory_bytes, devices_of(arm)


def prices(swept: Swept, costs: Costs) -> Iterator[Price]:
    """Throughput's interval carries over: what it costs is no random figure."""
    main = next(iter(swept.measures))
    measure = "throughput" if swept.has_windows else main
    for levels in swept.levels:
        for value, designs in swept.designs_at.items():
            for design, arm in designs.items():
                logs, cost = swept.logs(value, levels, measure, design), cost_of(arm, costs)
                if not isinstance(logs, str):
                    logs = logs - math.log(_at_once(swept, value, design))
                gib = arm.configuration.resources.memory_bytes / GIB
                per_period = PERIODS_S[costs.period] / cost if cost else math.inf

                def done(log: float, factor: float) -> float:
                    return factor * 1e9 * math.exp(min(-log, 600.0))

                if not cost:
                    logs = "it costs nothing"
                yield Price(
                    levels, value, design, cost,
                    swept.point(value, logs, lambda log, factor=per_period: done(log, factor)),  # type: ignore[misc]
                    swept.point(value, logs, lambda log, factor=1 / gib: done(log, factor)),  # type: ignore[misc]
                )  # fmt: skip


def _at_once(swept: Swept, value: Value, design: str) -> int:
    """How many do at once what the measure says of one: throughput is of all tenants, the time of statements is one tenant's."""
    return 1 if swept.has_windows else swept.tenants(value, design)


def contrasts(swept: Swept, costs: Costs) -> Iterator[Contrast]:
    """Of what a transaction costs, in money: the ratio of times by that of costs."""
    measure = "throughput" if swept.has_windows else next(iter(swept.measures))
    for levels in swept.levels:
        for design, against in combinations(swept.designs, 2):

            def shift(value: Value, one: str = design, other: str = against) -> float | str:
                its = {
                    each: cost_of(arm, costs) for each, arm in swept.designs_at[value].items() if each in (one, other)
                }
                if free := [each for each, cost in its.items() if not cost]:
                    return f"{free[0]} costs nothing"
                if len(its) < 2:
                    return 0.0
                for_one = {each: cost / _at_once(swept, value, each) for each, cost in its.items()}
                return math.log(for_one[one] / for_one[other])

            yield swept.contrast(levels, measure, design, against, shift)


def of_tenants(swept: Swept, found: Sequence[Bracket], costs: Costs) -> Iterator[TenantPrice]:
    """What a tenant costs at the largest value that keeps the limit, and at the largest that might."""
    for each in found:
        arms = {value: its[each.design] for value, its in swept.designs_at.items() if each.design in its}
        may = [v for v in swept.sweep.values if each.breaks is None or _before(v, each.breaks)]
        most = may[-1] if may and each.breaks is not None else None
        holds = arms.get(each.holds) if each.holds is not None else None
        might = _arm_at(most, arms)
        breaks_at_once = each.breaks is not None and not may
        yield TenantPrice(
            each.levels,
            each.design,
            len(holds.layout.units) if holds else None,
            len(might.layout.units) if might else 0 if breaks_at_once else None,
            cost_of(holds, costs) / len(holds.layout.units) if holds else None,
            cost_of(might, costs) / len(might.layout.units) if might else None,
        )


def _arm_at(value: Value | None, arms: Mapping[Value, Arm]) -> Arm | None:
    """A design's arm at a value; at one that was not measured one with as many tenants, where that is all that values are."""
    if value is None or not arms or value in arms:
        return arms.get(value) if value is not None else None
    arm = next(iter(arms.values()))
    known = all(
        each.design and len(each.layout.units) == measured and _paid_for(each) == _paid_for(arm)
        for measured, each in arms.items()
    )
    return replace(arm, layout=layout_of(arm.design, int(value))) if known else None


def cheapest_tenants(found: Sequence[TenantPrice]) -> Iterator[CheapestTenant]:
    """At each combination of levels the designs of which none is cheaper for sure: all that it costs at most there is less than
    what it costs at least here. None that breaks the limit at the smallest value."""
    for levels in {levels_key(each.levels): each.levels for each in found}.values():
        its = [each for each in found if each.levels == levels]
        surely = min((each.cost_most for each in its if each.cost_most is not None), default=math.inf)
        may = [each for each in its if each.tenants_most != 0]
        left = [each.design for each in may if each.cost_least is None or each.cost_least <= surely]
        yield CheapestTenant(levels, tuple(left))
