"""What a paper gives: a member of the family `dbtoll.papers`, found in its folder by its name (docs/adding/paper.md)."""

from __future__ import annotations

import csv
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from dbtoll.analysis.reproduction.claims import Check, CheckedClaim, Claim, ClaimFinding, Support
from dbtoll.analysis.reproduction.parts import Part
from dbtoll.analysis.reproduction.tables import PublishedTable
from dbtoll.analysis.reproduction.verdicts import Judged, Rule
from dbtoll.analysis.result.schema import Result
from dbtoll.errors import SpecError
from dbtoll.model.experiment import Experiment
from dbtoll.store.reader import Run

ABOUT_FILE = "paper.toml"
CLAIMS_FILE = "claims.csv"


class PartFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of the specifications that a reproduction consists of.

    ``role``: what the rules know it by; the specification says the same. ``file``: its path in the paper's folder. ``over``: the
    part is a sweep of it, a run for each value, as `dbtoll sweep` has it (``tenants=1,2,4``). ``needs``: what
    the user has to say beside it: ``exclusive``, or a value for that variable of the specification. ``option``: of the environment;
    one that has none such is not measured in this part. ``needed``: without it nothing can be said of the others.
    """

    role: str
    file: str
    over: str = ""
    needs: tuple[str, ...] = ()
    option: str = ""
    needed: bool = False


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"parts": "part"}):
    """``paper.toml``.

    ``authors``: empty if we do not know them. ``measured``: a sentence: what the paper compared. ``beside``: a clause that follows
    the paper's title, where a run that is not its reproduction has figures beside the printed ones. ``environment``: what is
    measured in the place of the paper's, unless another is named. ``samples``: where the authors published their own, which are not
    copied here; empty if they did not. ``parts``: of a reproduction; empty where nothing of it is
    measured yet.
    """

    title: str
    authors: str = ""
    venue: str
    measured: str = ""
    beside: str = ""
    environment: str = ""
    samples: str = ""
    parts: tuple[PartFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim: what its own tables say (``checked``), and what was ``judged`` of what was measured here."""

    checked: CheckedClaim
    judged: Judged


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Everything, of one environment."""

    paper: str
    arm: str
    baseline: str
    tables: tuple[PublishedTable, ...]
    claims: tuple[ClaimResult, ...]


class Paper:
    """A paper. A subclass ``Paper`` lies in the paper's folder, beside ``paper.toml``, ``claims.csv``, ``tables/``, ``specs/``.

    ``checks``: claim -> what the paper's own tables say of it. ``rules``: claim -> by what it is judged here; of every claim, where
    there are parts.
    """

    name: ClassVar[str]
    """Also the folder's, and the specifications' ``paper``."""
    checks: ClassVar[Mapping[str, Check]] = {}
    rules: ClassVar[Mapping[str, Rule]] = {}

    @cached_property
    def folder(self) -> Path:
        return Path(str(sys.modules[type(self).__module__].__file__)).parent

    @cached_property
    def about(self) -> About:
        """Raises SpecError naming the file."""
        file = self.folder / ABOUT_FILE
        try:
            return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), About)
        except (OSError, ValueError, msgspec.ValidationError) as error:
            raise SpecError(f"{file}:1: {error}", "see docs/adding/paper.md for its keys") from None

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """All of claims.csv. Raises SpecError naming file and line."""
        file = self.folder / CLAIMS_FILE
        found = []
        try:
            with file.open(newline="", encoding="utf-8") as opened:
                reader = csv.DictReader(opened)
                for row in reader:
                    try:
                        found.append(msgspec.convert(row, Claim))
                    except msgspec.ValidationError as error:
                        raise SpecError(
                            f"{file}:{reader.line_num}: {error}", "see docs/adding/paper.md for its columns"
                        ) from None
        except OSError as error:
            raise SpecError(f"{file}:1: {error.strerror}", "see docs/adding/paper.md") from None
        return tuple(found)

    def checked(self) -> tuple[CheckedClaim, ...]:
        """Every claim with what the paper's own tables say of it, also where these cannot answer."""
        missing = ClaimFinding(Support.NOT_CHECKABLE, ())
        return tuple(
            CheckedClaim(claim, self.checks[claim.id](claim) if claim.id in self.checks else missing)
            for claim in self.claims
        )

    def reproduce(self, runs: Mapping[str, Sequence[Run]], samples: Path | None = None) -> Reproduction:
        """What was measured again: tables and verdicts. ``runs``: by role, at least one, and all of the ``needed`` parts; of a
        sweep one for each value, else one.

        ``samples``: the folder of the authors' own samples, where the user has it. Raises UsageError for files of another form.
        """
        main = Part(next(runs[part.role][0] for part in self.about.parts if part.role in runs))
        parts = self.parts(runs, samples)
        return Reproduction(
            paper=self.name,
            arm=main.title,
            baseline=main.baseline,
            tables=tuple(self.tables(parts)),
            claims=tuple(ClaimResult(each, self.rules[each.claim.id](parts)) for each in self.checked()),
        )

    def parts(self, runs: Mapping[str, Sequence[Run]], samples: Path | None = None) -> Any:
        """What `tables` and ``rules`` are given: by default a `Part` for each role. ``samples``: see `reproduce`."""
        return {role: Part(run) for role, (run,) in runs.items()}

    def tables(self, parts: Any) -> Iterable[PublishedTable]:
        """Of a reproduction, in the paper's order. ``parts``: see `parts`."""
        return ()

    def beside(self, result: Result, experiment: Experiment) -> Iterable[PublishedTable]:
        """Of a run that is not a reproduction: the tables whose kind it has figures of; none where it has none."""
        return ()
