"""Running scripts while a dataset is made: nothing here is measured but how long it took."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dbtoll.errors import EngineError
from dbtoll.interfaces.machine import Machine
from dbtoll.model.json import Json
from dbtoll.model.machine import Address
from dbtoll.workload_parts.sql_text import Part

PART_DEADLINE_S = 6 * 3600.0
"""One statement of a load: an index over the largest table takes minutes at scale factor 10."""


def run_in_order(machine: Machine, address: Address, parts: Sequence[Part]) -> int:
    """One statement after the other over one connection; ns by the agent's clock.

    Raises EngineError that begins with ``file:line`` of the statement that was refused.
    """
    return run_side_by_side(machine, address, parts, connections=1)


def run_side_by_side(machine: Machine, address: Address, parts: Sequence[Part], *, connections: int) -> int:
    """The statements begun in order, each as soon as one of ``connections`` is free; ns by the agent's clock.

    After the first refusal none is begun any more. Errors as :func:`run_in_order`.
    """
    waiting = iter(list(parts))  # shared: taking the next item of a list is atomic
    refused = threading.Event()

    def work() -> None:
        session = machine.serial(address, connection="persistent")
        try:
            for part in waiting:
                if refused.is_set():
                    return
                _run(session.query, part)
        except BaseException:
            refused.set()
            raise
        finally:
            session.close()

    began_ns = int(machine.call("ping", {})["at_ns"])
    with ThreadPoolExecutor(connections) as pool:
        workers = [pool.submit(work) for _ in range(connections)]
    for worker in workers:
        worker.result()
    return int(machine.call("ping", {})["at_ns"]) - began_ns


def _run(query: Callable[..., object], part: Part) -> None:
    try:
        query(part.sql, timeout_s=PART_DEADLINE_S)
    except EngineError as error:
        raise EngineError(f"{part.where}: {error.message}", error.hint) from None


def by_tenths(progress: Callable[[str], None]) -> Callable[[Json], None]:
    """Control messages of the agent's loaders in words, one for each tenth of a table."""
    tenths: dict[str, int] = {}

    def hear(message: Json) -> None:
        table, rows, of_rows = message["table"], message["rows"], max(1, message["of_rows"])
        tenth = 10 * rows // of_rows
        if tenth > tenths.get(table, 0):
            tenths[table] = tenth
            progress(f"{table}: {rows} of {of_rows} rows")

    return hear
