"""Variables of a specification: declared in it, given beside it, put into it before anything else is read.

``[variables]`` has a table for each: its ``kind``, a ``default`` unless one must be given, and one line of ``help``. A text of the
specification that is a dollar sign and a name, and nothing else, stands for the variable's value; ``$$name`` is the text ``$name``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dbtoll.errors import UsageError
from dbtoll.model.options import Option
from dbtoll.spec.options import converted

TABLE = "variables"

KINDS = ("text", "integer", "number", "flag")
"""A size, a duration or a share is a text, which the key that it is put at reads."""

_USE = re.compile(r"\$(\$*[A-Za-z_][A-Za-z0-9_]*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class VariableError(UsageError):
    """Something is wrong with a variable; ``key`` of ``table`` is where it stands, for finding its line."""

    def __init__(self, table: str, key: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.table, self.key = table, key


def declared(document: Mapping[str, Any]) -> dict[str, Option]:
    """The variables of a specification, by name; ``default`` None: one has to be given. Raises VariableError."""
    tables = document.get(TABLE, {})
    if not isinstance(tables, dict):
        raise VariableError("", TABLE, f"{TABLE} is a table", f"write [{TABLE}] and its variables below")
    return {name: _declared(name, table) for name, table in tables.items()}


def _declared(name: str, table: Any) -> Option:
    def wrong(message: str, hint: str) -> VariableError:
        return VariableError(TABLE, name, f"variable {name!r}: {message}", hint)

    example = f'{name} = {{ kind = "number", default = 0.1, help = "Scale factor of TPC-H." }}'
    if not _NAME.fullmatch(name):
        raise wrong("this is no name of a variable", "use letters, digits and _")
    if not isinstance(table, dict):
        raise wrong("it is declared by a table", f"write {example}")
    for key in table:
        if key not in ("kind", "default", "help"):
            raise wrong(f"unknown key {key!r}", "known keys are: default, help, kind")
    if table.get("kind") not in KINDS:
        raise wrong(f"{table.get('kind')!r} is no kind of a variable", f"kind is one of {', '.join(KINDS)}")
    if not isinstance(table.get("help"), str):
        raise wrong("nothing says what it is for", f"write {example}")
    option = Option(table["kind"], None, table["help"])
    try:
        return Option(option.kind, converted(table.get("default"), option), option.help)
    except (ValueError, TypeError) as error:
        raise wrong(f"default: {error}", f"write {example}") from None


def values(variables: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of every variable: what is ``given`` (a text from the command line is converted), else its default. Raises VariableError."""
    for name in given:
        if name not in variables:
            known = f"its variables are: {', '.join(variables)}" if variables else "it has no [variables]"
            raise VariableError("", TABLE, f"there is no variable {name!r}", known)
    found = {}
    for name, option in variables.items():
        try:
            value = converted(given[name], option) if name in given else option.default
        except (ValueError, TypeError) as error:
            raise VariableError(TABLE, name, f"variable {name!r}: {error}", option.help) from None
        if value is None:
            raise VariableError(TABLE, name, f"variable {name!r} has no value", f"give it: --set {name}=VALUE")
        found[name] = value
    return found


def resolved(document: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with ``values`` in their places, and without its ``[variables]``.

    VariableError for a variable that is not declared, or declared and used nowhere.
    """
    body = {key: value for key, value in document.items() if key != TABLE}
    used: set[str] = set()

    def put(value: Any, table: str, key: str) -> Any:
        match value:
            case dict():
                inner = f"{table}.{key}".strip(".")
                return {name: put(each, inner, name) for name, each in value.items()}
            case list():
                # Tables in a list have heads of their own, [[arm]]; other things stand at the list's key.
                return [
                    put(each, f"{table}.{key}".strip("."), str(number))
                    if isinstance(each, dict)
                    else put(each, table, key)
                    for number, each in enumerate(value)
                ]
            case str() if match := _USE.fullmatch(value):
                name = match[1]
                if name.startswith("$"):
                    return name
                if name not in values:
                    known = f"the variables are: {', '.join(values)}" if values else f"declare it under [{TABLE}]"
                    raise VariableError(
                        table, key, f"there is no variable {name!r}", f"{known}; the text itself is $${name}"
                    )
                used.add(name)
                return values[name]
        return value

    made = {key: put(value, "", key) for key, value in body.items()}
    for name in values:
        if name not in used:
            raise VariableError(
                TABLE, name, f"variable {name!r} is used nowhere", f'write "${name}" where its value belongs'
            )
    return made


def as_text(text: str) -> str:
    """How a specification has to write a text, so that it is no variable."""
    return f"${text}" if _USE.fullmatch(text) else text


def from_words(words: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` of the command line -> name and value. UsageError for another form, or a name that comes twice."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {word}: no value", "write --set NAME=VALUE")
        if name in given:
            raise UsageError(f"--set {name} is given twice", "give each variable one value")
        given[name] = value
    return given
