"""What a sweep is asked for: values of a variable, a limit, a table of costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dbtoll import units
from dbtoll.errors import SpecError, UsageError
from dbtoll.model.options import Option
from dbtoll.model.sweep import PERIODS_S, Costs, Limit, Value
from dbtoll.spec import toml
from dbtoll.spec.options import converted

VALUES_MAX = 64
"""Each is a run."""

COST_LEAST, COST_MOST = 1e-9, 1e12

QUANTILES = ("p50", "p95", "p99")

_RANGE = re.compile(r"([0-9]+(?:\.[0-9]+)?):([0-9]+(?:\.[0-9]+)?)")
_NUMBERS = ("integer", "number")


def values(over: str, declared: Mapping[str, Option], *, each: bool = False) -> tuple[str, tuple[Value, ...]]:
    """``tenants=1,2,8`` or ``tenants=1:32``: the variable, and its values in the kind of the variable. UsageError.

    A range doubles, and has its end: 1:12 is 1, 2, 4, 8, 12. ``each``: of whole numbers it has all, for a search among them.
    """
    name, equals, written = over.partition("=")
    if not equals or not written:
        raise UsageError(
            f"--over {over}: no values", "write --over tenants=1,2,4 or --over tenants=1:32, which doubles"
        )
    if name not in declared:
        known = f"its variables are: {', '.join(declared)}" if declared else "it has no [variables] (docs/SPEC.md)"
        raise UsageError(f"--over {name}: the specification has no such variable", known)
    option = declared[name]
    if bounds := _RANGE.fullmatch(written):
        if option.kind not in _NUMBERS:
            raise UsageError(f"--over {over}: a range is of numbers, and {name} is a {option.kind}", "name each value")
        found = _range(name, option, bounds[1], bounds[2], each=each and option.kind == "integer")
    else:
        found = [_converted(name, word.strip(), option) for word in written.split(",")]
    if len(set(found)) < len(found):
        raise UsageError(f"--over {over}: a value comes twice", "give each once")
    if len(found) > VALUES_MAX:
        raise UsageError(
            f"--over {over}: {len(found)} values",
            f"a sweep has at most {VALUES_MAX}: name those that matter, NAME=1,2,4",
        )
    return name, tuple(sorted(found)) if option.kind in _NUMBERS else tuple(found)


def _range(name: str, option: Option, first: str, last: str, *, each: bool) -> list[Value]:
    low, high = (_converted(name, word, option) for word in (first, last))
    if not 0 < low < high:
        raise UsageError(f"--over {name}={first}:{last}: a range goes up, from more than 0", f"--over {name}=1:32")
    if each and high - low >= VALUES_MAX:
        raise UsageError(
            f"--over {name}={first}:{last}: {int(high - low) + 1} values",
            f"a search is among {VALUES_MAX} at most: a shorter range",
        )
    if each:
        return list(range(int(low), int(high) + 1))
    found = [low]
    while found[-1] * 2 < high:
        found.append(found[-1] * 2)
    return [*found, high]


def _converted(name: str, word: str, option: Option) -> Any:
    try:
        return converted(word, option)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--over {name}: {error}", f"{name} is a {option.kind}: {option.help}") from None


def limit(text: str) -> Limit:
    """``p99=20ms`` of all transactions, ``new_order.p99=20ms`` of one. UsageError."""
    what, _, duration = text.partition("=")
    transaction, _, quantile = what.rpartition(".")
    if quantile not in QUANTILES:
        raise UsageError(
            f"--limit {text}: {quantile!r} is no quantile of response times",
            f"--limit p99=20ms, or --limit new_order.p99=20ms; there is: {', '.join(QUANTILES)}",
        )
    try:
        limit_ns = units.duration_ns(duration)
    except ValueError as error:
        raise UsageError(f"--limit {text}: {error}", f"--limit {what}=20ms") from None
    if limit_ns < 1:
        raise UsageError(f"--limit {text}: nothing is answered at once", f"--limit {what}=20ms")
    return Limit(quantile, transaction, limit_ns)


class _CostsFile(msgspec.Struct, forbid_unknown_fields=True):
    currency: str
    period: str
    host: float = 0.0
    processor: float = 0.0
    memory_gib: float = 0.0
    machine: float = 0.0
    server: float = 0.0
    devices: dict[str, float] = {}


def costs(path: Path) -> Costs:
    """A table of costs (docs/SPEC.md). SpecError names the file and what is wrong."""
    hint = "its keys are: currency, period, host, processor, memory_gib, machine, server, [devices] (docs/SPEC.md)"
    try:
        found = msgspec.convert(toml.loads(path.read_text(encoding="utf-8")), _CostsFile)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}", "give the path of a TOML table of costs") from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}", hint) from None
    if slipped := [name for name in found.devices if name in _CostsFile.__struct_fields__]:
        hint = "a table of TOML ends where the next begins: write [devices] last"
        raise SpecError(f"{path}: {slipped[0]} stands under [devices]", hint)
    if found.period not in PERIODS_S:
        raise SpecError(f"{path}: the period {found.period!r} is none", f"period is one of {', '.join(PERIODS_S)}")
    if not re.fullmatch(r"[^\s\x00-\x1f]{1,12}", found.currency):
        raise SpecError(f"{path}: the currency {found.currency!r} is none", 'currency = "EUR"')
    named = {name: getattr(found, name) for name in ("host", "processor", "memory_gib", "machine", "server")}
    named |= {f"devices.{name}": cost for name, cost in found.devices.items()}
    for name, cost in named.items():
        if cost and not COST_LEAST <= cost <= COST_MOST:
            raise SpecError(
                f"{path}: {name} = {cost:g}: a cost is 0, or from 1e-9 to 1e12",
                "what costs nothing is left out",
            )
    if not any(named.values()):
        raise SpecError(f"{path}: nothing in it costs anything", hint)
    return Costs(**msgspec.structs.asdict(found))
