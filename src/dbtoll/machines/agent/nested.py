"""An agent behind another machine: its stream is relayed, and every visit bracketed, by the agent in between."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from dbtoll.channel.client import Channel
from dbtoll.channel.relay import RelayStream
from dbtoll.errors import AgentFailure, ChannelError
from dbtoll.machines.agent.machine import FREE, AgentMachine, LaunchLimits

_RETRY_S: Final = 0.02


def agent_stream(
    parent: AgentMachine,
    argv: Sequence[str],
    *,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    within: LaunchLimits = FREE,
) -> RelayStream:
    """Run ``argv`` (an agent: ``[path, "serve"]``, or what leads to one) on ``parent``; its input and output.

    The stream is Stamped by the outermost agent on the way. Closing it ends the program. To make a machine of it:
    ``NativeMachine(name, Channel(stream, name), on_close)``.
    """
    parameters = {"argv": list(argv), "env": dict(env or {}), "cwd": cwd, "user": user} | within.parameters()
    return RelayStream(parent.channel, "run", parameters, stamps=True)


def open_nested(
    parent: AgentMachine,
    name: str,
    argv: Sequence[str],
    *,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    within: LaunchLimits = FREE,
    on_close: ExitStack | None = None,
) -> tuple[AgentMachine, RelayStream]:
    """A plain AgentMachine over :func:`agent_stream`, and that stream. ``on_close`` is unwound also when this fails."""
    with on_close or ExitStack() as cleanup:
        stream = agent_stream(parent, argv, user=user, env=env, within=within)
        return AgentMachine(name, Channel(stream, name), cleanup.pop_all()), stream
    raise AssertionError("an exit stack of ours swallows no error")


def connect_agent(parent: AgentMachine, name: str, socket: str, *, patience_s: float = 10.0) -> Channel:
    """A channel to an agent that listens, or soon will, on the Unix socket ``socket`` of ``parent``; stamped.

    Raises ChannelError when it does not within ``patience_s``.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return Channel(parent.connect(unix=socket, stamps=True), name)
        except ChannelError as error:
            if not _not_listening_yet(error.__cause__) or time.monotonic() > until:
                raise
        time.sleep(_RETRY_S)


def _not_listening_yet(cause: BaseException | None) -> bool:
    """No socket there, or one that nobody listens on (connect(2): ECONNREFUSED)."""
    return isinstance(cause, AgentFailure) and (
        cause.code == "not_found" or cause.detail.get("errno") == errno.ECONNREFUSED
    )
