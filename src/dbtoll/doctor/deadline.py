"""One probe with its deadline: what it found, or that it hangs."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeVar

from dbtoll.errors import DbtollError
from dbtoll.machines import chroot, programs
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups import removal
from dbtoll.machines.cgroups.layout import find_layout
from dbtoll.model.json import Json
from dbtoll.model.machine import MissingRequirement

GRACE_S = 15.0
"""How long a probe that was broken off may take to tidy up."""


@dataclass(frozen=True, slots=True)
class Probed:
    """``state``: ready; missing_requirements something; hangs; or was not probed, for the reason in ``note``.

    ``note``: one sentence for people. ``told``: what the probe learnt, for programs. ``seconds``: how long it took, by
    Python's clock: it is shown to explain the wait and is no result.
    """

    state: Literal["ready", "lacks", "hangs", "not probed"]
    missing_requirements: tuple[MissingRequirement, ...] = ()
    note: str = ""
    told: Json = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> Json:
        """As plain dicts and lists."""
        return {
            **asdict(self),
            "lacks": [asdict(lack) for lack in self.missing_requirements],
            "seconds": round(self.seconds, 2),
        }


M = TypeVar("M")

Probe = Callable[[AgentMachine], Probed]
"""Looks at this host. May raise: then the error's message is what is lacking."""


def with_deadline(probe: Probe, deadline_s: float, *, cpus: Sequence[int] | None = None) -> Probed:
    """What ``probe`` finds. When its time is over, its agent is ended, and with it everything that the probe waits for.

    ``cpus``: what the agent, and whatever it starts, is kept to.
    """
    begin = time.monotonic()
    found: list[Probed] = []
    try:
        machine = open_local(cpus=cpus)
    except DbtollError as error:
        return Probed("lacks", (MissingRequirement("the agent", error.message, error.hint),))
    with machine:
        mark = f"doctor-{machine.hello()['pid']}"
        thread = threading.Thread(target=lambda: found.append(asked(probe, machine)), name=mark, daemon=True)
        thread.start()
        thread.join(deadline_s)
        hangs = thread.is_alive()
    seconds = time.monotonic() - begin
    if hangs:
        thread.join(GRACE_S)
        left = _tidy(mark)
        why = f"no result within {deadline_s:.0f} s" + (f"; {left}" if left else "")
        lack = MissingRequirement("an answer", why, "try it alone; the kernel's log (dmesg) may say what it waits for")
        return Probed("hangs", (lack,), seconds=seconds)
    result = found[0]
    return Probed(result.state, result.missing_requirements, result.note, result.told, seconds)


def asked(probe: Callable[[M], Probed], machine: M) -> Probed:
    """What ``probe`` finds; an error of it is what is lacking."""
    try:
        return probe(machine)
    except DbtollError as error:
        return Probed("lacks", (MissingRequirement("a probe that gets through", error.message, error.hint),))
    except Exception as error:  # of one probe: the others still have their say
        why = f"a defect of dbtoll: {type(error).__name__}: {error}"
        hint = "please report it with what `dbtoll doctor --json` tells of it"
        return Probed(
            "lacks",
            (MissingRequirement("a probe that gets through", why, hint),),
            told={"traceback": traceback.format_exc()},
        )


def _tidy(mark: str) -> str:
    """Remove what a probe that was broken off left on this host: its control groups with all that is in them, and its roots.

    Returns what could not be removed, as words.
    """
    try:
        with open_local() as machine:
            layout = find_layout(machine)
            removal.remove(machine, {"paths": [tree.mount + layout.path(mark) for tree in layout.hierarchies]})
            stages = machine.place(chroot.STAGES)
            if programs.exists(machine, stages):
                for entry in machine.entries(stages):
                    if entry["name"].startswith(mark):
                        chroot.remove(machine, {"path": f"{stages}/{entry['name']}"})
    except DbtollError as error:
        return error.message
    return ""
