"""Whether a run survives that its disk loses its power: cut off at random moments, and on with `--resume`.

The runs lie on an ext4 file system in a file. At a moment drawn uniformly over a run's life the run is killed with its agent, and
the file is copied as it is: that has reached the device. What lies in page caches alone is lost, and so is all that was not synced.
The copy is mounted in the place of the other one. Other file systems may keep more of a file than ext4 does: of each file that has
lost something a random part comes back, which truncates it at a random byte of what was never promised. BIAS: what the run notes
beside its folder, in the cache, is not cut.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dbtoll import facts
from dbtoll.defaults import BASELINE
from dbtoll.errors import DbtollError, RunFolderError, Unavailable
from dbtoll.machines.agent.local import open_local
from dbtoll.model.options import Option
from dbtoll.selfbench.robustness.kill import PATIENCE_S, SETTLED_S, SPEC, WAYS, RunProcess, run_in
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say
from dbtoll.selfbench.support.inventory import Marks, carried
from dbtoll.store.reader import read_run
from dbtoll.store.schema import HISTORY_FILE

SUMMARY = (
    "a run whose disk loses its power at random moments: cuts, promised, cut_files, resumed, lost_rounds, left_behind"
)

OPTIONS = {
    "cuts": Option("integer", 20, "how often", least=1),
    "seed": Option("integer", 1, "of the moments and of what comes back", least=0),
    "environments": Option("list", [BASELINE], "stacks"),
    "scale": Option("number", 0.01, "scale factor of TPC-H"),
    "rounds": Option("integer", 4, "rounds of a run", least=2),
}

DISK_BYTES = 64 << 20

NOT_BEGUN = RunFolderError.exit_code
"""A run that was cut off before its first round may say that it is to be begun anew."""


@dataclass(slots=True)
class Tally:
    """What was seen; ``lost`` and ``left`` as sentences. ``promised``: cuts at which rounds counted. ``resumed``: cuts after which
    the run got through, or was cut again; ``begun_anew``: those before anything was measured, after which a new run had to be
    begun."""

    cuts: int = 0
    promised: int = 0
    cut_files: int = 0
    resumed: int = 0
    begun_anew: int = 0
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


BOUNDS = {"lost_rounds": Bound(max=0), "left_behind": Bound(max=0)}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Real runs of real servers. Unavailable where no file system can be mounted from a file."""
    with open_local() as host:
        host_facts = facts.host(host)
    text = SPEC.format(seed=options["seed"], scale=options["scale"], rounds=options["rounds"])
    text += "".join(
        f"[[arm]]\nname = {json.dumps(stack)}\nstack = {json.dumps(stack)}\n" for stack in options["environments"]
    )
    tally = Tally()
    with TemporaryDirectory(prefix="dbtoll-power-") as folder, Disk.mounted(Path(folder)) as disk:
        bench = KillTest(Path(folder), disk, text, options, tally, say)
        bench.unharmed()
        while tally.cuts < options["cuts"]:
            bench.one_run()
    figures = {
        "cuts": tally.cuts,
        "promised": tally.promised,
        "cut_files": tally.cut_files,
        "resumed": tally.resumed,
        "begun_anew": tally.begun_anew,
        "lost_rounds": len(tally.lost),
        "left_behind": len(tally.left),
    }
    bounds = BOUNDS | {
        "cuts": Bound(min=options["cuts"]),
        # Else next to nothing was tried.
        "promised": Bound(min=options["cuts"] // 10),
        "cut_files": Bound(min=options["cuts"] // 10),
        "resumed": Bound(min=tally.cuts - tally.begun_anew),
    }
    told = {"host": host_facts, "stacks": options["environments"], "lost": tally.lost, "left": tally.left}
    return Certificate("power", figures, bounds, told)


class Disk:
    """An ext4 file system in a file, mounted at ``place``, whose power can be cut."""

    def __init__(self, file: Path, place: Path) -> None:
        self._file, self.place = file, place

    @classmethod
    @contextmanager
    def mounted(cls, folder: Path) -> Iterator[Disk]:
        """New and empty, in ``folder``; gone in the end."""
        disk = cls(folder / "disk.img", folder / "disk")
        disk.place.mkdir()
        with disk._file.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mke2fs", "-q", "-t", "ext4", str(disk._file))
        disk._mount()
        try:
            yield disk
        finally:
            disk._unmount()

    def cut(self, chance: random.Random) -> int:
        """Cut the power and switch it on again. Returns how many files were truncated."""
        written = {path: path.read_bytes() for path in self.place.rglob("*") if path.is_file()}
        copy = self._file.with_suffix(".copy")
        shutil.copyfile(self._file, copy)
        self._unmount()
        copy.replace(self._file)
        self._mount()
        truncated = 0
        for path, content in sorted(written.items()):
            kept = path.read_bytes() if path.exists() else b""
            if len(kept) < len(content) and content.startswith(kept) and path.parent.is_dir():
                path.write_bytes(content[: chance.randint(len(kept), len(content) - 1)])
                truncated += 1
        return truncated

    def _mount(self) -> None:
        # The kernel writes back what is old only: within a run next to nothing that was not synced.
        _run("mount", "-o", "loop,commit=300", str(self._file), str(self.place))

    def _unmount(self) -> None:
        _run("umount", str(self.place))


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable(f"there is no program {words[0]}", "apt-get install e2fsprogs mount") from None
    if done.returncode != 0:
        raise Unavailable(
            f"{' '.join(words)}: {done.stderr.strip()}", "run it as root, where loop devices can be mounted"
        )


class KillTest:
    """Runs on a disk, and cuts of its power."""

    def __init__(
        self, folder: Path, disk: Disk, spec_text: str, options: Mapping[str, Any], tally: Tally, say: Say
    ) -> None:
        self._folder, self._disk, self._tally, self._say = folder, disk, tally, say
        self._spec = folder / "spec.toml"
        self._spec.write_text(spec_text, encoding="utf-8")
        self._cuts: int = options["cuts"]
        self._rounds: int = options["rounds"]
        self._chance = random.Random(f"power {options['seed']}")
        self._runs = 0
        self._whole_s = 0.0

    def unharmed(self) -> None:
        """How long a run takes that nobody harms; the second one: the first may have had to make image, data and references."""
        for _ in range(2):
            life = self._begin()
            if life.ends_within(PATIENCE_S) != 0:
                raise DbtollError(f"a run that nobody harmed did not get through: {self._last_words()}")
            self._whole_s = time.monotonic() - life.began
        self._say(f"a run that nobody harms takes {self._whole_s:.0f} s")

    def one_run(self) -> None:
        """A run, cut off until it gets through or there have been enough cuts; then it is left to end."""
        tally = self._tally
        life = self._begin()
        cuts = 0
        while True:
            moment_s = self._chance.uniform(0, self._whole_s) if tally.cuts < self._cuts else PATIENCE_S
            code = life.ends_within(moment_s)
            if code is not None:
                break
            if tally.cuts >= self._cuts:
                life.kill(WAYS[2])
                raise DbtollError(f"a resumed run hangs: {self._last_words()}")
            cuts += 1
            tally.cuts += 1
            life = self._cut(life, moment_s)
        run = self._run_folder()
        if code == NOT_BEGUN and cuts and not self._complete(run):
            tally.begun_anew += cuts
        elif code == 0 and run is not None and self._complete(run) == tuple(range(self._rounds)):
            tally.resumed += cuts
        else:
            self._say(f"not resumed: exit code {code}, rounds {self._complete(run)}: {self._last_words()}")

    def _cut(self, life: RunProcess, moment_s: float) -> RunProcess:
        """Cut, clean, look what is there, and go on."""
        tally = self._tally
        when = f"cut {tally.cuts}, after {moment_s:.1f} s"
        family = life.kill(WAYS[2])
        run = self._run_folder()
        marks = Marks(run or self._runs_dir, frozenset(family))
        promised = self._promised(run)
        tally.promised += bool(promised)
        truncated = self._disk.cut(self._chance)
        tally.cut_files += truncated
        self._say(f"{when}: rounds {promised} are promised, {truncated} files are truncated")
        if self._life("clean", "--runs-dir", str(self._runs_dir)).ends_within(PATIENCE_S) != 0:
            tally.left.append(f"{when}: `clean` failed: {self._last_words()}")
        until = time.monotonic() + SETTLED_S
        while (left := self._carried(marks)) and time.monotonic() < until:
            time.sleep(0.1)
        tally.left += [f"{when}: {sentence}" for sentence in left]
        run = self._run_folder()
        if gone := set(promised) - set(self._complete(run)):
            tally.lost.append(f"{when}: rounds {sorted(gone)}: {self._why(run)}")
        if run is None:
            return self._life("run", str(self._spec), "--runs-dir", str(self._runs_dir))
        return self._life("run", str(run), "--resume")

    def _carried(self, marks: Marks) -> list[str]:
        """What is left, but for the disk itself, in whose path the run's name may stand."""
        found = carried(marks)
        return [
            f"{kind}: {thing}" for kind, things in found.items() for thing in things if str(self._folder) not in thing
        ]

    def _promised(self, run: Path | None) -> tuple[int, ...]:
        """Rounds that count; but not one whose end is the last line, for it may have been killed before it was synced."""
        complete = self._complete(run)
        last = (run / HISTORY_FILE).read_bytes().splitlines()[-1:] if run is not None and complete else []
        return complete[:-1] if last and b'"record":"round_end"' in last[0] else complete

    def _complete(self, run: Path | None) -> tuple[int, ...]:
        try:
            return () if run is None else read_run(run).complete_rounds
        except RunFolderError:
            return ()

    def _why(self, run: Path | None) -> str:
        try:
            return "there is no run" if run is None else f"{len(read_run(run).attempts)} attempts are there"
        except RunFolderError as error:
            return error.message

    def _begin(self) -> RunProcess:
        self._runs += 1
        return self._life("run", str(self._spec), "--runs-dir", str(self._runs_dir))

    @property
    def _runs_dir(self) -> Path:
        return self._disk.place / f"runs-{self._runs}"

    def _run_folder(self) -> Path | None:
        return run_in(self._runs_dir)

    def _life(self, *words: str) -> RunProcess:
        return RunProcess(words, self._folder)

    def _last_words(self) -> str:
        lines = (self._folder / "log.txt").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-5:])
