"""The terminals of a transaction workload, driven by an agent: JSON lines over the method ``oltp``."""

from __future__ import annotations

import time
from typing import Final

from dbtoll.channel.client import Channel
from dbtoll.channel.json_lines import SLACK_S, BegunLines, HeldAt, JsonLines
from dbtoll.channel.replies import Window
from dbtoll.model.json import Json
from dbtoll.model.machine import Address
from dbtoll.model.reply import WindowReply

CONNECT_DEADLINE_S: Final = 600.0
"""Each connection is a process of the server, that has to be made and to prepare all statements."""

INTERVALS: Final = 100
"""Of a window: so fine is its throughput over time."""


class AgentTerminals:
    """Implements interfaces.Terminals."""

    def __init__(self, channel: Channel, address: Address, driver_parameters: Json) -> None:
        self._patience_s = driver_parameters["response_timeout_ns"] / 1e9
        self._lines = JsonLines(channel, "oltp", {**address.parameters(), **driver_parameters})
        self._lines.reply(time.monotonic() + CONNECT_DEADLINE_S)

    def window(
        self, *, ramp_up_ns: int, window_ns: int, rate: float | None, hold: bool = False
    ) -> BegunLines[WindowReply]:
        """Errors as `JsonLines.ask`."""
        command: Json = {
            "command": "window",
            "ramp_up_ns": ramp_up_ns,
            "window_ns": window_ns,
            "interval_ns": max(window_ns // INTERVALS, 1),
            "rate": rate,
            "hold": hold,
        }
        timeout_s = SLACK_S + 2 * self._patience_s + (ramp_up_ns + window_ns) / 1e9
        return self._lines.begin(command, timeout_s, Window, self._window)

    def _window(self, reply: Json, held: HeldAt) -> WindowReply:
        host_start_ns, host_end_ns = self._lines.bracket()
        times = {name: reply.pop(name) for name in ("start_ns", "begin_ns", "from_ns", "until_ns", "end_ns")}
        return WindowReply(
            **times,
            counts=reply,
            host_start_ns=host_start_ns,
            host_end_ns=host_end_ns,
            held_ns=held.held_ns,
            host_held_ns=held.host_held_ns,
            host_asked_ns=held.host_asked_ns,
        )

    def close(self) -> None:
        """Disconnect and end the driver. Also after a failure, also twice."""
        self._lines.close()
