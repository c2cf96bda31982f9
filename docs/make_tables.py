"""What docs/results/ says was measured, made of the runs that are kept in docs/results/runs/.

    .dbtoll/venv/bin/python docs/make_tables.py             all of it again, after a change of the analysis
    .dbtoll/venv/bin/python docs/make_tables.py RUN NAME    keeps the run folder RUN as NAME, then the same

On a page, what stands between `<!-- answers of NAME -->` or `<!-- figure 5 of NAME NAME … -->` and `<!-- end -->` is made here:
a run's answers with Tables 1, 4 and 5 of minhas2008 beside them, and Figure 5 of muehlbauer2015 for runs of transactions. All
else is written by hand. A folder of REPRODUCTIONS is what `dbtoll reproduce` writes.
"""

from __future__ import annotations

import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dbtoll.analysis import reproduction
from dbtoll.analysis.result.builder import analyze_run
from dbtoll.analysis.result.schema import Result
from dbtoll.analysis.side_by_side import MINHAS2008, is_measured
from dbtoll.report import reproduction as reproductions
from dbtoll.report import tables
from dbtoll.report.text import names, sentences
from dbtoll.store import schema
from dbtoll.store.reader import Run, read_run

RESULTS = Path(__file__).parent / "results"
RUNS = "runs"
KEPT = (schema.SPEC_FILE, schema.PLAN_FILE, schema.FACTS_FILE, schema.HISTORY_FILE)
"""All that an analysis reads of a run folder."""
REPRODUCTIONS = {
    "minhas2008-uml": ("minhas2008-uml-warm", "minhas2008-uml-cold", "minhas2008-uml-cold-without-read-ahead"),
}
MADE = re.compile(r"(<!-- (answers|figure 5) of ([^>]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(asked: Sequence[str]) -> None:
    """See the head of this file."""
    if asked:
        folder, name = asked
        keep(Path(folder), RESULTS / RUNS / f"{name}.tar.xz")
    for page in sorted(RESULTS.glob("*.md")):
        page.write_text(made_again(page.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
    for name in REPRODUCTIONS:
        reproduced(name, RESULTS, RESULTS / name)


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

    def part(found: re.Match[str]) -> str:
        head, kind, names, end = found.groups()
        with kept(names.split(), results) as runs:
            text = "\n".join(answers(runs[0]) if kind == "answers" else figure5(runs))
        return f"{head}\n{text.strip()}\n\n{end}"

    return MADE.sub(part, page)


def reproduced(name: str, results: Path, target: Path) -> None:
    """Writes a paper's page and tables into ``target``."""
    with kept(REPRODUCTIONS[name], results) as runs:
        explained = [analyze_run(run) for run in runs if run.plan.experiment.explain]
        reproductions.write(target, reproduction.reproduce(runs), explained, runs)


def answers(run: Run) -> Iterator[str]:
    """One run's."""
    result = analyze_run(run)
    labelled = names.with_arm_labels(result)
    yield f"Expected before the run: {result.expected or 'nothing was said'}.\n"
    for line in sentences.headlines(labelled):
        yield f"- {line.sentence}"
    for contrast in sentences.contrasts(labelled):
        yield f"- {contrast}"
    host = run.facts["host"]
    guest = ", itself a guest" if host["is_guest"] else ""
    yield f"\nRun {result.run}, dbtoll {run.begin.dbtoll}, {len(run.counted)} rounds, stopped: {result.stopped}."
    yield f"Host: {host['system']}, kernel {host['kernel']}, {host['cpus']} processors ({host['cpu_model']}){guest}.\n"
    yield tables.markdown_arms(result)
    if result.windows:
        yield tables.markdown_throughput(result)
    yield from side_by_side(result, run)


def side_by_side(result: Result, run: Run) -> Iterator[str]:
    """Each table of the paper for each arm."""
    experiment = run.plan.experiment
    others = [arm.name for arm in experiment.arms if arm.name != experiment.baseline and not arm.copy_of]
    for number in sorted(MINHAS2008):
        for arm in (arm for arm in others if is_measured(result, number, arm)):
            yield f"\n### Table {number}: {MINHAS2008[number].title}; {arm}\n"
            yield tables.markdown_side_by_side(result, number, arm)


def figure5(runs: Sequence[Run]) -> Iterator[str]:
    """Of all runs together."""
    yield tables.markdown_figure5((analyze_run(run), run.plan.experiment.workload.name) for run in runs)


if __name__ == "__main__":
    main(sys.argv[1:])
