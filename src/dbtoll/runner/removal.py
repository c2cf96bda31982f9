"""Kind of resource -> how to remove it, for `dbtoll clean`. Each remover belongs to the module that makes the resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dbtoll.channel.local import open_local
from dbtoll.environments import cgroups, docker, dockerd, enclose
from dbtoll.images import dataset
from dbtoll.runner.journal import Remover


@contextmanager
def removers() -> Iterator[Mapping[str, Remover]]:
    """The removers, acting on the local host while the context lasts."""
    with open_local() as host:

        def directory(identity: Mapping[str, Any]) -> None:
            dataset.remove_copy(host, str(identity["path"]))

        yield {
            "cgroup": lambda identity: cgroups.remove(host, dict(identity)),
            "container": lambda identity: docker.remove(host, dict(identity)),
            "process": lambda identity: dockerd.remove(host, dict(identity)),
            "network": lambda identity: docker.remove_network(host, dict(identity)),
            "litter": lambda identity: dockerd.remove_litter(host, dict(identity)),
            "stage": lambda identity: enclose.remove(host, dict(identity)),
            "directory": directory,
        }
