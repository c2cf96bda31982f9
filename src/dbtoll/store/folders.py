"""The folder that run folders lie in: their names, the newest of them, and which one a user means."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from dbtoll.errors import RunFolderError
from dbtoll.store.schema import EXPERIMENT_FILE, HISTORY_FILE

LATEST = "latest"
"""A link to the newest run."""

_FOLDER = re.compile(r"(?P<stamp>[0-9]{8}-[0-9]{6})-(?:(?P<name>.+)-)?(?P<mark>[0-9a-f]{6})")


def folder_name(stamp: str, name: str) -> str:
    """``20260501-091500-nightly-3f9a2b``: date and time, the run's name if it has one, and six random digits, so that folders
    sort by date and never meet."""
    return "-".join(filter(None, (stamp, name, secrets.token_hex(3))))


def name_in(folder: str) -> str:
    """The run's name in the name of its folder; "" if there is none."""
    match = _FOLDER.fullmatch(folder)
    return (match["name"] or "") if match else ""


def run_folders(runs_dir: Path) -> list[Path]:
    """All of them, the newest first."""
    with suppress(OSError):
        found = [
            path
            for path in runs_dir.iterdir()
            if not path.is_symlink() and ((path / HISTORY_FILE).exists() or (path / EXPERIMENT_FILE).exists())
        ]
        return sorted(found, key=lambda path: path.name, reverse=True)
    return []


def point_latest(runs_dir: Path, to: str | None) -> str | None:
    """Let ``latest`` lead to the run folder of that name; None: away with it. Returns where it led before.

    A relative link, put in place as a whole. What is no link is somebody else's and stays, and a file system without links does
    without it.
    """
    link = runs_dir / LATEST
    before = None
    with suppress(OSError):
        before = str(link.readlink())
    if before is None and os.path.lexists(link):
        return None
    with suppress(OSError):
        if to is None:
            link.unlink(missing_ok=True)
        else:
            new = runs_dir / f".{LATEST}.new"
            new.unlink(missing_ok=True)  # of one that was killed in between
            new.symlink_to(to)
            new.replace(link)
    return before


def find_run(asked: Path, runs_dir: Path) -> Path:
    """The run folder that is meant by a path, by ``latest``, by a run's name (the newest of that name), or by the unique
    beginning of either's name. RunFolderError if there is none, or more than one."""
    if asked.is_dir():
        return asked.resolve() if asked.is_symlink() else asked
    word = str(asked)
    if "/" in word:
        raise _no_run(f"{asked}: there is no such run folder", runs_dir)
    if word == LATEST and (runs_dir / LATEST).is_dir():
        return runs_dir / (runs_dir / LATEST).readlink()
    folders = run_folders(runs_dir)
    if word == LATEST and folders:
        return folders[0]
    for folder in folders:
        if word in (folder.name, name_in(folder.name)):
            return folder
    meant = [folder for folder in folders if folder.name.startswith(word) or name_in(folder.name).startswith(word)]
    if len(meant) > 1:
        names = ", ".join(folder.name for folder in meant[:5])
        raise RunFolderError(f"{word}: {len(meant)} runs in {runs_dir} begin so: {names}", "name one of them in full")
    if not meant:
        raise _no_run(f"{word}: there is no such run folder, and no run of that name in {runs_dir}", runs_dir)
    return meant[0]


def _no_run(message: str, runs_dir: Path) -> RunFolderError:
    there = "" if run_folders(runs_dir) else f" (there is none in {runs_dir} yet)"
    return RunFolderError(message, f"`dbtoll runs` lists the runs{there}; --runs-dir says where run folders lie")
