"""Where the extra time goes: counts times costs, the ledger made of them, and predictions."""
