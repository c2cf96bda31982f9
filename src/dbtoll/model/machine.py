"""What is opened as a machine, what lies in it, where its server is reached, what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.layout import Unit, name_of


@dataclass(frozen=True, slots=True)
class Artifact:
    """A content-addressed directory or file: ``path`` on the machine that holds it, ``key`` its address.

    A directory and the disk that was made of it (an ext4 file system in a file) have the same key and another kind. ``placed``: it
    was made where it lies, on a device of the machine that needs it, and is sent nowhere.
    """

    key: str
    path: str
    kind: Literal["directory", "file"] = "directory"
    placed: bool = False


@dataclass(frozen=True, slots=True)
class Provision:
    """An artifact that an arm shall find at ``at``."""

    artifact: Artifact
    at: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class PackagedProgram:
    """A program that is used out of its Debian package, and not installed: the name of its file in /usr/bin, package and suite."""

    name: str
    package: str
    suite: str


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """What an environment is asked to open: one arm of one run.

    ``cpuset``: processor numbers on the machine the environment is opened on. ``image``: the system image, as a directory
    or, for an environment that boots (`interfaces.environment.BootingEnvironment`), as a disk, like all provisions; None keeps
    the machine's own root. ``kernel``: what `BootingEnvironment` asked for; ``program``: what `ProgramEnvironment` did.
    ``name``: unique on that machine, made from run, arm and the machine's number, [a-z0-9-]+. ``enclosing``: the control group,
    below that of the run, in which all machines of the arm lie; empty where there is one, whose own group holds all of it.
    ``machines``: how many those are; they share the processors.
    """

    name: str
    run_id: str
    arm: str
    image: Artifact | None
    provisions: tuple[Provision, ...]
    resources: Resources
    cpuset: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    kernel: Artifact | None = None
    program: Artifact | None = None
    enclosing: str = ""
    machines: int = 1

    @property
    def group(self) -> tuple[str, ...]:
        """The names of its control group and of those around it, down from the one of all of dbtoll."""
        return (self.run_id, *filter(None, [self.enclosing]), self.name)


DATA = "/dbtoll/data"
"""Where every machine finds the data of its servers."""

LOG = "/dbtoll/run/log"
"""Where a machine finds what is to hold the logs of its servers, if these lie on a device of their own. Below a directory that
every machine has as a memory file system of its own, so that no image needs to have a place for it."""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server lies in its machine: its data directory, and the directory that is its own while it runs.

    ``network``: an address of the machine at which it listens too. ``log``: the directory of its write-ahead log; None: in
    ``data``.
    """

    data: str = DATA
    run: str = "/dbtoll/run/server-0"
    network: str | None = None
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens inside its machine, and who may enter. ``wire`` names the protocol (``postgres``). ``schema``: where
    a session finds its tables; None: where its database has them by default."""

    wire: str
    user: str
    database: str
    unix: str | None = None
    tcp: tuple[str, int] | None = None
    password: str | None = None
    schema: str | None = None

    def of(self, unit: Unit) -> Address:
        """As that unit enters it. The first database is the server's own, and the first schema the database's."""
        database = name_of(unit.database) if unit.database else self.database
        return replace(self, database=database, schema=name_of(unit.schema) if unit.schema else None)

    def parameters(self) -> Json:
        """Server and login as the agent's methods take them (docs/PROTOCOL.md, ``serial``)."""
        return {
            "wire": self.wire,
            "address": {"unix": self.unix} if self.unix is not None else {"tcp": list(self.tcp or ())},
            "user": self.user,
            "password": self.password,
            "database": self.database,
            "schema": self.schema,
        }


@dataclass(frozen=True, slots=True)
class MissingRequirement:
    """Something that this machine lacks: ``what``, ``why`` it is needed, ``hint``: the one command that brings it."""

    what: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class Check:
    """One honesty check of one arm (DESIGN §4). ``passed`` None: could not be checked here, ``finding`` says why."""

    name: str
    passed: bool | None
    finding: str
    voids: bool = True
