"""A port that is free: arms may share one network, and those that sleep keep their ports."""

from __future__ import annotations

import secrets

from dbtoll.errors import AgentFailure
from dbtoll.interfaces.machine import Machine

FIRST, COUNT = 20000, 10000
"""Below those that a kernel gives to whoever asks for any (net.ipv4.ip_local_port_range begins at 32768)."""

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""Every socket of the network that the machine is on, proc(5); its own address is in the second column."""


def free_port(machine: Machine) -> int:
    """Drawn at random from those that no socket on the machine's network has."""
    taken = {port for table in TABLES for port in _ports(machine, table)}
    free = [port for port in range(FIRST, FIRST + COUNT) if port not in taken]
    return secrets.choice(free)


def _ports(machine: Machine, table: str) -> set[int]:
    try:
        lines = machine.get(table, max_bytes=16 << 20).decode(errors="replace").splitlines()[1:]
    except AgentFailure:  # a kernel without such a table (IPv6, a sandbox)
        return set()
    return {int(line.split()[1].rpartition(":")[2], 16) for line in lines}
