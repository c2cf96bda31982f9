"""A sweep on real servers: designs over tenants, the largest number within a limit, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dbtoll.store.folders import run_folders
from tests.support.program import dbtoll, is_root

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_root(), reason="native arms need root"),
]

SPEC = """
question = "How many tenants are served in time?"
[variables]
tenants = { kind = "integer", default = 1, help = "Tenants of each design." }
[workload]
name = "tatp"
subscribers = 1000
terminals = 1
window = "500ms"
ramp_up = "100ms"
[resources]
memory = "1 GiB"
[precision]
budget = "120s"
rounds_min = 5
rounds_max = 5
blocks_max = 1
copies = "baselines"
[[arm]]
name = "shared"
stack = "native"
design = "shared"
tenants = "$tenants"
[[arm]]
name = "dedicated"
stack = "native"
design = "dedicated"
tenants = "$tenants"
"""

COSTS = 'currency = "EUR"\nperiod = "month"\nhost = 40\nprocessor = 12\nserver = 5\n'


def test_the_largest_number_of_tenants_within_a_limit_and_what_it_costs(tmp_path: Path) -> None:
    spec, costs, runs = tmp_path / "many.toml", tmp_path / "costs.toml", tmp_path / "runs"
    spec.write_text(SPEC, encoding="utf-8")
    costs.write_text(COSTS, encoding="utf-8")
    words = ["sweep", str(spec), "--over", "tenants=1:3", "--limit", "p99=5s", "--costs", str(costs)]
    told = dbtoll(*words, "--runs-dir", str(runs), "--json", "-q", "-y")
    assert told.returncode == 0, told.stderr
    result = json.loads(told.stdout)
    assert result["designs"] == ["shared", "dedicated"] and [each["value"] for each in result["values"]] == [2, 3]
    assert len(run_folders(runs)) == 2, "by bisection"
    # Nothing takes five seconds here, so all that were asked for are served.
    assert {each["design"]: (each["holds"], each["breaks"]) for each in result["brackets"]} == {
        "shared": (3, None),
        "dedicated": (3, None),
    }
    assert {part["servers"] for part in result["parts"] if part["design"] == "dedicated" and part["value"] == 3} == {3}
    pools = {part["pool_bytes"] * part["servers"] for part in result["parts"] if part["value"] == 3}
    assert max(pools) - min(pools) < 4096, "equal in sum"
    prices = {each["design"]: (each["tenants"], each["cost_most"]) for each in result["tenant_prices"]}
    assert prices == {
        "shared": (3, pytest.approx((40 + 12 + 5) / 3)),
        "dedicated": (3, pytest.approx((40 + 12 + 15) / 3)),
    }
    (cheapest,) = result["cheapest_tenant"]
    assert set(cheapest["designs"]) == {"shared", "dedicated"}, (
        "of more tenants nothing is known, so neither is decided"
    )
    (page,) = runs.glob("*/sweep/*.html")
    text = page.read_text(encoding="utf-8")
    assert "Largest tenants with p99 below" in text and "EUR a month" in text
