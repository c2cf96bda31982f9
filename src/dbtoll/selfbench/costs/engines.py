"""Engines that dbtoll starts or serves itself, beside their own clients: what its way to them costs."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dbtoll import facts, registry
from dbtoll.analysis.effects import stats
from dbtoll.engines import hyper
from dbtoll.errors import DbtollError, Unavailable
from dbtoll.images import system
from dbtoll.images.cache import Cache
from dbtoll.interfaces.machine import Machine
from dbtoll.model.experiment import Resources, VisitTiming
from dbtoll.model.json import Json
from dbtoll.model.machine import DATA, ServerPlace
from dbtoll.model.options import Option
from dbtoll.runner.preparation.software import image_software
from dbtoll.selfbench.support import own_client
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.native_setup import native_arm
from dbtoll.workloads.tpch import Workload

SUMMARY = "engines: hyper_ratio, duckdb_ratio, monetdb_ratio, TPC-H through dbtoll over the same through the engine's own client"
OPTIONS = {
    "scale": Option("number", 1.0, "scale factor"),
    "repetitions": Option("integer", 8, "how often each of the two has its turn", least=1),
    "passes": Option("integer", 3, "how often each query is timed in a turn", least=1),
    "engines": Option("list", list(own_client.CLIENTS), "which"),
}

PACKAGES = {"hyper": ["tableauhyperapi==0.0.26963"], "duckdb": ["duckdb==2.0.1"], "monetdb": list[str]()}
"""Engine -> its own client, as pip calls it, of the version that the engine has here."""

BOUNDS = {f"{engine}_ratio": Bound(max=1.05) for engine in PACKAGES}

RESOURCES = Resources(cpus=1, memory_bytes=8 << 30)
"""One thread: what is compared is the way, not how a query is spread."""

CLIENT_DEADLINE_S = 3600.0
ALPHA = 0.05


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """In each turn a fresh server or a fresh client, one pass over the 22 queries that does not count, then the timed ones. The two
    take turns on the same data, on the same processors, the order alternating. A turn's value is the geometric mean over the
    queries of the median of its passes; a ratio's interval is over the pairs of turns."""
    figures: dict[str, Any] = {}
    told: Json = {"scale": options["scale"], "pairs": {}}
    for name in options["engines"]:
        with TemporaryDirectory(prefix="dbtoll-selfbench-") as packages:
            _install(PACKAGES[name], packages, say)
            pairs = _pairs(name, options, packages, say, told)
        found = stats.independent_interval(np.log([ours / own for ours, own in pairs]), ALPHA)
        assert found is not None
        figures[f"{name}_ratio"] = math.exp(found.estimate)
        figures[f"{name}_ratio_low"], figures[f"{name}_ratio_high"] = math.exp(found.low), math.exp(found.high)
        figures[f"{name}_ms"], figures[f"{name}_own_ms"] = (
            statistics.median(each[side] for each in pairs) / 1e6 for side in (0, 1)
        )
        told["pairs"][name] = pairs
    bounds = {figure: bound for figure, bound in BOUNDS.items() if figure in figures}
    return Certificate("engines", figures, bounds, told)


def _pairs(name: str, options: Mapping[str, Any], packages: str, say: Say, told: Json) -> list[tuple[float, float]]:
    """(ours, the client's) in ns, a pair for each repetition."""
    engine = registry.find("engines", name)({})
    workload = Workload({"scale": options["scale"], "parameters": "validation"})
    statements = list(workload.statements(engine.sql, 1).values())
    pairs = []
    image, _ = system.obtain_image(Cache(), progress=say, software=image_software(engine))
    with native_arm(RESOURCES, say, engine=engine) as (host, arm, folder):
        told["host"] = facts.host(host)
        told.setdefault("engines", {})[name] = engine.key(arm)
        say(f"loading TPC-H into {name}")
        engine.create(arm, DATA)
        server = engine.start(arm, ServerPlace(), engine.load_settings(RESOURCES))
        workload.load(arm, engine.sql, server, lambda text: None)
        session = arm.serial(server.address, connection="persistent")
        engine.finish_load(session)
        session.close()
        engine.stop(arm, server)
        owner = arm.run(["stat", "--format=%u:%g", DATA]).output.decode().strip()

        def ours() -> float:
            return _ours(arm, engine, statements, options["passes"])

        def own() -> float:
            asked = {
                "engine": name,
                "settings": dict(engine.settings(RESOURCES)),
                "statements": [each.text for each in statements],
                "passes": options["passes"],
                **_where(engine, str(folder), image.path),
            }
            found = _own(asked, packages)
            arm.run(["chown", "--recursive", owner, DATA])
            return found

        for number in range(options["repetitions"]):
            took = {}
            for side in (ours, own) if number % 2 == 0 else (own, ours):
                took[side.__name__] = side()
            pairs.append((took["ours"], took["own"]))
            say(f"{name}: {took['ours'] / 1e6:.2f} ms, its own client {took['own'] / 1e6:.2f} ms")
    return pairs


def _where(engine: Any, folder: str, image: str) -> Json:
    """The data and the library as the host sees them."""
    if engine.name == "hyper":
        return {"database": f"{folder}/{hyper.FILE}"}
    return {
        "database": f"{folder}/{engine.name}",
        "library": image + engine.library,
        "preload": [image + path for path in engine.preload],
    }


def _ours(arm: Machine, engine: Any, statements: Sequence[Any], passes: int) -> float:
    server = engine.start(arm, ServerPlace(), engine.settings(RESOURCES))
    session = arm.serial(server.address, connection="persistent")
    times: list[list[int]] = []
    for _ in range(1 + passes):
        reply = session.visit(
            statements,
            query_protocol="simple",
            timing=VisitTiming(),
            answers={},
            lead_in=False,
            repeat=False,
            keep_rows=False,
        ).result()
        if bad := [each for each in reply.executions if each.outcome != "ok"]:
            raise DbtollError(f"{bad[0].statement}: {bad[0].error}")
        times.append([each.end_ns - each.start_ns for each in reply.executions])
    session.close()
    engine.stop(arm, server)
    return _turn(times[1:])


def _own(asked: Json, packages: str) -> float:
    done = subprocess.run(
        [sys.executable, own_client.__file__],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=CLIENT_DEADLINE_S,
        env={"PYTHONPATH": packages, "PATH": "/usr/bin:/bin", "HOME": packages},
        cwd=packages,
    )
    if done.returncode != 0:
        raise DbtollError(f"the client of {asked['engine']} failed: {done.stderr.strip()[-800:]}")
    return _turn(json.loads(done.stdout.splitlines()[-1]))


def _turn(times: Sequence[Sequence[int]]) -> float:
    """Geometric mean over the queries of each one's median, ns."""
    return statistics.geometric_mean(statistics.median(query) for query in zip(*times, strict=True))


def _install(packages: Sequence[str], folder: str, say: Say) -> None:
    if not packages:
        return
    say(f"fetching {', '.join(packages)}")
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        folder,
        *packages,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(
            f"{', '.join(packages)} cannot be fetched: {done.stderr.strip()[-400:]}", "pip needs its index"
        )
