"""What docs/results/ says was measured, made of the runs that are kept in docs/results/runs/.

    .dbtoll/venv/bin/python docs/make_tables.py             all of it again, after a change of the analysis
    .dbtoll/venv/bin/python docs/make_tables.py RUN NAME    keeps the run folder RUN as NAME, then the same

On a page, what stands between one of these comments and `<!-- end -->` is made here; all else is written by hand:

    <!-- answers of NAME -->            a run's answers
    <!-- PAPER beside NAME -->          a paper's tables with that run's figures beside them
    <!-- figure 5 of NAME NAME … -->    Figure 5 of muehlbauer2015, with several runs as its lines

A folder of REPRODUCTIONS is what `dbtoll reproduce` writes, one of SWEEPS the page and the tables of `dbtoll sweep`.
"""

from __future__ import annotations

import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from dbtoll import registry
from dbtoll.analysis.reproduction.paper import Paper
from dbtoll.analysis.reproduction.tables import Cell, Difference
from dbtoll.analysis.result.builder import analyze_run
from dbtoll.analysis.result.schema import Result
from dbtoll.analysis.sweeps import builder as sweeps
from dbtoll.papers.muehlbauer2015 import figure5
from dbtoll.report import published, tables
from dbtoll.report import reproduction as reproductions
from dbtoll.report import sweep as sweep_pages
from dbtoll.report.text import names, sentences
from dbtoll.store import schema
from dbtoll.store.reader import Run, read_run

RESULTS = Path(__file__).parent / "results"
RUNS = "runs"
KEPT = (schema.SPEC_FILE, schema.PLAN_FILE, schema.FACTS_FILE, schema.HISTORY_FILE)
"""All that an analysis reads of a run folder."""
REPRODUCTIONS: Mapping[str, tuple[str, Mapping[str, str | tuple[str, ...]]]] = {
    "minhas2008-uml": (
        "minhas2008",
        {
            "warm": "minhas2008-uml-warm",
            "cold": "minhas2008-uml-cold",
            "cold without read-ahead": "minhas2008-uml-cold-without-read-ahead",
        },
    ),
    "muehlbauer2015-qemu": (
        "muehlbauer2015",
        {
            "hyper": "muehlbauer2015-qemu-hyper",
            "monetdb": "muehlbauer2015-qemu-monetdb",
            "storage": "muehlbauer2015-qemu-storage",
            "tpcc": "muehlbauer2015-qemu-tpcc",
            "tatp": "muehlbauer2015-qemu-tatp",
            "probes": "muehlbauer2015-qemu-probes",
            "remote hyper": "muehlbauer2015-qemu-remote-hyper",
            "remote monetdb": "muehlbauer2015-qemu-remote-monetdb",
            "remote tpcc": "muehlbauer2015-qemu-remote-tpcc",
            "remote tatp": "muehlbauer2015-qemu-remote-tatp",
        },
    ),
    "zhang2014-docker": (
        "zhang2014",
        {
            "tenants": tuple(f"zhang2014-tenants-{tenants}" for tenants in (4, 16)),
            "other engine": tuple(f"zhang2014-other-engine-{tenants}" for tenants in (8,)),
            "placement": tuple(f"zhang2014-placement-{tenants}" for tenants in (4,)),
            "probes": "zhang2014-probes",
            "size": tuple(f"zhang2014-size-{warehouses}" for warehouses in (1, 2, 8)),
            "disks": tuple(f"zhang2014-disks-{tenants}" for tenants in (8,)),
        },
    ),
}
"""Folder -> its paper, and what is kept of each part: a run, or those of a sweep. Plans of minhas2008 have no key `role` yet."""
SWEEPS: Mapping[str, tuple[str, ...]] = {"zhang2014-tenants": ("zhang2014-tenants-4", "zhang2014-tenants-16")}
"""Folder -> the runs of its values."""
MADE = re.compile(r"(<!-- (answers of|\w+ beside|figure 5 of) ([^>]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(asked: Sequence[str]) -> None:
    """See the head of this file."""
    if asked:
        folder, name = asked
        keep(Path(folder), RESULTS / RUNS / f"{name}.tar.xz")
    for page in sorted(RESULTS.glob("*.md")):
        page.write_text(made_again(page.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
    for name in REPRODUCTIONS:
        reproduced(name, RESULTS, RESULTS / name)
    for name in SWEEPS:
        swept(name, RESULTS, RESULTS / name)


def keep(folder: Path, archive: Path) -> None:
    """Its paths, owners and times are not kept, so that it tells nothing of the machine but what its facts tell."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    archive.parent.mkdir(exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as archived:
        for name in KEPT:
            archived.add(folder / name, f"{folder.name}/{name}", filter=anonymous)


@contextmanager
def kept(names: Sequence[str], results: Path) -> Iterator[list[Run]]:
    """The runs of those names, read."""
    with tempfile.TemporaryDirectory() as room:
        runs = []
        for name in names:
            with tarfile.open(results / RUNS / f"{name}.tar.xz") as archived:
                # Python 3.11.2 (Debian 12) has no filters yet.
                archived.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
                archived.extractall(room)
                runs.append(read_run(Path(room) / Path(archived.getnames()[0]).parent))
        yield runs


def made_again(page: str, results: Path) -> str:
    """A page with its measured parts as the analysis makes them now."""

    shown = list(dict.fromkeys(name for found in MADE.finditer(page) for name in found[3].split()))
    with kept(shown, results) as runs:
        analysed = {name: (run, analyze_run(run)) for name, run in zip(shown, runs, strict=True)}

    def part(found: re.Match[str]) -> str:
        head, kind, asked, end = found.groups()
        own = [analysed[name] for name in asked.split()]
        if kind == "answers of":
            lines = answers(*own[0])
        elif kind == "figure 5 of":
            lines = figure5_of(own)
        else:
            lines = beside(kind.removesuffix(" beside"), *own[0])
        text = "\n".join(lines)
        return f"{head}\n{text.strip()}\n\n{end}"

    return MADE.sub(part, page)


def swept(name: str, results: Path, target: Path) -> None:
    """Writes a sweep's page and tables into ``target``."""
    with kept(SWEEPS[name], results) as runs:
        results_of = [analyze_run(run) for run in runs]
        sweep_pages.write(target, sweeps.analyze(runs), results_of, runs, is_beside_runs=False)
    (target / sweep_pages.RESULT_FILE).unlink()  # its figures are those of the tables


def reproduced(name: str, results: Path, target: Path) -> None:
    """Writes a paper's page and tables into ``target``."""
    of_paper, parts = REPRODUCTIONS[name]
    paper = found(of_paper)
    with kept(kept_names(parts), results) as runs:
        left = iter(runs)
        made = paper.reproduce({role: list(islice(left, len(kept_names({role: its})))) for role, its in parts.items()})
        reproductions.write(target, paper.about, made, [analyze_run(run) for run in runs], runs)


def kept_names(parts: Mapping[str, str | tuple[str, ...]]) -> list[str]:
    """Of all runs, part by part."""
    return [name for its in parts.values() for name in ([its] if isinstance(its, str) else its)]


def found(name: str) -> Paper:
    """The paper of that name."""
    return registry.find("papers", name)()


def answers(run: Run, result: Result) -> Iterator[str]:
    """One run's."""
    labelled = names.with_arm_labels(result)
    expected = (result.expected or "nothing was said").rstrip(".")
    yield f"Expected before the run: {expected}.\n"
    for line in sentences.headlines(labelled):
        yield f"- {line.sentence}" + (f". {line.note}" if line.note else "")
    for contrast in sentences.contrasts(labelled):
        yield f"- {contrast}"
    host = run.facts["host"]
    guest = ", itself a guest" if host["is_guest"] else ""
    yield f"\nRun {result.run}, dbtoll {run.begin.dbtoll}, {len(run.counted)} rounds, stopped: {result.stopped}."
    yield f"Host: {host['system']}, kernel {host['kernel']}, {host['cpus']} processors ({host['cpu_model']}){guest}.\n"
    yield tables.markdown_arms(result)
    if result.windows:
        yield tables.markdown_throughput(result)
    if result.interference:
        yield tables.markdown_interference(result)


def beside(name: str, run: Run, result: Result) -> Iterator[str]:
    """A paper's tables with the figures of a run."""
    result = names.with_arm_labels(result)
    baseline = next(c.baseline for c in result.comparisons)
    for each in found(name).beside(result, run.plan.experiment):
        yield f"\n### {each.name}: {each.title}; {each.arm}\n"
        yield f"{each.name} of {name} ({each.title}); ours: {each.arm} against {baseline}, run {result.run}\n"
        yield published.markdown(each, result.margin)


def figure5_of(runs: Sequence[tuple[Run, Result]]) -> Iterator[str]:
    """A column for each environment, for each workload the published line and then one for each run and combination of levels."""
    printed: dict[str, dict[str, str]] = {}
    ours: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for run, unlabelled in runs:
        result, experiment = names.with_arm_labels(unlabelled), run.plan.experiment
        workload, engine = names.workload_title(result), names.engine_title(result)
        not_ok = sentences.arms_not_ok(result)
        for each in found("muehlbauer2015").beside(result, experiment):
            column = each.columns[figure5.MEASURED_DIFFERENCE - 1]
            rows = {_head(row[0], row[figure5.ARM]): row for row in each.rows if row[0] != figure5.BARE}
            printed.setdefault(workload, {}).update(
                (head, published.cell_text(row[figure5.PRINTED_DIFFERENCE], column, result.margin))
                for head, row in rows.items()
            )
            own = (engine, published.levels_of(each, result), f"run {result.run}")
            cells = {
                head: published.cell_text(difference, column, result.margin)
                + (f" ({not_ok[arm]})" if (arm := str(row[figure5.ARM])) in not_ok else "")
                for head, row in rows.items()
                if isinstance(difference := row[figure5.MEASURED_DIFFERENCE], Difference)
            }
            ours.setdefault(workload, []).append((", ".join(filter(None, own)), cells))
    columns = list(dict.fromkeys(head for of_workload in printed.values() for head in of_workload))
    lines = [
        [workload, engine, *(cells.get(head, "\N{EN DASH}") for head in columns)]
        for workload, of_workload in printed.items()
        for engine, cells in [("HyPer, published", of_workload), *ours[workload]]
    ]
    if lines:
        yield tables.markdown_table(["workload", "engine", *columns], lines, right=range(2, 2 + len(columns)))


def _head(environment: Cell, arm: Cell) -> str:
    """``qemu (emulated), published: kvm``"""
    if arm is None or environment is None:
        return str(arm) if arm is not None else f"published: {environment}"
    return str(arm) if arm == environment else f"{arm}, published: {environment}"


if __name__ == "__main__":
    main(sys.argv[1:])
