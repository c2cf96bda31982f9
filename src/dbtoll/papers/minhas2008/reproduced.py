"""The tables and figures with this machine's figures beside the printed ones."""

from __future__ import annotations

from collections.abc import Iterator

from dbtoll.analysis.reproduction.published import Row
from dbtoll.analysis.reproduction.tables import Cell, Column, PublishedTable
from dbtoll.papers.minhas2008.parts import ONE, OWN, Part, Parts, of
from dbtoll.papers.minhas2008.published import table

MB = 1e6


def find_all(parts: Parts) -> Iterator[PublishedTable]:
    """In the paper's order; those of a part that was not run are left out."""
    warm, cold = parts.warm, parts.cold
    yield _run_times("Table 1", "warm, a connection per query", "table1_warm_overhead", warm, OWN)
    yield _system_calls(warm)
    yield _page_faults(warm)
    yield _run_times("Table 4", "warm, one connection", "table4_single_connection", warm, ONE)
    if cold is not None:
        yield _run_times("Table 5", "cold, a connection per query", "table5_cold_overhead", cold, OWN)
        yield _disk_activity(cold)
    yield _user_and_system(warm)
    yield _first_and_later(warm)


def _published(name: str) -> dict[str, Row]:
    return {row["query"]: row for row in table(name)}


def _printed(row: Row | None, *columns: str) -> list[Cell]:
    return [None if row is None else float(row[column]) for column in columns]


def _run_times(name: str, title: str, source: str, part: Part, connection: str) -> PublishedTable:
    columns = (
        Column("base", "s", False), Column("Xen", "s", False), Column("slowdown", "percent", False),
        Column(part.baseline, "s", True), Column(part.title, "s", True), Column("slowdown", "percent", True),
        Column("low", "percent", True), Column("high", "percent", True), Column("verdict", "text", True),
    )  # fmt: skip
    printed = _published(source)
    rows: list[tuple[Cell, ...]] = []
    for query in part.run.plan.queries:
        found = part.comparison(f"query:{query}", connection=connection)
        effect = (
            [None] * 4
            if found is None
            else [found.estimate, found.low_decisive, found.high_decisive, found.verdict.value]
        )
        rows.append(
            (
                query,
                *_printed(printed.get(query), "base_runtime_s", "xen_runtime_s", "rel_slowdown_pct"),
                part.median_s(part.baseline, connection, query),
                part.median_s(part.arm, connection, query),
                *(each * 100 if isinstance(each, float) else each for each in effect),
            )
        )
    return PublishedTable(name, title, columns, tuple(rows), "Intervals are adjusted over all queries (Holm).")


def _system_calls(part: Part) -> PublishedTable:
    columns = (
        Column("calls, base", "count", False), Column("in calls, base", "ms", False), Column("system, base", "ms", False),
        Column("calls, Xen", "count", False), Column("in calls, Xen", "ms", False), Column("system, Xen", "ms", False),
        Column(f"calls, {part.baseline}", "count", True), Column(f"in calls, {part.baseline}", "ms", True),
        Column(f"system, {part.baseline}", "ms", True), Column(f"calls, {part.title}", "count", True),
        Column(f"in calls, {part.title}", "ms", True), Column(f"system, {part.title}", "ms", True),
    )  # fmt: skip
    printed = _published("table2_system_calls")
    names = [f"{side}_{what}" for side in ("base", "xen") for what in ("syscalls", "syscall_ms", "system_ms")]
    rows: list[tuple[Cell, ...]] = []
    for query in part.run.plan.queries:
        ours: list[Cell] = []
        for arm in (part.baseline, part.arm):
            found, in_calls_ns = part.counted(arm, OWN, query), part.calls_ns(query)
            known = None if in_calls_ns is None else in_calls_ns[arm == part.arm]
            ours += [of(found, "calls"), _over(known, 1e6), _over(of(found, "system_ns"), 1e6)]
        rows.append((query, *_printed(printed.get(query), *names), *ours))
    note = (
        "Time in calls: their counts at what probes found that one costs; a tracer's own times would hold the tracer."
    )
    return PublishedTable("Table 2", "system calls, warm, a connection per query", columns, tuple(rows), note)


def _over(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor


def _page_faults(part: Part) -> PublishedTable:
    columns = (
        Column("base", "count", False), Column("Xen", "count", False), Column("a second, Xen", "per second", False),
        Column("slowdown", "percent", False), Column(part.baseline, "count", True), Column(part.title, "count", True),
        Column(f"a second, {part.title}", "per second", True), Column("slowdown", "percent", True),
    )  # fmt: skip
    printed = _published("table3_page_faults")
    names = ("base_page_faults", "xen_page_faults", "page_faults_per_s", "rel_slowdown_pct")
    rows: list[tuple[Cell, ...]] = []
    for query in part.run.plan.queries:
        base, own = (part.counted(arm, OWN, query) for arm in (part.baseline, part.arm))
        effect = part.comparison(f"query:{query}", connection=OWN)
        slowdown = effect.estimate * 100 if effect and effect.estimate is not None else None
        ours = [of(base, "faults"), of(own, "faults"), part.fault_rate(query)[0], slowdown]
        rows.append((query, *_printed(printed.get(query), *names), *ours))
    return PublishedTable("Table 3", "page faults, warm, a connection per query", columns, tuple(rows))


def _disk_activity(part: Part) -> PublishedTable:
    columns = (
        Column("read, base", "MB", False), Column("iowait, base", "s", False), Column("read, Dom0", "MB", False),
        Column("read, DomU", "MB", False), Column("iowait, Xen", "s", False),
        Column(f"read, {part.baseline}", "MB", True), Column(f"iowait, {part.baseline}", "s", True),
        Column("read, host", "MB", True), Column(f"read, {part.title}", "MB", True), Column(f"iowait, {part.title}", "s", True),
    )  # fmt: skip
    printed = _published("table6_disk_activity")
    names = ("base_read_mb", "base_iowait_s", "dom0_read_mb", "domu_read_mb", "xen_iowait_s")
    rows: list[tuple[Cell, ...]] = []
    for query in part.run.plan.queries:
        base, own = (part.counted(arm, OWN, query) for arm in (part.baseline, part.arm))
        ours = [
            _over(of(base, "read_bytes"), MB), _over(of(base, "iowait_ns"), 1e9), _over(of(own, "outer_read_bytes"), MB),
            _over(of(own, "read_bytes"), MB), _over(of(own, "iowait_ns"), 1e9),
        ]  # fmt: skip
        rows.append((query, *_printed(printed.get(query), *names), *ours))
    return PublishedTable("Table 6", "disk activity, cold, a connection per query", columns, tuple(rows))


def _user_and_system(part: Part) -> PublishedTable:
    columns = (
        Column("system, Xen", "percent", False),
        Column(f"user, {part.title}", "percent", True),
        Column(f"system, {part.title}", "percent", True),
    )
    printed = _published("table2_system_calls")
    rows: list[tuple[Cell, ...]] = []
    for query in part.run.plan.queries:
        row = printed.get(query)
        xen = None if row is None else (float(row["xen_system_ms"]) / float(row["base_system_ms"]) - 1) * 100
        base, own = (part.counted(arm, OWN, query) for arm in (part.baseline, part.arm))
        ours = [
            None if base is None or own is None else _slowdown_percent(getattr(own, name), getattr(base, name))
            for name in ("user_ns", "system_ns")
        ]
        rows.append((query, xen, *ours))
    note = "The paper's figure has user times too, but no table does. CPU time advances by ticks of the kernel."
    return PublishedTable("Figure 1", "slowdown of user and of system time", columns, tuple(rows), note)


def _slowdown_percent(own: float | None, base: float | None) -> float | None:
    return None if own is None or not base else (own / base - 1) * 100


def _first_and_later(part: Part) -> PublishedTable:
    columns = tuple(
        Column(f"{which}, {arm}", "count", True) for arm in (part.baseline, part.title) for which in ("first", "later")
    )
    rows: list[tuple[Cell, ...]] = []
    for query in part.run.plan.queries:
        found = [part.counted(arm, connection, query) for arm in (part.baseline, part.arm) for connection in (OWN, ONE)]
        rows.append((query, *(of(each, "faults") for each in found)))
    note = "The paper's figure has no table. First: on a new connection; later: on one that has run the query before."
    return PublishedTable(
        "Figure 2", "page faults of the first and of later runs on a connection", columns, tuple(rows), note
    )
