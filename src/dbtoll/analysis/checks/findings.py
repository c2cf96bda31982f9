"""Honesty gates that the history itself can answer (DESIGN §4); the runner's own are recorded there and joined here.

Each check looks at one arm; None where it does not apply. What it voids does not enter an interval: single visits, or
an arm's whole start in a round; what it does not void, it labels. A check without the data it needs passes as None and
says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from dbtoll.analysis.checks import same_settings
from dbtoll.analysis.checks.same_settings import Difference
from dbtoll.analysis.visits import metrics
from dbtoll.model import Arm, Gate, Json
from dbtoll.store.reader import Run
from dbtoll.store.schema import Counters, Fingerprint, GateRecord, Start, Visit

BRACKET_BOUND_NS = 10_000_000
"""BIAS: how far the host's time of a visit may lie from the arm's own plus that arm's usual overhead (or 2 % of the
visit, if more). A relay that is scheduled late costs a few ms and does no harm; a clock that stops or steps is found.
"""
BRACKET_BOUND_FRACTION = 0.02
CLOCK_RATE_BOUND = 0.005
"""How far the rate of the arm's clock may be from the host's."""
WARM_READ_BYTES = 128 << 10
"""One read-ahead window: what another process's opening of a file may read from the same device."""
STEAL_BOUND = 0.01
FOREIGN_BOUND = 0.10
"""Share of the machine's CPU time that went to no arm: the kernel and the driver are in it, so a few per cent are
normal."""
DRIVER_BOUND = 0.10
"""Share of the visits' time in which the driver itself had a processor of the arm."""
DRIVER_TIME_NS = 500_000_000
"""The kernel tells a process's CPU time in steps of 10 ms: less time than this is not judged."""
PRESSURE_BOUNDS = {"cpu": 0.25, "memory": 0.01, "io": 0.05}
"""Share of a phase in which some process of the host waited for that resource (Documentation/accounting/psi.rst). An arm's
own processes wait for each other where they share a processor: that is in ``cpu``, so its bound is wide. Seen on a host of
two processors with nothing else on it: cpu 6 to 13 % (native, Docker) and 19 % (QEMU, emulated), memory and io 0; with
somebody's builds beside the run cpu 40 to 98 %."""

R = TypeVar("R", Visit, Fingerprint, Counters, GateRecord, Start)

VisitKey = tuple[int, int]
"""Round and order: names a visit of the last attempts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A gate of an arm, the rounds in which it failed, and what that voids."""

    arm: str
    gate: Gate
    rounds_failed: tuple[int, ...] = ()
    void_rounds: frozenset[int] = frozenset()
    void_visits: frozenset[VisitKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the checks look at: the counted records of one arm, and what the baseline's are.

    ``starts``: the facts of those that came up, by round; ``expected``: the facts that they must be like, of the baseline.
    ``asked``: options that the specification gave the arm's environments: what differs because of them was wanted.
    ``probes``: what is believed of each probe that was run. ``asks_statements``: whether the workload does, and not transactions
    or probes alone.
    """

    arm: str
    visits: tuple[Visit, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    counters: tuple[Counters, ...] = ()
    gates: tuple[GateRecord, ...] = ()
    baseline_plans: Mapping[tuple[int, int, str], str] = field(default_factory=dict)
    starts: Mapping[int, Json] = field(default_factory=dict)
    expected: Mapping[int, Json] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    probes: Mapping[str, Json] = field(default_factory=dict)
    asks_statements: bool = True


def find_all(run: Run, visits: Sequence[Visit]) -> list[Finding]:
    """Every gate of every arm that has a start, in the experiment's order. ``visits``: of the rounds that count."""
    baseline = run.plan.experiment.baseline
    by_arm = _by_arm(visits)
    fingerprints, counters = _by_arm(run.records(Fingerprint)), _by_arm(run.records(Counters))
    gates = _by_arm([*(record for record in run.outside if isinstance(record, GateRecord)), *run.records(GateRecord)])
    baseline_plans = {(f.round, f.parameter_set, f.query): f.fingerprint for f in fingerprints.get(baseline, ())}
    facts = {arm: _facts(starts) for arm, starts in _by_arm(run.records(Start)).items()}
    known = facts.get(baseline, {})
    probes = run.facts.get("probes", {})
    in_windows = bool(run.plan.transactions) or any(visit.window is not None for visit in visits)
    asks_statements = not in_windows and not probes.keys() >= set(run.plan.queries)
    findings = []
    for arm in run.plan.experiment.arms:
        own = facts.get(arm.name, {})
        evidence = Evidence(
            arm.name,
            tuple(by_arm.get(arm.name, ())),
            tuple(fingerprints.get(arm.name, ())),
            tuple(counters.get(arm.name, ())),
            tuple(gates.get(arm.name, ())),
            baseline_plans,
            own,
            _expected(known, own, alone=arm.name == baseline),
            _asked(arm),
            probes,
            asks_statements,
        )
        findings += recorded(evidence)
        if evidence.visits:
            checks = CHECKS if arm.clock == "time" else [check for check in CHECKS if check not in OF_CLOCKS]
            findings += [finding for check in checks if (finding := check(evidence)) is not None]
    return findings


def _facts(starts: Iterable[Start]) -> dict[int, Json]:
    return {start.round: start.facts for start in starts if start.outcome == "ok" and start.facts}


def _expected(baseline: Mapping[int, Json], own: Mapping[int, Json], *, alone: bool) -> dict[int, Json]:
    """For each start of an arm the baseline's of the same round, or its first; the baseline is held to its own first."""
    if not baseline:
        return {}
    first = baseline[min(baseline)]
    return {number: first if alone else baseline.get(number, first) for number in own}


def _asked(arm: Arm) -> frozenset[str]:
    return frozenset(name for step in arm.stack for name in step.options)


def recorded(evidence: Evidence) -> list[Finding]:
    """The runner's own gates, each over all rounds: passed if it always did."""
    by_gate: dict[str, list[GateRecord]] = defaultdict(list)
    for record in evidence.gates:
        by_gate[record.gate].append(record)
    findings = []
    for name, records in by_gate.items():
        failed = [record for record in records if record.passed is False]
        unknown = [record for record in records if record.passed is None]
        shown = (failed or unknown or records)[0]
        rounds = tuple(sorted({record.round for record in failed}))
        void = frozenset(record.round for record in failed if record.voids)
        gate = Gate(name, shown.passed, shown.finding, shown.voids)
        findings.append(Finding(evidence.arm, gate, rounds, void))
    return findings


def same_server(evidence: Evidence) -> Finding:
    """Void: a start whose server has another version or other settings than the baseline's.

    What a server made of what it found in its machine (`same_settings.AUTO_TUNED`) is a label.
    """
    different: dict[int, list[Difference]] = {}
    compared = 0
    for number, expected in evidence.expected.items():
        if same_settings.tells_of_server(evidence.starts[number]) or same_settings.tells_of_server(expected):
            compared += 1
            if found := same_settings.of_servers(evidence.starts[number], expected):
                different[number] = found
    if not compared:
        return Finding(evidence.arm, Gate("same_server", None, "the server says nothing of its version and settings"))
    if not different:
        settings = len(evidence.starts[min(evidence.expected)].get("settings") or {})
        finding = f"the version and all {settings} settings that are not the built-in ones are the baseline's"
        return Finding(evidence.arm, Gate("same_server", True, finding))
    void = frozenset(number for number, found in different.items() if any(each.voids for each in found))
    finding = "other than in the baseline: " + same_settings.told(different)
    return Finding(evidence.arm, Gate("same_server", False, finding, voids=bool(void)), tuple(different), void)


def same_resources(evidence: Evidence) -> Finding:
    """Void: a start with more or fewer processors than the baseline's, unless the specification asked for them.

    Whatever else differs is a label, as are wanted differences: each is named.
    """
    different: dict[int, list[Difference]] = {}
    for number, expected in evidence.expected.items():
        if found := same_settings.of_resources(evidence.starts[number], expected, evidence.asked):
            different[number] = found
    if not any("cpus_allowed" in facts for facts in evidence.expected.values()):
        return Finding(
            evidence.arm, Gate("same_resources", None, "what the machines see was not recorded", voids=False)
        )
    if not different:
        gate = Gate("same_resources", True, "processors, memory and kernel are the baseline's", voids=False)
        return Finding(evidence.arm, gate)
    void = frozenset(number for number, found in different.items() if any(each.voids for each in found))
    finding = "other than in the baseline: " + same_settings.told(different)
    return Finding(evidence.arm, Gate("same_resources", False, finding, voids=bool(void)), tuple(different), void)


def equal_answers(evidence: Evidence) -> Finding | None:
    """Wrong answers take their query out of every comparison, and the arm gets no verdict over all queries.

    Transactions have no reference answers: the state that they leave behind is checked (gate ``consistent``).
    """
    if not evidence.asks_statements:
        return None
    visits = _of_statements(evidence)
    wrong: dict[str, int] = defaultdict(int)
    rounds = set()
    executions = 0
    for visit in visits:
        executions += len(visit.executions)
        if bad := sum(timing.outcome == "wrong_answer" for timing in visit.executions):
            wrong[visit.query] += bad
            rounds.add(visit.round)
    if not executions:
        return Finding(evidence.arm, Gate("equal_answers", None, "nothing was executed"))
    if not wrong:
        gate = Gate("equal_answers", True, f"none of {executions} executions was found to answer wrongly")
        return Finding(evidence.arm, gate)
    text = ", ".join(f"{query} ({count})" for query, count in wrong.items())
    problem = next((visit.problem for visit in visits if visit.query in wrong and visit.problem), None)
    finding = f"wrong answers: {text} of {executions} executions" + (f"; first: {problem}" if problem else "")
    return Finding(evidence.arm, Gate("equal_answers", False, finding), tuple(sorted(rounds)))


def same_plans(evidence: Evidence) -> Finding | None:
    """A label: an overhead that comes with a changed plan is not the environment's own."""
    if not evidence.asks_statements:
        return None
    compared = [f for f in evidence.fingerprints if (f.round, f.parameter_set, f.query) in evidence.baseline_plans]
    if not compared:
        return Finding(evidence.arm, Gate("same_plans", None, "no plan fingerprints were taken", voids=False))
    changed = [f for f in compared if f.fingerprint != evidence.baseline_plans[f.round, f.parameter_set, f.query]]
    queries = sorted({f.query for f in changed}, key=_natural)
    finding = f"other plans than the baseline: {', '.join(queries)}" if queries else f"{len(compared)} plans are equal"
    return _label(evidence.arm, "same_plans", {f.round for f in changed}, finding)


def warm_stays_warm(evidence: Evidence) -> Finding | None:
    """A label: a warm statement that read the disk was not quite warm."""
    if not evidence.asks_statements:
        return None
    warm = [v for v in _of_statements(evidence) if v.levels.get("temperature", "warm") == "warm" and not v.first_touch]
    if not warm:
        return None
    known = [v for v in warm if v.disk_read_bytes is not None]
    if not known:
        return Finding(evidence.arm, Gate("warm_stays_warm", None, "disk reads were not counted", voids=False))
    reading = [v for v in known if (v.disk_read_bytes or 0) > WARM_READ_BYTES]
    finding = f"{len(reading) or 'none'} of {len(known)} warm visits read the disk"
    if reading:
        finding += f", most by {max(reading, key=lambda v: v.disk_read_bytes or 0).query}"
    return _label(evidence.arm, "warm_stays_warm", {v.round for v in reading}, finding)


def cold_reads_disk(evidence: Evidence) -> Finding | None:
    """A cold visit that read nothing was not cold: void."""
    cold = [v for v in evidence.visits if v.levels.get("temperature") == "cold" and not v.first_touch]
    if not cold:
        return None
    known = [v for v in cold if v.disk_read_bytes is not None]
    if not known:
        return Finding(evidence.arm, Gate("cold_reads_disk", None, "disk reads were not counted"))
    dry = [v for v in known if v.disk_read_bytes == 0]
    finding = f"{len(known) - len(dry)} of {len(known)} cold visits read the disk"
    return _void_visits(evidence.arm, "cold_reads_disk", dry, finding)


def asleep(evidence: Evidence) -> Finding:
    """Void: during such a visit another arm was awake."""
    known = [v for v in evidence.visits if v.asleep_ok is not None]
    if not known:
        return Finding(evidence.arm, Gate("others_asleep", None, "it was not watched whether the others slept"))
    disturbed = [v for v in known if v.asleep_ok is False]
    finding = f"another arm used CPU time in {len(disturbed) or 'none'} of {len(known)} visits"
    return _void_visits(evidence.arm, "others_asleep", disturbed, finding)


def brackets(evidence: Evidence) -> Finding:
    """Void: the arm's time of a visit and the host's around it must agree but for the usual overhead."""
    times = _bracketed(evidence.visits)
    if not times:
        return Finding(evidence.arm, Gate("host_brackets", None, "no visit was bracketed by the host"))
    usual = median(outside - inside for _, inside, outside in times)
    apart = [abs(outside - inside - usual) for _, inside, outside in times]
    void = [
        visit
        for (visit, _, outside), far in zip(times, apart, strict=True)
        if far > max(BRACKET_BOUND_NS, BRACKET_BOUND_FRACTION * outside)
    ]
    finding = (
        f"the host's time and the arm's own disagree in {len(void) or 'none'} of {len(times)} visits; as a rule they lie "
        f"{usual / 1e6:.2f} ms apart, at most {max(apart) / 1e6:.2f} ms more or less"
    )
    return _void_visits(evidence.arm, "host_brackets", void, finding)


def clock_rate(evidence: Evidence) -> Finding:
    """Void: a guest's clock that runs faster or slower than the host's distorts every time in that round.

    The slope of host's time over arm's time, visit by visit: the overhead, which is the same for short and long visits,
    is in the intercept. Only where its standard error is small enough to tell. Windows are all of one length, so theirs is the
    plain ratio, and the overhead is its error.
    """
    void = brackets(evidence).void_visits
    by_round: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for visit, inside, outside in _bracketed(evidence.visits):
        if (visit.round, visit.order) not in void:
            by_round[visit.round].append((inside, outside))
    rates: dict[int, float] = {}
    failed = []
    for number, pairs in by_round.items():
        slope, error = _ratio(pairs) if _in_windows(evidence) else _slope(pairs)
        if error < CLOCK_RATE_BOUND:
            rates[number] = 1 / slope
            if abs(slope - 1) - 3 * error > CLOCK_RATE_BOUND:
                failed.append(number)
    if not rates:
        return Finding(evidence.arm, Gate("clock_rate", None, "too little awake time to judge the clock's rate"))
    farthest = max(rates.values(), key=lambda rate: abs(rate - 1))
    gate = Gate("clock_rate", not failed, f"the arm's clock runs at {farthest:.4f} of the host's in its worst round")
    return Finding(evidence.arm, gate, tuple(failed), frozenset(failed))


def _ratio(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The second over the first, and how far the usual overhead can have moved it."""
    inside, outside = (sum(pair[i] for pair in pairs) for i in (0, 1))
    return outside / inside, len(pairs) * BRACKET_BOUND_NS / inside


def _slope(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Least-squares slope of the second over the first, and its standard error; (1, inf) where it has none."""
    count = len(pairs)
    if count < 3:
        return 1.0, math.inf
    mean_x, mean_y = (sum(pair[i] for pair in pairs) / count for i in (0, 1))
    squares = sum((x - mean_x) ** 2 for x, _ in pairs)
    if squares == 0:
        return 1.0, math.inf
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / squares
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in pairs)
    return slope, math.sqrt(residual / (count - 2) / squares)


def _bracketed(visits: Sequence[Visit]) -> list[tuple[Visit, int, int]]:
    """Visit, its length by the arm's clock and by the host's, where the host took it."""
    return [
        (visit, visit.end_ns - visit.start_ns, visit.host_end_ns - visit.host_start_ns)
        for visit in visits
        if visit.host_start_ns is not None and visit.host_end_ns is not None
    ]


def steal(evidence: Evidence) -> Finding:
    """A label: time that a hypervisor below this machine took away."""

    def share(begin: Counters, end: Counters) -> float | None:
        if begin.machine is None or end.machine is None:
            return None
        total, stolen = _cpu_total(begin.machine, end.machine), _rise(begin.machine, end.machine, "steal_ns")
        return stolen / total if total and stolen is not None else None

    finding = "at most {:.1%} of CPU time was stolen"
    return _worst_share(evidence, "steal", share, STEAL_BOUND, finding, "steal was not counted")


def background_work(evidence: Evidence) -> Finding:
    """A label: what the server did by itself (checkpoints, vacuums) while it was measured.

    Warm phases only: in a cold one the server is restarted before each statement, outside measured time, and each stop
    is a checkpoint. Temporary files are the statements' own work.
    """
    done: dict[str, float] = defaultdict(float)
    rounds = set()
    known = False
    for begin, end in _phases(evidence.counters):
        if begin.background is None or end.background is None or begin.levels.get("temperature") == "cold":
            continue
        known = True
        for key in end.background:
            if _in_windows(evidence) and not key.endswith("_count"):
                continue  # transactions make pages dirty, and who writes them is a part of the work
            if (rise := _rise(begin.background, end.background, key)) and not key.startswith("temporary_"):
                done[key] += rise
                rounds.add(begin.round)
    if not known:
        return Finding(evidence.arm, Gate("background_work", None, "background work was not counted", voids=False))
    finding = ", ".join(f"{key}: {count:g}" for key, count in done.items()) or "none in measured time"
    return _label(evidence.arm, "background_work", rounds, finding)


def foreign_load(evidence: Evidence) -> Finding:
    """A label: CPU time of the machine that went to no arm. The kernel and the driver are in it."""

    def share(begin: Counters, end: Counters) -> float | None:
        total = _cpu_total(begin.machine or {}, end.machine or {})
        if not total or begin.outside_cpu_ns is None or end.outside_cpu_ns is None:
            return None
        return (end.outside_cpu_ns - begin.outside_cpu_ns) / total

    finding = "at most {:.1%} of the machine's CPU time went to no arm"
    unknown = "CPU time outside the arms was not counted"
    return _worst_share(evidence, "foreign_load", share, FOREIGN_BOUND, finding, unknown)


def driver_cpu_share(evidence: Evidence) -> Finding | None:
    """A label: how much of the arm's time the driver took, which runs beside the server on the same processors.

    The driver of transactions works all the time: what that can have done is bounded for every arm (`windows`).

    BIAS: what the driver does between its time stamps and visits (comparing answers, counters) is in its CPU time and not
    in any figure, so the share is an upper bound of what it can have added to them.
    """

    if not evidence.asks_statements:
        return None

    def share(begin: Counters, end: Counters) -> float | None:
        visited_ns = sum(
            visit.end_ns - visit.start_ns
            for visit in _of_statements(evidence)
            if visit.round == begin.round and visit.levels == begin.levels and not visit.first_touch
        )
        if begin.driver_cpu_ns is None or end.driver_cpu_ns is None or visited_ns < DRIVER_TIME_NS:
            return None
        return (end.driver_cpu_ns - begin.driver_cpu_ns) / visited_ns

    finding = "the driver had at most {:.1%} of the visits' time"
    unknown = "the driver's CPU time was not counted, or the visits were too short to judge it"
    return _worst_share(evidence, "driver_cpu_share", share, DRIVER_BOUND, finding, unknown)


def pressure(evidence: Evidence) -> Finding:
    """A label: how long processes of the host waited for a processor, for memory or for a disk in the phases.

    Waiting for a disk is what a cold phase is about, so it is judged in warm ones only.
    """
    worst: dict[str, float] = {}
    failed = set()
    for begin, end in _phases(evidence.counters):
        if begin.host_at_ns is None or end.host_at_ns is None or end.host_at_ns <= begin.host_at_ns:
            continue
        for resource, bound in PRESSURE_BOUNDS.items():
            before, after = ((each.machine or {}).get("pressure") or {} for each in (begin, end))
            waited = _rise(before, after, f"{resource}_some_ns")
            if waited is None or (resource == "io" and begin.levels.get("temperature") == "cold"):
                continue
            share = waited / (end.host_at_ns - begin.host_at_ns)
            worst[resource] = max(worst.get(resource, 0.0), share)
            if share > bound:
                failed.add(begin.round)
    if not worst:
        why = "the host's kernel tells no pressure (PSI), or it was not recorded"
        return Finding(evidence.arm, Gate("pressure", None, why, voids=False))
    told = ", ".join(f"{resource} {share:.1%}" for resource, share in worst.items())
    return _label(evidence.arm, "pressure", failed, f"some process of the host waited at most: {told} of a phase")


def plausible_costs(evidence: Evidence) -> Finding | None:
    """Void: a probe's visit whose cost of an event is beyond what is believed of any machine."""
    if not evidence.probes:
        return None
    void = []
    known = 0
    for visit in evidence.visits:
        cost_ns, about = metrics.event_time_ns(visit), evidence.probes.get(visit.query)
        if cost_ns is None or about is None:
            continue
        known += 1
        if not about["least_ns"] <= cost_ns <= about["most_ns"]:
            void.append(visit)
    names = ", ".join(sorted({visit.query for visit in void}))
    finding = f"not believed: {names}" if void else f"the costs of all {known} visits lie where they can"
    return _void_visits(evidence.arm, "plausible_costs", void, finding)


CHECKS = (
    same_server, same_resources, equal_answers, same_plans, warm_stays_warm, cold_reads_disk, asleep, brackets,
    clock_rate, driver_cpu_share, steal, pressure, foreign_load, background_work, plausible_costs,
)  # fmt: skip
OF_CLOCKS = (brackets, clock_rate)
"""Without a meaning for an arm whose clock counts instructions."""


def _in_windows(evidence: Evidence) -> bool:
    """Whether the visits are measurement windows of transactions."""
    return any(visit.window is not None for visit in evidence.visits)


def _of_statements(evidence: Evidence) -> list[Visit]:
    """The visits that time statements: neither windows of transactions nor probes nor passes that only count."""
    return [v for v in evidence.visits if v.window is None and v.batches is None and v.counts is None]


def _worst_share(
    evidence: Evidence,
    name: str,
    share: Callable[[Counters, Counters], float | None],
    bound: float,
    finding: str,
    unknown: str,
) -> Finding:
    """A label where the ``share`` of a phase exceeded ``bound``. ``finding``: with a place for the worst one."""
    shares: dict[int, float] = {}
    for begin, end in _phases(evidence.counters):
        if (known := share(begin, end)) is not None:
            shares[begin.round] = max(shares.get(begin.round, 0.0), known)
    if not shares:
        return Finding(evidence.arm, Gate(name, None, unknown, voids=False))
    failed = {number for number, worst in shares.items() if worst > bound}
    return _label(evidence.arm, name, failed, finding.format(max(shares.values())))


def _label(arm: str, name: str, failed: set[int], finding: str) -> Finding:
    return Finding(arm, Gate(name, not failed, finding, voids=False), tuple(sorted(failed)))


def _void_visits(arm: str, name: str, void: Sequence[Visit], finding: str) -> Finding:
    rounds = tuple(sorted({visit.round for visit in void}))
    keys = frozenset((visit.round, visit.order) for visit in void)
    return Finding(arm, Gate(name, not void, finding), rounds, void_visits=keys)


def _phases(counters: Iterable[Counters]) -> Iterable[tuple[Counters, Counters]]:
    begun: dict[tuple[int, str], Counters] = {}
    for record in counters:
        key = (record.round, str(record.levels))
        if record.when == "begin":
            begun[key] = record
        elif key in begun:
            yield begun.pop(key), record


def _rise(begin: Mapping[str, object], end: Mapping[str, object], key: str) -> float | None:
    first, last = begin.get(key), end.get(key)
    if isinstance(first, int | float) and isinstance(last, int | float):
        return float(last - first)
    return None


_CPU_TIMES = ("user_ns", "nice_ns", "system_ns", "idle_ns", "iowait_ns", "irq_ns", "softirq_ns", "steal_ns")


def _cpu_total(begin: Mapping[str, object], end: Mapping[str, object]) -> float:
    return sum(_rise(begin, end, name) or 0.0 for name in _CPU_TIMES)


def _by_arm(records: Iterable[R]) -> dict[str, list[R]]:
    result: dict[str, list[R]] = defaultdict(list)
    for record in records:
        result[record.arm].append(record)
    return result


def _natural(query: str) -> tuple[str, int]:
    letters = query.rstrip("0123456789")
    return letters, int(query[len(letters) :] or 0)
