"""The page in a real browser, on a wide and on a narrow window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from dbtoll.analysis.result import builder as results
from dbtoll.commands import sweep
from dbtoll.report import page
from dbtoll.report.sweep import place_text
from dbtoll.report.text import numbers
from dbtoll.store.reader import read_run
from tests.support.browser import browser, missing
from tests.support.make_run import make_run
from tests.support.make_windows import make_windows
from tests.support.planted_sweep import PLANTED

RESULTS = Path(__file__).parents[2] / "docs/results"
WIDE, NARROW = 1280, 360
SECTIONS = (
    "answer", "warnings", "arms", "queries", "plans", "published", "limits", "drift", "checks", "comparisons", "times",
    "facts", "repeat", "data",
)  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if lacking := missing():
        pytest.skip(f"{lacking} is not installed, the page is not looked at (apt-get install chromium chromium-driver)")
    folder = tmp_path_factory.mktemp("page") / "run"
    make_run(folder, rounds=6, cold=True, connections=("persistent", "per_statement"))
    file = folder / "report.html"
    file.write_text(page.render(results.analyze(folder), read_run(folder)), encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=[WIDE, NARROW])
def opened(request: pytest.FixtureRequest, report: Path) -> Iterator[tuple[webdriver.Chrome, int]]:
    with browser(request.param, 800) as driver:
        driver.get(report.as_uri())
        yield driver, request.param


def unfold(driver: webdriver.Chrome) -> None:
    driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")


def test_the_answers_and_the_main_pictures_are_seen_without_unfolding(report: Path) -> None:
    with browser(WIDE, 800) as driver:
        driver.get(report.as_uri())
        opened = driver.execute_script(
            "return ['#arms .forest', '#queries .forest'].map(each => document.querySelector(each).checkVisibility())"
        )
        assert opened == [True, True]
        seen = driver.execute_script("return document.body.innerText")
        assert "Noise floor" in seen and "budget" in seen and "PostgreSQL" in seen


def test_the_body_does_not_scroll_sideways(opened: tuple[webdriver.Chrome, int]) -> None:
    driver, width = opened
    for unfolded in (False, True):
        if unfolded:
            unfold(driver)
        assert driver.execute_script("return document.documentElement.scrollWidth") == width


def test_every_section_is_seen(opened: tuple[webdriver.Chrome, int]) -> None:
    driver, width = opened
    for section in SECTIONS:
        box = driver.execute_script(
            "const box = document.getElementById(arguments[0])?.getBoundingClientRect();"
            "return box && [box.left, box.right, box.height]",
            section,
        )
        assert box is not None, section
        left, right, height = box
        assert left >= 0 and right <= width and height > 20, section


def test_the_figures_of_the_json_are_seen(opened: tuple[webdriver.Chrome, int]) -> None:
    driver, _ = opened
    unfold(driver)
    embedded = json.loads(driver.execute_script("return document.getElementById('result').textContent"))
    seen = " ".join(driver.execute_script("return document.body.innerText").split())
    assert len(embedded["comparisons"]) > 190
    for c in embedded["comparisons"]:
        if c["estimate"] is not None:
            assert shown(numbers.IntervalText(c["estimate"], c["low"], c["high"]).text) in seen, c
    for headline in ("loses", "two identical copies differ by"):
        assert headline in seen
    drawn = driver.execute_script("return [...document.querySelectorAll('.forest data')].map(each => +each.value)")
    assert sorted(drawn) == sorted(c["estimate"] for c in embedded["comparisons"] if c["estimate"] is not None)


def shown(text: str) -> str:
    """As Python's split() leaves it: it takes a narrow no-break space for white space, as the page's text does."""
    return " ".join(text.split())


def test_labels_stand_on_one_line(opened: tuple[webdriver.Chrome, int]) -> None:
    """A column of labels that is too narrow stacks their letters."""
    driver, _ = opened
    unfold(driver)
    heights = driver.execute_script(
        "return [...document.querySelectorAll('.forest tbody tr:not(.group) :is(th, .absolute:not(:empty))')].map(each => {"
        " const text = document.createRange(); text.selectNodeContents(each); return text.getClientRects().length })"
    )
    assert len(heights) > 190
    assert set(heights) == {1}


def test_marks_lie_where_the_axis_says(opened: tuple[webdriver.Chrome, int]) -> None:
    """The figure's own arithmetic against the browser's: the point of every row between its neighbours' ticks."""
    driver, _ = opened
    rows = driver.execute_script(
        """return [...document.querySelectorAll('.forest')].slice(0, 2).flatMap(figure => {
          const middle = box => (box.left + box.right) / 2, of = each => middle(each.getBoundingClientRect());
          const ticks = [...figure.querySelectorAll('.axis .tick')].map(of);
          const labels = [...figure.querySelectorAll('.axis text:not(.end):not(.unit)')].map(each => each.textContent);
          return [...figure.querySelectorAll('tbody tr:not(.group)')].map(row =>
            [of(row.querySelector('.point')), +row.querySelector('data').value, ticks, labels]) })"""
    )
    assert rows
    for x, estimate, ticks, labels in rows:
        values = [float(label.replace(numbers.MINUS, "-")) / 100 for label in labels]
        per_pixel = (values[-1] - values[0]) / (ticks[-1] - ticks[0])
        assert values[0] + (x - ticks[0]) * per_pixel == pytest.approx(estimate, abs=2 * per_pixel)


def test_nothing_is_loaded_and_nothing_is_wrong(opened: tuple[webdriver.Chrome, int]) -> None:
    driver, _ = opened
    assert driver.execute_script("return performance.getEntriesByType('resource').map(each => each.name)") == []
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []  # type: ignore[no-untyped-call]


def test_dark_and_light_differ_and_both_can_be_read(report: Path) -> None:
    colours = "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
    seen = []
    for dark in (False, True):
        with browser(WIDE, 800, dark=dark) as driver:
            driver.get(report.as_uri())
            ink, paper = (brightness(colour) for colour in driver.execute_script(colours))
            assert (ink > paper) is dark and abs(ink - paper) > 150
            seen.append(paper)
    assert seen[0] != seen[1]


def brightness(colour: str) -> float:
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3


@pytest.mark.parametrize("width", [1400, 390])
def test_a_page_of_transactions_is_a_few_screens_and_splits_no_unit(tmp_path: Path, width: int) -> None:
    if lacking := missing():
        pytest.skip(f"{lacking} is not installed")
    make_windows(tmp_path / "run")
    file = tmp_path / "report.html"
    file.write_text(page.render(results.analyze(tmp_path / "run"), read_run(tmp_path / "run")), encoding="utf-8")
    with browser(width, 900) as driver:
        driver.get(file.as_uri())
        height, wide = driver.execute_script(
            "return [document.documentElement.scrollHeight, document.documentElement.scrollWidth]"
        )
        assert height <= (6 if width > 500 else 9) * 900 and wide == width
        unfold(driver)
        lines = driver.execute_script(
            "return [...document.querySelectorAll('.absolute:not(:empty)')].map(each => {"
            " const text = document.createRange(); text.selectNodeContents(each); return text.getClientRects().length })"
        )
        assert len(lines) > 10 and set(lines) == {1}


_BROKEN_FIGURES = """
return [...document.querySelectorAll('td')].flatMap(cell => [...cell.childNodes]).filter(each => each.nodeType == 3)
  .flatMap(each => [...each.data.matchAll(/[0-9\u202f.]*[0-9]/g)].filter(found => {
    const figure = document.createRange();
    figure.setStart(each, found.index); figure.setEnd(each, found.index + found[0].length);
    return figure.getClientRects().length > 1 }).map(found => found[0]))
"""

_CLIPPED_LABELS = """
return [...document.querySelectorAll('svg.plot')].flatMap(plot => {
  const edge = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('text')].filter(each => each.getBoundingClientRect().top < edge.top)
    .map(each => each.textContent) })
"""


@pytest.mark.parametrize("width", [1400, 390])
def test_tables_break_no_figure_and_plots_clip_no_label(tmp_path: Path, width: int) -> None:
    if lacking := missing():
        pytest.skip(f"{lacking} is not installed")
    make_windows(tmp_path / "run", units=2, per_s=6000.0)
    file = tmp_path / "report.html"
    file.write_text(page.render(results.analyze(tmp_path / "run"), read_run(tmp_path / "run")), encoding="utf-8")
    with browser(width, 900) as driver:
        driver.get(file.as_uri())
        unfold(driver)
        assert driver.execute_script("return document.querySelectorAll('#units td').length") > 10
        assert driver.execute_script(_BROKEN_FIGURES) == []
        assert driver.execute_script("return document.querySelectorAll('svg.plot text').length") > 10
        assert driver.execute_script(_CLIPPED_LABELS) == []


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_of_a_sweep_is_read_on_wide_and_narrow_windows(tmp_path: Path, width: int) -> None:
    if lacking := missing():
        pytest.skip(f"{lacking} is not installed")
    spec = tmp_path / "planted.toml"
    spec.write_text(PLANTED, encoding="utf-8")
    planned = sweep.planned_from(spec, over="effect=0.1,0.4,0.8", variables=["many=1"])
    result, file = sweep.write(sweep.measure(planned, tmp_path, quiet=True, yes=True))
    with browser(width, 900) as driver:
        driver.get(file.as_uri())
        unfold(driver)
        assert driver.execute_script("return document.documentElement.scrollWidth") == width
        seen = " ".join(driver.execute_script("return document.body.innerText").split())
        assert "grows" in seen and "fixed" in seen
        crossovers = [found for each in result.contrasts for found in each.crossovers]
        assert crossovers and all(place_text(found.estimate) in seen for found in crossovers)
        assert driver.execute_script(_BROKEN_FIGURES) == []
        assert driver.execute_script("return document.querySelectorAll('svg.plot text').length") > 5
        assert driver.execute_script(_CLIPPED_LABELS) == []


def test_a_reproduction_has_figures_at_the_right_and_breaks_no_word() -> None:
    if lacking := missing():
        pytest.skip(f"{lacking} is not installed, the page is not looked at (apt-get install chromium chromium-driver)")
    for name in ("zhang2014-docker/zhang2014", "muehlbauer2015-qemu/muehlbauer2015"):
        with browser(WIDE, 800) as driver:
            driver.get((RESULTS / f"{name}.html").as_uri())
            unfold(driver)
            aligned = driver.execute_script(
                "return [...document.querySelectorAll('table.published')].map(table => ["
                " table.querySelector('thead tr:last-child th:last-child').textContent,"
                " getComputedStyle(table.querySelector('tbody td:last-child')).textAlign ])"
            )
            assert aligned
            for head, side in aligned:
                assert side == ("left" if head == "verdict" else "right"), head
            broken = driver.execute_script(
                "const walk = document.createTreeWalker(document.querySelector('.claims'), NodeFilter.SHOW_TEXT), found = [];"
                "for (let node; node = walk.nextNode();)"
                " for (const word of node.textContent.matchAll(/[A-Za-z]{2,}/g)) {"
                "  const text = document.createRange(); text.setStart(node, word.index);"
                "  text.setEnd(node, word.index + word[0].length);"
                "  if (text.getClientRects().length > 1) found.push(word[0]) }"
                "return found"
            )
            assert broken == []
