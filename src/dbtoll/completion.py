"""What a shell completes: names of environments, engines, workloads, selfbenches and runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def environments(incomplete: str) -> list[str]:
    """Names, and behind ``NAME:`` the environment's options; behind ``//`` of the next one in the stack."""
    above, nested, word = incomplete.rpartition("//")
    return [f"{above}{nested}{each}" for each in _with_options("environments", word)]


def engines(incomplete: str) -> list[str]:
    """Names."""
    return _beginning(_names("engines"), incomplete)


def papers(incomplete: str) -> list[str]:
    """Names."""
    return _beginning(_names("papers"), incomplete)


def workloads(incomplete: str) -> list[str]:
    """Names, and behind ``NAME:`` the workload's options."""
    return list(_with_options("workloads", incomplete))


def selfbenches(incomplete: str) -> list[str]:
    """Names."""
    from dbtoll.selfbench import names

    return _beginning(names(), incomplete)


def runs(incomplete: str) -> list[str]:
    """``latest``, and the folders and names of the runs in ``DBTOLL_RUNS`` or ``runs``."""
    from dbtoll.store.folders import LATEST, name_in, run_folders

    folders = [folder.name for folder in run_folders(Path(os.environ.get("DBTOLL_RUNS") or "runs"))]
    named = filter(None, map(name_in, folders))
    return _beginning(list(dict.fromkeys([*([LATEST] if folders else []), *named, *folders])), incomplete)


def topics(incomplete: str) -> list[str]:
    """Of `dbtoll help`."""
    from dbtoll.cli import EXIT_CODES_TOPIC, app

    named = [each.name or getattr(each.callback, "__name__", "") for each in app.registered_commands]
    return _beginning([*named, EXIT_CODES_TOPIC], incomplete)


def suites(incomplete: str) -> list[str]:
    """Of Debian, for the system image."""
    from dbtoll.images.debian import SUITES

    return _beginning(list(SUITES), incomplete)


def profiles(incomplete: str) -> list[str]:
    """Of any engine's settings."""
    return _beginning(_choices("engines", "profile"), incomplete)


def indexes(incomplete: str) -> list[str]:
    """Of TPC-H."""
    return _beginning(_choices("workloads", "indexes"), incomplete)


def _with_options(family: str, word: str) -> Iterator[str]:
    from dbtoll import registry

    name, colon, given = word.partition(":")
    if not colon:
        yield from _beginning(_names(family), word)
    elif name in _names(family):
        before, comma, last = given.rpartition(",")
        for option, about in registry.find(family, name).options.items():
            values = [f"{option}={choice}" for choice in about.choices] or [f"{option}="]
            for value in _beginning(values, last):
                yield f"{name}:{before}{comma}{value}"


def _names(family: str) -> list[str]:
    from dbtoll import registry

    return registry.names(family)


def _choices(family: str, option: str) -> list[str]:
    from dbtoll.help import option_of

    found = [option_of(family, name, option) for name in _names(family)]
    return list(dict.fromkeys(choice for each in found if each for choice in each.choices))


def _beginning(words: list[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
