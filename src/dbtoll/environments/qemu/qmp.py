"""QEMU's control socket on any machine: the qemu.qmp library over a bridge to ``machine.connect``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Coroutine
from typing import Any

from qemu.qmp import ExecuteError, QMPClient, QMPError

from dbtoll.errors import DbtollError
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.socket_proxy import bridge, shut

ANSWER_TIMEOUT_S = 60.0
"""Every command that dbtoll gives is answered within milliseconds; a monitor that does not answer hangs."""


class Qmp:
    """The control socket ``path`` on ``machine``; a monitor that listens there already. Use it from one thread."""

    def __init__(self, machine: AgentMachine, path: str) -> None:
        self._name = machine.name
        self._there = machine.connect(unix=path)
        self._ours, theirs = socket.socketpair()
        threading.Thread(target=bridge, args=(self._ours, self._there), name=f"{path}: bridge", daemon=True).start()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{path}: qmp", daemon=True)
        self._thread.start()
        self._client = QMPClient(path)
        # That the monitor has ended is an event here and no emergency; who needs it gets an error from `execute`.
        logging.getLogger("qemu.qmp").addHandler(logging.NullHandler())
        logging.getLogger("qemu.qmp").propagate = False
        try:
            self._wait(self._client.connect(theirs))
        except BaseException:
            self.close()
            raise

    def execute(self, command: str, **arguments: Any) -> Any:
        """What the monitor returned. DbtollError with what it said if it refused, or is gone."""
        return self._wait(self._client.execute(command, arguments))

    def close(self) -> None:
        """Also twice, also when the monitor is gone."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(DbtollError):
            self._wait(self._client.disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shut(self._ours)
        self._there.close()
        self._ours.close()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_TIMEOUT_S)
        except ExecuteError as error:
            raise DbtollError(f"the virtual machine monitor on {self._name} refused: {error}") from error
        except (QMPError, EOFError, OSError, TimeoutError) as error:
            said = str(error) or "it did not answer"
            raise DbtollError(f"the virtual machine monitor on {self._name} is gone: {said}") from error
