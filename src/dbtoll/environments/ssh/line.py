"""One connection of OpenSSH that becomes the line to an agent over there: nothing need be installed there.

The other side is first a shell with one line of script. It says what that host is. Only if that will do, it is sent a directory's
name and the agent, which it makes, compares with its hash, tries, and becomes. All through one connection, so that a host is
logged into once, and what is not wanted has left nothing when the connection ends.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dbtoll import namespaces
from dbtoll.channel.output_buffer import said
from dbtoll.channel.relay import RelayStream
from dbtoll.errors import AgentFailure, ChannelError, DbtollError, Unavailable
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.agent.nested import agent_stream

SILENCE_S: Final = 300
"""The agent over there ends when it has heard nothing for so long."""

ALIVE_S: Final = 15
ALIVE_COUNT: Final = 4
"""After a minute without an answer ssh gives the connection up (ssh_config(5), ServerAliveInterval).

BIAS: sshd answers, beside an arm that is measured there, when nothing has come for that interval: some tens of microseconds.
"""

CONNECT_S: Final = 30

NOISE_MAX_BYTES: Final = 1 << 16
"""What a login shell may print before its turn."""

ANSWER_S: Final = 120.0
"""What a login shell may take, or the writing of the agent over a slow line."""

PIECE_BYTES: Final = 1 << 18

OLDEST_KERNEL: Final = (3, 2)
"""Of the C library that is linked into the agent: the note .note.ABI-tag of its file."""

PASSED_ON: Final = ("HOME", "LOGNAME", "PATH", "SSH_AUTH_SOCK", "USER", "XDG_RUNTIME_DIR")
"""What ssh, and the programs that its user's configuration names, find his keys by."""

# No quote, no backslash and no exclamation mark: whatever the login shell is, it passes this on as it stands.
_SCRIPT: Final = """
LC_ALL=C; export LC_ALL; umask 077;
read -r mark;
echo "$mark about $(uname -s) $(uname -m) $(uname -r) $(id -u)";
read -r size hash place;
[ "$size" ] || exit 0;
fail() { [ "$made" ] && rm -rf "$place"; echo "$mark failed $*"; exit 0; };
made=;
why=$(mkdir "$place" 2>&1) || fail directory "$why";
made=yes;
agent=$place/dbtoll-agent;
why=$(dd bs="$size" count=1 iflag=fullblock of="$agent" 2>&1) || fail copy "$why";
sum=$(sha256sum <"$agent");
[ "${sum%% *}" = "$hash" ] || fail copy "the agent came damaged";
chmod 700 "$agent";
why=$("$agent" version 2>&1) || fail start "$why";
echo "$mark ready";
exec "$agent" serve --own "$place" {silence}
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A host as ssh takes it. ``config``: a file in place of its user's own configuration; ``sudo``: to become root there."""

    host: str
    config: str | None = None
    sudo: bool = False

    def words(self, *options: str) -> list[str]:
        """The ssh of every connection; ``--``, the host and a command are to follow. What its user says of keys, names, ports and
        known hosts holds; nothing weakens it."""
        own = [
            "BatchMode=yes",  # who would be asked is not there
            f"ConnectTimeout={CONNECT_S}",
            f"ServerAliveInterval={ALIVE_S}",
            f"ServerAliveCountMax={ALIVE_COUNT}",
            *options,
            *("LogLevel=ERROR", "RemoteCommand=none", "PermitLocalCommand=no", "ClearAllForwardings=yes"),
            *("ForwardAgent=no", "ForwardX11=no", "EscapeChar=none"),
        ]
        configured = ["-F", self.config] if self.config else []
        return [
            *namespaces.as_oneself(),
            "ssh",
            "-T",
            *configured,
            *(word for option in own for word in ("-o", option)),
        ]

    def as_root(self, command: str) -> str:
        """``command`` as the login shell over there gets it."""
        return f"exec sudo -n {command}" if self.sudo else f"exec {command}"


@dataclass(frozen=True, slots=True)
class About:
    """What a host says of itself before anything is sent there."""

    system: str
    architecture: str
    kernel: str
    user: int


class NothingLeft(Unavailable):
    """The host has said why no agent starts there, and that it has removed what came of it."""


class Line:
    """Implements interfaces.ByteStream, TimestampedStream, Killable and channel.client.Explaining: what follows the greetings of
    the shell. Bytes and stamps count from there."""

    def __init__(self, target: Target, stream: RelayStream) -> None:
        self._target, self._stream = target, stream
        self._mark = f"dbtoll-{secrets.token_hex(8)}"
        self._rest = b""
        self._written_before = self._read_before = 0
        with suppress(DbtollError):  # who hangs up at once says why
            self._write(self._mark)

    def about(self) -> About:
        """What the host says of itself. Unavailable if there is no shell, with what ssh said."""
        words = self._answer().split(" ")
        if len(words) != 5 or words[0] != "about" or not words[4].isdecimal():
            raise self._no_shell(" ".join(words))
        return About(words[1], words[2], words[3], int(words[4]))

    def become_agent(self, agent: bytes, place: str) -> None:
        """Send the agent into ``place``, which is made. NothingLeft says what keeps it from starting there."""
        with suppress(DbtollError):  # who hangs up has said why
            self._write(f"{len(agent)} {hashlib.sha256(agent).hexdigest()} {place}")
            for begin in range(0, len(agent), PIECE_BYTES):
                self._send(agent[begin : begin + PIECE_BYTES])
        answer, _, rest = self._answer().partition(" ")
        if answer == "ready":
            self._read_before -= len(self._rest)
            return
        step, _, why = rest.partition(" ")
        if answer != "failed" or step not in _FAILURES:
            raise self._no_shell(f"{answer} {rest}")
        if any(words in why for words in FULL):
            raise NothingLeft(f"{self._target.host} has no room for the agent in {place}: {said(why)}", ELSEWHERE)
        raise NothingLeft(f"{self._target.host}: {_FAILURES[step].format(place=place)}: {said(why)}", ELSEWHERE)

    def _answer(self) -> str:
        """The next line of ours, without its mark; what comes before it is the login shell's own talk."""
        mark, noise_bytes = f"{self._mark} ".encode(), 0
        patience = threading.Timer(ANSWER_S, self._stream.kill)
        patience.daemon = True
        patience.start()
        try:
            while True:
                line, ended, rest = self._rest.partition(b"\n")
                if ended:
                    self._rest = rest
                    if mark in line:
                        return line.partition(mark)[2].decode(errors="replace").strip()
                    noise_bytes += len(line)
                elif noise_bytes + len(line) > NOISE_MAX_BYTES:
                    self.kill()
                    raise Unavailable(
                        f"ssh {self._target.host}: its login shell prints more than {NOISE_MAX_BYTES >> 10} KiB",
                        "let its rc files print nothing where there is no terminal",
                    )
                elif not self._more():
                    raise self._no_shell(line.decode(errors="replace"))
        finally:
            patience.cancel()

    def _more(self) -> bool:
        """Reads on; False at the end."""
        with suppress(ChannelError, AgentFailure):
            piece = self._stream.read(1 << 12)
            self._read_before += len(piece)
            self._rest += piece
            return bool(piece)
        return False

    def _no_shell(self, printed: str) -> Unavailable:
        self.kill()
        self._stream.last_words()  # waits for the end, and so for the last that ssh says
        words = self._stream.error_output().decode(errors="replace").strip()
        return explained(self._target, words, printed.strip()[-400:])

    def _write(self, text: str) -> None:
        self._send(text.encode() + b"\n")

    def _send(self, data: bytes) -> None:
        self._stream.write(data)
        self._written_before += len(data)

    # --- as the channel's line -----------------------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; b"" when the connection has ended."""
        if self._rest:
            data, self._rest = self._rest[:size], self._rest[size:]
            return data
        return self._stream.read(size)

    def write(self, data: bytes) -> None:
        """All of ``data``."""
        self._stream.write(data)

    def close(self) -> None:
        """End the input, wait for the end; also twice."""
        self._stream.close()

    def kill(self) -> None:
        """Have ssh ended."""
        self._stream.kill()

    def written_at(self, count: int) -> int | None:
        """See interfaces.TimestampedStream: by the clock of the machine that ssh runs on."""
        return self._stream.written_at(count + self._written_before)

    def read_at(self, count: int) -> int | None:
        """See `written_at`."""
        return self._stream.read_at(count + self._read_before)

    def last_words(self) -> str:
        """How ssh ended, and the last that it said."""
        return self._stream.last_words()


_FAILURES: Final = {
    "directory": "the directory {place} cannot be made",
    "copy": "the agent cannot be copied into {place}",
    "start": "the agent does not start in {place}; it may be on a file system from which no program starts (noexec)",
}
"""By the step of the script that failed."""

ELSEWHERE: Final = "make room or name another directory there: option directory"
FULL: Final = ("No space left", "Disk quota exceeded")


def connect(parent: AgentMachine, target: Target, *options: str) -> Line:
    """A shell over there, which waits. ``parent`` calls ssh, with its user's configuration; stamps are by its clock."""
    script = " ".join(line.strip() for line in _SCRIPT.replace("{silence}", str(SILENCE_S)).strip().splitlines())
    words = [*target.words(*options), "--", target.host, target.as_root(f"sh -c '{script}'")]
    return Line(target, agent_stream(parent, words, env=passed_on()))


def passed_on() -> dict[str, str]:
    """Of this process's environment, for ssh."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


# --- what ssh says when it fails ---------------------------------------------------------------------------------------------

_Explained = tuple[str, str, str]

_SAID: Final[Sequence[_Explained]] = (
    ("Could not resolve hostname", "there is no host of that name", "see whether `{ssh}` works"),
    (
        "Connection refused",
        "nobody answers at its port",
        "see whether sshd runs there, and on that port (Port in ssh_config)",
    ),
    (
        "IDENTIFICATION HAS CHANGED",
        "its key is not the one that is known: it is another host, or somebody stands in between",
        "find out which; if the new key is right: ssh-keygen -R {name}, then `{ssh}` to accept it",
    ),
    (
        "Host key verification failed",
        "its key is not known here",
        "look at the key and accept it yourself, once: {ssh}",
    ),
    (
        "sudo:",
        "its user may not become root with sudo without a password",
        "allow it there (NOPASSWD in sudoers), or log in as root",
    ),
    (
        "Permission denied",
        "it lets nobody in with the keys that ssh offers",
        "make `{ssh}` work without a question: a key without a passphrase, or one in ssh-agent (ssh-add)",
    ),
    ("timed out", "it does not answer", "see whether it is up, and `{ssh}` works"),
    ("No route to host", "it cannot be reached", "see whether it is up, and `{ssh}` works"),
    ("Network is unreachable", "it cannot be reached", "see whether there is a network, and `{ssh}` works"),
    ("Can't open user config file", "its configuration cannot be read", "see the option config"),
    ("Bad configuration option", "ssh does not understand its configuration", "see what `{ssh}` says"),
)
"""What OpenSSH writes (ssh.c, sshconnect.c, readconf.c) -> what it means, what to do."""


def explained(target: Target, words: str, printed: str = "") -> Unavailable:
    """One error of what ssh wrote to its error output, and what was printed in place of a shell."""
    configured = f"-F {target.config} " if target.config else ""
    name = target.host.rpartition("@")[2]
    for mark, what, hint in _SAID:
        if mark in words:
            return Unavailable(
                f"ssh {target.host}: {what}", hint.format(ssh=f"ssh {configured}{target.host}", name=name)
            )
    told = said("; ".join(filter(None, (words.replace("\n", "; "), printed))))
    return Unavailable(
        f"ssh {target.host}: it gives no shell that runs what it is told" + (f": {told}" if told else ""),
        f"`ssh {configured}{target.host} id` must print its user: no forced command, no login shell that ends at once",
    )


def demand(target: Target, about: About, architecture: str) -> None:
    """Unavailable for a host on which the system image cannot run."""
    hint = f"take a host with Linux on {architecture}, or run dbtoll on one like it"
    if about.system != "Linux":
        raise Unavailable(f"{target.host} has {about.system}, and dbtoll's agent needs Linux", hint)
    if about.architecture != architecture:
        raise Unavailable(
            f"{target.host} is a machine of {about.architecture}: it needs the agent, the image and the data of that "
            f"architecture, and those here are {architecture}'s",
            hint,
        )
    version = tuple(int(number) for number in re.findall(r"\d+", about.kernel)[:2])
    if version < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        raise Unavailable(
            f"{target.host} has Linux {about.kernel}, and dbtoll's agent needs {oldest} or later",
            "take a host with a newer kernel",
        )
    if about.user != 0:
        raise Unavailable(
            f"{target.host}: its user is not root, who alone may change the root directory and write control groups",
            "log in as root (User root in ssh_config), or sudo=yes where sudo asks for no password",
        )
