"""What can be found out where no agent can be started: no environment is opened, and no server started."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dbtoll import registry, system_packages
from dbtoll.doctor import availability
from dbtoll.doctor.deadline import Probed
from dbtoll.errors import AgentFailure, ProgramFailed
from dbtoll.model.machine import MissingRequirement
from dbtoll.model.reply import Completed

PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))
"""Where the programs of all users and of root lie."""


class PlainMachine:
    """This machine, looked at by Python itself. Implements interfaces.InspectableMachine."""

    name = "local"

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        check: bool = True,
    ) -> Completed:
        """A program, to its end; its environment is ``env`` and PATH. Raises ProgramFailed and AgentFailure as an agent does."""
        try:
            done = subprocess.run(
                argv, env={"PATH": PATH, **(env or {})}, cwd="/", capture_output=True, timeout=timeout_s, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            raise AgentFailure("not_found", f"{argv[0]} cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"{argv[0]} did not end within {timeout_s:g} s") from None
        if check and done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise ProgramFailed(f"{argv[0]} ended with exit code {done.returncode}: {said[-1000:]}")
        code, signal = (done.returncode, None) if done.returncode >= 0 else (None, -done.returncode)
        return Completed(tuple(argv), code, signal, done.stdout, done.stderr, {})

    def get(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """A small file."""
        try:
            with Path(path).open("rb") as file:
                content = file.read(max_bytes + 1)
        except OSError as error:
            raise AgentFailure("not_found", f"{path}: {error.strerror}") from None
        if len(content) > max_bytes:
            raise AgentFailure("too_large", f"{path}: more than {max_bytes} bytes")
        return content

    def hello(self) -> Mapping[str, int]:
        """What an agent says of itself, as far as a probe needs it: a number that no other process has."""
        return {"pid": os.getpid()}


def environment(name: str) -> Probed:
    """Which of its programs are missing; whether it would work is not tried."""
    if availability.simulated(name):
        return availability.SIMULATED
    sight = registry.find("environments", name).look()
    missing = tuple(
        MissingRequirement(program, f"{name} calls it", f"apt-get install {package}")
        for program, (package, group) in system_packages.programs().items()
        if group == name and sight.needs_programs and shutil.which(program, path=PATH) is None
    )
    note = "; ".join(filter(None, ("it is tried once there is an agent", sight.note)))
    return Probed("lacks" if missing else "not probed", missing, note)


def engine(name: str) -> Probed:
    """No server is started."""
    return Probed("not probed", note="it is tried in a native arm, which needs the agent")
