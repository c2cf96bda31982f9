"""In which order kernel modules are loaded. Pure: images make the table, environments use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dbtoll.errors import UsageError

Needs = Mapping[str, Sequence[str] | None]
"""Module -> the modules that it needs directly, as ``modules.json`` of a kernel has it; None: built into the kernel."""


def load_order(modules: Needs, wanted: Iterable[str]) -> list[str]:
    """``wanted`` and all that they need, each once, each after what it needs; what is built in is left out.

    Equal arguments give equal lists. Raises UsageError for a module that is not in ``modules``, and for a circle.
    """
    order: list[str] = []
    for name in wanted:
        _append(modules, name, order, [])
    return order


def _append(modules: Needs, name: str, order: list[str], path: list[str]) -> None:
    """Appends ``name`` after what it needs. ``path``: the modules on the way to it, from the one that was wanted."""
    if name in order:
        return
    if name in path:
        raise UsageError(
            f"kernel modules need each other in a circle: {' > '.join([*path, name])}", "give another kernel"
        )
    if name not in modules:
        needed = f", which {path[-1]} needs," if path else ""
        raise UsageError(f"the kernel module {name}{needed} is not in this kernel", f"it has: {', '.join(modules)}")
    needs = modules[name]
    if needs is None:
        return
    for need in needs:
        _append(modules, need, order, [*path, name])
    order.append(name)
