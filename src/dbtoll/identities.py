"""What an entry of a journal may name: a remover takes of it only what its own kind can have made (docs/RECOVERY.md).

Whoever removes is often root. So a path is taken as it is written, or not at all: nothing is normalised, nothing is guessed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dbtoll.errors import DbtollError


def word(identity: Mapping[str, Any], key: str, pattern: str) -> str:
    """A text that matches the whole ``pattern``. Raises DbtollError."""
    value = identity.get(key)
    if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
        raise _refused(identity, key, f"not of the form {pattern}")
    return value


def number(identity: Mapping[str, Any], key: str) -> int:
    """A positive integer. Raises DbtollError."""
    value = identity.get(key)
    if type(value) is not int or value < 1:
        raise _refused(identity, key, "no positive number")
    return value


def path(identity: Mapping[str, Any], key: str, *tops: str) -> str:
    """A path below one of the directories ``tops``, by its text. Raises DbtollError."""
    return _below(identity, key, identity.get(key), tops)


def paths(identity: Mapping[str, Any], key: str, *tops: str) -> list[str]:
    """Several of them, in a list. Raises DbtollError."""
    values = identity.get(key)
    if not isinstance(values, list):
        raise _refused(identity, key, "no list")
    return [_below(identity, key, value, tops) for value in values]


def _below(identity: Mapping[str, Any], key: str, value: object, tops: Iterable[str]) -> str:
    if not isinstance(value, str) or "\0" in value or not value.startswith("/") or value.startswith("//"):
        raise _refused(identity, key, "no absolute path")
    if posixpath.normpath(value) != value:
        raise _refused(identity, key, "it is not written in its shortest form")
    if not any(value.startswith(top.rstrip("/") + "/") for top in tops):
        raise _refused(identity, key, f"it does not lie below {' or '.join(tops)}")
    return value


def _refused(identity: Mapping[str, Any], key: str, why: str) -> DbtollError:
    return DbtollError(
        f"{key} {identity.get(key)!r}: {why}; nothing was done", "look at it, and remove it yourself if it is to go"
    )
