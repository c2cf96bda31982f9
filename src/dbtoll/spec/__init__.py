"""TOML to an experiment; unknown keys and impossible cells are errors that name file and line, all of them at once.

Pure but for reading the file; what options exist is asked of the registry. `compare` writes a specification too (`command_line`)
and takes the same way, so there is one way into a run.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dbtoll import defaults, registry, units
from dbtoll.errors import DbtollError, SpecError, UsageError, together
from dbtoll.images.debian import SUITES
from dbtoll.interfaces.engine import (
    TRANSACTIONS,
    BufferedEngine,
    DatabasesEngine,
    DurabilityEngine,
    ListeningEngine,
    LogEngine,
    RewritingEngine,
    SchemasEngine,
    ThreadedEngine,
)
from dbtoll.interfaces.environment import BootingEnvironment, NetworkedEnvironment, RemoteEnvironment
from dbtoll.interfaces.workload import ProbeWorkload, TenantKeyWorkload
from dbtoll.model import neighbours, storage
from dbtoll.model.devices import DATA_DEVICE, LOG_DEVICE, Device, Devices
from dbtoll.model.devices import KEYS as DEVICE_KEYS
from dbtoll.model.experiment import (
    ABOVE_ONE,
    CPUS,
    FACTORS,
    PARAMETER_SETS,
    SETTLED_LEAST,
    SPLIT,
    THREADS,
    TRANSACTION_FACTORS,
    Arm,
    ComponentSpec,
    Configuration,
    Experiment,
    Precision,
    Resources,
    Step,
    VisitTiming,
)
from dbtoll.model.layout import ONE_UNIT, UNITS_MAX, Layout
from dbtoll.model.neighbours import NEIGHBOUR
from dbtoll.model.options import Option
from dbtoll.model.tenancy import BUFFER_SHARE, DESIGNS, arm_name, layout_of
from dbtoll.spec import devices as spec_devices
from dbtoll.spec import limits as spec_limits
from dbtoll.spec import toml
from dbtoll.spec import variables as spec_variables
from dbtoll.spec.command_line import COMMAND_LINE, DESIGN_KEYS, LAYOUT_KEYS
from dbtoll.spec.factors import LEDGER_PROBES, LEDGER_PROBES_COLD
from dbtoll.spec.limits import KEYS as LIMIT_KEYS
from dbtoll.spec.options import OptionError, flag, given_values, integer, number, option_values, text_value
from dbtoll.spec.question import default_question
from dbtoll.spec.stack import LEVEL, NESTED, demand_few, parse_stack, write_stack
from dbtoll.spec.stack import levels as stack_levels
from dbtoll.spec.suites import servers_of_suites
from dbtoll.spec.threads import demand_processors, thread_levels

INSIDE = 'placement = ["inside"] under [factors]'
"""What helps where nobody outside can reach the server."""

COPY_SUFFIX = " (A/A)"
ALL_COPIES, BASELINES_ALONE = "all", "baselines"
"""Which arms have A/A copies."""

NAME_MAX = 200
"""Characters of an arm's name: what `compare` is asked for is the name too, with the paths in it."""

SEED_MAX = 10**15
"""A driver is told one for each set of parameters, and a machine's number has 64 bits."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+:,=/()-]*")

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
"""Of a run; it is a part of its folder's name."""

_KEYS = {
    "": {
        "name", "question", "expected", "running_time", "paper", "role", "seed", "parameter_sets", "baseline", "max_overhead",
        "exclusive",
        "explain", "sessions", "engine", "workload", "factors", "resources", "precision", "visit", "image", "devices", "arm",
    },
    "arm": {
        "name", "stack", "options", "against", "engine", "workload", "resources", "image",
        *LAYOUT_KEYS, *DESIGN_KEYS, *DEVICE_KEYS,
    },
    "resources": {"cpus", "memory", "shm", "open_files", "oversubscribe", "buffer_pool", "split", *LIMIT_KEYS},
    "precision": {"budget", "target", "margin", "confidence", "rounds_min", "rounds_max", "rounds_slow", "blocks_max",
                  "settled", "copies"},
    "visit": {"lead_in", "measurement_time", "statement_timeout"},
    "image": {"suite", "path"},
    "factors": {*FACTORS, *TRANSACTION_FACTORS},
}  # fmt: skip
"""Table -> its keys; those of [engine] and [workload] are the options of whichever is chosen."""


def read(path: Path, *, exclusive: bool = False, variables: Mapping[str, Any] | None = None) -> tuple[Experiment, str]:
    """The experiment in a TOML file and the file's text. SpecError names file and line.

    ``exclusive``: its user said beside the file that this machine is theirs for the run. ``variables``: values of those that the
    file declares; texts are converted.
    """
    text = read_text(path)
    return parse(text, str(path), exclusive=exclusive, variables=variables), text


def parse(text: str, file: str, *, exclusive: bool = False, variables: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment in a TOML text; ``file`` names it in errors. The rest as `read`."""
    reader = _Reader(_document(text, file), text, file)
    values = reader.put_in(variables or {})
    if exclusive:
        reader.document["exclusive"] = True
    return replace(reader.experiment(), variables=values)


def fitting(
    text: str,
    file: str,
    *,
    exclusive: bool = False,
    variables: Mapping[str, Any],
    unfit: Callable[[Experiment], Mapping[str, str]],
) -> tuple[Experiment | None, dict[str, str]]:
    """As `parse`, without the arms that do not fit; those, each with why. None where no arm is left.

    ``unfit``: of arms that this machine has no room for, why. Where the baseline does not fit, the first arm that does takes its
    place; what was held against an arm that is left out is held against that.
    """
    left_out: dict[str, str] = {}
    while True:
        reader = _Reader(_document(text, file), text, file)
        values = reader.put_in(variables)
        if exclusive:
            reader.document["exclusive"] = True
        reader.left_out = left_out
        try:
            experiment = replace(reader.experiment(), variables=values)
        except NoArmLeft:
            return None, left_out
        more = unfit(experiment)
        if not more:
            return experiment, left_out
        left_out |= more


class NoArmLeft(Exception):
    """None of the arms of a specification fits."""


def variables_of(path: Path) -> dict[str, Option]:
    """The variables that a specification declares, by name. Raises SpecError."""
    return declared_in(read_text(path), str(path))


def declared_in(text: str, file: str) -> dict[str, Option]:
    """The same of a text; ``file`` names it in errors."""
    return _Reader(_document(text, file), text, file).variables()


def read_text(path: Path) -> str:
    """Of a specification. Raises SpecError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}", "give the path of a TOML specification") from None


def _document(text: str, file: str) -> dict[str, Any]:
    try:
        return toml.loads(text)
    except ValueError as error:
        where = re.search(r"at line (\d+)", str(error))
        line = where[1] if where else str(text.count("\n") + 1)
        raise SpecError(f"{file}:{line}: not TOML: {error}", "see docs/SPEC.md for the form") from None


class _Reader:
    """One document on its way to an Experiment; knows where each key stands, and collects what is wrong with it."""

    def __init__(self, document: dict[str, Any], text: str, file: str) -> None:
        self.document, self.lines, self.file = document, text.splitlines(), file
        self.faults: list[UsageError | SpecError] = []
        self.tables: dict[str, str] = {}
        """Arm -> the table that it stands in."""
        self.has_variables = False
        self.left_out: dict[str, str] | None = None
        """Arms that do not fit, with why: they are left out, and more are noted there; None: such an arm is a fault."""
        self.devices: dict[str, Device] = {}
        """Those that have names of their own."""

    def variables(self) -> dict[str, Option]:
        try:
            return spec_variables.declared(self.document)
        except spec_variables.VariableError as error:
            raise self.error(error.table, error.key, error.message, error.hint) from None

    def put_in(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Puts the variables' values into the document; returns them."""
        declared = self.variables()
        try:
            values = spec_variables.values(declared, given)
            self.has_variables = bool(values)
            self.document = spec_variables.resolved(self.document, values)
        except spec_variables.VariableError as error:
            raise self.error(error.table, error.key, error.message, error.hint) from None
        return values

    def experiment(self) -> Experiment:
        self.known(self.document, "")
        self.devices = dict(self.declared_devices())
        common = self.configuration()
        arms = self.arms(common)
        engines = sorted({arm.configuration.engine.name for arm in arms} or {common.engine.name})
        factors: dict[str, tuple[str, ...]] = {}
        unsupported: dict[str, dict[str, str]] = {}
        with self.collected():
            configurations = [arm.configuration for arm in arms] or [common]
            factors, unsupported = self.factors(self.factors_known(common), engines, configurations)
        explain = self.take("", "explain", flag, False)
        baseline = self.take("", "baseline", text_value, arms[0].name if arms else "")
        experiment = Experiment(
            name=self.take("", "name", _run_name, ""),
            question=self.take("", "question", text_value, "") or default_question(arms, baseline),
            expected=self.take("", "expected", text_value, ""),
            paper=self.take("", "paper", text_value, ""),
            role=self.take("", "role", text_value, ""),
            running_time=self.take("", "running_time", text_value, ""),
            arms=tuple(arms),
            baseline=baseline,
            factors=factors,
            unsupported=unsupported,
            precision=self.precision(),
            visit_timing=self.visit_timing(),
            seed=self.take("", "seed", integer, 1),
            parameter_sets=self.take("", "parameter_sets", integer, PARAMETER_SETS),
            max_overhead=self.take("", "max_overhead", lambda v: units.fraction(text_value(v)), None),
            exclusive=self.take("", "exclusive", flag, False),
            sessions=self.take("", "sessions", flag, False),
        )
        self.require_none()  # what follows needs all of its parts
        arms = self.without_unfit(self.with_buffer_pools(arms))
        if arms and baseline in (self.left_out or {}):
            experiment = replace(experiment, baseline=arms[0].name)
        arms = with_sessions(arms)
        experiment = replace(experiment, arms=tuple(arms))
        with self.collected():
            self.check_baseline(experiment)
        arms = [self.checked(arm, index, common, factors) for index, arm in enumerate(arms)]
        self.check_cells(experiment)
        self.require_none()
        with self.collected():
            self.check_one_question(arms, experiment)
        with self.collected():
            arms = self.held_against(arms, experiment)
        self.require_none()
        cold = LEDGER_PROBES_COLD if "cold" in factors.get("cache", ()) else ()
        arms = list(with_copies(arms, all_that_differ=self.copies_all()))
        self.give_devices(arms)
        self.require_none()
        return replace(experiment, arms=tuple(arms), explain=(*LEDGER_PROBES, *cold) if explain else ())

    def factors_known(self, common: Configuration) -> Mapping[str, tuple[str, ...]]:
        """Those of the workload that was named, also where its options are wrong."""
        name = common.workload.name
        with suppress(DbtollError, TypeError):
            name = registry.find("workloads", text_value(self.table("workload").get("name", name))).name
        return dict(registry.find("workloads", name).factors)

    def checked(self, arm: Arm, index: int, common: Configuration, factors: Mapping[str, Sequence[str]]) -> Arm:
        """The arm as it can be reached, with all of its faults noted."""
        with self.collected():
            self.check_asked_of(arm, index, common)
        with self.collected():
            self.check_layout(arm)
        with self.collected():
            self.check_devices(arm)
        with self.collected():
            self.check_threads(arm, index)
        with self.collected():
            self.check_neighbours(arm, factors.get(NEIGHBOUR, ()))
        if "outside" in factors.get("placement", ()):
            with self.collected():
                self.check_listens(arm)
            with self.collected():
                return self.reachable(arm)
        return arm

    def check_baseline(self, experiment: Experiment) -> None:
        baseline = experiment.baseline
        if baseline not in [arm.name for arm in experiment.arms]:
            raise self.error(
                "",
                "baseline",
                f"baseline {baseline!r} is not one of the arms",
                f"name one of the [[arm]]s: {', '.join(arm.name for arm in experiment.arms)}"
                + ("; where variables are in these, give each a name of its own" if self.has_variables else ""),
            )
        if experiment.arm(baseline).clock == "instructions":
            raise self.error("", "baseline", f"{baseline!r} counts instructions and tells no time", "name another arm")

    def held_against(self, arms: Sequence[Arm], experiment: Experiment) -> list[Arm]:
        """The arms, the baseline first, each with what it is held against: what it says; else the first arm of the same
        configuration, so that they differ in the environment alone; else the baseline."""
        by_name = {arm.name: arm for arm in arms}
        baseline = by_name[experiment.baseline]
        firsts = [baseline, *(arm for arm in arms if arm is not baseline and arm.clock == "time")]
        held: dict[str, str] = {}
        for index, arm in enumerate(arms):
            given = arm.against
            first = next((other for other in firsts if other.configuration == arm.configuration), baseline)
            held[arm.name] = given or (baseline if first is arm else first).name
            if given and arm is baseline:
                raise self.error(f"arm.{index}", "against", f"{given!r}: the baseline is held against no arm",
                                 "name another arm as the baseline, or leave it out")  # fmt: skip
            if given and (given not in by_name or by_name[given].clock != "time" or given == arm.name):
                raise self.error(f"arm.{index}", "against", f"{arm.name!r} cannot be held against {given!r}",
                                 f"name another arm that tells time: {', '.join(each.name for each in firsts)}")  # fmt: skip
        for index, arm in enumerate(arms):
            seen, name = set[str](), arm.name
            while name != baseline.name and name not in seen:
                seen.add(name)
                name = held[name]
            if name != baseline.name:
                raise self.error(f"arm.{index}", "against", f"{arm.name!r} is held against itself in the end",
                                 f"let one of {', '.join(sorted(seen))} be held against {baseline.name}")  # fmt: skip
        ordered = [baseline, *(arm for arm in arms if arm is not baseline)]
        return [replace(arm, against=None if arm is baseline else held[arm.name]) for arm in ordered]

    def check_one_question(self, arms: Sequence[Arm], experiment: Experiment) -> None:
        """Arms that are asked for other queries, or in another way, than the baseline."""
        figures = {arm.name: asked(arm.configuration.workload) for arm in arms}
        wanted, timed = figures[experiment.baseline]
        for index, arm in enumerate(arms):
            own, own_timed = figures[arm.name]
            if different := own ^ wanted:
                shown = ", ".join(sorted(different)[:6])
                raise self.error(f"arm.{index}.workload", "queries",
                                 f"{arm.name} and {experiment.baseline} are asked unlike queries: {shown}",
                                 "give both the same queries; their statements may differ")  # fmt: skip
            if own_timed != timed:
                raise self.error(f"arm.{index}.workload", "rate",
                                 f"{arm.name} and {experiment.baseline} are compared by unlike figures: one has a rate of arrivals",
                                 "give all arms a rate, or none")  # fmt: skip

    # --- what arms have in common, and what is their own ------------------------------------------------------------------

    def configuration(
        self, arm: Mapping[str, Any] | None = None, where: str = "", common: Configuration | None = None
    ) -> Configuration:
        """What all arms have, or with ``arm``, its table, and ``common`` that with what is its own."""
        made = common or Configuration(ComponentSpec(defaults.ENGINE), ComponentSpec(defaults.WORKLOAD))
        arm = self.document if arm is None else arm
        prefix = f"{where}." if where else ""
        version: str | None = None
        if common is None or "engine" in arm or "image" in arm:
            with self.collected():
                engine, version = self.engine(prefix)
                made = replace(made, engine=engine)
            with self.collected():
                made = replace(made, image=self.image(prefix, made.engine.name, version))
        if common is None or "workload" in arm:
            with self.collected():
                made = replace(made, workload=self.choice("workload", "workloads", defaults.WORKLOAD, prefix))
        if common is None or "resources" in arm:
            made = replace(made, resources=self.resources(f"{prefix}resources", made.resources))
        return made

    def engine(self, prefix: str) -> tuple[ComponentSpec, str | None]:
        """The engine, and the version that is wanted of it."""
        given = self.merged("engine", prefix)
        version = given.get("version")
        own, image = self.table(f"{prefix}engine"), self.table(f"{prefix}image")
        if version is not None and not isinstance(version, str):
            raise self.error(
                self.place("engine", prefix, "version"), "version", f"{version!r} is not a text", 'version = "17"'
            )
        if "version" not in own and image:
            version = None  # what all arms have is of another image
        return self.choice("engine", "engines", defaults.ENGINE, prefix), version

    def merged(self, table: str, prefix: str) -> dict[str, Any]:
        """A table of an arm over that of all arms; of another engine or workload it stands alone. Tables in it are merged too."""
        common, own = self.table(table), self.table(f"{prefix}{table}")
        if not prefix or own.get("name", common.get("name")) != common.get("name"):
            return dict(own)
        both = {**common, **own}
        for key in common.keys() & own.keys():
            if isinstance(common[key], dict) and isinstance(own[key], dict):
                both[key] = {**common[key], **own[key]}
        return both

    def place(self, table: str, prefix: str, key: str) -> str:
        """The table in which the key stands: the arm's own, or that of all arms."""
        return f"{prefix}{table}" if key in self.table(f"{prefix}{table}") or key not in self.table(table) else table

    def arms(self, common: Configuration) -> list[Arm]:
        tables = self.document.get("arm")
        if not isinstance(tables, list) or not tables:
            self.fault("", "arm", "no [[arm]] is given", 'add [[arm]] with name = "docker" and stack = "docker"')
            return []
        arms: list[Arm] = []
        for index, table in enumerate(tables):
            with self.collected():
                for arm in self.arms_of(table, f"arm.{index}", common):
                    if self.has_variables and arm in arms:
                        continue  # a variable has named an arm that is there already
                    if arm.name in [other.name for other in arms]:
                        raise self.error(
                            f"arm.{index}", "name", f"two arms are named {arm.name!r}", "give each a name of its own"
                        )
                    arms.append(arm)
                    self.tables[arm.name] = f"arm.{index}"
        return arms

    def arms_of(self, table: Any, where: str, common: Configuration) -> Iterator[Arm]:
        """One, or one for each level of an option that has several."""
        if not isinstance(table, dict):
            raise self.error("", "arm", "an arm is a table", "write [[arm]]")
        self.known(table, where)
        design, layout = self.design(where)
        for (stack, told), (devices, told_of_devices) in itertools.product(
            self.stacks(table, where), self.device_levels(where)
        ):
            text = write_stack(stack)
            given = self.take(where, "name", text_value, None)
            shape = (
                arm_name(text, design, len(layout.units)) if design else ", ".join(filter(None, [text, layout.text]))
            )
            own = spec_devices.name_with(shape, devices)
            name = own if given is None else " ".join(filter(None, [given, told, told_of_devices]))
            if not _NAME.fullmatch(name) or len(name) > NAME_MAX or name.endswith(COPY_SUFFIX):
                raise self.error(
                    where, "name", f"{name!r} cannot be an arm's name",
                    f"use at most {NAME_MAX} letters, digits and ._+:,=/ -"
                    + ("; what it is called after can have a name too: name = … of the arm, or [devices]" if given is None else ""),
                )  # fmt: skip
            counts = stack[-1].options.get("clock") == "instructions"
            yield Arm(
                name,
                stack,
                text=text,
                clock="instructions" if counts else "time",
                configuration=replace(
                    self.configuration(table, where, common), devices=self.devices_of(where, devices)
                ),
                against=self.take(where, "against", text_value, None),
                layout=layout,
                design=design,
            )

    def declared_devices(self) -> Iterator[tuple[str, Device]]:
        """Whoever names one that is faulty is not told that there is none."""
        for name, value in self.table("devices").items():
            try:
                yield name, spec_devices.declared(name, value)
            except spec_devices.DeviceError as error:
                self.fault("devices", error.key, error.message, error.hint)
                yield name, Device(name, "own")

    def device_levels(self, where: str) -> list[tuple[dict[str, str], str]]:
        """What each arm is given that the table's devices stand for, with what tells it from the others."""
        given = {key: value for key in DEVICE_KEYS if (value := self.take(where, key, text_value, None)) is not None}
        try:
            return spec_devices.levels(given)
        except UsageError as error:
            raise self.error(where, next(iter(given)), error.message, error.hint) from None

    def devices_of(self, where: str, given: Mapping[str, str]) -> Devices:
        try:
            return spec_devices.of_arm(given.get(DATA_DEVICE), given.get(LOG_DEVICE), self.devices)
        except spec_devices.DeviceError as error:
            raise self.error(where, error.key, error.message, error.hint) from None

    def check_devices(self, arm: Arm) -> None:
        """Devices that the engine or the environment cannot have its data or its log on."""
        where, devices, engine = self.tables[arm.name], arm.configuration.devices, arm.configuration.engine
        if not devices.all:
            return
        key = DATA_DEVICE if devices.data else LOG_DEVICE
        serving = registry.find("engines", engine.name)
        if any(registry.find("environments", step.environment).simulated for step in arm.stack):
            raise self.error(where, key, f"{arm.text}: a simulated machine has no devices", "leave it out")
        if not serving.keeps_data:
            raise self.error(where, key, f"{engine.name} keeps no data", "leave it out, or take another engine")
        if stored := [step for step in arm.stack if storage.OPTION in step.options]:
            raise self.error(
                where, key,
                f"{arm.name}: both {key} and {storage.OPTION}={stored[0].options[storage.OPTION]} say where data lie",
                f"leave {storage.OPTION} out: with {DATA_DEVICE} all environments have their data on one such device",
            )  # fmt: skip
        if devices.log and not issubclass(serving, LogEngine):
            able = [str(each.name) for each in registry.members("engines") if issubclass(each, LogEngine)]
            raise self.error(
                where, LOG_DEVICE, f"a server of {engine.name} has no log that could lie apart from its data",
                f"leave it out: {DATA_DEVICE} holds both; engines that have: {', '.join(able)}",
            )  # fmt: skip

    def design(self, where: str) -> tuple[str, Layout]:
        """Empty where the arm has a layout of its own or is one unit."""
        design = self.take(where, "design", text_value, "")
        table = self.at(where)
        if not design:
            if "tenants" in table:
                raise self.error(
                    where, "tenants", "tenants are of a design", f'design = "shared" ({", ".join(DESIGNS)})'
                )
            return "", self.layout(where)
        if design not in DESIGNS:
            hint = "write an [[arm]] for each" if LEVEL in design else f"there is: {', '.join(DESIGNS)}"
            raise self.error(where, "design", f"there is no design {design!r}", hint)
        if twice := [key for key in LAYOUT_KEYS if key in table]:
            raise self.error(
                where, twice[0], f"a design says how many {twice[0]} there are", "leave out one of them; tenants = 8"
            )
        tenants = self.take(where, "tenants", integer, 1)
        layout = layout_of(design, tenants)
        if not layout.is_possible:
            raise self.error(
                where, "tenants", f"an arm has from 1 to {UNITS_MAX} tenants, not {tenants}", "tenants = 8"
            )
        return design, layout

    def layout(self, where: str) -> Layout:
        levels = {name: self.take(where, name, integer, 1) for name in LAYOUT_KEYS}
        layout = Layout(**levels)
        if not layout.is_possible:
            key = next((name for name, many in levels.items() if many < 1), max(levels, key=lambda name: levels[name]))
            raise self.error(
                where, key, f"an arm has from 1 to {UNITS_MAX} units, in {levels}", f"{key} = 3, for instance"
            )
        return layout

    def without_unfit(self, arms: Sequence[Arm]) -> list[Arm]:
        """The arms without those that are left out. Raises NoArmLeft."""
        left_out = self.left_out or {}
        kept = [arm for arm in arms if arm.name not in left_out]
        if not kept:
            raise NoArmLeft
        return [replace(arm, against=None) if arm.against in left_out else arm for arm in kept]

    def with_buffer_pools(self, arms: Sequence[Arm]) -> list[Arm]:
        """The arms. If some of them are designs for tenants, with buffer pools that are equal in all: a part of the memory, unless
        it is said how much."""
        designed = any(arm.design for arm in arms)
        found: list[Arm] = []
        for arm in arms:
            resources = arm.configuration.resources
            if resources.buffer_pool_bytes is None and not designed:
                found.append(arm)
                continue
            where = f"{self.tables[arm.name]}.resources"
            where = where if "buffer_pool" in self.table(where) else "resources"
            name = arm.configuration.engine.name
            engine = registry.find("engines", name)(arm.configuration.engine.options)
            if not isinstance(engine, BufferedEngine):
                if resources.buffer_pool_bytes is not None:
                    self.fault(where, "buffer_pool", f"{name} has no buffer pool of a given size", "leave it out")
                found.append(arm)
                continue
            if engine.has_buffer_setting():
                self.fault(
                    self.place("engine", f"{self.tables[arm.name]}.", "settings"), "settings",
                    f"{arm.name}: {engine.buffer_setting} is each server's, and the pools of all designs are to be equal in sum",
                    'leave it out: buffer_pool = "1 GiB" under [resources] is shared out to the servers',
                )  # fmt: skip
            pool = resources.buffer_pool_bytes
            pool = resources.memory_bytes // BUFFER_SHARE if pool is None else pool
            servers = arm.layout.all_servers
            if pool > resources.memory_bytes:
                self.fault(
                    where, "buffer_pool", f"{arm.name}: that is more than the memory, {resources.memory_bytes >> 20} MiB",
                    f'buffer_pool = "{resources.memory_bytes // BUFFER_SHARE >> 20} MiB"',
                )  # fmt: skip
            if pool // servers < engine.buffer_least_bytes:
                why = f"{servers} servers would have a buffer pool of {pool // servers >> 10} KiB each"
                if self.left_out is not None:
                    self.left_out.setdefault(arm.name, why)
                else:
                    self.fault(
                        where, "buffer_pool", f"{arm.name}: {why}",
                        f'buffer_pool = "{-(-servers * engine.buffer_least_bytes >> 20)} MiB", or fewer tenants',
                    )  # fmt: skip
            found.append(_with_resources(arm, buffer_pool_bytes=pool))
        self.require_none()
        return found

    def check_layout(self, arm: Arm) -> None:
        """Units that the engine, the environment or the workload cannot have."""
        where, layout = self.tables[arm.name], arm.layout
        engine, workload = arm.configuration.engine, arm.configuration.workload
        if layout != ONE_UNIT and issubclass(registry.find("workloads", workload.name), ProbeWorkload):
            raise self.error(
                where, "stack", f"{workload.name} asks no server: {layout.text} has no meaning", "leave it out"
            )
        serving = registry.find("engines", engine.name)
        apart = "databases" if issubclass(serving, DatabasesEngine) else "servers"

        def refused(level: str, why: str, instead: str, many: int) -> UsageError | SpecError:
            if not arm.design:
                return self.error(where, level, why, f"{instead} = {many}")
            other = next(name for name, (its, _) in DESIGNS.items() if its == instead)
            return self.error(where, "design", why, f'design = "{other}"')

        if layout.databases > 1 and not issubclass(serving, DatabasesEngine):
            raise refused("databases", f"a server of {engine.name} has one database", "servers", layout.databases)
        if layout.schemas > 1 and not issubclass(serving, SchemasEngine):
            many = layout.databases * layout.schemas
            raise refused("schemas", f"a database of {engine.name} has one schema here", apart, many)
        if layout.keys > 1:
            asked = registry.find("workloads", workload.name)
            if not issubclass(asked, TenantKeyWorkload):
                instead = "schemas" if issubclass(serving, SchemasEngine) else apart
                raise refused(
                    "keys", f"{workload.name} has no key by which tenants could share its tables", instead, layout.keys
                )
            try:
                asked(workload.options).as_tenant(0, layout.keys)
            except UsageError as error:
                raise self.error(where, "keys", error.message, error.hint) from None
        if layout.servers > 1 and any(map(_boots, arm.stack)):
            raise refused("servers", f"a guest of {arm.text} has the data of one server", "machines", layout.servers)
        if layout.machines > 1 and any(map(_boots, arm.stack[:-1])):
            raise self.error(
                where, "machines", f"{arm.text}: a guest hands on the data of one machine", "put the copies on the host"
            )
        resources = arm.configuration.resources
        split_at = f"{where}.resources" if "split" in self.table(f"{where}.resources") else "resources"
        if resources.split and layout.machines == 1:
            raise self.error(
                split_at, "split", f"{arm.name} is one machine, and what is in it has no limits of its own",
                f"say it of arms of several machines alone: [arm.resources] with split = {list(resources.split)}",
            )  # fmt: skip
        if CPUS in resources.split and resources.cpus % layout.machines:
            raise self.error(
                split_at, "split", f"{resources.cpus} processors are not dealt equally to {layout.machines} machines of {arm.name}",
                f"cpus = {layout.machines} under [resources], or split = [\"memory\"]",
            )  # fmt: skip
        for key, why, hint in spec_limits.not_to_be_held(arm, are_guests=_boots(arm.stack[-1])):
            given_at = f"{where}.resources" if key in self.table(f"{where}.resources") else "resources"
            raise self.error(given_at, key, why, hint)
        for kind in _devices(arm.stack) if layout.machines > 1 else ():
            known = registry.find("environments", arm.stack[-1].environment).options
            share = "" if any(map(_boots, arm.stack)) else f", or servers = {layout.machines}, which share the device"
            raise self.error(
                where, "machines", f"{layout.machines} machines of {arm.text} would have their data on one device, {kind}",
                f"{storage.OPTION}={known[storage.OPTION].default}, where each has its own data{share}",
            )  # fmt: skip

    def reachable(self, arm: Arm) -> Arm:
        """The arm with a network by which the machine around its last environment reaches it."""
        *around, step = arm.stack
        environment = registry.find("environments", step.environment)()
        where = self.tables[arm.name]
        if not isinstance(environment, NetworkedEnvironment):
            raise self.error(where, "stack", f"{step.environment} cannot be reached from outside", INSIDE)
        try:
            stack = (*around, Step(step.environment, environment.networked(step.options)))
        except UsageError as error:
            raise self.error(where, "stack", f"{arm.name}: {error.message}", f"{error.hint}, or {INSIDE}") from None
        return replace(arm, stack=stack, text=write_stack(stack))

    def check_asked_of(self, arm: Arm, index: int, common: Configuration) -> None:
        """A workload that needs what the engine has not, or another one than all arms have; settings that its factors decide on."""
        workload, engine = arm.configuration.workload, arm.configuration.engine
        where = f"arm.{index}"
        if workload.name != common.workload.name:
            raise self.error(
                f"{where}.workload", "name", f"{arm.name} has another workload, {workload.name}, than {common.workload.name}",
                "arms may differ in a workload's options; another workload is another run",
            )  # fmt: skip
        requires = registry.find("workloads", workload.name).requires
        if lacking := requires - registry.find("engines", engine.name).offers:
            able = [str(each.name) for each in registry.members("engines") if requires <= each.offers]
            raise self.error(
                self.place("engine", f"{where}.", "name"),
                "name",
                f"{workload.name} cannot be asked of {engine.name}, which does not offer: {', '.join(sorted(lacking))}",
                f"engines that do: {', '.join(able)}" if able else "no engine here does",
            )
        made = registry.find("engines", engine.name)(engine.options)
        decided = made.decided if TRANSACTIONS in requires and isinstance(made, DurabilityEngine) else frozenset[str]()
        if taken := sorted(decided & made.settings(arm.configuration.resources).keys()):
            raise self.error(
                self.place("engine", f"{where}.", "settings"), "settings",
                f"with transactions the factors decide on {', '.join(taken)}",
                "leave the setting out; durability and isolation under [factors] say it instead",
            )  # fmt: skip

    def check_neighbours(self, arm: Arm, levels: Sequence[str]) -> None:
        """A neighbour that the arm has not, or that cannot do there what it is asked for."""
        configuration, layout = arm.configuration, arm.layout
        if not levels:
            if configuration.resources.neighbour_weight is not None:
                where = f"{self.tables[arm.name]}.resources"
                where = where if "neighbour_weight" in self.table(where) else "resources"
                raise self.error(
                    where, "neighbour_weight", f"{arm.name}: no unit is a neighbour, so none has that weight",
                    'neighbour = ["processor"] under [factors], or leave it out',
                )  # fmt: skip
            return
        engine, rate = configuration.engine.name, configuration.workload.options.get("rate")

        def refused(message: str, hint: str) -> UsageError | SpecError:
            return self.error("factors", NEIGHBOUR, f"{arm.name}: {message}", hint)

        if len(layout.units) < 2:
            raise refused("an arm of one unit has no neighbour", 'tenants = 3 and a design = "shared" of the arm')
        loads = [level for level in levels if neighbours.LOADS.get(level, 1) > 1]
        if loads and not rate:
            raise refused(f"{loads[0]} multiplies a rate, and it has none", "rate = 100 under [workload]")
        if neighbours.VACUUM in levels and not issubclass(registry.find("engines", engine), RewritingEngine):
            able = [str(each.name) for each in registry.members("engines") if issubclass(each, RewritingEngine)]
            raise refused(
                f"{engine} cannot be asked to write a table anew",
                f"leave {neighbours.VACUUM} out; engines that can: {', '.join(able)}",
            )
        if neighbours.VACUUM in levels and layout.keys > 1:
            raise refused(
                "its tenants share their tables, so the neighbour has none of its own to write anew",
                f"leave {neighbours.VACUUM} out, or take another design",
            )
        self.check_faults(arm, [level for level in levels if level in neighbours.FAULTS], refused)
        for level in levels:
            if (what := neighbours.ACTS_ON.get(level)) in _in_memory(arm):
                raise refused(
                    f"its {what} {'lies' if what == 'log' else 'lie'} in memory, where {level} does nothing",
                    "leave it out, or take another device",
                )

    def check_faults(
        self, arm: Arm, faults: Sequence[str], refused: Callable[[str, str], UsageError | SpecError]
    ) -> None:
        """A fault that cannot strike the arm's last unit alone, or would strike the host."""
        if len(faults) > 1:
            raise refused(f"{faults[0]} is the last thing in a round, and so is {faults[1]}", "one fault in a run")
        if neighbours.MACHINE_KILLED in faults and arm.layout.machines < 2:
            raise refused(
                "its tenants have one machine, so nobody would be left", "take a design with a machine for each"
            )
        if neighbours.MACHINE_KILLED in faults and len(arm.layout.units) > arm.layout.machines:
            raise refused(
                "several tenants are in the machine that is killed, and their drivers with it",
                "one server, one database and one key in each machine",
            )
        data = arm.configuration.devices.data
        bounded = data is not None and data.kind in ("memory", "model")
        if neighbours.DISK_FULL in faults and not bounded and not _boots(arm.stack[-1]):
            raise refused(
                "its data lie on the host's file system, which nothing fills", 'data_device = "memory" of the arm'
            )

    def check_listens(self, arm: Arm) -> None:
        """A server that nobody outside can reach."""
        engine = arm.configuration.engine
        if not isinstance(registry.find("engines", engine.name)(engine.options), ListeningEngine):
            raise self.error(
                "factors", "placement", f"a server of {engine.name} cannot be reached from outside", INSIDE
            )

    def stacks(self, table: dict[str, Any], where: str) -> list[tuple[tuple[Step, ...], str]]:
        """Those that the table's stack and options stand for, each with what tells it from the others (`spec.stack.levels`)."""
        given, options = table.get("stack"), self.table(f"{where}.options")
        found = []
        try:
            if isinstance(given, list) and all(isinstance(part, str) for part in given):
                given = NESTED.join(given)
            varied: dict[str, Any] = {
                key: value.split(LEVEL) for key, value in options.items() if isinstance(value, str) and LEVEL in value
            }
            demand_few(list(varied.values()))
            for (text, told), *chosen in itertools.product(stack_levels(text_value(given)), *varied.values()):
                steps = parse_stack(text)
                level = dict(zip(varied, (each.strip() for each in chosen), strict=True))
                if options:
                    environment = registry.find("environments", steps[-1].environment)
                    more = given_values(
                        {**options, **level}, environment.options, f"environment {steps[-1].environment!r}"
                    )
                    steps = (*steps[:-1], Step(steps[-1].environment, {**steps[-1].options, **more}))
                words = [told, *(f"{key}={value}" for key, value in level.items())]
                found.append((steps, ",".join(filter(None, words))))
        except OptionError as error:
            raise self.error(
                f"{where}.options" if error.key in options else where, error.key, error.message, error.hint
            ) from None
        except UsageError as error:
            raise self.error(where, "stack", error.message, error.hint) from None
        except TypeError:
            raise self.error(where, "stack", "an arm needs its stack", 'for example stack = "docker"') from None
        return found

    def choice(self, table: str, family: str, default: str, prefix: str = "") -> ComponentSpec:
        given = self.merged(table, prefix)
        if family == "engines":
            given.pop("version", None)
        name = given.pop("name", default)
        try:
            found = registry.find(family, text_value(name))
            values = option_values(given, found.options, f"{table} {name!r}")
            paths = [key for key, option in found.options.items() if option.kind == "path" and values[key]]
            values |= {key: str(self.beside(values[key])) for key in paths}
            found(values)  # they check their options against each other when they are made
            return ComponentSpec(name, values)
        except OptionError as error:
            raise self.error(self.place(table, prefix, error.key), error.key, error.message, error.hint) from None
        except TypeError as error:
            raise self.error(prefix + table, "name", str(error), "write its name as a text") from None
        except SpecError as error:
            if self.file == COMMAND_LINE:
                raise  # it names a file of the user's
            raise self.error(prefix + table, "name", error.message, error.hint) from None
        except DbtollError as error:
            raise self.error(prefix + table, "name", error.message, error.hint) from None

    def factors(
        self, known: Mapping[str, tuple[str, ...]], engines: Sequence[str], configurations: Sequence[Configuration]
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, str]]]:
        """Factor -> levels that are run, and factor -> level that was asked for and an engine has not -> why."""
        lacking: dict[str, dict[str, str]] = {}
        for engine in engines:
            for factor, levels in registry.find("engines", engine).unsupported.items():
                lacking[factor] = {**levels, **lacking.get(factor, {})}
        given = self.table("factors")
        self.known(given, "factors", set(known))
        chosen: dict[str, tuple[str, ...]] = {}
        unsupported: dict[str, dict[str, str]] = {}
        for name, levels in known.items():
            if name == THREADS:
                if name in given:
                    with self.collected():
                        chosen[name], without = self.threads(given[name], configurations)
                        unsupported |= without
                continue
            if name == NEIGHBOUR and name not in given:
                continue
            lacks = lacking.get(name, {})
            value = given.get(name, [levels[0]])
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not value or not all(level in levels for level in value):
                self.fault("factors", name, f"{value!r} are not levels of {name}", f"choose from {', '.join(levels)}")
                continue
            if len(set(value)) < len(value):
                self.fault("factors", name, f"{value!r}: a level of {name} comes twice", "give each once")
                continue
            if name == NEIGHBOUR:
                value = neighbours.with_references(value)
            if left_out := {level: lacks[level] for level in levels if level in value and level in lacks}:
                unsupported[name] = left_out
            had = [level for level in levels if level not in lacks]
            chosen[name] = tuple(level for level in had if level in value)
            if not chosen[name] and name not in given:
                chosen[name] = (*had[:1],)
            if not chosen[name]:
                why = "; ".join(f"{level}: {why}" for level, why in left_out.items())
                help_ = f"choose from {', '.join(had)}" if had else "choose another engine"
                self.fault("factors", name, f"{' or '.join(engines)} has no {name} {why}", help_)
        return chosen, unsupported

    def threads(
        self, value: Any, configurations: Sequence[Configuration]
    ) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
        """Numbers of threads that all arms run, and factor -> those that the engine of one has not -> why."""
        fewest = min((each.resources for each in configurations), key=lambda resources: resources.cpus)
        why: str | None = None
        try:
            levels = thread_levels(value, fewest, written=self.resource)
            for each in configurations:
                found = registry.find("engines", each.engine.name)
                made = found(each.engine.options)
                if isinstance(made, ThreadedEngine):
                    made.settings_of_threads(int(levels[0]))
                    continue
                why = found.unsupported.get(THREADS, {}).get(ABOVE_ONE)
                if why is None or "1" not in levels:
                    raise UsageError(
                        f"{found.name} has no threads to choose{f': {why}' if why else ''}",
                        f"engines that have: {', '.join(_threaded_engines())}",
                    )
        except (UsageError, SpecError) as error:
            raise self.error("factors", THREADS, error.message, error.hint) from None
        if why is None:
            return levels, {}
        return levels[:1], {THREADS: dict.fromkeys(levels[1:], why)} if levels[1:] else {}

    def check_threads(self, arm: Arm, index: int) -> None:
        """Those that its engine is told by itself."""
        configuration = arm.configuration
        engine = registry.find("engines", configuration.engine.name)(configuration.engine.options)
        told = engine.threads_asked_for() if isinstance(engine, ThreadedEngine) else None
        if told is None:
            return
        place, threads = told
        try:
            demand_processors(
                threads, configuration.resources, written=self.resource, place=f"engine {engine.name}: {place}"
            )
        except UsageError as error:
            key = "threads" if place == "option threads" else "settings"
            table = self.place("engine", f"arm.{index}.", key)
            raise self.error(table, key, error.message, error.hint) from None

    def resource(self, key: str, value: Any) -> str:
        """How its user says a key of [resources]."""
        if self.file == COMMAND_LINE:
            return f"--{key}" if value is True else f"--{key} {value}"
        return f"{key} = {str(value).lower()} under [resources]"

    def resources(self, table: str, default: Resources) -> Resources:
        self.known(self.table(table), table)
        made = Resources(
            cpus=self.take(table, "cpus", integer, default.cpus),
            memory_bytes=self.take(table, "memory", _size, default.memory_bytes),
            shm_bytes=self.take(table, "shm", _size, default.shm_bytes),
            open_files=self.take(table, "open_files", integer, default.open_files),
            oversubscribe=self.take(table, "oversubscribe", flag, default.oversubscribe),
            buffer_pool_bytes=self.take(table, "buffer_pool", _size, default.buffer_pool_bytes),
            split=self.take(table, "split", _split, default.split),
            read_rate=self.take(table, "read_rate", _size, default.read_rate),
            write_rate=self.take(table, "write_rate", _size, default.write_rate),
            read_requests=self.take(table, "read_requests", integer, default.read_requests),
            write_requests=self.take(table, "write_requests", integer, default.write_requests),
            memory_high_bytes=self.take(table, "memory_high", _size, default.memory_high_bytes),
            neighbour_weight=self.take(table, "neighbour_weight", number, default.neighbour_weight),
        )
        if made.cpus < 1:
            self.fault(table, "cpus", "an arm needs at least one CPU", "cpus = 1")
        if made.memory_bytes < 256 << 20:
            self.fault(table, "memory", "an arm needs at least 256 MiB", 'memory = "4 GiB"')
        if made.open_files < 1:
            self.fault(table, "open_files", "a server opens files", "open_files = 65536")
        for key, why, hint in spec_limits.out_of_bounds(made):
            self.fault(table, key, why, hint)
        return made

    def precision(self) -> Precision:
        self.known(self.table("precision"), "precision")
        default = Precision()
        made = Precision(
            budget_s=self.take(
                "precision", "budget", lambda v: units.duration_ns(text_value(v)) / 1e9, default.budget_s
            ),
            target=self.take("precision", "target", lambda v: units.fraction(text_value(v)), default.target),
            margin=self.take("precision", "margin", lambda v: units.fraction(text_value(v)), default.margin),
            confidence=self.take(
                "precision", "confidence", lambda v: units.fraction(text_value(v)), default.confidence
            ),
            rounds_min=self.take("precision", "rounds_min", integer, default.rounds_min),
            rounds_max=self.take("precision", "rounds_max", integer, default.rounds_max),
            blocks_max=self.take("precision", "blocks_max", integer, default.blocks_max),
            rounds_slow=self.take("precision", "rounds_slow", integer, default.rounds_slow),
            settled=self.take("precision", "settled", lambda v: units.fraction(text_value(v)), default.settled),
        )
        if not made.budget_s:
            self.fault("precision", "budget", "nothing is measured in no time", 'budget = "20m"')
        if not 0.5 <= made.confidence < 1:
            self.fault("precision", "confidence", "the confidence lies between 50% and 100%", 'confidence = "95%"')
        if not 0 < made.margin < 1:
            self.fault("precision", "margin", "the margin lies between 0% and 100%", 'margin = "2%"')
        if not 2 <= made.rounds_min <= made.rounds_max:
            self.fault("precision", "rounds_min", "rounds_min is at least 2 and at most rounds_max", "rounds_min = 5")
        if made.blocks_max < 1:
            self.fault("precision", "blocks_max", "a round has a block at least", "blocks_max = 1")
        if made.rounds_slow is not None and made.rounds_slow < 2:
            self.fault("precision", "rounds_slow", "an interval needs two rounds", "rounds_slow = 3")
        if made.settled is not None and not round(SETTLED_LEAST * made.margin, 9) <= made.settled < 1:
            least = f"{100 * SETTLED_LEAST * made.margin:g}%"
            self.fault("precision", "settled", f"that is settled is far beyond the margin, at least {least}, and below 100%",
                       'settled = "20%"')  # fmt: skip
        return made

    def copies_all(self) -> bool:
        """Whether arms that differ in more than the environment have A/A copies too."""
        asked = self.take("precision", "copies", text_value, ALL_COPIES)
        if asked not in (ALL_COPIES, BASELINES_ALONE):
            self.fault(
                "precision", "copies", f"{asked!r} is not known", f'copies = "{ALL_COPIES}" or "{BASELINES_ALONE}"'
            )
        return bool(asked == ALL_COPIES)

    def visit_timing(self) -> VisitTiming:
        self.known(self.table("visit"), "visit")
        default = VisitTiming()
        return VisitTiming(
            lead_in_ns=self.take("visit", "lead_in", _duration, default.lead_in_ns),
            measurement_time_ns=self.take("visit", "measurement_time", _duration, default.measurement_time_ns),
            statement_timeout_ns=self.take("visit", "statement_timeout", _duration, default.statement_timeout_ns),
        )

    def image(self, prefix: str, engine: str, version: str | None) -> dict[str, Any]:
        """The image of the arm's table, or of all arms; the one that has the ``version`` of the engine, if one is wanted."""
        table = f"{prefix}image" if self.table(f"{prefix}image") else "image"
        self.known(self.table(table), table)
        given = {key: self.take(table, key, text_value, "") for key in _KEYS["image"] & self.table(table).keys()}
        if len(given) == 2:
            self.fault(table, "path", "an image has a suite or a path, not both", "remove one of them")
        if "path" not in given and given and given["suite"] not in SUITES:
            self.fault(table, "suite", f"no image is defined for {given['suite']!r}", _image_hint(given["suite"]))
            version = None
        if version is not None:
            return self.image_with(engine, version, given, prefix)
        if "path" in given:
            return {"path": str(self.beside(given["path"]))}
        return given or {"suite": next(iter(SUITES))}

    def image_with(self, engine: str, version: str, given: Mapping[str, str], prefix: str) -> dict[str, Any]:
        """The suite whose ``engine`` is of that version."""
        found = registry.find("engines", engine)
        where, title = self.place("engine", prefix, "version"), found.description.title
        if "path" in given:
            raise self.error(
                where, "version", f"an image of your own has the {title} that is in it", "leave the version out"
            )
        versions = {suite: known for suite in SUITES if (known := found.software.versions.get(suite))}
        having = [suite for suite, known in versions.items() if f"{known}.".startswith(f"{version}.")]
        if not having:
            there = ", ".join(
                f"{known} ({', '.join(suite for suite in versions if versions[suite] == known)})"
                for known in dict.fromkeys(versions.values())
            )
            raise self.error(
                where, "version", f"there is no {title} {version}", f"there is: {there or 'one, without a number'}"
            )
        suite = given.get("suite", having[0])
        is_own = "suite" in self.table(f"{prefix}image")
        if suite not in having and (is_own or not prefix):
            raise self.error(where, "version", f"the image {suite} has {title} {versions.get(suite)}, not {version}",
                             f"leave the image out, or take {' or '.join(having)}")  # fmt: skip
        return {"suite": suite if suite in having else having[0]}

    def give_devices(self, arms: list[Arm]) -> None:
        """Each arm the device that its data lie on; a second copy (A/A) takes the second one that is named there.

        By the text alone, and so early: the specification may be read elsewhere. What these names lead to is seen on the machine
        (runner/preparation/data.py)."""
        taken: dict[tuple[str, ...], str] = {}
        copied = {arm.copy_of for arm in arms}
        for index, arm in enumerate(arms):
            where = self.tables[arm.copy_of or arm.name]
            stack = list(arm.stack)
            for depth, step in enumerate(arm.stack):
                kind = str(step.options.get(storage.OPTION, ""))
                if not storage.is_device(kind):
                    continue
                around = _kernels_around(arm, depth)
                own = kind.split(storage.AND)
                # In a guest of its own the copy's device is another one by the same name.
                is_copied = (arm.copy_of or arm.name) in copied and arm.name not in around
                wanted = 2 if is_copied else 1
                if len(own) != wanted:
                    one = "needs a device of its own, and so does its second copy (A/A): storage=/dev/A+/dev/B"
                    said = one if is_copied else "has one device"
                    self.fault(where, "stack", f"{arm.name!r} {said}", storage.PARTITIONS)
                    continue
                device = own[is_copied and arm.copy_of is not None]
                if (other := taken.setdefault((*around, device), arm.name)) != arm.name:
                    self.fault(where, "stack", f"{arm.name!r} and {other!r} have one device", storage.PARTITIONS)
                stack[depth] = Step(step.environment, {**step.options, storage.OPTION: device})
            arms[index] = replace(arm, stack=tuple(stack))

    def check_cells(self, experiment: Experiment) -> None:
        """Combinations that cannot exist."""
        factors = experiment.factors
        if "per_statement" in factors.get("connection", ()) and "prepared" in factors["query_protocol"]:
            self.fault(
                "factors", "query_protocol", "a connection per statement cannot use a statement prepared on it before",
                "use query_protocol = [\"extended\"] there, or connection = [\"persistent\"]",
            )  # fmt: skip
        if "cold" in factors.get("cache", ()) and not experiment.exclusive:
            self.fault(
                "factors", "cache", "cold drops the page cache of the whole host",
                "say that this machine is yours for the run: exclusive = true, or --exclusive",
            )  # fmt: skip
        for arm in experiment.arms if "cold" in factors.get("cache", ()) else ():
            if "data" in _in_memory(arm):
                self.fault(
                    "factors", "cache", f"the data of {arm.name!r} lie in memory, so no statement there is cold",
                    'leave cache = ["cold"] out, or let them lie elsewhere',
                )  # fmt: skip
        faults = [level for level in factors.get(NEIGHBOUR, ()) if level in neighbours.FAULTS]
        if faults and len(experiment.combinations) > len(factors[NEIGHBOUR]):
            self.fault(
                "factors", NEIGHBOUR, f"{faults[0]} is the last thing in a round, so it is measured once",
                "one level of every other factor",
            )  # fmt: skip
        if factors.get(NEIGHBOUR) and any(self.take("", key, flag, False) for key in ("explain", "sessions")):
            self.fault(
                "factors", NEIGHBOUR, "what a neighbour does is not counted or probed",
                "leave explain and sessions out, or the factor",
            )  # fmt: skip
        if not 0 <= experiment.seed <= SEED_MAX:
            self.fault("", "seed", f"a whole number from 0 to {SEED_MAX}", "seed = 1")
        if not 1 <= experiment.parameter_sets <= 1000:
            self.fault("", "parameter_sets", "between 1 and 1000 sets of parameters", "parameter_sets = 8")

    def beside(self, path: str) -> Path:
        """A path of the specification: relative ones begin where its file lies."""
        return Path(self.file).absolute().parent / path

    # --- reading with the place of each key -----------------------------------------------------------------------

    def table(self, name: str) -> dict[str, Any]:
        """The table of that name, ``engine`` or ``arm.1.engine``; empty where there is none."""
        *around, last = name.split(".")
        value = self.at(".".join(around)).get(last, {})
        if not isinstance(value, dict):
            shown = ".".join(_words(name))
            self.fault(".".join(around), last, f"{last} is a table", f"write [{shown}] and its keys below")
            return {}
        return value

    def at(self, table: str) -> Any:
        """What stands there in the document; {} where nothing does."""
        holder: Any = self.document
        for part in filter(None, table.split(".")):
            holder = holder[int(part)] if part.isdigit() else holder.get(part, {})
        return holder

    def take(self, table: str, key: str, convert: Callable[[Any], Any], default: Any) -> Any:
        holder = self.at(table)
        if not isinstance(holder, dict):
            holder = self.table(table)  # which notes that it is none
        if key not in holder:
            return default
        try:
            return convert(holder[key])
        except (ValueError, TypeError) as error:
            written = holder[key]
            self.fault(table, key, f"{key}: {error}", form_hint(self.option_or_key(key), written, convert))
            return default

    def option_or_key(self, key: str) -> str:
        return f"--{key.replace('_', '-')} " if self.file == COMMAND_LINE else f"{key} = "

    def known(self, table: Mapping[str, Any], where: str, keys: set[str] | None = None) -> None:
        """A fault for each key that is not in ``keys`` (those of the table of that name)."""
        words = _words(where)
        name = words[-1] if words else ""
        keys = _KEYS[name] if keys is None else keys
        for key in (key for key in table if key not in keys):
            place = f"[{'.'.join(words)}]" if words else "the specification"
            self.fault(where, key, f"unknown key {key!r} in {place}", self.hint_of(key, name, keys))

    def hint_of(self, key: str, name: str, keys: set[str]) -> str:
        """Where the key is known, or which is meant."""
        others = dict(_KEYS)
        for table, family, default in (
            ("engine", "engines", defaults.ENGINE),
            ("workload", "workloads", defaults.WORKLOAD),
        ):
            with suppress(DbtollError, AttributeError, TypeError):  # it is told where it is chosen
                others[table] = set(registry.find(family, self.table(table).get("name", default)).options)
        for other, known in others.items():
            if other != name and key in known:
                return f"{key} is known {f'under [{other}]' if other else 'at the top, before the first table'}"
        having = [str(each.name) for each in registry.members("workloads") if key in each.factors]
        if name == "factors" and having:
            return f"{key} is a factor of {', '.join(having)}"
        meant = "".join(f"did you mean {each}? " for each in difflib.get_close_matches(key, keys, 1))
        return f"{meant}known keys are: {', '.join(sorted(keys))}"

    @contextmanager
    def collected(self) -> Iterator[None]:
        """A fault inside is noted, and the reading goes on behind it."""
        try:
            yield
        except (UsageError, SpecError) as error:
            self.faults.append(error)

    def require_none(self) -> None:
        """One error for all faults so far: a SpecError, or of a command line a UsageError, unless only files are faulty."""
        specs = [error for error in self.faults if isinstance(error, SpecError)]
        if len(specs) < len(self.faults):
            raise together([UsageError(error.message, error.hint) for error in self.faults])
        if specs:
            raise together(sorted(specs, key=self.line_of))

    def line_of(self, error: SpecError) -> int:
        at = re.match(rf"{re.escape(self.file)}:([0-9]+): ", error.message)
        return int(at[1]) if at else 0

    def fault(self, table: str, key: str, message: str, hint: str) -> None:
        self.faults.append(self.error(table, key, message, hint))

    def error(self, table: str, key: str, message: str, hint: str) -> UsageError | SpecError:
        if self.file == COMMAND_LINE:
            return UsageError(message, hint)
        return SpecError(f"{self.file}:{self.line(table, key)}: {message}", hint)

    def line(self, table: str, key: str) -> int:
        """Line of ``key`` in ``table`` ("" top, "arm.1" the second [[arm]]); of the table's head, or 1, if not found.

        tomllib keeps no positions; this finds keys as people write them (one a line, or a [table] head).
        """
        words = table.split(".") if table else []
        names = [word for word in words if not word.isdigit()]
        index = next((int(word) for word in words if word.isdigit()), None)
        head_line = 0
        # A table within a table has a head of its own, or stands at a key of the outer one.
        for depth in range(len(names), min(len(names), 1) - 1, -1):
            place = ".".join(names[:depth])
            heads, current = 0, ""
            for line_number, line in enumerate(self.lines, 1):
                head = re.match(r"\s*\[\[?\s*([\w.\-\"]+)\s*\]\]?", line)
                if head:
                    current = head[1]
                    heads += bool(names) and line.lstrip().startswith("[[") and current == names[0]
                if index is not None and heads != index + 1:
                    continue
                if head and current == ".".join([*names[:depth], key]):
                    return line_number
                if current == place:
                    head_line = head_line or (line_number if head else 0)
                    if re.search(rf"(^|[{{,\s])\"?{re.escape(key)}\"?\s*=", line):
                        return line_number
        return head_line or 1


def _in_memory(arm: Arm) -> set[str]:
    """What of ``data`` and ``log`` does not lie on a device."""
    devices = arm.configuration.devices
    data = any(step.options.get(storage.OPTION) == storage.MEMORY for step in arm.stack)
    data = data if devices.data is None else devices.data.kind == "memory"
    log = data if devices.log is None else devices.log.kind == "memory"
    return {what for what, is_so in (("data", data), ("log", log)) if is_so}


def _boots(step: Step) -> bool:
    return issubclass(registry.find("environments", step.environment), BootingEnvironment)


def _devices(stack: Sequence[Step]) -> list[str]:
    """The block devices that are named in it."""
    return list(filter(storage.is_device, (str(step.options.get(storage.OPTION, "")) for step in stack)))


def _kernels_around(arm: Arm, depth: int) -> tuple[str, ...]:
    """What tells whose devices those of a step are: the other hosts on the way to it, and the arm's own name inside its guest; of
    this host nothing."""
    found = []
    for step in arm.stack[: depth + 1]:
        if issubclass(registry.find("environments", step.environment), RemoteEnvironment):
            options = {name: step.options[name] for name in step.options if name not in (storage.OPTION, "overwrite")}
            found.append(write_stack([Step(step.environment, options)]))
    return (*found, *([arm.name] if any(map(_boots, arm.stack[:depth])) else []))


SESSIONS_OF_UNIT = 4
"""Beside its terminals: those that ask and check."""


def with_sessions(arms: Sequence[Arm]) -> list[Arm]:
    """The arms, whose servers all admit as many sessions as the one that needs most."""
    needed = [
        len(arm.layout.in_server.units)
        * (int(arm.configuration.workload.options.get("terminals", 1)) + SESSIONS_OF_UNIT)
        for arm in arms
    ]
    sessions = max([Resources().sessions, *needed])
    return [_with_resources(arm, sessions=sessions) for arm in arms]


def _with_resources(arm: Arm, **changed: Any) -> Arm:
    configuration = arm.configuration
    return replace(arm, configuration=replace(configuration, resources=replace(configuration.resources, **changed)))


def with_copies(arms: Sequence[Arm], *, all_that_differ: bool) -> tuple[Arm, ...]:
    """With an A/A copy behind each arm that others are held against, and, ``all_that_differ``, each whose configuration is another
    than its baseline's: so the noise on both sides of every comparison is known."""
    by_name = {arm.name: arm for arm in arms}
    needed = {arm.against or arm.name for arm in arms}
    if all_that_differ:
        needed |= {
            arm.name for arm in arms if arm.against and arm.clock == "time" and not _like(arm, by_name[arm.against])
        }
    found: list[Arm] = []
    for arm in arms:
        found.append(arm)
        if arm.name in needed:
            found.append(replace(arm, name=arm.name + COPY_SUFFIX, copy_of=arm.name, against=None))
    return tuple(found)


def asked(workload: ComponentSpec) -> tuple[frozenset[str], bool]:
    """The queries, and whether transactions arrive by a schedule: then another figure of them is compared."""
    made = registry.find("workloads", workload.name)(workload.options)
    return frozenset(made.queries), bool(workload.options.get("rate"))


def _words(table: str) -> list[str]:
    """``arm.1.engine`` -> arm, engine."""
    return [word for word in table.split(".") if word and not word.isdigit()]


def _like(arm: Arm, other: Arm) -> bool:
    """Whether they differ in their environment alone."""
    return (arm.configuration, arm.layout) == (other.configuration, other.layout)


def _threaded_engines() -> list[str]:
    return [str(each.name) for each in registry.members("engines") if isinstance(each({}), ThreadedEngine)]


def _size(value: Any) -> int:
    return units.size_bytes(text_value(value))


def _split(value: Any) -> tuple[str, ...]:
    given = value.split("+") if isinstance(value, str) else value
    if not isinstance(given, list) or not all(each in SPLIT for each in given):
        raise ValueError(f"{value!r} is not a list of {', '.join(SPLIT)}")
    return tuple(name for name in SPLIT if name in given)


def _duration(value: Any) -> int:
    return units.duration_ns(text_value(value))


def _run_name(value: Any) -> str:
    return run_name(text_value(value))


def run_name(text: str) -> str:
    """The text, if it can be the name of a run; ValueError."""
    if not RUN_NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} cannot be a run's name: use at most 40 letters, digits and ._-, a letter or digit first"
        )
    return text


def _image_hint(given: str) -> str:
    """``given`` is no suite: most likely the name of an image in Docker."""
    name = given.rsplit("/", maxsplit=1)[-1].replace(":", "-") or "image"
    return (
        f"choose a suite: {servers_of_suites()}; or give a directory or an OCI archive, which Docker writes with: "
        f"docker save -o {name}.tar {given}"
    )


LONGEST_HINT = 40
"""Characters of a value that is proposed as it was written."""


def form_hint(said: str, written: Any, convert: Callable[[Any], Any]) -> str:
    """How to write a value: with the unit that it lacks, if that is all. ``said``: what stands before it."""
    number = str(written).strip()
    if not isinstance(written, int | float | str) or len(number) > LONGEST_HINT:
        return "see docs/SPEC.md for the form of each key"
    with suppress(ValueError, TypeError):
        convert(number)
        return f'{said}"{number}"'  # it is a text
    for unit in ("GiB", "m", "%") if re.fullmatch(r"[0-9]+(\.[0-9]+)?", number) else ():
        try:
            convert(f"{number}{unit}")
        except (ValueError, TypeError):
            continue
        return f"{said}{number}{unit}" if said.startswith("--") else f'{said}"{number}{unit}"'
    return "see docs/SPEC.md for the form of each key"
