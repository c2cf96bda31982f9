"""The local host as a machine: the only place where Python starts an agent, over a pipe."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dbtoll import namespaces
from dbtoll.channel.client import Channel
from dbtoll.channel.pipe import PipeStream
from dbtoll.errors import Unavailable
from dbtoll.images.cache import Cache
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.json import Json


def open_local(name: str = "local", *, cpus: Sequence[int] | None = None) -> AgentMachine:
    """Start the agent here and say hello. ``cpus``: its affinity, inherited by all that it starts (None: all).

    Raises Unavailable when no agent has been built, ChannelError when it does not answer.
    """
    agent = kept(find_agent())
    try:
        with _affinity(cpus):
            line = PipeStream([str(agent), "serve"], env={"PATH": os.environ.get("PATH", os.defpath)})
    except OSError as error:
        raise Unavailable(f"the agent {agent} cannot be started: {error.strerror}", "./dbtoll setup") from error
    return LocalHost(name, Channel(line, name))


class LocalHost(AgentMachine):
    """The host on which this process runs."""

    def place(self, path: str) -> str:
        """Without root, in the user's own directories."""
        return namespaces.own_place(path)


def kept(agent: Path) -> Path:
    """The same program in the cache, compared with its hash.

    A run binds its agent's file into every arm that it starts: a build of another one must not take it away.
    """
    content = agent.read_bytes()

    def copy(folder: Path) -> Json:
        (folder / agent.name).write_bytes(content)
        (folder / agent.name).chmod(0o755)
        return {}

    recipe: Json = {"name": agent.name, "sha256": hashlib.sha256(content).hexdigest()}
    return Cache().obtain("agent", recipe, copy, estimate_bytes=len(content)).content / agent.name


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
