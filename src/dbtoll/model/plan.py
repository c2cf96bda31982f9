"""What is planned: rounds of phases of blocks of visits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Visit:
    """One waking of an arm for one statement of the block."""

    arm: str
    query: str


@dataclass(frozen=True, slots=True)
class Block:
    """Each cell once: the visits in the order in which they are made.

    ``parameter_set``: number of the set of substitution parameters, the same for all arms.
    """

    index: int
    parameter_set: int
    visits: tuple[Visit, ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """The blocks of one combination of levels, e.g. ``{"cache": "warm", "connection": "persistent"}``.

    ``kind``: timing, counting what the same statements do, and probing what events cost are separate passes (docs/adr/0006).
    """

    levels: dict[str, str]
    blocks: tuple[Block, ...]
    kind: Literal["timed", "counted", "probed"] = "timed"


@dataclass(frozen=True, slots=True)
class Round:
    """One fresh start of every arm: in ``start_order``, then the phases."""

    index: int
    start_order: tuple[str, ...]
    phases: tuple[Phase, ...]
