"""The short text of a stack of environments, both ways."""

from __future__ import annotations

import itertools
import math
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


LEVEL = "|"
"""Between the values of an option that are arms of their own."""

LEVELS_MAX = 64
"""Arms that one stack may stand for: all of them stand at the same time."""


def levels(text: str) -> list[tuple[str, str]]:
    """``"docker:storage=bind|memory"`` -> the stacks that it stands for, each with the words that tell it from the others.

    ``[("docker:storage=bind", "storage=bind"), ("docker:storage=memory", "storage=memory")]``; of several such options every
    combination, the last varying fastest; a stack without any is itself, told by nothing. UsageError for more than `LEVELS_MAX`.
    """
    steps = [step.partition(":") for step in text.split(NESTED)]
    words = [[_levels_of(word) for word in rest.split(",")] if rest else [] for _, _, rest in steps]
    alternatives = [options for step in words for options in step]
    demand_few(alternatives)
    found = []
    for chosen in itertools.product(*alternatives):
        left = iter(chosen)
        parts = [(name, colon, [next(left) for _ in step]) for (name, colon, _), step in zip(steps, words, strict=True)]
        told = [word for word, options in zip(chosen, alternatives, strict=True) if len(options) > 1]
        found.append((NESTED.join(name + colon + ",".join(given) for name, colon, given in parts), ",".join(told)))
    return found


def _levels_of(word: str) -> list[str]:
    key, equals, value = word.partition("=") if "=" in word.partition(LEVEL)[0] else ("", "", word)
    return [f"{key}{equals}{each.strip()}" for each in value.split(LEVEL)]


def demand_few(alternatives: Sequence[Sequence[str]]) -> None:
    """UsageError if they combine to more than `LEVELS_MAX`."""
    if (count := math.prod(map(len, alternatives))) > LEVELS_MAX:
        raise UsageError(f"that stands for {count} arms", f"at most {LEVELS_MAX}, and few are measured better")


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
