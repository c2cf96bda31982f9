"""How much longer an arm takes for user-mode work, by the probes that do an executor's work."""

from __future__ import annotations

import numpy as np

from dbtoll.analysis.effects.stats import Floats

QUARTILES = (0.25, 0.75)

SPREADS_PART = 0.5
"""Of what a query's spread predicts, by the line through the probes; for the rest it is as in the middle of them all: of two
forecasts, neither of which is the better one everywhere, the mean (Bates & Granger 1969; ADR 16)."""

SAMPLES_MIN = 1000
"""So that blocks of code hold some each (agent/src/collect/samples.rs)."""

PROBES_MIN = 4
"""For a line through them."""


def predicted_ratios(spreads: Floats, ratios: Floats, spread: float) -> Floats:
    """What the probes [probe] whose time is spread over so many instructions, and that take so many times as long in an arm
    [probe, round], say of a query with its own spread: the quartiles [2, round] of their straight line in logarithms, shifted to
    each of them, and never outside of them all. The line has `SPREADS_PART` of the slope that fits best.

    An emulator pays for each instruction; where a processor waits, for memory or because it guessed a branch wrong, it does not,
    and the time is piled up on few of them.
    """
    at = np.log(spreads)
    logs = np.log(ratios)
    centred = at - at.mean()
    slope = SPREADS_PART * (centred @ logs) / max(float(centred @ centred), 1e-9)
    rest = logs - logs.mean(axis=0) - np.outer(centred, slope)
    line = logs.mean(axis=0) + slope * (np.log(spread) - at.mean())
    quartiles: Floats = np.quantile(np.clip(line + rest, logs.min(axis=0), logs.max(axis=0)), QUARTILES, axis=0)
    return np.exp(quartiles)
