"""A published table as a picture: the paper's figures and ours on one axis, and lines over one another."""

from __future__ import annotations

import pytest

from dbtoll.analysis.reproduction.tables import Cell, Column, Curve, Curves, Difference, PublishedTable, Quantity
from dbtoll.report.figures.beside import beside, line_panels
from dbtoll.report.reproduction import csv_cell

COLUMNS = (
    Column("as printed", "difference", False),
    Column("later runs", "difference", False, mark="point"),
    Column("first runs", "difference", False, mark="hollow"),
    Column("arm", "text", True),
    Column("difference", "difference", True, mark="point"),
)


def table(*rows: tuple[Cell, ...], curves: tuple[Curves, ...] = ()) -> PublishedTable:
    return PublishedTable("Figure 2", "run time", COLUMNS, rows, curves=curves, places="threads", of="speed-up")


def difference(estimate: float, reach: float | None = None) -> Difference:
    bounds = (None, None) if reach is None else (estimate - reach, estimate + reach)
    return Difference("run_time", estimate, *bounds)


def test_what_is_drawn_is_what_has_a_mark() -> None:
    found = beside(
        table(
            ("bare metal", None, None, None, "native", None),
            ("KVM", difference(0.5), difference(0.2), difference(0.4), "qemu", difference(0.1, 0.02)),
        ),
        0.02,
    )
    assert found is not None and found.hollow == "first runs"
    (row,) = found.rows
    assert (row.label, row.printed, row.ours) == ("KVM", "+20.0\u202f%", "+10.0\u202f% (8.0 … 12.0)")
    hollow, *full = row.marks
    assert hollow.hollow and not hollow.ours and [mark.ours for mark in full] == [False, True]
    theirs, ours = full
    assert found.zero < ours.x < theirs.x < hollow.x
    assert theirs.span is None and ours.span is not None and ours.span.x1 < ours.x < ours.span.x2
    assert ours.title == "ours, difference: +10.0\u202f% (8.0 … 12.0)"
    # What is not drawn has no room on the axis: the +50 % that stand in the table.
    assert hollow.x > 90


def test_a_row_that_the_paper_has_not_has_our_arms_name() -> None:
    found = beside(table((None, None, None, None, "docker, machines=2", difference(0.1, 0.02))), 0.02)
    assert found is not None and [row.label for row in found.rows] == ["docker, machines=2"]


def test_more_is_to_the_right_of_throughput() -> None:
    row = (
        "KVM",
        None,
        Difference("time_per_transaction", 0.25),
        None,
        "qemu",
        Difference("time_per_transaction", -0.1),
    )
    found = beside(table(row), 0.02)
    assert found is not None and found.axis.of_throughput
    theirs, ours = found.rows[0].marks
    assert theirs.x < found.zero < ours.x and found.rows[0].printed == f"{chr(0x2212)}20.0\u202f%"


def test_a_table_in_a_file_has_the_difference_that_the_page_shows() -> None:
    assert csv_cell(Difference("time_per_transaction", 0.25)) == pytest.approx(-0.2)
    assert csv_cell(Difference("run_time", 0.25)) == 0.25
    assert (csv_cell(None), csv_cell("not measured")) == ("", "not measured")


def test_an_interval_of_two_rounds_makes_neither_axis_nor_column_wide() -> None:
    wild = Difference("run_time", 0.1, -0.999999, 1e60)
    found = beside(table(("KVM", None, difference(0.2), None, "qemu", wild)), 0.02)
    assert found is not None and found.axis.high < 1 and found.figure_characters <= 40
    (row,) = found.rows
    assert row.ours == "+10\u202f%" and [mark.span and (mark.span.x1, mark.span.x2) for mark in row.marks] == [
        None,
        (0.0, 100.0),
    ]


def test_a_table_without_differences_has_no_picture() -> None:
    assert beside(table(("bare metal", None, None, None, "native", None)), 0.02) is None
    assert line_panels(table()) is None


def test_lines_have_the_same_axes_in_all_panels() -> None:
    theirs = Curve("KVM", False, (1, 2, 4), (Quantity(1.0), Quantity(1.8), Quantity(3.2)))
    ours = Curve("qemu", True, (1, 2), (Quantity(1.0), Quantity(1.5, 1.4, 1.6)))
    found = line_panels(table(curves=(Curves("HyPer, KVM", (theirs, ours)), Curves("HyPer, bare metal", (theirs,)))))
    assert found is not None
    assert [tick.label for tick in found.across] == ["1", "2", "4"] and [tick.label for tick in found.up] == [
        "1",
        "2",
        "3",
    ]
    first, second = found.panels
    assert [line.ours for line in first.lines] == [False, True] and len(second.lines) == 1
    one, two, four = first.lines[0].dots
    assert one.x == found.across[0].x and two.x - one.x == pytest.approx(four.x - two.x)  # equal factors
    assert one.y == pytest.approx(found.up[0].x)
    last = first.lines[1].dots[-1]
    assert last.low is not None and last.high is not None and last.high < last.y < last.low  # downwards
    assert last.title == "qemu, 2: 1.50 (1.40 … 1.60)" and first.lines[0].path.count("L") == 2
