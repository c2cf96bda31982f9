"""What docs/results/ says was measured is what the analysis of today makes of the runs that are kept beside it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from dbtoll.analysis.result.builder import analyze, analyze_run
from dbtoll.analysis.sweeps import builder as sweeps
from dbtoll.model.reply import TIME_PER_TRANSACTION
from dbtoll.store.reader import read_run
from tests.support.documents import program
from tests.support.make_run import make_run
from tests.support.make_windows import make_windows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """docs/make_tables.py."""
    return program("make_tables")


MEND = "run docs/make_tables.py, read what changed, and say in CHANGELOG which verdicts did"


def nearly(value: float) -> object:
    """Another processor's last digits are other ones."""
    return pytest.approx(value, rel=1e-9)


def cells(path: Path, number: Callable[[float], object]) -> list[list[object]]:
    """Of a CSV file."""

    def cell(text: str) -> object:
        try:
            return number(float(text))
        except ValueError:
            return text

    return [[cell(text) for text in row] for row in csv.reader(path.read_text(encoding="utf-8").splitlines())]


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_is_what_its_runs_say(page: Path, maker: ModuleType) -> None:
    text = page.read_text(encoding="utf-8")
    assert maker.MADE.search(text), "it shows no run"
    assert maker.made_again(text, RESULTS) == text, MEND


def test_a_reproduction_or_a_sweep_is_what_its_runs_say(maker: ModuleType, tmp_path: Path) -> None:
    written = {**dict.fromkeys(maker.REPRODUCTIONS, maker.reproduced), **dict.fromkeys(maker.SWEEPS, maker.swept)}
    for name, write in written.items():
        write(name, RESULTS, tmp_path / name)
        made, there = sorted((tmp_path / name).iterdir()), sorted((RESULTS / name).iterdir())
        assert [path.name for path in made] == [path.name for path in there]
        for ours, published in zip(made, there, strict=True):
            if ours.suffix == ".csv":
                assert cells(ours, float) == cells(published, nearly), MEND
            else:
                assert ours.read_text(encoding="utf-8") == published.read_text(encoding="utf-8"), MEND


@pytest.mark.parametrize(
    ("kept", "comparisons"), [(("zhang2014-tenants-4", "zhang2014-tenants-16"), 4), (("zhang2014-placement-4",), 5)]
)
def test_a_sweep_says_of_each_of_its_runs_what_that_ones_report_says(
    maker: ModuleType, kept: tuple[str, ...], comparisons: int
) -> None:
    """Who is held against a baseline is held against the mean of it and its copy, on both pages."""
    compared = 0
    with maker.kept(kept, RESULTS) as runs:
        contrasts = [each for each in sweeps.analyze(runs).contrasts if each.measure == "throughput"]
        points = {
            (point.value, *pair): (point.estimate, point.low, point.high)
            for each in contrasts
            for point in each.points
            for pair in [(each.design, each.against)]
        }
        for run in runs:
            value = run.plan.experiment.sweep.value
            for told in analyze_run(run).comparisons:
                if told.is_aa or told.metric != TIME_PER_TRANSACTION:
                    continue
                one, other = told.arm, told.baseline
                turned = (value, other, one) in points
                found = points[(value, other, one) if turned else (value, one, other)]
                if turned:
                    found = tuple(1 / (1 + each) - 1 for each in (found[0], found[2], found[1]))
                assert found == pytest.approx((told.estimate, told.low, told.high)), told.arm
                compared += 1
    assert compared == comparisons


def test_every_run_that_is_kept_is_shown(maker: ModuleType) -> None:
    shown = {name for _, parts in maker.REPRODUCTIONS.values() for name in maker.kept_names(parts)}
    shown |= {name for names in maker.SWEEPS.values() for name in names}
    for page in RESULTS.glob("*.md"):
        for found in maker.MADE.finditer(page.read_text(encoding="utf-8")):
            shown |= set(found[3].split())
    assert shown == {path.name.removesuffix(".tar.xz") for path in (RESULTS / maker.RUNS).iterdir()}


def test_a_kept_run_is_the_whole_of_it(maker: ModuleType, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rounds=3)
    maker.keep(folder, tmp_path / maker.RUNS / "mine.tar.xz")
    with maker.kept(["mine"], tmp_path) as (run,):
        assert analyze_run(run) == analyze(folder)


def test_figure_5_names_an_arm_that_failed(maker: ModuleType, tmp_path: Path) -> None:
    """Its lines have no verdict that would say so."""
    folder = make_windows(tmp_path / "run", docker_effect=-0.2, noise=0.002, causes={"failed": {"error": 4000}})
    run = read_run(folder)
    (table,) = maker.figure5_of([(run, analyze_run(run))])
    assert "(failed)" in table


def test_what_is_written_by_hand_stays(maker: ModuleType) -> None:
    page = "# Mine\n\nBefore.\n\n<!-- answers of minhas2008-docker -->\nOUTDATED\n<!-- end -->\n\nAfter.\n"
    made = maker.made_again(page, RESULTS)
    assert made.startswith("# Mine\n\nBefore.\n\n<!-- answers of minhas2008-docker -->\n\nExpected before the run")
    assert made.endswith("<!-- end -->\n\nAfter.\n")
    assert "OUTDATED" not in made and "| docker |" in made
    assert maker.made_again(made, RESULTS) == made
