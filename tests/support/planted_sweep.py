"""A simulated design that loses more the larger a variable is, and one that always loses the same: they cross."""

from __future__ import annotations

PLANTED = """
question = "Which simulated design does more, from which effect on?"
[variables]
effect = { kind = "number", default = 0.1, help = "Planted overhead of the arm that grows." }
kind = { kind = "text", default = "simulated", help = "Where." }
many = { kind = "integer", default = 2, help = "Units of each arm." }
[engine]
name = "noop"
[workload]
name = "tatp"
window = "4s"
ramp_up = "0s"
[precision]
budget = "600s"
rounds_min = 10
rounds_max = 10
[[arm]]
name = "grows"
stack = "$kind"
machines = "$many"
[arm.options]
effect = "$effect"
start_spread = 0.002
[[arm]]
name = "fixed"
stack = "simulated:effect=0.3,start_spread=0.002"
machines = "$many"
"""
