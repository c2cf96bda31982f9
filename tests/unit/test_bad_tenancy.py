"""What a specification of many tenants, or a sweep of one, says wrongly is one error that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbtoll import spec
from dbtoll.commands import planning, sweep
from dbtoll.errors import DbtollError, SpecError, UsageError
from dbtoll.spec import sweeps

BASE = """
{top}
[workload]
name = "tpcc"
{workload}
[factors]
{factors}
[devices]
{devices}
[resources]
cpus = 2
memory = "4 GiB"
{resources}
[[arm]]
stack = "native"
{arm}
"""

TWO = 'design = "dedicated"\ntenants = 2'
HUGE = "9" * 400


def text(**parts: str) -> str:
    return BASE.format(**{name: parts.get(name, "") for name in ("top", "workload", "factors", "devices", "resources")},
                       arm=parts.get("arm", TWO))  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"factors": 'neighbour = [["idle"]]'}, "are not levels of neighbour"),
        ({"factors": "neighbour = [{a = 1}]"}, "are not levels of neighbour"),
        ({"factors": 'neighbour = ["idle", "idle"]'}, "comes twice"),
        ({"arm": "options = 3"}, "options is a table"),
        ({"resources": f'buffer_pool = "{HUGE} GiB"'}, "more than there can be"),
        ({"workload": f'window = "{HUGE} s"'}, "more than there can be"),
        ({"workload": 'response_timeout = "0s"'}, "response_timeout"),
        ({"workload": 'ramp_up = "48h"'}, "ramp_up"),
        ({"top": f"seed = {HUGE}"}, "more than there can be"),
        ({"top": f"seed = {'9' * 5000}"}, "not TOML"),
        ({"top": f"name = {'[' * 3000}{']' * 3000}"}, "too deep"),
        ({"top": f'max_overhead = "{HUGE}%"'}, "no percentage"),
        ({"arm": 'data_device = "/srv/data/"'}, "shortest form"),
        ({"arm": 'data_device = "/srv/dät\u00e4"'}, "cannot be an arm's name"),
        ({"devices": 'slow = "/srv/a\\u0007"'}, "shortest form"),
        ({"arm": 'design = "shared|dedicated"'}, "no design"),
        ({"resources": "neighbour_weight = 0.5", "arm": 'design = "isolated"\ntenants = 2'}, "no unit is a neighbour"),
        (
            {"resources": 'split = ["memory"]\nmemory_high = "3 GiB"', "arm": 'design = "isolated"\ntenants = 2'},
            "has 2048 MiB",
        ),
        ({"resources": f"write_requests = {1 << 32}"}, "so many requests"),
        ({"resources": 'write_rate = "1 MiB"', "arm": 'data_device = "hdd7200"\nlog_device = "memory"'}, "log lies in memory"),
        ({"arm": "[arm.options]\ncpu_quota = 0"}, "0 is less than 0.01"),
        ({"arm": '[arm.options]\ncpu_period = "9h"'}, "9h is more than 1s"),
        ({"arm": '[arm.options]\ncpu_quota = 0.05\ncpu_period = "1ms"'}, "0.05 of 1ms is less than 1ms"),
        ({"top": "precision = 3"}, "precision is a table"),
        ({"top": "visit = [1]"}, "visit is a table"),
        ({"arm": "resources = 3"}, "resources is a table"),
        ({"resources": 'split = [["cpus"]]'}, "not a list of"),
        ({"arm": f"design = [{', '.join(['1'] * 3000)}]"}, "is not a text"),
        ({"arm": 'data_device = "/"'}, "no directory below /"),
    ],
)  # fmt: skip
def test_it_is_one_error(parts: dict[str, str], said: str) -> None:
    with pytest.raises(DbtollError) as caught:
        spec.parse(text(**parts), "f.toml")
    assert said in caught.value.message
    assert caught.value.hint and not caught.value.parts
    assert len(caught.value.message) < 1500


@pytest.mark.parametrize(
    ("level", "data", "log", "refused"),
    [
        ("fsync", "hdd7200", "memory", "its log lies in memory"),
        ("fsync", "memory", "hdd7200", None),
        ("fsync", "memory", "memory", "its log lies in memory"),
        ("page_cache", "memory", "hdd7200", "its data lie in memory"),
        ("page_cache", "hdd7200", "memory", None),
    ],
)
def test_what_acts_on_a_device_needs_the_one_that_it_acts_on(
    level: str, data: str, log: str, refused: str | None
) -> None:
    """`fsync` writes where the log lies, `page_cache` evicts pages of data."""
    parts = {"factors": f'neighbour = ["{level}"]', "arm": f'{TWO}\ndata_device = "{data}"\nlog_device = "{log}"'}
    if refused is None:
        assert spec.parse(text(**parts), "f.toml").factors["neighbour"] == ("none", level)
        return
    with pytest.raises(SpecError, match=refused):
        spec.parse(text(**parts), "f.toml")


def test_one_wrong_device_is_one_fault() -> None:
    devices = 'slow = "hdd72"\nfast = "hssd"'
    with pytest.raises(SpecError) as caught:
        spec.parse(text(devices=devices, arm=f'{TWO}\ndata_device = "slow"\nlog_device = "fast"'), "f.toml")
    assert "no class of devices 'hdd72'" in caught.value.message
    assert not caught.value.parts


def test_a_wrong_option_of_the_workload_leaves_its_factors_known() -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(text(workload="rate = -100", factors='neighbour = ["load_x4"]'), "f.toml")
    assert "rate is -100" in caught.value.message and "neighbour" not in caught.value.message


def test_a_factor_of_other_workloads_is_told_by_them() -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(text(factors='neighbour = ["idle"]', arm="").replace("tpcc", "tpch"), "f.toml")
    assert "neighbour is a factor of tatp, tpcc" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [("design", "3", 'design = "3"'), ("name", "4", 'name = "4"')],
)
def test_a_number_that_should_be_a_text_needs_no_unit(key: str, value: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(text(arm=f"{key} = {value}"), "f.toml")
    assert caught.value.hint == hint


# --- sweeps ---------------------------------------------------------------------------------------------------------------------

SWEPT = """
[variables]
n = { kind = "integer", default = 2, help = "So many." }
rate = { kind = "number", default = 0, help = "Arrivals." }
[workload]
name = "tpcc"
rate = "$rate"
%s
[resources]
cpus = 2
memory = "4 GiB"
[[arm]]
stack = "native"
%s
[[arm]]
stack = "native"
%s
"""
DESIGNS = ('design = "dedicated"\ntenants = "$n"', 'design = "shared"\ntenants = "$n"')


MORE_PROCESSORS = tuple(
    f"design = '{design}'\ntenants = 2\n[arm.resources]\ncpus = '$n'" for design in ("dedicated", "shared")
)


DESIGNS_OF_FOUR = ('design = "dedicated"\ntenants = 4', 'design = "shared"\ntenants = 4')


def planned(over: str, *arms: str, more: str = "", limit: str | None = None) -> sweep.Planned:
    asked = None if limit is None else sweeps.limit(limit)
    return sweep.plan(SWEPT % (more, *(arms or DESIGNS)), "f.toml", over, variables={}, limit=asked)


def test_a_value_that_cannot_be_is_left_out_and_the_others_are_swept() -> None:
    found = planned("n=1,2,4", more='[factors]\nneighbour = ["idle"]')
    assert list(found.experiments) == [2, 4]
    (left_out,) = found.sweep.left_out
    assert (left_out.value, left_out.arm) == (1, "") and "no neighbour" in left_out.why
    assert any("n = 1 is left out: " in line for line in sweep.preview(found))


def test_where_no_value_can_be_it_is_said_as_without_a_sweep() -> None:
    with pytest.raises(SpecError, match="no neighbour"):
        planned("n=1,2", more='[factors]\nneighbour = ["idle"]')


def test_a_word_that_is_wrong_is_an_error() -> None:
    """What is too small or too large is left out; a slip of the pen is not."""
    variable = '[variables]\nd = { kind = "text", default = "shared", help = "Which." }'
    swept = text(top=variable, arm='design = "$d"\ntenants = 2\n[[arm]]\nstack = "docker"')
    assert len(sweep.plan(swept, "f.toml", "d=shared,dedicated", variables={}).experiments) == 2
    with pytest.raises(SpecError, match="no design 'dedicatd'"):
        sweep.plan(swept, "f.toml", "d=shared,dedicatd", variables={})


def test_a_design_that_does_not_fit_at_some_values_keeps_its_name() -> None:
    """Others are left out at other values, so none has a fellow everywhere."""
    small = 'name = "B"\ndesign = "dedicated"\ntenants = "$n"\n[arm.resources]\nbuffer_pool = "64 MiB"'
    found = planned("n=1,8,64", 'name = "A"\ndesign = "shared"\ntenants = "$n"', small.replace("64 MiB", "256 KiB"))
    assert {each.arm for each in found.sweep.left_out} == {"B"}


def test_arms_that_are_called_after_a_value_need_names() -> None:
    with pytest.raises(UsageError, match="at n = 2 alone is an arm named native, machines=2") as caught:
        planned("n=2,4", 'machines = "$n"', DESIGNS[1])
    assert caught.value.hint is not None and "name the arms" in caught.value.hint
    assert len(planned("n=2,4", 'machines = "$n"\nname = "many"', DESIGNS[1]).experiments) == 2


def test_a_closed_and_an_open_loop_are_no_one_curve() -> None:
    with pytest.raises(UsageError, match="unlike figures"):
        planned("rate=0,100")
    assert len(planned("rate=50,100").experiments) == 2


def test_a_limit_is_not_searched_over_what_arms_have() -> None:
    with pytest.raises(UsageError, match=r"cpus of .* is not the same at all values of n"):
        planned("n=1:2", *MORE_PROCESSORS, limit="p99=20ms")
    grows = [f"{arm}\n[arm.resources]\ncpus = '$n'" for arm in DESIGNS]
    with pytest.raises(UsageError, match=r"cpus of .* is not the same at all values of n"):
        planned("n=1:2", *grows, limit="p99=20ms")
    for more in ("write_requests = '$n'", "read_requests = '$n'"):
        held = [f"{arm}\n[arm.resources]\n{more}" for arm in DESIGNS]
        with pytest.raises(UsageError, match=f"{more.partition(' ')[0]} of .* is not the same at all values of n"):
            planned("n=1:2", *held, limit="p99=20ms")
    with pytest.raises(UsageError, match=r"threads of native dedicated is not the same at all values of n"):
        planned("n=1:2", *DESIGNS_OF_FOUR, more='terminals = 4\nthreads = "$n"', limit="p99=20ms")
    assert planned("n=1:4", limit="p99=20ms").sweep.limit is not None
    # More terminals make all servers admit more sessions, which is no resource.
    assert planned("n=1:64", *DESIGNS_OF_FOUR, more='terminals = "$n"', limit="p99=20ms").sweep.limit is not None


@pytest.mark.parametrize("seed", [-1, 10**15 + 1])
def test_a_seed_that_no_driver_can_be_told_is_refused(seed: int) -> None:
    with pytest.raises(SpecError, match="a whole number from 0 to"):
        spec.parse(f"seed = {seed}\n" + SWEPT % ("", *DESIGNS), "f.toml")
    assert spec.parse("seed = 0\n" + SWEPT % ("", *DESIGNS), "f.toml").seed == 0


def test_a_range_of_more_values_than_a_search_has_is_refused_before_it_is_written_out() -> None:
    with pytest.raises(UsageError, match="1000000000 values"):
        planned("n=1:1000000000", limit="p99=20ms")


def test_costs_that_no_page_could_show_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "costs.toml"
    for wrong, said in (("1e-300", "from 1e-9"), ("9" * 5000, "digits"), ("-1", "from 1e-9"), ("nan", "from 1e-9")):
        file.write_text(f'currency = "EUR"\nperiod = "hour"\nhost = {wrong}\n', encoding="utf-8")
        with pytest.raises(SpecError, match=said):
            sweeps.costs(file)


# --- what is said beforehand ------------------------------------------------------------------------------------------------------


def obstacles_of(**parts: str) -> list[str]:
    return list(planning.needs(spec.parse(text(**parts), "f.toml")).obstacles())


def test_a_device_that_is_too_small_is_an_obstacle() -> None:
    small = 'small = { class = "memory", size = "256 MiB" }'
    said = obstacles_of(devices=small, arm=f'{TWO}\ndata_device = "small"')
    assert any("the device small (memory) has 256 MiB" in each for each in said)
    (too_small,) = obstacles_of(workload="warehouses = 9000", arm='data_device = "ssd_raid"\nlog_device = "hssd"')[-1:]
    assert "a disk like hssd has" in too_small


def test_a_directory_in_memory_is_no_device() -> None:
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir():
        pytest.skip("no /dev/shm here")
    assert f"{shared_memory}: no directory on a device" in obstacles_of(arm=f'{TWO}\ndata_device = "{shared_memory}"')


def test_what_lies_on_another_host_takes_no_room_here() -> None:
    here = planning.needs(spec.parse(text(), "f.toml"))
    there = planning.needs(spec.parse(text(arm='[[arm]]\nstack = "ssh:example.org"'), "f.toml"))
    assert there.copies_bytes == here.copies_bytes // 2  # of one unit, not of two


def test_paths_on_one_file_system_are_one_place(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    alone = planning.needs(spec.parse(text(arm=f'{TWO}\ndata_device = "{one}"'), "f.toml"))
    both = planning.needs(spec.parse(text(arm=f'{TWO}\ndata_device = "{one}"\nlog_device = "{other}"'), "f.toml"))
    taken = [sum(each.taken_bytes for each in (needed.copies, *needed.devices)) for needed in (alone, both)]
    assert len([each for each in (both.copies, *both.devices) if each.taken_bytes]) == 1
    assert taken[1] > taken[0]


def test_a_plan_says_on_what_arms_lie_and_how_pools_are_dealt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text(devices='slow = "hdd7200"', arm=f'name = "a"\n{TWO}\ndata_device = "slow"'), encoding="utf-8")
    planning.show_plan(file, variables=(), rounds=1, blocks=1, visits=False, as_json=False)
    said = capsys.readouterr().out
    assert "each arm has 2 processors and 4096 MiB of memory" in said
    assert "arm a: native, dedicated, servers=2, data on slow (hdd7200)" in said
    assert "buffer pools, equal in sum: a 2 of 512 MiB" in said


def test_guests_have_a_part_of_the_memory_each() -> None:
    """Also where nothing is split: a limit above it holds nothing."""
    limited = text(resources='memory_high = "3 GiB"', arm='design = "isolated"\ntenants = 2')
    assert spec.parse(limited, "f.toml").arms[0].configuration.resources.memory_high_bytes == 3 << 30
    with pytest.raises(SpecError, match="each of its machines has 2048 MiB"):
        spec.parse(limited.replace('stack = "native"', 'stack = "qemu"'), "f.toml")


def test_a_percentage_may_have_many_digits() -> None:
    margin = '[precision]\nmargin = "3.3333333333333333333333%"'
    assert spec.parse(text(top=margin), "f.toml").precision.margin == pytest.approx(0.0333333333)
