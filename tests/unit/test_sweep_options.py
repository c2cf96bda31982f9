"""What a sweep is asked for: values of a variable, a limit, a table of costs; and arms that do not fit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dbtoll import spec
from dbtoll.errors import SpecError, UsageError
from dbtoll.model.options import Option
from dbtoll.model.sweep import Limit
from dbtoll.runner.preparation import requirements
from dbtoll.spec import sweeps
from dbtoll.spec.variables import KINDS

DECLARED = {
    "tenants": Option("integer", 4, "how many"),
    "scale": Option("number", 0.1, "how large"),
    "device": Option("text", "a", "where"),
}

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("over", "values"),
    [
        ("tenants=1,2,8", (1, 2, 8)),
        ("tenants=8,1", (1, 8)),
        ("tenants=1:32", (1, 2, 4, 8, 16, 32)),
        ("tenants=1:12", (1, 2, 4, 8, 12)),
        ("tenants=3:4", (3, 4)),
        ("scale=0.1:0.4", (0.1, 0.2, 0.4)),
        ("device=nvme,hdd", ("nvme", "hdd")),
    ],
)
def test_values_are_of_the_kind_of_the_variable(over: str, values: tuple[object, ...]) -> None:
    name, found = sweeps.values(over, DECLARED)
    assert (name, found) == (over.partition("=")[0], values)
    assert {option.kind for option in DECLARED.values()} < set(KINDS)


def test_a_search_looks_at_every_whole_number_of_a_range() -> None:
    assert sweeps.values("tenants=3:7", DECLARED, each=True)[1] == (3, 4, 5, 6, 7)
    assert sweeps.values("tenants=1,4,9", DECLARED, each=True)[1] == (1, 4, 9)


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ("tenants", "no values"),
        ("tenants=", "no values"),
        ("size=1,2", "no such variable"),
        ("tenants=1,two", "'two' is not a whole number"),
        ("tenants=1,1", "comes twice"),
        ("tenants=8:1", "a range goes up"),
        ("tenants=0:4", "a range goes up"),
        ("device=1:4", "a range is of numbers"),
        ("tenants=" + ",".join(map(str, range(1, 80))), "79 values"),
    ],
)
def test_what_is_no_sweep_is_an_error_that_says_so(over: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        sweeps.values(over, DECLARED)
    assert raised.value.hint


def test_a_limit_is_of_all_transactions_or_of_one() -> None:
    assert sweeps.limit("p99=20ms") == Limit("p99", "", 20_000_000)
    assert sweeps.limit("new_order.p95=1s").measure == "new_order.p95"
    for wrong in ("p99", "p99=20", "p98=20ms", "mean=20ms", "p99=0ms"):
        with pytest.raises(UsageError, match="--limit"):
            sweeps.limit(wrong)


def test_costs_are_checked(tmp_path: Path) -> None:
    found = sweeps.costs(EXAMPLES / "costs.toml")
    assert (found.currency, found.period, found.host) == ("EUR", "month", 40.0)
    head = 'currency = "EUR"\nperiod = "month"\n'
    for text, said in (
        ("", "missing required field `currency`"),
        (head, "nothing in it costs anything"),
        (head + "host = -1", "host = -1: a cost is 0, or from 1e-9 to 1e12"),
        (head + "host = nan", "a cost is 0, or from"),
        (head + "[devices]\nhdd = 1\nhost = 4", "host stands under [devices]"),
        (head + "disk = 4", "unknown field `disk`"),
        (head.replace("month", "week") + "host = 1", "the period 'week' is none"),
        (head.replace("EUR", "") + "host = 1", "the currency '' is none"),
        (head + '[devices]\nhdd = "cheap"', "Expected `float`"),
        ("not toml", "Expected"),
    ):
        path = tmp_path / "costs.toml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SpecError, match=str(path)) as raised:
            sweeps.costs(path)
        assert said in raised.value.message or text == "not toml"
    with pytest.raises(SpecError, match="cannot be read"):
        sweeps.costs(tmp_path / "none.toml")


DESIGNS = """
[variables]
tenants = { kind = "integer", default = 4, help = "How many." }
[engine]
name = "mariadb"
[workload]
name = "tpcc"
[resources]
memory = "512 MiB"
[[arm]]
stack = "native"
design = "dedicated"
tenants = "$tenants"
[[arm]]
stack = "native"
design = "shared"
tenants = "$tenants"
"""


def test_an_arm_whose_pools_are_too_small_is_left_out_of_a_sweep_and_refused_of_a_run() -> None:
    fits, without = spec.fitting(DESIGNS, "a.toml", variables={"tenants": 2}, unfit=lambda _: {})
    assert fits is not None and without == {}
    assert fits.baseline == "native dedicated x2"
    fits, without = spec.fitting(DESIGNS, "a.toml", variables={"tenants": 64}, unfit=lambda _: {})
    assert fits is not None
    # The baseline is the arm that does not fit: the other takes its place, with a copy of its own.
    assert [arm.name for arm in fits.arms] == ["native shared x64", "native shared x64 (A/A)"]
    assert (fits.baseline, fits.arms[0].against) == ("native shared x64", None)
    assert list(without) == ["native dedicated x64"]
    assert "64 servers would have a buffer pool of" in without["native dedicated x64"]
    with pytest.raises(SpecError, match="native dedicated x64: 64 servers would have a buffer pool"):
        spec.parse(DESIGNS, "a.toml", variables={"tenants": 64})


def test_an_arm_for_which_the_machine_has_no_room_is_left_out_until_none_is_left() -> None:
    fits, without = spec.fitting(
        DESIGNS,
        "a.toml",
        variables={"tenants": 2},
        unfit=lambda experiment: {
            arm.name: "too large" for arm in experiment.arms if arm.design == "shared" and not arm.copy_of
        },
    )
    assert fits is not None and "native shared x2" not in [arm.name for arm in fits.arms]
    assert without == {"native shared x2": "too large"}
    nothing, without = spec.fitting(
        DESIGNS,
        "a.toml",
        variables={"tenants": 2},
        unfit=lambda e: {a.name: "too large" for a in e.arms if not a.copy_of},
    )
    assert nothing is None and set(without) == {"native dedicated x2", "native shared x2"}


def test_memory_that_the_host_has_not_is_told_of_designs() -> None:
    found = requirements.unfit(spec.parse(DESIGNS.replace("512 MiB", "900 TiB"), "a.toml"))
    assert set(found) == {"native dedicated x4", "native shared x4"}
    why, hint = found["native shared x4"]
    assert "it shall have 943718400 MiB and there are" in why and "memory" in hint
    many = requirements.unfit(spec.parse(DESIGNS.replace('memory = "512 MiB"', "cpus = 4000"), "a.toml"))
    assert "4000 processors" in many["native shared x4"][0]
    assert requirements.unfit(spec.parse(DESIGNS, "a.toml")) == {}


def test_buffer_pools_of_all_arms_stand_at_the_same_time() -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    pools = f'memory = "{whole} MiB"\nbuffer_pool = "{whole * 2 // 5} MiB"'
    text = DESIGNS.replace('memory = "512 MiB"', pools)
    found = requirements.unfit(spec.parse(text, "a.toml"))
    assert len(found) == 1, "two of three or four do"
    ((why, hint),) = found.values()
    assert "its buffer pools keep" in why and "memory" in hint


def test_what_an_arm_without_its_copy_would_keep_is_left_to_the_others() -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    text = DESIGNS.replace('memory = "512 MiB"', f'memory = "{whole * 3 // 5} MiB"\nbuffer_pool = "{whole // 10} MiB"')
    text = text.replace('stack = "native"\ndesign = "dedicated"', 'stack = "uml"\ndesign = "isolated"')
    assert set(requirements.unfit(spec.parse(text, "a.toml"))) == {"uml isolated x4"}


def test_a_machine_that_cannot_use_all_processors_is_told() -> None:
    text = DESIGNS.replace('stack = "native"\ndesign = "dedicated"', 'stack = "uml"\ndesign = "isolated"')
    text = text.replace('memory = "512 MiB"', 'memory = "2 GiB"\ncpus = 2')
    assert requirements.unfit(spec.parse(text, "a.toml")) == {}
    ((name, (why, hint)),) = requirements.unfit(spec.parse(text, "a.toml", variables={"tenants": 1})).items()
    assert name == "uml isolated x1" and "of User Mode Linux there is one machine, which can use 1" in why
    assert "cpus = 1" in hint


def test_an_arm_on_another_host_needs_nothing_of_this_one() -> None:
    text = DESIGNS.replace('memory = "512 MiB"', "cpus = 4000").replace('stack = "native"', 'stack = "ssh:there"')
    assert requirements.unfit(spec.parse(text, "a.toml")) == {}


def test_guests_need_their_part_of_the_memory() -> None:
    text = DESIGNS.replace('stack = "native"\ndesign = "dedicated"', 'stack = "uml"\ndesign = "isolated"')
    found = requirements.unfit(spec.parse(text, "a.toml"))
    assert list(found) == ["uml isolated x4"]
    assert "each of its 4 guests would have 128 MiB" in found["uml isolated x4"][0]
    assert requirements.unfit(spec.parse(text, "a.toml", variables={"tenants": 2})) == {}
