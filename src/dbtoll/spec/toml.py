"""TOML that somebody else has written."""

from __future__ import annotations

import tomllib
from typing import Any


def loads(text: str) -> dict[str, Any]:
    """The document. ValueError, whatever is wrong with it: tomllib takes numbers and depths that Python itself does not bear."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its tables or lists are too deep") from None
