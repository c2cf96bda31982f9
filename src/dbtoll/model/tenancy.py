"""Designs of an arm with many tenants: what they share and what each has of its own (Zhang et al. 2014, §2)."""

from __future__ import annotations

from collections.abc import Mapping

from dbtoll.model.layout import Layout

DESIGNS: Mapping[str, tuple[str, str]] = {
    "shared": ("databases", "one server, with a database for each tenant"),
    "shared-schemas": ("schemas", "one database, with a schema for each tenant"),
    "shared-tables": ("keys", "one set of tables, with a key that says whose a row is"),
    "dedicated": ("servers", "a server for each tenant, all in one machine"),
    "isolated": ("machines", "a machine for each tenant: the last environment of the stack"),
}
"""Design -> the level of a `Layout` at which tenants are apart, and what that is."""

BUFFER_SHARE = 4
"""The buffer pools of an arm of such a design are one of so many parts of its memory together, unless the specification says how
much (the PostgreSQL manual's advice for one server, §20.4.1)."""


def layout_of(design: str, tenants: int) -> Layout:
    """So many tenants in that design. KeyError if there is none of that name."""
    level, _ = DESIGNS[design]
    return Layout(**{level: tenants})


def arm_name(stack: str, design: str, tenants: int | str) -> str:
    """``docker isolated x8``."""
    return f"{stack} {design} x{tenants}"
