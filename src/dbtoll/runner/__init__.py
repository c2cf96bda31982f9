"""Plan -> samples; the only step with side effects (DESIGN §3, §6)."""
