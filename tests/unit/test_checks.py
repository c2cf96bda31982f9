"""Every honesty check, in a run in which it fails: what it says, and what that costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dbtoll.analysis.checks import findings
from dbtoll.analysis.checks.caches import cold_reads_disk
from dbtoll.analysis.checks.clocks import clock_rate
from dbtoll.analysis.checks.evidence import Evidence
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import ArmResult, CheckResult, Comparison, Result
from dbtoll.analysis.visits.units import totals
from dbtoll.model.description import Descriptions, EngineDescription, EnvironmentDescription, WorkloadDescription
from dbtoll.model.experiment import Outcome, Step, Verdict
from dbtoll.report.text import numbers, sentences, warnings
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import CheckRecord, Counters, Fingerprint, PlanFile, Record, Start, Timing, Visit
from dbtoll.store.writer import RunWriter
from tests.support.changed import changed_run, revised
from tests.support.make_run import COPY, DOCKER, NATIVE, QUERIES, make_run, start_facts

ROOT = Path(__file__).parents[2]
BAD_ROUND = 1

Alter = Callable[[Record], Record]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("checks") / "run", rounds=6, cold=True, interrupted=False, start_sd=0.003)


@pytest.fixture(scope="module")
def unchanged(plain: Path) -> Result:
    return results.analyze(plain)


def with_facts(**facts: object) -> Alter:
    """The start tells something else."""

    def alter(record: Record) -> Record:
        return revised(record, servers=({**record.facts, **facts},)) if isinstance(record, Start) else record

    return alter


def with_gate(name: str) -> Alter:
    """The runner's own check failed."""

    def alter(record: Record) -> Record:
        hit = isinstance(record, CheckRecord) and record.check == name
        return revised(record, passed=False, finding="it did not") if hit else record

    return alter


def with_visits(cache: str = "warm", **values: object) -> Alter:
    """The steady visits at that cache say something else."""

    def alter(record: Record) -> Record:
        hit = isinstance(record, Visit) and record.levels["cache"] == cache and not record.first_execution
        return revised(record, **values) if hit else record

    return alter


def with_counters(cache: str = "warm", **added: int) -> Alter:
    """So much more is counted at the end of a phase; keys of ``machine`` and its ``pressure``, or of the record."""

    def alter(record: Record) -> Record:
        if not isinstance(record, Counters) or record.when != "end" or record.levels["cache"] != cache:
            return record
        machine: dict[str, Any] = dict(record.machine or {})
        pressure: dict[str, int] = dict(machine["pressure"])
        for key, more in added.items():
            if key in record.__struct_fields__:
                record = revised(record, **{key: (getattr(record, key) or 0) + more})
            else:
                into = pressure if key in pressure else machine
                into[key] = into.get(key, 0) + more
        return revised(record, machine={**machine, "pressure": pressure})

    return alter


def wrong_answers(record: Record) -> Record:
    if isinstance(record, Visit) and record.query == "Q7":
        values = [getattr(record.units[0].executions[0], name) for name in Timing.__struct_fields__[:-1]]
        return revised(record, executions=(Timing(*values, "wrong_answer"),), problem="row 3 differs")
    return record


def other_plan(record: Record) -> Record:
    hit = isinstance(record, Fingerprint) and record.query == "Q3"
    return revised(record, fingerprint="q3-nestloop") if hit else record


def host_saw_more(record: Record) -> Record:
    if isinstance(record, Visit) and record.query == "Q1" and record.levels["cache"] == "warm":
        assert record.units[0].host_end_ns is not None
        return revised(record, host_end_ns=record.units[0].host_end_ns + 200_000_000)
    return record


def slow_clock(record: Record) -> Record:
    """99 ms are told for every 100."""
    if not isinstance(record, Visit):
        return record
    start = record.units[0].start_ns

    def slow(at_ns: int) -> int:
        return start + round((at_ns - start) * 0.99)

    executions = tuple(
        Timing(slow(t.start_ns), None, None, slow(t.end_ns), 1, 1, "ok") for t in record.units[0].executions
    )
    return revised(record, end_ns=slow(record.units[0].end_ns), executions=executions)


def checkpointed(record: Record) -> Record:
    hit = isinstance(record, Counters) and record.when == "end" and record.levels["cache"] == "warm"
    return revised(record, background={"checkpoints": 4, "vacuums": 0}) if hit else record


OF_OTHERS = {"consistent", "neighbour_acted", "path", "plausible_costs", "started_together"}
"""Checks that runs of statements do not have (tests/system/test_transactions.py, test_placement.py, test_probes.py;
tests/sim/test_planted_neighbours.py)."""

SECONDS = 1_000_000_000
CASES: dict[str, tuple[Alter, str, str]] = {
    # check: what goes wrong in one round, what it takes out, what it says
    "storage": (with_gate("storage"), "round", "it did not"),
    "answers_known": (with_gate("answers_known"), "nothing", "it did not"),
    "commit_reaches_device": (with_gate("commit_reaches_device"), "round", "it did not"),
    "same_server": (with_facts(settings={"jit": "on", "port": "9"}), "round", "jit on (off)"),
    "same_resources": (with_facts(cpus_allowed="0-1"), "round", "processors 2 (1)"),
    "equal_answers": (wrong_answers, "verdict", "Q7"),
    "same_plans": (other_plan, "nothing", "Q3"),
    "warm_stays_warm": (with_visits(disk_read_bytes=1 << 20), "nothing", "44 of 264 warm visits read the disk"),
    "cold_reads_disk": (with_visits("cold", disk_read_bytes=0), "visits", "220 of 264 cold visits read the disk"),
    "others_asleep": (with_visits(asleep_ok=False), "visits", "another arm used CPU time in 44 of"),
    "host_brackets": (host_saw_more, "visits", "the host's time and the arm's own disagree in 3 of"),
    "clock_rate": (slow_clock, "round", "0.99"),
    "driver_cpu_share": (with_counters(driver_cpu_ns=20 * SECONDS), "nothing", "of the visits' time"),
    "steal": (with_counters(steal_ns=20 * SECONDS), "nothing", "was stolen"),
    "pressure": (with_counters(memory_some_ns=10 * SECONDS), "nothing", "memory"),
    "other_host_load": (with_counters(unattributed_cpu_ns=60 * SECONDS), "nothing", "went to no arm"),
    "background_work": (checkpointed, "nothing", "checkpoints: 1"),
}


def damaged(
    plain: Path, folder: Path, alter: Alter, *, arm: str = DOCKER, rounds: tuple[int, ...] = (BAD_ROUND,)
) -> Result:
    def change(record: Record) -> list[Record]:
        is_there = getattr(record, "arm", None) == arm and getattr(record, "round", None) in rounds
        return [alter(record) if is_there else record]

    return results.analyze(changed_run(plain, folder, change))


def arm_of(result: Result, name: str) -> ArmResult:
    return next(arm for arm in result.arms if arm.name == name)


def check_of(result: Result, name: str, arm: str = DOCKER) -> CheckResult:
    return next(check for check in arm_of(result, arm).checks if check.name == name)


@pytest.mark.parametrize("name", CASES)
def test_a_gate_fails_where_it_should_and_costs_what_it_says(
    plain: Path, unchanged: Result, tmp_path: Path, name: str
) -> None:
    alter, cost, said = CASES[name]
    result = damaged(plain, tmp_path / "run", alter)
    check = check_of(result, name)
    assert check.passed is False
    assert check.rounds_failed == ((0, 1, 2, 3, 4, 5) if name == "same_plans" else (BAD_ROUND,))  # Q9's plan is planted
    assert said in check.finding
    assert check.voids == (cost != "nothing")
    assert check.void_rounds == ((BAD_ROUND,) if cost == "round" else ())
    assert (check.void_visits > 0) == (cost == "visits")
    assert arm_of(result, DOCKER).rounds == (5 if cost == "round" else 6)
    assert arm_of(result, DOCKER).outcome is (Outcome.INVALID if cost == "verdict" else Outcome.OK)
    assert arm_of(result, COPY).rounds == 6
    # It is said where the reader looks, and only there: the others' checks are as they were.
    shown = warnings.cautions(result)
    told = [caution for caution in shown.all if numbers.typeset(check.finding) in caution.sentence]
    assert told or check.finding in (arm_of(result, DOCKER).reason or "")
    assert [g.passed for g in arm_of(result, NATIVE).checks] == [g.passed for g in arm_of(unchanged, NATIVE).checks]


def test_without_damage_all_gates_pass_but_the_planted_plan(unchanged: Result) -> None:
    for arm in unchanged.arms:
        assert {check.name for check in arm.checks} == set(CASES)
        failed = [(check.name, check.finding) for check in arm.checks if check.passed is not True]
        assert [name for name, _ in failed] == (["same_plans"] if arm.name == DOCKER else []), failed


def test_every_gate_stands_in_the_table_of_the_method(unchanged: Result) -> None:
    text = (ROOT / "docs" / "method" / "checks.md").read_text(encoding="utf-8")
    section = text[text.index("\n## All checks") :].split("\n## ")[1]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(CASES) | OF_OTHERS


# --- cold_reads_disk ---------------------------------------------------------------------------------------------------


def test_a_cold_visit_that_found_a_part_of_its_data_in_memory_is_void(plain: Path, tmp_path: Path) -> None:
    def partly_warm(record: Record) -> Record:
        """Of one query's data two thirds are in memory already when its visits begin."""
        if not isinstance(record, Visit) or record.levels["cache"] != "cold" or record.query != "Q3":
            return record
        return revised(record, disk_read_bytes=(record.units[0].disk_read_bytes or 0) // 3)

    check = check_of(damaged(plain, tmp_path / "run", partly_warm), "cold_reads_disk")
    assert (check.finding, check.void_visits) == ("262 of 264 cold visits read the disk", 2)


@pytest.mark.parametrize(
    ("most", "read_bytes", "void"), [(200 << 10, 1, 0), (16 << 20, 10 << 20, 0), (16 << 20, 4 << 20, 1)]
)
def test_what_one_read_ahead_explains_is_cold(plain: Path, most: int, read_bytes: int, void: int) -> None:
    visit = next(visit for visit in read_run(plain).records(Visit) if visit.levels["cache"] == "cold")
    both = tuple(totals(revised(visit, disk_read_bytes=each)) for each in (most, read_bytes))
    found = cold_reads_disk(Evidence(DOCKER, both))
    assert found is not None and len(found.void_visits) == void


# --- same_server -------------------------------------------------------------------------------------------------------


def test_another_version_voids_and_is_named(plain: Path, tmp_path: Path) -> None:
    result = damaged(plain, tmp_path / "run", with_facts(version="PostgreSQL 15.13"), rounds=tuple(range(6)))
    check = check_of(result, "same_server")
    assert check.finding == "other than in the baseline: version PostgreSQL 15.13 (PostgreSQL 15.14)"
    assert check.void_rounds == (0, 1, 2, 3, 4, 5)
    assert arm_of(result, DOCKER).outcome is Outcome.INVALID


def test_a_baseline_that_changes_in_mid_run_is_held_to_its_first_start(plain: Path, tmp_path: Path) -> None:
    result = damaged(plain, tmp_path / "run", with_facts(version="PostgreSQL 15.15"), arm=NATIVE)
    assert check_of(result, "same_server", NATIVE).void_rounds == (BAD_ROUND,)
    assert check_of(result, "same_server", DOCKER).void_rounds == (BAD_ROUND,)  # it is not like the baseline beside it


def test_where_a_server_lies_may_differ(plain: Path, tmp_path: Path) -> None:
    elsewhere = {
        "jit": "off",
        "autovacuum": "off",
        "port": "1",
        "data_directory": "/a",
        "unix_socket_directories": "/b",
    }
    check = check_of(damaged(plain, tmp_path / "run", with_facts(settings=elsewhere)), "same_server")
    assert check.passed is True


def test_what_a_server_found_out_of_its_machine_is_a_label(plain: Path, tmp_path: Path) -> None:
    """Which settings those are the engine says, in the facts."""
    engine = EngineDescription("E", (), {"port": "drawn"}, {"innodb_log_write_ahead_size": "of its disk"})
    environments = {name: EnvironmentDescription(name) for name in (NATIVE, DOCKER)}
    described = msgspec.to_builtins(Descriptions({"postgres": engine}, WorkloadDescription("w"), environments))
    tuned = make_run(tmp_path / "tuned", rounds=4, interrupted=False, facts={"descriptions": described})
    found_out = {"jit": "off", "autovacuum": "off", "innodb_log_write_ahead_size": "4096"}
    check = check_of(damaged(tuned, tmp_path / "run", with_facts(settings=found_out)), "same_server")
    assert check.passed is False
    assert not check.voids and not check.void_rounds
    assert check.finding == "other than in the baseline: innodb_log_write_ahead_size 4096 (built-in)"
    assert check_of(damaged(plain, tmp_path / "other", with_facts(settings=found_out)), "same_server").voids


def test_a_server_that_tells_nothing_is_not_said_to_be_the_same(plain: Path, tmp_path: Path) -> None:
    def silent(record: Record) -> list[Record]:
        if isinstance(record, Start):
            kept = {key: value for key, value in record.facts.items() if key in ("cpus_allowed", "environment")}
            return [revised(record, servers=(kept,))]
        return [record]

    result = results.analyze(changed_run(plain, tmp_path / "run", silent))
    assert check_of(result, "same_server").passed is None
    assert check_of(result, "same_resources").passed is True


# --- same_resources ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"memory_limit_bytes": 3 << 30}, "memory 3.00 GiB (4.00 GiB)"),
        ({"memory_limit_bytes": None}, "memory 8.00 GiB (4.00 GiB)"),
        ({"memory_limit_bytes": None, "memory_bytes": None}, "memory not known (4.00 GiB)"),
        ({"cpu_flags": ["avx", "fpu", "hypervisor", "sse"]}, "processor flags without avx2 and with hypervisor"),
        ({"cpu_flags": None}, "processor flags not known"),
        ({"storage": {"kind": "memory"}}, "storage memory (bind or image)"),
        ({"storage": {"kind": "/dev/sdb"}}, "storage a device (bind or image)"),
        ({"cpu_model": "QEMU TCG CPU"}, "processor model QEMU TCG CPU (Simulated CPU)"),
        ({"clocksource": "kvm-clock"}, "clock source kvm-clock (tsc)"),
        ({"transparent_hugepages": "always"}, "transparent huge pages always (madvise)"),
        ({"page_bytes": 65536}, "page size 65536 (4096)"),
        ({"kernel_release": "6.1.0"}, "kernel 6.1.0 (6.12.0)"),
        ({"mitigations": {"meltdown": "Mitigation: PTI"}}, "mitigations of meltdown: meltdown 'Mitigation: PTI'"),
        ({"cpus_allowed": None}, "processors not known (1)"),
    ],
)
def test_what_else_differs_is_named_and_does_not_void(
    plain: Path, tmp_path: Path, facts: dict[str, object], said: str
) -> None:
    check = check_of(damaged(plain, tmp_path / "run", with_facts(**facts)), "same_resources")
    assert check.passed is False and not check.voids and check.rounds_failed == (BAD_ROUND,)
    assert said in check.finding


def test_what_a_guests_kernel_keeps_for_itself_is_not_a_difference(plain: Path, tmp_path: Path) -> None:
    facts = {"memory_limit_bytes": None, "memory_bytes": round((4 << 30) * 0.96)}
    assert check_of(damaged(plain, tmp_path / "run", with_facts(**facts)), "same_resources").passed is True


def test_a_quota_that_nobody_asked_for_voids(plain: Path, tmp_path: Path) -> None:
    check = check_of(damaged(plain, tmp_path / "run", with_facts(cpu_quota=0.5)), "same_resources")
    assert check.void_rounds == (BAD_ROUND,)
    assert "CPU quota 0.5 (none)" in check.finding


@pytest.mark.parametrize(
    ("step", "facts"),
    [(Step("docker", {"cpu_quota": 1}), {"cpu_quota": 0.5}), (Step("qemu", {"vcpus": 2}), {"cpus_allowed": "0-1"})],
)
def test_what_was_asked_for_is_named_and_does_not_void(
    plain: Path, tmp_path: Path, step: Step, facts: dict[str, object]
) -> None:
    """In a folder of before environments described what their options ask for, too."""
    run = read_run(plain)
    experiment = run.plan.experiment
    arms = tuple(replace(arm, stack=(step,)) if arm.name == DOCKER else arm for arm in experiment.arms)
    folder = tmp_path / "run"
    plan = PlanFile(experiment=replace(experiment, arms=arms), queries=QUERIES, blocks=2)
    _copy(run, folder, plan, with_facts(**facts))
    check = check_of(results.analyze(folder), "same_resources")
    assert check.passed is False and not check.voids
    assert "as asked for" in check.finding


def _copy(run: Run, folder: Path, plan: PlanFile, alter: Alter) -> None:
    facts = {name: value for name, value in run.facts.items() if name != "descriptions"}
    with RunWriter.create(folder, spec=b"", plan=plan, facts=facts) as writer:
        for attempt in run.counted:
            assert attempt.end is not None
            for record in (attempt.begin, *attempt.records, attempt.end):
                writer.append(alter(record) if getattr(record, "arm", None) == DOCKER else record)


def test_every_difference_of_many_is_named_once(plain: Path, tmp_path: Path) -> None:
    facts = {"cpus_allowed": "0-1", "clocksource": "hpet", "cpu_flags": [f"f{n}" for n in range(10)]}
    check = check_of(damaged(plain, tmp_path / "run", with_facts(**facts), rounds=(1, 2)), "same_resources")
    assert check.void_rounds == (1, 2)
    assert check.finding == (
        "other than in the baseline: processors 2 (1); clock source hpet (tsc); "
        "processor flags without avx, avx2, fpu, sse and with f0, f1, f2, f3, f4, f5 and 4 more"
    )


# --- counted over phases ---------------------------------------------------------------------------------------------------


def test_waiting_for_the_disk_is_no_fault_of_a_cold_phase(plain: Path, tmp_path: Path) -> None:
    cold = damaged(plain, tmp_path / "cold", with_counters("cold", io_some_ns=60 * SECONDS))
    warm = damaged(plain, tmp_path / "warm", with_counters("warm", io_some_ns=60 * SECONDS))
    assert check_of(cold, "pressure").passed is True
    assert check_of(warm, "pressure").passed is False


@pytest.mark.parametrize("name", ["driver_cpu_share", "pressure", "steal", "other_host_load"])
def test_what_was_not_counted_is_not_said_to_be_well(plain: Path, tmp_path: Path, name: str) -> None:
    def uncounted(record: Record) -> list[Record]:
        if isinstance(record, Counters):
            return [revised(record, machine=None, unattributed_cpu_ns=None, driver_cpu_ns=None, host_at_ns=None)]
        return [record]

    check = check_of(results.analyze(changed_run(plain, tmp_path / "run", uncounted)), name)
    assert check.passed is None and not check.voids


# --- what comes with another plan -------------------------------------------------------------------------------------------


def of_estimand(result: Result, arm: str, estimand: str, cache: str = "warm") -> Comparison:
    (found,) = [
        c
        for c in result.comparisons
        if (c.arm, c.estimand, c.levels["cache"], c.metric) == (arm, estimand, cache, "run_time")
    ]
    return found


def test_the_overhead_that_comes_with_another_plan_is_split_off(unchanged: Result) -> None:
    """1.2 % on 21 queries; Q9 has another plan and takes 25 % longer."""
    whole, same = (of_estimand(unchanged, DOCKER, name) for name in ("geomean", "geomean_same_plans"))
    assert same.estimate is not None and same.low is not None and same.high is not None and whole.estimate is not None
    assert same.low < 0.012 < same.high
    assert whole.estimate - same.estimate == pytest.approx(1.012 ** (21 / 22) * 1.25 ** (1 / 22) - 1.012, abs=1e-3)
    assert same.left_out == ("Q9: another plan",)
    assert same.p_holm is None and same.first_execution is not None
    assert not [c for c in unchanged.comparisons if c.arm == COPY and c.estimand == "geomean_same_plans"]


def test_a_plan_that_changed_in_the_second_copy_is_split_off_for_all_that_are_compared_with_it(
    plain: Path, tmp_path: Path
) -> None:
    result = damaged(plain, tmp_path / "run", other_plan, arm=COPY)
    assert of_estimand(result, COPY, "geomean_same_plans").left_out == ("Q3: another plan",)
    assert of_estimand(result, DOCKER, "geomean_same_plans").left_out == ("Q3: another plan", "Q9: another plan")


def test_where_every_plan_changed_nothing_is_left_to_compare(plain: Path, tmp_path: Path) -> None:
    def all_plans(record: Record) -> Record:
        return revised(record, fingerprint="other") if isinstance(record, Fingerprint) else record

    same = of_estimand(damaged(plain, tmp_path / "run", all_plans), DOCKER, "geomean_same_plans")
    assert same.estimate is None and same.verdict is Verdict.CANNOT_TELL
    assert same.reason == "no query has a value and the same plan"
    assert len(same.left_out) == 22


def test_the_words_say_what_remains_without_the_changed_plans(unchanged: Result) -> None:
    first, *others = sentences.changed_plans(unchanged)
    assert first == "docker: Q9"
    assert [line.partition(":")[0] for line in others] == [
        "docker (warm), the other queries alone",
        "docker (cold), the other queries alone",
    ]


# --- emulated ---------------------------------------------------------------------------------------------------------------


def test_one_start_that_is_emulated_labels_the_arm(plain: Path, unchanged: Result, tmp_path: Path) -> None:
    environment = {**start_facts(DOCKER)["environment"], "emulated": True}
    result = damaged(plain, tmp_path / "run", with_facts(environment=environment))
    assert [arm.emulated for arm in result.arms] == [False, False, True]
    assert not any(arm.emulated for arm in unchanged.arms)


def test_an_arm_on_the_hosts_kernel_has_the_hosts_clock(plain: Path) -> None:
    """What its brackets show is noise then: a container's rounds were voided for it on a machine whose processors stood still."""
    visits = [slow_clock(visit) for visit in read_run(plain).records(Visit) if visit.arm == DOCKER]
    evidence = Evidence(DOCKER, visits=tuple(totals(visit) for visit in visits if isinstance(visit, Visit)))
    assert clock_rate(evidence).check.passed is False
    assert clock_rate(replace(evidence, shares_kernel=True)).check.passed is True

    host = {"kernel_boot": "a"}
    assert findings._shares_kernel({0: ({"kernel_boot": "a"},), 1: ({"kernel_boot": "a"},)}, host)
    for starts in ({}, {0: ({"kernel_boot": "a"},), 1: ({"kernel_boot": "b"},)}, {0: ({},)}):
        assert not findings._shares_kernel(starts, host)
    assert not findings._shares_kernel({0: ({},)}, {})
    assert not findings._shares_kernel({0: ({"kernel_boot": "a"}, {"kernel_boot": "b"})}, host)
