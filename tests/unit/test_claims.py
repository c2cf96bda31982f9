"""What the published tables say about every claim that they can answer, pinned at the tolerance of each claims.csv."""

from __future__ import annotations

import pytest

from dbtoll import registry
from dbtoll.analysis.reproduction.claims import CheckedClaim, Support

CHECKED = {checked.claim.id: checked for paper in registry.members("papers") for checked in paper().checked()}

# Claim -> what the tables say, then figures by the paper's own estimand: name, value, tolerance (of claims.csv).
EXPECTED: dict[str, tuple[Support, list[tuple[str, float, float]]]] = {
    "M01": (Support.SUPPORTED, [("least", 6.58, 0.01), ("most", 60.03, 0.01)]),
    "M02": (Support.IN_PART, [("Q1", 154, 1), ("most, Q19", 161.1, 0.1)]),
    "M03": (Support.SUPPORTED, [("most", 871.44, 0.1), ("Q13", -41.73, 0.1)]),
    "M04": (Support.SUPPORTED, [("most, base", 0.0798, 0.001), ("most, Xen", 0.0322, 0.001)]),
    "M05": (Support.SUPPORTED, [("Pearson r", 0.916, 0.001)]),
    "M07": (Support.SUPPORTED, [("one connection", 9.8, 0.1), ("a connection per query", 23.07, 0.1)]),
    "M09": (Support.SUPPORTED, [("mean", 6.24, 0.05)]),
    "M10": (Support.SUPPORTED, [("mean", 12.2, 0.05), ("queries", 16, 0)]),
    "M11": (Support.SUPPORTED, [("mean", -9.6, 0.05), ("queries", 6, 0)]),
    "M12": (Support.SUPPORTED, [("base", 77, 0.5), ("xen", 79, 0.5)]),
    "M13": (
        Support.NOT_SUPPORTED,
        [("dom0 reads at least 1.4 times as much: faster", 3, 0), ("the same: slower", 4, 0)],
    ),
    "Z15": (
        Support.SUPPORTED,
        [("dedicated, 240 warehouses, data disk", 100, 0), ("xen, 240 warehouses, log disk", 41.8, 0)],
    ),
    "H01": (Support.SUPPORTED, [("ratio of totals of means", 18.2, 0.1)]),
    "H02": (Support.SUPPORTED, [("ratio of totals of means", 29.9, 0.2)]),
    "H03": (Support.SUPPORTED, [("ratio of totals of means", 73.2, 0.3)]),
    "H04": (Support.SUPPORTED, [("ratio of totals of means", 557.4, 0.5)]),
    "H05": (Support.SUPPORTED, [("HyPer", 0, 3), ("MonetDB", 0, 3)]),
    "H06": (Support.SUPPORTED, [("kvm, 1 thread(s), gap", -0.45, 0.1), ("kvm, 4 thread(s), gap", 54.9, 0.1)]),
    "H09": (Support.SUPPORTED, [("VirtualBox, /dev/shm", 73.2, 5), ("KVM", 73.2, 0.3)]),
    "H10": (Support.SUPPORTED, [("tpcc, virtualbox, drop", 18, 1), ("tatp, virtualbox, drop", 15.6, 0.1)]),
    "H11": (
        Support.SUPPORTED,
        [("HyPer tpch_sf10, 8 thread(s)", 5.74, 0.01), ("MonetDB tpch_sf10, 1 thread(s)", 104.63, 0.01)],
    ),
    "I01": (Support.SUPPORTED, [("least dom0 / domU", 119.4, 0.1)]),
    "I02": (Support.SUPPORTED, [("least, deadline/deadline", 0.80, 0)]),
    "I03": (Support.SUPPORTED, [("cfq/cfq", 1.75, 0), ("least", 0.80, 0)]),
    "I04": (
        Support.NOT_SUPPORTED,
        [
            ("dom0_tps, range of means by dom0's", 4.52, 0.005),
            ("dom0_tps, range of means by domU's", 4.69, 0.005),
            ("dom0_kb_read_s, range of means by dom0's", 129, 0.5),
            ("dom0_kb_read_s, range of means by domU's", 154, 0.5),
            ("iowait_pct, range of means by dom0's", 0.30, 0.005),
            ("iowait_pct, range of means by domU's", 0.71, 0.005),
        ],
    ),
}

# dbtoll's own estimands beside them.
OURS = {
    "M01": {"geomean": 28.81, "ratio_of_totals": 20.74},
    "M07": {"geomean": 9.61, "ratio_of_totals": 8.97},
    "M09": {"geomean": 5.55, "ratio_of_totals": -0.50},
    "H01": {"geomean": 17.79, "ratio_of_totals": 17.54},
    "H02": {"geomean": 23.83, "ratio_of_totals": 28.28},
    "H03": {"geomean": 47.04, "ratio_of_totals": 68.44},
    "H04": {"geomean": 250.85, "ratio_of_totals": 508.25},
    "H10": {"tpcc, virtualbox, overhead": 22.8, "tatp, virtualbox, overhead": 18.53},
}

NO_OVERHEAD = {"Z15"}
"""Claims that are not about an overhead or a ratio: dbtoll has no other estimand for them."""


def test_every_claim_that_the_tables_can_answer_is_answered() -> None:
    assert len(CHECKED) == 44
    others = {identity for identity, checked in CHECKED.items() if checked.finding.support is Support.NOT_CHECKABLE}
    assert set(EXPECTED) == CHECKED.keys() - others


@pytest.mark.parametrize("identity", EXPECTED)
def test_what_the_tables_say(identity: str) -> None:
    support, figures = EXPECTED[identity]
    finding = CHECKED[identity].finding
    assert finding.support is support
    computed = {figure.name: figure.value for figure in finding.computed}
    for name, value, tolerance in figures:
        assert computed[name] == pytest.approx(value, abs=tolerance + 1e-9)


@pytest.mark.parametrize("identity", OURS)
def test_our_own_estimand_beside_it(identity: str) -> None:
    ours = {figure.name: figure.value for figure in CHECKED[identity].finding.dbtoll}
    for name, value in OURS[identity].items():
        assert ours[name] == pytest.approx(value, abs=0.006 if name in {"geomean", "ratio_of_totals"} else 0.06)


def test_every_answer_has_our_estimand_or_says_why_not() -> None:
    for identity in EXPECTED:
        finding = CHECKED[identity].finding
        assert finding.dbtoll or (identity in NO_OVERHEAD and "not an overhead" in finding.note)


def not_supported() -> list[CheckedClaim]:
    return [checked for checked in CHECKED.values() if checked.finding.support is Support.NOT_SUPPORTED]


def test_what_is_not_borne_out_says_why() -> None:
    assert [checked.claim.id for checked in not_supported()] == ["I04", "M13"]
    assert all(len(checked.finding.note) > 80 for checked in not_supported())
