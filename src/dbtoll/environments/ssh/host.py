"""A host that ssh reaches, as a machine: its own root, and a directory of dbtoll's own that is gone with it."""

from __future__ import annotations

import hashlib
import posixpath
import re
import secrets
import shlex
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from dbtoll import identities
from dbtoll.channel.client import Channel
from dbtoll.environments.ssh.line import FULL, SILENCE_S, NothingLeft, Target, connect, demand, passed_on
from dbtoll.errors import AgentFailure, DbtollError, Unavailable
from dbtoll.interfaces.journal import Journal, JournalEntry
from dbtoll.machines import chroot, programs
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.chroot import STAGES, agent_path
from dbtoll.machines.remote_journal import PLACE, PLACE_NAMED, RemoteJournal
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact

AGENT_MAX_BYTES: Final = 64 << 20

COPY_DEADLINE_S: Final = 6 * 3600.0
"""A hundred gigabytes over a line of five megabytes a second."""

STATE: Final = "/var/lib/dbtoll/"
"""What is kept below it from run to run where nobody is a guest."""

SPARE_BYTES: Final = 64 << 20

END_DEADLINE_S: Final = 10.0

ALONE: Final = ("ControlMaster=no", "ControlPath=none")
"""A connection of its own: not its user's either, whose other sessions would end with it."""

RSYNC_AS_IT_IS: Final = ("--archive", "--hard-links", "--acls", "--xattrs", "--numeric-ids", "--sparse", "--whole-file")
TAR_AS_IT_IS: Final = ("--numeric-owner", "--acls", "--xattrs", "--xattrs-include=*", "--sparse")


class RemoteHost(AgentMachine):
    """Implements interfaces.RemoteMachine. What is provided is sent once, and kept as long as this lasts."""

    def __init__(
        self,
        parent: AgentMachine,
        target: Target,
        channel: Channel,
        directory: str,
        place: JournalEntry,
        journal: RemoteJournal,
        control: str | None,
    ) -> None:
        super().__init__(target.host, channel)
        self.parent = parent
        self.directory = directory
        self.journal = journal
        self.told: Json = {}
        self.options: Json = {}
        """By which it was reached."""
        self._place = place
        self._target = target
        self._control = control
        self._sent: dict[tuple[str, str], str] = {}
        self._undo = ExitStack()
        self._closed = threading.Event()
        threading.Thread(target=self._speak, name=f"{target.host}: speaks", daemon=True).start()

    def drop_caches(self) -> None:
        """See interfaces.CacheDroppingMachine."""
        self.run(["sync"], timeout_s=600)
        self.put("/proc/sys/vm/drop_caches", b"3\n", in_place=True)

    def place(self, path: str) -> str:
        """Nothing is kept there for the next run: state lies in its own directory, and goes with that.

        /run stays: the sockets in there need its short path, and each stage is in the journal.
        """
        return f"{self.directory}/{path.removeprefix(STATE)}" if path.startswith(STATE) else path

    def visited(self) -> tuple[AgentMachine, ExitStack]:
        """See AgentMachine."""
        return self, self._undo

    def provide(self, artifact: Artifact) -> str:
        """Where it lies there: sent if it has not been. What was made in its own directory lies there already."""
        if artifact.placed or artifact.path.startswith(f"{self.directory}/"):
            return super().provide(artifact)
        known = artifact.key, artifact.kind
        if known not in self._sent:
            source = self.parent.provide(artifact)
            folder = f"{self.directory}/{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}"
            self._send(artifact, source, folder)
            self._sent[known] = folder if artifact.kind == "directory" else f"{folder}/{posixpath.basename(source)}"
        return self._sent[known]

    def _send(self, artifact: Artifact, source: str, folder: str) -> None:
        """By rsync, or where one of both sides has none, by tar; over the connection that there is."""
        need_bytes = int(self.parent.run(["du", "--summarize", "--block-size=1", source]).output.split()[0])
        blocks, block_bytes = self.run(["stat", "-f", "-c", "%a %S", self.directory]).output.split()
        free_bytes = int(blocks) * int(block_bytes)
        if free_bytes < need_bytes + SPARE_BYTES:
            raise self._no_room(artifact, f"{need_bytes >> 20} MiB are needed, {free_bytes >> 20} MiB are free")
        self.mkdir(folder, mode=0o700)
        ssh, host = self._target.words("ControlMaster=no", f"ControlPath={self._control or 'none'}"), self._target.host
        if ":" not in host and programs.find_program(self.parent, "rsync") and programs.find_program(self, "rsync"):
            there = ["--rsync-path", "sudo -n rsync"] if self._target.sudo else []
            what = f"{source}/" if artifact.kind == "directory" else source
            words = ["rsync", *RSYNC_AS_IT_IS, *there, "--rsh", shlex.join(ssh), "--", what, f"{host}:{folder}/"]
        else:
            place, name = (source, ".") if artifact.kind == "directory" else posixpath.split(source)
            packed = shlex.join(["tar", "--create", *TAR_AS_IT_IS, "--directory", place, "--", name])
            opened = self._target.as_root(
                shlex.join(["tar", "--extract", "--preserve-permissions", *TAR_AS_IT_IS, "--directory", folder])
            )
            words = ["bash", "-c", f"set -o pipefail; {packed} | {shlex.join([*ssh, '--', host, opened])}"]
        done = self.parent.run(words, env=passed_on(), timeout_s=COPY_DEADLINE_S, check=False)
        if done.exit_code != 0:
            why = done.error_output.decode(errors="replace").strip()[-400:]
            if any(text in why for text in FULL):
                raise self._no_room(artifact, "it is full")
            raise Unavailable(
                f"{artifact.path} could not be sent to {self.name}: {why}", "run again; see what ssh says"
            )

    def _no_room(self, artifact: Artifact, why: str) -> Unavailable:
        return Unavailable(
            f"{self.name} has no room for {artifact.path} in {self.directory}: {why}",
            "free some there, or name another directory there: option directory",
        )

    def _speak(self) -> None:
        """It hears something at all times (`line.SILENCE_S`).

        BIAS: its agent answers in some tens of microseconds, beside an arm that is measured there, twice a minute.
        """
        while not self._closed.wait(SILENCE_S / 10):
            try:
                self.channel.call("ping", {})
            except DbtollError:
                return

    def close(self) -> None:
        """End everything there, and remove what was brought; also twice. What a broken line leaves stays in the journal."""
        is_first = not self._closed.is_set()
        self._closed.set()
        with ExitStack() as last:
            last.callback(super().close)
            if is_first:
                last.callback(self._remove_own)
                last.enter_context(self._undo)

    def _remove_own(self) -> None:
        removed(self, self.directory)
        self._place.done()


def reach(
    parent: AgentMachine, target: Target, directory: str, journal: RemoteJournal, control: str | None
) -> RemoteHost:
    """Log in, leave an agent there, and say hello to it. Raises Unavailable with what is wrong and what to do.

    ``directory``: where a directory is made there. ``control``: the socket by which further connections share this one.
    """
    place = f"{directory.rstrip('/')}/dbtoll-{secrets.token_hex(8)}"
    shared = ("ControlMaster=yes", "ControlPersist=no", f"ControlPath={control}")
    line = connect(parent, target, *(shared if control else ALONE))
    try:
        demand(target, line.about(), parent.hello()["architecture"])
        agent = parent.get(agent_path(parent), max_bytes=AGENT_MAX_BYTES)
        entry = journal.create(PLACE, path=place)
        try:
            line.become_agent(agent, place)
        except NothingLeft:
            entry.done()
            raise
    except BaseException:
        line.kill()
        line.close()
        raise
    return RemoteHost(parent, target, Channel(line, target.host), place, entry, journal, control)


def stage(parent: AgentMachine, journal: Journal, on_close: ExitStack) -> str:
    """A directory for the socket of a connection, beside ssh."""
    path = f"{parent.place(STAGES)}/ssh-{secrets.token_hex(4)}"
    entry = journal.create("stage", path=path)

    def clear() -> None:
        chroot.remove(parent, {"path": path})
        entry.done()

    on_close.callback(clear)
    parent.mkdir(path, mode=0o700)
    return path


# --- what is left there ------------------------------------------------------------------------------------------------------


def remove_place(machine: AgentMachine, identity: Mapping[str, Any]) -> None:
    """On that host: end the agent that may still be in the directory ``identity["path"]``, and remove it. No error if it is gone.

    What the agent started dies with it; what it put into control groups is in the journal by itself.
    """
    path = identities.path(identity, "path", "/")
    if re.fullmatch(PLACE_NAMED, posixpath.basename(path)) is None:
        raise DbtollError(f"{path} is no directory that dbtoll makes on other hosts; nothing was done")
    deadline = time.monotonic() + END_DEADLINE_S
    while machine.run(["sh", "-c", _KILL, "sh", path], check=False).exit_code == 0:
        if time.monotonic() > deadline:
            raise DbtollError(
                f"{machine.name}: what runs in {path} does not end", "look what it waits for: /proc/PID/stack"
            )
        time.sleep(0.05)
    removed(machine, path)


_KILL: Final = """
found=1
for exe in /proc/[0-9]*/exe; do
  case $(readlink "$exe") in "$1"/*) pid=${exe#/proc/} && kill -KILL "${pid%/exe}" && found=0 ;; esac
done
exit $found
"""


def removed(machine: AgentMachine, path: str) -> None:
    """A tree; no error if it is gone. And what stages lay in, once the last of them is gone."""
    try:
        machine.remove(path, recursive=True)
    except AgentFailure as failure:
        if failure.code != "not_found":
            raise
    machine.run(["rmdir", "--ignore-fail-on-non-empty", STAGES], check=False)
