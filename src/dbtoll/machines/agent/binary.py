"""Which agent binary belongs to which architecture."""

from __future__ import annotations

import hashlib
import platform
import struct
from pathlib import Path
from typing import Final

import dbtoll
from dbtoll.errors import Unavailable

_ELF_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""e_machine of the ELF header (System V ABI)."""

_OTHER_NAMES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def find_agent(architecture: str | None = None) -> Path:
    """The agent for ``architecture`` (as ``uname -m`` says; None: this machine's).

    Looks for the one packaged in the wheel, then for one built in the checkout. Raises Unavailable with the hint, also where
    the one that it finds is damaged.
    """
    name = architecture or platform.machine()
    name = _OTHER_NAMES.get(name, name)
    if name not in _ELF_MACHINES:
        raise Unavailable(
            f"there is no agent for the architecture {name}", f"use one of: {', '.join(sorted(_ELF_MACHINES))}"
        )
    package = Path(dbtoll.__file__).parent
    target = package.parent.parent / "agent" / "target"
    candidates = [
        package / "_agent" / name / "dbtoll-agent",
        target / f"{name}-unknown-linux-gnu" / "release" / "dbtoll-agent",
        target / f"{name}-unknown-linux-musl" / "release" / "dbtoll-agent",
        target / "release" / "dbtoll-agent",
    ]
    for path in candidates:
        told = path.with_name(f"{path.name}.sha256")
        if told.exists() and not _has_hash(path, told.read_text()):
            raise Unavailable(
                f"the agent {path} is damaged: its hash is not the one in {told.name}", "install dbtoll anew"
            )
        if _elf_machine(path) == _ELF_MACHINES[name]:
            if not _is_whole(path):
                raise Unavailable(f"the agent {path} is damaged: its end is missing", "./dbtoll setup")
            return path
    raise Unavailable(
        f"the agent for {name} has not been built",
        "in a checkout: ./dbtoll setup; or install the wheel that carries it (just wheel)",
    )


def _has_hash(path: Path, told: str) -> bool:
    """``told``: as sha256sum(1) writes it."""
    return path.exists() and told.split()[:1] == [hashlib.sha256(path.read_bytes()).hexdigest()]


def _is_whole(path: Path) -> bool:
    """A linker puts the section headers last (System V ABI: e_shoff, e_shentsize, e_shnum)."""
    content = path.read_bytes()
    (begin,), (size, count) = struct.unpack_from("<Q", content, 0x28), struct.unpack_from("<HH", content, 0x3A)
    return bool(len(content) >= begin + size * count)


def _elf_machine(path: Path) -> int | None:
    """What the file's header says it runs on; None if it is not there or no little-endian ELF file."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise Unavailable(f"the agent {path} cannot be read: {error.strerror}", f"chmod a+rx {path}") from None
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return None
    return int.from_bytes(header[18:20], "little")
