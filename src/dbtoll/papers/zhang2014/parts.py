"""The sweeps that the reproduction goes by, and what is asked of them: designs at a number of tenants, or of warehouses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from dbtoll.analysis.reproduction.parts import Part
from dbtoll.analysis.reproduction.verdicts import Figure
from dbtoll.analysis.result.schema import DeviceResult, Mean, WindowsResult, WritesResult
from dbtoll.analysis.sweeps.builder import THROUGHPUT, Swept
from dbtoll.analysis.sweeps.schema import Contrast, Point, RatioPoint, SweepResult
from dbtoll.model.sweep import Value
from dbtoll.text import noun

DEDICATED, SHARED, ISOLATED = "dedicated", "shared", "isolated"
"""The designs, as the paper calls them, and so are arms; only of the part ``tenants`` the isolated one is called by its
environment."""
ON_FASTER, ON_SLOWER = "log on the faster", "log on the slower"
"""The end of the names of the arms of the part about placement."""

SWEEPS = ("tenants", "placement", "disks", "size", "other_engine")
"""Roles of the parts that are sweeps, with `_` for a space."""

WAREHOUSE_BYTES = 100_000_000
"""Of one warehouse in PostgreSQL: its tables with their indexes, as they are loaded (TPC-C 1.2.1)."""

OWN = 0.1
"""The part of the memory that servers take beside their buffer pools."""

HYPERVISORS = ("xen", "vmware", "qemu")
"""Environments that are of the kind of the paper's."""


def tenants_text(number: int) -> str:
    """``1 tenant``, ``8 tenants``"""
    return f"{number} {noun(number, 'tenant')}"


@dataclass(frozen=True)
class Sweep:
    """One part: a run for each value of its variable."""

    swept: Swept

    @cached_property
    def result(self) -> SweepResult:
        return self.swept.result()

    @property
    def values(self) -> tuple[int, ...]:
        """Those that were measured, rising."""
        return tuple(sorted(int(value) for value in self.swept.by_value))

    @property
    def of_several(self) -> tuple[int, ...]:
        """Without one tenant, for which one server is all that any design has."""
        return tuple(value for value in self.values if value > 1)

    @property
    def fitting(self) -> tuple[int, ...]:
        """The numbers of warehouses of each tenant with which the data of all fit into the memory of the dedicated design beside
        its buffer pools, as what is in a pool is in the page cache too, and beside a tenth for the servers themselves."""
        return tuple(value for value, data, memory, pools in self._sizes() if data + pools <= (1 - OWN) * memory)

    @property
    def outgrown(self) -> tuple[int, ...]:
        """Those with which the data are more than the memory."""
        return tuple(value for value, data, memory, _ in self._sizes() if data > memory)

    def _sizes(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each number of warehouses: bytes of all data, of the dedicated design's memory and of its buffer pools."""
        for value in self.values:
            if (arm := self.swept.designs_at[value].get(DEDICATED)) is not None:
                resources, data = arm.configuration.resources, value * len(arm.layout.units) * WAREHOUSE_BYTES
                yield value, data, resources.memory_bytes, resources.buffer_pool_bytes or 0

    @cached_property
    def isolated(self) -> str | None:
        """The arm in the place of the paper's Xen and VMware."""
        return next((each for each in self.swept.designs if each not in (DEDICATED, SHARED)), None)

    def compared(
        self, design: str, against: str, value: Value, name: str, published: float | None = None
    ) -> Figure | None:
        """By how much more time a transaction takes in a design than in another, by the band that holds over all values."""
        for each in self.result.contrasts:
            if each.measure == THROUGHPUT and {each.design, each.against} == {design, against}:
                point = next((each for each in each.points if each.value == value), None)
                return None if point is None else _figure(each, point, design, name, published)
        return None

    def others(self, design: str, value: Value) -> Iterator[str]:
        """The designs beside it that were measured at a value."""
        return (each for each in self.swept.designs_at[value] if each != design)

    def throughput(self, design: str, value: Value) -> Point | None:
        for curve in self.result.curves:
            if (curve.measure, curve.design) == (THROUGHPUT, design):
                return next((point for point in curve.points if point.value == value), None)
        return None

    @property
    def throughput_unit(self) -> str:
        return self.result.units[THROUGHPUT]

    def part(self, value: Value) -> Part:
        return self.swept.by_value[value]

    def windows(self, design: str, value: Value) -> WindowsResult | None:
        arm = self.swept.designs_at.get(value, {}).get(design)
        found = self.part(value).result.windows if arm else ()
        return next((each for each in found if arm and each.arm == arm.name), None)

    def shares(self, design: str, value: Value) -> Mapping[str, Mean]:
        """Of the time of the sessions that serve terminals, by state; empty where nothing is known."""
        windows = self.windows(design, value)
        sessions = windows.sessions if windows else None
        return {share.name: share.share for share in sessions.shares} if sessions else {}

    def device(self, design: str, value: Value, holds: str, where: str = "host") -> DeviceResult | None:
        """The one that holds the ``data`` or the ``log``, as the host has it, or a guest (``inside``)."""
        windows = self.windows(design, value)
        found = windows.devices if windows else ()
        return next((each for each in found if each.where == where and each.holds == holds), None)

    def log_writes(self, design: str, value: Value) -> WritesResult | None:
        """Requests to write of the device that holds the log and nothing else, as the host has it."""
        windows = self.windows(design, value)
        found = windows.writes if windows else ()
        return next((each for each in found if each.where != "inside" and each.holds == "log"), None)

    def why(self, design: str, value: Value) -> str:
        """Why nothing rests on what a design did in the run of a value; empty where something may. What bars a comparison bars a
        share too."""
        arm = self.swept.designs_at[value].get(design)
        if arm is None:
            return self.swept.why_left_out(value, design)
        part = self.part(value)
        bars = part.book.measured.own_bars(arm.name)
        rounds = {visit.round for visit in part.book.measured.visits if visit.arm == arm.name}
        return bars.all_of_them or "; ".join(bars.good_news) or part.too_few(len(rounds))

    def mean(
        self, name: str, mean: Mean | None, design: str, value: Value, published: float | None = None
    ) -> Figure | None:
        """A share over the rounds of a value's run."""
        if mean is None:
            return None
        return Figure(name, "share", mean.estimate, mean.low, mean.high, published, self.why(design, value))

    def left_out(self, values: Collection[Value]) -> str:
        """Which arms were left out at some of these values, and why; empty where none was."""
        found = (each for each in self.swept.sweep.left_out if each.arm and each.value in values)
        return "; ".join(f"{each.arm} at {each.value}: {each.why}" for each in found)


def _figure(contrast: Contrast, point: RatioPoint, design: str, name: str, published: float | None) -> Figure | None:
    """The ratio the right way round."""
    if point.estimate is None:
        return None
    known = [point.estimate, point.low_decisive, point.high_decisive]
    if contrast.design != design:
        estimate, high, low = (None if each is None else 1 / (1 + each) - 1 for each in known)
    else:
        estimate, low, high = known
    assert estimate is not None
    return Figure(name, "overhead", estimate, low, high, published, point.reason or "")


@dataclass(frozen=True)
class Parts:
    """Those that were measured, by role; None: not measured."""

    tenants: Sweep | None
    placement: Sweep | None
    disks: Sweep | None
    size: Sweep | None
    other_engine: Sweep | None
    probes: Part | None

    @property
    def environment(self) -> str:
        """In the place of the paper's Xen and VMware: the last step of the isolated arm's stack."""
        if self.tenants is not None:
            for designs in self.tenants.swept.designs_at.values():
                if (isolated := self.tenants.isolated) is not None and isolated in designs:
                    return designs[isolated].stack[-1].environment
        if self.probes is not None:
            return self.probes.run.plan.experiment.arm(self.probes.arm).stack[-1].environment
        return ""

    @property
    def apart(self) -> str:
        """Why the isolated arm's figures say nothing about the size of what the paper measured; empty where they do."""
        if self._is_emulated:
            return f"{self.environment} is emulated here, so its times say nothing about Xen's or VMware's"
        if self.environment not in HYPERVISORS:
            return f"{self.environment} is no hypervisor: its size says nothing about Xen's or VMware's"
        return ""

    @property
    def _is_emulated(self) -> bool:
        """Whether the isolated arm's processor is, in any part."""
        if self.probes is not None and self.probes.about.emulated:
            return True
        sweep = self.tenants
        return sweep is not None and any(each.emulated for each in sweep.result.parts if each.design == sweep.isolated)
