"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from dbtoll import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("90 s", 90), ("1.5 h", 5400), ("4m30s", 270), ("1h 2m 3s", 3723), (" 5m ", 300)],
)
def test_a_duration_may_have_several_parts(text: str, seconds: float) -> None:
    assert units.duration_ns(text) == round(seconds * 1e9)


@pytest.mark.parametrize("text", ["", " ", "5", "4m30", "4m-30s", "m30s", "4m 30x", "5%", "1.2.3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 50ms, 90s or 4m30s"):
        units.duration_ns(text)


@pytest.mark.parametrize("text", ["4g", "4G", "4 GiB", "4096MiB"])
def test_a_single_letter_of_a_size_is_binary(text: str) -> None:
    assert units.size_bytes(text) == 4 << 30


@pytest.mark.parametrize("value", [1, 999, 10**6, 90 * 10**9, 3600 * 10**9, 270 * 10**9])
def test_a_duration_that_is_told_is_read_back(value: int) -> None:
    assert units.duration_ns(units.duration_text(value)) == value
