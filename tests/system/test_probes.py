"""Micro-probes for real: the agent's own names, and an arm's costs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dbtoll.machines.agent.binary import find_agent
from dbtoll.workloads.probes import PROBES
from tests.support.program import dbtoll, is_root


def test_every_probe_of_the_agent_has_its_bounds() -> None:
    refused = subprocess.run(
        [find_agent(), "probe", '{"probe": "?"}'], capture_output=True, text=True, check=False
    ).stderr
    names = refused.partition("there are ")[2].strip().split(", ")
    assert set(names) - {"nothing"} == set(PROBES)


@pytest.mark.skipif(not is_root(), reason="native arms need root")
def test_probes_of_a_native_arm_are_believed_and_equal_to_its_copys(tmp_path: Path) -> None:
    chosen = ["system_call", "fault_shared_cold", "fsync", "read_random_direct", "arithmetic", "chase_4k_pages"]
    done = dbtoll(
        "probe", "native", "--probes", "+".join(chosen), "--budget", "25s", "--target", "5%", "--memory", "512 MiB",
        "--yes", "--runs-dir", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["main_metric"] == "event_time"
    arm = result["arms"][0]
    (believed,) = (check for check in arm["checks"] if check["name"] == "plausible_costs")
    assert believed["passed"] is True, believed["finding"]
    costs = {t["query"]: t["median_ns"] for t in result["times"] if t["arm"] == "native"}
    assert set(costs) == set(chosen)
    assert costs["arithmetic"] / 1000 < costs["system_call"] < costs["fsync"]
    assert {c["estimand"] for c in result["comparisons"]} >= {f"query:{name}" for name in chosen}
