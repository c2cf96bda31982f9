"""Every environment keeps the same promises."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest

from dbtoll import defaults, registry
from dbtoll.contracts.machines import (
    CPU,
    groups_left,
    local_machine,
    loop_device,
    machine_spec,
    mounted_elsewhere,
    small_image,
    small_image_at,
)
from dbtoll.contracts.shape import demand_shape
from dbtoll.errors import DbtollError, Unavailable
from dbtoll.images.cache import Cache
from dbtoll.images.disk import disk_of
from dbtoll.images.kernel import debian_kernel
from dbtoll.images.program import debian_program
from dbtoll.interfaces import environment as interface
from dbtoll.interfaces.environment import (
    BootingEnvironment,
    Environment,
    ProgramEnvironment,
    RemoteEnvironment,
    RunScopedEnvironment,
)
from dbtoll.interfaces.machine import FreezableMachine, Machine
from dbtoll.machines import block_device, mounts
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.cgroups.hold import hold
from dbtoll.model import storage
from dbtoll.model.description import EnvironmentDescription
from dbtoll.model.experiment import Resources, VisitTiming
from dbtoll.model.machine import Artifact, MissingRequirement, Provision, ServerPlace
from dbtoll.model.options import Option
from dbtoll.model.reply import Statement
from dbtoll.runner.checks import storage as storage_check
from dbtoll.runner.cleanup.journal import Journal, leftovers
from dbtoll.runner.cleanup.removers import with_environments
from dbtoll.spec.options import given_values
from dbtoll.spec.stack import parse_stack

Open = Callable[..., Machine]

FOREIGN = "0c1d8a4e-5c0f-4d55-9f07-7a6f7be2d601"
"""UUID of a file system that is none of dbtoll's."""

HELD_TO = 200
"""Requests a second."""

_known_lacks: dict[str, list[MissingRequirement]] = {}
"""By name; probed once: it starts a container, or boots a guest."""


_folders: dict[str, TemporaryDirectory[str]] = {}
"""By name, removed with the interpreter. Not pytest's own: paths of sockets and of podman's state have limits."""


class EnvironmentContract:
    """``member``: the environment's class. What a machine lacks for it skips the tests that open it, and says so."""

    member: ClassVar[type[Environment]]

    @pytest.fixture
    def environment(self) -> Environment:
        return self.member()

    @pytest.fixture
    def image(self, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
        """Made once."""
        root = tmp_path_factory.getbasetemp() / "small-image/root"
        return small_image_at(root) if root.exists() else small_image(root)

    @pytest.fixture
    def local(self) -> Iterator[AgentMachine]:
        with local_machine() as machine:
            yield machine

    @pytest.fixture
    def options(self, environment: Environment, request: pytest.FixtureRequest) -> dict[str, Any]:
        """So that nothing of this host's is used; one folder for all tests of an environment."""
        if environment.name not in _folders:
            _folders[environment.name] = TemporaryDirectory(prefix="dbtoll-")
        folder = Path(_folders[environment.name].name)
        there = request.getfixturevalue("elsewhere") if isinstance(environment, RemoteEnvironment) else {}
        return {**environment.contract_options(folder), **there}

    @pytest.fixture
    def elsewhere(self) -> Mapping[str, Any]:
        """Options that name another host, for a `RemoteEnvironment`: who tests one gives his."""
        pytest.skip("no host is named: override the fixture `elsewhere`")

    @pytest.fixture
    def kernel(self, environment: Environment) -> Artifact | None:
        """What the environment asks for, from the user's cache."""
        if not isinstance(environment, BootingEnvironment) or environment.kernel({}) is None:
            return None
        try:
            return debian_kernel(Cache())[0]
        except Unavailable as error:
            pytest.skip(f"{error.message}; {error.hint}")

    @pytest.fixture
    def program(self, environment: Environment, local: AgentMachine, options: dict[str, Any]) -> Artifact | None:
        """What the environment asks for, from the user's cache."""
        wanted = environment.program(local, options) if isinstance(environment, ProgramEnvironment) else None
        try:
            return debian_program(Cache(), wanted)[0] if wanted else None
        except Unavailable as error:
            pytest.skip(f"{error.message}; {error.hint}")

    @pytest.fixture
    def open_one(
        self,
        environment: Environment,
        local: AgentMachine,
        image: Artifact,
        options: dict[str, Any],
        kernel: Artifact | None,
        program: Artifact | None,
        tmp_path: Path,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[Open]:
        """``open_one(arm="a", …)`` opens the environment; afterwards the journal must be empty and no group may be left."""
        if environment.name not in _known_lacks:
            _known_lacks[environment.name] = environment.missing_requirements(local, options, lambda: kernel or program)
        if lacking := _known_lacks[environment.name]:
            pytest.skip(f"{lacking[0].what}: {lacking[0].why}")
        is_guest = isinstance(environment, BootingEnvironment)
        folder = tmp_path / "run"
        disks = Cache(tmp_path_factory.getbasetemp() / "disks")

        def shaped(artifact: Artifact) -> Artifact:
            """As that environment takes it: a guest wants disks."""
            if not is_guest or not Path(artifact.path).exists():
                return replace(artifact, kind="file") if is_guest else artifact
            return disk_of(disks, artifact, spare_bytes=8 << 20)[0]

        folder.mkdir()
        with Journal(folder) as journal, ExitStack() as opened:
            if isinstance(environment, RunScopedEnvironment):  # for all that a test opens
                shared = machine_spec("shared", shaped(image), options=options)
                opened.enter_context(environment.for_run(local, shared, journal))

            def open_it(arm: str = "a", **asked: Any) -> Machine:
                asked["options"] = options | asked.get("options", {})
                asked["provisions"] = [replace(p, artifact=shaped(p.artifact)) for p in asked.get("provisions", ())]
                wanted = replace(machine_spec(arm, shaped(image), **asked), kernel=kernel, program=program)
                machine = environment.open(local, wanted, journal)
                opened.callback(machine.close)
                return machine

            yield open_it
        assert leftovers(folder) == []
        assert groups_left() == []

    # --- what it says of itself ------------------------------------------------------------------------------------------

    def test_it_has_the_shape_of_an_environment(self, environment: Environment) -> None:
        demand_shape(type(environment), interface.Environment)
        assert isinstance(environment.simulated, bool)

    def test_the_registry_knows_it(self, environment: Environment) -> None:
        assert registry.find("environments", environment.name) is type(environment)
        assert not {*environment.also_called} & {*registry.names("environments")}

    def test_it_is_described(self, environment: Environment) -> None:
        description = environment.description
        assert isinstance(description, EnvironmentDescription)
        assert description.title
        assert set(description.asked_facts) <= set(environment.options)
        assert set(description.asked_facts.values()) <= {"processors", "cpu_quota"}
        assert environment.start_bound_s is None or environment.start_bound_s > 0

    def test_its_options_are_a_table_that_a_specification_can_use(self, environment: Environment) -> None:
        assert environment.primary is None or environment.primary in environment.options
        for option in environment.options.values():
            assert isinstance(option, Option)
            assert option.help
        what = f"environment {environment.name!r}"
        for trial in environment.trials:
            assert set(trial.options) <= set(environment.options)
        for stack in environment.default_stacks:
            assert parse_stack(stack)[-1].environment == environment.name
        assert given_values({}, environment.options, what) == {}

    def test_doctor_has_a_way_to_try_it(self, environment: Environment) -> None:
        assert environment.trials

    def test_what_it_writes_into_a_journal_is_its_own_to_remove(
        self, environment: Environment, local: AgentMachine
    ) -> None:
        """`with_environments` raises where two environments remove one kind."""
        known = with_environments(local, {})
        for kind in environment.removers():
            assert re.fullmatch("[a-z_]+", kind)
            with pytest.raises(DbtollError):  # an identity that no machine of its own can have
                known[kind]({"path": "/etc/passwd/..", "name": "; rm", "data_root": "etc", "paths": 7})

    # --- what it lacks ---------------------------------------------------------------------------------------------------

    def test_what_it_lacks_comes_with_a_hint(
        self,
        environment: Environment,
        local: AgentMachine,
        options: dict[str, Any],
        kernel: Artifact | None,
        program: Artifact | None,
    ) -> None:
        for lack in environment.missing_requirements(local, options, lambda: kernel or program):
            assert lack.what
            assert lack.why
            assert lack.hint
        assert groups_left() == []

    # --- its machines ----------------------------------------------------------------------------------------------------

    def test_it_says_what_it_is_keeps_files_and_runs_programs_or_says_that_it_does_not(
        self, open_one: Open, environment: Environment
    ) -> None:
        machine = open_one("facts")
        assert machine.facts()["environment"]["name"] == environment.name
        assert machine.name.endswith("facts")
        assert machine.hello()["clock"]
        content = bytes(range(256)) * 300
        machine.put("/tmp/file", content)
        assert machine.get("/tmp/file") == content
        if environment.simulated:
            with pytest.raises(Unavailable):
                machine.run(["sh", "-c", "exit 3"])
            return
        assert machine.run(["sh", "-c", "cat; exit 3"], input=b"through", check=False).output == b"through"
        assert machine.run(["sh", "-c", "exit 3"], check=False).exit_code == 3

    def test_a_visit_is_bracketed_from_outside(self, open_one: Open) -> None:
        machine = open_one()
        engine = registry.find("engines", defaults.FLOOR)({})
        server = engine.start(machine, ServerPlace(), {})
        session = machine.serial(server.address, connection="persistent")
        statement = Statement("Q1", "SELECT 1", "SELECT 1")
        timing = VisitTiming(lead_in_ns=1_000_000, measurement_time_ns=2_000_000)
        for _ in range(3):
            reply = session.visit([statement], query_protocol="simple", timing=timing, answers={}).result()
            assert {each.outcome for each in reply.executions} == {"ok"}
            inside = reply.end_ns - reply.start_ns
            assert inside >= sum(each.end_ns - each.start_ns for each in reply.executions) >= timing.measurement_time_ns
            assert reply.host_start_ns is not None
            assert reply.host_end_ns is not None
            assert reply.host_end_ns - reply.host_start_ns >= inside
        session.close()
        engine.stop(machine, server)

    def test_asleep_its_cpu_time_stands_still_and_it_can_be_closed_asleep_and_twice(
        self, open_one: Open, environment: Environment
    ) -> None:
        machine = open_one()
        assert isinstance(machine, FreezableMachine)
        if not environment.simulated:
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
            until = time.monotonic() + 10  # a busy host may give it no time at once
            while not environment.simulated and machine.cpu_ns() <= before:
                assert time.monotonic() < until
                time.sleep(0.05)
        machine.freeze()
        machine.close()
        machine.close()

    def test_its_processes_are_known_to_the_machine_around_or_said_not_to_be(
        self, open_one: Open, local: AgentMachine
    ) -> None:
        machine = open_one()
        around = getattr(machine, "parent", local)
        assert isinstance(machine, FreezableMachine)
        found = machine.processes()
        if found is None:
            return
        assert found
        for pid in found:
            assert around.get(f"/proc/{pid}/cgroup")

    def test_resources_are_the_ones_of_the_place(self, open_one: Open, environment: Environment) -> None:
        asked = Resources(memory_bytes=128 << 20, shm_bytes=8 << 20, open_files=777)
        machine = open_one(resources=asked)
        if environment.simulated:
            return
        script = "nproc; ulimit -n; ulimit -Hn; df -B1 --output=size /dev/shm | tail -n 1"
        seen = machine.run(["sh", "-c", script]).output
        assert seen.split() == [b"1", b"777", b"777", b"%d" % asked.shm_bytes]
        is_guest = isinstance(environment, BootingEnvironment)
        assert machine.facts()["cpus_allowed"] == ("0" if is_guest else str(CPU))
        # tail keeps what it reads: with twice the memory that it may have it must be killed, and nothing else.
        greedy = machine.run(["sh", "-c", "head -c 256M /dev/zero | tail"], check=False, timeout_s=60)
        assert greedy.exit_code != 0
        assert machine.run(["true"]).exit_code == 0

    def test_its_requests_to_a_device_can_be_held_back(
        self, open_one: Open, environment: Environment, local: AgentMachine, tmp_path: Path
    ) -> None:
        if environment.simulated:
            return
        at = mounts.mount_of(local, str(tmp_path))
        if at.device.startswith("0:"):
            pytest.skip(f"{tmp_path} lies on no disk: {at.file_system}")
        (tmp_path / "data").mkdir()
        data = Artifact("held", str(tmp_path / "data"))
        machine = open_one(provisions=[Provision(data, "/dbtoll/data", writable=True)])
        around = getattr(machine, "parent", local)
        place = str(tmp_path) if isinstance(environment, BootingEnvironment) else around.provide(data)
        asked = Resources(write_requests=HELD_TO)
        hold(around, machine, asked, [place], is_neighbour=False, rates=True)
        words = ["if=/dev/zero", "of=/dbtoll/data/written", "bs=4k", f"count={HELD_TO // 2}", "oflag=dsync"]
        begun = time.monotonic()
        machine.run(["dd", *words, "status=none"], timeout_s=60)
        assert time.monotonic() - begun > 0.4, "what takes half a second took less"

    def test_provisions_are_where_they_were_asked_for_and_only_writable_ones_are_written(
        self, open_one: Open, environment: Environment, tmp_path: Path
    ) -> None:
        for name in ("writable", "fixed"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "given").write_text("content")
        data = Artifact("data-1", str(tmp_path / "writable"))
        fixed = Artifact("data-2", str(tmp_path / "fixed"))
        machine = open_one(provisions=[Provision(data, "/dbtoll/data", writable=True), Provision(fixed, "/root")])
        assert machine.provide(data) == "/dbtoll/data"
        if environment.simulated:
            return  # it has no files of its own
        assert machine.get("/dbtoll/data/given") == machine.get("/root/given") == b"content"
        machine.put("/dbtoll/data/made", b"inside")
        assert machine.get("/dbtoll/data/made") == b"inside"
        is_copy = isinstance(environment, BootingEnvironment | RemoteEnvironment)
        assert is_copy or (tmp_path / "writable/made").read_bytes() == b"inside"
        with pytest.raises(DbtollError):
            machine.put("/root/made", b"inside")
        assert not (tmp_path / "fixed/made").exists()

    def test_its_data_lie_where_they_were_asked_to_and_nothing_of_them_is_left(
        self, open_one: Open, environment: Environment, local: AgentMachine, tmp_path: Path
    ) -> None:
        """Every kind of storage that it has, and an empty block device."""
        known = type(environment).options.get(storage.OPTION)
        if known is None:
            return  # it has one kind of storage
        (tmp_path / "data").mkdir()
        (tmp_path / "data/given").write_text("content")
        (tmp_path / "data").chmod(0o700)
        os.chown(tmp_path / "data", 65534, 65533)
        with loop_device(local, tmp_path) as device:
            for number, kind in enumerate([*known.choices, device]):
                data = Artifact(f"stored-{number}", str(tmp_path / "data"))
                asked = [Provision(data, "/dbtoll/data", writable=True)]
                with open_one(f"stored-{number}", provisions=asked, options={storage.OPTION: kind}) as machine:
                    assert machine.provide(data) == "/dbtoll/data"
                    assert machine.get("/dbtoll/data/given") == b"content", kind
                    assert machine.run(["stat", "--format=%u:%g %a", "/dbtoll/data"]).output == b"65534:65533 700\n", (
                        kind
                    )
                    machine.run(["sh", "-c", "echo inside >/dbtoll/data/made && sync"])
                    assert machine.get("/dbtoll/data/made") == b"inside\n", kind
                    record = storage_check.check(machine, kind, data, 0, "stored")
                    assert record.passed is not False, record.finding
                    assert record.passed is True or environment.name not in registry.names("environments")
                    found = storage_check.found(machine, kind, machine.facts().get("environment") or {})
                    assert found["kind"] == kind
                    assert found["free_bytes"]
                    in_memory = kind == storage.MEMORY
                    assert (found["file_system"] in mounts.IN_MEMORY) == in_memory or kind == storage.BIND
                (tmp_path / "data/made").unlink(missing_ok=True)
            # Nothing is on it again, so that it may be taken without a word.
            assert local.run(["wipefs", "--all", "--no-act", device]).output == b""
            mounted = local.get("/proc/self/mountinfo", max_bytes=16 << 20).decode()
            assert device not in mounted
            assert f"/run/dbtoll/t{os.getpid()}" not in mounted

    def test_a_device_that_holds_something_is_refused(
        self,
        open_one: Open,
        environment: Environment,
        local: AgentMachine,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """And one that is in use, by an arm of its own too, in any case."""
        if storage.OPTION not in type(environment).options:
            return  # it has one kind of storage
        (tmp_path / "data").mkdir()
        asked = [Provision(Artifact("data", str(tmp_path / "data")), "/dbtoll/data", writable=True)]

        def refused(**options: Any) -> str:
            with pytest.raises(Unavailable) as caught:
                open_one(provisions=asked, options=options)
            return caught.value.message

        assert "no block device" in refused(storage="/dev/null")
        with loop_device(local, tmp_path) as device:
            local.run(["mke2fs", "-q", "-t", "ext4", "-U", FOREIGN, device])
            assert "holds ext4" in refused(storage=device)
            (tmp_path / "mounted").mkdir()
            with mounted_elsewhere(device, tmp_path / "mounted"):
                assert "in use" in refused(storage=device, overwrite=True)
            assert FOREIGN in local.run(["blkid", "--probe", device]).output.decode()
            with open_one("overwriting", provisions=asked, options={"storage": device, "overwrite": True}) as machine:
                machine.run(["test", "-d", "/dbtoll/data"])
                with monkeypatch.context() as impatient:
                    impatient.setattr(block_device, "RELEASE_S", 0.0)
                    assert "in use" in refused(storage=device, overwrite=True)
                machine.put("/dbtoll/data/kept", b"whole")
                assert machine.get("/dbtoll/data/kept") == b"whole"
            assert local.run(["wipefs", "--all", "--no-act", device]).output == b""

    def test_two_arms_do_not_see_each_other(self, open_one: Open, environment: Environment) -> None:
        first, second = open_one("a"), open_one("b")
        assert isinstance(first, FreezableMachine)
        first.put("/tmp/mine", b"first")
        with pytest.raises(DbtollError):
            second.get("/tmp/mine")
        first.freeze()
        if not environment.simulated:
            assert second.run(["true"]).exit_code == 0
        first.thaw()

    def test_what_cannot_be_opened_leaves_nothing(self, open_one: Open, environment: Environment) -> None:
        if environment.simulated:
            pytest.skip("it can always be opened")
        nowhere = Artifact("gone", "/nonexistent/data")
        with pytest.raises(DbtollError) as caught:
            open_one(cpuset=(1023,))
        assert "1023" in str(caught.value)
        with pytest.raises(Unavailable, match="/nonexistent/data"):
            open_one(provisions=[Provision(nowhere, "/dbtoll/data", writable=True)])
        # The fixture finds anything that is left.
