"""Removing a container that the daemon first refuses to remove: a race that no real daemon loses on request."""

from __future__ import annotations

import pytest
import requests
from docker.errors import APIError, NotFound

from dbtoll.environments.docker import container
from dbtoll.environments.docker.container import remove_container
from dbtoll.errors import DbtollError


class Daemon:
    """Refuses with these statuses, one after another, then removes."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)
        self.removed: list[str] = []
        self.volumes: list[str] = []

    def remove_container(self, name: str, *, force: bool, v: bool) -> None:
        assert force
        assert v
        if self.refusals:
            response = requests.Response()
            response.status_code = self.refusals.pop(0)
            kind = NotFound if response.status_code == 404 else APIError
            raise kind("refused", response=response, explanation="container state improper: stopped")
        self.removed.append(name)

    def remove_volume(self, name: str) -> None:
        self.volumes.append(name)
        raise NotFound("no such volume")


def test_a_container_that_ends_just_now_is_removed_all_the_same() -> None:
    daemon = Daemon(500, 500)
    remove_container(daemon, "a")
    assert daemon.removed == ["a"]
    assert daemon.volumes == ["a"]  # where its data lay on a device


def test_a_container_that_is_gone_is_no_error() -> None:
    daemon = Daemon(500, 404)
    remove_container(daemon, "a")
    assert daemon.volumes == ["a"]  # the container of a killed run went, its volume did not


def test_a_request_that_is_wrong_is_not_repeated() -> None:
    daemon = Daemon(409)
    with pytest.raises(DbtollError, match="container state improper"):
        remove_container(daemon, "a")
    assert daemon.removed == []


def test_a_daemon_that_keeps_refusing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "REMOVAL_S", 0.0)
    with pytest.raises(DbtollError, match="container state improper"):
        remove_container(Daemon(500, 500, 500), "a")
