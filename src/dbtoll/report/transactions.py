"""What the report says of transactions: throughput, response times, what became of them, the driver; for page and terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dbtoll.analysis.result.schema import varied_factors
from dbtoll.model.reply import TIME_PER_TRANSACTION, TIME_PER_TRANSACTION_LEAST
from dbtoll.report.text import names, numbers

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import (
        Comparison,
        DeviceResult,
        DriverResult,
        Mean,
        Result,
        SessionsResult,
        TransactionResult,
        UnitsResult,
        WindowsResult,
        WritesResult,
    )

_BARS = "▁▂▃▄▅▆▇█"
_BARS_WIDTH = 40


@dataclass(frozen=True, slots=True)
class ArmWindows:
    """One arm in a group: its windows, and its comparison of throughput (None for the baseline). ``least``: that of the unit that
    did least, where it has several."""

    windows: WindowsResult
    comparison: Comparison | None
    least: Comparison | None = None

    @property
    def arm(self) -> str:
        return self.windows.arm

    @property
    def throughput(self) -> str:
        """In the group's unit."""
        rate = self.windows.throughput
        return numbers.figure(rate.estimate, rate.low, rate.high) if rate else numbers.NOTHING

    @property
    def difference(self) -> str:
        """Of its throughput from the baseline's."""
        return numbers.effect(self.comparison).text if self.comparison else "baseline"

    @property
    def least_text(self) -> str:
        """Of the unit that did least: its throughput, and the difference from the baseline's."""
        units = self.windows.units
        if units is None:
            return numbers.NOTHING
        said = figure(units.least)
        return f"{said} ({numbers.effect(self.least).text})" if self.least else said


@dataclass(frozen=True, slots=True)
class AtLevels:
    """The arms at one combination of levels. ``unit``: of throughput."""

    title: str
    unit: str
    arms: list[ArmWindows]

    @property
    def transactions(self) -> list[str]:
        """Their names, in the workload's order."""
        return [each.name for each in self.arms[0].windows.transactions]

    def of(self, transaction: str) -> list[tuple[ArmWindows, TransactionResult]]:
        """What the arms say of one transaction."""
        return [(arm, each) for arm in self.arms for each in arm.windows.transactions if each.name == transaction]

    @property
    def shows_rolled_back(self) -> bool:
        return any(each.rolled_back for arm in self.arms for each in arm.windows.transactions)

    @property
    def shows_not_found(self) -> bool:
        return any(each.not_found for arm in self.arms for each in arm.windows.transactions)

    @property
    def shows_lost(self) -> bool:
        return any(each.lost or each.unknown for arm in self.arms for each in arm.windows.transactions)

    @property
    def of_several_units(self) -> list[ArmWindows]:
        """The arms that have more than one."""
        return [arm for arm in self.arms if arm.windows.units is not None]

    @property
    def devices(self) -> list[tuple[ArmWindows, DeviceResult]]:
        """What each device did in each arm."""
        return [(arm, each) for arm in self.arms for each in arm.windows.devices]

    @property
    def shows_holds(self) -> bool:
        """Whether any arm was asked to have its data or its log on a device."""
        return any(each.holds for _, each in self.devices)

    @property
    def shows_late(self) -> bool:
        """Whether any of these is a disk model."""
        return any(each.late_ns is not None for _, each in self.devices)

    @property
    def writes(self) -> list[tuple[ArmWindows, WritesResult]]:
        """What was written to each device in each arm, of a run that explains."""
        return [(arm, each) for arm in self.arms for each in arm.windows.writes]

    @property
    def sessions(self) -> list[tuple[str, SessionsResult]]:
        """Where the time of each arm's sessions went, of a run that explains."""
        return [(arm.arm, arm.windows.sessions) for arm in self.arms if arm.windows.sessions is not None]

    @property
    def states(self) -> list[str]:
        """Those in which some arm's sessions were found, in the order in which they are shown."""
        seen = {each.name for _, its in self.sessions for each in its.shares if each.share.estimate}
        return [name for name in STATES if name in seen]

    @property
    def is_calibrated(self) -> bool:
        """Whether it is known what the driver does beside a server that costs nothing."""
        return any(arm.windows.driver.null_us_per_transaction is not None for arm in self.arms)


def groups(result: Result) -> list[AtLevels]:
    """For each combination of levels; empty where the workload is of statements."""
    varied = varied_factors(each.levels for each in result.windows)
    throughput, least = (
        {(c.arm, str(c.levels)): c for c in result.comparisons if c.metric == metric}
        for metric in (TIME_PER_TRANSACTION, TIME_PER_TRANSACTION_LEAST)
    )
    by_levels: dict[str, list[WindowsResult]] = {}
    for each in result.windows:
        by_levels.setdefault(names.levels_text(each.levels, varied), []).append(each)
    return [
        AtLevels(
            title=title,
            unit=windows[0].unit,
            arms=[
                ArmWindows(each, throughput.get((each.arm, str(each.levels))), least.get((each.arm, str(each.levels))))
                for each in windows
            ],
        )
        for title, windows in by_levels.items()
    ]


def unit_bars(units: UnitsResult) -> str:
    """A line of text: what each unit did, as a part of what the most did."""
    return bars(units.throughput, max(units.throughput))


def unit_lines(group: AtLevels) -> Iterator[str]:
    """For each arm of several units what each did, and how alike they are."""
    for arm in group.of_several_units:
        units = arm.windows.units
        assert units is not None
        yield (
            f"{arm.arm}: {len(units.throughput)} units {unit_bars(units)} {each_unit(units)} {group.unit}; least {arm.least_text}, "
            f"fairness {fairness(units)}, begun within {start_spread(units)}"
        )


def each_unit(units: UnitsResult) -> str:
    """What each did, in the order of the layout."""
    return ", ".join(map(figure, units.throughput))


def unit_places(units: UnitsResult, group: AtLevels) -> list[float]:
    """Where each unit's dot lies: per cent of what the most did in any arm, with room for the dot."""
    most = max(max(arm.windows.units.throughput) for arm in group.of_several_units if arm.windows.units) or 1.0
    return [round(2 + 96 * one / most, 2) for one in units.throughput]


def figure(value: float) -> str:
    """A throughput."""
    return numbers.figure(value, None, None)


def fairness(units: UnitsResult) -> str:
    """Of all windows: ``0.982 (0.975 … 0.989)``."""
    bounds = (units.fairness_low, units.fairness_high)
    if None in bounds:
        return numbers.number(units.fairness, 3)
    low, high = (numbers.number(bound, 3) for bound in bounds if bound is not None)
    return f"{numbers.number(units.fairness, 3)} ({low} … {high})"


def start_spread(units: UnitsResult) -> str:
    """How far apart they began at most; nothing where that is not known."""
    return numbers.NOTHING if units.start_spread_ns is None else numbers.time_of(units.start_spread_ns)


def mean(found: Mean | None, unit: float = 1.0) -> tuple[str, str]:
    """``29.6`` and ``28.1 … 31.1``, in ``unit``; no bounds where there is no interval."""
    if found is None:
        return numbers.NOTHING, ""
    if found.low is None or found.high is None:
        return numbers.figure(found.estimate / unit), ""
    value, *bounds = numbers.figures(*(each / unit for each in (found.estimate, found.low, found.high)))
    return value, " … ".join(bounds)


def mean_share(found: Mean) -> tuple[str, str]:
    """``29.6 %`` and ``28.1 … 31.1``"""
    shown = numbers.IntervalText(found.estimate, found.low, found.high)
    return numbers.percent(found.estimate, shown.decimals, plus=False), shown.bounds


REQUESTS = {
    "random_read_ms": "random reads",
    "random_write_ms": "random writes",
    "log_write_ms": "writes of a log",
}
"""With which a disk model was asked before the run."""

NEAR = (16, 2048)
"""Distances in blocks of 512 bytes, of which the table tells: 8 KiB, a page of a database, and 1 MiB."""


def within(writes: WritesResult, blocks: int) -> str:
    """``46 %`` of the writes began no farther than that from the end of the one before."""
    return numbers.percent(writes.within(blocks), plus=False)


STATES = {
    "on_cpu": "on a processor",
    "run_queue": "waiting for a processor",
    "running": "on a processor or waiting for it",
    "data_files": "reading or writing data",
    "log_files": "writing the log",
    "log_insert_lock": "lock to insert into the log",
    "log_write_lock": "lock to write the log",
    "other_locks": "other locks",
    "other": "other waits",
    "client": "waiting for the client",
}
"""State of a session, in the order in which they are shown, and what it is called."""


@dataclass(frozen=True, slots=True)
class StackSegment:
    """``x`` and ``width`` in per cent. ``kind``: the number of its state, which is its colour."""

    name: str
    kind: int
    x: float
    width: float
    text: str


def stack(sessions: SessionsResult) -> list[StackSegment]:
    """The shares of one arm, one behind the other."""
    shares = {each.name: each.share for each in sessions.shares}
    found, x = [], 0.0
    for kind, (name, title) in enumerate(STATES.items()):
        if (share := shares.get(name)) is not None:
            text = " ".join(filter(None, mean_share(share)))
            found.append(StackSegment(title, kind, round(x, 2), round(100 * share.estimate, 2), text))
            x += 100 * share.estimate
    return found


def kind_of_state(name: str) -> int:
    """See `StackSegment`."""
    return list(STATES).index(name)


def share_in(sessions: SessionsResult, name: str) -> tuple[str, str]:
    """Of one state, for a table."""
    known = next((each.share for each in sessions.shares if each.name == name), None)
    return (numbers.NOTHING, "") if known is None else mean_share(known)


def steadiness_text(windows: WindowsResult) -> str:
    """``steady: +0.3 % (−0.8 … 1.4) from a window's start to its end``; what was not judged says why."""
    found = windows.steadiness
    if found.trend is None:
        return f"not known whether it is steady: {found.reason}"
    trend = numbers.IntervalText(found.trend.estimate, found.trend.low, found.trend.high)
    over = "from a window's start to its end"
    if found.steady is None:
        return f"cannot tell whether it is steady: {trend.text} {over}"
    return f"steady: {trend.text} {over}" if found.steady else f"not steady: {trend.text} {over}; {found.reason}"


def steadiness_word(windows: WindowsResult) -> str:
    """For a table."""
    return {True: "steady", False: "not steady", None: "cannot tell"}[windows.steadiness.steady]


def lost_text(windows: WindowsResult) -> str:
    """What happened beside the transactions: arrivals that nobody served, connections; empty if nothing."""
    said = []
    if windows.backlog_at_end:
        said.append(f"{numbers.count(windows.backlog_at_end)} arrivals not served when their window ended")
    if windows.connections_lost:
        said.append(f"{numbers.plural(windows.connections_lost, 'connection')} lost")
    if windows.reconnects:
        said.append(f"{numbers.plural(windows.reconnects, 'connection')} made anew")
    return ", ".join(said)


def round_trips(windows: WindowsResult) -> str:
    """Of a transaction, on the mean of a window."""
    known = windows.round_trips_per_transaction
    return numbers.NOTHING if known is None else numbers.number(known, 2)


def driver_time(driver: DriverResult) -> str:
    """CPU time per transaction."""
    return numbers.time_of(None if driver.us_per_transaction is None else driver.us_per_transaction * 1e3)


def null_time(driver: DriverResult) -> str:
    """The same beside a server that costs nothing."""
    return numbers.time_of(None if driver.null_us_per_transaction is None else driver.null_us_per_transaction * 1e3)


def driver_bound(arm: ArmWindows) -> str:
    """``≤ 0.3 %`` of its overhead; nothing for the baseline."""
    if arm.comparison is None or arm.windows.driver.bound is None:
        return numbers.NOTHING
    return f"≤{numbers.THIN}{numbers.percent(math.ceil(arm.windows.driver.bound * 1000) / 1000, 1, plus=False)}"


def share(fraction: float | None) -> str:
    """``21 %``"""
    return numbers.percent(fraction, 1 if fraction is not None and fraction < 0.1 else 0, plus=False)


def bars(series: Sequence[float], most: float) -> str:
    """A line of text that is as high as the series, from 0 to ``most``."""
    if not series or most <= 0:
        return ""
    step = max(1, -(-len(series) // _BARS_WIDTH))
    means = [sum(part) / len(part) for start in range(0, len(series), step) if (part := series[start : start + step])]
    return "".join(_BARS[min(len(_BARS) - 1, int(len(_BARS) * mean / most))] for mean in means)


def outcome_lines(group: AtLevels) -> Iterator[str]:
    """For each arm what became of its transactions, all kinds together: what did not simply commit."""
    for arm in group.arms:
        kinds = arm.windows.transactions
        failed, retried = (
            sum((Counter(getattr(kind, what)) for kind in kinds), Counter()) for what in ("failed", "retried")
        )
        said = [f"committed {numbers.count(sum(kind.committed for kind in kinds))}"]
        for name, text in (
            ("rolled_back", "rolled back by design"),
            ("not_found", "found nothing by design"),
            ("lost", "lost with their connection"),
            ("unknown", "unknown, the connection was lost in the commit"),
        ):
            if many := sum(getattr(kind, name) for kind in kinds):
                said.append(f"{text} {numbers.count(many)}")
        said += [f"failed {names.causes(failed)}", f"retried {names.causes(retried)}"]
        if other := lost_text(arm.windows):
            said.append(other)
        yield f"{arm.arm}: {'; '.join(said)}"
