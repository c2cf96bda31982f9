"""Threads of a query as a factor: what may be asked for, how it is planned, set, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from dbtoll import registry, spec
from dbtoll.analysis.result.builder import analyze
from dbtoll.analysis.result.schema import Result, SpeedUp
from dbtoll.analysis.visits.valid import ValidVisits
from dbtoll.errors import EngineError, SpecError, UsageError
from dbtoll.interfaces.engine import ThreadedEngine
from dbtoll.model.description import EngineDescription
from dbtoll.model.experiment import Arm, Step
from dbtoll.model.machine import Address
from dbtoll.plan import Plan
from dbtoll.report import page, scaling, tables
from dbtoll.report.figures import scaling as figure
from dbtoll.report.text import sentences
from dbtoll.runner.arms import RunningArm
from dbtoll.spec.command_line import COMMAND_LINE
from dbtoll.store.contents import Expected, demand_plan
from dbtoll.store.reader import read_run
from dbtoll.store.schema import Fingerprint, PlanFile, Record, RoundBegin, Visit
from tests.support.changed import Change, changed_run, revised
from tests.support.make_run import DOCKER, NATIVE, QUERIES, experiment, make_run


def asked(threads: str, *, engine: str = "duckdb", options: str = "", resources: str = "cpus = 6") -> str:
    return f"""
[engine]
name = "{engine}"
{options}
[factors]
threads = {threads}
[resources]
{resources}
[[arm]]
stack = "native"
"""


# --- what may be asked for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "levels"),
    [
        ("[1, 2, 4]", ("1", "2", "4")),
        ('["4", "1"]', ("1", "4")),
        ("2", ("2",)),
        ('"doubling"', ("1", "2", "4", "6")),
        ('["doubling", 3]', ("1", "2", "3", "4", "6")),
    ],
)
def test_levels_are_rising_numbers(threads: str, levels: tuple[str, ...]) -> None:
    read = spec.parse(asked(threads), "x.toml")
    assert read.factors["threads"] == levels
    assert list(read.factors) == ["cache", "threads", "connection", "query_protocol"]
    assert not read.unsupported
    demand_plan(PlanFile(experiment=read, queries=("Q1",), blocks=1))


@pytest.mark.parametrize(("cpus", "levels"), [(2, "1 2"), (4, "1 2 4"), (7, "1 2 4 7"), (8, "1 2 4 8")])
def test_doubling_ends_with_the_processors(cpus: int, levels: str) -> None:
    read = spec.parse(asked('"doubling"', resources=f"cpus = {cpus}"), "x.toml")
    assert " ".join(read.factors["threads"]) == levels


def test_where_nobody_asks_it_is_no_factor() -> None:
    assert "threads" not in spec.parse('[engine]\nname = "hyper"\n[[arm]]\nstack = "native"\n', "x.toml").factors


@pytest.mark.parametrize(
    "threads", ['"two"', "[]", "[0]", "[-1, 2]", "[2, 2]", '["2", 2]', "[1.5]", "[true]", "[1025]", '["1_0"]', "[[1]]"]
)
def test_what_is_no_number_of_threads_is_refused(threads: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(asked(threads, resources="cpus = 2000"), "x.toml")
    assert caught.value.message.startswith("x.toml:6: ")
    assert "are not numbers of threads" in caught.value.message
    assert "1, 2, 4 … up to the arm's processors" in caught.value.hint


def test_more_threads_than_processors_are_meant_only_where_it_is_said() -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(asked("[1, 8]"), "x.toml")
    assert caught.value.message == "x.toml:6: 8 threads on 6 processors"
    assert "cpus = 8 under [resources]" in caught.value.hint
    assert "oversubscribe = true under [resources]" in caught.value.hint
    read = spec.parse(asked("[1, 8]", resources="cpus = 6\noversubscribe = true"), "x.toml")
    assert read.factors["threads"] == ("1", "8")
    # What stands for the processors never goes beyond them.
    read = spec.parse(asked('"doubling"', resources="cpus = 6\noversubscribe = true"), "x.toml")
    assert read.factors["threads"] == ("1", "2", "4", "6")


@pytest.mark.parametrize(
    ("engine", "options", "asked_for", "line"),
    [
        ("duckdb", "threads = 16", "option threads: 16 threads on 2 processors", 4),
        ("monetdb", "threads = 3", "option threads: 3 threads on 2 processors", 4),
        (
            "hyper",
            "threads = 2\n[engine.settings]\nhard-concurrent-query-thread-limit = 64",
            "setting hard_concurrent_query_thread_limit: 64 threads on 2 processors",
            5,
        ),
        ("duckdb", "settings = { threads = 16 }", "setting threads: 16 threads on 2 processors", 4),
        (
            "postgres",
            "settings = { max_parallel_workers_per_gather = 2 }",
            "setting max_parallel_workers_per_gather: 3 threads on 2 processors",
            4,
        ),
    ],
)
def test_an_engine_is_told_of_more_threads_than_processors_only_where_it_is_said(
    engine: str, options: str, asked_for: str, line: int
) -> None:
    text = f'[engine]\nname = "{engine}"\n\n{options}\n[resources]\ncpus = 2\n[[arm]]\nstack = "native"\n'
    with pytest.raises(SpecError) as caught:
        spec.parse(text, "x.toml")
    assert caught.value.message == f"x.toml:{line}: engine {engine}: {asked_for}"
    assert "oversubscribe = true under [resources]" in caught.value.hint
    spec.parse(text.replace("cpus = 2", "cpus = 2\noversubscribe = true"), "x.toml")
    spec.parse(text.replace("cpus = 2", "cpus = 64"), "x.toml")


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("duckdb", "settings = { worker_threads = 64 }"),  # no number of threads of a query, as far as the engine says
        ("postgres", "settings = { max_parallel_workers = 64 }"),  # of the whole server, whose queries it gives none
        ("postgres", "settings = { max_parallel_workers_per_gather = 8, max_parallel_workers = 1 }"),
        ("mariadb", "settings = { thread-pool-size = 64 }"),
    ],
)
def test_other_settings_are_left_alone(engine: str, options: str) -> None:
    spec.parse(f'[engine]\nname = "{engine}"\n{options}\n[resources]\ncpus = 2\n[[arm]]\nstack = "native"\n', "x.toml")


def test_a_command_line_is_told_its_options() -> None:
    with pytest.raises(UsageError) as caught:
        spec.parse(asked('["1", "4"]', resources="cpus = 1"), COMMAND_LINE)
    assert caught.value.message == "4 threads on 1 processor"
    assert "--cpus 4" in caught.value.hint
    assert "--oversubscribe" in caught.value.hint


def test_one_processor_is_nothing_to_double() -> None:
    with pytest.raises(SpecError, match="an arm has one processor"):
        spec.parse(asked('"doubling"', resources="cpus = 1"), "x.toml")


@pytest.mark.parametrize(
    ("engine", "options", "place"),
    [
        ("duckdb", "threads = 2", "option threads"),
        ("duckdb", "settings = { threads = 2 }", "setting threads"),
        (
            "hyper",
            "settings = { hard-concurrent-query-thread-limit = 2 }",
            "setting hard_concurrent_query_thread_limit",
        ),
        ("monetdb", "threads = 1", "option threads"),
        ("postgres", "settings = { max_parallel_workers = 2 }", "setting max_parallel_workers"),
    ],
)
def test_threads_are_not_said_twice(engine: str, options: str, place: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(asked("[1, 2]", engine=engine, options=options), "x.toml")
    assert f"engine {engine}: its {place} and the factor threads both say" in caught.value.message
    assert "leave out one of them" in caught.value.hint


def test_an_engine_whose_queries_have_one_thread_says_so() -> None:
    read = spec.parse(asked("[1, 2, 4]", engine="mariadb"), "x.toml")
    assert read.factors["threads"] == ("1",)
    assert read.unsupported == {"threads": {"2": "a query has one thread", "4": "a query has one thread"}}
    with pytest.raises(SpecError, match="mariadb has no threads to choose: a query has one thread") as caught:
        spec.parse(asked("[2, 4]", engine="mariadb"), "x.toml")
    assert "duckdb, hyper, monetdb, postgres" in caught.value.hint


def test_transactions_have_no_threads_of_a_query() -> None:
    text = asked("[1, 2]", engine="postgres").replace("[factors]", '[workload]\nname = "tpcc"\n[factors]')
    with pytest.raises(SpecError, match="unknown key 'threads'"):
        spec.parse(text, "x.toml")


@pytest.mark.parametrize(
    "name", [name for name in registry.names("engines") if name not in ("no_server", "noop", "mariadb")]
)
def test_settings_differ_by_threads(name: str) -> None:
    engine = registry.find("engines", name)({})
    assert isinstance(engine, ThreadedEngine)
    assert engine.settings_of_threads(1) != engine.settings_of_threads(2)


def test_postgres_has_a_leader_and_workers() -> None:
    engine = registry.find("engines", "postgres")({})
    told = [engine.settings_of_threads(n) for n in (1, 4, 16)]
    assert [each["max_parallel_workers_per_gather"] for each in told] == ["0", "3", "15"]
    assert [each["max_parallel_workers"] for each in told] == ["0", "3", "15"]
    assert [each["max_worker_processes"] for each in told] == ["8", "8", "15"]


# --- how it is planned -------------------------------------------------------------------------------------------------


def order(plan: Plan, index: int, cache: str = "warm") -> list[str]:
    return [each.levels["threads"] for each in plan.round(index).phases if each.levels["cache"] == cache]


def test_the_order_of_threads_is_drawn_for_two_rounds_and_turned_round_in_the_second() -> None:
    plan = Plan(experiment(threads=("1", "2", "4"), cold=True), QUERIES, 1, {})
    orders = [order(plan, index) for index in range(40)]
    for first, second in zip(orders[::2], orders[1::2], strict=True):
        assert first == second[::-1]
    assert len({tuple(each) for each in orders}) == 6
    assert [order(plan, index, "cold") for index in range(40)] == orders
    caches = [phase.levels["cache"] for phase in plan.round(3).phases]
    assert caches == ["warm"] * 3 + ["cold"] * 3


def test_all_threads_of_a_round_have_the_same_parameters() -> None:
    plan = Plan(experiment(threads=("1", "2", "4")), QUERIES, 4, {})
    drawn = set()
    for index in range(10):
        sets = {tuple(block.parameter_set for block in phase.blocks) for phase in plan.round(index).phases}
        assert len(sets) == 1
        drawn |= sets
    assert len(drawn) > 5


# --- how it is set -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Sessions:
    """A machine that has nothing but sessions."""

    name: str = "a"

    def serial(self, address: Any, *, connection: str) -> Any:
        return self

    def close(self) -> None:
        pass


@dataclass
class Threaded:
    """An engine that notes its starts. ``gives``: threads that it gives instead; ``also``: a setting that goes along."""

    gives: int | None = None
    also: str | None = None
    starts: list[str] = field(default_factory=list)
    description = EngineDescription("Threaded", location_settings={"port": "drawn"})
    thread_settings = ("workers",)
    following_settings = ("memory_of_each",)

    def settings_of_threads(self, threads: int) -> dict[str, str]:
        return {"workers": str(threads)}

    def threads_asked_for(self) -> None:
        return None

    def threads(self, session: Any) -> int:
        return self.gives or int(self.starts[-1])

    def facts(self, session: Any) -> dict[str, Any]:
        now = self.starts[-1]
        told = {"workers": now, "memory_of_each": now, "port": str(len(self.starts)), "jit": "off"}
        return {"settings": told | ({self.also: now} if self.also else {})}

    def start(self, machine: Any, place: Any, settings: dict[str, str]) -> Any:
        self.starts.append(settings["workers"])
        return self

    address = Address("postgres", "u", "d")

    def stop(self, machine: Any, server: Any) -> None:
        pass


def running(engine: Threaded) -> RunningArm:
    arm = RunningArm(
        Arm("a", (Step("native"),)),
        (Sessions(),),
        engine,
        {"workers": "9"},
        ExitStack(),
        threads=1,  # type: ignore[arg-type]
    )
    arm.start_servers()
    return arm


def test_a_server_is_started_again_where_the_number_changes() -> None:
    engine = Threaded()
    arm = running(engine)
    arm.warmed_up = True
    arm.use_threads(1)
    assert engine.starts == ["1"]
    assert arm.warmed_up
    arm.use_threads(2)
    assert engine.starts == ["1", "2"]
    assert not arm.warmed_up
    arm.use_threads(1)
    assert engine.starts == ["1", "2", "1"]


def test_a_server_that_gives_another_number_is_found() -> None:
    arm = running(Threaded(gives=3))
    for threads in (1, 2):
        with pytest.raises(EngineError, match=f"gives a query 3 threads, not {threads}"):
            arm.use_threads(threads)


def test_a_setting_that_goes_along_is_found() -> None:
    with pytest.raises(EngineError, match="with 2 threads its server has other settings too: jit"):
        running(Threaded(also="jit")).use_threads(2)


# --- what becomes of it ------------------------------------------------------------------------------------------------

SERIAL = {NATIVE: 0.05, "native (A/A)": 0.05, DOCKER: 0.2}


def amdahl(serial: float, threads: int) -> float:
    return 1 / (serial + (1 - serial) / threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("threads") / "run"
    return make_run(made, rounds=6, blocks=2, threads=("1", "2", "4"), serial_fractions=SERIAL, start_sd=0.3, drift=0.0)


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return analyze(folder)


def of(result: Result, arm: str, threads: int, estimand: str = "geomean") -> SpeedUp:
    (found,) = [e for e in result.speed_ups if (e.arm, e.threads, e.estimand) == (arm, threads, estimand)]
    return found


@pytest.mark.parametrize("arm", SERIAL)
@pytest.mark.parametrize("threads", [2, 4])
def test_speed_ups_are_those_that_were_planted(result: Result, arm: str, threads: int) -> None:
    found, planted = of(result, arm, threads), amdahl(SERIAL[arm], threads)
    assert found.against == 1
    assert found.rounds == 6
    assert found.levels == {"cache": "warm", "connection": "persistent"}
    assert found.estimate == pytest.approx(planted, rel=0.05)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.estimate < found.high
    # Starts differ by 30 %, but both numbers of threads belong to the same start.
    assert (found.high - found.low) / found.estimate < 0.1
    of_query = of(result, arm, threads, "query:Q6")
    assert of_query.estimate == pytest.approx(planted, rel=0.1)
    assert len(result.speed_ups) == 3 * 2 * 23


def test_four_against_one_is_a_contrast(result: Result) -> None:
    (found,) = [c for c in result.contrasts if (c.arm, c.factor, c.level, c.against) == (DOCKER, "threads", "4", "1")]
    planted = amdahl(SERIAL[NATIVE], 4) / amdahl(SERIAL[DOCKER], 4) - 1
    assert found.low is not None
    assert found.high is not None
    assert found.low < planted < found.high
    said = " ".join(sentences.contrasts(result))
    assert "Docker: 4 threads, not 1 thread, beyond what that does to native: takes" in said


def test_what_failed_has_no_speed_up_and_what_was_cut_has_a_bound(folder: Path, tmp_path: Path) -> None:
    def ended(outcome: str) -> Change:
        def change(record: Record) -> Iterable[Record]:
            if (
                isinstance(record, Visit)
                and (record.arm, record.query) == (DOCKER, "Q6")
                and record.levels["threads"] == "4"
            ):
                record = revised(
                    record, executions=[structs.replace(each, outcome=outcome) for each in record.units[0].executions]
                )
            yield record

        return change

    failed = analyze(changed_run(folder, tmp_path / "failed", ended("error")))
    assert of(failed, DOCKER, 4, "query:Q6").estimate is None
    assert "failed" in str(of(failed, DOCKER, 4, "query:Q6").reason)
    assert of(failed, DOCKER, 4).estimate is None
    assert of(failed, DOCKER, 2).estimate is not None
    assert of(failed, NATIVE, 4).estimate is not None
    cut = analyze(changed_run(folder, tmp_path / "cut", ended("timeout")))
    bound = of(cut, DOCKER, 4, "query:Q6")
    assert (bound.estimate, bound.low) == (None, None)
    assert bound.high is not None
    assert scaling.speed_text(bound).startswith("at most ")


def test_plans_are_compared_at_each_number_of_threads(folder: Path, tmp_path: Path) -> None:
    def parallel(record: Record) -> Iterable[Record]:
        if isinstance(record, Fingerprint) and record.levels["threads"] == "4":
            otherwise = "-otherwise" if (record.arm, record.query) == (DOCKER, "Q1") else ""
            record = revised(record, fingerprint=f"{record.fingerprint}-gathered{otherwise}")  # gathered in all arms
        yield record

    made = changed_run(folder, tmp_path / "run", parallel)
    told = {(p.arm, p.query, p.levels["threads"]) for p in analyze(made).plans_changed}
    assert told == {(DOCKER, "Q9", "1"), (DOCKER, "Q9", "2"), (DOCKER, "Q9", "4"), (DOCKER, "Q1", "4")}
    measured = ValidVisits(read_run(made))
    others = [measured.other_plans({"cache": "warm", "threads": n, "connection": "persistent"}) for n in ("1", "4")]
    assert others == [{DOCKER: {"Q9"}}, {DOCKER: {"Q1", "Q9"}}]


def test_the_page_and_the_tables_show_them(folder: Path, result: Result) -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(tables.terminal(result))
    assert "Times as fast as with 1 thread" in captured.get()
    shown = page.render(result, read_run(folder))
    assert 'id="scaling"' in shown
    assert shown.count('class="mark"') == 3 * 3
    assert shown.count('class="reach"') == 3 * 2
    (group,) = scaling.groups(result)
    assert group.threads == [1, 2, 4]
    for arm in SERIAL:
        assert scaling.speed_text(group.geomean(arm, 4)) in shown


def test_a_figure_has_the_ideal_up_to_the_processors(result: Result) -> None:
    (group,) = scaling.groups(result)
    arms = [arm.name for arm in result.arms]
    drawn, narrow = figure.scaling(group, arms, 4), figure.scaling(group, arms, 2)
    assert drawn is not None
    assert narrow is not None
    heights = [[float(part.split()[1]) for part in each.ideal.lstrip("M").split("L")] for each in (drawn, narrow)]
    assert heights[0][0] > heights[0][1] > heights[0][2]  # from the top: higher is less
    assert heights[1][0] > heights[1][1] == heights[1][2]
    assert [tick.label for tick in drawn.thread_ticks] == ["1", "2", "4"]
    docker = next(curve for curve in drawn.curves if curve.arm == DOCKER)
    native = next(curve for curve in drawn.curves if curve.arm == NATIVE)
    assert docker.points[-1].y > native.points[-1].y
    assert docker.points[-1].high < docker.points[-1].y < docker.points[-1].low  # type: ignore[operator]


def test_without_the_factor_there_are_none(tmp_path: Path) -> None:
    result = analyze(make_run(tmp_path / "run", rounds=5))
    assert result.speed_ups == ()
    assert scaling.groups(result) == []
    assert "scaling-title" not in page.render(result, read_run(tmp_path / "run"))


# --- folders that somebody sends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [("0", "1"), ("2", "1"), ("1", "1"), ("01",), ("one",), ("-1",), ("²",)])
def test_levels_of_a_plan_are_rising_numbers(levels: tuple[str, ...]) -> None:
    read = spec.parse(asked("[1, 2]"), "x.toml")
    plan = PlanFile(experiment=replace(read, factors={**read.factors, "threads": levels}), queries=("Q1",), blocks=1)
    with pytest.raises(ValueError, match="threads"):
        demand_plan(plan)


@pytest.mark.parametrize("levels", [{"threads": "4"}, {"speed": "1"}, {"cache": "cold"}])
def test_a_plan_of_a_query_is_at_levels_of_the_experiment(levels: dict[str, str]) -> None:
    read = spec.parse(asked("[1, 2]"), "x.toml")
    expected = Expected(PlanFile(experiment=read, queries=("Q1",), blocks=1))
    expected.demand(RoundBegin(round=0, attempt=0, elapsed_s=0.0))
    record = Fingerprint(round=0, arm="native", query="Q1", parameter_set=0, fingerprint="f", levels={"threads": "2"})
    expected.demand(record)
    with pytest.raises(ValueError, match="no levels"):
        expected.demand(Fingerprint(round=0, arm="native", query="Q1", parameter_set=0, fingerprint="f", levels=levels))
