"""Where designs cross: the geometry of a band, and the search for the largest value that keeps a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from dbtoll.analysis.effects.stats import Interval
from dbtoll.analysis.sweeps.crossovers import crossings, segments
from dbtoll.analysis.sweeps.price import cheapest_of
from dbtoll.analysis.sweeps.schema import Bracket, LimitPoint, TenantPrice, json_schema
from dbtoll.analysis.sweeps.search import next_value

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
        points = tuple(LimitPoint(v, True if v <= holds else False if v >= breaks else None) for v in sorted(measured))
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


def test_who_costs_less_for_sure_is_the_cheapest() -> None:
    def priced(design: str, most: float | None, least: float | None) -> TenantPrice:
        return TenantPrice({}, design, None, None, most, least)

    assert cheapest_of([priced("a", 5.0, 4.0), priced("b", 9.0, 6.0)]) == ("a",)
    assert cheapest_of([priced("a", 7.0, 4.0), priced("b", 9.0, 6.0)]) == ("a", "b")
    assert cheapest_of([priced("a", 5.0, 4.0), priced("b", None, None)]) == ("a", "b")  # nobody knows what it costs
    assert cheapest_of([]) == ()


def test_the_schema_in_the_documents_is_that_of_the_types() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweep.schema.json").read_text(encoding="utf-8")
    assert text == json_schema(), (
        "the types changed: write docs/sweep.schema.json anew with dbtoll.analysis.sweeps.schema.json_schema()"
    )
