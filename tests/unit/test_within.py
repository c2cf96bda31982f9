"""Paths in a directory that is taken as /: found as the kernel finds them in a chroot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbtoll.errors import ImageError
from dbtoll.images.within import Root, parts_of

names = st.sampled_from(["a", "b", "c"])
steps = st.lists(st.sampled_from(["a", "b", "c", "..", ".", ""]), min_size=1, max_size=5)
targets = st.tuples(st.sampled_from(["", "/", "/../"]), steps).map(lambda each: each[0] + "/".join(each[1]) or ".")
trees = st.lists(st.tuples(st.lists(names, min_size=1, max_size=3), st.sampled_from(["directory", "file"]) | targets))


def in_chroot(root: Path, path: str) -> str:
    """Inode of the directory ``path``, as a process finds it whose / is ``root``; or why there is none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chroot(root)
            os.chdir("/")
            try:
                answer = str(os.fstat(os.open(path, os.O_RDONLY | os.O_DIRECTORY)).st_ino)
            except OSError as error:
                answer = type(error).__name__
            os.write(writing, answer.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def within(root: Path, path: str) -> str:
    with Root(root) as held:
        try:
            with held.directory(parts_of(path)) as place:
                return str(os.fstat(place.handle).st_ino)
        except (OSError, ImageError) as error:
            return "OSError" if isinstance(error, ImageError) else type(error).__name__


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
@settings(max_examples=60, deadline=None)
@given(tree=trees, paths=st.lists(steps.map("/".join), min_size=1, max_size=4))
def test_paths_are_found_as_in_a_chroot(
    tmp_path_factory: pytest.TempPathFactory, tree: list[tuple[list[str], str]], paths: list[str]
) -> None:
    root = tmp_path_factory.mktemp("root")
    for parts, what in tree:
        place = root.joinpath(*parts)
        if any(above.is_symlink() or above.is_file() for above in place.parents if above != root) or os.path.lexists(
            place
        ):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if what == "directory":
            place.mkdir()
        elif what == "file":
            place.touch()
        else:
            place.symlink_to(what)
    for path in paths:
        assert within(root, path) == in_chroot(root, "/" + path), path
