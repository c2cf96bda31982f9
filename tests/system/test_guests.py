"""Guests of User Mode Linux and QEMU, really booted: nested machines, what ends them, what their line carries."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.contracts.machines import groups_left, machine_spec, small_image, start_of
from dbtoll.errors import AgentFailure, ChannelError, DbtollError, Unavailable
from dbtoll.images.cache import Cache
from dbtoll.images.disk import disk_of
from dbtoll.images.kernel import debian_kernel
from dbtoll.interfaces.environment import BootingEnvironment
from dbtoll.interfaces.machine import Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.guest.machine import GuestMachine
from dbtoll.model.experiment import Resources
from dbtoll.model.machine import Artifact, Provision
from dbtoll.runner.cleanup.journal import Journal, leftovers
from dbtoll.selfbench.costs.collectors import PRIME, release, start_held
from tests.support.lacking import needs

pytestmark = pytest.mark.timeout(300)

GUESTS = {"uml": {}, "qemu": {"accel": "tcg"}}
STACKS = {"uml": "uml", "qemu": "qemu:tcg"}

Boot = Callable[..., GuestMachine]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_image(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("disks"))


@pytest.fixture(params=GUESTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def boot(name: str, local: AgentMachine, image: Artifact, disks: Cache, tmp_path: Path) -> Iterator[Boot]:
    """``boot(options, …)``: a guest on the small image; nothing may be left of it afterwards."""
    environment = registry.find("environments", name)()
    assert isinstance(environment, BootingEnvironment)
    needs(STACKS[name])
    kernel = debian_kernel(Cache())[0] if environment.kernel({}) else None
    folder = tmp_path / "run"
    folder.mkdir()
    with Journal(folder) as journal, ExitStack() as opened:

        def booted(
            *provisions: Provision, on: Machine = local, limits: Mapping[str, int] = {}, **options: object
        ) -> GuestMachine:
            wanted = machine_spec(
                f"{name}-{len(options)}",
                disk_of(disks, image, spare_bytes=8 << 20)[0],
                provisions=[
                    replace(p, artifact=disk_of(disks, p.artifact, spare_bytes=8 << 20)[0]) for p in provisions
                ],
                resources=Resources(memory_bytes=512 << 20, shm_bytes=16 << 20, open_files=1000, **limits),
                options={**GUESTS[name], **options},
            )
            machine = environment.open(on, replace(wanted, kernel=kernel), journal)
            opened.callback(machine.close)
            assert isinstance(machine, GuestMachine)
            return machine

        yield booted
    assert leftovers(folder) == []
    assert groups_left() == []


def monitor_of(guest: GuestMachine) -> int:
    """The process around the guest: the first of its control group."""
    return min((int(pid) for pid in guest.parent.get(f"{guest.directories[0]}/cgroup.procs").split()), key=start_of)


def test_a_machine_in_a_guest_is_a_machine(boot: Boot, image: Artifact, tmp_path: Path) -> None:
    """Agent in agent: a chroot with control groups of its own, on image and data that the guest was given as disks."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "given").write_text("content")
    artifact = Artifact(f"nested-{os.getpid()}", str(data))
    guest = boot(
        Provision(image, "/dbtoll/run/nested/image"), Provision(artifact, "/dbtoll/run/nested/data", writable=True)
    )
    inner_place = machine_spec(
        "inner", image, provisions=[Provision(artifact, "/dbtoll/data", writable=True)], cpuset=(0,)
    )
    native = registry.find("environments", "native")()
    folder = tmp_path / "inner"
    folder.mkdir()
    lacking = native.missing_requirements(guest, {})
    if lacking:  # a kernel without the controllers
        pytest.skip(f"{lacking[0].what}: {lacking[0].why}")
    with Journal(folder) as journal, native.open(guest, inner_place, journal) as inner:
        assert inner.get("/dbtoll/data/given") == b"content"
        assert inner.facts()["kernel_release"] == guest.facts()["kernel_release"]
        inner.freeze()
        before = inner.cpu_ns()
        assert guest.run(["true"]).exit_code == 0
        assert inner.cpu_ns() == before
        inner.thaw()
        assert inner.run(["cat", "/dbtoll/data/given"]).output == b"content"
    assert leftovers(folder) == []


def test_system_calls_in_a_guest_are_counted(boot: Boot) -> None:
    """Of User Mode Linux by the registers: its kernel tells a tracer nothing else."""
    guest = boot()
    process = start_held(guest, {"probe": "system_call", "events": PRIME, "batches": 1})
    with registry.find("collectors", "calls")().around(guest, process.pid) as told:
        release(guest, process)
    assert told()["getppid"]["count"] == PRIME


@pytest.mark.parametrize("name", ["qemu"], indirect=True)
def test_a_clock_that_counts_instructions_tells_the_same_again(boot: Boot) -> None:
    guest = boot(clock="instructions")
    assert guest.facts()["environment"]["clock"] == "instructions"

    def instructions() -> float:
        asked = json.dumps({"probe": "rows", "events": 20, "batches": 5, "folder": "/tmp"})
        batches = json.loads(guest.run(["/dbtoll/agent", "probe", asked]).output)["batches"]
        return float(median(batch["elapsed_ns"] / batch["events"] for batch in batches))

    first, second = instructions(), instructions()
    assert first == pytest.approx(second, rel=0.01)
    assert first > 100_000  # a thousand rows


def its_line_carries_everything_both_ways(guest: GuestMachine) -> None:
    chance = random.Random(7)
    for size in (0, 1, 2047, 2048, 2049, 4097, 37_444, 300_001):
        content = chance.randbytes(size)
        guest.put("/tmp/file", content)
        assert guest.get("/tmp/file") == content
        guest.freeze()
        guest.thaw()
    echoed = guest.run(["cat"], input=chance.randbytes(500_000))
    assert len(echoed.output) == 500_000


def its_caches_can_be_dropped(guest: GuestMachine) -> None:
    guest.run(["sh", "-c", "cat /bin/* /lib/*/* > /dev/null 2>&1"], check=False)

    def cached_kib() -> int:
        lines = guest.get("/proc/meminfo").decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Cached:"))

    before = cached_kib()
    guest.drop_caches()
    assert cached_kib() < before


def its_clock_does_not_step_while_it_sleeps(guest: GuestMachine) -> None:
    """A guest's time before and after a sleep: it goes on, never back (User Mode Linux's runs on, QEMU's stands still)."""
    stamps = []
    for _ in range(5):
        stamps.append(guest.call("ping", {})["at_ns"])
        guest.freeze()
        guest.thaw()
    assert stamps == sorted(stamps)


def killed_it_is_an_error_with_its_last_words(guest: GuestMachine) -> None:
    os.kill(monitor_of(guest), signal.SIGKILL)
    with pytest.raises(ChannelError, match="killed by signal 9"):
        guest.run(["sleep", "10"])
    guest.close()


def test_one_guest_from_its_first_word_to_its_last(boot: Boot) -> None:
    guest = boot()
    its_line_carries_everything_both_ways(guest)
    its_caches_can_be_dropped(guest)
    its_clock_does_not_step_while_it_sleeps(guest)
    killed_it_is_an_error_with_its_last_words(guest)


def test_a_guest_that_cannot_start_says_why(
    boot: Boot, local: AgentMachine, name: str, disks: Cache, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = disk_of(disks, Artifact(f"empty-{os.getpid()}", str(empty)), spare_bytes=8 << 20)[0]
    environment = registry.find("environments", name)()
    kernel = debian_kernel(Cache())[0] if environment.kernel({}) else None
    wanted = replace(machine_spec("broken", nothing, options=GUESTS[name]), kernel=kernel)
    folder = tmp_path / "broken"
    folder.mkdir()
    with Journal(folder) as journal, pytest.raises(ChannelError, match="this guest cannot start: mount"):
        environment.open(local, wanted, journal)
    assert leftovers(folder) == []


def test_a_guest_that_does_not_answer_in_time_is_given_up(boot: Boot) -> None:
    with pytest.raises(ChannelError, match="no agent answered"):
        boot(boot_timeout=10_000_000)


@pytest.mark.parametrize(
    "options",
    [
        {"machine": "microvm", "cache": "writeback", "network": "user", "boot_timeout": 30_000_000_000},
        {
            **{"machine": "pc", "cache": "directsync", "aio": "native", "iothread": True, "network": "tap"},
            **{"cpu": "qemu64", "vcpus": 1},
        },
    ],
    ids=("microvm", "pc"),
)
@pytest.mark.parametrize("name", ["qemu"], indirect=True)
def test_options_of_qemu_are_what_the_guest_gets(boot: Boot, tmp_path: Path, options: dict[str, Any]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    provision = Provision(Artifact(f"options-{os.getpid()}", str(data)), "/dbtoll/data", writable=True)
    try:
        guest = boot(provision, **options)
    except ChannelError as error:
        if options["machine"] == "microvm" and "no agent answered" in error.message:
            pytest.skip(
                "microvm has no timer but the PIT, against which an emulated guest on a busy host may fail to calibrate"
            )
        raise
    told = guest.facts()["environment"]
    for key in options.keys() - {"boot_timeout"}:
        assert told[key] == options[key]
    assert told["emulated"] is True
    words = guest.parent.get(f"/proc/{monitor_of(guest)}/cmdline").decode().split("\0")
    assert options["machine"] in words
    assert guest.run(["nproc"]).output.strip() == b"1"
    guest.put("/dbtoll/data/made", b"inside")
    # Nobody listens there: the guest's kernel says so, and QEMU's own network by ending a connection that it took.
    at_once = time.monotonic() + 5
    try:
        assert guest.parent.connect(tcp=guest.reach(9)).read(1) == b""
    except DbtollError as refusal:
        assert "refused" in str(refusal)
    assert time.monotonic() < at_once


@pytest.mark.parametrize("name", ["qemu"], indirect=True)
def test_qemu_itself_holds_a_disk_to_the_arms_rates(boot: Boot, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    provision = Provision(Artifact(f"held-{os.getpid()}", str(tmp_path / "data")), "/dbtoll/data", writable=True)
    guest = boot(provision, limits={"write_requests": 50, "write_rate": 64 << 20}, throttling="qemu")
    begun = time.monotonic()
    guest.run(["dd", "if=/dev/zero", "of=/dbtoll/data/file", "bs=4k", "count=60", "oflag=dsync", "status=none"])
    assert time.monotonic() - begun > 0.8, "what takes more than a second took less"


def test_guests_of_all_kinds_share_one_image(
    local: AgentMachine, image: Artifact, disks: Cache, tmp_path: Path
) -> None:
    """In either order: User Mode Linux and QEMU lock files in ways that do not agree."""
    shared = disk_of(disks, image, spare_bytes=8 << 20)[0]
    folder = tmp_path / "run"
    folder.mkdir()
    with Journal(folder) as journal, ExitStack() as opened:
        for number, name in enumerate(("uml", "qemu", "uml", "qemu")):
            environment = registry.find("environments", name)()
            kernel = debian_kernel(Cache())[0] if environment.kernel({}) else None
            wanted = replace(machine_spec(f"shared-{number}", shared, options=GUESTS[name]), kernel=kernel)
            try:
                machine = opened.enter_context(environment.open(local, wanted, journal))
            except Unavailable as error:
                pytest.skip(f"{error.message}; {error.hint}")
            assert machine.run(["true"]).exit_code == 0
    assert leftovers(folder) == []


def test_a_guest_without_the_right_disk_says_which(boot: Boot, image: Artifact, local: AgentMachine, name: str) -> None:
    environment = registry.find("environments", name)()
    with pytest.raises(DbtollError, match="takes only disks"):
        environment.open(local, machine_spec("wrong", image, options=GUESTS[name]), _Nothing())
    with pytest.raises(AgentFailure):
        local.get("/run/dbtoll/nothing-of-this-name")


class _Nothing:
    """A journal for what is refused before anything is made."""

    def create(self, kind: str, **identity: object) -> _Nothing:
        raise AssertionError(f"made a {kind}")
