"""The few members of the registry's families that dbtoll itself stands on. Nothing else in it names one."""

from __future__ import annotations

BASELINE = "native"
"""The environment that others are compared with, and in which data are loaded and the driver is calibrated."""

ENGINE, WORKLOAD = "postgres", "tpch"
"""Where a specification names none."""

FLOOR = "noop"
"""The engine that answers everything at once: what dbtoll itself costs is measured with it."""

PROBES, NO_SERVER = "probes", "no_server"
"""The workload of `dbtoll probe` and of experiments that explain, and the engine beside it."""
