"""A real browser of any width, for the page's tests and the documents' pictures."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # root has no other way
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def missing() -> str | None:
    """The program that is needed and not there."""
    return next((name for name in ("chromium", "chromedriver") if shutil.which(name) is None), None)


@contextmanager
def browser(width: int, height: int, *, dark: bool = False, sharp: float = 1.0) -> Iterator[webdriver.Chrome]:
    """A fresh Chromium whose page is ``width`` x ``height`` CSS pixels, with ``sharp`` device pixels for each.

    Set by the device's metrics and not by the window, which Chromium does not make narrower than 500.
    """
    profile = tempfile.mkdtemp(prefix="dbtoll-browser-")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            metrics = {"width": width, "height": height, "deviceScaleFactor": sharp, "mobile": width < 500}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            yield driver
        finally:
            driver.quit()
    finally:
        shutil.rmtree(profile, ignore_errors=True)
