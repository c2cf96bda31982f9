"""Where designs cross: the geometry of a band, and the search for the largest value that keeps a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbtoll import spec
from dbtoll.analysis.effects import stats
from dbtoll.analysis.effects.stats import Interval
from dbtoll.analysis.sweeps.builder import Swept, design_of, without_devices
from dbtoll.analysis.sweeps.crossovers import crossings, segments
from dbtoll.analysis.sweeps.price import _arm_at, any_is_above, cheapest_tenants, cost_of
from dbtoll.analysis.sweeps.schema import Bracket, LimitPoint, TenantPrice, json_schema
from dbtoll.analysis.sweeps.search import next_value
from dbtoll.model.devices import Devices
from dbtoll.model.experiment import Arm, Experiment
from dbtoll.model.sweep import Costs, Sweep

AT = [0.0, 1.0, 2.0, 3.0]


def band(*ends: tuple[float, float] | None) -> list[Interval | None]:
    return [None if each is None else Interval((each[0] + each[1]) / 2, *each, 0.5) for each in ends]


def found(
    ends: Sequence[tuple[float, float] | None],
) -> tuple[list[tuple[float, float, int]], list[tuple[float, float, float]]]:
    bands = band(*ends)
    parts = segments(AT, bands)
    estimates = [None if each is None else each.estimate for each in bands]
    crossed = crossings(AT, estimates, parts)
    return [(e.low, e.high, e.sign) for e in parts], [(e.low, e.estimate, e.high) for e in crossed]


def test_a_band_that_never_holds_0_has_no_crossover() -> None:
    assert found([(1, 2)] * 4) == ([(0.0, 3.0, 1)], [])
    assert found([(-2, -1)] * 4) == ([(0.0, 3.0, -1)], [])


def test_where_the_band_always_holds_0_nothing_is_told() -> None:
    assert found([(-1, 1)] * 4) == ([(0.0, 3.0, 0)], [])
    assert found([None] * 4) == ([(0.0, 3.0, 0)], [])


def test_a_crossover_lies_where_the_estimate_is_0_within_what_the_band_holds() -> None:
    parts, crossed = found([(-4, -2), (-2, 0), (0, 2), (2, 4)])
    assert parts == [(0.0, 1.0, -1), (1.0, 2.0, 0), (2.0, 3.0, 1)]
    assert crossed == [(1.0, 1.5, 2.0)]
    parts, crossed = found([(-3, -1), (1, 3), (1, 3), (1, 3)])  # between neighbours that are both decided
    assert crossed == [(0.25, 0.5, 0.75)]


def test_several_changes_are_several_crossovers() -> None:
    _, crossed = found([(-3, -1), (1, 3), (1, 3), (-3, -1)])
    assert crossed == [(0.25, 0.5, 0.75), (2.25, 2.5, 2.75)]


def test_a_value_where_nothing_is_decided_opens_the_interval_up_to_its_neighbours() -> None:
    parts, crossed = found([(-3, -1), None, (1, 3), (1, 3)])
    assert parts == [(0.0, 2.0, 0), (2.0, 3.0, 1)]  # between the first two nothing is known either
    assert crossed == []
    parts, crossed = found([(-3, -1), (-3, -1), None, (1, 3)])
    assert parts == [(0.0, 1.0, -1), (1.0, 3.0, 0)]
    assert crossed == []


def test_a_band_that_touches_0_and_turns_back_is_no_crossover() -> None:
    parts, crossed = found([(1, 3), (-1, 1), (1, 3), (1, 3)])
    assert [sign for _, _, sign in parts] == [1, 0, 1]
    assert crossed == []


# --- the search ------------------------------------------------------------------------------------------------------------------


def searched(truth: dict[str, tuple[int, int]], candidates: Sequence[int]) -> tuple[list[int], dict[str, Bracket]]:
    """``truth``: design -> the largest value that keeps the limit, and the smallest that is surely seen to break it."""
    measured: list[int] = []

    def bracket(design: str) -> Bracket:
        holds, breaks = truth[design]
        keeps = {v: True if v <= holds else False if v >= breaks else None for v in sorted(measured)}
        points = tuple(LimitPoint(v, known, slowest=1, slowest_ns=1e6) for v, known in keeps.items())
        kept = [point.value for point in points if point.keeps]
        broken = [point.value for point in points if point.keeps is False]
        return Bracket({}, design, points, max(kept, default=None), min(broken, default=None), does_not_fit=False)

    while (value := next_value([bracket(d) for d in truth] if measured else [], candidates, measured)) is not None:
        assert value not in measured and isinstance(value, int)
        measured.append(value)
    return measured, {design: bracket(design) for design in truth}


@pytest.mark.parametrize("holds", [0, 1, 5, 8, 31, 32])
def test_the_search_halves_until_neighbours_are_left(holds: int) -> None:
    measured, brackets = searched({"a": (holds, holds + 1)}, range(1, 33))
    assert (brackets["a"].holds or 0) == holds
    assert brackets["a"].breaks == (holds + 1 if holds < 32 else None)
    assert len(measured) <= 1 + math.ceil(math.log2(33)) + 2  # the middle of the logarithms is not that of the numbers


def test_one_run_serves_all_designs() -> None:
    measured, brackets = searched({"a": (4, 5), "b": (20, 21)}, range(1, 33))
    assert {name: (each.holds, each.breaks) for name, each in brackets.items()} == {"a": (4, 5), "b": (20, 21)}
    assert len(measured) <= 12


def test_what_cannot_be_told_is_closed_in_from_both_sides_and_ends() -> None:
    measured, brackets = searched({"a": (6, 11)}, range(1, 33))
    assert (brackets["a"].holds, brackets["a"].breaks) == (6, 11)
    assert len(measured) < 32


@pytest.mark.parametrize("common", [0.0, 0.3])
def test_tenants_that_keep_a_limit_just_so_are_seldom_said_to_break_it(common: float) -> None:
    """Every one of them lies at it. ``common``: what a round does to all of them alike."""
    chance, alpha, draws = np.random.default_rng(5), 0.05, 1000
    wrong = 0
    for _ in range(draws):
        noise = chance.normal(0, 0.3, (6, 8)) + chance.normal(0, common, 8)
        wrong += any_is_above(list(noise), 6, alpha, 5)
    assert wrong <= alpha * draws


def test_tenants_that_all_break_a_limit_are_said_to_and_so_is_one_among_many() -> None:
    chance = np.random.default_rng(6)
    noise = [chance.normal(0, 0.25, 8) for _ in range(12)]
    alpha = 0.05 / 5
    assert any_is_above([each + 0.8 for each in noise], 12, alpha, 5)
    assert not any(stats.interval(each + 0.8, alpha / 12, 5).low > 0 for each in noise), "by none of them alone"  # type: ignore[union-attr]
    quiet = [chance.normal(-1, 0.01, 8) for _ in range(12)]
    assert not any_is_above(quiet, 12, alpha, 5)
    quiet[7] = quiet[7] + 2
    assert any_is_above(quiet, 12, alpha, 5), "though they are below on the mean"
    assert any_is_above([noise[0] * 0.1 + 1], 1, alpha, 5)


def test_what_had_no_answer_at_a_value_is_looked_for_below_it() -> None:
    candidates = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    bracket = Bracket({}, "a", (LimitPoint(1, True), LimitPoint(16, None)), holds=1, breaks=None, does_not_fit=False)
    assert next_value([bracket], candidates, {1, 16}) == 4
    told = replace(bracket, points=(LimitPoint(1, True), LimitPoint(16, None, slowest=1, slowest_ns=1e6)))
    assert next_value([told], candidates, {1, 16}) == 128, "the larger gap"


def test_who_costs_less_for_sure_is_the_cheapest() -> None:
    def priced(design: str, most: float | None, least: float | None, **levels: str) -> TenantPrice:
        return TenantPrice(levels, design, None, None, most, least)

    def cheapest(*found: TenantPrice) -> list[tuple[str, ...]]:
        return [each.designs for each in cheapest_tenants(found)]

    assert cheapest(priced("a", 5.0, 4.0), priced("b", 9.0, 6.0)) == [("a",)]
    assert cheapest(priced("a", 7.0, 4.0), priced("b", 9.0, 6.0)) == [("a", "b")]
    assert cheapest(priced("a", 5.0, 4.0), priced("b", None, None)) == [("a", "b")]  # nobody knows what it costs
    at_once = TenantPrice({}, "b", None, 0, None, None)
    assert cheapest(priced("a", 5.0, 4.0), at_once) == [("a",)]  # it breaks the limit at the smallest value
    assert cheapest(at_once) == [()]
    assert cheapest() == []
    on_device = priced("a", 10.0, 10.0, durability="device"), priced("b", 20.0, 20.0, durability="device")
    in_cache = priced("a", 8.0, 8.0, durability="os_cache"), priced("b", 5.0, 5.0, durability="os_cache")
    assert cheapest(*on_device, *in_cache) == [("a",), ("b",)]


def test_what_does_not_fit_is_no_candidate_and_bounds_the_search() -> None:
    bracket = Bracket({}, "a", (LimitPoint(2, True),), holds=2, breaks=5, does_not_fit=True)
    assert next_value([bracket], [1, 2, 3, 4], {2}) == 3
    assert next_value([replace(bracket, holds=4)], [1, 2, 3, 4], {1, 2, 3, 4}) is None


DESIGNS = """
[workload]
name = "tpcc"
[devices]
slow = "hdd7200"
[[arm]]
stack = "native"
design = "shared"
tenants = {tenants}
data_device = "{device}"
[[arm]]
stack = "docker"
design = "isolated"
tenants = {tenants}
data_device = "{device}"
"""


def arms(tenants: int, device: str = "slow") -> list[Arm]:
    found = spec.parse(DESIGNS.format(tenants=tenants, device=device), "designs")
    return [arm for arm in found.arms if arm.copy_of is None]


def test_a_design_has_one_name_at_every_number_of_tenants() -> None:
    assert arms(8)[0].name == "native shared x8, data_device=slow"
    at_two, at_eight = ([design_of(arm) for arm in arms(tenants)] for tenants in (2, 8))
    assert at_two == at_eight == ["native shared, data_device=slow", "docker isolated, data_device=slow"]
    assert list(map(without_devices, at_two)) == ["native shared", "docker isolated"]
    assert design_of(replace(arms(8)[0], name="ours x8")) == "ours x8"
    assert design_of(replace(arms(8)[1], text="docker:network=bridge")) == at_eight[1], "its driver is outside"


def swept(variable: str, experiments: Mapping[int, Experiment]) -> Any:
    """Of so many runs of which nothing is known but what was asked for."""
    sweep = Sweep("it", "a.toml", variable, tuple(experiments), next(iter(experiments)))

    def part(value: int, experiment: Experiment) -> Any:
        asked = replace(experiment, sweep=replace(sweep, value=value))
        return SimpleNamespace(
            run=SimpleNamespace(begin=SimpleNamespace(run=str(value)), plan=SimpleNamespace(experiment=asked))
        )

    return Swept([part(*each) for each in experiments.items()])


def test_a_device_that_the_sweep_changes_is_no_part_of_a_designs_name() -> None:
    text = DESIGNS.replace('data_device = "{device}"', "", 1)  # of one arm alone, as the other stays where it is
    by_device = {
        at: spec.parse(text.format(tenants=4, device=device), "x") for at, device in enumerate(("slow", "memory"))
    }
    found = swept("device", by_device).designs_at
    assert [list(its) for its in found.values()] == [["native shared", "docker isolated"]] * 2
    by_tenants = {tenants: spec.parse(text.format(tenants=tenants, device="slow"), "x") for tenants in (2, 8)}
    found = swept("tenants", by_tenants).designs_at
    assert [list(its) for its in found.values()] == [["native shared", "docker isolated, data_device=slow"]] * 2


def test_each_device_of_an_arm_costs_something() -> None:
    (shared, _) = arms(8)
    costs = Costs("EUR", "month", machine=10.0, devices={"hdd7200": 5.0})
    assert cost_of(shared, costs) == 15.0
    assert cost_of(shared, replace(costs, devices={"slow": 7.0, "hdd7200": 5.0})) == 17.0  # once, by its own name
    both = replace(
        shared, configuration=replace(shared.configuration, devices=Devices(*2 * shared.configuration.devices.all))
    )
    assert cost_of(both, costs) == 20.0


def test_what_a_tenant_costs_at_a_value_that_was_not_measured_is_that_of_so_many_tenants() -> None:
    isolated = arms(4)[1]
    at_seven = _arm_at(7, {4: isolated})
    assert at_seven is not None and at_seven.layout.machines == 7
    assert cost_of(at_seven, Costs("EUR", "month", machine=10.0)) == 70.0
    assert _arm_at(7, {2: isolated}) is None, "the values are no numbers of tenants"
    resources = replace(isolated.configuration.resources, cpus=8)
    larger = replace(arms(2)[1], configuration=replace(isolated.configuration, resources=resources))
    assert _arm_at(7, {2: larger, 4: isolated}) is None, "what else it would have at seven is not known"


def test_the_schema_in_the_documents_is_that_of_the_types() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweep.schema.json").read_text(encoding="utf-8")
    assert text == json_schema(), (
        "the types changed: write docs/sweep.schema.json anew with dbtoll.analysis.sweeps.schema.json_schema()"
    )
