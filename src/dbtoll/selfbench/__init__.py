"""The instrument's calibration certificate: each module measures one property and holds its figures to bounds.

A module of one of the FOLDERS (a ``-`` of the property's name is a ``_`` in the file's) has ``SUMMARY`` (one sentence), ``OPTIONS``
(name -> Option), ``BOUNDS`` (figure -> Bound, those that hold whatever the options) and ``measure(options, say)``, which returns a
Certificate. `dbtoll selfbench NAME` finds it by its name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from dbtoll.errors import UsageError
from dbtoll.model.options import Option
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.spec.options import option_values

FOLDERS = ("statistics", "costs", "robustness", "explanations")
"""Each answers one question; all that is in them is a property."""


def names() -> list[str]:
    """Of all properties; nothing is imported for that but their folders."""
    return sorted(_folders())


def listed() -> dict[str, str]:
    """Name -> what it measures."""
    return {name: _module(name).SUMMARY for name in names()}


def options(name: str) -> Mapping[str, Option]:
    """Of one property."""
    found: Mapping[str, Option] = _module(name).OPTIONS
    return found


def bounds(name: str) -> Mapping[str, Bound]:
    """Of one property, those that hold whatever the options."""
    found: Mapping[str, Bound] = getattr(_module(name), "BOUNDS", {})
    return found


def measure(name: str, given: Mapping[str, Any], say: Say) -> Certificate:
    """Measure one property. UsageError for a name or an option that does not exist."""
    if name not in _folders():
        raise UsageError(f"there is no selfbench named {name!r}", f"choose one of: {', '.join(names())}")
    module = _module(name)
    certificate: Certificate = module.measure(option_values(given, module.OPTIONS, f"selfbench {name!r}"), say)
    return certificate


def _folders() -> dict[str, str]:
    """Property -> the folder that has it; nothing is imported for that but the folders."""
    packages = {folder: importlib.import_module(f"{__name__}.{folder}") for folder in FOLDERS}
    return {
        module.name.replace("_", "-"): folder
        for folder, package in packages.items()
        for module in pkgutil.iter_modules(package.__path__)
    }


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{_folders()[name]}.{name.replace('-', '_')}")
