"""What the system image gets for those who run in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Software:
    """``packages``: Debian's, of all suites. ``before``, ``after``: what a shell does, with the image's root as ``$1``, before
    they are installed and afterwards; it must leave nothing of the host in there. ``versions``: suite -> the version of the server
    that Debian has there, for people.
    """

    packages: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Software) -> Software:
        """Both, each thing once."""
        return Software(
            tuple(dict.fromkeys((*self.packages, *other.packages))),
            _once(self.before, other.before),
            _once(self.after, other.after),
        )


NOTHING = Software()


def _once(*scripts: str) -> str:
    return "\n".join(dict.fromkeys(filter(None, scripts)))
