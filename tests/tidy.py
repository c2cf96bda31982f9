"""The style guide as a test: formatting, lints, types, import contracts, documents that hold together."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dbtoll import registry

ROOT = Path(__file__).parents[1]
PYTHON = ("src", "tests", "docs", "hatch_build.py")


def check(*argv: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr}"


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def test_python_is_formatted() -> None:
    check(tool("ruff"), "format", "--check", *PYTHON)


def test_python_is_linted() -> None:
    check(tool("ruff"), "check", *PYTHON)


def test_types() -> None:
    check(tool("mypy"))


def test_import_contracts() -> None:
    check(tool("lint-imports"))


def cargo(*words: str) -> list[str]:
    found = shutil.which("cargo")
    if found is None:
        pytest.skip("no cargo here")
    if subprocess.run([found, words[0], "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"this cargo has no {words[0]}")
    return [found, *words]


@pytest.mark.parametrize("crate", ["agent", "agent/fuzz"])
def test_rust_is_formatted(crate: str) -> None:
    check(*cargo("fmt", "--check"), cwd=ROOT / crate)


def test_rust_is_linted() -> None:
    check(*cargo("clippy", "--locked", "--all-targets", "--quiet", "--", "-D", "warnings"), cwd=ROOT / "agent")


def test_shell_parses() -> None:
    for script in ("dbtoll", ".ci/run"):
        check("bash", "-n", script)


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]


def test_no_two_files_of_tests_have_one_name() -> None:
    """The test runner could not import the second."""
    names = [file.name for file in tracked("tests") if file.name.startswith("test_")]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


def test_nothing_is_left_to_do_in_the_code() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError|todo!|unimplemented!)")
    for file in tracked("src", "agent", "tests"):
        if file.suffix in {".py", ".rs"} and file != Path(__file__):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                assert not words.search(line), f"{file.relative_to(ROOT)}:{number}: {line.strip()}"


def test_documents_name_no_path_of_one_machine() -> None:
    for file in tracked("*.md", "*.toml", "*.sh", "dbtoll", "justfile"):
        found = re.search(r"/work/|/root/(?!dbtoll)", file.read_text(errors="replace"))
        assert not found, f"{file.relative_to(ROOT)}: {found and found[0]}"


def test_every_module_says_what_it_is() -> None:
    for file in tracked("src/**/*.py", "tests/**/*.py"):
        text = file.read_text()
        assert not text.strip() or text.lstrip().startswith(('"""', 'r"""')), file.relative_to(ROOT)


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="only a clean clone can show it")
def test_a_clean_clone_stays_clean() -> None:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert status == ""


def test_every_environment_and_option_is_described() -> None:
    text = (ROOT / "docs/ENVIRONMENTS.md").read_text()
    for name in registry.names("environments"):
        described = text.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        missing = [option for option in registry.find("environments", name).options if f"`{option}`" not in described]
        assert described, name
        assert not missing, f"{name}: {missing}"
