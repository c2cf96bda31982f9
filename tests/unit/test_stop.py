"""Signals end a run once, never in the middle of what must be whole, and not again while it is taken down."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from dbtoll.runner.cleanup.signals import SIGNALS, Stop


@pytest.fixture(autouse=True)
def _heard_by_default() -> Iterator[None]:
    """Whoever runs the tests in the background, or under nohup, has these ignored; and what is ignored stays so."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_ends_it(number: int) -> None:
    stop = Stop()
    with stop.handling_signals(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert stop.asked


def test_those_that_follow_change_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    stop = Stop()
    taken_down = False
    with stop.handling_signals():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        stop.granted()
        with stop.deferring_signals():
            os.kill(os.getpid(), signal.SIGTERM)
        taken_down = True
    assert taken_down
    assert capfd.readouterr().err.count("please wait") == len(SIGNALS) + 1


def test_what_is_held_is_done_first() -> None:
    stop = Stop()
    done = []
    with stop.handling_signals(), pytest.raises(KeyboardInterrupt), stop.deferring_signals():
        with stop.deferring_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_an_error_in_what_is_held_is_the_one_that_is_seen() -> None:
    stop = Stop()
    with stop.handling_signals(), pytest.raises(ValueError, match="real"), stop.deferring_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("the real reason")
    assert stop.asked


def test_one_that_a_failing_clean_up_hid_is_raised_again() -> None:
    stop = Stop()
    with stop.handling_signals(), pytest.raises(KeyboardInterrupt):
        with pytest.raises(ValueError, match="clean-up"):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                raise ValueError("the clean-up failed")
        with stop.deferring_signals():
            pass
    with stop.handling_signals():
        stop.granted()
        with stop.deferring_signals():
            pass


def test_what_was_ignored_stays_ignored_and_the_rest_is_put_back() -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop().handling_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
