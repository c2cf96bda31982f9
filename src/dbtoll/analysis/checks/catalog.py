"""Every check with its name for people, what it looks at, when it fails and what follows (docs/method/checks.md shows this table).

``consequence`` and ``hint``: what it means for the figures where it failed, and what to do about it; sentences of the report.
``then``: *start void*: the arm's visits of that round do not enter an interval; *visit void*: single visits do not; *label*: they
do, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dbtoll.analysis.checks.caches import COLD_READ_SHARE, WARM_READ_BYTES
from dbtoll.analysis.checks.clocks import (
    BRACKET_BOUND_FRACTION,
    BRACKET_BOUND_NS,
    CLOCK_RATE_BOUND,
    START_BOUND_FRACTION,
    START_BOUND_NS,
)
from dbtoll.analysis.checks.noise import DRIVER_BOUND, FOREIGN_BOUND, PRESSURE_BOUNDS, STEAL_BOUND
from dbtoll.analysis.checks.same_settings import MEMORY_BOUND


@dataclass(frozen=True, slots=True)
class Description:
    """Of one check; see the head of this file."""

    title: str
    looks_at: str
    fails_when: str
    then: str
    consequence: str
    hint: str


CATALOG: Mapping[str, Description] = {
    "same_server": Description(
        "the same server and settings",
        "version, encoding, collation and all settings that differ from the compiled-in default, as the server reports them after "
        "each start",
        "one differs from the baseline's in the same round (the baseline's own: from its first start)",
        "start void; label, if the server derives that setting from its machine, or another engine or image was asked for; "
        "passes, if the arm asked for just that",
        "A difference may come from this too, which was not asked for by name.",
        "Give all arms the same settings, or say it with the figure.",
    ),
    "same_resources": Description(
        "the same processors, memory and kernel",
        "what the agent inside the arm sees and may use",
        f"one of these differs: number of processors, CPU quota, memory (by more than {MEMORY_BOUND:.0%}), storage, where `bind` "
        "and `image` count as the same, processor model or flags, page size, huge pages, swap, open files, clock source, kernel, "
        "mitigations",
        "start void, if the processors or the quota differ and the arm did not ask for it (as it does with at least as many "
        "machines as processors); else label, naming each",
        "A difference may come from this, not from the environment alone.",
        "Give all arms the same resources, or say it with the figure.",
    ),
    "commit_reaches_device": Description(
        "a commit reaches the device",
        "five commits of a file and five of the server (at each level of `durability`), traced",
        "fewer writes of the arm's processes than commits reached a block device, or fewer flushes reached one that holds writes "
        "back; with `storage=memory`, or a level of `durability` that waits for no device, all reached one",
        "start void, if the workload writes; else label",
        "Commits may be faster here than they are allowed to be.",
        "Look at the arm's disk and its cache mode.",
    ),
    "storage": Description(
        "the data where they were asked to be",
        "the mount that holds the data, as the arm sees it after each start",
        "it is not of the kind that the option `storage` asked for (where it shows), or with `bind` not the directory that was to "
        "be mounted",
        "start void",
        "These starts are of another arm than the one that was asked for, and are not in the figures.",
        "Look at the arm's option storage, and at what its environment does with it.",
    ),
    "answers_known": Description(
        "answers known",
        "the references of all statements",
        "a statement has none",
        "label",
        "Answers are compared with the baseline's alone.",
        "No action is needed where the statements are your own.",
    ),
    "consistent": Description(
        "the data and the mix of transactions are as specified",
        "of transactions, before the first (the baseline's copy) and after each round: the conditions of the specification "
        "(TPC-C: the twelve of clause 3.3.2), how rows are distributed, how often each transaction was executed (chi-square, one "
        "in a million)",
        "one does not hold",
        "the arm has no verdict",
        "What the arm does is not the workload, so it has no verdict.",
        "Look at the finding: it is a fault of the server, its settings or dbtoll.",
    ),
    "path": Description(
        "outside terminals come by a network",
        "of transactions with placement `outside`: from where the server sees an outside session come",
        "by no network",
        "start void",
        "What was measured is not a way over a network.",
        "Look at the arm's network option.",
    ),
    "equal_answers": Description(
        "equal answers",
        "every answer, after its last time stamp",
        "an execution answered wrongly",
        "its query has no estimate, the arm no verdict over all queries; it takes part in no more rounds",
        "The query has no estimate, and the arm no verdict over all queries.",
        "Make its answer definite (order by, no random()), or look for the fault in the arm.",
    ),
    "same_plans": Description(
        "same plans",
        "the plan's fingerprint of every statement and set of parameters",
        "it differs from the baseline's",
        "label, and `geomean_same_plans`",
        "Their difference comes with the plan, not from the environment alone.",
        "Read the figure of the queries with the same plans beside it.",
    ),
    "host_brackets": Description(
        "the host's clock and the arm's",
        "the arm's time of a visit, and the host's around it",
        f"minus the arm's usual difference they are more than {BRACKET_BOUND_NS / 1e6:g} ms and {BRACKET_BOUND_FRACTION:.0%} "
        "apart",
        "visit void",
        "These visits are not in the figures; the others are.",
        "No action is needed if they are few; else look at the arm's clock.",
    ),
    "started_together": Description(
        "the units began together",
        "of an arm of several units, when each began a visit: by their own clock where all have one, else between which moments of "
        "the host's clock",
        f"the first and the last may have begun more than {START_BOUND_NS / 1e6:g} ms and {START_BOUND_FRACTION:.0%} of the visit "
        "apart",
        "visit void",
        "These visits are not in the figures: some units may have worked without the others.",
        "No action is needed if they are few; else take longer windows, or fewer units.",
    ),
    "neighbour_acted": Description(
        "the neighbour did what it was asked for",
        "of a run with the factor `neighbour`: what the neighbour counted of itself from before a window's ramp-up until after the "
        "window; of one whose load is varied, its transactions",
        "it did nothing, or ended before the window did",
        "visit void",
        "These visits are not in the figures: nothing may have disturbed the others.",
        "Look at the finding, and whether the arm has the memory and the disk for what the neighbour does.",
    ),
    "clock_rate": Description(
        "rate of the arm's clock",
        "the slope of host's over arm's time in a round (of windows, which are of one length, the plain ratio; its error is "
        f"{BRACKET_BOUND_NS / 1e6:g} ms of their length); an arm on the host's kernel has the host's clock",
        f"it deviates from 1 by more than {CLOCK_RATE_BOUND:.1%} plus three standard errors",
        "start void",
        "The arm's clock cannot be believed in these rounds.",
        "Look at the arm's clock source.",
    ),
    "others_asleep": Description(
        "the other arms asleep",
        "CPU time of every other arm around a visit",
        "one has used some",
        "visit void",
        "These visits are not in the figures: another arm disturbed them.",
        "No action is needed if they are few; else look what that arm does when it is frozen.",
    ),
    "cold_reads_disk": Description(
        "cold reads disk",
        "bytes read during a cold visit",
        f"there are none, or fewer than {COLD_READ_SHARE:.0%} of the most that the arm read for that statement with these "
        f"parameters (less {WARM_READ_BYTES >> 10} KiB)",
        "visit void",
        "These visits were not cold, or not all of their data was, and they are not in the figures.",
        "Look whether a cache outside the arm holds its data.",
    ),
    "warm_stays_warm": Description(
        "warm stays warm",
        "bytes read during a warm visit",
        f"there are more than {WARM_READ_BYTES >> 10} KiB",
        "label",
        "These times hold some reading from the disk; they are counted.",
        "No action is needed if it is a few visits; else give the arms more memory.",
    ),
    "background_work": Description(
        "background work",
        "the server's counts of checkpoints, vacuums, analyzes",
        "one rises in a warm phase (what dbtoll itself requests before a window is taken off)",
        "label",
        "Some times hold work of the server that no query asked for; they are counted.",
        "No action is needed if all arms have it; else take a longer budget.",
    ),
    "driver_cpu_share": Description(
        "the driver's share of the time",
        "of statements: CPU time of the agent inside the arm over a phase, against the time of its visits",
        f"it is more than {DRIVER_BOUND:.0%}",
        "label",
        "So much of the time is the driver's, so a part of the difference may be its own.",
        "Take longer statements or a larger scale.",
    ),
    "steal": Description(
        "time stolen by a hypervisor",
        "the host's stolen CPU time",
        f"it is more than {STEAL_BOUND:.0%}",
        "label",
        "Times are longer and scatter more than on a machine of one's own.",
        "Repeat the run on a host that is not shared.",
    ),
    "pressure": Description(
        "waiting for processors, memory and disks",
        "how long some process of the host waited (PSI)",
        f"processors more than {PRESSURE_BOUNDS['cpu']:.0%} of a phase, memory {PRESSURE_BOUNDS['memory']:.0%}, disks "
        f"{PRESSURE_BOUNDS['io']:.0%} (not in cold phases)",
        "label",
        "Waiting makes times longer, for all arms alike if it lasts.",
        "Stop other programs, or give the arms fewer processors than the machine has.",
    ),
    "plausible_costs": Description(
        "costs that can be believed",
        "of probes: the cost of an event",
        "it is outside what is plausible on any machine",
        "visit void",
        "These visits are not in the figures.",
        "No action is needed if they are few; else repeat the run on a quieter machine.",
    ),
    "other_host_load": Description(
        "other load of the host",
        "CPU time of the host that went to no arm and not to dbtoll itself",
        f"it is more than {FOREIGN_BOUND:.0%}",
        "label",
        "It makes intervals longer, and may have hit one arm more than another.",
        "Stop other programs, or take a larger budget.",
    ),
}
