"""A disk model on this machine: it keeps data, it is never faster than its model, and nothing of it is left, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dbtoll.channel.json_lines import JsonLines
from dbtoll.environments.ssh import Environment as Ssh
from dbtoll.errors import ChannelError, Unavailable
from dbtoll.machines import disk_model
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.control_group import through_agent
from dbtoll.machines.disk_model import DiskModel
from dbtoll.machines.disk_models import MODELS, FixedTimes
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.json import Json
from dbtoll.runner.cleanup.journal import Journal
from dbtoll.runner.cleanup.removers import Cleaned, clean_one
from tests.support.sshd import Sshd

MS = 1_000_000
SIZE_BYTES = 64 << 20
SLOW = FixedTimes("a slow device", "made up", 1 << 30, 8192, *[5 * MS] * 4)

SERVER = """
import sys
from pathlib import Path
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.disk_model import disk_model
from dbtoll.runner.cleanup.journal import Journal

with Journal(Path(sys.argv[1])) as journal, open_local() as host:
    with disk_model(host, "hdd7200", sys.argv[1], "killed", journal) as disk:
        disk.pace(True)
        print(disk.device, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def nothing_is_left(local: AgentMachine) -> Iterator[None]:
    """Of any disk model of this test: no device and no program."""
    before = processes()
    yield
    assert not [path for path in Path("/sys/block").glob("loop*/loop/backing_file") if "dbtoll-disk-t" in text(path)]
    until = time.monotonic() + 20
    while processes() - before and time.monotonic() < until:
        time.sleep(0.05)
    assert processes() - before == set()


def text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def processes() -> set[int]:
    """Programs that serve a disk."""
    numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {number for number in numbers if text(Path(f"/proc/{number}/cmdline")).split("\0")[1:2] == ["disk"]}


@pytest.fixture
def made(local: AgentMachine, tmp_path: Path) -> Iterator[DiskModel]:
    """A slow device of 64 MiB, without its pace."""
    with ExitStack() as closing:
        begun = disk_model.disk_model(local, SLOW, str(tmp_path), "test", NullJournal(), size_bytes=SIZE_BYTES)
        try:
            disk = closing.enter_context(begun)
        except Unavailable as lack:
            pytest.skip(str(lack))
        yield disk


def exercised(machine: AgentMachine, device: str, **options: object) -> Json:
    request = {"path": device, "writes": False, "random": True, "bytes": 8192, "in_flight": 1, "seed": 1}
    request |= {"duration_ns": 300 * MS} | options
    program = f"/proc/{machine.hello()['pid']}/exe"
    told: Json = json.loads(machine.run([program, "disk-exercise", json.dumps(request)]).output)
    return told


def mounted_run(machine: AgentMachine, disk: DiskModel, at: Path, does: str, *, options: str = "defaults") -> None:
    """The same shell mounts the device and lets it go, in a mount namespace of its own: one that another test makes meanwhile
    would have the mount too, and keep the device busy."""
    script = 'mount -t ext4 -o "$1" "$2" "$3" && cd "$3" && eval "$4" && cd / && umount "$3"'
    machine.run(["unshare", "--mount", "sh", "-c", script, "sh", options, disk.device, str(at), does])


def test_a_file_system_on_it_keeps_its_data(local: AgentMachine, made: DiskModel, tmp_path: Path) -> None:
    local.run(["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0", made.device])
    written, at = tmp_path / "written", tmp_path / "mounted"
    written.write_bytes(os.urandom(3 << 20))
    at.mkdir()
    for pace in (False, True):
        made.pace(pace)
        mounted_run(local, made, at, f"cp {written} file-{pace} && sync --file-system .")
    mounted_run(local, made, at, f"cmp {written} file-False && cmp {written} file-True", options="ro")
    assert local.run(["e2fsck", "-fn", made.device], check=False).exit_code == 0
    assert made.statistics().writes.bytes >= written.stat().st_size
    assert made.statistics().errors == 0


def test_the_kernel_takes_it_for_what_it_is_like(local: AgentMachine, made: DiskModel, tmp_path: Path) -> None:
    def told(device: str) -> list[str]:
        queue = Path("/sys/block", device.removeprefix("/dev/"), "queue")
        return [text(queue / name).strip() for name in ("rotational", "write_cache", "discard_max_bytes")]

    assert told(made.device) == ["0", "write through", "0"]
    assert local.run(["blockdev", "--getsize64", made.device]).output.split() == [str(SIZE_BYTES).encode()]
    folder = str(tmp_path)
    with disk_model.disk_model(local, "hdd15k", folder, "test", NullJournal(), write_cache=True) as disk:
        assert told(disk.device) == ["1", "write back", "0"]
        # All of it, and next to none of it takes room.
        assert disk.size_bytes == MODELS["hdd15k"].capacity_bytes
    assert "fuse" not in text(Path("/proc/self/mountinfo")).replace("fusectl", "")


def test_no_request_is_faster_than_the_model(local: AgentMachine, made: DiskModel) -> None:
    made.pace(True)
    for options in ({}, {"writes": True}, {"random": False}):
        told = exercised(local, made.device, **options)
        assert told["requests"] > 0
        # The histogram's digits round down by a thousandth.
        assert told["least_ns"] >= 5 * MS * 0.999
    seen = made.statistics()
    assert seen.busy_ns == 5 * MS * (seen.reads.count + seen.writes.count)
    assert seen.cpu_ns > 0


def test_what_is_in_flight_is_served_one_after_the_other(local: AgentMachine, made: DiskModel) -> None:
    made.pace(True)
    before = made.statistics()
    told = exercised(local, made.device, writes=True, in_flight=8)
    between = made.statistics().since(before)
    assert between.writes.count == told["requests"] >= 8
    assert told["elapsed_ns"] >= told["requests"] * 5 * MS
    assert max(between.queue) > 1
    # What a request waits for those before it is no service of its own.
    assert between.busy_ns == told["requests"] * 5 * MS <= between.at_ns
    assert between.writes.waited_ns > between.busy_ns


def test_the_pace_can_be_left_off(local: AgentMachine, made: DiskModel) -> None:
    made.pace(True)
    exercised(local, made.device, writes=True)
    counted = made.statistics().writes.count
    made.pace(False)
    told = exercised(local, made.device, writes=True)
    assert told["least_ns"] < 5 * MS
    assert made.statistics().writes.count == counted


def test_a_cache_for_writes_takes_them_at_once_and_a_flush_waits(local: AgentMachine, tmp_path: Path) -> None:
    description = replace(SLOW, write_cache_bytes=8 << 20)
    folder, options = str(tmp_path), {"size_bytes": SIZE_BYTES, "write_cache": True}
    with disk_model.disk_model(local, description, folder, "test", NullJournal(), **options) as disk:
        disk.pace(True)
        before = disk.statistics()
        words = [
            f"of={disk.device}",
            "if=/dev/zero",
            "bs=8192",
            "count=20",
            "oflag=direct",
            "conv=fsync",
            "status=none",
        ]
        wall_ns = local.run(["dd", *words]).usage["wall_ns"]
        between = disk.statistics().since(before)
        assert wall_ns >= 20 * 5 * MS
        assert (between.cached_writes, between.writes.count) == (20, 20)
        assert between.flushes >= 1


def test_a_killed_server_hangs_nobody_and_leaves_nothing(local: AgentMachine, tmp_path: Path) -> None:
    """With pages that are dirty in the page cache of its device, and a writer in the midst of it."""
    running = processes()
    with disk_model.disk_model(local, SLOW, str(tmp_path), "test", NullJournal(), size_bytes=SIZE_BYTES) as disk:
        (server,) = processes() - running
        local.run(["dd", "if=/dev/zero", f"of={disk.device}", "bs=1M", "count=8", "conv=notrunc", "status=none"])
        disk.pace(True)
        writer = subprocess.Popen(["dd", "if=/dev/zero", f"of={disk.device}", "bs=1M", "conv=fsync", "status=none"],
                                  stderr=subprocess.PIPE)  # fmt: skip
        time.sleep(0.3)
        os.kill(server, signal.SIGKILL)
        assert writer.wait(60) != 0
        with pytest.raises(ChannelError, match="the disk model on"):
            disk.statistics()


def test_a_file_system_whose_disk_dies_can_be_unmounted(local: AgentMachine, tmp_path: Path) -> None:
    running = processes()
    at = tmp_path / "mounted"
    at.mkdir()
    with disk_model.disk_model(local, SLOW, str(tmp_path), "test", NullJournal(), size_bytes=SIZE_BYTES) as disk:
        (server,) = processes() - running
        local.run(["mke2fs", "-q", "-t", "ext4", disk.device])
        local.run(["mount", "-t", "ext4", disk.device, str(at)])
        try:
            disk.pace(True)
            local.put(str(at / "dirty"), bytes(8 << 20))
            os.kill(server, signal.SIGKILL)
            assert local.run(["sync", "--file-system", str(at)], check=False).exit_code != 0
        finally:
            local.run(["umount", str(at)])


def test_a_killed_controller_leaves_what_clean_takes_away(local: AgentMachine, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout is not None
    device = process.stdout.readline().strip()
    if not device:
        pytest.skip("there is no disk model here; other tests say why")
    # Past the page cache: who writes into that is not told that nothing arrives.
    words = ["dd", "if=/dev/zero", f"of={device}", "bs=1M", "oflag=direct", "status=none"]
    writer = subprocess.Popen(words, stderr=subprocess.PIPE)
    time.sleep(0.3)
    process.kill()
    process.wait(60)
    assert writer.wait(60) != 0
    assert list(tmp_path.iterdir()) == [tmp_path / "journal.ndjson"]
    cleaned = Cleaned()
    assert clean_one(tmp_path, cleaned)
    assert [line.startswith("disk_model dbtoll-disk-killed-") for line in cleaned.removed] == [True]
    assert not Path("/sys/block", device.removeprefix("/dev/"), "loop").exists()


def test_a_device_that_is_still_mounted_stays_in_the_journal(
    local: AgentMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_model, "RELEASE_S", 0.2)
    tmp_path.chmod(0o700)
    at = tmp_path / "mounted"
    at.mkdir()
    with Journal(tmp_path) as journal:
        with (
            pytest.raises(Unavailable, match="is in use"),
            disk_model.disk_model(local, SLOW, str(tmp_path), "test", journal, size_bytes=SIZE_BYTES) as disk,
        ):
            local.run(["mke2fs", "-q", "-t", "ext4", disk.device])
            local.run(["mount", "-t", "ext4", disk.device, str(at)])
        assert [line["kind"] for line in journal.leftovers()] == [disk_model.KIND]
        local.run(["umount", str(at)], check=False)
        disk_model.remove(local, journal.leftovers()[0])


def test_another_host_has_one_too(local: AgentMachine, loopback: Sshd, tmp_path: Path) -> None:
    """What is made there is noted here."""
    tmp_path.chmod(0o700)
    with Journal(tmp_path) as journal, Ssh().reach(local, loopback.options(), journal) as there:
        options = {"size_bytes": SIZE_BYTES}
        with disk_model.disk_model(there, SLOW, there.directory, "test", there.journal, **options) as disk:
            noted = [line["what"]["kind"] for line in journal.leftovers() if line["kind"] == "remote"]
            assert disk_model.KIND in noted
            disk.pace(True)
            assert exercised(through_agent(there), disk.device)["least_ns"] >= 5 * MS * 0.999
        noted = [line["what"]["kind"] for line in journal.leftovers() if line["kind"] == "remote"]
        assert disk_model.KIND not in noted


def test_a_place_that_cannot_hold_it_is_told(local: AgentMachine) -> None:
    with (
        pytest.raises(Unavailable, match="can have no disk model: open /nowhere"),
        disk_model.disk_model(local, SLOW, "/nowhere", "test", NullJournal()),
    ):
        pass


def test_what_is_asked_of_it_is_one_line_each(local: AgentMachine) -> None:
    """A program that is told nonsense ends, and says so."""
    program = f"/proc/{local.hello()['pid']}/exe"
    assert local.run([program, "disk", "{}"], check=False).exit_code == 1
    lines = JsonLines(local.channel, "run", {"argv": [program, "disk", "nonsense"]}, who="the disk model")
    with pytest.raises(ChannelError, match=r"the disk model on .* ended without an answer"):
        lines.reply(time.monotonic() + 30)
