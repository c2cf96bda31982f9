"""Tables 1, 4 and 5 of minhas2008 beside a run of experiments/minhas2008, as Markdown for docs/results/.

.dbtoll/venv/bin/python docs/make_tables.py RUN ARM > docs/results/NAME.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from dbtoll.analysis.result import analyze
from dbtoll.report import tables, words
from dbtoll.store.reader import read_run

TABLES = {
    1: "a new connection for every query, warm",
    4: "one connection, warm",
    5: "a new connection for every query, cold",
}


def main(folder: Path, arm: str) -> None:
    """See the head of this file."""
    result, run = analyze(folder), read_run(folder)
    host = run.facts["host"]
    print(f"# {result.question}\n")
    print(f"Expected before the run: {result.expected}.\n")
    for line in words.headlines(result):
        print(f"- {line.sentence}")
    print(f"\nRun {result.run}, dbtoll {run.begin.dbtoll}, stopped: {result.stopped}.")
    print(f"Host: {host['system']}, kernel {host['kernel']},")
    print(f"{host['cpus']} processors ({host['cpu_model']}){', itself a guest' if host['is_guest'] else ''}.\n")
    print(tables.markdown_arms(result))
    for number, what in TABLES.items():
        print(f"\n## Table {number}: {what}\n")
        print(tables.markdown_side_by_side(result, number, arm))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
