"""A directory of things that are dear to build, each under the address of its recipe (DESIGN §4).

Layout, below the cache's root::

    KIND/KEY/manifest.json   the recipe, and the facts that building it brought to light
    KIND/KEY/content/        what was built (a directory)
    KIND/KEY.building/       the same, not whole yet: only the holder of the lock may look at it
    KIND/KEY.lock            held with flock(2) by who builds; the kernel lets go of it when its holder dies

A thing is built under ``KEY.building`` and renamed when it is whole, so ``KEY`` either is not there or is complete.
Whoever holds the lock and sees a ``KEY.building`` sees what a killed build left, and removes it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dbtoll.durable import sync_directory
from dbtoll.errors import DbtollError, Unavailable
from dbtoll.model import Artifact, Json

CONTENT = "content"
MANIFEST = "manifest.json"
BUILDING = ".building"
LOCK = ".lock"
RESUMABLE = "resumable"
"""File beside the content of an unfinished entry that the next build may go on with: the boot in which it was begun."""

SPARE_BYTES = 256 << 20
"""Left free beside every estimate: a file system that is full to the last block fails elsewhere, and later."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One whole thing in the cache. ``facts`` is what its build returned."""

    kind: str
    key: str
    content: Path
    recipe: Json
    facts: Json

    def artifact(self) -> Artifact:
        """Its content, to be provided to machines."""
        return Artifact(key=self.key, path=str(self.content))


Build = Callable[[Path], Json]
"""Fills the directory that it is given, empty unless a build before it `let_go_on`; returns the facts for the manifest. May raise
anything."""


def default_root() -> Path:
    """``DBTOLL_CACHE``, else ``dbtoll`` in the user's cache directory (XDG base directory specification)."""
    if chosen := os.environ.get("DBTOLL_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dbtoll"


def key_of(kind: str, recipe: Json) -> str:
    """The address of a recipe: 32 hexadecimal digits of SHA-256 over its canonical JSON."""
    canonical = json.dumps([kind, recipe], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


class Cache:
    """Gives what is there and builds what is not. Several processes may use one cache at the same time."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_root()).absolute()
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o755)
        except OSError as error:
            raise Unavailable(
                f"the cache directory {self.root} cannot be made: {error.strerror}",
                "set DBTOLL_CACHE to a directory that you may write to",
            ) from error

    def find(self, kind: str, recipe: Json) -> Entry | None:
        """The entry of ``recipe``, or None if it has not been built."""
        key = key_of(kind, recipe)
        directory = self.root / kind / key
        try:
            manifest = json.loads((directory / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DbtollError(
                f"{directory / MANIFEST} is damaged: {error}", f"remove {directory}; it is built again when needed"
            ) from error
        return Entry(kind, key, directory / CONTENT, manifest["recipe"], manifest["facts"])

    def obtain(
        self,
        kind: str,
        recipe: Json,
        build: Build,
        *,
        estimate_bytes: int,
        progress: Callable[[str], None] = lambda line: None,
    ) -> Entry:
        """The entry of ``recipe``; builds it if it is not there, waiting if another process is building it.

        ``estimate_bytes``: disk space that ``build`` will need; Unavailable is raised before it starts if there is
        less.
        """
        if found := self.find(kind, recipe):
            return found
        key = key_of(kind, recipe)
        whole = self.root / kind / key
        (self.root / kind).mkdir(exist_ok=True)
        self.sweep()
        with self._locked(whole, lambda: progress(f"waiting for another run that builds the same {kind}")):
            if found := self.find(kind, recipe):
                return found
            building = whole.with_name(key + BUILDING)
            with room_for(self.root, estimate_bytes, what=f"the {kind}"):
                self._build(building, recipe, build)
            building.rename(whole)
            sync_directory(whole.parent)
        found = self.find(kind, recipe)
        assert found is not None  # it was renamed a moment ago, under the lock
        return found

    def sweep(self, *, everything: bool = False) -> None:
        """Removes what killed builds left, but for what can be gone on with, unless ``everything``. What is being built now is
        locked, and is left alone."""
        for left in sorted(self.root.glob(f"*/*{BUILDING}")):
            if can_go_on(left) and not everything:
                continue
            whole = left.with_name(left.name.removesuffix(BUILDING))
            with self._locked(whole, None) as locked:
                if locked:
                    remove_tree(left)

    def _build(self, building: Path, recipe: Json, build: Build) -> None:
        goes_on = can_go_on(building)
        try:
            facts = _fill(building, build)
        except Exception:
            if not goes_on:
                raise
            facts = _fill(building, build)  # what an earlier build left was of no use
        manifest = json.dumps({"recipe": recipe, "facts": facts}, indent=2, sort_keys=True)
        (building / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        (building / RESUMABLE).unlink(missing_ok=True)
        # The rename that makes it visible must not reach the disk before what it makes visible.
        subprocess.run(["sync", "--file-system", str(building)], check=True)

    @contextmanager
    def _locked(self, whole: Path, waiting: Callable[[], None] | None) -> Iterator[bool]:
        """Holds the lock of an entry. ``waiting`` is called before it blocks; with None it yields False instead of
        blocking.

        The lock file stays: removing it would let two processes lock two files of the same name.
        """
        with whole.with_name(whole.name + LOCK).open("wb") as lock:
            # Programs that build may inherit it (images/system.py), so that the lock lives as long as they do.
            os.set_inheritable(lock.fileno(), True)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is None:
                    yield False
                    return
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield True


def _fill(building: Path, build: Build) -> Json:
    """The facts; nothing is left of a build that fails, nor of one that is interrupted and does not let others go on."""
    if not can_go_on(building):
        remove_tree(building)
    content = building / CONTENT
    content.mkdir(parents=True, exist_ok=True)
    content.chmod(0o755)  # it may become some program's /, whatever the caller's umask is
    try:
        return build(content)
    except BaseException as error:
        if not (isinstance(error, KeyboardInterrupt) and can_go_on(building)):
            remove_tree(building)
        raise


def let_go_on(content: Path) -> None:
    """Said by a build of ``content``: should it be killed or interrupted from now on, the next one finds what it left there and
    goes on with it. Not after a reboot, as nothing had to be flushed."""
    (content.parent / RESUMABLE).write_text(_boot(), encoding="utf-8")


def can_go_on(building: Path) -> bool:
    """Whether the build that was there let others go on, in this life of the machine."""
    try:
        return (building / RESUMABLE).read_text(encoding="utf-8") == _boot()
    except OSError:
        return False


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")


@contextmanager
def room_for(place: Path, estimate_bytes: int, *, what: str) -> Iterator[None]:
    """Around work that writes below ``place``: a full disk is one clear error, before it where that can be foreseen."""
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < estimate_bytes + SPARE_BYTES:
        raise no_room(str(place), what, estimate_bytes + SPARE_BYTES, free_bytes)
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise no_room(str(place), what, estimate_bytes + SPARE_BYTES, shutil.disk_usage(place).free) from error


def no_room(place: str, what: str, need_bytes: int, free_bytes: int) -> Unavailable:
    """The one error for a disk that is, or would be, too full."""
    return Unavailable(
        f"no room for {what} below {place}: about {need_bytes >> 20} MiB are needed, {free_bytes >> 20} MiB are free",
        "free some space there, or set DBTOLL_CACHE to a directory on a larger disk",
    )


def remove_tree(tree: Path) -> None:
    """Removes a directory and all below it; a missing one is no error. What is mounted below is unmounted first, never
    emptied: a killed build leaves mounts of the kernel's file systems, or of a directory that is not ours.

    By rm, which follows no link and goes down any depth: Python's own remover ends at its recursion limit.
    """
    tree = tree.parent.resolve() / tree.name
    mounted = [place for place in _mounts() if place.is_relative_to(tree)]
    for place in reversed(mounted):
        done = subprocess.run(["umount", str(place)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DbtollError(f"{tree} cannot be removed: {place} is mounted: {done.stderr.strip()}", f"umount {place}")
    removal = ["rm", "--recursive", "--force", "--one-file-system", "--", str(tree)]
    done = subprocess.run(removal, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise DbtollError(f"{tree} cannot be removed: {done.stderr.strip()[-400:]}", "see what keeps it: lsattr, mount")


def _mounts() -> list[Path]:
    """All mount points, in the order in which they were made (proc_pid_mountinfo(5), which writes spaces as \\040)."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split(" ")[4])) for line in lines]
