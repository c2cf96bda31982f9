"""A small but complete run folder of a transaction workload, simulated: three arms in measurement windows.

What happens in a window is planted: the level of throughput, an arm's overhead, a trend, a slow beginning, what failed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dbtoll.model.experiment import ComponentSpec, Configuration, Experiment, Precision, Step
from dbtoll.model.json import Json
from dbtoll.model.layout import Layout
from dbtoll.plan import Plan
from dbtoll.store.schema import CheckRecord, Devices, PlanFile, RoundBegin, RoundEnd, RunEnd, Start, UnitVisit, Visit
from dbtoll.store.writer import RunWriter
from tests.support.make_run import DOCKER, FACTS, NATIVE, arms_of, start_facts

KINDS = {"new_order": 0.45, "payment": 0.43, "order_status": 0.04, "delivery": 0.04, "stock_level": 0.04}
TATP_KINDS = {"get_subscriber_data": 0.7, "update_location": 0.3}
INTERVALS = 100
LENGTH_NS = 4_000_000_000
INTERVAL_NS = LENGTH_NS // INTERVALS
ROUND_TRIPS = {"statement": 28, "procedure": 1}

DOCKER_STEP = Step("docker")

Shape = Callable[[float], float]
"""Throughput, of its usual level, at a time between 0 (a window's start) and 1 (its end)."""


def flat(_: float) -> float:
    """Steady."""
    return 1.0


def rising(by: float) -> Shape:
    """In a straight line, by that fraction of the mean."""
    return lambda time: 1 + by * (time - 0.5)


def slow_start(by: float) -> Shape:
    """Lower by that fraction in the first tenth."""
    return lambda time: 1 - by if time < 0.1 else 1.0


def make_windows(
    folder: Path,
    *,
    workload: str = "tpcc",
    options: Mapping[str, Any] | None = None,
    rounds: int = 8,
    interactions: tuple[str, ...] = ("statement",),
    per_s: float = 1000.0,
    docker_effect: float = 0.10,
    noise: float = 0.0,
    shapes: Mapping[str, Shape] | None = None,
    driver_us: Mapping[str, float] | None = None,
    driver: Json | None = None,
    causes: Mapping[str, Mapping[str, int]] | None = None,
    changes: Json | None = None,
    clock_rate: float = 1.0,
    step: Step = DOCKER_STEP,
    units: int = 1,
    devices: Mapping[str, tuple[Devices, ...]] | None = None,
    seed: int = 1,
) -> Path:
    """Write the run. ``noise``: standard deviation of a window's level, log scale, and of an interval's, in per cent of its mean.

    ``shapes`` and ``driver_us`` by arm; ``driver``: the calibration in the facts; ``causes``: ``failed`` and ``retried`` of the
    first transaction in each window; ``changes``: keys of every window that are other than usual;
    ``clock_rate``: of all arms' clocks, of the host's; ``step``: what the third arm is;
    ``units``: machines of every arm, each of which does the same; ``devices`` of each window, by arm.
    """
    chance = random.Random(seed)
    kinds = KINDS if workload == "tpcc" else TATP_KINDS
    experiment = Experiment(
        question="How much of the throughput is lost in Docker?",
        expected="little",
        arms=tuple(
            replace(arm, layout=Layout(machines=units))
            for arm in arms_of(
                Configuration(
                    ComponentSpec("postgres", {}),
                    ComponentSpec(workload, {"window": LENGTH_NS, "ramp_up": LENGTH_NS // 4, **(options or {})}),
                ),
                step,
            )
        ),
        baseline=NATIVE,
        factors={"interaction": interactions, "isolation": ("read_committed",)},
        precision=Precision(),
        seed=seed,
    )
    plan = Plan(experiment, ("mix",), 1, {})
    facts = {**FACTS, **({"driver": driver} if driver else {})}
    writer = RunWriter.create(
        folder,
        spec=b'question = "How much of the throughput is lost in Docker?"\n',
        plan=PlanFile(experiment=experiment, queries=("mix",), blocks=1),
        facts=facts,
    )
    now_ns = 1_000_000_000_000
    with writer:
        for number in range(rounds):
            made = plan.round(number)
            writer.append(RoundBegin(round=number, attempt=0, elapsed_s=30.0 * number))
            for arm in made.start_order:
                writer.append(Start(round=number, arm=arm, outcome="ok", servers=(start_facts(arm),) * units))
                writer.append(
                    CheckRecord(round=number, arm=arm, check="consistent", passed=True, finding="all hold", voids=True)
                )
            order = 0
            for phase in made.phases:
                for block in (-1, 0):
                    for arm in made.start_order:
                        level = (
                            per_s / (1 + docker_effect * (arm == DOCKER)) * LENGTH_NS / 1e9 * (1 if block == 0 else 0.8)
                        )
                        shape = (shapes or {}).get(arm, flat)
                        trips = ROUND_TRIPS[phase.levels["interaction"]]
                        window = _window(
                            chance, level * 2.718281828 ** chance.gauss(0, noise), shape, noise, kinds, trips,
                            (driver_us or {}).get(arm, 20.0), causes or {},
                        )  # fmt: skip
                        window["throughput_transaction"] = "new_order" if workload == "tpcc" else None
                        writer.append(
                            Visit(
                                round=number, arm=arm, levels=phase.levels, block=block, query="mix", order=order,
                                first_execution=block < 0, asleep_ok=True, parameter_set=max(block, 0),
                                units=(
                                    UnitVisit(
                                        host_start_ns=now_ns, host_end_ns=now_ns + 600_000 + round(LENGTH_NS / clock_rate),
                                        start_ns=now_ns + 300_000, end_ns=now_ns + 300_000 + LENGTH_NS,
                                        window={**window, **(changes or {})},
                                    ),
                                ) * units,
                                devices=(devices or {}).get(arm, ()),
                            )
                        )  # fmt: skip
                        order += 1
                        now_ns += 2 * LENGTH_NS
            writer.append(RoundEnd(round=number, attempt=0, complete=True, elapsed_s=30.0 * number + 25))
        writer.append(RunEnd(reason="budget ended", elapsed_s=30.0 * rounds))
    return folder


def _window(
    chance: random.Random,
    per_window: float,
    shape: Shape,
    noise: float,
    kinds: Mapping[str, float],
    round_trips: int,
    driver_us: float,
    causes: Mapping[str, Mapping[str, int]],
) -> Json:
    """What the agent tells of a window in which ``per_window`` transactions end."""
    mean = per_window / INTERVALS
    series = [
        round(mean * shape((index + 0.5) / INTERVALS) * (1 + chance.gauss(0, noise))) for index in range(INTERVALS)
    ]
    total = sum(series)
    counts = {name: round(total * share) for name, share in kinds.items()}
    return {
        "length_ns": LENGTH_NS,
        "interval_ns": INTERVAL_NS,
        "series": series,
        "driver_cpu_ns": round(driver_us * 1000 * sum(counts.values())),
        "round_trips": round_trips * sum(counts.values()),
        "statements": round_trips * sum(counts.values()),
        "sent_bytes": 100 * total,
        "received_bytes": 90 * total,
        "backlog_at_end": 0,
        "connections_lost": 0,
        "reconnects": 0,
        "refusal": None,
        "transactions": {
            name: {
                "committed": count,
                "rolled_back": 0,
                "not_found": 0,
                "failed": dict(causes.get("failed", {})) if index == 0 else {},
                "retried": dict(causes.get("retried", {})) if index == 0 else {},
                "lost": 0,
                "unknown": 0,
                "response_ns": {"buckets": _buckets(count, (index + 1) * 1_000_000)},
                "service_ns": {"buckets": _buckets(count, (index + 1) * 1_000_000)},
            }
            for index, (name, count) in enumerate(counts.items())
        },
    }


def _buckets(count: int, median_ns: int) -> list[list[int]]:
    """Three fifths of them at the median, the others at twice that, the slowest hundredth at ten times that."""
    slow = count // 100
    half = count * 3 // 5
    return [
        pair for pair in ([median_ns, half], [2 * median_ns, count - half - slow], [10 * median_ns, slow]) if pair[1]
    ]
