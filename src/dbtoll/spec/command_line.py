"""The specification that a command line describes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dbtoll import registry
from dbtoll.defaults import BASELINE
from dbtoll.errors import DbtollError, UsageError
from dbtoll.model import storage
from dbtoll.model.devices import KEYS as DEVICE_KEYS
from dbtoll.model.tenancy import arm_name
from dbtoll.spec.devices import levels as device_levels
from dbtoll.spec.devices import name_with
from dbtoll.spec.stack import NESTED, levels, parse_stack
from dbtoll.spec.variables import as_text

COMMAND_LINE = "command line"
"""Names the specification that `compare` writes: its user has seen no line of it."""


LAYOUT_KEYS = ("machines", "servers", "databases", "schemas", "keys")

DESIGN_KEYS = ("design", "tenants")

KEYS = (
    *("engine", "image", "settings", "indexes", "cpus", "memory", "against"),
    *LAYOUT_KEYS,
    *DESIGN_KEYS,
    *DEVICE_KEYS,
)
"""What the short form of an arm may say beside its stack: the options of `compare` that hold for all arms, what the arm is held
against, its layout, its design, and the devices that its data and its log lie on."""

OPTIONS = {"engine": "engine", "settings": "engine.settings", "workload": "workload", "resources": "resources"}
"""``settings.jit=on``: what stands before the point -> the table of the arm."""

ARM_FORM = "NAME: ENV, KEY=VALUE, …"

_NAMED = re.compile(r"([^:,]+):\s+(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GivenArm:
    """An arm of a command line. ``tables``: its own, by name; ``layout``: how many there are at each level of it, or its
    design; ``devices``: what it is given of `model.devices.KEYS`."""

    name: str
    stack: str
    against: str | None = None
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layout: Mapping[str, int | str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)


def given_arms(text: str) -> list[GivenArm]:
    """As `given_arm`: one, or one for each device of several (``data_device=hdd7200|hssd``)."""
    arm = given_arm(text)
    found = device_levels(arm.devices)
    if len(found) == 1:
        return [arm]
    is_named = _NAMED.fullmatch(text.strip()) is not None
    plain = given_arm(text).name if is_named else _without_devices(text)
    return [
        replace(arm, name=f"{plain} {told}" if is_named else name_with(plain, devices), devices=devices)
        for devices, told in found
    ]


def _without_devices(text: str) -> str:
    """The name of an arm that was given none."""
    kept = [word for word in text.strip().split(",") if word.partition("=")[0].strip() not in DEVICE_KEYS]
    return given_arm(",".join(kept)).name


def given_arm(text: str) -> GivenArm:
    """Of ``old: native``, ``new: docker:runsc,network=host, engine=postgres:17, settings.jit=on`` or a stack alone. UsageError.

    What stands before a colon and a blank is the name. A word that begins with one of KEYS, or of OPTIONS and a point, is the
    arm's; all others are the stack's.
    """
    named = _NAMED.fullmatch(text.strip())
    name, rest = (named[1].strip(), named[2]) if named else (text.strip(), text.strip())
    stack: list[str] = []
    tables: dict[str, dict[str, Any]] = {}
    against: str | None = None
    layout: dict[str, int | str] = {}
    devices: dict[str, str] = {}
    for word in rest.split(","):
        key, equals, value = (part.strip() for part in word.partition("="))
        if equals and stack and key == "against":
            against = value
        elif equals and stack and key in (*LAYOUT_KEYS, *DESIGN_KEYS):
            layout[key] = _number(value)
        elif equals and stack and key in DEVICE_KEYS:
            devices[key] = value
        elif equals and stack and (key in KEYS or (key.partition(".")[0] in OPTIONS and "." in key)):
            for table, values in _of_arm(key, value).items():
                tables.setdefault(table, {}).update(values)
        elif stack and word.startswith(" "):
            raise UsageError(
                f"{text!r}: an arm has no {key!r}",
                f"there is: {', '.join(KEYS)}, {', '.join(f'{each}.NAME' for each in OPTIONS)}; options of the environment "
                "follow it with a comma and no blank",
            )
        else:
            stack.append(word)
    stack_text = ",".join(stack).strip()
    if not named and "design" in layout:
        shape = arm_name(stack_text, str(layout["design"]), layout.get("tenants", 1))
        name = name_with(shape, devices)
    return GivenArm(name, stack_text, against, tables, layout, devices)


def _of_arm(key: str, value: str) -> dict[str, dict[str, Any]]:
    """Table of an arm -> its keys."""
    before, point, option = key.partition(".")
    if point:
        return {OPTIONS[before]: {option: value}}
    match key:
        case "engine":
            return {"engine": engine_table(value)}
        case "image":
            return {"image": image_table(value)}
        case "settings":
            return {"engine": {"settings_file": str(Path(value).absolute())}}
        case "indexes":
            is_file = "/" in value or value.endswith(".sql")
            return {"workload": {"indexes_file": str(Path(value).absolute())} if is_file else {"indexes": value}}
    return {"resources": {key: _number(value)}}


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def engine_table(text: str) -> dict[str, str]:
    """``postgres:17`` -> its name and version."""
    name, colon, version = text.partition(":")
    return {"name": name} | ({"version": version} if colon else {})


def image_table(text: str) -> dict[str, str]:
    """A suite of Debian, or a directory or an archive of the user's own."""
    reference = text.partition("://")[2]  # docker://NAME: nothing is fetched from a registry
    is_path = not reference and ("/" in text or Path(text).exists())
    return {"path": str(Path(text).absolute())} if is_path else {"suite": reference or text}


def comparison(
    stacks: Sequence[str],
    *,
    arms: Sequence[str] = (),
    baseline: str | None,
    engine: str,
    engine_options: Mapping[str, Any],
    workload: str,
    workload_options: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Any]],
    top: Mapping[str, Any],
) -> str:
    """The TOML text of the experiment that `dbtoll compare` describes, to be parsed by `parse` like any other.

    ``arms``: in the short form of `given_arm`; without ``stacks`` the first of them is the baseline, unless one is named.
    """
    stacks = [text for stack in stacks for text, _ in levels(stack)]
    given_own = [each for text in arms for each in given_arms(text)]
    own = {each.name: each for each in given_own}
    if len(own) < len(given_own):
        raise UsageError("two arms have one name", f"write each as {ARM_FORM}, with a name of its own")
    first = [baseline] if baseline else _default_baseline(stacks) if stacks or not own else [next(iter(own))]
    made = {name: own.get(name) or GivenArm(name, name) for name in dict.fromkeys([*first, *stacks, *own])}
    lines = [f"{key} = {_toml(value)}" for key, value in top.items() if value is not None]
    lines += [f"baseline = {_toml(first[0])}", ""]
    of_all = {"engine": {**engine_table(engine), **engine_options}, "workload": {"name": workload, **workload_options}}
    for table, values in (*of_all.items(), *tables.items()):
        given = {key: value for key, value in values.items() if value is not None}
        if given:
            lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in given.items()), ""]
    return "\n".join([*lines, *map(arm, made.values())])


def arm(given: GivenArm) -> str:
    """The TOML text of an arm."""
    against = [f"against = {_toml(given.against)}"] if given.against else []
    lines = ["[[arm]]", f"name = {_toml(given.name)}", f"stack = {_toml(given.stack)}", *against]
    lines += [f"{key} = {_toml(value)}" for key, value in {**given.layout, **given.devices}.items()]
    for table, values in sorted(given.tables.items()):
        lines += [f"[arm.{table}]", *(f"{_toml(key)} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _default_baseline(stacks: Sequence[str]) -> list[str]:
    """The stack with its last step replaced by ``native`` (DESIGN §1.1), if all stacks share what lies before it. UsageError.

    With the storage of all stacks, where it is one that they share and ``native`` has: else two changes would be measured as one.
    """
    bases = {NESTED.join([*stack.split(NESTED)[:-1], BASELINE]) for stack in stacks}
    shared = {_storage(stack) for stack in stacks}
    if len(shared) == 1 and shared <= {storage.MEMORY}:
        bases = {f"{base}:{storage.OPTION}={storage.MEMORY}" for base in bases}
    if len(bases) > 1 or any("://" in stack for stack in stacks):
        for stack in stacks:
            parse_stack(stack)  # what is no stack at all is the better reason
    if len(bases) > 1:
        raise UsageError(
            f"these stacks have different baselines: {', '.join(sorted(bases))}", "name one of the arms with --baseline"
        )
    return list(bases) or [BASELINE]


def _storage(stack: str) -> str | None:
    """Of its last environment; None where it has none, or the stack is none (which is told when it is read)."""
    with suppress(DbtollError, ValueError):
        step = parse_stack(stack)[-1]
        return storage.chosen(step.options, registry.find("environments", step.environment).options)
    return None


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case dict():
            return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    escaped = "".join(
        f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else "\\" + c if c in '"\\' else c
        for c in as_text(str(value))
    )
    return f'"{escaped}"'
