"""``docker``: the system image as a container, through the Engine API of Docker, or of who else offers it.

The container's first process is the agent, attached by its standard streams: no port, no network, no ``docker exec``.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from dbtoll import identities
from dbtoll.channel.client import Channel
from dbtoll.environments.docker import dockerd, runtimes
from dbtoll.environments.docker.api import Api, AttachedStream, answers
from dbtoll.environments.docker.container import (
    LABEL,
    ContainerSpec,
    Engine,
    OwnDaemon,
    created_container,
    plain_errors,
    remove_container,
    set_up_container,
)
from dbtoll.environments.docker.images import TAGGED, Imported, has_image, import_image, imported, tag_of
from dbtoll.environments.docker.runtimes import Runtime
from dbtoll.errors import DbtollError, ProgramFailed, Unavailable, UsageError
from dbtoll.interfaces import environment as interface
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal, JournalEntry
from dbtoll.interfaces.machine import Machine
from dbtoll.machines import chroot, programs
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.group import QUOTA_OPTIONS, freezer_of_process
from dbtoll.machines.cgroups.layout import find_layout, is_first_user_namespace, own_cpus
from dbtoll.machines.chroot import RUN, STAGES, open_files
from dbtoll.machines.control_group import LOOPBACK, ControlGroupMachine, Network, through_agent
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.storage import place
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MachineSpec, MissingRequirement, PackagedProgram
from dbtoll.model.options import Option
from dbtoll.model.storage import BIND, LAYER, MEMORY, VOLUME
from dbtoll.model.storage import options as storage_options

NAMED = "[a-zA-Z0-9][a-zA-Z0-9_.-]*"
"""How containers may be called (Docker's own rule)."""

IMAGE = "image"
"""Kind of journal entry: ``socket`` of a daemon that is not dbtoll's own, ``tag`` of an image that it is not to keep."""

SYSTEM_SOCKET = "/var/run/docker.sock"
SOCKETS = (SYSTEM_SOCKET,)
"""Where a daemon may answer."""
PING_TIMEOUT_S = 5
LOG = "the daemon's log says more"


class DockerMachine(ControlGroupMachine):
    """A container; its logs include those of dbtoll's own daemon."""

    lease: OwnDaemon | None = None

    def freeze(self) -> None:
        """The container first, then our own daemon, which relays for it."""
        super().freeze()
        if self.lease is not None:
            self.lease.rest()

    def thaw(self) -> None:
        """In the opposite order."""
        if self.lease is not None:
            self.lease.wake()
        super().thaw()

    def logs(self) -> Mapping[str, bytes]:
        """Of the programs in here, and of the daemon."""
        return {**super().logs(), **({} if self.lease is None else {self.lease.log: self.lease.output()})}


class Environment(interface.Environment):
    """Opens an image as a container."""

    name = "docker"
    description = EnvironmentDescription("Docker", {"cpu_quota": "cpu_quota"})
    also_called: ClassVar[tuple[str, ...]] = ("containerd", "container", "oci", "gvisor", "runsc", "runc", "kata")
    primary = "runtime"
    packages: ClassVar[tuple[str, ...]] = ("docker.io", "iptables")
    start_bound_s = 1.0
    default_stacks: ClassVar[tuple[str, ...]] = ("docker", "docker:runsc")
    keeps_at = (dockerd.DATA_ROOT,)
    options: ClassVar[Mapping[str, Option]] = {
        "runtime": Option("text", None, "OCI runtime by name, such as runc, runsc or kata; else the daemon's default"),
        "platform": Option(
            "text", None, "how runsc (gVisor) gets hold of system calls; else its own choice", runtimes.PLATFORMS
        ),
        "runtime_path": Option("text", None, "the runtime's program, to be registered with dbtoll's own daemon"),
        "runtime_args": Option("list", (), "arguments it is registered with, such as --overlay2=none"),
        "socket": Option(
            "text",
            None,
            f"the API's socket; else {SYSTEM_SOCKET} if it answers and has the runtime, else dbtoll starts its own daemon",
        ),
        "data_root": Option(
            "text", None, f"where dbtoll's own daemon keeps its images; else {dockerd.DATA_ROOT}, or memory in a guest"
        ),
        # A driver that works inside the container has no network in its way. `none` gives each arm a loopback of its own:
        # nothing from outside comes in.
        "network": Option(
            "text", "none", "network of the container; `bridge` for terminals outside", ("none", "host", "bridge")
        ),
        "seccomp": Option("text", "default", "`default`, `unconfined`, or a profile's path on the machine"),
        "apparmor": Option("text", "default", "`default`, `unconfined`, or a loaded profile's name"),
        "shm": Option("size", None, "size of /dev/shm; equal to the other arms' if not given"),
        **storage_options(BIND, VOLUME, LAYER, MEMORY),
        **QUOTA_OPTIONS,
    }

    @classmethod
    def look(cls) -> interface.Sight:
        """Which daemon answers; where one does no program is needed."""
        daemon = _answering(SOCKETS)
        return interface.Sight(
            daemon or "no daemon answers: dbtoll starts one of its own", needs_programs=daemon is None
        )

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A bridge, as containers have it by default (interfaces.NetworkedEnvironment)."""
        if options.get("network") == "none":
            raise UsageError("a container with network=none cannot be reached from outside", "network=bridge or =host")
        return {"network": "bridge", **options}

    def program(self, machine: Machine, options: Mapping[str, Any]) -> PackagedProgram | None:
        """The runtime's, where dbtoll's own daemon is to run it (interfaces.ProgramEnvironment)."""
        parent, asked = through_agent(machine), self._complete(options)
        if asked["socket"] is not None:
            return None
        wanted = runtimes.to_fetch(parent, asked)
        return None if wanted is None or uses_system(parent, asked) else wanted

    def missing_requirements(
        self,
        machine: Machine,
        options: Mapping[str, Any],
        kernel: FetchKernel | None = None,
        journal: Journal | None = None,
    ) -> list[MissingRequirement]:
        """Starts a container from an empty image, freezes it, thaws it and removes both."""
        parent = through_agent(machine)
        mark = f"doctor-{parent.hello()['pid']}"
        try:
            machine_spec = MachineSpec(
                name=f"dbtoll-{mark}",
                run_id=mark,
                arm=self.name,
                image=Artifact(mark, f"{parent.place(STAGES)}/{mark}-image"),
                provisions=(),
                resources=Resources(memory_bytes=256 << 20),
                cpuset=own_cpus(parent),
                options=self._complete(options),
                program=kernel() if kernel else None,
            )
            self._try(parent, machine_spec, journal or NullJournal())
        except DbtollError as error:
            return [MissingRequirement(f"{self.description.title} that starts a container", error.message, error.hint)]
        return []

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> DockerMachine:
        """A running container. Raises Unavailable, or DbtollError with what the daemon said."""
        parent = through_agent(machine)
        if machine_spec.image is None:
            raise Unavailable(f"{machine_spec.name}: a container needs a system image", "give an image")
        options = self._complete(machine_spec.options)
        layout = find_layout(parent)
        with plain_errors(machine_spec.name), ExitStack() as on_close:
            engine = on_close.enter_context(self.engine(parent, machine_spec, journal, options))
            runtime = self.runtime(parent, engine, machine_spec, options)
            bring_image(parent, engine, machine_spec.image, journal)
            placement = place(parent, machine_spec, options, journal, on_close)
            chosen = {**options, "runtime": runtime.name}
            wish = ContainerSpec(parent, engine, machine_spec, machine_spec.image, chosen, placement)
            made = on_close.enter_context(created_container(wish, journal, layout))
            client = engine.api.client
            stream = AttachedStream(parent, engine.api.path, client.api_version, made)
            on_close.callback(stream.close)
            client.start(made)
            found = client.inspect_container(made)
            pid = found["State"]["Pid"]
            if not pid:
                raise ProgramFailed(f"{machine_spec.name}: the container ended at once: {stream.last_words()}", LOG)
            freezer = freezer_of_process(parent, layout, pid)
            told = {"name": self.name, **_told(wish), "runtime_package": runtime.package}
            channel = Channel(stream, machine_spec.name)
            arm = DockerMachine(machine_spec, parent, channel, on_close.pop_all(), freezer=freezer, told=told)
            arm.lease = engine.own
            arm.network = _network_of(found, options)
            on_close.callback(arm.close)
            set_up_container(arm, wish)
            on_close.pop_all()
        return arm

    @contextmanager
    def for_run(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> Iterator[None]:
        """The daemon, asleep whenever no container is awake, and the image imported (interfaces.RunScopedEnvironment)."""
        parent = through_agent(machine)
        options = self._complete(machine_spec.options)
        with ExitStack() as stack:
            with plain_errors(machine_spec.name):
                engine = stack.enter_context(self.engine(parent, machine_spec, journal, options))
                self.runtime(parent, engine, machine_spec, options)
                if machine_spec.image is not None:
                    bring_image(parent, engine, machine_spec.image, journal)
                if engine.own is not None:
                    engine.own.rest()
            yield

    def removers(self) -> Mapping[str, interface.Remover]:
        """Containers, images, daemons of dbtoll's own, and what containerd makes beside them."""
        return {"container": remove, IMAGE: remove_image, "process": dockerd.remove, "litter": dockerd.remove_litter}

    def stores(self) -> Sequence[Callable[[Any, Journal], AbstractContextManager[Sequence[Imported]]]]:
        """The images of the system's daemon and of dbtoll's own (interfaces.KeepingEnvironment)."""
        return (partial(images_at, SYSTEM_SOCKET), images_of_own)

    @classmethod
    def contract_options(cls, folder: Path) -> Mapping[str, Any]:
        """With a daemon of their own."""
        return {"data_root": str(folder)}

    @contextmanager
    def engine(
        self, parent: AgentMachine, machine_spec: MachineSpec, journal: Journal, options: Mapping[str, Any]
    ) -> Iterator[Engine]:
        """The daemon that the options and the machine lead to."""
        if not is_first_user_namespace(parent):
            raise Unavailable(
                f"{parent.name}: without root there is no Docker daemon that this user's image and data belong to",
                "podman runs the same container without root; or as root: sudo ./dbtoll …",
            )
        with ExitStack() as stack:
            own = None
            if options["socket"] is not None:
                socket = options["socket"]
            elif uses_system(parent, options):
                socket = SYSTEM_SOCKET
            else:
                root = data_root(parent, options, dockerd.DATA_ROOT)
                own = dockerd.lease(parent, journal, machine_spec.run_id, root, machine_spec.cpuset)
                stack.callback(own.release)
                socket = own.socket
            api = stack.enter_context(Api(parent, socket))
            yield Engine(api, own, api.client.info())

    def runtime(
        self, parent: AgentMachine, engine: Engine, machine_spec: MachineSpec, options: Mapping[str, Any]
    ) -> Runtime:
        """What a container asks the daemon for. Our own is told of it; another's must know it already."""
        if isinstance(engine.own, dockerd.Lease):
            return runtimes.register(parent, engine.own, machine_spec.program, options)
        if runtimes.has_runtime(engine.info, options):
            return Runtime(options["runtime"])
        raise Unavailable(
            f"the Docker daemon at {engine.api.path} is not dbtoll's own and has no runtime {options['runtime']} as asked for",
            "register it there (`runtimes` in its daemon.json), or leave the option socket out: then dbtoll starts its own",
        )

    def _try(self, parent: AgentMachine, machine_spec: MachineSpec, journal: Journal) -> None:
        image = machine_spec.image
        assert image is not None
        with plain_errors(machine_spec.name), ExitStack() as undo:
            undo.callback(_removed, parent, image.path, journal.create("stage", path=image.path))
            parent.mkdir(f"{image.path}/dbtoll")
            # Held around the arm, so that the daemon is still there for the removal of the image.
            engine = undo.enter_context(self.engine(parent, machine_spec, journal, machine_spec.options))
            if isinstance(engine.own, dockerd.Lease):
                runtimes.try_gvisor(parent, machine_spec, journal)
            undo.callback(_forget_image, engine.api, tag_of(image))
            with self.open(parent, machine_spec, journal) as arm:
                arm.freeze()
                arm.thaw()
                arm.get("/proc/self/status")

    def _complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        complete = {name: option.default for name, option in self.options.items()} | dict(options)
        runtimes.demand_consistent(complete)
        return complete


_by_system: WeakKeyDictionary[AgentMachine, dict[str, bool]] = WeakKeyDictionary()
"""Whether a machine's own daemon is used, by the runtime that is asked for: from the first arm to the last, also should that
daemon be started or stopped in mid-run. Another daemon would be another arm under the same name."""


def uses_system(parent: AgentMachine, options: Mapping[str, Any]) -> bool:
    """Whether the machine's own daemon is used: it answers, and has the runtime as it is asked for."""
    chosen = _by_system.setdefault(parent, {})
    asked = repr([options[name] for name in ("runtime", "runtime_path", "runtime_args", "platform", "data_root")])
    if asked not in chosen:
        is_leased = dockerd.leased(parent, data_root(parent, options, dockerd.DATA_ROOT))
        chosen[asked] = not is_leased and _system_has(parent, options)
    return chosen[asked]


def _system_has(parent: AgentMachine, options: Mapping[str, Any]) -> bool:
    if not answers(parent, SYSTEM_SOCKET):
        return False
    with Api(parent, SYSTEM_SOCKET) as api:
        return runtimes.has_runtime(api.client.info(), options)


def data_root(parent: AgentMachine, options: Mapping[str, Any], default: str) -> str:
    """Where images outlive the run; in memory on a machine whose root nobody writes to, such as a guest's."""
    if options["data_root"] is not None:
        return str(options["data_root"])
    default = parent.place(default)
    made = parent.run(["mkdir", "-p", posixpath.dirname(default)], check=False)
    return default if made.exit_code == 0 else f"{RUN}/{posixpath.basename(default)}"


def _network_of(found: Json, options: Mapping[str, Any]) -> Network | None:
    """BIAS: by its address on the bridge, without what publishing a port adds: a rule of the firewall, or a proxy."""
    if options["network"] == "host":
        return Network(LOOPBACK)
    joined = found["NetworkSettings"].get("Networks") or {}
    return next((Network(each["IPAddress"]) for each in joined.values() if each["IPAddress"]), None)


def _told(wish: ContainerSpec) -> Json:
    """What lies in between, for the facts."""
    parent, client, options = wish.parent, wish.engine.api.client, wish.options
    version, info = client.version(), client.info()
    runtime = options["runtime"] or info["DefaultRuntime"]
    path = info["Runtimes"].get(runtime, {}).get("path", runtime)
    program = programs.find_program(parent, path) if path else None
    said = parent.run([program, "--version"], check=False).output.decode(errors="replace") if program else ""
    return {
        "daemon": "dbtoll's own" if wish.engine.own else wish.engine.api.path,
        "daemon_version": version["Version"],
        "components": {part["Name"]: part["Version"] for part in version.get("Components", [])},
        "runtime": runtime,
        "runtime_path": program,
        "runtime_args": info["Runtimes"].get(runtime, {}).get("runtimeArgs") or [],
        "runtime_version": said.strip().partition("\n")[0] or None,
        "storage_driver": info["Driver"],
        "cgroup_driver": info.get("CgroupDriver"),
        "cgroup_version": info.get("CgroupVersion"),
        "security_options": info.get("SecurityOptions"),
        **{name: options[name] for name in ("network", "seccomp", "apparmor", "storage", "cpu_quota")},
        "open_files": open_files(parent, wish.machine_spec.resources.open_files),
    }


def bring_image(parent: AgentMachine, engine: Engine, image: Artifact, journal: Journal) -> None:
    """The image into the daemon, unless it has it. Where nothing may stay, another's daemon has it only as long as we are there."""
    tag, visited = tag_of(image), parent.visited()
    if visited is not None and engine.own is None and not has_image(engine.api.client, tag):
        host, undo = visited
        identity = {"socket": engine.api.path, "tag": tag}
        undo.callback(_taken_back, host, identity, journal.create(IMAGE, **identity))
    import_image(parent, engine.api, image)


def _taken_back(host: AgentMachine, identity: Mapping[str, Any], entry: JournalEntry) -> None:
    remove_image(host, identity)
    entry.done()


def _removed(parent: AgentMachine, path: str, entry: JournalEntry) -> None:
    chroot.remove(parent, {"path": path})
    entry.done()


def _forget_image(api: Api, tag: str) -> None:
    if has_image(api.client, tag):  # podman says of a removal that it failed, not that there is none
        api.client.remove_image(tag, force=True)


# --- daemons that hold images from run to run -----------------------------------------------------------------------


@contextmanager
def images_at(socket: str, machine: AgentMachine, journal: Journal) -> Iterator[list[Imported]]:
    """Those that a daemon of the machine's own holds, if it runs. ``journal``: nothing is made that would have to be noted."""
    if not answers(machine, socket):
        yield []
        return
    with plain_errors(socket), Api(machine, socket) as api:
        yield imported(api)


@contextmanager
def images_of_own(machine: AgentMachine, journal: Journal) -> Iterator[list[Imported]]:
    """Those that dbtoll's own daemon holds, which is started for that. Unavailable if another run works with it."""
    root = machine.place(dockerd.DATA_ROOT)
    if machine.run(["test", "-w", f"{root}/data"], check=False).exit_code != 0:
        yield []
        return
    with plain_errors(root), ExitStack() as stack:
        mark = f"clean-{machine.hello()['pid']}"
        lease = dockerd.lease(machine, journal, mark, root, own_cpus(machine))
        stack.callback(lease.release)
        yield imported(stack.enter_context(Api(machine, lease.socket)))


# --- for `clean` -------------------------------------------------------------------------------------------------


def remove(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Remove the container ``identity["name"]`` from the daemon at ``identity["socket"]``, and the volume of that name.

    No error if any is gone, also one of both: the volume is made first. The groups of a container whose daemon was killed are in
    the journal by themselves.
    """
    socket = identities.path(identity, "socket", "/")
    name = identities.word(identity, "name", NAMED)
    if not answers(machine, socket):
        return
    with plain_errors(name), Api(machine, socket) as api:
        container, volume = _found(api.client.inspect_container, name), _found(api.client.inspect_volume, name)
        if container is not None and LABEL not in (container["Config"].get("Labels") or {}):
            raise DbtollError(f"the container {name} is none of dbtoll's; nothing was done")
        if volume is not None and LABEL not in (volume.get("Labels") or {}):
            raise DbtollError(f"the volume {name} is none of dbtoll's; nothing was done")
        pid = container["State"]["Pid"] if container else 0
        if pid:  # what is frozen does not die
            layout = find_layout(machine)
            freezer_of_process(machine, layout, pid).thaw()
        remove_container(api.client, name)


def remove_image(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Remove the image ``identity["tag"]``, an imported one, from the daemon at ``identity["socket"]``. No error if it is gone.

    DbtollError if the daemon is: it may come back, and has the image then.
    """
    socket = identities.path(identity, "socket", "/")
    tag = identities.word(identity, "tag", TAGGED)
    if not answers(machine, socket):
        raise DbtollError(
            f"{machine.name}: no daemon answers at {socket}, which has the image {tag}",
            "start it there, and clean again",
        )
    with plain_errors(tag), Api(machine, socket) as api:
        if has_image(api.client, tag):
            api.client.remove_image(tag)


def _found(inspect: Callable[[str], Json], name: str) -> Json | None:
    """None where there is none of that name."""
    import docker

    try:
        return inspect(name)
    except docker.errors.NotFound:
        return None


def _answering(sockets: Sequence[str]) -> str | None:
    """The first daemon that does, in words."""
    import docker  # takes a tenth of a second

    for path in filter(os.path.exists, sockets):
        try:
            client = docker.DockerClient(base_url=f"unix://{path}", timeout=PING_TIMEOUT_S)
            try:
                return f"a daemon of version {client.version()['Version']} answers at {path}"
            finally:
                client.close()
        except (docker.errors.DockerException, OSError, KeyError):
            continue
    return None
