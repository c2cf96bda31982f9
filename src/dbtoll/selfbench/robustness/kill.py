"""Whether a run survives being killed: SIGKILL at random moments, `clean`, and on with `--resume`.

Each life of a run (its beginning, and every time that it is resumed) is killed at a moment drawn uniformly over its
preparation and its next two rounds, until a life gets through first; then the next run is begun. Every kill is followed by
`dbtoll clean` and by a comparison of what the machine carries.

Three more runs are about their folders: while one goes on, copies of its folder and journal are cleaned; one's folder is deleted
after it was killed; one's journal comes to be of another machine.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dbtoll import facts
from dbtoll.errors import DbtollError, RunFolderError
from dbtoll.images.cache import Cache, default_root, scratch
from dbtoll.machines.agent.local import open_local
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.runner.cleanup.journal import SUFFIX, journals
from dbtoll.selfbench.support import available
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.inventory import Marks, Process, carried, descendants, settings
from dbtoll.store import schema
from dbtoll.store.reader import read_run

SUMMARY = "a run that is killed (SIGKILL) at random moments, copied, deleted: kills, folders, resumed, lost_rounds, left_behind"

OPTIONS = {
    "kills": Option("integer", 20, "how often", least=1),
    "seed": Option("integer", 1, "of the moments and ways of killing", least=0),
    "environments": available.ENVIRONMENTS,
    "scale": Option("number", 0.01, "scale factor of TPC-H"),
    "rounds": Option("integer", 4, "rounds of a run", least=2),
}

WAYS = ("the process", "its process group", "the process and its agent")
"""What is killed at once. With the agent gone too, nobody is left who would tidy up."""

FOLDERS = 3
"""A copied, a deleted and a foreign one."""

SETTLED_S = 5.0
"""How long after `clean` a process may take to vanish that it has sent SIGKILL to."""

PATIENCE_S = 900.0
"""A run of a few rounds that has not ended by then hangs."""

SPEC = """
question = "Does a run survive being killed?"
seed = {seed}
parameter_sets = 2
[engine]
name = "postgres"
[workload]
name = "tpch"
scale = {scale}
queries = ["Q6", "Q14"]
[precision]
budget = "120s"
target = "0.001%"
rounds_min = {rounds}
rounds_max = {rounds}
[visit]
lead_in = "1ms"
measurement_time = "10ms"
[resources]
memory = "1 GiB"
"""


@dataclass(slots=True)
class Tally:
    """What was seen; ``left`` and ``lost`` as sentences."""

    kills: int = 0
    folders: int = 0
    resumed: int = 0
    left: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    ways: dict[str, int] = field(default_factory=dict)
    moments_s: list[float] = field(default_factory=list)


BOUNDS = {"folders": Bound(min=FOLDERS), "lost_rounds": Bound(max=0), "left_behind": Bound(max=0)}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Real runs of real servers. DbtollError if a run does not even get through unharmed."""
    stacks, missing = available.present(options["environments"], say)
    with open_local() as host:
        host_facts = facts.host(host)
    text = SPEC.format(seed=options["seed"], scale=options["scale"], rounds=options["rounds"])
    text += "".join(f"[[arm]]\nname = {json.dumps(stack)}\nstack = {json.dumps(stack)}\n" for stack in stacks)
    tally = Tally()
    with TemporaryDirectory(prefix="dbtoll-kill-") as folder:
        bench = KillTest(Path(folder), text, options["rounds"], random.Random(f"kill {options['seed']}"), tally, say)
        length = bench.unharmed()
        say(f"{', '.join(stacks)}: a run that nobody kills takes {length.whole_s:.0f} s")
        while tally.kills < options["kills"]:
            bench.one_run(length, options["kills"])
        bench.copied()
        bench.deleted()
        bench.foreign()
    figures = {
        "kills": tally.kills,
        "folders": tally.folders,
        "resumed": tally.resumed,
        "lost_rounds": len(tally.lost),
        "left_behind": len(tally.left),
    }
    bounds = BOUNDS | {"kills": Bound(min=options["kills"]), "resumed": Bound(min=tally.kills)}
    told = {
        "host": host_facts,
        "stacks": stacks,
        "missing": missing,
        "rounds": options["rounds"],
        "run_s": round(length.whole_s, 1),
        "ways": tally.ways,
        "moments_s": [round(moment, 2) for moment in tally.moments_s],
        "left": tally.left,
        "lost": tally.lost,
    }
    return Certificate("kill", figures, bounds, told)


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run takes that nobody kills, s: all of it, and each of its rounds. ``pilots``: rounds beside those that count."""

    whole_s: float
    round_s: float
    rounds: int
    pilots: int

    def span_s(self, done: State) -> float:
        """Within how long the next life of a run that has come so far is killed, if it does not get through before."""
        preparing_s = self.whole_s - (self.rounds + self.pilots) * self.round_s
        rounds = 2 if len(done.complete) < self.rounds else 1
        return preparing_s + self.round_s * (rounds + self.pilots * (done.plan is None))


@dataclass(frozen=True, slots=True)
class State:
    """What a run folder holds: its plan, its history up to the last whole line, the rounds that count."""

    plan: bytes | None = None
    history: bytes = b""
    complete: tuple[int, ...] = ()

    @classmethod
    def of(cls, run: Path | None) -> State:
        """RunFolderError if a history cannot be read any more."""
        if run is None:
            return cls()
        plan = run / schema.PLAN_FILE
        try:
            data = (run / schema.HISTORY_FILE).read_bytes()
        except FileNotFoundError:
            data = b""
        history = data[: data.rfind(b"\n") + 1]
        complete = read_run(run).complete_rounds if history else ()
        return cls(plan.read_bytes() if plan.exists() else None, history, complete)

    def lost(self, later: State) -> list[str]:
        """What was there and is not there later, as sentences."""
        lost = []
        if self.plan is not None and later.plan != self.plan:
            lost.append("the plan is another")
        if not later.history.startswith(self.history):
            lost.append("lines of the history are gone")
        if gone := set(self.complete) - set(later.complete):
            lost.append(f"finished rounds {sorted(gone)} do not count any more")
        return lost


class RunProcess:
    """One process of dbtoll, from its start to its end, whichever that is."""

    def __init__(self, words: Sequence[str], folder: Path, cache: Path | None = None) -> None:
        temporary = folder / "tmp"  # of its own, so that every file that stays in there is this run's
        temporary.mkdir(exist_ok=True)
        self._log = (folder / "log.txt").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from dbtoll.cli import main; main()", *words],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(temporary)} | ({} if cache is None else {"DBTOLL_CACHE": str(cache)}),
            start_new_session=True,
        )
        self.began = time.monotonic()

    def ends_within(self, seconds: float) -> int | None:
        """Its exit code, or None if it goes on."""
        try:
            code = self._process.wait(max(0.0, self.began + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        self._log.close()
        return code

    def kill(self, way: str) -> set[Process]:
        """Kill it; returns what descended from it a moment before."""
        pid = self._process.pid
        family = descendants(pid)
        agents = agents_of(pid) if way == WAYS[2] else []
        for agent in agents:
            os.kill(agent, signal.SIGSTOP)  # so that it does not see its line end, and tidy up
        if way == WAYS[1]:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
        for agent in agents:
            os.kill(agent, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        return family


class KillTest:
    """Runs and kills. ``folder`` holds the run folders, and the temporary files of what is run."""

    def __init__(
        self, folder: Path, spec_text: str, rounds: int, chance: random.Random, tally: Tally, say: Say
    ) -> None:
        self._folder = folder
        self._spec = folder / "spec.toml"
        self._spec.write_text(spec_text, encoding="utf-8")
        self._rounds = rounds
        self._chance = chance
        self._tally = tally
        self._say = say
        self._runs = 0
        self._settings = settings()
        self._known: set[str] = set()

    def unharmed(self) -> Length:
        """One run that nobody kills; once more if it had to make image, data or references first."""
        while True:
            made, runs = _made(), self._next_folder()
            life = self._life("run", str(self._spec), "--runs-dir", str(runs))
            code = life.ends_within(PATIENCE_S)
            whole_s = time.monotonic() - life.began
            if code != 0:
                raise DbtollError(f"a run that nobody killed did not get through: {self._last_words()}")
            run = read_run(run_in(runs) or runs)
            self._compare(Marks(run.folder), "a run that nobody killed")
            if _made() == made:
                break
        ended = [attempt.end.elapsed_s - attempt.begin.elapsed_s for attempt in run.counted if attempt.end]
        return Length(whole_s, sum(ended) / len(ended), self._rounds, pilots=0 if run.plan.pilot else 1)

    def one_run(self, length: Length, kills: int) -> None:
        """A run, killed until it gets through or there have been enough kills; then it is left to end."""
        tally, runs = self._tally, self._next_folder()
        life = self._life("run", str(self._spec), "--runs-dir", str(runs))
        state, killed = State(), 0
        while True:
            moment_s = self._chance.uniform(0, length.span_s(state)) if tally.kills < kills else PATIENCE_S
            code = life.ends_within(moment_s)
            if code is not None:
                break
            way = self._chance.choice(WAYS)
            family = life.kill(way)
            if tally.kills >= kills:
                raise DbtollError(f"a resumed run hangs: {self._last_words()}")
            killed += 1
            tally.kills += 1
            tally.ways[way] = tally.ways.get(way, 0) + 1
            tally.moments_s.append(moment_s)
            run = run_in(runs)
            self._say(f"kill {tally.kills}: {way}, after {moment_s:.1f} s, {len(state.complete)} rounds done before")
            self._clean(Marks(run or runs, frozenset(family)), f"kill {tally.kills}")
            state = self._kept(state, run)
            words = ["run", str(self._spec), "--runs-dir", str(runs)] if run is None else ["run", str(run), "--resume"]
            life = self._life(*words)
        if self._whole(code, self._kept(state, run_in(runs)), runs):
            tally.resumed += killed

    def copied(self) -> None:
        """While a run goes on, a copy of its folder is cleaned, and a cache with a copy of its journal: it must not notice."""
        life, run = self._in_a_round()
        copies, cache = self._folder / "copies", self._folder / "copied-cache"
        with suppress(shutil.Error):  # files come and go
            shutil.copytree(run, copies / run.name)
        (Cache(cache).root / journals().name).mkdir(mode=0o700)
        shutil.copy(journal_of(run), cache / journals().name)
        for each in (None, cache):
            self._cleaned(copies, each)
        self._say("copies of a living run's folder and journal were cleaned")
        code = life.ends_within(PATIENCE_S)
        if code is None or not self._whole(code, self._kept(State(), run), run.parent):
            self._tally.lost.append("a run did not get through whose copy was cleaned")
        self._tally.folders += 1

    def deleted(self) -> None:
        """A run is killed together with its agent, and its folder deleted: what it left is found all the same."""
        life, run = self._in_a_round()
        marks = Marks(run, frozenset(life.kill(WAYS[2])))
        shutil.rmtree(run)
        self._say("a killed run's folder was deleted")
        self._clean(marks, "a run whose folder was deleted")
        self._tally.folders += 1

    def foreign(self) -> None:
        """A killed run's journal is another machine's for a while: what it names is left alone meanwhile, and removed later."""
        life, run = self._in_a_round()
        marks = Marks(run, frozenset(life.kill(WAYS[2])))
        state = self._kept(State(), run)
        own = begun_on(journal_of(run), {"machine": "0" * 32, "boot": "another"})
        before = lasting(marks)
        self._cleaned(run.parent)
        if not before or (gone := before - lasting(marks)):
            self._tally.lost.append(
                f"another machine's journal was obeyed: {', '.join(sorted(gone if before else []))}"
            )
        begun_on(journal_of(run), own)
        self._say("a killed run's journal was another machine's for a while")
        self._clean(marks, "a run whose journal was another machine's")
        code = self._life("run", str(run), "--resume").ends_within(PATIENCE_S)
        if code is None or not self._whole(code, self._kept(state, run), run.parent):
            self._tally.lost.append("a run did not get through whose journal was another machine's")
        self._tally.folders += 1

    def _in_a_round(self) -> tuple[RunProcess, Path]:
        """A new run that is measuring its first round, and its folder."""
        runs = self._next_folder()
        life = self._life("run", str(self._spec), "--runs-dir", str(runs))
        while life.ends_within(time.monotonic() - life.began + 0.05) is None:
            run = run_in(runs)
            if run is not None and b'"record":"round_begin"' in text_of(run / schema.HISTORY_FILE):
                return life, run
        raise DbtollError(f"a run ended before its first round: {self._last_words()}")

    def _cleaned(self, runs: Path, cache: Path | None = None) -> None:
        cleaning = RunProcess(("clean", "--runs-dir", str(runs)), self._folder, cache)
        if cleaning.ends_within(PATIENCE_S) != 0:
            self._tally.left.append(f"`clean` failed: {self._last_words()}")

    def _clean(self, marks: Marks, when: str) -> None:
        self._cleaned(marks.run.parent)
        self._compare(marks, when)

    def _compare(self, marks: Marks, when: str) -> None:
        """What is left of the run, given a moment to vanish; and every setting that is not as at the beginning."""
        until = time.monotonic() + SETTLED_S
        while (left := carried(marks)) and time.monotonic() < until:
            time.sleep(0.1)
        sentences = [f"{kind}: {thing}" for kind, things in left.items() for thing in things]
        sentences += [f"a file: {path}" for path in (self._folder / "tmp").iterdir()]
        now = settings()
        sentences += [
            f"a setting: {path} was {value} and is {now.get(path)}"
            for path, value in self._settings.items()
            if now.get(path) != value
        ]
        for sentence in sentences:
            if sentence not in self._known:  # else it is there since an earlier kill, and counted
                self._known.add(sentence)
                self._say(f"left behind: {sentence}")
                self._tally.left.append(f"{when}: {sentence}")

    def _kept(self, before: State, run: Path | None) -> State:
        """What the run folder holds now; what it held before and holds no more is noted."""
        try:
            state = State.of(run)
        except RunFolderError as error:
            self._tally.lost.append(f"kill {self._tally.kills}: {error.message}")
            return before
        self._tally.lost += [f"kill {self._tally.kills}: {sentence}" for sentence in before.lost(state)]
        return state

    def _whole(self, code: int, state: State, runs: Path) -> bool:
        """After a life that nobody cut short: whether the run is whole, each of its rounds measured to its end once."""
        run = run_in(runs)
        wanted = tuple(range(self._rounds))
        if code != 0 or run is None or state.complete != wanted:
            self._say(f"not resumed: exit code {code}, rounds {state.complete}: {self._last_words()}")
            return False
        attempts = [attempt.round for attempt in read_run(run).attempts if attempt.complete]
        self._tally.lost += [f"round {index} was repeated" for index in wanted if attempts.count(index) != 1]
        self._compare(Marks(run), "a run that got through")
        return True

    def _life(self, *words: str) -> RunProcess:
        return RunProcess(words, self._folder)

    def _next_folder(self) -> Path:
        self._runs += 1
        return self._folder / f"runs-{self._runs}"

    def _last_words(self) -> str:
        lines = (self._folder / "log.txt").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-5:])


def run_in(runs: Path) -> Path | None:
    """The run folder in there, if it has come to one."""
    found = runs.iterdir() if runs.exists() else ()
    return next((path for path in found if not path.is_symlink()), None)


def journal_of(run: Path) -> Path:
    """In the cache."""
    return journals() / f"{run.name}{SUFFIX}"


def begun_on(journal: Path, fields: Json) -> Json:
    """Make its first line say that it was begun on that machine; what it said before."""
    first, _, rest = journal.read_text(encoding="utf-8").partition("\n")
    line = json.loads(first)
    with journal.open("r+", encoding="utf-8") as file:  # the same file: another would be a copy
        file.write(json.dumps(line | fields) + "\n" + rest)
        file.truncate()
    return {key: line[key] for key in fields}


def lasting(marks: Marks) -> set[str]:
    """What is there of a killed run and does not go by itself."""
    found = carried(marks)
    return {thing for kind in ("control groups", "noted paths") for thing in found.get(kind, [])}


def text_of(file: Path) -> bytes:
    """b"" for what is not there."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def _made() -> int:
    """How many things the cache holds."""
    temporary_journal = (scratch(), journals())
    return sum(path.parent not in temporary_journal for path in default_root().glob("*/*"))


def agents_of(pid: int) -> list[int]:
    """The agents that a process has started itself."""
    started = {child for child, _ in descendants(pid)}
    found = []
    for child in started:
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid and command[1:2] == [b"serve"]:
            found.append(child)
    return found
