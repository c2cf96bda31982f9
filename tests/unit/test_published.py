"""What every paper carries: its tables and claims; and one paper's samples, where a clone of its authors' is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dbtoll import registry, spec
from dbtoll.analysis.effects.stats import midmean
from dbtoll.analysis.reproduction.paper import Paper
from dbtoll.analysis.reproduction.published import percent_geomean, percent_of_totals, read_table
from dbtoll.errors import SpecError, UsageError
from dbtoll.papers.minhas2008.published import table as minhas_table
from dbtoll.papers.muehlbauer2015.published import overhead, run_times, samples, spread, table

ROOT = Path(__file__).parents[2]
RAW = Path(os.environ.get("DBTOLL_MUEHLBAUER2015_RAW", ROOT.parent / "shared/published/muehlbauer2015/raw"))
needs_raw = pytest.mark.skipif(
    not (RAW / "tpch10-hyper-4threads-bare.csv").is_file(),
    reason="the authors' samples are not here; set DBTOLL_MUEHLBAUER2015_RAW to the TPC-H folder of a clone of "
    "github.com/muehlbau/mmdbms-virtualized",
)


@needs_raw
@pytest.mark.parametrize(
    ("system", "environment", "percent"),
    [
        ("HyPer", "kvm", 18.2),
        ("HyPer", "virtualbox", 29.9),
        ("MonetDB", "kvm", 73.2),
        ("MonetDB", "virtualbox", 557.4),
    ],
)
def test_the_authors_samples_read_as_our_own_give_their_figures(system: str, environment: str, percent: float) -> None:
    times = samples(RAW, system, 4, ("bare", environment))
    assert times.ns.shape == (1, 10, 22, 2)
    assert round(percent_of_totals(times, environment, "bare"), 1) == percent
    # dbtoll's own location is robust to the first run, which is slower in guests and inside the published mean.
    assert percent_of_totals(times, environment, "bare", midmean) < percent
    assert percent_geomean(times, environment, "bare") < percent


@needs_raw
def test_the_table_that_is_carried_is_that_of_the_samples() -> None:
    rows = table("tpch_sf10_by_query")
    cells = {(row["system"], int(row["threads"]), row["environment"]) for row in rows}
    assert len(cells) == 31
    for system, threads, environment in cells:
        own = samples(RAW, system, threads, (environment,)).ns[0, :, :, 0]
        means = run_times(system, threads, (environment,)).ns[0, 0, :, 0]
        medians = run_times(system, threads, (environment,), "median_s").ns[0, 0, :, 0]
        assert own.mean(axis=0) == pytest.approx(means, rel=1e-5)
        assert np.median(own, axis=0) == pytest.approx(medians, rel=1e-5)


@needs_raw
def test_the_spread_of_the_authors_runs_lies_around_their_figure(tmp_path: Path) -> None:
    for system, environment in (("HyPer", "kvm"), ("MonetDB", "virtualbox-shm")):
        low, high = spread(RAW, system, 4, environment)
        found = overhead(system, 4, environment)
        assert found is not None and low < found < high < low + 0.2
    # Q9 alone is far above all of them together.
    assert spread(RAW, "MonetDB", 4, "kvm", ["Q9"])[0] > spread(RAW, "MonetDB", 4, "kvm")[1]


def test_missing_or_foreign_samples_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tpch10-hyper-1thread-bare\.csv: not the raw data"):
        samples(tmp_path, "HyPer", 1, ("bare",))
    (tmp_path / "tpch10-hyper-4threads-bare.csv").write_text("Query,run 1\n1,fast\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"tpch10-hyper-4threads-bare\.csv: not the raw data"):
        samples(tmp_path, "HyPer", 4, ("bare",))


ROWS = {
    "minhas2008/table1_warm_overhead": 22,
    "minhas2008/table2_system_calls": 10,
    "minhas2008/table3_page_faults": 10,
    "minhas2008/table4_single_connection": 10,
    "minhas2008/table5_cold_overhead": 22,
    "minhas2008/table6_disk_activity": 22,
    "zhang2014/disk_statistics_by_tenants": 12,
    "zhang2014/table1_device_iops": 4,
    "zhang2014/table2_best_placement": 7,
    "zhang2014/table8_disk_statistics_by_warehouses": 8,
    "muehlbauer2015/oltp_throughput": 8,
    "muehlbauer2015/table2_gce": 10,
    "muehlbauer2015/tpch_sf10_by_query": 31 * 22,
    "ijcrt2021/table1_disk_activity_by_scheduler_pair": 9,
    "ijcrt2021/table2_cpu_by_scheduler_pair": 9,
}


@pytest.fixture(params=registry.names("papers"))
def paper(request: pytest.FixtureRequest) -> Paper:
    """Every paper of the registry."""
    return registry.find("papers", request.param)()


def test_a_paper_is_whole(paper: Paper) -> None:
    """Its folder has its name, its tables can be read, every claim has its rule if it is measured here."""
    assert paper.folder.name == paper.name and paper.about.title and paper.about.venue
    tables = {f"{paper.name}/{path.stem}": len(read_table(path)) for path in (paper.folder / "tables").iterdir()}
    assert tables == {name: rows for name, rows in ROWS.items() if name.startswith(f"{paper.name}/")}
    identities = [claim.id for claim in paper.claims]
    assert identities and len(set(identities)) == len(identities)
    assert set(paper.checks) == {
        claim.id for claim in paper.claims if claim.checkable_from_published_tables in {"yes", "partly"}
    }
    assert set(paper.rules) == (set(identities) if paper.about.parts else set())


def test_the_parts_of_a_paper_say_which_they_are(paper: Paper) -> None:
    """What a run keeps of its paper and role is what the paper knows the part by."""
    environment = paper.about.environment
    for part in paper.about.parts:
        file = paper.folder / part.file
        needed = {name: f"ssh:{name}" for name in part.needs if name != "exclusive"}
        declared = spec.variables_of(file)
        assert needed.keys() == {name for name, option in declared.items() if option.default is None}
        values = needed or ({"environment": environment} if "environment" in declared else {})
        experiment, _ = spec.read(file, exclusive="exclusive" in part.needs, variables=values)
        assert (experiment.paper, experiment.role) == (paper.name, part.role)
        assert set(values.values()) <= {name for arm in experiment.arms for name in (arm.name, arm.text)}
        if "exclusive" in part.needs:
            with pytest.raises(SpecError, match="drops the page cache"):
                spec.read(file)


def test_no_paper_is_named_outside_of_its_folder() -> None:
    """So that another one is one folder, and nothing else."""
    package = ROOT / "src/dbtoll"
    for path in package.rglob("*"):
        if path.is_file() and path.suffix in {".py", ".j2", ".toml", ".sql", ".css", ".csv"}:
            text = path.read_text(encoding="utf-8")
            for name in registry.names("papers"):
                assert name not in text or path.is_relative_to(package / "papers" / name), (path, name)


def test_what_is_wrong_with_a_paper_names_the_file(tmp_path: Path) -> None:
    class Other(Paper):
        name = "other"
        folder = tmp_path

    with pytest.raises(SpecError, match=r"paper\.toml:1: .*No such file"):
        _ = Other().about
    (tmp_path / "paper.toml").write_text('title = "T"\nvenue = "V"\nyear = 2020\n')
    with pytest.raises(SpecError, match=r"paper\.toml:1: .*year"):
        _ = Other().about
    with pytest.raises(SpecError, match=r"claims\.csv:1: No such file"):
        _ = Other().claims
    (tmp_path / "claims.csv").write_text("id,claim\nX1,it is slow\n")
    with pytest.raises(SpecError, match=r"claims\.csv:2: .*missing required field"):
        _ = Other().claims


def test_the_tables_agree_with_themselves() -> None:
    """Printed slowdowns are those of the printed run times, as far as their rounding tells."""
    for name in ("table1_warm_overhead", "table4_single_connection", "table5_cold_overhead"):
        for row in minhas_table(name):
            base, xen, printed = (float(row[k]) for k in ("base_runtime_s", "xen_runtime_s", "rel_slowdown_pct"))
            least, most = (100 * ((xen + sign * 0.005) / (base - sign * 0.005) - 1) for sign in (-1, 1))
            assert least - 0.01 <= printed <= most + 0.01, (name, row["query"])
