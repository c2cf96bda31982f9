"""What a specification may ask for, a run folder may hold: else a run would be measured that nobody can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dbtoll import spec
from dbtoll.errors import SpecError
from dbtoll.model.sweep import Costs, LeftOut, Limit, Sweep
from dbtoll.store.contents import demand_plan
from dbtoll.store.schema import PlanFile

ARM = '[[arm]]\nname = "native"\nstack = "native"\n'


@pytest.mark.parametrize(
    "text",
    [
        "",
        'explain = true\n[factors]\ncache = ["warm", "cold"]\n',
        'max_overhead = "0%"\n',
        'max_overhead = "-5%"\n',
        "seed = 0\n",
        f"seed = {-(2**63)}\n",
        f"seed = {2**70}\n",
        "parameter_sets = 0\n",
        "parameter_sets = -1\n",
        f"parameter_sets = {10**9}\n",
        '[precision]\ntarget = "0%"\n',
        '[precision]\ntarget = "-1%"\n',
        '[precision]\ntarget = "1000%"\n',
        '[precision]\nbudget = "1000000h"\n',
        f"[precision]\nrounds_max = {10**9}\n",
        '[precision]\nmargin = "99.9%"\n',
        '[visit]\nmeasurement_time = "0s"\nlead_in = "0s"\n',
        '[resources]\nshm = "0 B"\n',
        "[resources]\nopen_files = -1\n",
        "[resources]\nopen_files = 0\n",
        f"[resources]\ncpus = {10**9}\n",
    ],
)
def test_what_is_accepted_can_be_read_again(text: str) -> None:
    try:
        experiment = spec.parse(text + ARM, "spec.toml")
    except SpecError as error:
        assert error.message.startswith("spec.toml:")
        return
    demand_plan(PlanFile(experiment=experiment, queries=("Q1",), blocks=1))


@pytest.mark.parametrize("name", ["ROUND", "arm", "order", "", '=cmd|"/C calc"!A0'])
def test_a_factor_is_one_that_specifications_know(name: str) -> None:
    """It is a column of every table: another would be taken for one of the table's own, or for a formula."""
    experiment = spec.parse(ARM, "spec.toml")
    plan = PlanFile(
        experiment=replace(experiment, factors={**experiment.factors, name: ("a", "b")}), queries=("Q1",), blocks=1
    )
    with pytest.raises(ValueError, match="the factors"):
        demand_plan(plan)


SWEEP = Sweep(
    "20260501-091500-3f9a2b",
    "/spec.toml",
    "tenants",
    (1, 2, 4),
    2,
    limit=Limit("p99", "", 10**7),
    costs=Costs("EUR", "month", host=4.0),
)


@pytest.mark.parametrize(
    "changes",
    [
        {"value": 3},
        {"values": (1, 2, 2)},
        {"values": (2, "four")},
        {"left_out": (LeftOut(9, "native", "too large"),)},
        {"limit": Limit("p42", "", 10**7)},
        {"limit": Limit("p99", "", 0)},
        {"costs": Costs("EUR", "aeon", host=4.0)},
        {"costs": Costs("EUR", "month", server=-1.0)},
        {"costs": Costs("EUR", "month", devices={"/dev/sda": -1.0})},
    ],
)
def test_a_value_of_a_sweep_is_one_that_could_be_asked_for(changes: dict[str, Any]) -> None:
    experiment = replace(spec.parse(ARM, "spec.toml"), sweep=SWEEP)
    demand_plan(PlanFile(experiment=experiment, queries=("Q1",), blocks=1))
    wrong = replace(experiment, sweep=replace(SWEEP, **changes))
    with pytest.raises(ValueError, match="no value of its sweep"):
        demand_plan(PlanFile(experiment=wrong, queries=("Q1",), blocks=1))
