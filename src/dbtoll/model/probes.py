"""The probes that do an executor's work, and their forms."""

from __future__ import annotations

EXECUTOR_PROBES = ("rows", "decimals", "descents", "joins", "sorts", "code", "indirect_calls", "branches")
"""Probes that never enter the kernel and do what an executor does, each with its own mix of instructions and memory."""

CACHED = "_cached"

HUGE_PAGES = "_2m_pages"
"""Forms of those that need more memory than the caches hold: the same instructions without that, and with less translation."""
