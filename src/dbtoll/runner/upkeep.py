"""What a run has on the host beside its arms, each in the journal; and the sweep that leaves nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dbtoll.errors import DbtollError
from dbtoll.images import dataset
from dbtoll.images.cache import Cache
from dbtoll.interfaces import Entry, Machine
from dbtoll.model import Experiment
from dbtoll.runner import preparation, removal
from dbtoll.runner.journal import Journal, leftovers
from dbtoll.runner.rounds import Watch
from dbtoll.runner.stop import Stop


@contextmanager
def swept(journal: Journal, stop: Stop, watch: Watch) -> Iterator[None]:
    """Before: what this run left when it was killed. After: what a teardown that failed or was cut has left."""
    _sweep(journal, stop, watch)
    try:
        yield
    finally:
        _sweep(journal, stop, watch)


def _sweep(journal: Journal, stop: Stop, watch: Watch) -> None:
    """By an agent of its own: the line to the run's may be what broke."""
    if not leftovers(journal.folder):
        return
    with stop.held(), removal.removers() as by_kind:
        removed, failed = journal.sweep(by_kind)
    if removed:
        watch.say(f"removed what had been left of this run: {len(removed)} things")
    for line in failed:
        watch.say(f"not removed {line}; `dbtoll clean` tries again")


@contextmanager
def host_of(experiment: Experiment, journal: Journal) -> Iterator[tuple[Machine, tuple[int, ...]]]:
    """The host and the arms' processors (`preparation.host_machine`); its agent and the run's directories are noted."""
    with ExitStack() as after, preparation.host_machine(experiment) as (host, cpuset):
        # The one resource that is noted after it was made: only then has it a number. Until then it ends by itself with the
        # line to us.
        entry = journal.create("agent", **removal.identity_of_agent(host))
        after.callback(entry.done)
        with _directories(host, journal):
            yield host, cpuset


@contextmanager
def _directories(host: Machine, journal: Journal) -> Iterator[None]:
    """One for the arms' data, one for all temporary files of this process; removed with whatever is in them."""
    run_id = journal.folder.name
    temporary = Path(tempfile.gettempdir()) / f"dbtoll-{run_id}"

    def remove(path: Path, entry: Entry) -> None:
        with suppress(DbtollError):  # with the line to the host broken, the sweep does it
            dataset.remove_copy(host, str(path))
            entry.done()

    with ExitStack() as after:
        for path in (Cache().root / "scratch" / run_id, temporary):
            after.callback(remove, path, journal.create("directory", path=str(path)))
        temporary.mkdir(mode=0o700)
        former, tempfile.tempdir = tempfile.tempdir, str(temporary)
        try:
            yield
        finally:
            tempfile.tempdir = former
