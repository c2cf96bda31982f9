"""An environment takes a machine and yields a machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.machine import MachineSpec, MissingRequirement, PackagedProgram
from dbtoll.model.options import Option

Remover = Callable[[Any, Mapping[str, Any]], str | None]
"""Removes, on the local host (a `Machine` with an agent), what a journal entry's identity names; no error if it is gone. Returns
why it was left, None where nothing is. DbtollError for an identity that this kind cannot have: nothing is done then."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One way in which `doctor` opens an environment. ``note``: what is said of an environment that is ready in this way."""

    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """What `doctor` finds by looking, where there is no agent to try anything. ``needs_programs``: whether the programs that the
    environment calls are needed here (`system_packages`)."""

    note: str = ""
    needs_programs: bool = True


class Environment(Protocol):
    """Takes a machine and yields a machine. Knows no engine and no workload.

    A module ``environments/NAME.py``, or a package's entry point, defines a class ``Environment`` derived from this one. All
    that dbtoll knows of an environment is in it; what has a value here may be left out.
    """

    name: ClassVar[str]
    description: ClassVar[EnvironmentDescription]
    """What analysis and report know of it."""
    also_called: ClassVar[tuple[str, ...]] = ()
    """Names that people may type instead; they are answered with this one."""
    primary: ClassVar[str | None] = None
    """The option that the short form sets: ``docker:runsc``."""
    options: ClassVar[Mapping[str, Option]] = {}
    packages: ClassVar[tuple[str, ...]] = ()
    """Debian's, which a machine must have to open it."""
    simulated: ClassVar[bool] = False
    """Whether nothing really runs: it needs no image and no data, and proves nothing about this machine."""
    trials: ClassVar[tuple[Trial, ...]] = (Trial(),)
    """How `doctor` tries it, in order, until one works."""
    cpus_most: ClassVar[int | None] = None
    """Processors that one of its machines can use at a time; None: all that there are."""
    start_bound_s: ClassVar[float | None] = None
    """What a start until the agent's answer may take (`dbtoll selfbench start`); None: not bounded."""
    default_stacks: ClassVar[tuple[str, ...]] = ()
    """Stacks that are measured where none is asked for. `quick` takes the first, selfbenches take all."""

    @abstractmethod
    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """What is missing on ``machine`` to open this: probed, with deadlines, leaving nothing behind.

        ``kernel``: fetches what `BootingEnvironment` or `ProgramEnvironment` asked for, once all else is there; the former
        boots it without any disk.
        ``journal``: where it is noted what a trial makes, so that it can be found if the trial is killed.
        """
        ...

    @abstractmethod
    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> Machine: ...

    def removers(self) -> Mapping[str, Remover]:
        """Kind of journal entry -> how that is removed, for `dbtoll clean`. No two environments may have one kind."""
        return {}

    @classmethod
    def look(cls) -> Sight:
        """What can be said of this host without opening anything."""
        return Sight()

    @classmethod
    def contract_options(cls, folder: Path) -> Mapping[str, Any]:
        """Options with which tests open it so that they use nothing of this host's; ``folder``: an empty one."""
        return {}


@runtime_checkable
class BootingEnvironment(Protocol):
    """Power of an environment whose machines boot a kernel of their own: image and data come to it as disks."""

    def kernel(self, options: Mapping[str, Any]) -> str | None:
        """Name of the kernel that shall be provided as ``MachineSpec.kernel`` (images.kernel); None: it brings its own."""
        ...


@runtime_checkable
class ProgramEnvironment(Protocol):
    """Power of an environment whose program need not be installed: where there is none, it comes out of its Debian package."""

    def program(self, machine: Machine, options: Mapping[str, Any]) -> PackagedProgram | None:
        """What shall be provided as ``MachineSpec.program`` (images.program); None where one is there, or none is needed."""
        ...


@runtime_checkable
class NetworkedEnvironment(Protocol):
    """Power of an environment whose machines can be `ReachableMachine`."""

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that were given, with a network where they name none. UsageError where they forbid one."""
        ...


@runtime_checkable
class ThrottlingEnvironment(Protocol):
    """Power of an environment that can itself hold back the requests of its machines to their devices
    (`model.experiment.Resources.has_rates`)."""

    def throttles(self, options: Mapping[str, Any]) -> bool:
        """Whether it does so with these options; else the control group of its machine does."""
        ...


@runtime_checkable
class RunScopedEnvironment(Protocol):
    """Power of an environment whose arms share something that is dear to start (a daemon, an imported image).

    While the context lasts, it is there, so that no start of an arm has to wait for it; without it every arm brings its own.
    """

    def for_run(
        self, machine: Machine, machine_spec: MachineSpec, journal: Journal
    ) -> AbstractContextManager[None]: ...


A_HOST = "a host"
"""What a `RemoteEnvironment` lacks whose options name none: nothing that could be brought."""


@runtime_checkable
class RemoteEnvironment(Protocol):
    """Power of an environment whose arms stand on another host.

    That is reached once for a run, and again after the line to it broke. `Environment.open` takes it in place of the machine from
    which it was reached; without an image it opens that host itself.
    """

    def reach(self, machine: Machine, options: Mapping[str, Any], journal: Journal, *, keeps: bool = False) -> Machine:
        """That host, a `RemoteMachine`. ``keeps``: things will be provided to it. Unavailable where it cannot be reached now."""
        ...


class KeptImage(Protocol):
    """A system image that an environment keeps from run to run. ``key``: of the image in the cache that it was made of."""

    @property
    def key(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def used_at(self) -> float: ...
    def remove(self) -> bool:
        """False where it is in use, and stays."""
        ...


@runtime_checkable
class KeepingEnvironment(Protocol):
    """Power of an environment that keeps images of its own from run to run, outside the cache."""

    keeps_at: ClassVar[tuple[str, ...]]
    """Directories on the host in which it keeps them, as far as they are dbtoll's own."""

    def stores(self) -> Sequence[Callable[[Any, Journal], AbstractContextManager[Sequence[KeptImage]]]]:
        """What holds images; each is opened by itself, and may be Unavailable (another run works with it)."""
        ...
