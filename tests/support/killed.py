"""A run that is killed: opens one arm, says so, and waits to be killed together with its agent.

python tests/support/killed.py FOLDER ENVIRONMENT IMAGE OPTIONS-AS-JSON
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dbtoll import registry
from dbtoll.channel.local import open_local
from dbtoll.model import Artifact
from dbtoll.runner.journal import Journal
from tests.support.places import place


def kill_a_run(folder: Path, environment: str, image: Artifact, options: dict[str, Any]) -> None:
    """Open an arm in another process, then SIGKILL that process and its agent at once."""
    folder.mkdir()
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    argv = [sys.executable, "-m", "tests.support.killed", str(folder), environment, image.path, json.dumps(options)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ) as run:
        assert run.stdout is not None
        agent = int(run.stdout.readline())
        os.kill(agent, signal.SIGSTOP)  # so that it does not see its line end
        run.kill()
        run.wait()
        os.kill(agent, signal.SIGKILL)
    time.sleep(0.2)


def main(folder: str, environment: str, image: str, options: str) -> None:
    with Journal(Path(folder)) as journal, open_local() as host:
        there = None if image == "none" else Artifact(f"killed-{Path(image).parent.name}", image)
        asked = place("killed", there, options=json.loads(options))
        arm = registry.find("environments", environment)().open(host, asked, journal)
        arm.run(["sh", "-c", "(sleep 1000 >/dev/null 2>&1 </dev/null &)"])
        arm.freeze()
        print(host.hello()["pid"], flush=True)
        time.sleep(1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
