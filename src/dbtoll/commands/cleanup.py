"""Remove what is left behind, and what is kept from run to run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dbtoll import units
from dbtoll.errors import DbtollError, UsageError
from dbtoll.images.cache import Cache
from dbtoll.text import noun, printable

if TYPE_CHECKING:
    from dbtoll.runner.cleanup.removers import Cleaned


def clean(runs_dir: Path, *, dry_run: bool, as_json: bool) -> int:
    """Remove what runs that no longer live left behind; with ``dry_run`` only say what that is."""
    from dbtoll.images.cache import default_root
    from dbtoll.runner.cleanup.removers import clean_all

    cleaned = clean_all(runs_dir, dry_run=dry_run)
    if as_json:
        print(json.dumps(asdict(cleaned)))
        return DbtollError.exit_code if cleaned.failed else 0
    for words, lines in (
        ("would be removed" if dry_run else "removed", cleaned.removed),
        ("not removed", cleaned.failed),
        ("left alone, it is going on", cleaned.alive),
        ("left alone", cleaned.left),
    ):
        for line in lines:
            print(printable(f"{words}: {line}"))
    print(printable(_summary(cleaned, dry_run=dry_run, cache=default_root())))
    for folder in cleaned.runs:
        print(printable(f"go on with: dbtoll run {folder} --resume"))
    if kept := sum(kept.size_bytes for kept in Cache().kept()):
        print(
            f"the cache holds {kept / (1 << 30):.1f} GiB, which save time in later runs; smaller by: dbtoll clean --cache"
        )
    return DbtollError.exit_code if cleaned.failed else 0


def _summary(cleaned: Cleaned, *, dry_run: bool, cache: Path) -> str:
    if not cleaned.removed and not cleaned.failed:
        return f"nothing was left behind by runs with this cache, {cache}"
    removed, failed = len(cleaned.removed), len(cleaned.failed)
    runs = f" of {len(cleaned.runs)} {noun(len(cleaned.runs), 'run')}" if cleaned.runs else ""
    said = f"{removed} {noun(removed, 'thing')}{runs} {'would be' if dry_run else noun(removed, 'was', 'were')} removed"
    return f"{said}, {failed} could not be" if failed else said


def clean_cache(*, older: float | None, keep: str | None, dry_run: bool, as_json: bool) -> int:
    """Remove what is kept from run to run and nobody uses: all of it, or what ``older`` (days) and ``keep`` (a size) leave.

    ``dry_run``: only say what that is, the longest unused first.
    """
    from dbtoll.runner.cleanup.caches import shrink

    if older is not None and not older >= 0:
        raise UsageError(f"--older {older}: days are counted from 0", "--older 30")
    try:
        keep_bytes = units.size_bytes(keep) if keep else 0
    except ValueError as error:
        raise UsageError(f"--keep: {error}", "--keep '20 GiB'") from None
    shrunk = shrink(older_days=older or 0.0, keep_bytes=keep_bytes, dry_run=dry_run)
    if as_json:
        print(json.dumps(asdict(shrunk)))
    else:
        for words, lines in (
            ("would be removed, unless it is in use" if dry_run else "removed", shrunk.removed),
            ("left alone", shrunk.left_alone),
            ("not removed", shrunk.failed),
        ):
            for line in lines:
                print(printable(f"{words}: {line}"))
        would = "would hold" if dry_run else "hold"
        print(f"the cache and the images that environments keep {would} {shrunk.left_bytes / (1 << 30):.1f} GiB")
    return DbtollError.exit_code if shrunk.failed else 0
