"""The environments that dbtoll brings, held to the contract; a new one is found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dbtoll import registry
from dbtoll.contracts import EnvironmentContract
from dbtoll.interfaces.environment import Environment
from tests.support.sshd import Sshd


@pytest.mark.timeout(180)
class TestEnvironments(EnvironmentContract):
    @pytest.fixture(params=registry.names("environments"))
    def environment(self, request: pytest.FixtureRequest) -> Environment:
        made: Environment = registry.find("environments", request.param)()
        return made

    @pytest.fixture
    def elsewhere(self, loopback: Sshd) -> Mapping[str, Any]:
        return loopback.options()
