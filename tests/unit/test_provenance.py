"""Where the figures of a run come from, as rows of results.csv and a result's facts tell it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result import provenance
from dbtoll.report import export
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import Record, Start
from dbtoll.store.upgrade import completed
from tests.support.changed import changed_run, revised
from tests.support.make_run import DOCKER, NATIVE, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(make_run(tmp_path_factory.mktemp("provenance") / "20260131-235959-abcdef", rounds=2))


def versions(source: Path, folder: Path, **told: Any) -> Run:
    """The run in which the servers tell these versions, by arm; others tell none."""

    def change(record: Record) -> list[Record]:
        if not isinstance(record, Start):
            return [record]
        facts = {**record.facts, "version": told.get(record.arm)}
        return [revised(record, servers=({key: value for key, value in facts.items() if value is not None},))]

    return read_run(changed_run(source, folder, change))


def test_it_is_what_the_folder_tells(run: Run) -> None:
    found = provenance.of(run)
    assert found == provenance.Provenance(
        run="20260131-235959-abcdef",
        run_name="20260131-235959-abcdef",
        date=run.begin.started_at.removesuffix("+00:00"),
        question="How much does PostgreSQL lose on TPC-H in Docker?",
        workload="tpch",
        workload_options='{"scale":0.1}',
        engine="postgres",
        engine_version="15.14",
        machine="Simulated CPU, 2 processors",
        kernel="6.12.0",
        dbtoll=run.begin.dbtoll,
        spec_sha256=run.begin.spec_sha256,
    )
    assert results.analyze_run(run).facts["engine"] == {"name": "postgres", "version": "15.14"}


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("PostgreSQL 15.14 (Debian 15.14-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc 12.2.0, 64-bit", "15.14"),
        ("PostgreSQL 18beta2 on aarch64-unknown-linux-gnu", "18beta2"),
        ("10.11.14-MariaDB-0+deb12u2", "10.11.14"),
        ("a server", None),
        ("", None),
        (17, None),
        (["15.14"], None),
    ],
)
def test_the_version_is_a_number(run: Run, tmp_path: Path, told: Any, version: str | None) -> None:
    assert provenance.engine_version(versions(run.folder, tmp_path / "run", native=told)) == version


def test_the_version_is_the_baselines_where_it_tells_one(run: Run, tmp_path: Path) -> None:
    both = versions(run.folder, tmp_path / "both", **{DOCKER: "PostgreSQL 16.1", NATIVE: "PostgreSQL 15.1"})
    assert provenance.engine_version(both) == "15.1"
    other = versions(run.folder, tmp_path / "other", **{DOCKER: "PostgreSQL 16.1"})
    assert provenance.engine_version(other) == "16.1"
    none = versions(run.folder, tmp_path / "none")
    assert results.analyze_run(none).facts["engine"] == {"name": "postgres", "version": None}


@pytest.mark.parametrize(
    ("started_at", "date"),
    [
        ("2026-01-31T23:59:59+00:00", "2026-01-31T23:59:59"),
        ("2026-02-01T01:59:59.75+02:00", "2026-01-31T23:59:59"),
        ("2026-01-31T23:59:59Z", "2026-01-31T23:59:59"),
        ("yesterday", None),
        ("", None),
        ("0001-01-01T00:00:00+14:00", None),
    ],
)
def test_the_date_is_in_utc(run: Run, started_at: str, date: str | None) -> None:
    begin = revised(run.begin, started_at=started_at)
    assert provenance.of(replace(run, begin=begin)).date == date


@pytest.mark.parametrize(
    ("host", "machine", "kernel"),
    [
        ({"cpu_model": "A", "cpus": 1, "kernel": "6.1"}, "A, 1 processor", "6.1"),
        ({"cpu_model": None, "cpus": 8}, "8 processors", None),
        ({"cpu_model": "A", "cpus": "many", "kernel": 6}, "A", None),
        ({}, None, None),
        ("no facts", None, None),
        (None, None, None),
    ],
)
def test_a_host_that_tells_little_is_described_by_that(
    run: Run, tmp_path: Path, host: Any, machine: str | None, kernel: str | None
) -> None:
    little = replace(run, facts={**completed({}, run.plan.experiment), "host": host})
    found = provenance.of(little)
    assert (found.machine, found.kernel) == (machine, kernel)
    paths = export.write(tmp_path, results.analyze_run(little), little)
    rows = duckdb.sql(f"SELECT DISTINCT machine, kernel FROM '{tmp_path}/tables/results.parquet'").fetchall()
    assert rows == [(machine, kernel)] and paths


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (None, []),
        ({"far": 7}, []),
        ({"far": {}}, ["far on another host: it told nothing"]),
        ({"far": {"host": "lab1", "kernel": 6, "dmi": "x", "instance": []}}, ["far on lab1: it told nothing"]),
        (
            {
                "far": {
                    "host": "lab1",
                    "cpu_model": "AMD EPYC",
                    "cpus": 2,
                    "kernel": "6.1.0",
                    "dmi": {"sys_vendor": "Amazon EC2", "product_name": "m7a.large"},
                    "hypervisor": "KVMKVMKVM",
                    "instance": {"cloud": "AWS", "type": "m7a.large"},
                }
            },
            [
                "far on lab1: AMD EPYC, 2 processors, Linux 6.1.0, Amazon EC2 m7a.large, hypervisor KVMKVMKVM, m7a.large (AWS)"
            ],
        ),
    ],
)
def test_other_hosts_are_told_by_arm(run: Run, told: Any, lines: list[str]) -> None:
    assert list(provenance.remote_hosts(replace(run, facts={**run.facts, "remote_hosts": told}))) == lines
