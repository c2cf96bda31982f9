"""The system image, and what it holds."""

from __future__ import annotations

from collections.abc import Callable

from dbtoll import defaults, registry
from dbtoll.images import debian, system
from dbtoll.images.cache import Cache
from dbtoll.interfaces.engine import Engine
from dbtoll.model.experiment import Configuration
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact
from dbtoll.model.software import Software


def image_software(engine: Engine | None = None) -> Software:
    """Of an engine, with what the default engine needs: so most runs share one image, those without a server too."""
    usual: Software = registry.find("engines", defaults.ENGINE).software
    return usual if engine is None else usual | engine.software


def system_image(
    cache: Cache, configuration: Configuration, engine: Engine, say: Callable[[str], None]
) -> tuple[Artifact, Json]:
    """The image of a configuration, from the cache or made now, and its facts."""
    chosen = configuration.image
    return system.obtain_image(
        cache,
        choice=chosen.get("path"),
        suite=chosen.get("suite", debian.SUITE),
        progress=say,
        software=image_software(engine),
    )
