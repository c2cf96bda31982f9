"""The specifications that dbtoll brings."""

from __future__ import annotations

from pathlib import Path

import dbtoll


def experiments() -> Path:
    """Where the shipped specifications lie: in the package of a wheel, in the checkout otherwise."""
    package = Path(dbtoll.__file__).parent
    packaged = package / "experiments"
    return packaged if packaged.is_dir() else package.parent.parent / "experiments"
