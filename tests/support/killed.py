"""A run that is killed: opens one arm, and dies together with its agent, when it is told to or at one line of its journal.

python -m tests.support.killed FOLDER ENVIRONMENT IMAGE OPTIONS-AS-JSON LINE

LINE 0: it opens the arm, says its agent's number, and waits. Another: it dies right after that line of its journal has been
written, if there comes to be one; else it closes the arm and ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dbtoll import registry
from dbtoll.contracts.machines import machine_spec, small_image
from dbtoll.images.cache import Cache
from dbtoll.images.kernel import debian_kernel
from dbtoll.interfaces.environment import BootingEnvironment
from dbtoll.machines.agent.local import open_local
from dbtoll.model.experiment import Step
from dbtoll.model.machine import Artifact, MachineSpec, Provision
from dbtoll.model.storage import OPTION
from dbtoll.runner.cleanup.journal import FILE, Journal
from dbtoll.runner.preparation.requirements import program_for

NEVER = 1_000_000


def kill_a_run(folder: Path, environment: str, image: Artifact, options: dict[str, Any]) -> None:
    """Open an arm in another process, then SIGKILL that process and its agent at once."""
    folder.mkdir()
    with _started(folder, environment, image.path, options, 0) as run:
        assert run.stdout is not None
        agent = int(run.stdout.readline())
        os.kill(agent, signal.SIGSTOP)  # so that it does not see its line end
        run.kill()
        run.wait()
        os.kill(agent, signal.SIGKILL)
    time.sleep(0.2)


def lines_of_a_life(folder: Path, environment: str, options: Mapping[str, Any]) -> int:
    """How many lines the journal of an arm's whole life has: opened, asleep, awake, closed."""
    kill_at_line(folder, environment, options, NEVER)
    return (folder / FILE).read_bytes().count(b"\n")


def kill_at_line(
    folder: Path, environment: str, options: Mapping[str, Any], line: int, *, may_end: bool = False
) -> None:
    """Live such a life in another process, which kills its agent and itself right after that line of its journal.

    ``options``: beyond those with which nothing of this host's is used. ``may_end``: its journal may have fewer lines.
    """
    folder.mkdir()
    with _started(folder, environment, "small", {**_own_options(environment, folder), **options}, line) as run:
        code = run.wait(120)
    ends = {0} if line == NEVER else {-signal.SIGKILL, *([0] if may_end else [])}
    assert code in ends, f"line {line}: exit code {code}"


def journal_of(folder: Path) -> Path:
    """Where the journal of a run that is killed lies; the run folder has a copy of its lines, as that of every run."""
    return folder / "journal"


def _own_options(environment: str, folder: Path) -> dict[str, Any]:
    """So that nothing of this host's is used, and all is made that can be left. The name is short: see
    dockerd.DATA_ROOT_MAX_BYTES.
    """
    more = {
        "uml": {"network": "tap"},
        "qemu": {"accel": "tcg"},  # else each life tries KVM first, for 20 s where it hangs
    }
    own = registry.find("environments", environment).contract_options(folder.parent / "d")
    return {**own, **more.get(environment, {})}


def _started(
    folder: Path, environment: str, image: str, options: Mapping[str, Any], line: int
) -> subprocess.Popen[bytes]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    argv = [sys.executable, "-m", "tests.support.killed", str(folder), environment, image, json.dumps(options)]
    return subprocess.Popen([*argv, str(line)], stdout=subprocess.PIPE, env=environ)


class Mortal(Journal):
    """Kills the agents of this process, and then itself, right after a line has been written."""

    def __init__(self, folder: Path, line: int) -> None:
        self._left = line
        machine_spec = journal_of(folder)
        machine_spec.mkdir(mode=0o700)
        super().__init__(machine_spec, record=folder)

    def append(self, line: Mapping[str, Any], *, synced: bool = False) -> None:
        super().append(line, synced=synced)
        self._left -= 1
        if self._left == 0:
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, environment: str, image: str, options: str, line: str) -> None:
    opener = registry.find("environments", environment)()
    with Mortal(Path(folder), int(line)) as journal, open_local() as host:
        machine_spec = _place(Path(folder), environment, image, json.loads(options))
        fetched = program_for(Cache(), host, Step(environment, machine_spec.options))
        machine_spec = replace(machine_spec, program=fetched[0] if fetched else None)
        arm = opener.open(host, machine_spec, journal)
        if not isinstance(opener, BootingEnvironment):
            arm.run(["sh", "-c", "(sleep 1000 >/dev/null 2>&1 </dev/null &)"])
        arm.freeze()
        if line == "0":
            print(host.hello()["pid"], flush=True)
            time.sleep(1000)
        arm.thaw()
        arm.close()


def _place(folder: Path, environment: str, image: str, options: dict[str, Any]) -> MachineSpec:
    """``image``: a path, ``none``, or ``small``: made here, beside the folder; a guest boots without any disk.

    With ``small`` the run's id is the folder's name: everything that the run makes is found by it. Where ``options`` say where data
    lie, there are some.
    """
    provisions: tuple[Provision, ...] = ()
    if OPTION in options:
        data = folder.parent / "data"
        data.mkdir(exist_ok=True)
        (data / "given").write_text("content")
        provisions = (Provision(Artifact("killed-data", str(data)), "/dbtoll/data", writable=True),)
    if image != "small":
        there = None if image == "none" else Artifact(f"killed-{Path(image).parent.name}", image)
        return machine_spec("killed", there, options=options)
    named = {"name": f"{folder.name}-killed", "run_id": folder.name}
    opener = registry.find("environments", environment)()
    if isinstance(opener, BootingEnvironment):
        kernel = debian_kernel(Cache())[0] if opener.kernel(options) else None
        return replace(machine_spec("killed", None, provisions=provisions, options=options), kernel=kernel, **named)
    root = folder.parent / "small"
    made = Artifact("killed-small", str(root)) if root.exists() else small_image(root)
    return replace(machine_spec("killed", made, provisions=provisions, options=options), **named)


if __name__ == "__main__":
    main(*sys.argv[1:])
