"""Remove what is left behind, and what is kept from run to run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from dbtoll import units
from dbtoll.errors import DbtollError, UsageError
from dbtoll.text import printable


def clean(runs_dir: Path, *, as_json: bool) -> int:
    """Remove what runs that no longer live left behind."""
    from dbtoll.images.cache import default_root
    from dbtoll.runner.cleanup.removers import clean_all

    cleaned = clean_all(runs_dir)
    if as_json:
        print(json.dumps(asdict(cleaned)))
    else:
        for line in cleaned.removed:
            print(printable(f"removed {line}"))
        for line in cleaned.failed:
            print(printable(f"not removed {line}"))
        for line in cleaned.alive:
            print(printable(f"left alone, it is going on: {line}"))
        for line in cleaned.left:
            print(printable(f"left alone: {line}"))
        if not cleaned.removed and not cleaned.failed:
            print(f"nothing was left behind by runs with this cache, {default_root()}")
    return DbtollError.exit_code if cleaned.failed else 0


def clean_cache(*, older: float | None, keep: str | None, as_json: bool) -> int:
    """Remove what is kept from run to run and nobody uses: all of it, or what ``older`` (days) and ``keep`` (a size) leave."""
    from dbtoll.runner.cleanup.caches import shrink

    if older is not None and not older >= 0:
        raise UsageError(f"--older {older}: days are counted from 0", "--older 30")
    try:
        keep_bytes = units.size_bytes(keep) if keep else 0
    except ValueError as error:
        raise UsageError(f"--keep: {error}", "--keep '20 GiB'") from None
    shrunk = shrink(older_days=older or 0.0, keep_bytes=keep_bytes)
    if as_json:
        print(json.dumps(asdict(shrunk)))
    else:
        for words, lines in (
            ("removed", shrunk.removed),
            ("left alone", shrunk.left_alone),
            ("not removed", shrunk.failed),
        ):
            for line in lines:
                print(printable(f"{words}: {line}"))
        print(f"the cache and the images that environments keep hold {shrunk.left_bytes / (1 << 30):.1f} GiB")
    return DbtollError.exit_code if shrunk.failed else 0
