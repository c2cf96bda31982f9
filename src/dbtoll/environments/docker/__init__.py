"""``docker``: the system image as a created_container, through the Engine API of Docker, or of ``podman system service``.

The container's first process is the agent, attached by its standard streams: no port, no network, no ``docker exec``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

from dbtoll import identities
from dbtoll.channel.client import Channel
from dbtoll.environments.docker import dockerd
from dbtoll.environments.docker.api import Api, AttachedStream, answers
from dbtoll.environments.docker.container import (
    LABEL,
    ContainerSpec,
    Engine,
    created_container,
    plain_errors,
    remove_container,
    set_up_container,
)
from dbtoll.environments.docker.images import Imported, import_image, imported, tag_of
from dbtoll.errors import DbtollError, Unavailable, UsageError
from dbtoll.interfaces.cache import FetchKernel
from dbtoll.interfaces.journal import Journal, JournalEntry
from dbtoll.interfaces.machine import Machine
from dbtoll.machines import chroot, programs
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.layout import find_layout, freezer_of, own_cpus, path_of_process
from dbtoll.machines.chroot import RUN, STAGES, open_files
from dbtoll.machines.control_group import LOOPBACK, ControlGroupMachine, Network, through_agent
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MachineSpec, MissingRequirement
from dbtoll.model.options import Option

NAMED = "[a-zA-Z0-9][a-zA-Z0-9_.-]*"
"""How containers may be called (Docker's own rule)."""

SYSTEM_SOCKET = "/var/run/docker.sock"

BUILT_IN_RUNTIMES = ("runc", "io.containerd.runc.v2")
"""What every daemon knows by itself."""

GVISOR_NETWORK: Mapping[str, list[str]] = {"none": ["--network=none"], "host": ["--network=host"], "bridge": []}
"""gVisor brings a network of its own, which it refuses to start where it takes the namespace for the host's."""


class DockerMachine(ControlGroupMachine):
    """A container; its logs include those of dbtoll's own daemon."""

    lease: dockerd.Lease | None = None

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
        return {**super().logs(), **({} if self.lease is None else {"dockerd.log": self.lease.daemon.output()})}


class Environment:
    """Opens an image as a container."""

    name = "docker"
    also_called = ("podman", "containerd", "container", "oci", "gvisor", "runsc", "runc", "crun", "kata")
    primary = "runtime"
    packages = ("docker.io", "iptables")
    programs = ("dockerd", SYSTEM_SOCKET)
    options: Mapping[str, Option] = {
        "runtime": Option("text", None, "OCI runtime by name, such as runc or runsc; else the daemon's default"),
        "runtime_path": Option("text", None, "the runtime's program, to be registered with dbtoll's own daemon"),
        "runtime_args": Option("list", (), "arguments it is registered with, such as --platform=systrap"),
        "socket": Option(
            "text", None, f"the API's socket; else {SYSTEM_SOCKET} if it answers, else dbtoll starts its own daemon"
        ),
        "data_root": Option(
            "text", None, f"where dbtoll's own daemon keeps its images; else {dockerd.DATA_ROOT}, or memory in a guest"
        ),
        # A driver that works inside the container has no network in its way. `none` gives each arm a loopback of its own:
        # nothing from outside comes in.
        "network": Option("text", "none", "network of the container", ("none", "host", "bridge")),
        "seccomp": Option("text", "default", "`default`, `unconfined`, or a profile's path on the machine"),
        "apparmor": Option("text", "default", "`default`, `unconfined`, or a loaded profile's name"),
        "shm": Option("size", None, "size of /dev/shm; equal to the other arms' if not given"),
        "storage": Option(
            "text", "bind", "where writable data lies: host directory, volume or layer", ("bind", "volume", "layer")
        ),
        "cpu_quota": Option("number", None, "CPU time allowed per period, in CPUs (0.5: half of one)"),
        "cpu_period": Option("duration", 100_000_000, "period of the quota"),
    }

    def networked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A bridge, as containers have it by default (interfaces.NetworkedEnvironment)."""
        if options.get("network") == "none":
            raise UsageError("a container with network=none cannot be reached from outside", "network=bridge or =host")
        return {"network": "bridge", **options}

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
        machine_spec = MachineSpec(
            name=f"dbtoll-{mark}",
            run_id=mark,
            arm="docker",
            image=Artifact(mark, f"{STAGES}/{mark}-image"),
            provisions=(),
            resources=Resources(memory_bytes=256 << 20),
            cpuset=own_cpus(parent),
            options=self._complete(options),
        )
        try:
            self._try(parent, machine_spec, journal or NullJournal())
        except DbtollError as error:
            return [MissingRequirement("a Docker daemon that starts a container", error.message, error.hint)]
        return []

    def open(self, machine: Machine, machine_spec: MachineSpec, journal: Journal) -> DockerMachine:
        """A running container. Raises Unavailable, or DbtollError with what the daemon said."""
        parent = through_agent(machine)
        if machine_spec.image is None:
            raise Unavailable(f"{machine_spec.name}: a container needs a system image", "give an image")
        options = self._complete(machine_spec.options)
        layout = find_layout(parent)
        with plain_errors(machine_spec.name), ExitStack() as on_close:
            engine = on_close.enter_context(_engine(parent, machine_spec, journal, options))
            _register_runtime(parent, engine, options)
            import_image(parent, engine.api, machine_spec.image)
            wish = ContainerSpec(parent, engine, machine_spec, machine_spec.image, options)
            made = on_close.enter_context(created_container(wish, journal, layout))
            client = engine.api.client
            stream = AttachedStream(parent, engine.api.path, client.api_version, made)
            on_close.callback(stream.close)
            client.start(made)
            found = client.inspect_container(made)
            pid = found["State"]["Pid"]
            freezer = freezer_of(parent, layout, path_of_process(parent, layout, pid, "freezer"))
            told, channel = _told(wish), Channel(stream, machine_spec.name)
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
                engine = stack.enter_context(_engine(parent, machine_spec, journal, options))
                _register_runtime(parent, engine, options)
                if machine_spec.image is not None:
                    import_image(parent, engine.api, machine_spec.image)
                if engine.own is not None:
                    engine.own.rest()
            yield

    def _try(self, parent: AgentMachine, machine_spec: MachineSpec, journal: Journal) -> None:
        image = machine_spec.image
        assert image is not None
        with plain_errors(machine_spec.name), ExitStack() as undo:
            undo.callback(_removed, parent, image.path, journal.create("stage", path=image.path))
            parent.mkdir(f"{image.path}/dbtoll")
            # Held around the arm, so that the daemon is still there for the removal of the image.
            engine = undo.enter_context(_engine(parent, machine_spec, journal, machine_spec.options))
            undo.callback(_forget_image, engine.api, tag_of(image))
            with self.open(parent, machine_spec, journal) as arm:
                arm.freeze()
                arm.thaw()
                arm.get("/proc/self/status")

    def _complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: option.default for name, option in self.options.items()} | dict(options)


_by_system: WeakSet[AgentMachine] = WeakSet()
"""Machines whose own daemon is used, from the first arm to the last: another one would be another arm under the same name.
Likewise dbtoll's own goes on to be used should the system's be started in mid-run."""


@contextmanager
def _engine(
    parent: AgentMachine, machine_spec: MachineSpec, journal: Journal, options: Mapping[str, Any]
) -> Iterator[Engine]:
    with ExitStack() as stack:
        own = None
        data_root = _data_root(parent, options)
        if options["socket"] is not None:
            socket = options["socket"]
        elif parent in _by_system or (not dockerd.leased(parent, data_root) and answers(parent, SYSTEM_SOCKET)):
            _by_system.add(parent)
            socket = SYSTEM_SOCKET
        else:
            own = dockerd.lease(parent, journal, machine_spec.run_id, data_root, machine_spec.cpuset)
            stack.callback(own.release)
            socket = own.socket
        api = stack.enter_context(Api(parent, socket))
        yield Engine(api, own, api.client.info())


def _data_root(parent: AgentMachine, options: Mapping[str, Any]) -> str:
    """Where images outlive the run; in memory on a machine whose root nobody writes to, such as a guest's."""
    if options["data_root"] is not None:
        return str(options["data_root"])
    writable = parent.run(["test", "-w", posixpath.dirname(posixpath.dirname(dockerd.DATA_ROOT))], check=False)
    return dockerd.DATA_ROOT if writable.exit_code == 0 else f"{RUN}/docker"


def _register_runtime(parent: AgentMachine, engine: Engine, options: Mapping[str, Any]) -> None:
    """Make the runtime known to our own daemon; another's must know it already."""
    name, path, arguments = options["runtime"], options["runtime_path"], list(options["runtime_args"])
    if name is None:
        if path is not None or arguments:
            raise Unavailable("runtime_path and runtime_args need a name to register by", "set the option runtime too")
        return
    is_plain = path is None and not arguments
    if engine.own is None:
        if is_plain and name in engine.info["Runtimes"]:
            return
        raise Unavailable(
            f"the Docker daemon at {engine.api.path} is not dbtoll's own and has no runtime {name} as asked for",
            "register it there (`runtimes` in its daemon.json), or stop that daemon: then dbtoll starts its own",
        )
    if is_plain and name in BUILT_IN_RUNTIMES:
        return
    found = programs.find_program(parent, path or name)
    if found is None:
        raise Unavailable(
            f"{parent.name}: there is no runtime {path or name}", f"apt-get install -y {name}, or set runtime_path"
        )
    if not arguments and posixpath.basename(found).startswith("runsc"):
        arguments = GVISOR_NETWORK[options["network"]]
    engine.own.daemon.register(name, found, arguments)


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
        "name": "docker",
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


def _removed(parent: AgentMachine, path: str, entry: JournalEntry) -> None:
    chroot.remove(parent, {"path": path})
    entry.done()


def _forget_image(api: Api, tag: str) -> None:
    import docker

    try:
        api.client.remove_image(tag, force=True)
    except docker.errors.ImageNotFound:
        return


# --- daemons that hold images from run to run -----------------------------------------------------------------------


@contextmanager
def images_of_system(machine: AgentMachine, journal: Journal) -> Iterator[list[Imported]]:
    """Those that the machine's own daemon holds, if it runs. ``journal``: nothing is made that would have to be noted."""
    if not answers(machine, SYSTEM_SOCKET):
        yield []
        return
    with plain_errors(SYSTEM_SOCKET), Api(machine, SYSTEM_SOCKET) as api:
        yield imported(api)


@contextmanager
def images_of_own(machine: AgentMachine, journal: Journal) -> Iterator[list[Imported]]:
    """Those that dbtoll's own daemon holds, which is started for that. Unavailable if another run works with it."""
    if machine.run(["test", "-w", f"{dockerd.DATA_ROOT}/data"], check=False).exit_code != 0:
        yield []
        return
    with plain_errors(dockerd.DATA_ROOT), ExitStack() as stack:
        mark = f"clean-{machine.hello()['pid']}"
        lease = dockerd.lease(machine, journal, mark, dockerd.DATA_ROOT, own_cpus(machine))
        stack.callback(lease.release)
        yield imported(stack.enter_context(Api(machine, lease.socket)))


# --- for `clean` -------------------------------------------------------------------------------------------------


def remove(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Remove the container ``identity["name"]`` from the daemon at ``identity["socket"]``.

    No error if either is gone: the groups of a container whose daemon was killed are in the journal by themselves.
    """
    import docker

    socket = identities.path(identity, "socket", "/")
    name = identities.word(identity, "name", NAMED)
    if not answers(machine, socket):
        return
    with plain_errors(name), Api(machine, socket) as api:
        try:
            container = api.client.inspect_container(name)
        except docker.errors.NotFound:
            return
        if LABEL not in (container["Config"].get("Labels") or {}):
            raise DbtollError(f"the container {name} is none of dbtoll's; nothing was done")
        pid = container["State"]["Pid"]
        if pid:  # what is frozen does not die
            layout = find_layout(machine)
            freezer_of(machine, layout, path_of_process(machine, layout, pid, "freezer")).thaw()
        remove_container(api.client, name)
