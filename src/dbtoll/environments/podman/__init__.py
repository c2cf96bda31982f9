"""``podman``: the system image as a container of podman, through the API that ``podman system service`` offers.

The API is Docker's, so all but where it comes from is ``docker``'s: a service of the machine's own that answers, else one that
dbtoll starts for the arm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from dbtoll.environments import docker
from dbtoll.environments.docker.api import Api, answers
from dbtoll.environments.docker.container import Engine, plain_errors
from dbtoll.environments.docker.images import Imported, imported
from dbtoll.environments.docker.runtimes import Runtime
from dbtoll.environments.podman import service
from dbtoll.environments.podman.service import DATA_ROOT, Service
from dbtoll.errors import Unavailable
from dbtoll.interfaces import environment as interface
from dbtoll.interfaces.journal import Journal
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.group import QUOTA_OPTIONS
from dbtoll.machines.cgroups.layout import find_layout, own_cpus
from dbtoll.machines.control_group import through_agent
from dbtoll.machines.programs import exists, find_program
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import MachineSpec, PackagedProgram
from dbtoll.model.options import Option

ROOTFUL = "/run/podman/podman.sock"

_SHARED = ("network", "seccomp", "apparmor", "shm", "storage", "overwrite", *QUOTA_OPTIONS)


class Environment(docker.Environment):
    """Opens an image as a container of podman."""

    name = "podman"
    description = EnvironmentDescription("Podman", {"cpu_quota": "cpu_quota"})
    also_called = ("libpod", "crun")
    primary = "runtime"
    packages = ("podman", "crun", "curl")
    start_bound_s = 3.0
    # `quick` and the selfbenches have Docker's containers, which are of the same kind.
    default_stacks = ()
    keeps_at = (DATA_ROOT,)
    options: ClassVar[Mapping[str, Option]] = {
        "runtime": Option(
            "text",
            None,
            "OCI runtime, by name or path; else podman's default, or runc where control groups of both versions keep crun "
            "from starting",
        ),
        "socket": Option(
            "text",
            None,
            f"the API's socket; else {ROOTFUL} if it answers and has the runtime, else dbtoll starts a service of its own",
        ),
        "data_root": Option(
            "text", None, f"the storage of dbtoll's own service; else {DATA_ROOT}, or memory in a guest"
        ),
        **{name: docker.Environment.options[name] for name in _SHARED},
    }

    @classmethod
    def look(cls) -> interface.Sight:
        """Whether a service answers; where one does no program is needed."""
        if os.access(ROOTFUL, os.W_OK):
            return interface.Sight(f"a socket of podman is at {ROOTFUL}", needs_programs=False)
        return interface.Sight("no service answers: dbtoll starts one of its own")

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Its parent's network: dbtoll's own service makes no bridge."""
        return super().networked({"network": "host", **options})

    def program(self, machine: Machine, options: Mapping[str, Any]) -> PackagedProgram | None:
        """Podman has to be installed."""
        return None

    def removers(self) -> Mapping[str, interface.Remover]:
        """Services of dbtoll's own; containers of others' are removed as Docker's are."""
        return {service.KIND: service.remove}

    def stores(self) -> Sequence[Callable[[Any, Journal], AbstractContextManager[Sequence[Imported]]]]:
        """The images of the machine's own service and of dbtoll's."""
        return (partial(docker.images_at, ROOTFUL), images_of_own)

    @contextmanager
    def engine(
        self, parent: AgentMachine, machine_spec: MachineSpec, journal: Journal, options: Mapping[str, Any]
    ) -> Iterator[Engine]:
        """The service that the options and the machine lead to."""
        with ExitStack() as stack:
            own = None
            socket = options["socket"] or self._system_socket(parent, options)
            if socket is None:
                if options["network"] == "bridge":
                    raise Unavailable("dbtoll's own podman service makes no bridge", "network=host or network=none")
                root = docker.data_root(parent, options, DATA_ROOT)
                own = Service(parent, journal, machine_spec, root, _runtime_here(parent, options))
                stack.callback(own.end)
                socket = own.socket
            else:
                _demand_ours(parent, socket)
            api = stack.enter_context(Api(parent, socket))
            yield Engine(api, own, api.client.info())

    def runtime(
        self, parent: AgentMachine, engine: Engine, machine_spec: MachineSpec, options: Mapping[str, Any]
    ) -> Runtime:
        """A service has one runtime, which containers cannot choose."""
        default = engine.info["DefaultRuntime"]
        if engine.own is None and options["runtime"] not in (None, default):
            raise Unavailable(
                f"podman's service at {engine.api.path} runs containers by {default}, not by {options['runtime']}",
                "leave the option socket out: then dbtoll starts its own",
            )
        return Runtime(None)

    @contextmanager
    def for_run(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> Iterator[None]:
        """The image imported, by a service that ends then: each arm brings its own."""
        parent = through_agent(machine)
        with (
            plain_errors(machine_spec.name),
            self.engine(parent, machine_spec, journal, self._complete(machine_spec.options)) as engine,
        ):
            if machine_spec.image is not None:
                docker.bring_image(parent, engine, machine_spec.image, journal)
        yield

    def _complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: option.default for name, option in self.options.items()} | dict(options)

    def _system_socket(self, parent: AgentMachine, options: Mapping[str, Any]) -> str | None:
        """Of the machine's own service, where it is used: from the first arm to the last."""
        chosen = _by_system.setdefault(parent, {})
        asked = repr([options["runtime"], options["data_root"]])
        if asked not in chosen:
            is_used = (
                options["data_root"] is None and exists(parent, ROOTFUL) and _has(parent, ROOTFUL, options["runtime"])
            )
            chosen[asked] = ROOTFUL if is_used else None
        return chosen[asked]


_by_system: WeakKeyDictionary[AgentMachine, dict[str, str | None]] = WeakKeyDictionary()
"""The socket of a machine's own service, by what is asked for; None: dbtoll's own is used."""


def _has(parent: AgentMachine, socket: str, runtime: str | None) -> bool:
    if not answers(parent, socket):
        return False
    with Api(parent, socket) as api:
        return runtime in (None, api.client.info()["DefaultRuntime"])


def _demand_ours(parent: AgentMachine, socket: str) -> None:
    """Another user's containers have no right to dbtoll's image and data, and no control groups of ours."""
    owner, ours = (
        parent.run(argv, check=False).output.strip() for argv in (["stat", "-c", "%u", socket], ["id", "-u"])
    )
    if owner and owner != ours:
        raise Unavailable(
            f"{parent.name}: podman's service at {socket} is of user {owner.decode()}, who may not read the image and the data",
            "leave the option socket out, or run dbtoll as that user",
        )


def _runtime_here(parent: AgentMachine, options: Mapping[str, Any]) -> str | None:
    """crun until 1.8, so in Debian 12, starts nothing where trees of both versions of control groups are mounted."""
    if options["runtime"] is not None:
        return str(options["runtime"])
    if not find_layout(parent).hierarchies:
        if find_program(parent, "crun") is None:
            raise Unavailable(
                f"{parent.name}: only crun starts a container without control groups", "apt-get install -y crun"
            )
        return "crun"
    is_refused = find_layout(parent).versions() == "hybrid"
    return "runc" if is_refused and find_program(parent, "runc") is not None else None


@contextmanager
def images_of_own(machine: AgentMachine, journal: Journal) -> Iterator[list[Imported]]:
    """Those in dbtoll's own storage, by a service that is started for that."""
    root = machine.place(DATA_ROOT)
    if machine.run(["test", "-w", f"{root}/root"], check=False).exit_code != 0:
        yield []
        return
    mark = f"clean-{machine.hello()['pid']}"
    machine_spec = MachineSpec(mark, mark, "podman", None, (), Resources(), own_cpus(machine))
    with plain_errors(root), ExitStack() as stack:
        own = Service(machine, journal, machine_spec, root, None)
        stack.callback(own.end)
        yield imported(stack.enter_context(Api(machine, own.socket)))
