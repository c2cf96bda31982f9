"""Container images from files: layers, whiteouts, and what a hostile one tries."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from dbtoll.errors import DbtollError, ImageError
from dbtoll.images.cache import Cache
from dbtoll.images.oci import image_digest, is_oci, unpack_image
from dbtoll.images.system import own_image
from tests.support.make_image import as_docker_save, as_layout, directory, file, hard_link, layer, link


def unpacked(tmp_path: Path, *layers: bytes) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    unpack_image(as_layout(tmp_path / "image", list(layers)), root, set_owner=False)
    return root


LAYERS = [
    layer(
        directory("etc"),
        file("etc/kept", b"kept"),
        file("etc/gone", b"gone"),
        directory("opt/old"),
        file("opt/old/a"),
        file("usr/bin/tool", b"tool", mode=0o4755),
        hard_link("usr/bin/same", "usr/bin/tool"),
        link("var/run", "/run"),
    ),
    layer(
        file("etc/.wh.gone", b""),
        directory("opt/old"),
        file("opt/old/.wh..wh..opq", b""),
        file("opt/old/b"),
        file("var/run/pid", b"1"),
        file("etc/kept", b"changed"),
    ),
]


@pytest.mark.parametrize("form", ["layout", "plain layout", "docker save"])
def test_layers_and_whiteouts(tmp_path: Path, form: str) -> None:
    if form == "docker save":
        image = as_docker_save(tmp_path / "image.tar", LAYERS)
    else:
        image = as_layout(tmp_path / "image", LAYERS, pack=gzip.compress if form == "layout" else bytes)
    assert is_oci(image)
    root = tmp_path / "root"
    root.mkdir()
    unpack_image(image, root, set_owner=False)

    assert (root / "etc/kept").read_text() == "changed"
    assert not (root / "etc/gone").exists()
    assert [path.name for path in (root / "opt/old").iterdir()] == ["b"]
    assert (root / "usr/bin/tool").stat().st_mode & 0o7777 == 0o4755
    assert (root / "usr/bin/same").samefile(root / "usr/bin/tool")
    assert (root / "var/run").readlink() == Path("/run")
    assert (root / "run/pid").read_text() == "1", "a link within the image is followed within the image"


def test_owners_are_kept(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    root = tmp_path / "root"
    root.mkdir()
    image = as_layout(tmp_path / "image", [layer(directory("d", uid=70, gid=71), file("d/f", uid=72, gid=73))])
    unpack_image(image, root, set_owner=True)
    assert [(path.stat().st_uid, path.stat().st_gid) for path in (root / "d", root / "d/f")] == [(70, 71), (72, 73)]


def test_damage_is_found(tmp_path: Path) -> None:
    image = as_layout(tmp_path / "image", LAYERS, pack=bytes)
    victim = max((image / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    for name, damaged in (
        ("changed", bytes(data[:700]) + bytes([data[700] ^ 1]) + bytes(data[701:])),
        ("cut", bytes(data[: len(data) // 2])),
        ("packed and cut", gzip.compress(bytes(data))[:-30]),
        ("zstd", b"\x28\xb5\x2f\xfd rest"),
        ("empty", b""),
    ):
        victim.write_bytes(damaged)
        root = tmp_path / name
        root.mkdir()
        with pytest.raises(ImageError):
            unpack_image(image, root, set_owner=False)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"manifests": []}', '{"manifests": [{"digest": "sha256:../../../etc/passwd"}]}', "7"]
)
def test_a_broken_index_is_one_clear_error(tmp_path: Path, index: str) -> None:
    image = as_layout(tmp_path / "image", LAYERS)
    (image / "index.json").write_text(index)
    with pytest.raises(ImageError):
        image_digest(image)


def test_an_own_image_is_unpacked_once_with_its_mount_points(tmp_path: Path) -> None:
    image = as_docker_save(tmp_path / "image.tar", LAYERS)
    cache = Cache(tmp_path / "cache")
    artifact, facts = own_image(cache, str(image))
    assert (Path(artifact.path) / "dbtoll/agent").is_file()
    assert (Path(artifact.path) / "dbtoll/data").is_dir()
    assert facts["packages"] == {}
    assert own_image(cache, str(image))[0] == artifact
    assert facts["source"] == f"oci {image_digest(image)}"


def test_a_directory_is_used_in_place(tmp_path: Path) -> None:
    cache, root = Cache(tmp_path / "cache"), tmp_path / "root"
    root.mkdir()
    with pytest.raises(DbtollError, match="/dbtoll/data") as caught:
        own_image(cache, str(root))
    assert os.system(caught.value.hint) == 0  # the hint must be a command that helps
    first, facts = own_image(cache, str(root))
    assert first.path == str(root)
    assert facts["source"] == "directory root"
    assert own_image(cache, str(root))[0].key == first.key
    (root / "new").touch()
    assert own_image(cache, str(root))[0].key != first.key


def test_what_is_no_image_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    (tmp_path / "a.tar").write_bytes(layer(file("etc/passwd")))
    for name in ("missing", "text", "a.tar"):
        with pytest.raises(DbtollError):
            own_image(Cache(tmp_path / "cache"), str(tmp_path / name))
