"""What is left behind, and who removes it: the journal, removers, the last cleaning, signals."""
