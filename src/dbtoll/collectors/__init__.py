"""What is counted beside a server (interfaces.Collector); one file each, with what it costs and what can distort it."""
