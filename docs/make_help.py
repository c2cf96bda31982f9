"""Writes docs/help/: the help of each command and all names, for the launcher to answer with where nothing is set up yet.

    python docs/make_help.py

A test compares.
"""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from dbtoll import registry
from dbtoll.cli import app
from dbtoll.help import ALSO_CALLED

PAGES = Path(__file__).parent / "help"
WIDTH = 80
"""Characters of a line, as of a terminal that says nothing of its width."""


def pages() -> dict[str, str]:
    """File name -> text; ``names`` lists names, ``dbtoll.txt`` is the program's help, every other that of the command that it is
    called after."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {"names": names()} | {f"{name or 'dbtoll'}.txt": help_of(*filter(None, [name])) for name in ["", *commands]}


def names() -> str:
    """A line for each member of a family, and for the commands with further names: family, name, what else it is called."""
    lines = [
        f"{family} {name} {' '.join(registry.find(family, name).also_called)}".rstrip()
        for family in registry.FAMILIES
        for name in registry.names(family)
        if hasattr(registry.find(family, name), "also_called")
    ]
    lines += [f"commands {name} {' '.join(others)}" for name, others in ALSO_CALLED.items()]
    return "\n".join(lines) + "\n"


def help_of(*words: str) -> str:
    """What `dbtoll … --help` prints."""
    shown = CliRunner().invoke(app, [*words, "--help"], prog_name="dbtoll", env={"COLUMNS": str(WIDTH)})
    return shown.output


def main() -> None:
    """Write them all anew."""
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.iterdir():
        old.unlink()
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
