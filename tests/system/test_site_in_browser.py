"""The site of the documents in a real browser, opened as files: nothing is missing, nothing sticks out, and it can be searched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import browser, missing
from tests.support.program import ROOT

PAGES = ("index.html", "docs/ENVIRONMENTS.html", "docs/method/checks.html", "docs/adr/index.html")

STICKS_OUT = """
    const scrolls = (element) => element && (getComputedStyle(element).overflowX != "visible" || scrolls(element.parentElement))
    return [...document.querySelectorAll("article *")]
        .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && !scrolls(element))
        .map((element) => element.outerHTML.slice(0, 80))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if lacking := missing():
        pytest.skip(f"{lacking} is not here")
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    yield folder


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_missing_or_sticks_out(site: Path, width: int) -> None:
    with browser(width, 900) as page:
        for name in PAGES:
            page.get((site / name).as_uri())
            assert page.execute_script("return document.documentElement.scrollWidth") <= width, name
            assert page.execute_script(STICKS_OUT) == [], name
            assert page.get_log("browser") == [], name


def test_it_can_be_searched_without_a_server(site: Path) -> None:
    with browser(1400, 900) as page:
        page.get((site / "docs/method/checks.html").as_uri())
        page.execute_script("document.querySelector('[data-md-toggle=search]').click()")
        deadline = time.monotonic() + 30
        found: list[str] = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.2)
            field = page.find_element("css selector", ".md-search__input")
            if field.is_displayed() and field.get_attribute("value") != "unexplained":
                field.send_keys("unexplained")
            links = "return [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
            found = page.execute_script(links)
        assert any("docs/method/ledgers.html" in link for link in found)
