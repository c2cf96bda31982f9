"""The initial memory file system, read back field by field as the kernel does."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

from dbtoll.machines.guest.initramfs import CONSOLE, Disk, Guest, Interface, initramfs

GUEST = Guest("port:dbtoll", Disk("serial:image", "/", writable=False), [], shm_bytes=1 << 20, open_files=777)


def members(archive: bytes) -> dict[str, tuple[int, tuple[int, int], bytes]]:
    """Name -> mode, device numbers, content (buffer-format.rst, "newc")."""
    found: dict[str, tuple[int, tuple[int, int], bytes]] = {}
    at = 0
    while True:
        assert at % 4 == 0
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        _, mode, _, _, _, _, size, _, _, major, minor, name_size, _ = fields
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        assert archive[at + 110 + name_size - 1] == 0
        begin = (at + 110 + name_size + 3) & ~3
        if name == "TRAILER!!!":
            assert begin == len(archive)
            return found
        found[name] = (mode, (major, minor), archive[begin : begin + size])
        at = (begin + size + 3) & ~3


def test_the_agent_is_the_first_program() -> None:
    found = members(initramfs(b"agent's bytes", GUEST, {}))
    mode, _, content = found["init"]
    assert stat.S_ISREG(mode)
    assert mode & 0o111 == 0o111
    assert content == b"agent's bytes"


def test_there_is_a_console_for_what_it_says() -> None:
    mode, device, _ = members(initramfs(b"", GUEST, {}))["dev/console"]
    assert stat.S_ISCHR(mode)
    assert device == CONSOLE


def test_modules_are_named_in_the_order_of_loading() -> None:
    found = members(initramfs(b"a", GUEST, {"virtio": b"12345", "ext4": b"6"}))
    described = json.loads(found["guest.json"][2])
    assert described["modules"] == ["/modules/virtio.ko", "/modules/ext4.ko"]
    assert found["modules/virtio.ko"][2] == b"12345"
    assert list(found).index("modules") < list(found).index("modules/virtio.ko")


def test_the_description_is_what_the_agent_reads() -> None:
    described = json.loads(members(initramfs(b"a", GUEST, {}))["guest.json"][2])
    assert described == {
        "modules": [],
        "line": "port:dbtoll",
        "image": {"device": "serial:image", "at": "/", "writable": False},
        "disks": [],
        "shm_bytes": 1 << 20,
        "open_files": 777,
        "network": None,
        "memories": [],
    }
    reached = replace(GUEST, network=Interface("eth0", "10.0.2.15", "255.255.255.0"))
    described = json.loads(members(initramfs(b"a", reached, {}))["guest.json"][2])
    assert described["network"] == {"interface": "eth0", "address": "10.0.2.15", "mask": "255.255.255.0"}
