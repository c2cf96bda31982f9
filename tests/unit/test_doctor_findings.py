"""What `doctor` makes of findings: the one command, the words, the noise's figures."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

from dbtoll.analysis.effects import stats
from dbtoll.doctor import fixes, host, noise, summary
from dbtoll.doctor.deadline import Probed
from dbtoll.machines.mounts import mount_in
from dbtoll.model.machine import MissingRequirement


def lack(hint: str) -> MissingRequirement:
    return MissingRequirement("something", "it is needed", hint)


# --- one command ---


def test_packages_of_all_mends_go_into_one_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    command, advice = fixes.together(
        lack(hint)
        for hint in (
            "apt-get install -y docker.io",
            "apt-get install -y --no-install-recommends qemu-system-x86",
            "apt-get install mmdebstrap debian-archive-keyring",
            "apt-get install -y docker.io",
            "apt-get install -y runsc, or set runtime_path",
        )
    )
    packages = "docker.io qemu-system-x86 mmdebstrap debian-archive-keyring runsc"
    assert command == f"apt-get install -y --no-install-recommends {packages}"
    assert advice == []


def test_other_commands_follow_and_sentences_stay_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    command, advice = fixes.together(
        [
            lack("boot with psi=1"),
            lack("mount -t cgroup2 none /sys/fs/cgroup"),
            lack("apt-get install -y docker.io"),
            lack("boot with psi=1"),
            lack(""),
        ]
    )
    assert command == "apt-get install -y --no-install-recommends docker.io && mount -t cgroup2 none /sys/fs/cgroup"
    assert advice == ["boot with psi=1"]


def test_without_root_the_command_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    one, _ = fixes.together([lack("apt-get install -y docker.io")])
    assert one == "sudo apt-get install -y --no-install-recommends docker.io"
    two, _ = fixes.together([lack("apt-get install -y docker.io"), lack("mount -t cgroup2 none /sys/fs/cgroup")])
    assert two is not None
    assert two.startswith("sudo sh -c '")
    assert two.endswith("/sys/fs/cgroup'")


def test_nothing_missing_is_no_command() -> None:
    assert fixes.together([]) == (None, [])


# --- the machine ---


def test_a_guest_is_told_what_native_and_cold_mean_on_it() -> None:
    inside, outside = host.meaning({"is_guest": True}), host.meaning({"is_guest": False})
    assert "native to this guest" in inside["native"]
    assert "cold to this host only" in inside["cold"]
    assert "no guest" in outside["native"]
    assert inside["cold"] != outside["cold"]


MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 254:16 / /var rw shared:1 - xfs /dev/vdb rw
29 27 0:30 / /var/li rw - tmpfs tmpfs rw
30 28 254:32 / /var/lib/my\040data rw - ext4 /dev/vdc rw
31 28 254:48 / /var/lib/my\040data rw - btrfs /dev/vdd rw"""


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/", "254:0"),
        ("/home/me", "254:0"),
        ("/var", "254:16"),
        ("/var/lib/dbtoll", "254:16"),
        ("/var/lib/my data/dbtoll", "254:48"),
    ],
)
def test_a_path_lies_on_the_innermost_and_youngest_mount_around_it(path: str, number: str) -> None:
    mount = mount_in(MOUNTS, path)
    assert mount is not None
    assert mount.device == number


# --- noise ---


def planted(effects: list[float]) -> tuple[np.ndarray[Any, np.dtype[np.float64]], list[list[int]]]:
    """Times of rounds of three blocks in which the copy takes exp(effect) as long, and quiet executions."""
    ns = np.full((len(effects), 3, 1, 2), 1e8)
    ns[:, :, 0, 1] *= np.exp(effects)[:, np.newaxis]
    return ns, [[100, 100, 100, 100]]


def test_the_half_width_is_that_of_an_interval_over_five_rounds() -> None:
    ns, quiet = planted([0.01, -0.01, 0.01, -0.01, 0.01, -0.01, 0.01, -0.01])
    found = noise.figures(ns, quiet)
    sd = 0.01 * math.sqrt(8 / 7)
    assert found["half_width"] == pytest.approx(
        math.expm1(2.776445 * sd / math.sqrt(5) * stats.usually_lengthened(5)), rel=1e-6
    )
    assert found["effects"] == pytest.approx([0.01, -0.01] * 4)
    assert found["rounds_needed"] > 5


def test_the_largest_disturbance_is_of_one_execution_against_its_own_start() -> None:
    ns, _ = planted([0.0, 0.001])
    found = noise.figures(ns, [[100, 100, 100, 138], [300, 300, 310, 300]])
    assert found["largest"] == pytest.approx(0.38)
    assert found["executions"] == 8


def test_the_sentence_says_what_a_noisy_machine_costs_and_what_a_quiet_one_shows() -> None:
    told = {"half_width": 0.021, "rounds_needed": 22, "largest": 0.38, "executions": 192, "steal": 0.03}
    noisy = noise.sentence(told)
    assert "±2.1%" in noisy
    assert "differences below about 2.1% need more than 2 minutes" in noisy
    assert "of 1% about 9" in noisy
    assert "38% longer" in noisy
    assert "3.0% of the processors' time was taken away" in noisy
    quiet = noise.sentence({**told, "half_width": 0.004, "steal": 0.0})
    assert "a difference of 1% shows within about 2 minutes" in quiet
    assert "taken away" not in quiet


# --- words ---


def findings(**changed: Any) -> dict[str, Any]:
    described = {"system": "Debian", "kernel": "6.1", "cpus": 2, "cpu_model": "CPU", "memory_bytes": 8 << 30}
    missing = Probed("lacks", (MissingRequirement("a daemon", "there is none", "apt-get install -y docker.io"),))
    return {
        "host": {**described, "meaning": host.meaning({"is_guest": True})},
        "environments": {"native": Probed("ready", note="here").as_json(), "docker": missing.as_json()},
        "engines": {"noop": Probed("ready").as_json()},
        "machine": {"disk": Probed("hangs", (MissingRequirement("an answer", "no result within 3 s", ""),)).as_json()},
        "hint": "apt-get install -y docker.io",
        "measurable": ["native"],
        "can_measure": True,
        "root_adds": [],
        **changed,
    }


def test_the_text_names_states_reasons_mends_and_the_one_command() -> None:
    text = summary.text(findings())
    assert "Debian, kernel 6.1, 2 x CPU, 8.0 GiB" in text
    assert "native to this guest" in text.replace("\n                  ", " ")
    assert f"{'native':<16}ready: here" in text
    assert "a daemon: there is none; hint: apt-get install -y docker.io" in text
    assert "hangs" in text
    assert text.rstrip().endswith("apt-get install -y docker.io")
    assert all(len(line) <= summary.WIDTH for line in text.splitlines())


def test_the_text_says_when_nothing_can_be_measured_and_what_root_may_add() -> None:
    text = summary.text(findings(can_measure=False, measurable=[], hint=None, root_adds=["native", "docker"]))
    assert "nothing can be measured" in text
    assert "root may add native, docker" in text
    assert "root" not in summary.text(findings())
    assert "can be measured as things are: native" in summary.text(findings())


def test_the_text_says_that_the_agent_comes_first() -> None:
    lack = MissingRequirement("the agent", "it has not been built", "./dbtoll setup")
    machine = {"agent": Probed("lacks", (lack,)).as_json()}
    text = summary.text(findings(can_measure=False, measurable=[], hint=None, machine=machine))
    assert text.endswith("before the agent is there: ./dbtoll setup")
