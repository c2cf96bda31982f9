"""What engines share whose queries take a number of threads and whose memory has a limit: both are options, equal in all arms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dbtoll.errors import SpecError
from dbtoll.interfaces import engine as interface
from dbtoll.interfaces.machine import Machine, Session
from dbtoll.model.experiment import THREADS_MAX, Resources
from dbtoll.model.options import Option
from dbtoll.secretive import demand_none
from dbtoll.servers import server_process

USER = "nobody"
"""Of the image: the servers run as it, and the data are its."""

MEMORY_SHARE = 0.8
"""Of an arm's memory, where nobody says otherwise: what HyPer and DuckDB take of a machine's by themselves."""

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 600.0
"""They write what was changed."""

LOAD_DEADLINE_S = 6 * 3600.0


def said_twice(engine: str, place: str) -> tuple[str, str]:
    """What is wrong where the factor ``threads`` is not alone in saying how many a query has, and what helps."""
    return (
        f"engine {engine}: its {place} and the factor threads both say how many threads a query has",
        f"leave out one of them: the factor, or the engine's {place}",
    )


def most_threads(given: Mapping[str, str]) -> tuple[str, int] | None:
    """Place -> number of threads, as its user wrote it: the one that asks for the most, of those that are numbers."""
    known = [(place, int(text)) for place, text in given.items() if text.isdecimal()]
    return max(known, key=lambda each: each[1], default=None)


class ParallelEngine(interface.Engine):
    """Base of such an engine."""

    thread_settings: ClassVar[tuple[str, ...]]
    following_settings: ClassVar[tuple[str, ...]] = ()
    memory_setting: ClassVar[str]
    flag_texts: ClassVar[tuple[str, str]] = ("false", "true")
    """How it writes what is off and what is on."""
    offers = frozenset({interface.SQL, interface.BULK_ROWS, interface.TRANSACTIONS})
    options: ClassVar[Mapping[str, Option]] = {
        "threads": Option(
            "integer",
            0,
            "threads of a query, more than processors only with `oversubscribe`; 0: one for each processor of the arm",
        ),
        "memory": Option("size", 0, "memory limit of each server; 0: 80 % of its part of the arm's"),
        "settings": Option("table", {}, "setting = value, as the engine calls them"),
    }

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = {name: options.get(name, option.default) for name, option in self.options.items()}
        self._threads: int = chosen["threads"]
        self._memory_bytes: int = chosen["memory"]
        if not 0 <= self._threads <= THREADS_MAX:
            raise SpecError(
                f"engine {self.name}: {self._threads} threads",
                f"choose 1 to {THREADS_MAX}, or 0 for the arm's processors",
            )
        demand_none(chosen["settings"], "leave it out: no figure needs it")
        self._given = {self.canonical(name): self._text(name, value) for name, value in chosen["settings"].items()}

    def canonical(self, setting: str) -> str:
        """A setting's name as the engine writes it."""
        return setting

    def memory(self, size_bytes: int) -> str:
        """A memory limit as the engine writes it."""
        return f"{size_bytes >> 20}MiB"

    def settings(self, resources: Resources) -> dict[str, str]:
        """The table wins."""
        memory_bytes = self._memory_bytes or round(MEMORY_SHARE * resources.memory_bytes)
        return {
            **dict.fromkeys(self.thread_settings, str(self._threads or resources.cpus)),
            self.memory_setting: self.memory(memory_bytes),
            **self._given,
        }

    def settings_of_threads(self, threads: int) -> dict[str, str]:
        """See interfaces.ThreadedEngine."""
        if taken := [name for name in self.thread_settings if name in self._given]:
            raise SpecError(*said_twice(self.name, f"setting {taken[0]}"))
        if self._threads:
            raise SpecError(*said_twice(self.name, "option threads"))
        return dict.fromkeys(self.thread_settings, str(threads))

    def threads_asked_for(self) -> tuple[str, int] | None:
        """See interfaces.ThreadedEngine. The table wins."""
        given = {f"setting {name}": self._given[name] for name in self.thread_settings if name in self._given}
        if self._threads and len(given) < len(self.thread_settings):
            given["option threads"] = str(self._threads)
        return most_threads(given)

    def threads(self, session: Session) -> int:
        """See interfaces.ThreadedEngine."""
        told = self.facts(session)["settings"]
        return max(int(told[name]) for name in self.thread_settings)

    def load_settings(self, resources: Resources) -> dict[str, str]:
        """The same without what the user gave: that is for what is measured."""
        return type(self)({}).settings(resources)

    def create(self, machine: Machine, data: str) -> None:
        """An empty directory: the engine makes its files when it first runs."""
        server_process.own_directory(machine, data, USER)

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, bool):
            return self.flag_texts[value]
        if not isinstance(value, str | int | float) or "\n" in str(value):
            raise SpecError(
                f"engine {self.name}: the setting {name} is neither text nor number", f"write: {name} = 'value'"
            )
        return str(value)
