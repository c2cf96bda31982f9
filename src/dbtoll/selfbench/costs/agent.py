"""Size, start, round trip and idle cost of the agent; round trip and throughput of its stream in every environment."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dbtoll import facts, spec
from dbtoll.images import system
from dbtoll.images.cache import Cache
from dbtoll.interfaces.machine import TimestampedStream
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.agent.nested import open_nested
from dbtoll.model.experiment import Experiment
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.runner.arms import HostContext, open_stack
from dbtoll.runner.cleanup.journal import temporary_journal
from dbtoll.runner.preparation.software import image_software
from dbtoll.selfbench.support import available
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.spec import command_line

SUMMARY = (
    "the agent: binary_bytes, start_ms, round_trip_us, idle_cpu_fraction; round trip and MB/s in every environment"
)
OPTIONS = {
    "idle": Option("duration", 60 * 10**9, "how long it idles"),
    "environments": available.ENVIRONMENTS,
}

STARTS = 50
PINGS = 2000
TRANSFERS = 5
MEBIBYTES = 32
"""Bytes of one transfer: a file of this size is read from the arm's agent (/dev/zero would not end)."""

BOUNDS = {
    "binary_bytes": Bound(max=8 << 20),
    "start_ms": Bound(max=5),
    "round_trip_us": Bound(max=100),
    "idle_cpu_fraction": Bound(max=0.001),
}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """All figures in one go, on whatever else the machine does: medians."""
    binary = find_agent()
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as folder, open_local() as host:
        say(f"start: {STARTS} times")
        starts = [host.run([str(binary), "version"]).usage["wall_ns"] for _ in range(STARTS)]
        nested, _ = open_nested(host, "pipe", [str(binary), "serve"])
        with nested:
            say("round trips over a pipe")
            round_trip_us = round_trip(nested)
            say(f"idle for {options['idle'] / 1e9:.0f} s")
            idle_cpu_fraction = idle(host, nested, options["idle"])
            streams = {"pipe": {"round_trip_us": round_trip_us, "mb_per_s": throughput(nested)}}
        for stack in available.present(options["environments"], say)[0]:
            say(f"stream into {stack}")
            streams[stack] = stream_into(stack, host, Path(folder), say)
        figures = {
            "binary_bytes": binary.stat().st_size,
            "start_ms": statistics.median(starts) / 1e6,
            "round_trip_us": round_trip_us,
            "idle_cpu_fraction": idle_cpu_fraction,
            "streams": streams,
        }
        return Certificate("agent", figures, BOUNDS, {"host": facts.host(host), "build": host.hello()["build"]})


def round_trip(machine: AgentMachine) -> float:
    """Median of PINGS round trips, us: from the last byte of the question written to the last of the answer read, by the
    agent in between, so that no Python is inside."""
    return statistics.median(bracketed_ns(machine, "ping", {}) for _ in range(PINGS)) / 1e3


def throughput(machine: AgentMachine) -> float:
    """MB/s of a file in memory that is read through the stream: question to last byte, by the agent in between.

    BIAS: Python takes the bytes off the line and grants credit; it is the slower side on a pipe.
    """
    path = "/dev/shm/dbtoll-selfbench"
    machine.put(path, bytes(MEBIBYTES << 20))
    try:
        elapsed_ns = statistics.median(
            bracketed_ns(machine, "get", {"path": path, "max_bytes": MEBIBYTES << 20}) for _ in range(TRANSFERS)
        )
    finally:
        machine.remove(path)
    return (MEBIBYTES << 20) / 1e6 / (elapsed_ns / 1e9)


def bracketed_ns(machine: AgentMachine, method: str, parameters: Json) -> int:
    """One call, timed by the agent that relays it."""
    stream = machine.channel.open(method, parameters)
    while stream.receive() is not None:
        pass
    stream.result()
    line = machine.channel.line
    assert isinstance(line, TimestampedStream)
    begin_ns, end_ns = line.written_at(stream.written_count), line.read_at(stream.end_count)
    assert begin_ns is not None and end_ns is not None
    return end_ns - begin_ns


def idle(host: AgentMachine, machine: AgentMachine, idle_ns: int) -> float | None:
    """CPU time of an agent that has nothing to do, over the time it had nothing to do."""
    pid = machine.hello()["pid"]
    before = host.counters(tree_of=pid)
    time.sleep(idle_ns / 1e9)
    after = host.counters(tree_of=pid)
    old, new = before["processes"]["run_ns"], after["processes"]["run_ns"]
    return None if old is None or new is None else float(new - old) / float(after["at_ns"] - before["at_ns"])


def stream_into(stack: str, host: AgentMachine, folder: Path, say: Say) -> dict[str, float]:
    """Round trip and throughput of the agent in a freshly opened arm."""
    experiment = bare_experiment(stack)
    image, _ = system.obtain_image(Cache(), progress=say, software=image_software())
    with temporary_journal() as journal, ExitStack() as closing:
        context = HostContext(host, image, (0,), journal, "selfbench")
        machine = open_stack(context, experiment.arms[0], None, closing)
        assert isinstance(machine, AgentMachine)
        return {"round_trip_us": round_trip(machine), "mb_per_s": throughput(machine)}


def bare_experiment(stack: str) -> Experiment:
    """One arm, no question."""
    text = command_line.comparison(
        [], baseline=stack, engine="noop", engine_options={}, workload="tpch", workload_options={}, tables={}, top={}
    )
    return spec.parse(text, "selfbench")
