"""A run survives what happens to its arms, its disk, its terminal and itself: real servers, containers and guests.

Harm is done at one moment of a round; what is asked for is always the same: that arm's start is `failed` with its reason and its
logs, the others complete the round, the next round has everybody again, and nothing is left.
"""

from __future__ import annotations

import math
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest

from dbtoll import registry, spec
from dbtoll.channel import relay
from dbtoll.contracts.machines import CPU, loop_device, machine_spec, small_image, start_of
from dbtoll.environments import docker
from dbtoll.environments.docker import dockerd
from dbtoll.errors import INTERRUPTED, AgentFailure, ChannelError, DbtollError, RunFolderError, Unavailable
from dbtoll.images import dataset
from dbtoll.images.cache import default_root
from dbtoll.interfaces.environment import BootingEnvironment, RemoteEnvironment
from dbtoll.machines import programs, storage
from dbtoll.machines.agent import session
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups import removal
from dbtoll.machines.null_journal import NullJournal
from dbtoll.machines.sysctl import boot_id
from dbtoll.plan import Plan
from dbtoll.runner import pilot, run
from dbtoll.runner.arms import machine_name
from dbtoll.runner.cleanup.journal import FILE, leftovers
from dbtoll.runner.cleanup.removers import Cleaned, clean_one
from dbtoll.selfbench import measure
from dbtoll.selfbench.support.inventory import Marks, carried, settings
from dbtoll.selfbench.support.quiet_run import Quiet
from dbtoll.spec.stack import parse_stack
from dbtoll.store import schema
from dbtoll.store.reader import Run, read_run
from tests.support.killed import journal_of, kill_at_line, lines_of_a_life
from tests.support.lacking import needs
from tests.support.program import is_root, only_run

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_root(), reason="native and Docker arms need root"),
]

VICTIM = "victim"
DOCKER = os.environ.get("DBTOLL_TEST_DOCKER", "docker")
"""The stack, so that tests may have a data root of their own beside other runs: ``docker:data_root=DIR``."""

ROUNDS = 2
HARMED = 0
"""Number of the round in which harm is done. The pilot shows that all is well before, the next round that it is again."""

PILOT = -1
"""It has no end that is known."""

SPEC = """
parameter_sets = 2
[engine]
name = "postgres"
[workload]
name = "tpch"
scale = 0.01
queries = ["Q6", "Q14"]
[precision]
budget = "{budget}"
rounds_max = 4
rounds_min = 2
blocks_max = 2
[visit]
lead_in = "1ms"
measurement_time = "{measurement_time}"
statement_timeout = "2s"
[resources]
memory = "1 GiB"
[[arm]]
name = "native"
stack = "native"
[[arm]]
name = "victim"
stack = "{stack}"
"""


class Harm(Quiet):
    """Looks on (runner.rounds.Watch) and does harm when ``moment`` comes in round ``index`` (PILOT: in the pilot), after its
    warm-up.

    What is done is undone, where ``undo`` says how, as soon as something else is being done.
    """

    def __init__(
        self, moment: str, harm: Callable[[], None], undo: Callable[[], None] | None = None, index: int = HARMED
    ) -> None:
        super().__init__(lambda _: None)
        self._moment, self._harm, self._undo, self._index = moment, harm, undo, index
        self._state = "waiting"

    def at(self, round_index: int, doing: str, done: int, of: int, left_s: float) -> None:
        if math.isinf(left_s):
            round_index = PILOT
        warming_up = done == 0 and not doing.startswith("start")
        if self._state == "waiting" and round_index == self._index and doing == self._moment and not warming_up:
            self._state = "done"
            self._harm()
        elif self._state == "done" and doing != self._moment and self._undo is not None:
            self._state = "undone"
            self._undo()

    def decide(self, run: Run, elapsed_s: float, next_round_s: float) -> str | None:
        return "enough rounds" if len(run.counted) >= ROUNDS else None

    def larger_budget(self, budget_s: float) -> bool:
        del budget_s
        return False


def nothing() -> None:
    """No harm."""


def measured(
    tmp_path: Path,
    stack: str,
    watch: Harm,
    measurement_time: str = "5ms",
    budget: str = "60s",
    *,
    tried: bool = True,
    more: str = "",
) -> Run:
    """A run with that victim, of short rounds, whose pilot is none of them; nothing is left of it. ``tried``: its arms have been
    opened for a trial (`tests.support.lacking`). ``more``: arms."""
    text = SPEC.format(stack=stack, measurement_time=measurement_time, budget=budget) + more
    with patch.object(pilot, "COUNTS_UP_TO_BLOCKS", 0):
        folder = run.begin(spec.parse(text, "test"), text, tmp_path / "runs", watch, tried=tried)
    assert carried(Marks(folder)) == {}
    assert leftovers(folder) == []
    return read_run(folder)


def starts(of: Run, arm: str, index: int) -> list[schema.Start]:
    (attempt,) = [attempt for attempt in of.attempts if attempt.round == index]
    return [record for record in attempt.records if isinstance(record, schema.Start) and record.arm == arm]


def visits(of: Run, arm: str, index: int) -> int:
    (attempt,) = [attempt for attempt in of.attempts if attempt.round == index]
    return sum(isinstance(record, schema.Visit) and record.arm == arm for record in attempt.records)


def planned(of: Run, arm: str, index: int) -> int:
    """Visits of a whole round: the warm-up, and the blocks that it takes part in (one where it is many times slower)."""
    plan = Plan(of.plan.experiment, tuple(of.plan.queries), of.plan.blocks, of.plan.slow, of.plan.pilot)
    in_blocks = [visit for phase in plan.round(index).phases for block in phase.blocks for visit in block.visits]
    return len(of.plan.queries) + sum(visit.arm == arm for visit in in_blocks)


def assert_only_the_victim_failed(of: Run) -> schema.Start:
    """Its failed start in the harmed round, with its logs kept; everything else is whole."""
    assert of.complete_rounds == tuple(range(ROUNDS)), of.end
    for index in range(ROUNDS):
        for arm in ("native", "native (A/A)"):
            assert [start.outcome for start in starts(of, arm, index)] == ["ok"]
            assert visits(of, arm, index) == planned(of, arm, index)
    assert [start.outcome for start in starts(of, VICTIM, HARMED + 1)] == ["ok"]
    assert visits(of, VICTIM, HARMED + 1) == planned(of, VICTIM, HARMED + 1)
    failed = starts(of, VICTIM, HARMED)[-1]
    assert failed.outcome == "failed"
    assert failed.reason
    return failed


def logs(of: Run, index: int = HARMED) -> str:
    folder = of.folder / "logs" / f"{index}.0" / VICTIM
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.iterdir()))


def processes_of(runs: Path) -> dict[int, str]:
    """Number and command line of everything that is in the control group of the victim, the oldest first."""
    folder = only_run(runs)
    name = machine_name(folder.name, VICTIM, 0)
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                started = start_of(int(entry.name))
                groups = (entry / "cgroup").read_text()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            # A container's group is called by its id.
            below = groups.partition(f"/dbtoll/{folder.name}/")[2].partition("\n")[0].partition("/")[0]
            if below == name or len(below) == 64:
                found[started] = command
    return {pid: found[start, pid] for start, pid in sorted(found)}


def the_one(runs: Path, words: str) -> int:
    """The first process of the victim whose command line holds ``words``."""
    return next(pid for pid, command in processes_of(runs).items() if words in command)


# --- harm to an arm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["native", DOCKER])
def test_a_server_that_is_killed(tmp_path: Path, stack: str) -> None:
    needs(stack)
    watch = Harm("victim Q6", lambda: os.kill(the_one(tmp_path / "runs", "bin/postgres"), signal.SIGKILL))
    of = measured(tmp_path, stack, watch)
    assert_only_the_victim_failed(of)
    assert "database system is ready to accept connections" in logs(of)


def test_a_container_whose_first_process_is_killed(tmp_path: Path) -> None:
    needs(DOCKER)
    watch = Harm("victim Q6", lambda: os.kill(the_one(tmp_path / "runs", "/dbtoll/agent"), signal.SIGKILL))
    of = measured(tmp_path, DOCKER, watch)
    assert "broke" in (assert_only_the_victim_failed(of).reason or "")
    assert "database system is ready" in logs(of)


def test_an_arm_that_vanishes_in_its_sleep_is_the_one_that_failed(tmp_path: Path) -> None:
    """Its control group is gone: found out while another arm is awake, which must not be blamed."""
    needs("native")

    def remove_it() -> None:
        folder = only_run(tmp_path / "runs")
        name = machine_name(folder.name, VICTIM, 0)
        paths = next(
            noted["paths"] for noted in leftovers(folder) if any(path.endswith(name) for path in noted.get("paths", []))
        )
        with open_local() as another:
            removal.remove(another, {"paths": paths})

    assert_only_the_victim_failed(measured(tmp_path, "native", Harm("native Q6", remove_it)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_docker_daemon_that_ends_in_mid_run(tmp_path: Path, number: int) -> None:
    """Killed, or ended as by somebody who restarts it: dbtoll starts it again for the next round."""
    needs(DOCKER)
    (step,) = parse_stack(DOCKER)
    file = Path(step.options.get("data_root", dockerd.DATA_ROOT), "dockerd.pid")
    of = measured(tmp_path, DOCKER, Harm("victim Q6", lambda: os.kill(int(file.read_text()), number)))
    assert_only_the_victim_failed(of)
    assert "API listen on" in logs(of)
    assert logs(of, HARMED) != logs(of, HARMED + 1)


@pytest.mark.parametrize("name", [name for name in registry.names("environments") if name not in ("native", "docker")])
def test_a_guest_that_is_killed(tmp_path: Path, name: str) -> None:
    if not isinstance(registry.find("environments", name)(), BootingEnvironment):
        pytest.skip(f"{name} has no guest")
    needs(name)
    watch = Harm("victim Q6", lambda: os.kill(next(iter(processes_of(tmp_path / "runs"))), signal.SIGKILL))
    of = measured(tmp_path, name, watch)
    assert_only_the_victim_failed(of)
    assert logs(of)


def test_an_agent_that_hangs_meets_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of a visit. The deadlines are real, only shorter."""
    needs("native")
    monkeypatch.setattr(session, "SLACK_S", 2.0)
    monkeypatch.setattr(relay, "_CLOSE_S", 2.0)

    def stop_in_a_moment() -> None:
        agent = the_one(tmp_path / "runs", "/dbtoll/agent")
        threading.Timer(0.1, os.kill, (agent, signal.SIGSTOP)).start()

    of = measured(tmp_path, "native", Harm("victim Q6", stop_in_a_moment), measurement_time="300ms", budget="40s")
    assert "in time" in (assert_only_the_victim_failed(of).reason or "")
    assert "database system is ready" in logs(of)


def test_a_host_agent_that_is_killed_ends_the_run_which_can_go_on(tmp_path: Path) -> None:
    needs("native")

    def kill_it() -> None:
        mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        agents = [pid for pid in mine if b"dbtoll-agent\0serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(agents[-1]), signal.SIGKILL)

    with pytest.raises(ChannelError, match="finished rounds are kept") as caught:
        measured(tmp_path, "native", Harm("victim Q6", kill_it, index=1))
    assert "--resume" in caught.value.hint
    folder = only_run(tmp_path / "runs")
    assert carried(Marks(folder)) == {}
    assert read_run(folder).complete_rounds == (0,)
    run.resume(folder, Harm("", nothing))
    assert read_run(folder).complete_rounds == tuple(range(ROUNDS))
    assert leftovers(folder) == []


# --- full disks --------------------------------------------------------------------------------------------------------------


@contextmanager
def memory_disk(at: Path, size: str) -> Iterator[Path]:
    """A small file system."""
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "dbtoll-test", at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def fill(disk: Path) -> None:
    """To the last block."""
    with (disk / "filler").open("wb") as file:
        free = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_bsize)


def empty(disk: Path) -> None:
    (disk / "filler").unlink()


def test_a_copy_of_the_data_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("native")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    for part in default_root().iterdir():
        if part.name not in ("scratch", "journals"):
            (cache / part.name).symlink_to(part)
    with memory_disk(cache / "scratch", "640m") as scratch:
        monkeypatch.setenv("DBTOLL_CACHE", str(cache))
        watch = Harm("start of victim", lambda: fill(scratch), lambda: empty(scratch))
        of = measured(tmp_path, "native", watch)
        assert not list(scratch.iterdir())
    failed = assert_only_the_victim_failed(of)
    assert "no room for a copy of the dataset" in (failed.reason or "")


def test_a_run_folder_that_cannot_grow(tmp_path: Path) -> None:
    needs("native")
    with memory_disk(tmp_path / "runs-disk", "4m") as disk:
        text = SPEC.format(stack="native", measurement_time="5ms", budget="60s")
        with pytest.raises(RunFolderError, match="No space left") as caught:
            run.begin(spec.parse(text, "test"), text, disk / "runs", Harm("victim Q6", lambda: fill(disk), index=1))
        assert "make room" in caught.value.hint
        assert "--resume" in caught.value.hint
        folder = only_run(disk / "runs")
        assert carried(Marks(folder)) == {}
        before = (folder / schema.HISTORY_FILE).read_bytes()
        assert before.endswith(b"\n")
        assert read_run(folder).complete_rounds == (0,)
        plan = (folder / schema.PLAN_FILE).read_bytes()
        empty(disk)
        run.resume(folder, Harm("", nothing))
        assert (folder / schema.HISTORY_FILE).read_bytes().startswith(before)
        assert (folder / schema.PLAN_FILE).read_bytes() == plan
        of = read_run(folder)
        assert of.complete_rounds == tuple(range(ROUNDS))
        assert [attempt.attempt for attempt in of.attempts if attempt.round == 1] == [0, 1]
        assert leftovers(folder) == []
        assert carried(Marks(folder)) == {}


# --- signals and terminals -----------------------------------------------------------------------------------------------------


PROGRAM = str(Path(sys.executable).parent / "dbtoll")


def spec_file(tmp_path: Path, rounds_max: int = 60) -> Path:
    """Of a run whose pilot is none of its rounds: they have more blocks than one that counts."""
    text = SPEC.format(stack="native", measurement_time="5ms", budget="10m")
    text = text.replace("blocks_max = 2", f"blocks_max = {pilot.COUNTS_UP_TO_BLOCKS + 2}")
    file = tmp_path / "spec.toml"
    file.write_text(text.replace("rounds_max = 4", f"rounds_max = {rounds_max}"))
    return file


def wait_for_a_round(runs: Path, process: subprocess.Popen[bytes] | None = None) -> Path:
    """The run folder, some way into its second round."""
    folder = wait_for_record(runs, b"round_end", process)
    time.sleep(1.0)
    return folder


def wait_for_record(runs: Path, record: bytes, process: subprocess.Popen[bytes] | None = None) -> Path:
    """The run folder, as soon as its history has that ``record``."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process is None or process.poll() is None
        for history in runs.glob("*/history.ndjson"):
            if b'"record":"%s"' % record in history.read_bytes():
                return history.parent.resolve()  # not by the link `latest`
        time.sleep(0.05)
    pytest.fail(f"no {record.decode()} was written")


def assert_ended_in_order(folder: Path) -> None:
    assert carried(Marks(folder)) == {}
    assert leftovers(folder) == []
    ended = read_run(folder)
    assert ended.end is not None
    assert ended.end.reason == "stopped by the user"


def test_signals_during_the_teardown_change_nothing(tmp_path: Path) -> None:
    needs("native")
    before = settings()
    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "run", spec_file(tmp_path), "--runs-dir", tmp_path / "runs"], stdout=log, stderr=log
        )
        folder = wait_for_a_round(tmp_path / "runs", process)
        process.send_signal(signal.SIGTERM)
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] * 3:
            time.sleep(0.02)
            if (folder / "history.ndjson").read_bytes().count(b'"record":"run_end"'):
                break
            process.send_signal(number)
        process.wait(120)
    said = (tmp_path / "log.txt").read_text()
    assert "Traceback" not in said
    assert "defect" not in said
    assert "please wait" in said
    assert_ended_in_order(folder)
    assert settings() == before


def test_a_run_that_is_stopped_in_its_first_round_says_so_and_can_go_on(tmp_path: Path) -> None:
    needs("native")
    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "run", spec_file(tmp_path), "--runs-dir", tmp_path / "runs"], stdout=log, stderr=log
        )
        folder = wait_for_record(tmp_path / "runs", b"round_begin", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == INTERRUPTED, (tmp_path / "log.txt").read_text()
    said = (tmp_path / "log.txt").read_text()
    assert "defect" not in said
    assert f"dbtoll run {folder} --resume" in said
    assert_ended_in_order(folder)
    assert read_run(folder).complete_rounds == ()
    assert "stopped by the user" in (folder / "report.html").read_text()
    run.resume(folder, Harm("", nothing))
    assert read_run(folder).complete_rounds == tuple(range(ROUNDS))


def test_a_terminal_that_goes_away_ends_the_run_in_order(tmp_path: Path) -> None:
    needs("native")
    file = spec_file(tmp_path)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TMPDIR"] = str(tmp_path)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        os.execv(PROGRAM, [PROGRAM, "run", str(file), "--runs-dir", str(tmp_path / "runs")])
    reading = threading.Thread(target=_read_all, args=(terminal,), daemon=True)
    reading.start()
    folder = wait_for_a_round(tmp_path / "runs")
    os.close(terminal)
    os.waitpid(pid, 0)
    assert_ended_in_order(folder)
    assert not list(tmp_path.glob("dbtoll-defect*"))


def _read_all(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        return


def test_a_reader_of_its_output_that_goes_away_does_not_end_it(tmp_path: Path) -> None:
    needs("native")
    file = tmp_path / "spec.toml"
    text = SPEC.format(stack="native", measurement_time="5ms", budget="60s")
    file.write_text(text.replace("rounds_max = 4", "rounds_max = 2"))
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [PROGRAM, "run", file, "--runs-dir", tmp_path / "runs"],
        stdout=subprocess.DEVNULL,
        stderr=writer,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    os.close(writer)
    os.read(reader, 10)
    os.close(reader)
    process.wait(120)
    folder = only_run(tmp_path / "runs")
    assert read_run(folder).complete_rounds == (0, 1)
    assert carried(Marks(folder)) == {}
    assert not list(tmp_path.glob("dbtoll-defect*"))


@pytest.mark.parametrize("index", [PILOT, 1])
def test_a_signal_that_a_failing_clean_up_hides_ends_the_run(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the pilot and in a round."""
    needs("native")

    def cut(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            raise AgentFailure("io", "Directory not empty")

    def harm() -> None:
        monkeypatch.setattr(dataset, "fresh_copy", cut)

    text = SPEC.format(stack="native", measurement_time="5ms", budget="60s")
    experiment, watch = spec.parse(text, "test"), Harm("start of victim", harm, monkeypatch.undo, index=index)
    if index == PILOT:
        with pytest.raises(KeyboardInterrupt):
            run.begin(experiment, text, tmp_path / "runs", watch)
        folder = only_run(tmp_path / "runs")
        assert carried(Marks(folder)) == {}
    else:
        folder = run.begin(experiment, text, tmp_path / "runs", watch)
        assert_ended_in_order(folder)
    assert leftovers(folder) == []


def test_nohup_keeps_it_from_hanging_up(tmp_path: Path) -> None:
    needs("native")
    process = subprocess.Popen(
        ["nohup", PROGRAM, "run", spec_file(tmp_path), "--runs-dir", tmp_path / "runs"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    folder = wait_for_a_round(tmp_path / "runs", process)
    process.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    assert process.poll() is None
    assert read_run(folder).end is None
    process.send_signal(signal.SIGTERM)
    process.wait(120)
    assert_ended_in_order(folder)


# --- SIGKILL ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Sockets, and podman's state, lie below it."""
    with TemporaryDirectory(prefix="k") as folder:
        yield Path(folder)


ON_A_DEVICE = ("native", "bubblewrap", "docker", "podman", "uml")


@pytest.mark.parametrize("name", registry.names("environments"))
def test_killed_after_any_line_of_its_journal_nothing_stays(
    name: str, short_path: Path, local: AgentMachine, request: pytest.FixtureRequest
) -> None:
    """Between the note and the deed, and between the deed and the note that it is undone: at each of them, once. Where a device can
    hold its data, one does: nothing is mounted or on it afterwards, and a container engine keeps nothing of it."""
    tmp_path = short_path
    kind = registry.find("environments", name)
    if getattr(kind, "simulated", False):
        pytest.skip("it makes nothing")
    if issubclass(kind, RemoteEnvironment):
        options = request.getfixturevalue("loopback").options()
    else:
        options = {}
        needs(name)
    with ExitStack() as until_the_end:
        device = until_the_end.enter_context(loop_device(local, tmp_path)) if name in ON_A_DEVICE else None
        options |= {"storage": device} if device else {}
        unharmed = tmp_path / f"k{os.getpid()}-0"
        lines = lines_of_a_life(unharmed, name, options)
        assert lines >= 2 and (device is None or f'"{device}"' in (unharmed / FILE).read_text())
        assert carried(Marks(unharmed)) == {}
        # A guest of QEMU boots ten times as long as one of User Mode Linux, and machines/guest/boot.py writes the journal of both.
        for line in range(1, lines + 1, 3 if name == "qemu" else 1):
            folder = tmp_path / f"k{os.getpid()}-{line}"
            # The first life of a daemon with a fresh root may note more than the later ones.
            kill_at_line(folder, name, options, line, may_end=name in ("docker", "podman") and line > lines - 2)
            cleaned = Cleaned()
            assert clean_one(journal_of(folder), cleaned), (line, cleaned)
            until = time.monotonic() + 5
            while (left := carried(Marks(folder))) and time.monotonic() < until:
                time.sleep(0.05)
            assert left == {}, (line, cleaned)
            assert leftovers(journal_of(folder)) == []
            if device:
                assert local.run(["wipefs", "--all", "--no-act", device]).output == b"", line
                assert device not in local.get("/proc/self/mountinfo", max_bytes=16 << 20).decode()


def test_a_device_that_was_being_filled_is_unmounted_and_emptied_and_no_other_one(
    local: AgentMachine, short_path: Path
) -> None:
    mark, mount = str(uuid.uuid4()), f"{storage.MOUNTS}/t{os.getpid()}-device"
    with loop_device(local, short_path) as device:
        identity = {"device": device, "uuid": mark, "mount": mount, "boot": boot_id(local)}
        local.run(["mke2fs", "-q", "-t", "ext4", "-U", mark, device])
        storage.remove(local, {**identity, "uuid": str(uuid.uuid4())})
        assert mark in local.run(["blkid", "--probe", device]).output.decode()
        local.run(["mkdir", "-p", mount])
        local.run(["mount", device, mount])
        storage.remove(local, identity)  # also while it is mounted
        assert not Path(mount).exists()
        assert local.run(["cmp", "--bytes", str(storage.EMPTY_BYTES), device, "/dev/zero"]).exit_code == 0
        # Without a file system: one that was being made, unless that was before the host began anew.
        local.run(["dd", "if=/dev/urandom", f"of={device}", "bs=4096", "count=8", "conv=fsync", "status=none"])
        storage.remove(local, {**identity, "boot": "another"})
        assert local.run(["cmp", "--bytes", "4096", device, "/dev/zero"], check=False).exit_code == 1
        storage.remove(local, identity)
        assert local.run(["cmp", "--bytes", "4096", device, "/dev/zero"]).exit_code == 0


def test_a_daemon_that_sleeps_for_a_living_run_is_not_taken_for_a_dead_ones(
    local: AgentMachine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if programs.find_program(local, "dockerd") is None:
        pytest.skip("no dockerd is installed")
    root = str(tmp_path_factory.mktemp("d"))
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    held = dockerd.lease(local, NullJournal(), f"t{os.getpid()}", root, cpus)
    try:
        held.rest()
        pid = held.daemon.process.pid
        with open_local() as another, pytest.raises(Unavailable, match="another dbtoll run"):
            dockerd.lease(another, NullJournal(), "second", root, cpus)
        held.wake()
        assert held.daemon.serves()
        assert held.daemon.process.pid == pid
    finally:
        held.release()


def test_a_systems_daemon_that_ends_is_not_replaced_by_one_of_ours(
    local: AgentMachine, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arm would be another one under the same name. Here a daemon of the test stands for the system's."""
    if programs.find_program(local, "dockerd") is None:
        pytest.skip("no dockerd is installed")
    folder = tmp_path_factory.mktemp("d")
    image = small_image(folder / "root")
    held = dockerd.lease(local, NullJournal(), f"t{os.getpid()}", str(folder), (CPU,))
    monkeypatch.setattr(docker, "SYSTEM_SOCKET", held.socket)
    with open_local() as host:
        with docker.Environment().open(host, machine_spec("a", image), NullJournal()) as arm:
            assert arm.run(["true"]).exit_code == 0
        held.release()
        with pytest.raises(Unavailable, match=r"no Docker API answers at .*docker\.sock"):
            docker.Environment().open(host, machine_spec("a", image), NullJournal())


def test_what_is_no_group_of_dbtoll_is_never_emptied(local: AgentMachine) -> None:
    """Whatever a damaged journal says."""
    for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/dbtoll", "/sys/fs/cgroup/system.slice/x"):
        with pytest.raises(DbtollError, match="nothing was done"):
            removal.remove(local, {"paths": [path]})


def test_the_selfbench_of_kills(tmp_path: Path) -> None:
    """Few of them here; `dbtoll selfbench kill` does twenty."""
    needs("native")
    said: list[str] = []
    certificate = measure("kill", {"kills": 2, "environments": "native", "rounds": 2, "seed": 7}, said.append)
    assert certificate.holds(), (certificate.as_json(), said)
    assert certificate.figures["kills"] == 2


def test_a_run_killed_before_its_first_round_is_resumed(tmp_path: Path) -> None:
    needs("native")
    process = subprocess.Popen(
        [PROGRAM, "run", spec_file(tmp_path, rounds_max=4), "--runs-dir", tmp_path / "runs", "--budget", "1s"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    while not list((tmp_path / "runs").glob("*/experiment.json")) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    folder = only_run(tmp_path / "runs")
    assert not (folder / schema.HISTORY_FILE).exists()
    done = subprocess.run([PROGRAM, "run", folder, "--resume", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    of = read_run(folder)
    assert of.plan.experiment.precision.budget_s == 1.0  # what the command line had changed
    assert of.end is not None
    assert carried(Marks(folder)) == {}
