"""The page, the tables and the exports of whole run folders."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from rich.console import Console

from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result import provenance
from dbtoll.analysis.result.schema import CheckResult, Result, RunWarning, WarningKind
from dbtoll.model.experiment import Outcome, Verdict
from dbtoll.report import export, page, published, tables
from dbtoll.report.absolute import Absolutes
from dbtoll.report.figures import axis, forest, run_order
from dbtoll.report.text import names, numbers, sentences, warnings
from dbtoll.store.reader import Run, read_run
from dbtoll.store.upgrade import completed
from tests.support.make_run import COPY, DOCKER, NATIVE, make_run

EVIL = "</script><script>alert(1)</script><b onclick='x'>&\"{{ 7*7 }}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "run", rounds=6, cold=True)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return read_run(folder)


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return results.analyze(folder)


class Page(HTMLParser):
    """Visible text, ids, elements and the embedded JSON of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.visible: list[str] = []
        self.embedded = ""
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.attributes += [name for name, _ in attrs]
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside == ["script"]:
            self.embedded += data
        elif not self._inside:
            self.visible.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.visible).split())


def plain(text: str) -> str:
    return " ".join(text.split())


def test_the_page_has_every_section_and_every_figure(result: Result, run: Run) -> None:
    seen = Page(page.render(result, run))
    assert {
        "answer", "warnings", "arms", "queries", "plans", "published", "limits", "drift", "checks", "comparisons",
        "times", "facts", "repeat", "data", "result",
    } <= set(seen.ids)  # fmt: skip
    assert json.loads(seen.embedded) == result.to_json()
    for c in result.comparisons:
        assert plain(numbers.IntervalText(c.estimate, c.low, c.high).text) in seen.text
    for headline in sentences.headlines(result):
        assert plain(str(headline.phrase.rest)) in seen.text
    for line in (*result.not_inside_the_interval, *(each.text for each in result.warnings)):
        assert plain(numbers.typeset(line)) in seen.text
    assert "derived from TPC-H. Its results are not comparable with published TPC results" in seen.text
    assert "Table 4: warm, one connection; docker" in seen.text and "13.30 s" in seen.text
    assert "Simulated CPU" in seen.text and "./dbtoll run question.toml" in seen.text
    assert "against Native" not in seen.text


def section_of(text: str, ident: str) -> str:
    """From an element with that id to the end of its section or header."""
    found = text[text.index(f'id="{ident}"') :]
    return found[: re.search(r"</(section|header)>", found).start()]  # type: ignore[union-attr]


def test_the_top_says_what_was_measured_on_what_when_and_for_how_long(result: Result, run: Run) -> None:
    top = Page(section_of(page.render(result, run), "answer")).text
    version, machine = provenance.engine_version(run), provenance.of(run).machine
    assert f"PostgreSQL {version} · TPC-H at scale factor 0.1 · {machine} · Linux" in top
    assert (
        f"6 rounds in {plain(numbers.span(run.elapsed_s))} · budget 5 min · " in top and f"run {run.begin.run}" in top
    )


def test_the_gate_is_on_the_page_where_there_is_one(folder: Path, result: Result, run: Run) -> None:
    assert "CI gate" not in Page(page.render(result, run)).text
    text = page.render(results.analyze_run(run, max_overhead=0.0001), run)
    shown = Page(section_of(text, "answer")).text
    assert re.search(r"CI gate, (exceeded|undecided): ", shown)


def test_absolute_times_stand_beside_relative_ones(result: Result, run: Run) -> None:
    absolutes = Absolutes(result)
    pictures = section_of(page.render(result, run), "queries")
    one = next(c for c in result.comparisons if (c.arm, c.estimand) == (DOCKER, "query:Q9"))
    median = next(t.median_ns for t in result.times if (t.arm, t.query, t.levels) == (DOCKER, "Q9", one.levels))
    assert absolutes.of(one) == numbers.time_of(median)
    assert f'<td class="absolute">{numbers.time_of(median)}</td>' in pictures
    medians = {t.query: t.median_ns for t in result.times if (t.arm, t.levels) == (NATIVE, one.levels)}
    assert None not in medians.values()
    total = numbers.time_of(sum(m for m in medians.values() if m))
    assert absolutes.text(NATIVE, one.levels, "run_time", "ratio_of_totals") == total
    assert absolutes.text(NATIVE, one.levels, "connect_time", "geomean") == ""
    assert plain(f"; native: {total}") in Page(section_of(page.render(result, run), "arms")).text
    terminal = plain(printed(result, 400))
    assert re.search(rf"native +{re.escape(plain(total))} +– +– +baseline", terminal)
    assert re.search(r"worst Q9 \+\S+ % \([^)]*\) of 5\d\d ms", terminal)


def test_an_aggregate_that_lacks_a_query_has_no_absolute_time(result: Result) -> None:
    levels = result.times[0].levels
    lacking = replace(result, times=(replace(result.times[0], median_ns=None), *result.times[1:]))
    assert Absolutes(lacking).text(result.times[0].arm, levels, "run_time", "geomean") == numbers.NOTHING


def test_the_legend_stands_once_and_says_what_the_words_mean(result: Result, run: Run) -> None:
    text = page.render(result, run)
    assert text.count('id="legend"') == 1 and text.count('class="swatch interval"') == 1
    legend = Page(section_of(text, "legend")).text
    assert "loses: its interval lies above 0" in legend and "clearly loses, figure in bold: beyond ±2 % too" in legend


def test_checks_are_folded_and_only_what_voids_is_a_failure(result: Result, run: Run) -> None:
    def with_check(*, voids: bool) -> str:
        made = CheckResult("steal", False, "at most 7.5% was stolen", voids, (1,), (1,) if voids else (), 0)
        arms = tuple(replace(each, checks=(made,)) for each in result.arms)
        return section_of(page.render(replace(result, arms=arms), run), "checks")

    noted, failed = with_check(voids=False), with_check(voids=True)
    assert "<details" in noted and " open" not in noted + failed
    assert "0 passed, 1 noted" in noted and "loses" not in noted and 'class="noted"' in noted
    assert "1 failed" in failed and 'class="loses"' in failed
    assert plain(numbers.typeset("at most 7.5% was stolen")) in Page(noted).text


def test_each_caution_stands_once(result: Result, run: Run) -> None:
    text = page.render(result, run)
    care = text[text.index('id="warnings"') : text.index('id="arms"')]
    assert care.count("other plans than the baseline: Q9") == 1
    assert care.count("the server died") == 1


def test_the_page_asks_for_nothing_and_runs_nothing(result: Result, run: Run) -> None:
    text = page.render(result, run)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\((?!data:)", text)
    assert text.count("<script") == 1 and '<script type="application/json"' in text


def test_what_a_spec_or_a_server_says_stays_text(folder: Path, result: Result, run: Run) -> None:
    def name(text: str) -> str:
        return EVIL if text == DOCKER else text

    evil = replace(
        result,
        question=EVIL,
        warnings=(RunWarning(WarningKind.FAR_OUT_STARTS, EVIL, EVIL),),
        arms=tuple(replace(a, name=name(a.name), stack=EVIL, reason=EVIL) for a in result.arms),
        comparisons=tuple(replace(c, arm=name(c.arm), reason=EVIL, left_out=(EVIL,)) for c in result.comparisons),
        times=tuple(replace(t, arm=name(t.arm)) for t in result.times),
        series=tuple(replace(s, arm=name(s.arm)) for s in result.series),
        plans_changed=tuple(replace(p, arm=name(p.arm), fingerprint=EVIL) for p in result.plans_changed),
        facts={EVIL: {EVIL: EVIL, "list": [EVIL, {EVIL: EVIL}]}, "plain": EVIL},
    )
    honest, seen = Page(page.render(result, run)), Page(page.render(evil, run))
    assert "alert(1)" in seen.text and "{{ 7*7 }}" in seen.text
    assert seen.tags.count("script") == honest.tags.count("script") == 1
    for made, from_ in ((seen, evil), (honest, result)):
        care = warnings.cautions(from_)  # the page's own: the arms that a caution is about
        cautioned = [each for caution in (*care.shown, *care.folded) for each in caution.findings]
        assert made.tags.count("b") == 1 + sum(bool(each.who) for each in cautioned)  # and one in the legend
    assert "onclick" not in seen.attributes
    assert json.loads(seen.embedded)["question"] == EVIL


def test_an_arm_without_figures_has_one_sentence(result: Result, run: Run) -> None:
    lost = "no visit of docker counts"
    without = [
        replace(c, estimate=None, low=None, high=None, low_decisive=None, high_decisive=None, verdict=Verdict.CANNOT_TELL,
                rounds=0, reason=lost) if c.arm == DOCKER else c
        for c in result.comparisons
    ]  # fmt: skip
    arms = [
        replace(a, outcome=Outcome.FAILED, reason="no daemon", rounds=0, checks=()) if a.name == DOCKER else a
        for a in result.arms
    ]
    changed = replace(result, arms=tuple(arms), comparisons=tuple(without))
    seen = Page(page.render(changed, run))
    assert seen.text.count(lost) == 1
    assert "published" not in seen.ids
    assert lost not in printed(changed) and "Docker: failed: no daemon" in printed(changed)


def test_a_run_without_any_figure_has_a_page(run: Run, result: Result) -> None:
    nothing = replace(result, comparisons=(), times=(), series=(), plans_changed=(), noise_floor=())
    seen = Page(page.render(nothing, run))
    assert "Nothing was measured that could be compared." in seen.text
    assert {"queries", "drift", "times", "comparisons"}.isdisjoint(seen.ids)


def test_what_is_to_be_typed_is_code_and_has_no_backticks(result: Result, run: Run) -> None:
    few = replace(result, warnings=(RunWarning(WarningKind.FEW_ROUNDS, "there are 3 `rounds`"),))
    html = page.render(few, run)
    assert "Go on with <code>dbtoll run FOLDER --resume --budget</code>." in html
    assert "there are 3 <code>rounds</code>" in html and "`" not in Page(html).text


def test_own_queries_are_not_said_to_be_of_tpc(result: Result, run: Run) -> None:
    experiment = run.plan.experiment
    configuration = replace(experiment.configuration, workload=replace(experiment.configuration.workload, name="sql"))
    arms = tuple(replace(arm, configuration=configuration) for arm in experiment.arms)
    plan = type(run.plan)(experiment=replace(experiment, arms=arms), queries=run.plan.queries, blocks=run.plan.blocks)
    facts = {name: value for name, value in run.facts.items() if name != "descriptions"}
    own = replace(run, plan=plan, facts=completed(facts, plan.experiment))
    seen = Page(page.render(result, own))
    assert "TPC" not in seen.text.split("In the order of the run")[0].replace("lose on TPC-H", "")
    assert "published" not in seen.ids


# --- figures ---------------------------------------------------------------------------------------------------------


def test_axes_hold_what_they_show() -> None:
    linear = axis.axis_for([-0.03, 0.05], 0.02)
    assert not linear.log and linear.place(linear.low) == 0 and linear.place(linear.high) == 100
    assert [tick.label for tick in linear.ticks] == [f"{numbers.MINUS}2", "0", "+2", "+4"]
    wide = axis.axis_for([5.0], 0.02)
    assert wide.log and wide.place(1.0) - wide.place(0.0) == pytest.approx(wide.place(3.0) - wide.place(1.0), abs=0.02)


@pytest.mark.parametrize(
    "changes", [[-0.9, 8.0], [-0.95, 19.0], [4.0], [-0.03, 0.05], [0.3, -0.1], [-0.019, 0.019], [60.0]]
)
def test_labels_of_a_narrow_panel_do_not_touch(changes: list[float]) -> None:
    ticks = [tick for tick in axis.axis_for(changes, 0.02).ticks if not tick.crowded]
    assert len(ticks) > 1 and {"0", "1"} & {tick.label for tick in ticks}
    assert min(right.x - left.x for left, right in pairwise(ticks)) >= 22


def test_panels_share_an_axis_unless_it_would_squeeze_one() -> None:
    shared = axis.shared_axis([[0.05, -0.05], [0.02]], 0.02)
    assert shared is not None and shared.low < -0.05 and shared.high > 0.05
    assert axis.shared_axis([[4.0], [0.01]], 0.02) is None


def test_the_run_order_shows_drift(result: Result) -> None:
    quantiles = ("min", "q1", "median", "q3", "max")
    drifting = [replace(s, **dict.fromkeys(quantiles, 0.02 * s.round)) for s in result.series]
    order = run_order.run_order(drifting, [arm.name for arm in result.arms])
    assert order is not None and len(order.panels) == 3 and len(order.rounds) == 6
    for panel in order.panels:
        heights = [int(height) for height in re.findall(r"M\d+ (\d+)H", panel.middles)]
        assert len(heights) == 6
        assert heights[0] == 500 and heights == sorted(heights, reverse=True)  # upwards: later rounds took longer
        assert len(set(heights)) == 6
        assert panel.path.count("h0") == panel.dots > 100
        assert panel.visits == sum(s.visits for s in result.series if s.arm == panel.arm)
    assert run_order.run_order([], ["native"]) is None


def test_one_stalled_visit_does_not_hide_the_others(result: Result) -> None:
    calm = run_order.run_order(result.series, [DOCKER])
    stalled = [replace(s, max=5.0) if i < 5 else s for i, s in enumerate(result.series)]
    order = run_order.run_order(stalled, [arm.name for arm in result.arms])
    assert calm is not None and order is not None
    assert order.limit < 3 * calm.limit
    assert sum(panel.pinned for panel in order.panels) >= 5


# --- terminal and Markdown -------------------------------------------------------------------------------------------


def printed(result: Result, width: int = 100) -> str:
    console = Console(width=width, record=True, highlight=False, file=None, quiet=False)
    with console.capture() as captured:
        console.print(tables.terminal(result))
    return captured.get()


def test_the_terminal_says_each_thing_once(result: Result) -> None:
    text = plain(printed(result, 400))
    for headline in sentences.headlines(result):
        assert plain(headline.sentence) in text and plain(headline.note) in text
    assert any(headline.note for headline in sentences.headlines(result))
    assert text.count("other plans than the baseline: Q9") == 1
    assert text.count("the server died") == 1


def test_a_terminal_obeys_nothing_from_outside(result: Result) -> None:
    evil = replace(
        result, question="\x1b[2J[red]x[/red]", warnings=(RunWarning(WarningKind.NO_END, "\x1b]0;title\x07"),)
    )
    text = printed(evil)
    assert "\x1b" not in text and "\x07" not in text and "[red]x[/red]" in text


def beside(result: Result, run: Run) -> list[str]:
    """The published tables that the run has figures of, in Markdown."""
    labelled = names.with_arm_labels(result)
    found = published.beside(labelled, run.plan.experiment)
    return [published.markdown(each, result.margin) for paper in found for each in paper.tables]


def test_tables_of_the_paper_in_markdown(result: Result, run: Run) -> None:
    (table,) = beside(result, run)
    lines = table.splitlines()
    assert lines[0].startswith("| query | base | Xen | slowdown | ours: native | ours: docker |")
    assert len(lines) == 2 + 22 and {line.count("|") for line in lines} == {9}
    assert plain(lines[2]).startswith("| Q1 | 13.30 s | 14.04 s | +5.55 % | ")
    assert "a\\|b&lt;c" in tables.markdown_table(["a|b<c"], [["1"]])


# --- exports ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(folder: Path, result: Result, run: Run) -> list[Path]:
    return export.write(folder, result, run)


def test_every_execution_is_in_the_samples(written: list[Path], run: Run) -> None:
    names = ["samples", "results", "rounds", "visits"]
    assert [path.name for path in written] == [f"{name}.{kind}" for name in names for kind in ("csv", "parquet")]
    visits = list(run.all_visits())
    expected = sum(len(visit.units[0].executions) for visit, _, _ in visits)
    for path in written[:2]:
        rows = duckdb.sql(f"SELECT count(*), sum(end_ns - start_ns) FROM '{path}'").fetchall()[0]
        total = sum(t.end_ns - t.start_ns for visit, _, _ in visits for t in visit.units[0].executions)
        assert rows == (expected, total)
    one = duckdb.sql(
        f"SELECT * EXCLUDE (run) FROM '{written[1]}' WHERE arm = 'docker' AND query = 'Q9' AND cache = 'cold' "
        'AND round = 1 ORDER BY "order", execution LIMIT 1'
    ).fetchall()[0]
    visit = next(
        v for v, _, _ in visits
        if (v.arm, v.query, v.round) == (DOCKER, "Q9", 1) and v.levels["cache"] == "cold"
    )  # fmt: skip
    (unit,) = visit.units
    timing = unit.executions[0]
    assert one == (
        1, 0, True, DOCKER, False, "cold", "persistent", visit.block, visit.parameter_set, "Q9", visit.order, False, False,
        0, unit.start_ns, unit.end_ns, unit.host_start_ns, unit.host_end_ns, unit.disk_read_bytes, unit.minor_faults, None, 0,
        timing.start_ns, None, timing.first_byte_ns, timing.end_ns, 10, 1200, "ok",
    )  # fmt: skip


def test_what_does_not_count_is_marked_and_what_is_missing_is_null(written: list[Path], result: Result) -> None:
    counted = duckdb.sql(f"SELECT attempt, complete, count(*) > 0 FROM '{written[1]}' WHERE round = 2 GROUP BY ALL")
    assert sorted(counted.fetchall()) == [(0, False, True), (1, True, True)]
    nulls = duckdb.sql(f"SELECT count(connected_ns), count(problem), count(*) > 0 FROM '{written[1]}'").fetchall()[0]
    assert nulls == (0, 0, True)
    with written[0].open(encoding="utf-8", newline="") as file:
        assert {row["connected_ns"] for row in csv.DictReader(file)} == {""}
    steady = duckdb.sql(
        f"SELECT count(*) FROM '{written[1]}' WHERE complete AND NOT void AND NOT first_execution AND outcome = 'ok'"
    ).fetchall()[0]
    assert steady == (sum(t.executions for t in result.times),)


def test_every_comparison_is_in_the_results(written: list[Path], result: Result) -> None:
    for path in written[2:4]:
        rows = duckdb.sql(
            f"SELECT arm, cache, metric, estimand, estimate, low, high, p_holm, is_aa, rounds FROM '{path}'"
        ).fetchall()
        assert rows == [
            (
                c.arm,
                c.levels["cache"],
                c.metric,
                c.estimand,
                c.estimate,
                c.low,
                c.high,
                c.p_holm,
                c.is_aa,
                c.rounds,
            )
            for c in result.comparisons
        ]


def test_every_round_is_in_the_table_of_rounds(written: list[Path], result: Result) -> None:
    for path in written[4:6]:
        rows = duckdb.sql(f"SELECT arm, cache, metric, estimand, round, effect, far_out FROM '{path}'").fetchall()
        expected = [
            (c.arm, c.levels["cache"], c.metric, c.estimand, each.round, each.effect, each.far_out)
            for c in result.comparisons
            for each in c.by_round
        ]
        assert rows == expected
        assert len(rows) > 6 * 40


def test_every_visit_has_the_deviation_that_is_in_the_bins(written: list[Path], result: Result, run: Run) -> None:
    for path in written[6:]:
        counts = duckdb.sql(f"SELECT count(*), sum(executions), count(log_deviation) FROM '{path}'").fetchall()[0]
        visits = [visit for visit, *_ in run.all_visits()]
        executions = sum(len(visit.units[0].executions) for visit in visits)
        assert counts == (len(visits), executions, sum(each.visits for each in result.series))
        for arm in (NATIVE, DOCKER):
            low, high = duckdb.sql(
                f"SELECT min(log_deviation), max(log_deviation) FROM '{path}' WHERE arm = '{arm}'"
            ).fetchall()[0]
            own = [each for each in result.series if each.arm == arm]
            assert low == pytest.approx(min(each.min for each in own), abs=1e-6)
            assert high == pytest.approx(max(each.max for each in own), abs=1e-6)


def test_exports_of_a_run_without_figures_are_empty_tables(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rounds=0)
    paths = export.write(folder, results.analyze(folder), read_run(folder))
    for path in paths:
        assert duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall()[0] == (0,)
    assert "first_byte_ns" in paths[0].read_text(encoding="utf-8").splitlines()[0]


def test_commas_quotes_and_line_ends_survive(tmp_path: Path, result: Result, run: Run) -> None:
    text = "a \"b\", c\nd; 'e' \N{MINUS SIGN}"
    changed = replace(
        result,
        arms=tuple(replace(arm, name=text) for arm in result.arms if arm.name == COPY),
        comparisons=tuple(replace(c, arm=text) for c in result.comparisons if c.arm == COPY),
    )
    for path in export.write(tmp_path, changed, run)[2:4]:
        assert set(duckdb.sql(f"SELECT arm FROM '{path}'").fetchall()) == {(text,)}


# --- emulated arms ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emulating(result: Result) -> Result:
    return replace(result, arms=tuple(replace(arm, emulated=arm.name == DOCKER) for arm in result.arms))


def test_an_emulated_arm_is_called_so_in_every_table_and_picture(emulating: Result, run: Run, tmp_path: Path) -> None:
    label = "docker (emulated)"
    text = page.render(emulating, run)
    seen = Page(text)
    assert json.loads(seen.embedded) == emulating.to_json()  # for programs the arm keeps its name
    for part, often in (("answer", 0), ("arms", 4), ("queries", 2), ("plans", 2), ("published", 2), ("drift", 1),
                        ("checks", 1), ("comparisons", 2), ("times", 2), ("facts", 1)):  # fmt: skip
        section = text[text.index(f'id="{part}"') :]
        section = section[: re.search(r"</(section|header)>", section).start()]  # type: ignore[union-attr]
        assert section.count(label) >= often, part
        assert not re.search(r"docker(?! \(emulated\)|:runtime)", section), part  # but for the stack's own text
    assert "Docker (emulated)" in text[text.index('id="answer"') : text.index('id="arms"')]
    terminal = plain(printed(emulating, 400))
    assert terminal.count(label) >= 4 and "Docker (emulated)" in terminal
    assert not re.search(r"docker(?! \(emulated\))", terminal.split("Read with care")[0])
    for table in (tables.markdown_arms(emulating), *beside(emulating, run)):
        assert label in table and not re.search(r"docker(?! \(emulated\))", table)
    for path in export.write(tmp_path, emulating, run):
        found = duckdb.sql(f"SELECT DISTINCT arm, emulated FROM '{path}' WHERE arm LIKE 'docker%'").fetchall()
        assert found == [(label, True)]
        assert (False,) in duckdb.sql(f"SELECT DISTINCT emulated FROM '{path}'").fetchall()


def test_what_is_labelled_is_labelled_once(emulating: Result) -> None:
    once = names.with_arm_labels(emulating)
    assert names.with_arm_labels(once) == once != emulating
    assert names.with_arm_labels(replace(emulating, arms=())) == replace(emulating, arms=())
    assert names.arm_title("docker:runsc (emulated)", emulating) == "Docker with runsc (emulated)"


def test_every_round_is_a_dot_beside_its_interval(result: Result, run: Run) -> None:
    text = page.render(result, run)
    drawn = [c for c in result.comparisons if c.estimate is not None and c.metric == "run_time"]
    assert text.count('<circle class="round"') == sum(len(c.by_round) for c in drawn) > 6 * 40
    assert "allow for starts that depend on the ones before them" in text
    assert text.count('<line class="decisive"') > 6 * 8


def test_a_round_that_lies_far_out_does_not_squeeze_the_axis(result: Result) -> None:
    c = next(c for c in result.comparisons if c.by_round)
    usual = forest.changes_of([("", "", c)])
    first, *others = c.by_round
    outlying = replace(c, by_round=(replace(first, effect=9.0, far_out=True), *others))
    assert max(forest.changes_of([("", "", outlying)])) <= max(usual)
    (row,) = forest.forest("", [("", "", outlying)], result).rows
    assert max(row.rounds) == row.rounds[0] == 100


def test_the_terminal_says_what_intervals_allow_for_and_how_rare_a_start_is_missed(result: Result) -> None:
    text = plain(printed(result, 400))
    assert "Verdicts (and the thin lines) allow for starts that depend on the ones before them" in text
    assert "one that is slow one time in ten has been missed with a chance of 53 % (6 rounds)" in text
