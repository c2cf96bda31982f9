"""Writes docs/help/: the help of each command, which the launcher shows where nothing is set up yet.

    python docs/make_help.py

A test compares.
"""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from dbtoll.cli import app

PAGES = Path(__file__).parent / "help"
WIDTH = 80
"""Characters of a line, as of a terminal that says nothing of its width."""


def pages() -> dict[str, str]:
    """File name -> help; ``dbtoll.txt`` is of the program, every other of the command that it is called after."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {f"{name or 'dbtoll'}.txt": help_of(*filter(None, [name])) for name in ["", *commands]}


def help_of(*words: str) -> str:
    """What `dbtoll … --help` prints."""
    shown = CliRunner().invoke(app, [*words, "--help"], prog_name="dbtoll", env={"COLUMNS": str(WIDTH)})
    return shown.output


def main() -> None:
    """Write them all anew."""
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.glob("*.txt"):
        old.unlink()
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
