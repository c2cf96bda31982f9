"""What several runs say that measure one specification at several values of a variable (docs/method/sweeps.md)."""
