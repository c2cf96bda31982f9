"""JSON, and where every machine has its agent."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

AGENT = "/dbtoll/agent"
"""Where every arm finds its agent; the image builder makes this an empty file."""
