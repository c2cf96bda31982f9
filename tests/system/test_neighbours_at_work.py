"""Neighbours on real servers: each does what it is asked for, in every design, and leaves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dbtoll.model.experiment import Outcome
from dbtoll.model.neighbours import AGGRESSORS
from dbtoll.runner.cleanup.journal import leftovers
from dbtoll.selfbench.support.inventory import Marks, carried
from dbtoll.store.reader import read_run
from dbtoll.store.schema import CheckRecord, Start, Visit
from tests.support.one_round import measure_one_round
from tests.support.program import is_root

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_root(), reason="native arms need root"),
]

SPEC = """
question = "What do tenants feel of a neighbour?"
[engine]
name = "{engine}"
[workload]
name = "tpcc"
warehouses = 1
terminals = 2
window = "1s"
ramp_up = "200ms"
{workload}
[factors]
neighbour = [{levels}]
[resources]
cpus = 2
memory = "{memory}"
"""

ARM = """
[[arm]]
name = "{design}"
stack = "{stack}"
design = "{design}"
tenants = 3
{more}
"""

DESIGNS: Mapping[str, str] = {"shared": "native", "dedicated": "native", "isolated": "docker"}


def specification(
    designs: Mapping[str, str],
    *levels: str,
    workload: str = "",
    engine: str = "postgres",
    memory: str = "2 GiB",
    arm: str = "",
) -> str:
    told = ", ".join(f'"{level}"' for level in levels)
    text = SPEC.format(levels=told, workload=workload, engine=engine, memory=memory)
    return text + "".join(ARM.format(design=design, stack=stack, more=arm) for design, stack in designs.items())


def _of_devices(visit: Visit, count: str) -> int:
    """Of those that the arm lies on, by the host's word, in the visit."""
    return sum(
        getattr(counts, count) or 0 for used in visit.devices if used.kernel is None for counts in used.devices.values()
    )


def test_every_aggressor_acts_in_every_design(run_folder: Path) -> None:
    result = measure_one_round(specification(DESIGNS, *AGGRESSORS), run_folder)
    for arm in result.arms:
        assert arm.outcome is Outcome.OK, arm.reason
        checks = {check.name: check for check in arm.checks}
        assert checks["neighbour_acted"].passed is True, checks["neighbour_acted"].finding
        assert checks["consistent"].passed is True
    steady = [visit for visit in read_run(run_folder).records(Visit) if not visit.first_execution]
    visits = {(visit.arm, visit.levels["neighbour"]): visit for visit in steady}
    assert len(visits) == len(DESIGNS) * (1 + len(AGGRESSORS))
    for (design, level), visit in visits.items():
        assert len(visit.units) == 2
        assert all(unit.window is not None and unit.problem is None for unit in visit.units)
        if level == "none":
            assert visit.neighbour is None
            continue
        did: Any = visit.neighbour
        assert did.problem is None and min(did.did[name] for name in list(did.did)[:1]) > 0, (design, level)
        assert did.elapsed_ns >= 1_200_000_000 and did.unit is None
        assert did.cpu_ns > 0.2 * did.elapsed_ns if level in ("processor", "memory_bandwidth", "cache") else True
        if level == "fsync":
            # Each of them is a request to the host's device, which other tests use too: what reaches a device of the arm's own is
            # compared below, and not with another time here. It syncs for longer than the visit counts.
            assert did.did["bytes_written"] == 8192 * did.did["fsyncs"]
            assert _of_devices(visit, "writes") > 0.3 * did.did["fsyncs"]
        if level == "connections":
            assert did.did["refused"] == 0 and did.did["connections"] > 20
            assert (did.cpu is None) is (design == "shared")
            assert did.cpu is None or did.cpu["user_ns"] + did.cpu["system_ns"] > 0, "its server works for it alone"
        if level == "page_cache":
            assert did.did["bytes_read"] > 256 << 20
    assert {(cell.arm, cell.level) for cell in result.interference} == {key for key in visits if key[1] != "none"}
    assert not list(Path("/").glob("proc/[0-9]*/fd/*dbtoll-neighbour*"))


def test_neighbours_of_the_device_reach_it(run_folder: Path) -> None:
    """The others' load is the same beside each. Their pools hold next to nothing, and the arm's memory holds all: what they read
    comes from the device only where it was evicted."""
    text = specification(
        {"dedicated": "native"},
        "page_cache",
        "fsync",
        workload="rate = 20",
        memory='1 GiB"\nbuffer_pool = "24 MiB',
        arm='data_device = "hssd"',  # what is read and written there is the arm's, and nothing of another test's
    )
    result = measure_one_round(text.replace('window = "1s"', 'window = "6s"'), run_folder)
    assert result.arms[0].outcome is Outcome.OK, result.arms[0].reason
    steady = [visit for visit in read_run(run_folder).records(Visit) if not visit.first_execution]
    visits = {visit.levels["neighbour"]: visit for visit in steady}
    read = {level: _of_devices(visit, "read_bytes") for level, visit in visits.items()}
    assert read["page_cache"] > 3 * max(read["none"], read["fsync"]) + (4 << 20), read
    written = {level: _of_devices(visit, "written_bytes") for level, visit in visits.items()}
    reader, syncer = visits["page_cache"].neighbour, visits["fsync"].neighbour
    assert reader is not None and reader.elapsed_ns is not None and syncer is not None
    assert reader.did["bytes_read"] < 2 * (512 << 20) * reader.elapsed_ns / 1e9 + (4 << 20), "it has a pace"
    assert written["fsync"] - written["none"] > 0.8 * syncer.did["bytes_written"], (
        "each of them is a page that the device has"
    )


def test_a_load_that_steps_up_is_felt_from_the_schedule_on(run_folder: Path) -> None:
    """Open loop: what is not served in time is in the response times of the others, and so is what waits at the end."""
    text = specification({"shared": "native"}, "load_x4", workload="rate = 20")
    result = measure_one_round(text, run_folder, blocks=2)
    (arm,) = result.arms
    assert arm.outcome is Outcome.OK, arm.reason
    arrived = {"load_x1": 0, "load_x4": 0}
    for visit in read_run(run_folder).records(Visit):
        for unit in visit.units:
            assert unit.window is not None
            kinds = unit.window["transactions"].values()
            timed = sum(count for kind in kinds for _, count in kind["response_ns"]["buckets"])
            assert timed >= unit.window["backlog_at_end"]
        assert visit.neighbour is not None and visit.neighbour.unit is not None and visit.neighbour.unit.window
        kinds = visit.neighbour.unit.window["transactions"].values()
        arrived[visit.levels["neighbour"]] += sum(
            count for kind in kinds for _, count in kind["response_ns"]["buckets"]
        )
    # 3 windows of 1 s at 20 in a second; the spread of a Poisson count is its root.
    assert 30 < arrived["load_x1"] < 100 and 2.5 < arrived["load_x4"] / arrived["load_x1"] < 6


def test_mariadb_writes_its_tables_anew(run_folder: Path) -> None:
    text = specification({"dedicated": "native"}, "connections", "vacuum", engine="mariadb", memory="2 GiB")
    result = measure_one_round(text, run_folder)
    assert result.arms[0].outcome is Outcome.OK, result.arms[0].reason
    did = {each.level: each.did_per_s for each in result.neighbours}
    assert did["vacuum"]["statements"].estimate > 0 and did["connections"]["connections"].estimate > 20
    assert did["connections"]["refused"].estimate == 0


def test_a_machine_with_its_own_part_keeps_its_processor(run_folder: Path) -> None:
    """Of two processors each machine has one: a neighbour that computes cannot get at the other."""
    text = SPEC.format(levels='"processor"', workload="", engine="postgres", memory="2 GiB").replace("tpcc", "tatp")
    text = text.replace("warehouses = 1", "subscribers = 1000")
    arm = '[[arm]]\nname = "{}"\nstack = "{}"\nmachines = 2\n'
    text += arm.format("native", "native") + arm.format("native split", "native") + "[arm.resources]\n" + PART
    text += arm.format("docker split", "docker") + "[arm.resources]\n" + PART
    result = measure_one_round(text, run_folder)
    run = read_run(run_folder)
    for told in result.arms:
        assert told.outcome is Outcome.OK, told.reason
        (start,) = (start for start in run.records(Start) if start.arm == told.name)
        allowed = [facts["cpus_allowed"] for facts in start.servers]
        limits = {facts.get("memory_limit_bytes") for facts in start.servers}
        if told.name == "native":
            assert len(set(allowed)) == 1
        else:
            assert len(set(allowed)) == 2 and all(each.isdigit() for each in allowed), allowed
            assert limits == {1 << 30}, limits
    for visit in run.records(Visit):
        if visit.neighbour is not None and visit.arm != "native":
            did = visit.neighbour
            assert did.cpu_ns is not None and did.elapsed_ns is not None
            assert did.cpu_ns <= 1.05 * did.elapsed_ns, "it has one processor"


PART = 'split = ["cpus", "memory"]\n'


ROWS = 'name = "tatp"\nsubscribers = 1000'


@pytest.mark.parametrize(
    ("fault", "designs", "alone", "kept"),
    [
        ("server_killed", {"shared": "native", "dedicated": "native"}, {"dedicated"}, {"dedicated"}),
        ("machine_killed", {"isolated": "docker"}, {"isolated"}, {"isolated"}),
        ("machine_killed", {"isolated": "uml"}, {"isolated"}, {"isolated"}),
        # PostgreSQL ends itself where it cannot extend its log, and may have room for the rest of the window.
        ("disk_full", {"shared": "native", "dedicated": "native"}, set(), set()),
        # A guest's disk is its own.
        ("disk_full", {"isolated": "uml"}, {"isolated"}, {"isolated"}),
    ],
)
def test_the_others_go_on_when_one_is_struck(
    run_folder: Path, fault: str, designs: Mapping[str, str], alone: set[str], kept: set[str]
) -> None:
    """``alone``: the designs in which nobody else has what was taken; ``kept``: those in which data are left to be checked."""
    in_guests = "uml" in designs.values()
    fills_memory = fault == "disk_full" and not in_guests  # what is on a device in memory is the arm's too
    text = specification(designs, fault, memory="6 GiB" if fills_memory else "2 GiB")
    if fills_memory:  # the conditions of TPC-C take room of the disk themselves
        text = text.replace("\ntenants = 3", '\ntenants = 3\ndata_device = "memory"')
    else:
        text = text.replace('name = "tpcc"\nwarehouses = 1', ROWS)
    if fault == "disk_full":
        text = text.replace('"1s"', '"9s"' if in_guests else '"6s"')
    others = 2
    if in_guests:
        text, others = text.replace("\ntenants = 3", "\ntenants = 2"), 1
    result = measure_one_round(text, run_folder)
    assert carried(Marks(run_folder)) == {} and leftovers(run_folder) == []
    struck = [visit for visit in read_run(run_folder).records(Visit) if visit.levels["neighbour"] == fault]
    assert {visit.arm for visit in struck} >= set(designs)
    last = max(visit.order for visit in read_run(run_folder).records(Visit) if visit.levels["neighbour"] != fault)
    for visit in struck:
        assert visit.order > last and len(visit.units) == others
        assert visit.neighbour is not None and visit.neighbour.problem is None
        assert all(count > 0 for count in visit.neighbour.did.values()), visit.neighbour.did
        for unit in visit.units:
            assert unit.window is not None
            assert sum(kind["committed"] for kind in unit.window["transactions"].values()) > 0
            if visit.arm in alone:
                assert unit.window["connections_lost"] == 0
            elif fault == "server_killed":
                assert unit.window["connections_lost"] > 0, "they had the same server"
    failed = [start for start in read_run(run_folder).records(Start) if start.outcome != "ok"]
    assert not failed, "it ends in order"
    checked = {check.arm: check for check in read_run(run_folder).records(CheckRecord) if check.check == "consistent"}
    assert checked.keys() >= kept and all(check.passed for check in checked.values()), checked
    if fault != "disk_full":
        for arm in kept:
            assert f"in each of {others} units; the server of 1 more is gone" in checked[arm].finding
    assert all(arm.outcome is Outcome.OK for arm in result.arms)
