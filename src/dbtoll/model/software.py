"""What the system image gets for those who run in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Wheel:
    """Programs and libraries that come in a wheel of the Python package index, and go into the image without Python.

    ``files``: members -> where they lie in the image; one that ends with a slash stands for all below it, which keep their last
    name in that directory.
    ``builds``: processor (uname -m) -> what pip calls the build (``--platform``), and its SHA-256. ``python``: version and ABI of
    the interpreter that it was built for, as pip calls them; empty for any.
    """

    project: str
    version: str
    builds: Mapping[str, tuple[str, str]]
    files: Mapping[str, str]
    python: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Software:
    """``packages``: Debian's, of all suites. ``before``, ``after``: what a shell does, with the image's root as ``$1``, before
    they are installed and afterwards; it must leave nothing of the host in there. ``wheels``: see `Wheel`. ``programs``: of
    dbtoll's own (`images.own_programs`) -> the directory that they lie in. ``suites``: what one suite gets beside all that.
    ``versions``: suite -> the version of the server that the image has then, for people.
    """

    packages: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    wheels: tuple[Wheel, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    suites: Mapping[str, Software] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: Software) -> Software:
        """Both, each thing once."""
        suites = {suite: self.of_suite(suite) | other.of_suite(suite) for suite in {*self.suites, *other.suites}}
        return Software(
            tuple(dict.fromkeys((*self.packages, *other.packages))),
            _once(self.before, other.before),
            _once(self.after, other.after),
            self.wheels + tuple(wheel for wheel in other.wheels if wheel not in self.wheels),
            {**self.programs, **other.programs},
            {suite: suites[suite] for suite in sorted(suites)},
        )

    def of_suite(self, suite: str) -> Software:
        """What that suite alone gets."""
        return self.suites.get(suite, NOTHING)


NOTHING = Software()


def _once(*scripts: str) -> str:
    return "\n".join(dict.fromkeys(filter(None, scripts)))
