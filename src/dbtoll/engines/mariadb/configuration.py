"""MariaDB's settings as data: the option files that users have, and the one that a server is given.

A setting's name is written with dashes, its value is text as behind an option's ``=``; the value "" is an option without any.
Nothing here touches a machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dbtoll.errors import SpecError
from dbtoll.servers.given import Given

GROUPS = frozenset({"client-server", "mysqld", "server", "mariadb", "mariadbd"})
"""Those that a server reads, whatever its version (documentation, "Configuring MariaDB with Option Files"), but for ``galera``: an
arm is a server by itself, and must not join its user's cluster."""

WHERE_IT_LIVES = frozenset(
    {
        "basedir",
        "bind-address",
        "character-sets-dir",
        "chroot",
        "datadir",
        "extra-port",
        "innodb-data-home-dir",
        "innodb-log-group-home-dir",
        "innodb-undo-directory",
        "lc-messages-dir",
        "log-error",
        "pid-file",
        "plugin-dir",
        "port",
        "report-port",
        "skip-networking",
        "slave-load-tmpdir",
        "socket",
        "ssl",
        "ssl-ca",
        "ssl-capath",
        "ssl-cert",
        "ssl-crl",
        "ssl-crlpath",
        "ssl-key",
        "tmpdir",
        "user",
    }
)
"""Where a server finds its files and how it is reached: the arm's to say, and set aside, as PostgreSQL's are."""

OF_OTHERS = ("wsrep-", "rpl-semi-sync-")
"""Begin the settings of a cluster and of replicas that a commit waits for, which the arm does not have: set aside too."""

INCLUDES_MAX = 10
"""As the server has it: max_recursion_level in mysys/my_default.c."""

EMPTY = '""'
"""The value of ``name =``, which is a text and not a missing one."""

_VERSION = re.compile(r"(?:mysqld|mariadb|mariadbd)-\d+(?:\.\d+)*")
_GROUP = re.compile(r"\[\s*([^\]]+?)\s*\]\s*(?:#.*)?")
_OPTION = re.compile(r"(?P<name>[A-Za-z][\w.-]*)\s*(?P<given>=\s*(?P<value>.*))?", re.ASCII)
_QUOTED = re.compile(r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)\s*(?:\#.*)?""")
_ESCAPES = {"b": "\b", "n": "\n", "r": "\r", "t": "\t", "s": " "}


def read(path: Path) -> dict[str, Given]:
    """Settings of an option file and the files that it includes, of a server's groups; of a name that comes twice the last.

    SpecError names file and line.
    """
    return dict(_read(path, "", 0))


def _read(path: Path, asked: str, depth: int) -> Iterator[tuple[str, Given]]:
    """``asked``: where it was included, to begin an error with. Grammar: search_default_file_with_ext in mysys/my_default.c."""
    if depth > INCLUDES_MAX:
        raise SpecError(f"{asked}{path} is included in more than {INCLUDES_MAX} others", "look for a circle")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{asked or f'{path}:1: '}the settings cannot be read: {error}", "give a my.cnf") from error
    group = ""
    for number, line in enumerate(map(str.strip, text.split("\n")), start=1):
        where = f"{path}:{number}"
        if not line or line[0] in "#;":
            continue
        if line[0] == "!":
            for each in _included(line, path.parent, where):
                yield from _read(each, f"{where}: ", depth + 1)
        elif match := _GROUP.fullmatch(line):
            group = match[1]
        elif not (match := _OPTION.fullmatch(line)) or not group:
            said = "no group stands before it" if match else "this is not a setting"
            raise SpecError(f"{where}: {said}: {line[:80]!r}", "write: [mariadb], and below it name = value")
        elif _VERSION.fullmatch(group):
            raise SpecError(f"{where}: the group [{group}] is of one version", "write its settings below [mariadb]")
        elif group in GROUPS:
            yield canonical(match["name"]), Given(_value(match, where), where)


def _included(line: str, folder: Path, where: str) -> list[Path]:
    directive, _, name = line.partition(" ")
    path = folder / name.strip()
    if directive == "!include":
        return [path]
    if directive != "!includedir":
        raise SpecError(f"{where}: this is not a setting: {line[:80]!r}", "write: !includedir DIRECTORY")
    try:
        return sorted(file for file in path.iterdir() if file.suffix == ".cnf")
    except OSError as error:
        raise SpecError(f"{where}: the settings cannot be read: {error}", "give the directory of the files") from error


def _value(match: re.Match[str], where: str) -> str:
    """Without its quotes and the comment behind it."""
    if match["given"] is None:
        return ""
    text = match["value"]
    if text[:1] in ('"', "'"):
        quoted = _QUOTED.fullmatch(text)
        if quoted is None:
            raise SpecError(f"{where}: a quote is not closed: {text[:80]!r}", "close it")
        text = quoted["text"]
    else:
        text = text.partition("#")[0].rstrip()
    text = re.sub(r"""\\([bnrts\\"';])""", lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), text)
    return text or EMPTY


def canonical(name: str) -> str:
    """MariaDB's option names know neither case nor underscores."""
    return name.lower().replace("_", "-")


def is_the_arms(name: str) -> bool:
    """Whether the setting is the arm's to say."""
    return name in WHERE_IT_LIVES or name.removeprefix("loose-").startswith(OF_OTHERS)


def write(settings: Mapping[str, str]) -> bytes:
    """An option file with ``settings``. SpecError for a name that is none or a value that no file can hold."""
    lines = []
    for name, value in settings.items():
        if not _OPTION.fullmatch(name) or "=" in name:
            raise SpecError(f"settings: {name!r} is no name of a setting", "use letters, digits, - and _")
        if "\0" in value:
            raise SpecError(f"settings: the value of {name} has a NUL in it", "leave it out")
        text = "" if value == EMPTY else value.replace("\\", "\\\\").replace('"', '\\"')
        for escape, meant in (("b", "\b"), ("n", "\n"), ("r", "\r"), ("t", "\t")):
            text = text.replace(meant, f"\\{escape}")
        lines.append(f'{name} = "{text}"\n' if value else f"{name}\n")
    return "".join(["[mariadbd]\n", *lines]).encode()
