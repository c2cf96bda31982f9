"""Members by name, and what is said of a name that is none."""

from __future__ import annotations

import pytest

from dbtoll import registry
from dbtoll.errors import UsageError


@pytest.mark.parametrize("family", registry.FAMILIES)
def test_every_member_has_the_name_of_its_file(family: str) -> None:
    assert [registry.find(family, name).name for name in registry.names(family)] == registry.names(family)


@pytest.mark.parametrize(
    ("family", "name", "meant"),
    [
        ("engines", "postgresql", "postgres"),
        ("engines", "MySQL", "mariadb"),
        ("engines", "postgers", "postgres"),
        ("environments", "runsc", "docker"),
        ("environments", "libpod", "podman"),
        ("environments", "bwrap", "bubblewrap"),
        ("environments", "kvm", "qemu"),
        ("environments", "dokcer", "docker"),
        ("workloads", "tpc-h", "tpch"),
        ("workloads", "pgbench", "tpcc"),
        ("papers", "minhas", "minhas2008"),
    ],
)
def test_what_was_meant_is_asked_for(family: str, name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"named '{name}'") as caught:
        registry.find(family, name)
    assert caught.value.hint.startswith(f"did you mean {meant}?")
    assert all(each in caught.value.hint for each in registry.names(family))


def test_what_resembles_nothing_names_all_there_is() -> None:
    with pytest.raises(UsageError) as caught:
        registry.find("engines", "oracle")
    assert caught.value.hint == "choose one of: duckdb, hyper, mariadb, monetdb, no_server, noop, postgres"


def test_nothing_is_called_as_something_else_is() -> None:
    for family in registry.FAMILIES:
        names = registry.names(family)
        others = [other for name in names for other in getattr(registry.find(family, name), "also_called", ())]
        assert len({*names, *others}) == len(names) + len(others)
