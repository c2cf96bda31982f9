"""The workloads that dbtoll brings, held to the contract; a new one is found by its name. And what one of them alone is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.contracts import WorkloadContract
from dbtoll.errors import UsageError
from dbtoll.workloads.tpch import Workload as Tpch


class TestWorkloads(WorkloadContract):
    @pytest.fixture(params=registry.names("workloads"))
    def kind(self, request: pytest.FixtureRequest) -> Any:
        return registry.find("workloads", request.param)


@pytest.mark.parametrize("wrong", [{"batches": 0}, {"batch": 1}, {"instances": ["0"]}, {"instances": ["many"]}])
def test_probes_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        registry.find("workloads", "probes")(wrong)
    assert caught.value.hint


def test_tpch_s_key_depends_on_what_is_loaded_only() -> None:
    key = Tpch({"scale": 0.1}).key()
    assert key == Tpch({"scale": 0.1, "queries": ["Q1"], "parameters": "validation"}).key()
    assert len({key, Tpch({"scale": 0.1000001}).key(), Tpch({"indexes": "dates"}).key()}) == 3


def test_tpch_takes_more_indexes_from_a_file(tmp_path: Path) -> None:
    own = tmp_path / "own.sql"
    own.write_text(
        "-- by date\nCREATE INDEX mine ON orders (o_orderdate);\ncreate unique index u on nation (n_name);\n"
    )
    named = Tpch({"indexes_file": str(own)})
    assert [part.where for part in named._own_indexes] == [f"{own}:2", f"{own}:3"]
    assert named.key() != Tpch({}).key()
    own.write_text("create index mine on orders (o_orderdate);\ndrop table orders;\n")
    with pytest.raises(UsageError, match=r"own\.sql:2: this makes no index: 'drop table orders'"):
        Tpch({"indexes_file": str(own)})
    with pytest.raises(UsageError, match=r"none\.sql:1: the indexes cannot be read"):
        Tpch({"indexes_file": str(tmp_path / "none.sql")})


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
