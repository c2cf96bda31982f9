"""What every environment, engine and workload must keep to, as tests that any package can run against its own.

A test file derives a class and names what is to be tested::

    from dbtoll.contracts import EnvironmentContract
    from dbtoll_jail import Environment

    class TestJail(EnvironmentContract):
        member = Environment

They need pytest (``pip install dbtoll[contracts]``), and as root they open real machines. docs/adding/ says what each is about.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"dbtoll.contracts.{kind}" for kind in ("environment", "engine", "workload")))

from dbtoll.contracts.engine import EngineContract  # noqa: E402
from dbtoll.contracts.environment import EnvironmentContract  # noqa: E402
from dbtoll.contracts.workload import WorkloadContract  # noqa: E402

__all__ = ["EngineContract", "EnvironmentContract", "WorkloadContract"]
