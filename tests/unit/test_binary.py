"""Which agent is found, and what is said when there is none."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

import dbtoll
from dbtoll.errors import Unavailable
from dbtoll.machines.agent.binary import find_agent
from dbtoll.machines.agent.local import kept

X86_64, AARCH64 = 62, 183


def put_elf(path: Path, machine: int) -> Path:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little") + bytes(44))
    return path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dbtoll, "__file__", str(tmp_path / "src" / "dbtoll" / "__init__.py"))
    return tmp_path


def test_nothing_is_built(checkout: Path) -> None:
    with pytest.raises(Unavailable, match="the agent for x86_64 has not been built") as caught:
        find_agent("x86_64")
    assert "./dbtoll setup" in caught.value.hint


def test_unknown_architecture(checkout: Path) -> None:
    with pytest.raises(Unavailable, match="no agent for the architecture s390x") as caught:
        find_agent("s390x")
    assert "x86_64" in caught.value.hint


def test_the_packaged_one_comes_first(checkout: Path) -> None:
    target = checkout / "agent" / "target"
    plain = put_elf(target / "release" / "dbtoll-agent", X86_64)
    assert find_agent("x86_64") == plain
    triple = put_elf(target / "x86_64-unknown-linux-gnu" / "release" / "dbtoll-agent", X86_64)
    assert find_agent("amd64") == triple
    packaged = put_elf(checkout / "src" / "dbtoll" / "_agent" / "x86_64" / "dbtoll-agent", X86_64)
    assert find_agent("x86_64") == packaged


def test_one_for_another_architecture_is_not_taken(checkout: Path) -> None:
    built = put_elf(checkout / "agent" / "target" / "release" / "dbtoll-agent", AARCH64)
    assert find_agent("arm64") == built
    with pytest.raises(Unavailable):
        find_agent("x86_64")


def test_what_is_no_program_is_not_taken(checkout: Path) -> None:
    path = checkout / "agent" / "target" / "release" / "dbtoll-agent"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    with pytest.raises(Unavailable):
        find_agent("x86_64")


def test_a_damaged_one_is_named(checkout: Path) -> None:
    """What a linker writes ends with the section headers."""
    path = put_elf(checkout / "agent" / "target" / "release" / "dbtoll-agent", X86_64)
    whole = bytearray(path.read_bytes())
    whole[0x28:0x30], whole[0x3A:0x3E] = (
        (64).to_bytes(8, "little"),
        (64).to_bytes(2, "little") + (2).to_bytes(2, "little"),
    )
    path.write_bytes(whole + bytes(128))
    assert find_agent("x86_64") == path
    path.write_bytes(whole + bytes(127))
    with pytest.raises(Unavailable, match="damaged") as caught:
        find_agent("x86_64")
    assert caught.value.hint == "./dbtoll setup"


def test_of_a_wheel_the_hash_counts(checkout: Path) -> None:
    path = put_elf(checkout / "src" / "dbtoll" / "_agent" / "x86_64" / "dbtoll-agent", X86_64)
    told = path.with_name("dbtoll-agent.sha256")
    told.write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  dbtoll-agent\n")
    assert find_agent("x86_64") == path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(Unavailable, match="damaged"):
        find_agent("x86_64")
    path.write_bytes(b"")
    with pytest.raises(Unavailable, match="damaged") as caught:
        find_agent("x86_64")
    assert caught.value.hint == "install dbtoll anew"
    told.write_text("")
    with pytest.raises(Unavailable, match="damaged"):
        find_agent("x86_64")


@pytest.mark.parametrize("left_bytes", [0, 30])
def test_an_agent_that_a_power_cut_has_cut_is_copied_again(
    tmp_path: Path, left_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBTOLL_CACHE", str(tmp_path / "cache"))
    built = put_elf(tmp_path / "built/dbtoll-agent", X86_64)
    copy = kept(built)
    assert copy.read_bytes() == built.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o755
    os.truncate(copy, left_bytes)
    assert kept(built).read_bytes() == built.read_bytes()
    built.write_bytes(built.read_bytes() + b"another build")
    assert kept(built) != copy
    assert copy.exists()
