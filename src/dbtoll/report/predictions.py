"""What `dbtoll predict` tells (docs/method/predictions.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dbtoll.analysis.result.schema import varied_factors
from dbtoll.report.text import names, numbers

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dbtoll.analysis.attribution.prediction import Prediction
    from dbtoll.analysis.result.schema import Forecast


def terminal(found: Sequence[Prediction]) -> RenderableType:
    """A sentence for each arm, and a table of the queries."""
    varied = varied_factors(each.levels for each in found)
    heads = [", ".join(filter(None, (each.arm, names.levels_text(each.levels, varied)))) for each in found]
    parts: list[RenderableType] = [Text(f"{head}: {_sentence(each)}") for head, each in zip(heads, found, strict=True)]
    table = Table("query", *heads, box=SIMPLE_HEAD)
    for query in sorted(dict.fromkeys(query for each in found for query in each.queries), key=names.natural_key):
        table.add_row(query, *(_text(each.queries.get(query)) for each in found))
    least = min(found, key=lambda each: each.rounds)
    if least.rounds < least.rounds_to_decide:
        few = (
            f"only {numbers.plural(least.rounds, 'round')}, and {least.rounds_to_decide} are needed to decide anything"
        )
        parts.append(Text(f"{few}: with a larger --budget there are more, and the intervals are shorter"))
    return Group(*parts, table)


def _sentence(each: Prediction) -> str:
    if each.geomean is None:
        return "nothing is predicted, for it was not probed how fast it computes"
    return f"predicted {_text(each.geomean)} (geometric mean of {_queries(each)}){_doubt(each)}"


def _queries(each: Prediction) -> str:
    if not each.left_out:
        return "all queries"
    left_out = f"without {', '.join(each.left_out)}, which failed or were not counted"
    return f"{numbers.plural(len(each.queries), 'query', 'queries')}, {left_out}"


def _doubt(each: Prediction) -> str:
    """Why there are no bounds, if it was not probed."""
    if not each.unprobed:
        return ""
    return f"; how far off is not known: as dear as in the baseline, since not probed here: {', '.join(each.unprobed)}"


def _text(found: Forecast | None) -> str:
    return (
        numbers.NOTHING if found is None else numbers.EffectText("run_time", found.estimate, found.low, found.high).text
    )
