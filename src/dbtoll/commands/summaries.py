"""What CI is told of a result: the gate's sentence and exit code, JUnit XML, a summary in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dbtoll.durable import require_writable, write_durably
from dbtoll.errors import UsageError
from dbtoll.model.experiment import GateDecision

if TYPE_CHECKING:
    from dbtoll.analysis.result.schema import Result
    from dbtoll.store.reader import Run

EXIT_CODES = {GateDecision.WITHIN: 0, GateDecision.EXCEEDED: 1, GateDecision.UNDECIDED: 2}


@dataclass(frozen=True, slots=True)
class Summaries:
    """The files that were asked for."""

    junit: Path | None = None
    markdown: Path | None = None

    def require(self, limit: float | None) -> None:
        """UsageError, before anything is measured, where a file cannot be written, or would say nothing without a ``limit``."""
        if self.junit is not None and limit is None:
            raise UsageError("--junit says what the gate decided, and there is no limit", "add --max-overhead 5%")
        for option, path in (("--junit", self.junit), ("--markdown", self.markdown)):
            if path is not None:
                with _naming(option, path):
                    require_writable(path)

    def write(self, result: Result, run: Run) -> None:
        """Each file whole or not at all."""
        from dbtoll.analysis.result import provenance
        from dbtoll.report.junit import junit
        from dbtoll.report.summary import markdown

        origin = provenance.of(run)
        if self.junit is not None:
            with _naming("--junit", self.junit):
                write_durably(self.junit, junit(result, run, origin))
        if self.markdown is not None:
            with _naming("--markdown", self.markdown):
                write_durably(self.markdown, markdown(result, origin).encode())


NO_SUMMARIES = Summaries()


@contextmanager
def _naming(option: str, path: Path) -> Iterator[None]:
    """UsageError that names the option and its file where that cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{option} {path}: it cannot be written: {error.strerror}", "name a file in a directory that is there"
        ) from None


def conclude_gate(result: Result) -> int:
    """Say on standard error what the gate decided. Its exit code; 0 where there is no limit."""
    from dbtoll.report.text import gate

    if result.gate is None:
        return 0
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"gate: {gate.sentence(result)}", markup=False)
    return EXIT_CODES[result.gate.decision]
