"""The local host as a machine: the only place where Python starts an agent, over a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dbtoll.channel.binary import find_agent
from dbtoll.channel.client import Channel
from dbtoll.channel.machine import AgentMachine
from dbtoll.channel.pipe import PipeStream
from dbtoll.errors import Unavailable


def open_local(name: str = "local", *, cpus: Sequence[int] | None = None) -> AgentMachine:
    """Start the agent here and say hello. ``cpus``: its affinity, inherited by all that it starts (None: all).

    Raises Unavailable when no agent has been built, ChannelError when it does not answer.
    """
    agent = find_agent()
    try:
        with _affinity(cpus):
            line = PipeStream([str(agent), "serve"], env={"PATH": os.environ.get("PATH", os.defpath)})
    except OSError as error:
        raise Unavailable(f"the agent {agent} cannot be started: {error.strerror}", "./dbtoll setup") from error
    return AgentMachine(name, Channel(line, name))


@contextmanager
def _affinity(cpus: Sequence[int] | None) -> Iterator[None]:
    """A child inherits the affinity of the thread that forks it: no code runs between fork and exec for it."""
    if cpus is None:
        yield
        return
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as error:
        raise Unavailable(f"processors {sorted(cpus)} cannot be used here", f"choose from {sorted(own)}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
