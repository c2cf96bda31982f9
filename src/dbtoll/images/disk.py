"""A directory as a disk for guests: a raw ext4 file system in a file, made by e2fsprogs without a mount (DESIGN §4).

What a guest finds on it is what a native arm finds in the directory: names, contents, owners, modes, times, links,
extended attributes. Nothing is left for later that a guest would have to do in measured time: the file is fully
allocated, inode tables and journal are written, no file has a hole, directories are indexed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dbtoll.errors import DbtollError, Unavailable
from dbtoll.images.building import PATH, run_build
from dbtoll.images.cache import Cache
from dbtoll.images.ext4 import BLOCK_BYTES, Ext4, opened
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact, MissingRequirement
from dbtoll.model.storage import EXT4_FEATURES, EXT4_JOURNAL_BYTES

NAME = "disk.ext4"

RECIPE_VERSION = 1
"""Raise it when the same directory comes to make another disk."""

BYTES_PER_SPARE_INODE = 64 << 10
"""One more file can be made for each so many spare bytes; mke2fs's own ratio for large file systems."""

INODE_BYTES = 256
RESERVED_INODES = 11  # ext4's own and lost+found, which is there while the disk is made
GROUP_BLOCKS = 8 * BLOCK_BYTES  # as many as one block has bits
MIB = 1 << 20

_TIME_S = "1000000000"
"""The time at which every disk was made, so that equal directories make equal disks (any other would do)."""

_MEND = "the last lines say why; run it again, or remove the disk's source from the cache so that it is built again"
_DEFECT = "this is a defect of images/disk.py: please report it"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tree:
    """What a directory needs of a file system. ``content_bytes``: of its files, each once; ``blocks``: for them, for
    directories, links and attributes, at most; ``inodes``: how many it takes."""

    inodes: int
    content_bytes: int
    blocks: int


def missing_requirements() -> list[MissingRequirement]:
    """What this host lacks to make disks."""
    if all(shutil.which(program, path=PATH) for program in ("mke2fs", "debugfs", "e2fsck")):
        return []
    return [MissingRequirement("e2fsprogs", "it makes a guest's disk from a directory", "apt-get install e2fsprogs")]


def disk_of(
    cache: Cache, source: Artifact, *, spare_bytes: int, progress: Progress = lambda line: None
) -> tuple[Artifact, Json]:
    """``source``, a directory, as a disk that has at least ``spare_bytes`` free; made at the first use, then taken from
    the cache. The disk has the key of its source.

    Facts: ``size_bytes`` of the disk, ``allocated_bytes`` of them (fewer only where the host's file system compresses or
    copies on write), ``content_bytes`` of the files on it, ``free_bytes``, ``filled_files`` (how many had blocks of
    zeros), ``mke2fs`` (its version). Reading what others may not read needs root. Raises Unavailable (e2fsprogs is
    missing, no room, a file cannot be read), ProgramFailed.

    Equal directories make equal disks with the same e2fsprogs, down to times of last access and change, which are
    copied with the rest.
    """
    recipe: Json = {"version": RECIPE_VERSION, "source": source.key, "spare_bytes": spare_bytes}
    entry = cache.find("disk", recipe)
    if entry is None:
        if lacking := missing_requirements():
            raise Unavailable(f"{lacking[0].what} is missing: {lacking[0].why}", lacking[0].hint)
        tree = measured(Path(source.path))
        blocks, inodes = layout(tree, spare_bytes)

        def build(content: Path) -> Json:
            progress(f"making a disk of {blocks * BLOCK_BYTES >> 20} MiB")
            facts = _make(Path(source.path), content / NAME, blocks, inodes, source.key)
            if facts["free_bytes"] < spare_bytes:
                raise DbtollError(
                    f"the disk of {source.path} has {facts['free_bytes']} bytes free instead of {spare_bytes}",
                    _DEFECT,
                )
            return {**facts, "content_bytes": tree.content_bytes}

        entry = cache.obtain("disk", recipe, build, estimate_bytes=blocks * BLOCK_BYTES, progress=progress)
    return Artifact(key=source.key, path=str(entry.content / NAME), kind="file"), entry.facts


def measured(root: Path) -> Tree:
    """What ``root`` and all below it needs. Raises Unavailable where a directory cannot be read."""
    seen: set[tuple[int, int]] = set()
    content_bytes = blocks = 0
    for path, names in _walked(root):
        status = path.lstat()
        if (status.st_dev, status.st_ino) in seen:
            continue  # another name of a file
        seen.add((status.st_dev, status.st_ino))
        if stat.S_ISREG(status.st_mode):
            content_bytes += status.st_size
            file_blocks = -(-status.st_size // BLOCK_BYTES)
            # Four extents are in the inode, 340 in a block; a file's zeros, filled in, may make it as many pieces.
            blocks += file_blocks + file_blocks // 300 + (file_blocks > 8)
        elif stat.S_ISDIR(status.st_mode):
            # Head and name of each entry, in fours; as mke2fs writes them, then as an index, which fills blocks to 3/4.
            entries_bytes = sum(8 + (len(os.fsencode(name)) + 3 & ~3) for name in names)
            blocks += 2 + 3 * entries_bytes // (2 * BLOCK_BYTES)
        elif stat.S_ISLNK(status.st_mode):
            blocks += status.st_size >= 60  # shorter ones are in the inode
        blocks += _has_attributes(path)
    return Tree(len(seen), content_bytes, blocks)


def _has_attributes(path: Path) -> bool:
    try:
        return bool(os.listxattr(path, follow_symlinks=False))
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return False


def _walked(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """``root`` and all below it, with the names in a directory; () for what is none."""

    def unreadable(error: OSError) -> None:
        raise Unavailable(f"{error.filename} cannot be read: {error.strerror}", "run it as root") from error

    for directory, directories, files in os.walk(root, onerror=unreadable):
        yield Path(directory), [*directories, *files]
        links = [name for name in directories if Path(directory, name).is_symlink()]
        for name in [*files, *links]:
            yield Path(directory, name), []


def layout(tree: Tree, spare_bytes: int) -> tuple[int, int]:
    """(blocks, inodes) of a file system that has at least ``spare_bytes`` free when ``tree`` is on it; whole MiB."""
    inodes = tree.inodes + RESERVED_INODES + -(-spare_bytes // BYTES_PER_SPARE_INODE)
    # mke2fs gives no more than half of an empty file system to the journal.
    payload = max(
        tree.blocks + (EXT4_JOURNAL_BYTES + spare_bytes) // BLOCK_BYTES + 1, 2 * EXT4_JOURNAL_BYTES // BLOCK_BYTES
    )
    total = payload
    while True:
        groups = -(-total // GROUP_BLOCKS)
        # mke2fs rounds the inodes of a group up to whole blocks and drops a last group that is hardly more than its own
        # tables; every group is counted as if it held a copy of the superblock and of all descriptors (64 bytes).
        table_blocks = -(-inodes * INODE_BYTES // (groups * BLOCK_BYTES)) + 1
        descriptor_blocks = -(-groups * 64 // BLOCK_BYTES)
        group_overhead = 2 + table_blocks + 1 + descriptor_blocks
        needed = payload + groups * group_overhead + group_overhead + 50
        needed = -(-needed * BLOCK_BYTES // MIB) * MIB // BLOCK_BYTES
        if needed <= total:
            return total, inodes
        total = needed


def _make(source: Path, disk: Path, blocks: int, inodes: int, key: str) -> Json:
    """Makes the file ``disk`` and returns facts about it. Raises OSError (ENOSPC) if there is no room for it."""
    with disk.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, blocks * BLOCK_BYTES)
    with tempfile.TemporaryDirectory(dir=disk.parent.parent) as scratch:
        tools = _Tools(Path(scratch), disk)
        version = tools.mke2fs(source, inodes, key)
        filled = _fill_holes(tools, disk)
        # Indexes its directories, as a kernel does that makes them: mke2fs writes them as lists. And nothing that we
        # did goes unchecked: what e2fsck cannot repair without asking is an error.
        tools.e2fsck()
        tools.debugfs(_root_directory(source))
    with opened(disk) as made:
        _check(made, disk)
        free_bytes = made.free_blocks * BLOCK_BYTES
    status = disk.stat()
    sizes = {"size_bytes": status.st_size, "allocated_bytes": status.st_blocks * 512, "free_bytes": free_bytes}
    return {**sizes, "filled_files": filled, "mke2fs": version}


class _Tools:
    """The programs of e2fsprogs, at work on one disk."""

    def __init__(self, scratch: Path, disk: Path) -> None:
        self._scratch, self._disk = scratch, disk
        configuration = scratch / "mke2fs.conf"
        # The host's own file would make another disk on another host.
        configuration.write_text(
            "[defaults]\n  base_features = none\n  enable_periodic_fsck = 0\n"
            f"[fs_types]\n  ext4 = {{\n    features = {','.join(EXT4_FEATURES)}\n  }}\n"
        )
        self._env = {
            "MKE2FS_CONFIG": str(configuration),
            "E2FSPROGS_FAKE_TIME": _TIME_S,
            "E2FSCK_TIME": _TIME_S,
            # Zeros are written: libext2fs would else punch holes into a regular file.
            "UNIX_IO_NOZEROOUT": "1",
        }

    def mke2fs(self, source: Path, inodes: int, key: str) -> str:
        """Makes the file system with all of ``source``; returns the program's version."""
        owner = source.stat()
        extended = (
            "lazy_itable_init=0,lazy_journal_init=0,nodiscard,"
            f"hash_seed={_uuid('hash seed', key)},root_owner={owner.st_uid}:{owner.st_gid}"
        )
        self._run("mke2fs", "-F", "-q", "-t", "ext4", "-T", "ext4", "-b", str(BLOCK_BYTES), "-I", str(INODE_BYTES),
                  "-N", str(inodes), "-m", "0", "-J", f"size={EXT4_JOURNAL_BYTES >> 20}", "-U", _uuid("file system", key),
                  "-E", extended, "-d", str(source), str(self._disk))  # fmt: skip
        return self._run("mke2fs", "-V")[0]

    def debugfs(self, commands: Iterable[str]) -> None:
        """Gives them to debugfs, which goes on after one that failed: the result is to be checked."""
        script = self._scratch / "commands"
        script.write_text("".join(f"{command}\n" for command in commands))
        self._run("debugfs", "-w", "-f", str(script), str(self._disk))

    def e2fsck(self) -> None:
        self._run("e2fsck", "-f", "-p", "-D", str(self._disk), accepted=(0, 1))  # 1: something was changed, as asked

    def _run(self, *argv: str, accepted: tuple[int, ...] = (0,)) -> list[str]:
        return run_build(list(argv), hint=_MEND, env=self._env, accepted=accepted)


def _uuid(purpose: str, key: str) -> str:
    return str(uuid.UUID(bytes=hashlib.sha256(f"{purpose} {key}".encode()).digest()[:16], version=4))


def _fill_holes(tools: _Tools, disk: Path) -> int:
    """Gives every file all its blocks; returns how many files lacked some.

    BIAS: mke2fs leaves a hole wherever a file has a block of zeros (misc/create_inode.c, copy_file_chunk), so write-ahead
    log that a server had zeroed in advance would be allocated by the guest, in measured time. debugfs gives the file
    its blocks, marked as unwritten, which would still cost a guest a change of its extents at the first write; so the
    marks are taken off. The blocks hold zeros: nobody has written to them since the disk's file was made.
    """
    with opened(disk) as made:
        sparse = [file for file in made.regular_files() if file.holes()]
    if not sparse:
        return 0
    tools.debugfs(f"fallocate <{file.inode}> {first} {last}" for file in sparse for first, last in file.holes())
    with opened(disk) as made:
        tools.debugfs(_as_written(made))
    return len(sparse)


def _as_written(made: Ext4) -> Iterator[str]:
    for file in made.regular_files():
        unwritten = [extent for extent in file.extents if not extent.written]
        if unwritten:
            yield f"extent_open <{file.inode}>"
            for extent in unwritten:
                yield f"goto_block {extent.first}"
                yield f"replace_node {extent.first} {extent.count} {extent.physical}"
            yield "extent_close"


def _root_directory(source: Path) -> Iterator[str]:
    """What makes the root directory what ``source`` is: mke2fs -d copies what is in it only.

    A database server takes a lost+found in its data directory for a database, or complains of one that it may not read.
    """
    status = source.stat()
    yield f"set_inode_field <2> mode 0{status.st_mode:o}"
    yield f"set_inode_field <2> mtime @{int(status.st_mtime)}"
    if not (source / "lost+found").exists():
        yield "rmdir lost+found"


def _check(made: Ext4, disk: Path) -> None:
    """Raises DbtollError if a file lacks blocks: debugfs does not always say when a command failed."""
    for file in made.regular_files():
        if file.holes() or not all(extent.written for extent in file.extents):
            raise DbtollError(f"{disk}: the file with inode {file.inode} has holes", _DEFECT)
