"""The run folder: nothing is lost when a writer is killed, and nothing that was changed is believed."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from dbtoll.analysis.result.builder import analyze_run
from dbtoll.errors import RunFolderError
from dbtoll.store import schema
from dbtoll.store.reader import read_run
from dbtoll.store.schema import PlanFile, RoundBegin, RoundEnd, RunEnd, Start, Visit
from dbtoll.store.writer import RunWriter
from tests.support.make_run import DOCKER, QUERIES, experiment, make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", rounds=3, blocks=1)


def lines(folder: Path) -> list[bytes]:
    return (folder / "history.ndjson").read_bytes().splitlines(keepends=True)


def rewrite(folder: Path, changed: list[bytes]) -> None:
    (folder / "history.ndjson").write_bytes(b"".join(changed))


def test_what_was_written_is_read(folder: Path) -> None:
    run = read_run(folder)
    assert run.complete_rounds == (0, 1, 2)
    assert run.plan.queries == QUERIES
    assert run.plan.experiment == experiment()
    assert run.end is not None and run.end.reason == "budget ended"
    assert run.facts_of("native")["engine"] == "postgres"
    counted = list(run.records(Visit))
    assert len(counted) == 3 * 3 * 22 * 2  # rounds, arms, queries, warm-up and block
    assert all(timing.end_ns > timing.start_ns for visit in counted for timing in visit.units[0].executions)


def test_the_chain_is_what_the_schema_says(folder: Path) -> None:
    """Checked here without the project's own code."""
    chain = b"00000000"
    for line in lines(folder):
        body, _, end = line.rpartition(b',"chain":"')
        chain = b"%08x" % zlib.crc32(chain + body)
        assert end == chain + b'"}\n'
        record = json.loads(line)
        assert next(iter(record)) == "record"
        assert list(record)[-1] == "chain"


def test_only_the_last_attempt_of_a_round_counts(folder: Path) -> None:
    run = read_run(folder)
    tries = [(attempt.attempt, attempt.complete) for attempt in run.attempts if attempt.round == 2]
    assert tries == [(0, False), (1, True)]
    marked = [(attempt, counts) for visit, attempt, counts in run.all_visits() if visit.round == 2]
    assert {(0, False), (1, True)} == set(marked)
    assert len(list(run.records(Visit))) == sum(counts for _, _, counts in run.all_visits())


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_a_killed_writer_loses_at_most_its_last_line(folder: Path, kept: float) -> None:
    data = (folder / "history.ndjson").read_bytes()
    cut = data[: int(len(data) * kept)]
    (folder / "history.ndjson").write_bytes(cut)
    run = read_run(folder)
    assert run.unfinished_line == (not cut.endswith(b"\n"))
    assert run.lines == cut.count(b"\n")
    assert run.end is None


def test_a_run_goes_on_where_it_was_killed(folder: Path) -> None:
    whole = lines(folder)
    begun = next(index for index, line in enumerate(whole) if b'"record":"round_begin","round":1' in line)
    rewrite(folder, [*whole[: begun + 40], whole[begun + 40][:25]])
    writer, before = RunWriter.resume(folder)
    assert before.unfinished_line
    assert before.complete_rounds == (0,)
    assert before.next_attempt(1) == 1
    with writer:
        writer.append(RoundBegin(round=1, attempt=1, elapsed_s=before.elapsed_s))
        writer.append(Start(round=1, arm=DOCKER, outcome="failed", reason="no room"))
        writer.append(RoundEnd(round=1, attempt=1, complete=True, elapsed_s=50.0))
        writer.append(RunEnd(reason="target reached", elapsed_s=50.0))
    run = read_run(folder)
    assert run.complete_rounds == (0, 1)
    assert not run.unfinished_line
    assert [(a.round, a.attempt, a.complete) for a in run.attempts] == [(0, 0, True), (1, 0, False), (1, 1, True)]
    assert b'{"record":"interrupted","round":1,"attempt":0' in b"".join(lines(folder))
    assert lines(folder)[: begun + 40] == whole[: begun + 40]


def test_an_end_after_which_a_round_began_is_none(folder: Path) -> None:
    ended = read_run(folder)
    writer, _ = RunWriter.resume(folder)
    with writer:
        writer.append(RoundBegin(round=3, attempt=0, elapsed_s=ended.elapsed_s + 1))
    killed = read_run(folder)
    assert killed.end is None
    assert killed.elapsed_s == ended.elapsed_s + 1
    assert any("the run has no end" in warning.text for warning in analyze_run(killed).warnings)


def test_two_writers_are_refused(folder: Path) -> None:
    writer, _ = RunWriter.resume(folder)
    with writer, pytest.raises(RunFolderError, match="another dbtoll writes this run"):
        RunWriter.resume(folder)


def test_a_run_is_not_overwritten(folder: Path) -> None:
    plan = PlanFile(experiment=experiment(), queries=QUERIES, blocks=1)
    with pytest.raises(RunFolderError, match="there is a run already"):
        RunWriter.create(folder, spec=b"", plan=plan, facts={})


def test_a_refused_resume_leaves_the_file_alone(folder: Path) -> None:
    changed = lines(folder)
    changed[7] = changed[7].replace(b'"round":0', b'"round":1')
    rewrite(folder, changed)
    before = (folder / "history.ndjson").read_bytes()
    with pytest.raises(RunFolderError):
        RunWriter.resume(folder)
    assert (folder / "history.ndjson").read_bytes() == before


def test_every_edit_is_found_and_named(folder: Path) -> None:
    whole = lines(folder)
    numbers = [1, 2, 5, len(whole) // 2, len(whole)]
    for number in numbers:
        line = whole[number - 1]
        digit = next(i for i in range(len(line) - 25, 0, -1) if line[i : i + 1].isdigit())
        other = b"%d" % ((int(line[digit : digit + 1]) + 1) % 10)
        rewrite(folder, [*whole[: number - 1], line[:digit] + other + line[digit + 1 :], *whole[number:]])
        with pytest.raises(RunFolderError, match=rf"history\.ndjson:{number}: this line was edited") as error:
            read_run(folder)
        assert error.value.hint


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (lambda lines: lines[:3] + lines[4:], 4),  # a line is missing
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),  # two are exchanged
        (lambda lines: [*lines[:5], lines[4], *lines[5:]], 6),  # one is doubled
        (lambda lines: [*lines[:5], b"\n", *lines[5:]], 6),
        (lambda lines: [*lines[:5], lines[5][:30] + b"\n", *lines[6:]], 6),  # cut, but with an end
        (lambda lines: [*lines[:5], b"\0" * 100 + b"\n", *lines[6:]], 6),
        (lambda lines: lines[1:], 1),
    ],
)
def test_damage_names_its_line(folder: Path, damage, where: int) -> None:  # type: ignore[no-untyped-def]
    rewrite(folder, damage(lines(folder)))
    with pytest.raises(RunFolderError, match=rf"history\.ndjson:{where}: "):
        read_run(folder)


def test_a_forged_chain_still_needs_a_record_of_the_schema(folder: Path) -> None:
    whole = lines(folder)
    chain = whole[-1].rpartition(b',"chain":"')[2][:8]
    forged = b'{"record":"visitor","round":1'
    rewrite(folder, [*whole, forged + b',"chain":"%08x"}\n' % zlib.crc32(chain + forged)])
    with pytest.raises(
        RunFolderError, match=rf"history\.ndjson:{len(whole) + 1}: not a record of schema {schema.SCHEMA_VERSION}"
    ):
        read_run(folder)


def test_a_newer_schema_is_said_to_be_newer(folder: Path) -> None:
    body = lines(folder)[0].rpartition(b',"chain":"')[0].replace(b'"schema_version":3', b'"schema_version":4')
    rewrite(folder, [body + b',"chain":"%08x"}\n' % zlib.crc32(b"00000000" + body)])
    with pytest.raises(RunFolderError, match=r"history\.ndjson:1: written in schema 4.* reads up to 3") as error:
        read_run(folder)
    assert error.value.hint == "read it with a newer dbtoll"


@pytest.mark.parametrize("name", ["spec.toml", "plan.json", "facts.json"])
def test_the_other_files_must_be_those_of_the_beginning(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(RunFolderError, match=rf"{name}:1: the file is not the one that the run began with"):
        read_run(folder)
    path.unlink()
    with pytest.raises(RunFolderError, match=rf"{name}: cannot be read"):
        read_run(folder)


def test_a_folder_without_a_history(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no such run folder"):
        read_run(tmp_path / "none")
    with pytest.raises(RunFolderError, match=r"history\.ndjson: cannot be read"):
        read_run(tmp_path)
    (tmp_path / "history.ndjson").write_bytes(b'{"record":"run"')
    with pytest.raises(RunFolderError, match=r"history\.ndjson:1: the history is empty"):
        read_run(tmp_path)
    with pytest.raises(RunFolderError, match="there is no run to resume"):
        RunWriter.resume(tmp_path / "none")
