"""Durations, sizes and percentages as people write them, to ns, bytes and fractions."""

from __future__ import annotations

import re

_DURATION_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_SIZE_BYTES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9,
               "tib": 1 << 40, "tb": 10**12, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}  # fmt: skip
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)\s*")
MOST = (1 << 63) - 1
"""Of whole numbers, durations in ns and sizes in bytes: they have 64 bits."""

FRACTION_MOST = 1e9

_PARTS = re.compile(r"\s*[0-9.]+\s*[A-Za-z]+\s*")


def duration_ns(text: str) -> int:
    """``"50ms"``, ``"5m"``, ``"1.5 h"``, ``"4m30s"`` -> ns. ValueError says what is allowed."""
    parts = _PARTS.findall(text)
    if not parts or "".join(parts) != text:
        parts = [text]
    return sum(_scaled(part, _DURATION_NS, "a duration such as 50ms, 90s or 4m30s") for part in parts)


def size_bytes(text: str) -> int:
    """``"2 GiB"`` -> bytes; a single letter is binary, as Docker has it (``4g``). ValueError says what is allowed."""
    return _scaled(text, _SIZE_BYTES, "a size such as 512 MiB, 2 GiB or 2G")


def duration_text(value_ns: int) -> str:
    """100_000_000 -> ``"100ms"``: the largest unit that needs no fraction; ``duration_ns`` reads it back."""
    return _whole(value_ns, _DURATION_NS, ("h", "m", "s", "ms", "us", "ns"))


def size_text(value_bytes: int) -> str:
    """2 << 30 -> ``"2GiB"``, likewise; ``size_bytes`` reads it back."""
    return _whole(value_bytes, {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}, ("GiB", "MiB", "KiB", "B"))


def fraction(text: str) -> float:
    """``"2%"`` -> 0.02. ValueError says what is allowed."""
    match = _NUMBER.fullmatch(text)
    if not match or match[2] != "%":
        raise ValueError(f"{text!r} is not a percentage such as 2%")
    value = float(match[1]) / 100
    if value > FRACTION_MOST:
        raise ValueError(f"{text[:12]}… is no percentage that anything could have")
    return value


def _scaled(text: str, scales: dict[str, int], expected: str) -> int:
    match = _NUMBER.fullmatch(text)
    scale = scales.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise ValueError(f"{text!r} is not {expected}")
    scaled = float(match[1]) * scale
    if scaled > MOST:
        raise ValueError(f"{match[1][:12]}… {match[2]} is more than there can be")
    return round(scaled)


def _whole(value: int, scales: dict[str, int], units: tuple[str, ...]) -> str:
    unit = next((unit for unit in units if value and value % scales[unit] == 0), units[-1])
    return f"{value // scales[unit]}{unit}"
