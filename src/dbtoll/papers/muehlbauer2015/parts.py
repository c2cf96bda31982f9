"""The runs that the reproduction goes by: arms in the place of the paper's environments, threads, plans that changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from dbtoll.analysis.effects import comparisons
from dbtoll.analysis.reproduction import parts
from dbtoll.analysis.reproduction.verdicts import Figure
from dbtoll.analysis.result.builder import all_effects
from dbtoll.analysis.result.schema import Levels
from dbtoll.model.experiment import THREADS
from dbtoll.model.reply import TIME_PER_TRANSACTION
from dbtoll.papers.muehlbauer2015.figure5 import counterpart
from dbtoll.store.schema import Fingerprint

HYPER, MONETDB = "HyPer", "MonetDB"
SYSTEMS = {"hyper": HYPER, "monetdb": MONETDB}
"""Role of a part -> the system as the paper calls it."""
TRANSACTIONS = {"tpcc": "TPC-C", "tatp": "TATP"}
"""Role of a part -> the benchmark's name; the role is what the paper's table calls it."""
REMOTE = "remote "
"""Begins the roles of the parts that are measured on another host."""

CONTAINER = "docker"
"""The arm in the place of the paper's Docker."""
IN_MEMORY = "files in memory"
"""The arm whose database lies in a memory file system."""


class Part(parts.Part):
    """One of the runs."""

    @property
    def stands_for(self) -> str | None:
        """Which of the paper's environments the arm is, as its tables call it; None: none of them."""
        return counterpart(self.about)

    @property
    def apart(self) -> str:
        """Why the arm's figures say nothing about the size of what the paper measured; empty where they do."""
        if self.about.emulated:
            return f"{self.arm} is emulated here, without the processor's help: its times say nothing about KVM's or VirtualBox's"
        if self.stands_for not in ("kvm", "virtualbox"):
            return f"{self.arm} is neither KVM nor VirtualBox: its size says nothing about theirs"
        return ""

    @cached_property
    def threads(self) -> tuple[int, ...]:
        """The numbers of threads, rising; empty where these are no factor."""
        return tuple(sorted({int(each[THREADS]) for each in self.book.measured.levels if THREADS in each}))

    def of(self, arm: str) -> Part:
        """See parts.Part."""
        other = super().of(arm)
        assert isinstance(other, Part)
        return other

    def at(self, threads: int | None) -> Levels:
        """So many threads as a level; None: no factor."""
        return {} if threads is None else {THREADS: str(threads)}

    @property
    def most(self) -> int | None:
        """The most threads of a query; None where these are no factor."""
        return self.threads[-1] if self.threads else None

    def changed_plans(self, threads: int | None) -> dict[str, str]:
        """Query -> in what its plan differs, for queries whose plan is not one and the same in the arm, in the baseline and its
        copies, in all rounds."""
        measured = self.book.measured
        plans: dict[tuple[object, ...], dict[tuple[str, int, int], str]] = {}
        for each in self.run.records(Fingerprint):
            at = self.at(threads)
            here = all(at.get(factor, level) == level for factor, level in each.levels.items())
            if here and each.arm in (self.arm, *measured.with_copies(self.baseline)):
                plans.setdefault((each.query, each.parameter_set), {})[each.arm, each.unit, each.round] = (
                    each.fingerprint
                )
        found: dict[str, str] = {}
        for (query, _), marks in plans.items():
            rounds: dict[tuple[str, int], set[str]] = {}
            for (arm, unit, _), mark in marks.items():
                rounds.setdefault((arm, unit), set()).add(mark)
            if any(len(each) > 1 for each in rounds.values()):
                found[str(query)] = "other plans in other rounds"
            elif len(set(marks.values())) > 1:
                found.setdefault(str(query), "another plan")
        return found

    def same_plans(self, threads: int | None) -> list[str]:
        """The queries whose plans did not change, in the workload's order."""
        changed = self.changed_plans(threads)
        return [query for query in self.run.plan.queries if query not in changed]

    def total(
        self, threads: int | None, queries: Sequence[str] | None = None, *, against: str | None = None
    ) -> comparisons.Effect | None:
        """The ratio of totals of those queries; None: of all whose plans did not change."""
        chosen = self.same_plans(threads) if queries is None else queries
        if not chosen:
            return None
        return self.effect(comparisons.RATIO_OF_TOTALS, chosen, against=against, **self.at(threads))

    def transactions(self) -> comparisons.Effect | None:
        """The arm's time per transaction."""
        found = (
            effect
            for _, metric, effect in all_effects(self.book.measured)
            if (effect.arm, effect.estimand, metric) == (self.arm, comparisons.GEOMEAN, TIME_PER_TRANSACTION)
        )
        return next(found, None)

    def seconds(self, threads: int | None, arm: str) -> float | None:
        """All queries once: the sum over queries of medians. None where one of them has none."""
        wanted = self.at(threads)
        found = {
            each.query: each.median_ns
            for each in self.result.times
            if each.arm == arm and wanted.items() <= each.levels.items()
        }
        times = [found.get(query) for query in self.run.plan.queries]
        return None if not times or None in times else sum(each for each in times if each is not None) / 1e9

    def speed_up(self, threads: int) -> Figure | None:
        """So many times as fast as on the fewest threads, the geometric mean over queries."""
        for each in self.result.speed_ups:
            if (each.arm, each.threads, each.estimand) == (self.arm, threads, comparisons.GEOMEAN):
                if each.estimate is None:
                    return None
                why = self.too_few(each.rounds) or each.reason or self.barred
                return Figure(self.arm, "times", each.estimate, each.low, each.high, why=why)
        return None


class Parts(dict[str, Part]):
    """By role; those that were measured. ``samples``: the folder of the authors' own, where the user named it."""

    samples: Path | None = None
