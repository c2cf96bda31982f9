"""The short text of a stack of environments, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dbtoll import registry, units
from dbtoll.errors import UsageError
from dbtoll.model.experiment import (
    Step,
)
from dbtoll.model.options import Option
from dbtoll.spec.options import given_values

NESTED = "//"
"""Between the environments of a stack; a single stroke belongs to paths."""


def parse_stack(text: str) -> tuple[Step, ...]:
    """``"docker:runsc,network=bridge"`` or, nested, ``"qemu:lab//docker"`` -> steps, options validated.

    Raises UsageError for a form or a name that does not exist, ValueError for a wrong option.
    """
    scheme, is_url, _ = text.partition("://")
    if is_url and scheme not in registry.names("environments"):
        raise UsageError(
            f"{text!r} is no environment",
            "dbtoll starts a server of its own in each arm and measures no server that runs already; name environments, "
            f"such as docker; there is: {', '.join(registry.names('environments'))}",
        )
    return tuple(_step(part) for part in text.split(NESTED))


def write_stack(stack: Sequence[Step]) -> str:
    """The short text of a stack, with the options that were given; `parse_stack` reads it back.

    A table, or a text with a comma in it, has no short form and is shown as it is.
    """
    return NESTED.join(_written_step(step) for step in stack)


def _written_step(step: Step) -> str:
    environment = registry.find("environments", step.environment)
    shown = {name: _written(value, environment.options[name]) for name, value in sorted(step.options.items())}
    first = shown.get(environment.primary, "=")
    if "=" not in first:
        del shown[environment.primary]
    words = [first] * ("=" not in first) + [f"{name}={text}" for name, text in shown.items()]
    return step.environment + (":" + ",".join(words) if words else "")


def _written(value: Any, option: Option) -> str:
    """As a user would write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return "+".join(str(item) for item in value)
        case float():
            return repr(value).removesuffix(".0")
        case int() if option.kind == "duration":
            return units.duration_text(value)
        case int() if option.kind == "size":
            return units.size_text(value)
    return str(value)


def _step(text: str) -> Step:
    name, given = parse_words(text, "environments")
    return Step(name, given_values(given, registry.find("environments", name).options, f"environment {name!r}"))


def parse_words(text: str, family: str) -> tuple[str, dict[str, str]]:
    """``NAME:WORD,OPTION=VALUE,…`` -> the name, and the values as text; the word without ``=`` is the primary option's.

    UsageError for a form or a name that does not exist; the values are not looked at.
    """
    name, _, rest = text.partition(":")
    named = registry.find(family, name.strip())
    given: dict[str, str] = {}
    for index, word in enumerate(filter(None, rest.split(","))):
        key, equals, value = word.partition("=")
        if equals:
            given[key.strip()] = value.strip()
        elif index == 0 and named.primary:
            given[named.primary] = word.strip()
        else:
            raise UsageError(f"{text!r}: {word!r} is not an option", "write NAME:OPTION=VALUE,OPTION=VALUE")
    return name.strip(), given
