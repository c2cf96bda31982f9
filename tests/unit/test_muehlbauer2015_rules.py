"""The rules by which claims of muehlbauer2015 are judged (docs/method/muehlbauer2015.md), on planted truths."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry, spec
from dbtoll.analysis.reproduction.paper import Paper
from dbtoll.analysis.reproduction.verdicts import Judged
from dbtoll.model.experiment import Step
from dbtoll.papers.muehlbauer2015.parts import Part, Parts
from dbtoll.papers.muehlbauer2015.published import LATER, MEANS, overhead, run_times, speed_ups, threads_of
from dbtoll.papers.muehlbauer2015.reproduced import find_all
from dbtoll.papers.muehlbauer2015.verdicts import BUS, CALLS, FAULTS, RULES, TRANSLATION
from dbtoll.spec.stack import write_stack
from dbtoll.store.reader import read_run
from tests.support.make_reproduction import (
    DOCKER,
    FEW_QUERIES,
    GUEST,
    IN_MEMORY,
    make_probes,
    make_statements,
)
from tests.support.make_windows import make_windows

PROBES = (*TRANSLATION, *FAULTS, *CALLS, *BUS)


def paper() -> Paper:
    return registry.find("papers", "muehlbauer2015")()


def statements(folder: Path, role: str, overheads: Mapping[str, Mapping[int, float] | float], **planted: Any) -> Part:
    """``overheads``: arm -> its overhead, or one for each number of threads."""

    def of(arm: str, query: str, levels: Mapping[str, str]) -> float:
        found = overheads.get(arm, 0.0)
        return found if isinstance(found, float) else found[int(levels["threads"])]

    name = f"{role}-{len(list(folder.iterdir())) if folder.exists() else 0}"
    return Part(read_run(make_statements(folder / name, role, of, **planted)))


def outcomes(judged: Judged) -> tuple[str | None, str | None]:
    return tuple(each and each.outcome for each in (judged.direction, judged.size))  # type: ignore[return-value]


def published(system: str, environment: str, threads: int) -> float:
    found = overhead(system, threads, environment, queries=FEW_QUERIES)
    assert found is not None
    return found


@pytest.mark.parametrize(("claim", "role", "system"), [("H01", "hyper", "HyPer"), ("H03", "monetdb", "MonetDB")])
def test_a_guest_with_hardware_help_is_judged_by_the_papers_kvm(
    claim: str, role: str, system: str, tmp_path: Path
) -> None:
    def judged(effect: float, **planted: Any) -> tuple[str | None, str | None]:
        return outcomes(RULES[claim]({role: statements(tmp_path, role, {GUEST: effect}, **planted)}))

    printed = published(system, "kvm", 4)
    assert judged(printed) == ("reproduced", "reproduced")
    assert judged(3 * printed) == ("reproduced", "differs")
    assert judged(-0.1) == ("differs", "differs")
    # On fewer than five rounds nothing is decided.
    assert judged(printed, rounds=3) == ("cannot tell", "cannot tell")
    # Of an emulator's times the paper's size says nothing.
    assert judged(printed, emulated=[GUEST]) == ("reproduced", "not possible here")
    assert judged(-0.1, emulated=[GUEST]) == ("differs", "not possible here")
    assert outcomes(RULES[claim]({})) == ("not measured", "not measured")


def test_a_guest_that_is_neither_has_a_direction_and_no_size(tmp_path: Path) -> None:
    part = statements(tmp_path, "hyper", {"uml": 0.182}, arms=("docker", "uml"), guest="uml", threads=(1,))
    judged = RULES["H01"]({"hyper": part})
    assert outcomes(judged) == ("reproduced", "not possible here")
    assert judged.size and "uml is neither KVM nor VirtualBox" in judged.size.why
    assert judged.direction and "uml in the place of KVM" in judged.direction.counted


@pytest.mark.parametrize(("claim", "role", "system"), [("H02", "hyper", "HyPer"), ("H04", "monetdb", "MonetDB")])
def test_only_virtualbox_is_judged_by_virtualbox(claim: str, role: str, system: str, tmp_path: Path) -> None:
    there = statements(tmp_path, role, {GUEST: 0.3})
    assert outcomes(RULES[claim]({role: there})) == ("not possible here", "not possible here")
    printed = published(system, "virtualbox", 4)
    for effect, told in ((printed, "reproduced"), (printed / 3, "differs")):
        part = statements(tmp_path, role, {"virtualbox": effect}, arms=("docker", "virtualbox"), guest="virtualbox")
        assert outcomes(RULES[claim]({role: part})) == ("reproduced", told)
        assert outcomes(RULES["H01" if role == "hyper" else "H03"]({role: part})) == ("not possible here",) * 2


def test_a_query_whose_plan_changed_is_in_no_total(tmp_path: Path) -> None:
    def overheads(arm: str, query: str, levels: Mapping[str, str]) -> float:
        return 0.1 if query != "Q9" else 9.0

    def by_arm(arm: str, query: str, number: int) -> str:
        return "other" if (arm, query) == (GUEST, "Q9") else "usual"

    def by_round(arm: str, query: str, number: int) -> str:
        return "other" if query == "Q9" and number == 2 else "usual"

    for name, plans, what in (("arm", by_arm, "another plan"), ("round", by_round, "other plans in other rounds")):
        part = Part(read_run(make_statements(tmp_path / name, "monetdb", overheads, plans=plans)))
        assert part.changed_plans(2) == {"Q9": what}
        assert part.same_plans(2) == [query for query in FEW_QUERIES if query != "Q9"]
        judged = RULES["H03"]({"monetdb": part}).direction
        assert judged and judged.figures[0].estimate == pytest.approx(0.1, abs=0.01)
        assert "5 queries, without Q9: their plans differ" in judged.counted
        (apart,) = (each for each in find_all(Parts(monetdb=part)) if each.name == "Changed plans")
        assert {row[0] for row in apart.rows} == {"MonetDB, Q9"} and {row[4] for row in apart.rows} == {what}
    same = Part(read_run(make_statements(tmp_path / "same", "monetdb", overheads)))
    judged = RULES["H03"]({"monetdb": same}).direction
    assert same.changed_plans(2) == {} and judged and judged.figures[0].estimate > 1


def test_the_container_costs_nothing_on_both_systems_or_on_one_alone(tmp_path: Path) -> None:
    def judged(hyper: float, monetdb: float) -> tuple[str | None, str | None]:
        parts = {
            "hyper": statements(tmp_path, "hyper", {DOCKER: hyper}, noise=0.0005),
            "monetdb": statements(tmp_path, "monetdb", {DOCKER: monetdb}, noise=0.0005),
        }
        return outcomes(RULES["H05"](parts))

    assert judged(0.0, 0.002) == (None, "reproduced")
    assert judged(0.0, 0.1) == (None, "differs")
    assert judged(-0.1, 0.0) == (None, "differs")
    assert outcomes(RULES["H05"]({"hyper": statements(tmp_path, "hyper", {})})) == (None, "not measured")


def test_the_gap_on_one_thread_is_nearer_or_not(tmp_path: Path) -> None:
    def judged(hyper: tuple[float, float], monetdb: tuple[float, float], **planted: Any) -> str | None:
        parts = {
            role: statements(tmp_path, role, {GUEST: dict(zip((1, 2), effects, strict=True))}, **planted)
            for role, effects in (("hyper", hyper), ("monetdb", monetdb))
        }
        return outcomes(RULES["H06"](parts))[0]

    assert judged((0.1, 0.2), (0.15, 0.8)) == "reproduced"
    assert judged((0.1, 0.2), (0.8, 0.25)) == "differs"
    # Nearer is nearer on either side.
    assert judged((0.3, 0.8), (0.25, 0.2)) == "reproduced"
    assert judged((0.1, 0.2), (0.65, 0.8)) == "cannot tell"
    part = statements(tmp_path, "hyper", {GUEST: 0.1}, threads=(1,))
    assert RULES["H06"]({"hyper": part, "monetdb": part}).direction.why.startswith("there are no two numbers")  # type: ignore[union-attr]


def test_what_single_events_cost(tmp_path: Path) -> None:
    def judged(name: str, guest: Mapping[str, float], **planted: Any) -> tuple[str | None, str | None]:
        made = make_probes(tmp_path / name, {DOCKER: {}, GUEST: guest}, PROBES, **planted)
        return outcomes(RULES["H07"]({"probes": Part(read_run(made))}))

    as_printed = {"chase_4k_pages": 0.1, "fault_copy": 0.09, "system_call": 0.6}
    assert judged("as printed", as_printed) == ("reproduced", "reproduced")
    assert judged("emulated", as_printed, emulated=[GUEST]) == ("reproduced", "not possible here")
    assert judged("dearer", {**as_printed, "system_call_stat": 3.0}) == ("reproduced", "differs")
    assert judged("cheaper", dict.fromkeys(PROBES, -0.2)) == ("differs", "differs")
    assert judged("few", as_printed, rounds=2) == ("cannot tell", "cannot tell")


def test_nobody_counts_the_memory_bus() -> None:
    judged = RULES["H08"]({})
    assert outcomes(judged) == ("not possible here", "not possible here")
    assert judged.size and "memory controller" in judged.size.why


def test_files_in_memory_in_place_of_the_disk(tmp_path: Path) -> None:
    def judged(disk: float, memory: float, guest: str = GUEST) -> tuple[str | None, str | None]:
        part = statements(
            tmp_path, "storage", {guest: disk, IN_MEMORY: memory}, arms=(guest, IN_MEMORY), guest=guest, threads=()
        )
        return outcomes(RULES["H09"]({"storage": part}))

    assert judged(1.0, 0.5) == ("reproduced", "not possible here")
    assert judged(0.5, 1.0) == ("differs", "not possible here")
    kvm = published("MonetDB", "kvm", 4)
    assert judged(5.0, kvm, "virtualbox") == ("reproduced", "reproduced")
    assert judged(5.0, 4.0, "virtualbox") == ("reproduced", "differs")


def windows(folder: Path, workload: str, effect: float) -> Part:
    """Its container is called a guest: such runs have no other arm."""
    return Part(read_run(make_windows(folder, workload=workload, docker_effect=effect, noise=0.002, step=Step("qemu"))))


def test_transactions(tmp_path: Path) -> None:
    def judged(tpcc: float, tatp: float) -> tuple[str | None, str | None]:
        name = f"{tpcc} {tatp}"
        parts = {
            "tpcc": windows(tmp_path / f"c {name}", "tpcc", tpcc),
            "tatp": windows(tmp_path / f"a {name}", "tatp", tatp),
        }
        return outcomes(RULES["H10"](parts))

    printed = 132397 / 126839 - 1
    assert judged(printed, 0.01) == ("reproduced", "reproduced")
    assert judged(0.5, 0.01) == ("reproduced", "differs")
    assert judged(-0.2, -0.1) == ("differs", "differs")
    assert outcomes(RULES["H10"]({})) == ("not measured", "not measured")


def _quicker(times: float, levels: Mapping[str, str]) -> float:
    return 1.0 if levels["threads"] == "1" else 1 / times


TRANSACTIONS_THERE = {"tpcc": 132397 / 88448 - 1, "tatp": 533902 / 371885 - 1}
"""What the paper's instance costs, of its printed transactions a second."""


def test_another_host_by_its_speed_ups_and_by_what_it_costs_transactions(tmp_path: Path) -> None:
    def judged(
        speed_ups: Mapping[str, float], transactions: Mapping[str, float] = TRANSACTIONS_THERE
    ) -> tuple[str | None, str | None]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        parts = {f"remote {role}": windows(folder / role, role, effect) for role, effect in transactions.items()}
        for role, times in speed_ups.items():
            native = partial(_quicker, times)
            made = make_statements(folder / role, f"remote {role}", lambda *_: 0.0, arms=(GUEST,), native=native)
            parts[f"remote {role}"] = Part(read_run(made))
        return outcomes(RULES["H11"](parts))

    there = {"hyper": speed_ups("HyPer", "gce")[2], "monetdb": speed_ups("MonetDB", "gce")[2]}
    assert judged(there) == (None, "reproduced")
    assert judged({**there, "monetdb": 1.0}) == (None, "differs")
    assert judged({"hyper": there["hyper"]}) == (None, "not measured")
    # Processors of another speed make both benchmarks dearer alike, and are no difference.
    slower = {role: 3 * (1 + effect) - 1 for role, effect in TRANSACTIONS_THERE.items()}
    assert judged(there, slower) == (None, "reproduced")
    assert judged(there, {**slower, "tatp": 0.5}) == (None, "differs")
    assert judged(there, {**slower, "tpcc": 0.5}) == (None, "differs")
    for role in TRANSACTIONS_THERE:
        assert judged(there, {role: slower[role]}) == (None, "not measured")
    judgement = RULES["H11"]({}).size
    assert judgement and judgement.outcome == "not measured" and "--set host=" in judgement.why


def test_what_was_measured_of_another_host_is_told_without_the_rest(tmp_path: Path) -> None:
    roles = ("remote hyper", "remote monetdb", "remote tatp")
    parts = {role: statements(tmp_path, role, {}, arms=(GUEST,)) for role in roles[:2]}
    parts[roles[2]] = windows(tmp_path / "tatp", "tatp", 0.1)
    judged = RULES["H11"](parts).size
    assert judged and judged.why == "not measured on that host: HyPer on TPC-C"
    assert [figure.name for figure in judged.figures] == ["HyPer, 2 threads", "MonetDB, 2 threads"]


def test_transactions_stand_in_the_table_of_another_host(tmp_path: Path) -> None:
    parts = Parts(
        {"remote tpcc": windows(tmp_path / "c", "tpcc", 0.5), "remote tatp": windows(tmp_path / "a", "tatp", 0.25)}
    )
    (found,) = find_all(parts)
    assert found.name == "Table 2"
    rows = {
        row[0]: dict(zip([column.name for column in found.columns][3:], row[4:], strict=True)) for row in found.rows
    }
    tpcc, tatp = rows["HyPer, TPC-C, 1"], rows["HyPer, TATP, 1"]
    # A thousand transactions a second in the baseline; of TPC-C 45 of a hundred are new orders.
    assert tpcc["tpmC"].estimate == pytest.approx(60 * 450 / 1.5, rel=0.03)  # type: ignore[union-attr]
    assert tatp["transactions/s"].estimate == pytest.approx(1000 / 1.25, rel=0.03)  # type: ignore[union-attr]
    assert tpcc["arm"] == parts["remote tpcc"].title and tpcc["transactions/s"] is tatp["tpmC"] is None
    assert rows["HyPer, TPC-H, 1"]["arm"] == "not measured in this run"


@pytest.mark.parametrize("role", ["tpcc", "tatp"])
def test_a_part_on_another_host_is_as_the_one_here(role: str) -> None:
    about = {part.role: part for part in paper().about.parts}
    here, there = (
        spec.read(paper().folder / about[name].file, variables=variables)[0]
        for name, variables in ((role, {}), (f"remote {role}", {"host": "ssh:there"}))
    )
    assert [write_stack(arm.stack) for arm in there.arms if arm.copy_of is None] == ["native", "ssh:there"]
    assert there.role == f"remote {role}" and about[f"remote {role}"].needs == ("host",)
    assert there.factors == here.factors and there.precision == here.precision
    assert there.arms[0].configuration == here.arms[0].configuration


def test_the_published_overheads_are_those_of_the_tables() -> None:
    assert overhead("HyPer", 4, "kvm", MEANS) == pytest.approx(0.182, abs=5e-4)
    assert overhead("MonetDB", 4, "virtualbox", MEANS) == pytest.approx(5.574, abs=5e-3)
    later, means = (overhead("HyPer", 4, "kvm", each) for each in (LATER, MEANS))
    assert later is not None and means is not None and later < means
    assert overhead("MonetDB", 1, "docker") is None
    q9 = overhead("MonetDB", 4, "kvm", MEANS, ["Q9"])
    times = run_times("MonetDB", 4, ("bare", "kvm"))
    own = times.ns[0, 0, times.queries.index("Q9")]
    assert q9 == pytest.approx(own[1] / own[0] - 1)
    assert threads_of("MonetDB", "docker") == (4,) and threads_of("HyPer", "gce") == (1, 2, 4, 8)
    assert threads_of("HyPer", "virtualbox-shm") == ()


def test_every_claim_has_its_verdict_and_every_figure_its_table(tmp_path: Path) -> None:
    runs = {
        "hyper": make_statements(tmp_path / "hyper", "hyper", lambda arm, query, levels: 0.18 if arm == GUEST else 0.0),
        "monetdb": make_statements(tmp_path / "monetdb", "monetdb", lambda arm, query, levels: 0.7 if arm == GUEST else 0.0),
        "storage": make_statements(
            tmp_path / "storage", "storage", lambda arm, query, levels: 0.7, arms=(GUEST, IN_MEMORY), threads=()
        ),
        "probes": make_probes(tmp_path / "probes", {DOCKER: {}, GUEST: {}}, PROBES),
        "remote hyper": make_statements(tmp_path / "remote", "remote hyper", lambda arm, query, levels: 0.1, arms=(GUEST,)),
    }  # fmt: skip
    found = paper().reproduce({role: [read_run(folder)] for role, folder in runs.items()})
    assert [each.checked.claim.id for each in found.claims] == [f"H{number:02}" for number in range(1, 12)]
    assert [each.name for each in found.tables] == [
        "Section 2", "Figure 2", "Figure 2 HyPer", "Figure 2 MonetDB", "Changed plans", "Figure 3", "Figure 4", "Table 2",
    ]  # fmt: skip
    for each in found.tables:
        assert {len(row) for row in each.rows} <= {1 + len(each.columns)}, each.name
        assert [column.ours for column in each.columns] == sorted(column.ours for column in each.columns)
    by_name = {each.name: each for each in found.tables}
    heads = [row[0] for row in by_name["Figure 2"].rows]
    assert heads == [
        f"{system}, {name}" for system in ("HyPer", "MonetDB") for name in ("bare metal", "Docker", "KVM", "VirtualBox")
    ]
    assert (found.arm, found.baseline) == (GUEST, "native")
    panels = {each.title: [curve.ours for curve in each.curves] for each in by_name["Figure 3"].curves}
    assert panels["HyPer, KVM"] == [False, True] and panels["HyPer, VirtualBox"] == [False]
    assert by_name["Table 2"].rows[0][4:] == ("not measured in this run", None, None, None, None)
    assert by_name["Table 2"].rows[2][0] == "HyPer, TPC-H, 1" and by_name["Table 2"].rows[0][0] == "HyPer, TPC-C, 1"
