"""Runs of experiments as Markdown for docs/results/: their answers, and the papers' tables and figures beside ours.

.dbtoll/venv/bin/python docs/make_tables.py RUN [RUN ...] > docs/results/NAME.md

Of minhas2008 Tables 1, 4 and 5, for each run by itself; of muehlbauer2015 Figure 5, for all runs of transactions together.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dbtoll.analysis.result import Result, analyze
from dbtoll.analysis.side_by_side import MINHAS2008, is_measured
from dbtoll.report import tables, words
from dbtoll.store.reader import Run, read_run


def main(folders: list[Path]) -> None:
    """See the head of this file."""
    read = [(analyze(folder), read_run(folder)) for folder in folders]
    for result, run in read:
        answers(result, run)
    figure5 = tables.markdown_figure5(
        (result, run.plan.experiment.workload.name, run.plan.experiment.engine.name) for result, run in read
    )
    if figure5:
        print(
            "\n## Figure 5 of muehlbauer2015: how much more (+) or less (-) is done than on the bare system; ours with intervals\n"
        )
        print(figure5)


def answers(result: Result, run: Run) -> None:
    """One run's."""
    labelled = words.labelled(result)
    host = run.facts["host"]
    print(f"# {result.question}\n")
    print(f"Expected before the run: {result.expected or 'nothing was said'}.\n")
    for line in words.headlines(labelled):
        print(f"- {line.sentence}")
    for line in words.contrasts(labelled):
        print(f"- {line}")
    print(f"\nRun {result.run}, dbtoll {run.begin.dbtoll}, stopped: {result.stopped}.")
    print(f"Host: {host['system']}, kernel {host['kernel']},")
    print(f"{host['cpus']} processors ({host['cpu_model']}){', itself a guest' if host['is_guest'] else ''}.\n")
    print(tables.markdown_arms(result))
    if result.windows:
        print(tables.markdown_throughput(result))
    others = [
        arm.name for arm in run.plan.experiment.arms if arm.name != run.plan.experiment.baseline and not arm.copy_of
    ]
    for number in sorted(MINHAS2008):
        for arm in (arm for arm in others if is_measured(result, number, arm)):
            print(f"\n## Table {number}: {MINHAS2008[number].title}; {arm}\n")
            print(tables.markdown_side_by_side(result, number, arm))


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
