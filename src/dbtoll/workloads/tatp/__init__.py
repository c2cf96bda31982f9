"""TATP: seven short transactions on a home location register (Benchmark Description 1.0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dbtoll.model.description import WorkloadDescription
from dbtoll.model.experiment import TRANSACTION_FACTORS
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.workload_parts.transactions import DRIVING, Condition, Shares, Transactions

SUBSCRIBER_BYTES = 2000
"""Measured with PostgreSQL 15: 1.1 KB a subscriber with all rows and indexes."""


class Workload(Transactions):
    """interfaces.Workload for a number of subscribers."""

    name = "tatp"
    primary = "subscribers"
    refused_options: ClassVar[Mapping[str, Any]] = {"terminals": 0}
    description = WorkloadDescription("TATP")
    folder = __name__
    mix: Mapping[str, float] = {
        "get_subscriber_data": 35,
        "get_new_destination": 10,
        "get_access_data": 35,
        "update_subscriber_data": 2,
        "update_location": 14,
        "insert_call_forwarding": 2,
        "delete_call_forwarding": 2,
    }
    factors: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **TRANSACTION_FACTORS,
        "interaction": ("statement", "pipelined"),
        "foreign_keys": ("yes", "no"),
    }
    """By its description some insertions are to fail on the keys that are there. Without keys the insertion looks by itself whether
    there is such a facility and no such row."""
    sizes = ("subscribers", 1000, 1_000_000_000)
    throughput_transaction = None
    multi_statement = False
    options: ClassVar[Mapping[str, Option]] = {
        "subscribers": Option("integer", 100_000, "subscribers, about 1 KB each; from 1000 to a billion"),
        "data_seed": Option("integer", 1, "seed of the rows"),
        **DRIVING,
    }

    def size(self) -> Json:
        """See Transactions."""
        return {"tatp": {"subscribers": self.count, "seed": self.chosen["data_seed"]}}

    def driver_parameters(self, levels: Mapping[str, str], seed: int) -> Json:
        """See interfaces.TransactionWorkload."""
        driver_parameters = super().driver_parameters(levels, seed)
        driver_parameters["workload"]["tatp"]["has_keys"] = levels.get("foreign_keys") != "no"
        return driver_parameters

    def estimate_bytes(self) -> int:
        """See interfaces.Workload."""
        return SUBSCRIBER_BYTES * self.count

    def scripts(self) -> Sequence[str]:
        """Foreign keys."""
        return ["foreign-keys"]

    def conditions(self) -> Sequence[Condition]:
        """What the description says of the tables; the shares within four standard deviations."""
        subscribers = self.count
        return [
            Condition(
                "subscribers are numbered without gaps",
                f"SELECT CASE WHEN count(*) = {subscribers} AND min(s_id) = 1 AND max(s_id) = {subscribers}"
                " THEN 0 ELSE 1 END FROM subscriber",
            ),
            Condition(
                "one to four access types and facilities each",
                "SELECT count(*) FROM subscriber s WHERE (SELECT count(*) FROM access_info a WHERE a.s_id = s.s_id)"
                " NOT BETWEEN 1 AND 4 OR (SELECT count(*) FROM special_facility f WHERE f.s_id = s.s_id)"
                " NOT BETWEEN 1 AND 4",
            ),
            Condition(
                "a forwarding belongs to a facility",
                "SELECT count(*) FROM call_forwarding c LEFT JOIN special_facility f"
                " ON f.s_id = c.s_id AND f.sf_type = c.sf_type WHERE f.s_id IS NULL",
            ),
        ]

    def shares(self, *, initially: bool) -> Sequence[Shares]:
        """Clauses 2.2 to 2.5: one to four of each, equally likely; 85 % active; initially no to three forwardings."""
        quarters = dict.fromkeys(("1", "2", "3", "4"), 0.25)
        always = [
            Shares(
                f"{table} rows of a subscriber",
                f"SELECT n, count(*) FROM (SELECT count(*) AS n FROM {table} GROUP BY s_id) AS each_one GROUP BY n",
                quarters,
            )
            for table in ("access_info", "special_facility")
        ]
        always.append(
            Shares(
                "is_active",
                "SELECT is_active, count(*) FROM special_facility GROUP BY is_active",
                {"1": 0.85, "0": 0.15},
            )
        )
        if not initially:
            return always
        forwardings = (
            "SELECT n, count(*) FROM (SELECT count(c.s_id) AS n FROM special_facility f LEFT JOIN call_forwarding c"
            " ON c.s_id = f.s_id AND c.sf_type = f.sf_type GROUP BY f.s_id, f.sf_type) AS each_one GROUP BY n"
        )
        return [*always, Shares("forwardings of a facility", forwardings, dict.fromkeys(("0", "1", "2", "3"), 0.25))]
