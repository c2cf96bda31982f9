"""Terminals inside and outside of each kind of machine, against real servers; and the networks that this takes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest

from dbtoll import spec
from dbtoll.contracts.machines import machine_spec
from dbtoll.errors import Unavailable
from dbtoll.machines import network_interfaces
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.runner.checks import paths
from dbtoll.runner.cleanup.journal import Journal, leftovers
from dbtoll.runner.preparation import requirements
from dbtoll.selfbench.support.inventory import Marks, carried
from dbtoll.store import schema
from dbtoll.store.reader import read_run
from tests.support.one_round import measure_one_round
from tests.support.program import is_root

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_root(), reason="native and Docker arms need root"),
]

SPEC = """
parameter_sets = 1
baseline = "native"
[engine]
name = "{engine}"
[workload]
name = "tatp"
subscribers = 1000
terminals = 2
window = "300ms"
ramp_up = "100ms"
[factors]
placement = {placements}
[resources]
memory = "1 GiB"
shm = "64 MiB"
[[arm]]
name = "native"
stack = "native"
"""

PEERS = {
    "native": "127.0.0.1",
    "docker:network=host": "127.0.0.1",
    "docker:network=bridge": "172.",
    "uml": "198.1",
    "qemu:tcg": "10.0.2.2",
}
"""Stack -> how the address begins from which the server sees terminals outside come."""


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def one_round(folder: Path, text: str) -> list[schema.Record]:
    """What a round of one block brings; nothing is left of it."""
    measure_one_round(text, folder)
    assert carried(Marks(folder)) == {}  # its bridges and taps too
    assert leftovers(folder) == []
    (attempt,) = read_run(folder).attempts
    return list(attempt.records)


def with_arms(stacks: Iterable[str]) -> str:
    """The specification with these beside the native one."""
    others = "".join(f'[[arm]]\nname = "{stack}"\nstack = "{stack}"\n' for stack in stacks if stack != "native")
    return SPEC.format(engine="postgres", placements='["inside", "outside"]') + others


@pytest.fixture(scope="module")
def missing_requirements() -> dict[str, str]:
    """Stack -> what this machine lacks for it, with the network that it takes."""
    with open_local() as host:
        found = requirements.missing_requirements(host, spec.parse(with_arms(PEERS), "test").arms)
    return {stack: f"{each[0].what}: {each[0].why}" for stack, each in found.items()}


@pytest.fixture(scope="module")
def records(missing_requirements: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[schema.Record]:
    """Of one round with everything that can be measured here, on PostgreSQL."""
    if "native" in missing_requirements:
        pytest.skip(missing_requirements["native"])
    folder = tmp_path_factory.mktemp("runs") / f"placement-{os.getpid()}"
    return one_round(folder, with_arms(PEERS.keys() - missing_requirements.keys()))


def assert_driven(
    records: list[schema.Record], arm: str, peer: str, placements: tuple[str, ...] = ("inside", "outside")
) -> None:
    """Windows of each kind with transactions in them, and data that hold; the server saw the terminals come from there."""
    of_arm = [record for record in records if getattr(record, "arm", None) == arm]
    (start,) = [record for record in of_arm if isinstance(record, schema.Start)]
    assert start.outcome == "ok", start.reason
    found = start.facts["paths"]
    assert tuple(found) == placements
    assert found["outside"]["peer"].startswith(peer)
    assert all(path["round_trip_ns"] > 0 for path in found.values())
    if "inside" in found:
        assert found["inside"]["peer"] is None
        assert found["inside"]["address"].startswith("/")
    checks = {record.check: record for record in of_arm if isinstance(record, schema.CheckRecord)}
    assert checks[paths.NAME].passed is True
    assert checks["consistent"].passed is True, checks["consistent"].finding
    windows = [record for record in of_arm if isinstance(record, schema.Visit) and not record.first_execution]
    assert tuple(visit.levels["placement"] for visit in windows) == placements
    for visit in windows:
        assert visit.units[0].problem is None
        assert visit.units[0].window is not None
        kinds = visit.units[0].window["transactions"].values()
        assert sum(kind["committed"] for kind in kinds) > 0
        assert sum(kind["lost"] for kind in kinds) == 0


@pytest.mark.parametrize("stack", PEERS)
def test_terminals_inside_and_outside(
    stack: str, missing_requirements: dict[str, str], records: list[schema.Record]
) -> None:
    if stack in missing_requirements:
        pytest.skip(missing_requirements[stack])
    assert_driven(records, stack, PEERS[stack])


def test_mariadb_is_reached_from_outside(missing_requirements: dict[str, str], tmp_path: Path) -> None:
    if "native" in missing_requirements:
        pytest.skip(missing_requirements["native"])
    text = SPEC.format(engine="mariadb", placements='["outside"]')
    records = one_round(tmp_path / f"placement-{os.getpid()}", text)
    assert_driven(records, "native", "127.0.0.1", ("outside",))


# --- the networks of guests ----------------------------------------------------------------------------------------------------


def test_taps_are_networks_of_their_own_and_go(local: AgentMachine, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        try:
            with ExitStack() as on_close:
                made = [network_interfaces.tap(local, machine_spec(arm, None), journal, on_close) for arm in ("a", "b")]
                names = {tap.interface for tap in made}
                assert {line["interface"] for line in leftovers(tmp_path)} == names
                assert names <= interfaces()
                assert not made[0].guest.network.overlaps(made[1].guest.network)
        except Unavailable as lack:
            pytest.skip(lack.message)
    assert not names & interfaces()
    assert leftovers(tmp_path) == []


def test_an_outside_session_that_comes_by_no_network_is_found() -> None:
    found = {
        "inside": {"address": "/socket", "peer": None, "round_trip_ns": 15_000},
        "outside": {"address": "127.0.0.1:2345", "peer": "127.0.0.1", "round_trip_ns": 50_000},
    }
    assert paths.check(0, "a", [found]).passed is True
    check = paths.check(0, "a", [found, {**found, "outside": {**found["outside"], "peer": None}}])
    assert check.passed is False and check.voids
