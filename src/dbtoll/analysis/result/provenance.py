"""Where the figures of a run come from: when, of what, on which machine. No name of a host is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import msgspec

from dbtoll.model.json import Json
from dbtoll.store.reader import Run
from dbtoll.store.schema import Start


@dataclass(frozen=True, slots=True)
class Provenance:
    """What tells one run from another. None: the run folder does not tell.

    ``date``: when it began, UTC, ISO 8601 without an offset, which all tools read alike. ``workload_options``: JSON.
    ``engine_version``: of the baseline's server. ``machine``: a description of the host; machines of one kind have the same.
    ``dbtoll``: the version that measured.
    """

    run: str
    run_name: str
    date: str | None
    question: str
    workload: str
    workload_options: str
    engine: str
    engine_version: str | None
    machine: str | None
    kernel: str | None
    dbtoll: str
    spec_sha256: str


def of(run: Run) -> Provenance:
    """From the run folder alone."""
    experiment, host = run.plan.experiment, run.host
    return Provenance(
        run=run.begin.run,
        run_name=run_name(run),
        date=_date(run.begin.started_at),
        question=experiment.question,
        workload=experiment.configuration.workload.name,
        workload_options=msgspec.json.encode(experiment.configuration.workload.options, order="sorted").decode(),
        engine=experiment.configuration.engine.name,
        engine_version=engine_version(run),
        machine=_machine(host),
        kernel=_text(host.get("kernel")),
        dbtoll=run.begin.dbtoll,
        spec_sha256=run.begin.spec_sha256,
    )


def run_name(run: Run) -> str:
    """What people call the run: the name of its folder when it was made."""
    return run.begin.run


def engine(run: Run) -> Json:
    """The engine's name and version, for the facts of a result."""
    return {"name": run.plan.experiment.configuration.engine.name, "version": engine_version(run)}


def engine_version(run: Run) -> str | None:
    """``15.14``, as the baseline's server says; else as that of any arm does; None where none tells."""
    baseline = run.plan.experiment.baseline
    told = [(start.arm != baseline, version) for start in _starts(run) if (version := version_of(start.facts))]
    return min(told, key=lambda each: each[0])[1] if told else None


def _starts(run: Run) -> Iterator[Start]:
    return (record for record in chain(run.records(Start), run.outside) if isinstance(record, Start))


def version_of(facts: Json) -> str | None:
    """Of ``PostgreSQL 15.14 (Debian 15.14-0+deb12u1) on x86_64-pc-linux-gnu …`` and ``10.11.14-MariaDB-0+deb12u2`` the number."""
    found = re.search(r"(?<![\w.])\d+[\w.]*", text) if (text := _text(facts.get("version"))) else None
    return found[0] if found else None


def _date(started_at: str) -> str | None:
    try:
        return datetime.fromisoformat(started_at).astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return None


def _machine(host: Json) -> str | None:
    """``AMD EPYC 9354, 2 processors``"""
    cpus = host.get("cpus")
    parts = [_text(host.get("cpu_model")), f"{cpus} processor{'s' * (cpus != 1)}" if isinstance(cpus, int) else None]
    return ", ".join(part for part in parts if part) or None


def remote_hosts(run: Run) -> Iterator[str]:
    """What the other hosts are on which arms stood: ``far on lab1: AMD EPYC 9354, 2 processors, Linux 6.1, m7a.large (AWS)``."""
    told = run.facts.get("remote_hosts")
    for arm, host in told.items() if isinstance(told, dict) else ():
        if isinstance(host, dict):
            yield f"{arm} on {_text(host.get('host')) or 'another host'}: {', '.join(_parts(host)) or 'it told nothing'}"


def _parts(host: Json) -> Iterator[str]:
    kernel, hypervisor = _text(host.get("kernel")), _text(host.get("hypervisor"))
    dmi, instance = host.get("dmi"), host.get("instance")
    if machine := _machine(host):
        yield machine
    if kernel:
        yield f"Linux {kernel}"
    if isinstance(dmi, dict):
        yield from filter(None, [" ".join(filter(None, (_text(dmi.get(n)) for n in ("sys_vendor", "product_name"))))])
    if hypervisor:
        yield f"hypervisor {hypervisor}"
    if isinstance(instance, dict):
        yield f"{_text(instance.get('type'))} ({_text(instance.get('cloud'))})"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
