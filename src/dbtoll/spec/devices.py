"""Devices of a specification: the names under [devices], and what an arm calls by them."""

from __future__ import annotations

import difflib
import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dbtoll import units
from dbtoll.errors import UsageError
from dbtoll.machines.disk_models import MODELS
from dbtoll.model.devices import DATA_DEVICE, KEYS, LOG_DEVICE, MEMORY, OWN, Device, Devices
from dbtoll.spec.options import flag, integer, text_value
from dbtoll.spec.stack import LEVEL, demand_few

CLASSES = (OWN, MEMORY, *MODELS)
"""What a device may be, besides a directory."""

LEAST_BYTES = 256 << 20
"""Below it no file system has room for a log."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,39}")


class DeviceError(UsageError):
    """``key``: of the table [devices], or of the arm."""

    def __init__(self, key: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.key = key


def declared(name: str, value: Any) -> Device:
    """One of those under [devices]: a class, as text, or a table with ``class`` and what else it is to have. Raises DeviceError."""
    if not _NAME.fullmatch(name) or name in CLASSES:
        raise DeviceError(
            name, f"{name!r} cannot be a device's name", f"letters, digits and ._-, and none of {', '.join(CLASSES)}"
        )
    given = dict(value) if isinstance(value, dict) else {"class": value}
    if unknown := sorted(given.keys() - {"class", "size", "write_cache", "queue_depth"}):
        example = 'class = "hdd7200", size = "20 GiB", write_cache = true, queue_depth = 1'
        raise DeviceError(name, f"a device has no {unknown[0]!r}", f"{name} = {{ {example} }}")
    try:
        device = _of_class(name, text_value(given.get("class")))
        size_bytes = units.size_bytes(text_value(given["size"])) if "size" in given else None
        write_cache = flag(given.get("write_cache", False))
        queue_depth = integer(given["queue_depth"]) if "queue_depth" in given else None
    except (TypeError, ValueError) as error:
        raise DeviceError(name, f"{name}: {error}", f'{name} = {{ class = "hdd7200", size = "20 GiB" }}') from None
    if size_bytes is not None and device.kind not in ("model", "memory"):
        raise DeviceError(name, f"{name}: what is there has its size", "leave size out")
    if size_bytes is not None and size_bytes < LEAST_BYTES:
        raise DeviceError(name, f"{name}: too small for any data", f'size = "{LEAST_BYTES >> 20} MiB" or more')
    if device.kind != "model" and (write_cache or queue_depth is not None):
        raise DeviceError(name, f"{name}: only a disk model has a cache or a queue of its own", "leave both out")
    if queue_depth is not None and queue_depth < 1:
        raise DeviceError(name, f"{name}: a disk has a queue of at least 1", "queue_depth = 1")
    if device.kind == "model" and size_bytes is not None and size_bytes > MODELS[device.of].capacity_bytes:
        whole = MODELS[device.of].capacity_bytes >> 30
        raise DeviceError(name, f"{name}: that is more than the disk has, {whole} GiB", "give less, or leave size out")
    if write_cache and not MODELS[device.of].write_cache_bytes:
        raise DeviceError(name, f"{name}: {device.of} has no cache for writes", "leave write_cache out")
    return Device(name, device.kind, device.of, size_bytes, write_cache, queue_depth)


def _of_class(name: str, text: str) -> Device:
    """ValueError where there is no such class."""
    if text == OWN:
        return Device(name, "own")
    if text == MEMORY:
        return Device(name, "memory")
    if text in MODELS:
        return Device(name, "model", text)
    if text.startswith("/"):
        if posixpath.normpath(text) != text or text == "/" or not text.isprintable():
            raise ValueError(f"{text!r} is no directory below /, written in its shortest form")
        return Device(name, "directory", text)
    raise ValueError(f"there is no class of devices {text!r}; there is: {', '.join(CLASSES)}, or a directory from /")


def _named(text: str, known: Mapping[str, Device], key: str) -> Device:
    if text in known:
        return known[text]
    try:
        return _of_class(text, text)
    except ValueError as error:
        if text.startswith("/"):
            shortest = posixpath.normpath(text)
            raise DeviceError(key, str(error), f'{key} = "{shortest if shortest != "/" else "/srv/data"}"') from None
        all_names = [*known, *CLASSES]
        meant = "".join(f"did you mean {each}? " for each in difflib.get_close_matches(text, all_names, 1))
        raise DeviceError(
            key, f"there is no device {text!r}", f"{meant}there is: {', '.join(all_names)}, or a directory from /"
        ) from None


def of_arm(data: str | None, log: str | None, known: Mapping[str, Device]) -> Devices:
    """What an arm's ``data_device`` and ``log_device`` mean; None: left out. Raises DeviceError."""
    data_on = _named(data, known, KEYS[0]) if data is not None else Device(OWN, "own")
    log_on = data_on if log is None else _named(log, known, LOG_DEVICE)
    if log_on.kind == data_on.kind == "own":  # by whatever names
        log_on = data_on
    return Devices(None if data_on.kind == "own" else data_on, None if log_on == data_on else log_on)


def levels(given: Mapping[str, str]) -> list[tuple[dict[str, str], str]]:
    """``{"data_device": "slow|fast"}`` -> what each arm that it stands for is given, with the words that tell it from the
    others."""
    alternatives: list[Sequence[str]] = [[each.strip() for each in value.split(LEVEL)] for value in given.values()]
    demand_few(alternatives)
    found = []
    for chosen in itertools.product(*alternatives):
        arm = dict(zip(given, chosen, strict=True))
        told = [f"{key}={arm[key]}" for key, each in zip(given, alternatives, strict=True) if len(each) > 1]
        found.append((arm, ",".join(told)))
    return found


def name_with(shape: str, given: Mapping[str, str]) -> str:
    """An arm's name with its devices: ``native, data_device=slow, log_device=fast``. Not with what an arm has anyway."""
    its = (f"{key}={value}" for key, value in given.items() if (key, value) != (DATA_DEVICE, OWN))
    return ", ".join(filter(None, [shape, *its]))
