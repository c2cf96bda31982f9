"""What the ext4 file system in a file holds, read from its bytes: without a mount, without root.

Layout on disk: Linux, Documentation/filesystems/ext4 (little-endian). Read-only, and only for whole file systems with
64-bit descriptors and extents, as ``disk.FEATURES`` makes them.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dbtoll.errors import DbtollError

BLOCK_BYTES = 4096

_SUPERBLOCK = 1024  # its offset
_MAGIC = 0xEF53
_EXTENT_MAGIC = 0xF30A
_WRITTEN_MAX = 32768  # an extent of more blocks is an unwritten one, of so many fewer
_TABLE_UNUSED = 1  # flag of a group: no inode in its table


@dataclass(frozen=True, slots=True)
class Extent:
    """``count`` blocks of a file from its block ``first`` on, at ``physical``. Not ``written``: they read as zeros, and
    the first write to them changes this list."""

    first: int
    count: int
    physical: int
    written: bool


@dataclass(frozen=True, slots=True)
class RegularFile:
    """A file of the file system, by the number of its inode."""

    inode: int
    size_bytes: int
    extents: tuple[Extent, ...]

    @property
    def blocks(self) -> int:
        """How many blocks it has where it has no hole."""
        return -(-self.size_bytes // BLOCK_BYTES)

    def holes(self) -> list[tuple[int, int]]:
        """(first, last) block of each part that has no blocks of its own."""
        found, next_block = [], 0
        for extent in self.extents:
            if extent.first > next_block:
                found.append((next_block, extent.first - 1))
            next_block = extent.first + extent.count
        if next_block < self.blocks:
            found.append((next_block, self.blocks - 1))
        return found


class Ext4:
    """A file system in an open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        superblock = self._at(_SUPERBLOCK, 1024)
        if _u16(superblock, 0x38) != _MAGIC or 1024 << _u32(superblock, 0x18) != BLOCK_BYTES:
            raise DbtollError(f"{file.name} holds no ext4 with blocks of {BLOCK_BYTES} bytes", "build it again")
        self.inodes = _u32(superblock, 0)
        self.blocks = _u32(superblock, 0x150) << 32 | _u32(superblock, 0x04)
        self.free_blocks = _u32(superblock, 0x158) << 32 | _u32(superblock, 0x0C)
        self.free_inodes = _u32(superblock, 0x10)
        self._inodes_per_group = _u32(superblock, 0x28)
        self._inode_bytes = _u16(superblock, 0x58)
        self._descriptor_bytes = _u16(superblock, 0xFE)

    def regular_files(self) -> Iterator[RegularFile]:
        """All of them, in the order of their inodes."""
        for group in range(self.inodes // self._inodes_per_group):
            descriptor = self._at(BLOCK_BYTES + group * self._descriptor_bytes, self._descriptor_bytes)
            if _u16(descriptor, 0x12) & _TABLE_UNUSED:
                continue
            table_block = _u32(descriptor, 0x28) << 32 | _u32(descriptor, 0x08)
            count = self._inodes_per_group - (_u16(descriptor, 0x32) << 16 | _u16(descriptor, 0x1C))
            table = self._at(table_block * BLOCK_BYTES, count * self._inode_bytes)
            for index in range(count):
                inode = table[index * self._inode_bytes : (index + 1) * self._inode_bytes]
                mode, links = _u16(inode, 0x00), _u16(inode, 0x1A)
                if stat.S_ISREG(mode) and links:
                    size_bytes = _u32(inode, 0x6C) << 32 | _u32(inode, 0x04)
                    number = group * self._inodes_per_group + index + 1
                    yield RegularFile(number, size_bytes, tuple(self._extents(inode[0x28:0x64])))

    def _extents(self, node: bytes) -> Iterator[Extent]:
        """Those of a node of a file's tree and of all below it."""
        if _u16(node, 0) != _EXTENT_MAGIC:
            raise DbtollError(f"{self._file.name}: a file in it has no extents", "build it again")
        entries, depth = _u16(node, 2), _u16(node, 6)
        for at in range(12, 12 * (entries + 1), 12):
            if depth:
                below = _u16(node, at + 8) << 32 | _u32(node, at + 4)
                yield from self._extents(self._at(below * BLOCK_BYTES, BLOCK_BYTES))
            else:
                count, physical = _u16(node, at + 4), _u16(node, at + 6) << 32 | _u32(node, at + 8)
                written = count <= _WRITTEN_MAX
                yield Extent(_u32(node, at), count if written else count - _WRITTEN_MAX, physical, written)

    def _at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise DbtollError(f"{self._file.name} ends at byte {offset + len(data)}", "build it again")
        return data


def _u16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


@contextmanager
def opened(path: Path) -> Iterator[Ext4]:
    """The file system in the file ``path``. Raises DbtollError if there is none that can be read."""
    with path.open("rb") as file:
        yield Ext4(file)
