"""Images made in bad faith: whatever they hold, nothing outside is touched, and what is refused is refused in one clear error."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbtoll.errors import DbtollError, ImageError
from dbtoll.images.cache import Cache, remove_tree
from dbtoll.images.inspect import image_facts, missing_mount_points, tree_digest
from dbtoll.images.oci import image_digest, unpack_image
from dbtoll.images.system import own_image
from dbtoll.images.unpacking import Bounds, unpack_layer
from dbtoll.images.within import DEPTH_MAX
from tests.support.make_image import (
    Member,
    as_docker_save,
    as_layout,
    deep,
    directory,
    file,
    hard_link,
    layer,
    link,
    sha256,
)

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="owners and devices need root")


class Victim:
    """A directory outside of the image, and whether anything of it was touched."""

    def __init__(self, place: Path) -> None:
        self.path = place / "outside"
        (self.path / "folder").mkdir(parents=True)
        (self.path / "a/b/c").mkdir(parents=True)  # names that hypothesis' members have too
        (self.path / "precious").write_text("precious")
        (self.path / "folder/deeper").write_text("deeper")
        (self.path / "precious").chmod(0o640)
        self._place, self._before = place, self._seen(place)

    def _seen(self, place: Path) -> list[object]:
        """Of everything in ``place`` but for the image and the directory that it is unpacked into."""
        seen: list[object] = []
        for path in sorted(place.rglob("*")):
            if path.relative_to(place).parts[0] in ("root", "image", "cache"):
                continue
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            seen.append((path, status.st_mode, status.st_uid, status.st_mtime_ns, status.st_nlink, content))
        return seen

    def untouched(self) -> bool:
        return self._seen(self._place) == self._before


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    victim = Victim(tmp_path)
    yield victim
    assert victim.untouched()


def unpack(place: Path, *layers: bytes, bounds: Bounds | None = None) -> Path:
    root = place / "root"
    root.mkdir(exist_ok=True)
    for each in layers:
        unpack_layer(io.BytesIO(each), root, bounds or Bounds(), set_owner=os.geteuid() == 0)
    return root


# --- members that lead outside ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/", "//", "///", ".", "./", "", "./.", "/./"])
@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE])
def test_the_root_itself_is_nobodys_member(tmp_path: Path, victim: Victim, name: str, kind: bytes) -> None:
    (tmp_path / "root").mkdir(mode=0o755)
    here = (name, None, {"type": kind, "mode": 0o4777, "linkname": str(victim.path), "uid": 12, "mtime": 1})
    root = unpack(tmp_path, layer(file("kept"), here, file("also")))
    assert sorted(path.name for path in root.iterdir()) == ["also", "kept"]
    status = root.lstat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, os.geteuid())


@pytest.mark.parametrize("name", ["//inside", "///a/b", "/./c", "a//d"])
def test_absolute_names_are_within(tmp_path: Path, victim: Victim, name: str) -> None:
    root = unpack(tmp_path, layer(file(name, b"in")))
    assert (root / name.lstrip("/")).read_bytes() == b"in"


def ways_out(to: str) -> dict[str, list[list[Member]]]:
    """Layers of members that try to reach the directory ``to``. An absolute link means a directory in the image."""
    up = "../" * 40 + to.lstrip("/")
    return {
        "attributes of a directory that became a link": [
            [directory("d", mode=0o777, mtime=1.0, uid=99), link("d", to)]
        ],
        "the same, relative": [[directory("d", mode=0o777, mtime=1.0, uid=99), link("d", up)]],
        "the same, a parent of it": [[directory("p/folder", mode=0o777, mtime=1.0, uid=99), link("p", to)]],
        "the same, one layer later": [[link("d", to)], [directory("d/folder", mode=0o777, mtime=1.0, uid=99)]],
        "a file through a link": [[link("d", to), file("d/precious", b"spoilt", mode=0o4755)]],
        "a file through two links": [[link("a", to), link("b", "a"), file("b/folder/deeper", b"spoilt")]],
        "a link that is a file": [[link("f", f"{to}/precious"), file("f", b"spoilt")]],
        "a link under a link": [[link("a", to), link("a/precious", "elsewhere")]],
        "a directory over a link": [[link("d", f"{to}/folder"), directory("d", mode=0o777), file("d/deeper", b"x")]],
        "a hard link to a link": [[link("a", f"{to}/precious"), hard_link("b", "a"), file("b", b"spoilt")]],
        "a whiteout through a link": [[link("d", to), file("d/.wh.precious", b"")]],
        "an opaque whiteout through a link": [[link("d", to)], [file("d/.wh..wh..opq", b"")]],
        "a whiteout of a link": [[link("d", to)], [file(".wh.d", b"")]],
        "up and on": [[directory("a"), link("a/up", ".."), file("a/up/up2", b""), link("u", up), file("u/precious")]],
    }


@pytest.mark.parametrize("way", ways_out("/"))
def test_no_way_leads_out(tmp_path: Path, victim: Victim, way: str) -> None:
    root = unpack(tmp_path, *(layer(*members) for members in ways_out(str(victim.path))[way]))
    assert root.is_dir()


@pytest.mark.parametrize(
    "members",
    [
        [hard_link("h", "../outside/precious")],
        [link("l", "/outside"), hard_link("h", "l/../../outside/precious")],
        [link("l", "../outside"), hard_link("h", "l/precious")],
        [hard_link("h", "/")],
        [directory("d"), hard_link("h", "d")],
        [hard_link("h", "nothing")],
        [file("a"), file("a/b")],
        [file("../outside/precious")],
        [file("a/../../outside/precious")],
        [directory("../outside", mode=0o777)],
        [file(".wh...", b"")],
        [file(".wh..", b"")],
        [file("a/.wh.", b"")],
        [link("a", "b"), link("b", "a"), file("a/c")],
        [link("a", "a/a"), file("a/c")],
    ],
)
def test_what_leads_out_or_in_circles_is_refused(tmp_path: Path, victim: Victim, members: list[Member]) -> None:
    with pytest.raises(ImageError):
        unpack(tmp_path, layer(*members))


def test_a_directory_that_a_link_replaced_stays_replaced(tmp_path: Path, victim: Victim) -> None:
    members = [directory("d"), file("d/a"), link("d", str(victim.path)), file("d/b", b"within")]
    root = unpack(tmp_path, layer(*members))
    assert (root / "d").readlink() == victim.path
    assert (root / str(victim.path).lstrip("/") / "b").read_bytes() == b"within"


names = st.sampled_from(["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq", ".wh..", "\udcff", "ä", "OUT", "UP"])
paths = st.lists(names, min_size=1, max_size=5).map("/".join)


@st.composite
def any_member(draw: st.DrawFn) -> Member:
    kinds = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
    kind = draw(st.sampled_from([*kinds, tarfile.FIFOTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE]))
    more: dict[str, Any] = {"type": kind, "linkname": draw(paths), "mode": draw(st.integers(0, 0o7777))}
    more |= {"uid": draw(st.sampled_from([0, 1, 70])), "mtime": draw(st.sampled_from([0, 1, 2**31]))}
    return draw(paths), b"content" if kind == tarfile.REGTYPE else None, more


@settings(max_examples=100, deadline=None)
@given(layers=st.lists(st.lists(any_member(), max_size=12), min_size=1, max_size=3))
def test_no_members_whatever_reach_outside(
    tmp_path_factory: pytest.TempPathFactory, layers: list[list[Member]]
) -> None:
    place = tmp_path_factory.mktemp("any")
    victim = Victim(place)

    def meant(path: str) -> str:
        return path.replace("OUT", str(victim.path)).replace("UP", "../" * 30 + str(victim.path).lstrip("/"))

    made = [
        layer(*((meant(name), content, more | {"linkname": meant(more["linkname"])}) for name, content, more in each))
        for each in layers
    ]
    try:
        root = unpack(place, *made)
    except ImageError:
        root = place / "root"
    assert victim.untouched()
    for path in root.rglob("*"):
        kind = path.lstat().st_mode
        assert stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind)


# --- what is too much ---------------------------------------------------------------------------------------------------


def test_depth_ends_somewhere(tmp_path: Path) -> None:
    unpack(tmp_path, layer(file("/".join("d" * DEPTH_MAX) + "/f")))
    for members in (
        [file("/".join("e" * 1700) + "/f")],
        [directory("/".join("e" * (DEPTH_MAX + 1)))],
        [link("l", "/".join("g" * 100)), file("l/" + "/".join("h" * 100) + "/f")],
        [
            link("l", "d/" * 20),
            link("d", "."),
            *(link(f"l{n}", "x/l") for n in range(9)),
            file("/".join("x" * 130) + "/f"),
        ],
    ):
        with pytest.raises(ImageError, match="directories deep"):
            unpack(tmp_path, layer(*members))


def test_paths_end_somewhere(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="a path has more than"):
        unpack(tmp_path, layer(file("/".join(["x" * 250] * 9) + "/f")))


def test_members_and_bytes_end_somewhere(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="more members"):
        unpack(tmp_path, layer(*(file(f"f{n}", b"") for n in range(50))), bounds=Bounds(members=40))
    with pytest.raises(ImageError, match="more members"):
        unpack(tmp_path, layer(*(file(f"d{n}/a/b/c/f", b"") for n in range(12))), bounds=Bounds(members=40))
    with pytest.raises(ImageError, match="more bytes"):
        unpack(tmp_path, layer(file("f", bytes(1 << 20))), bounds=Bounds(content_bytes=1 << 19))
    with pytest.raises(ImageError, match="more bytes"):
        unpack(tmp_path, layer(*(file(f"g{n}", b"") for n in range(200))), bounds=Bounds(content_bytes=1 << 19))
    assert not (tmp_path / "root/f").exists(), "nothing is written of what is too much"


def test_zeros_after_the_last_member_end_somewhere(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="longer"):
        unpack(tmp_path, layer(file("f")) + bytes(4 << 20), bounds=Bounds(content_bytes=1 << 20))


def test_a_sparse_member_counts_what_it_would_take(tmp_path: Path) -> None:
    sparse = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.size": str(1 << 50),
        "GNU.sparse.map": "0,1",
    }
    with pytest.raises(ImageError):
        unpack(tmp_path, layer(file("f", b"x", pax_headers=sparse | {"GNU.sparse.realsize": str(1 << 50)})))
    small = {"GNU.sparse.map": "0,1,9,1", "GNU.sparse.size": "10", "GNU.sparse.numblocks": "2"}
    root = unpack(tmp_path, layer(file("g", b"ab", pax_headers=small)))
    assert (root / "g").read_bytes() == b"a" + bytes(8) + b"b"


def header(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    """A header block as no writer makes it, and its content."""
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, len(content) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_headers_end_somewhere(tmp_path: Path, kind: bytes) -> None:
    """`tarfile` takes a header whole into memory, and goes down one call for each that follows it."""
    record = b"1000013 comment=" + b"x" * (1000013 - 17) + b"\n"
    for hostile in (header(kind, record), header(kind, b"", 8 << 30) + bytes(1 << 20), header(kind, b"") * 3000):
        with pytest.raises(ImageError):
            unpack(tmp_path, hostile + layer(file("f")))
    assert not list((tmp_path / "root").iterdir())


def test_global_headers_do_not_pile_up(tmp_path: Path) -> None:
    def once(number: int) -> bytes:
        record = f"30013 key{number:05d}=".encode()
        return (
            header(tarfile.XGLTYPE, record + b"x" * (30013 - len(record) - 1) + b"\n")
            + layer(file(f"f{number}"))[:1024]
        )

    with pytest.raises(ImageError, match="global headers"):
        unpack(tmp_path, b"".join(map(once, range(20))))


@pytest.mark.parametrize("size", ["-1", "-512", "-1024", "-9999999999", "99999999999999999999999"])
def test_headers_that_lead_backwards_are_refused(tmp_path: Path, size: str) -> None:
    hostile = layer(file("a"), file("manifest.json", b"[]", pax_headers={"size": size}), file("b"))
    with pytest.raises(ImageError):
        unpack(tmp_path, hostile)
    (tmp_path / "image").write_bytes(hostile)
    with pytest.raises(ImageError):
        image_digest(tmp_path / "image")


WHOLE = layer(file("a"), file("b"))


@pytest.mark.parametrize("damaged", [WHOLE[:1024] + b"\1" * 100 + WHOLE[1124:], WHOLE[:1300]])
def test_a_damaged_header_is_not_the_end_of_an_archive(tmp_path: Path, damaged: bytes) -> None:
    """`tarfile` ends there in silence, with half an image in place of all of it."""
    with pytest.raises(ImageError):
        unpack(tmp_path, damaged)
    (tmp_path / "image").write_bytes(damaged)
    with pytest.raises(ImageError):
        image_digest(tmp_path / "image")


@pytest.mark.parametrize(
    "more",
    [
        {"uid": -1},
        {"gid": 2**32 - 1},
        {"uid": 2**40},
        {"pax_headers": {"mtime": "nan"}},
        {"pax_headers": {"mtime": "inf"}},
        {"mtime": 1e300},
        {"type": b"Z"},
        {"pax_headers": {"path": "a\0b"}},
        {"pax_headers": {"path": "x" * 300}},
        {"type": tarfile.SYMTYPE, "linkname": ""},
        {"type": tarfile.SYMTYPE, "linkname": "x" * 5000},
    ],
)
@ROOT_ONLY
def test_absurd_attributes_are_one_clear_error(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ImageError):
        unpack(tmp_path, layer(directory("d"), ("d/f", b"", more), file("after")))


# --- what is left out, and what is kept ---------------------------------------------------------------------------------


def test_devices_and_pipes_are_never_made(tmp_path: Path) -> None:
    kinds = {"chr": tarfile.CHRTYPE, "blk": tarfile.BLKTYPE, "fifo": tarfile.FIFOTYPE}
    members: list[Member] = [
        (f"dev/{name}", None, {"type": kind, "devmajor": 1, "devminor": 3, "mode": 0o666})
        for name, kind in kinds.items()
    ]
    root = unpack(tmp_path, layer(*members, file("etc/kept")))
    assert sorted(path.name for path in root.rglob("*")) == ["dev", "etc", "kept"]


@ROOT_ONLY
def test_owners_modes_and_setuid_are_the_images(tmp_path: Path) -> None:
    members = [directory("d", mode=0o2750, uid=70, gid=71, mtime=5), file("d/su", mode=0o4755, uid=0, mtime=7)]
    root = unpack(tmp_path, layer(*members, file("d/late", uid=3)))
    status = (root / "d").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime) == (0o2750, 70, 71, 5)
    assert (stat.S_IMODE((root / "d/su").stat().st_mode), (root / "d/su").stat().st_mtime) == (0o4755, 7)


def test_what_the_callers_umask_is_does_not_matter(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        image = as_docker_save(tmp_path / "image", [layer(file("made/on/the/way", mode=0o644))])
        artifact, _ = own_image(Cache(tmp_path / "cache"), str(image))
    finally:
        os.umask(before)
    root = Path(artifact.path)
    for name in ("", "made", "made/on/the", "dbtoll", "dbtoll/data", "tmp"):
        assert stat.S_IMODE((root / name).stat().st_mode) == 0o755, name


def test_names_need_not_be_utf_8(tmp_path: Path) -> None:
    members = [file("latin-\udce4"), directory("d\udcff"), file("d\udcff/f"), link("l", "\udce4"), file("ä" * 100)]
    root = unpack(tmp_path, layer(*members))
    found = sorted(os.fsencode(path.name) for path in root.iterdir())
    assert found == sorted([b"latin-\xe4", b"d\xff", b"l", "ä".encode() * 100])
    assert os.fsencode((root / "l").readlink()) == b"\xe4"


def test_the_last_of_equal_names_counts(tmp_path: Path) -> None:
    members = [file("a", b"first"), file("a", b"second"), directory("b"), file("b/x"), file("b", b"file")]
    root = unpack(tmp_path, layer(*members, file("c"), directory("c"), file("c/y")))
    assert (root / "a").read_bytes() == b"second"
    assert (root / "b").read_bytes() == b"file"
    assert (root / "c/y").exists()


def test_a_hard_link_to_itself_is_the_file(tmp_path: Path) -> None:
    root = unpack(tmp_path, layer(file("a", b"kept"), hard_link("./a", "a"), hard_link("b", "a"), file("b", b"other")))
    assert ((root / "a").read_bytes(), (root / "b").read_bytes()) == (b"kept", b"other")


def test_an_opaque_directory_hides_what_is_below_deeper_too(tmp_path: Path) -> None:
    lower = layer(file("a/b/old"), file("a/old"), file("a/b/both", b"old"))
    upper = layer(file("a/b/new"), file("a/b/both", b"new"), file("a/.wh..wh..opq", b""))
    root = unpack(tmp_path, lower, upper)
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["a", "a/b", "a/b/both", "a/b/new"]


# --- the files around the layers ----------------------------------------------------------------------------------------


def saved(place: Path, manifest: Any, configuration: Any = None, *more: Member) -> Path:
    members = [file("manifest.json", json.dumps(manifest).encode()), file("c", json.dumps(configuration).encode())]
    (place / "image").write_bytes(layer(*members, *more))
    return place / "image"


@pytest.mark.parametrize(
    "manifest", [7, {}, [7], [{}], [{"Config": 7, "Layers": []}], [{"Config": "c", "Layers": [7]}], None, [], [1, 2]]
)
def test_a_manifest_of_other_types_is_one_clear_error(tmp_path: Path, manifest: Any) -> None:
    with pytest.raises(ImageError):
        unpack_image(saved(tmp_path, manifest), tmp_path, set_owner=False)


@pytest.mark.parametrize(
    "configuration", [7, [], {}, {"rootfs": 7}, {"rootfs": {"diff_ids": 7}}, {"rootfs": {"diff_ids": [7]}}, None]
)
def test_a_configuration_of_other_types_is_one_clear_error(tmp_path: Path, configuration: Any) -> None:
    manifest = [{"Config": "c", "Layers": ["l"]}]
    with pytest.raises(ImageError):
        unpack_image(saved(tmp_path, manifest, configuration, file("l")), tmp_path, set_owner=False)


def test_json_that_is_nested_without_end_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(layer(file("manifest.json", b"[" * 1_000_000)))
    with pytest.raises(ImageError):
        image_digest(tmp_path / "image")
    image = as_layout(tmp_path / "layout", [])
    (image / "index.json").write_text('{"manifests": ' + '{"a": [' * 100_000)
    with pytest.raises(ImageError):
        image_digest(image)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a/../../../etc/passwd", "x\0y", "", "/"])
def test_no_file_beside_the_image_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError):
        image_digest(saved(tmp_path, [{"Config": name, "Layers": []}]))


@pytest.mark.parametrize("kind", ["link out", "pipe", "circle", "directory"])
def test_a_layout_leads_nowhere_else(tmp_path: Path, victim: Victim, kind: str) -> None:
    image = as_layout(tmp_path / "image", [])
    for blob in (image / "blobs/sha256").iterdir():
        blob.unlink()
        match kind:
            case "link out":
                blob.symlink_to(victim.path / "precious")
            case "pipe":
                os.mkfifo(blob)
            case "circle":
                blob.symlink_to(blob.name)
            case _:
                blob.mkdir()
    with pytest.raises(ImageError, match="is missing"):
        image_digest(image)


def test_what_else_lies_in_a_layout_does_not_matter(tmp_path: Path) -> None:
    image = as_layout(tmp_path / "image", [layer(file("f"))])
    (image / "blobs/sha256/dangling").symlink_to("nowhere")
    (image / "circle").symlink_to("circle")
    deep(image, 1100)
    own_image(Cache(tmp_path / "cache"), str(image))
    remove_tree(image)


def test_links_between_saved_layers_are_followed_but_not_for_ever(tmp_path: Path) -> None:
    data = layer(file("f", b"content"))
    configuration = {"rootfs": {"diff_ids": [f"sha256:{sha256(data)}"]}}
    manifest = [{"Config": "c", "Layers": ["b/layer.tar"]}]
    more = [file("a/layer.tar", data), link("b/layer.tar", "../a/layer.tar")]
    (tmp_path / "root").mkdir()
    unpack_image(saved(tmp_path, manifest, configuration, *more), tmp_path / "root", set_owner=False)
    assert (tmp_path / "root/f").read_bytes() == b"content"
    for circle in ([link("b/layer.tar", "layer.tar")], [hard_link("b/layer.tar", "b/layer.tar")]):
        with pytest.raises(ImageError, match="is missing"):
            unpack_image(saved(tmp_path, manifest, configuration, *circle), tmp_path / "root", set_owner=False)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_archive_around_the_layers_is_read_within_bounds(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "image").write_bytes(pack(as_docker_save(tmp_path / "good", [layer(file("f"))]).read_bytes()))
    assert image_digest(tmp_path / "image") == image_digest(tmp_path / "good")
    record = b"1000013 comment=" + b"x" * (1000013 - 17) + b"\n"
    for hostile in (header(tarfile.XHDTYPE, record), header(tarfile.XHDTYPE, b"") * 3000, b"", b"text", bytes(10240)):
        (tmp_path / "image").write_bytes(pack(hostile))
        with pytest.raises(ImageError):
            image_digest(tmp_path / "image")


# --- mount points and facts of an image ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dbtoll", "dbtoll/data", "dbtoll/agent", "proc", "tmp"])
def test_mount_points_are_never_links(tmp_path: Path, victim: Victim, name: str) -> None:
    image = as_docker_save(tmp_path / "image", [layer(link(name, str(victim.path)), file("bin/sh"))])
    artifact, _ = own_image(Cache(tmp_path / "cache"), str(image))
    assert missing_mount_points(Path(artifact.path)) == []
    assert not (Path(artifact.path) / name).is_symlink()


def test_a_directory_with_links_for_mount_points_is_refused(tmp_path: Path, victim: Victim) -> None:
    root = tmp_path / "root"
    for name in ("dbtoll/data", "dbtoll/run", "sys", "dev", "run", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "dbtoll/agent").touch()
    (root / "proc").symlink_to(victim.path)
    with pytest.raises(DbtollError, match="/proc"):
        own_image(Cache(tmp_path / "cache"), str(root))


def test_facts_are_read_within_the_image(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "status").write_text("Package: secret\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n")
    (outside / "os-release").write_text("PRETTY_NAME=secret\n")
    members = [link("var/lib/dpkg", str(outside)), link("etc", "../" * 30 + str(outside)[1:])]
    root = unpack(tmp_path, layer(*members, file("usr/lib/os-release", b"PRETTY_NAME=own\n")))
    assert image_facts(root) == {"release": "own", "packages": {}, "packages_sha256": None}


def test_a_directory_that_is_too_deep_is_one_clear_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    deep(root, 1100)
    with pytest.raises(ImageError, match="directories deep"):
        tree_digest(root)
    remove_tree(root)
