"""`doctor` on this machine: probes that are real, that have deadlines and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dbtoll import facts, registry
from dbtoll.commands import inspect
from dbtoll.contracts.machines import in_own_mounts
from dbtoll.doctor import availability, fixes, host, noise, without_agent
from dbtoll.doctor.deadline import Probed, with_deadline
from dbtoll.errors import ProgramFailed, Unavailable
from dbtoll.machines import mounts, network_interfaces
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.chroot import STAGES
from dbtoll.machines.null_journal import NullJournal
from dbtoll.model.experiment import Arm
from dbtoll.runner.arms import HostContext, open_stack
from dbtoll.runner.preparation import requirements
from dbtoll.spec.stack import parse_stack
from tests.support.program import dbtoll, is_root

needs_root = pytest.mark.skipif(not is_root(), reason="native arms need root")

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Of a probe whose agent has ended: what it makes carries that agent's number. Tests beside this one kill runs in the middle
    of their trials, and clean up after them: what was there before is theirs, and so is what goes away by itself."""
    before = left_by_the_dead()
    yield
    deadline = time.monotonic() + 60
    while (left := left_by_the_dead() - before) and time.monotonic() < deadline:
        time.sleep(1)
    assert left == set()


def left_by_the_dead() -> set[Path]:
    found = [path for place in ("/sys/fs/cgroup", STAGES) for path in Path(place).glob("**/*doctor-[0-9]*")]
    return {path for path in found if not Path("/proc", re.findall(r"doctor-(\d+)", str(path))[-1]).exists()}


# --- deadlines ---


def test_a_probe_that_hangs_is_reported_and_what_it_started_is_ended() -> None:
    pids: list[int] = []

    def hang(machine: AgentMachine) -> Probed:
        process = machine.spawn(["sleep", "1000"])
        pids.append(process.pid)
        process.wait(1000)
        return Probed("ready")

    found = with_deadline(hang, 0.5)
    assert found.state == "hangs"
    assert "no result within" in found.missing_requirements[0].why
    until = time.monotonic() + 10
    while Path(f"/proc/{pids[0]}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{pids[0]}").exists()


@needs_root
def test_a_probe_that_hangs_in_an_arm_leaves_neither_groups_nor_roots() -> None:
    marks: list[str] = []

    def hang(machine: AgentMachine) -> Probed:
        marks.append(f"doctor-{machine.hello()['pid']}")
        context = HostContext(machine, None, noise.processors()[1], NullJournal(), marks[0])
        with ExitStack() as stack:
            arm = open_stack(context, noise.EXPERIMENT.arms[0], None, stack)
            marks.append("opened")
            arm.run(["sleep", "1000"], timeout_s=1000)
        return Probed("ready")

    assert with_deadline(hang, 3.0).state == "hangs"
    assert marks[1:] == ["opened"]  # the fixture looks for what is left


def test_a_probe_that_fails_lacks_what_its_error_says(local: AgentMachine) -> None:
    def fail(machine: AgentMachine) -> Probed:
        raise Unavailable("there is no such thing", "apt-get install -y thing")

    def run(machine: AgentMachine) -> Probed:
        machine.run(["false"])
        return Probed("ready")

    found = with_deadline(fail, 30)
    assert (found.state, found.missing_requirements[0].why) == ("lacks", "there is no such thing")
    assert fixes.together(found.missing_requirements)[0]
    assert "exit code 1" in with_deadline(run, 30).missing_requirements[0].why
    with pytest.raises(ProgramFailed):
        local.run(["false"])


def test_a_probe_with_a_defect_keeps_no_other_from_its_say() -> None:
    found = with_deadline(lambda machine: Probed("ready", note={}["none"]), 30)
    assert found.state == "lacks"
    assert "KeyError: 'none'" in found.missing_requirements[0].why
    assert "report" in found.missing_requirements[0].hint
    assert "test_doctor.py" in found.told["traceback"]


def test_in_a_chroot_the_disk_is_told_by_its_device(local: AgentMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the mount that holds everything is not to be seen."""
    seen = host.disk(local).told
    monkeypatch.setattr(mounts, "mount_in", lambda mountinfo, path: None)
    found = host.disk(local)
    assert found.state == "ready"
    assert found.told.keys() == seen.keys()
    assert re.fullmatch(r"\d+:\d+", found.told["number"])


# --- the whole ---


def test_without_an_agent_it_still_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> Path:
        raise Unavailable("the agent has not been built", "./dbtoll setup")

    with open_local() as machine:
        described = facts.host(machine)
        layout = host.control_groups(machine).told["layout"]
    monkeypatch.setattr("dbtoll.machines.agent.local.find_agent", none)
    monkeypatch.setattr(without_agent, "PATH", "/nowhere")
    monkeypatch.setattr("dbtoll.environments.docker.SOCKETS", ())
    assert inspect.doctor(as_json=True, with_noise=True, quiet=True) == Unavailable.exit_code
    found = json.loads(capsys.readouterr().out)
    assert found["host"] == {**described, "meaning": host.meaning(described)}
    assert not found["can_measure"]
    assert "./dbtoll setup" in found["advice"]
    assert found["machine"]["agent"]["lacks"][0]["why"] == "the agent has not been built"
    # Programs are looked for, none is started: here there are none.
    assert [lack["what"] for lack in found["environments"]["uml"]["lacks"]] == ["linux.uml"]
    assert "user-mode-linux" in found["hint"]
    assert "docker.io" in found["hint"]
    assert found["environments"]["native"]["state"] == "not probed"
    assert {each["state"] for each in found["engines"].values()} == {"not probed"}
    monkeypatch.undo()
    monkeypatch.setattr("dbtoll.machines.agent.local.find_agent", none)
    assert inspect.doctor(as_json=True, with_noise=True, quiet=True) == Unavailable.exit_code
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["control_groups"]["told"]["layout"] == layout
    assert found["machine"]["disk"]["told"]["free_bytes"] > 0
    assert found["machine"]["pressure"]["state"] in {"ready", "lacks"}
    assert inspect.doctor(as_json=False, with_noise=False, quiet=True) == Unavailable.exit_code
    assert "the agent has not been built; hint: ./dbtoll setup" in capsys.readouterr().out


def test_it_says_of_everything_what_it_lacks_and_how_to_mend_it() -> None:
    done = dbtoll("doctor", "--quick", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["can_measure"] else Unavailable.exit_code), done.stderr
    assert list(found["environments"]) == registry.names("environments")
    assert list(found["engines"]) == registry.names("engines")
    assert list(found["machine"]) == ["agent", *host.PROBES, "images", "cache"]
    assert found["noise"] is None
    assert found["host"]["meaning"].keys() == {"native", "cold"}
    states = {"ready", "lacks", "hangs", "not probed"}
    for family in ("environments", "engines", "machine"):
        for name, each in found[family].items():
            assert each["state"] in states, name
            assert bool(each["lacks"]) == (each["state"] in {"lacks", "hangs"}), name
            assert all(lack["what"] and lack["why"] and lack["hint"] for lack in each["lacks"]), name
    assert found["environments"]["simulated"]["state"] == "ready"
    assert found["machine"]["control_groups"]["told"]["layout"] in {"v1", "v2", "hybrid"}
    assert found["machine"]["disk"]["told"]["number"]


@needs_root
def test_a_copy_and_its_twin_show_the_noise_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "ROUNDS", 3)
    monkeypatch.setattr(noise, "BLOCKS", 2)
    found = with_deadline(noise.probe, 100, cpus=noise.processors()[0])
    assert found.state == "ready", found.missing_requirements
    told = found.told
    assert told["executions"] == 3 * 2 * 2 * noise.EXECUTIONS
    assert told["half_width"] > 0
    assert told["largest"] >= 0
    assert len(told["effects"]) == 3
    assert told["frozen"]
    assert 0 <= told["steal"] <= 1
    assert found.note == noise.sentence(told)


@needs_root
def test_a_runtime_that_is_not_here_is_mended_by_the_command(local: AgentMachine) -> None:
    if local.run(["sh", "-c", "command -v dockerd"], check=False).exit_code:
        pytest.skip("no dockerd here: apt-get install docker.io")
    arm = Arm("sandbox", parse_stack("docker:no-such-runtime,data_root=/tmp/dbtoll-test-docker"))
    missing_requirements = requirements.missing_requirements(local, [arm])["sandbox"]
    local.run(["rm", "-rf", "/tmp/dbtoll-test-docker"])
    assert fixes.together(missing_requirements)[0] == "apt-get install -y --no-install-recommends no-such-runtime"


def test_guests_whose_monitor_is_not_here_are_mended_by_the_command(local: AgentMachine) -> None:
    """By its own name none is found; no kernel is fetched for it."""
    missing_requirements = availability.missing(local, "qemu", {"path": "no-such-monitor", "accel": "tcg"})
    assert [lack.what for lack in missing_requirements] == ["a guest of QEMU that boots"]
    assert "qemu-system-x86" in (fixes.together(missing_requirements)[0] or "")


@needs_root
def test_without_the_program_ip_networks_are_mended_by_the_command(
    local: AgentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what a killed run left is then kept, with a sentence, until it can be removed."""
    assert host.networks(local).state == "ready"
    left = "dbtoll0000d0c7"
    if local.run(["ip", "tuntap", "add", "dev", left, "mode", "tap"], check=False).exit_code:
        pytest.skip("no tap device can be made here")
    try:
        with monkeypatch.context() as without:
            without.setattr(network_interfaces, "find_program", lambda machine, name: None)
            found = host.networks(local)
            assert "iproute2" in (fixes.together(found.missing_requirements)[0] or "")
            with pytest.raises(Unavailable, match="has no program ip") as caught:
                network_interfaces.remove(local, {"interface": left})
            assert "iproute2" in caught.value.hint
            assert Path("/sys/class/net", left).exists()
    finally:
        network_interfaces.remove(local, {"interface": left})
    assert not Path("/sys/class/net", left).exists()


@needs_root
def test_without_root_it_says_what_root_adds_and_still_shows_the_noise() -> None:
    with tempfile.TemporaryDirectory(prefix="dbtoll-nobody-") as folder:
        os.chown(folder, 65534, 65534)
        # Somebody else, who may only read this Python wherever it lies.
        read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *read]
        # In a chroot the kernel makes no user namespace.
        chrooted = in_own_mounts("sh", "-c", 'mount --rbind / /mnt && exec chroot /mnt "$@"', "sh")
        program = str(Path(sys.executable).parent / "dbtoll")
        environ = {"PATH": os.environ["PATH"], "HOME": folder, "DBTOLL_CACHE": f"{folder}/cache", "TMPDIR": folder}
        done = subprocess.run(
            [*chrooted, *nobody, program, "doctor", "--json"], env=environ, cwd=folder, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
    found = json.loads(done.stdout)
    native = found["environments"]["native"]
    assert native["lacks"][0]["what"] == "a user namespace"
    assert "unshare: Operation not permitted" in native["lacks"][0]["why"]
    assert "outside a chroot" in native["lacks"][0]["hint"]
    assert {"native", "docker"} <= set(found["root_adds"])
    assert not found["can_measure"]
    assert done.returncode == Unavailable.exit_code, done.stderr
    assert found["machine"]["noise"]["state"] == "ready", found["machine"]["noise"]
    assert not found["noise"]["frozen"]
