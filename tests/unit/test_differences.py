"""Arms that differ in more than their environment: how they are asked for, held against each other, checked and shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dbtoll import spec
from dbtoll.analysis.checks.differences import asked_of_resources
from dbtoll.analysis.effects import overhead_gate, stopping
from dbtoll.analysis.effects.comparisons import GEOMEAN, Effect, compare, of_both_sides, pairs, reach
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result import provenance
from dbtoll.analysis.result.schema import ArmResult, Result
from dbtoll.analysis.visits.arrays import TimeArray
from dbtoll.errors import DbtollError, SpecError, UsageError
from dbtoll.model.experiment import Arm, Experiment, GateDecision, Precision
from dbtoll.report import page, summary
from dbtoll.report.export.results import result_rows
from dbtoll.report.text import sentences
from dbtoll.runner.pilot import slow_arms
from dbtoll.spec import command_line
from dbtoll.spec.differences import sides
from dbtoll.store import upgrade
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import PlanFile, Record, RoundBegin, RoundEnd, Start
from dbtoll.store.writer import RunWriter
from tests.support.changed import revised
from tests.support.make_run import COPY, DOCKER, FACTS, NATIVE, QUERIES, make_run

TWO = """
[engine]
settings = { jit = "off", work_mem = "64MB" }

[[arm]]
name = "old"
stack = "native"

[[arm]]
name = "new"
stack = "native"
[arm.engine]
version = "17"
settings = { jit = "on" }
[arm.resources]
memory = "2 GiB"
[arm.workload]
indexes = "dates"
"""


def parsed(text: str) -> Experiment:
    return spec.parse(text, "x.toml")


def compared(
    *arms: str, stacks: tuple[str, ...] = (), baseline: str | None = None, engine: str = "postgres"
) -> Experiment:
    """What `dbtoll compare` makes of its ``--arm``\\ s."""
    text = command_line.comparison(
        stacks, arms=arms, baseline=baseline, engine=engine, engine_options={}, workload="tpch",
        workload_options={"scale": 0.01}, tables={}, top={},
    )  # fmt: skip
    return spec.parse(text, command_line.COMMAND_LINE)


# --- how they are asked for --------------------------------------------------------------------------------------------


def test_an_arm_has_what_all_have_but_for_what_is_its_own() -> None:
    asked = parsed(TWO)
    old, new = (asked.arm(name).configuration for name in ("old", "new"))
    assert old == asked.configuration
    assert old.image == {"suite": "bookworm"} and new.image == {"suite": "trixie"}
    assert new.engine.options["settings"] == {"jit": "on", "work_mem": "64MB"}
    assert new.resources.memory_bytes == 2 << 30 and new.resources.cpus == old.resources.cpus
    assert {(each.part, each.name): (each.value, each.other) for each in new.differences(old)} == {
        ("image", "suite"): ("trixie", "bookworm"),
        ("engine", "jit"): ("on", "off"),
        ("resources", "memory_bytes"): (2 << 30, 4 << 30),
        ("workload", "indexes"): ("dates", "keys"),
    }
    assert not old.differences(old)


def test_another_engine_takes_nothing_over() -> None:
    asked = parsed(TWO.replace('version = "17"\nsettings = { jit = "on" }', 'name = "duckdb"'))
    assert asked.arm("new").configuration.engine.options["settings"] == {}
    assert asked.arm("new").configuration.image == {"suite": "bookworm"}


@pytest.mark.parametrize(
    ("own", "image"),
    [
        ('[arm.engine]\nversion = "17"', "trixie"),
        ('[arm.engine]\nversion = "15"', "bookworm"),
        ('[arm.image]\nsuite = "trixie"', "trixie"),
        ('[arm.engine]\nname = "mariadb"\nversion = "11.8"', "trixie"),
        ('[arm.engine]\nname = "mariadb"\nversion = "10"', "bookworm"),
        ('[arm.engine]\nname = "duckdb"', "bookworm"),
    ],
)
def test_a_version_chooses_the_suite_that_has_it(own: str, image: str) -> None:
    """And an image of the arm's own wins over the version of all."""
    text = f'[engine]\nversion = "15"\n[[arm]]\nstack = "native"\n[[arm]]\nname = "new"\nstack = "native"\n{own}\n'
    asked = parsed(text)
    assert asked.configuration.image == {"suite": "bookworm"}
    assert asked.arm("new").configuration.image == {"suite": image}


@pytest.mark.parametrize(
    ("own", "line", "said", "hint"),
    [
        ('[arm.engine]\nversion = "16"', 9, "there is no PostgreSQL 16", "15 (bookworm), 17 (trixie)"),
        ('[arm.engine]\nversion = "1"', 9, "there is no PostgreSQL 1", "15 (bookworm), 17 (trixie)"),
        ('[arm.engine]\nname = "hyper"\nversion = "8"', 10, "there is no HyPer 8", "9.1 (bookworm, trixie)"),
        ('[arm.engine]\nversion = 17', 9, "17 is not a text", 'version = "17"'),
        ('[arm.engine]\nversion = "17"\n[arm.image]\nsuite = "bookworm"', 9, "has PostgreSQL 15, not 17", "take trixie"),
        ('[arm.engine]\nversion = "17"\n[arm.image]\npath = "/tmp"', 9, "image of your own", "leave the version out"),
        ('[arm.engine]\nsetings = {}', 9, "no option 'setings'", "did you mean settings?"),
        ('[arm.image]\nsuit = "trixie"', 9, "unknown key 'suit' in [arm.image]", "did you mean suite?"),
        ('[arm.resources]\nmemroy = "1 GiB"', 9, "unknown key 'memroy' in [arm.resources]", "did you mean memory?"),
        ('[arm.resources]\nmemory = "1 MiB"', 9, "at least 256 MiB", "memory"),
        ('[arm.workload]\nname = "tatp"', 9, "has another workload, tatp, than tpch", "another run"),
        ('[arm.workload]\nqueries = ["Q1"]', 9, "asked unlike queries: Q10", "the same queries"),
        ('against = "nobody"', 8, "cannot be held against 'nobody'", "native"),
        ('against = "new"', 8, "cannot be held against 'new'", "native"),
        ('engine = "postgres"', 8, "engine is a table", "[arm.engine]"),
        ('[arm.engine]\nname = "no_server"', 9, "cannot be asked of no_server", "postgres"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_error_with_its_line(own: str, line: int, said: str, hint: str) -> None:
    text = f'[workload]\nname = "tpch"\n[[arm]]\nstack = "native"\n[[arm]]\nname = "new"\nstack = "native"\n{own}\n'
    with pytest.raises(SpecError) as caught:
        parsed(text)
    assert said in caught.value.message and hint in caught.value.hint
    assert caught.value.message.startswith(f"x.toml:{line}: ")


def test_an_open_loop_is_not_held_against_a_closed_one() -> None:
    text = '[workload]\nname = "tatp"\n[[arm]]\nstack = "native"\n[[arm]]\nname = "b"\nstack = "native"\n[arm.workload]\nrate = 5\n'
    with pytest.raises(SpecError, match=r"x.toml:9: b and native are compared by unlike figures"):
        parsed(text)


def test_the_short_form_says_the_same_as_a_specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.conf").write_text("work_mem = '8MB'\n")
    asked = compared(
        "old: native, settings=old.conf",
        "new: docker:runsc,network=host, engine=postgres:17, settings.jit=on,memory=2GiB, cpus=1, indexes=dates",
    )
    old, new = asked.arm("old"), asked.arm("new")
    assert old.configuration.engine.options["settings_file"] == str(tmp_path / "old.conf")
    assert new.text == "docker:runsc,network=host" and new.configuration.image == {"suite": "trixie"}
    assert new.configuration.engine.options["settings"] == {"jit": "on"}
    assert new.configuration.engine.options["settings_file"] == ""
    assert new.configuration.resources.memory_bytes == 2 << 30
    assert new.configuration.workload.options == {**old.configuration.workload.options, "indexes": "dates"}
    assert [arm.name for arm in asked.arms] == ["old", "old (A/A)", "new", "new (A/A)"]
    assert "PostgreSQL 17" in asked.question and "PostgreSQL 15" in asked.question


@pytest.mark.parametrize(
    ("arms", "said", "hint"),
    [
        (("a: native, memroy=2GiB",), "an arm has no 'memroy'", "memory"),
        (("a: native, jit=on",), "an arm has no 'jit'", "settings.NAME"),
        (("a: native", "a: docker"), "two arms have one name", "NAME: ENV"),
        (("a: native, engine=oracle",), "no engine named 'oracle'", "postgres"),
        (("a: native", "b: native, engine=hyper, settings=x.cnf"), "no option 'settings_file'", "settings"),
        (("a: native", "b: native, against=c"), "cannot be held against 'c'", "a"),
        (("a: native", "b: native, against=c", "c: native, against=b"), "held against itself", "held against a"),
        (("a: native, against=b", "b: native"), "the baseline is held against no arm", "baseline"),
        (("a: natvie",), "no environment named 'natvie'", "native"),
    ],
)
def test_a_wrong_arm_of_a_command_line_is_one_error(arms: tuple[str, ...], said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        compared(*arms)
    assert said in caught.value.message and hint in caught.value.hint


# --- what they are held against ------------------------------------------------------------------------------------------


def held(asked: Experiment) -> dict[str, str | None]:
    return {arm.name: arm.against for arm in asked.arms if arm.copy_of is None}


def test_one_thing_at_a_time_is_compared_unless_something_else_is_said() -> None:
    arms = (
        "old: native",
        "old docker: docker",
        "new: native, engine=postgres:17",
        "new docker: docker, engine=postgres:17",
    )
    asked = compared(*arms)
    assert held(asked) == {"old": None, "old docker": "old", "new": "old", "new docker": "new"}
    assert list(asked.copies) == ["old (A/A)", "new (A/A)"]
    asked = compared(*arms[:3], f"{arms[3]}, against=old docker")
    assert held(asked)["new docker"] == "old docker"
    assert list(asked.copies) == ["old (A/A)", "old docker (A/A)", "new (A/A)", "new docker (A/A)"]
    assert asked.baselines == {"old", "old docker"}


def test_environments_and_arms_can_be_mixed() -> None:
    asked = compared("new: native, engine=postgres:17", stacks=("docker",))
    assert held(asked) == {"native": None, "docker": "native", "new": "native"}
    asked = compared("old: native", "new: native, image=trixie", baseline="new")
    assert held(asked) == {"new": None, "old": "new"}
    assert [arm.name for arm in asked.arms] == ["new", "new (A/A)", "old", "old (A/A)"]
    assert compared("a: native", engine="postgres:17").configuration.image == {"suite": "trixie"}


def test_arms_that_differ_in_the_environment_alone_are_as_ever() -> None:
    asked = compared(stacks=("docker", "uml"))
    assert held(asked) == {"native": None, "docker": "native", "uml": "native"}
    assert asked.copies == {"native (A/A)": "native"} and len(asked.configurations) == 1


def test_an_arm_that_counts_instructions_is_no_baseline() -> None:
    with pytest.raises(UsageError, match="cannot be held against 'b'"):
        compared("a: native", "b: qemu:clock=instructions", "c: native, against=b")


HELD = {"old (A/A)": "old", "new": "old", "new (A/A)": "new", "guest": "new"}
COPIES = {"old (A/A)": "old", "new (A/A)": "new"}
ARMS = ("old", *HELD)


def test_an_arm_is_paired_with_its_baseline_and_the_copies_of_that() -> None:
    found = {pair.arm: ([ARMS[index] for index in pair.references], pair.is_aa) for pair in pairs(ARMS, HELD, COPIES)}
    assert found == {
        "old (A/A)": (["old"], True),
        "new": (["old", "old (A/A)"], False),
        "new (A/A)": (["new"], True),
        "guest": (["new", "new (A/A)"], False),
    }
    without = [arm for arm in ARMS if arm not in ("new", "old (A/A)")]
    assert [pair.arm for pair in pairs(without, HELD, COPIES)] == []


@pytest.mark.parametrize(("copy", "widened"), [("old (A/A)", {"new"}), ("new (A/A)", {"new", "guest"})])
def test_the_copies_of_either_side_widen_a_comparison(copy: str, widened: set[str]) -> None:
    chance = np.random.default_rng(1)
    ns = 1e6 * np.exp(chance.normal(0, 0.001, (8, 2, 3, len(ARMS))))
    ns[..., ARMS.index(copy)] *= 1.2
    times = TimeArray(tuple(range(8)), ("Q1", "Q2", "Q3"), ARMS, ns, np.zeros((3, len(ARMS))))
    effects = compare(times, None, HELD, COPIES, Precision(), per_query=False)
    assert {effect.arm for effect in effects if effect.widened_by} == widened
    assert all(effect.widened_by > math.log(1.15) for effect in effects if effect.widened_by)


def test_the_farther_of_both_copies_counts() -> None:
    aa = [Effect(f"{name} (A/A)", name, True, GEOMEAN, 8) for name in ("old", "new", "other")]
    assert [each.baseline for each in of_both_sides(aa, "new", "old")] == ["old", "new"]
    assert reach(of_both_sides(aa, "guest", "nothing")) == 0.0


def test_a_baseline_stays_where_others_are_held_against_it() -> None:
    asked = compared("old: native", "new: native, engine=postgres:17", "guest: docker, engine=postgres:17")
    times = {"old": 1.0, "old (A/A)": 1.0, "new": 9.0, "new (A/A)": 9.0, "guest": 2.0}
    assert slow_arms(asked, times) == []
    assert set(slow_arms(asked, {**times, "guest": 9.0})) == {"new", "new (A/A)", "guest"}


def test_a_settled_baseline_goes_on_for_those_that_are_not_settled() -> None:
    far, open_ = np.full(9, 1.0) + np.linspace(0, 0.01, 9), np.linspace(-0.01, 0.01, 9)
    by_arm = {pair.arm: pair for pair in pairs(ARMS, HELD, COPIES)}
    precision = Precision(settled=0.2)
    of_levels = [[(by_arm["new"], far), (by_arm["guest"], open_)]]
    assert stopping.settled_arms(of_levels, {"new", "guest"}, precision) == frozenset()
    of_levels = [[(by_arm["new"], open_), (by_arm["guest"], far)]]
    assert stopping.settled_arms(of_levels, {"new", "guest"}, precision) == {"guest"}


# --- what is checked and shown -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(
        make_run(
            tmp_path_factory.mktemp("alike") / "run", rounds=6, interrupted=False, docker_effect=0.2, q9_effect=0.2
        )
    )


NEW = {"version": "PostgreSQL 17.6", "settings": {"jit": "on", "autovacuum": "off"}}


def differing(
    run: Run,
    folder: Path,
    told: dict[str, object],
    change: Callable[[Arm], Arm],
    settings: dict[str, str] | None = None,
) -> Path:
    """The run, with another configuration of the arm that was Docker's, and what its starts tell."""
    asked = run.plan.experiment
    arms = tuple(change(arm) if arm.name == DOCKER else arm for arm in asked.arms)
    image = {"release": "Debian 12", "packages": {"libc6:amd64": "2.36"}}
    own_image = {"release": "Debian 13", "packages": {"libc6:amd64": "2.41"}}
    common = {"engine": "postgres", "settings": FACTS["settings"], "image": image}
    own = {**common, "image": own_image, "settings": {**FACTS["settings"], **(settings or {})}}  # type: ignore[dict-item]
    facts = {
        **{name: value for name, value in run.facts.items() if name not in ("descriptions", "configurations")},
        "configurations": [{"arms": [NATIVE, COPY], **common}, {"arms": [DOCKER], **own}],
    }
    plan = PlanFile(experiment=replace(asked, arms=arms), queries=QUERIES, blocks=2)
    with RunWriter.create(folder, spec=b"", plan=plan, facts=facts) as writer:
        for attempt in run.counted:
            writer.append(RoundBegin(round=attempt.round, attempt=0, elapsed_s=attempt.begin.elapsed_s))
            for record in attempt.records:
                writer.append(_told(record, told))
            writer.append(
                RoundEnd(round=attempt.round, attempt=0, complete=True, elapsed_s=attempt.begin.elapsed_s + 1)
            )
        assert run.end is not None
        writer.append(run.end)
    return folder


def _told(record: Record, told: dict[str, object]) -> Record:
    hit = isinstance(record, Start) and record.arm == DOCKER
    return revised(record, servers=({**record.facts, **told},)) if hit else record  # type: ignore[attr-defined]


def another_image(arm: Arm) -> Arm:
    return replace(arm, configuration=replace(arm.configuration, image={"suite": "trixie"}))


def another_setting(arm: Arm) -> Arm:
    engine = replace(arm.configuration.engine, options={"settings": {"jit": "on"}})
    return replace(arm, configuration=replace(arm.configuration, engine=engine))


def unchanged(arm: Arm) -> Arm:
    return arm


def checked(result: Result, name: str) -> object:
    return next(check for check in arm_of(result).checks if check.name == name)


def arm_of(result: Result) -> ArmResult:
    return next(arm for arm in result.arms if arm.name == DOCKER)


@pytest.mark.parametrize(
    ("told", "change", "settings", "passed", "voids", "said"),
    [
        (NEW, another_image, {"jit": "on"}, True, True, "version PostgreSQL 17.6 (PostgreSQL 15.14), as asked for"),
        (NEW, another_image, {}, False, False, "other than in the baseline: jit on (off); version PostgreSQL 17.6"),
        ({"settings": NEW["settings"]}, another_setting, {"jit": "on"}, True, True, "jit on (off), as asked for"),
        ({"settings": {"jit": "on"}}, another_setting, {"jit": "on"}, False, True, "autovacuum built-in (off)"),
        ({"settings": NEW["settings"]}, unchanged, {}, False, True, "jit on (off)"),
        ({"version": "PostgreSQL 15.15"}, another_setting, {"jit": "on"}, False, True, "version PostgreSQL 15.15"),
    ],
)  # fmt: skip
def test_sameness_is_demanded_but_for_what_was_asked(
    alike: Run, tmp_path: Path, told: dict[str, object], change: Callable[[Arm], Arm], settings: dict[str, str],
    passed: bool, voids: bool, said: str,
) -> None:  # fmt: skip
    result = results.analyze(differing(alike, tmp_path / "run", told, change, settings))
    check = checked(result, "same_server")
    assert check.passed is passed and said in check.finding  # type: ignore[attr-defined]
    assert check.voids is voids and bool(check.void_rounds) is (voids and not passed)  # type: ignore[attr-defined]


def test_memory_that_was_asked_for_is_said_to_be(alike: Run, tmp_path: Path) -> None:
    def roomy(arm: Arm) -> Arm:
        resources = replace(arm.configuration.resources, memory_bytes=2 << 30)
        return replace(arm, configuration=replace(arm.configuration, resources=resources))

    folder = differing(alike, tmp_path / "run", {"memory_limit_bytes": 2 << 30}, roomy)
    result = results.analyze(folder)
    assert "memory 2.00 GiB (4.00 GiB), as asked for" in checked(result, "same_resources").finding  # type: ignore[attr-defined]
    assert [(each.name, each.value, each.baseline) for each in arm_of(result).differences] == [
        ("memory", "2 GiB", "4 GiB")
    ]


@pytest.fixture(scope="module")
def upgraded(alike: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Run]:
    folder = differing(alike, tmp_path_factory.mktemp("upgraded") / "run", NEW, another_image, {"jit": "on"})
    return results.analyze(folder), read_run(folder)


def test_the_result_tells_what_differs(upgraded: tuple[Result, Run]) -> None:
    result, _ = upgraded
    arm = arm_of(result)
    assert (arm.against, arm.copy_of, arm.server) == (NATIVE, None, "PostgreSQL 17.6")
    assert [(each.part, each.name, each.value, each.baseline) for each in arm.differences] == [
        ("server", "version", "PostgreSQL 17.6", "PostgreSQL 15.14"),
        ("image", "system", "Debian 13", "Debian 12"),
        ("image", "C library", "2.41", "2.36"),
        ("setting", "jit", "on", "off"),
    ]
    assert next(each for each in result.arms if each.name == COPY).copy_of == NATIVE
    assert next(each for each in result.arms if each.name == NATIVE).differences == ()


def test_headline_page_and_summary_say_what_differs(upgraded: tuple[Result, Run]) -> None:
    result, run = upgraded
    (headline,) = (each for each in sentences.headlines(result) if each.arm == DOCKER)
    assert headline.name == "Docker against native"
    assert headline.note.startswith(
        "PostgreSQL 17.6 instead of PostgreSQL 15.14; Debian 13 instead of Debian 12; C library 2.41 instead of 2.36;"
    )
    shown = page.render(result, run)
    assert 'id="differences"' in shown and "What differs" in shown and "PostgreSQL 15.14, PostgreSQL 17.6" in shown
    assert "Beside published figures" not in shown
    assert "Docker against native" in summary.markdown(result, provenance.of(run))


def test_every_row_of_the_results_tells_the_arms_own_server_and_what_differs(upgraded: tuple[Result, Run]) -> None:
    result, run = upgraded
    rows = list(result_rows(result, (), provenance.of(run)))
    assert {(row["arm"], row["engine_version"], row["server"]) for row in rows} == {
        (COPY, "15.14", "PostgreSQL 15.14"),
        (DOCKER, "15.14", "PostgreSQL 17.6"),
    }
    assert {row["differences"] for row in rows if row["arm"] == COPY} == {None}
    assert all(row["differences"].endswith("; jit on instead of off") for row in rows if row["arm"] == DOCKER)


def test_the_gate_is_of_each_arm_against_its_own(upgraded: tuple[Result, Run]) -> None:
    result, _ = upgraded
    for limit, decision in ((0.05, GateDecision.EXCEEDED), (0.5, GateDecision.WITHIN)):
        gate = overhead_gate.judge(result, limit)
        (cell,) = {each.arm: each for each in gate.cells}.values()
        assert (gate.decision, cell.arm, cell.baseline) == (decision, DOCKER, NATIVE)


def test_an_earlier_folder_gives_every_arm_what_was_the_experiments() -> None:
    asked = {
        "engine": {"name": "postgres"}, "workload": {"name": "tpch"}, "baseline": "native", "resources": {"cpus": 2},
        "arms": [{"name": "native"}, {"name": "copy", "copy_of": "native"}, {"name": "docker"}, 7],
    }  # fmt: skip
    made = upgrade.plan({"experiment": asked}, 2)["experiment"]
    assert "engine" not in made and made["arms"][3] == 7
    assert [arm["against"] for arm in made["arms"][:3]] == [None, None, "native"]
    assert all(arm["configuration"]["resources"] == {"cpus": 2} for arm in made["arms"][:3])
    assert upgrade.plan({"experiment": 1}, 2) == {"experiment": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda arm: replace(arm, against="nobody"),
        lambda arm: replace(arm, against=DOCKER),
        lambda arm: replace(arm, against=None),
        lambda arm: replace(
            arm, configuration=replace(arm.configuration, workload=replace(arm.configuration.workload, name="x"))
        ),
    ],
)
def test_a_folder_whose_arms_are_held_against_nothing_is_refused(
    alike: Run, tmp_path: Path, change: Callable[[Arm], Arm]
) -> None:
    with pytest.raises(DbtollError, match="no run of dbtoll has this"):
        results.analyze(differing(alike, tmp_path / "run", {}, change))


@pytest.mark.parametrize(("tenants", "asked"), [(1, False), (3, True)])
def test_machines_that_use_all_processors_together_may_have_one_each(tenants: int, asked: bool) -> None:
    text = f"""
[resources]
cpus = 2
memory = "2 GiB"
[[arm]]
stack = "native"
design = "dedicated"
tenants = {tenants}
[[arm]]
name = "guests"
stack = "uml"
design = "isolated"
tenants = {tenants}
[workload]
name = "tpcc"
"""
    experiment = spec.parse(text, "x.toml")
    found = asked_of_resources(experiment, "guests", experiment.baseline)
    assert found == (frozenset({"processors"}) if asked else frozenset())
    assert asked_of_resources(experiment, experiment.baseline, experiment.baseline) == frozenset()


def test_what_one_side_has_not_is_said_to_be_not_set() -> None:
    text = "[workload]\nname = 'tpcc'\n[[arm]]\nname = 'one'\nstack = 'docker'\ndesign = 'isolated'\ntenants = 2\n"
    limited = (
        text.partition("[[arm]]")[2].replace("one", "other")
        + '[arm.resources]\nsplit = ["memory"]\nmemory_high = "1 GiB"\n'
    )
    one, other = (parsed(f"{text}[[arm]]{limited}").arm(name).configuration for name in ("one", "other"))
    assert sides(other, one) == (["split memory", "memory high 1GiB"], ["split not set", "memory high not set"])
