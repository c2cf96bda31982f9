"""Devices of an arm: what a specification and a command line say, what is refused, and which figures come of what was counted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbtoll import registry, spec
from dbtoll.analysis.transactions import devices as analysis
from dbtoll.errors import ChannelError, DbtollError, SpecError, UsageError
from dbtoll.machines import arm_device
from dbtoll.model.devices import Device, Devices
from dbtoll.model.experiment import Arm, Experiment
from dbtoll.model.layout import Layout
from dbtoll.runner.arm_devices import LOG_BYTES_PER_CPU_S, ArmDevices, log_bytes, room_of, spare_bytes
from dbtoll.runner.rounds import RoundRun
from dbtoll.spec import command_line
from dbtoll.store.schema import DeviceCounts, ModelCounts
from dbtoll.store.schema import Devices as Counted

HEAD = '[workload]\nname = "tatp"\n'


def read(text: str) -> Experiment:
    return spec.parse(HEAD + text, "x.toml")


def only(text: str) -> Arm:
    """The only arm that is no copy."""
    (arm,) = (each for each in read(text).arms if each.copy_of is None)
    return arm


def test_a_name_and_a_class_mean_devices() -> None:
    arm = only(
        '[devices]\nslow = { class = "hdd7200", size = "20 GiB", write_cache = true, queue_depth = 1 }\n'
        '[[arm]]\nstack = "native"\ndata_device = "slow"\nlog_device = "memory"\n'
    )
    slow = Device("slow", "model", "hdd7200", 20 << 30, write_cache=True, queue_depth=1)
    assert arm.configuration.devices == Devices(slow, Device("memory", "memory"))
    assert arm.name == "native, data_device=slow, log_device=memory"
    assert slow.text == "slow (hdd7200, write cache, queue of 1)"


@pytest.mark.parametrize(
    ("given", "data", "log"),
    [
        ('data_device = "hssd"', "hssd", None),
        ('data_device = "hssd"\nlog_device = "hssd"', "hssd", None),
        ('log_device = "hssd"', None, "hssd"),
        ('data_device = "own"\nlog_device = "own"', None, None),
        ('data_device = "hssd"\nlog_device = "own"', "hssd", "own"),
        ('data_device = "/mnt/nvme"\nlog_device = "/mnt/nvme"', "/mnt/nvme", None),
    ],
)
def test_the_log_lies_with_the_data_unless_it_is_elsewhere(given: str, data: str | None, log: str | None) -> None:
    devices = only(f'[[arm]]\nstack = "native"\n{given}\n').configuration.devices
    assert (devices.data and devices.data.name, devices.log and devices.log.name) == (data, log)


def test_several_devices_are_an_arm_each_and_differ_from_one_another() -> None:
    text = '[[arm]]\nname = "db"\nstack = "native"\ndata_device = "own|hdd7200"\nlog_device = "own|memory"\n'
    experiment = read(text)
    arms = [arm for arm in experiment.arms if arm.copy_of is None]
    assert [arm.name for arm in arms] == [
        f"db data_device={data},log_device={log}" for data in ("own", "hdd7200") for log in ("own", "memory")
    ]
    assert experiment.baseline == arms[0].name
    # Arms that differ in more than the environment have a copy on both sides.
    assert len(experiment.arms) == 2 * len(arms)
    (difference,) = arms[1].configuration.differences(arms[0].configuration)
    assert (difference.part, difference.name, difference.value, difference.other) == (
        "devices",
        "log_device",
        "memory",
        "own",
    )
    both = {each.name for each in arms[3].configuration.differences(arms[0].configuration)}
    assert both == {"data_device", "log_device"}


def test_every_design_and_environment_can_have_them() -> None:
    text = "".join(
        f'[[arm]]\nname = "{stack} {design}"\nstack = "{stack}"\ndesign = "{design}"\ntenants = 2\n'
        'data_device = "hdd7200"\nlog_device = "hssd"\n'
        for stack, design in [
            ("native", "shared"),
            ("native", "dedicated"),
            ("native", "isolated"),
            ("docker", "isolated"),
            ("podman", "isolated"),
            ("bubblewrap", "isolated"),
            ("uml", "isolated"),
            ("qemu", "isolated"),
            ("qemu//docker", "shared"),
        ]
    )
    assert all(len(arm.configuration.devices.all) == 2 for arm in read(text).arms)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[[arm]]\nstack = "native"\ndata_device = "hdd720"\n', 5, "there is no device 'hdd720'"),
        ('[[arm]]\nstack = "native"\ndata_device = "mnt/x"\n', 5, "there is no device 'mnt/x'"),
        ('[[arm]]\nstack = "docker:storage=volume"\nlog_device = "hssd"\n', 5, "both log_device and storage=volume"),
        ('[[arm]]\nstack = "simulated"\ndata_device = "hssd"\n', 5, "a simulated machine has no devices"),
        ('[devices]\nhdd7200 = "hssd"\n[[arm]]\nstack = "native"\n', 4, "cannot be a device's name"),
        ('[devices]\na = "floppy"\n[[arm]]\nstack = "native"\n', 4, "there is no class of devices 'floppy'"),
        ('[devices]\na = 3\n[[arm]]\nstack = "native"\n', 4, "3 is not a text"),
        ('[devices]\na = "/mnt/../x"\n[[arm]]\nstack = "native"\n', 4, "shortest form"),
        ('[devices]\na = { class = "hssd", speed = 1 }\n[[arm]]\nstack = "native"\n', 4, "a device has no 'speed'"),
        ('[devices]\na = { class = "own", size = "1 GiB" }\n[[arm]]\nstack = "native"\n', 4, "has its size"),
        ('[devices]\na = { class = "hssd", size = "1 TiB" }\n[[arm]]\nstack = "native"\n', 4, "more than the disk has"),
        (
            '[devices]\na = { class = "hssd", write_cache = true }\n[[arm]]\nstack = "native"\n',
            4,
            "no cache for writes",
        ),
        ('[devices]\na = { class = "memory", queue_depth = 1 }\n[[arm]]\nstack = "native"\n', 4, "only a disk model"),
        ('[devices]\na = { class = "hssd", queue_depth = 0 }\n[[arm]]\nstack = "native"\n', 4, "at least 1"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text)
    assert f"x.toml:{line}: " in caught.value.message and words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("engine", "words"), [("duckdb", "no log that could lie apart"), ("noop", "noop keeps no data")]
)
def test_engines_without_a_log_or_data_are_refused(engine: str, words: str) -> None:
    text = f'[engine]\nname = "{engine}"\n[[arm]]\nstack = "native"\nlog_device = "hssd"\n'
    with pytest.raises(SpecError, match=words):
        spec.parse(text, "x.toml")


def test_data_in_memory_are_never_cold() -> None:
    text = 'exclusive = true\n[factors]\ncache = ["cold"]\n[[arm]]\nstack = "native"\ndata_device = "memory"\n'
    with pytest.raises(SpecError, match="lie in memory"):
        spec.parse(text, "x.toml")


def test_a_command_line_says_the_same() -> None:
    (arm,) = command_line.given_arms("native, design=dedicated, tenants=8, data_device=hdd7200, log_device=memory")
    assert arm.name == "native dedicated x8, data_device=hdd7200, log_device=memory"
    assert arm.devices == {"data_device": "hdd7200", "log_device": "memory"}
    several = command_line.given_arms("native, data_device=hdd7200|hssd, log_device=memory")
    assert [each.name for each in several] == [
        "native, data_device=hdd7200, log_device=memory",
        "native, data_device=hssd, log_device=memory",
    ]
    named = command_line.given_arms("db: native, data_device=hdd7200|hssd")
    assert [each.name for each in named] == ["db data_device=hdd7200", "db data_device=hssd"]
    own, other = command_line.given_arms("native, data_device=own|hssd, settings.jit=on")
    assert other.tables == {"engine.settings": {"jit": "on"}}
    assert (own.name, other.name) == ("native, settings.jit=on", "native, settings.jit=on, data_device=hssd")
    names = [each.name for each in command_line.given_arms("native, data_device=own|hssd")]
    assert names == ["native", "native, data_device=hssd"]
    with pytest.raises(UsageError, match="an arm has no 'log_devices'"):
        command_line.given_arms("native, log_devices=hssd")


def test_a_directory_that_is_none_of_ours_is_not_removed() -> None:
    untouched = cast(Any, None)
    for path in ("/mnt/nvme", "/mnt/nvme/dbtoll-device-", "/mnt/nvme/other", "/mnt/nvme/dbtoll-device-a/../b"):
        with pytest.raises(DbtollError, match="nothing was done"):
            arm_device.remove(untouched, {"path": path})


def counts(writes: int) -> DeviceCounts:
    nothing = dict.fromkeys(("reads", "read_bytes", "read_ns", "flushes", "flush_ns"), 0)
    return DeviceCounts(
        **nothing, writes=writes, written_bytes=8192 * writes, write_ns=10**6, io_ns=10**6, queue_ns=10**6
    )


def test_a_device_is_known_by_what_lies_there_not_by_its_name_of_that_start() -> None:
    """In the second round the same disk is another loop device, and its former name another's."""
    model = ModelCounts(requests=100, busy_ns=10**8, waited_ns=0, late_ns=5 * 10**6, cpu_ns=10**6)
    visits = [
        SimpleNamespace(
            round=number,
            devices=(
                Counted(
                    kernel=None,
                    elapsed_ns=10**9,
                    devices={log: counts(100), other: counts(1)},
                    roles={log: "log"},
                    models={log: model},
                ),
            ),
        )
        for number, log, other in ((0, "loop3", "vda"), (1, "loop7", "loop3"))
    ]
    asked = Devices(None, Device("slow", "model", "hdd7200"))
    found = {each.device: each for each in analysis.find(cast(Any, visits), 0.05, asked)}
    assert set(found) == {"slow (hdd7200)", "vda", "loop3"}
    log = found["slow (hdd7200)"]
    assert (log.holds, log.transfers_per_s.estimate) == ("log", 100.0)
    assert log.late_ns is not None and log.late_ns.estimate == 50_000
    assert found["vda"].late_ns is None and found["loop3"].holds is None


class Paced:
    """A device, as far as `ArmDevices` asks it."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def pace(self, on: bool) -> None:
        self.told.append("at pace" if on else "fast")


def test_pace_ends_with_the_visit_whatever_ends_it() -> None:
    told: list[str] = []
    devices = ArmDevices(data=cast(Any, Paced(told)))
    with pytest.raises(KeyboardInterrupt), devices.at_pace():
        told.append("visit")
        raise KeyboardInterrupt
    assert told == ["at pace", "visit", "fast"]


def test_what_was_written_reaches_a_model_without_its_pace() -> None:
    """What a window leaves behind is in no figure, and of many servers on a hard disk it is a long wait."""

    class Told(Paced):
        def run(self, words: list[str], **_: object) -> None:
            self.told.append(words[0])

    told: list[str] = []
    fake = cast(Any, Told(told))
    device = arm_device.ArmDevice(Device("slow", "model", "hdd7200"), fake, "/somewhere", "loop0", disk=fake)
    device.pace(True)
    device.pace(False)
    assert told == ["sync", "at pace", "fast", "sync"]


def test_a_file_system_has_room_beside_its_own_tables(tmp_path: Path) -> None:
    size = arm_device.file_system_bytes(1 << 30)
    assert size % (1 << 20) == 0 and size > (1 << 30) + (64 << 20)


def test_a_log_has_room_for_what_a_window_adds() -> None:
    layout = Layout(servers=4)
    short, long = (
        registry.find("workloads", "tpcc")({"window": window, "ramp_up": 0}) for window in (10**9, 60 * 10**9)
    )
    assert log_bytes(long, 2) == 60 * log_bytes(short, 2) == 120 * LOG_BYTES_PER_CPU_S
    assert log_bytes(registry.find("workloads", "tpch")({}), 2) == 0
    apart = Devices(Device("memory", "memory"), Device("hssd", "model", "hssd"))
    for devices in (Devices(Device("memory", "memory")), apart):
        without, within = (room_of(layout, devices, 100 << 20, added) for added in (0, log_bytes(long, 2)))
        more = within.data - without.data, within.log - without.log
        assert (more[0] >= log_bytes(long, 2)) == (devices is not apart), "the log is written on one of them"
        assert more[1] >= log_bytes(long, 2), "of all servers together"


def test_the_disk_of_a_guest_is_the_same_one_for_windows_of_about_one_length() -> None:
    assert spare_bytes(1 << 20, 0) == 256 << 20 and spare_bytes(1 << 30, 0) == 1 << 30
    assert spare_bytes(1 << 20, 1) == spare_bytes(1 << 20, 200 << 20) == 512 << 20


def test_an_arm_whose_disk_model_has_died_is_not_in_the_way_of_counting_others() -> None:
    """What it spent cannot be told any more, so nothing is said of what went to no arm; the others' counters are read."""

    def dead() -> int:
        raise ChannelError("slow: its program has ended", "see the logs")

    host = cast(Any, SimpleNamespace())
    arms = {name: SimpleNamespace(arm=name, cpu_ns=lambda: 5, devices=SimpleNamespace(cpu_ns=count))
            for name, count in (("a", dead), ("b", lambda: 1))}  # fmt: skip
    context = SimpleNamespace(host=host, at=lambda arm: SimpleNamespace(host=host))
    told = RoundRun.unattributed_cpu_ns(
        cast(Any, SimpleNamespace(arms=arms, context=context)), cast(Any, arms["b"]), {}
    )
    assert told is None
