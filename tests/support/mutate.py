"""Run folders as somebody would send them who wishes harm: any value anywhere, and every sum and link of the chain right again."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbtoll.store.schema import FACTS_FILE, FIRST_CHAIN, HISTORY_FILE, PLAN_FILE, SPEC_FILE

GONE = object()
"""In the place of a value: its key is missing, its element is left out."""

RAW = "\ue000"
"""Begins a text that is written as it is, for what JSON does not know."""

VALUES: tuple[Any, ...] = (
    GONE, None, True, False, 0, 1, -1, 2, 1.5, -0.5, 1e308, -1e308, 5e-324, 10**9, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63),
    10**40, "", "?", "native", "docker", "0", "9" * 5000, "1-99999999999", "\x1b]0;\x07", "<b onmouseover=x>", "=1+1",
    "\ud800", "\u202e", [], {}, [[]], [{}], [None], {"": None}, {"?": 1}, [1] * 3,
    RAW + "NaN", RAW + "Infinity", RAW + "-1e999", RAW + "1E400",
)  # fmt: skip

Steps = tuple[str | int, ...]


@dataclass
class Folder:
    """A run folder taken apart. ``parts``: plan and facts by file name; ``records``: the history's lines without their chain."""

    spec: bytes
    parts: dict[str, Any]
    records: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> Folder:
        parts = {name: json.loads((folder / name).read_bytes()) for name in (PLAN_FILE, FACTS_FILE)}
        records = [json.loads(line) for line in (folder / HISTORY_FILE).read_bytes().splitlines()]
        for record in records:
            del record["chain"]
        return cls((folder / SPEC_FILE).read_bytes(), parts, records)

    def only(self, keep: Callable[[dict[str, Any]], bool]) -> Folder:
        """With fewer records."""
        return Folder(self.spec, self.parts, [record for record in self.records if keep(record)])

    def write(self, folder: Path) -> Path:
        """Put together, and sealed as the writer would have."""
        folder.mkdir(exist_ok=True)
        (folder / SPEC_FILE).write_bytes(self.spec)
        begin = copy.copy(self.records[0])
        begin["spec_sha256"] = hashlib.sha256(self.spec).hexdigest() if "spec_sha256" in begin else None
        for name, part in self.parts.items():
            data = _encoded(part)
            (folder / name).write_bytes(data)
            key = f"{name.removesuffix('.json')}_sha256"
            if isinstance(begin.get(key), str) and len(begin[key]) == 64:  # else it was changed, and is to stay so
                begin[key] = hashlib.sha256(data).hexdigest()
        chain, lines = FIRST_CHAIN, []
        for record in (begin, *self.records[1:]):
            body = _encoded(record)[:-1]
            chain = f"{zlib.crc32(body, zlib.crc32(chain.encode())):08x}"
            lines.append(b'%s,"chain":"%s"}\n' % (body, chain.encode()))
        (folder / HISTORY_FILE).write_bytes(b"".join(lines))
        return folder

    def places(self) -> dict[str, list[tuple[str | int, Steps]]]:
        """Where a value may be changed: by kind of place (``visit.executions.0.3``) all places of it, each as the file's name or
        the record's number, and the steps into it."""
        found: dict[str, list[tuple[str | int, Steps]]] = {}
        for name, part in self.parts.items():
            for steps in _steps(part):
                found.setdefault(".".join(map(str, (name, *steps))), []).append((name, steps))
        for number, record in enumerate(self.records):
            for steps in _steps(record):
                if steps:
                    kind = ".".join(str(step) for step in (record["record"], *steps))
                    found.setdefault(kind, []).append((number, steps))
        return found

    def changed(self, where: str | int, steps: Steps, value: Any) -> Folder:
        """With another value there."""
        parts, records = dict(self.parts), list(self.records)
        held: Any = parts if isinstance(where, str) else records
        held[where] = copy.deepcopy(held[where])
        *way, last = (where, *steps)
        for step in way:
            held = held[step]
        if value is GONE:
            del held[last]
        else:
            held[last] = value
        return Folder(self.spec, parts, records)


def changes(folder: Folder, seed: int, number: int) -> Iterator[tuple[str, Folder]]:
    """So many changed folders, each with what was changed: every kind of place is as likely as every other."""
    chance = random.Random(seed)
    places = folder.places()
    for _ in range(number):
        if chance.random() < 0.1:
            yield _reordered(folder, chance)
            continue
        kind = chance.choice(sorted(places))
        where, steps = chance.choice(places[kind])
        value = chance.choice(VALUES)
        if not steps and value is GONE:
            value = None
        shown = "gone" if value is GONE else repr(value)[:40]
        yield f"{kind} of {where}: {shown}", folder.changed(where, steps, value)


def _reordered(folder: Folder, chance: random.Random) -> tuple[str, Folder]:
    """Records left out, doubled, or in each other's place."""
    records = list(folder.records)
    first, second = sorted(chance.sample(range(1, len(records)), 2))
    match chance.randrange(4):
        case 0:
            said = f"records {first} to {second} left out"
            del records[first:second]
        case 1:
            said = f"record {first} again at {second}"
            records.insert(second, records[first])
        case 2:
            said = f"records {first} and {second} exchanged"
            records[first], records[second] = records[second], records[first]
        case _:
            said = f"nothing after record {first}"
            del records[first:]
    return said, Folder(folder.spec, folder.parts, records)


def _steps(value: Any, before: Steps = ()) -> Iterator[Steps]:
    yield before
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _steps(each, (*before, key))
    elif isinstance(value, list):
        for index, each in enumerate(value[:3]):
            yield from _steps(each, (*before, index))


def _encoded(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    head, *others = text.split('"\\ue000')
    return "".join([head, *(other.replace('"', "", 1) for other in others)]).encode()


def only_queries(folder: Folder, queries: Sequence[str]) -> Folder:
    """A smaller run: of those queries alone."""
    found = folder.only(lambda record: record.get("query", queries[0]) in queries)
    plan = copy.deepcopy(folder.parts[PLAN_FILE])
    plan["queries"] = [query for query in plan["queries"] if query in queries]
    return Folder(found.spec, {**folder.parts, PLAN_FILE: plan}, found.records)
