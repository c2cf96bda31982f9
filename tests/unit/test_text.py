"""Text of others does not command a terminal."""

from __future__ import annotations

import pytest

from dbtoll.errors import AgentFailure, DbtollError
from dbtoll.progress import Progress
from dbtoll.text import noun, printable
from tests.support.make_run import experiment

EVIL = "a\x1b]0;owned\x07b\x9b31mc\u202ed\ud800e"


def test_what_a_terminal_obeys_is_replaced_and_all_else_stays() -> None:
    assert printable(EVIL) == "a\ufffd]0;owned\ufffdb\ufffd31mc\ufffdd\ufffde"
    assert printable("Größe 5\u202f% … 日本") == "Größe 5\u202f% … 日本"
    assert printable("a\nb\tc") == "a\ufffdb\ufffdc"
    assert printable("a\nb\tc", lines=True) == "a\nb\tc"


@pytest.mark.parametrize("error", [DbtollError(EVIL, EVIL), AgentFailure("not_found", EVIL)])
def test_no_error_tells_more(error: DbtollError) -> None:
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\ud800"} & set(str(error) + error.hint + str(error.args))


def test_nor_does_the_progress(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress(experiment(), quiet=False) as progress:
        progress.say(f"docker did not start: {EVIL}")
    printed = "".join(capfd.readouterr())
    assert "docker did not start: a\ufffd" in printed
    assert "owned\x07" not in printed


def test_numbers_of_things() -> None:
    assert [noun(n, "round") for n in (0, 1, 2)] == ["rounds", "round", "rounds"]
    assert [noun(n, "query", "queries") for n in (1, 2)] == ["query", "queries"]
