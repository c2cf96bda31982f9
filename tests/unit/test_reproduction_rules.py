"""The rules by which claims of minhas2008 are judged (docs/adr/0019), on runs with planted truths."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dbtoll.analysis.reproduction.verdicts import Figure, Judged, above, as_large, decide
from dbtoll.papers.minhas2008.parts import Part, Parts
from dbtoll.papers.minhas2008.published import run_times
from dbtoll.papers.minhas2008.verdicts import RULES
from dbtoll.store.reader import read_run
from tests.support.make_run import DOCKER, QUERIES, make_run

QUIET = {"start_sd": 0.0005, "visit_sd": 0.001, "blocks": 1}
BOTH = ("persistent", "per_statement")
COLD = run_times("table5_cold_overhead")
PUBLISHED_COLD = {query: xen / base - 1 for query, (base, xen) in zip(COLD.queries, COLD.ns[0, 0], strict=True)}


def part(folder: Path, name: str, **planted: Any) -> Part:
    return Part(read_run(make_run(folder / name, interrupted=False, **{**QUIET, **planted})))


def cold(folder: Path, name: str = "cold", **planted: Any) -> Part:
    return part(folder, name, cold=True, warm=False, connections=("per_statement",), **planted)


def same(effect: float) -> dict[str, float]:
    return dict.fromkeys(QUERIES, effect)


def outcomes(judged: Judged) -> tuple[str | None, str | None]:
    return tuple(each and each.outcome for each in (judged.direction, judged.size))  # type: ignore[return-value]


def counted(
    *, system: float = 1.0, user: float = 1.0, faults: Mapping[str, float] | None = None, iowait: float = 0.5, read: float = 1.0,
    around: Mapping[str, float] | None = None, calls: int = 1000,
) -> Any:  # fmt: skip
    """Of one execution: ``system`` and ``user``: how many times the baseline's in Docker; ``faults``: by level of connection;
    ``iowait``: share of the time; ``read``: Docker's reads over the baseline's; ``around``: by query, the host's over Docker's."""

    def counts(arm: str, query: str, levels: Mapping[str, str], chance: random.Random) -> dict[str, Any]:
        def about(value: float) -> float:
            return value * (1 + chance.gauss(0, 0.003))

        own = arm == DOCKER
        inner = 1e6 * (read if own else 1.0)
        machine: dict[str, Any] = {"inside": {"iowait_ns": about(iowait * 1e8), "disk": {"vda": {"read_bytes": inner}}}}
        if own:
            machine["around"] = {"disk": {"sda": {"read_bytes": inner * (around or {}).get(query, 1.0)}}}
        return {
            "calls": {"executions": 1, "round_trips": 1, "elapsed_ns": 1e8, "counted": {"getppid": {"count": calls}}},
            "processes": {
                "executions": 1, "round_trips": 1, "elapsed_ns": 1e8,
                "counted": {
                    "minor_faults": about((faults or {}).get(levels["connection"], 100.0)),
                    "user_ns": about(8e7 * (user if own else 1.0)), "system_ns": about(1e7 * (system if own else 1.0)),
                },
            },
            "machine": {"executions": 1, "round_trips": 1, "elapsed_ns": 1e8, "counted": machine},
        }  # fmt: skip

    return counts


def test_a_size_is_the_same_within_80_to_125_per_cent_by_its_whole_interval() -> None:
    def size(estimate: float, low: float | None, high: float | None, why: str = "") -> str:
        return decide("", as_large, [Figure("", "overhead", estimate, low, high, 0.10, why)]).outcome

    assert size(0.10, 0.09, 0.11) == "reproduced"
    assert size(0.10, 0.07, 0.13) == "cannot tell"  # the estimate alone decides nothing
    assert size(0.30, 0.13, 0.50) == "differs"
    assert size(-0.10, -0.11, -0.09) == "differs"
    assert size(0.10, 0.09, 0.11, "too few rounds") == "cannot tell"
    assert size(0.10, None, None) == "cannot tell"
    assert decide("", as_large, []).outcome == "cannot tell"


def test_all_figures_have_to_pass_and_one_that_does_not_is_enough_to_differ() -> None:
    up, down, open_ = (
        Figure("", "overhead", 1, 0.5, 2),
        Figure("", "overhead", -1, -2, -0.5),
        Figure("", "overhead", 0, -1, 1),
    )
    assert decide("", above, [up, up]).outcome == "reproduced"
    assert decide("", above, [up, open_]).outcome == "cannot tell"
    assert decide("", above, [open_, down]).outcome == "differs"


def test_undecided_queries_do_not_reproduce_that_none_gains(tmp_path: Path) -> None:
    """Twenty-two intervals that exclude nothing say nothing; neither do five rounds less one."""
    before = cold(tmp_path, query_effects=same(-0.2))
    noise = {"options": {"read_ahead": "0 KiB"}, "start_sd": 0.5}
    unread = {
        "undecided": cold(tmp_path, "undecided", query_effects=same(0.0), **noise),
        "few": cold(tmp_path, "few", query_effects=same(0.3), rounds=4, options={"read_ahead": "0 KiB"}),
        "shown": cold(tmp_path, "shown", query_effects=same(0.3), options={"read_ahead": "0 KiB"}),
        "gaining": cold(tmp_path, "gaining", query_effects=same(0.3) | {"Q4": -0.2}, options={"read_ahead": "0 KiB"}),
    }
    found = {name: RULES["M14"](Parts(before, before, each)).direction for name, each in unread.items()}
    assert {name: each and each.outcome for name, each in found.items()} == {
        "undecided": "cannot tell", "few": "cannot tell", "shown": "reproduced", "gaining": "differs"
    }  # fmt: skip
    nothing_before = cold(tmp_path, "no gain before", query_effects=same(0.1))
    ended = RULES["M14"](Parts(before, nothing_before, unread["shown"])).direction
    assert ended and ended.outcome == "cannot tell" and "its end could not show" in ended.why
    assert outcomes(RULES["M14"](Parts(before))) == ("not possible here", None)


def test_the_papers_own_queries_are_judged_and_not_those_that_came_out_so(tmp_path: Path) -> None:
    """Where other queries gain than in the paper there are faster queries, and still the claim does not hold."""
    as_there = cold(tmp_path, "as there", query_effects=PUBLISHED_COLD)
    parts = Parts(as_there, as_there)
    assert [outcomes(RULES[claim](parts)) for claim in ("M09", "M10", "M11")] == [("reproduced", "reproduced")] * 3
    turned = cold(tmp_path, "turned", query_effects={query: -effect for query, effect in PUBLISHED_COLD.items()})
    parts = Parts(turned, turned)
    assert [outcomes(RULES[claim](parts)) for claim in ("M09", "M10", "M11")] == [("differs", "differs")] * 3
    larger = cold(tmp_path, "larger", query_effects={query: 4 * effect for query, effect in PUBLISHED_COLD.items()})
    assert outcomes(RULES["M10"](Parts(larger, larger))) == ("reproduced", "differs")


@pytest.mark.parametrize("rounds", [2, 4, 5])
def test_on_fewer_than_five_rounds_nothing_is_decided(tmp_path: Path, rounds: int) -> None:
    counts = counted(system=3.0, faults={"persistent": 5.0, "per_statement": 100.0}, iowait=0.78)
    costs = {"system_call": dict(zip(("native", "native (A/A)", DOCKER), (100, 100, 900), strict=True)),
             "fault_anonymous": dict(zip(("native", "native (A/A)", DOCKER), (500, 500, 1100), strict=True))}  # fmt: skip
    planted = {"query_effects": same(0.3), "rounds": rounds, "counts": counts, "costs_ns": costs}
    warm = part(tmp_path, "warm", connections=BOTH, **planted)
    parts = Parts(warm, cold(tmp_path, **planted))
    decided = {
        (name, aspect)
        for name, rule in RULES.items()
        for aspect in ("direction", "size")
        if (judged := getattr(rule(parts), aspect)) and judged.outcome in ("reproduced", "differs")
    }
    expected = {
        ("M02", "direction"),
        ("M03", "direction"),
        ("M04", "size"),
        ("M06", "size"),
        ("M08", "size"),
        ("M12", "size"),
    }
    assert expected <= decided if rounds == 5 else not decided


def test_every_verdict_has_a_rule_and_an_interval(tmp_path: Path) -> None:
    counts = counted(system=2.54, user=1.1, faults={"persistent": 5.0, "per_statement": 100.0}, iowait=0.78, calls=2000)
    costs = {"system_call": dict(zip(("native", "native (A/A)", DOCKER), (100, 100, 971), strict=True)),
             "fault_anonymous": dict(zip(("native", "native (A/A)", DOCKER), (500, 500, 1048), strict=True))}  # fmt: skip
    effects = same(0.3) | {"Q1": -0.3, "Q2": -0.3}
    warm = part(tmp_path, "warm", connections=BOTH, query_effects=effects, counts=counts, costs_ns=costs)
    ahead = {query: 3.0 if effect < 0 else 1.0 for query, effect in effects.items()}
    reads = cold(tmp_path, query_effects=effects, counts=counted(iowait=0.78, around=ahead))
    parts = Parts(warm, reads)
    found = {name: rule(parts) for name, rule in RULES.items()}
    assert msgspec.json.decode(msgspec.json.encode(found), type=dict[str, Judged]) == found
    for judged in found.values():
        for each in (judged.direction, judged.size):
            assert each is None or each.rule
            if each and each.outcome in ("reproduced", "differs") and not each.counted:
                assert each.figures and all(
                    figure.low is not None and figure.high is not None for figure in each.figures
                )
    assert outcomes(found["M01"]) == ("differs", "differs")
    assert outcomes(found["M02"]) == ("reproduced", "reproduced")
    assert outcomes(found["M03"]) == ("reproduced", "reproduced")
    assert outcomes(found["M04"]) == (None, "reproduced")
    assert outcomes(found["M06"]) == ("reproduced", "reproduced")
    assert outcomes(found["M08"]) == ("reproduced", "reproduced")
    assert outcomes(found["M12"]) == (None, "reproduced")
    assert outcomes(found["M13"]) == ("reproduced", "reproduced")


def test_what_the_caches_hold_is_in_the_interval(tmp_path: Path) -> None:
    """A call that is ten times as dear out of the caches leaves the size of its slowdown open."""
    native = {"native": 100.0, "native (A/A)": 100.0}
    known = {"system_call": native | {DOCKER: 971.0}}
    doubtful = known | {"system_call_cold": native | {DOCKER: 3000.0}}
    figures = {}
    for name, costs in {"known": known, "doubtful": doubtful}.items():
        warm = part(tmp_path, name, connections=BOTH, query_effects=same(0.3), counts=counted(), costs_ns=costs)
        judged = RULES["M03"](Parts(warm))
        assert judged.direction and judged.direction.outcome == "reproduced" and judged.size
        figures[name] = judged.size
    assert figures["known"].outcome == "reproduced" and figures["doubtful"].outcome == "cannot tell"


def test_reads_that_differ_by_more_than_the_margin_are_not_the_same(tmp_path: Path) -> None:
    reads = cold(tmp_path, query_effects=same(0.1), counts=counted(read=1.1))
    judged = RULES["M13"](Parts(reads, reads))
    assert outcomes(judged) == ("cannot tell", "differs") and judged.direction and "no query" in judged.direction.why
