"""The specification that a command line describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dbtoll.defaults import BASELINE
from dbtoll.errors import UsageError
from dbtoll.spec.stack import NESTED, parse_stack
from dbtoll.spec.variables import as_text

COMMAND_LINE = "command line"
"""Names the specification that `compare` writes: its user has seen no line of it."""


def comparison(
    stacks: Sequence[str],
    *,
    baseline: str | None,
    engine: str,
    engine_options: Mapping[str, Any],
    workload: str,
    workload_options: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Any]],
    top: Mapping[str, Any],
) -> str:
    """The TOML text of the experiment that `dbtoll compare` describes, to be parsed by `parse` like any other."""
    names = list(dict.fromkeys([*([baseline] if baseline else _default_baseline(stacks)), *stacks]))
    lines = [f"{key} = {_toml(value)}" for key, value in top.items() if value is not None]
    lines += [f"baseline = {_toml(names[0])}", ""]
    for table, head, options in (("engine", engine, engine_options), ("workload", workload, workload_options)):
        lines += [f"[{table}]", f"name = {_toml(head)}", *(f"{k} = {_toml(v)}" for k, v in options.items()), ""]
    for table, values in tables.items():
        given = {key: value for key, value in values.items() if value is not None}
        if given:
            lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in given.items()), ""]
    return "\n".join([*lines, *map(arm, names)])


def arm(stack: str) -> str:
    """The TOML text of an arm that is named as its stack."""
    return f"[[arm]]\nname = {_toml(stack)}\nstack = {_toml(stack)}\n"


def _default_baseline(stacks: Sequence[str]) -> list[str]:
    """The stack with its last step replaced by ``native`` (DESIGN §1.1), if all stacks share what lies before it. UsageError."""
    bases = {NESTED.join([*stack.split(NESTED)[:-1], BASELINE]) for stack in stacks}
    if len(bases) > 1 or any("://" in stack for stack in stacks):
        for stack in stacks:
            parse_stack(stack)  # what is no stack at all is the better reason
    if len(bases) > 1:
        raise UsageError(
            f"these stacks have different baselines: {', '.join(sorted(bases))}", "name one of the arms with --baseline"
        )
    return list(bases) or [BASELINE]


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
