"""Values of options: what was given, converted and checked."""

from __future__ import annotations

import difflib
import operator
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from dbtoll import units
from dbtoll.errors import UsageError
from dbtoll.model.options import Option
from dbtoll.spec.suites import servers_of_suites


def option_values(given: Mapping[str, Any], options: Mapping[str, Option], owner: str) -> dict[str, Any]:
    """All options of ``owner`` with defaults filled in. ValueError((key, message)) for a wrong one."""
    values = {name: option.default for name, option in options.items()}
    for key, value in given.items():
        if key not in options:
            raise OptionError(key, f"{owner} has no option {key!r}", _hint_of(key, options))
        try:
            values[key] = converted(value, options[key])
        except (ValueError, TypeError) as error:
            raise OptionError(key, f"option {key!r} of {owner}: {error}", options[key].help) from None
    return values


def _hint_of(key: str, options: Mapping[str, Option]) -> str:
    """What says what ``key`` may have been meant to say."""
    if key in ("image", "version"):
        return (
            'an arm has it, not its environment: --arm "new: docker, engine=postgres:17", or [arm.engine] and [arm.image] in a '
            f"specification; all arms: --image or [image]; there is: {servers_of_suites()}"
        )
    meant = "".join(f"did you mean {each}? " for each in difflib.get_close_matches(key, options, 1))
    return f"{meant}its options are: {', '.join(sorted(options)) or 'none'}"


def given_values(given: Mapping[str, Any], options: Mapping[str, Option], owner: str) -> dict[str, Any]:
    """Only those options that were given; an environment fills in its defaults when it is opened."""
    values = option_values(given, options, owner)
    return {name: values[name] for name in given}


class OptionError(UsageError, ValueError):
    """A wrong option: ``key`` is the one, for finding its line."""

    def __init__(self, key: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.key = key


def converted(value: Any, option: Option) -> Any:
    """``value`` as the option's kind has it; None stays None. ValueError or TypeError for another kind."""
    if value is None:
        return None
    is_path = option.or_path and isinstance(value, str) and value.startswith("/")
    if option.choices and value not in option.choices and not is_path:
        path = ", and no path such as /dev/sdb" if option.or_path else ""
        raise ValueError(f"{value!r} is not one of {', '.join(option.choices)}{path}")
    kinds: dict[str, Callable[[Any], Any]] = {
        "text": text_value, "path": text_value, "integer": integer, "number": number, "flag": flag, "table": _table, "list": _list,
        "size": lambda v: integer(v) if isinstance(v, int) else units.size_bytes(text_value(v)),
        "duration": lambda v: units.duration_ns(text_value(v)),
    }  # fmt: skip
    given = kinds[option.kind](value)
    for bound, is_beyond, how in (
        (option.least, operator.lt, "less"),
        (option.most, operator.gt, "more"),
    ):
        if bound is not None and is_beyond(given, bound):
            raise ValueError(f"{_shown(given, option)} is {how} than {_shown(bound, option)}")
    return given


def _shown(value: float, option: Option) -> str:
    texts: dict[str, Callable[[int], str]] = {"size": units.size_text, "duration": units.duration_text}
    return texts[option.kind](int(value)) if option.kind in texts else f"{value:g}"


def text_value(value: Any) -> str:
    """A text. TypeError otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"{reprlib.repr(value)} is not a text")
    return value


def integer(value: Any) -> int:
    """A whole number; from the command line it comes as text."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{reprlib.repr(value)} is not a whole number")
    if not -units.MOST - 1 <= value <= units.MOST:
        raise ValueError("that is more than there can be")
    return value


def number(value: Any) -> float:
    """A finite one; from the command line it comes as text."""
    if isinstance(value, str):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{reprlib.repr(value)} is not a number")
    if not abs(value) < 1e18:
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def flag(value: Any) -> bool:
    """True or false; from the command line it comes as text. TypeError otherwise."""
    if isinstance(value, str) and value in ("true", "false", "yes", "no"):
        return value in ("true", "yes")
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a table")
    return value


def _list(value: Any) -> Any:
    if isinstance(value, str):
        return value if value == "all" else value.split("+")
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value
