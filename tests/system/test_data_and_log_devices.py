"""Data and log on devices of their own, with real servers: commits wait for the log's device and for no other, in each kind of
environment; and nothing of the devices is left, also of a run that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dbtoll.analysis.result.schema import DeviceResult, Result
from dbtoll.contracts import machines
from dbtoll.errors import Unavailable
from dbtoll.machines import arm_device
from dbtoll.model.experiment import Outcome
from dbtoll.store.reader import read_run
from dbtoll.store.schema import DeviceCounts, ModelCounts, Visit
from tests.support.one_round import measure_one_round
from tests.support.program import dbtoll, is_root

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_root(), reason="a disk model needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="a disk model needs FUSE"),
]

REVOLUTION_MS = 8.333

SPEC = """
[engine]
name = "{engine}"
[workload]
name = "tatp"
subscribers = 1000
terminals = 1
window = "2s"
ramp_up = "200ms"
[resources]
memory = "1 GiB"
buffer_pool = "64 MiB"
"""


def arm(name: str, stack: str, data: str, log: str | None = None, more: str = "") -> str:
    logged = "" if log is None else f'log_device = "{log}"\n'
    return f'[[arm]]\nname = "{name}"\nstack = "{stack}"\n{more}data_device = "{data}"\n{logged}'


def measured(tmp_path: Path, arms: str, engine: str = "postgres") -> Result:
    result = measure_one_round(SPEC.format(engine=engine) + arms, tmp_path / "run")
    for each in result.arms:
        assert each.outcome is Outcome.OK, each.reason
        checks = [check for check in each.checks if check.name in ("commit_reaches_device", "storage", "consistent")]
        assert len(checks) >= 3 and all(check.passed is True for check in checks), checks
    return result


def asked_of_models(tmp_path: Path, arm_name: str) -> tuple[ModelCounts, DeviceCounts]:
    """Of its only model in its windows that count: by its own word, and by the host's kernel."""
    visits = [v for v in read_run(tmp_path / "run").records(Visit) if v.arm == arm_name and not v.first_execution]
    (used,) = (each for each in visits[0].devices if each.kernel is None)
    ((name, model),) = used.models.items()
    return model, used.devices[name]


def update_ms(result: Result, arm_name: str) -> float:
    """The median of a transaction that writes one row."""
    (windows,) = (each for each in result.windows if each.arm == arm_name)
    (kind,) = (each for each in windows.transactions if each.name == "update_location")
    assert kind.p50_ns is not None
    return kind.p50_ns / 1e6


def inside(result: Result, arm_name: str) -> dict[str | None, DeviceResult]:
    """Of a guest: what lies there -> the device that its kernel knows."""
    (windows,) = (each for each in result.windows if each.arm == arm_name)
    return {each.holds: each for each in windows.devices if each.where == "inside"}


def nothing_is_left() -> None:
    backing = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    assert not [path for path in backing if "dbtoll-disk" in path]
    assert "/devices" not in "".join(line for line in Path("/proc/mounts").read_text().splitlines() if "dbtoll" in line)


def test_a_commit_waits_for_the_device_of_the_log(tmp_path: Path) -> None:
    arms = arm("slow log", "native", "memory", "hdd7200") + arm("slow data", "native", "hdd7200", "memory")
    result = measured(tmp_path, arms)
    # Each commit of the only terminal waits for the disk to have turned once; in memory for nothing.
    assert update_ms(result, "slow log") > 0.9 * REVOLUTION_MS > 3 * update_ms(result, "slow data")
    model, counted = asked_of_models(tmp_path, "slow log")
    assert model.requests > 20 and counted.writes >= 20
    data_model, _ = asked_of_models(tmp_path, "slow data")
    assert data_model.requests < model.requests
    (probed,) = result.disk_models
    figures = {each.kind: each for each in probed.figures}
    assert figures["log_write_ms"].measured / figures["log_write_ms"].published > 0.9
    assert set(probed.arms) == {"slow log", "slow data"}
    nothing_is_left()


def test_tenants_in_containers_share_one_disk(tmp_path: Path) -> None:
    if not (
        Path("/var/run/docker.sock").exists() or Path("/usr/sbin/dockerd").exists() or Path("/usr/bin/dockerd").exists()
    ):
        pytest.skip("there is no Docker here")
    result = measured(tmp_path, arm("docker", "docker", "hdd7200", more='design = "isolated"\ntenants = 2\n'))
    visits = [v for v in read_run(tmp_path / "run").records(Visit) if not v.first_execution]
    assert all(len(visit.units) == 2 for visit in visits)
    model, _ = asked_of_models(tmp_path, "docker")
    assert model.requests > 20
    # Two logs on one disk with heads: it has to go from one to the other, so each waits for more than its own revolution.
    assert update_ms(result, "docker") > 0.9 * REVOLUTION_MS
    nothing_is_left()


@pytest.mark.parametrize("stack", ["uml", "qemu:tcg"])
def test_a_guest_has_its_log_on_a_second_disk(stack: str, tmp_path: Path) -> None:
    result = measured(tmp_path, arm("guest", stack, "memory", "hdd7200"))
    found = inside(result, "guest")
    assert found["log"].device != found["data"].device
    assert found["log"].written_bytes_per_s.estimate > 0
    model, _ = asked_of_models(tmp_path, "guest")
    assert model.requests > 10
    # An emulated guest takes its time between two commits: the disk may be anywhere then, half a revolution away on average.
    assert update_ms(result, "guest") > REVOLUTION_MS * (1 / 3 if stack.startswith("qemu") else 0.9)
    if stack.startswith("qemu"):  # User Mode Linux's writes are synchronous, and its disks take no flushes
        assert found["log"].flushes_per_s is not None and found["log"].flushes_per_s.estimate > 1
    nothing_is_left()


def test_mariadb_has_its_redo_log_apart_and_data_on_a_directory_of_the_users(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    measured(tmp_path, arm("maria", "native", str(mine), "hdd7200"), engine="mariadb")
    model, _ = asked_of_models(tmp_path, "maria")
    assert model.requests > 20
    assert list(mine.iterdir()) == []
    nothing_is_left()


def test_a_killed_run_leaves_no_device(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    file = tmp_path / "spec.toml"
    file.write_text(
        SPEC.format(engine="postgres").replace('"2s"', '"60s"') + arm("killed", "native", str(mine), "hdd7200")
    )
    words = [str(Path(sys.executable).parent / "dbtoll"), "run", str(file), "--runs-dir", str(tmp_path / "runs")]
    killed = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 600
        while not list(mine.glob("dbtoll-device-*/*/postmaster.pid")):
            assert killed.poll() is None and time.monotonic() < until, "no arm came up"
            time.sleep(0.2)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    cleaned = dbtoll("clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert list(mine.iterdir()) == []
    nothing_is_left()


def test_what_does_not_fit_is_said_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(SPEC.format(engine="postgres") + arm("nowhere", "native", str(tmp_path / "missing")))
    missing = dbtoll("run", str(file), "--runs-dir", str(tmp_path / "runs"))
    assert missing.returncode != 0 and f"no directory {tmp_path / 'missing'} to have data on" in missing.stderr
    small = '[devices]\nsmall = { class = "memory", size = "256 MiB" }\n'
    file.write_text(SPEC.format(engine="postgres") + small + arm("small", "native", "small"))
    too_small = dbtoll("run", str(file), "--runs-dir", str(tmp_path / "runs"))
    assert too_small.returncode != 0 and "the device small (memory) has 256 MiB" in too_small.stderr


def test_a_block_device_is_no_directory_and_what_to_do_is_said() -> None:
    device = next((path for path in ("/dev/loop0", "/dev/vda", "/dev/sda") if Path(path).is_block_device()), None)
    if device is None:
        pytest.skip("no block device here")
    with machines.local_machine() as machine, pytest.raises(Unavailable) as refused:
        arm_device.demand_directory(machine, device)
    assert f"{device} is a block device" in refused.value.message and f"mke2fs -t ext4 {device}" in refused.value.hint
