"""Run folders of earlier schema versions are read as those of this one, and nothing else of them changes."""

import msgspec
import pytest

from dbtoll.errors import RunFolderError
from dbtoll.model.experiment import FACTORS, TRANSACTION_FACTORS
from dbtoll.runner.run import experiment_of
from dbtoll.store import schema, upgrade
from tests.support.documents import program

tables = program("make_tables")
OF_SCHEMA_1 = ("minhas2008-", "muehlbauer2015-mariadb-", "muehlbauer2015-postgres-")
KEPT = [
    name
    for path in sorted((tables.RESULTS / tables.RUNS).iterdir())
    if (name := path.name.removesuffix(".tar.xz")).startswith(OF_SCHEMA_1)
]


@pytest.mark.parametrize("name", KEPT)
def test_kept_runs_are_read_in_the_names_of_this_version(name: str) -> None:
    with tables.kept([name], tables.RESULTS) as (run,):
        assert run.schema_version == 1
    levels = {**FACTORS, **TRANSACTION_FACTORS}
    asked = run.plan.experiment.factors
    assert asked.keys() <= levels.keys()
    for factor, chosen in asked.items():  # one without levels here has numbers
        assert set(chosen) <= set(levels[factor]) or (not levels[factor] and all(map(str.isdigit, chosen)))
    visits = list(run.records(schema.Visit))
    of_statements = [visit for visit in visits if visit.units[0].batches is None]  # the others are of probes
    assert visits and all(visit.levels.keys() == asked.keys() for visit in of_statements)
    assert all(level in asked[factor] for visit in visits for factor, level in visit.levels.items())
    warm = "warm" in asked.get("cache", ("warm",))
    assert any(visit.first_execution for visit in of_statements) or not (warm and of_statements)
    assert not all(visit.first_execution for visit in visits)
    counters = list(run.records(schema.Counters))
    assert any(each.unattributed_cpu_ns is not None for each in counters)
    assert {record.check for record in run.records(schema.CheckRecord)} >= {"commit_reaches_device"}
    for visit in visits:
        if visit.units[0].window is not None:
            assert visit.units[0].window["backlog_at_end"] == 0
            for kind in visit.units[0].window["transactions"].values():
                assert kind["not_found"] >= 0 and kind["response_ns"]["min"] <= kind["response_ns"]["max"]


def test_nothing_can_be_added_to_a_run_of_an_earlier_schema() -> None:
    with (
        tables.kept(KEPT[:1], tables.RESULTS) as (run,),
        pytest.raises(RunFolderError, match=r"written in schema 1.*nothing can be added"),
    ):
        experiment_of(run.folder)


def test_values_and_order_stay() -> None:
    record = {
        "record": "visit", "round": 3, "levels": {"temperature": "cold", "connection": "one", "protocol": "simple"},
        "first_touch": False, "chain": "0",
    }  # fmt: skip
    assert list(upgrade.record(record, 1).items()) == [
        ("record", "visit"), ("round", 3), ("levels", {"cache": "cold", "connection": "persistent", "query_protocol": "simple"}),
        ("first_execution", False), ("chain", "0"), ("units", [{}]),
    ]  # fmt: skip
    gate = {"record": "gate", "gate": "consistent", "passed": True}
    assert upgrade.record(gate, 1) == {"record": "check", "check": "consistent", "passed": True}


def test_a_level_keeps_its_meaning_where_another_factor_has_the_same_word() -> None:
    levels = {"placement": "inside", "durability": "server", "interaction": "statement"}
    assert upgrade.record({"record": "counters", "levels": levels}, 1)["levels"] == {
        **levels,
        "durability": "server_buffer",
    }


@pytest.mark.parametrize(
    "hostile",
    [
        {"levels": 1},
        {"levels": {"connection": []}},
        {"window": []},
        {"window": {"transactions": {"a": None}}},
        {"record": []},
        {},
    ],
)
def test_what_has_another_shape_is_left_to_the_check_that_follows(hostile: dict[str, object]) -> None:
    upgraded = upgrade.record({"record": "visit", **hostile}, 1)
    (unit,) = upgraded.pop("units", [{}])
    assert {**upgraded, **unit} == {"record": "visit", **hostile}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(upgrade.record({"record": "visit", **hostile}, 1), schema.AnyRecord)


def test_what_a_visit_brought_in_version_2_is_its_only_units() -> None:
    of_unit = {"start_ns": 1, "end_ns": 5, "problem": None}
    visit = {"record": "visit", "arm": "native", **of_unit, "counts": None, "levels": {"cache": "one"}}
    assert upgrade.record(visit, 2) == {
        "record": "visit", "arm": "native", "counts": None, "levels": {"cache": "one"}, "units": [of_unit],
    }  # fmt: skip
    start = {"record": "start", "arm": "native", "facts": {"version": "15"}}
    assert upgrade.record(start, 2) == {"record": "start", "arm": "native", "servers": [{"version": "15"}]}
    assert upgrade.record({"record": "start", "reason": "no disk", "facts": {}}, 2)["servers"] == []
    assert upgrade.record(visit, 3) == visit
