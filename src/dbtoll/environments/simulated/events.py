"""What the statements of the simulated world make its kernel do, and what that costs: planted, so that a ledger can be held
against the truth.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dbtoll.model.json import AGENT, Json
from dbtoll.model.probes import CACHED, EXECUTOR_PROBES, HUGE_PAGES
from dbtoll.model.reply import Completed

STATUS = b"Name:\tnull\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n"
"""/proc/PID/status of the server, as far as collectors read it."""

STEP_NS = 100_000.0
"""An event of a probe that does not enter the kernel, in an arm whose user mode is not slowed down."""


@dataclass(frozen=True, slots=True)
class Costs:
    """ns of one event; 0: there is none. ``slowdown``: of user mode, a factor."""

    fault_ns: float = 0.0
    call_ns: float = 0.0
    round_trip_ns: float = 0.0
    slowdown: float = 1.0

    def of_probe(self, name: str) -> float | None:
        """What a probe finds; None: there is no such event here."""
        name = name.removesuffix("_cold")
        kinds = {"fault": self.fault_ns, "system": self.call_ns, "read": self.call_ns, "write": self.call_ns}
        if name == "round_trip_unix":
            return self.round_trip_ns or None
        if name.removesuffix(CACHED).removesuffix(HUGE_PAGES) in ("primes", *EXECUTOR_PROBES):
            return STEP_NS * self.slowdown
        return kinds.get(name.partition("_")[0]) or None

    def of_execution(self, counts: Mapping[str, int]) -> float:
        """What the events of one execution cost, ns; calls that a round trip holds are not paid twice."""
        return counts["faults"] * self.fault_ns + counts["calls"] * self.call_ns + self.round_trip_ns


def counts_of(query: str, uniform: Callable[..., float]) -> dict[str, int]:
    """Events of one execution, the same in every arm: a round trip, and these."""
    return {"faults": round(100 + 900 * uniform("faults", query)), "calls": round(10 + 190 * uniform("calls", query))}


def probed(argv: list[str], costs: Costs, noise: Callable[[], float]) -> Completed:
    """`dbtoll-agent probe`, as it would tell of these costs."""
    asked = json.loads(argv[-1])
    cost_ns = costs.of_probe(asked["probe"])
    found: Json = {"unsupported": "this simulated machine has no such event"}
    if cost_ns is not None:
        events = 10_000
        elapsed = [round(events * cost_ns * noise()) for _ in range(asked["batches"])]
        found = {"batches": [{"events": events, "elapsed_ns": each, "cpu_ns": each} for each in elapsed]}
        if asked["samples"]:
            found["samples"] = {"samples": 10_000, "instructions": float(len(asked["probe"]))}
    return Completed(tuple(argv), 0, None, json.dumps({"start_ns": 0, "end_ns": 1, **found}).encode(), b"", {})


def is_probe(argv: list[str]) -> bool:
    """Whether a program is the agent's probe."""
    return argv[:2] == [AGENT, "probe"]


def is_counting(argv: Sequence[str]) -> bool:
    """Whether a program is one of the agent's that count beside a server."""
    return list(argv[:1]) == [AGENT] and len(argv) > 1 and argv[1] in COUNTING


COUNTING = ("calls", "faults", "events", "tracepoints", "blocks", "samples")


class Counting:
    """`dbtoll-agent calls`, `faults`, `samples`: tells, when it is ended, what was done since it began; the others there
    cannot count."""

    pid = 3

    def __init__(self, argv: tuple[str, ...], counted: Counter[str]) -> None:
        self._argv, self._counted, self._before = argv, counted, Counter(counted)
        self._ended = argv[1] not in ("calls", "faults", "samples")
        self._able = not self._ended

    def running(self) -> bool:
        """Until it is signalled."""
        return not self._ended

    def signal(self, number: int) -> None:
        """Any signal ends it."""
        self._ended = True

    def output(self) -> bytes:
        """It looks at once."""
        return b'{"ready":true}\n' if self._able else b"this simulated kernel does not count them"

    def wait(self, timeout_s: float) -> Completed:
        """What was counted; ended or not."""
        if not self._able:
            return Completed(self._argv, 1, None, b"", self.output(), {})
        new = self._counted - self._before
        if self._argv[1] == "faults":
            # Half of them on new pages.
            kinds = json.dumps(
                {
                    "anonymous": new["faults"],
                    "shared": new["faults"],
                    "shared_read": 0,
                    "file": 0,
                    "copy": 0,
                }
            )
            return Completed(self._argv, 0, None, self.output() + kinds.encode(), b"", {})
        if self._argv[1] == "samples":
            spread = json.dumps({"samples": 5000, "instructions": 6.0}).encode()
            return Completed(self._argv, 0, None, self.output() + spread, b"", {})
        names = {"getppid": new["calls"], "recvfrom": new["executions"], "sendto": new["executions"]}
        rest = {"failed": 0, "alone": 0, "background": 0, "elapsed_ns": 0}
        calls = {name: {"count": count, **rest} for name, count in names.items()}
        told = json.dumps({"calls": calls, "tasks": 1}).encode()
        return Completed(self._argv, 0, None, self.output() + told, b"", {})
