"""What the system image holds."""

from __future__ import annotations

from dbtoll import defaults, registry
from dbtoll.interfaces.engine import Engine
from dbtoll.model.software import Software


def image_software(engine: Engine | None = None) -> Software:
    """Of an engine, with what the default engine needs: so most runs share one image, those without a server too."""
    usual: Software = registry.find("engines", defaults.ENGINE).software
    return usual if engine is None else usual | engine.software
