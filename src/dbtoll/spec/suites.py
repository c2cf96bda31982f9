"""Which server comes with which system image."""

from __future__ import annotations

from dbtoll import registry
from dbtoll.images.debian import SUITES


def servers_of_suites() -> str:
    """``bookworm (MariaDB 10.11, PostgreSQL 15), trixie (…)``: the suites with the engines' versions; the first is the default."""
    return ", ".join(f"{suite} ({_servers(suite)})" for suite in SUITES)


def _servers(suite: str) -> str:
    versions = {each.description.title: each.software.versions.get(suite) for each in registry.members("engines")}
    return ", ".join(f"{title} {version}" for title, version in versions.items() if version)
