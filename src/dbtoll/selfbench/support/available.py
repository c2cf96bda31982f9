"""Which environments a selfbench can measure on this machine, and its experiment over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dbtoll import registry
from dbtoll.defaults import BASELINE
from dbtoll.errors import DbtollError
from dbtoll.interfaces.environment import BootingEnvironment
from dbtoll.machines.agent.local import open_local
from dbtoll.model.experiment import Arm, Experiment
from dbtoll.model.options import Option
from dbtoll.runner.preparation import requirements
from dbtoll.selfbench.support.certificate import Say
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.spec import command_line
from dbtoll.spec.stack import parse_stack

ENVIRONMENTS = Option(
    "list", [], "stacks beside native, joined by +; by default the first of each environment that is here"
)


def default_stacks(*, variants: bool = False) -> list[str]:
    """What is measured where none is asked for: of each environment its first stack (`Environment.default_stacks`), with
    ``variants`` all of them; the baseline first."""
    kinds = sorted(registry.members("environments"), key=lambda kind: (kind.name != BASELINE, kind.name))
    return [stack for kind in kinds for stack in kind.default_stacks[: None if variants else 1]]


def engines_with(power: type) -> list[str]:
    """Names of the engines that have that power, by their default options."""
    return [kind.name for kind in registry.members("engines") if isinstance(kind({}), power)]


def profiles(engine: str) -> tuple[str, ...]:
    """Names of the settings that the server can begin with; of some engines there are none."""
    option = registry.find("engines", engine).options.get("profile")
    return tuple(option.choices or ()) if option else ()


def quickest_guest(stacks: Sequence[str]) -> str | None:
    """Of these the one whose machines boot a kernel of their own and start soonest; None where there is none."""
    kinds = {stack: registry.find("environments", parse_stack(stack)[-1].environment) for stack in stacks}
    guests = [stack for stack, kind in kinds.items() if issubclass(kind, BootingEnvironment)]
    return min(guests, key=lambda stack: kinds[stack].start_bound_s or math.inf, default=None)


def present(named: Sequence[str], say: Say, *, variants: bool = False) -> tuple[list[str], dict[str, str]]:
    """(the stacks to measure, native first; stack -> why another cannot be opened here).

    ``named``: what the user asked for; where that is nothing, `default_stacks` with ``variants``. DbtollError where one that was
    named cannot be opened: it would be missing in what was measured, and who asked for it might not see that.
    """
    names = named or default_stacks(variants=variants)
    arms = [Arm(name, parse_stack(name)) for name in dict.fromkeys([BASELINE, *names])]
    arms = [arm for arm in arms if not any(requirements.simulated(step) for step in arm.stack)]
    with open_local() as host:
        missing = requirements.missing_requirements(host, arms)
    told = {name: "; ".join(f"{lack.what}: {lack.why}" for lack in lacks) for name, lacks in missing.items()}
    if asked_in_vain := [f"{name} ({told[name]})" for name in named if name in told]:
        raise DbtollError(f"not to be had here: {', '.join(asked_in_vain)}", "see `dbtoll doctor`")
    for name, why in told.items():
        say(f"{name} is left out: {why}")
    return [arm.name for arm in arms if arm.name not in missing], told


def over(
    stacks: Sequence[str], engine: Mapping[str, Any], workload: Mapping[str, Any], **tables: Mapping[str, Any]
) -> Experiment:
    """An experiment over these stacks, native being the baseline; ``engine`` and ``workload``: name and options."""
    text = command_line.comparison(
        [name for name in stacks if name != BASELINE],
        baseline=BASELINE,
        engine=engine["name"],
        engine_options={key: value for key, value in engine.items() if key != "name"},
        workload=workload["name"],
        workload_options={key: value for key, value in workload.items() if key != "name"},
        tables=tables,
        top={},
    )
    return experiment(text)
