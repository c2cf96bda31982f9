"""Figures of one property of the instrument, held to bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dbtoll.model.json import Json

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure is held to: at most ``max``, at least ``min``; None where there is no such limit."""

    max: float | None = None
    min: float | None = None

    def holds(self, figure: float | None) -> bool:
        if figure is None:
            return False
        return (self.max is None or figure <= self.max) and (self.min is None or figure >= self.min)

    def __str__(self) -> str:
        parts = [f"at least {self.min:g}"] if self.min is not None else []
        parts += [f"at most {self.max:g}"] if self.max is not None else []
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Figures of one property; ``bounds`` by figure; ``facts``: of the machine and how it was measured."""

    name: str
    figures: dict[str, Any]
    bounds: dict[str, Bound]
    facts: Json = field(default_factory=dict)

    def holds(self) -> bool:
        """Whether every bounded figure is within its bound."""
        return all(bound.holds(self.figures.get(name)) for name, bound in self.bounds.items())

    @property
    def failure(self) -> str | None:
        """One sentence: which figures are out of their bounds; None where none is."""
        out = [
            f"{name} is {_shown(self.figures.get(name))} and should be {bound}"
            for name, bound in self.bounds.items()
            if not bound.holds(self.figures.get(name))
        ]
        return f"This certificate does not hold: {'; '.join(out)}." if out else None

    def as_json(self) -> Json:
        """What does not hold stands at the head."""
        bounds = {name: {"min": bound.min, "max": bound.max} for name, bound in self.bounds.items()}
        return {
            "name": self.name,
            "holds": self.holds(),
            "failure": self.failure,
            "figures": self.figures,
            "bounds": bounds,
            "facts": self.facts,
        }

    def as_text(self) -> str:
        """A line for each figure; what does not hold stands at the head."""
        lines = [self.failure] if self.failure else []
        for name, figure in self.figures.items():
            bound = self.bounds.get(name)
            held = "" if bound is None else f"  ({bound}: {'holds' if bound.holds(figure) else 'DOES NOT HOLD'})"
            lines.append(f"{name}: {_shown(figure)}{held}")
        return "\n".join(lines)


def _shown(figure: Any) -> str:
    match figure:
        case None:
            return "not known"
        case float():
            return f"{figure:.4g}"
        case dict():
            return ", ".join(f"{key} {_shown(value)}" for key, value in figure.items())
        case list() | tuple():
            return " … ".join(_shown(value) for value in figure)
    return str(figure)
