"""The command line: thin. Parses, calls, prints; every error is one sentence with its hint, never a stack trace."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from dbtoll import __version__, registry
from dbtoll.errors import INTERRUPTED, DbtollError, UsageError
from dbtoll.images.cache import Cache, scratch

app = typer.Typer(
    help="How much does a database lose in a container, a virtual machine or a sandbox; why; and what to change?",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Where run folders lie.", envvar="DBTOLL_RUNS")]


def _in_utf_8(as_json: bool) -> bool:
    """JSON for programs is UTF-8 (RFC 8259, 8.1), whatever the terminal can show."""
    if as_json and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return as_json


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.", callback=_in_utf_8)]
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
Engine = Annotated[str, typer.Option(help="Database engine.")]
Scale = Annotated[float | None, typer.Option(help="Scale factor of TPC-H (default 0.1).")]
Indexes = Annotated[str | None, typer.Option(help="Index profile of TPC-H.")]
Queries = Annotated[str | None, typer.Option(help="Only these, e.g. Q1+Q6.")]
Profile = Annotated[str | None, typer.Option(help="Settings profile of the engine.")]
Image = Annotated[str | None, typer.Option(help="Debian suite, or your image: a directory or an OCI archive.")]
Baseline = Annotated[str | None, typer.Option(help="The arm to compare with (default: native).")]
Factors = Annotated[
    list[str] | None,
    typer.Option("--factor", "-f", help="FACTOR=LEVEL+LEVEL, e.g. connection=persistent+per_statement; see SPEC."),
]
Cpus = Annotated[int, typer.Option(help="Processors of each arm.")]
Memory = Annotated[str, typer.Option(help="Memory limit of each arm, page cache included.")]
Seed = Annotated[int, typer.Option(help="Of the order and the parameters.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree to what would be asked.")]

RUNS = Path("runs")

NO_PERMISSION = 77
"""EX_NOPERM of sysexits.h."""
NO_OUTPUT = 74
"""EX_IOERR."""
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


@app.command()
def quick(runs_dir: RunsDir = RUNS, as_json: AsJson = False, yes: Yes = False) -> None:
    """PostgreSQL on TPC-H, native against whatever this machine can run: the first measurement, in minutes."""
    from dbtoll.commands import measure

    raise typer.Exit(measure.quick(runs_dir, as_json=as_json, yes=yes))


@app.command()
def run(
    spec: Annotated[Path, typer.Argument(help="A specification (TOML), or with --resume a run folder.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    exclusive: Exclusive = False,
    variables: Set = None,
    budget: Annotated[str | None, typer.Option(help="Time to measure in all, instead of the specification's.")] = None,
    max_overhead: MaxOverhead = None,
    junit: Junit = None,
    markdown: Markdown = None,
    yes: Yes = False,
) -> None:
    """Measure what a specification asks for. It runs code, as root for most arms, as does a run folder that is resumed: take both
    from people whom you trust (SECURITY.md). A folder that is only analysed is data."""
    from dbtoll.commands import measure
    from dbtoll.commands.summaries import Summaries

    code = measure.run(
        spec,
        resume=resume,
        runs_dir=runs_dir,
        as_json=as_json,
        exclusive=exclusive,
        variables=variables or [],
        budget=budget,
        max_overhead=max_overhead,
        summaries=Summaries(junit, markdown),
        yes=yes,
    )
    raise typer.Exit(code)


@app.command()
def compare(
    stacks: Annotated[
        list[str], typer.Argument(metavar="ENV...", help="For example: docker docker:runsc,network=host")
    ],
    engine: Engine = "postgres",
    workload: Annotated[
        str, typer.Option(help="tpch, tpcc:5,terminals=4, tatp:100000, or sql:DIR for your own statements.")
    ] = "tpch",
    scale: Scale = None,
    indexes: Indexes = None,
    queries: Queries = None,
    profile: Profile = None,
    settings: Annotated[Path | None, typer.Option(help="Your postgresql.conf.")] = None,
    image: Image = None,
    budget: Annotated[str, typer.Option(help="Time to measure; set-up comes on top.")] = "5m",
    target: Annotated[str, typer.Option(help="Stop when every interval is this narrow (half-width).")] = "1%",
    margin: Annotated[str, typer.Option(help="Differences below it do not matter to you.")] = "2%",
    confidence: Annotated[str, typer.Option(help="Of the intervals.")] = "95%",
    baseline: Baseline = None,
    factor: Factors = None,
    cpus: Cpus = 1,
    memory: Memory = "4 GiB",
    explain: Annotated[bool, typer.Option("--explain", help="Count events and probe what they cost, too.")] = False,
    seed: Seed = 1,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    exclusive: Exclusive = False,
    max_overhead: MaxOverhead = None,
    junit: Junit = None,
    markdown: Markdown = None,
    yes: Yes = False,
) -> None:
    """Compare environments: native and its second copy (A/A) come by themselves."""
    from dbtoll.commands import measure
    from dbtoll.commands.summaries import Summaries

    text = measure.comparison_text(
        stacks,
        baseline=baseline,
        engine=engine,
        engine_options={"profile": profile, "settings_file": str(settings.absolute()) if settings else None},
        workload=workload,
        workload_options={"scale": scale, "indexes": indexes, "queries": queries.split("+") if queries else None},
        image=image,
        tables={
            "factors": measure.factors(factor or []),
            "resources": {"cpus": cpus, "memory": memory},
            "precision": {"budget": budget, "target": target, "margin": margin, "confidence": confidence},
        },
        top={"seed": seed, "exclusive": exclusive or None, "max_overhead": max_overhead, "explain": explain or None},
    )
    summaries = Summaries(junit, markdown)
    raise typer.Exit(measure.compare(text, runs_dir=runs_dir, as_json=as_json, yes=yes, summaries=summaries))


@app.command()
def probe(
    stacks: Annotated[list[str], typer.Argument(metavar="ENV...", help="For example: docker uml qemu")],
    probes: Annotated[str | None, typer.Option(help="Only these, e.g. system_call+fault_anonymous_cold.")] = None,
    instances: Annotated[str | None, typer.Option(help="How many of each at once, e.g. 1+4+16.")] = None,
    image: Image = None,
    budget: Annotated[str, typer.Option(help="Time to measure; set-up comes on top.")] = "10m",
    target: Annotated[str, typer.Option(help="Stop when the geometric mean is this narrow (half-width).")] = "1%",
    baseline: Baseline = None,
    cpus: Cpus = 1,
    memory: Memory = "4 GiB",
    seed: Seed = 1,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
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
        top={"seed": seed, "question": "What does one event cost in each environment?"},
    )
    raise typer.Exit(measure.compare(text, runs_dir=runs_dir, as_json=as_json, yes=yes))


@app.command()
def predict(
    stacks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENV]...", help="For example: uml qemu (with --probes: of that run's arms)."),
    ] = None,
    profile_run: Annotated[
        Path | None, typer.Option("--profile-run", help="A run with --explain: what the workload does natively.")
    ] = None,
    probes_run: Annotated[
        Path | None, typer.Option("--probes-run", help="A run of `dbtoll probe`: what events cost in the arms.")
    ] = None,
    engine: Engine = "postgres",
    workload: Annotated[str, typer.Option(help="tpch, or sql:DIR for your own statements.")] = "tpch",
    scale: Scale = None,
    indexes: Indexes = None,
    queries: Queries = None,
    profile: Profile = None,
    factor: Factors = None,
    budget: Annotated[str, typer.Option(help="Time to measure, for the profile and for the probes each.")] = "5m",
    cpus: Cpus = 1,
    memory: Memory = "4 GiB",
    seed: Seed = 1,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """What a workload would lose in environments where no database has run yet: by its native profile and their probes."""
    from dbtoll.commands import measure
    from dbtoll.spec.factors import LEDGER_PROBES

    stacks = stacks or []
    if not stacks and probes_run is None:
        raise UsageError("no environment is named", "dbtoll predict uml qemu, or --probes-run RUN")
    tables: dict[str, dict[str, Any]] = {
        "resources": {"cpus": cpus, "memory": memory},
        "precision": {"budget": budget},
    }
    profile_text = measure.comparison_text(
        [],
        baseline="native",
        engine=engine,
        engine_options={"profile": profile},
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
        profile=profile_run,
        probes=probes_run,
        profile_text=profile_text,
        probes_text=probes_text,
        runs_dir=runs_dir,
        as_json=as_json,
        yes=yes,
    )
    raise typer.Exit(code)


@app.command()
def reproduce(
    paper: Annotated[
        str | None, typer.Argument(metavar="[PAPER]", help="Its name; without it: the list of papers.")
    ] = None,
    environment: Annotated[
        str | None, typer.Argument(metavar="[ENV]", help="In the place of the paper's: uml, qemu, docker …")
    ] = None,
    variables: Set = None,
    rounds: Annotated[
        int | None, typer.Option(help="So many fresh starts of each arm (default: as many as fit).")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time to measure each part, instead of the specifications'.")
    ] = None,
    use: Annotated[
        list[Path] | None, typer.Option(help="A run folder of a part, which is then not measured again.")
    ] = None,
    exclusive: Exclusive = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """A paper's experiments measured here: its tables and figures beside ours, and a verdict on each of its claims."""
    from dbtoll.commands import reproduce

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
        use=use or [],
        runs_dir=runs_dir,
        as_json=as_json,
        yes=yes,
    )
    raise typer.Exit(code)


@app.command()
def plan(
    spec: Annotated[Path, typer.Argument(help="A specification (TOML).")],
    variables: Set = None,
    rounds: Annotated[int, typer.Option(help="How many rounds to show.")] = 1,
    blocks: Annotated[int, typer.Option(help="Blocks of each phase (a run finds them by its pilot).")] = 1,
    as_json: AsJson = False,
) -> None:
    """Show what a run would do, without doing it."""
    from dbtoll.commands import inspect

    inspect.show_plan(spec, variables=variables or [], rounds=rounds, blocks=blocks, as_json=as_json)


@app.command()
def analyze(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: AsJson = False,
    max_overhead: MaxOverhead = None,
    junit: Junit = None,
    markdown: Markdown = None,
) -> None:
    """Intervals and verdicts of a run, from its folder alone, which may come from anybody: nothing in it is run."""
    from dbtoll.commands import inspect, measure
    from dbtoll.commands.summaries import Summaries, conclude_gate

    limit = None if max_overhead is None else measure.limit(max_overhead)
    result = inspect.analyze(run, as_json=as_json, max_overhead=limit, summaries=Summaries(junit, markdown))
    raise typer.Exit(conclude_gate(result))


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run folder.")], as_json: AsJson = False) -> None:
    """Write the page, CSV and Parquet of a run, and print its table."""
    from dbtoll.commands import inspect

    inspect.report(run, as_json=as_json)


@app.command()
def doctor(
    as_json: AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the A/A, which takes about 15 s.")] = False,
) -> None:
    """What can be measured on this machine, what is missing for the rest, and the one command that brings it."""
    from dbtoll.commands import inspect

    raise typer.Exit(inspect.doctor(as_json=as_json, with_noise=not quick))


@app.command()
def clean(
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
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
) -> None:
    """Remove what killed runs left behind; touches nothing else."""
    from dbtoll.commands import cleanup

    if cache:
        raise typer.Exit(cleanup.clean_cache(older=older, keep=keep, as_json=as_json))
    if older is not None or keep is not None:
        raise UsageError("--older and --keep say what is kept of the cache", "dbtoll clean --cache …")
    raise typer.Exit(cleanup.clean(runs_dir, as_json=as_json))


@app.command()
def selfbench(
    name: Annotated[str | None, typer.Argument(help="One property; without it: the list.")] = None,
    as_json: AsJson = False,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE, see the list.")] = None,
) -> None:
    """The instrument's calibration certificate: one property measured, with the bounds that it is held to."""
    from dbtoll.commands import inspect

    raise typer.Exit(inspect.show_selfbench(name, option or [], as_json=as_json))


@app.command()
def version(as_json: AsJson = False) -> None:
    """The version."""
    typer.echo(json.dumps({"dbtoll": __version__}) if as_json else f"dbtoll {__version__}")


@app.command()
def setup(yes: Yes = False) -> None:
    """Install what is missing for all environments; asks first. In a checkout (./dbtoll setup) also Python packages and the
    agent."""
    from dbtoll.system_packages import install_missing

    install_missing(registry.names("environments"), yes=yes)


@app.command()
def test(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="For pytest: files, options.")] = None,
    yes: Yes = False,
) -> None:
    """Install what the tests of a checkout need, then run them (./dbtoll test)."""
    raise UsageError("the tests lie in a checkout, not in the installed package", "run ./dbtoll test in a checkout")


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
    """Entry point. Exit codes: sysexits.h for errors; 0, 1, 2 for the gate; 130 when its user stopped it."""
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
    except KeyboardInterrupt:
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
            sys.exit(141)
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
