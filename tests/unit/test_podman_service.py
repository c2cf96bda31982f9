"""What dbtoll's own service of podman says when it does not start."""

from __future__ import annotations

from dbtoll.environments.podman.service import REASON_MAX, _reason

PANIC = (
    b'time="2026-11-28T15:55:53Z" level=info msg="/usr/bin/podman filtering at log level info"\n'
    b'time="2026-11-28T15:55:53Z" level=error msg="Getting info on OCI runtime crun: Failed to get state directory"\n'
    b'time="2026-11-28T15:55:53Z" level=warning msg="Recovering from API service endpoint handler panic: invalid memory address'
    + rb"\n\ngoroutine 4565 [running]:\n" * 200
    + b'"\n'
)


def test_errors_are_told_without_the_stacks_that_follow_them() -> None:
    assert _reason(PANIC).endswith('crun: Failed to get state directory"')
    assert "goroutine" not in _reason(PANIC)


def test_what_is_no_error_is_told_where_there_is_none_and_not_at_any_length() -> None:
    assert _reason(b"Error: cannot find newuidmap\n") == "Error: cannot find newuidmap"
    assert _reason(b"one\ntwo\nthree\nfour\n") == "two | three | four"
    assert len(_reason(b"x" * 10_000)) == REASON_MAX
    assert _reason(b"") == ""
