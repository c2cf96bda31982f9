"""Plans are pure, byte-reproducible, and random where they must be."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import replace

import msgspec

from dbtoll.model.experiment import Arm, ComponentSpec, Configuration, Experiment, Step
from dbtoll.plan import Plan
from dbtoll.runner.arms import machine_name

CONFIGURATION = Configuration(ComponentSpec("noop"), ComponentSpec("tpch"))
QUERIES = tuple(f"Q{n}" for n in range(1, 23))


def experiment(seed: int = 1) -> Experiment:
    return Experiment(
        question="",
        expected="",
        arms=(
            Arm("a", (Step("native"),), configuration=CONFIGURATION),
            Arm("a (A/A)", (Step("native"),), copy_of="a", configuration=CONFIGURATION),
            Arm("b", (Step("native"),), configuration=CONFIGURATION, against="a"),
        ),
        baseline="a",
        factors={"cache": ("warm", "cold"), "connection": ("persistent",), "query_protocol": ("simple",)},
        seed=seed,
    )


def test_the_same_seed_gives_the_same_bytes_on_every_machine() -> None:
    rounds = [Plan(experiment(), QUERIES, 2, {}).round(index) for index in range(5)]
    encoded = msgspec.json.encode(rounds)
    again = msgspec.json.encode([Plan(experiment(), QUERIES, 2, {}).round(index) for index in range(5)])
    assert encoded == again
    # A changed value means that runs of an earlier version cannot be resumed: raise the schema version then.
    assert hashlib.sha256(encoded).hexdigest()[:16] == "a56636c922bbffd6"


def test_another_seed_gives_another_order_and_other_parameters() -> None:
    one, other = (Plan(experiment(seed), QUERIES, 1, {}) for seed in (1, 2))
    assert one.round(0) != other.round(0)
    assert one.parameter_seed(0) != other.parameter_seed(0)


def test_every_block_holds_each_cell_once() -> None:
    round_ = Plan(experiment(), QUERIES, 3, {}).round(4)
    assert [phase.levels["cache"] for phase in round_.phases] == ["warm", "cold"]
    for phase in round_.phases:
        assert len(phase.blocks) == 3
        for block in phase.blocks:
            assert Counter((v.arm, v.query) for v in block.visits) == Counter(
                (arm, query) for arm in ("a", "a (A/A)", "b") for query in QUERIES
            )


def test_a_slow_arm_sits_out_blocks() -> None:
    warm, cold = (
        Plan(
            experiment(), QUERIES, 3, {"b": [{"cache": "warm", "connection": "persistent", "query_protocol": "simple"}]}
        )
        .round(0)
        .phases
    )
    assert [sum(v.arm == "b" for v in block.visits) for block in warm.blocks] == [22, 0, 0]
    assert [sum(v.arm == "b" for v in block.visits) for block in cold.blocks] == [22, 22, 22]


def test_what_is_counted_is_what_was_timed_in_all_blocks() -> None:
    asked = replace(experiment(), explain=("system_call",))
    drawn = set()
    for index in range(20):
        for phase in Plan(asked, QUERIES, 4, {}).round(index).phases:
            sets = {block.parameter_set for block in phase.blocks}
            assert len(sets) == 1
            drawn |= sets
    assert len(drawn) > 1


def test_arms_of_a_query_are_neighbours_and_their_order_is_fair() -> None:
    firsts: Counter[str] = Counter()
    for index in range(200):
        for block in Plan(experiment(), QUERIES, 1, {}).round(index).phases[0].blocks:
            for at in range(0, len(block.visits), 3):
                group = block.visits[at : at + 3]
                assert len({visit.query for visit in group}) == 1
                firsts[group[0].arm] += 1
    total = sum(firsts.values())
    # 4400 draws: the standard deviation of a share is 0.7 %
    assert all(abs(count / total - 1 / 3) < 0.03 for count in firsts.values()), firsts


def test_an_arm_that_counts_instructions_takes_part_once_and_is_not_counted_itself() -> None:
    arms = (*experiment().arms, Arm("instructions", (Step("qemu"),), clock="instructions"))
    asked = replace(experiment(), arms=arms, explain=("system_call",))
    warm, cold, counted, counted_cold, probed = Plan(asked, QUERIES, 2, {}).round(0).phases
    present = [{visit.arm for visit in block.visits} for block in warm.blocks]
    assert ["instructions" in arms for arms in present] == [True, False]
    assert all("instructions" not in {visit.arm for visit in block.visits} for block in cold.blocks)
    assert (counted.kind, counted_cold.kind) == ("counted", "counted")
    assert {visit.arm for visit in counted.blocks[0].visits} == {"a", "a (A/A)", "b"}
    assert "instructions" in {visit.arm for visit in probed.blocks[0].visits}


def test_every_arm_has_a_place_of_its_own() -> None:
    """Names that differ only in what a path cannot hold, or behind what fits into one; the last two had the same mark."""
    names = ["a b", "a-b", "a_b", "A b", "é", "è", "a" * 60, "a" * 61, "a" * 24 + "az", "a" * 24 + "{a"]
    places = {machine_name("20261124-120000-abcdef", name, depth) for name in names for depth in (0, 1)}
    assert len(places) == 2 * len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{1,56}", place) for place in places)


def test_where_the_pilot_counts_the_first_round_has_one_block() -> None:
    plan, without = Plan(experiment(), QUERIES, 2, {}, pilot=True), Plan(experiment(), QUERIES, 2, {})
    assert {len(phase.blocks) for phase in plan.round(0).phases} == {1}
    assert [phase.blocks[0] for phase in plan.round(0).phases][:1] == [without.round(0).phases[0].blocks[0]]
    assert plan.round(1) == without.round(1)
