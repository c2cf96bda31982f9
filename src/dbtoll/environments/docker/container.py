"""One container: what it may use, what it sees, and its removal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dbtoll.environments.docker.api import Api, reason
from dbtoll.environments.docker.images import tag_of
from dbtoll.errors import AgentFailure, DbtollError, Unavailable
from dbtoll.interfaces.journal import Journal
from dbtoll.machines import network_interfaces
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups import removal
from dbtoll.machines.cgroups.group import Limits, create_group
from dbtoll.machines.cgroups.layout import Layout, cpu_list
from dbtoll.machines.chroot import FRESH_DIRECTORIES, agent_path, open_files
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.storage import Placement, source_of
from dbtoll.model.json import AGENT, Json
from dbtoll.model.machine import Artifact, MachineSpec
from dbtoll.model.storage import VOLUME

if TYPE_CHECKING:
    from docker.types import Ulimit

REMOVAL_S = 10.0

LABEL = "dbtoll"
"""Of every container: whose it is, with the run that it belongs to."""


class OwnDaemon(Protocol):
    """What dbtoll itself started to serve the API, as one arm holds it. ``log``: what its output is kept as."""

    log: str

    def rest(self) -> None:
        """Nothing will be asked of it for this arm until ``wake``."""

    def wake(self) -> None:
        """Before anything is asked of it or sent to the container."""

    def output(self) -> bytes:
        """The last that it said."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """A daemon in use. ``own``: dbtoll's own, or None."""

    api: Api
    own: OwnDaemon | None
    info: Json


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The container that somebody wants: on which machine, by which daemon, with which options (all of them)."""

    parent: AgentMachine
    engine: Engine
    machine_spec: MachineSpec
    image: Artifact
    options: Mapping[str, Any]
    placement: Placement


@contextmanager
def created_container(wish: ContainerSpec, journal: Journal, layout: Layout) -> Iterator[str]:
    """A created container's id; removed at the end with its volumes, groups and network."""
    client = wish.engine.api.client
    name = wish.machine_spec.name
    # Groups of the other driver, systemd, are systemd's. With this one a container lies beside the native arms, in a group
    # of the arm's own, as podman puts a group for its relay beside the container's.
    is_ours = layout.hierarchies and wish.engine.info.get("CgroupDriver") == "cgroupfs"
    group = layout.path(*wish.machine_spec.group) if is_ours else None
    if wish.machine_spec.enclosing and layout.hierarchies and not is_ours:
        raise Unavailable(
            f"{name}: a daemon whose groups are systemd's cannot put the containers of an arm into one group",
            "let it use the driver cgroupfs (`exec-opts` in its daemon.json)",
        )
    paths = [tree.mount + group for tree in layout.hierarchies] if group else []
    with plain_errors(name), ExitStack() as undo:
        host_config = client.create_host_config(
            **_resources(wish),
            **(_limits(wish) if layout.hierarchies else {}),
            **_security(wish),
            network_mode=undo.enter_context(_network(wish, journal)),
            mounts=_mounts(wish),
            cgroup_parent=group,
        )
        # What our own daemon holds, it forgets when it starts again; it is noted with the daemon (dockerd.py).
        entry = None if wish.engine.own else journal.create("container", socket=wish.engine.api.path, name=name)
        grouped = journal.create("cgroup", paths=paths)

        def end() -> None:
            """By its name, so that it does not matter how far its making came; each is noted as gone when it is."""
            try:
                remove_container(client, name)
                if entry is not None:
                    entry.done()
            finally:  # with the daemon gone, this ends its processes
                removal.remove(wish.parent, {"paths": paths})
                grouped.done()

        undo.callback(end)
        if group:
            # With its cpuset: runsc does not fill it in on its way down, and podman's relay is to keep to it too.
            create_group(wish.parent, NullJournal(), wish.machine_spec.group, Limits(wish.machine_spec.cpuset))
        if wish.placement.device is not None:
            # Mounted by the daemon, which has mounts of its own and need not see the machine's. With a name: podman 4.3 gives an
            # anonymous volume no device.
            on_device = {"type": "ext4", "device": wish.placement.device}
            client.create_volume(name, driver="local", driver_opts=on_device, labels={LABEL: wish.machine_spec.run_id})
        made = client.create_container(
            tag_of(wish.image),
            [AGENT, "serve"],
            name=name,
            stdin_open=True,
            host_config=host_config,
            labels={LABEL: wish.machine_spec.run_id},
        )
        yield made["Id"]


def remove_container(client: Any, name: str) -> None:
    """With its volumes: the anonymous ones and the one of its name. No error if it is gone; DbtollError if the daemon is.

    A container that ends by itself just now may be refused: podman finds it running, and then cannot kill it any more.
    """
    import docker

    deadline = time.monotonic() + REMOVAL_S
    with plain_errors(name):
        with contextlib.suppress(docker.errors.NotFound):
            while not _is_removed(client, name, may_refuse=time.monotonic() < deadline):
                time.sleep(0.1)
        with contextlib.suppress(docker.errors.NotFound):
            client.remove_volume(name)


def _is_removed(client: Any, name: str, *, may_refuse: bool) -> bool:
    import docker

    try:
        client.remove_container(name, force=True, v=True)
    except docker.errors.APIError as error:
        if not may_refuse or not error.is_server_error():
            raise
        return False
    return True


@contextlib.contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """What goes wrong with a daemon as DbtollError: that it refuses, that it does not answer, that it is gone."""
    import docker

    try:
        yield
    except docker.errors.DockerException as error:
        raise DbtollError(f"{name}: the container daemon refused: {reason(error)}", "its log says more") from error
    except OSError as error:  # of the SDK's connection, RequestException of `requests` among them
        raise DbtollError(
            f"{name}: the container daemon does not answer: {error}", "look whether it runs, and at its log"
        ) from error


def set_up_container(arm: AgentMachine, wish: ContainerSpec) -> None:
    """What can only be done from inside, once it runs: modes of directories, data into its volume or layer."""
    # runc 1.1 gives a memory file system the mode of the directory that it covers, whatever was asked for.
    for at, mode in FRESH_DIRECTORIES.items():
        with contextlib.suppress(AgentFailure):  # an image without chmod has no users that could need it
            arm.run(["chmod", f"{mode:o}", at])
    wish.placement.fill(arm, wish.machine_spec)
    for provision in wish.machine_spec.provisions if wish.placement.device is not None else ():
        if provision.writable:  # podman gives the root directory of a volume to the container's user
            source = wish.parent.provide(provision.artifact)
            owner, bits = wish.parent.run(["stat", "--format=%u:%g %a", source]).output.decode().split()
            arm.run(["chown", owner, provision.at])
            arm.run(["chmod", bits, provision.at])


@contextmanager
def _network(wish: ContainerSpec, journal: Journal) -> Iterator[str]:
    """Name of the network. Our own daemon has no bridge until an arm asks for one."""
    import docker

    if wish.options["network"] != "bridge" or wish.engine.own is None:
        yield str(wish.options["network"])
        return
    name = f"dbtoll-{wish.machine_spec.name}"
    interface = network_interfaces.interface_name(wish.machine_spec)
    client = wish.engine.api.client
    entry = journal.create(network_interfaces.KIND, interface=interface)

    def end() -> None:
        with contextlib.suppress(docker.errors.NotFound):
            client.remove_network(name)
        entry.done()

    with ExitStack() as undo:
        undo.callback(end)
        client.create_network(name, driver="bridge", options={"com.docker.network.bridge.name": interface})
        yield name


def _resources(wish: ContainerSpec) -> Json:
    """The same as every arm's, as arguments of ``create_host_config``."""
    from docker.types import LogConfig, Ulimit

    asked, options = wish.machine_spec.resources, wish.options
    nofile = open_files(wish.parent, asked.open_files)
    return {
        # The agent's frames are its output: a log driver would copy every byte to disk inside the bracket of a visit.
        "log_config": LogConfig(type="none"),
        "runtime": options["runtime"],
        "shm_size": asked.shm_bytes if options["shm"] is None else options["shm"],
        "ulimits": [Ulimit(name="nofile", soft=nofile, hard=nofile), _processes(wish.parent)],
        "tmpfs": {
            **{at: f"rw,exec,mode={mode:o}" for at, mode in FRESH_DIRECTORIES.items()},
            **{
                provision.at: f"rw,mode=700,size={wish.placement.memory_bytes}"
                for provision in wish.machine_spec.provisions
                if wish.placement.in_memory and wish.placement.is_copied(provision)
            },
        },
    }


def _limits(wish: ContainerSpec) -> Json:
    """What control groups keep it to, as arguments of ``create_host_config``."""
    asked, options = wish.machine_spec.resources, wish.options
    period_us = options["cpu_period"] // 1000
    quota_us = None if options["cpu_quota"] is None else round(options["cpu_quota"] * period_us)
    return {
        "cpuset_cpus": cpu_list(wish.machine_spec.cpuset),
        "mem_limit": asked.memory_bytes,
        "memswap_limit": asked.memory_bytes,  # together with swap: no swap
        **({} if quota_us is None else {"cpu_period": period_us, "cpu_quota": quota_us}),
    }


def _processes(machine: AgentMachine) -> Ulimit:
    """Limit of the number of processes, as the other arms inherit them: podman would set its own.

    Never above the machine's highest process number, which is what podman may give where root cannot raise limits.
    """
    from docker.types import Ulimit

    most = int(machine.get("/proc/sys/kernel/pid_max"))
    limits = machine.get("/proc/self/limits").decode()
    soft, hard = next(line.split()[2:4] for line in limits.splitlines() if line.startswith("Max processes"))
    at_most = [most if value == "unlimited" else min(most, int(value)) for value in (soft, hard)]
    return Ulimit(name="nproc", soft=at_most[0], hard=at_most[1])


def _security(wish: ContainerSpec) -> Json:
    seccomp, apparmor = wish.options["seccomp"], wish.options["apparmor"]
    profiles = []
    if seccomp != "default":
        profiles.append(f"seccomp={seccomp if seccomp == 'unconfined' else wish.parent.get(seccomp).decode()}")
    if apparmor != "default":
        profiles.append(f"apparmor={apparmor}")
    return {"security_opt": profiles}


def _mounts(wish: ContainerSpec) -> list[Any]:
    from docker.types import Mount

    mounts = [Mount(AGENT, agent_path(wish.parent), type="bind", read_only=True)]
    for provision in wish.machine_spec.provisions:
        source = wish.parent.provide(provision.artifact)
        if wish.placement.is_copied(provision):
            mounts.append(Mount(source_of(provision), source, type="bind", read_only=True))
            if wish.placement.kind == VOLUME:
                mounts.append(Mount(provision.at, None, type="volume", no_copy=True))
        elif provision.writable and wish.placement.device is not None:
            mounts.append(Mount(provision.at, wish.machine_spec.name, type="volume", no_copy=True))
        else:
            mounts.append(Mount(provision.at, source, type="bind", read_only=not provision.writable))
    return mounts
