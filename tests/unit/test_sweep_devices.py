"""The pictures of devices on the page of a sweep: of which windows they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from dbtoll.analysis.result.schema import Mean
from dbtoll.report import sweep

AT_ONCE, LATER = {"durability": "device"}, {"durability": "server_buffer"}


def windows(levels: dict[str, str], busy: float) -> Any:
    device = SimpleNamespace(where="host", device="vda", utilisation=Mean(busy, None, None), service_ns=None)
    return SimpleNamespace(arm="one", levels=levels, devices=(device,))


def test_windows_at_other_levels_have_pictures_of_their_own() -> None:
    value = SimpleNamespace(value=4)
    result = SimpleNamespace(
        parts=[SimpleNamespace(value=4, arm="one", design="one")],
        values=[value],
        designs=("one",),
        variable="tenants",
        scale="log",
    )
    results = [SimpleNamespace(windows=[windows(AT_ONCE, 0.9), windows(LATER, 0.1)])]
    pictures = {
        title: list(sweep._devices(cast(Any, result), cast(Any, results), title, levels))
        for title, levels in (("durable at once", AT_ONCE), ("durable later", LATER))
    }
    heights = {}
    for title, (busy,) in pictures.items():
        assert title in busy.title and "vda, host" in busy.title
        ((point,),) = (line.points for line in busy.lines)
        heights[title] = busy.up[-1].x, point.y
    assert heights["durable at once"] != heights["durable later"]
