"""dbtoll's own Docker daemon on a machine: for those that have Docker installed but not running, or one that is not to
be touched.

Everything it has is its own: socket, data root, exec root, pid file, containerd, control group, mount namespace. One
serves all arms on a machine: it starts with the first and ends with the last. A daemon that was there before is never
touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from dbtoll import identities
from dbtoll.environments.docker.api import Api, answers
from dbtoll.errors import AgentFailure, DbtollError, ProgramFailed, Unavailable
from dbtoll.interfaces.journal import Journal, JournalEntry
from dbtoll.machines.agent.machine import AgentMachine, AgentProcess, LaunchLimits
from dbtoll.machines.cgroups import removal
from dbtoll.machines.cgroups.group import Group, Limits, create_group
from dbtoll.machines.cgroups.layout import find_layout, own_cpus, path_of_process
from dbtoll.machines.programs import exists, find_program
from dbtoll.model.json import Json

DATA_ROOT = "/var/lib/dbtoll/docker"
"""Where it keeps images by default: they stay for the next run. FHS: state of a program that root runs."""

START_DEADLINE_S = 60.0

STOP_DEADLINE_S = 30.0

DATA_ROOT_MAX_BYTES = 104 - len("/exec/containerd/containerd.sock.ttrpc")
"""The longest path of a socket below it may have 104 bytes (containerd, sys/socket_unix.go). Beyond that containerd ends, and
all that dockerd says 15 s later is that it has waited for it.
"""

LITTER = ("/opt/containerd/bin", "/opt/containerd/lib", "/opt/containerd")
"""Empty directories that containerd makes wherever its state lies; removed again unless they were there before."""

TRIAL_IMAGES = "dbtoll/image:doctor-"
"""How the tags begin (docker_image.py) of the empty images that `doctor` tries a daemon with."""


_daemons: WeakKeyDictionary[AgentMachine, dict[str, Daemon]] = WeakKeyDictionary()
"""A daemon belongs to its machine, not to the arm that happened to need it first; it is found here by its data root."""


class Daemon:
    """A running daemon. Used through a :class:`Lease`."""

    def __init__(
        self, machine: AgentMachine, journal: Journal, run_id: str, data_root: str, cpus: tuple[int, ...]
    ) -> None:
        self._machine = machine
        self._journal = journal
        self._run_id = run_id
        self._data_root = data_root
        self._cpus = cpus
        self._awake: set[Lease] = set()
        self._leases: set[Lease] = set()
        self._runtimes: dict[str, Json] = {}
        self._on_stop: ExitStack | None = None
        self.socket = f"{data_root}/docker.sock"
        with ExitStack() as on_stop:
            _take_over(machine, data_root)
            self._litter(journal, on_stop)
            self._group = self._fresh_group()
            on_stop.callback(self._group.close)
            entry = journal.create("process", data_root=data_root, paths=list(self._group.directories))
            on_stop.callback(self._end, entry)
            self.process = self._started()
            self._on_stop = on_stop.pop_all()

    def serves(self) -> bool:
        """Whether it answers; one that has been told to end runs for a while and does not. It must be awake."""
        return self.process.running() and answers(self._machine, self.socket)

    def restart(self) -> None:
        """A new process for one that ended in mid-run, at the same socket: whoever holds a lease goes on with it.

        Containers of the former one end here: nobody relays for them any more.
        """
        self._group.close()
        _take_over(self._machine, self._data_root)
        self._group = self._fresh_group()
        self.process = self._started()

    def _fresh_group(self) -> Group:
        # BIAS: daemon, containerd and shims run on the processors of the (first) arm, not beside it: their work is part
        # of what a container costs. Idle they take 0.2 to 0.3 % of a processor in 60 to 140 wake-ups a second, so they
        # sleep whenever no container of theirs is awake; else all other arms would pay for them too.
        return create_group(self._machine, self._journal, (self._run_id, "dockerd"), Limits(self._cpus))

    def _started(self) -> AgentProcess:
        machine, root = self._machine, self._data_root
        program = find_program(machine, "dockerd")
        if program is None:
            raise Unavailable(f"{machine.name}: there is no Docker daemon", "apt-get install -y docker.io")
        if len(os.fsencode(root)) > DATA_ROOT_MAX_BYTES:
            raise Unavailable(
                f"{machine.name}: the path {root} is too long for sockets below it",
                f"it may have {DATA_ROOT_MAX_BYTES} bytes: a shorter data_root, or directory of the host that it lies on",
            )
        machine.mkdir(root, mode=0o711)
        machine.mkdir(f"{root}/tmp", mode=0o700)
        self._extra = _key_setting(machine, program, root)
        self._configure()
        argv = [program, "--config-file", f"{root}/daemon.json"]
        # A private /run keeps the daemon from a containerd of the system, which it would take for its own, and from
        # leaving its files there.
        private_run = {"kind": "tmpfs", "target": "/run", "writable": True, "mode": 0o755}
        within = LaunchLimits(self._group.directories, mounts=(private_run,), cpus=self._cpus)
        process = machine.spawn(
            argv,
            env={"TMPDIR": f"{root}/tmp"},  # a containerd that is ended for not answering writes its stacks there
            stop_signal=signal.SIGTERM,
            stop_grace_ms=int(STOP_DEADLINE_S * 1000),
            within=within,
        )
        self.process = process
        deadline = time.monotonic() + START_DEADLINE_S
        while not answers(machine, self.socket):
            if not process.running() or time.monotonic() > deadline:
                words = process.output().decode(errors="replace").strip().splitlines()[-5:]
                raise ProgramFailed(
                    f"{machine.name}: dockerd did not start: {' | '.join(words)}", "look for the first error in its log"
                )
            time.sleep(0.05)
        self._forget()
        return process

    def _forget(self) -> None:
        """What a killed run left in the data root: nothing of it runs, but names are taken and bridges made again."""
        with Api(self._machine, self.socket) as api:
            for container in api.client.containers(all=True):
                api.client.remove_container(container["Id"], force=True, v=True)
            for network in api.client.networks(filters={"type": "custom"}):
                api.client.remove_network(network["Id"])
            for volume in api.client.volumes()["Volumes"] or []:
                api.client.remove_volume(volume["Name"], force=True)
            for image in api.client.images(filters={"reference": f"{TRIAL_IMAGES}*"}):
                api.client.remove_image(image["Id"], force=True)

    def _configure(self) -> None:
        root = self._data_root
        settings = {
            "hosts": [f"unix://{self.socket}"],
            "data-root": f"{root}/data",
            "exec-root": f"{root}/exec",
            "pidfile": f"{root}/dockerd.pid",
            "bridge": "none",
            "iptables": False,
            "ip-forward": False,
            "ip-masq": False,
            "userland-proxy": False,
            # The other driver, systemd, needs one that is running; this one works everywhere, and our groups are not
            # systemd's.
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "runtimes": self._runtimes,
            **self._extra,
        }
        self._machine.put(f"{root}/daemon.json", json.dumps(settings, indent=1).encode(), mode=0o600)

    def register(self, name: str, path: str, arguments: Sequence[str] = ()) -> None:
        """Make a runtime known to the running daemon."""
        runtime = {"path": path, "runtimeArgs": list(arguments)}
        if self._runtimes.get(name) == runtime:
            return
        self._runtimes[name] = runtime
        self._configure()
        self.process.signal(signal.SIGHUP)  # the daemon reads its runtimes again
        deadline = time.monotonic() + START_DEADLINE_S
        with Api(self._machine, self.socket) as api:
            while not _is_known(api.client.info()["Runtimes"].get(name), runtime):
                if time.monotonic() > deadline:
                    raise ProgramFailed(f"{self._machine.name}: dockerd did not take the runtime {name} at {path}")
                time.sleep(0.05)

    def output(self) -> bytes:
        """The last of its log."""
        return self.process.output()

    def taken(self) -> Lease:
        """One user more, awake."""
        lease = Lease(self)
        self._leases.add(lease)
        self.wake(lease)
        return lease

    def wake(self, lease: Lease) -> None:
        """Returns when it runs."""
        if not self._awake:
            self._group.freezer.thaw()
        self._awake.add(lease)

    def rest(self, lease: Lease) -> None:
        """Sleeps with the last that lets it."""
        if self._awake == {lease}:
            self._group.freezer.freeze()
        self._awake.discard(lease)

    def release(self, lease: Lease) -> None:
        """One user less; with the last it ends, and with it its containerd and every shim."""
        if lease not in self._leases:
            return
        self._leases.discard(lease)
        if self._leases:
            self.rest(lease)
            return
        self._awake.discard(lease)
        if _daemons[self._machine].get(self._data_root) is self:
            _daemons[self._machine].pop(self._data_root)
        self._group.freezer.thaw()
        if self._on_stop is not None:
            self._on_stop.close()

    def _end(self, entry: JournalEntry) -> None:
        """In order if it runs, then by force what it leaves; noted when nothing of it is left."""
        if self._on_stop and not self.process.running() and _holds_anything(self._machine, self._data_root):
            with contextlib.suppress(DbtollError):
                self.restart()  # it ended by itself, and only a daemon can remove them
        if hasattr(self, "process") and self.process.running():
            self.process.signal(signal.SIGTERM)
            with contextlib.suppress(DbtollError, TimeoutError):
                self.process.wait(STOP_DEADLINE_S)
        self._group.close()
        entry.done()

    def _litter(self, journal: Journal, on_stop: ExitStack) -> None:
        for path in reversed(LITTER):
            if not exists(self._machine, path):
                entry = journal.create("litter", path=path)

                def remove(path: str = path, entry: JournalEntry = entry) -> None:
                    remove_litter(self._machine, {"path": path})
                    entry.done()

                on_stop.callback(remove)


class Lease:
    """The right of one arm to its machine's daemon (`OwnDaemon`): awake together with the arm, ended with the last one."""

    log = "dockerd.log"

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.socket = daemon.socket

    def wake(self) -> None:
        """Before anything is asked of the daemon or sent to the container."""
        self.daemon.wake(self)

    def rest(self) -> None:
        """Nothing will be asked of the daemon for this arm until ``wake``."""
        self.daemon.rest(self)

    def output(self) -> bytes:
        """The last of the daemon's log."""
        return self.daemon.output()

    def release(self) -> None:
        """Also twice."""
        self.daemon.release(self)


def leased(machine: AgentMachine, data_root: str) -> bool:
    """Whether somebody holds a lease of that machine's own daemon with this data root."""
    return data_root in _daemons.get(machine, {})


def lease(machine: AgentMachine, journal: Journal, run_id: str, data_root: str, cpus: tuple[int, ...]) -> Lease:
    """The machine's own daemon with this data root, started if it is not running. Give it back by ``release``."""
    daemons = _daemons.setdefault(machine, {})
    if data_root not in daemons:
        daemons[data_root] = Daemon(machine, journal, run_id, data_root, cpus)
        return daemons[data_root].taken()
    taken = daemons[data_root].taken()
    try:
        if not taken.daemon.serves():
            taken.daemon.restart()
    except BaseException:
        taken.release()
        raise
    return taken


def remove(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """End the daemon of a killed run with all that it started: its groups ``identity["paths"]``. Its images stay.

    Containers and volumes that it still holds in ``identity["data_root"]`` are removed by one that is started for that.
    """
    root = identities.path(identity, "data_root", "/")
    paths = identity.get("paths", [])
    removal.remove(machine, {"paths": paths})
    if paths and _living(machine, root) is None and _holds_anything(machine, root):
        run_id = posixpath.basename(
            posixpath.dirname(paths[0])
        )  # in the same groups: whatever ends this, the entry is open
        try:
            lease(machine, _SameEntry(), run_id, root, own_cpus(machine)).release()
        except DbtollError:
            if _holds_anything(machine, root):  # else another host's agent has just removed it all
                raise


class _SameEntry:
    """The journal of a daemon that only cleans: the entry that is being cleaned stays open until it has ended."""

    def create(self, kind: str, **identity: Any) -> _SameEntry:
        return self

    def done(self) -> None:
        return


def _holds_anything(machine: AgentMachine, root: str) -> bool:
    """A container or a volume: each is a directory."""
    for place in ("containers", "volumes"):
        try:
            found = machine.entries(f"{root}/data/{place}")
        except AgentFailure:
            continue
        if any(entry["kind"] == "directory" for entry in found):
            return True
    return False


def _living(machine: AgentMachine, root: str) -> int | None:
    """Number of the process that works on that data root, None if there is none."""
    try:
        pid = int(machine.get(f"{root}/dockerd.pid"))
        command = machine.get(f"/proc/{pid}/cmdline").split(b"\0")
    except (AgentFailure, ValueError):
        return None
    is_it = f"{root}/daemon.json".encode() in command  # else the number belongs to another process by now
    return pid if is_it else None


def remove_litter(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """Remove the directory ``identity["path"]``, one of LITTER, if it is there and empty."""
    path = identities.word(identity, "path", "|".join(LITTER))
    machine.run(["rmdir", "--ignore-fail-on-non-empty", path], check=False)


def _is_known(listed: Json | None, runtime: Json) -> bool:
    return listed is not None and all((listed.get(key) or []) == (runtime[key] or []) for key in runtime)


def _take_over(machine: AgentMachine, data_root: str) -> None:
    """Refuse if a daemon works there; else clear what a killed one left that would keep ours from starting."""
    pid = _living(machine, data_root)
    # One that sleeps does not answer. But as long as its agent lives, so does the run that it belongs to: programs of an
    # agent that has ended fall to another parent.
    if (pid is not None and _agent_around(machine, pid)) or answers(machine, f"{data_root}/docker.sock"):
        raise Unavailable(
            f"{machine.name}: a Docker daemon of another dbtoll run works on {data_root}",
            "wait for that run, end what a killed one left by `./dbtoll clean`, or set the option data_root",
        )
    if pid is not None:
        layout = find_layout(machine)
        group = path_of_process(machine, layout, pid, "freezer")
        removal.remove(machine, {"paths": [f"{tree.mount}{group}" for tree in layout.hierarchies]})
    # Files of process numbers, which may be somebody else's by now: then dockerd or its containerd would not start.
    for stale in (f"{data_root}/dockerd.pid", f"{data_root}/exec"):
        if exists(machine, stale):
            machine.remove(stale, recursive=True)


def _agent_around(machine: AgentMachine, pid: int) -> bool:
    """Whether the process was started by an agent that still lives."""
    try:
        parent = machine.get(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()[1]
        command = machine.get(f"/proc/{parent}/cmdline").split(b"\0")
    except AgentFailure:
        return False
    return command[1:2] == [b"serve"] and b"dbtoll" in command[0]


def _key_setting(machine: AgentMachine, program: str, root: str) -> Json:
    """Until version 23 a daemon writes a key to /etc/docker, unless a setting says otherwise that later ones refuse."""
    words = machine.run([program, "--version"]).output.decode().split()  # Docker version 20.10.24+dfsg1, build 5d6db84
    major = words[2].partition(".")[0] if len(words) > 2 else ""
    return {"deprecated-key-path": f"{root}/key.json"} if major.isdigit() and int(major) < 23 else {}
