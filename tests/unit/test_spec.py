"""Specifications: what is accepted, and that each error names file, line and the hint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from dbtoll import registry, spec, units
from dbtoll.errors import SpecError, UsageError
from dbtoll.model.experiment import Experiment
from dbtoll.model.layout import ONE_UNIT, Layout
from dbtoll.spec import command_line
from dbtoll.spec.stack import parse_stack, write_stack

SMALLEST = """
[engine]
name = "noop"
[[arm]]
name = "native"
stack = "native"
[[arm]]
stack = "docker:runsc,network=host"
"""


def test_the_smallest_one_gets_a_baseline_and_its_copy() -> None:
    experiment = spec.parse(SMALLEST, "x.toml")
    assert [arm.name for arm in experiment.arms] == ["native", "native (A/A)", "docker:runsc,network=host"]
    assert experiment.arms[1].copy_of == "native"
    assert experiment.arms[1].stack == experiment.arms[0].stack
    assert experiment.arms[2].stack[0].options["runtime"] == "runsc"
    assert experiment.factors == {"cache": ("warm",), "connection": ("persistent",), "query_protocol": ("simple",)}


WITHOUT = """
[engine]
name = "hyper"
[workload]
name = "tpcc"
[[arm]]
stack = "native"
"""


def test_levels_that_an_engine_lacks_are_kept_apart() -> None:
    asked = WITHOUT + '[factors]\ninteraction = ["statement", "procedure"]\nisolation = ["repeatable_read"]\n'
    experiment = spec.parse(asked, "x.toml")
    assert experiment.factors["interaction"] == ("statement",)
    assert experiment.factors["durability"] == ("server_buffer",)
    assert experiment.unsupported["interaction"].keys() == {"procedure"}
    assert experiment.unsupported["durability"].keys() == {"device"}
    assert experiment.unsupported.keys() == {"interaction", "durability"}


def test_to_ask_for_nothing_but_what_an_engine_lacks_is_an_error() -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(WITHOUT + '[factors]\ndurability = ["device"]\n', "x.toml")
    assert "x.toml:9" in caught.value.message
    assert "hyper has no durability device: " in caught.value.message
    assert caught.value.hint == "choose from server_buffer"


@pytest.mark.parametrize(
    ("engine", "setting", "line"),
    [
        ("postgres", 'settings = { synchronous_commit = "off" }', 4),
        ("mariadb", '[engine.settings]\n"innodb_flush_log_at_trx_commit" = 0', 4),
    ],
)
def test_a_setting_that_a_factor_decides_on_is_refused(engine: str, setting: str, line: int) -> None:
    """Before anything is made, whichever levels are asked for; of statements it is free."""
    text = f'[engine]\nname = "{engine}"\n\n{setting}\n[workload]\nname = "WORKLOAD"\n[[arm]]\nstack = "native"\n'
    with pytest.raises(SpecError, match=f"x.toml:{line}: with transactions the factors decide on ") as caught:
        spec.parse(text.replace("WORKLOAD", "tpcc"), "x.toml")
    assert "faults" not in caught.value.message
    spec.parse(text.replace("WORKLOAD", "tpch"), "x.toml")


def test_a_setting_that_a_factor_decides_on_is_refused_in_an_arm_and_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text("fsync = off\n")
    text = """
[workload]
name = "tatp"
[factors]
durability = ["device", "server_buffer"]
[[arm]]
stack = "native"
[[arm]]
name = "own"
stack = "native"
[arm.engine]
settings_file = "server.conf"
"""
    with pytest.raises(SpecError, match=r"x.toml:11: with transactions the factors decide on fsync"):
        spec.parse(text, str(tmp_path / "x.toml"))


def test_units_become_integers_and_fractions() -> None:
    text = (
        SMALLEST
        + '[precision]\nbudget = "90s"\ntarget = "0.5%"\n[resources]\nmemory = "2 GiB"\n[visit]\nmeasurement_time = "20ms"\n'
    )
    experiment = spec.parse(text, "x.toml")
    assert experiment.precision.budget_s == 90
    assert experiment.precision.target == pytest.approx(0.005)
    assert experiment.configuration.resources.memory_bytes == 2 << 30
    assert experiment.visit_timing.measurement_time_ns == 20_000_000


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("4G", 4 << 30), ("4 gib", 4 << 30), ("512m", 512 << 20), ("1GB", 10**9), ("1T", 1 << 40)]
)
def test_sizes_are_read_as_docker_reads_them(text: str, size_bytes: int) -> None:
    assert units.size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "native",
        "native:host,cpu_period=20ms,cpu_quota=0.25",
        "docker:cpu_period=1s,shm=64MiB",
        "docker:runsc,cpu_period=1500us,runtime_args=--platform=systrap+--debug,shm=1000B",
        "docker:network=host//docker:runc,seccomp=/etc/a b.json//native",
        "simulated:noise=0.5",
        "docker:runtime=a=b",
    ],
)
def test_a_stack_that_was_written_is_read_back(text: str) -> None:
    stack = parse_stack(text)
    assert write_stack(stack) == text
    assert parse_stack(write_stack(stack)) == stack


def test_options_are_written_with_their_units() -> None:
    stack = parse_stack("docker:cpu_period=0.1s,cpu_quota=2,shm=1 GiB")
    assert write_stack(stack) == "docker:cpu_period=100ms,cpu_quota=2,shm=1GiB"
    experiment = spec.parse(SMALLEST.replace("docker:runsc", "docker:runsc,cpu_period=0.1s"), "x.toml")
    assert experiment.arms[2].text == "docker:runsc,cpu_period=100ms,network=host"


@pytest.mark.parametrize(
    ("added", "line", "words"),
    [
        ("[engin]\n", 9, ["unknown key 'engin'", "engine"]),
        ("[precision]\nbudjet = 1\n", 10, ["unknown key 'budjet'", "budget"]),
        ("[precision]\n\ntarget = 1\n", 11, ["target", "not a text"]),
        ('[precision]\ntarget = "1"\n', 10, ["not a percentage"]),
        ('[resources]\nmemory = "2 miles"\n', 10, ["not a size"]),
        ("[resources]\ncpus = 0\n", 10, ["at least one CPU"]),
        ('[factors]\ncache = ["tepid"]\n', 10, ["tepid", "warm, cold"]),
        ('[factors]\ncache = ["cold"]\n', 10, ["whole host", "exclusive"]),
        ('[factors]\nconnection = ["per_statement"]\nquery_protocol = ["prepared"]\n', 11, ["prepared", "extended"]),
        ('[workload]\nname = "tpcz"\n', 10, ["no workload named 'tpcz'", "tpch"]),
        ('[workload]\nname = "tpch"\nscala = 3\n', 11, ["no option 'scala'", "scale"]),
        ('[workload]\nname = "tpch"\nscale = "big"\n', 11, ["scale"]),
        ('[[arm]]\nstack = "dokcer"\n', 10, ["no environment named 'dokcer'", "docker"]),
        ('[[arm]]\nstack = "docker"\nnom = "x"\n', 11, ["unknown key 'nom'"]),
        ('[[arm]]\nstack = "docker"\n[arm.options]\nspeed = 3\n', 12, ["no option 'speed'"]),
        ('[[arm]]\nname = "native"\nstack = "native"\n', 10, ["two arms are named"]),
        (f'[[arm]]\nname = "{"x" * 201}"\nstack = "native"\n', 10, ["cannot be an arm's name", "at most 200"]),
        ('[[arm]]\nname = "$(reboot)"\nstack = "native"\n', 10, ["cannot be an arm's name"]),
        ("[[arm]]\nname = 'a'\n", 9, ["stack"]),
        ("seed = \n", 9, ["not TOML"]),
    ],
)
def test_an_error_names_file_line_and_mend(added: str, line: int, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(SMALLEST.rstrip("\n") + "\n" + added, "x.toml")
    assert caught.value.message.startswith(f"x.toml:{line}: "), caught.value.message
    said = str(caught.value)
    assert caught.value.hint
    for word in words:
        assert word in said


OUTSIDE = """
[workload]
name = "tatp"
[factors]
placement = ["inside", "outside"]
[[arm]]
name = "native"
stack = "native"
[[arm]]
name = "other"
stack = "{stack}"
"""


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        ("docker:runsc", "docker:runsc,network=bridge"),
        ("docker:network=host", "docker:network=host"),
        ("qemu:tcg", "qemu:tcg,network=user"),
        ("qemu:network=tap", "qemu:network=tap"),
        ("uml", "uml:network=tap"),
        ("qemu//docker", "qemu//docker:network=bridge"),
    ],
)
def test_an_arm_whose_terminals_work_outside_gets_a_network(stack: str, text: str) -> None:
    experiment = spec.parse(OUTSIDE.format(stack=stack), "x.toml")
    assert experiment.factors["placement"] == ("inside", "outside")
    assert (experiment.arms[2].name, experiment.arms[2].text) == ("other", text)
    assert experiment.arms[1].text == experiment.arms[0].text == "native"
    inside = spec.parse(OUTSIDE.format(stack=stack).replace(', "outside"', ""), "x.toml")
    assert (inside.arms[2].text, inside.factors["placement"]) == (stack, ("inside",))


@pytest.mark.parametrize(
    ("stack", "engine", "line", "words"),
    [
        (
            "docker:network=none",
            "postgres",
            11,
            ["other: ", "network=none", "network=bridge", 'placement = ["inside"]'],
        ),
        ("uml:network=none", "postgres", 11, ["other: ", "network=none", "network=tap"]),
        ("simulated", "postgres", 11, ["simulated cannot be reached"]),
        ("docker", "noop", 5, ["server of noop cannot be reached", 'placement = ["inside"]']),
    ],
)
def test_what_cannot_be_reached_from_outside_is_an_error(stack: str, engine: str, line: int, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(OUTSIDE.format(stack=stack) + f'[engine]\nname = "{engine}"\n', "x.toml")
    assert caught.value.message.startswith(f"x.toml:{line}: "), caught.value.message
    for word in words:
        assert word in str(caught.value)


SEVERAL = """
[engine]
name = "noop"
[[arm]]
stack = "native"
"""


def names(more: str) -> list[str]:
    return [arm.name for arm in spec.parse(SEVERAL + more, "x.toml").arms[2:]]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            'stack = "docker:storage=bind|memory"',
            ["docker:storage=bind", "docker:storage=memory"],
        ),
        (
            'name = "box"\nstack = "docker:runc|runsc,storage=layer|memory"',
            [f"box {runtime},storage={kind}" for runtime in ("runc", "runsc") for kind in ("layer", "memory")],
        ),
        ('stack = "qemu:cache=none|unsafe//docker"', ["qemu:cache=none//docker", "qemu:cache=unsafe//docker"]),
        (
            'name = "box"\nstack = "podman"\n[arm.options]\nstorage = "bind | layer"\nshm = "1 GiB"',
            ["box storage=bind", "box storage=layer"],
        ),
    ],
)
def test_several_values_of_an_option_are_an_arm_each(more: str, expected: list[str]) -> None:
    assert names(f"[[arm]]\n{more}\n") == expected


def test_more_arms_than_can_stand_at_one_time_are_refused() -> None:
    options = ",".join(f"{name}=1|2|3|4" for name in ("cpu_quota", "shm", "seccomp", "apparmor"))
    with pytest.raises(SpecError, match="that stands for 256 arms"):
        names(f'[[arm]]\nstack = "docker:{options}"\n')


def test_a_variable_may_name_an_arm_that_is_there_already() -> None:
    written = '[[arm]]\nname = "native"\nstack = "native"\n[[arm]]\nname = "docker"\nstack = "docker"\n'
    text = '[variables.place]\nkind = "text"\ndefault = "uml"\nhelp = ""\n[workload]\nname = "tpch"\n' + written
    text += '[[arm]]\nname = "$place"\nstack = "$place"\n'

    def arms(text: str, **given: str) -> list[str]:
        return [arm.name for arm in spec.parse(text, "x.toml", variables=given).arms]

    assert arms(text) == ["native", "native (A/A)", "docker", "uml"]
    assert arms(text, place="docker") == ["native", "native (A/A)", "docker"]
    with pytest.raises(SpecError, match="two arms are named 'docker'"):
        arms(text.replace('stack = "$place"', 'stack = "uml"'), place="docker")


def test_each_of_several_values_is_converted_and_checked() -> None:
    arms = spec.parse(SEVERAL + '[[arm]]\nstack = "docker:cpu_quota=0.5|1"\n', "x.toml").arms
    assert [arm.stack[0].options["cpu_quota"] for arm in arms[2:]] == [0.5, 1.0]
    with pytest.raises(SpecError, match=r"x.toml:6: .*'disk' is not one of bind, volume, layer, memory, and no path"):
        names('[[arm]]\nstack = "docker:storage=bind|disk"\n')
    with pytest.raises(SpecError, match="two arms are named 'docker:storage=bind'"):
        names('[[arm]]\nstack = "docker:storage=bind|bind"\n')


def test_each_arm_has_a_block_device_of_its_own_and_the_baseline_two() -> None:
    text = SEVERAL.replace('"native"', '"native:storage=/dev/sdb+/dev/sdc"')
    arms = spec.parse(text + '[[arm]]\nstack = "qemu:storage=/dev/sdd"\n', "x.toml").arms
    assert [arm.stack[0].options["storage"] for arm in arms] == ["/dev/sdb", "/dev/sdc", "/dev/sdd"]
    for wrong in ("docker:storage=/dev/sdb", "docker:storage=/dev/sdd+/dev/sde"):
        with pytest.raises(SpecError, match="one device"):
            spec.parse(text + f'[[arm]]\nstack = "{wrong}"\n', "x.toml")
    with pytest.raises(SpecError, match="and so does its second copy"):
        spec.parse(text.replace("+/dev/sdc", ""), "x.toml")


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("qemu:storage=/dev/vdb", "docker:storage=/dev/vdb", True),
        ("qemu:storage=/dev/vdb", "ssh:h,storage=/dev/vdb", False),
        ("ssh:g,storage=/dev/vdb", "ssh:h,storage=/dev/vdb", False),
        ("ssh:h//qemu:storage=/dev/vdb", "ssh:h,storage=/dev/vdb,overwrite=yes", True),
        ("ssh:h//qemu:storage=/dev/vdb", "qemu:storage=/dev/vdb", False),
        ("qemu//docker:storage=/dev/vdb", "docker:storage=/dev/vdb", False),
        ("qemu//docker:storage=/dev/vdb", "qemu//native:storage=/dev/vdb", False),
        ("qemu:storage=/dev/vdb//docker", "qemu:storage=/dev/vdb//native", True),
        ("docker//native:storage=/dev/vdb", "native:storage=/dev/vdb", True),
    ],
)
def test_devices_are_one_where_one_kernel_has_both(first: str, second: str, is_one: bool) -> None:
    """A guest of an arm is that arm's own."""
    text = SEVERAL + f'[[arm]]\nstack = "{first}"\n[[arm]]\nstack = "{second}"\n'
    if is_one:
        with pytest.raises(SpecError, match="have one device"):
            spec.parse(text, "x.toml")
    else:
        assert [arm.name for arm in spec.parse(text, "x.toml").arms][-2:] == [first, second]


def test_the_copy_of_an_arm_with_a_guest_of_its_own_has_a_device_of_its_own() -> None:
    text = SEVERAL.replace('"native"', '"uml//native:storage=/dev/ubdc"')
    arms = spec.parse(text, "x.toml").arms
    assert [arm.stack[1].options["storage"] for arm in arms] == ["/dev/ubdc", "/dev/ubdc"]


def test_nothing_in_memory_is_cold() -> None:
    text = "exclusive = true\n" + SEVERAL + '[[arm]]\nstack = "docker:storage=memory"\n'
    spec.parse(text, "x.toml")
    with pytest.raises(
        SpecError, match="the data of 'docker:storage=memory' lie in memory, so no statement there is cold"
    ):
        spec.parse(text + '[factors]\ncache = ["warm", "cold"]\n', "x.toml")


def compared(*stacks: str) -> str:
    """The specification that `compare` writes of environments alone."""
    return command_line.comparison(
        stacks,
        baseline=None,
        engine="noop",
        engine_options={},
        workload="tpch",
        workload_options={},
        tables={},
        top={},
    )


def test_arms_that_are_all_in_memory_have_a_baseline_in_memory() -> None:
    def baseline(*stacks: str) -> str:
        return spec.parse(compared(*stacks), command_line.COMMAND_LINE).baseline

    assert baseline("docker:storage=memory", "qemu:storage=memory") == "native:storage=memory"
    assert baseline("qemu//docker:storage=memory") == "qemu//native:storage=memory"
    assert baseline("docker:storage=bind|memory") == baseline("docker:storage=layer") == baseline("qemu") == "native"


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nothing\.toml: cannot be read"):
        spec.read(tmp_path / "nothing.toml")


def test_compare_takes_the_way_of_a_file() -> None:
    text = command_line.comparison(
        ["docker", "docker:runsc"],
        baseline=None,
        engine="noop",
        engine_options={},
        workload="tpch",
        workload_options={"scale": 0.05, "queries": ["Q1", "Q6"]},
        tables={"precision": {"budget": "1m", "target": None}},
        top={"seed": 7, "exclusive": None},
    )
    experiment = spec.parse(text, "compare")
    assert [arm.name for arm in experiment.arms] == ["native", "native (A/A)", "docker", "docker:runsc"]
    assert experiment.seed == 7
    assert experiment.precision.budget_s == 60


def test_the_default_baseline_replaces_the_last_step_and_needs_one_prefix() -> None:
    def baseline(*stacks: str) -> str:
        return compared(*stacks).split("baseline = ")[1].splitlines()[0]

    assert baseline("native:host//docker", "native:host//docker:runsc") == '"native:host//native"'
    with pytest.raises(UsageError, match="different baselines"):
        baseline("docker", "native:host//docker")


@pytest.mark.parametrize("value", ['a"b', "back\\slash", "new\nline", "\x7f", "ünï"])
def test_text_survives_being_written_as_toml(value: str) -> None:
    text = command_line.comparison(
        ["native"], baseline=None, engine="noop", engine_options={}, workload="tpch", workload_options={}, tables={},
        top={"question": value},
    )  # fmt: skip
    assert spec.parse(text, "compare").question == value


def test_every_shipped_specification_is_valid() -> None:
    root = Path(__file__).parents[2]
    files = sorted([*(root / "experiments").glob("*.toml"), *(root / "src/dbtoll/papers").glob("*/specs/*.toml")])
    assert len(files) >= 12
    for file in files:
        text = file.read_text()
        assert text.startswith("# Question:"), file
        assert "# Expected:" in text, file
        assert "# Running time:" in text, file
        # What has no default is another host, which nobody can name beforehand.
        needed = {name: "ssh:there" for name, option in spec.variables_of(file).items() if option.default is None}
        spec.parse(text, str(file), exclusive="cold" in text, variables=needed)


def test_an_arm_may_count_instructions_in_place_of_time() -> None:
    text = SMALLEST.replace("docker:runsc,network=host", "qemu:clock=instructions")
    assert [arm.clock for arm in spec.parse(text, "x.toml").arms] == ["time", "time", "instructions"]


def test_an_arm_that_counts_instructions_is_no_baseline() -> None:
    text = SMALLEST.replace('stack = "native"', 'stack = "qemu:clock=instructions"')
    with pytest.raises(SpecError, match="counts instructions"):
        spec.parse(text, "x.toml")


# --- the question of a specification that asks none ------------------------------------------------------------------


ARMS = "[[arm]]\nstack = 'native'\n[[arm]]\nstack = '{}'\n[[arm]]\nstack = '{}'\n"


@pytest.mark.parametrize(
    ("body", "question"),
    [
        (ARMS.format("docker", "uml"), "How much does PostgreSQL lose on TPC-H in docker and uml, against native?"),
        ('[engine]\nname = "mariadb"\n[workload]\nname = "tpcc"\n' + ARMS.format("docker", "qemu"),
         "How much does MariaDB lose on TPC-C in docker and qemu, against native?"),
        ('[engine]\nname = "no_server"\n[workload]\nname = "probes"\n' + ARMS.format("docker", "uml"),
         "What does an event cost in docker and uml, against native?"),
        ("[[arm]]\nstack = 'native'\n", "How far do two copies of native differ with PostgreSQL on TPC-H?"),
        ("".join(f"[[arm]]\nname = '{name}'\nstack = 'native'\n" for name in "abcdef"),
         "How much does PostgreSQL lose on TPC-H in 5 arms, against a?"),
    ],
)  # fmt: skip
def test_a_question_that_was_not_asked_names_arms_engine_and_workload(body: str, question: str) -> None:
    assert spec.parse(body, "x.toml").question == question


def test_a_question_that_was_not_asked_names_the_users_directory(tmp_path: Path) -> None:
    (tmp_path / "nightly" / "statements").mkdir(parents=True)
    (tmp_path / "nightly" / "statements" / "one.sql").write_text("select 1", encoding="utf-8")
    made = spec.parse(
        f"[workload]\nname = 'sql'\ndirectory = '{tmp_path}/nightly'\n" + ARMS.format("docker", "uml"), "x.toml"
    )
    assert made.question == "How much does PostgreSQL lose on own queries of nightly in docker and uml, against native?"
    workload = registry.find("workloads", "sql")(made.configuration.workload.options)
    assert (workload.description.title, workload.description.size) == ("own queries", "of nightly")


LAYOUTS = """
[engine]
name = "{engine}"
[workload]
name = "{workload}"
[[arm]]
stack = "{stack}"
{layout}
"""


def laid_out(layout: str, stack: str = "native", engine: str = "postgres", workload: str = "tpcc") -> Experiment:
    return spec.parse(LAYOUTS.format(layout=layout, stack=stack, engine=engine, workload=workload), "spec.toml")


def test_an_arm_has_a_layout_that_is_in_its_name_and_its_copys() -> None:
    baseline, copy = laid_out("machines = 3").arms
    assert (baseline.name, baseline.layout, copy.layout) == ("native, machines=3", Layout(3), Layout(3))
    assert laid_out("").arms[0].layout == ONE_UNIT
    device = laid_out("servers = 2\ndatabases = 2", "docker:storage=/dev/sdb+/dev/sdc").arms[
        0
    ]  # they share what holds them
    assert device.stack[0].options["storage"] == "/dev/sdb"
    assert laid_out("servers = 2\ndatabases = 2", "docker").arms[0].name == "docker, servers=2, databases=2"
    schemas = laid_out("schemas = 4\nkeys = 2").arms[0]
    assert (schemas.name, schemas.layout) == ("native, schemas=4, keys=2", Layout(schemas=4, keys=2))
    for workload in ("tpcc", "tatp"):
        assert laid_out("keys = 2", engine="mariadb", workload=workload).arms[0].layout == Layout(keys=2)


def test_copies_can_be_of_baselines_alone() -> None:
    text = LAYOUTS.format(layout="", stack="native", engine="postgres", workload="tpcc")
    text += '[[arm]]\nname = "three"\nstack = "native"\nservers = 3\n'
    assert [arm.name for arm in spec.parse(text, "x.toml").arms] == ["native", "native (A/A)", "three", "three (A/A)"]
    alone = text + '[precision]\ncopies = "baselines"\n'
    assert [arm.name for arm in spec.parse(alone, "x.toml").arms] == ["native", "native (A/A)", "three"]
    with pytest.raises(SpecError, match="'none' is not known") as refused:
        spec.parse(text + '[precision]\ncopies = "none"\n', "x.toml")
    assert 'copies = "all" or "baselines"' in str(refused.value.hint)


def test_a_round_has_a_block_at_least() -> None:
    text = LAYOUTS.format(layout="", stack="native", engine="postgres", workload="tpcc")
    assert spec.parse(text + "[precision]\nblocks_max = 1\n", "x.toml").precision.blocks_max == 1
    with pytest.raises(SpecError, match="a round has a block at least"):
        spec.parse(text + "[precision]\nblocks_max = 0\n", "x.toml")


def test_the_levels_of_a_layout_have_one_order() -> None:
    assert tuple(asdict(ONE_UNIT)) == command_line.LAYOUT_KEYS


@pytest.mark.parametrize(
    ("layout", "stack", "engine", "workload", "words"),
    [
        ("machines = 0", "native", "postgres", "tpcc", ["spec.toml:8", "1 to 64"]),
        ("machines = 43\nservers = 3", "native", "postgres", "tpcc", ["spec.toml:8", "1 to 64"]),
        ('machines = "many"', "native", "postgres", "tpcc", ["spec.toml:8"]),
        ("databases = 2", "native", "hyper", "tpch", ["spec.toml:8", "has one database", "servers = 2"]),
        ("schemas = 9\nkeys = 8", "native", "postgres", "tpcc", ["spec.toml:8", "1 to 64"]),
        ("keys = 0", "native", "postgres", "tpcc", ["spec.toml:8", "1 to 64"]),
        ("schemas = 4", "native", "mariadb", "tpcc", ["spec.toml:8", "one schema", "databases = 4"]),
        ("databases = 2\nschemas = 4", "native", "mariadb", "tpcc", ["spec.toml:9", "one schema", "databases = 8"]),
        ("schemas = 2", "native", "hyper", "tpch", ["spec.toml:8", "one schema", "servers = 2"]),
        ("schemas = 2", "native", "duckdb", "tpch", ["spec.toml:8", "one schema", "servers = 2"]),
        ("schemas = 2", "native", "monetdb", "tpch", ["spec.toml:8", "one schema", "servers = 2"]),
        ("keys = 3", "native", "postgres", "tpch", ["spec.toml:8", "tpch has no key", "schemas = 3"]),
        ("keys = 3", "native", "mariadb", "tpch", ["spec.toml:8", "tpch has no key", "databases = 3"]),
        ("keys = 3", "native", "hyper", "tpch", ["spec.toml:8", "tpch has no key", "servers = 3"]),
        ("keys = 3", "native", "no_server", "probes", ["asks no server"]),
        (
            "keys = 3\n[arm.workload]\nwarehouses = 33334",
            "native",
            "postgres",
            "tpcc",
            ["spec.toml:8", "3 tenants", "100002 warehouses", "33333 at most"],
        ),
        ("servers = 3", "uml", "postgres", "tpcc", ["spec.toml:8", "data of one server", "machines = 3"]),
        ("machines = 3", "uml//native", "postgres", "tpcc", ["spec.toml:8", "data of one machine"]),
        ("machines = 3", "native", "no_server", "probes", ["asks no server"]),
        (
            "machines = 3",
            "native:storage=/dev/sdb+/dev/sdc",
            "postgres",
            "tpcc",
            ["spec.toml:8", "3 machines", "on one device", "storage=bind", "servers = 3"],
        ),
        ("machines = 3", "qemu:storage=/dev/sdb+/dev/sdc", "postgres", "tpcc", ["on one device", "storage=image"]),
    ],
)
def test_a_layout_that_cannot_be_is_an_error(
    layout: str, stack: str, engine: str, workload: str, words: list[str]
) -> None:
    with pytest.raises(SpecError) as error:
        laid_out(layout, stack, engine, workload)
    said = f"{error.value.message} {error.value.hint}"
    assert all(word in said for word in words), said


DESIGNS = """
[engine]
name = "postgres"
[workload]
name = "tpcc"
terminals = 2
[resources]
memory = "2 GiB"
{resources}
[[arm]]
stack = "native"
design = "dedicated"
tenants = 8
[[arm]]
stack = "native"
design = "shared"
tenants = 8
[[arm]]
stack = "docker"
design = "isolated"
tenants = 8
"""


def test_a_design_is_a_layout_and_all_have_equal_buffer_pools() -> None:
    made = spec.parse(DESIGNS.format(resources=""), "spec.toml")
    arms = [arm for arm in made.arms if arm.copy_of is None]
    assert [(arm.name, arm.layout) for arm in arms] == [
        ("native dedicated x8", Layout(servers=8)),
        ("native shared x8", Layout(databases=8)),
        ("docker isolated x8", Layout(machines=8)),
    ]
    assert {arm.against for arm in arms} == {None, "native dedicated x8"}
    resources = [arm.configuration.resources for arm in arms]
    assert {each.buffer_pool_bytes for each in resources} == {512 << 20}  # a quarter of the memory
    engine = registry.find("engines", "postgres")({})
    pools = [
        engine.settings(each.shared_by(arm.layout.all_servers))["shared_buffers"]
        for arm, each in zip(arms, resources, strict=True)
    ]
    assert pools == ["65536kB", "524288kB", "65536kB"]
    maria = registry.find("engines", "mariadb")({})
    assert maria.settings(resources[0].shared_by(8))["innodb-buffer-pool-size"] == "64M"
    # Eight databases with two terminals each do not fit into a hundred sessions with those that check.
    assert {engine.settings(each)["max_connections"] for each in resources} == {"100"}
    many = spec.parse(DESIGNS.format(resources="").replace("terminals = 2", "terminals = 20"), "spec.toml")
    assert {engine.settings(arm.configuration.resources)["max_connections"] for arm in many.arms} == {"192"}


def test_the_buffer_pools_of_an_arm_are_as_large_together_as_is_asked_for() -> None:
    made = spec.parse(DESIGNS.format(resources='buffer_pool = "1 GiB"'), "spec.toml")
    assert {arm.configuration.resources.buffer_pool_bytes for arm in made.arms} == {1 << 30}
    assert {arm.configuration.resources.buffer_pool_bytes for arm in laid_out("servers = 3").arms} == {None}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('design = "shared"', 'design = "common"', ["spec.toml:16", "no design 'common'", "dedicated"]),
        ('design = "shared"\n', "", ["spec.toml:16", "tenants are of a design"]),
        ('design = "shared"', 'design = "shared"\nmachines = 2', ["spec.toml:17", "a design says how many machines"]),
        ("tenants = 8", "tenants = 65", ["spec.toml:13", "1 to 64 tenants"]),
        ('memory = "2 GiB"', 'memory = "2 GiB"\nbuffer_pool = "4 MiB"', ["spec.toml:9", "512 KiB", "8 MiB"]),
        (
            'name = "postgres"',
            'name = "postgres"\nsettings = { shared_buffers = "1GB" }',
            ["spec.toml:4", "shared_buffers"],
        ),
        ('name = "postgres"', 'name = "hyper"', ["spec.toml:16", "has one database", 'design = "dedicated"']),
        (
            'stack = "docker"\ndesign = "isolated"',
            'stack = "uml"\ndesign = "dedicated"',
            ["data of one server", 'design = "isolated"'],
        ),
        ('memory = "2 GiB"', 'memory = "2 GiB"\nbuffer_pool = "4 TB"', ["spec.toml:9", "more than the memory"]),
    ],
)
def test_a_design_that_cannot_be_is_an_error(before: str, after: str, words: list[str]) -> None:
    text = DESIGNS.format(resources="")
    assert before in text
    with pytest.raises(SpecError) as error:
        spec.parse(text.replace(before, after, 1), "spec.toml")
    said = f"{error.value.message} {error.value.hint}"
    assert all(word in said for word in words), said


def test_a_design_of_a_command_line() -> None:
    given = command_line.given_arm("docker:network=host, design=isolated, tenants=3")
    assert (given.name, given.stack) == ("docker:network=host isolated x3", "docker:network=host")
    assert given.layout == {"design": "isolated", "tenants": 3}
    assert command_line.given_arm("vms: uml, design=isolated, tenants=2").name == "vms"


def test_an_arm_of_a_command_line_may_have_several_units() -> None:
    given = command_line.given_arm("vms: docker:network=host, machines=3, against=three")
    assert (given.name, given.stack, given.against, given.layout) == (
        "vms",
        "docker:network=host",
        "three",
        {"machines": 3},
    )
    for level in command_line.LAYOUT_KEYS:
        assert command_line.given_arm(f"native, {level}=2").layout == {level: 2}
