"""The command line: thin. Parses, calls, prints; every error is one sentence with its hint, never a stack trace."""

from __future__ import annotations

import codecs
import difflib
import errno
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from dbtoll import __version__, completion, namespaces, registry
from dbtoll.errors import (
    EXIT_CODES,
    INTERRUPTED,
    NO_OUTPUT,
    NO_PERMISSION,
    NO_VERDICT_POSSIBLE,
    NOBODY_READS,
    DbtollError,
    UsageError,
)
from dbtoll.help import INSTRUMENT, MACHINE, MEASURE, RESULTS, Command, Group, epilog, exit_codes
from dbtoll.images.cache import Cache, scratch

app = typer.Typer(
    cls=Group,
    help="How much does a database lose in a container, a virtual machine or a sandbox; why; and what to change?",
    epilog="""\b
Examples:
  dbtoll quick                            the first measurement, in minutes
  dbtoll compare docker --budget 10m      Docker against native
  dbtoll report latest                    the newest run again
  dbtoll help compare                     what a command does, with examples
  dbtoll help exit-codes                  what the exit codes mean

An environment is written NAME:OPTION,OPTION=VALUE, nested with //, such as docker:runsc,network=host or qemu//docker.

Run folders lie in runs/ or where --runs-dir says. A run is meant by its folder, its name, the beginning of either, or by: latest.
""",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(panel: str, *examples: str, codes: tuple[int, ...] = ()) -> Callable[[Callable[..., None]], Any]:
    """Registers a command in a group of the help, with examples and the exit codes that say something of their own."""
    return app.command(cls=Command, rich_help_panel=panel, epilog=epilog(*examples, codes=(0, *codes)))


def _in_utf_8(as_json: bool) -> bool:
    """JSON for programs is UTF-8 (RFC 8259, 8.1), whatever the terminal can show."""
    if as_json and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return as_json


# --- options of all commands -----------------------------------------------------------------------------------------------

RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Where run folders lie.", envvar="DBTOLL_RUNS")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.", callback=_in_utf_8)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notices, only the result and errors.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree to whatever would be asked.")]

# --- options of some -------------------------------------------------------------------------------------------------------

RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run's folder or name, or: latest.", autocompletion=completion.runs),
]
Stacks = Annotated[
    list[str],
    typer.Argument(
        metavar="ENV...",
        help="Environments, such as docker docker:runsc,network=host; there is: <<environments>>.",
        autocompletion=completion.environments,
    ),
]
Exclusive = Annotated[
    bool, typer.Option("--exclusive", help="This machine is mine: host caches may be dropped, settings changed.")
]
MaxOverhead = Annotated[
    str | None,
    typer.Option("--max-overhead", help="Gate, e.g. 5%: exit 0 when every arm is within, 1 exceeded, 2 undecided."),
]
Junit = Annotated[Path | None, typer.Option("--junit", help="Write the gate's decisions as JUnit XML, too.")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Write a summary in Markdown, for a CI job, too.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A variable of the specification; `dbtoll plan` lists them."),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="VARIABLE=V1,V2,…",
        help="A variable and its values: tenants=1,2,8, or tenants=1:32, which doubles.",
    ),
]


def _only(over: list[str]) -> str:
    """UsageError where there are several."""
    if len(over) > 1:
        raise UsageError(
            f"--over {' --over '.join(over)}: a sweep goes over one variable",
            "a sweep for each, with --set for the others",
        )
    return over[0]


SweepLimit = Annotated[
    str | None,
    typer.Option(
        "--limit",
        help="p99=20ms or new_order.p99=20ms: look for the largest value at which every tenant of a design keeps it.",
    ),
]
SweepCosts = Annotated[
    Path | None, typer.Option("--costs", help="A table of costs (TOML): what is done for the money, too.")
]
SweepBudget = Annotated[
    str | None, typer.Option("--budget", help="Time to measure each value, instead of the specification's.")
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Of the run: a part of its folder's name, and what other commands find it by."),
]
Engine = Annotated[
    str,
    typer.Option(
        help="Database engine: <<engines>>; postgres:17 is of the image that has this version.",
        autocompletion=completion.engines,
    ),
]
Workload = Annotated[
    str,
    typer.Option(
        help="tpch, tpcc:5,terminals=4, tatp:100000, or sql:DIR for your own statements; there is: <<workloads>>.",
        autocompletion=completion.workloads,
    ),
]
Scale = Annotated[float | None, typer.Option(help="Scale factor of TPC-H (default 0.1).")]
Indexes = Annotated[str | None, typer.Option(help="Index profile, <<indexes>>.", autocompletion=completion.indexes)]
Queries = Annotated[str | None, typer.Option(help="Only these, e.g. Q1+Q6.")]
SettingsProfile = Annotated[
    str | None,
    typer.Option(
        "--settings-profile", help="Server settings to begin with, <<profiles>>.", autocompletion=completion.profiles
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        help="The arms' system: Debian's <<suites>>, or your own, a directory or an OCI archive.",
        autocompletion=completion.suites,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(help="The arm to compare with (default: native).", autocompletion=completion.environments),
]
Factors = Annotated[
    list[str] | None,
    typer.Option("--factor", "-f", help="FACTOR=LEVEL+LEVEL, several times if wanted; <<factors>>."),
]
Cpus = Annotated[int, typer.Option(help="Processors of each arm.")]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Let a query have more threads than the arm has processors.")
]
Memory = Annotated[str, typer.Option(help="Memory limit of each arm, page cache included.")]
Seed = Annotated[int, typer.Option(help="Of the order and the parameters.")]

RUNS = Path("runs")

MEASURED = (NO_VERDICT_POSSIBLE, 65, 69, 71, INTERRUPTED)
"""How measuring may end."""
GATED = (1, 2, *MEASURED)
"""And with a gate."""

FORESEEN = {
    errno.ENOSPC: "make room there, then do this again",
    errno.EDQUOT: "make room there, then do this again",
    errno.ENAMETOOLONG: "give a shorter name",
}
"""What may be wrong with a file of the user's, and what to do."""


def _show_version(asked: bool) -> None:
    if asked:
        print(f"dbtoll {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def begin(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """How much does a database lose in a container, a virtual machine or a sandbox; why; and what to change?"""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(UsageError.exit_code)
    if context.invoked_subcommand in MEASURING and not any(word in HELP_WORDS for word in sys.argv):
        _as_root_of_ones_own()


MEASURING = ("quick", "compare", "run", "sweep", "probe", "predict", "reproduce", "doctor", "clean", "selfbench")
"""Commands that use the machine: without root, in a user namespace."""

HELP_WORDS = ("-h", "--help")


def _as_root_of_ones_own() -> None:
    """From here on, if this is not root; what is done in there says what it lacks where none can be entered."""
    with suppress(DbtollError):
        if not namespaces.is_root():
            Cache()  # whether others may write there is told by their numbers, which are not seen in a namespace
            namespaces.enter()


@command(MEASURE, "dbtoll quick", "dbtoll quick --yes --json > result.json", codes=MEASURED)
def quick(
    name: Name = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """PostgreSQL on TPC-H, native against whatever this machine can run: the first measurement, in minutes."""
    from dbtoll.commands import measure

    raise typer.Exit(measure.quick(runs_dir, name=name, as_json=as_json, quiet=quiet, yes=yes))


@command(
    MEASURE,
    "dbtoll compare docker",
    "dbtoll compare docker docker:runsc qemu uml --scale 0.1 --budget 20m --target 1% --margin 2%",
    "dbtoll compare docker --workload sql:my-queries --name nightly",
    'dbtoll compare --arm "old: native, settings=old.conf" --arm "new: native, engine=postgres:17" --max-overhead 2%',
    "dbtoll compare docker --max-overhead 5%",
    "dbtoll compare docker uml --workload tpcc:5,terminals=4 -f interaction=statement+pipelined",
    codes=GATED,
)
def compare(
    stacks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV]...",
            help="Environments, such as docker docker:runsc,network=host; there is: <<environments>>.",
            autocompletion=completion.environments,
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            "-a",
            metavar="ARM",
            help='An arm that differs in more than its environment: "NAME: ENV, KEY=VALUE, …", with engine=NAME:VERSION, '
            "settings=FILE, settings.NAME, image, memory, cpus, indexes, workload.OPTION, against=NAME; machines=3, servers=3, "
            "databases=3, schemas=3 or keys=3 work at the same time; several times.",
        ),
    ] = None,
    engine: Engine = "postgres",
    workload: Workload = "tpch",
    scale: Scale = None,
    indexes: Indexes = None,
    queries: Queries = None,
    settings_profile: SettingsProfile = None,
    settings: Annotated[
        Path | None, typer.Option(help="Your postgresql.conf or my.cnf; wins over the profile.")
    ] = None,
    image: Image = None,
    budget: Annotated[str, typer.Option(help="Time to measure; set-up comes on top.")] = "5m",
    target: Annotated[str, typer.Option(help="Stop when every interval is this narrow (half-width).")] = "1%",
    margin: Annotated[str, typer.Option(help="Differences below it do not matter to you.")] = "2%",
    confidence: Annotated[str, typer.Option(help="Of the intervals.")] = "95%",
    baseline: Baseline = None,
    factor: Factors = None,
    cpus: Cpus = 1,
    oversubscribe: Oversubscribe = False,
    memory: Memory = "4 GiB",
    explain: Annotated[bool, typer.Option("--explain", help="Count events and probe what they cost, too.")] = False,
    seed: Seed = 1,
    name: Name = None,
    exclusive: Exclusive = False,
    max_overhead: MaxOverhead = None,
    junit: Junit = None,
    markdown: Markdown = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """Compare environments, or arms that differ in anything else: native and its second copy (A/A) come by themselves.

    In each arm dbtoll starts a server of its own, on data of its own; a server that runs already is never measured.
    """
    from dbtoll.commands import measure
    from dbtoll.commands.summaries import Summaries

    if not stacks and not arm:
        raise UsageError("no environment is named", 'dbtoll compare docker, or --arm "NAME: ENV, KEY=VALUE"')
    text = measure.comparison_text(
        stacks or [],
        arms=arm or [],
        baseline=baseline,
        engine=engine,
        engine_options={
            "profile": settings_profile,
            "settings_file": str(settings.absolute()) if settings else None,
        },
        workload=workload,
        workload_options={"scale": scale, "indexes": indexes, "queries": queries.split("+") if queries else None},
        image=image,
        tables={
            "factors": measure.factors(factor or []),
            "resources": {"cpus": cpus, "oversubscribe": oversubscribe or None, "memory": memory},
            "precision": {"budget": budget, "target": target, "margin": margin, "confidence": confidence},
        },
        top={
            "name": name,
            "seed": seed,
            "exclusive": exclusive or None,
            "max_overhead": max_overhead,
            "explain": explain or None,
        },
    )
    summaries = Summaries(junit, markdown)
    raise typer.Exit(
        measure.compare(text, runs_dir=runs_dir, as_json=as_json, quiet=quiet, yes=yes, summaries=summaries)
    )


@command(
    MEASURE,
    "dbtoll run spec.toml --name nightly",
    "dbtoll run latest --resume --budget 20m",
    codes=(1, 2, NO_VERDICT_POSSIBLE, 65, 66, 69, 71, INTERRUPTED),
)
def run(
    spec: Annotated[
        Path,
        typer.Argument(
            help="A specification (TOML), or with --resume a run's folder or name.", autocompletion=completion.runs
        ),
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with that run.")] = False,
    budget: Annotated[str | None, typer.Option(help="Time to measure in all, instead of the specification's.")] = None,
    name: Name = None,
    exclusive: Exclusive = False,
    variables: Set = None,
    max_overhead: MaxOverhead = None,
    junit: Junit = None,
    markdown: Markdown = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """Measure what a specification asks for, or go on with a run.

    It runs code, as root for most arms, as does a run folder that is resumed: take both from people whom you trust (SECURITY.md).
    A folder that is only analysed is data.
    """
    from dbtoll.commands import measure
    from dbtoll.commands.summaries import Summaries

    code = measure.run(
        spec,
        resume=resume,
        name=name,
        runs_dir=runs_dir,
        as_json=as_json,
        quiet=quiet,
        exclusive=exclusive,
        variables=variables or [],
        budget=budget,
        max_overhead=max_overhead,
        yes=yes,
        summaries=Summaries(junit, markdown),
    )
    raise typer.Exit(code)


@command(
    MEASURE,
    "dbtoll sweep spec.toml --over tenants=1:32",
    "dbtoll sweep spec.toml --over device=own,hdd7200 --set tenants=8 --budget 10m",
    "dbtoll sweep spec.toml --over tenants=1:32 --limit p99=20ms --costs costs.toml",
    "dbtoll sweep latest --resume",
    codes=(NO_VERDICT_POSSIBLE, 65, 66, 69, 71, INTERRUPTED),
)
def sweep(
    spec: Annotated[
        Path,
        typer.Argument(
            help="A specification (TOML), or with --resume a run of the sweep.", autocompletion=completion.runs
        ),
    ],
    over: Over = None,
    variables: Set = None,
    limit: SweepLimit = None,
    costs: SweepCosts = None,
    budget: SweepBudget = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with that sweep: what is finished is kept.")] = False,
    name: Name = None,
    exclusive: Exclusive = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """Measure a specification at several values of one of its variables: which design is best, and from which value on.

    Each value is a run of its own. An arm that does not fit at a value is left out there, and named before anything is started.
    """
    from dbtoll.commands import sweep
    from dbtoll.store.folders import find_run

    if resume:
        if over is not None or limit is not None or variables or name is not None:
            raise UsageError("a sweep goes on as it began", "leave --over, --set, --limit and --name out")
        folder = find_run(spec, runs_dir).absolute()
        code = sweep.resume(
            folder, budget=budget, costs=costs, runs_dir=runs_dir, as_json=as_json, quiet=quiet, yes=yes
        )
        raise typer.Exit(code)
    if over is None:
        raise UsageError("a sweep goes over a variable", "--over tenants=1,2,4, or --over tenants=1:32, which doubles")
    code = sweep.sweep(
        spec,
        over=_only(over),
        variables=variables or [],
        limit=limit,
        costs=costs,
        budget=budget,
        name=name,
        exclusive=exclusive,
        runs_dir=runs_dir,
        as_json=as_json,
        quiet=quiet,
        yes=yes,
    )
    raise typer.Exit(code)


@command(
    MEASURE,
    "dbtoll plan spec.toml",
    "dbtoll plan spec.toml --visits --rounds 3",
    "dbtoll plan spec.toml --over tenants=1:32",
    codes=(65,),
)
def plan(
    spec: Annotated[Path, typer.Argument(help="A specification (TOML).")],
    variables: Set = None,
    over: Over = None,
    limit: SweepLimit = None,
    costs: SweepCosts = None,
    budget: SweepBudget = None,
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds to show.")] = 1,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each phase (a run finds them by its pilot).")] = 1,
    visits: Annotated[bool, typer.Option("--visits", help="Show each visit in its order.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """Show what a run would do, without doing it: time, disk, what is missing for it, and its order; or a sweep's values."""
    from dbtoll.commands import planning

    if over is not None:
        if visits:
            raise UsageError(
                "--visits: of a sweep each value has its own", "dbtoll plan FILE --set NAME=VALUE --visits"
            )
        raise typer.Exit(
            planning.show_sweep(
                spec,
                over=_only(over),
                variables=variables or [],
                limit=limit,
                costs=costs,
                budget=budget,
                as_json=as_json,
            )
        )
    if limit is not None or costs is not None or budget is not None:
        raise UsageError("--limit, --costs and --budget are of a sweep", "add --over NAME=VALUES")
    code = planning.show_plan(
        spec, variables=variables or [], rounds=rounds, blocks=blocks, visits=visits, as_json=as_json
    )
    raise typer.Exit(code)


@command(MEASURE, "dbtoll probe docker uml", "dbtoll probe docker --probes system_call+fsync", codes=MEASURED)
def probe(
    stacks: Stacks,
    probes: Annotated[str | None, typer.Option(help="Only these, e.g. system_call+fault_anonymous_cold.")] = None,
    instances: Annotated[str | None, typer.Option(help="How many of each at once, e.g. 1+4+16.")] = None,
    image: Image = None,
    budget: Annotated[str, typer.Option(help="Time to measure; set-up comes on top.")] = "10m",
    target: Annotated[str, typer.Option(help="Stop when the geometric mean is this narrow (half-width).")] = "1%",
    baseline: Baseline = None,
    cpus: Cpus = 1,
    memory: Memory = "4 GiB",
    seed: Seed = 1,
    name: Name = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """What one event costs in each environment: system call, page fault, switch, round trip, fsync, memory access …"""
    from dbtoll.commands import measure

    chosen = {"probes": probes, "instances": instances}
    text = measure.comparison_text(
        stacks,
        baseline=baseline,
        engine="no_server",
        engine_options={},
        workload="probes",
        workload_options={name: words.split("+") for name, words in chosen.items() if words},
        image=image,
        tables={
            "resources": {"cpus": cpus, "memory": memory},
            "precision": {"budget": budget, "target": target},
        },
        top={"name": name, "seed": seed, "question": "What does one event cost in each environment?"},
    )
    raise typer.Exit(measure.compare(text, runs_dir=runs_dir, as_json=as_json, quiet=quiet, yes=yes))


@command(
    MEASURE,
    "dbtoll predict uml qemu",
    "dbtoll predict --counts-run nightly --probes-run latest",
    codes=(65, 66, 69, 71, INTERRUPTED),
)
def predict(
    stacks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV]...",
            help="Environments, such as uml qemu; with --probes-run the arms of that run. There is: <<environments>>.",
            autocompletion=completion.environments,
        ),
    ] = None,
    counts_run: Annotated[
        Path | None,
        typer.Option(
            "--counts-run",
            help="A run with --explain: what the workload does natively.",
            autocompletion=completion.runs,
        ),
    ] = None,
    probes_run: Annotated[
        Path | None,
        typer.Option(
            "--probes-run",
            help="A run of `dbtoll probe`: what events cost in its arms.",
            autocompletion=completion.runs,
        ),
    ] = None,
    engine: Engine = "postgres",
    workload: Annotated[
        str,
        typer.Option(help="tpch, or sql:DIR for your own statements.", autocompletion=completion.workloads),
    ] = "tpch",
    scale: Scale = None,
    indexes: Indexes = None,
    queries: Queries = None,
    settings_profile: SettingsProfile = None,
    factor: Factors = None,
    budget: Annotated[str, typer.Option(help="Time to measure, for the counts and for the probes each.")] = "5m",
    cpus: Cpus = 1,
    oversubscribe: Oversubscribe = False,
    memory: Memory = "4 GiB",
    seed: Seed = 1,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """What a workload would lose in environments where no database has run yet, by what it does natively and by their probes."""
    from dbtoll.commands import measure
    from dbtoll.spec.factors import LEDGER_PROBES
    from dbtoll.store.folders import find_run

    stacks = stacks or []
    if not stacks and probes_run is None:
        raise UsageError("no environment is named", "dbtoll predict uml qemu, or --probes-run RUN")
    tables: dict[str, dict[str, Any]] = {
        "resources": {"cpus": cpus, "oversubscribe": oversubscribe or None, "memory": memory},
        "precision": {"budget": budget},
    }
    profile_text = measure.comparison_text(
        [],
        baseline="native",
        engine=engine,
        engine_options={"profile": settings_profile},
        workload=workload,
        workload_options={"scale": scale, "indexes": indexes, "queries": queries.split("+") if queries else None},
        image=None,
        tables={**tables, "factors": measure.factors(factor or [])},
        top={"seed": seed, "explain": True, "question": "What does the workload do natively?"},
    )
    probes_text = measure.comparison_text(
        stacks,
        baseline="native",
        engine="no_server",
        engine_options={},
        workload="probes",
        workload_options={"probes": list(LEDGER_PROBES)},
        image=None,
        tables=tables,
        top={"seed": seed, "question": "What does one event cost in each environment?"},
    )
    code = measure.predict(
        stacks,
        profile=find_run(counts_run, runs_dir) if counts_run else None,
        probes=find_run(probes_run, runs_dir) if probes_run else None,
        profile_text=profile_text,
        probes_text=probes_text,
        runs_dir=runs_dir,
        as_json=as_json,
        quiet=quiet,
        yes=yes,
    )
    raise typer.Exit(code)


@command(
    MEASURE,
    "dbtoll reproduce",
    "dbtoll reproduce PAPER",
    "dbtoll reproduce PAPER docker --set scale=0.1 --budget 10m --exclusive",
    "dbtoll reproduce PAPER --part NAME --reuse RUN",
    codes=(65, 66, 69, 71, INTERRUPTED),
)
def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAPER]", help="Its name; without it: the list of papers.", autocompletion=completion.papers
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENV]",
            help="In place of the paper's: uml, qemu, docker …",
            autocompletion=completion.environments,
        ),
    ] = None,
    variables: Set = None,
    rounds: Annotated[
        int | None, typer.Option(help="So many fresh starts of each arm (default: as many as fit).")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time to measure each part, instead of the specifications'.")
    ] = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            "--reuse",
            metavar="RUN",
            help="A run of a part, which is then not measured again.",
            autocompletion=completion.runs,
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", metavar="NAME", help="Measure this part alone; may be given several times."),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option("--samples", metavar="FOLDER", help="The authors' own samples, where they published them."),
    ] = None,
    exclusive: Exclusive = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """A paper's experiments measured here: its tables and figures beside ours, and a verdict on each of its claims."""
    from dbtoll.commands import reproduce
    from dbtoll.store.folders import find_run

    if paper is None:
        reproduce.list_papers(as_json=as_json)
        return
    code = reproduce.reproduce(
        paper,
        environment,
        variables=variables or [],
        rounds=rounds,
        budget=budget,
        exclusive=exclusive,
        only=part or (),
        use=[find_run(run, runs_dir) for run in reuse or []],
        samples=samples,
        runs_dir=runs_dir,
        as_json=as_json,
        quiet=quiet,
        yes=yes,
    )
    raise typer.Exit(code)


@command(RESULTS, "dbtoll runs", "dbtoll runs --json")
def runs(runs_dir: RunsDir = RUNS, as_json: AsJson = False, quiet: Quiet = False, yes: Yes = False) -> None:
    """The runs there are, the newest first: what was measured, the verdicts, and whether they ended."""
    from dbtoll.commands import runs

    raise typer.Exit(runs.show_runs(runs_dir, as_json=as_json))


@command(
    RESULTS,
    "dbtoll analyze latest",
    "dbtoll analyze runs/20260501-091500-3f9a2b --json",
    "dbtoll analyze nightly --max-overhead 5% --junit gate.xml",
    codes=(1, 2, 66),
)
def analyze(
    run: RunFolder,
    max_overhead: MaxOverhead = None,
    junit: Junit = None,
    markdown: Markdown = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """Intervals and verdicts of a run, from its folder alone, which may come from anybody: nothing in it is run."""
    from dbtoll.commands import inspect, measure
    from dbtoll.commands.summaries import Summaries, conclude_gate
    from dbtoll.store.folders import find_run

    result = inspect.analyze(
        find_run(run, runs_dir),
        as_json=as_json,
        quiet=quiet,
        max_overhead=None if max_overhead is None else measure.limit(max_overhead),
        summaries=Summaries(junit, markdown),
    )
    raise typer.Exit(conclude_gate(result))


@command(RESULTS, "dbtoll report latest", "dbtoll report nightly", codes=(66,))
def report(
    run: RunFolder, runs_dir: RunsDir = RUNS, as_json: AsJson = False, quiet: Quiet = False, yes: Yes = False
) -> None:
    """Write the page, CSV and Parquet of a run, and print its table; of a run of a sweep also the page of that."""
    from dbtoll.commands import inspect, sweep
    from dbtoll.store.folders import find_run
    from dbtoll.terminal import notices

    folder = find_run(run, runs_dir)
    inspect.report(folder, as_json=as_json, quiet=quiet)
    if (page := sweep.write_again(folder)) is not None:
        notices(quiet=quiet)(f"sweep: {page}")


@command(MACHINE, "dbtoll doctor", "dbtoll doctor --quick --json", codes=(69,))
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the A/A, which takes about 15 s.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """What can be measured on this machine, what is missing for the rest, and the one command that brings it."""
    from dbtoll.commands import inspect

    raise typer.Exit(inspect.doctor(as_json=as_json, with_noise=not quick, quiet=quiet))


@command(
    MACHINE,
    "dbtoll clean --dry-run",
    "dbtoll clean",
    "dbtoll clean --cache --older 30",
    "dbtoll clean --cache --keep 5GiB",
    codes=(70,),
)
def clean(
    cache: Annotated[
        bool,
        typer.Option(
            "--cache", help="Instead: what is kept from run to run (images, data sets), but for what is in use."
        ),
    ] = False,
    older: Annotated[float | None, typer.Option(help="Only what has been unused for so many days.")] = None,
    keep: Annotated[
        str | None, typer.Option(help="Only until no more is left, e.g. 20GiB; the longest unused first.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """Remove what killed runs left behind; touches nothing else. Run folders stay."""
    from dbtoll.commands import cleanup

    if cache:
        raise typer.Exit(cleanup.clean_cache(older=older, keep=keep, dry_run=dry_run, as_json=as_json))
    if older is not None or keep is not None:
        raise UsageError("--older and --keep say what is kept of the cache", "dbtoll clean --cache …")
    raise typer.Exit(cleanup.clean(runs_dir, dry_run=dry_run, as_json=as_json))


@command(INSTRUMENT, "dbtoll selfbench", "dbtoll selfbench agent", codes=(1, 69))
def selfbench(
    name: Annotated[
        str | None,
        typer.Argument(help="One property; without it: the list.", autocompletion=completion.selfbenches),
    ] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE, see the list.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """The instrument's calibration certificate: one property measured, with the bounds that it is held to."""
    from dbtoll.commands import inspect

    raise typer.Exit(inspect.show_selfbench(name, option or [], as_json=as_json, quiet=quiet))


@command(INSTRUMENT, "dbtoll version --json")
def version(as_json: AsJson = False, quiet: Quiet = False, yes: Yes = False) -> None:
    """The version."""
    typer.echo(json.dumps({"dbtoll": __version__}) if as_json else f"dbtoll {__version__}")


@command(MACHINE, "dbtoll setup --yes", codes=(69,))
def setup(as_json: AsJson = False, quiet: Quiet = False, yes: Yes = False) -> None:
    """Install what is missing for all environments; asks first. In a checkout (./dbtoll setup) also Python packages and the
    agent."""
    from dbtoll.system_packages import install_missing

    install_missing(registry.names("environments"), yes=yes)


@command(INSTRUMENT, "./dbtoll test", "./dbtoll test tests/unit -n 0")
def test(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="For pytest: files, options.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """Install what the tests of a checkout need, then run them (./dbtoll test)."""
    raise UsageError("the tests lie in a checkout, not in the installed package", "run ./dbtoll test in a checkout")


EXIT_CODES_TOPIC = "exit-codes"


@app.command(
    "help",
    cls=Command,
    rich_help_panel=INSTRUMENT,
    epilog=epilog("dbtoll help compare", f"dbtoll help {EXIT_CODES_TOPIC}", codes=(0, 64)),
)
def show_help(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[COMMAND]", help=f"A command, or {EXIT_CODES_TOPIC}.", autocompletion=completion.topics
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    yes: Yes = False,
) -> None:
    """What a command does, with examples; or what the exit codes mean."""
    whole = context.parent
    assert whole is not None
    commands = whole.command.commands  # type: ignore[attr-defined]
    if topic == EXIT_CODES_TOPIC:
        print(json.dumps(EXIT_CODES) if as_json else exit_codes())
        return
    if topic is not None and topic not in commands:
        meant = "".join(f"did you mean {each}? " for each in difflib.get_close_matches(topic, commands, 1))
        raise UsageError(
            f"there is no command {topic!r}", f"{meant}there is: {', '.join((*commands, EXIT_CODES_TOPIC))}"
        )
    of = whole if topic is None else type(context)(commands[topic], info_name=topic, parent=whole)
    text = of.get_help()
    print(json.dumps({"command": topic, "help": text}) if as_json else text)


PLAIN_LETTERS = str.maketrans(
    {"…": "...", "±": "+-", "×": "x", "−": "-", "–": "-", "—": "-", "→": "->", "≤": "<=", "≥": ">="}
)
"""For terminals of another character set; whatever else they lack becomes a question mark."""


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN_LETTERS)
    return "".join(letter if letter.isascii() else "?" for letter in text), error.end


def _for_any_terminal() -> None:
    """What it cannot show is written otherwise, instead of ending the program."""
    codecs.register_error("dbtoll.plainly", _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="dbtoll.plainly")


def _somewhere_for_temporary_files() -> None:
    """Where neither the system's directories nor the present one take any: the cache."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        with suppress(OSError, DbtollError):
            Cache()  # its owner's alone, so made before anything in it
            scratch().mkdir(parents=True, exist_ok=True)
            tempfile.tempdir = str(scratch())


def main() -> None:
    """Entry point. Ends with one of `errors.EXIT_CODES`."""
    _for_any_terminal()
    _somewhere_for_temporary_files()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except DbtollError as error:
        _told(error.message, error.hint)
        sys.exit(error.exit_code)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except typer.TyperException as error:
        usage = getattr(error, "ctx", None)
        _told(error.format_message(), f"see {usage.command_path} --help" if usage else "see dbtoll --help")
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:  # before there was a command
        _told("stopped", "")
        sys.exit(INTERRUPTED)
    except PermissionError as error:
        _told(f"{error.filename}: {error.strerror}", "name what you may use, or run this as root: sudo ./dbtoll …")
        sys.exit(NO_PERMISSION)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FORESEEN:
            _nothing_more_to_standard_output()
            _told(f"{error.filename or 'what is printed'}: {error.strerror}", FORESEEN[error.errno])
            sys.exit(NO_OUTPUT)
        if isinstance(error, BrokenPipeError) or _hung_up():  # nobody is there any more to whom anything could be said
            _nothing_more_to_standard_output()
            os.dup2(1, 2)
            sys.exit(NOBODY_READS)
        _told(f"a defect of dbtoll: {type(error).__name__}: {error}", f"please report it with {_kept(error)}")
        sys.exit(DbtollError.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _nothing_more_to_standard_output() -> None:
    """What could not be written is tried again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _kept(error: Exception) -> str:
    """Where its stack trace stands: in a file, or, where none can be made, above on the error output."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="dbtoll-defect-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        traceback.print_exception(error)
        return "what is written above"
    return file.name


def _hung_up() -> bool:
    """Whether the terminal that this program writes to has gone away; a write to it fails then, even of nothing."""
    try:
        os.write(1, b"")
        os.write(2, b"")
    except OSError as error:
        return error.errno in (errno.EIO, errno.EPIPE, errno.EBADF)
    return False


def _told(message: str, hint: str) -> None:
    print(f"dbtoll: {message}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
