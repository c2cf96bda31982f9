"""In which order the caches are dropped that a cold statement would find."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import pytest

from dbtoll.interfaces.machine import Machine
from dbtoll.model.experiment import Arm, Step
from dbtoll.model.layout import Layout
from dbtoll.runner.arms import RunningArm


class Around:
    """A machine that notes in ``said`` when its caches are dropped: this host."""

    def __init__(self, name: str, said: list[str], parent: Around | None = None) -> None:
        self.name, self.said = name, said
        if parent is not None:
            self.parent = parent

    def run(self, argv: list[str], **_: Any) -> None:
        self.said.append(f"{self.name}: {argv[0]}")

    def put(self, path: str, data: bytes, **_: Any) -> None:
        self.said.append(f"{self.name}: {path.rpartition('/')[2]}")


class Guest(Around):
    def drop_caches(self) -> None:
        self.said.append(f"{self.name} alone")


class Other(Guest):
    directory, journal, told = "/dbtoll", None, None


class NoEngine:
    pass


@pytest.mark.parametrize(
    ("around", "last"),
    [([Around, Guest], ["0: sync", "0: drop_caches"]), ([Around, Other, Guest], ["1 alone"])],
)
def test_what_lies_inside_is_written_back_before_what_lies_around_it_is_dropped(
    around: list[type[Around]], last: list[str]
) -> None:
    """A guest's `sync` goes into the cache of the host on which it stands, this one or another."""
    said: list[str] = []
    machine: Around | None = None
    for number, kind in enumerate(around):
        machine = kind(str(number), said, machine)
    guests = tuple(Guest(name, said, machine) for name in ("a", "b"))
    arm = RunningArm(
        Arm("a", (Step("native"),), layout=Layout(machines=2)),
        cast(tuple[Machine, ...], guests),
        cast(Any, NoEngine()),
        {},
        ExitStack(),
    )
    local = guests[0]
    while hasattr(local, "parent"):
        local = local.parent
    arm.drop_caches(cast(Machine, local))
    assert sorted(said[:2]) == ["a alone", "b alone"]
    assert said[2] == f"{len(around) - 1} alone"
    assert said[3:] == last
