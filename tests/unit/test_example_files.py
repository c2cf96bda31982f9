"""Every specification under examples/ is one, and the commands in its head are right."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbtoll import spec
from dbtoll.spec import sweeps
from dbtoll.spec.variables import from_words

ROOT = Path(__file__).parents[2]
SPECIFICATIONS = sorted(path for path in (ROOT / "examples").glob("*.toml") if "[[arm]]" in path.read_text())


def options(words: list[str], name: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == name]


def commands() -> Iterator[object]:
    """Of the heads; a remark after a command stands three spaces away at least."""
    for path in SPECIFICATIONS:
        for line in re.findall(r"^# +(dbtoll .+)$", path.read_text(), re.MULTILINE):
            words = shlex.split(re.split(r" {3,}", line)[0])
            yield pytest.param(words, id=" ".join(words[1:]))


def test_there_are_some() -> None:
    assert len(SPECIFICATIONS) > 5 and len(list(commands())) > 8


@pytest.mark.parametrize("path", SPECIFICATIONS, ids=lambda path: path.stem)
def test_it_is_a_specification_with_a_question(path: Path) -> None:
    experiment, _ = spec.read(path)
    assert experiment.question.endswith("?") and experiment.running_time and experiment.arms


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_of_its_head_is_right(words: list[str]) -> None:
    program, command, path, *_ = words
    assert program == "dbtoll" and command in ("plan", "run", "sweep")
    spec.read(ROOT / path, variables=from_words(options(words, "--set")))
    for over in options(words, "--over"):
        sweeps.values(over, spec.variables_of(ROOT / path))
    assert all((ROOT / costs).is_file() for costs in options(words, "--costs"))
