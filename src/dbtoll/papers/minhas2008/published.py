"""The paper's own tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dbtoll.analysis.reproduction.published import column, one_round, tables_beside
from dbtoll.analysis.visits.arrays import TimeArray

table = tables_beside(__file__)


def run_times(name: str, queries: Sequence[str] | None = None) -> TimeArray:
    """Run times of a table: arms ``base`` and ``xen``, one round, one block (the means it prints)."""
    rows = [row for row in table(name) if queries is None or row["query"] in queries]
    seconds = np.stack([column(rows, "base_runtime_s"), column(rows, "xen_runtime_s")], axis=-1)
    return one_round(seconds[np.newaxis], [row["query"] for row in rows], ("base", "xen"))
