"""What a long run costs: deciding whether to go on, its page, and its analysis.

The run is simulated: the real runner, specification to history, with arms that take no time. All that is measured is dbtoll's own
work, which is Python, so Python's clocks time it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dbtoll import spec
from dbtoll.analysis.effects import stopping
from dbtoll.model.options import Option
from dbtoll.runner import run as runs
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.store import schema
from dbtoll.store.reader import Run, read_run

SUMMARY = (
    "growth: stopping_exponent over the rounds of a run; page_mb of a long one; analysis_s, analysis_mb of many samples"
)
OPTIONS = {
    "rounds": Option("integer", 300, "of the long run; the exponent is fitted from a tenth of them on", least=10),
    "samples": Option(
        "integer", 1_000_000, "executions in the first rounds of it, as many as are analysed for analysis_s", least=1
    ),
    "queries": Option("integer", 22, "of TPC-H", least=1),
    "repetitions": Option("integer", 3, "of everything that is timed: the shortest counts", least=1),
}

OVERHEADS = {"native": 0.0, "docker": 0.02, "uml": 0.3, "qemu": 0.6}
"""Planted in the arms; with the baseline's copy they are five."""
HEAD = """\
question = "What does a long run cost?"
expected = "no more for each round than a short one"
[engine]
name = "noop"
[precision]
budget = "100h"
target = "0.0001%"
rounds_max = 1000000
[workload]
name = "tpch"
"""

PAGE = "from dbtoll.commands.inspect import write_page; write_page(folder)"
REPORT = "from dbtoll.commands.inspect import report; report(folder, as_json=True)"
"""Programs of `child`, over a run's ``folder``."""


class Until(Quiet):
    """A watch that ends a run after so many rounds, and looks at nothing."""

    def __init__(self, rounds: int, say: Say) -> None:
        super().__init__(say)
        self.rounds = rounds

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        return stopping.ROUNDS_MAX if len(run.counted) >= self.rounds else None


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """One long run; the run of ``samples`` is its first rounds."""
    rounds, repetitions = options["rounds"], options["repetitions"]
    with TemporaryDirectory(prefix="dbtoll-selfbench-") as temporary:
        text = specification(options["queries"])
        say(f"{rounds} simulated rounds")
        begin = time.monotonic()
        long = runs.begin(spec.parse(text, "selfbench growth"), text, Path(temporary, "runs"), Until(rounds, say))
        made_s = time.monotonic() - begin
        run = read_run(long)
        costs_s = np.min([deciding_s(run) for _ in range(repetitions)], axis=0)
        say(f"deciding: {costs_s.sum():.1f} s in {rounds} rounds")
        visits, samples = _size(run)
        few = first_rounds(run, options["samples"], Path(temporary, "few"))
        del run
        of_few = [child(PAGE, few) for _ in range(repetitions)]
        say(f"{options['samples']} samples: {min(each.wall_s for each in of_few):.1f} s")
        with_tables, of_long = child(REPORT, few), child(PAGE, long)
        few_visits, few_samples = _size(read_run(few))
        figures: dict[str, Any] = {
            "stopping_exponent": exponent(costs_s, rounds // 10),
            "stopping_s": float(costs_s.sum()),
            "page_mb": (long / schema.REPORT_FILE).stat().st_size / 1e6,
            "result_mb": (long / schema.RESULT_FILE).stat().st_size / 1e6,
            "analysis_s": min(each.wall_s for each in of_few),
            "analysis_mb": max(each.peak_mb for each in of_few),
            "samples": few_samples,
            "visits": few_visits,
            "analysis_cpu_s": min(each.cpu_s for each in of_few),
            "report_s": with_tables.wall_s,
            "report_mb": with_tables.peak_mb,
            "long_analysis_s": of_long.wall_s,
            "long_analysis_mb": of_long.peak_mb,
        }
        bounds = {
            "stopping_exponent": Bound(max=1.15),
            "page_mb": Bound(max=3),
            "analysis_s": Bound(max=10),
            "analysis_mb": Bound(max=600),
            "samples": Bound(min=options["samples"]),
        }
        told = {
            "long_run": {"rounds": rounds, "visits": visits, "samples": samples, "made_s": made_s},
            "analysis_s": [each.wall_s for each in of_few],
            "load": os.getloadavg()[0],
            "processors": len(os.sched_getaffinity(0)),
        }
        return Certificate("growth", figures, bounds, told)


def specification(queries: int) -> str:
    """Of the first so many queries, in all arms."""
    asked = ", ".join(f'"Q{number}"' for number in range(1, queries + 1))
    arms = (f'[[arm]]\nname = "{name}"\nstack = "simulated:effect={effect}"\n' for name, effect in OVERHEADS.items())
    return f"{HEAD}queries = [{asked}]\n{''.join(arms)}"


def deciding_s(run: Run) -> list[float]:
    """CPU time of the stopping rule after each round, as it is asked in a run: the records lie in memory."""
    precision = run.plan.experiment.precision
    found = []
    for rounds in range(1, len(run.attempts) + 1):
        so_far = replace(run, attempts=run.attempts[:rounds], end=None)
        begin = time.process_time()
        if stopping.must_look(0.0, 1.0, precision, len(so_far.counted)):
            stopping.look(so_far, precision, elapsed_s=0.0, next_round_s=1.0)
        found.append(time.process_time() - begin)
    return found


def exponent(costs_s: Sequence[float], rounds_min: int) -> float:
    """Of the cost of all decisions up to a round, over the number of that round: the slope of the least-squares line through the
    logarithms, at the looks from ``rounds_min`` on."""
    together = np.cumsum(costs_s)
    looks = [rounds for rounds in range(rounds_min, len(together) + 1) if stopping.is_due(rounds)]
    return float(np.polyfit(np.log(looks), np.log(together[np.array(looks) - 1]), 1)[0])


def first_rounds(run: Run, samples: int, folder: Path) -> Path:
    """A run folder with the first rounds of ``run`` that have so many executions together: what was there when it was as long.

    All of them, where they have fewer.
    """
    lines, seen = 1 + len(run.outside), 0
    for attempt in run.attempts:
        if seen >= samples:
            break
        lines += 2 + len(attempt.records)
        seen += _executions(attempt.records)
    folder.mkdir()
    for name in (schema.SPEC_FILE, schema.PLAN_FILE, schema.FACTS_FILE):
        (folder / name).write_bytes((run.folder / name).read_bytes())
    with (run.folder / schema.HISTORY_FILE).open("rb") as history, (folder / schema.HISTORY_FILE).open("wb") as first:
        first.writelines(line for line, _ in zip(history, range(lines), strict=False))
    return folder


def _executions(records: Sequence[schema.Record]) -> int:
    visits = [record for record in records if isinstance(record, schema.Visit)]
    return sum(len(unit.executions) for visit in visits for unit in visit.units)


def _size(run: Run) -> tuple[int, int]:
    """Visits and executions."""
    return sum(1 for _ in run.all_visits()), sum(_executions(attempt.records) for attempt in run.attempts)


@dataclass(frozen=True, slots=True)
class Child:
    """What a program took from its start to its end; ``peak_mb``: the most memory that it held, in units of 10**6 bytes."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def child(program: str, folder: Path) -> Child:
    """Runs a program of Python over a run folder, in a process of its own.

    BIAS: what the system says of the peak of a child counts its parent's memory too, which it shares before it becomes the program.
    So the child reads its own.
    """
    around = f"import sys, time; from pathlib import Path; folder = Path(sys.argv[1]); {program}; {_TELL}"
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", around, str(folder)], capture_output=True, check=True, text=True)
    wall_s = time.monotonic() - begin
    cpu_s, peak_kb = done.stderr.split()[-2:]
    return Child(wall_s, float(cpu_s), int(peak_kb) * 1024 / 1e6)


_TELL = (
    "status = dict(line.split(':', 1) for line in open('/proc/self/status')); "
    "print(time.process_time(), status['VmHWM'].split()[0], file=sys.stderr)"
)
