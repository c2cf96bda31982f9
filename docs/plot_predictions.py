"""The picture of predictions beside measurements, of a certificate of `dbtoll selfbench predict --json`.

.dbtoll/venv/bin/python docs/plot_predictions.py CERTIFICATE.json docs/pictures/predictions.png
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

BOUND = 0.25
"""Median absolute error of the logarithm that the issue asks for."""
NAMED = 8
"""So many of the worst misses are named."""
MARKS = "osD^vPX*"


def main(certificate: Path, target: Path) -> None:
    """See the head of this file."""
    told = json.loads(certificate.read_text(encoding="utf-8"))
    predicted, measured, figures = told["facts"]["predicted"], told["facts"]["measured"], told["figures"]["everything"]
    picture, axes = plt.subplots(figsize=(7.2, 7.2), layout="constrained")
    everything = [
        *(x for arm in predicted.values() for _, x, _ in arm.values()),
        *(x for arm in measured.values() for x in arm.values()),
    ]
    low, high = min(everything) / 1.2, max(everything) * 1.2
    axes.fill_between(
        [low, high], [low * math.exp(-BOUND), high * math.exp(-BOUND)], [low * math.exp(BOUND), high * math.exp(BOUND)],
        color="0.9", label=f"within e^±{BOUND}",
    )  # fmt: skip
    axes.plot([low, high], [low, high], color="0.4", linewidth=1)
    misses = []
    for mark, (arm, queries) in zip(MARKS, predicted.items(), strict=False):
        points = [(*queries[query], measured[arm][query], query) for query in queries]
        (drawn,) = axes.plot([p for _, p, *_ in points], [m for *_, m, _ in points], mark, ms=5, label=arm, alpha=0.85)
        bounds = [(left, right, m) for left, _, right, m, _ in points if left is not None and right is not None]
        axes.hlines(
            [m for *_, m in bounds], [left for left, *_ in bounds], [right for _, right, _ in bounds],
            color=drawn.get_color(), alpha=0.25, linewidth=1,
        )  # fmt: skip
        misses += [(abs(math.log(p / m)), p, m, query) for _, p, _, m, query in points]
    for _, x, y, query in sorted(misses, reverse=True)[:NAMED]:
        axes.annotate(query, (x, y), textcoords="offset points", xytext=(5, 3), fontsize=8)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set_xlabel("predicted: times as long as native")
    axes.set_ylabel("measured: times as long as native")
    low_error, error, high_error = figures["median_absolute_error_interval"]
    least, share, most = figures["inside_interval"]
    axes.set_title(
        f"All arms and queries: median absolute error of the logarithm {error:.2f} ({low_error:.2f} … {high_error:.2f});\n"
        f"of always 1: {figures['error_of_one'][1]:.2f}, of the processor probe: {figures['error_of_cpu_probe'][1]:.2f}; "
        f"inside the predicted bounds: {share:.0%} ({least:.0%} … {most:.0%})",
        fontsize=10,
    )
    axes.legend(frameon=False)
    picture.savefig(target, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
