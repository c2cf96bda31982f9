"""How the SQL of one engine differs from what workloads write for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Dialect:
    """``name``: in the names of files that a workload has for this dialect alone: ``q07.NAME.sql``, ``procedures-NAME.sql``.

    ``types``: words of a schema or a query, blanks or brackets around them, that mean something else there -> the words in their
    place.
    ``keys_before_rows``: rows that come in the order of the primary key are best loaded into a table that has it.
    ``atomic_scripts``: a text may hold several statements and is one transaction, with those that make tables and indexes.
    ``plain_bodies``: the bodies of procedures are not quoted, and hold semicolons of their own.
    ``quotient_places``: digits behind the point that averages and quotients of decimals have at least, where they are cut off or
    rounded there; answers are compared to that. None: they have as many as a double.
    ``foreign_keys``: a query for table, name, and 1 where an index of that name was made for it; ``drop_foreign_key`` and
    ``drop_index`` with ``{table}`` and ``{name}``.
    ``connections``: how many load rows and build indexes at the same time.
    ``scripts``: a package with the folders of workloads: scripts of this dialect that the engine brings along, under the same
    names; they win over the workload's own.
    """

    name: str
    types: Mapping[str, str] = field(default_factory=dict)
    keys_before_rows: bool = False
    atomic_scripts: bool = True
    plain_bodies: bool = False
    quotient_places: int | None = None
    foreign_keys: str = ""
    drop_foreign_key: str = "ALTER TABLE {table} DROP CONSTRAINT {name}"
    drop_index: str = "DROP INDEX {name}"
    connections: int = 2
    scripts: str | None = None
