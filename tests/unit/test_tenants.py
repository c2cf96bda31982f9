"""Tenants that share one set of tables: whose rows are whose, and what is of all of them."""

from __future__ import annotations

from typing import Any

import pytest

from dbtoll import registry, spec
from dbtoll.commands.planning import data_bytes
from dbtoll.model.layout import Layout
from dbtoll.runner.arm_devices import IN_MEMORY, ON_OWN_DISK, SPARE_STEP_BYTES
from dbtoll.runner.arms import as_tenant

ROWS = {"tpcc": ("warehouses", 2), "tatp": ("subscribers", 1000)}


def workload(name: str, times: int = 1) -> Any:
    option, rows = ROWS[name]
    return registry.find("workloads", name)({option: times * rows})


@pytest.mark.parametrize("name", ROWS)
def test_each_tenant_has_as_many_rows_as_the_workload_alone(name: str) -> None:
    option, rows = ROWS[name]
    asked = [workload(name).as_tenant(number, 3).driver_parameters({}, 1)["workload"][name] for number in range(3)]
    assert [each["own"] for each in asked] == [[1, rows], [rows + 1, 2 * rows], [2 * rows + 1, 3 * rows]]
    assert {each[option] for each in asked} == {3 * rows}
    assert "own" not in workload(name).driver_parameters({}, 1)["workload"][name]


@pytest.mark.parametrize("name", ROWS)
def test_the_data_of_tenants_are_those_of_as_many_rows(name: str) -> None:
    """So they are one entry of the cache, and the conditions are asked of all rows."""
    shared, large = workload(name).as_tenant(1, 3), workload(name, times=3)
    assert (shared.key(), shared.size(), shared.estimate_bytes()) == (large.key(), large.size(), large.estimate_bytes())
    assert shared.conditions() == large.conditions()


def test_a_workload_is_a_tenants_where_its_arm_has_keys() -> None:
    alone = workload("tpcc")
    assert as_tenant(alone, Layout(schemas=3)) is alone
    assert as_tenant(alone, Layout(schemas=3, keys=2), 1).driver_parameters({}, 1) == alone.as_tenant(
        1, 2
    ).driver_parameters({}, 1)


def test_a_plan_tells_of_what_each_server_holds() -> None:
    def bytes_of(layout: str) -> tuple[int, int]:
        text = f"[workload]\nname = 'tpcc'\nwarehouses = 2\n[[arm]]\nname = 'one'\nstack = 'native'\n{layout}\n"
        loaded, taken = data_bytes(spec.parse(text, "x.toml"))
        assert taken.keys() == {ON_OWN_DISK}
        return loaded, taken[ON_OWN_DISK]

    one, six = workload("tpcc").estimate_bytes(), workload("tpcc", times=3).estimate_bytes()
    copies = 2  # the arm and its A/A copy
    assert bytes_of("") == (one, copies * one)
    assert bytes_of("machines = 2\nschemas = 3") == (3 * one, copies * 6 * one)
    assert bytes_of("servers = 2\nkeys = 3") == (six, copies * 2 * six)


def test_a_plan_tells_of_devices_what_the_run_demands_for_them() -> None:
    def taken(device: str, log: str = "", place: str = ON_OWN_DISK) -> int:
        layout = f"servers = 2\ndata_device = '{device}'\n" + (f"log_device = '{log}'\n" if log else "")
        text = f"[workload]\nname = 'tpcc'\nwarehouses = 2\n[[arm]]\nname = 'one'\nstack = 'native'\n{layout}"
        return data_bytes(spec.parse(text, "x.toml"))[1].get(place, 0)

    one = workload("tpcc").estimate_bytes()
    together, apart = taken("hdd7200"), taken("hdd7200", "hdd15k")
    assert together > 2 * 2 * (one + SPARE_STEP_BYTES)  # the arm and its A/A copy, two servers each
    assert apart > together + 2 * 2 * one  # a log as large as the data, which had its room beside them
    assert taken("own", "hdd7200") > 2 * 2 * (2 * one + SPARE_STEP_BYTES)
    assert taken("memory") == taken("/mnt") == 0
    assert taken("memory", place=IN_MEMORY) == taken("/mnt", place="/mnt") == together
    assert taken("memory") == 0
