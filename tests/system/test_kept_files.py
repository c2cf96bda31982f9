"""Every file that a run keeps may be damaged, by a disk that was full or lost its power, or by hand: it is made again, or named in
one clear error, and no round that is in the history is measured twice."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dbtoll import facts
from dbtoll.errors import RunFolderError
from dbtoll.machines.agent import local as channel_local
from dbtoll.runner import run as runs
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.store import schema
from dbtoll.store.reader import read_run
from tests.support.few_rounds import Counting, specification
from tests.support.program import ROOT, dbtoll, is_root

SPEC = specification("base")
ROUNDS = 3


def begun(place: Path) -> Path:
    """A run of two rounds that is to have a third."""
    return runs.begin(experiment(SPEC), SPEC, place, Counting(2))


def gone_on(folder: Path) -> tuple[int, ...]:
    runs.resume(folder, Counting(ROUNDS))
    return read_run(folder).complete_rounds


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def truncated(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: random.Random(file.name).randrange(1, len(data))])


def gone(file: Path) -> None:
    file.unlink()


HARMS = (emptied, truncated, gone)
Harm = Callable[[Path], None]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", [schema.SPEC_FILE, schema.PLAN_FILE, schema.FACTS_FILE])
def test_what_the_history_begins_with_is_named(name: str, harm: Harm, tmp_path: Path) -> None:
    folder = begun(tmp_path)
    harm(folder / name)
    with pytest.raises(RunFolderError, match=name) as error:
        gone_on(folder)
    assert error.value.exit_code == 66


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", [schema.EXPERIMENT_FILE, schema.RESULT_FILE, "logs"])
def test_what_is_not_needed_any_more_is_not_missed(name: str, harm: Harm, tmp_path: Path) -> None:
    folder = begun(tmp_path)
    if name != "logs":
        (folder / name).touch()
        (folder / name).write_bytes((folder / name).read_bytes() or b"{}")
        harm(folder / name)
    assert gone_on(folder) == (0, 1, 2)


def test_a_history_that_ends_early_loses_what_is_cut_and_no_more(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    history = folder / schema.HISTORY_FILE
    data = history.read_bytes()
    first_end = data.index(b"\n", data.index(b'"record":"round_end"')) + 1
    history.write_bytes(data[: first_end + 1000])
    assert gone_on(folder) == (0, 1, 2)
    assert history.read_bytes().startswith(data[:first_end])
    attempts = [(attempt.round, attempt.attempt) for attempt in read_run(folder).attempts]
    assert attempts[:3] == [(0, 0), (1, 0), (1, 1)]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", [schema.SPEC_FILE, schema.EXPERIMENT_FILE, schema.PLAN_FILE])
def test_before_the_first_line_what_can_be_made_again_is(name: str, harm: Harm, tmp_path: Path) -> None:
    """A run that was killed between its plan and its history."""
    folder = begun(tmp_path)
    (folder / schema.HISTORY_FILE).unlink()
    (folder / schema.FACTS_FILE).unlink()
    harm(folder / name)
    if name == schema.PLAN_FILE:
        assert gone_on(folder) == (0, 1, 2)
        return
    with pytest.raises(RunFolderError, match="cannot be read" if harm is gone else name) as error:
        gone_on(folder)
    assert error.value.exit_code == 66
    assert error.value.hint


# --- answers of the baseline ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not is_root(), reason="native arms need root")
@pytest.mark.timeout(300)
def test_the_baselines_answers_are_asked_again_and_must_be_the_same(tmp_path: Path) -> None:
    text = SPEC.replace('"noop"', '"postgres"').replace('"simulated"', '"native"')
    text = text.replace('"tpch"\nqueries = ["Q1", "Q6"]', f'"sql"\ndirectory = "{ROOT / "examples" / "sql"}"')
    asked = experiment(text)
    folder = runs.begin(asked, text, tmp_path / "runs", Counting(2))
    kept = folder / schema.ANSWERS_FILE
    answers = kept.read_bytes()
    for harm in HARMS:
        harm(kept)
        runs.resume(folder, Counting(2))
        assert kept.read_bytes() == answers
    told = msgspec.json.decode(answers)
    next(each for each in told[0].values() if each["rows"])["rows"][0][0] = "another one"
    kept.write_bytes(msgspec.json.encode(told))
    with pytest.raises(RunFolderError, match=r"answers_sha256 was [0-9a-f]{12} and is"):
        runs.resume(folder, Counting(2))


# --- other programs ---------------------------------------------------------------------------------------------------------


def test_a_run_does_not_go_on_with_another_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of the same version: one byte after its end makes no difference to what it does."""
    folder = begun(tmp_path)
    other = tmp_path_factory.mktemp("agent") / "dbtoll-agent"
    shutil.copy(channel_local.find_agent(), other)
    with other.open("ab") as file:
        file.write(b"\0")
    monkeypatch.setattr(channel_local, "find_agent", lambda: other)
    with pytest.raises(RunFolderError, match=r"agent.sha256 was [0-9a-f]{12} and is [0-9a-f]{12}\n"):
        gone_on(folder)


def test_a_run_does_not_go_on_with_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path)
    package = tmp_path / "package"
    shutil.copytree(Path(facts.__file__).parent, package)
    facts.code_sha256.cache_clear()
    monkeypatch.setattr(facts, "__file__", str(package / "facts.py"))
    try:
        assert gone_on(folder) == (0, 1, 2)  # the same files in another place
        facts.code_sha256.cache_clear()
        with (package / "plan.py").open("a") as file:
            file.write("# another one\n")
        with pytest.raises(RunFolderError, match=r"code_sha256 was [0-9a-f]{12} and is"):
            gone_on(folder)
    finally:
        facts.code_sha256.cache_clear()


def test_it_is_said_on_the_command_line(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    emptied(folder / schema.FACTS_FILE)
    done = dbtoll("run", str(folder), "--resume", "--budget", "2m")
    assert done.returncode == 66
    assert f"{folder}/facts.json:1: the file is not the one that the run began with" in done.stderr
    assert "hint: " in done.stderr
