"""How an arm is driven in one visit: statements, transactions, probes, and the passes that count."""
