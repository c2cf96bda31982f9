"""A directory of things that are dear to build, each under the address of its recipe (DESIGN §4). Its owner's alone.

Layout, below the cache's root::

    KIND/KEY/manifest.json   recipe, facts that building it brought to light, hash of the content; last changed when last used
    KIND/KEY/content/        what was built (a directory)
    KIND/KEY.building/       the same, not whole yet: only the holder of the lock may look at it
    KIND/KEY.lock            held with flock(2) by who builds; the kernel lets go of it when its holder dies
    KIND/KEY.*.removing/     what is being removed

A thing is built under ``KEY.building`` and renamed when it is whole, so ``KEY`` either is not there or is complete; before each
use it is compared with its manifest all the same, and what does not agree is built again. Whoever holds the lock and sees a
``KEY.building`` sees what a killed build left, and removes it.

Whoever was given an entry holds the directory ``KEY`` itself with a shared flock(2) until it ends; it is removed by who gets an
exclusive one, and under another name, so that nobody finds a half.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dbtoll import namespaces, units
from dbtoll.durable import sync_directory, write_durably
from dbtoll.errors import DbtollError, Unavailable, UsageError
from dbtoll.machines.mounts import unescape
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact

CONTENT = "content"
MANIFEST = "manifest.json"
BUILDING = ".building"
REMOVING = ".removing"
LOCK = ".lock"
TAG = "CACHEDIR.TAG"
TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# Made by dbtoll: programs that make backups may leave it out.\n"
)
"""Cache Directory Tagging Specification, https://bford.info/cachedir/."""

RESUMABLE = "resumable"
"""File beside the content of an unfinished entry that the next build may go on with: the boot in which it was begun."""

HASHED_BYTES = 64 << 20
"""Up to so many bytes, an entry's files are read and hashed before each use (a kernel: 0.1 s). Of larger ones names, owners, modes,
sizes and times are compared: to read a system image takes seconds, a data set minutes."""

DISCARD_S = 20.0
"""To compare an entry with its manifest takes a few seconds at most."""

LIMIT = "DBTOLL_CACHE_LIMIT"
LIMIT_SHARE = 4
"""Without a limit of the user's own: a quarter of the file system that the cache lies on."""

SPARE_BYTES = 256 << 20
"""Left free beside every estimate, or as much as that where it is less: a file system that is full to the last block fails
elsewhere, and later."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
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


def default_root(*, chosen: bool = True) -> Path:
    """``DBTOLL_CACHE`` (unless ``chosen`` is False), else ``dbtoll`` in the user's cache directory (XDG base directory
    specification). UsageError where neither can be told."""
    try:
        if chosen and (path := os.environ.get("DBTOLL_CACHE")):
            return Path(path).absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dbtoll"
    except (RuntimeError, FileNotFoundError) as error:  # nobody's home; a working directory that was removed
        raise UsageError(f"there is no place for the cache: {error}", "set DBTOLL_CACHE to an absolute path") from None


def scratch() -> Path:
    """What runs need for a while, on the cache's disk: copies of data, temporary files. Each run's in a directory of its own."""
    return default_root() / "scratch"


def key_of(kind: str, recipe: Json) -> str:
    """The address of a recipe: 32 hexadecimal digits of SHA-256 over its canonical JSON."""
    canonical = json.dumps([kind, recipe], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def _demand_that_nobody_swaps(place: Path) -> None:
    """Unavailable if others may put something else in the place of a directory on the way to it (as sshd's StrictModes).

    In a user namespace root cannot be told from others: there it was asked for before that was entered (cli.py).
    """
    for parent in place.parents:
        status = parent.stat()
        others = status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid())
        )
        is_trusted = status.st_uid in (0, os.geteuid()) or namespaces.stands_for_unmapped(status.st_uid)
        if not is_trusted or (others and not status.st_mode & stat.S_ISVTX):
            raise Unavailable(
                f"others may write to {parent}, so they may put something else in the place of the cache {place}",
                "set DBTOLL_CACHE to a directory below one that nobody else writes to, such as /var/cache/dbtoll",
            )


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that can be removed and made again: a whole entry, or what is none. ``used_at``: last use, s since 1970."""

    path: Path
    size_bytes: int
    used_at: float

    @property
    def kind(self) -> str:
        return self.path.parent.name

    @property
    def key(self) -> str:
        return self.path.name


class Manifest(msgspec.Struct):
    """``sha256``: of all other fields."""

    recipe: Json
    facts: Json
    content_sha256: str
    size_bytes: int
    sha256: str = ""

    def seal(self) -> str:
        """SHA-256 over recipe, facts, hash and size."""
        fields = [self.recipe, self.facts, self.content_sha256, self.size_bytes]
        return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Cache:
    """Gives what is there and builds what is not. Several processes may use one cache at the same time."""

    def __init__(self, root: Path | None = None) -> None:
        """Makes the directory, its owner's alone. Unavailable if it cannot be made, or is not."""
        self.root = (root or default_root()).absolute()
        try:
            for parent in reversed(self.root.parents):
                if not parent.exists():
                    parent.mkdir(mode=0o755, exist_ok=True)  # whatever the caller's umask is
            for way in (self.root, self.root.resolve()):
                _demand_that_nobody_swaps(way)
            self._make_ours()
        except OSError as error:
            raise Unavailable(
                f"the cache directory {self.root} cannot be made: {error.strerror}",
                "set DBTOLL_CACHE to a directory that you may write to",
            ) from error

    def _make_ours(self) -> None:
        try:
            self.root.mkdir(mode=0o700)
        except FileExistsError:
            status = self.root.stat()
            if not stat.S_ISDIR(status.st_mode):
                raise
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise Unavailable(
                    f"others may write to the cache directory {self.root}, from which programs are run",
                    "set DBTOLL_CACHE to a directory that nobody else writes to",
                ) from None
            if not status.st_mode & 0o077:
                return
            # Not of a directory that somebody chose for other things too.
            ours = self.root == default_root(chosen=False) and not self.root.is_symlink()
            if not ours and not (self.root / TAG).is_file() and any(self.root.iterdir()):
                raise Unavailable(
                    f"others may read the cache directory {self.root}, which holds programs with setuid bits",
                    f"chmod 700 {self.root}, or set DBTOLL_CACHE to a directory of its own",
                ) from None
            self.root.chmod(0o700)
        if not (self.root / TAG).exists():
            write_durably(self.root / TAG, TAG_TEXT.encode())

    def find(self, kind: str, recipe: Json) -> CacheEntry | None:
        """The entry of ``recipe``; None if it has not been built, or is damaged. Nobody removes it until this process ends."""
        whole = self.root / kind / key_of(kind, recipe)
        if not _hold(whole):
            return None
        entry = _whole_entry(whole)
        if entry is None:
            _let_go(whole)
        else:
            os.utime(whole / MANIFEST)
        return entry

    def obtain(
        self,
        kind: str,
        recipe: Json,
        build: Build,
        *,
        estimate_bytes: int,
        progress: Callable[[str], None] = lambda line: None,
    ) -> CacheEntry:
        """The entry of ``recipe``; builds it if it is not there, waiting if another process is building it.

        ``estimate_bytes``: disk space that ``build`` will need; Unavailable is raised before it starts if there is less, also
        without what has been unused for longest, which goes where the cache has grown beyond its limit.
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
            self._discard(whole)
            self.trim(self.limit_bytes() - estimate_bytes, progress)
            building = whole.with_name(key + BUILDING)
            with room_for(self.root, estimate_bytes, what=f"the {kind}"):
                self._build(building, recipe, build)
            building.rename(whole)
            sync_directory(whole.parent)
            found = self.find(kind, recipe)
        if found is None:
            raise DbtollError(f"{whole} was changed as soon as it had been built", "leave the cache to dbtoll")
        return found

    # --- where it ends --------------------------------------------------------------------------------------------

    def limit_bytes(self) -> int:
        """What the cache may grow to: DBTOLL_CACHE_LIMIT, or a part of its disk. UsageError for what is no size."""
        if chosen := os.environ.get(LIMIT):
            try:
                return units.size_bytes(chosen)
            except ValueError as error:
                raise UsageError(f"{LIMIT}: {error}", f"{LIMIT}='20 GiB'") from None
        return shutil.disk_usage(self.root).total // LIMIT_SHARE

    def kept(self) -> list[Kept]:
        """Everything that may be removed if nobody uses it, the longest unused first."""
        found = [kept for path in self.root.glob("*/*") if _KEY.fullmatch(path.name) if (kept := _kept(path))]
        return sorted(found, key=lambda kept: kept.used_at)

    def trim(self, limit_bytes: int, say: Callable[[str], None] = lambda line: None) -> None:
        """Removes what has been unused for longest, and is not in use, until the rest is no larger than ``limit_bytes``."""
        everything = self.kept()
        excess_bytes = sum(kept.size_bytes for kept in everything) - limit_bytes
        for kept in everything:
            if excess_bytes > 0 and self.remove(kept.path):
                excess_bytes -= kept.size_bytes
                say(f"removed from the cache, as unused for longest: {kept.kind} {kept.key}")

    def in_use(self, kind: str, key: str) -> bool:
        """Whether somebody, also this process, was given that entry."""
        try:
            handle = os.open(self.root / kind / key, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def remove(self, whole: Path) -> bool:
        """Removes what lies there, entry or not; nothing there is no error. False, and it stays, if somebody uses it."""
        try:
            handle = os.open(whole, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            if not _is_there(handle, whole):
                return True
            going = whole.with_name(f"{whole.name}.{secrets.token_hex(4)}{REMOVING}")
            whole.rename(going)
            remove_tree(going)
        finally:
            os.close(handle)
        return True

    def _discard(self, whole: Path) -> None:
        """Removes what was found damaged. Others that are just looking at it are waited for."""
        deadline = time.monotonic() + DISCARD_S
        while not self.remove(whole):
            if time.monotonic() > deadline:
                raise DbtollError(
                    f"{whole} is damaged, and another run uses it", "when that run has ended, do this again"
                )
            time.sleep(0.05)

    def sweep(self, *, everything: bool = False) -> None:
        """Removes what killed builds left, but for what can be gone on with, unless ``everything``. What is being built now is
        locked, and is left alone."""
        for going in self.root.glob(f"*/*{REMOVING}"):
            self.remove(going)
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
        manifest = Manifest(recipe, facts, *content_digest(building / CONTENT))
        # As they are read again: a tuple in a recipe comes back as a list.
        manifest = msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest)
        manifest.sha256 = manifest.seal()
        (building / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
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


# --- entries that are in use ----------------------------------------------------------------------------------------

_held: dict[Path, int] = {}
"""Directory of an entry -> descriptor with a shared lock on it, kept until this process ends: nothing says when the last machine
that was given its path needs it no more."""


def _hold(whole: Path) -> bool:
    """Whether there is something that is not being removed; then it is held."""
    if whole in _held:
        if _is_there(_held[whole], whole):
            return True
        _let_go(whole)
    try:
        handle = os.open(whole, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    _held[whole] = handle
    if not _is_there(handle, whole):
        _let_go(whole)
    return whole in _held


def _let_go(whole: Path) -> None:
    os.close(_held.pop(whole))


def _is_there(handle: int, path: Path) -> bool:
    """Whether ``path`` still is the name of what was opened."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


# --- entries that are whole -----------------------------------------------------------------------------------------


def _whole_entry(whole: Path) -> CacheEntry | None:
    """None if anything is not as it was built."""
    manifest = _manifest(whole)
    kind, key, content = whole.parent.name, whole.name, whole / CONTENT
    if manifest is None:
        return None
    try:
        sealed = manifest.seal() == manifest.sha256 and key_of(kind, manifest.recipe) == key
        same = sealed and content_digest(content) == (manifest.content_sha256, manifest.size_bytes)
    except (OSError, RecursionError):
        return None
    return CacheEntry(kind, key, content, manifest.recipe, manifest.facts) if same else None


def _manifest(whole: Path) -> Manifest | None:
    try:
        return msgspec.json.decode((whole / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def content_digest(content: Path) -> tuple[str, int]:
    """SHA-256 over all below ``content`` (a small one's contents too, see HASHED_BYTES), and how many bytes its files hold.

    A directory's own size and time are left out: they change when somebody mounts on it.
    """
    found: list[tuple[bytes, os.stat_result]] = []
    waiting = [os.fsencode(content)]
    while waiting:
        directory = waiting.pop()
        for entry in os.scandir(directory):
            found.append((entry.path, entry.stat(follow_symlinks=False)))
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
    size_bytes = sum(status.st_size for _, status in found if stat.S_ISREG(status.st_mode))
    digest = hashlib.sha256()
    for path, status in sorted(found, key=lambda each: each[0]):
        told: list[object] = [os.path.relpath(path, os.fsencode(content)), status.st_mode, status.st_uid, status.st_gid]
        if stat.S_ISREG(status.st_mode):
            told += [status.st_size, status.st_mtime_ns]
            if size_bytes <= HASHED_BYTES:
                with open(path, "rb") as file:  # noqa: PTH123  # its name is bytes
                    told.append(hashlib.file_digest(file, "sha256").hexdigest())
        elif stat.S_ISLNK(status.st_mode):
            told.append(os.readlink(path))  # noqa: PTH115  # its name is bytes
        digest.update(repr(told).encode())
    return digest.hexdigest(), size_bytes


_KEY = re.compile(r"[0-9a-f]{32}")


def _kept(path: Path) -> Kept | None:
    """None if it is gone by now."""
    try:
        manifest = _manifest(path)
        if manifest is not None:
            return Kept(path, manifest.size_bytes, (path / MANIFEST).stat().st_mtime)
        used_at = path.lstat().st_mtime
        return Kept(path, content_digest(path)[1] if path.is_dir() else path.lstat().st_size, used_at)
    except OSError:
        return None


# --- builds ---------------------------------------------------------------------------------------------------------


def _fill(building: Path, build: Build) -> Json:
    """The facts; nothing is left of a build that fails, nor of one that is interrupted and does not let others go on."""
    if not can_go_on(building):
        remove_tree(building)
    content = building / CONTENT
    if not content.exists():  # what a build goes on with has the mode that its server asks for
        content.mkdir(parents=True)
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
    (content.parent / RESUMABLE).write_bytes(_boot())


def can_go_on(building: Path) -> bool:
    """Whether the build that was there let others go on, in this life of the machine."""
    try:
        return (building / RESUMABLE).read_bytes() == _boot()
    except OSError:
        return False


def _boot() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes()


@contextmanager
def room_for(place: Path, estimate_bytes: int, *, what: str) -> Iterator[None]:
    """Around work that writes below ``place``: a full disk is one clear error, before it where that can be foreseen."""
    free_bytes = shutil.disk_usage(place).free
    need_bytes = estimate_bytes + min(estimate_bytes, SPARE_BYTES)
    if free_bytes < need_bytes:
        raise no_room(str(place), what, need_bytes, free_bytes)
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise no_room(str(place), what, need_bytes, shutil.disk_usage(place).free) from error


def no_room(place: str, what: str, need_bytes: int, free_bytes: int) -> Unavailable:
    """The one error for a disk that is, or would be, too full."""
    return Unavailable(
        f"no room for {what} below {place}: about {need_bytes >> 20} MiB are needed, {free_bytes >> 20} MiB are free",
        "free some space there, or set DBTOLL_CACHE to a directory on a larger disk",
    )


def remove_tree(tree: Path) -> None:
    """Removes a directory and all below it; a missing one is no error. What is mounted below is unmounted first, never
    emptied: a killed build leaves mounts of the kernel's file systems, or of a directory that is not ours.

    By rm, which follows no link and goes down any depth: Python's own remover ends at its recursion limit. Not by the agent,
    which removes what a journal names: the cache is where the agent is built.
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
    """All mount points, in the order in which they were made (proc_pid_mountinfo(5))."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [Path(unescape(line.split(" ")[4])) for line in lines]
