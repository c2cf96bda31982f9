"""Where the time of a server's sessions goes that serve terminals (docs/method/transactions.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dbtoll.analysis.result.schema import Levels, SessionsResult, TimeShare
from dbtoll.analysis.transactions.devices import mean_of
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.model.description import ON_DISK, RUNNING, Wait
from dbtoll.model.json import Json

ON_CPU, RUN_QUEUE = "on_cpu", "run_queue"
"""What a session does that works and waits for nothing else, or waits for: a processor."""

SAMPLES = "looks"
"""How a history calls them."""
SCHEDULED = ("run_ns", "run_queue_wait_ns", "elapsed_ns")

ALWAYS_TOLD = frozenset({Wait.CLIENT, Wait.OTHER})
STATES = (ON_CPU, RUN_QUEUE, RUNNING, *Wait)
"""In the order in which they are shown. ``RUNNING`` where a kernel does not tell the first two apart."""

NOT_TOLD = "the server does not say what its sessions wait for"
KERNEL_SILENT = (
    "the server does not say what its sessions wait for, and the kernel does not say when their threads sleep"
)


def find(measured: ValidVisits, arm: str, levels: Levels) -> SessionsResult | None:
    """None of a run that does not explain, and of one from before sessions were sampled in the windows alone."""
    rounds: dict[int, list[Json]] = defaultdict(list)
    for visit in measured.counting_passes:
        told = (visit.counts or {}).get("engine", {}).get("counted", {})
        if (visit.arm, visit.levels) == (arm, levels) and "processes" in told and "waiting" in told:
            rounds[visit.round].append(told)
    if not rounds:
        return None
    experiment = measured.run.plan.experiment
    asked = experiment.arm(arm)
    waits = measured.run.descriptions.engines[asked.configuration.engine.name].waits
    samples = sum(told["waiting"].get(SAMPLES, 0) for its in rounds.values() for told in its)
    if not waits:
        return SessionsResult(samples, (), NOT_TOLD)
    if ON_DISK in waits and any(told["processes"].get("run_ns") is None for its in rounds.values() for told in its):
        return SessionsResult(samples, (), KERNEL_SILENT)
    of_a_server = asked.configuration.workload.options.get("terminals", 1) * len(asked.layout.in_server.units)
    found = [each for its in rounds.values() if (each := shares(its, waits, of_a_server)) is not None]
    alpha = 1 - experiment.precision.confidence
    can_be_told = {*waits.values(), *ALWAYS_TOLD}  # of another wait 0 would not be a finding
    means = [
        TimeShare(name, mean)
        for name in STATES
        if (name in can_be_told or any(each[name] for each in found))
        and (mean := mean_of([each[name] for each in found], alpha, most=1.0))
    ]
    return SessionsResult(samples, tuple(means), None if means else "no sample was taken")


def shares(told: Sequence[Json], waits: Mapping[str, Wait], sessions: int) -> dict[str, float] | None:
    """State -> share of the time, of the windows of a round; None without any sample. ``sessions``: of which each sample tells.

    How long they were on a processor, and waited for one, is the kernel's account. The rest is shared out by what they were found
    to wait for; who was not found at work waited for its client.

    BIAS: a session that is woken is found waiting for what it waited for until it gets a processor, so samples alone would tell too
    little of processors (docs/method/transactions.md has by how much). That time is taken from all waits in proportion.
    """
    seen: Counter[str] = Counter()
    for each in told:
        for name, count in each["waiting"].items():
            seen[name if name in (SAMPLES, RUNNING) else state(name, waits)] += count
    samples = seen.pop(SAMPLES, 0)
    if not samples:
        return None
    seen[Wait.CLIENT] += max(0, samples * sessions - sum(seen.values()))
    found = dict.fromkeys(STATES, 0.0)
    run_ns, waited_ns, elapsed_ns = (_sum(each["processes"].get(name) for each in told) for name in SCHEDULED)
    if run_ns is not None and waited_ns is not None and elapsed_ns and min(run_ns, waited_ns) >= 0:
        of_all = max(elapsed_ns * sessions, run_ns + waited_ns)
        found |= {ON_CPU: run_ns / of_all, RUN_QUEUE: waited_ns / of_all}
        del seen[RUNNING]
        seen = seen if any(seen.values()) else Counter({Wait.OTHER: 1})
    left = 1 - sum(found.values())
    return found | {name: left * count / sum(seen.values()) for name, count in seen.items()}


def state(name: str, waits: Mapping[str, Wait]) -> Wait:
    """What the server calls so; the longest beginning that it knows holds."""
    fitting = [beginning for beginning in waits if name.startswith(beginning)]
    return waits[max(fitting, key=len)] if fitting else Wait.OTHER


def _sum(values: Iterable[int | None]) -> int | None:
    """None where one is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None
