"""Variables of a specification: where they stand, what they may be, and which line is named when one is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dbtoll import spec
from dbtoll.commands import measure, planning
from dbtoll.commands.experiments import experiments
from dbtoll.errors import SpecError, UsageError
from dbtoll.model.experiment import Experiment
from dbtoll.spec import command_line, variables

TEXT = """\
baseline = "$baseline"
seed = "$seed"

[variables]
baseline = { kind = "text", default = "simulated", help = "What is compared with." }
seed = { kind = "integer", default = 7, help = "Of the order." }
scale = { kind = "number", help = "Scale factor of TPC-H." }

[variables.query]
kind = "text"
default = "Q6"
help = "The first query."

[engine]
name = "noop"

[workload]
name = "tpch"
scale = "$scale"
queries = ["$query", "Q1"]

[[arm]]
name = "$baseline"
stack = "$baseline"

[[arm]]
name = "slower"
stack = "simulated"
options = { slowdown = "$scale" }
"""


def test_a_variable_stands_wherever_a_value_does_and_keeps_its_kind() -> None:
    found = spec.parse(TEXT, "x.toml", variables={"scale": 1.5})
    assert found.baseline == "simulated" and found.seed == 7
    assert found.configuration.workload.options["scale"] == 1.5 and found.configuration.workload.options["queries"] == [
        "Q6",
        "Q1",
    ]
    assert found.arm("slower").stack[0].options == {"slowdown": 1.5}
    assert found.variables == {"baseline": "simulated", "seed": 7, "scale": 1.5, "query": "Q6"}


def test_the_command_lines_texts_are_converted() -> None:
    found = spec.parse(TEXT, "x.toml", variables={"scale": "0.5", "seed": "3"})
    assert (found.configuration.workload.options["scale"], found.seed) == (0.5, 3)


@pytest.mark.parametrize(
    ("text", "given", "line", "words"),
    [
        (TEXT, {}, 7, "variable 'scale' has no value"),
        (TEXT, {"scale": "large"}, 7, "variable 'scale': could not convert"),
        (TEXT, {"scale": 1, "seed": 1.5}, 6, "variable 'seed': 1.5 is not a whole number"),
        (TEXT, {"scale": 1, "query": 6}, 9, "variable 'query': 6 is not a text"),
        (TEXT, {"scale": 1, "sclae": 2}, 4, "there is no variable 'sclae'"),
        (TEXT.replace('["$query", "Q1"]', '["Q1"]'), {"scale": 1}, 9, "variable 'query' is used nowhere"),
        (TEXT.replace('seed = "$seed"', 'seed = "$sed"'), {"scale": 1}, 2, "there is no variable 'sed'"),
        (TEXT.replace('"$query"', '"$which"'), {"scale": 1}, 20, "there is no variable 'which'"),
        (TEXT.replace('"$scale" }', '"$scle" }'), {"scale": 1}, 29, "there is no variable 'scle'"),
        (TEXT.replace("[options]", "").replace("default = 7", 'default = "x"'), {}, 6, "variable 'seed': default:"),
        (TEXT.replace('"integer"', '"size"'), {}, 6, "variable 'seed': 'size' is no kind of a variable"),
        (TEXT.replace("default = 7", "standard = 7"), {}, 6, "variable 'seed': unknown key 'standard'"),
        (TEXT.replace(', help = "Of the order."', ""), {}, 6, "variable 'seed': nothing says what it is for"),
        ("variables = 3\n" + TEXT.partition("[variables]")[0], {}, 1, "variables is a table"),
        # A wrong value is an error at the key that it was put at, or of the table that it is in.
        (TEXT, {"scale": 1, "query": "Q99"}, 18, "Q99"),
        (TEXT, {"scale": 1, "baseline": "nowhere"}, 24, "there is no environment named 'nowhere'"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_file_and_line(text: str, given: dict[str, object], line: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(text, "x.toml", variables=given)
    assert caught.value.message.startswith(f"x.toml:{line}: ") and words in caught.value.message
    assert caught.value.hint


def test_a_text_may_look_like_a_variable() -> None:
    """``search_path = "$user"`` is a setting of PostgreSQL."""
    made = command_line.comparison(
        ["simulated"],
        baseline="simulated",
        engine="postgres",
        engine_options={"settings": {"search_path": "$user", "a.b": "$$user", "c.d": "$5 and $more", "e.f": "$1"}},
        workload="tpch",
        workload_options={},
        tables={},
        top={},
    )
    found = spec.parse(made + '[[arm]]\nname="x"\nstack = "simulated"\n', "x.toml").configuration.engine.options[
        "settings"
    ]
    assert found == {"search_path": "$user", "a.b": "$$user", "c.d": "$5 and $more", "e.f": "$1"}


def test_words_of_the_command_line() -> None:
    assert variables.from_words(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for words in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(UsageError):
            variables.from_words(words)


def test_the_variables_of_a_file_are_listed(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(TEXT)
    found = spec.variables_of(tmp_path / "x.toml")
    assert list(found) == ["baseline", "seed", "scale", "query"]
    assert (found["scale"].kind, found["scale"].default, found["scale"].help) == (
        "number",
        None,
        "Scale factor of TPC-H.",
    )


def test_the_plan_lists_them_and_takes_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.toml"
    file.write_text(TEXT)
    planning.show_plan(file, variables=["scale=0.5"], rounds=1, blocks=1, visits=False, as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert shown[3] == "variable scale = 0.5 (number): Scale factor of TPC-H."
    planning.show_plan(file, variables=["scale=0.5"], rounds=1, blocks=1, visits=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["variables"]["query"] == {
        "kind": "text",
        "default": "Q6",
        "help": "The first query.",
        "choices": [],
        "or_path": False,
        "least": None,
        "most": None,
    }
    assert told["experiment"]["variables"]["scale"] == 0.5


def test_quick_is_smaller_with_guests() -> None:
    """In each of its arms: what they measure is theirs."""
    text = (experiments() / measure.QUICK).read_text()

    def scales(experiment: Experiment) -> set[Any]:
        return {arm.configuration.workload.options["scale"] for arm in experiment.arms}

    alone = measure.quick_experiment(text, {"uml", "qemu"}, 173)
    assert [arm.name for arm in alone.arms] == ["native", "native (A/A)", "docker"]
    assert (scales(alone), alone.precision.budget_s) == ({0.05}, 240)
    with_guests = measure.quick_experiment(text, {"docker"}, 173)
    assert [arm.name for arm in with_guests.arms] == ["native", "native (A/A)", "uml", "qemu"]
    assert (scales(with_guests), with_guests.precision.budget_s) == ({measure.QUICK_SCALE_WITH_GUESTS}, 247)
    assert measure.QUICK_SCALE_WITH_GUESTS < 0.05


@pytest.mark.parametrize(("age_s", "measures_s"), [(3, 360), (100, 320), (200, 220), (300, 200)])
def test_quick_with_guests_measures_for_what_is_left_of_eight_minutes(age_s: float, measures_s: float) -> None:
    assert measure.quick_budget_s(age_s) == measures_s


def test_the_age_of_a_command_is_the_launchers() -> None:
    asked = "from dbtoll.commands.measure import age_s; print(age_s())"
    begin = time.monotonic()
    told = subprocess.run(
        ["/bin/sh", "-c", f"sleep 1; exec {sys.executable} -c '{asked}'"], capture_output=True, check=True
    )
    assert 1 <= float(told.stdout) <= time.monotonic() - begin + 0.1  # the kernel tells it in hundredths


def test_a_run_that_goes_on_takes_no_other_values(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--set: a run goes on with the values that it began with"):
        measure.run(tmp_path, resume=True, name=None, runs_dir=tmp_path, as_json=False, quiet=False, yes=False, exclusive=False,
                    variables=["scale=1"], budget=None, max_overhead=None)  # fmt: skip
