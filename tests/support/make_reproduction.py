"""Runs of the parts of a reproduction, simulated: any arms, each with its planted overhead by query and levels.

Written by the real writer; less is in them than in those of `make_run`, and nothing is noisy but starts and visits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dbtoll.model.experiment import Arm, ComponentSpec, Configuration, Experiment, Precision, Resources, Step
from dbtoll.model.plan import Phase
from dbtoll.plan import Plan
from dbtoll.store.schema import (
    Batch,
    CheckRecord,
    Fingerprint,
    PlanFile,
    RoundBegin,
    RoundEnd,
    RunEnd,
    Start,
    Timing,
    Visit,
)
from dbtoll.store.writer import RunWriter
from dbtoll.workloads.probes import Workload as Probes
from tests.support.changed import visit_of_one_unit
from tests.support.make_run import BASE_MS, COPY, FACTS, NATIVE, start_facts

Overhead = Callable[[str, str, Mapping[str, str]], float]
"""Arm, query and levels -> a fraction; 0.1 takes 10 % longer."""
Plans = Callable[[str, str, int], str]
"""Arm, query and round -> what its plan is called."""

FEW_QUERIES = ("Q1", "Q3", "Q6", "Q9", "Q13", "Q18")
GUEST, DOCKER, IN_MEMORY = "qemu", "docker", "files in memory"
STACKS: Mapping[str, Step] = {
    NATIVE: Step("native"), DOCKER: Step("docker"), GUEST: Step("qemu"), IN_MEMORY: Step("qemu", {"storage": "memory"}),
    "virtualbox": Step("virtualbox"), "uml": Step("uml"),
}  # fmt: skip


def make_statements(
    folder: Path,
    role: str,
    overhead: Overhead,
    *,
    paper: str = "muehlbauer2015",
    arms: Sequence[str] = (DOCKER, GUEST),
    guest: str = GUEST,
    engine: str = "hyper",
    threads: Sequence[int] = (1, 2),
    native: Callable[[Mapping[str, str]], float] = lambda levels: 1.0,
    plans: Plans = lambda arm, query, number: "a plan",
    emulated: Collection[str] = (),
    rounds: int = 6,
    first: float = 1.3,
    noise: float = 0.002,
    seed: int = 1,
) -> Path:
    """Write a run of some queries of TPC-H.

    ``native``: of how many times its usual time the baseline takes; ``first``: first runs over others.
    """
    factors = {
        "cache": ("warm",),
        **({"threads": tuple(map(str, threads))} if threads else {}),
        "connection": ("persistent",),
    }
    asked = _experiment(
        role, paper, arms, guest, ComponentSpec(engine), ComponentSpec("tpch", {"scale": 0.1}), factors, seed
    )
    chance = random.Random(seed)

    def visit(at: dict[str, Any], now_ns: int, start: float, *, first_execution: bool) -> Visit:
        arm, query, levels = at["arm"], at["query"], at["levels"]
        copy = NATIVE if arm == COPY else arm
        ms = BASE_MS[query] * native(levels) * (1 + (0.0 if copy == NATIVE else overhead(copy, query, levels)))
        took = round(ms * 1e6 * math.exp(start + chance.gauss(0, noise)) * (first if first_execution else 1.0))
        timing = Timing(now_ns + 10_000, None, now_ns + took, now_ns + took + 10_000, 10, 1200, "ok")
        return _visit(at, now_ns, took + 20_000, executions=(timing,), first_execution=first_execution)

    return _write(folder, asked, FEW_QUERIES, rounds, visit, plans, emulated, chance, noise, firsts=True)


def make_probes(
    folder: Path,
    overhead: Mapping[str, Mapping[str, float]],
    probes: Sequence[str],
    *,
    paper: str = "muehlbauer2015",
    guest: str = GUEST,
    emulated: Collection[str] = (),
    rounds: int = 6,
    noise: float = 0.0005,
    seed: int = 1,
) -> Path:
    """Write a run of probes. ``overhead``: arm -> probe -> a fraction; what is not named costs as much as in the baseline."""
    engine, workload = ComponentSpec("no_server"), ComponentSpec("probes", {"probes": list(probes)})
    asked = _experiment("probes", paper, tuple(overhead), guest, engine, workload, {}, seed)
    chance = random.Random(seed)

    def visit(at: dict[str, Any], now_ns: int, start: float, *, first_execution: bool) -> Visit:
        ns = 1000 * (1 + overhead.get(at["arm"], {}).get(at["query"], 0.0)) * math.exp(start + chance.gauss(0, noise))
        batch = Batch(1000, round(1000 * ns), round(1000 * ns))
        return _visit(at, now_ns, round(1000 * ns), batches=(batch,), executions=(), first_execution=first_execution)

    known = {"probes": {name: {**Probes({}).about(name), "min_ns": 1.0, "max_ns": 1e9} for name in probes}}
    return _write(folder, asked, tuple(probes), rounds, visit, None, emulated, chance, noise, facts=known)


def _experiment(
    role: str,
    paper: str,
    arms: Sequence[str],
    guest: str,
    engine: ComponentSpec,
    workload: ComponentSpec,
    factors: dict[str, tuple[str, ...]],
    seed: int,
) -> Experiment:
    most = max(map(int, factors.get("threads", ("1",))))
    own = Configuration(engine, workload, Resources(cpus=most))
    made = [
        Arm(NATIVE, (STACKS[NATIVE],), text="native", configuration=own),
        Arm(COPY, (STACKS[NATIVE],), copy_of=NATIVE, text="native", configuration=own),
    ]
    made += [Arm(arm, (STACKS[arm],), text=STACKS[arm].environment, configuration=own, against=NATIVE) for arm in arms]
    return Experiment(
        question="How much is lost?", expected="", arms=tuple(made), baseline=NATIVE, factors=factors, precision=Precision(),
        seed=seed, paper=paper, role=role, variables={"environment": guest},
    )  # fmt: skip


def _visit(at: dict[str, Any], now_ns: int, took_ns: int, **known: Any) -> Visit:
    return visit_of_one_unit(
        **at, **known, asleep_ok=True, host_start_ns=now_ns - 300_000, host_end_ns=now_ns + took_ns + 300_000, start_ns=now_ns,
        end_ns=now_ns + took_ns, cpu={"user_ns": took_ns // 2, "system_ns": took_ns // 20},
    )  # fmt: skip


def _write(
    folder: Path,
    asked: Experiment,
    queries: tuple[str, ...],
    rounds: int,
    visit: Callable[..., Visit],
    plans: Plans | None,
    emulated: Collection[str],
    chance: random.Random,
    noise: float,
    *,
    facts: Mapping[str, Any] | None = None,
    firsts: bool = False,
) -> Path:
    plan = Plan(asked, queries, 1, {})
    writer = RunWriter.create(
        folder, spec=b'question = "How much is lost?"\n', plan=PlanFile(experiment=asked, queries=queries, blocks=1),
        facts={**FACTS, **(facts or {})},
    )  # fmt: skip
    with writer:
        for number in range(rounds):
            elapsed_s = 60.0 * number
            writer.append(RoundBegin(round=number, attempt=0, elapsed_s=elapsed_s))
            made = plan.round(number)
            for arm in made.start_order:
                for record in _start(number, arm, queries, plans, emulated):
                    writer.append(record)
            starts = {arm: chance.gauss(0, noise) for arm in made.start_order}
            now_ns, order = 1_000_000_000_000 + number * 60_000_000_000, 0
            for phase in made.phases:
                for at, first_execution in _planned(phase, made.start_order, queries, firsts=firsts):
                    made_of = {"round": number, "order": order, **at}
                    record = visit(made_of, now_ns, starts[at["arm"]], first_execution=first_execution)
                    writer.append(record)
                    now_ns, order = record.units[0].host_end_ns + 2_000_000, order + 1
            writer.append(RoundEnd(round=number, attempt=0, complete=True, elapsed_s=elapsed_s + 50))
        writer.append(RunEnd(reason="budget ended", elapsed_s=60.0 * rounds))
    return folder


def _start(
    number: int, arm: str, queries: Sequence[str], plans: Plans | None, emulated: Collection[str]
) -> Iterator[Start | CheckRecord | Fingerprint]:
    known = {**start_facts(NATIVE), "environment": {"name": arm, "emulated": arm in emulated}}
    yield Start(round=number, arm=arm, outcome="ok", servers=(known,))
    yield CheckRecord(round=number, arm=arm, check="answers_known", passed=True, finding="as it should be", voids=False)
    for query in queries if plans is not None else ():
        assert plans is not None
        mark = plans(NATIVE if arm == COPY else arm, query, number)
        yield Fingerprint(round=number, arm=arm, query=query, parameter_set=0, fingerprint=f"{query} {mark}", plan=mark)


def _planned(
    phase: Phase, arms: Sequence[str], queries: Sequence[str], *, firsts: bool
) -> Iterator[tuple[dict[str, Any], bool]]:
    for query in queries if firsts else ():
        for arm in arms:
            yield {"arm": arm, "levels": phase.levels, "block": -1, "query": query}, True
    for block in phase.blocks:
        for planned in block.visits:
            at = {"arm": planned.arm, "levels": phase.levels, "block": block.index, "query": planned.query}
            yield at, False
