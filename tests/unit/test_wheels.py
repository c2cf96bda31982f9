"""Programs out of wheels: taken by pip, from an index that is a folder here, and never another one than was meant."""

from __future__ import annotations

import hashlib
import platform
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from dbtoll.errors import ImageError, Unavailable
from dbtoll.images import wheels
from dbtoll.images.cache import Cache
from dbtoll.model.software import Software, Wheel

MEMBERS = {"parrot/bin/parrotd": b"a server", "parrot/lib/a.so": b"a", "parrot/lib/b.so": b"b", "parrot/other": b"x"}
METADATA = {
    "parrot-1.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: parrot\nVersion: 1.2\n",
    "parrot-1.2.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "parrot-1.2.dist-info/RECORD": b"",
}


@pytest.fixture
def parrot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel that pip finds in a folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    file = folder / "parrot-1.2-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in {**MEMBERS, **METADATA}.items():
            archive.writestr(name, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    builds = {platform.machine(): ("any", hashlib.sha256(file.read_bytes()).hexdigest())}
    return Wheel(
        "parrot", "1.2", builds, {"parrot/bin/parrotd": "/opt/parrot/server", "parrot/lib/": "/opt/parrot/lib"}
    )


def test_the_files_that_are_named_come_and_stay(parrot: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = wheels.fetched(Cache(tmp_path / "cache"), parrot)
    found = {str(each.relative_to(entry.content)): each for each in entry.content.rglob("*") if each.is_file()}
    assert {name: file.read_bytes() for name, file in found.items()} == {
        "opt/parrot/server": b"a server", "opt/parrot/lib/a.so": b"a", "opt/parrot/lib/b.so": b"b",
    }  # fmt: skip
    assert all(file.stat().st_mode & 0o777 == 0o755 for file in found.values())
    assert (entry.facts["project"], entry.facts["version"]) == ("parrot", "1.2")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    assert wheels.fetched(Cache(tmp_path / "cache"), parrot).content == entry.content


def refused(cache: Path, wheel: Wheel, kind: type[Exception]) -> str:
    """What is said; and nothing is left."""
    with pytest.raises(kind) as caught:
        wheels.fetched(Cache(cache), wheel)
    assert not list(cache.glob("wheel/*/content"))
    return str(caught.value)


def test_a_wheel_that_is_another_one_is_refused(parrot: Wheel, tmp_path: Path) -> None:
    other = replace(parrot, builds={platform.machine(): ("any", "0" * 64)})
    assert "parrot 1.2 cannot be fetched" in refused(tmp_path / "cache", other, Unavailable)


def test_a_wheel_that_is_nowhere_is_named(parrot: Wheel, tmp_path: Path) -> None:
    assert "parrot 1.3 cannot be fetched" in refused(tmp_path / "cache", replace(parrot, version="1.3"), Unavailable)


def test_a_wheel_without_its_file_is_refused(parrot: Wheel, tmp_path: Path) -> None:
    assert "holds no parrot/gone" in refused(
        tmp_path / "cache", replace(parrot, files={"parrot/gone": "/opt/gone"}), ImageError
    )


def test_another_processor_is_named_before_anything_is_fetched(parrot: Wheel, tmp_path: Path) -> None:
    said = refused(tmp_path / "cache", replace(parrot, builds={"pdp11": ("any", "0" * 64)}), Unavailable)
    assert "built for pdp11 alone" in said and platform.machine() in said


def test_software_is_joined_each_thing_once(parrot: Wheel) -> None:
    one = Software(packages=("a",), wheels=(parrot,), suites={"bookworm": Software(packages=("b",))})
    other = Software(packages=("a",), wheels=(parrot,), suites={"trixie": Software(packages=("c",))})
    both = one | other
    assert (both.packages, both.wheels) == (("a",), (parrot,))
    assert [both.of_suite(suite).packages for suite in ("bookworm", "trixie", "sid")] == [("b",), ("c",), ()]
