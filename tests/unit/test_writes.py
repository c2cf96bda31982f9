"""How far successive writes lie apart: by hand-made counts of a collector whose shares are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbtoll.analysis.result.schema import Distance, Mean, WritesResult
from dbtoll.analysis.transactions import writes
from dbtoll.model.json import Json
from dbtoll.report.figures import distances
from dbtoll.report.transactions import within
from dbtoll.store.schema import Devices

LEVELS = {"interaction": "statement"}


def requests(sequential: int, **by_distance: int) -> Json:
    """One more than those that came after another; keys as ``at_8192``."""
    far = {name.removeprefix("at_"): many for name, many in by_distance.items()}
    count = 1 + sequential + sum(far.values())
    return {"count": count, "bytes": 8192 * count, "sequential": sequential, "by_distance": far}


def found(*told: Json, own_kernel: bool = False) -> tuple[WritesResult, ...]:
    """Of an arm with these counts, one pass a round."""
    used = [Devices(kernel=None, elapsed_ns=1, devices={})]
    used += [Devices(kernel=0, elapsed_ns=1, devices={})] * own_kernel
    steady: Any = [SimpleNamespace(arm="arm", levels=LEVELS, devices=tuple(used))]
    passes = [
        SimpleNamespace(arm="arm", levels=LEVELS, round=number, counts={"blocks": {"counted": each}})
        for number, each in enumerate(told)
    ]
    others = [SimpleNamespace(arm="other", levels=LEVELS, round=0, counts={"blocks": {"missing": "no tracepoints"}})]
    return writes.find(cast(Any, SimpleNamespace(counting_passes=passes + others)), steady, 0.05)


def test_shares_are_of_writes_that_came_after_another() -> None:
    # The example of docs/method/devices.md: four writes.
    (one,) = found({"inside": {"sda": {"writes": requests(1, at_1048576=2), "reads": requests(5)}}})
    assert (one.where, one.device, one.count, one.mean_bytes) == ("host", "sda", 4, 8192)
    assert one.sequential == Mean(1 / 3, None, None)
    assert one.near == Mean(1 / 3, None, None)
    assert one.distances == (Distance(0, 1 / 3), Distance(2048, 1.0))
    assert (within(one, 16), within(one, 2048)) == ("33.3\N{NARROW NO-BREAK SPACE}%", "100.0\N{NARROW NO-BREAK SPACE}%")


def test_a_round_is_one_draw_and_the_curve_is_of_all_writes() -> None:
    (one,) = found(
        {"inside": {"sda": {"writes": requests(10)}}},
        {"inside": {"sda": {"writes": requests(0, at_512=10, at_8192=10)}}},
    )
    assert one.sequential.estimate == 0.5 and (one.sequential.low, one.sequential.high) == (0.0, 1.0)
    assert (one.near.estimate, one.near.low) == (1.0, 1.0), "a page back is near"
    assert [(each.blocks, each.share) for each in one.distances] == [(0, 1 / 3), (1, 2 / 3), (16, 1.0)]


def test_a_guest_is_seen_inside_and_around() -> None:
    told = {"inside": {"vda": {"writes": requests(1)}}, "around": {"sda": {"writes": requests(0, at_512=1)}}}
    assert [(each.where, each.device) for each in found(told, own_kernel=True)] == [
        ("inside", "vda"),
        ("around", "sda"),
    ]
    # On the host's kernel both are the same devices.
    assert [(each.where, each.device) for each in found(told)] == [("host", "vda")]


def test_what_a_container_does_not_show_is_seen_around_it() -> None:
    told = {"inside": {"missing": "no tracepoints"}, "around": {"sda": {"writes": requests(1)}}}
    assert [(each.where, each.device) for each in found(told)] == [("host", "sda")]


@pytest.mark.parametrize(
    "told",
    [
        {"inside": {"missing": "no tracepoints"}},
        {"inside": {"sda": {"reads": requests(3)}}},
        {"inside": {"sda": {"writes": requests(0)}}},
        {},
    ],
)
def test_what_was_not_seen_has_no_figure(told: Json) -> None:
    assert found(told) == ()


def test_runs_of_before_tell_nothing() -> None:
    steady: Any = [SimpleNamespace(arm="arm", levels=LEVELS, devices=())]
    assert writes.find(cast(Any, None), steady, 0.05) == ()


def test_the_curve_rises_from_what_is_sequential_to_all() -> None:
    (one,) = found({"inside": {"sda": {"writes": requests(1, at_8192=2, at_16777216=1)}}})
    group: Any = SimpleNamespace(writes=[(SimpleNamespace(arm="arm"), one)])
    drawn = distances.curves(group, ["native", "arm"])
    assert drawn is not None
    ((curve,),) = [panel.curves for panel in drawn.panels]
    # 16 blocks are the fifth place of sixteen, 32 Ki the sixteenth.
    assert (curve.kind, curve.path) == (1, "M0 750L250 750L312 250L938 250L1000 0")
    assert [tick.label for tick in drawn.time_ticks] == ["1", "256"]
    assert distances.curves(cast(Any, SimpleNamespace(writes=[])), []) is None
    assert [distances.blocks_text(2**power) for power in (4, 16, 24, 34)] == [
        "16", "64\N{NARROW NO-BREAK SPACE}Ki", "16\N{NARROW NO-BREAK SPACE}Mi", "16\N{NARROW NO-BREAK SPACE}Gi",
    ]  # fmt: skip
