"""A machine with a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dbtoll.channel.relay import RelayStream
from dbtoll.machines.control_group import ControlGroupMachine
from dbtoll.machines.guest.initramfs import Disk


@dataclass(frozen=True, slots=True)
class GuestDisk:
    """A disk as the host has it (``file``) and as the guest finds it."""

    name: str
    file: str
    inside: Disk


class GuestMachine(ControlGroupMachine):
    """A guest: it sleeps with its whole monitor, and has a page cache of its own to drop."""

    console: RelayStream | None = None
    stage: str = ""
    """Directory on the parent that holds what it boots from and its control sockets."""
    directories: tuple[str, ...] = ()
    """Of the monitor's control group, on the parent."""
    asleep_first: Callable[[], None] | None = None
    """Stops the guest's own clock before the monitor is frozen."""
    awake_last: Callable[[], None] | None = None

    def freeze(self) -> None:
        """Returns when the guest and its monitor sleep."""
        if self.asleep_first is not None:
            self.asleep_first()
        super().freeze()

    def thaw(self) -> None:
        """Returns when the guest may run."""
        super().thaw()
        if self.awake_last is not None:
            self.awake_last()

    def close(self) -> None:
        """As any arm; the monitor of a guest that is gone is not asked any more."""
        if self.channel.failure is not None:
            self.awake_last = None
        super().close()

    def drop_caches(self) -> None:
        """Write back, then drop the guest's page cache, dentries and inodes (interfaces.CacheDroppingMachine)."""
        self.run(["sync"], timeout_s=600)
        self.put("/proc/sys/vm/drop_caches", b"3\n", in_place=True)

    def logs(self) -> Mapping[str, bytes]:
        """Of the programs in here, and what the kernel and the monitor said."""
        return {**super().logs(), **({} if self.console is None else {"console.log": self.console.error_output()})}
