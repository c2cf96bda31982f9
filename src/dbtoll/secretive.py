"""What a run folder keeps and shows by its name alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dbtoll.errors import SpecError
from dbtoll.model import Json

NAMES = re.compile(
    "passw|passphrase|secret|token|credential|conninfo|private|(archive|restore|cleanup|recovery_end)_command",
    re.IGNORECASE,
)
"""Of settings whose values may let somebody in, or are programs that know how to."""

HIDDEN = "(set; not shown)"


def without_secrets(facts: Json) -> Json:
    """Facts as they may be kept and shown: where a name may be that of a secret, the name alone."""
    found: Json = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            found[name] = without_secrets(value)
        else:
            found[name] = HIDDEN if isinstance(value, str) and value and NAMES.search(name) else value
    return found


def demand_none(settings: Iterable[str], mend: str) -> None:
    """SpecError if one of the settings that a specification gives may be a secret: the run folder keeps the specification."""
    for name in settings:
        if NAMES.search(name):
            raise SpecError(f"the setting {name} may hold a secret, and a run folder keeps the specification", mend)
