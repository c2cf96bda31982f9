"""The CI gate: its rule, its words, and what is written of it for CI systems."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from dbtoll.analysis.effects.overhead_gate import judge
from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result import provenance
from dbtoll.analysis.result.schema import (
    NOT_FINISHED,
    OverheadGate,
    Result,
    RunWarning,
    WarningKind,
    from_json,
    to_json,
)
from dbtoll.commands import inspect
from dbtoll.commands.summaries import EXIT_CODES, Summaries, conclude_gate
from dbtoll.errors import UsageError
from dbtoll.model.experiment import GateDecision, Outcome
from dbtoll.report.junit import junit
from dbtoll.report.summary import markdown
from dbtoll.report.tables import markdown_text
from dbtoll.report.text import gate as words
from dbtoll.store.reader import read_run
from dbtoll.store.schema import STOPPED, Record, Start, Visit
from tests.support.changed import changed_run, revised
from tests.support.make_run import COPY, DOCKER, NATIVE, make_run
from tests.support.make_windows import make_windows
from tests.support.program import ROOT, dbtoll_forked
from tests.unit.test_what_fails import slower
from tests.unit.test_words import arm, comparison, result, said

WITHIN, EXCEEDED, UNDECIDED = GateDecision.WITHIN, GateDecision.EXCEEDED, GateDecision.UNDECIDED
LIMIT = 0.05
OTHER_LEVEL = {"cache": "cold"}


def of(low: float | None, high: float | None, name: str = "docker", **changes: object) -> object:
    return comparison(name, 0.03, low_decisive=low, high_decisive=high, **changes)


def judged(*comparisons: object, outcome: Outcome = Outcome.OK, **changes: object) -> OverheadGate:
    names = dict.fromkeys(c.arm for c in comparisons)  # type: ignore[attr-defined]
    arms = [arm(name, outcome=outcome, reason=None if outcome is Outcome.OK else "no daemon") for name in names]
    return judge(result((arm("native"), *arms), comparisons, **changes), LIMIT)  # type: ignore[arg-type]


# --- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (0.01, 0.03, WITHIN),
        (-0.3, 0.05, WITHIN),
        (0.01, 0.0501, UNDECIDED),
        (0.05, 0.1, UNDECIDED),
        (0.0501, 0.1, EXCEEDED),
        (0.06, None, EXCEEDED),
        (0.01, None, UNDECIDED),
        (None, None, UNDECIDED),
    ],
)
def test_a_cell_is_decided_by_its_decisive_interval(
    low: float | None, high: float | None, decision: GateDecision
) -> None:
    gate = judged(of(low, high))
    (cell,) = gate.cells
    assert (gate.decision, cell.decision) == (decision, decision)
    assert (gate.limit, gate.metric, gate.estimand, gate.reason) == (LIMIT, "run_time", "geomean", None)
    assert (cell.arm, cell.estimate, cell.low, cell.high, cell.rounds) == ("docker", 0.03, low, high, 8)
    assert (cell.reason is not None) == (decision is UNDECIDED)


def test_the_shown_interval_decides_nothing() -> None:
    assert judged(comparison("docker", 0.001, low_decisive=-0.1, high_decisive=0.1)).decision is UNDECIDED


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.3), (0.0, 0.01)])
@pytest.mark.parametrize(("rounds", "least"), [(4, 5), (2, 5), (0, 5), (7, 8)])
def test_fewer_rounds_than_a_verdict_needs_decide_nothing(low: float, high: float, rounds: int, least: int) -> None:
    few = judged(of(low, high, rounds=rounds), rounds_to_decide=least)
    assert few.decision is UNDECIDED
    assert few.cells[0].reason == f"a decision needs {least} rounds"
    assert judged(of(low, high, rounds=least), rounds_to_decide=least).decision is not UNDECIDED


@pytest.mark.parametrize(
    ("outcome", "low", "high", "decision"),
    [
        (Outcome.FAILED, 0.0, 0.01, UNDECIDED),
        (Outcome.FAILED, 0.2, 0.3, EXCEEDED),
        (Outcome.INVALID, 0.0, 0.01, UNDECIDED),
        (Outcome.INVALID, 0.2, 0.3, UNDECIDED),
        (Outcome.UNSUPPORTED, 0.2, 0.3, UNDECIDED),
    ],
)
def test_an_arm_of_which_anything_failed_is_never_within(
    outcome: Outcome, low: float, high: float, decision: GateDecision
) -> None:
    gate = judged(of(low, high), outcome=outcome)
    assert gate.decision is decision
    assert gate.cells[0].reason == ("no daemon" if decision is UNDECIDED else None)


def test_an_arm_of_which_a_query_is_left_out_is_never_within() -> None:
    assert judged(of(0.0, 0.01, left_out=("Q2: void",), reason="without Q2")).cells[0].reason == "without Q2"
    assert judged(of(0.0, 0.01, left_out=("Q2: void",))).decision is UNDECIDED
    assert judged(of(0.2, 0.3, left_out=("Q2: void",))).decision is EXCEEDED
    assert judged(of(0.0, 0.01, left_out=("Q9: another plan",))).decision is WITHIN


@pytest.mark.parametrize("reason", [STOPPED, NOT_FINISHED])
def test_a_run_that_is_not_over_decides_nothing(reason: str) -> None:
    gate = judged(of(0.2, 0.3), stopped=reason)
    assert gate.decision is UNDECIDED and gate.reason and gate.cells[0].reason == gate.reason
    assert gate.cells[0].low == 0.2


def test_every_cell_counts() -> None:
    good, bad, open_one = of(0.0, 0.01), of(0.2, 0.3, "uml"), of(0.0, 0.1, "qemu")
    assert judged(good).decision is WITHIN
    assert judged(good, open_one).decision is UNDECIDED
    assert judged(good, open_one, bad).decision is EXCEEDED
    cold = judged(good, of(0.2, 0.3, levels=OTHER_LEVEL))
    assert cold.decision is EXCEEDED
    assert [cell.decision for cell in cold.cells] == [WITHIN, EXCEEDED]


def test_only_the_headline_is_gated() -> None:
    others = [
        of(0.2, 0.3, estimand="ratio_of_totals"),
        of(0.2, 0.3, estimand="query:Q1"),
        of(0.2, 0.3, metric="connect_time"),
        of(0.2, 0.3, COPY, is_aa=True),
    ]
    assert len(judged(of(0.0, 0.01), *others).cells) == 1
    assert judged(of(0.0, 0.01), *others).decision is WITHIN
    assert judged(of(0.0, 0.01, metric="response_p50"), main_metric="response_p50").decision is WITHIN


def test_without_a_sound_baseline_or_copy_no_arm_is_within() -> None:
    for broken in ("native", COPY):
        arms = [arm("native"), arm(COPY), arm("docker")]
        arms = [
            replace(each, outcome=Outcome.FAILED, reason="it died") if each.name == broken else each for each in arms
        ]
        gate = judge(result(tuple(arms), (of(0.0, 0.01),)), LIMIT)  # type: ignore[arg-type]
        assert gate.decision is UNDECIDED
        assert [(cell.arm, cell.decision) for cell in gate.cells] == [("docker", WITHIN), (broken, UNDECIDED)]
        assert gate.cells[1].reason == "it died" and gate.cells[1].levels == {}


def test_where_nothing_is_compared_nothing_is_decided() -> None:
    gate = judge(result((arm("native"),)), LIMIT)
    assert (gate.decision, gate.cells) == (UNDECIDED, ()) and gate.reason


def test_exit_codes() -> None:
    assert EXIT_CODES == {WITHIN: 0, EXCEEDED: 1, UNDECIDED: 2}


# --- its words -------------------------------------------------------------------------------------------------------


def sentence(*comparisons: object, limit: float = LIMIT, **changes: object) -> str:
    made = result((arm("native"), *(arm(c.arm) for c in comparisons)), comparisons, **changes)  # type: ignore[attr-defined, arg-type]
    return said(words.sentence(replace(made, gate=judge(made, limit))))


def test_the_sentence_is_english() -> None:
    bad = [of(0.06, 0.1, name) for name in ("docker", "uml", "qemu")]
    assert sentence(of(0.0, 0.01)) == "within: every arm takes at most 5 % longer"
    assert sentence(bad[0]) == "exceeded: docker takes more than 5 % longer; docker: +3.0 % (6.0 … 10.0), 8 rounds"
    assert sentence(*bad[:2]).startswith("exceeded: docker and uml take more than 5 % longer; docker: ")
    assert sentence(*bad).startswith("exceeded: docker, uml and qemu take more than 5 % longer; ")
    assert sentence(of(0.0, 0.1), limit=0.025) == (
        "undecided: cannot tell whether every arm takes at most 2.5 % longer; docker: +3.0 % (0.0 … 10.0), 8 rounds; "
        "the limit lies inside the interval"
    )
    assert sentence(of(0.0, 0.01, rounds=1)).endswith(", 1 round; a decision needs 5 rounds")
    assert words.sentence(result((arm("native"),))) == ""


def test_the_sentence_names_levels_where_they_vary() -> None:
    found = sentence(of(0.0, 0.01), of(0.2, 0.3, levels=OTHER_LEVEL))
    assert found.startswith("exceeded: docker takes more than 5 % longer; docker (cold): ")


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("time_per_transaction", "within: every arm does at most 4.76 % less"),
        ("response_p50", "within: every arm takes at most 5 % longer to answer (median)"),
        ("event_time", "within: every arm takes at most 5 % longer for an event"),
    ],
)
def test_the_sentence_speaks_of_what_is_measured(metric: str, text: str) -> None:
    assert sentence(of(0.0, 0.01, metric=metric), main_metric=metric) == text


# --- in result.json --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Docker loses 20 %, warm and cold."""
    return make_run(
        tmp_path_factory.mktemp("gate") / "run", rounds=6, cold=True, docker_effect=0.2, q9_effect=0.2,
        start_sd=0.001, visit_sd=0.004,
    )  # fmt: skip


@pytest.fixture(scope="module")
def gated(folder: Path) -> Result:
    return results.analyze_run(read_run(folder), LIMIT)


def test_a_result_has_a_gate_where_there_is_a_limit(folder: Path, gated: Result) -> None:
    assert results.analyze(folder).gate is None
    assert gated.gate is not None and gated.gate.decision is EXCEEDED
    assert [(cell.arm, cell.levels["cache"]) for cell in gated.gate.cells] == [(DOCKER, "warm"), (DOCKER, "cold")]
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(gated.to_json())
    assert from_json(to_json(gated)) == gated


def test_copies_that_differ_widen_the_gates_interval_too(folder: Path, tmp_path: Path) -> None:
    """Docker takes 20 % longer, which 15 % is below; where two copies differ by 10 % that is no longer known."""
    assert results.analyze_run(read_run(folder), 0.15).gate.decision is EXCEEDED  # type: ignore[union-attr]
    apart = read_run(changed_run(folder, tmp_path / "run", slower({COPY: 1.1}, "persistent")))
    gate = results.analyze_run(apart, 0.15).gate
    assert gate is not None and gate.decision is UNDECIDED
    assert all(cell.low is not None and cell.low < 0.15 < (cell.high or 0) for cell in gate.cells)


def test_an_arm_whose_visits_are_all_void_is_undecided(folder: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        void = isinstance(record, Visit) and record.arm == DOCKER
        return [revised(record, asleep_ok=False) if void else record]

    void = changed_run(folder, tmp_path / "run", change)
    for limit in (0.05, 0.9):
        found = results.analyze_run(read_run(void), limit)
        assert found.gate is not None and found.gate.decision is UNDECIDED
        assert [child.tag for case in written(found, void).iter("testcase") for child in case] == ["error", "error"]


def test_a_run_that_was_made_with_a_limit_is_gated_again(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", rounds=1))
    asked = replace(run.plan.experiment, max_overhead=0.07)
    plan = type(run.plan)(**{n: getattr(run.plan, n) for n in run.plan.__struct_fields__} | {"experiment": asked})
    again = replace(run, plan=plan)
    gate = results.analyze_run(again).gate
    assert gate is not None and gate.limit == 0.07
    other = results.analyze_run(again, 0.0).gate
    assert other is not None and other.limit == 0.0


@pytest.mark.parametrize(("limit", "code"), [("5%", 1), ("50%", 0), ("20%", 2)])
def test_analyze_decides_as_the_run_would(folder: Path, limit: str, code: int, tmp_path: Path) -> None:
    done = dbtoll_forked(
        "analyze", str(folder), "--max-overhead", limit, "--json", "--junit", str(tmp_path / "junit.xml")
    )
    assert done.returncode == code, done.stderr
    told = json.loads(done.stdout)["gate"]
    assert EXIT_CODES[GateDecision(told["decision"])] == code
    assert told == json.loads((folder / "result.json").read_text())["gate"]
    assert f"gate: {told['decision']}" in done.stderr
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert (int(suite.get("failures", "")) > 0) == (code == 1)


def test_analyze_without_a_limit_has_no_gate(folder: Path) -> None:
    done = dbtoll_forked("analyze", str(folder), "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["gate"] is None
    assert "gate" not in done.stderr


def test_a_limit_that_is_none_is_an_error_of_usage(folder: Path) -> None:
    done = dbtoll_forked("analyze", str(folder), "--max-overhead", "lots")
    assert done.returncode == 64 and "--max-overhead: 'lots' is not a percentage" in done.stderr


# --- JUnit XML -------------------------------------------------------------------------------------------------------

TIME = re.compile(r"\d+\.\d{3}")
TOKEN = re.compile(r"\S+( \S+)*")
COUNT = re.compile(r"\d+")
SUITE = {
    "name": TOKEN, "package": TOKEN, "id": COUNT, "hostname": TOKEN, "tests": COUNT, "failures": COUNT, "errors": COUNT,
    "skipped": COUNT, "time": TIME, "timestamp": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"),
}  # fmt: skip


def demand_junit(text: bytes) -> ElementTree.Element:
    """The suite, after all that the schemas of Windy Road (for Ant) and Jenkins (junit-10.xsd) ask for together."""

    def attributes(element: ElementTree.Element, wanted: dict[str, re.Pattern[str]]) -> None:
        assert element.keys() and set(element.keys()) == set(wanted), (element.tag, element.attrib)
        for name, pattern in wanted.items():
            assert pattern.fullmatch(element.attrib[name]), (element.tag, name, element.attrib[name])

    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites" and not root.attrib and [child.tag for child in root] == ["testsuite"]
    suite = root[0]
    attributes(suite, SUITE)
    tags = [child.tag for child in suite]
    cases = list(suite.iter("testcase"))
    assert tags == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
    for each in suite[0]:
        assert each.tag == "property"
        attributes(each, {"name": TOKEN, "value": re.compile(r".*", re.DOTALL)})
    for case in cases:
        attributes(case, {"name": TOKEN, "classname": TOKEN, "time": TIME})
        assert len(case) <= 1
        for child in case:
            assert child.tag in ("failure", "error", "skipped") and len(child) == 0
            kind = {} if child.tag == "skipped" else {"type": TOKEN}
            attributes(child, {"message": re.compile(r".+"), **kind})
    ends = [child.tag for case in cases for child in case]
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.attrib[name]) == ends.count(tag)
    assert int(suite.attrib["tests"]) == len(cases) > 0
    return suite


def written(gated: Result, folder: Path) -> ElementTree.Element:
    run = read_run(folder)
    return demand_junit(junit(gated, run, provenance.of(run)))


def test_junit_has_a_case_for_each_cell(gated: Result, folder: Path) -> None:
    suite = written(gated, folder)
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["docker (warm): run time", "docker (cold): run time"]
    assert {case.get("classname") for case in cases} == {"dbtoll.tpch.postgres"}
    for case in cases:
        failure = case.find("failure")
        assert failure is not None and failure.get("type") == "exceeded"
        assert re.match(r"more than 5 % longer: \+(19\.9|20\.0)", said(failure.get("message", "")))
        assert float(case.get("time", "")) > 1
    told = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert told["machine"] == "Simulated CPU, 2 processors" and told["engine_version"] == "15.14"
    assert told["run"] == "run" and told["decision"] == "exceeded" and told["limit"] == "0.05"
    out = said(suite.findtext("system-out") or "")
    assert "gate: exceeded: docker takes more than 5 % longer" in out and "geometric mean" in out
    assert "do not count: 2 (docker: the server died)" in (suite.findtext("system-err") or "")


def test_junit_of_what_passes_and_of_what_is_undecided(folder: Path) -> None:
    run = read_run(folder)
    (warm, cold) = written(results.analyze_run(run, 0.5), folder).findall("testcase")
    assert len(warm) == len(cold) == 0
    (warm, cold) = written(results.analyze_run(run, 0.2), folder).findall("testcase")
    assert [child.tag for child in (*warm, *cold)] == ["skipped", "skipped"]
    assert "the limit lies inside the interval" in warm[0].get("message", "")


def test_junit_of_an_arm_that_never_started_is_an_error(folder: Path, tmp_path: Path) -> None:
    def change(record: Record) -> list[Record]:
        if getattr(record, "arm", None) != DOCKER:
            return [record]
        return (
            [Start(round=record.round, arm=DOCKER, outcome="failed", reason="no daemon")]
            if isinstance(record, Start)
            else []
        )

    broken = changed_run(folder, tmp_path / "run", change)
    found = results.analyze_run(read_run(broken), LIMIT)
    assert found.gate is not None and found.gate.decision is UNDECIDED
    cases = written(found, broken).findall("testcase")
    assert [child.tag for case in cases for child in case] == ["error", "error"]
    assert "no daemon" in cases[0][0].get("message", "")


def test_junit_of_a_run_without_any_round_does_not_pass(tmp_path: Path) -> None:
    empty = make_run(tmp_path / "run", rounds=0)
    found = results.analyze_run(read_run(empty), LIMIT)
    suite = written(found, empty)
    assert int(suite.get("errors", "")) == int(suite.get("tests", "")) > 0
    (case,) = written(replace(found, gate=judge(result((arm("native"),)), LIMIT)), empty).findall("testcase")
    assert case[0].tag == "error"


def test_junit_of_transactions(tmp_path: Path) -> None:
    windows = make_windows(tmp_path / "run", docker_effect=0.5)
    (case,) = written(results.analyze_run(read_run(windows), 0.25), windows).findall("testcase")
    assert case.get("name") == "docker: throughput"
    assert said(case[0].get("message", "")).startswith("more than 20 % less: -32.5 %")


EVIL = "]]><x a='1'>&\"\x00\x1b[2J\ud800\ufffe | `rm` *b* _c_ [l](http://x) <script>"


def test_what_comes_from_outside_stays_text(gated: Result, folder: Path) -> None:
    def named(name: str) -> str:
        return EVIL if name == DOCKER else name

    assert gated.gate is not None
    evil = replace(
        gated,
        question=EVIL,
        warnings=(RunWarning(WarningKind.FAR_OUT_STARTS, EVIL, EVIL),),
        arms=tuple(replace(each, name=named(each.name), reason=EVIL) for each in gated.arms),
        comparisons=tuple(replace(c, arm=named(c.arm), reason=EVIL) for c in gated.comparisons),
        times=tuple(replace(t, arm=named(t.arm)) for t in gated.times),
        gate=replace(gated.gate, cells=tuple(replace(c, arm=named(c.arm), reason=EVIL) for c in gated.gate.cells)),
    )
    suite = written(evil, folder)
    shown = "]]><x a='1'>&\"��[2J��"
    assert suite.findall("testcase")[0].get("name", "").startswith(shown)
    assert "<x" not in {element.tag for element in suite.iter()}
    text = markdown(evil, provenance.of(read_run(folder)))
    tags = re.findall(r"<[^>]*>", text)
    assert tags == ["<details>", "<summary>", "</summary>", "</details>"]
    assert not re.search(r"(?<!\\)[`*\[](?!\*)", re.sub(r"\*\*Gate .*\*\*", "", text))
    assert not set(text) & {"\x00", "\x1b", "\ud800", "\ufffe"}
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


# --- Markdown --------------------------------------------------------------------------------------------------------


def test_the_summary_has_headlines_absolute_times_and_the_gate(gated: Result, folder: Path) -> None:
    text = said(markdown(gated, provenance.of(read_run(folder))))
    assert text.startswith(
        "## How much does PostgreSQL lose on TPC-H in Docker?\n\n**Gate exceeded: docker takes more than 5 %"
    )
    assert re.search(r"^- Docker \(warm\) clearly loses: takes (19\.\d|20)", text, re.MULTILINE)
    head, _, *rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [cell.strip("| ") for cell in head] == [
        "arm",
        "levels",
        "against the baseline",
        "verdict",
        "absolute",
        "gate",
    ]
    assert [row[0].strip("| ") for row in rows] == [NATIVE, COPY, DOCKER] * 2
    seconds = [float(row[4].split()[0]) for row in rows]
    by_hand = sum(t.median_ns for t in gated.times if t.arm == DOCKER and t.levels["cache"] == "warm")  # type: ignore[misc]
    assert seconds[2] == pytest.approx(by_hand / 1e9, abs=0.006)
    assert seconds[2] / seconds[0] == pytest.approx(1.2, abs=0.02)
    assert rows[2][5].startswith("exceeded (") and rows[0][3] == "baseline"
    assert "<details><summary>Read with care: 2 remarks</summary>\n\n- " in text
    assert "TPC-H on PostgreSQL 15.14; Simulated CPU, 2 processors; Linux 6.12.0" in text
    assert len(text.encode()) < 5000


def test_the_summary_of_transactions_has_throughput_and_needs_no_gate(tmp_path: Path) -> None:
    windows = make_windows(tmp_path / "run", docker_effect=0.5)
    text = said(markdown(results.analyze(windows), provenance.of(read_run(windows))))
    assert text.count(" tpmC |") == 3 and "Gate" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"), ("cpu_quota", "cpu_quota"), ("_x_", r"\_x\_"), ("*x*", r"\*x\*"), ("<b>&", "&lt;b&gt;&amp;"),
        ("a\nb", "a b"), (r"\ `c`", r"\\ \`c\`"), ("[a](b)", r"\[a\](b)"),
    ],
)  # fmt: skip
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert markdown_text(text) == shown


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_are_replaced_whole_and_never_through_a_link(folder: Path, tmp_path: Path) -> None:
    asked = Summaries(tmp_path / "j.xml", tmp_path / "s.md")
    (tmp_path / "j.xml").write_text("before" * 100_000)
    inspect.analyze(folder, as_json=True, max_overhead=LIMIT, summaries=asked)
    demand_junit((tmp_path / "j.xml").read_bytes())
    assert (tmp_path / "s.md").read_text(encoding="utf-8").startswith("## ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j.xml", "s.md"]
    (tmp_path / "link").symlink_to(tmp_path / "s.md")
    with pytest.raises(UsageError, match="--markdown"):
        inspect.analyze(folder, as_json=True, max_overhead=LIMIT, summaries=Summaries(None, tmp_path / "link"))


def unwritable(tmp_path: Path) -> list[Path]:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return [tmp_path / "nowhere" / "f", tmp_path / "directory", tmp_path / "pipe", Path("/dev/null"), Path("/proc/f")]


def test_what_cannot_be_written_is_found_before_anything_is_measured(tmp_path: Path) -> None:
    paths = unwritable(tmp_path)
    for path in paths:
        for asked in (Summaries(path, None), Summaries(None, path)):
            with pytest.raises(UsageError, match=f"{path}: it cannot be written") as error:
                asked.require(LIMIT)
            assert error.value.hint
    for option in ("--junit", "--markdown"):
        given = [option, str(paths[0]), "--runs-dir", str(tmp_path / "runs")]
        done = dbtoll_forked("compare", "simulated", "--max-overhead", "5%", *given)
        assert done.returncode == 64, done.stderr
        assert f"{option} {paths[0]}: it cannot be written" in done.stderr and "hint:" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert Path("/dev/null").is_char_device() and (tmp_path / "pipe").is_fifo()


def test_trying_a_path_leaves_nothing(tmp_path: Path) -> None:
    Summaries(tmp_path / "j.xml", tmp_path / "s.md").require(LIMIT)
    assert not list(tmp_path.iterdir())


def test_junit_without_a_limit_is_refused_before_anything_is_measured(folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done = dbtoll_forked("compare", "simulated", "--junit", str(tmp_path / "j.xml"), "--runs-dir", str(runs))
    assert done.returncode == 64 and "add --max-overhead" in done.stderr and not runs.exists()
    done = dbtoll_forked("analyze", str(folder), "--junit", str(tmp_path / "j.xml"))
    assert done.returncode == 64 and not list(tmp_path.glob("*.xml"))


def test_conclude_gate_says_nothing_without_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude_gate(result((arm("native"),))) == 0
    assert capsys.readouterr() == ("", "")
