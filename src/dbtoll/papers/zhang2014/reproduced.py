"""The tables and figures with this machine's figures beside the printed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dbtoll.analysis.reproduction.published import Row, tables_beside
from dbtoll.analysis.reproduction.tables import (
    Cell,
    Column,
    Curve,
    Curves,
    Difference,
    PublishedTable,
    Quantity,
    Unit,
    compared,
)
from dbtoll.analysis.reproduction.verdicts import Figure, above
from dbtoll.analysis.result.schema import Mean
from dbtoll.model.experiment import Verdict
from dbtoll.papers.zhang2014.parts import DEDICATED, ISOLATED, ON_FASTER, ON_SLOWER, SHARED, Parts, Sweep, tenants_text
from dbtoll.papers.zhang2014.verdicts import LARGE, PRIMES, SMALL, TIMES

table = tables_beside(__file__)

NOT_PRINTED = "The paper draws these figures; of their numbers it prints those that its claims name."
INSTANCES = (1, 2, 4, 8, 16)


def find_all(parts: Parts) -> Iterator[PublishedTable]:
    """In the paper's order; those of a part that was not run are left out."""
    if parts.placement is not None:
        yield _device_rates(parts.placement)
    if parts.tenants is not None:
        note = (
            "Ours is of one device that holds data and log; the paper has them apart, each design at its best place. "
        )
        yield _throughput(parts.tenants, "Figure 2", "Throughput of the designs on the fast device", "tenants", note)
    if parts.placement is not None:
        yield _distances(parts.placement)
    if parts.tenants is not None:
        note = (
            "The text names two figures: with 16 tenants 70 % of the shared design's time is a wait for the WAL "
            "insert lock, and with 32 the dedicated one's is on or waiting for processors for less than 30 %. "
            "Ours is of one device that holds data and log."
        )
        yield _time_split(parts.tenants, "Figures 5, 7 and 8", "Where the time of the servers goes", note)
    if parts.placement is not None:
        yield _placement(parts.placement)
        yield from _devices_by_tenants(parts.placement)
    if parts.other_engine is not None:
        title = "Throughput of the designs with MariaDB, in the place of the closed engine"
        yield _throughput(parts.other_engine, "Figure 9", title, "tenants")
        title = "Where the time of MariaDB's servers goes"
        yield _time_split(
            parts.other_engine,
            "Figure 10",
            title,
            "The paper's is of the closed engine, which had no dedicated design; 40 % of the shared one's time were locks.",
        )
    if parts.probes is not None:
        yield _probes(parts, "Figure 12", "Search for prime numbers", (PRIMES,))
        yield _probes(parts, "Figure 13", "Look-ups in arrays", (*SMALL, *LARGE))
    if parts.size is not None:
        note = "Of each of four tenants: the paper has eight of 15 to 240, and more memory. "
        yield _throughput(parts.size, "Figure 16", "Throughput as the databases outgrow the memory", "warehouses", note)
        yield _devices_by_size(parts.size)
    if parts.disks is not None:
        note = "Ours are two models of a disk of 7200 revolutions. "
        yield _throughput(parts.disks, "Figure 17", "Throughput on hard disks", "tenants", note)


def _throughput(sweep: Sweep, name: str, title: str, places: str, note: str = "") -> PublishedTable:
    note = f"Of all tenants of a design together. {note}{NOT_PRINTED}"
    designs = sweep.result.designs
    unit: Unit = "tpmC" if sweep.throughput_unit == "tpmC" else "transactions/s"
    columns = tuple(Column(design, unit, True) for design in designs)
    rows: list[tuple[Cell, ...]] = []
    drawn: dict[str, list[tuple[int, Quantity]]] = {design: [] for design in designs}
    for value in sweep.values:
        cells: list[Cell] = []
        for design in designs:
            point = sweep.throughput(design, value)
            if point is None or point.estimate is None:
                cells.append(point.reason if point else None)
                continue
            cells.append(found := Quantity(point.estimate, point.low, point.high))
            drawn[design].append((value, found))
        rows.append((str(value), *cells))
    curves = tuple(
        Curve(design, True, tuple(place for place, _ in its), tuple(figure for _, figure in its))
        for design, its in drawn.items()
        if its
    )
    return PublishedTable(
        name, title, columns, tuple(rows), note, rows_are=places,
        curves=(Curves(title, curves),) if curves else (), places=places, of=unit,
    )  # fmt: skip


def _percent(mean: Mean | None) -> Cell:
    if mean is None:
        return None
    low, high = (None if bound is None else bound * 100 for bound in (mean.low, mean.high))
    return Quantity(mean.estimate * 100, low, high)


def _distances(sweep: Sweep) -> PublishedTable:
    """Of the writes to the log's own device, the faster one; drawn at the most tenants."""
    columns = (
        Column("writes", "count", True), Column("begin where the one before ended", "percent of all", True),
        Column("at most 16 blocks away", "percent of all", True), Column("at most 2^20 blocks away", "percent of all", True),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    curves = []
    for value in sweep.values:
        for design in (DEDICATED, SHARED, ISOLATED):
            found = sweep.log_writes(f"{design}, {ON_FASTER}", value)
            if found is None:
                continue
            shares = _percent(found.sequential), _percent(found.near), 100 * found.within(1 << 20)
            rows.append((f"{design}, {tenants_text(value)}", float(found.count), *shares))
            if value == sweep.values[-1]:
                curves.append(
                    Curve(design, True, DISTANCES, tuple(Quantity(100 * found.within(each)) for each in DISTANCES))
                )
    title = "Distances between writes of the log"
    note = (
        "Distances between successive writes to the device of all logs, blocks of 512 bytes; drawn is the share of the writes that "
        f"are no farther away, {tenants_text(sweep.values[-1])}, of those of all rounds together. "
        f"Shares with an interval are means over rounds. {NOT_PRINTED}"
    )
    return PublishedTable(
        "Figures 3, 4 and 6", title, columns, tuple(rows), note, "design",
        curves=(Curves(title, tuple(curves)),) if curves else (), places="blocks", of="percent of all",
    )  # fmt: skip


DISTANCES = tuple(1 << power for power in (0, 4, 10, 16, 22, 30))
"""Blocks, at which the curves have a point."""


def _time_split(sweep: Sweep, name: str, title: str, note: str) -> PublishedTable:
    states = list(
        dict.fromkeys(
            name for value in sweep.values for design in sweep.result.designs for name in sweep.shares(design, value)
        )
    )
    columns = tuple(Column(state.replace("_", " "), "percent of all", True) for state in states)
    rows: list[tuple[Cell, ...]] = []
    for value in sweep.values:
        for design in sweep.result.designs:
            shares = sweep.shares(design, value)
            if shares:
                rows.append((f"{design}, {tenants_text(value)}", *(_percent(shares.get(state)) for state in states)))
    note = f"Shares of the time of the sessions that serve terminals. {note}"
    return PublishedTable(name, title, columns, tuple(rows), note, "design")


PATTERNS = {"random_read": "random_read_ms", "sequential_write": "log_write_ms", "random_write": "random_write_ms"}
"""Of Table 1, and what a disk model is asked for before a run."""


def _device_rates(sweep: Sweep) -> PublishedTable:
    """Of the two devices, which here are models made of that table."""
    columns = (
        Column("H-SSD", "per second", False), Column("SSD RAID", "per second", False),
        Column("model of H-SSD", "per second", True), Column("model of SSD RAID", "per second", True),
    )  # fmt: skip
    measured = {
        (model.what, figure.kind): 1000 / figure.measured
        for model in sweep.part(sweep.values[-1]).result.disk_models
        for figure in model.figures
    }
    rows: list[tuple[Cell, ...]] = []
    for row in table("table1_device_iops"):
        kind = PATTERNS.get(row["pattern"], "")
        ours = (
            next((rate for (what, its), rate in measured.items() if name in what and its == kind), None)
            for name in DISKS
        )
        rows.append((row["pattern"].replace("_", " "), float(row["hssd_iops"]), float(row["ssd_raid_iops"]), *ours))
    note = (
        "Requests a second. Ours are of 8 KiB, one at a time, on an empty disk before the run; a sequential write is one of a log. "
        "Sequential reads are not asked for."
    )
    return PublishedTable("Table 1", "What the devices do", columns, tuple(rows), note, "pattern")


DISKS = "H-SSD", "SSD RAID"


def _placement(sweep: Sweep) -> PublishedTable:
    """Table 2 says which placement is the best of each design; ours is what the other one costs."""
    printed = {
        row["design"]: row["log_disk"] for row in table("table2_best_placement") if row["engine"] == "postgresql"
    }
    assert printed["xen"] == printed["vmware"]
    best = {DEDICATED: printed[DEDICATED], SHARED: printed[SHARED], ISOLATED: printed["xen"]}
    columns = (
        Column("best: log on the", "text", False), Column("log on the slower over log on the faster", "difference", True),
        Column("verdict", "verdict", True),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for design, device in best.items():
        for value in sweep.values:
            figure = sweep.compared(f"{design}, {ON_SLOWER}", f"{design}, {ON_FASTER}", value, design)
            faster = "faster" if device == "H-SSD" else "slower"
            rows.append((f"{design}, {tenants_text(value)}", faster, *_found(figure)))
    note = (
        "Ours is the throughput with the log on the slower device, against that with it on the faster one. The paper's isolated "
        "designs, Xen's and VMware's, have the same best place."
    )
    return PublishedTable("Table 2", "The best placement of the log", columns, tuple(rows), note, "design")


def _found(figure: Figure | None) -> tuple[Cell, Cell]:
    if figure is None:
        return None, "not measured in this run"
    if figure.why or figure.low is None:
        return None, figure.why or Verdict.CANNOT_TELL
    sign = above(figure)
    verdict = Verdict.CANNOT_TELL if sign is None else Verdict.LOSES if sign else Verdict.GAINS
    return Difference("time_per_transaction", figure.estimate, figure.low, figure.high), verdict


PRINTED = {"svctm_ms": ("service time", "ms"), "util_pct": ("busy", "%")}


@dataclass(frozen=True)
class Beside:
    """What of ours stands beside a printed row: an arm, which of its devices, and who looks at it."""

    design: str
    holds: str
    where: str = "host"
    printed_of: str = ""
    """The paper's design, where ours is another."""

    def cell(self, sweep: Sweep, value: int, metric: str) -> Cell:
        """Service time in ms, or the share of the time in which it was busy."""
        found = sweep.device(self.design, value, self.holds, self.where)
        if found is None:
            return None
        if metric == "util_pct":
            return _percent(found.utilisation)
        service = found.service_ns
        if service is None:
            return None
        low, high = (None if bound is None else bound / 1e6 for bound in (service.low, service.high))
        return Quantity(service.estimate / 1e6, low, high)

    def named(self, what: str, unit: str) -> str:
        """``dedicated, log on the faster, log, busy [%]``"""
        return ", ".join(each for each in (self.printed_of or self.design, self.holds, f"{what} [{unit}]") if each)


def _devices(
    name: str, title: str, rows: Sequence[Row], sweep: Sweep, printed_at: Sequence[int], column: str,
    ours: Callable[[Row], Beside], note: str,
) -> PublishedTable:  # fmt: skip
    """``ours``: of a printed row what stands beside it."""
    columns = (
        *(Column(f"{place}", "count", False, 2) for place in printed_at),
        *(Column(f"{value}, measured", "count", True) for value in sweep.values),
    )
    made: list[tuple[Cell, ...]] = []
    for row in rows:
        beside = ours(row)
        made.append(
            (
                beside.named(*PRINTED[row["metric"]]),
                *(float(text) if (text := row.get(f"{column}_{place}")) else None for place in printed_at),
                *(beside.cell(sweep, value, row["metric"]) for value in sweep.values),
            )
        )
    return PublishedTable(name, title, columns, tuple(made), note, rows_are="device")


TENANTS = (1, 2, 4, 8, 16, 32)


def _devices_by_tenants(sweep: Sweep) -> Iterator[PublishedTable]:
    printed = table("disk_statistics_by_tenants")

    def of(source: str) -> list[Row]:
        return [row for row in printed if row["source"].startswith(source)]

    def placed(row: Row, design: str) -> str:
        return f"{design}, {ON_FASTER if row['log_disk'] == 'H-SSD' else ON_SLOWER}"

    note = "Columns are numbers of tenants. Both of our devices are models of the paper's, one queue each."
    yield _devices(
        "Table 4", "Devices of the dedicated design", of("table4"), sweep, TENANTS, "tenants",
        lambda row: Beside(placed(row, DEDICATED), row["disk_role"]), note,
    )  # fmt: skip

    def guests(who: str, where: str) -> Callable[[Row], Beside]:
        name = f"{who} beside our isolated design"
        return lambda row: Beside(placed(row, ISOLATED), row["disk_role"], where, name)

    note += " A container has no device of its own, and none to be seen inside."
    yield _devices(
        "Table 6", "The log's device of guests, as a guest sees it", of("table6"), sweep, TENANTS, "tenants",
        guests("VMware", "inside"), note,
    )  # fmt: skip
    yield _devices(
        "Table 7", "The log's device of guests, as the host sees it", of("table7"), sweep, TENANTS, "tenants",
        guests("Xen", "host"), note,
    )  # fmt: skip


def _devices_by_size(sweep: Sweep) -> PublishedTable:
    rows = [row for row in table("table8_disk_statistics_by_warehouses") if row["design"] == DEDICATED]
    note = (
        "Columns are warehouses of each tenant: the paper's eight tenants have 15 to 240. Ours are fewer, with less memory, so "
        "that it is outgrown within the sweep too. Table 8b is of Xen's guests, which this part has not."
    )
    return _devices(
        "Table 8a", "Devices as the databases outgrow the memory", rows, sweep, (15, 30, 60, 120, 240), "warehouses",
        lambda row: Beside(row["design"], row["disk_role"]), note,
    )  # fmt: skip


def _probes(parts: Parts, name: str, title: str, probes: Sequence[str]) -> PublishedTable:
    assert parts.probes is not None
    part = parts.probes
    columns = (
        Column(f"{parts.environment or part.title} over native", "difference", True),
        Column("verdict", "verdict", True),
    )
    rows: list[tuple[Cell, ...]] = []
    for probe in probes:
        for instances in INSTANCES:
            known = probe if instances == 1 else f"{probe}{TIMES}{instances}"
            found = part.comparison(f"query:{known}", "event_time")
            rows.append((f"{probe}, {instances} at once", *compared("event_time", found)))
    note = f"Intervals are adjusted over all probes (Holm). {NOT_PRINTED}"
    return PublishedTable(name, title, columns, tuple(rows), note, rows_are="probe")
