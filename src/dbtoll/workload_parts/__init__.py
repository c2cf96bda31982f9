"""What workloads share: drawn values, scripts, the shape of transactions."""
