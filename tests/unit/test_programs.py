"""Every program that the code calls is one that every Debian has, or one that the launcher installs and a hint names.

What is called is read from the code: the first word of every list that is run, what is looked for by name, and the commands in
shell scripts.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbtoll.system_packages import PROGRAMS
from dbtoll.system_packages import programs as programs_of_packages
from tests.support.program import ROOT

RUN = {"run", "spawn", "Popen", "check_output", "run_build", "_run", "which", "execvp"}
"""Functions whose first argument is a program, or a list that begins with one."""
RUN_ON = {"look", "find_program", "monitor_program", "agent_stream", "looking_on", "fetch_line"}
"""Those where it is the second, after the machine."""

BINARIES = [Path(place) for place in ("/bin", "/sbin", "/usr/bin", "/usr/sbin")]

EVERYWHERE = {
    program: package
    for package, programs in {
        "apt": "apt-config apt-get",
        "bash": "bash",
        "coreutils": "cat chmod chown chroot cp dd df du echo env false head id ln ls mkdir mktemp mv nice nohup nproc readlink rm "
        "rmdir sleep sort stat sync tail test touch true wc yes",
        "dash": "sh",
        "diffutils": "cmp",
        "dpkg": "dpkg dpkg-deb dpkg-query",
        "findutils": "find",
        "grep": "grep",
        "libc-bin": "ldd locale",
        "sed": "sed",
        "tar": "tar",
        "util-linux": "blkid blockdev fallocate flock mkswap mountpoint partx setpriv setsid taskset unshare wipefs",
    }.items()
    for program in programs.split()
}
"""What mmdebstrap's smallest system has in Debian 12 and in Debian 13, with its package."""

BUILT_INTO_SH = """
: . [ { } ! break case cd command continue do done elif else esac exec exit export eval fi for function if in kill printf pwd
read return set shift test then trap ulimit umask unset until wait while
"""

IN_IMAGES = {"initdb", "locale", "mariadb-install-db", "mariadbd", "pgrep", "postgres", "psql"}
"""Only where a database server is installed: the images' packages bring them (images/debian.py, the engines' ``packages``)."""

ONLY_IF_THERE = {
    "docker": "a daemon's own client is used before curl",
    "systemd-run": "the session manager's, where there is one: asked for control groups",
    "cargo": "the launcher's own section installs it, by its version",
    "rustup": "a test of the oldest compiler is skipped without it",
    "bwrap": "where it is not installed it comes out of its package",
    "qemu-aarch64": "without it the wheel's other agent is looked at and not run",
    "qemu-aarch64-static": "as qemu-aarch64",
    "crun": "podman's package recommends it, and who lacks it is told",
    "runc": "its tests are skipped without it; docker.io brings it",
    "pgbench": "a peer that the user brings",
    "sysbench": "a peer that the user brings",
    "server": "a test makes it up",
}

CALLED_BY_OTHERS = {"iptables": "dockerd calls it"}


def listed() -> dict[str, tuple[str, str]]:
    """Program -> (package, what calls it)."""
    return dict(programs_of_packages())


def called(file: Path) -> Iterator[tuple[str, int]]:
    """(program, line) for every program that the file names."""
    tree = ast.parse(file.read_text())
    values = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values[target.id].append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            values[node.target.id].append(node.value)
        elif isinstance(node, ast.comprehension | ast.For) and isinstance(node.target, ast.Name):
            values[node.target.id] += node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            words = node.args[:1] if name in RUN else node.args[1:] if name in RUN_ON else []
            for word in words:
                for argv in alternatives(word, values):
                    yield from ((program, node.lineno) for program in programs(argv, values))


def alternatives(node: ast.expr, values: dict[str, list[ast.expr]]) -> Iterator[list[ast.expr]]:
    """The lists of words that an expression can be, as far as they are written down in the same file."""
    match node:
        case ast.List(words) | ast.Tuple(words) if words and isinstance(words[0], ast.Starred):
            yield from alternatives(words[0].value, values)
        case ast.List(words) | ast.Tuple(words):
            for first in words[:1]:
                for meant in values.get(first.id, [first]) if isinstance(first, ast.Name) else [first]:
                    yield [meant, *words[1:]]
        case ast.BinOp(left=left):
            yield from alternatives(left, values)
        case ast.Constant(str()):
            yield [node]
        case ast.Name(name):
            for value in values.pop(name, []):  # each name once: a list may be defined by itself
                yield from alternatives(value, values)


def programs(argv: list[ast.expr], values: dict[str, list[ast.expr]]) -> Iterator[str]:
    """The program, and what it runs in turn: ``setpriv … PROGRAM`` through a starred rest, ``sh -c SCRIPT``."""
    if not argv or not isinstance(argv[0], ast.Constant) or not isinstance(argv[0].value, str):
        return
    yield from system_program(argv[0].value)
    for before, word in itertools.pairwise(argv):
        if isinstance(before, ast.Constant) and before.value == "-c" and argv[0].value.endswith("sh"):
            for meant in values.get(word.id, []) if isinstance(word, ast.Name) else [word]:
                yield from commands(text_of(meant))


def system_program(path: str) -> Iterator[str]:
    """Its name, unless it is ours and lies elsewhere."""
    if not path.startswith("/") or Path(path).parent in BINARIES:
        yield Path(path).name


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(part.value if isinstance(part, ast.Constant) else "$x" for part in parts)
    return ""


def commands(script: str) -> Iterator[str]:
    """The words of a shell script that stand where a command does."""
    tokens = shlex.shlex(script.replace("\n", " ; "), posix=True, punctuation_chars=True)
    tokens.commenters = ""
    opens = {"then", "do", "else", "!", "{", "if", "while", "until", "exec"}
    at_command, skip = True, False
    for token in tokens:
        if token and set(token) <= set("();<>|&"):
            at_command, skip = not set(token) & set("<>"), bool(set(token) & set("<>"))
        elif skip:  # where it is redirected to
            skip = False
        elif at_command and not re.match(r"\w+=", token):
            at_command = token in opens
            if token not in BUILT_INTO_SH.split() and "$" not in token:
                yield from system_program(token)


@functools.cache
def all_called(*folders: str) -> dict[str, list[str]]:
    """Program -> the places that call it."""
    found = defaultdict(list)
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for program, line in called(file):
                found[program].append(f"{file.relative_to(ROOT)}:{line}")
    return dict(found)


@pytest.mark.parametrize(("folder", "of_tests"), [("src", False), ("tests", True)])
def test_every_program_that_is_called_is_everywhere_or_installed(folder: str, of_tests: bool) -> None:
    found = all_called(folder)
    installed = {program for program, (_, whose) in listed().items() if of_tests or whose != "tests"}
    known = installed | set(EVERYWHERE) | IN_IMAGES | set(ONLY_IF_THERE)
    unknown = {program: places for program, places in found.items() if program not in known}
    assert unknown == {}, f"name their packages in {PROGRAMS}"


def test_nothing_is_installed_that_nothing_calls() -> None:
    found = all_called("src", "tests")
    assert set(listed()) - set(found) == set(CALLED_BY_OTHERS)
    only_tests = {program for program, (_, whose) in listed().items() if whose == "tests"}
    assert only_tests & set(all_called("src")) == set()


def test_what_is_listed_is_what_dpkg_says() -> None:
    if shutil.which("dpkg") is None:
        pytest.skip("no dpkg here: this is not Debian")
    wrong = {}
    for program, package in EVERYWHERE.items() | {(name, package) for name, (package, _) in listed().items()}:
        path = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
        owners = {owner for owner in map(owner_of, aliases(path)) if owner} if path else set()
        # What one release has in another package is essential there, or the other way round: the list holds for both.
        if owners and package not in owners and not all(map(is_essential, owners)):
            wrong[program] = (package, owners)
        if program in EVERYWHERE:
            assert path, f"{program} is not everywhere"
    assert wrong == {}


def aliases(path: str) -> set[str]:
    """Its names on a system whose /bin is /usr/bin: dpkg knows one of them."""
    return {path, path.removeprefix("/usr"), "/usr" + path.removeprefix("/usr")}


def owner_of(path: str) -> str:
    lines = subprocess.run(["dpkg", "--search", path], capture_output=True, text=True, check=False).stdout.splitlines()
    return next((line.partition(":")[0] for line in lines if not line.startswith("diversion ")), "")


def is_essential(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat=${Essential} ${Priority}", package]
    return bool(
        {"yes", "required"} & set(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())
    )


def test_a_mend_names_the_package_of_every_program_that_dbtoll_calls() -> None:
    hints = "\n".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.py")))
    for program, (package, whose) in listed().items():
        if whose != "tests" and program not in CALLED_BY_OTHERS and package != "mount":
            assert re.search(rf'(apt-get install[^"]*|packages = \(|"){re.escape(package)}\b', hints), program


def test_the_walk_sees_what_it_is_made_for(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        'PROGRAM = "constant"\n'
        'argv = ["assigned", "-x"]\n'
        "machine.run(argv)\n"
        'machine.run([PROGRAM, "x"])\n'
        'subprocess.Popen(["listed", *rest])\n'
        'machine.spawn(["/usr/bin/absolute"])\n'
        'shutil.which("looked")\n'
        'all(shutil.which(name) for name in ("first", "second"))\n'
        'find_program(machine, "found")\n'
        'machine.run(["sh", "-c", "set -e; x=1 one \\"$1\\" | two > three\\nif four; then echo; fi"])\n'
    )
    names = {program for program, _ in called(file)}
    shell = {"one", "two", "four", "echo", "sh"}
    assert names == {"constant", "assigned", "listed", "absolute", "looked", "first", "second", "found"} | shell
