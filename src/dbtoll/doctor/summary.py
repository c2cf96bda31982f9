"""The findings for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from dbtoll.model.json import Json

WIDTH = 120
NAME = 18

TITLES = {
    "privileges": "privileges",
    "control_groups": "control groups",
    "tracing": "tracing",
    "pressure": "pressure",
    "disk": "disk",
    "networks": "networks",
    "noise": "noise now",
    "images": "making images",
    "agent": "the agent",
}


def text(found: Json) -> str:
    """`examine`'s findings, a line each, the one command last."""
    return "\n".join(_lines(found))


def _lines(found: Json) -> Iterator[str]:
    if host := found["host"]:
        memory = f", {host['memory_bytes'] / (1 << 30):.1f} GiB" if host["memory_bytes"] else ""
        yield f"{host['system']}, kernel {host['kernel']}, {host['cpus']} x {host['cpu_model']}{memory}"
        for word in ("native", "cold"):
            yield from _told(f"{word} here", host["meaning"][word])
    for family in ("environments", "engines", "machine"):
        yield ""
        yield family if family != "machine" else "this machine"
        for name, each in found[family].items():
            yield from _told(TITLES.get(name, name), _state(each))
            for lack in each["lacks"]:
                yield from _told(
                    "", f"{lack['what']}: {lack['why']}" + (f"; hint: {lack['hint']}" if lack["hint"] else "")
                )
    yield ""
    if found["measurable"]:
        yield f"can be measured as things are: {', '.join(found['measurable'])}"
    if found["root_adds"]:
        yield f"not root: look again with `sudo ./dbtoll doctor`; root may add {', '.join(found['root_adds'])}"
    if found["hint"]:
        yield "one command brings everything that is missing and can be brought:"
        yield f"  {found['hint']}"
    if not found["measurable"]:
        yield _nothing(found["machine"].get("agent"))


def _nothing(agent: Json | None) -> str:
    """What has to come first."""
    if agent is None or not agent["lacks"]:
        return "nothing can be measured here as things are"
    (lack, *_) = agent["lacks"]
    return f"nothing is tried, and nothing can be measured, before the agent is there: {lack['hint'] or lack['why']}"


def _state(each: Json) -> str:
    return f"{each['state']}: {each['note']}" if each["note"] else str(each["state"])


def _told(name: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, WIDTH - NAME, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines or [""]):
        yield f"  {name if number == 0 else '':<{NAME - 2}}{line}"
