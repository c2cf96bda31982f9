"""The factor `neighbour`: what a specification may ask for, in which order levels come, what a folder may say of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dbtoll import spec
from dbtoll.errors import DbtollError, EngineError, SpecError
from dbtoll.model.experiment import Resources
from dbtoll.model.neighbours import AGGRESSORS, COUNTED, FAULTS, LEVELS, LOADS, against, with_references
from dbtoll.plan import Plan
from dbtoll.runner.drivers.neighbours import Report, did_between, reports
from dbtoll.store.contents import Expected
from dbtoll.store.schema import Neighbour, PlanFile, RoundBegin, UnitVisit, Visit

TEXT = """
[engine]
name = "{engine}"
[workload]
name = "tpcc"
{workload}
[factors]
interaction = ["statement", "procedure"]
neighbour = {levels}
[[arm]]
stack = "{stack}"
{layout}
"""


def asked(
    levels: str, *, engine: str = "postgres", workload: str = "", stack: str = "native", layout: str = "databases = 3"
) -> spec.Experiment:
    text = TEXT.format(engine=engine, workload=workload, levels=levels, stack=stack, layout=layout)
    return spec.parse(text, "spec.toml")


def test_each_level_is_held_against_the_same_neighbour_without_it() -> None:
    assert {level: against(level) for level in LEVELS} == {
        **dict.fromkeys(AGGRESSORS, "none"),
        **dict.fromkeys((*LOADS, *FAULTS), "load_x1"),
        "none": None,
        "load_x1": None,
    }
    assert with_references(["load_x4", "fsync"]) == ("none", "fsync", "load_x1", "load_x4")
    assert asked('["fsync"]').factors["neighbour"] == ("none", "fsync")
    assert asked('"fsync"').factors["neighbour"] == ("none", "fsync")
    assert COUNTED.keys() == AGGRESSORS.keys() | FAULTS.keys()


def test_who_does_not_ask_for_a_neighbour_has_none() -> None:
    text = TEXT.format(engine="postgres", workload="", levels='["none"]', stack="native", layout="")
    assert "neighbour" not in spec.parse(text.replace('neighbour = ["none"]\n', ""), "spec.toml").factors


@pytest.mark.parametrize(
    ("levels", "other", "said"),
    [
        ('["fsync"]', {"layout": ""}, "an arm of one unit has no neighbour"),
        ('["load_x2"]', {}, "load_x2 multiplies a rate, and it has none"),
        ('["server_killed"]', {}, "server_killed is the last thing in a round, so it is measured once"),
        ('["server_killed", "disk_full"]', {}, "server_killed is the last thing in a round, and so is disk_full"),
        ('["machine_killed"]', {}, "its tenants have one machine, so nobody would be left"),
        (
            '["machine_killed"]',
            {"stack": "docker", "layout": "machines = 2\ndatabases = 2"},
            "several tenants are in the machine that is killed",
        ),
        ('["disk_full"]', {}, "its data lie on the host's file system, which nothing fills"),
        ('["anger"]', {}, "are not levels of neighbour"),
        ('["vacuum"]', {"engine": "noop"}, "noop cannot be asked to write a table anew"),
        ('["vacuum"]', {"layout": "keys = 3"}, "its tenants share their tables"),
        ('["page_cache"]', {"stack": "native:storage=memory"}, "its data lie in memory, where page_cache does nothing"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_started(levels: str, other: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        asked(levels, **other)


def test_nothing_is_explained_beside_a_neighbour() -> None:
    text = TEXT.format(engine="postgres", workload="", levels='["fsync"]', stack="native", layout="databases = 2")
    with pytest.raises(SpecError, match="what a neighbour does is not counted or probed"):
        spec.parse("explain = true\n" + text, "spec.toml")


def test_levels_of_a_block_follow_one_another_in_random_order() -> None:
    experiment = asked('["fsync", "idle"]')
    orders = Counter[tuple[str, ...]]()
    for number in range(20):
        phases = Plan(experiment, ("mix",), 3, {}).round(number).phases
        assert all(len(phase.blocks) == 1 for phase in phases)
        told = [(p.levels["interaction"], p.blocks[0].index, p.levels["neighbour"]) for p in phases]
        assert [each[:2] for each in told[::3]] == [
            (interaction, block) for interaction in ("statement", "procedure") for block in range(3)
        ]
        for first in range(0, len(told), 3):
            assert len({each[:2] for each in told[first : first + 3]}) == 1
            orders[tuple(level for *_, level in told[first : first + 3])] += 1
        # What is set against one another draws the same.
        assert len({p.blocks[0].parameter_set for p in phases if p.blocks[0].index == 0}) == 1
    assert len(orders) == 6, "every order of three levels comes up in 120 blocks"


def test_a_fault_is_the_last_of_a_round() -> None:
    text = TEXT.format(
        engine="postgres", workload="", levels='["fsync", "server_killed"]', stack="native", layout="servers = 3"
    )
    experiment = spec.parse(text.replace('interaction = ["statement", "procedure"]\n', ""), "spec.toml")
    assert experiment.factors["neighbour"] == ("none", "fsync", "load_x1", "server_killed")
    for number in range(5):
        told = [
            (phase.levels["neighbour"], [block.index for block in phase.blocks])
            for phase in Plan(experiment, ("mix",), 3, {}).round(number).phases
        ]
        assert len(told) == 3 * 3 + 1 and told[-1] == ("server_killed", [0])
        assert "server_killed" not in [level for level, _ in told[:-1]]


def test_a_run_without_a_neighbour_is_planned_as_ever() -> None:
    with_one = asked('["fsync"]')
    without = replace(with_one, factors={"interaction": ("statement", "procedure")})
    phases = Plan(without, ("mix",), 3, {}).round(0).phases
    assert [len(phase.blocks) for phase in phases] == [3, 3]


SPLIT = """
[resources]
cpus = 2
{common}
[workload]
name = "tatp"
[[arm]]
name = "shared out"
stack = "native"
machines = 2
[[arm]]
name = "split"
stack = "native"
{layout}
{own}
"""


def test_machines_of_an_arm_can_have_their_own_part() -> None:
    own = '[arm.resources]\nsplit = ["memory", "cpus"]'
    made = spec.parse(SPLIT.format(common="", layout="machines = 2", own=own), "spec.toml")
    arms = {arm.name: arm.configuration for arm in made.arms}
    assert arms["split"].resources.split == ("cpus", "memory")
    assert [each.name for each in arms["split"].differences(arms["shared out"])] == ["split"]
    assert "split (A/A)" in arms, "its configuration is another one than its baseline's"


@pytest.mark.parametrize(
    ("common", "layout", "said"),
    [
        ('split = ["memory"]', "servers = 2", "split is one machine"),
        ('split = ["cpus"]', "machines = 3", "2 processors are not dealt equally to 3 machines"),
        ('split = ["disk"]', "machines = 2", "is not a list of cpus, memory"),
    ],
)
def test_a_part_that_nobody_can_have_is_refused(common: str, layout: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        spec.parse(SPLIT.format(common=common, layout=layout, own=""), "spec.toml")


LIMITS = """
[resources]
memory = "1 GiB"
[workload]
name = "tatp"
[[arm]]
name = "held"
stack = "{stack}"
machines = {machines}
[arm.resources]
{own}
"""


def test_each_machine_of_an_arm_can_be_held_to_limits() -> None:
    own = 'write_rate = "10 MiB"\nread_requests = 50\nmemory_high = "512 MiB"\nneighbour_weight = 0.5'
    text = LIMITS.format(stack="native", machines=2, own=own) + '\n[factors]\nneighbour = ["idle"]\n'
    made = spec.parse(text, "spec.toml")
    resources = made.arms[0].configuration.resources
    assert (resources.write_rate, resources.read_requests) == (10 << 20, 50)
    assert (resources.memory_high_bytes, resources.neighbour_weight) == (512 << 20, 0.5)
    assert resources.holds_machines
    assert (resources.read_rate, resources.write_requests) == (None, None)
    assert not Resources().holds_machines


@pytest.mark.parametrize(
    ("own", "stack", "machines", "said"),
    [
        ("write_requests = 0", "native", 1, "nothing is ever read or written"),
        ('write_rate = "ten"', "native", 1, "write_rate"),
        ('memory_high = "2 GiB"', "native", 1, "between 64 MiB and the memory, 1024 MiB"),
        ("neighbour_weight = 0", "native", 2, "a weight lies between 0.01 and 100"),
        ("neighbour_weight = 0.5", "native", 1, "is one machine, and what is in it has one weight"),
        ("write_requests = 10", "native:storage=memory", 1, "lie on no device"),
        ("write_requests = 10", "simulated", 1, "nothing holds a simulated machine"),
        ("write_requests = 10", 'native"\ndata_device = "memory', 1, "its data lie in memory"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(own: str, stack: str, machines: int, said: str) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        spec.parse(LIMITS.format(stack=stack, machines=machines, own=own), "spec.toml")
    where = 11 + stack.count("\n")
    assert f"spec.toml:{where}" in str(refused.value), "where it is written"


FIRST = b'{"at_ns":10,"cpu_ns":1,"done":{"fsyncs":3,"bytes_written":30}}\n'
LAST = b'{"at_ns":110,"cpu_ns":21,"done":{"fsyncs":8,"bytes_written":80}}\n'


def test_what_was_done_lies_between_the_first_report_and_the_last() -> None:
    first, last = reports(FIRST + b"something else\n" + LAST + b'{"at_ns":200,"cpu')
    assert first == Report(10, 1, {"fsyncs": 3, "bytes_written": 30})
    did = did_between("fsync", first, last, None)
    assert (did.did, did.elapsed_ns, did.cpu_ns, did.problem) == ({"fsyncs": 5, "bytes_written": 50}, 100, 20, None)
    assert "did nothing: no fsyncs" in str(did_between("fsync", first, first, None).problem)
    assert "ended by itself: killed" in str(did_between("fsync", first, last, "killed").problem)
    # Sessions that are refused are no storm.
    storm = Report(0, 0, {"connections": 4, "refused": 0}), Report(9, 0, {"connections": 4, "refused": 90})
    assert did_between("connections", *storm, None).problem == "the neighbour did nothing: no connections"


@pytest.mark.parametrize(
    "line",
    [
        b'{"at_ns":-1,"cpu_ns":1,"done":{}}\n',
        b'{"at_ns":1,"cpu_ns":1,"done":{"fsyncs":"many"}}\n',
        b'{"at_ns":1,"cpu_ns":1}\n',
        b'{"at_ns":1,\n',
    ],
)
def test_a_report_that_is_none_is_an_error(line: bytes) -> None:
    with pytest.raises(DbtollError):
        reports(line)


def test_counts_do_not_fall() -> None:
    first, last = reports(FIRST + LAST)
    with pytest.raises(EngineError, match="falls"):
        did_between("fsync", last, first, None)


def window() -> UnitVisit:
    kind = {"committed": 1, "rolled_back": 0, "not_found": 0, "lost": 0, "unknown": 0, "failed": {}, "retried": {}}
    counts = dict.fromkeys(("driver_cpu_ns", "round_trips", "backlog_at_end", "connections_lost", "reconnects"), 0)
    told = {"length_ns": 10, "interval_ns": 10, "series": [1], "throughput_transaction": None, **counts}
    told["transactions"] = {"payment": {**kind, "response_ns": {"buckets": [[1, 1]]}}}
    return UnitVisit(start_ns=0, end_ns=1, host_start_ns=0, host_end_ns=1, window=told)


DID = Neighbour(did={"fsyncs": 1, "bytes_written": 2}, elapsed_ns=1, cpu_ns=1)


@pytest.mark.parametrize(
    ("level", "units", "neighbour", "fault"),
    [
        ("fsync", 2, DID, None),
        ("none", 2, None, None),
        ("load_x4", 2, Neighbour(unit=window()), None),
        ("fsync", 3, DID, "has 3 units, and 4 of them"),
        ("fsync", 2, None, "not what it does"),
        ("none", 2, DID, "not what it does"),
        ("load_x4", 2, DID, "not what it does"),
        ("fsync", 2, Neighbour(did={"loops": 1}), "not what it does"),
    ],
)
def test_what_a_folder_says_of_a_neighbour_must_be_of_its_level(
    level: str, units: int, neighbour: Neighbour | None, fault: str | None
) -> None:
    experiment = asked('["fsync", "load_x4"]', workload="rate = 10")
    expected = Expected(PlanFile(experiment=experiment, queries=("mix",), blocks=1))
    expected.demand(RoundBegin(round=0, attempt=0, elapsed_s=0))
    levels = {name: values[0] for name, values in experiment.factors.items()} | {"neighbour": level}
    visit = Visit(
        round=0,
        arm=experiment.baseline,
        levels=levels,
        block=0,
        query="mix",
        order=0,
        first_execution=False,
        asleep_ok=True,
        units=tuple(window() for _ in range(units)),
        neighbour=neighbour,
    )
    if fault is None:
        expected.demand(visit)
        return
    with pytest.raises(ValueError, match=fault):
        expected.demand(visit)
