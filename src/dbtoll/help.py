"""Help texts: commands in groups, examples, exit codes; values that a registry knows are listed where they are asked for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from dbtoll.errors import EXIT_CODES, Stopped

if TYPE_CHECKING:
    from dbtoll.model.options import Option

MEASURE = "Measure"
RESULTS = "Look at results"
MACHINE = "The machine"
INSTRUMENT = "The instrument"


ALSO_CALLED = {"runs": ("list", "ls", "history"), "report": ("show", "open", "view"), "setup": ("install",)}
"""Command -> what somebody may call it; nearly right names are found without."""


def summary(command: Any) -> str:
    """The first sentence or sentences of a command's help, whole."""
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


def epilog(*examples: str, codes: Iterable[int] = ()) -> str:
    """What stands below a command's options: examples, and its exit codes with their meaning."""
    shown = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
    lines = [f"  {code:>3}  {EXIT_CODES[code]}" for code in codes]
    return f"{shown}\n\n" + "\n".join(["\b", "Exit codes (all of them: dbtoll help exit-codes):", *lines])


def exit_codes() -> str:
    """All of them, a line each."""
    return "\n".join(f"{code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


class Group(TyperGroup):
    """Shows its commands in groups, each with its summary in full."""

    def invoke(self, ctx: Any) -> Any:
        """Who stops a command is told how to go on: typer would make a bare exit of it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            raise Stopped("stopped", "; ".join(getattr(stopped, "__notes__", ()))) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Says which command was meant by a word that is none."""
        for name, others in ALSO_CALLED.items():
            if args[0] in others:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {name!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups in the order of their first commands."""
        for title, commands in self.groups().items():
            with formatter.section(title):
                formatter.write_dl([(name, summary(command)) for name, command in commands.items()])

    def groups(self) -> dict[str, dict[str, Any]]:
        """Title -> name -> command, without hidden ones."""
        found: dict[str, dict[str, Any]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                found.setdefault(getattr(command, "rich_help_panel", None) or "", {})[name] = command
        return found


class Command(TyperCommand):
    """In the help of its options ``<<engines>>`` and the like stand for values, which are looked up when the help is shown."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """As without, with the values filled in."""
        self.fill_in()
        super().format_options(ctx, formatter)

    def fill_in(self) -> None:
        """Puts the values into the options' help."""
        for parameter in self.params:
            text = getattr(parameter, "help", None)
            if text:
                parameter.help = re.sub(r"<<(\w+)>>", lambda match: VALUES[match[1]](), text)  # type: ignore[attr-defined]


def members(family: str) -> list[str]:
    """Names of a registry's family."""
    from dbtoll import registry

    return registry.names(family)


def option_of(family: str, name: str, option: str) -> Option | None:
    """An option of an engine, an environment or a workload."""
    from dbtoll import registry

    found: Mapping[str, Option] = registry.find(family, name).options
    return found.get(option)


def _choices(family: str, option: str) -> str:
    """``of postgres: default, modern; of mariadb: default``."""
    found = {name: option_of(family, name, option) for name in members(family)}
    return "; ".join(f"of {name}: {', '.join(each.choices)}" for name, each in found.items() if each is not None)


def _suites() -> str:
    from dbtoll.spec.suites import servers_of_suites

    return servers_of_suites()


def _factors() -> str:
    from dbtoll.model.experiment import DOUBLING, FACTORS, TRANSACTION_FACTORS

    def listed(table: Mapping[str, tuple[str, ...]]) -> str:
        numbers = ("1", "2", "4", "…", DOUBLING)
        return ", ".join(f"{name} ({', '.join(levels or numbers)})" for name, levels in table.items())

    return f"of statements {listed(FACTORS)}; of transactions {listed(TRANSACTION_FACTORS)}"


VALUES: Mapping[str, Callable[[], str]] = {
    "environments": lambda: ", ".join(members("environments")),
    "engines": lambda: ", ".join(members("engines")),
    "workloads": lambda: ", ".join(members("workloads")),
    "profiles": lambda: _choices("engines", "profile"),
    "indexes": lambda: _choices("workloads", "indexes"),
    "suites": _suites,
    "factors": _factors,
}
"""What stands in a help text as ``<<key>>`` -> the values."""
