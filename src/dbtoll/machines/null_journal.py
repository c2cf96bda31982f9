"""A journal that is not written."""

from __future__ import annotations

from typing import Any


class NullJournal:
    """Takes entries and writes none: for a trial that is over before anything could be left behind, and for what is made inside a
    guest, which is gone when the guest is (on the host, its paths and names would be taken for the host's own).
    """

    def create(self, kind: str, **identity: Any) -> NullJournal:
        """Notes nothing."""
        return self

    def done(self) -> None:
        """Notes nothing."""
