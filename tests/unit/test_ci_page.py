"""docs/CI.md and the examples of docs/SCHEMA.md: what they tell somebody to type works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import typer.main
import yaml

from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import to_json
from dbtoll.cli import app
from dbtoll.report import export
from dbtoll.store.reader import read_run
from tests.support.make_run import COPY, DOCKER, NATIVE, make_run
from tests.support.make_windows import make_windows
from tests.support.program import ROOT

CI, SCHEMA = ROOT / "docs" / "CI.md", ROOT / "docs" / "SCHEMA.md"
PAGES = [CI, SCHEMA]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from texts(inner)
        case list():
            for inner in value:
                yield from texts(inner)


def command_lines() -> list[str]:
    """Every line of dbtoll on the page, plain or in the YAML of a CI system."""
    plain = [line for block in blocks(CI, "") for line in block.replace("\\\n", "").splitlines()]
    said = [text for block in blocks(CI, "yaml") for text in texts(yaml.safe_load(block))]
    lines = [line for text in (*plain, *said) for line in text.splitlines()]
    return [line for line in lines if re.match(r"(sudo )?dbtoll ", line)]


# --- YAML and command lines ------------------------------------------------------------------------------------------


def test_there_is_an_example_for_two_systems() -> None:
    github, gitlab = map(yaml.safe_load, blocks(CI, "yaml"))
    (job,) = github["jobs"].values()
    assert {step.get("uses", "run").partition("@")[0] for step in job["steps"]} == {
        "actions/checkout", "actions/upload-artifact", "run",
    }  # fmt: skip
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert gitlab["overhead"]["stage"] in gitlab["stages"]
    assert gitlab["overhead"]["artifacts"]["reports"] == {"junit": "junit.xml"}


def test_every_command_line_is_one_of_this_program() -> None:
    lines = command_lines()
    assert len(lines) == 5
    group = typer.main.get_command(app)
    for line in lines:
        words = shlex.split(re.sub(r" > \S+$", "", line).removeprefix("sudo "))
        context = group.make_context("dbtoll", words[1:2], resilient_parsing=True)
        name, command, _ = group.resolve_command(context, words[1:])  # type: ignore[attr-defined]
        parsed = command.make_context(name, words[2:], parent=context)
        assert parsed.params.get("max_overhead"), line
        with pytest.raises(Exception, match="No such option"):
            command.make_context(name, [*words[2:], "--no-such-option"], parent=context)


def test_files_that_the_examples_name_are_written_by_them() -> None:
    for block in blocks(CI, "yaml"):
        said = "\n".join(texts(yaml.safe_load(block)))
        (line,) = (line for line in command_lines() if line in said)
        for name in set(re.findall(r"\b(?:junit\.xml|summary\.md|result\.json)", said)):
            assert re.search(rf"(--junit|--markdown|>) {re.escape(name)}( |$)", line), (name, line)


# --- jq --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which lie ``runs/`` of statements and of transactions, with their tables, and one result.json."""
    root = tmp_path_factory.mktemp("examples")
    (root / "runs").mkdir()
    for folder in (
        make_run(root / "runs" / "one", rounds=6, cold=True, docker_effect=0.2, visit_sd=0.004, start_sd=0.001),
        make_windows(root / "runs" / "two", docker_effect=0.5),
    ):
        run = read_run(folder)
        export.write(folder, results.analyze_run(run), run)
    (root / "result.json").write_text(to_json(results.analyze_run(read_run(root / "runs" / "one"), 0.05)))
    return root


def jq_lines() -> list[str]:
    return blocks(CI, "sh")


def test_jq_finds_what_the_page_says(runs: Path) -> None:
    result = json.loads((runs / "result.json").read_text())
    main = [
        c for c in result["comparisons"]
        if (c["metric"], c["estimand"], c["is_aa"]) == (result["main_metric"], "geomean", False)
    ]  # fmt: skip
    assert [c["arm"] for c in main] == [DOCKER, DOCKER]
    cells = result["gate"]["cells"]
    expected = [
        [["exceeded"]],
        [[c["arm"], c["baseline"], c["decision"], c["estimate"], c["low"], c["high"], c["rounds"], ""] for c in cells],
        [[c["arm"], c["estimate"], c["low"], c["high"], c["verdict"]] for c in main],
        [["postgres 15.14"]],
        [[name, "PostgreSQL 15.14"] for name in (NATIVE, COPY, DOCKER)],
    ]
    lines = jq_lines()
    assert len(lines) == len(expected)
    for line in lines:  # every key that it names is one of the result's
        for key in re.findall(r"(?<=\.)[a-z_]+", line.replace("result.json", "")):
            assert f'"{key}"' in (runs / "result.json").read_text(), key
    if shutil.which("jq") is None:
        pytest.skip("no jq here: only the keys were compared")
    for line, rows in zip(lines, expected, strict=True):
        done = subprocess.run(shlex.split(line), cwd=runs, capture_output=True, text=True, check=True)
        found = [row.split("\t") for row in done.stdout.splitlines()]
        assert [
            [type(want)(got) for got, want in zip(*pair, strict=True)] for pair in zip(found, rows, strict=True)
        ] == rows


# --- many runs as one table ------------------------------------------------------------------------------------------


def asked(sql: str, runs: Path) -> list[dict[str, Any]]:
    with duckdb.connect() as database:
        found = database.execute(sql.replace("'runs/", f"'{runs}/runs/"))
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def test_duckdb_reads_many_runs_as_one_table(runs: Path) -> None:
    (sql,) = blocks(CI, "sql")
    rows = asked(sql, runs)
    assert [row["arm"] for row in rows] == [DOCKER] * 3
    assert all(row["engine_version"] == "15.14" and str(row["date"]).startswith("20") for row in rows)
    assert sorted(round(row["percent"]) for row in rows) == [20, 20, 48]


def test_the_examples_of_the_schema_answer(runs: Path) -> None:
    queries = blocks(SCHEMA, "sql")
    assert len(queries) >= 2
    for sql in queries:
        assert {row["arm"] for row in asked(sql, runs)} >= {DOCKER}, sql


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pandas_reads_many_runs_as_one_table(page: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks(page, "python")
    compile(code, str(page), "exec")
    pytest.importorskip("pandas", reason="no pandas here")
    monkeypatch.chdir(runs)
    exec(code, {})


def test_every_row_tells_where_it_comes_from(runs: Path) -> None:
    found = asked(
        "SELECT DISTINCT run, run_name, question, workload, workload_options, engine, engine_version, machine, kernel, dbtoll, "
        "length(spec_sha256) AS letters FROM read_parquet('runs/*/tables/results.parquet', union_by_name = true) ORDER BY run",
        runs,
    )
    assert [(row["run"], row["run_name"], row["workload"], row["engine"]) for row in found] == [
        ("one", "one", "tpch", "postgres"),
        ("two", "two", "tpcc", "postgres"),
    ]
    assert json.loads(found[0]["workload_options"]) == {"scale": 0.1}
    assert found[0]["question"] == "How much does PostgreSQL lose on TPC-H in Docker?"
    assert {(row["machine"], row["kernel"], row["letters"]) for row in found} == {
        ("Simulated CPU, 2 processors", "6.12.0", 64)
    }
    copies = asked(
        "SELECT count(*) AS n FROM read_csv('runs/*/tables/results.csv', union_by_name = true) WHERE is_aa", runs
    )
    assert copies[0]["n"] > 20 and COPY
