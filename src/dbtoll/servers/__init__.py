"""What engines share that run a server of their own: its process, and a free port."""
