"""The environment ``native`` on this host: limits that hold, roots, nesting, and what a killed run leaves."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from dbtoll.contracts.machines import CPU, groups_left, machine_spec, small_image
from dbtoll.environments.native import Environment as Native
from dbtoll.environments.simulated import Environment as Simulated
from dbtoll.errors import Unavailable
from dbtoll.machines import chroot
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups import removal
from dbtoll.machines.cgroups.hold import hold
from dbtoll.machines.cgroups.layout import find_layout
from dbtoll.machines.control_group import ControlGroupMachine
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, Provision
from dbtoll.runner.cleanup.journal import leftovers
from tests.support.killed import kill_a_run

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to change the root directory"),
]

BUSY = ["sh", "-c", "while :; do :; done"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_image(tmp_path_factory.mktemp("image") / "root")


def open_native(machine: AgentMachine, arm: str, image: Artifact | None, **asked: Any) -> ControlGroupMachine:
    return Native().open(machine, machine_spec(arm, image, **asked), NullJournal())


def cpus_used(machine: ControlGroupMachine, wall_s: float) -> float:
    """CPU time of an arm per time passed, from the kernel's own count."""
    before, begin = machine.cpu_ns(), time.monotonic_ns()
    time.sleep(wall_s)
    return (machine.cpu_ns() - before) / (time.monotonic_ns() - begin)


def test_a_quota_holds_back_by_what_it_says(local: AgentMachine, image: Artifact) -> None:
    with open_native(local, "quota", image, options={"cpu_quota": 0.25, "cpu_period": 20_000_000}) as held:
        held.spawn(BUSY)
        assert cpus_used(held, 1.0) == pytest.approx(0.25, abs=0.05)


def test_a_neighbours_weight_is_its_share_beside_another(local: AgentMachine, image: Artifact) -> None:
    with open_native(local, "other", image) as other, open_native(local, "neighbour", image) as neighbour:
        for machine in (other, neighbour):
            hold(local, machine, Resources(neighbour_weight=0.25), [], is_neighbour=machine is neighbour, rates=True)
            machine.spawn(BUSY)
        before = other.cpu_ns(), neighbour.cpu_ns()
        time.sleep(1.5)
        others, neighbours = other.cpu_ns() - before[0], neighbour.cpu_ns() - before[1]
        assert neighbours / others == pytest.approx(0.25, abs=0.1)


def test_memory_above_its_high_mark_is_taken_back(local: AgentMachine, image: Artifact) -> None:
    """Where control groups have that; version 1 has not."""
    memory = find_layout(local).having("memory")
    assert memory is not None
    high = 32 << 20
    with open_native(local, "a", image) as arm:
        asked = Resources(memory_high_bytes=high)
        if memory.version == 1:
            with pytest.raises(Unavailable, match=r"version 1 have no memory\.high"):
                hold(local, arm, asked, [], is_neighbour=False, rates=True)
            return
        hold(local, arm, asked, [], is_neighbour=False, rates=True)
        arm.run(
            ["dd", "if=/dev/zero", "of=/tmp/file", "bs=1M", "count=33", "status=none"]
        )  # memory that nobody can take back
        group = f"{memory.mount}/dbtoll/t{os.getpid()}/{arm.name}"
        events = dict(line.split() for line in local.get(f"{group}/memory.events").decode().splitlines())
        assert int(events["high"]) > 0


def test_what_lies_on_no_disk_has_no_rates(local: AgentMachine, image: Artifact) -> None:
    with (
        open_native(local, "a", image) as arm,
        pytest.raises(Unavailable, match=r"no disk whose requests could be held back|no control group controller"),
    ):
        hold(local, arm, Resources(write_rate=1 << 20), ["/dev/shm"], is_neighbour=False, rates=True)


def test_an_image_without_the_mount_point_is_refused(local: AgentMachine, image: Artifact, tmp_path: Path) -> None:
    data = Artifact("data", str(tmp_path))
    with pytest.raises(Unavailable, match="/nowhere"):
        open_native(local, "a", image, provisions=[Provision(data, "/nowhere")])
    assert groups_left() == []


def test_nothing_opens_on_a_machine_without_an_agent(local: AgentMachine, image: Artifact) -> None:
    with (
        Simulated().open(local, machine_spec("simulated", None), NullJournal()) as simulated,
        pytest.raises(Unavailable, match="agent"),
    ):
        Native().open(simulated, machine_spec("a", image), NullJournal())


def test_the_image_stays_as_it_is(local: AgentMachine, image: Artifact) -> None:
    with open_native(local, "a", image) as arm:
        assert arm.run(["touch", "/etc/made"], check=False).exit_code != 0
        arm.run(["touch", "/tmp/made", "/run/made", "/dbtoll/run/made", "/dev/shm/made"])
    for directory in ("etc", "tmp", "run", "dbtoll/run", "dev"):
        assert not list((Path(image.path) / directory).glob("**/made"))


def test_on_the_hosts_own_root(local: AgentMachine, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("host")
    data = Artifact("data", str(tmp_path))
    asked = {"options": {"root": "host"}, "provisions": [Provision(data, "/dbtoll/data", writable=True)]}
    with open_native(local, "host", None, **asked) as arm:
        assert arm.get("/dbtoll/data/mine") == arm.get(str(tmp_path / "mine")) == b"host"
        assert arm.run(["sh", "-c", "echo /bin /lib"]).exit_code == 0
        assert arm.provide(Artifact("other", str(tmp_path))) == str(tmp_path)
        assert Path(chroot.STAGES, arm.name).exists()
        assert not Path("/dbtoll").exists()
    assert not Path(chroot.STAGES, f"t{os.getpid()}-host").exists()
    assert (tmp_path / "mine").read_text() == "host"
    assert groups_left() == []


def test_what_left_its_parent_ends_with_the_arm(local: AgentMachine, image: Artifact) -> None:
    with open_native(local, "a", image) as arm:
        arm.run(["sh", "-c", "(sleep 1000 >/dev/null 2>&1 </dev/null & echo $! >/tmp/pid)"])
        pid = int(arm.get("/tmp/pid"))
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_the_outer_arms_sleep_and_limits_hold_for_the_inner(local: AgentMachine, image: Artifact) -> None:
    roomy = Resources(memory_bytes=1 << 30)
    tight = Resources(memory_bytes=128 << 20)
    cpus = tuple(os.sched_getaffinity(0))
    with (
        open_native(local, "outer", None, cpuset=cpus, resources=tight) as outer,
        open_native(outer, "inner", image, resources=roomy) as inner,
    ):
        assert find_layout(outer).base == f"/dbtoll/t{os.getpid()}/{outer.name}"
        assert inner.run(["nproc"]).output == b"1\n"
        inner.spawn(BUSY)
        outer.freeze()
        before = outer.cpu_ns()
        time.sleep(0.05)
        assert outer.cpu_ns() == before
        outer.thaw()
        assert inner.run(["sh", "-c", "head -c 300M /dev/zero | tail"], check=False).exit_code != 0
    assert groups_left() == []


def test_what_a_killed_run_left_can_be_removed(image: Artifact, tmp_path: Path, local: AgentMachine) -> None:
    removers = {"cgroup": removal.remove, "stage": chroot.remove}
    for options in ({}, {"root": "host"}):
        folder = tmp_path / f"run-{len(options)}"
        kill_a_run(folder, "native", image, options)
        left = leftovers(folder)
        assert {line["kind"] for line in left} >= {"cgroup"}
        paths = [Path(path) for line in left for path in line.get("paths", [line.get("path")])]
        assert all(path.exists() for path in paths)
        assert any(path.joinpath("cgroup.procs").read_text() for path in paths if "cgroup" in str(path))
        for line in left:
            removers[line["kind"]](local, line)
            removers[line["kind"]](local, line)  # what is gone already is no error
        assert not any(path.exists() for path in paths)


def test_it_may_run_beside_a_controller_on_other_processors(local: AgentMachine, image: Artifact) -> None:
    """An agent that is kept off the arm's processors still gives the arm all of them."""
    del local
    from dbtoll.machines.agent.local import open_local

    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two processors")
    with open_local(cpus=cpus[1:]) as host, open_native(host, "a", image, cpuset=cpus[:1]) as arm:
        assert arm.facts()["cpus_allowed"] == str(cpus[0])
        arm.spawn(BUSY)
        assert cpus_used(arm, 0.5) > 0.3
    assert CPU in cpus
