"""A small but complete run folder, simulated: what analysis, report and their tests are developed on.

    python tests/support/make_run.py FOLDER [--rounds 8] [--blocks 2] [--seed 1] [--cold]

Three arms (native, its A/A copy, docker with a planted effect), 22 queries with their own base times, start-to-start
and visit-to-visit noise, a drift, a first execution, one interrupted attempt, and one query whose plan and time change.
Everything is written by the real writer.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from dbtoll.model.experiment import Arm, ComponentSpec, Configuration, Experiment, Precision, Resources, Step
from dbtoll.plan import Plan
from dbtoll.store.schema import (
    Batch,
    CheckRecord,
    Counters,
    Fingerprint,
    PlanFile,
    RoundBegin,
    RoundEnd,
    RunEnd,
    Start,
    Timing,
    UnitVisit,
    Visit,
)
from dbtoll.store.writer import RunWriter
from dbtoll.workloads.probes import Workload as Probes

CONFIGURATION = Configuration(ComponentSpec("postgres", {}), ComponentSpec("tpch", {"scale": 0.1}))
QUERIES = tuple(f"Q{n}" for n in range(1, 23))
NATIVE, COPY, DOCKER = "native", "native (A/A)", "docker"
_MS = (610, 14, 190, 60, 150, 95, 160, 75, 520, 210, 31, 110, 480, 70, 66, 88, 20, 700, 40, 58, 230, 36)
BASE_MS = dict(zip(QUERIES, _MS, strict=True))
Counts = Callable[[str, str, Mapping[str, str], random.Random], dict[str, Any]]
"""Arm, query, levels and chance -> the ``counts`` of one counting visit."""
VISIT_LATENCY_NS = 300_000  # between the brackets of the host and of the arm


def arms_of(configuration: Configuration, docker: Step) -> tuple[Arm, ...]:
    """The baseline, its copy, and the arm that is held against it."""
    return (
        Arm(NATIVE, (Step("native"),), configuration=configuration),
        Arm(COPY, (Step("native"),), copy_of=NATIVE, configuration=configuration),
        Arm(DOCKER, (docker,), configuration=configuration, against=NATIVE),
    )


def experiment(
    *,
    cold: bool = False,
    warm: bool = True,
    connections: tuple[str, ...] = ("persistent",),
    threads: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
    seed: int = 1,
) -> Experiment:
    """The experiment that the simulated run answers."""
    return Experiment(
        question="How much does PostgreSQL lose on TPC-H in Docker?",
        expected="nothing that can be told from the noise",
        arms=arms_of(
            replace(CONFIGURATION, resources=Resources(cpus=max(map(int, threads), default=1))),
            Step("docker", {"runtime": "runc", **(options or {})}),
        ),
        baseline=NATIVE,
        factors={
            "cache": ("warm",) * warm + ("cold",) * cold,
            **({"threads": threads} if threads else {}),
            "connection": connections,
        },
        precision=Precision(),
        seed=seed,
    )


def make_run(
    folder: Path,
    *,
    rounds: int = 8,
    blocks: int = 2,
    executions: int = 3,
    seed: int = 1,
    cold: bool = False,
    warm: bool = True,
    connections: tuple[str, ...] = ("persistent",),
    threads: tuple[str, ...] = (),
    serial_fractions: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
    docker_effect: float = 0.012,
    q9_effect: float = 0.25,
    query_effects: Mapping[str, float] | None = None,
    counts: Counts | None = None,
    costs_ns: Mapping[str, Mapping[str, float]] | None = None,
    start_sd: float = 0.008,
    visit_sd: float = 0.02,
    drift: float = 0.06,
    interrupted: bool = True,
    ended: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write the run; effects are fractions (0.01 is 1 %), standard deviations and the largest drift are on the log scale.

    ``serial_fractions``: of an arm's time, what more threads do not shorten (Amdahl's law); none where it is left out.
    ``query_effects``: of Docker, in place of the other two. ``counts``: what the collectors tell of one execution;
    ``costs_ns``: what probes find, probe -> arm -> ns. ``facts``: of the run, beside `FACTS`.
    """
    chance = random.Random(seed)
    asked = experiment(cold=cold, warm=warm, connections=connections, threads=threads, options=options, seed=seed)
    plan = Plan(asked, QUERIES, blocks, {})
    writer = RunWriter.create(
        folder,
        spec=b'question = "How much does PostgreSQL lose on TPC-H in Docker?"\nbaseline = "native"\n',
        plan=PlanFile(experiment=replace(asked, explain=tuple(costs_ns or ())), queries=QUERIES, blocks=blocks),
        facts={
            **FACTS,
            **({"probes": {name: _believed(name) for name in costs_ns}} if costs_ns else {}),
            **(facts or {}),
        },
    )
    planted = query_effects or {query: q9_effect if query == "Q9" else docker_effect for query in QUERIES}
    effects = {query: math.log1p(effect) for query, effect in planted.items()}
    world = _World(chance, effects, start_sd=start_sd, visit_sd=visit_sd, executions=executions, rounds=rounds)
    # Who plants the queries' effects wants no other plan beside them.
    world.changes_plan = query_effects is None
    world.counts, world.costs_ns = counts, costs_ns or {}
    world.serial_fractions, world.drift = serial_fractions or {}, drift
    with writer:
        for index in range(rounds):
            for attempt in range(2 if interrupted and index == 2 else 1):
                broken = interrupted and index == 2 and attempt == 0
                writer.append(RoundBegin(round=index, attempt=attempt, elapsed_s=world.elapsed_s))
                for record in world.round(plan, index, broken):
                    writer.append(record)
                if broken:
                    writer.append(
                        RoundEnd(round=index, attempt=attempt, complete=False, reason="docker: the server died",
                                 elapsed_s=world.elapsed_s)
                    )  # fmt: skip
                else:
                    writer.append(RoundEnd(round=index, attempt=attempt, complete=True, elapsed_s=world.elapsed_s))
        if ended:
            writer.append(RunEnd(reason="budget ended", elapsed_s=world.elapsed_s))
    return folder


def _believed(probe: str) -> dict[str, float]:
    """As the workload has it, with room for the costs of a simulation."""
    max_ns = 1e9
    return {"min_ns": -max_ns if Probes({}).about(probe)["min_ns"] < 0 else 1.0, "max_ns": max_ns}


class _World:
    """The simulated machine: its clock, its drift and the noise of starts and visits."""

    def __init__(
        self,
        chance: random.Random,
        effects: dict[str, float],
        *,
        start_sd: float,
        visit_sd: float,
        executions: int,
        rounds: int,
    ) -> None:
        self.chance, self.effects = chance, effects
        self.start_sd, self.visit_sd, self.executions = start_sd, visit_sd, executions
        self.now_ns = 1_000_000_000_000
        self.begin_ns = self.now_ns
        self.expected_ns = rounds * 30e9
        self.seen_plans: set[str] = set()
        self.changes_plan = True
        self.counts: Counts | None = None
        self.costs_ns: Mapping[str, Mapping[str, float]] = {}
        self.serial_fractions: Mapping[str, float] = {}
        self.drift = 0.06

    @property
    def elapsed_s(self) -> float:
        return (self.now_ns - self.begin_ns) / 1e9

    def round(self, plan: Plan, index: int, broken: bool) -> Iterator[object]:
        made = plan.round(index)
        offsets = {arm: self.chance.gauss(0, self.start_sd) for arm in made.start_order}
        for arm in made.start_order:
            self.now_ns += 400_000_000
            yield Start(round=index, arm=arm, outcome="ok", servers=(start_facts(arm),))
            for check in ("answers_known", "commit_reaches_device", "storage"):
                yield CheckRecord(
                    round=index, arm=arm, check=check, passed=True, finding="as it should be",
                    voids=check != "answers_known",
                )  # fmt: skip
            levels = [{"threads": n} for n in plan.experiment.factors.get("threads", ())] or [{}]
            for query, at in itertools.product(QUERIES, levels):
                yield from self._fingerprint(index, arm, query, at)
        order = 0
        for phase in made.phases:
            warm = phase.levels["cache"] == "warm"
            for arm in made.start_order:
                yield self._counters(index, arm, phase.levels, "begin")
            if warm:
                for query in QUERIES:
                    for arm in made.start_order:
                        at = {"round": index, "arm": arm, "levels": phase.levels, "block": -1, "query": query}
                        yield self._visit(at, order, offsets[arm], first_execution=True)
                        order += 1
            for block in phase.blocks:
                for visit in block.visits:
                    at = {"round": index, "arm": visit.arm, "levels": phase.levels, "block": block.index}
                    yield self._visit({**at, "query": visit.query}, order, offsets[visit.arm], first_execution=False)
                    order += 1
                if broken:
                    return
            for arm in made.start_order:
                yield self._counters(index, arm, phase.levels, "end")
                order += 1
                yield from self._explained(index, arm, phase.levels, order)
                order += len(QUERIES) + len(self.costs_ns)

    def _fingerprint(self, index: int, arm: str, query: str, levels: dict[str, str]) -> Iterator[Fingerprint]:
        changed = arm == DOCKER and query == "Q9" and self.changes_plan
        mark = f"{query.lower()}-{'nestloop' if changed else 'hashjoin'}"
        text = None if mark in self.seen_plans else f"{'Nested Loop' if changed else 'Hash Join'}\n  -> Seq Scan"
        self.seen_plans.add(mark)
        at = {"round": index, "arm": arm, "query": query, "parameter_set": 0, "levels": levels}
        yield Fingerprint(**at, fingerprint=mark, plan=text)

    def _explained(self, index: int, arm: str, levels: dict[str, str], order: int) -> Iterator[Visit]:
        at = {"round": index, "arm": arm, "levels": levels, "block": 0, "first_execution": False, "asleep_ok": True}
        now_ns = self.now_ns
        unit = UnitVisit(host_start_ns=now_ns, host_end_ns=now_ns, start_ns=now_ns, end_ns=now_ns)
        probed = [(name, costs[arm]) for name, costs in self.costs_ns.items() if arm in costs]
        for offset, (name, ns) in enumerate(probed):
            elapsed_ns = round(1e6 * ns * math.exp(self.chance.gauss(0, 0.01)))
            batch = Batch(10**6, elapsed_ns, elapsed_ns)
            yield Visit(**at, query=name, order=order + offset, units=(structs.replace(unit, batches=(batch,)),))
        for offset, query in enumerate(QUERIES if self.counts else ()):
            assert self.counts
            told = self.counts(arm, query, levels, self.chance)
            yield Visit(**at, query=query, order=order + len(probed) + offset, units=(unit,), counts=told)

    def _counters(self, index: int, arm: str, levels: dict[str, str], when: str) -> Counters:
        at_ns = int(self.now_ns - self.begin_ns)
        return Counters(
            round=index, arm=arm, levels=levels, when=when,
            machine={
                "steal_ns": at_ns // 500, "user_ns": at_ns // 2, "system_ns": at_ns // 20, "idle_ns": at_ns,
                "pressure": {"cpu_some_ns": at_ns // 50, "memory_some_ns": 0, "io_some_ns": at_ns // 500},
            },
            processes={"user_ns": at_ns // 4, "system_ns": at_ns // 40},
            background={"checkpoints": 3, "vacuums": 0},
            unattributed_cpu_ns=at_ns // 100 if arm == DOCKER else 0,
            driver_cpu_ns=at_ns // 100,
            host_at_ns=self.now_ns,
        )  # fmt: skip

    def _visit(self, at: dict[str, Any], order: int, offset: float, *, first_execution: bool) -> Visit:
        """``at``: round, arm, levels, block and query."""
        arm, levels, query = at["arm"], at["levels"], at["query"]
        cold = levels["cache"] == "cold"
        drift = self.drift * math.sin(4 * (self.now_ns - self.begin_ns) / self.expected_ns)
        level = math.log(BASE_MS[query] * 1e6) + offset + drift + self.chance.gauss(0, self.visit_sd)
        serial, threads = self.serial_fractions.get(arm, 0.0), int(levels.get("threads", "1"))
        level += math.log(serial + (1 - serial) / threads)
        if arm == DOCKER:
            level += self.effects[query] + (0.05 if first_execution else 0.0)
        if first_execution or cold:
            level += 0.4
        begin = self.now_ns + VISIT_LATENCY_NS
        now = begin + 5_000_000
        timings = []
        per_statement = levels.get("connection") == "per_statement"
        for _ in range(1 if first_execution or cold else self.executions):
            connecting = round(1.6e6 * math.exp(self.chance.gauss(0.2 if arm == DOCKER else 0, 0.05))) * per_statement
            took = connecting + round(math.exp(level + abs(self.chance.gauss(0, 0.01))))
            connected = now + connecting if per_statement else None
            timings.append(Timing(now, connected, now + took - 20_000, now + took, 10, 1200, "ok"))
            now += took + 30_000
        end = now + 10_000
        host_start, self.now_ns = self.now_ns, end + VISIT_LATENCY_NS + 2_000_000
        unit = UnitVisit(
            host_start_ns=host_start, host_end_ns=end + VISIT_LATENCY_NS, start_ns=begin, end_ns=end,
            executions=tuple(timings),
            disk_read_bytes=BASE_MS[query] << 17 if cold or first_execution else 0,
            cpu={"user_ns": (end - begin) * 9 // 10, "system_ns": (end - begin) // 20},
        )  # fmt: skip
        return Visit(
            **at, order=order, first_execution=first_execution, asleep_ok=True, parameter_set=max(at["block"], 0),
            units=(unit,),
        )  # fmt: skip


def start_facts(arm: str) -> dict[str, Any]:
    """What a start tells: the same in every arm, but where its server's files lie."""
    return {
        "architecture": "x86_64", "kernel_release": "6.12.0", "cpu_model": "Simulated CPU",
        "cpu_flags": ["avx", "avx2", "fpu", "sse"], "cpus_allowed": "1", "cpu_quota": None,
        "memory_bytes": 8 << 30, "memory_limit_bytes": 4 << 30, "swap_bytes": 0, "open_files": 65536,
        "page_bytes": 4096, "huge_pages": 0, "transparent_hugepages": "madvise", "clocksource": "tsc",
        "mitigations": {"meltdown": "Not affected", "spectre_v2": "Mitigation: Retpolines"},
        "storage": {"kind": "bind", "file_system": "ext4", "cache": None},
        "environment": {"name": "docker" if arm == DOCKER else "native", "emulated": False},
        "version": "PostgreSQL 15.14", "encoding": "UTF8", "collation": "C",
        "settings": {"jit": "off", "autovacuum": "off", "port": "20001" if arm == DOCKER else "20002"},
    }  # fmt: skip


FACTS = {
    "host": {
        "machine": "simulated", "cpu_model": "Simulated CPU", "cpus": 2, "memory_bytes": 8 << 30,
        "kernel": "6.12.0", "is_guest": True, "cgroup": "v2",
    },
    "image": {"key": "sha256:0123456789abcdef", "distribution": "Debian 12"},
    "engine": {"name": "postgres", "version": "15.14"},
    "settings": {"shared_buffers": "1GB", "jit": "off", "autovacuum": "off"},
    "dataset": {"workload": "tpch", "scale": 0.1, "rows": {"lineitem": 600572}, "size_bytes": 180 << 20},
    "agent": {"build": "0.1.0", "architecture": "x86_64"},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cold", action="store_true", help="also a cold phase")
    given = parser.parse_args()
    make_run(given.folder, rounds=given.rounds, blocks=given.blocks, seed=given.seed, cold=given.cold)


if __name__ == "__main__":
    main()
