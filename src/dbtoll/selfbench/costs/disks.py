"""How well a disk model is the disk that it is like, and what the instrument itself adds to each request.

On a device of each model requests are made past the kernel's cache: random reads and writes and a log of 8 KiB one at a time,
random reads of 8 KiB eight at a time, sequential ones of 128 KiB, reads one at a time as a kernel reads ahead and writes eight at a
time as it writes back. What they take is held against what was published of that disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbtoll import facts
from dbtoll.errors import UsageError
from dbtoll.machines.agent.local import open_local
from dbtoll.machines.disk_model import disk_model
from dbtoll.machines.disk_models import MODELS
from dbtoll.machines.disk_probe import KINDS, Seen, exercised, seen_at_pace
from dbtoll.model.json import Json
from dbtoll.model.options import Option
from dbtoll.runner.cleanup.beside_arms import workspace
from dbtoll.selfbench.support.certificate import Bound, Certificate, Say

SUMMARY = (
    "disk models: how far each is from what was published of its disk, and `added_us` to a request by the instrument"
)
OPTIONS = {
    "models": Option("list", list(MODELS), "which, joined by +"),
    "duration": Option("duration", 10 * 10**9, "how long each kind of request is made"),
}

BOUNDS = {"faster_than_model": Bound(max=0), "rotating_deviation": Bound(max=0.1)}


def measure(options: Mapping[str, Any], say: Say) -> Certificate:
    """Each model in turn. Unavailable where this machine can have none."""
    if unknown := set(options["models"]) - set(MODELS):
        raise UsageError(f"there is no disk model named {min(unknown)!r}", f"choose of: {', '.join(MODELS)}")
    figures: dict[str, Any] = {}
    added: dict[str, float] = {}
    seen: dict[str, dict[str, Seen]] = {}
    with open_local() as host, workspace("disks") as (folder, journal):
        for name in options["models"]:
            with disk_model(host, name, str(folder), f"selfbench-{name.replace('_', '-')}", journal) as disk:
                for kind in KINDS[:1] + KINDS[3:4]:
                    told = exercised(host, disk, kind, options["duration"])
                    added[f"{name} {kind.name.removesuffix('_ms')}"] = told["elapsed_ns"] / told["requests"] / 1e3
                disk.pace(True)
                seen[name] = {}
                for kind in KINDS:
                    seen[name][kind.name] = one = seen_at_pace(host, disk, kind, options["duration"])
                    say(f"{name}: {kind.name} {one.measured:.4g}")
        figures = figures_of(seen) | {"added_us": added}
        about = {"host": facts.host(host), "build": host.hello()["build"], "sources": sources(options["models"])}
    return Certificate("disks", figures, BOUNDS, about)


def figures_of(seen: Mapping[str, Mapping[str, Seen]]) -> dict[str, Any]:
    """For each model and kind: measured, published, and their ratio; then what is held to bounds.

    ``faster_than_model``: kinds of which more was answered than the disk, one request after the other, could have.
    ``rotating_deviation``: the largest distance of a ratio from 1, of rotating disks and of requests one at a time. BIAS: eight
    writers do not come in the order of their places, and each that was overtaken waits a revolution, as on a disk without a cache.
    """
    figures: dict[str, Any] = {}
    deviations, faster = [0.0], 0
    for name, kinds in seen.items():
        for kind in KINDS:
            one = kinds[kind.name]
            published = MODELS[name].published(kind.request_bytes).get(kind.name)
            told: Json = {"measured": one.measured, "modelled": one.modelled}
            if published is not None:
                told |= {"published": published, "ratio": one.measured / published}
                if MODELS[name].rotates and kind.in_flight == 1:
                    deviations.append(abs(one.measured / published - 1))
            figures[f"{name}_{kind.name}"] = told | {"late_us": one.late_us, "cpu_us": one.cpu_us}
            # Reads that were read ahead are done while nobody asks: then the disk is not all of what is waited for.
            faster += one.measured > one.modelled * 1.001 if kind.rate else one.measured < one.modelled * 0.999
    return figures | {"faster_than_model": faster, "rotating_deviation": max(deviations)}


def sources(models: tuple[str, ...] | list[str]) -> Json:
    """Where the numbers of each are from."""
    return {name: f"{MODELS[name].what}: {MODELS[name].source}" for name in models}
