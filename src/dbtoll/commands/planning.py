"""What a run would do, need and cost, without doing it: `plan`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dbtoll import registry, spec
from dbtoll.doctor import fixes, without_agent
from dbtoll.errors import DbtollError
from dbtoll.images import debian, disk
from dbtoll.images.cache import default_root
from dbtoll.interfaces.workload import ProbeWorkload, TransactionWorkload, Workload
from dbtoll.machines.mounts import IN_MEMORY as MEMORY_FILE_SYSTEMS
from dbtoll.machines.mounts import mount_in
from dbtoll.model.experiment import Arm, Experiment
from dbtoll.model.layout import Layout
from dbtoll.model.machine import MissingRequirement
from dbtoll.model.options import Option
from dbtoll.model.plan import Round
from dbtoll.plan import Plan
from dbtoll.report.text import sentences
from dbtoll.runner.arm_devices import IN_MEMORY, ON_OWN_DISK, Room, log_bytes, room_of
from dbtoll.runner.arms import as_tenant, boots
from dbtoll.runner.budget import Budget
from dbtoll.runner.pilot import COUNTS_UP_TO_BLOCKS
from dbtoll.runner.preparation.data import available_bytes, too_small
from dbtoll.runner.preparation.requirements import is_elsewhere, require_beforehand, simulated
from dbtoll.spec.differences import sides
from dbtoll.spec.stack import write_stack
from dbtoll.spec.variables import from_words
from dbtoll.text import noun, printable

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Taken:
    """What devices of all arms take of a place (`Room.by_place`), and what is free there; null: the place is none."""

    place: str
    taken_bytes: int
    free_bytes: int | None

    @property
    def fits(self) -> bool:
        return self.free_bytes is not None and self.taken_bytes <= self.free_bytes

    @property
    def text(self) -> str:
        if self.free_bytes is None:
            return f"{self.place}: no directory on a device"
        said = f"{self.place}: about {self.taken_bytes / GIB:.1f} GiB, {self.free_bytes / GIB:.1f} GiB are free"
        return said if self.fits else f"{said}: that does not fit"


@dataclass(frozen=True, slots=True)
class Needs:
    """What is known before anything is started.

    ``budget_s``: measuring ends then; ``visits`` of a round of one block; ``round_s_min``: what these take at least, without the
    starts; ``rounds_min``: that are needed for a verdict. Bytes: ``image_bytes`` while an image is made, ``data_bytes`` of the
    loaded data as estimated, ``copies_bytes`` of a fresh copy for each unit, ``free_bytes`` of the cache's disk, on which a copy
    ``may_share_blocks`` and so take no room of its own; ``devices``: of
    other places, what the devices of all arms take there; ``too_small``: devices that what is to lie there does not fit into.
    Copies and devices on another host are not in them. ``missing``: for which the ``command`` is one that brings it, null if no
    command does.
    """

    budget_s: float
    running_time: str
    visits: int
    round_s_min: float
    rounds_min: int
    image_bytes: int
    data_bytes: int
    copies_bytes: int
    free_bytes: int
    may_share_blocks: bool
    devices: tuple[Taken, ...]
    too_small: tuple[str, ...]
    missing: tuple[str, ...]
    command: str | None

    @property
    def disk_bytes(self) -> int:
        """Of the cache's disk, where it has nothing of it yet."""
        return self.image_bytes + self.data_bytes + self.copies_bytes

    @property
    def copies(self) -> Taken:
        """What is made anew for each start, whatever the cache has: the image and the data may be there."""
        return Taken(ON_OWN_DISK, self.copies_bytes, self.free_bytes)

    @property
    def rounds_do_not_fit(self) -> str:
        """Empty where they do."""
        enough_s = self.round_s_min * self.rounds_min
        if enough_s <= self.budget_s:
            return ""
        return (
            f"{self.rounds_min} rounds do not fit, so there can be no verdict: "
            f"a budget of more than {_time(enough_s)} is needed"
        )

    def no_room(self) -> Iterator[str]:
        """What its disk and its devices lack for a run to begin."""
        copies = () if self.may_share_blocks else (self.copies,)
        yield from (each.text for each in (*copies, *self.devices) if not each.fits)
        yield from self.too_small

    def obstacles(self) -> Iterator[str]:
        """Why a run would not begin, or not end with a verdict, as far as that is known beforehand."""
        if self.rounds_do_not_fit:
            yield self.rounds_do_not_fit
        yield from self.no_room()
        yield from (f"missing: {each}" for each in self.missing)


def show_plan(path: Path, *, variables: Sequence[str], rounds: int, blocks: int, visits: bool, as_json: bool) -> int:
    """The experiment, what it needs, and its first rounds; each visit of them if ``visits``. ``variables``: NAME=VALUE."""
    experiment, _ = spec.read(path, variables=from_words(variables))
    declared = spec.variables_of(path)
    plan = Plan(experiment, _workload_of(experiment).queries, blocks, {}, pilot=blocks <= COUNTS_UP_TO_BLOCKS)
    shown = [plan.round(index) for index in range(rounds)]
    needed = needs(experiment)
    if as_json:
        said = {
            "experiment": experiment,
            "variables": declared,
            "queries": plan.queries,
            "needs": needed,
            "rounds": shown,
        }
        print(msgspec.json.encode(said).decode())
        return 0
    for line in (*_experiment_lines(experiment, declared), *needs_lines(needed), *_rounds_lines(shown, visits=visits)):
        print(printable(line))
    return 0


def show_sweep(
    path: Path,
    *,
    over: str,
    variables: Sequence[str],
    limit: str | None = None,
    costs: Path | None = None,
    budget: str | None = None,
    as_json: bool,
) -> int:
    """The values of a sweep, how long they take, and what does not fit. ``variables``: NAME=VALUE."""
    from dbtoll.commands import sweep

    planned = sweep.planned_from(path, over=over, variables=variables, limit=limit, costs=costs, budget=budget)
    if as_json:
        print(msgspec.json.encode({"sweep": planned.sweep, "experiments": list(planned.experiments.values())}).decode())
        return 0
    for line in sweep.preview(planned):
        print(printable(line))
    return 0


def _workload_of(experiment: Experiment) -> Any:
    asked = experiment.configuration.workload
    return registry.find("workloads", asked.name)(asked.options)


def needs(experiment: Experiment) -> Needs:
    """What it takes, by a round of one block."""
    workload = _workload_of(experiment)
    first = Plan(experiment, workload.queries, 1, {}).round(0)
    visits = sum(len(block.visits) for phase in first.phases for block in phase.blocks)
    is_real = not all(simulated(arm.stack[-1]) for arm in experiment.arms)
    loaded_bytes, taken = data_bytes(experiment) if is_real else (0, {ON_OWN_DISK: 0})
    built = {each.image["suite"] for each, _ in experiment.configurations if "path" not in each.image}
    missing = list(_missing(experiment)) if is_real else []
    command, _ = fixes.together(missing)
    taken = _by_file_system(taken)
    return Needs(
        budget_s=experiment.precision.budget_s,
        running_time=experiment.running_time,
        visits=visits,
        round_s_min=visits * _visit_ns(experiment, workload) / 1e9,
        rounds_min=experiment.precision.rounds_min,
        image_bytes=debian.ESTIMATE_BYTES * len(built) if is_real else 0,
        data_bytes=loaded_bytes,
        copies_bytes=taken.pop(ON_OWN_DISK),
        free_bytes=free_bytes(default_root()),
        may_share_blocks=_file_system(default_root()) in SHARING_BLOCKS,
        devices=tuple(Taken(place, size, _free_at(place)) for place, size in taken.items()),
        too_small=tuple(_too_small(experiment)) if is_real else (),
        missing=tuple(f"{lack.what}: {lack.why}" for lack in missing),
        command=command,
    )


def data_bytes(experiment: Experiment) -> tuple[int, dict[str, int]]:
    """Of all loaded data; and of what all arms take, as estimated, by place (`Room.by_place`): of the cache's disk a copy for each
    server, and the devices that are modelled."""
    loaded, taken = 0, {ON_OWN_DISK: 0}
    for configuration, names in experiment.configurations:
        engine = registry.find("engines", configuration.engine.name)(configuration.engine.options)
        if engine.keeps_data:
            workload = registry.find("workloads", configuration.workload.name)(configuration.workload.options)
            arms = [experiment.arm(name) for name in names]
            loaded += sum(_estimate_bytes(workload, layout) for layout in {arm.layout.in_server for arm in arms})
            for arm in arms:
                if is_elsewhere(arm):
                    continue
                taken[ON_OWN_DISK] += 0 if configuration.devices.data else _estimate_bytes(workload, arm.layout)
                for place, size in _room(arm, workload).by_place(configuration.devices):
                    taken[place] = taken.get(place, 0) + size
    return loaded, taken


def _room(arm: Arm, workload: Workload) -> Room:
    """What its devices are to have room for, as estimated."""
    own = arm.configuration
    added = log_bytes(workload, own.resources.cpus)
    return room_of(arm.layout, own.devices, _estimate_bytes(workload, arm.layout.in_server), added)


def _too_small(experiment: Experiment) -> Iterator[str]:
    """Devices that what is to lie there does not fit into, as estimated."""
    for arm in experiment.arms:
        asked = arm.configuration.workload
        if arm.copy_of is None and arm.configuration.devices.all:
            workload = registry.find("workloads", asked.name)(asked.options)
            yield from (why for why, _ in too_small(arm, _room(arm, workload)))


def _estimate_bytes(workload: Workload, layout: Layout) -> int:
    return layout.sets_of_tables * as_tenant(workload, layout).estimate_bytes()


def _visit_ns(experiment: Experiment, workload: Any) -> int:
    """The shortest that a visit can be: what is executed until then is not known before a pilot."""
    options = experiment.configuration.workload.options
    if isinstance(workload, TransactionWorkload):
        return int(options["ramp_up"]) + int(options["window"])
    if isinstance(workload, ProbeWorkload):
        return int(options["batches"]) * int(options["batch"])
    return experiment.visit_timing.measurement_time_ns


def free_bytes(path: Path) -> int:
    """Of the disk that the path is on, or will be."""
    return shutil.disk_usage(_there(path)).free


def _there(path: Path) -> Path:
    """The path, or what it will be in."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _by_file_system(taken: Mapping[str, int]) -> dict[str, int]:
    """The same; what is one file system, by whatever paths, is one place, by the first of them."""
    places: dict[object, str] = {_there(default_root()).stat().st_dev: ON_OWN_DISK}
    found: dict[str, int] = {}
    for place, size in taken.items():
        is_directory = place not in (ON_OWN_DISK, IN_MEMORY) and Path(place).is_dir()
        first = places.setdefault(Path(place).stat().st_dev if is_directory else place, place)
        found[first] = found.get(first, 0) + size
    return found


SHARING_BLOCKS = frozenset({"btrfs", "xfs", "bcachefs"})
"""File systems on which a copy may take no room of its own (ioctl_ficlone(2))."""


def _file_system(path: Path) -> str:
    found = mount_in(Path("/proc/self/mountinfo").read_text(errors="replace"), str(_there(path).resolve()))
    return found.file_system if found is not None else ""


def _free_at(place: str) -> int | None:
    if place == IN_MEMORY:
        return available_bytes(Path("/proc/meminfo").read_text(encoding="ascii"))
    lies_on_disk = Path(place).is_dir() and _file_system(Path(place)) not in MEMORY_FILE_SYSTEMS
    return free_bytes(Path(place)) if lies_on_disk else None


def _missing(experiment: Experiment) -> Iterator[MissingRequirement]:
    """What can be looked up without starting anything; whether an environment works shows only when it is tried (`doctor`)."""
    try:
        require_beforehand(experiment)
    except DbtollError as error:
        yield MissingRequirement("not possible here", error.message, error.hint)
    if any("path" not in each.image for each, _ in experiment.configurations):
        yield from debian.missing_requirements()
    if any(boots(step) for arm in experiment.arms for step in arm.stack):
        yield from disk.missing_requirements()
    for arm in experiment.arms:
        step = arm.stack[0]
        if arm.copy_of is not None:
            continue
        if given := step.options.get("path") or step.options.get("socket"):
            if not _is_there(given):
                yield MissingRequirement(given, f"{arm.name} needs it", "give the path of one that is there")
        else:
            yield from without_agent.environment(step.environment).missing_requirements


def _is_there(program: str) -> bool:
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), "/usr/local/sbin", "/usr/sbin", "/sbin")))
    return Path(program).exists() if program.startswith("/") else shutil.which(program, path=path) is not None


def _experiment_lines(experiment: Experiment, declared: Mapping[str, Option]) -> Iterator[str]:
    yield experiment.question
    for name, variable in declared.items():
        yield f"variable {name} = {experiment.variables[name]} ({variable.kind}): {variable.help}"
    tenants = {len(arm.layout.units) for arm in experiment.arms}
    if len(tenants) > 1:
        yield f"arms have {' and '.join(map(str, sorted(tenants)))} units: throughput is of all that an arm has together"
    resources = experiment.arm(experiment.baseline).configuration.resources
    cpus = f"{resources.cpus} {noun(resources.cpus, 'processor')}"
    yield f"each arm has {cpus} and {resources.memory_bytes >> 20} MiB of memory, unless it is said of it"
    for arm in experiment.arms:
        devices = arm.configuration.devices
        on = [f"{what} on {each.text}" for each, what in ((devices.data, "data"), (devices.log, "log")) if each]
        what = ", ".join(filter(None, [write_stack(arm.stack), arm.design, arm.layout.text, *on]))
        yield f"arm {arm.name}: {what}{_held(arm, experiment)}"
    yield from sentences.buffer_pools(experiment)


def _held(arm: Arm, experiment: Experiment) -> str:
    """What an arm is a copy of, or held against, and what it has that this has not."""
    if arm.copy_of:
        return f", copy of {arm.copy_of}"
    if arm.against is None:
        return ""
    own, other = sides(arm.configuration, experiment.arm(arm.against).configuration)
    against = f", against {arm.against}" if own or arm.against != experiment.baseline else ""
    return against + (f", with {', '.join(own)} ({', '.join(other)})" if own else "")


def needs_lines(needed: Needs) -> Iterator[str]:
    """What it takes, for people."""
    precision = f"less if every interval is narrow enough before, at most {Budget.OVERRUN:.0%} of it"
    yield f"time: {_time(needed.budget_s)} to measure ({precision}); set-up comes on top"
    if needed.running_time:
        yield f"  its author says: {needed.running_time}"
    yield (
        f"  a round of one block has {needed.visits} visits, which take at least {_time(needed.round_s_min)}; "
        "its starts come on top, and how long they take shows in a pilot round"
    )
    if needed.rounds_do_not_fit:
        yield f"  {needed.rounds_do_not_fit}"
    parts = {"an image": needed.image_bytes, "the data": needed.data_bytes, "a copy for each arm": needed.copies_bytes}
    said = ", ".join(f"{size / GIB:.1f} GiB for {what}" for what, size in parts.items() if size)
    yield (
        f"disk: about {needed.disk_bytes / GIB:.1f} GiB ({said}; less where the cache has it), "
        f"{needed.free_bytes / GIB:.1f} GiB are free{'' if needed.copies.fits else ': that does not fit'}"
        if said
        else "disk: only the run folder"
    )
    yield from (f"devices: {taken.text}" for taken in needed.devices)
    yield from needed.too_small
    yield "missing: nothing that can be looked up; `dbtoll doctor` tries it" if not needed.missing else "missing:"
    for each in needed.missing:
        yield f"  {each}"
    if needed.command:
        yield f"  hint: {needed.command}"


def _rounds_lines(rounds: list[Round], *, visits: bool) -> Iterator[str]:
    for each in rounds:
        yield f"round {each.index}: starts {', '.join(each.start_order)}"
        for phase in each.phases:
            levels = ", ".join(f"{factor} {level}" for factor, level in phase.levels.items())
            count = sum(len(block.visits) for block in phase.blocks)
            blocks = f"{len(phase.blocks)} {noun(len(phase.blocks), 'block')} of {count // len(phase.blocks)} visits"
            yield f"  phase {levels or phase.kind}: {blocks}"
            for block in phase.blocks if visits else ():
                order = "; ".join(f"{visit.query} {visit.arm}" for visit in block.visits)
                yield f"    block {block.index}, parameter set {block.parameter_set}: {order}"
    if rounds and not visits:
        yield "  (each visit in its order: --visits)"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
