"""The figures of selfbenches from times that are given."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dbtoll.model import Arm, Experiment, Pace, Step
from dbtoll.selfbench import aa, agreement, here, switch
from dbtoll.store.schema import Timing, Visit

LEVELS = {"temperature": "warm", "connection": "one", "protocol": "simple"}


# --- aa ---


def test_four_alarms_of_twenty_to_twenty_four_are_the_most_and_more_comparisons_may_have_more() -> None:
    assert [aa.most_alarms(count) for count in (20, 24)] == [4, 4]
    assert aa.most_alarms(100) > 8


def test_p_values_spread_evenly_are_uniform_and_such_that_crowd_are_not() -> None:
    even = [(number + 0.5) / 24 for number in range(24)]
    assert (aa.uniformity_p(even) or 0) > 0.99
    assert (aa.uniformity_p([p / 4 for p in even]) or 0) < 0.01
    assert (aa.uniformity_p([1 - p / 4 for p in even]) or 0) < 0.01


# --- switch ---


def test_the_cost_of_a_visit_is_what_its_first_executions_took_beyond_the_usual() -> None:
    usual = [1000] * 18
    assert switch.visit_cost_ns(usual, 8) == 0
    assert switch.visit_cost_ns([1300, 1100, *usual[2:]], 8) == 400
    slower_machine = [2 * each for each in [1300, 1100, *usual[2:]]]
    assert switch.visit_cost_ns(slower_machine, 8) == 800
    assert switch.visit_cost_ns([*usual[:-1], 50_000], 8) == 0  # a burst at the end is no cost of the switch


def test_the_cost_is_looked_for_in_as_many_executions_as_begin_in_the_window() -> None:
    assert switch.first_of(1e6) == 12
    assert switch.first_of(1e5) == switch.FIRST_MOST
    assert switch.first_of(3e6) == 4
    assert switch.first_of(40e6) == switch.FIRST_LEAST


def test_the_interval_of_a_median_is_of_order_statistics() -> None:
    cost = switch.median_cost([float(number) for number in range(1, 21)])
    assert (cost.us, cost.low, cost.high) == (10.5, 6.0, 15.0)  # Conover 1999, table: 20 values, ranks 6 and 15
    assert switch.median_cost([3.0]) == switch.Cost(3.0, 3.0, 3.0)


def test_a_clock_that_stops_asleep_is_no_step_and_one_that_jumps_awake_is() -> None:
    seen = switch.Seen()
    seen.asleep(switch.Moment(0, 1_000, 10), switch.Moment(1_000_000, 1_200, 10))
    assert seen.runs_on == [pytest.approx(200 / 1e6)]
    assert seen.backwards == 0
    seen.awake(switch.Moment(0, 0, 100), switch.Moment(1_000_000, 1_000_150, 100))
    assert seen.steps_ns == [0]  # within what the brackets leave open
    seen.awake(switch.Moment(0, 0, 100), switch.Moment(1_000_000, 3_000_000, 100))
    assert seen.steps_ns[-1] == 2_000_000 - 200
    seen.asleep(switch.Moment(0, 1_000, 10), switch.Moment(1_000_000, 900, 10))
    assert seen.backwards == 1


def test_the_dwell_is_held_against_the_worst_environment_at_the_far_end_of_its_interval() -> None:
    def seen(cost_ns: int) -> switch.Seen:
        visit = [1000 + cost_ns, *[1000] * (3 + switch.USUAL)]
        found = switch.Seen(first=4, steps_ns=[0.0], runs_on=[1.0])
        for kind in switch.KINDS:
            found.times[kind] = [visit] * 10
        return found

    figures = switch.residual_figures({"quick": seen(10_000), "slow": seen(1_000_000)}, Pace())
    assert figures["residual_us"] == {"quick": 10.0, "slow": 1000.0}
    assert figures["dwell_over_residual"] == pytest.approx(50.0)


# --- agreement ---


def experiment() -> Experiment:
    return here.over(["docker"], {"name": "postgres"}, {"name": "tpch", "queries": ["Q6"]})


def test_the_variants_differ_in_neighbours_or_in_the_dwell_and_in_nothing_else() -> None:
    made = agreement.variants(experiment(), "docker")
    names = {variant: [arm.name for arm in each.arms] for variant, each in made.items()}
    assert names["one_neighbour"] == names["short_dwell"] == names["long_dwell"] == ["native", "docker"]
    assert len(names["four_neighbours"]) == 5
    assert all(arm.stack == (Step("native"),) for arm in made["four_neighbours"].arms if arm.name != "docker")
    dwells = {variant: each.pace.dwell_ns for variant, each in made.items()}
    assert dwells["one_neighbour"] == dwells["four_neighbours"] == Pace().dwell_ns
    assert dwells["short_dwell"] < Pace().dwell_ns < dwells["long_dwell"]
    assert all(arm.copy_of is None for each in made.values() for arm in each.arms)


def visits(effect: float, rounds: int) -> list[Visit]:
    """Rounds of two blocks of one statement over native, docker (slower by ``effect``, log scale) and a bystander."""
    found = []
    for round_ in range(rounds):
        for block in range(2):
            for arm, level in (("native", 0.0), ("docker", effect + 0.001 * (-1) ** round_), ("native 2", 1.0)):
                took = round(1e6 * math.exp(level))
                found.append(
                    Visit(
                        round=round_, arm=arm, levels=LEVELS, block=block, query="customer", order=0, first_touch=False,
                        asleep_ok=True, host_start_ns=0, host_end_ns=took, start_ns=0, end_ns=took,
                        executions=(Timing(0, None, None, took, 1, 1, "ok"),),
                    )
                )  # fmt: skip
    return found


def test_an_effect_is_the_arms_against_native_whatever_bystanders_there_are() -> None:
    effects = agreement.effects_of(visits(0.05, 6), ("customer",), "docker")
    assert effects == pytest.approx(np.array([0.051, 0.049] * 3), abs=1e-5)
    same = agreement.effects_of(visits(0.05, 8), ("customer",), "docker")
    other = agreement.effects_of(visits(0.08, 8), ("customer",), "docker")
    assert agreement.p_of_difference(effects, same) > 0.9
    assert agreement.p_of_difference(effects, other) < 0.001


def test_simulated_environments_are_no_part_of_a_machine() -> None:
    stacks, missing = here.present(["fake"], lambda text: None)
    assert "fake" not in stacks
    assert "fake" not in missing
    assert Arm("native", (Step("native"),)).name == here.BASELINE
