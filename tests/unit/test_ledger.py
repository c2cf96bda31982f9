"""The explained ledger: sums, intervals, and the first paper's own tables."""

from __future__ import annotations

import numpy as np
import pytest

from dbtoll.analysis.attribution.ledger import (
    MOST_BY_CLOCK,
    Costs,
    Item,
    Ledger,
    cost_range,
    explained_fraction,
    predicted_ns,
    totals,
    unexplained_fraction,
)
from dbtoll.papers.minhas2008.published import table

MS = 1e6


def one(value: float) -> np.ndarray:
    return np.array([value])


def published() -> dict[str, Ledger]:
    """minhas2008, Tables 1 to 3: page faults at the costs of its §4.1.2, and the time in system calls."""
    runtimes = {row["query"]: row for row in table("table1_warm_overhead")}
    calls = {row["query"]: row for row in table("table2_system_calls")}
    found = {}
    for row in table("table3_page_faults"):
        query = row["query"]
        faults = Item(
            "page faults",
            one(float(row["xen_page_faults"])),
            one(float(row["base_page_faults"])),
            Costs.known(3500),
            Costs.known(1670),
        )
        made = calls[query]
        in_calls = [float(made[f"{side}_syscall_ms"]) * MS for side in ("xen", "base")]
        counts = [float(made[f"{side}_syscalls"]) for side in ("xen", "base")]
        system_calls = Item(
            "system calls",
            one(counts[0]),
            one(counts[1]),
            Costs.known(in_calls[0] / counts[0]),
            Costs.known(in_calls[1] / counts[1]),
        )
        overhead = float(runtimes[query]["abs_slowdown_s"]) * 1e9
        found[query] = Ledger(query, one(overhead), (faults, system_calls), one(overhead))
    return found


def test_the_first_papers_tables_explain_41_percent_of_its_slowdown() -> None:
    ledgers = published()
    assert len(ledgers) == 10
    assert explained_fraction(ledgers.values()) == pytest.approx(0.413, abs=0.0005)
    assert explained_fraction([ledgers["Q13"]]) == pytest.approx(0.12, abs=0.005)
    assert explained_fraction([ledgers["Q21"]]) == pytest.approx(0.58, abs=0.005)


def planted(rounds: int = 6, *, hidden_ns: float = 0.0) -> Ledger:
    """Two kinds of events whose counts and costs are known, and something else that nobody counts."""
    chance = np.random.default_rng(3)
    faults = chance.integers(990, 1010, rounds).astype(float)
    hot, cold = np.full(rounds, 900.0), np.full(rounds, 1100.0)
    items = (
        Item("page faults", faults, faults, Costs(hot, cold), Costs(hot / 2, cold / 2)),
        Item(
            "system calls",
            np.full(rounds, 200.0),
            np.full(rounds, 100.0),
            Costs.known(50, rounds),
            Costs.known(20, rounds),
        ),
    )
    overhead = faults * 500 + 200 * 50 - 100 * 20 + hidden_ns + chance.normal(0, 10, rounds)
    return Ledger("Q1", overhead, items, overhead)


def test_items_and_the_rest_add_up_in_every_round() -> None:
    ledger = planted(hidden_ns=70_000)
    total = sum(item.explained_ns for item in ledger.items) + ledger.unexplained_ns
    assert total == pytest.approx(ledger.overhead_ns)
    cost_ranges = ledger.cost_ranges(0.05)
    assert cost_ranges["page faults"].estimate == pytest.approx(500_000, rel=0.01)
    assert cost_ranges["system calls"].estimate == pytest.approx(8_000)
    assert cost_ranges["unexplained"].estimate == pytest.approx(70_000, abs=50)


def test_what_is_not_known_of_the_caches_is_inside_the_intervals() -> None:
    cost_ranges = planted().cost_ranges(0.05)
    faults = cost_ranges["page faults"]
    assert faults.low is not None and faults.high is not None
    assert faults.low < 1000 * 450 and faults.high > 1000 * 550
    system_calls = cost_ranges["system calls"]
    assert (system_calls.low, system_calls.high) == pytest.approx((8_000, 8_000))
    rest = cost_ranges["unexplained"]
    assert rest.low is not None and rest.high is not None and rest.low < -49_000 and rest.high > 49_000


def test_the_fraction_counts_what_is_missing_and_what_is_too_much_alike() -> None:
    missing, too_much = planted(hidden_ns=51_000), planted(hidden_ns=-51_000)
    found = unexplained_fraction([missing, too_much], 0.05)
    assert found.estimate == pytest.approx(0.1, abs=0.002)
    assert found.low is not None and found.high is not None and found.low < 0.1 < found.high


def test_the_fraction_is_no_surer_than_what_the_ledger_calls_unexplained() -> None:
    """Costs between 450 and 550 ns explain all of it or a tenth less or more: no fraction below a tenth is shown to be so."""
    ledgers = [planted(), planted()]
    rest, whole = totals(ledgers, 0.05)["unexplained"], totals(ledgers, 0.05)["overhead"]
    found = unexplained_fraction(ledgers, 0.05)
    assert found.estimate < 0.001
    assert rest.high is not None and found.high is not None
    assert found.high >= rest.high / whole.estimate > 0.09
    known = [Ledger(each.query, each.overhead_ns, each.items[1:], each.baseline_ns) for each in ledgers]
    without = unexplained_fraction(known, 0.05)
    assert {type(bound) for bound in (without.estimate, without.low, without.high)} == {float}  # JSON knows no others
    assert without.low is not None and without.high is not None
    assert without.high - without.low < 0.01  # no item that is left has two costs


def test_the_time_that_a_ledger_foretells_is_where_repeating_leads() -> None:
    baseline, explained = np.array([100.0, 50.0]), np.array([40.0, 10.0])
    by_clock = np.array([0.25, 0.0])
    time = np.array([0.0, 1e6])
    for _ in range(100):
        time = baseline + explained + by_clock * time
    assert predicted_ns(baseline, explained, by_clock) == pytest.approx(time)


def test_no_cost_makes_a_foretold_time_endless_or_less_than_nothing() -> None:
    assert predicted_ns(one(100.0), one(0.0), one(7.0)) == pytest.approx([100 / (1 - MOST_BY_CLOCK)])
    assert predicted_ns(one(100.0), one(-300.0), one(0.0)) == [0.0]


def test_one_round_has_no_interval() -> None:
    assert cost_range(one(3.0), 0.05).low is None
    assert unexplained_fraction([planted(1)], 0.05).high is None
