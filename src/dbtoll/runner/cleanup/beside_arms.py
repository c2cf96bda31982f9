"""What a run has on the host beside its arms, each in the journal; and the cleaning that leaves nothing."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dbtoll.errors import DbtollError
from dbtoll.images import dataset
from dbtoll.images.cache import scratch
from dbtoll.interfaces.journal import JournalEntry
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.local import open_local
from dbtoll.model.experiment import Experiment
from dbtoll.runner.cleanup import removers
from dbtoll.runner.cleanup.journal import Journal, temporary_journal
from dbtoll.runner.cleanup.signals import Stop
from dbtoll.runner.preparation.host import host_machine
from dbtoll.runner.rounds import Watch


@contextmanager
def cleaned(journal: Journal, stop: Stop, watch: Watch) -> Iterator[None]:
    """Before: what this run left when it was killed. After: what a teardown that failed or was cut has left."""
    _clean(journal, stop, watch)
    try:
        yield
    finally:
        stop.granted()
        _clean(journal, stop, watch)


def _clean(journal: Journal, stop: Stop, watch: Watch) -> None:
    """By an agent of its own: the line to the run's may be what broke."""
    if not journal.leftovers():
        return
    with stop.deferring_signals(), removers.removers() as by_kind:
        removed, failed = journal.sweep(by_kind)
    if removed:
        watch.say(f"removed what had been left of this run: {len(removed)} things")
    for line in failed:
        watch.say(f"not removed {line}; `dbtoll clean` tries again")


@contextmanager
def host_of(
    experiment: Experiment, run_id: str, journal: Journal, say: Callable[[str], None]
) -> Iterator[tuple[Machine, tuple[int, ...]]]:
    """The host and the arms' processors (`host.host_machine`); its agent and the run's directory are noted."""
    with ExitStack() as after, host_machine(experiment, say) as (host, cpuset):
        # The one resource that is noted after it was made: only then has it a number. Until then it ends by itself with the
        # line to us.
        entry = journal.create("agent", **removers.identity_of_agent(host))
        after.callback(entry.done)
        with _directory_of(host, scratch() / run_id, journal):
            yield host, cpuset


@contextmanager
def _directory_of(host: Machine, path: Path, journal: Journal) -> Iterator[None]:
    """For the arms' data and, in ``tmp``, all temporary files of this process; removed with whatever is in it."""
    with ExitStack() as after:
        after.callback(_removed, host, path, journal.create("directory", path=str(path)))
        temporary = path / "tmp"
        with suppress(FileExistsError):  # of a run that was killed, and whose removal failed
            temporary.mkdir(mode=0o700, parents=True)
        former, tempfile.tempdir = tempfile.tempdir, str(temporary)
        try:
            yield
        finally:
            tempfile.tempdir = former


def _removed(host: Machine, path: Path, entry: JournalEntry) -> None:
    with suppress(DbtollError):  # with the line to the host broken, the cleaning does it
        dataset.remove_copy(host, str(path))
        entry.done()


@contextmanager
def workspace(name: str) -> Iterator[tuple[Path, Journal]]:
    """An empty directory on the cache's disk, and a journal, for a trial or a selfbench; nothing of either is left."""
    with temporary_journal() as journal:
        path = scratch() / f"{name}-{secrets.token_hex(4)}"
        entry = journal.create("directory", path=str(path))
        try:
            path.mkdir(mode=0o700, parents=True)
            yield path, journal
        finally:
            with open_local() as host:
                _removed(host, path, entry)
