"""Where the data of an arm lie: the kinds of storage, the same words in every environment.

It is an option of the environment that holds the data, so a factor between arms: data are placed when an arm starts, and no start
has two kinds (docs/adr/0033).
"""

from __future__ import annotations

from collections.abc import Mapping

from dbtoll.model.options import Option

BIND = "bind"
VOLUME = "volume"
LAYER = "layer"
IMAGE = "image"
MEMORY = "memory"

KINDS: Mapping[str, str] = {
    BIND: "a directory of the machine around, mounted into the arm",
    VOLUME: "a volume of the container engine",
    LAYER: "the container's own writable layer",
    IMAGE: "a disk image: a file of the machine around",
    MEMORY: "a memory file system in the arm",
}
"""Kind -> what it is. Besides, a path of a block device is a kind: the data lie on that device alone."""

DIRECT = frozenset({BIND, IMAGE})
"""Kinds that are the arm's fresh copy of the data itself. With the others an environment places the data from it."""

EXT4_FEATURES = (
    *("has_journal", "ext_attr", "dir_index", "filetype", "extent", "64bit", "flex_bg", "sparse_super"),
    *("large_file", "huge_file", "dir_nlink", "extra_isize", "metadata_csum"),
)
"""Of every file system that dbtoll makes. Those that Debian 12's mke2fs.conf gives an ext4, so every kernel since 3.18 mounts it;
without resize_inode, as nobody makes it larger. Named here, as Debian 13's defaults add orphan_file, which kernels before 5.15
refuse."""

EXT4_JOURNAL_BYTES = 64 << 20
"""What mke2fs gives a file system of 2 to 16 GiB (ext2fs_default_journal_size). Fixed: it decides when a server that
writes must wait for its file system's journal, which must not depend on how large the dataset happens to be."""

AND = "+"
"""Between two devices, of which the second is that of the arm's second copy (A/A)."""

PARTITIONS = "all arms stand at the same time, so each needs a device of its own; partitions of one will do"

OPTION = "storage"
"""Name of the option, in every environment that has it."""


def is_device(kind: str) -> bool:
    """Whether it is the path of a block device."""
    return kind.startswith("/")


def options(*kinds: str) -> Mapping[str, Option]:
    """The options of an environment that knows these kinds, the first by default."""
    meaning = "; ".join(f"`{kind}`: {KINDS[kind]}" for kind in kinds)
    return {
        OPTION: Option(
            "text", kinds[0], f"where the data lie: {meaning}; `/dev/…`: that block device", kinds, or_path=True
        ),
        "overwrite": Option(
            "flag", False, "a block device that holds something may be overwritten; one that is in use never is"
        ),
    }


def chosen(given: Mapping[str, object], known: Mapping[str, Option]) -> str | None:
    """The kind that an environment with the options ``known`` has where those in ``given`` were given; None: it has none."""
    return str(given.get(OPTION, known[OPTION].default)) if OPTION in known else None
