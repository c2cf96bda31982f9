"""An environment takes a machine and yields a machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.model.machine import MachineSpec, MissingRequirement
from dbtoll.model.options import Option


class Environment(Protocol):
    """Takes a machine and yields a machine. Knows no engine and no workload.

    A module ``environments/NAME.py`` defines a class ``Environment`` with this shape. ``primary`` is the option that the short
    form ``docker:runsc`` sets. ``packages``: Debian's, which a machine must have to open it; ``programs``: of which one must be
    there, by name or, of a socket, by path.
    ``also_called``, where there is one: names that people may type instead; they are answered with this one.
    """

    name: str
    primary: str | None
    options: Mapping[str, Option]
    packages: tuple[str, ...]
    programs: tuple[str, ...]

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """What is missing on ``machine`` to open this: probed, with deadlines, leaving nothing behind.

        ``kernel``: fetches what `BootingEnvironment` asked for, once all else is there; such an environment boots it without
        any disk.
        ``journal``: where it is noted what a trial makes, so that it can be found if the trial is killed.
        """
        ...

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> Machine: ...


@runtime_checkable
class BootingEnvironment(Protocol):
    """Power of an environment whose machines boot a kernel of their own: image and data come to it as disks."""

    def kernel(self, options: Mapping[str, Any]) -> str | None:
        """Name of the kernel that shall be provided as ``MachineSpec.kernel`` (images.kernel); None: it brings its own."""
        ...


@runtime_checkable
class NetworkedEnvironment(Protocol):
    """Power of an environment whose machines can be `ReachableMachine`."""

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that were given, with a network where they name none. UsageError where they forbid one."""
        ...


@runtime_checkable
class RunScopedEnvironment(Protocol):
    """Power of an environment whose arms share something that is dear to start (a daemon, an imported image).

    While the context lasts, it is there, so that no start of an arm has to wait for it; without it every arm brings its own.
    """

    def for_run(
        self, machine: Machine, machine_spec: MachineSpec, journal: Journal
    ) -> AbstractContextManager[None]: ...
