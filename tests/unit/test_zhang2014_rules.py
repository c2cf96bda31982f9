"""The rules by which claims of zhang2014 are judged (docs/method/zhang2014.md), and its tables, on planted figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbtoll import registry, spec
from dbtoll.analysis.reproduction.tables import PublishedTable, Quantity
from dbtoll.analysis.reproduction.verdicts import Figure
from dbtoll.analysis.result.schema import DiskModelFigure, DiskModelResult, Distance, Mean, WritesResult
from dbtoll.analysis.sweeps.schema import Point
from dbtoll.analysis.visits.valid import Bars
from dbtoll.commands import reproduce
from dbtoll.model.description import Wait
from dbtoll.model.sweep import LeftOut
from dbtoll.papers.zhang2014 import reproduced
from dbtoll.papers.zhang2014.parts import DEDICATED, ISOLATED, ON_FASTER, ON_SLOWER, SHARED, Parts, Sweep
from dbtoll.papers.zhang2014.verdicts import LARGE, RULES, SMALL
from dbtoll.report import published

Planted = Mapping[tuple[str, int], tuple[float, float]]
"""(Design, value) -> the ends of an interval."""


def mean(low: float, high: float) -> Mean:
    return Mean((low + high) / 2, low, high)


@dataclass(frozen=True)
class PlantedSweep(Sweep):
    """With figures by design and value in the place of runs."""

    swept: Any = None
    measured: tuple[int, ...] = (1, 8)
    writes: Planted = field(default_factory=dict)
    """The shares of the log's writes that are near; the others are far, half of them 2^28 blocks and half of them 2^30."""
    waits: Mapping[str, Planted] = field(default_factory=dict)
    busy: Planted = field(default_factory=dict)
    """By ``design, role`` and value."""
    done: Planted = field(default_factory=dict)
    """tpmC."""
    longer: Planted = field(default_factory=dict)
    """By how much a transaction takes longer in ``design over design``."""
    holds: str = "log"
    outgrown: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    """Sizes that do not outgrow the memory and do not fit beside the buffer pools."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """Why nothing rests on a design."""
    too_large: tuple[int, ...] = ()
    """Values at which the isolated design was left out."""

    @property
    def values(self) -> tuple[int, ...]:
        return self.measured

    @property
    def fitting(self) -> tuple[int, ...]:
        return tuple(value for value in self.measured if value not in (*self.outgrown, *self.between))

    def windows(self, design: str, value: Any) -> Any:
        devices = [
            SimpleNamespace(where=where, holds=role, utilisation=mean(*found), service_ns=Mean(2e5, 1e5, 3e5))
            for role in ("data", "log")
            for where in ("host", "inside")
            if (found := self.busy.get((f"{design}, {role}", value)))
        ]
        writes = []
        if found := self.writes.get((design, value)):
            near = mean(*found)
            far = Distance(1 << 28, near.estimate + (1 - near.estimate) / 2)
            distances = (Distance(0, 0.0), Distance(16, near.estimate), far, Distance(1 << 30, 1.0))
            writes = [WritesResult("host", "log", 1000, 8192.0, mean(0.0, 0.0), near, distances, self.holds)]
        shares = [
            SimpleNamespace(name=name, share=mean(*its[design, value]))
            for name, its in self.waits.items()
            if (design, value) in its
        ]
        return SimpleNamespace(devices=devices, writes=writes, sessions=SimpleNamespace(shares=shares))

    def throughput(self, design: str, value: Any) -> Any:
        found = self.done.get((design, value))
        return found and Point(value, (found[0] + found[1]) / 2, *found, None)

    def compared(self, design: str, against: str, value: Any, name: str, published: float | None = None) -> Any:
        found = self.longer.get((f"{design} over {against}", value))
        return found and Figure(name, "overhead", (found[0] + found[1]) / 2, *found, published)

    def why(self, design: str, value: Any) -> str:
        return self.bad.get(design, "")

    def left_out(self, values: Any) -> str:
        return "; ".join(f"{ISOLATED} at {value}: too large" for value in values if value in self.too_large)

    def part(self, value: Any) -> Any:
        def model(what: str, ms: float) -> DiskModelResult:
            figures = tuple(
                DiskModelFigure(kind, ms, ms, ms, 0.0) for kind in ("random_read_ms", "random_write_ms", "log_write_ms")
            )
            return DiskModelResult("here", "", (), f"{what} of Zhang et al. 2014", "", "", figures)

        return SimpleNamespace(result=SimpleNamespace(disk_models=(model("H-SSD", 0.1), model("SSD RAID", 0.25))))


def parts(**planted: Any) -> Parts:
    names = ("tenants", "placement", "disks", "size", "other_engine", "probes")
    return Parts(**{name: planted.get(name) for name in names})


def outcomes(claim: str, **planted: Any) -> tuple[str | None, str | None]:
    judged = RULES[claim](parts(**planted))
    return cast(Any, tuple(each and each.outcome for each in (judged.direction, judged.size)))


def test_every_claim_has_a_rule_and_none_decides_without_its_part() -> None:
    assert set(RULES) == {f"Z{number:02}" for number in range(1, 16)}
    for claim in RULES:
        assert {each for each in outcomes(claim) if each} == {"not measured"}


FASTER = {design: f"{design}, {ON_FASTER}" for design in (DEDICATED, SHARED, ISOLATED)}


def test_how_far_the_logs_writes_are_apart_is_told_beside_the_published_share() -> None:
    planted = PlantedSweep(writes={(FASTER[DEDICATED], 8): (0.2, 0.4)})
    size = RULES["Z05"](parts(placement=planted)).size
    assert size is not None and size.outcome == "not possible here"
    (figure,) = size.figures
    assert "134 to 537 million blocks" in figure.name and figure.published == 0.32
    assert figure.estimate == pytest.approx(0.35), "half of those that are not near"


@pytest.mark.parametrize(
    ("shared", "dedicated", "outcome"),
    [
        ((0.8, 0.9), (0.3, 0.4), "reproduced"),
        ((0.3, 0.4), (0.8, 0.9), "differs"),
        ((0.3, 0.6), (0.5, 0.9), "cannot tell"),
    ],
)
def test_a_log_is_more_sequential_by_the_writes_to_its_own_device(
    shared: tuple[float, float], dedicated: tuple[float, float], outcome: str
) -> None:
    writes = {(FASTER[SHARED], 8): shared, (FASTER[DEDICATED], 8): dedicated}
    assert outcomes("Z06", placement=PlantedSweep(writes=writes)) == (outcome, None)
    told = RULES["Z06"](parts(placement=PlantedSweep(writes=writes, holds="data and log"))).direction
    assert told is not None and told.outcome == "cannot tell", "what holds the data too says nothing of the log"


@pytest.mark.parametrize(
    ("shared", "outcome"), [((0.65, 0.75), "reproduced"), ((0.005, 0.007), "differs"), ((0.5, 0.9), "cannot tell")]
)
def test_waits_for_the_lock_of_the_log_with_the_papers_tenants(shared: tuple[float, float], outcome: str) -> None:
    """What the dedicated design waits for is no part of the claim."""
    waits = {Wait.LOG_INSERT_LOCK: {(SHARED, 16): shared, (SHARED, 32): (0.0, 0.01)}}
    assert outcomes("Z07", tenants=PlantedSweep(measured=(8, 16, 32), waits=waits)) == (None, outcome)
    assert outcomes("Z07", tenants=PlantedSweep(measured=(8, 32), waits=waits)) == (None, "not measured")


@pytest.mark.parametrize(
    ("at", "outcome"),
    [
        ({8: (0.3, 0.35), 16: (0.3, 0.35), 32: (0.05, 0.1)}, "reproduced"),
        ({8: (0.3, 0.35), 16: (0.3, 0.35)}, "cannot tell"),
        ({32: (0.05, 0.1)}, "cannot tell"),
        ({32: (0.3, 0.35)}, "differs"),
        ({8: (0.3, 0.35), 16: (0.1, 0.15), 32: (0.05, 0.1)}, "differs"),
        ({8: (0.3, 0.35), 16: (0.3, 0.35), 32: (0.3, 0.35)}, "differs"),
    ],
)
def test_processors_bind_the_dedicated_design_until_the_log_does(
    at: Mapping[int, tuple[float, float]], outcome: str
) -> None:
    """Half of it is on processors and half of it waits for one."""
    states = {name: {(DEDICATED, value): ends for value, ends in at.items()} for name in ("on_cpu", "run_queue")}
    assert outcomes("Z08", tenants=PlantedSweep(measured=tuple(at), waits=states)) == (outcome, None)


def test_no_share_of_a_design_that_failed_decides() -> None:
    waits = {Wait.LOG_INSERT_LOCK: {(SHARED, 16): (0.69, 0.71)}}
    sound = PlantedSweep(measured=(8, 16), waits=waits)
    assert outcomes("Z07", tenants=sound) == (None, "reproduced")
    assert outcomes("Z07", tenants=replace(sound, bad={SHARED: "it failed in 3 rounds"})) == (None, "cannot tell")
    states = {name: {(DEDICATED, value): (0.3, 0.35) for value in (8, 16)} for name in ("on_cpu", "run_queue")}
    differs = replace(
        sound, waits={name: {**its, (DEDICATED, 32): (0.3, 0.35)} for name, its in states.items()}, measured=(8, 16, 32)
    )
    assert outcomes("Z08", tenants=differs) == ("differs", None)
    assert outcomes("Z08", tenants=replace(differs, bad={DEDICATED: "its data are wrong"})) == ("cannot tell", None)


@pytest.mark.parametrize(
    ("failures", "invalid", "rounds", "expected"),
    [
        ([], None, 5, ""),
        (["a start failed"], None, 5, "a start failed"),
        ([], "its data are wrong afterwards", 5, "its data are wrong afterwards"),
        ([], None, 3, "3 rounds counted"),
        ([], None, 0, "0 rounds counted"),
    ],
)
def test_nothing_rests_on_a_design_that_failed_or_counts_in_few_rounds(
    failures: list[str], invalid: str | None, rounds: int, expected: str
) -> None:
    """However many rounds its run has."""
    asked = []

    def own_bars(arm: str) -> Bars:
        asked.append(arm)
        return Bars(invalid, tuple(failures))

    visits = [SimpleNamespace(arm="shared x8", round=index) for index in range(rounds)]
    visits += [SimpleNamespace(arm="dedicated x8", round=index) for index in range(9)]
    part = SimpleNamespace(
        book=SimpleNamespace(measured=SimpleNamespace(own_bars=own_bars, visits=visits)),
        too_few=lambda number: f"{number} rounds counted" if number < 5 else "",
    )
    swept = SimpleNamespace(
        by_value={8: part},
        designs_at={8: {SHARED: SimpleNamespace(name="shared x8")}},
        why_left_out=lambda value, design: f"{design} does not fit at {value}",
    )
    sweep = Sweep(cast(Any, swept))
    assert sweep.why(SHARED, 8) == expected and asked == ["shared x8"]
    assert sweep.why(ISOLATED, 8) == "isolated does not fit at 8"


def test_an_arm_that_was_left_out_everywhere_is_left_out_too() -> None:
    """Then no design of the sweep is called so."""
    left = [LeftOut(32, "qemu isolated x32", "too little memory"), LeftOut(64, "", "no value")]
    sweep = Sweep(cast(Any, SimpleNamespace(sweep=SimpleNamespace(left_out=left))))
    assert sweep.left_out((8, 32)) == "qemu isolated x32 at 32: too little memory"
    assert sweep.left_out((8, 16, 64)) == ""


def test_a_claim_about_every_design_is_not_reproduced_where_one_was_left_out() -> None:
    """It is refuted by one that was not."""
    pairs = {(f"{SHARED} over {DEDICATED}", value): (0.1, 0.2) for value in (8, 32)}
    pairs[f"{ISOLATED} over {DEDICATED}", 8] = (0.3, 0.4)

    class Left(PlantedSweep):
        def others(self, design: str, value: Any) -> Any:
            return (each for each in (SHARED, ISOLATED) if not (each == ISOLATED and value in self.too_large))

    left = Left(measured=(8, 32), longer=pairs, too_large=(32,))
    assert outcomes("Z01", tenants=left) == ("cannot tell", None)
    assert "too large" in (cast(Any, RULES["Z01"](parts(tenants=left))).direction.why or "")
    assert outcomes(
        "Z01", tenants=replace(left, longer={**pairs, (f"{SHARED} over {DEDICATED}", 32): (-0.2, -0.1)})
    ) == (
        "differs",
        None,
    )
    all_there = {**pairs, (f"{ISOLATED} over {DEDICATED}", 32): (0.3, 0.4)}
    assert outcomes("Z01", tenants=replace(left, longer=all_there, too_large=())) == ("reproduced", None)


@pytest.mark.parametrize(
    ("eight", "outcome"), [((0.1, 0.3), "reproduced"), ((-0.3, -0.1), "differs"), ((-0.1, 0.1), "cannot tell")]
)
def test_the_log_is_better_on_the_faster_device_at_every_number(eight: tuple[float, float], outcome: str) -> None:
    pair = f"{DEDICATED}, {ON_SLOWER} over {DEDICATED}, {ON_FASTER}"
    assert outcomes("Z09", placement=PlantedSweep(longer={(pair, 1): (0.2, 0.4), (pair, 8): eight})) == (outcome, None)


def probed(name: str = "qemu", emulated: bool = False, **overheads: tuple[float, float]) -> Any:
    """A part with probes by the name that the instrument gives them."""

    def comparison(estimand: str, metric: str) -> Any:
        assert metric == "event_time"
        found = overheads.get(estimand.removeprefix("query:"))
        return found and SimpleNamespace(
            estimate=(found[0] + found[1]) / 2, low_decisive=found[0], high_decisive=found[1], rounds=8, reason="",
            verdict=None,
        )  # fmt: skip

    def environment(_: str) -> Any:
        return SimpleNamespace(stack=[SimpleNamespace(environment=name)])

    experiment = SimpleNamespace(arm=environment)
    return SimpleNamespace(
        comparison=comparison, too_few=lambda rounds: "", barred="", arm=name, title=name,
        about=SimpleNamespace(emulated=emulated),
        run=SimpleNamespace(plan=SimpleNamespace(experiment=experiment)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "emulated", "longer", "size"),
    [
        ("xen", False, (0.01, 0.04), "reproduced"),
        ("xen", False, (0.1, 0.2), "differs"),
        ("vmware", False, (0.22, 0.28), "reproduced"),
        ("vmware", False, (0.01, 0.04), "differs"),
        ("qemu", False, (0.01, 0.04), "not possible here"),
        ("xen", True, (0.01, 0.04), "not possible here"),
        ("docker", False, (0.01, 0.04), "not possible here"),
    ],
)
def test_prime_numbers_are_held_against_the_papers_hypervisor(
    environment: str, emulated: bool, longer: tuple[float, float], size: str
) -> None:
    part = probed(environment, emulated, primes_x8=longer, primes_x16=longer)
    assert outcomes("Z10", probes=part) == ("reproduced", size)
    assert outcomes("Z10", probes=probed(environment, emulated, primes_x8=longer)) == ("cannot tell", "cannot tell")


def test_small_arrays_lose_more_than_large_ones_each_of_each() -> None:
    small, large = dict.fromkeys(SMALL, (0.5, 0.6)), dict.fromkeys(LARGE, (0.0, 0.1))
    assert outcomes("Z11", probes=probed(**small, **large)) == ("reproduced", None)
    assert outcomes("Z11", probes=probed(**{**small, **large, LARGE[0]: (0.7, 0.8)})) == ("differs", None)
    assert outcomes("Z11", probes=probed(**{**small, **large, LARGE[0]: (0.0, 0.55)})) == ("cannot tell", None)


SIZES = (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("second", "last", "outcome"),
    [
        ((95.0, 100.0), (40.0, 50.0), "reproduced"),
        ((60.0, 70.0), (40.0, 50.0), "differs"),
        ((95.0, 100.0), (90.0, 99.0), "differs"),
        ((95.0, 100.0), (60.0, 90.0), "cannot tell"),
    ],
)
def test_throughput_holds_until_memory_is_outgrown(
    second: tuple[float, float], last: tuple[float, float], outcome: str
) -> None:
    done = {
        (design, value): ends
        for design in (SHARED, DEDICATED)
        for value, ends in ((1, (100.0, 102.0)), (2, second), (4, (60.0, 65.0)), (8, last))
    }
    assert outcomes("Z12", size=PlantedSweep(measured=SIZES, outgrown=SIZES[2:], done=done)) == (outcome, None)
    for measured, outgrown in ((SIZES[:2], ()), (SIZES, ()), (SIZES, SIZES[1:]), (SIZES, SIZES)):
        lacking = PlantedSweep(measured=measured, outgrown=outgrown, done=done)
        assert outcomes("Z12", size=lacking) == ("cannot tell", None)
    crowded = PlantedSweep(measured=SIZES, outgrown=SIZES[2:], between=SIZES[1:2], done=done)
    assert outcomes("Z12", size=crowded) == ("cannot tell", None), "beside its pools the second size does not fit"


def test_one_pool_is_best_where_memory_is_outgrown_most() -> None:
    pair = f"{DEDICATED} over {SHARED}"
    both = {(pair, 4): (0.1, 0.2), (pair, 8): (0.2, 0.5), (pair, 1): (-0.2, -0.1)}
    assert outcomes("Z13", size=PlantedSweep(measured=SIZES, outgrown=SIZES[2:], longer=both)) == ("reproduced", None)
    assert (
        outcomes(
            "Z13", size=PlantedSweep(measured=SIZES, outgrown=SIZES[2:], longer={**both, (pair, 4): (-0.2, -0.1)})
        )[0]
        == "differs"
    )
    assert (
        outcomes("Z13", size=PlantedSweep(measured=SIZES, outgrown=SIZES[2:], longer={**both, (pair, 4): (-0.2, 0.1)}))[
            0
        ]
        == "cannot tell"
    )


def devices(data: tuple[float, float], log: tuple[float, float]) -> Planted:
    return {
        (f"{design}, {role}", value): ends
        for design in (DEDICATED, SHARED)
        for role, ends in (("data", data), ("log", log))
        for value in SIZES
    }


def test_the_datas_device_is_busy_and_the_logs_is_less_so() -> None:
    def judged(data: tuple[float, float], log: tuple[float, float]) -> str | None:
        return outcomes("Z15", size=PlantedSweep(measured=SIZES, outgrown=SIZES[2:], busy=devices(data, log)))[0]

    assert judged((0.96, 0.99), (0.3, 0.5)) == "reproduced"
    assert judged((0.90, 0.94), (0.3, 0.5)) == "differs"
    assert judged((0.93, 0.97), (0.3, 0.5)) == "cannot tell"
    assert judged((0.96, 0.98), (0.99, 1.0)) == "differs"


def test_no_claim_about_larger_databases_rests_on_smaller_ones() -> None:
    pair = f"{DEDICATED} over {SHARED}"
    smaller = PlantedSweep(
        measured=SIZES[:2],
        longer={(pair, 1): (0.1, 0.2), (pair, 2): (0.1, 0.2)},
        busy=devices((0.96, 0.99), (0.3, 0.5)),
    )
    for claim in ("Z13", "Z15"):
        assert outcomes(claim, size=smaller) == ("not measured", None)


def test_of_the_sizes_that_are_measured_by_default_two_fit_into_the_memory_and_the_last_outgrows_it() -> None:
    paper = registry.find("papers", "zhang2014")()
    part = next(part for part in paper.about.parts if part.role == "size")
    variable, _, values = part.over.partition("=")
    assert variable == "warehouses"

    def sizes(**variables: str) -> Sweep:
        arms = {
            int(value): {
                arm.name: arm
                for arm in spec.read(paper.folder / part.file, variables={variable: value, **variables})[0].arms
            }
            for value in values.split(",")
        }
        return Sweep(cast(Any, SimpleNamespace(by_value=arms, designs_at=arms)))

    assert (sizes().fitting, sizes().outgrown) == ((1, 2), (8,))
    assert sizes(memory="1 GiB").fitting == (1,), "its device was busy for half of the time with two"


def test_a_part_of_one_run_that_this_machine_cannot_run_is_left_out_beforehand() -> None:
    paper = registry.find("papers", "zhang2014")()
    probes = next(part for part in paper.about.parts if part.role == "probes")
    tenants = next(part for part in paper.about.parts if part.role == "tenants")
    uml = {"environment": "uml"}
    why = reproduce._unfit(paper.folder / probes.file, probes, uml, exclusive=False)
    assert (
        why.startswith("uml: it shall have 2 processors, and of User Mode Linux there is one machine")
        and "cpus = 1" in why
    )
    assert reproduce._unfit(paper.folder / probes.file, probes, {**uml, "cpus": "1"}, exclusive=False) == ""
    assert reproduce._unfit(paper.folder / tenants.file, tenants, uml, exclusive=False) == "", (
        "a sweep leaves arms out itself"
    )


# --- tables ------------------------------------------------------------------------------------------------------------------


def shown(table: PublishedTable) -> dict[str, list[str]]:
    """Head of a row -> its cells as people read them."""
    return {
        str(row[0]): [
            published.cell_text(cell, column, 0.02) for cell, column in zip(row[1:], table.columns, strict=True)
        ]
        for row in table.rows
    }


def test_tables_of_the_placement_have_the_papers_figures_and_ours() -> None:
    busy: dict[tuple[str, int], tuple[float, float]] = {
        (f"{design}, {log}, {role}", value): (0.4, 0.6)
        for design in (DEDICATED, ISOLATED)
        for log in (ON_FASTER, ON_SLOWER)
        for role in ("data", "log")
        for value in (1, 8)
    }
    slower_over_faster = {
        (f"{design}, {ON_SLOWER} over {design}, {ON_FASTER}", value): (0.1, 0.3)
        for design in (DEDICATED, SHARED, ISOLATED)
        for value in (1, 8)
    }
    writes = {(FASTER[SHARED], 8): (0.8, 0.9), (FASTER[ISOLATED], 8): (0.3, 0.4)}
    planted = PlantedSweep(writes=writes, busy=busy, longer=slower_over_faster)
    tables = {each.name: each for each in reproduced.find_all(parts(placement=planted))}
    assert list(tables) == ["Table 1", "Figures 3, 4 and 6", "Table 2", "Table 4", "Table 6", "Table 7"]
    first = {
        head: [cell.replace("\N{NARROW NO-BREAK SPACE}", " ") for cell in its]
        for head, its in shown(tables["Table 1"]).items()
    }
    assert first["random read"] == ["13 692", "3 084", "10 000", "4 000"]
    assert first["sequential read"][2:] == ["–", "–"]
    assert shown(tables["Table 2"])["shared, 8 tenants"][0] == "slower"
    assert shown(tables["Table 2"])["isolated, 8 tenants"][0] == "faster"
    fourth = shown(tables["Table 4"])["dedicated, log on the faster, log, busy [%]"]
    assert fourth[0] == "29.60" and fourth[-1].startswith("50 ")
    for name, who in (("Table 6", "VMware"), ("Table 7", "Xen")):
        its = shown(tables[name])[f"{who} beside our isolated design, log, busy [%]"]
        assert its[-1].startswith("50 "), its
    figure = tables["Figures 3, 4 and 6"]
    near = shown(figure)["shared, 8 tenants"][2]
    assert near == "85.0 (80.0 … 90.0)\N{NARROW NO-BREAK SPACE}%", "a share has no sign"
    ((_, shared_curve), (isolated_curve, _)) = (
        (curve.name, curve) if curve.name == SHARED else (curve, curve.name) for curve in figure.curves[0].curves
    )
    assert shared_curve.figures[1].estimate == pytest.approx(85.0) and isolated_curve.figures[-1] == Quantity(100.0)


def test_tables_of_the_other_parts_have_a_row_for_each_figure_of_theirs() -> None:
    done = {(design, value): (90.0, 110.0) for design in (SHARED, DEDICATED) for value in SIZES}
    waits = {name: {(SHARED, value): (0.4, 0.6) for value in SIZES} for name in ("on_cpu", "other_locks")}

    def swept(**planted: Any) -> Any:
        made = PlantedSweep(measured=SIZES, **planted)
        object.__setattr__(made, "result", SimpleNamespace(designs=(DEDICATED, SHARED), units={"throughput": "tpmC"}))
        return made

    found = parts(
        other_engine=swept(done=done, waits=waits),
        size=swept(done=done, busy=devices((0.9, 1.0), (0.2, 0.4))),
        probes=probed(primes=(0.1, 0.2), primes_x16=(0.2, 0.3), lookups_4m=(0.0, 0.1)),
    )
    tables = {each.name: each for each in reproduced.find_all(found)}
    assert list(tables) == ["Figure 9", "Figure 10", "Figure 12", "Figure 13", "Figure 16", "Table 8a"]
    assert shown(tables["Figure 10"])["shared, 4 tenants"][0].startswith("50 ")
    assert shown(tables["Figure 12"])["primes, 16 at once"][0].startswith("+25")
    assert shown(tables["Figure 13"])["lookups_4m, 1 at once"][0].startswith("+5")
    assert shown(tables["Figure 16"])["8"][0].startswith("100 ")
    assert shown(tables["Table 8a"])["dedicated, data, busy [%]"][4].startswith("100"), "the paper's, of 240 warehouses"
    assert shown(tables["Table 8a"])["dedicated, log, service time [ms]"][-1].startswith("0.20")
