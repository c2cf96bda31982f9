"""What happened in the measurement windows of transactions."""
