"""A block device of a machine: its number, what else lies on the same blocks, and who uses any of that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from dbtoll.errors import AgentFailure, Unavailable
from dbtoll.interfaces.machine import Machine
from dbtoll.model.reply import Completed
from dbtoll.text import listed

DEVICES = "/dev"

RELEASE_S = 10.0
"""A device is let go of some milliseconds after the last process that used it; and who looks at every new content of a device
(udev) has it open for as long."""

NAMED_MAX = 3
"""Of those who use a device; more are not told."""

SHAPE = r"""
cd -P "/sys/dev/block/$1" || exit
disk=
[ ! -e partition ] || disk=..
for directory in . $disk */partition; do
    directory=${directory%/partition}
    [ -e "$directory/dev" ] || continue
    echo "block $(cat "$directory/dev") $(cd -P "$directory" && echo "${PWD##*/}")"
    for holder in "$directory"/holders/*; do
        [ ! -e "$holder" ] || echo "holder ${holder##*/} $(cat "$holder/dm/name" 2>/dev/null)"
    done
done
"""
"""Of the device with the number ``$1``: what else lies on the same blocks, and what is made of any of that (sysfs: a partition's
directory lies in its disk's)."""

USES = r"""
exec <"$1" || exit
echo "looks $$"
find -L /proc/[0-9]*/fd -maxdepth 1 -type b -exec stat -L -c 'open %t %T %n' {} + 2>/dev/null
sed 1d /proc/swaps | while read -r path rest; do stat -L -c 'swap %t %T' "$path"; done 2>/dev/null
for loop in /sys/block/loop*; do
    read -r path <"$loop/loop/backing_file" && stat -L -c "loop %t %T ${loop##*/}" "$path"
done 2>/dev/null
grep -sHE "$2" /proc/self/mountinfo /proc/[0-9]*/mountinfo | sed 's/^/mounted /'
exit 0
"""
"""Of every block device: who has it open, swaps to it, makes a loop device of it; of those whose numbers ``$2`` matches: where it
is mounted. Numbers of devices are hexadecimal. It has the device ``$1`` open itself: where that is not found, nobody's would be."""


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """``path``: without links. ``number``: MAJOR:MINOR. ``blocks``: names of all that lies on the same blocks, by number: itself,
    its partitions, the disk that it is a partition of. ``holders``: what is made of any of these (md, LVM, device mapper)."""

    path: str
    number: str
    blocks: dict[str, str]
    holders: tuple[str, ...]


def block_device(machine: Machine, path: str) -> BlockDevice:
    """Raises Unavailable where there is none."""
    device = machine.run(["readlink", "-f", "--", path], check=False).output.decode().strip()
    if machine.run(["test", "-b", device], check=False).exit_code != 0 or not device.startswith(f"{DEVICES}/"):
        raise Unavailable(
            f"{machine.name} has no block device {path}", f"storage=/dev/…; {machine.name}'s are in /sys/block"
        )
    number = number_of(machine, device)
    shape = look(machine, ["sh", "-c", SHAPE, "sh", number])
    if shape.exit_code != 0:
        said = shape.error_output.decode(errors="replace").strip()
        raise Unavailable(f"{machine.name} does not show what {device} is: {said}", "see that /sys is mounted there")
    lines = [line.split(" ", 2) for line in shape.output.decode(errors="replace").splitlines()]
    return BlockDevice(
        device,
        number,
        {found: name for kind, found, name in lines if kind != "holder"},
        tuple(name or holder for kind, holder, name in lines if kind == "holder"),
    )


def demand_unused(machine: Machine, device: BlockDevice) -> None:
    """Raises Unavailable, with who it is, if somebody uses the device or what lies on the same blocks; so far as the machine shows
    it, to root all of its own processes.

    Whoever mounts a device, swaps to it or makes a volume of it opens it exclusively (open(2), O_EXCL), but a monitor of guests
    does not, nor need anybody. There is no lock: flock(2) on a device is how to keep udev from a whole disk while it is changed,
    which arms on partitions of one disk would share, and udev would ask again and again, in measured time. An arm that stands, or
    is being filled, is seen by what it has open or mounted.
    """
    deadline = time.monotonic() + RELEASE_S
    while found := uses(machine, device):
        if time.monotonic() > deadline or not all(use.passing for use in found):
            told = list(dict.fromkeys(use.told for use in found))
            shown = [*told[:NAMED_MAX], *(["others"] if len(told) > NAMED_MAX else [])]
            raise Unavailable(
                f"the device {device.path} is in use: {listed(shown)}",
                "name one that nothing uses, or first end what uses it (umount, swapoff, that process)",
            )
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Use:
    """``told``: who, and how. ``passing``: whether it may be over in a moment."""

    told: str
    passing: bool = False


def uses(machine: Machine, device: BlockDevice) -> list[Use]:
    """By whom the device is used, or what lies on the same blocks. Raises Unavailable where that cannot be seen."""
    numbers = "|".join(device.blocks)
    looked = look(machine, ["sh", "-c", USES, "sh", device.path, f"^[0-9]+ [0-9]+ ({numbers}) "])
    lines = [line.split(" ") for line in looked.output.decode(errors="replace").splitlines()]
    own = next((words[1] for words in lines if words[0] == "looks"), "")
    opened = {
        _process(words[3]): number
        for words in lines
        if words[0] == "open" and (number := _number(*words[1:3])) in device.blocks
    }
    if opened.pop(own, None) != device.number:
        said = looked.error_output.decode(errors="replace").strip() or "not even that it was opened to look"
        raise Unavailable(
            f"{machine.name} does not show who uses the device {device.path}: {said}",
            "that needs root, /proc, and the programs find, stat, sed and grep there",
        )
    found = [Use(f"{name} is made of it") for name in device.holders]
    for kind, does in (("swap", "swaps to it"), ("loop", "is a loop device of it")):
        found += [
            Use(f"{words[3] if kind == 'loop' else 'the kernel'} {does}")
            for words in lines
            if words[0] == kind and _number(*words[1:3]) in device.blocks
        ]
    mounts: dict[str, str] = {}
    for words in lines:
        if words[0] == "mounted":
            mounts.setdefault(words[5], _process(words[1]))
    for at, process in mounts.items():
        seen = "" if process == "self" else f" for process {process} ({_name(machine, process) or 'gone'})"
        found.append(Use(f"it is mounted at {at}{seen}"))
    for process, number in opened.items():
        if (name := _name(machine, process)) is not None:
            what = "it" if number == device.number else device.blocks[number]
            found.append(Use(f"process {process} ({name}) has {what} open", passing=True))
    return found


def overlapping(devices: Sequence[BlockDevice]) -> tuple[int, int] | None:
    """The first two of one machine that share blocks, by their places."""
    for second, device in enumerate(devices):
        for first, other in enumerate(devices[:second]):
            if device.number in other.blocks or other.number in device.blocks:
                return first, second
    return None


def look(machine: Machine, argv: Sequence[str]) -> Completed:
    """A program of the machine that may fail. Unavailable where there is none of that name."""
    try:
        return machine.run(argv, check=False)
    except AgentFailure as failure:
        raise Unavailable(
            f"{machine.name} has no program {argv[0]}, which looks at block devices: {failure.message}",
            "apt-get install -y util-linux diffutils e2fsprogs",
        ) from failure


def number_of(machine: Machine, path: str) -> str:
    """MAJOR:MINOR of the device at that path."""
    return _number(*machine.run(["stat", "--dereference", "--format=%t %T", path]).output.decode().split())


def _number(major: str, minor: str) -> str:
    """MAJOR:MINOR of two hexadecimal numbers, as stat(1) tells them."""
    return f"{int(major, 16)}:{int(minor, 16)}"


def _process(path: str) -> str:
    """Whose entry of proc(5) that is."""
    return path.split("/")[2]


def _name(machine: Machine, process: str) -> str | None:
    """None where it has ended."""
    try:
        return machine.get(f"/proc/{process}/comm").decode(errors="replace").strip()
    except AgentFailure:
        return None
