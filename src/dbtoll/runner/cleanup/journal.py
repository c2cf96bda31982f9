"""Every resource is written down before it is made, so that what a killed run left can be found and removed (DESIGN §6).

A journal is a file of lines. First where it was begun (`_Origin`); then ``{"entry": N, "kind": KIND, …identity}`` before a
resource is made, ``{"entry": N, "done": true}`` when it is gone. The writer holds a lock on the file for as long as the run
lives: an open entry of an unlocked journal is a leftover.

Journals lie in the cache (`journals`), where only their owner writes; they go when nothing in them is open. `dbtoll clean` obeys
no other: a run folder holds a copy of the lines, for people to read (ADR 17).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dbtoll.durable import sync_directory
from dbtoll.errors import DbtollError, RunFolderError
from dbtoll.images.cache import Cache, default_root

FILE = "journal.ndjson"
SUFFIX = ".ndjson"

VERSION = 2
"""Of a journal's first line. Those of version 1 had none, and lay in the run folder."""

ACTING = frozenset({"agent"})
"""Kinds that go first, whatever their age: what still acts could make again what has just been removed."""

EARLIER_MAX_BYTES = 16 << 20
"""A journal has some hundred bytes for each start of an arm."""

MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
"""machine-id(5)."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"

Remover = Callable[[Mapping[str, Any]], str | None]
"""Removes one resource by its identity; one that is gone already is no error. May return what the user should know."""


class StillAlive(RunFolderError):
    """The run of that journal is going on."""


class Foreign(RunFolderError):
    """The journal speaks of another machine, or is a copy: what it names is not this one's to remove."""


@dataclass(slots=True)
class JournalEntry:
    """One resource that may exist now."""

    journal: Journal
    number: int

    def done(self) -> None:
        """It is gone again. Where that cannot be written the entry stays open, and `clean` will find nothing to remove."""
        with suppress(RunFolderError):
            self.journal.append({"entry": self.number, "done": True})


class Journal:
    """One journal, open for writing and locked. The folder must be the caller's own.

    ``record``: a run folder that gets a copy of each line; ``run_folder``: of the run whose journal it is, None of a trial's.
    Raises StillAlive if another process holds it; Foreign if it was not begun here; RunFolderError.
    """

    def __init__(self, folder: Path, name: str = FILE, record: Path | None = None) -> None:
        self.folder, self.name, self.record = folder, name, record
        self._path = folder / name
        self._file = self._directory = -1
        self._writing = threading.RLock()  # machines of an arm are opened at the same time
        self.run_folder = record
        try:
            self._directory = _own_directory(folder)
            self._file = _locked(self._directory, name, self._path, record)
            self._begin()
        except OSError as error:
            self.close()
            raise RunFolderError(
                f"{self._path}: cannot be written: {error.strerror}", "give a writable folder"
            ) from None
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        data = _content(self._file)
        whole_bytes = data.rfind(b"\n") + 1
        read = _parsed(data, self._path)
        if whole_bytes:
            read.demand_here(self._path, os.fstat(self._file))
            if read.origin is not None and read.origin.folder is not None:
                self.run_folder = Path(read.origin.folder)
        # What follows the last whole line: its writer was killed in the middle of it, before it made anything.
        os.ftruncate(self._file, whole_bytes)
        self._next = max(read.open, default=0) + 1
        if not whole_bytes:
            here = _Origin.here(self._path, os.fstat(self._file), self.record)
            self.append({"journal": VERSION, **asdict(here)}, synced=True)
            os.fsync(self._directory)

    def create(self, kind: str, **identity: Any) -> JournalEntry:
        """Note, synced to disk, that this resource is about to be made. RunFolderError where it cannot be noted."""
        with self._writing:
            entry = JournalEntry(self, self._next)
            self._next += 1
            self.append({"entry": entry.number, "kind": kind, **identity}, synced=True)
            return entry

    def append(self, line: Mapping[str, Any], *, synced: bool = False) -> None:
        """Write one line whole, or none of it."""
        data = json.dumps(line).encode() + b"\n"
        with self._writing:
            try:
                _write_whole(self._file, data)
                if synced:
                    os.fsync(self._file)
            except OSError as error:
                raise RunFolderError(
                    f"{self._path}: cannot be written: {error.strerror}",
                    f"make room there; {resuming(self.record or self.folder)}",
                ) from error
            if self.record is not None:
                with suppress(OSError):  # its folder may have been deleted, or be full: nothing hangs on it
                    _record(self.record, data)

    def leftovers(self) -> list[dict[str, Any]]:
        """As the function of that name, of this one."""
        return _parsed(_content(self._file), self._path).leftovers()

    def sweep(self, removers: Mapping[str, Remover]) -> tuple[list[str], list[str]]:
        """Remove all that is open, newest first, what still acts before everything else. (removed, failed) as sentences."""
        removed, failed = [], []
        for line in sorted(self.leftovers(), key=lambda line: line["kind"] not in ACTING):
            identity = {key: value for key, value in line.items() if key not in ("entry", "kind")}
            said = described(line)
            remover = removers.get(line["kind"])
            try:
                if remover is None:
                    raise DbtollError(f"this dbtoll does not know how to remove a {line['kind']}")
                remark = remover(identity)
            except Exception as error:  # also a defect: whatever it is, it must not keep the rest from being removed
                why = error.message if isinstance(error, DbtollError) else f"{type(error).__name__}: {error}"
                failed.append(f"{said}: {why}")
                continue
            JournalEntry(self, line["entry"]).done()
            removed.append(f"{said}: {remark}" if remark else said)
        return removed, failed

    def forget(self) -> bool:
        """The file goes, unless something in it is open: that is all there is to find it by. Whether it went."""
        if self.leftovers():
            return False
        with suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self._directory)
        return True

    def close(self) -> None:
        """Let go of it. Also twice."""
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._directory = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


NAMED_BY = ("name", "interface", "instance", "data_root", "tag", "path", "paths", "pid")
"""Keys of an entry, of which the first that it has tells people what it is."""


def described(line: Mapping[str, Any]) -> str:
    """An entry in words: ``cgroup /sys/fs/cgroup/dbtoll/a``."""
    if isinstance(what := line.get("what"), dict) and "kind" in what:
        return f"{described(what)} on {line.get('host')}"
    value = next((line[key] for key in NAMED_BY if key in line), "")
    several = value if isinstance(value, list) else [value]
    return " ".join(filter(None, (str(line["kind"]), ", ".join(map(str, several)))))


def resuming(folder: Path) -> str:
    """What to do once the reason is gone."""
    return f"then go on: {resume_command(folder)}"


def resume_command(folder: Path, minutes: int | None = None) -> str:
    """The command that goes on with a run; ``minutes``: with another budget."""
    return f"dbtoll run {folder} --resume" + (f" --budget {minutes}m" if minutes is not None else "")


# --- where they lie --------------------------------------------------------------------------------------------------------


def journals() -> Path:
    """Of all runs, trials and selfbenches of this user; it need not be there."""
    return default_root() / "journals"


def names() -> list[str]:
    """The journals there are. RunFolderError if others than the caller could have written them."""
    try:
        directory = _own_directory(journals())
    except FileNotFoundError:
        return []
    try:
        with os.scandir(directory) as found:
            return sorted(each.name for each in found if each.name.endswith(SUFFIX))
    finally:
        os.close(directory)


def is_held(run: str) -> bool:
    """Whether a living dbtoll works on the run of that name: holds its journal. Looked up in proc(5) ``locks``, so that nobody is
    disturbed by a lock of ours."""
    try:
        status = (journals() / f"{run}{SUFFIX}").lstat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return False
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any((fields := line.split())[1] == "FLOCK" and file in fields for line in lines)


@contextmanager
def of_run(folder: Path) -> Iterator[Journal]:
    """The journal of the run in ``folder``, known by its name: two runs of one name would make things of the same names."""
    with _of_name(folder.name, folder) as journal:
        yield journal


@contextmanager
def temporary_journal() -> Iterator[Journal]:
    """A journal for what is no run, such as a trial."""
    with _of_name(f"passing-{secrets.token_hex(8)}", None) as journal:
        yield journal


@contextmanager
def _of_name(name: str, record: Path | None) -> Iterator[Journal]:
    Cache()  # makes its root
    place = journals()
    if not place.exists():
        place.mkdir(mode=0o700, exist_ok=True)
        sync_directory(place.parent)
    with Journal(place, name + SUFFIX, record) as journal:
        try:
            yield journal
        finally:
            journal.forget()


# --- reading ---------------------------------------------------------------------------------------------------------------


def leftovers(folder: Path, name: str = FILE) -> list[dict[str, Any]]:
    """What was made and not removed, newest first; each with its ``entry``, ``kind`` and identity. [] without a journal.

    RunFolderError if the journal is damaged, or could have been written by others than the caller.
    """
    path = folder / name
    directory = file = -1
    try:
        directory = _own_directory(folder)
        file = _opened(directory, name, path, os.O_RDONLY)
        return _parsed(_content(file), path).leftovers()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}", "look what it is") from None
    finally:
        for descriptor in (directory, file):
            if descriptor >= 0:
                os.close(descriptor)


def of_earlier_version(folder: Path) -> int:
    """How many entries are open in the journal that an earlier dbtoll kept in this run folder; 0 if it has none.

    Only counted, for a sentence: a run folder may come from anybody.
    """
    try:
        file = os.open(folder / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    with os.fdopen(file, "rb") as content:
        try:
            data = content.read(EARLIER_MAX_BYTES)
            read = _parsed(data, folder / FILE)
        except (OSError, RunFolderError):
            return 0
    return len(read.open) if read.origin is None else 0


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a journal was begun.

    ``machine``: of machine-id(5), hashed, as that page asks for; null where there is none. ``boot``: the kernel's boot id.
    ``host``: its name, for people. ``path``, ``inode``: the file itself, so that a copy is not taken for it. ``folder``: of
    the run, null for what is none.
    """

    machine: str | None
    boot: str
    host: str
    path: str
    inode: int
    folder: str | None

    @classmethod
    def here(cls, path: Path, status: os.stat_result, record: Path | None) -> _Origin:
        folder = None if record is None else os.path.realpath(record)
        return cls(_machine(), _boot(), socket.gethostname(), os.path.realpath(path), status.st_ino, folder)

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> _Origin:
        """ValueError unless all of it is there."""
        fields = {key: value for key, value in line.items() if key != "journal"}
        texts = (fields.get("machine"), fields.get("folder"))
        sound = all(value is None or isinstance(value, str) for value in texts)
        sound = sound and all(isinstance(fields.get(key), str) for key in ("boot", "host", "path"))
        if line["journal"] != VERSION or not sound or type(fields.get("inode")) is not int:
            raise ValueError("not the first line of a journal")
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(str(error)) from None


@dataclass(slots=True)
class _Read:
    """What a journal says: where it was begun (None: not said), and its open entries by number."""

    origin: _Origin | None
    open: dict[int, dict[str, Any]]

    def leftovers(self) -> list[dict[str, Any]]:
        return sorted(self.open.values(), key=lambda line: -int(line["entry"]))

    def demand_here(self, path: Path, status: os.stat_result) -> None:
        """Foreign unless this is the file that was begun, on the machine where it was."""
        origin = self.origin
        if origin is None:
            raise RunFolderError(
                f"{path}: its first line does not say where it was begun", f"look at it, and remove {path}"
            )
        whose = f"what it names belongs to {origin.folder or 'a trial'} on {origin.host}"
        here = _machine()
        named = here is not None and origin.machine is not None
        # Without a name of the machine, as in most containers, only its present life is known.
        if origin.machine != here if named else origin.boot != _boot():
            raise Foreign(
                f"{path} was begun on another machine: {whose}", f"run `dbtoll clean` there, or remove {path}"
            )
        if status.st_ino != origin.inode or _is_another(origin.path, status):
            raise Foreign(
                f"{path} is a copy of {origin.path}: {whose}", f"run `dbtoll clean` where that lies, or remove {path}"
            )


def _parsed(data: bytes, path: Path) -> _Read:
    """All whole lines; the last may be cut where the writer was killed. A first line in the middle begins the journal anew."""
    read = _Read(None, {})
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        try:
            line = json.loads(text)
            if "journal" in line:
                read = _Read(_Origin.read(line), {})
            elif line.get("done") is True:
                read.open.pop(_number(line), None)
            elif isinstance(line["kind"], str):
                read.open[_number(line)] = line
            else:
                raise TypeError("kind")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RunFolderError(
                f"{path}:{number}: not a journal line", "restore the file; until then its leftovers cannot be cleaned"
            ) from None
    return read


def _number(line: Mapping[str, Any]) -> int:
    if type(line["entry"]) is not int:
        raise TypeError("entry")
    return line["entry"]


def _machine() -> str | None:
    for path in MACHINE_IDS:
        with suppress(OSError):
            text = Path(path).read_text(encoding="ascii", errors="replace").strip()
            if re.fullmatch("[0-9a-f]{32}", text):
                return hashlib.sha256(b"dbtoll journal " + text.encode()).hexdigest()[:32]
    return None


def _boot() -> str:
    return Path(BOOT_ID).read_text(encoding="ascii").strip()


def _is_another(path: str, status: os.stat_result) -> bool:
    """Whether at ``path`` lies another file than that of ``status``. A cache may have been moved: then there lies none."""
    try:
        there = Path(path).lstat()
    except OSError:
        return False
    return (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino)


# --- files that only the caller can have written ---------------------------------------------------------------------------


def _own_directory(folder: Path) -> int:
    """A descriptor. OSError; RunFolderError if it is a link, another's, or one that others may write to."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise _not_obeyed(folder, "it is a link, or no directory") from None
    try:
        _demand_own(os.fstat(directory), folder)
    except BaseException:
        os.close(directory)
        raise
    return directory


def _opened(directory: int, name: str, path: Path, flags: int) -> int:
    """A descriptor of a regular file. OSError; RunFolderError as `_own_directory`."""
    try:
        # NONBLOCK: the opening of a pipe must not hold us.
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_obeyed(path, "it is a link") from None
        raise
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise _not_obeyed(path, "it is no file, or has a second name")
        _demand_own(status, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _locked(directory: int, name: str, path: Path, record: Path | None) -> int:
    """A descriptor of the file of that name, made if it is not there, and locked. ``record``: the run folder it is for."""
    while True:
        file = _opened(directory, name, path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                raise StillAlive(_who_works(_content(file), path, record), "wait for it, or end it") from None
            finally:
                os.close(file)
        with suppress(FileNotFoundError):  # whoever held it before may have removed it just now
            if os.path.samestat(os.fstat(file), os.stat(name, dir_fd=directory, follow_symlinks=False)):
                return file
        os.close(file)


def _who_works(data: bytes, path: Path, record: Path | None) -> str:
    """What the journal that another dbtoll holds says of its run: it may be one of the same name in another folder."""
    with suppress(RunFolderError):  # its first line may not be written yet
        origin = _parsed(data, path).origin
        if origin is not None and origin.folder and record and origin.folder != os.path.realpath(record):
            return f"{record}: another dbtoll is working on a run of the same name, {origin.folder}"
    return f"{record or path.parent}: another dbtoll is working on this run"


def _demand_own(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise _not_obeyed(path, f"it belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _not_obeyed(path, "others may write to it")


def _not_obeyed(path: Path, why: str) -> RunFolderError:
    return RunFolderError(f"{path} is not obeyed: {why}", f"look who put it there, then remove it: {path}")


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _write_whole(file: int, data: bytes) -> None:
    """Append all of it, or nothing."""
    before_bytes = os.fstat(file).st_size
    try:
        while data:  # a full disk or a signal may cut a write short
            data = data[os.write(file, data) :]
    except BaseException:
        with suppress(OSError):
            os.ftruncate(file, before_bytes)
        raise


def _record(folder: Path, line: bytes) -> None:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(folder / FILE, flags, 0o644)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":  # cut when its writer was killed
            os.ftruncate(file, os.pread(file, size, 0).rfind(b"\n") + 1)
        _write_whole(file, line)
    finally:
        os.close(file)
