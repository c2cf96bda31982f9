"""What every workload must keep to; a new one is found by its file."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.errors import SpecError, UsageError
from dbtoll.interfaces.workload import ProbeWorkload, TransactionWorkload, Workload
from dbtoll.model.options import Option
from dbtoll.spec.options import option_values
from dbtoll.workload_parts import sql_text
from dbtoll.workloads.tpch import Workload as Tpch

WRONG: dict[str, dict[str, Any]] = {
    "tpcc": {"warehouses": 0},
    "tatp": {"terminals": 0},
    "probes": {"probes": ["no_such"]},
}
"""Options that a workload refuses; of the others ``queries``."""

NEEDED: dict[str, dict[str, Any]] = {"sql": {"directory": str(Path(__file__).parents[2] / "examples/sql")}}
"""Options without which a workload cannot be made."""

workloads = pytest.mark.parametrize("name", registry.names("workloads"))


def made(name: str) -> Any:
    return registry.find("workloads", name)(NEEDED.get(name, {}))


@workloads
def test_it_has_the_shape_of_a_workload(name: str) -> None:
    workload = made(name)
    assert workload.name == name
    for method, wanted in inspect.getmembers(Workload, inspect.isfunction):
        if not method.startswith("_"):
            assert list(inspect.signature(getattr(type(workload), method)).parameters) == list(
                inspect.signature(wanted).parameters
            ), method


@workloads
def test_its_options_are_a_table_that_a_specification_can_use(name: str) -> None:
    kind = registry.find("workloads", name)
    for key, option in kind.options.items():
        assert isinstance(option, Option), key
        assert option.help
        assert not option.choices or option.default in option.choices
    assert kind.primary in kind.options
    values = option_values(NEEDED.get(name, {}), kind.options, f"workload {name!r}")
    assert kind(values).key() == made(name).key()


@workloads
def test_statements_depend_on_the_seed_alone(name: str) -> None:
    one, other = made(name), made(name)
    if isinstance(one, TransactionWorkload):
        assert (
            one.driver_parameters("statement", 1)
            == other.driver_parameters("statement", 1)
            != one.driver_parameters("statement", 2)
        )
        assert one.statements("postgres", 1) == {}
        return
    if isinstance(one, ProbeWorkload):
        requests = {query: one.request(query, "/tmp") for query in one.queries}
        assert requests == {query: other.request(query, "/tmp") for query in other.queries}
        assert len({str(request) for request in requests.values()}) == len(one.queries)
        assert all(about["min_ns"] < about["max_ns"] for about in map(one.about, one.queries))
        return
    for seed in range(10):
        statements = one.statements("postgres", seed)
        assert statements == other.statements("postgres", seed)
        assert tuple(statements) == one.queries
        assert all(statement.query == query for query, statement in statements.items())
    assert one.statements("postgres", 1) != one.statements("postgres", 2)


@workloads
def test_text_is_the_template_with_its_parameters(name: str) -> None:
    for statement in made(name).statements("postgres", 3).values():
        assert sql_text.placeholders(statement.template) == set(range(1, len(statement.parameters) + 1))
        assert not sql_text.placeholders(statement.text)
        assert sql_text.fill(statement.template, statement.parameters) == statement.text
        assert len(sql_text.split(statement.text, "")) == 1


@workloads
def test_it_says_what_it_needs(name: str) -> None:
    assert made(name).key() == made(name).key() != ""
    assert made(name).estimate_bytes() > 0
    with pytest.raises((UsageError, SpecError)) as caught:
        registry.find("workloads", name)({**NEEDED.get(name, {}), **WRONG.get(name, {"queries": ["no such"]})})
    assert caught.value.hint


@pytest.mark.parametrize("wrong", [{"batches": 0}, {"batch": 1}, {"instances": ["0"]}, {"instances": ["many"]}])
def test_probes_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        registry.find("workloads", "probes")(wrong)
    assert caught.value.hint


def test_tpch_s_key_depends_on_what_is_loaded_only() -> None:
    key = Tpch({"scale": 0.1}).key()
    assert key == Tpch({"scale": 0.1, "queries": ["Q1"], "parameters": "validation"}).key()
    assert len({key, Tpch({"scale": 0.1000001}).key(), Tpch({"indexes": "minhas2008"}).key()}) == 3


@pytest.mark.parametrize("scale", [0, 0.009, -1, float("nan"), 10_001, 0.015, 0.0228])
def test_tpch_refuses_scales_that_make_no_sense(scale: float) -> None:
    with pytest.raises(UsageError) as caught:
        Tpch({"scale": scale})
    assert f"{scale:g}" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("scale", [0.01, 0.02, 0.023, 0.03, 0.05, 1, 300])
def test_tpch_takes_scales_that_do(scale: float) -> None:
    assert Tpch({"scale": scale}).scale == scale


@pytest.mark.parametrize(
    ("given", "meant"),
    [(["Q9", "q1"], ("Q1", "Q9")), ("all", tuple(f"Q{n}" for n in range(1, 23))), ([6, "22"], ("Q6", "Q22"))],
)
def test_tpch_s_queries_by_name(given: Any, meant: tuple[str, ...]) -> None:
    assert Tpch({"queries": given}).queries == meant


@pytest.mark.parametrize("given", [["Q23"], ["Q1", "x"], [], ["all", "Q1"], ["Q0"]])
def test_tpch_has_no_other_queries(given: Any) -> None:
    with pytest.raises(UsageError, match="tpch has"):
        Tpch({"queries": given})


transacting = pytest.mark.parametrize(
    "name", [name for name in registry.names("workloads") if isinstance(made(name), TransactionWorkload)]
)


@transacting
def test_its_mix_is_checked(name: str) -> None:
    workload = made(name)
    even = {transaction: round(1000 * share) for transaction, share in workload.mix.items()}
    assert workload.unlikely_mix(even) is None
    first, second = list(even)[:2]
    assert first in workload.unlikely_mix({**even, second: 2 * even[second]})
    assert "dance" in workload.unlikely_mix({**even, "dance": 1})
    assert workload.unlikely_mix({}) is None


@transacting
@pytest.mark.parametrize(
    "wrong", [{"terminals": 0}, {"terminals": 2, "threads": 3}, {"window": 0}, {"rate": -1.0}, {"terminals": 1_000_000}]
)
def test_driver_parameters_that_make_no_sense_is_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"workload {name}: "):
        registry.find("workloads", name)(wrong)
