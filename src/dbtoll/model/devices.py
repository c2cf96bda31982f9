"""The devices that an arm's data and its log lie on, by the names that their user gives them.

A device of a class is opened for each arm anew (machines/arm_device.py), so arms that have the same class never share one; those
that name a directory share what lies beneath it. Data are placed when an arm starts, so the device is a factor between arms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OWN = "own"
"""The machine's own: where dbtoll keeps the copies of data, on the disk of its cache."""

MEMORY = "memory"

DATA_DEVICE = "data_device"
LOG_DEVICE = "log_device"
KEYS = (DATA_DEVICE, LOG_DEVICE)
"""Of an arm."""

Kind = Literal["own", "memory", "model", "directory"]

Role = Literal["data", "log", "data and log"]
"""What of an arm lies on a device."""


@dataclass(frozen=True, slots=True)
class Device:
    """``name``: what its user calls it. ``of``: of a ``model`` its name, of a ``directory`` its path on the machine on which the
    arm stands, else empty. ``size_bytes``: of a model or of a memory file system; None: what is needed. ``write_cache``,
    ``queue_depth``: of a model (`machines.disk_model.disk_model`)."""

    name: str
    kind: Kind
    of: str = ""
    size_bytes: int | None = None
    write_cache: bool = False
    queue_depth: int | None = None

    @property
    def text(self) -> str:
        """``hdd7200``, or of one that its user named ``slow (hdd7200, write cache)``."""
        told = [self.of or self.kind]
        told += ["write cache"] if self.write_cache else []
        told += [f"queue of {self.queue_depth}"] if self.queue_depth is not None else []
        shown = ", ".join(told)
        return shown if self.name == shown else f"{self.name} ({shown})"


@dataclass(frozen=True, slots=True)
class Devices:
    """Of an arm. ``data``: None is the machine's own, or what the option ``storage`` says. ``log``: None is within the data."""

    data: Device | None = None
    log: Device | None = None

    @property
    def told(self) -> Mapping[str, str]:
        """Where both lie, by the keys of a specification."""
        data = self.data.text if self.data else OWN
        return {DATA_DEVICE: data, LOG_DEVICE: self.log.text if self.log else data}

    @property
    def all(self) -> tuple[Device, ...]:
        """Those that are opened."""
        return tuple(each for each in (self.data, self.log) if each is not None)
