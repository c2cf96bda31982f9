"""An engine's own client, in a process of its own: statements over the engine's data, as who uses it without dbtoll asks them.

Read as a program: it imports nothing of dbtoll's. Standard input: JSON with ``engine``, ``database``, ``library``, ``preload``,
``settings``, ``statements``, ``passes``. Standard output: JSON, for each pass the ns of each statement, all of its answer fetched;
before them comes one pass that does not count.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

Ask = Callable[[str], object]


def hyper(asked: dict[str, Any]) -> Ask:
    """Tableau's Hyper API, which starts a server of its own."""
    import tableauhyperapi as package

    quiet = package.Telemetry.DO_NOT_SEND_USAGE_DATA_TO_TABLEAU
    process = package.HyperProcess(quiet, parameters={**asked["settings"], "log_config": ""})
    connection = package.Connection(process.endpoint, asked["database"])

    def ask(sql: str) -> object:
        assert process.is_open  # and it is kept: the server ends with it
        return connection.execute_list_query(sql)

    return ask


def duckdb(asked: dict[str, Any]) -> Ask:
    """DuckDB's Python package."""
    import duckdb as package

    connection = package.connect(asked["database"], config=asked["settings"])
    return lambda sql: connection.execute(sql).fetchall()


class _MonetOptions(ctypes.Structure):
    """monetdbe_options of monetdbe.h (11.41)."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("memorylimit", "querytimeout", "sessiontimeout", "nr_threads")),
        *((name, ctypes.c_void_p) for name in ("remote", "mapi_server", "trace_file")),
    )


class _MonetResult(ctypes.Structure):
    """monetdbe_result."""

    _fields_ = (
        ("nrows", ctypes.c_int64),
        ("ncols", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("last_id", ctypes.c_int64),
    )


def monetdb(asked: dict[str, Any]) -> Ask:
    """MonetDB's C API in this process: its Python package refuses columns of 128 bits."""
    for path in asked["preload"]:
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(asked["library"])
    for name in ("monetdbe_query", "monetdbe_result_fetch", "monetdbe_cleanup_result"):
        getattr(library, name).restype = ctypes.c_char_p
    settings = asked["settings"]
    options = _MonetOptions(int(settings["memorylimit"]), 0, 0, int(settings["nr_threads"]), None, None, None)
    handle = ctypes.c_void_p()
    if library.monetdbe_open(ctypes.byref(handle), asked["database"].encode(), ctypes.byref(options)) != 0:
        raise RuntimeError("monetdbe_open")

    def ask(sql: str) -> None:
        result, affected = ctypes.POINTER(_MonetResult)(), ctypes.c_int64()
        said = library.monetdbe_query(handle, sql.encode(), ctypes.byref(result), ctypes.byref(affected))
        column = ctypes.c_void_p()
        for number in range(result.contents.ncols if not said else 0):
            said = said or library.monetdbe_result_fetch(result, ctypes.byref(column), ctypes.c_size_t(number))
        if said:
            raise RuntimeError(said.decode())
        library.monetdbe_cleanup_result(handle, result)

    return ask


CLIENTS = {"hyper": hyper, "duckdb": duckdb, "monetdb": monetdb}


def main() -> None:
    """One engine."""
    asked = json.load(sys.stdin)
    ask = CLIENTS[asked["engine"]](asked)
    passes = []
    for _ in range(1 + asked["passes"]):
        times = []
        for sql in asked["statements"]:
            begin_ns = time.perf_counter_ns()
            ask(sql)
            times.append(time.perf_counter_ns() - begin_ns)
        passes.append(times)
    print(json.dumps(passes[1:]), flush=True)


if __name__ == "__main__":
    main()
