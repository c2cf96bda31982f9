"""The scripts of a workload, in the words of the engine that they are for.

A script of the engine's own comes first (`Dialect.scripts`: ``WORKLOAD/STEM.sql`` in it), then the workload's for that dialect
(``STEM-DIALECT.sql``), then the one for all (``STEM.sql``).
"""

from __future__ import annotations

import re
from importlib import resources

from dbtoll.errors import EngineError
from dbtoll.model.dialect import Dialect
from dbtoll.workload_parts import sql_text


def text(folder: str, stem: str, sql: Dialect | None = None) -> str:
    """A script of the workload whose package is ``folder``. EngineError if there is none."""
    name = folder.rpartition(".")[2]
    places = [(folder, f"{stem}.sql")]
    if sql is not None:
        places.insert(0, (folder, f"{stem}-{sql.name}.sql"))
        if sql.scripts is not None:
            places.insert(0, (sql.scripts, f"{name}/{stem}.sql"))
    for package, file_name in places:
        if (file := resources.files(package) / file_name).is_file():
            return file.read_text(encoding="utf-8")
    raise EngineError(
        f"{name} has no {stem} in the dialect {sql.name if sql else ''}",
        "write them into a package, and let the engine's dialect name that: scripts",
    )


def of_all_dialects(folder: str, stem: str) -> list[str]:
    """A script in all dialects that the workload has it in: which one is loaded is the engine's to say."""
    files = [file for file in resources.files(folder).iterdir() if file.name.endswith(".sql")]
    own = sorted(file.name for file in files if re.fullmatch(rf"{re.escape(stem)}(-[a-z0-9_]+)?\.sql", file.name))
    return [(resources.files(folder) / name).read_text(encoding="utf-8") for name in own]


def parts(folder: str, stem: str, sql: Dialect, *, bodies: bool = False) -> list[sql_text.Part]:
    """Its statements, in the words of the engine. ``bodies``: they make procedures, whose bodies hold semicolons of their own."""
    script = text(folder, stem, sql)
    for word, other in sql.types.items():
        script = script.replace(word, other)
    file = f"{folder.rpartition('.')[2]}/{stem}.sql"
    if not (sql.plain_bodies and bodies):
        return sql_text.split(script, file)
    # Each begins at the start of a line.
    starts = [match.start() for match in re.finditer(r"^CREATE ", script, re.MULTILINE)]
    each_one = [script[start:end] for start, end in zip(starts, [*starts[1:], len(script)], strict=True)]
    lines = [script.count("\n", 0, start) + 1 for start in starts]
    return [sql_text.Part(_body(each), file, line) for each, line in zip(each_one, lines, strict=True)]


def _body(made: str) -> str:
    """Up to its END, without what is said of the next one."""
    return made[: made.rindex("END;") + len("END")]
