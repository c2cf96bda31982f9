"""What a run folder keeps and shows by its name alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dbtoll.errors import SpecError
from dbtoll.model.json import Json

NAMES = re.compile(
    "passw|passphrase|secret|token|credential|conninfo|private|api.?key|access.?key|bind.?pw|sst.?auth|init.?connect"
    "|(archive|restore|cleanup|recovery_end)_command|(^|[._-])(auth|dsn|jwt|pwd|salt)($|[._-])|[_-](key|url|uri)$",
    re.IGNORECASE,
)
"""Of settings whose values may let somebody in, or are programs that know how to."""
WITH_PASSWORD = re.compile("://[^/@\\s]*:[^/@\\s]*@|passw(or)?d\\s*=", re.IGNORECASE)
"""In a value, whatever its name: an address with a user's password in it (RFC 3986, 3.2.1), a connection string."""

HIDDEN = "(set; not shown)"


def without_secrets(facts: Json) -> Json:
    """Facts as they may be kept and shown: where a name may be that of a secret, the name alone."""
    return {name: HIDDEN if value and NAMES.search(name) else _shown(value) for name, value in facts.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return HIDDEN if isinstance(value, str) and WITH_PASSWORD.search(value) else value


def demand_none(settings: Iterable[str], hint: str) -> None:
    """SpecError if one of the settings that a specification gives may be a secret: the run folder keeps the specification."""
    for name in settings:
        if NAMES.search(name):
            raise SpecError(f"the setting {name} may hold a secret, and a run folder keeps the specification", hint)
