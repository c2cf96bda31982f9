"""Prints docs/COMMANDS.md, from the command line's own help: python docs/make_commands.py > docs/COMMANDS.md"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from dbtoll.cli import app
from dbtoll.errors import EXIT_CODES
from dbtoll.help import summary

COMMON = ("--runs-dir", "--json", "--quiet", "--yes")

HEAD = """# Commands

Made from the program's own help by `python docs/make_commands.py`; a test compares the two. `dbtoll help COMMAND`
says the same in a terminal.

An environment is written `NAME:OPTION,OPTION=VALUE`, nested with `//`: `docker:runsc,network=host`, `qemu//docker`
([ENVIRONMENTS](ENVIRONMENTS.md)). Where a command takes a run, that is a run folder, its name, the beginning of
either, or `latest`: the newest run in `runs/`, to which `runs/latest` leads. Of several runs with the same name the
newest is meant. A run's name is given with `--name`, or as `name` in a specification ([SPEC](SPEC.md)); it is a part
of the folder's name: `20260501-091500-nightly-3f9a2b`.

## Options of all commands

- `--json`: JSON on standard output, and nothing else there. Progress and notices are on standard error, as always.
- `--quiet`, `-q`: no progress and no notices; only the result, errors and the gate's decision.
- `--yes`, `-y`: agrees to whatever would be asked.
- `--runs-dir DIR`: where run folders lie (default `runs`, or `DBTOLL_RUNS`). Of commands that read or write runs.

On a terminal progress is one live line. Elsewhere it is a line for each round, and one for each minute without any;
no line is folded.

## Completion

`dbtoll --install-completion` makes your shell complete commands, options, environments with their options, engines,
workloads and runs; `dbtoll --show-completion` prints what it would install.
"""


def text() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_exit_codes(), *_commands()]).rstrip() + "\n"


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    yield "| code | meaning |"
    yield "| --: | --- |"
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"
    yield "\nAny command may end with 64, 70, 74, 77, 130 or 141; below stand those that say something of their own.\n"


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for title, commands in group.groups().items():
        yield f"## {title}\n"
        for name, command in commands.items():
            command.fill_in()
            yield from _command(name, command)


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"### `{name}`\n"
    yield f"{summary(command)}\n"
    for paragraph in inspect.cleandoc(command.help).split("\n\n")[1:]:
        yield " ".join(paragraph.split()) + "\n"
    examples, _, codes = command.epilog.partition("\n\n")
    yield "```"
    yield from (line.strip() for line in examples.splitlines()[2:])
    yield "```\n"
    shown = [each for each in command.params if not {*each.opts} & {*COMMON, "--help"}]
    if shown:
        yield "| argument or option | |"
        yield "| --- | --- |"
        for each in shown:
            is_option = each.param_type_name == "option"
            given = ", ".join(f"`{word}`" for word in (each.opts if is_option else [each.metavar or each.name.upper()]))
            has_default = isinstance(each.default, int | float | str) and not isinstance(each.default, bool)
            yield f"| {given} | {each.help}{f' Default: `{each.default}`.' if has_default else ''} |"
        yield ""
    yield f"Exit codes: {', '.join(line.split()[0] for line in codes.splitlines()[2:])}\n"


if __name__ == "__main__":
    print(text(), end="")
