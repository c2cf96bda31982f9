"""The specifications that dbtoll brings."""

from __future__ import annotations

from pathlib import Path


def experiments() -> Path:
    """Where the shipped specifications lie: in the package of a wheel, in the checkout otherwise."""
    packaged = Path(__file__).parent / "experiments"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent.parent / "experiments"
