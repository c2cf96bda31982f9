"""What every workload must keep to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from dbtoll import registry
from dbtoll.contracts.shape import demand_shape
from dbtoll.errors import SpecError, UsageError
from dbtoll.interfaces import workload as interface
from dbtoll.interfaces.workload import ProbeWorkload, TenantKeyWorkload, TransactionWorkload, Workload
from dbtoll.model.description import WorkloadDescription
from dbtoll.model.dialect import Dialect
from dbtoll.model.experiment import FACTORS, THREADS, TRANSACTION_FACTORS
from dbtoll.model.options import Option
from dbtoll.spec.options import option_values
from dbtoll.workload_parts import sql_text


class WorkloadContract:
    """``member``: the workload's class."""

    member: ClassVar[type[Workload]]

    @pytest.fixture
    def kind(self) -> Any:
        return self.member

    @pytest.fixture
    def needed(self, kind: Any, tmp_path: Path) -> dict[str, Any]:
        """Options with which it can be made."""
        return dict(kind.contract_options(tmp_path))

    @pytest.fixture
    def workload(self, kind: Any, needed: dict[str, Any]) -> Any:
        return kind(needed)

    @pytest.fixture
    def sql(self, kind: Any) -> Dialect:
        """Of an engine of which it can be asked."""
        able = [each for each in registry.members("engines") if kind.requires <= each.offers]
        assert able, f"no engine here offers {sorted(kind.requires)}"
        dialect: Dialect = able[0].sql
        return dialect

    def test_it_has_the_shape_of_a_workload(self, workload: Any) -> None:
        demand_shape(type(workload), interface.Workload)
        assert isinstance(workload.description, WorkloadDescription)
        assert workload.description.title
        assert workload.description.throughput_unit.seconds > 0

    def test_the_registry_knows_it(self, kind: Any) -> None:
        assert registry.find("workloads", kind.name) is kind
        assert not {*kind.also_called} & {*registry.names("workloads")}

    def test_its_options_are_a_table_that_a_specification_can_use(
        self, kind: Any, needed: dict[str, Any], workload: Any
    ) -> None:
        for key, option in kind.options.items():
            assert isinstance(option, Option), key
            assert option.help
            assert not option.choices or option.default in option.choices
        assert kind.primary in kind.options
        values = option_values(needed, kind.options, f"workload {kind.name!r}")
        assert kind(values).key() == workload.key()

    def test_its_factors_are_of_those_that_a_run_can_vary(self, kind: Any) -> None:
        known = {**FACTORS, **TRANSACTION_FACTORS}
        for factor, levels in kind.factors.items():
            if factor == THREADS:  # its levels are numbers
                assert not levels
                continue
            assert levels
            assert set(levels) <= set(known[factor])

    def test_statements_depend_on_the_seed_alone(
        self, kind: Any, needed: dict[str, Any], workload: Any, sql: Dialect
    ) -> None:
        one, other = workload, kind(needed)
        if isinstance(one, TransactionWorkload):
            usual = {factor: levels[0] for factor, levels in kind.factors.items()}
            assert (
                one.driver_parameters(usual, 1)
                == other.driver_parameters(usual, 1)
                == other.driver_parameters({}, 1)
                != one.driver_parameters(usual, 2)
            )
            assert workload.statements(sql, 1) == {}
            return
        if isinstance(one, ProbeWorkload):
            requests = {query: one.request(query, "/tmp") for query in workload.queries}
            assert requests == {query: other.request(query, "/tmp") for query in workload.queries}
            assert len({str(request) for request in requests.values()}) == len(workload.queries)
            assert all(about["min_ns"] < about["max_ns"] for about in map(one.about, workload.queries))
            return
        for seed in range(10):
            statements = one.statements(sql, seed)
            assert statements == other.statements(sql, seed)
            assert tuple(statements) == one.queries
            assert all(statement.query == query for query, statement in statements.items())
        if any(statement.parameters for statement in one.statements(sql, 1).values()):
            assert one.statements(sql, 1) != one.statements(sql, 2)

    def test_tenants_that_share_its_tables_have_rows_of_their_own(self, workload: Any) -> None:
        can_be_shared = isinstance(workload, TenantKeyWorkload)
        if not can_be_shared:
            return
        first, second = (workload.as_tenant(number, 2) for number in range(2))
        assert first.key() == second.key() != workload.key()
        assert first.estimate_bytes() == second.estimate_bytes() > workload.estimate_bytes()
        assert first.driver_parameters({}, 1) != second.driver_parameters({}, 1) != workload.driver_parameters({}, 1)
        alone = workload.as_tenant(0, 1)
        assert (alone.key(), alone.driver_parameters({}, 1)) == (workload.key(), workload.driver_parameters({}, 1))
        with pytest.raises(UsageError) as caught:
            workload.as_tenant(0, 1 << 62)
        assert caught.value.hint

    def test_text_is_the_template_with_its_parameters(self, workload: Any, sql: Dialect) -> None:
        for statement in workload.statements(sql, 3).values():
            assert sql_text.placeholders(statement.template) == set(range(1, len(statement.parameters) + 1))
            assert not sql_text.placeholders(statement.text)
            assert sql_text.fill(statement.template, statement.parameters) == statement.text
            assert len(sql_text.split(statement.text, "")) == 1

    def test_it_says_what_it_needs(self, kind: Any, needed: dict[str, Any], workload: Any) -> None:
        assert workload.key() == kind(needed).key() != ""
        assert workload.estimate_bytes() > 0
        with pytest.raises((UsageError, SpecError)) as caught:
            kind({**needed, **kind.refused_options})
        assert caught.value.hint

    def test_its_mix_is_checked(self, workload: Any) -> None:
        if not isinstance(workload, TransactionWorkload):
            return
        even = {transaction: round(1000 * share) for transaction, share in workload.mix.items()}
        assert workload.unlikely_mix(even) is None
        first, second = list(even)[:2]
        assert first in (workload.unlikely_mix({**even, second: 2 * even[second]}) or "")
        assert "dance" in (workload.unlikely_mix({**even, "dance": 1}) or "")
        assert workload.unlikely_mix({}) is None

    @pytest.mark.parametrize(
        "wrong",
        [{"terminals": 0}, {"terminals": 2, "threads": 3}, {"window": 0}, {"rate": -1.0}, {"terminals": 1_000_000}],
    )
    def test_driver_parameters_that_make_no_sense_are_refused(
        self, kind: Any, needed: dict[str, Any], workload: Any, wrong: dict[str, Any]
    ) -> None:
        if not isinstance(workload, TransactionWorkload):
            return
        with pytest.raises(UsageError, match=f"workload {kind.name}: "):
            kind({**needed, **wrong})
