"""What each machine of an arm is held to beyond processors and memory: rates of its devices, a bound at which its memory is taken
back, its weight. Set when it stands, in the control group that it is in, whichever environment made that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dbtoll.errors import Unavailable
from dbtoll.interfaces.machine import FreezableMachine, Machine
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.block_device import number_of
from dbtoll.machines.cgroups.group import WITHOUT_GROUPS, write_setting
from dbtoll.machines.cgroups.layout import Hierarchy, find_layout, path_of_process
from dbtoll.machines.mounts import mount_of
from dbtoll.model.experiment import Resources

DISK = """
cd -P "/sys/dev/block/$1" || exit
[ ! -e partition ] || cd ..
cat dev
"""
"""Of the device with the number ``$1``: the whole disk's, which alone can be held (block/blk-cgroup.c, ``blkg_conf_prep``)."""

SHARES = 1024
"""The kernel's default weight of a group of version 1, ``cpu.shares``."""

WEIGHT = 100
"""And of version 2, ``cpu.weight``."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The group of a machine in the tree that governs one controller."""

    around: AgentMachine
    version: int
    directory: str

    def write(self, file: str, value: str) -> None:
        write_setting(self.around, f"{self.directory}/{file}", value)


def hold(
    around: AgentMachine,
    machine: Machine,
    resources: Resources,
    data: Collection[str],
    *,
    is_neighbour: bool,
    rates: bool,
) -> None:
    """Hold a machine that stands on ``around`` to what its arm asks for.

    ``data``: what holds its data and its log, files, directories or devices of ``around``. ``rates``: whether their rates are to be
    held here; else its environment does. Raises Unavailable, with the hint, where this machine cannot be held so.

    BIAS: with version 1 what the kernel writes back by itself, later, is nobody's and is not held back; what a process writes
    itself, directly or by fsync(2), is. With version 2 both are (Documentation/admin-guide/cgroup-v2.rst, "Writeback").
    """
    if rates and resources.has_rates:
        group = _group(around, machine, "blkio", "io")
        for number in sorted({_disk(around, path) for path in data}):
            _hold_device(group, number, resources)
    if resources.memory_high_bytes is not None:
        group = _group(around, machine, "memory")
        if group.version == 1:
            raise Unavailable(
                f"{around.name}: control groups of version 1 have no memory.high",
                "boot with systemd.unified_cgroup_hierarchy=1, or leave memory_high out",
            )
        group.write("memory.high", str(resources.memory_high_bytes))
    if is_neighbour and resources.neighbour_weight is not None:
        group = _group(around, machine, "cpu")
        if group.version == 1:
            group.write("cpu.shares", str(round(SHARES * resources.neighbour_weight)))
        else:
            group.write("cpu.weight", str(round(WEIGHT * resources.neighbour_weight)))


def _hold_device(group: _Held, number: str, resources: Resources) -> None:
    values = {
        ("read_bps_device", "rbps"): resources.read_rate,
        ("write_bps_device", "wbps"): resources.write_rate,
        ("read_iops_device", "riops"): resources.read_requests,
        ("write_iops_device", "wiops"): resources.write_requests,
    }
    for (file, word), value in values.items():
        if value is None:
            continue
        if group.version == 1:
            group.write(f"blkio.throttle.{file}", f"{number} {value}")
        else:
            group.write("io.max", f"{number} {word}={value}")


def _group(around: AgentMachine, machine: Machine, *controllers: str) -> _Held:
    """Of that controller, which goes by one of these names."""
    layout = find_layout(around)
    found: dict[str, Hierarchy] = {name: tree for name in controllers if (tree := layout.having(name)) is not None}
    if not found:
        raise Unavailable(
            f"{around.name}: no control group controller {' or '.join(controllers)} holds its machines",
            WITHOUT_GROUPS if not layout.hierarchies else "mount it, or leave that limit out",
        )
    name, tree = next(iter(found.items()))
    processes = sorted(machine.processes() or ()) if isinstance(machine, FreezableMachine) else []
    path = path_of_process(around, layout, processes[0], name) if processes else ""
    if not path or path == path_of_process(around, layout, around.hello()["pid"], name):
        raise Unavailable(f"{machine.name} has no control group of its own for {name}", "leave that limit out")
    return _Held(around, tree.version, tree.mount + path)


def _disk(around: AgentMachine, path: str) -> str:
    """MAJOR:MINOR of the disk that holds a file, or is at that path. Raises Unavailable where no disk does."""
    if around.run(["test", "-b", path], check=False).exit_code == 0:
        number = number_of(around, path)
    else:
        real = around.run(["readlink", "-f", "--", path]).output.decode().strip()
        number = mount_of(around, real).device
    found = around.run(["sh", "-c", DISK, "sh", number], check=False)
    if found.exit_code != 0:
        raise Unavailable(
            f"{around.name}: {path} lies on no disk whose requests could be held back (device {number})",
            'data_device = "/a directory on a disk" of the arm, or leave the rates out',
        )
    return found.output.decode().strip()
