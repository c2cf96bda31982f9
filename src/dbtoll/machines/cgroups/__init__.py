"""Control groups of a machine in every layout: version 1, version 2, and both at once (hybrid).

An arm gets the group ``dbtoll/RUN/ARM`` in each hierarchy that it needs. Groups lie directly below the visible root,
where container engines put theirs, so that a native arm and a container compete alike; only inside an arm of dbtoll
(nesting) do they lie below that arm's group, so that its limits and its sleep hold for them too.
"""
