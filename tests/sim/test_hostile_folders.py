"""A run folder that somebody sent is data: whatever is in it, the analysis ends with its figures or with one clear error, obeys
nothing, and writes nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dbtoll.commands import inspect
from dbtoll.errors import RunFolderError
from dbtoll.runner import run as runs
from dbtoll.selfbench.explanations import ledger
from dbtoll.selfbench.support.native_setup import experiment
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.store.reader import Run
from dbtoll.store.schema import FACTS_FILE, HISTORY_FILE, PLAN_FILE, REPORT_FILE, RESULT_FILE, SPEC_FILE, TABLES_FOLDER
from tests.support.make_run import DOCKER, make_run
from tests.support.make_windows import make_windows
from tests.support.mutate import GONE, RAW, Folder, changes, only_queries

CHANGES = int(os.environ.get("DBTOLL_TEST_CHANGES", "40"))
"""Of each kind of run; more of them where somebody has the time."""


def statements(place: Path) -> Folder:
    made = make_run(place, rounds=5, blocks=1, cold=True, connections=("persistent", "per_statement"))
    return only_queries(Folder.of(made), ["Q1", "Q6", "Q9"])


def transactions(place: Path) -> Folder:
    driver = {"null_us_per_transaction": {"statement": 10.0}, "null_per_s": {"statement": 5000.0}}
    causes = {"failed": {"deadlock": 1}, "retried": {"serialization": 2}}
    return Folder.of(
        make_windows(place, rounds=5, interactions=("statement", "procedure"), driver=driver, causes=causes)
    )


class FiveRounds(Quiet):
    """Whatever a busy machine takes for them."""

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        return "enough" if len(run.counted) >= 5 else None


def explained(place: Path) -> Folder:
    asked = experiment(ledger.PLANTED)
    asked = replace(asked, precision=replace(asked.precision, blocks_max=1))
    whole = Folder.of(runs.begin(asked, ledger.PLANTED, place, FiveRounds(lambda _: None)))
    queries = [query for query in whole.parts[PLAN_FILE]["queries"][:2] if isinstance(query, str)]
    probes = ["system_call", "system_call_cold", "fault_anonymous", "primes", "rows", "descents", "joins", "sorts"]
    return only_queries(whole, [*queries, *probes])


MAKERS: dict[str, Callable[[Path], Folder]] = {
    "statements": statements,
    "transactions": transactions,
    "explained": explained,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Folder]:
    known: dict[str, Folder] = {}

    def make(kind: str) -> Folder:
        if kind not in known:
            known[kind] = MAKERS[kind](tmp_path_factory.mktemp(kind) / "run")
        return known[kind]

    return make


@pytest.mark.parametrize("kind", MAKERS)
def test_whatever_is_changed_it_is_analysed_or_named(
    kind: str, made: Callable[[str], Folder], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Any other exception would be a defect, and exit 70."""
    inspect.report(made(kind).write(tmp_path / "unchanged"), as_json=False)
    outcomes = {True: 0, False: 0}
    for number, (said, folder) in enumerate(changes(made(kind), 15, CHANGES)):
        place = folder.write(tmp_path / "changed")
        try:
            (inspect.report if number % 4 == 0 else inspect.analyze)(place, as_json=number % 2 == 0)
        except RunFolderError as error:
            assert str(place) in error.message, said
            outcomes[False] += 1
        except Exception as error:
            raise AssertionError(f"{kind}: {said}") from error
        else:
            outcomes[True] += 1
    assert min(outcomes.values()) > CHANGES / 20, outcomes
    assert "\x1b" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("kind", "where", "steps", "value"),
    [
        ("statements", PLAN_FILE, ("experiment", "arms"), []),
        ("statements", PLAN_FILE, ("experiment", "baseline"), "nobody"),
        ("statements", PLAN_FILE, ("experiment", "precision", "margin"), 1.5),
        ("statements", PLAN_FILE, ("experiment", "precision", "confidence"), 10**40),
        ("statements", PLAN_FILE, ("experiment", "parameter_sets"), 10**9),
        ("statements", PLAN_FILE, ("blocks",), 10**9),
        ("statements", FACTS_FILE, ("host", "memory_bytes"), 10**40),
        ("statements", "visit", ("arm",), "nobody"),
        ("statements", "visit", ("query",), "Q99"),
        ("statements", "visit", ("block",), -2),
        ("statements", "visit", ("round",), 3),
        ("statements", "visit", ("units", 0, "executions", 0, 3), 0),
        ("statements", "visit", ("units", 0, "executions", 0, 0), RAW + "NaN"),
        ("statements", "visit", ("units", 0, "executions", 0, 6), "fine"),
        ("statements", "visit", ("order",), 1),
        ("statements", "visit", ("levels",), {"cache": "hot"}),
        ("transactions", "visit", ("units", 0, "window", "transactions"), {}),
        ("transactions", "visit", ("units", 0, "window", "transactions", "delivery"), GONE),
        ("transactions", "visit", ("units", 0, "window", "interval_ns"), 0),
        ("transactions", "visit", ("units", 0, "window", "length_ns"), -1),
        ("transactions", "visit", ("units", 0, "window", "throughput_transaction"), "nothing"),
        ("transactions", FACTS_FILE, ("driver", "null_per_s", "statement"), -1),
    ],
)
def test_what_no_run_has_is_named_with_its_line(
    kind: str, where: str, steps: tuple[str | int, ...], value: Any, made: Callable[[str], Folder], tmp_path: Path
) -> None:
    folder = made(kind)
    place: str | int = where
    if where == "visit":
        place = [number for number, record in enumerate(folder.records) if record["record"] == "visit"][40]
    changed = folder.changed(place, steps, value).write(tmp_path / "run")
    with pytest.raises(RunFolderError) as error:
        inspect.analyze(changed, as_json=True)
    named = f"{changed / HISTORY_FILE}:{int(place) + 1}:" if where == "visit" else f"{changed / where}:1"
    assert error.value.message.startswith(named)
    assert error.value.exit_code == 66
    assert error.value.hint


# --- text ---------------------------------------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\u202e<img src=x onerror=alert(1)>[red]"


def test_text_is_shown_and_never_obeyed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Names, sentences, plans and facts of a folder: in the terminal, on the page, in the tables."""
    names = {
        DOCKER: f"={EVIL}",
        "Q9": f"=cmd|' /C calc'!A1{EVIL}",
        "as it should be": EVIL,
        "jit": EVIL,
        "6.12.0": EVIL,
    }

    def evil(value: Any) -> Any:
        match value:
            case str():
                return names.get(value, value)
            case dict():
                return {names.get(key, key): evil(each) for key, each in value.items()}
            case list():
                return [evil(each) for each in value]
        return value

    folder = Folder.of(make_run(tmp_path / "run", rounds=5))
    parts = {name: evil(part) for name, part in folder.parts.items()}
    parts[PLAN_FILE]["experiment"] |= {"question": EVIL, "expected": EVIL}
    told = dict.fromkeys(("reason", "plan"), EVIL)
    records = [evil(record) | {key: told[key] for key in told if record.get(key)} for record in folder.records]
    sent = Folder(EVIL.encode(), parts, records).write(tmp_path / "sent")
    _, result = inspect.report(sent, as_json=False)
    assert any("img src" in arm.name for arm in result.arms)

    printed = "".join(capfd.readouterr())
    assert "<img" in printed
    assert not {"\x1b", "\x07", "\u202e"} & set(printed)

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            assert tag not in ("img", "script") or dict(attributes).get("type") == "application/json", attributes
            assert not [name for name, _ in attributes if name.startswith("on")]

    page = (sent / REPORT_FILE).read_text()
    Elements().feed(page)
    assert not {"\x1b", "\x07", "\u202e"} & set(page)

    read = duckdb.connect()
    for table in (sent / TABLES_FOLDER).glob("*.csv"):
        cells = read.execute(f"SELECT COLUMNS(*) FROM read_csv('{table}', all_varchar = true)").fetchall()
        texts_of = {cell for row in cells for cell in row if cell and "img src" in cell}
        assert texts_of
        assert all(cell.startswith("'=") for cell in texts_of if cell.lstrip("'")[:1] == "=")
    (first,) = read.execute(f"SELECT query FROM '{sent}/tables/samples.parquet' WHERE query LIKE '%calc%'").fetchall()[
        0
    ]
    assert first.startswith("=cmd")


# --- links ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SPEC_FILE, PLAN_FILE, FACTS_FILE, HISTORY_FILE])
def test_what_is_read_is_no_link(name: str, tmp_path: Path) -> None:
    """It would show, in an error or a page, what its sender may not read."""
    sent = make_run(tmp_path / "run", rounds=1)
    (sent / name).rename(tmp_path / "elsewhere")
    (sent / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match=f"{name}: it is a link"):
        inspect.analyze(sent, as_json=True)


def test_what_is_read_is_no_pipe_that_nobody_fills(tmp_path: Path) -> None:
    sent = make_run(tmp_path / "run", rounds=1)
    (sent / HISTORY_FILE).unlink()
    os.mkfifo(sent / HISTORY_FILE)
    with pytest.raises(RunFolderError, match="it is no file"):
        inspect.analyze(sent, as_json=True)


def test_what_is_read_is_not_larger_than_memory(tmp_path: Path) -> None:
    sent = make_run(tmp_path / "run", rounds=1)
    os.truncate(sent / HISTORY_FILE, 1 << 40)
    with pytest.raises(RunFolderError, match="too large"):
        inspect.analyze(sent, as_json=True)


@pytest.mark.parametrize("name", [RESULT_FILE, REPORT_FILE, TABLES_FOLDER, f"{TABLES_FOLDER}/results.csv"])
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    sent = make_run(tmp_path / "run", rounds=1)
    home = tmp_path / "home"
    home.mkdir()
    startup = home / "startup"
    startup.write_text("mine")
    link = sent / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(home if name == TABLES_FOLDER else startup)
    with pytest.raises(RunFolderError, match=f"{name}: it is a link") as error:
        inspect.report(sent, as_json=True)
    assert error.value.exit_code == 66
    assert startup.read_text() == "mine"
    assert list(home.iterdir()) == [startup]
    assert link.is_symlink()
    assert not list(sent.glob(".*"))
