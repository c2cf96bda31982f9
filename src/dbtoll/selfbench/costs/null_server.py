"""What the driver of the transaction workloads costs beside a server that costs next to nothing, and beside the bare exchange."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dbtoll import facts
from dbtoll.errors import UsageError
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.local import kept, open_local
from dbtoll.machines.agent.machine import AgentMachine, LaunchLimits
from dbtoll.machines.agent.terminals import AgentTerminals
from dbtoll.model.machine import Address
from dbtoll.model.options import Option
from dbtoll.model.reply import ended_well
from dbtoll.selfbench.support.bare_exchange import exchanging
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.workloads.tatp import Workload

SUMMARY = "the driver against the null server: transactions_per_s of TATP on one processor, agent_mib_1000"
OPTIONS = {
    "connections": Option("integer", 64, "terminals", least=1),
    "many": Option("integer", 1000, "terminals while the agent's memory is measured", least=1),
    "window": Option("duration", 3 * 10**9, "length of a window"),
    "repetitions": Option("integer", 5, "windows, each beside a bare exchange of that length", least=1),
}

RAMP_UP_NS = 300_000_000
SUBSCRIBERS = 100_000


@dataclass(frozen=True, slots=True)
class Window:
    """One window: counts, CPU times in it, and beside it the client's CPU time of one bare exchange."""

    transactions: int
    round_trips: int
    length_ns: int
    driver_cpu_ns: int
    server_cpu_ns: int
    bare_us: float


BOUNDS = {"transactions_per_s": Bound(min=150_000), "agent_mib_1000": Bound(max=64)}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Driver and server each on a processor of its own. The order of window and bare exchange alternates."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise UsageError("the null server needs a processor beside the driver's", "use a machine with two processors")
    ours, its = cpus[0], cpus[1]
    connections, seconds = options["connections"], options["window"] / 1e9
    seen = []
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, open_local() as host:
        path = str(Path(folder) / "null")
        server = host.spawn([str(kept(find_agent())), "null-server", "--unix", path], within=LaunchLimits(cpus=(its,)))
        with (
            exchanging(host, "--unix", str(Path(folder) / "echo"), asking=(ours,), answering=(its,)) as bare,
            open_local("driver", cpus=[ours]) as machine,
        ):
            terminals = connect(machine, path, connections)
            for number in range(options["repetitions"]):
                bare_us = bare(connections, seconds) if number % 2 == 0 else None
                window = driven(host, server.pid, terminals, options["window"])
                bare_us = bare(connections, seconds) if bare_us is None else bare_us
                seen.append(Window(**window, bare_us=bare_us))
                say(f"{window['transactions'] / seconds:.0f} transactions/s; bare exchange {bare_us:.2f} us")
            terminals.close()
        with open_local("driver", cpus=[ours]) as machine:
            say(f"{options['many']} connections")
            terminals = connect(machine, path, options["many"])
            driven(host, server.pid, terminals, options["window"])
            mib = peak_mib(host, machine.hello()["pid"])
            terminals.close()
        told = {"host": facts.host(host), "build": host.hello()["build"], "windows": [asdict(each) for each in seen]}
        server.cancel()
        server.wait(10)
    return Certificate("null-server", {**figures(seen), "agent_mib_1000": mib}, BOUNDS, told)


def figures(seen: Sequence[Window]) -> dict[str, Any]:
    """Medians over windows.

    BIAS: the null server's processor may be the limit, and then the driver waits: ``limit`` is the side that was busier, and
    ``transactions_per_driver_s`` what the driver's own CPU time would allow.
    """
    us = [each.driver_cpu_ns / each.transactions / 1e3 for each in seen]
    of_trip = [each.driver_cpu_ns / each.round_trips / 1e3 for each in seen]
    driver = statistics.median(each.driver_cpu_ns / each.length_ns for each in seen)
    server = statistics.median(each.server_cpu_ns / each.length_ns for each in seen)
    rates = [each.transactions / (each.length_ns / 1e9) for each in seen]
    return {
        "transactions_per_s": statistics.median(rates),
        "transactions_per_s_range": [min(rates), max(rates)],
        "transactions_per_driver_s": 1e6 / statistics.median(us),
        "round_trips_per_transaction": statistics.median(each.round_trips / each.transactions for each in seen),
        "driver_us_per_transaction": statistics.median(us),
        "driver_us_per_round_trip": statistics.median(of_trip),
        "bare_exchange_us": statistics.median(each.bare_us for each in seen),
        "ratio_to_bare": statistics.median(trip / each.bare_us for trip, each in zip(of_trip, seen, strict=True)),
        "driver_cpu_share": driver,
        "server_cpu_share": server,
        "limit": "driver" if driver >= server else "server",
    }


def connect(machine: AgentMachine, path: str, terminals: int) -> AgentTerminals:
    """TATP on one thread; what the server answers means nothing."""
    driver_parameters = Workload({"subscribers": SUBSCRIBERS, "terminals": terminals}).driver_parameters({}, 1)
    address = Address(wire="postgres", user="selfbench", database="null", unix=path)
    return machine.terminals(address, {**driver_parameters, "imitation": True})


def driven(host: AgentMachine, server: int, terminals: AgentTerminals, window_ns: int) -> dict[str, int]:
    """One window: the fields of Window but for the bare exchange."""
    before = host.counters(tree_of=server)["processes"]["run_ns"]
    reply = terminals.window(ramp_up_ns=RAMP_UP_NS, window_ns=window_ns, rate=None).result()
    after = host.counters(tree_of=server)["processes"]["run_ns"]
    length_ns = reply.until_ns - reply.from_ns
    return {
        "transactions": ended_well(reply.counts),
        "round_trips": reply.counts["round_trips"],
        "length_ns": length_ns,
        "driver_cpu_ns": reply.counts["driver_cpu_ns"],
        # The ramp-up is at the same pace, and outside of both the server has nothing to do.
        "server_cpu_ns": round((after - before) * length_ns / (length_ns + RAMP_UP_NS)),
    }


def peak_mib(host: AgentMachine, pid: int) -> float:
    """The most memory that a process ever had resident."""
    status = host.get(f"/proc/{pid}/status").decode()
    match = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    assert match is not None, "a living process has a peak"
    return int(match[1]) / 1024
