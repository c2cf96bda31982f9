"""The few protocols that the families implement and the runner joins; each says what must NOT happen.

The data's way: ``Environment.open(machine, place) -> Machine``; ``Engine.start(machine, …) -> Server``;
``Workload.load(machine, server)`` once, ``Workload.statements(seed)`` for each block; ``Machine.serial(server) ->
Session``; ``Session.visit(…) -> Begun[VisitReply]``, whose ``result()`` it is.
"""
