"""Kernel modules: what a module's file says that it needs, what is kept of a kernel, and the order of loading."""

from __future__ import annotations

import json
import lzma
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbtoll.errors import DbtollError, ImageError, UsageError
from dbtoll.images import kernel
from dbtoll.images.kernel import Module, keep
from dbtoll.kernel_modules import load_order

RELEASE = "6.1.0-99-cloud-amd64"


def elf(*information: str, section: bytes = b".modinfo") -> bytes:
    """A relocatable file with three sections: none, ``section``, and their names."""
    body = b"".join(line.encode() + b"\0" for line in information)
    names = b"\0" + section + b"\0.shstrtab\0"
    at = 64
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, 3, 2)
    )
    body_at = at + 3 * 64
    sections = [(0, 0, 0), (1, body_at, len(body)), (2 + len(section), body_at + len(body), len(names))]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, where, size, 0, 0, 1, 0) for name, where, size in sections
    )
    return header + table + body + names


def package(root: Path, files: dict[str, bytes], built_in: str = "", *, modules: str = "lib/modules") -> Path:
    """A kernel package as it is when unpacked: ``files`` by their path below the modules' directory."""
    (root / "boot").mkdir(parents=True)
    (root / "boot" / f"vmlinuz-{RELEASE}").write_bytes(b"a kernel")
    (root / "boot" / f"config-{RELEASE}").write_text("CONFIG_64BIT=y\n")
    place = root / modules / RELEASE
    place.mkdir(parents=True)
    (place / "modules.builtin").write_text(built_in)
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return root


def kept(tmp_path: Path, *modules: str, optional: tuple[str, ...] = ()) -> tuple[dict[str, list[str] | None], set[str]]:
    content = tmp_path / "content"
    content.mkdir()
    keep(tmp_path / "root", content, modules, optional)
    table = json.loads((content / "modules.json").read_text())
    return table, {path.stem for path in (content / "modules").iterdir()}


# --- what a module says ---------------------------------------------------------------------------------------------------


def test_what_a_module_needs_is_read_from_its_modinfo() -> None:
    module = Module("a", elf("license=GPL", "depends=virtio_ring,xhci-hcd,", "intree=Y"))
    assert module.depends == ["virtio_ring", "xhci_hcd"]
    assert module.soft == []


def test_a_module_that_needs_nothing_needs_nothing() -> None:
    assert Module("a", elf("depends=", "name=a")).depends == []


def test_only_what_is_wanted_before_counts() -> None:
    module = Module("ext4", elf("softdep=pre: crc32c other-name post: later pre: last", "softdep=post: never"))
    assert module.soft == ["crc32c", "other_name", "last"]


def test_text_elsewhere_in_the_file_is_not_taken_for_modinfo() -> None:
    content = elf("license=GPL\0depends=real") + b"\0depends=false\0"
    assert Module("a", content).depends == ["real"]


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(58), elf("depends=", section=b".text")]
)
def test_what_is_no_module_is_one_clear_error(content: bytes) -> None:
    with pytest.raises(ImageError, match="module odd"):
        _ = Module("odd", content).depends


@given(st.binary(max_size=400), st.integers(0, 400))
def test_a_damaged_module_never_gives_another_error(noise: bytes, at: int) -> None:
    content = bytearray(elf("depends=a,b"))
    content[at : at + len(noise)] = noise
    try:
        depends = Module("odd", bytes(content)).depends
    except DbtollError:
        return
    assert all(isinstance(name, str) for name in depends)


# --- what is kept ---------------------------------------------------------------------------------------------------------


def test_modules_are_kept_with_all_that_they_need(tmp_path: Path) -> None:
    files = {
        "kernel/fs/ext4/ext4.ko": elf("depends=jbd2,mbcache", "softdep=pre: crc32c"),
        "kernel/fs/jbd2/jbd2.ko": elf("depends=crc16"),
        "kernel/fs/mbcache.ko": elf("depends="),
        "kernel/lib/crc16.ko": elf("depends="),
        "kernel/crypto/crc32c_generic.ko": elf("depends=", "alias=crc32c-generic", "alias=crc32c"),
        "kernel/drivers/not-asked-for.ko": elf("depends="),
    }
    package(tmp_path / "root", files)
    table, modules = kept(tmp_path, "ext4", "crc32c_generic")
    assert table == {
        "ext4": ["crc32c_generic", "jbd2", "mbcache"],
        "jbd2": ["crc16"],
        "mbcache": [],
        "crc16": [],
        "crc32c_generic": [],
    }
    assert modules == set(table)
    assert load_order(table, ["ext4"]) == ["crc32c_generic", "crc16", "jbd2", "mbcache", "ext4"]
    assert (tmp_path / "content" / "vmlinuz").read_bytes() == b"a kernel"
    assert (tmp_path / "content" / "config").read_text() == "CONFIG_64BIT=y\n"


def test_packed_modules_are_unpacked(tmp_path: Path) -> None:
    """Debian 13 packs them, and keeps them below /usr."""
    content = elf("depends=")
    package(tmp_path / "root", {"kernel/virtio-rng.ko.xz": lzma.compress(content)}, modules="usr/lib/modules")
    assert kept(tmp_path, "virtio_rng") == ({"virtio_rng": []}, {"virtio_rng"})
    assert (tmp_path / "content" / "modules" / "virtio_rng.ko").read_bytes() == content


def test_what_is_built_in_is_no_file_and_needs_no_loading(tmp_path: Path) -> None:
    files = {"kernel/virtio_blk.ko": elf("depends=virtio_ring")}
    package(tmp_path / "root", files, "kernel/virtio_pci.ko\nkernel/virtio-ring.ko\n")
    table, modules = kept(tmp_path, "virtio_pci", "virtio_blk")
    assert table == {"virtio_pci": None, "virtio_blk": []}
    assert modules == {"virtio_blk"}
    assert load_order(table, ["virtio_pci", "virtio_blk"]) == ["virtio_blk"]


def test_a_module_that_is_nowhere_is_named_unless_it_is_optional(tmp_path: Path) -> None:
    package(tmp_path / "root", {"kernel/loop.ko": elf("depends=")})
    with pytest.raises(ImageError, match=f"kernel {RELEASE} has no module virtio_blk"):
        kept(tmp_path, "loop", "virtio_blk")
    assert not any(tmp_path.glob("content/modules/*"))


def test_an_optional_module_may_be_missing(tmp_path: Path) -> None:
    package(tmp_path / "root", {"kernel/loop.ko": elf("depends=")})
    assert kept(tmp_path, "loop", optional=("kvm_intel",)) == ({"loop": []}, {"loop"})


def test_a_needed_module_that_is_nowhere_is_named(tmp_path: Path) -> None:
    package(tmp_path / "root", {"kernel/loop.ko": elf("depends=gone")})
    with pytest.raises(ImageError, match="has no module gone"):
        kept(tmp_path, "loop")


def test_a_wanted_module_that_is_nowhere_is_left_out(tmp_path: Path) -> None:
    package(tmp_path / "root", {"kernel/loop.ko": elf("depends=", "softdep=pre: gone")})
    assert kept(tmp_path, "loop")[0] == {"loop": []}


def test_a_package_without_a_kernel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(ImageError, match="0 kernels"):
        kept(tmp_path, "loop")


@pytest.mark.parametrize("name", ["boot/vmlinuz-" + RELEASE, f"lib/modules/{RELEASE}/kernel/loop.ko"])
def test_a_package_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(elf("depends="))
    root = package(tmp_path / "root", {"kernel/loop.ko": elf("depends=")})
    (root / name).unlink()
    (root / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ImageError, match="is no file of the package"):
        kept(tmp_path, "loop")


@pytest.mark.parametrize("packed", [b"", b"text", lzma.compress(elf())[:-40], lzma.compress(bytes(2 << 20))])
def test_a_packed_module_that_is_none_is_one_clear_error(
    tmp_path: Path, packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "FILE_MAX_BYTES", 1 << 20)
    package(tmp_path / "root", {"kernel/loop.ko.xz": packed})
    with pytest.raises(ImageError, match="loop"):
        kept(tmp_path, "loop")


# --- the order of loading -------------------------------------------------------------------------------------------------


def test_what_is_needed_comes_first_and_once() -> None:
    needs = {"a": ["c", "b"], "b": ["c"], "c": [], "d": ["a"]}
    assert load_order(needs, ["b", "d", "a"]) == ["c", "b", "a", "d"]


def test_an_unknown_module_names_who_needs_it() -> None:
    with pytest.raises(UsageError, match="the kernel module b, which a needs, is not in this kernel") as caught:
        load_order({"a": ["b"]}, ["a"])
    assert caught.value.hint == "it has: a"
    with pytest.raises(UsageError, match="the kernel module zfs is not in this kernel"):
        load_order({"a": []}, ["zfs"])


def test_a_circle_is_named() -> None:
    with pytest.raises(UsageError, match="circle: a > b > c > a"):
        load_order({"a": ["b"], "b": ["c"], "c": ["a"]}, ["a"])
    with pytest.raises(UsageError, match="circle: a > a"):
        load_order({"a": ["a"]}, ["a"])


@given(st.dictionaries(st.integers(0, 30), st.sets(st.integers(0, 30))), st.lists(st.integers(0, 30)))
def test_any_order_is_complete_and_right(graph: dict[int, set[int]], wanted: list[int]) -> None:
    """Needs of lower numbers only: no circle."""
    needs = {str(one): sorted(str(other) for other in graph.get(one, ()) if other < one) for one in range(31)}
    order = load_order(needs, map(str, wanted))
    assert len(order) == len(set(order))
    assert {str(one) for one in wanted} <= set(order)
    for at, name in enumerate(order):
        assert set(needs[name]) <= set(order[:at])
    assert order == load_order(needs, map(str, wanted))
