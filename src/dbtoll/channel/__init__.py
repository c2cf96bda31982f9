"""The line to the agents: frames, calls, streams, and the machines and sessions made of them (docs/PROTOCOL.md)."""
