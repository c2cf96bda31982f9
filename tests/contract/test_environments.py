"""The environments that dbtoll brings, held to the contract; a new one is found by its name."""

from __future__ import annotations

import pytest

from dbtoll import registry
from dbtoll.contracts import EnvironmentContract
from dbtoll.interfaces.environment import Environment


@pytest.mark.timeout(180)
class TestEnvironments(EnvironmentContract):
    @pytest.fixture(params=registry.names("environments"))
    def environment(self, request: pytest.FixtureRequest) -> Environment:
        made: Environment = registry.find("environments", request.param)()
        return made
