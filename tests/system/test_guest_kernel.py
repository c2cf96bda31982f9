"""Debian's cloud kernel as it really is: fetched by apt, taken out of its package."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import pytest

from dbtoll.errors import ProgramFailed, UsageError
from dbtoll.images import debian, kernel
from dbtoll.images.cache import Cache
from dbtoll.kernel_modules import load_order
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact

ELF_RELOCATABLE = b"\x7fELF\x02\x01\x01"


@pytest.fixture(scope="module")
def made() -> tuple[Artifact, Json]:
    """From the user's cache; built if it is not there."""
    if lacking := debian.missing_requirements():
        pytest.skip(f"{lacking[0].what}: {lacking[0].why}")
    return kernel.debian_kernel(Cache())


def test_it_is_a_kernel_and_says_which(made: tuple[Artifact, Json]) -> None:
    artifact, facts = made
    image = (Path(artifact.path) / "vmlinuz").read_bytes()
    if platform.machine() == "x86_64":  # a bzImage: Linux, Documentation/arch/x86/boot.rst
        assert (image[0x1FE:0x200], image[0x202:0x206]) == (b"\x55\xaa", b"HdrS")
        version_at = 0x200 + int.from_bytes(image[0x20E:0x210], "little")
        assert image[version_at:].startswith(facts["release"].encode() + b" ")
    assert facts["package"] == f"linux-image-{facts['release']}"
    assert re.match(r"6\.1\.\d+-\d+", facts["version"])
    assert "CONFIG_VIRTIO=" in (Path(artifact.path) / "config").read_text()


def test_its_modules_can_be_loaded_in_an_order_that_is_complete(made: tuple[Artifact, Json]) -> None:
    artifact, facts = made
    needs = json.loads((Path(artifact.path) / "modules.json").read_text())
    order = load_order(needs, ["virtio_blk", "ext4"])
    assert order[-1] == "virtio_blk"  # ext4 is built into Debian 12's
    assert {"virtio", "virtio_ring", "virtio_blk", "ext4"} <= {*order, *facts["built_in"]}
    everything = load_order(needs, needs)
    files = {path.stem: path for path in (Path(artifact.path) / "modules").iterdir()}
    assert set(everything) == set(files) == {name for name, need in needs.items() if need is not None}
    for path in files.values():
        assert path.suffix == ".ko"
        with path.open("rb") as file:
            assert file.read(7) == ELF_RELOCATABLE
    assert {name for name, need in needs.items() if need is None} == set(facts["built_in"])
    assert set(kernel.MODULES) <= set(needs)
    assert set(kernel.OPTIONAL) <= {*needs, *facts["missing"]}


def test_it_is_small(made: tuple[Artifact, Json]) -> None:
    """Every guest's initial memory file system is made from it."""
    artifact, _ = made
    assert sum(path.stat().st_size for path in Path(artifact.path).rglob("*")) < 40 << 20


def test_an_unknown_suite_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="woody") as caught:
        kernel.debian_kernel(Cache(tmp_path), "woody")
    assert "bookworm" in caught.value.hint


def test_a_mirror_that_is_none_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    if lacking := debian.missing_requirements():
        pytest.skip(f"{lacking[0].what}: {lacking[0].why}")
    with pytest.raises(ProgramFailed, match="mmdebstrap ended with"):
        kernel.debian_kernel(Cache(tmp_path), mirror="http://127.0.0.1:9/debian")
    assert [path.suffix for path in (tmp_path / "kernel").iterdir()] == [".lock"]
