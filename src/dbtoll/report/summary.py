"""A result as one screen of Markdown, for the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dbtoll.analysis.result.schema import varied_factors
from dbtoll.report import transactions
from dbtoll.report.absolute import Absolutes
from dbtoll.report.tables import markdown_interference, markdown_table, markdown_text
from dbtoll.report.text import gate, names, numbers, sentences, warnings

if TYPE_CHECKING:
    from dbtoll.analysis.result.provenance import Provenance
    from dbtoll.analysis.result.schema import Comparison, Result


def markdown(result: Result, provenance: Provenance) -> str:
    """Question, gate, headlines, a table of the arms with absolute times, cautions in a fold, where the figures come from.

    Text from outside is escaped. A job's summary on GitHub may have 1 MiB; this has some kB.
    """
    result = names.with_arm_labels(result)
    parts = [f"## {markdown_text(result.question)}"]
    if decided := gate.sentence(result):
        parts.append(f"**Gate {markdown_text(decided)}**")
    said = (f"{headline.sentence}. {headline.note}".rstrip(". ") for headline in sentences.headlines(result))
    parts.append("\n".join(f"- {markdown_text(line)}" for line in said))
    parts.append(_table(result))
    parts.append(markdown_interference(result))
    care = warnings.cautions(result)
    if lines := [caution.sentence for caution in care.all]:
        parts.append(
            f"<details><summary>Read with care: {numbers.plural(len(lines), 'remark')}</summary>\n\n"
            + "\n".join(f"- {markdown_text(line)}" for line in lines)
            + "\n\n</details>"
        )
    parts.append(markdown_text("; ".join(_origin(provenance, result))))
    return "\n\n".join(part for part in parts if part) + "\n"


def _origin(provenance: Provenance, result: Result) -> Iterator[str]:
    yield f"{names.workload_title(result)} on {names.engine_title(result)} {provenance.engine_version or ''}".rstrip()
    date = provenance.date and f"{provenance.date.replace('T', ' ')} UTC"
    yield from filter(None, (provenance.machine, provenance.kernel and f"Linux {provenance.kernel}", date))
    yield f"run {provenance.run_name}"
    yield f"dbtoll {provenance.dbtoll}"
    yield f"intervals of {numbers.percent(result.confidence, 0, plus=False)}"
    yield f"stopped: {result.stopped}"


def _table(result: Result) -> str:
    """A row per arm and combination of levels, in the order of the arms; the baseline first in each."""
    main = [c for c in result.comparisons if c.estimand == "geomean" and c.metric == result.main_metric]
    if not main:
        return ""
    varied = varied_factors(c.levels for c in main)
    absolute = _absolute(result)
    cells = {(c.arm, str(c.levels)): c for c in result.gate.cells} if result.gate else {}
    head = ["arm", "against the baseline", "verdict"]
    several = len({c.baseline for c in main}) > 1
    head = [
        head[0],
        *(["held against"] if several else []),
        *(["levels"] if varied else []),
        *head[1:],
        *(["absolute"] if absolute else []),
    ]
    head += ["gate"] if result.gate else []
    not_ok = sentences.arms_not_ok(result)
    rows = []
    for levels in {str(c.levels): c.levels for c in main}.values():
        compared = {c.arm: c for c in main if c.levels == levels}
        baselines = dict.fromkeys(c.baseline for c in compared.values() if c.baseline not in compared)
        for arm in (*baselines, *(arm.name for arm in result.arms if arm.name in compared)):
            found, cell = compared.get(arm), cells.get((arm, str(levels)))
            against = [found.baseline if found else numbers.NOTHING] if several else []
            row = [arm, *against, *([names.levels_text(levels, varied)] if varied else [])]
            row += [numbers.effect(found).text if found else numbers.NOTHING, _verdict(found, not_ok.get(arm), result)]
            row += [absolute.get((arm, str(levels)), numbers.NOTHING)] if absolute else []
            if result.gate:
                shown = gate.effect(cell, result.gate).bounds if cell else ""
                row.append(f"{cell.decision}{f' ({shown})' if shown else ''}" if cell else numbers.NOTHING)
            rows.append(row)
    return markdown_table(head, rows).rstrip("\n")


def _verdict(found: Comparison | None, not_ok: str | None, result: Result) -> str:
    if found is None:
        return "; ".join(filter(None, ("baseline", not_ok)))
    said = sentences.verdict_of(found, result.margin)
    return f"{not_ok}; {said}" if not_ok else said


def _absolute(result: Result) -> dict[tuple[str, str], str]:
    """Arm and levels -> what it does in a second, or takes for all queries: the sum of their medians.

    None of probes: a sum of the costs of unlike events is a quantity of nothing.
    """
    if groups := transactions.groups(result):
        return {
            (arm.arm, str(arm.windows.levels)): f"{arm.throughput} {group.unit}"
            for group in groups
            for arm in group.arms
        }
    absolutes = Absolutes(result)
    cells = {(each.arm, str(each.levels)): each.levels for each in result.times}
    said = {key: absolutes.text(key[0], levels, result.main_metric, "ratio_of_totals") for key, levels in cells.items()}
    return {key: text for key, text in said.items() if text}
