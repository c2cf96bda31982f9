"""Honesty checks that fail for real: on real arms, with real servers, through the real runner and analysis."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dbtoll import spec
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import ArmResult, CheckResult, Result
from dbtoll.contracts.machines import CPU, machine_spec, small_image
from dbtoll.engines.mariadb import Engine as MariaDb
from dbtoll.engines.noop import Engine as NullEngine
from dbtoll.engines.postgres import Engine, Server
from dbtoll.environments.qemu import Environment as Qemu
from dbtoll.environments.uml import Environment as Uml
from dbtoll.errors import AgentFailure, Unavailable
from dbtoll.images.cache import Cache
from dbtoll.images.disk import disk_of
from dbtoll.images.kernel import debian_kernel
from dbtoll.interfaces.machine import Machine
from dbtoll.machines import mounts
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.experiment import Arm, Experiment, Outcome, Resources, Step
from dbtoll.model.machine import DATA, Artifact, Provision, ServerPlace
from dbtoll.model.storage import BIND, MEMORY
from dbtoll.plan import Plan
from dbtoll.runner.arms import HostContext, RunningArm
from dbtoll.runner.budget import Budget
from dbtoll.runner.checks import commits
from dbtoll.runner.cleanup import removers
from dbtoll.runner.cleanup.journal import Journal, leftovers
from dbtoll.runner.preparation.inputs import Prepared
from dbtoll.runner.rounds import RoundRun
from dbtoll.runner.run import ready
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.store.schema import CheckRecord, PlanFile, RoundBegin, RoundEnd, RunEnd
from dbtoll.store.writer import RunWriter
from dbtoll.workloads.tpch import Workload as Tpch
from tests.support.one_round import measure_one_round

OpenArm = Callable[..., Machine]

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="native arms and tracing need root"),
]

RESOURCES = Resources(memory_bytes=1 << 30)


# --- a commit reaches the device -----------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    folder = tmp_path / "journal"
    folder.mkdir()
    with Journal(folder) as open_journal:
        yield open_journal
    assert leftovers(folder) == []


@pytest.fixture
def on_disk(local: AgentMachine, tmp_path: Path) -> Path:
    """An empty directory on a file system that has a device."""
    if mounts.mount_of(local, str(tmp_path)).file_system in mounts.IN_MEMORY:
        pytest.skip(f"{tmp_path} lies in memory: give pytest a --basetemp on a disk")
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def in_memory() -> Iterator[Path]:
    folder = Path("/dev/shm") / f"dbtoll-checks-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def check_of_server(
    local: AgentMachine,
    journal: Journal,
    open_arm: OpenArm,
    data: Path,
    settings: Mapping[str, str] | None = None,
    engine: Any = None,
    durability: tuple[str, ...] = (),
    storage: str = BIND,
) -> CheckRecord:
    """What the check says of a native arm with the engine, else PostgreSQL, on ``data``, where ``storage`` was asked for."""
    artifact = Artifact("checks", str(data))
    engine = engine or Engine({})
    provision = Provision(artifact, DATA, writable=True)
    machine = open_arm(provision, resources=RESOURCES, engine=engine)
    engine.create(machine, DATA)
    with ExitStack() as closing:
        asked = {**engine.settings(RESOURCES), **(settings or {})}
        running = RunningArm(Arm("a", (Step("native", {"storage": storage}),)), (machine,), engine, asked, closing)
        running.start_servers()
        try:
            context = HostContext(local, None, (CPU,), journal, f"t{os.getpid()}")
            if durability:
                engine.finish_load(running.unit.session())
            return commits.commit_reaches_device(context, running, "tpch", (artifact,), 0, durability)
        finally:
            running.stop_servers()


def test_the_commits_of_a_native_server_reach_the_device(
    local: AgentMachine, journal: Journal, open_arm: OpenArm, on_disk: Path
) -> None:
    check = check_of_server(local, journal, open_arm, on_disk)
    assert check.passed is True, check.finding
    assert not check.voids
    file, server = check.finding.split("; ")
    assert file.startswith("commits of a file beside the data: all 5 were written to ")
    assert server.startswith("commits of postgres: all 5 were written to ")
    assert "5 fdatasync by agent" in file and "fdatasync by postgres" in server
    assert list(on_disk.glob(".dbtoll-commit*")) == []


@pytest.mark.parametrize("settings", [{"fsync": "off"}, {"synchronous_commit": "off"}])
def test_a_server_that_acknowledges_what_is_not_durable_is_found(
    local: AgentMachine,
    journal: Journal,
    open_arm: OpenArm,
    on_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
) -> None:
    monkeypatch.setattr(Tpch, "writes", True)
    check = check_of_server(local, journal, open_arm, on_disk, settings)
    assert check.passed is False
    assert check.voids  # its workload writes
    file, server = check.finding.split("; ")
    assert "all 5 were written" in file  # the machine itself is honest
    assert server.startswith("commits of postgres: of 5 that were acknowledged")


@pytest.mark.parametrize("engine", [Engine({}), MariaDb({})], ids=["postgres", "mariadb"])
def test_each_durability_is_what_it_says(
    local: AgentMachine, journal: Journal, open_arm: OpenArm, on_disk: Path, engine: Any
) -> None:
    check = check_of_server(
        local, journal, open_arm, on_disk, engine=engine, durability=("device", "os_cache", "server_buffer")
    )
    assert check.passed is True, check.finding
    _, device, system, server = check.finding.split("; ")
    assert device.startswith(f"commits of {engine.name}, durability device: all 5 were written to "), device
    for lax in (system, server):
        assert ": as asked for, " in lax, lax


def test_a_server_that_is_stricter_than_it_was_told_is_found() -> None:
    assert commits.less_than_durable(commits.Trial(True, "all 5 were flushed")).passed is False
    assert commits.less_than_durable(commits.Trial(None, "it cannot be told")).passed is None


def test_data_in_memory_are_found(local: AgentMachine, journal: Journal, open_arm: OpenArm, in_memory: Path) -> None:
    check = check_of_server(local, journal, open_arm, in_memory)
    assert check.passed is False
    assert check.finding.count("the data lie in memory (tmpfs)") == 2


def test_data_that_were_asked_to_lie_in_memory_are_committed_to_no_device(
    local: AgentMachine, journal: Journal, open_arm: OpenArm, in_memory: Path
) -> None:
    levels = ("device", "os_cache")
    check = check_of_server(local, journal, open_arm, in_memory, storage=MEMORY, durability=levels)
    assert check.passed is True
    assert check.finding.count("as asked for, of 5 that were acknowledged none reached a block device") == 3


def test_data_that_were_asked_to_lie_in_memory_and_reach_a_device_are_found(
    local: AgentMachine, journal: Journal, open_arm: OpenArm, on_disk: Path
) -> None:
    check = check_of_server(local, journal, open_arm, on_disk, storage=MEMORY)
    assert check.passed is False, check.finding


@contextmanager
def guest(
    local: AgentMachine, journal: Journal, tmp_path: Path, environment: Qemu | Uml, options: dict[str, Any]
) -> Iterator[tuple[RunningArm, Artifact]]:
    """A guest without a server, its data on a disk of its own."""
    kernel = None
    try:
        kernel = debian_kernel(Cache())[0] if environment.kernel({}) else None
    except Unavailable as error:
        pytest.skip(f"{error.message}; {error.hint}")
    if shutil.which({"qemu": "qemu-system-x86_64", "uml": "linux.uml"}[environment.name]) is None:
        pytest.skip(f"apt-get install -y {' '.join(environment.packages)}")
    disks = Cache(tmp_path / "disks")
    image = disk_of(disks, small_image(tmp_path / "image" / "root"), spare_bytes=8 << 20)[0]
    empty = tmp_path / "empty"
    empty.mkdir()
    data = disk_of(disks, Artifact("empty", str(empty)), spare_bytes=16 << 20)[0]
    asked = machine_spec("guest", image, provisions=[Provision(data, DATA, writable=True)], options=options)
    with environment.open(local, replace(asked, kernel=kernel), journal) as machine, ExitStack() as closing:
        arm = Arm("guest", (Step(environment.name, options),))
        yield RunningArm(arm, (machine,), NullEngine({}), {}, closing), data


@pytest.mark.parametrize(
    ("environment", "options", "passed", "said"),
    [
        (Uml(), {}, True, "all 5 were written"),
        (Uml(), {"storage": "memory"}, True, "as asked for, of 5 that were acknowledged none reached a block device"),
        # linux.uml 6.1 answers the flushes of its guest without any call.
        (Uml(), {"sync": False}, False, "none of the arm's processes on the host asked"),
        (Qemu(), {"accel": "tcg"}, True, "by qemu-system-x86"),
        (Qemu(), {"accel": "tcg", "cache": "unsafe"}, False, "none of the arm's processes on the host asked"),
    ],
    ids=["uml", "uml in memory", "uml sync=no", "qemu", "qemu cache=unsafe"],
)
def test_what_a_guest_calls_durable_is_followed_through_its_monitor(
    local: AgentMachine,
    journal: Journal,
    on_disk: Path,
    environment: Qemu | Uml,
    options: dict[str, Any],
    passed: bool,
    said: str,
) -> None:
    with guest(local, journal, on_disk, environment, options) as (running, data):
        context = HostContext(local, None, (CPU,), journal, f"t{os.getpid()}")
        check = commits.commit_reaches_device(context, running, "tpch", (data,), 0)
    assert check.passed is passed, check.finding
    assert said in check.finding


def test_a_killed_run_leaves_no_tracing_behind(local: AgentMachine, tmp_path: Path) -> None:
    """The runner's agent is killed between the two calls."""
    name = f"dbtoll-test-{os.getpid()}"
    with Journal(tmp_path) as journal:
        journal.create(commits.TRACING, instance=name)
        agent = open_local("to be killed")
        agent.call("trace_begin", {"instance": name})
        os.kill(agent.hello()["pid"], 9)
        agent.close()
        with removers.removers() as by_kind:
            removed, failed = journal.sweep(by_kind)
    assert (len(removed), failed, leftovers(tmp_path)) == (1, [], [])
    with pytest.raises(AgentFailure, match="no tracing instance") as gone:
        local.call("trace_end", {"instance": name})
    assert gone.value.code == "not_found"


def test_two_of_one_name_do_not_meet(local: AgentMachine) -> None:
    name = {"instance": f"dbtoll-test-{os.getpid()}"}
    local.call("trace_begin", name)
    try:
        with pytest.raises(AgentFailure, match="File exists"):
            local.call("trace_begin", name)
    finally:
        local.call("trace_end", name)


def test_where_nothing_can_be_traced_the_devices_counters_are_read(
    local: AgentMachine, on_disk: Path, in_memory: Path
) -> None:
    """Somebody else may write meanwhile: then it says that it cannot tell, and never the wrong thing."""

    def commit(folder: Path) -> Callable[[], object]:
        return lambda: local.call("commit", {"folder": str(folder), "size_bytes": 4096, "count": commits.COMMITS})

    reached = commits._by_counters(local, commit(on_disk), "no root")
    assert reached.passed is not False
    assert "no root" in reached.text or "others write" in reached.text
    assert commits._by_counters(local, commit(in_memory), "no root").passed is not True


# --- through the runner and the analysis -----------------------------------------------------------------------------------

MEDDLED = """
question = "Does each check find what is wrong with an arm?"
baseline = "native"
[engine]
name = "postgres"
[workload]
name = "tpch"
scale = 0.01
queries = ["Q1", "Q6"]
[resources]
memory = "1 GiB"
[precision]
rounds_min = 2
[[arm]]
name = "native"
stack = "native"
[[arm]]
name = "wrong"
stack = "native"
[[arm]]
name = "planned"
stack = "native"
[[arm]]
name = "settled"
stack = "native"
[[arm]]
name = "volatile"
stack = "native"
[[arm]]
name = "widened"
stack = "native"
[[arm]]
name = "held"
stack = "native:cpu_quota=0.5"
[[arm]]
name = "restless"
stack = "native"
"""
ROUNDS, TROUBLED = 3, 2
"""The last round, in which one arm does not sleep and somebody else uses the arms' processor."""
AT_FIRST = frozenset({"wrong", "volatile", "widened", "held"})
"""Arms of the first round alone: what is found of them is the same in each. That all are named is asked of another."""


class Meddler(Engine):
    """PostgreSQL; but in the arm that is called so, something is not as it should be."""

    def start(self, machine: Machine, place: ServerPlace, settings: Mapping[str, str]) -> Server:
        assert isinstance(machine, AgentMachine)
        settings = {**settings, **self.settings_in(machine)}
        server = super().start(machine, place, settings)
        session = machine.serial(server.address, connection="persistent")
        try:
            for arm, statements in self.SQL.items():
                if f"-{arm}-" in machine.name:
                    for sql in statements:
                        session.query(sql)
        finally:
            session.close()
        if "-widened-" in machine.name:
            widen(machine)
        if "-restless-" in machine.name:
            machine.spawn(["sh", "-c", "while :; do :; done"])
            machine.freeze = lambda: None  # type: ignore[attr-defined]
        return server

    SQL: Mapping[str, tuple[str, ...]] = {
        "wrong": ("UPDATE lineitem SET l_extendedprice = l_extendedprice + 1",),
        "planned": (
            "CREATE INDEX covering ON lineitem (l_shipdate, l_discount, l_quantity, l_extendedprice)",
            "VACUUM lineitem",
        ),
    }

    @staticmethod
    def settings_in(machine: Machine) -> dict[str, str]:
        if "-settled-" in machine.name:
            return {"work_mem": "64kB"}
        return {"fsync": "off"} if "-volatile-" in machine.name else {}


def widen(machine: AgentMachine) -> None:
    """Somebody gives the arm one more processor, behind the runner's back."""
    every = os.sched_getaffinity(1)
    pid = machine.hello()["pid"]
    trees = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        path = line.split(":", 2)[2]
        for file in (Path(f"{tree}{path}") / "cpuset.cpus" for tree in trees if path != "/"):
            if file.exists():
                file.write_text(",".join(map(str, sorted(every))))
    os.sched_setaffinity(pid, every)


@pytest.fixture(scope="module")
def meddled(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What is said of three rounds over native arms in which something is wrong."""
    folder = tmp_path_factory.mktemp("meddled")
    asked = spec.parse(MEDDLED, "meddled.toml")
    try:
        with ready(asked, folder, Quiet(lambda _: None)) as prepared:
            measure(asked, prepared, folder)
    except Unavailable as lack:
        pytest.skip(str(lack))
    assert leftovers(folder) == []
    return results.analyze(folder)


def measure(asked: Experiment, prepared: Prepared, folder: Path) -> None:
    plan = Plan(asked, prepared.queries, 2, {})
    meddler = Meddler(asked.configuration.engine.options)
    by_arm = {name: replace(own, engine=meddler) for name, own in prepared.inputs.by_arm.items()}
    inputs = replace(prepared.inputs, by_arm=by_arm)
    plan_file = PlanFile(experiment=asked, queries=prepared.queries, blocks=2)
    with RunWriter.create(folder, spec=MEDDLED.encode(), plan=plan_file, facts=prepared.facts) as writer:
        for index in range(ROUNDS):
            troubled = index == TROUBLED
            left_out = frozenset() if troubled else frozenset({"restless"})
            left_out |= AT_FIRST if index > 0 else frozenset()
            writer.append(RoundBegin(round=index, attempt=0, elapsed_s=0.0))
            run = RoundRun(
                prepared.context, inputs, plan.round(index), writer.append, Quiet(lambda _: None), Budget(float("inf")),
                None, set(), left_out,
            )  # fmt: skip
            with other_host_load(prepared.context.cpuset[0]) if troubled else ExitStack():
                run.measure()
            writer.append(RoundEnd(round=index, attempt=0, complete=True, elapsed_s=1.0))
        writer.append(RunEnd(reason="rounds_max", elapsed_s=2.0))


@contextmanager
def other_host_load(cpu: int) -> Iterator[None]:
    """Somebody else's program on the arms' processor."""
    burning = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"]
    with subprocess.Popen(burning) as process:
        try:
            yield
        finally:
            process.kill()


def arm_of(result: Result, name: str) -> ArmResult:
    return next(arm for arm in result.arms if arm.name == name)


def check_of(result: Result, arm: str, name: str) -> CheckResult:
    return next(check for check in arm_of(result, arm).checks if check.name == name)


def test_a_wrong_answer_makes_the_arm_invalid(meddled: Result) -> None:
    check = check_of(meddled, "wrong", "equal_answers")
    assert check.passed is False and check.voids
    assert "Q1" in check.finding and "Q6" in check.finding and "row 1" in check.finding
    assert arm_of(meddled, "wrong").outcome is Outcome.INVALID
    assert check_of(meddled, "settled", "equal_answers").passed is True


def test_a_changed_plan_is_labelled_and_split_off(meddled: Result) -> None:
    check = check_of(meddled, "planned", "same_plans")
    assert check.passed is False and not check.voids
    assert check.finding == "other plans than the baseline: Q6"
    (same,) = [c for c in meddled.comparisons if (c.arm, c.estimand) == ("planned", "geomean_same_plans")]
    assert same.left_out == ("Q6: another plan",)
    assert same.estimate is not None
    (alone,) = [c for c in meddled.comparisons if (c.arm, c.estimand) == ("planned", "query:Q1")]
    assert same.estimate == pytest.approx(alone.estimate)


def test_other_settings_void_the_start(meddled: Result) -> None:
    check = check_of(meddled, "settled", "same_server")
    assert check.void_rounds == (0, 1, 2)
    assert check.finding == "other than in the baseline: work_mem 64kB (built-in)"
    assert arm_of(meddled, "settled").outcome is Outcome.INVALID
    assert check_of(meddled, "native (A/A)", "same_server").passed is True


def test_fsync_off_is_seen_as_a_setting_and_at_the_device(meddled: Result) -> None:
    check = check_of(meddled, "volatile", "commit_reaches_device")
    assert check.passed is False and check.rounds_failed == (0,)
    assert not check.voids  # TPC-H reads only
    assert "postgres: of 5 that were acknowledged none reached a block device" in check.finding
    assert "fsync off (built-in)" in check_of(meddled, "volatile", "same_server").finding
    assert check_of(meddled, "native", "commit_reaches_device").passed is True


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a second processor to give away")
def test_more_processors_void_the_start(meddled: Result) -> None:
    check = check_of(meddled, "widened", "same_resources")
    assert check.passed is False and check.void_rounds == (0,)
    assert f"processors {len(os.sched_getaffinity(0))} (1)" in check.finding


def test_a_quota_that_was_asked_for_is_named(meddled: Result) -> None:
    check = check_of(meddled, "held", "same_resources")
    assert check.passed is False and not check.voids
    assert check.finding == "other than in the baseline: CPU quota 0.5 (none), as asked for"
    assert check_of(meddled, "native", "same_resources").passed is True


def test_a_neighbour_that_is_awake_voids_the_visits(meddled: Result) -> None:
    for arm in ("native", "native (A/A)", "planned"):
        check = check_of(meddled, arm, "others_asleep")
        assert check.passed is False and check.rounds_failed == (TROUBLED,)
        assert check.void_visits > 0


def test_somebody_elses_load_on_the_arms_processor_is_seen(meddled: Result) -> None:
    check = check_of(meddled, "planned", "other_host_load")
    assert check.passed is False and TROUBLED in check.rounds_failed
    pressure = check_of(meddled, "planned", "pressure")
    assert pressure.passed is False and TROUBLED in pressure.rounds_failed


def test_a_driver_that_takes_the_arms_time_is_seen(run_folder: Path) -> None:
    """A server that answers at once: half of the time is the driver's."""
    text = 'question = "What does the driver take?"\nbaseline = "native"\n[engine]\nname = "noop"\n'
    text += '[workload]\nname = "tpch"\nqueries = ["Q1", "Q6", "Q14"]\n'
    text += '[[arm]]\nname = "native"\nstack = "native"\n'
    result = measure_one_round(text, run_folder, blocks=20)
    check = check_of(result, "native", "driver_cpu_share")
    assert check.passed is False and not check.voids
    nothing = check_of(result, "native", "commit_reaches_device")
    assert (nothing.passed, nothing.finding) == (None, "noop keeps no data")
    assert check_of(result, "native", "same_server").passed is None
