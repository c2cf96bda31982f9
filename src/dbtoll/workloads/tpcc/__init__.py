"""TPC-C: five transactions on warehouses, their districts, customers, orders and stock (revision 5.11).

Derived from the benchmark; results are not comparable with published TPC results. What differs from the specification: no
terminals' screens; deliveries are executed at once; think and keying times are an option, off by default, as in the papers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dbtoll import units
from dbtoll.errors import UsageError
from dbtoll.model.description import ThroughputUnit, WorkloadDescription
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.workload_parts.transactions import DRIVING, PROCEDURES, Condition, Transactions

WAREHOUSE_BYTES = 160 << 20
"""Measured with PostgreSQL 15: 100 MB loaded and indexed; half as much again while indexes are sorted."""


KEYING_NS = 18_000_000_000
"""Of a new order, with ``think_time = "specified"`` (clause 5.2.5.7); a terminal begins with it."""


class Workload(Transactions):
    """interfaces.Workload for a number of warehouses."""

    name = "tpcc"
    also_called = ("tpc-c", "pgbench", "tpcb", "oltp")
    primary = "warehouses"
    refused_options: ClassVar[Mapping[str, Any]] = {"warehouses": 0}
    description = WorkloadDescription(
        "TPC-C",
        disclaimer="The workload is derived from TPC-C. Its results are not comparable with published TPC results.",
        throughput_unit=ThroughputUnit("tpmC", seconds=60.0),
    )
    folder = __name__
    mix: Mapping[str, float] = {"new_order": 10, "payment": 10, "order_status": 1, "delivery": 1, "stock_level": 1}
    sizes = ("warehouses", 1, 100_000)
    throughput_transaction = "new_order"
    multi_statement = True
    options: ClassVar[Mapping[str, Option]] = {
        "warehouses": Option("integer", 1, "warehouses, about 100 MB each; terminals are dealt to them in turn"),
        "think_time": Option("text", "none", "keying and think times between transactions", ("none", "specified")),
        "data_seed": Option("integer", 1, "seed of the rows"),
        **DRIVING,
    }

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if self.chosen["think_time"] == "none":
            return
        if self.chosen["rate"]:
            raise UsageError(
                f"workload {self.name}: with a rate transactions arrive by their schedule, and nobody thinks",
                "leave rate out, or think_time",
            )
        ramp_up_ns, window_ns, _ = self.window_timing()
        if ramp_up_ns + window_ns <= KEYING_NS:
            keyed, given = units.duration_text(KEYING_NS), units.duration_text(ramp_up_ns + window_ns)
            raise UsageError(
                f"workload {self.name}: a new order is keyed in for {keyed}, and ramp-up and window together are {given}",
                'window = "120s", ramp_up = "30s"',
            )

    def size(self) -> Json:
        """See Transactions."""
        return {"tpcc": {"warehouses": self.count, "seed": self.chosen["data_seed"]}}

    def driver_parameters(self, levels: Mapping[str, str], seed: int) -> Json:
        """See interfaces.TransactionWorkload."""
        driver_parameters = super().driver_parameters(levels, seed)
        driver_parameters["workload"]["tpcc"]["has_pauses"] = self.chosen["think_time"] == "specified"
        return driver_parameters

    def estimate_bytes(self) -> int:
        """See interfaces.Workload."""
        return WAREHOUSE_BYTES * self.count

    def scripts(self) -> Sequence[str]:
        """Procedures, which do no harm to who does not call them."""
        return [PROCEDURES]

    def conditions(self) -> Sequence[Condition]:
        """The twelve of clause 3.3.2."""
        found = re.findall(r"^-- (\d+: .*)\n((?:(?!--).+\n)+)", self.text("consistency"), re.MULTILINE)
        return [Condition(name, sql.strip().rstrip(";")) for name, sql in found]
