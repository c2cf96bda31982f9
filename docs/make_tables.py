"""A run of experiments/minhas2008 as Markdown for docs/results/: its answers, and Tables 1, 4 and 5 beside the paper's.

.dbtoll/venv/bin/python docs/make_tables.py RUN > docs/results/NAME.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from dbtoll.analysis.result import analyze
from dbtoll.analysis.side_by_side import MINHAS2008, is_measured
from dbtoll.report import tables, words
from dbtoll.store.reader import read_run


def main(folder: Path) -> None:
    """See the head of this file."""
    result, run = analyze(folder), read_run(folder)
    labelled = words.labelled(result)
    host = run.facts["host"]
    print(f"# {result.question}\n")
    print(f"Expected before the run: {result.expected}.\n")
    for line in words.headlines(labelled):
        print(f"- {line.sentence}")
    for line in words.contrasts(labelled):
        print(f"- {line}")
    print(f"\nRun {result.run}, dbtoll {run.begin.dbtoll}, stopped: {result.stopped}.")
    print(f"Host: {host['system']}, kernel {host['kernel']},")
    print(f"{host['cpus']} processors ({host['cpu_model']}){', itself a guest' if host['is_guest'] else ''}.\n")
    print(tables.markdown_arms(result))
    others = [
        arm.name for arm in run.plan.experiment.arms if arm.name != run.plan.experiment.baseline and not arm.copy_of
    ]
    for number in sorted(MINHAS2008):
        for arm in (arm for arm in others if is_measured(result, number, arm)):
            print(f"\n## Table {number}: {MINHAS2008[number].title}; {arm}\n")
            print(tables.markdown_side_by_side(result, number, arm))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
