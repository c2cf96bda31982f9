"""Every environment keeps the same promises; they are found by their file names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.engines.noop import Engine as NullEngine
from dbtoll.environments.docker import dockerd
from dbtoll.errors import DbtollError, Unavailable
from dbtoll.images.cache import Cache
from dbtoll.images.disk import disk_of
from dbtoll.images.kernel import debian_kernel
from dbtoll.interfaces.environment import BootingEnvironment, Environment
from dbtoll.interfaces.machine import FreezableMachine, Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.model.experiment import Resources, VisitTiming
from dbtoll.model.machine import Artifact, MissingRequirement, Provision
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement
from dbtoll.runner.cleanup.journal import Journal, leftovers
from tests.support.machine_specs import CPU, groups_left, machine_spec, small_image

pytestmark = pytest.mark.timeout(180)

Open = Callable[..., Machine]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_image(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Options by environment, so that nothing of this host's is used."""
    return {"docker": {"data_root": str(tmp_path_factory.mktemp("docker"))}}


@pytest.fixture(params=registry.names("environments"))
def environment(request: pytest.FixtureRequest) -> Environment:
    return registry.find("environments", request.param)()


@pytest.fixture
def is_simulated(environment: Environment) -> bool:
    return getattr(environment, "simulated", False)


@pytest.fixture
def is_guest(environment: Environment) -> bool:
    return isinstance(environment, BootingEnvironment)


@pytest.fixture
def kernel(environment: Environment) -> Artifact | None:
    """What the environment asks for, from the user's cache."""
    if not isinstance(environment, BootingEnvironment) or environment.kernel({}) is None:
        return None
    try:
        return debian_kernel(Cache())[0]
    except Unavailable as error:
        pytest.skip(f"{error.message}; {error.hint}")


@pytest.fixture
def open_one(
    environment: Environment,
    local: AgentMachine,
    image: Artifact,
    options: dict[str, Any],
    kernel: Artifact | None,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    *,
    is_guest: bool,
) -> Iterator[Open]:
    """``open_one(arm="a", …)`` opens the environment; afterwards the journal must be empty and no group may be left."""
    own = options.get(environment.name, {})
    if lacking := _lacks(environment, local, own, kernel):
        pytest.skip(f"{lacking.what}: {lacking.why}")
    folder = tmp_path / "run"
    disks = Cache(tmp_path_factory.getbasetemp() / "disks")

    def shaped(artifact: Artifact) -> Artifact:
        """As that environment takes it: a guest wants disks."""
        if not is_guest or not Path(artifact.path).exists():
            return replace(artifact, kind="file") if is_guest else artifact
        return disk_of(disks, artifact, spare_bytes=8 << 20)[0]

    folder.mkdir()
    with Journal(folder) as journal, ExitStack() as opened:
        if environment.name == "docker":  # one daemon for all that a test opens
            opened.callback(dockerd.lease(local, journal, f"t{os.getpid()}", own["data_root"], (CPU,)).release)

        def open_it(arm: str = "a", **asked: Any) -> Machine:
            asked["options"] = own | asked.get("options", {})
            asked["provisions"] = [replace(p, artifact=shaped(p.artifact)) for p in asked.get("provisions", ())]
            wanted = replace(machine_spec(arm, shaped(image), **asked), kernel=kernel)
            machine = environment.open(local, wanted, journal)
            opened.callback(machine.close)
            return machine

        yield open_it
    assert leftovers(folder) == []
    assert groups_left() == []


_known_lacks: dict[str, list[MissingRequirement]] = {}


def _lacks(
    environment: Environment, local: AgentMachine, own: dict[str, Any], kernel: Artifact | None
) -> MissingRequirement | None:
    """Probed once: it starts a container, or boots a guest."""
    if environment.name not in _known_lacks:
        _known_lacks[environment.name] = environment.missing_requirements(local, own, lambda: kernel)
    return next(iter(_known_lacks[environment.name]), None)


def test_it_is_described(environment: Environment) -> None:
    assert environment.name in registry.names("environments")
    assert environment.primary is None or environment.primary in environment.options
    for option in environment.options.values():
        assert isinstance(option, Option)
        assert option.help


def test_what_it_lacks_comes_with_a_mend(
    environment: Environment, local: AgentMachine, options: dict[str, Any], kernel: Artifact | None
) -> None:
    for lack in environment.missing_requirements(local, options.get(environment.name, {}), lambda: kernel):
        assert lack.what
        assert lack.why
        assert lack.hint
    assert groups_left() == []


def test_it_says_what_it_is_keeps_files_and_runs_programs_or_says_that_it_does_not(
    open_one: Open, environment: Environment, *, is_simulated: bool
) -> None:
    machine = open_one("facts")
    assert machine.facts()["environment"]["name"] == environment.name
    assert machine.name.endswith("facts")
    assert machine.hello()["clock"]
    content = bytes(range(256)) * 300
    machine.put("/tmp/file", content)
    assert machine.get("/tmp/file") == content
    if is_simulated:
        with pytest.raises(Unavailable):
            machine.run(["sh", "-c", "exit 3"])
        return
    assert machine.run(["sh", "-c", "cat; exit 3"], input=b"through", check=False).output == b"through"
    assert machine.run(["sh", "-c", "exit 3"], check=False).exit_code == 3


def test_a_visit_is_bracketed_from_outside(open_one: Open) -> None:
    machine = open_one()
    engine = NullEngine({})
    server = engine.start(machine, "/dbtoll/data", {})
    session = machine.serial(server.address, connection="persistent")
    statement = Statement("Q1", "SELECT 1", "SELECT 1")
    timing = VisitTiming(lead_in_ns=1_000_000, measurement_time_ns=2_000_000)
    for _ in range(3):
        reply = session.visit([statement], query_protocol="simple", timing=timing, answers={})
        assert {each.outcome for each in reply.executions} == {"ok"}
        inside = reply.end_ns - reply.start_ns
        assert inside >= sum(each.end_ns - each.start_ns for each in reply.executions) >= timing.measurement_time_ns
        assert reply.host_start_ns is not None
        assert reply.host_end_ns is not None
        assert reply.host_end_ns - reply.host_start_ns >= inside
    session.close()
    engine.stop(machine, server)


def test_asleep_its_cpu_time_stands_still_and_it_can_be_closed_asleep_and_twice(
    open_one: Open, *, is_simulated: bool
) -> None:
    machine = open_one()
    assert isinstance(machine, FreezableMachine)
    if not is_simulated:
        machine.spawn(["sh", "-c", "while :; do :; done"])
        machine.spawn(["sh", "-c", "while :; do true; done"])  # one that forks all the time
        # One that has left its session and its parent, as a server does.
        machine.run(["sh", "-c", "(sleep 1000 >/dev/null 2>&1 </dev/null &)"])
    for _ in range(5):
        machine.freeze()
        before = machine.cpu_ns()
        time.sleep(0.05)
        assert machine.cpu_ns() == before
        machine.thaw()
        time.sleep(0.05)
        assert is_simulated or machine.cpu_ns() > before
    machine.freeze()
    machine.close()
    machine.close()


def test_resources_are_the_ones_of_the_place(open_one: Open, *, is_simulated: bool, is_guest: bool) -> None:
    asked = Resources(memory_bytes=128 << 20, shm_bytes=8 << 20, open_files=777)
    machine = open_one(resources=asked)
    if is_simulated:
        return
    seen = machine.run(["sh", "-c", "nproc; ulimit -n; ulimit -Hn; df -B1 --output=size /dev/shm | tail -n 1"]).output
    assert seen.split() == [b"1", b"777", b"777", b"%d" % asked.shm_bytes]
    assert machine.facts()["cpus_allowed"] == ("0" if is_guest else str(CPU))
    # tail keeps what it reads: with twice the memory that it may have it must be killed, and nothing else.
    greedy = machine.run(["sh", "-c", "head -c 256M /dev/zero | tail"], check=False, timeout_s=60)
    assert greedy.exit_code != 0
    assert machine.run(["true"]).exit_code == 0


def test_provisions_are_where_they_were_asked_for_and_only_writable_ones_are_written(
    open_one: Open, tmp_path: Path, *, is_simulated: bool, is_guest: bool
) -> None:
    for name in ("writable", "fixed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "given").write_text("content")
    data = Artifact("data-1", str(tmp_path / "writable"))
    fixed = Artifact("data-2", str(tmp_path / "fixed"))
    machine = open_one(provisions=[Provision(data, "/dbtoll/data", writable=True), Provision(fixed, "/root")])
    assert machine.provide(data) == "/dbtoll/data"
    if is_simulated:
        return  # it has no files of its own
    assert machine.get("/dbtoll/data/given") == machine.get("/root/given") == b"content"
    machine.put("/dbtoll/data/made", b"inside")
    assert machine.get("/dbtoll/data/made") == b"inside"
    assert is_guest or (tmp_path / "writable/made").read_bytes() == b"inside"
    with pytest.raises(DbtollError):
        machine.put("/root/made", b"inside")
    assert not (tmp_path / "fixed/made").exists()


def test_two_arms_do_not_see_each_other(open_one: Open, *, is_simulated: bool) -> None:
    first, second = open_one("a"), open_one("b")
    assert isinstance(first, FreezableMachine)
    first.put("/tmp/mine", b"first")
    with pytest.raises(DbtollError):
        second.get("/tmp/mine")
    first.freeze()
    if not is_simulated:
        assert second.run(["true"]).exit_code == 0
    first.thaw()


def test_what_cannot_be_opened_leaves_nothing(open_one: Open, *, is_simulated: bool) -> None:
    if is_simulated:
        pytest.skip("it can always be opened")
    nowhere = Artifact("gone", "/nonexistent/data")
    with pytest.raises(DbtollError) as caught:
        open_one(cpuset=(1023,))
    assert "1023" in str(caught.value)
    with pytest.raises(Unavailable, match="/nonexistent/data"):
        open_one(provisions=[Provision(nowhere, "/dbtoll/data", writable=True)])
    # The fixture finds anything that is left.
