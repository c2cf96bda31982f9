"""The picture of a report in the README: the first screen of a run's page, as a browser shows it.

    .dbtoll/venv/bin/python docs/make_pictures.py RUN [PICTURE]

RUN is a run folder with a report.html (`dbtoll report RUN`); PICTURE is docs/pictures/report.png unless told otherwise.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import browser, missing  # noqa: E402

WIDTH = 1100
LAST = "#arms figure"
"""The picture ends with the first figure over all queries."""


def picture(report: Path, target: Path) -> None:
    """Write ``target``; twice as many pixels as it is wide, so that it is sharp on every screen."""
    with browser(WIDTH, 900, sharp=2) as page:
        page.get(report.absolute().as_uri())
        script = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom + 24"
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": page.execute_script(script, LAST), "scale": 1}
        shot = page.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    """See the head of this file."""
    if lacking := missing():
        sys.exit(f"{lacking} is missing; hint: apt-get install chromium chromium-driver")
    report = Path(sys.argv[1]) / "report.html"
    if not report.is_file():
        sys.exit(f"{report}: there is no such file; hint: ./dbtoll report {sys.argv[1]}")
    picture(report, Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "pictures" / "report.png")


if __name__ == "__main__":
    main()
