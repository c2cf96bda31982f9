"""What this machine lacks for the arms that are asked for, and what is fetched for them: kernels, programs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from dbtoll import defaults, namespaces, registry
from dbtoll.errors import Unavailable, UsageError
from dbtoll.images import debian, kernel, program, system
from dbtoll.images.cache import Cache
from dbtoll.interfaces.environment import BootingEnvironment, ProgramEnvironment, RemoteEnvironment
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.model.experiment import Arm, Experiment, Step
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MissingRequirement
from dbtoll.runner.arms import boots, environment_of
from dbtoll.runner.cleanup.journal import temporary_journal


def simulated(step: Step) -> bool:
    """Whether that environment only simulates (``simulated``): it needs no image and no data."""
    return environment_of(step).simulated


def missing_requirements(
    host: Machine,
    arms: Sequence[Arm],
    say: Callable[[str], None] = lambda text: None,
    journal: Journal | None = None,
) -> dict[str, list[MissingRequirement]]:
    """Arm name -> what is missing for it; only the outermost environment can be probed from here.

    ``journal``: where the trials note what they make; by default one of their own.
    """
    found: dict[str, list[MissingRequirement]] = {}
    probed: dict[str, list[MissingRequirement]] = {}
    with temporary_journal() if journal is None else nullcontext(journal) as noted:
        for arm in arms:
            key = repr(arm.stack[0])
            if key not in probed:
                step = arm.stack[0]
                probed[key] = environment_of(step).missing_requirements(
                    host, step.options, partial(_fetched, host, step, say), noted
                )
            if probed[key]:
                found[arm.name] = probed[key]
    return found


def _fetched(host: Machine, step: Step, say: Callable[[str], None]) -> Artifact | None:
    """A kernel, of which any will do to see whether a guest boots, or a program."""
    found = kernel_for(Cache(), step, debian.SUITE, say) or program_for(Cache(), host, step, say)
    return found[0] if found else None


def kernel_for(cache: Cache, step: Step, suite: str, say: Callable[[str], None]) -> tuple[Artifact, Json] | None:
    """The kernel that the step's guests boot, from the cache or made now, and its facts; None where it needs none, or
    brings its own."""
    environment = environment_of(step)
    if not isinstance(environment, BootingEnvironment) or environment.kernel(step.options) is None:
        return None
    return kernel.debian_kernel(cache, suite, progress=say)


def program_for(
    cache: Cache, host: Machine, step: Step, say: Callable[[str], None] = lambda text: None
) -> tuple[Artifact, Json] | None:
    """The program that the step's environment calls, out of its package, and its facts; None where it needs none, or has one.

    Only for what is opened on ``host``: a machine within an arm has the programs that are installed there.
    """
    environment = environment_of(step)
    if not isinstance(environment, ProgramEnvironment):
        return None
    wanted = environment.program(host, step.options)
    return None if wanted is None else program.debian_program(cache, wanted, progress=say)


def require_beforehand(experiment: Experiment) -> None:
    """For what can be told before anything is made.

    Unavailable: too few processors. ImageError: an image that is none. UsageError: a server in a simulated machine.
    """
    if found := unfit(experiment):
        hints = dict.fromkeys(hint for _, hint in found.values())
        raise Unavailable("; ".join(f"{name}: {why}" for name, (why, _) in found.items()), "; ".join(hints))
    if (
        "cold" in experiment.factors.get("cache", ())
        and not namespaces.is_root()
        and any(map(_is_here, experiment.arms))
    ):
        raise Unavailable(
            "cache: cold drops the page cache of the whole host, which only root may",
            "leave cold out, or as root: sudo ./dbtoll …",
        )
    for configuration, names in experiment.configurations:
        if path := configuration.image.get("path"):
            system.require_image(path)
        simulating = [name for name in names if simulated(experiment.arm(name).stack[-1])]
        engine = configuration.engine.name
        if simulating and registry.find("engines", engine).returns_rows:
            raise UsageError(
                f"{', '.join(simulating)}: a simulated machine runs no programs, so no server of {engine} starts in it",
                f'--engine {defaults.FLOOR}, or name = "{defaults.FLOOR}" under [engine]',
            )


FEWEST_BYTES = 256 << 20
"""Memory that a machine needs (spec), and so a guest."""


def unfit(experiment: Experiment) -> dict[str, tuple[str, str]]:
    """Arms for which this machine has too few processors or too little memory, or which cannot use what they shall have: why, and
    what would help.

    Memory is demanded of designs for tenants, whose arms are to have what was given them. While others work guests keep all of
    theirs, and servers their buffer pools: all arms stand at the same time.
    """
    cpus, memory_bytes = len(os.sched_getaffinity(0)), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kept_bytes: Counter[str] = Counter()  # by an arm and its copy together
    found: dict[str, tuple[str, str]] = {}
    for arm in experiment.arms:
        asked, name = arm.configuration.resources, arm.copy_of or arm.name
        in_guests = any(map(boots, arm.stack))
        less = "a smaller memory under [resources]"
        if is_elsewhere(arm):  # that host says itself whether it has enough (`hosts.RemoteHosts`)
            continue
        if asked.cpus > cpus:
            found[name] = (
                f"it shall have {asked.cpus} processors and there are {cpus}",
                f"--cpus {cpus}, or cpus = {cpus} under [resources]",
            )
        elif few := _too_few_can_be_used(arm):
            found[name] = few
        elif not arm.design or simulated(arm.stack[-1]):
            continue
        elif asked.memory_bytes > memory_bytes:
            found[name] = (f"it shall have {asked.memory_bytes >> 20} MiB and there are {memory_bytes >> 20}", less)
        elif (each_bytes := asked.memory_bytes // arm.layout.machines) < FEWEST_BYTES and in_guests:
            found[name] = (
                f"each of its {arm.layout.machines} guests would have {each_bytes >> 20} MiB of memory",
                "more memory under [resources], or fewer tenants",
            )
        else:
            whose, its_bytes = (
                ("guests", asked.memory_bytes) if in_guests else ("buffer pools", asked.buffer_pool_bytes or 0)
            )
            if kept_bytes.total() + its_bytes > memory_bytes:
                del kept_bytes[name]
                found[name] = (
                    f"its {whose} keep {its_bytes >> 20} MiB, with what other arms keep more than the {memory_bytes >> 20} MiB "
                    "that are there", less,
                )  # fmt: skip
            else:
                kept_bytes[name] += its_bytes
    return found


def _too_few_can_be_used(arm: Arm) -> tuple[str, str] | None:
    """Of an arm whose machines cannot use all processors that it shall have: why, and what would help."""
    for step in arm.stack:
        environment = environment_of(step)
        machines = arm.layout.machines if step is arm.stack[-1] else 1
        usable = (environment.cpus_most or arm.configuration.resources.cpus) * machines
        if arm.configuration.resources.cpus > usable:
            return (
                f"it shall have {arm.configuration.resources.cpus} processors, and of {environment.description.title} there "
                f"{'is one machine' if machines == 1 else f'are {machines} machines'}, which can use {usable}",
                f"cpus = {usable} under [resources], or as many tenants as processors",
            )
    return None


def _is_here(arm: Arm) -> bool:
    """Whether the arm stands on this host."""
    return not simulated(arm.stack[-1]) and not is_elsewhere(arm)


def is_elsewhere(arm: Arm) -> bool:
    """Whether the arm stands on another host."""
    return isinstance(environment_of(arm.stack[0]), RemoteEnvironment)


def require_all(host: Machine, experiment: Experiment, journal: Journal) -> None:
    """Unavailable, naming everything that is missing at once, unless every arm can be opened."""
    missing = missing_requirements(host, experiment.arms, journal=journal)
    if missing:
        unique = {lack.what: lack for arm_lacks in missing.values() for lack in arm_lacks}
        what = "; ".join(f"{lack.what} ({lack.why})" for lack in unique.values())
        raise Unavailable(
            f"this machine cannot run {', '.join(sorted(missing))}: {what}",
            "; ".join(dict.fromkeys(lack.hint for lack in unique.values())),
        )
