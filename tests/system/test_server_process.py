"""What is said of a server that does not come up, by how it ended."""

from __future__ import annotations

import pytest

from dbtoll.errors import EngineError
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.servers import server_process


@pytest.mark.parametrize(
    ("ending", "said", "mend"),
    [
        # What the kernel does to a program that uses an instruction which its processor lacks.
        ("kill -ILL $$", "uses an instruction that this processor does not have", "give the arm a processor"),
        ("kill -KILL $$", "ended at once, killed by signal 9", "look at its settings"),
        ("echo no such setting; exit 3", "ended at once, exit code 3: no such setting", "look at its settings"),
    ],
)
def test_a_server_that_ends_at_once_is_told_by_its_end(local: AgentMachine, ending: str, said: str, mend: str) -> None:
    process = local.spawn(["/bin/sh", "-c", ending])
    with pytest.raises(EngineError) as failed:
        server_process.wait_until_ready(local, "Server", process, 60, lambda: "nothing answers")
    assert said in failed.value.message
    assert mend in failed.value.hint
