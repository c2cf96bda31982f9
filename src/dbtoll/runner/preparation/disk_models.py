"""Is a disk model here the disk that it is like? Asked before a run measures on it, once for each."""

from __future__ import annotations

from collections.abc import Sequence

from dbtoll.machines.control_group import through_agent
from dbtoll.machines.disk_model import disk_model
from dbtoll.machines.disk_models import MODELS
from dbtoll.machines.disk_probe import LOG_WRITE, PAGE_BYTES, RANDOM_READ, RANDOM_WRITE, seen_at_pace
from dbtoll.model.devices import Device
from dbtoll.model.experiment import Arm
from dbtoll.model.json import Json
from dbtoll.runner.arms import HostContext, machine_name
from dbtoll.runner.rounds import Watch

PROBED = (RANDOM_READ, RANDOM_WRITE, LOG_WRITE)

PROBE_NS = 1_500_000_000
"""Of each kind: more than a hundred requests of the slowest disk."""


def probed_models(arms: Sequence[Arm], context: HostContext, watch: Watch) -> list[Json]:
    """Of each model that any of these arms is to have, on each host: the disk that it is like, whole and empty, as it is asked for;
    what was measured of it beside what was published. Unavailable where a host can have none.

    ``on``: the host, ``device`` (its user's name for it), ``arms``, ``model``, ``what`` and ``source`` of the model, its
    ``parameters``, what it ``lacks``, and ``figures``: kind of request -> ``measured``, ``modelled``, ``published`` (ms),
    ``late_us``.
    """
    wanted: dict[tuple[str, Device], list[Arm]] = {}
    for arm in arms:
        for device in dict.fromkeys(arm.configuration.devices.all):
            if device.kind == "model":
                wanted.setdefault((context.at(arm).host.name, device), []).append(arm)
    return [_probed(device, its, context, watch) for (_, device), its in wanted.items()]


def _probed(device: Device, arms: Sequence[Arm], context: HostContext, watch: Watch) -> Json:
    own = context.at(arms[0])
    host, described = through_agent(own.host), MODELS[device.of]
    watch.say(f"whether {device.text} is the disk that it is like")
    host.run(["mkdir", "-p", own.copies])
    name = machine_name(own.run_id, device.name, 0)
    figures: Json = {}
    published = described.published(PAGE_BYTES)
    with disk_model(
        host, described, own.copies, name, own.journal, write_cache=device.write_cache, queue_depth=device.queue_depth
    ) as disk:
        disk.pace(True)
        for kind in PROBED:
            seen = seen_at_pace(host, disk, kind, PROBE_NS)
            figures[kind.name] = {
                "measured": seen.measured,
                "modelled": seen.modelled,
                "published": published[kind.name],
                "late_us": seen.late_us,
            }
    return {
        "on": host.name,
        "device": device.text,
        "arms": [arm.name for arm in arms],
        "model": device.of,
        "what": described.what,
        "source": described.source,
        "parameters": {
            **described.parameters(),
            "queue_depth": device.queue_depth or described.queue_depth,
            "write_cache_bytes": described.write_cache_bytes if device.write_cache else 0,
        },
        "lacks": described.lacks,
        "figures": figures,
    }
