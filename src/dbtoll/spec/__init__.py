"""TOML to an experiment; an unknown key or an impossible cell is an error that names file and line.

Pure but for reading the file; what options exist is asked of the registry. `compare` writes a specification too (`command_line`)
and takes the same way, so there is one way into a run.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dbtoll import defaults, registry, units
from dbtoll.errors import DbtollError, SpecError, UsageError
from dbtoll.interfaces.engine import ListeningEngine
from dbtoll.interfaces.environment import NetworkedEnvironment
from dbtoll.model.experiment import (
    PARAMETER_SETS,
    Arm,
    ComponentSpec,
    Experiment,
    Precision,
    Resources,
    Step,
    VisitTiming,
)
from dbtoll.model.options import Option
from dbtoll.spec import variables as spec_variables
from dbtoll.spec.command_line import COMMAND_LINE
from dbtoll.spec.factors import LEDGER_PROBES, LEDGER_PROBES_COLD
from dbtoll.spec.options import OptionError, flag, given_values, integer, option_values, text_value
from dbtoll.spec.stack import NESTED, parse_stack, write_stack

INSIDE = 'placement = ["inside"] under [factors]'
"""What helps where nobody outside can reach the server."""

COPY_SUFFIX = " (A/A)"

NAME_MAX = 200
"""Characters of an arm's name: what `compare` is asked for is the name too, with the paths in it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+:,=/()-]*")

_TOP = {
    "question", "expected", "running_time", "paper", "role", "seed", "parameter_sets", "baseline", "max_overhead", "exclusive",
    "explain", "engine", "workload", "factors", "resources", "precision", "visit", "image", "arm",
}  # fmt: skip


def read(path: Path, *, exclusive: bool = False, variables: Mapping[str, Any] | None = None) -> tuple[Experiment, str]:
    """The experiment in a TOML file and the file's text. SpecError names file and line.

    ``exclusive``: its user said beside the file that this machine is theirs for the run. ``variables``: values of those that the
    file declares; texts are converted.
    """
    text = _text(path)
    return parse(text, str(path), exclusive=exclusive, variables=variables), text


def parse(text: str, file: str, *, exclusive: bool = False, variables: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment in a TOML text; ``file`` names it in errors. The rest as `read`."""
    reader = _Reader(_document(text, file), text, file)
    values = reader.put_in(variables or {})
    if exclusive:
        reader.document["exclusive"] = True
    return replace(reader.experiment(), variables=values)


def variables_of(path: Path) -> dict[str, Option]:
    """The variables that a specification declares, by name. Raises SpecError."""
    text = _text(path)
    return _Reader(_document(text, str(path)), text, str(path)).variables()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}", "give the path of a TOML specification") from None


def _document(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"at line (\d+)", str(error))
        line = where[1] if where else str(text.count("\n") + 1)
        raise SpecError(f"{file}:{line}: not TOML: {error}", "see docs/SPEC.md for the form") from None


class _Reader:
    """One document on its way to an Experiment; knows where each key stands."""

    def __init__(self, document: dict[str, Any], text: str, file: str) -> None:
        self.document, self.lines, self.file = document, text.splitlines(), file

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
            self.document = spec_variables.resolved(self.document, values)
        except spec_variables.VariableError as error:
            raise self.error(error.table, error.key, error.message, error.hint) from None
        return values

    def experiment(self) -> Experiment:
        self.known(self.document, _TOP, "")
        arms = self.arms()
        baseline = self.document.get("baseline", arms[0].name)
        if baseline not in [arm.name for arm in arms]:
            raise self.error(
                "", "baseline", f"baseline {baseline!r} is not one of the arms", "name one of the [[arm]]s"
            )
        if any(arm.name == baseline and arm.clock == "instructions" for arm in arms):
            raise self.error("", "baseline", f"{baseline!r} counts instructions and tells no time", "name another arm")
        workload = self.choice("workload", "workloads", defaults.WORKLOAD)
        factors = self.factors(registry.find("workloads", workload.name).factors)
        engine = self.choice("engine", "engines", defaults.ENGINE)
        self.check_asked_of(workload, engine)
        if "outside" in factors.get("placement", ()):
            self.check_listens(engine)
            arms = [self.reachable(arm, index) for index, arm in enumerate(arms)]
        cold = LEDGER_PROBES_COLD if "cold" in factors.get("cache", ()) else ()
        explain = (*LEDGER_PROBES, *cold) if self.take("", "explain", flag, False) else ()
        arms.sort(key=lambda arm: arm.name != baseline)
        arms.insert(1, replace(arms[0], name=baseline + COPY_SUFFIX, copy_of=baseline))
        experiment = Experiment(
            question=self.take("", "question", text_value, "How much does each arm lose?"),
            expected=self.take("", "expected", text_value, ""),
            paper=self.take("", "paper", text_value, ""),
            role=self.take("", "role", text_value, ""),
            engine=engine,
            workload=workload,
            arms=tuple(arms),
            baseline=baseline,
            factors=factors,
            resources=self.resources(),
            precision=self.precision(),
            visit_timing=self.visit_timing(),
            image=self.image(),
            seed=self.take("", "seed", integer, 1),
            parameter_sets=self.take("", "parameter_sets", integer, PARAMETER_SETS),
            max_overhead=self.take("", "max_overhead", lambda v: units.fraction(text_value(v)), None),
            exclusive=self.take("", "exclusive", flag, False),
            explain=explain,
        )
        if not -(2**63) <= experiment.seed < 2**63:
            raise self.error("", "seed", "a seed has 64 bits", "seed = 1")
        self.check_cells(experiment)
        return experiment

    def arms(self) -> list[Arm]:
        tables = self.document.get("arm")
        if not isinstance(tables, list) or not tables:
            raise self.error("", "arm", "no [[arm]] is given", 'add [[arm]] with name = "docker" and stack = "docker"')
        arms: list[Arm] = []
        for index, table in enumerate(tables):
            where = f"arm.{index}"
            if not isinstance(table, dict):
                raise self.error("", "arm", "an arm is a table", "write [[arm]]")
            self.known(table, {"name", "stack", "options"}, where)
            stack = self.stack(table, where)
            text = write_stack(stack)
            name = self.take(where, "name", text_value, text)
            if not _NAME.fullmatch(name) or len(name) > NAME_MAX or name.endswith(COPY_SUFFIX):
                raise self.error(
                    where, "name", f"{name!r} cannot be an arm's name",
                    f"use at most {NAME_MAX} letters, digits and ._+:,=/ -",
                )  # fmt: skip
            if name in [arm.name for arm in arms]:
                raise self.error(where, "name", f"two arms are named {name!r}", "give each a name of its own")
            counts = stack[-1].options.get("clock") == "instructions"
            arms.append(Arm(name, stack, text=text, clock="instructions" if counts else "time"))
        return arms

    def reachable(self, arm: Arm, index: int) -> Arm:
        """The arm with a network by which the machine around its last environment reaches it."""
        *around, step = arm.stack
        environment = registry.find("environments", step.environment)()
        where = f"arm.{index}"
        if not isinstance(environment, NetworkedEnvironment):
            raise self.error(where, "stack", f"{step.environment} cannot be reached from outside", INSIDE)
        try:
            stack = (*around, Step(step.environment, environment.networked(step.options)))
        except UsageError as error:
            raise self.error(where, "stack", f"{arm.name}: {error.message}", f"{error.hint}, or {INSIDE}") from None
        return replace(arm, stack=stack, text=write_stack(stack))

    def check_asked_of(self, workload: ComponentSpec, engine: ComponentSpec) -> None:
        """A workload that needs what the engine has not."""
        requires = registry.find("workloads", workload.name).requires
        if lacking := requires - registry.find("engines", engine.name).offers:
            able = [str(each.name) for each in registry.members("engines") if requires <= each.offers]
            raise self.error(
                "engine",
                "name",
                f"{workload.name} cannot be asked of {engine.name}, which does not offer: {', '.join(sorted(lacking))}",
                f"engines that do: {', '.join(able)}" if able else "no engine here does",
            )

    def check_listens(self, engine: ComponentSpec) -> None:
        """A server that nobody outside can reach."""
        if not isinstance(registry.find("engines", engine.name)(engine.options), ListeningEngine):
            raise self.error(
                "factors", "placement", f"a server of {engine.name} cannot be reached from outside", INSIDE
            )

    def stack(self, table: dict[str, Any], where: str) -> tuple[Step, ...]:
        given = table.get("stack")
        options = table.get("options", {})
        try:
            if isinstance(given, list) and all(isinstance(part, str) for part in given):
                given = NESTED.join(given)
            steps = parse_stack(text_value(given))
            if options:
                environment = registry.find("environments", steps[-1].environment)
                more = given_values(options, environment.options, f"environment {steps[-1].environment!r}")
                steps = (*steps[:-1], Step(steps[-1].environment, {**steps[-1].options, **more}))
        except OptionError as error:
            raise self.error(
                f"{where}.options" if error.key in options else where, error.key, error.message, error.hint
            ) from None
        except UsageError as error:
            raise self.error(where, "stack", error.message, error.hint) from None
        except TypeError:
            raise self.error(where, "stack", "an arm needs its stack", 'for example stack = "docker"') from None
        return steps

    def choice(self, table: str, family: str, default: str) -> ComponentSpec:
        given = dict(self.table(table))
        name = given.pop("name", default)
        try:
            found = registry.find(family, text_value(name))
            values = option_values(given, found.options, f"{table} {name!r}")
            paths = [key for key, option in found.options.items() if option.kind == "path" and values[key]]
            values |= {key: str(self.beside(values[key])) for key in paths}
            found(values)  # they check their options against each other when they are made
            return ComponentSpec(name, values)
        except OptionError as error:
            raise self.error(table, error.key, error.message, error.hint) from None
        except TypeError as error:
            raise self.error(table, "name", str(error), "write its name as a text") from None
        except DbtollError as error:
            raise self.error(table, "name", error.message, error.hint) from None

    def factors(self, known: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        given = self.table("factors")
        self.known(given, set(known), "factors")
        chosen = {}
        for name, levels in known.items():
            value = given.get(name, [levels[0]])
            value = [value] if isinstance(value, str) else value
            if (
                not isinstance(value, list)
                or not value
                or not set(value) <= set(levels)
                or len(set(value)) < len(value)
            ):
                raise self.error(
                    "factors", name, f"{value!r} are not levels of {name}", f"choose from {', '.join(levels)}"
                )
            chosen[name] = tuple(level for level in levels if level in value)
        return chosen

    def resources(self) -> Resources:
        self.known(self.table("resources"), {"cpus", "memory", "shm", "open_files"}, "resources")
        default = Resources()
        made = Resources(
            cpus=self.take("resources", "cpus", integer, default.cpus),
            memory_bytes=self.take("resources", "memory", _size, default.memory_bytes),
            shm_bytes=self.take("resources", "shm", _size, default.shm_bytes),
            open_files=self.take("resources", "open_files", integer, default.open_files),
        )
        if made.cpus < 1:
            raise self.error("resources", "cpus", "an arm needs at least one CPU", "cpus = 1")
        if made.memory_bytes < 256 << 20:
            raise self.error("resources", "memory", "an arm needs at least 256 MiB", 'memory = "4 GiB"')
        if made.open_files < 1:
            raise self.error("resources", "open_files", "a server opens files", "open_files = 65536")
        return made

    def precision(self) -> Precision:
        keys = {"budget", "target", "margin", "confidence", "rounds_min", "rounds_max"}
        self.known(self.table("precision"), keys, "precision")
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
        )
        if not 0.5 <= made.confidence < 1:
            raise self.error(
                "precision", "confidence", "the confidence lies between 50% and 100%", 'confidence = "95%"'
            )
        if not 0 < made.margin < 1:
            raise self.error("precision", "margin", "the margin lies between 0% and 100%", 'margin = "2%"')
        if not 2 <= made.rounds_min <= made.rounds_max:
            raise self.error(
                "precision", "rounds_min", "rounds_min is at least 2 and at most rounds_max", "rounds_min = 5"
            )
        return made

    def visit_timing(self) -> VisitTiming:
        self.known(self.table("visit"), {"lead_in", "measurement_time", "statement_timeout"}, "visit")
        default = VisitTiming()
        return VisitTiming(
            lead_in_ns=self.take("visit", "lead_in", _duration, default.lead_in_ns),
            measurement_time_ns=self.take("visit", "measurement_time", _duration, default.measurement_time_ns),
            statement_timeout_ns=self.take("visit", "statement_timeout", _duration, default.statement_timeout_ns),
        )

    def image(self) -> dict[str, Any]:
        self.known(self.table("image"), {"suite", "path"}, "image")
        given = {key: self.take("image", key, text_value, "") for key in self.table("image")}
        if len(given) == 2:
            raise self.error("image", "path", "an image has a suite or a path, not both", "remove one of them")
        return {"path": str(self.beside(given["path"]))} if "path" in given else given or {"suite": "bookworm"}

    def check_cells(self, experiment: Experiment) -> None:
        """Combinations that cannot exist."""
        factors = experiment.factors
        if "per_statement" in factors.get("connection", ()) and "prepared" in factors["query_protocol"]:
            raise self.error(
                "factors", "query_protocol", "a connection per statement cannot use a statement prepared on it before",
                "use query_protocol = [\"extended\"] there, or connection = [\"persistent\"]",
            )  # fmt: skip
        if "cold" in factors.get("cache", ()) and not experiment.exclusive:
            raise self.error(
                "factors", "cache", "cold drops the page cache of the whole host",
                "say that this machine is yours for the run: exclusive = true, or --exclusive",
            )  # fmt: skip
        if not 1 <= experiment.parameter_sets <= 1000:
            raise self.error("", "parameter_sets", "between 1 and 1000 sets of parameters", "parameter_sets = 8")

    def beside(self, path: str) -> Path:
        """A path of the specification: relative ones begin where its file lies."""
        return Path(self.file).absolute().parent / path

    # --- reading with the place of each key -----------------------------------------------------------------------

    def table(self, name: str) -> dict[str, Any]:
        value = self.document.get(name, {})
        if not isinstance(value, dict):
            raise self.error("", name, f"{name} is a table", f"write [{name}] and its keys below")
        return value

    def take(self, table: str, key: str, convert: Callable[[Any], Any], default: Any) -> Any:
        holder: Any = self.document
        for part in filter(None, table.split(".")):
            holder = holder[int(part)] if part.isdigit() else holder.get(part, {})
        if key not in holder:
            return default
        try:
            return convert(holder[key])
        except (ValueError, TypeError) as error:
            raise self.error(table, key, f"{key}: {error}", "see docs/SPEC.md for the form of each key") from None

    def known(self, table: Mapping[str, Any], keys: set[str], where: str) -> None:
        for key in table:
            if key not in keys:
                place = f"[{where.split('.', maxsplit=1)[0]}]" if where else "the specification"
                raise self.error(
                    where, key, f"unknown key {key!r} in {place}", f"known keys are: {', '.join(sorted(keys))}"
                )

    def error(self, table: str, key: str, message: str, hint: str) -> DbtollError:
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
            for number, line in enumerate(self.lines, 1):
                head = re.match(r"\s*\[\[?\s*([\w.\-\"]+)\s*\]\]?", line)
                if head:
                    current = head[1]
                    heads += bool(names) and line.lstrip().startswith("[[") and current == names[0]
                if index is not None and heads != index + 1:
                    continue
                if head and current == ".".join([*names[:depth], key]):
                    return number
                if current == place:
                    head_line = head_line or (number if head else 0)
                    if re.search(rf"(^|[{{,\s])\"?{re.escape(key)}\"?\s*=", line):
                        return number
        return head_line or 1


def _size(value: Any) -> int:
    return units.size_bytes(text_value(value))


def _duration(value: Any) -> int:
    return units.duration_ns(text_value(value))
