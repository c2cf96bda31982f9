"""The paper's figures and tables with this machine's figures beside the printed ones (docs/method/muehlbauer2015.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dbtoll.analysis.effects.comparisons import Effect
from dbtoll.analysis.reproduction.tables import (
    Cell,
    Column,
    Curve,
    Curves,
    Difference,
    PublishedTable,
    Quantity,
    compared,
)
from dbtoll.analysis.result.schema import fractions
from dbtoll.papers.muehlbauer2015 import figure5
from dbtoll.papers.muehlbauer2015.parts import (
    CONTAINER,
    IN_MEMORY,
    MONETDB,
    REMOTE,
    SYSTEMS,
    TRANSACTIONS,
    Part,
    Parts,
)
from dbtoll.papers.muehlbauer2015.published import (
    BARE,
    FIRST,
    LATER,
    MEANS,
    MOST,
    overhead,
    seconds,
    speed_ups,
    spread,
    table,
    threads_of,
)
from dbtoll.papers.muehlbauer2015.verdicts import BUS, CALLS, FAULTS, MICRO, MICRO_CALLS, TRANSLATION

ENVIRONMENTS = {
    BARE: "bare metal",
    "docker": "Docker",
    "kvm": "KVM",
    "virtualbox": "VirtualBox",
    "virtualbox-shm": "VirtualBox, files in memory",
}
"""As the tables call them -> as they are shown."""
IN_MEMORY_THERE = "virtualbox-shm"

STATISTICS = (MEANS, LATER, FIRST)

LATER_AND_FIRST = (
    "First runs after a start are apart: of the paper's ten runs of a query, in one life of one server, the later nine are the "
    "point; its own figures are of all ten."
)
SPLIT_OFF = "Queries whose plans differ between arms or rounds are in none of our totals; they are listed apart."


def find_all(parts: Parts) -> Iterator[PublishedTable]:
    """In the paper's order; those of a part that was not run are left out. Raises UsageError for samples of another form."""
    printed = PrintedFigures(parts.samples)
    systems = {role: part for role in SYSTEMS if (part := parts.get(role)) is not None}
    if (probes := parts.get("probes")) is not None:
        yield _events(probes)
    if systems:
        yield _figure2(printed, systems)
        for role, part in systems.items():
            yield _by_query(printed, SYSTEMS[role], part)
        yield _changed_plans(printed, systems)
        if any(part.threads for part in systems.values()):
            yield _figure3(printed, systems)
    if (storage := parts.get("storage")) is not None:
        yield _figure4(printed, storage)
    for role, title in TRANSACTIONS.items():
        if (part := parts.get(role)) is not None:
            for each in figure5.tables(part.result, role):
                yield replace(each, name=f"Figure 5 {title}", title=f"throughput of {title}")
    remote = {role: part for role in (*SYSTEMS, *TRANSACTIONS) if (part := parts.get(REMOTE + role)) is not None}
    if remote:
        yield _table2(remote)


# --- which of ours stands where ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One of the paper's environments, one of our arms, or both."""

    environment: str | None
    ours: Part | None

    @property
    def title(self) -> str:
        if self.environment is not None:
            return ENVIRONMENTS[self.environment]
        return self.ours.title if self.ours is not None else ""


def _rows(part: Part, system: str) -> list[Row]:
    """The paper's environments of that system in its order, then arms of ours that are of none of these kinds."""
    printed = [name for name in ENVIRONMENTS if threads_of(system, name)]
    arms: dict[str | None, list[Part | None]] = {BARE: [part.of(part.baseline)]}
    for name in part.arms:
        arm = part.of(name)
        place = {CONTAINER: "docker", IN_MEMORY: IN_MEMORY_THERE}.get(name, arm.stands_for)
        arms.setdefault(place if place in printed else None, []).append(arm)
    found = [Row(name, arm) for name in printed for arm in arms.get(name) or [None]]
    return found + [Row(None, arm) for arm in arms.get(None, [])]


def _effect(effect: Effect | None) -> tuple[Cell, Cell]:
    """What decides, and what first runs show; the second has the interval that is shown of it."""
    if effect is None:
        return None, None
    cells: list[Cell] = []
    for interval in (effect.decisive, effect.first_execution):
        found = fractions(interval)
        cells.append(None if found is None else Difference("run_time", found.estimate, found.low, found.high))
    return cells[0], cells[1]


@dataclass(frozen=True, slots=True)
class PrintedFigures:
    """What the paper found, as differences. ``samples``: its authors' own, which have intervals; the tables carry none."""

    samples: Path | None

    def difference(
        self, system: str, threads: int, environment: str | None, statistic: str, queries: Collection[str] | None = None
    ) -> Cell:
        """None where the paper has none."""
        if environment in (None, BARE):
            return None
        found = overhead(system, threads, str(environment), statistic, queries)
        if found is None:
            return None
        bounds: tuple[float | None, float | None] = (None, None)
        if self.samples is not None and statistic == LATER:
            bounds = spread(self.samples, system, threads, str(environment), queries)
        return Difference("run_time", found, *bounds)

    def differences(
        self,
        system: str,
        environment: str | None,
        statistics: Sequence[str] = STATISTICS,
        queries: Collection[str] | None = None,
    ) -> list[Cell]:
        """At the most threads, by each of the statistics."""
        return [self.difference(system, MOST, environment, each, queries) for each in statistics]

    @property
    def note(self) -> str:
        """What its intervals are."""
        if self.samples is None:
            return "Its intervals are left out: the authors' samples were not named (--samples)."
        return "Its intervals are over the later runs of one server life: they say nothing about another start."


def _ours(row: Row, threads: int | None) -> tuple[Cell, ...]:
    """Arm, seconds, difference, the same of first runs, verdict."""
    part = row.ours
    if part is None:
        return (None, None, None, None, "not measured in this run")
    time = part.seconds(threads, part.arm)
    if part.arm == part.baseline:
        return (part.title, time, None, None, "baseline")
    effect = part.total(threads)
    return (part.title, time, *_effect(effect), _verdict(part, effect))


def _verdict(part: Part, effect: Effect | None) -> Cell:
    """Or in its place why there is none."""
    if effect is None:
        return "a query was not measured, or none has the same plan everywhere"
    return part.barred or effect.reason or part.too_few(effect.rounds) or effect.verdict


DIFFERENCES = (
    Column("as printed", "difference", False),
    Column("later runs", "difference", False, mark="point"),
    Column("first runs", "difference", False, mark="hollow"),
)
OURS = (
    Column("arm", "text", True),
    Column("time", "s", True),
    Column("difference", "difference", True, mark="point"),
    Column("first runs", "difference", True, mark="hollow"),
    Column("verdict", "verdict", True),
)
# --- the tables --------------------------------------------------------------------------------------------------------


def _events(part: Part) -> PublishedTable:
    columns = (
        Column("up to", "difference", False, mark="point"),
        Column(part.baseline, "ns", True),
        Column("difference", "difference", True, mark="point"),
        Column("verdict", "verdict", True),
    )
    most = {**dict.fromkeys((*TRANSLATION, *FAULTS), MICRO), **dict.fromkeys(CALLS, MICRO_CALLS)}
    rows: list[tuple[Cell, ...]] = []
    for probe in part.run.plan.queries:
        native = part.book.cost_ns(part.baseline, probe)
        for arm in part.arms:
            ours = part.of(arm)
            # The paper says it of its guests.
            printed = Difference("event_time", most[probe]) if probe in most and arm == part.arm else None
            found = compared("event_time", ours.comparison(f"query:{probe}", "event_time"))
            rows.append((f"{probe}, {ours.title}", printed, native, *found))
    note = (
        "What one event costs, as probed. chase_…: an access to memory; memory_…: a cache line of 64 bytes "
        f"({', '.join(BUS)}). The paper has no table of these; its text says up to how much."
    )
    rows_are = "event, environment"
    return PublishedTable("Section 2", "what single events cost", columns, tuple(rows), note, rows_are=rows_are)


def _figure2(printed: PrintedFigures, systems: dict[str, Part]) -> PublishedTable:
    columns = (Column("time", "s", False, decimals=2), *DIFFERENCES, *OURS)
    rows: list[tuple[Cell, ...]] = []
    for role, part in systems.items():
        system = SYSTEMS[role]
        for row in _rows(part, system):
            if row.environment == IN_MEMORY_THERE:
                continue
            time = None if row.environment is None else seconds(system, MOST, row.environment)
            differences = printed.differences(system, row.environment)
            rows.append((f"{system}, {row.title}", time, *differences, *_ours(row, part.most)))
    most = sorted({part.most for part in systems.values() if part.most is not None})
    scales = sorted(
        {str(part.run.plan.experiment.configuration.workload.options.get("scale")) for part in systems.values()}
    )
    numbers = ", ".join(map(str, most)) or "the default number of"
    note = f"The paper's: {MOST} threads, scale factor 10; ours: {numbers} threads, scale factor {', '.join(scales)}. "
    note += f"{LATER_AND_FIRST} {printed.note} {SPLIT_OFF}"
    return PublishedTable("Figure 2", "run time of TPC-H", columns, tuple(rows), note, rows_are="system, environment")


def _by_query(printed: PrintedFigures, system: str, part: Part) -> PublishedTable:
    kind = part.stands_for if part.stands_for in ("kvm", "virtualbox") else "kvm"
    columns = (
        *(replace(column, name=f"{column.name}, {ENVIRONMENTS[kind]}") for column in DIFFERENCES[1:]),
        Column(part.title, "difference", True, mark="point"),
        Column("first runs", "difference", True, mark="hollow"),
        Column("plan", "text", True),
        Column("verdict", "verdict", True),
    )
    changed = part.changed_plans(part.most)
    rows: list[tuple[Cell, ...]] = []
    for query in part.run.plan.queries:
        differences = printed.differences(system, kind, STATISTICS[1:], [query])
        ours = part.comparison(f"query:{query}", **part.at(part.most))
        difference, verdict = compared("run_time", ours)
        first = None if ours is None or ours.estimate is None else ours.first_execution
        of_first = None if first is None else Difference("run_time", first.estimate, first.low, first.high)
        rows.append((query, *differences, difference, of_first, changed.get(query, "the same"), verdict))
    return PublishedTable(f"Figure 2 {system}", "each query", columns, tuple(rows), f"{LATER_AND_FIRST} {printed.note}")


def _changed_plans(printed: PrintedFigures, systems: dict[str, Part]) -> PublishedTable:
    columns = (
        Column("KVM, later runs", "difference", False),
        Column("arm", "text", True),
        Column("threads", "text", True),
        Column("in what", "text", True),
        Column("difference", "difference", True),
    )
    rows: list[tuple[Cell, ...]] = []
    for role, part in systems.items():
        for threads in part.threads or (None,):
            for arm in part.arms:
                own = part.of(arm)
                for query, what in own.changed_plans(threads).items():
                    theirs = printed.difference(SYSTEMS[role], MOST, "kvm", LATER, [query])
                    ours = own.comparison(f"query:{query}", **own.at(threads))
                    rows.append((
                        f"{SYSTEMS[role]}, {query}", theirs,
                        own.title, "" if threads is None else str(threads), what,
                        compared("run_time", ours)[0],
                    ))  # fmt: skip
    note = (
        "Their overhead is that of another plan, so no total has them."
        if rows
        else "No plan changed, in no arm and no round."
    )
    note += " Of the paper's nobody knows the plans; Q9 is half of MonetDB's loss in KVM, and most likely has another one there."
    return PublishedTable("Changed plans", "queries that are split off", columns, tuple(rows), note)


def _figure3(printed: PrintedFigures, systems: dict[str, Part]) -> PublishedTable:
    columns = (
        Column("time", "s", False, decimals=2),
        Column("speed-up", "times", False),
        Column("later runs", "difference", False, mark="point"),
        Column("arm", "text", True),
        Column("time", "s", True),
        Column("speed-up", "times", True),
        Column("difference", "difference", True, mark="point"),
        Column("verdict", "verdict", True),
    )
    rows: list[tuple[Cell, ...]] = []
    pictures: list[Curves] = []
    for role, part in systems.items():
        system = SYSTEMS[role]
        for row in _rows(part, system):
            if row.environment == IN_MEMORY_THERE:
                continue
            theirs = speed_ups(system, row.environment) if row.environment is not None else {}
            ours = _speed_ups(row.ours) if row.ours is not None else {}
            numbers = threads_of(system, row.environment) if row.environment is not None else ()
            for number in sorted({*numbers, *ours}):
                time = None if row.environment is None else seconds(system, number, row.environment)
                measured = row.ours is not None and number in row.ours.threads
                arm, own_time, difference, _, verdict = _ours(row if measured else Row(row.environment, None), number)
                difference_there = printed.difference(system, number, row.environment, LATER)
                head = f"{system}, {row.title}, {number}"
                own_figures = (arm, own_time, ours.get(number), difference, verdict)
                rows.append((head, time, theirs.get(number), difference_there, *own_figures))
            curves = []
            if len(theirs) > 1:
                own = tuple(Quantity(value) for value in theirs.values())
                curves.append(Curve(ENVIRONMENTS[str(row.environment)], False, tuple(theirs), own))
            if row.ours is not None and len(ours) > 1:
                curves.append(Curve(row.ours.title, True, tuple(ours), tuple(ours.values())))
            if curves:
                pictures.append(Curves(f"{system}, {row.title}", tuple(curves)))
    note = (
        "Speed-up: so many times as fast as on the fewest threads, of the same arm, the geometric mean over all queries; the "
        f"paper's by all runs but the first. {SPLIT_OFF}"
    )
    return PublishedTable(
        "Figure 3", "TPC-H by threads", columns, tuple(rows), note, rows_are="system, environment, threads",
        curves=tuple(pictures), places="threads", of="speed-up",
    )  # fmt: skip


def _speed_ups(part: Part) -> dict[int, Quantity]:
    """Threads -> speed-up of an arm, the baseline too; 1 on the fewest."""
    found: dict[int, Quantity] = {}
    for number in part.threads:
        if number == part.threads[0]:
            found[number] = Quantity(1.0)
        elif (figure := part.speed_up(number)) is not None:
            found[number] = Quantity(figure.estimate, figure.low, figure.high)
    return found


def _figure4(printed: PrintedFigures, part: Part) -> PublishedTable:
    columns = (Column("time", "s", False, decimals=2), *DIFFERENCES, *OURS)
    rows: list[tuple[Cell, ...]] = []
    for row in _rows(part, MONETDB):
        if row.environment == "docker":
            continue
        time = None if row.environment is None else seconds(MONETDB, MOST, row.environment)
        differences = printed.differences(MONETDB, row.environment)
        rows.append((row.title, time, *differences, *_ours(row, part.most)))
    note = f"MonetDB; the paper's on {MOST} threads at scale factor 10. {LATER_AND_FIRST} {printed.note} {SPLIT_OFF} "
    note += "Our guest with its files in memory stands beside VirtualBox's, whichever guest it is."
    return PublishedTable(
        "Figure 4", "MonetDB's files on the disk and in memory", columns, tuple(rows), note, rows_are="environment"
    )


def _table2(remote: dict[str, Part]) -> PublishedTable:
    columns = (
        Column("value", "count", False, decimals=2),
        Column("unit", "text", False),
        Column("speed-up", "times", False),
        Column("arm", "text", True),
        Column("time", "s", True),
        Column("speed-up", "times", True),
        Column("tpmC", "tpmC", True),
        Column("transactions/s", "transactions/s", True),
    )
    roles = {title: role for role, title in SYSTEMS.items()}
    rows: list[tuple[Cell, ...]] = []
    for printed in table("table2_gce"):
        system, benchmark, threads = printed["system"], printed["benchmark"], int(printed["threads"])
        part = remote.get(benchmark if benchmark in TRANSACTIONS else roles[system])
        ours: tuple[Cell, ...] = ("not measured in this run", None, None, None, None)
        if part is not None and benchmark in TRANSACTIONS:
            ours = (part.title, None, None, *_throughput(part))
        elif part is not None and threads in part.threads:
            ours = (part.title, part.seconds(threads, part.arm), _speed_ups(part).get(threads), None, None)
        title = TRANSACTIONS.get(benchmark, "TPC-H")
        speed_up = None if benchmark in TRANSACTIONS else speed_ups(system, "gce").get(threads)
        rows.append((f"{system}, {title}, {threads}", float(printed["value"]), printed["unit"], speed_up, *ours))
    note = "The paper's: a sum over queries of means of ten runs, at scale factor 10; ours of medians, on another processor."
    return PublishedTable("Table 2", "another host", columns, tuple(rows), note, rows_are="system, benchmark, threads")


def _throughput(part: Part) -> tuple[Cell, Cell]:
    """Of the arm, in the unit that the workload has: tpmC, transactions/s."""
    found: dict[str, Cell] = {}
    for each in part.result.windows:
        if each.arm == part.arm and (rate := each.throughput) is not None:
            found.setdefault(each.unit, Quantity(rate.estimate, rate.low, rate.high))
    return found.get("tpmC"), found.get("transactions/s")
