"""The tables in the documents that say what the code says: options, commands, exit codes, factors, probes, collectors, checks.

    .dbtoll/venv/bin/python docs/make_reference.py

On a page, what stands between `<!-- generated: NAME WORD … -->` and `<!-- end -->` is made here by the function of that NAME in
MAKERS; all else is written by hand. A test compares.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from dbtoll import cli, errors, registry, selfbench, units
from dbtoll.analysis.checks.catalog import CATALOG
from dbtoll.model.experiment import DOUBLING, FACTOR_HELP, FACTORS, TRANSACTION_FACTORS
from dbtoll.model.options import Option
from dbtoll.workloads import probes

DOCS = Path(__file__).parent
MADE = re.compile(r"(<!-- generated: ([^>]*) -->\n).*?(<!-- end -->)", re.DOTALL)
KINDS = {
    "text": "text", "integer": "whole number", "number": "number", "flag": "`yes`, `no`", "size": "size", "duration": "duration",
    "path": "path", "table": "table", "list": "list",
}  # fmt: skip
"""Kind of an option (model/options.py) -> what its values are."""


def main() -> None:
    """See the head of this file."""
    for page in sorted(DOCS.rglob("*.md")):
        page.write_text(made_again(page.read_text(encoding="utf-8")), encoding="utf-8")


def made_again(page: str) -> str:
    """A page with its generated parts as the code has them now."""

    def part(found: re.Match[str]) -> str:
        head, asked, end = found.groups()
        name, *words = asked.split()
        return f"{head}\n{MAKERS[name](*words).strip()}\n\n{end}"

    return MADE.sub(part, page)


# --- options -----------------------------------------------------------------------------------------------------------------


def environment(name: str) -> str:
    """Options of one environment; the page says by hand what it is."""
    return options(registry.find("environments", name))


def engines() -> str:
    """All engines with their options."""
    return "\n".join(chapter(registry.find("engines", name), "") for name in own("engines"))


def workloads() -> str:
    """All workloads with their options."""
    parts = []
    for found in (registry.find("workloads", name) for name in own("workloads")):
        able = [name for name in own("engines") if found.requires <= registry.find("engines", name).offers]
        parts.append(chapter(found, f"Engines: {listed(able)}. `{found.name}:VALUE` sets `{found.primary}`.".strip()))
    return "\n".join(parts)


def chapter(found: Any, more: str) -> str:
    """One engine or workload: a heading, the first sentence of its module, its options."""
    head = f"### `{found.name}`\n\n{sentence(summary(found))} {more}".strip()
    return f"{head}\n\n{options(found) or 'It has no options.'}\n"


def options(found: Any) -> str:
    """A row for each option of an environment, engine or workload; the one of the short form first."""
    primary = getattr(found, "primary", None)
    return option_table(dict(sorted(found.options.items(), key=lambda item: item[0] != primary)))


def option_table(table_of: Mapping[str, Option]) -> str:
    """A row for each option."""
    rows = []
    for name, option in table_of.items():
        values = listed(option.choices) if option.choices else KINDS[option.kind]
        values += ", path" if option.or_path else ""
        rows.append((code(name), values, default(option), prose(option.help)))
    return table(("option", "values", "default", "meaning"), rows)


def default(option: Option) -> str:
    """As a user would write it; empty where there is none."""
    value = option.default
    if value in (None, "", (), [], {}):
        return ""
    if option.kind == "flag":
        return code("yes" if value else "no")
    if option.kind == "list":
        return code(value if isinstance(value, str) else "+".join(map(str, value)))
    shown = {"size": units.size_text, "duration": units.duration_text, "number": "{:g}".format}
    return code(shown.get(option.kind, str)(value))


# --- factors -----------------------------------------------------------------------------------------------------------------


def factors(of: str) -> str:
    """``statements`` or ``transactions``."""
    levels = {"statements": FACTORS, "transactions": TRANSACTION_FACTORS}[of]
    rows = [
        (code(name), listed(of_it or ("1", "2", "4", DOUBLING)), prose(FACTOR_HELP[name]))
        for name, of_it in levels.items()
    ]
    return table(("factor", "levels", "meaning"), rows)


# --- commands ----------------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Each command as its own ``--help`` has it, in the groups that the program's help has."""
    group: Any = get_command(cli.app)
    context = group.context_class(group, info_name="dbtoll")
    parts = [f"```\n{usage(group, context)}\n```\n\n{parameters(group, context)}\n"]
    title = ""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        panel = command.rich_help_panel if isinstance(command.rich_help_panel, str) else ""
        if panel != title:
            title = panel
            parts.append(f"## {title}\n")
        within = command.context_class(command, info_name=name, parent=context)
        command.get_help(within)  # what a help text leaves open is filled in when it is shown
        said = [paragraphs(text) for text in (command.help, command.epilog) if text]
        parts += [
            f"{'###' if title else '##'} `{name}`\n",
            f"```\n{usage(command, within)}\n```\n",
            *(f"{text}\n" for text in said),
        ]
        parts.append(f"{parameters(command, within)}\n")
    return "\n".join(parts)


def usage(command: Any, context: Any) -> str:
    """The one line."""
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def parameters(command: Any, context: Any) -> str:
    """Arguments and options with what is said of each; what stands in brackets at its end is the default."""
    rows = []
    for each in command.get_params(context):
        if each.name != "help" and (record := each.get_help_record(context)):
            name, said = record
            about, _, more = said.removesuffix("]").rpartition("  [") if said.endswith("]") else (said, "", "")
            rows.append((code(name.strip()), implied(more), prose(about)))
    return table(("argument or option", "default", "meaning"), rows)


def implied(more: str) -> str:
    """What happens where it is not given, of Click's ``env var: NAME; default: VALUE; required``."""
    said = dict(part.partition(": ")[::2] for part in more.split("; ") if part)
    forms = {"default": "`{}`", "env var": "`${}`", "required": "required"}
    others = [prose(f"{name}: {value}") for name, value in said.items() if name not in forms]
    return ", or ".join([form.format(said[name]) for name, form in forms.items() if name in said] + others)


def paragraphs(text: str) -> str:
    """Of a help text; one that begins with \\b is kept line by line."""
    made = []
    for part in inspect.cleandoc(text).replace("\f", "").split("\n\n"):
        kept = part.startswith("\b")
        made.append(f"```\n{part.removeprefix(chr(8)).strip(chr(10))}\n```" if kept else prose(" ".join(part.split())))
    return "\n\n".join(made)


def exit_codes() -> str:
    """From the table in errors.py."""
    return table(("code", "meaning"), [(str(number), prose(said)) for number, said in errors.EXIT_CODES.items()])


# --- checks ------------------------------------------------------------------------------------------------------------------


def checks() -> str:
    """All of analysis/checks/catalog.py."""
    rows = [
        (code(name), *(prose(text.replace("%", " %")) for text in (about.looks_at, about.fails_when, about.then)))
        for name, about in CATALOG.items()
    ]
    return table(("check", "what it looks at", "fails when", "then"), rows)


# --- the instrument ----------------------------------------------------------------------------------------------------------


def collectors() -> str:
    """What the heads of their modules say."""
    rows = []
    for name in own("collectors"):
        found = registry.find("collectors", name)
        head = inspect.getdoc(importlib.import_module(found.__module__)) or ""
        about, _, costs = re.sub(r"\s+", " ", head.replace("\n\n", "\0")).partition("Cost: ")
        passes = "its own" if found.disturbs else "shared"
        arms = "all" if found.everywhere else "the baseline"
        rows.append((code(name), prose(about.split("\0")[0]), prose(sentence(costs)), passes, arms))
    return table(("collector", "what it tells", "what it costs, and what can distort it", "pass", "arms"), rows)


def probe_table() -> str:
    """The agent's micro-probes."""
    rows = []
    for name, probe in probes.PROBES.items():
        forms = "caches dropped" if probe.uncached else "hot, cold" if probe.in_context else "hot"
        rows.append((code(name), prose(probe.event), forms, f"{time(probe.min_ns)} … {time(probe.max_ns)}"))
    return table(("probe", "an event", "forms", "believed"), rows)


def time(ns: float) -> str:
    """With the largest unit that leaves a whole part."""
    unit, scale = next(((u, s) for u, s in (("s", 1e9), ("ms", 1e6), ("us", 1e3)) if ns >= s), ("ns", 1.0))
    return f"{ns / scale:g} {unit}"


def selfbenches() -> str:
    """What `dbtoll selfbench` can measure."""
    parts = []
    for name, about in selfbench.listed().items():
        figures = re.sub(r"\b[a-zA-Z]+(_[a-z0-9]+)+\b", r"`\g<0>`", prose(about))
        bounds = [f"{code(figure)} {bound}" for figure, bound in selfbench.bounds(name).items()]
        held = f"Bounds: {', '.join(bounds)}." if bounds else ""
        parts.append(f"### `{name}`\n\n{sentence(figures)}\n\n{held}\n\n{option_table(selfbench.options(name))}\n")
    return "\n".join(parts)


# --- words and tables --------------------------------------------------------------------------------------------------------


def own(family: str) -> Iterator[str]:
    """Names of dbtoll's own members: what another package brings is described there."""
    for name in registry.names(family):
        if registry.find(family, name).__module__.startswith("dbtoll."):
            yield name


def summary(found: Any) -> str:
    """The first sentence of the module that has the class."""
    head = " ".join((inspect.getdoc(importlib.import_module(found.__module__)) or "").split())
    return prose(re.split(r"\.\s", head, maxsplit=1)[0])


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def listed(names: Sequence[str]) -> str:
    """Each as code."""
    return ", ".join(code(name) for name in names)


def code(text: str) -> str:
    """A bar would end the cell, and the two readers of these pages do not agree on how it is escaped within code."""
    return f"`{text.replace('|', '/')}`"


def prose(text: str) -> str:
    """Text in which nothing but what stands in backquotes is marked up."""
    parts = text.replace("``", "`").split("`")
    parts[::2] = [re.sub(r"([*|<\[\]])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [code(part).strip("`") for part in parts[1::2]]
    return "`".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In GitHub's form; nothing where there are no rows."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells).replace("|  |", "| |") + " |" for cells in lines) if rows else ""


MAKERS: Mapping[str, Callable[..., str]] = {
    "environment": environment, "engines": engines, "workloads": workloads, "factors": factors, "commands": commands,
    "exit-codes": exit_codes, "checks": checks, "collectors": collectors, "probes": probe_table, "selfbenches": selfbenches,
}  # fmt: skip


if __name__ == "__main__":
    main()
