"""How long a fresh start of each environment takes until its agent answers, as in a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dbtoll import registry
from dbtoll.errors import DbtollError
from dbtoll.model.experiment import Arm, Experiment
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.runner.arms import open_stack
from dbtoll.runner.preparation.inputs import Prepared
from dbtoll.runner.run import ready
from dbtoll.selfbench.support import available
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.spec.stack import parse_stack

SUMMARY = "starts: docker_s, uml_s, qemu_s …, from the request to open an arm to an answer of its agent"
OPTIONS = {
    "starts": Option("integer", 10, "of each environment, in turn", least=1),
    "environments": available.ENVIRONMENTS,
}

BOUNDS = {"failures": Bound(max=0)}
"""And of a start, what its outermost environment says (`Environment.start_bound_s`)."""


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Median of the starts of each; what a run has ready (a daemon, an imported image, prepared disks, a kernel) is ready."""
    stacks, missing = available.present(options["environments"], say)
    asked = available.over(stacks, {"name": "noop"}, {"name": "tpch", "queries": ["Q6"]})
    seconds: dict[str, list[float]] = {name: [] for name in stacks}
    failures: dict[str, list[str]] = {name: [] for name in stacks}
    with (
        TemporaryDirectory(prefix="dbtoll-selfbench-") as folder,
        ready(asked, Path(folder), Quiet(say)) as prepared,
    ):
        for number in range(options["starts"]):
            for arm in (each for each in asked.arms if each.copy_of is None):
                try:
                    seconds[arm.name].append(start_s(prepared, asked, arm))
                except DbtollError as error:
                    failures[arm.name].append(error.message)
            said = ", ".join(f"{name} {each[-1]:.2f} s" for name, each in seconds.items() if each)
            say(f"{number + 1} of {options['starts']}: {said}")
        told: Json = {"host": prepared.facts["host"], "seconds": seconds, "failures": failures, "missing": missing}
    figures: dict[str, Any] = {}
    bounds: dict[str, Bound] = {}
    for name, each in seconds.items():
        figures[f"{name}_s"] = statistics.median(each) if each else None
        figures[f"{name}_s_range"] = [min(each), max(each)] if each else None
        most = registry.find("environments", parse_stack(name)[0].environment).start_bound_s
        if most is not None:
            bounds[f"{name}_s"] = Bound(max=most)
    figures["failures"] = sum(len(each) for each in failures.values())
    bounds["failures"] = BOUNDS["failures"]
    return Certificate("start", figures, bounds, told)


def start_s(prepared: Prepared, asked: Experiment, arm: Arm) -> float:
    """From before the arm is asked for until its agent has answered; by the clock of the host's agent.

    BIAS: what Python does meanwhile is inside, as it is in every start of a run.
    """
    host = prepared.context.host
    with ExitStack() as closing:
        begin_ns = host.call("ping", {})["at_ns"]
        machine = open_stack(prepared.inputs.by_arm[arm.name].context, arm, None, closing)
        machine.call("ping", {})
        return float(host.call("ping", {})["at_ns"] - begin_ns) / 1e9
