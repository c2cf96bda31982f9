"""The tests of the programs in Rust, so that one command runs everything.

They are compiled beside the tests before them, which wait more than they compute (``tests/conftest.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from dbtoll.engines.duckdb import Engine as DuckDb
from dbtoll.engines.monetdb import Engine as MonetDb
from dbtoll.images.cache import Cache
from dbtoll.images.debian import debian_image
from dbtoll.runner.preparation.software import image_software
from tests.support.program import CARGO_TESTS, ROOT, cargo_test


@pytest.mark.timeout(1500)
def test_the_agents_own_tests_pass() -> None:
    if shutil.which("cargo") is None:
        pytest.skip("no cargo here: ./dbtoll setup brings one")
    cargo_test(ROOT / "agent", CARGO_TESTS)


@pytest.mark.timeout(1500)
def test_the_tests_of_the_server_of_embedded_engines_pass() -> None:
    """With the libraries that the images hold."""
    if shutil.which("cargo") is None:
        pytest.skip("no cargo here: ./dbtoll setup brings one")
    duckdb, monetdb = (
        debian_image(Cache(), software=image_software(engine({}))).content for engine in (DuckDb, MonetDb)
    )
    (python,) = duckdb.glob("usr/lib/*/libpython3.*.so.1.0")
    libraries = {
        "DBTOLL_DUCKDB": str(duckdb / DuckDb.library.lstrip("/")),
        "DBTOLL_DUCKDB_PRELOAD": str(python),
        "DBTOLL_MONETDB": str((monetdb / MonetDb.library.lstrip("/")).parent),
    }
    words = [*CARGO_TESTS, "--", "--nocapture"]
    assert "left out" not in cargo_test(ROOT / "embedded", words, {**os.environ, **libraries})


@pytest.mark.timeout(600)
def test_the_agent_builds_with_the_oldest_rust_that_it_names(tmp_path: Path) -> None:
    """Debian 13 has no newer one. Lints do not see which language features a release lacks."""
    oldest = tomllib.loads((ROOT / "agent" / "Cargo.toml").read_text())["package"]["rust-version"]
    try:
        known = subprocess.run(["rustup", "toolchain", "list"], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        known = ""
    name = next((line.split()[0] for line in known.splitlines() if line.startswith(f"{oldest}.")), None)
    if name is None:
        pytest.skip(f"no Rust {oldest} here that rustup knows")
    words = ["cargo", f"+{name}", "check", "--locked", "--quiet", "--target-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT / "agent", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
