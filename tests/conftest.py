"""What tests on real machines share: the system image, this host as a machine, native arms on it.

Where something is missing the test is skipped, and says what and why.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from dbtoll.contracts import machines
from dbtoll.contracts.machines import OpenArm
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.machine import Artifact
from tests.support.program import CARGO_TESTS, ROOT
from tests.support.sshd import Sshd, sshd

_DEBIAN_13 = """
from dbtoll.images.cache import Cache
from dbtoll.images.debian import debian_image
from dbtoll.runner.preparation.software import image_software
debian_image(Cache(), "trixie", software=image_software())
"""

AHEAD: dict[str, tuple[Sequence[str], Path]] = {
    "test_the_agents_own_tests_pass": ([*CARGO_TESTS, "--no-run"], ROOT / "agent"),
    "test_the_tests_of_the_server_of_embedded_engines_pass": ([*CARGO_TESTS, "--no-run"], ROOT / "embedded"),
    "test_versions_and_settings_are_compared_in_one_run": ([sys.executable, "-c", _DEBIAN_13], ROOT),
}
"""Test -> what makes into a cache what it would wait for, and where that runs."""

_begun_ahead: list[subprocess.Popen[bytes]] = []


_BESIDE = (
    "agent",
    "bad_input",
    "bare_debian",
    "dataset",
    "disk",
    "docker",
    "guest_kernel",
    "guests",
    "hostile_specification",
    "image",
    "kept_files",
    "launcher",
    "mariadb",
    "native",
    "page_in_browser",
    "podman",
    "postgres",
    "power",
    "rust",
    "secrets",
    "server_process",
    "session",
    "site_in_browser",
    "terminals",
    "toys",
    "tpch_answers",
    "version_2_groups",
    "wheel",
    "without_groups",
)
BESIDE = tuple(f"tests/system/test_{name}.py" for name in _BESIDE)
"""System tests that take nothing of the machine as a whole and look for nothing of others, or are alone where they do; what they
run takes its turn."""


class OneForTheMachine(LoadScopeScheduling):
    """Where two processes test (`./dbtoll test`): one does what takes the machine as a whole (processors that a run locks,
    daemons, settings), one test after the other; the other process does the rest beside it, file by file.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        takes_the_machine = file.startswith("tests/system/") and file not in BESIDE
        return "machine" if takes_the_machine else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneForTheMachine:
    """See pytest-xdist's hooks."""
    return OneForTheMachine(config, log)


_BUSY = ("user", "nice", "system", "irq", "softirq")
_OTHERS = ("idle", "iowait", "steal")


def _processors_s() -> dict[str, float]:
    """What all processors have done since the machine began (proc(5), /proc/stat)."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    counted = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = os.sysconf("SC_CLK_TCK")
    return {name: int(count) / ticks for name, count in zip(names, counted, strict=False)}


_processors_at_begin_s = _processors_s()

_took_s: dict[tuple[str, str], float] = defaultdict(float)
"""(Process, file) -> s that its tests took. Of the process that tells the others what to test."""

FILES_SHOWN = 20


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds up what files take: which to look at where the tests as a whole take too long."""
    if (node := getattr(report, "node", None)) is not None:
        _took_s[node.gateway.id, report.nodeid.partition("::")[0]] += report.duration


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What each process took, and the files in which most of it went; whether a third one would have found a processor."""
    now_s = _processors_s()
    spent_s = {name: s - _processors_at_begin_s[name] for name, s in now_s.items()}
    others = ", ".join(f"{name} {spent_s[name]:.0f} s" for name in _OTHERS)
    terminalreporter.line(f"processors: busy {sum(spent_s[name] for name in _BUSY):.0f} s, {others}")
    for process in sorted({process for process, _ in _took_s}):
        files = sorted(((s, file) for (its, file), s in _took_s.items() if its == process), reverse=True)
        terminalreporter.section(f"{process}: {sum(s for s, _ in files):.0f} s in {len(files)} files")
        for s, file in files[:FILES_SHOWN]:
            terminalreporter.line(f"{s:6.0f} s  {file}")


_turns: list[ExitStack] = []
"""What this process holds while it tests: one at most."""


def _alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[object]:
    """A test that is marked ``alone`` looks at all of the machine: the other process tests nothing meanwhile. Several in a row wait
    once."""
    if not hasattr(item.config, "workerinput"):  # one process tests; it may be a test's own
        return (yield)
    if not _turns:
        turn = ExitStack()
        turn.enter_context(_locked(ROOT / "tests/system", fcntl.LOCK_EX if _alone(item) else fcntl.LOCK_SH))
        _turns.append(turn)
    try:
        return (yield)
    finally:
        if not (_alone(item) and _alone(nextitem)):
            _turns.pop().close()


@contextmanager
def _locked(directory: Path, how: int) -> Iterator[None]:
    """flock(2). Who waits to be alone holds the directory above too, so that nobody overtakes it."""
    above, own = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (directory.parent, directory))
    try:
        fcntl.flock(above, fcntl.LOCK_EX)
        fcntl.flock(own, how)
        fcntl.flock(above, fcntl.LOCK_UN)
        yield
    finally:
        fcntl.flock(own, fcntl.LOCK_UN)  # closing is not enough where a test has forked
        os.close(own)
        os.close(above)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is made ahead for a test is there when it comes last."""
    items.sort(key=lambda item: item.name in AHEAD)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begins what slow tests need, if they are to run: on a second processor, and after everybody else there."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0" or len(session.items) == 1:
        return
    asked = {item.name for item in session.items}
    for words, folder in [AHEAD[name] for name in AHEAD if name in asked]:
        if shutil.which(words[0]) is None:
            continue
        with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
            silent = {"stdin": nothing, "stdout": nothing, "stderr": nothing}
            process = subprocess.Popen(words, cwd=folder, start_new_session=True, **silent)
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        _begun_ahead.append(process)


def pytest_sessionfinish() -> None:
    """Nothing goes on after the tests, and nobody waits for this process, whatever ended them."""
    while _turns:
        _turns.pop().close()
    for process in _begun_ahead:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # its compilers too
        process.wait()


# No test asserts how long something takes: a machine may be busy.
hypothesis.settings.register_profile("dbtoll", deadline=None)
hypothesis.settings.load_profile("dbtoll")

# What a shell without job control starts in the background ignores it, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def directories_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of the tests: each on a part of the disk of its own, where that can be asked for (`dbtoll.images.dataset.fresh_copy`)."""
    if shutil.which("chattr"):
        subprocess.run(["chattr", "+T", tmp_path_factory.getbasetemp()], capture_output=True, check=False)


@pytest.fixture(scope="session")
def system_image() -> Artifact:
    """Debian's, from the user's cache; built if it is not there."""
    return machines.system_image()


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Where a run is measured in this process. Of another name in each: no two living runs of a machine have one name."""
    return tmp_path / f"run-{os.getpid()}"


@pytest.fixture
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """This host as another one, which a real sshd lets root into; nothing is left there at the end."""
    with sshd(tmp_path_factory.mktemp("sshd")) as there:
        yield there
        assert there.left() == []


@pytest.fixture
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """The same with mounts of its own, so that whatever is left in them is seen."""
    with sshd(tmp_path_factory.mktemp("sshd"), apart=True) as there:
        yield there
        assert there.left() == []


@pytest.fixture
def local() -> Iterator[AgentMachine]:
    """This host."""
    with machines.local_machine() as machine:
        yield machine


@pytest.fixture
def open_arm(local: AgentMachine, tmp_path: Path) -> Iterator[OpenArm]:
    """``open_arm(*provisions, name="a", resources=None, engine=None)``: a native arm; closed, and nothing left, at the end."""
    with machines.arms_of_baseline(local, tmp_path / "run") as open_one:
        yield open_one
