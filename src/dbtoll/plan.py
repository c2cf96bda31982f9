"""Experiment + seed -> Plan: rounds of randomised blocks. Pure and byte-reproducible."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dbtoll.model.experiment import THREADS, Experiment
from dbtoll.model.neighbours import FAULTS, NEIGHBOUR
from dbtoll.model.plan import Block, Phase, Round, Visit


def thinned_arms(experiment: Experiment, slow: Mapping[str, Sequence[Mapping[str, str]]]) -> frozenset[str]:
    """Arms that take part in `Precision.rounds_of_slow` rounds and no more: slow at every combination of levels, beside others that
    are not. ``slow``: see `Plan`."""
    thinned = frozenset(arm for arm, levels in slow.items() if all(each in levels for each in experiment.combinations))
    compared = {arm.name for arm in experiment.arms if experiment.baseline not in (arm.name, arm.copy_of)}
    return thinned if compared - thinned else frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """All rounds of an experiment, made when asked for.

    ``queries``: of the workload, in its order. ``blocks``: blocks in each phase of a round. ``slow``: arm -> levels of the phases
    in which it is so many times slower that it takes part in the first block alone (docs/adr/0026). ``pilot``: round 0 sized the
    others, and has one block (docs/adr/0027).
    """

    experiment: Experiment
    queries: tuple[str, ...]
    blocks: int
    slow: Mapping[str, Sequence[Mapping[str, str]]]
    pilot: bool = False

    @property
    def thinned(self) -> frozenset[str]:
        """See `thinned_arms`."""
        return thinned_arms(self.experiment, self.slow)

    def round(self, index: int) -> Round:
        """Round number ``index``, the same for the same experiment, seed and numbers of blocks."""
        chance = _Chance(self.experiment.seed, "round", index)
        every_arm = [arm.name for arm in self.experiment.arms]
        arms = [arm.name for arm in self.experiment.arms if arm.clock == "time"]
        order = tuple(chance.shuffled(every_arm))
        phases = [
            Phase(levels, tuple(self._timed(chance, index, every_arm, arms, levels)))
            for levels in self._combinations(index)
        ]
        if NEIGHBOUR in self.experiment.factors:
            phases = list(_interleaved(chance, phases))
        if self.experiment.counts:
            phases += [
                Phase(
                    timed.levels,
                    (self._block(chance, arms, self.queries, 0, timed.blocks[0].parameter_set),),
                    "counted",
                )
                for timed in phases
            ]
        if self.experiment.explain:
            probed = self._block(chance, every_arm, self.experiment.explain, 0, phases[0].blocks[0].parameter_set)
            phases.append(Phase({}, (probed,), "probed"))
        return Round(index, order, tuple(phases))

    def blocks_of(self, index: int) -> int:
        """How many blocks a phase of round ``index`` has."""
        return 1 if self.pilot and index == 0 else self.blocks

    def parameter_seed(self, parameter_set: int) -> int:
        """The seed from which a workload draws set number ``parameter_set``: 63 bits of SHA-256."""
        text = f"dbtoll parameters {self.experiment.seed} {parameter_set}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1

    def _combinations(self, index: int) -> list[dict[str, str]]:
        """Of the factors' levels, in the order of the phases of round ``index``.

        Numbers of threads are set against one another within an arm, so their order is drawn by chance for every two rounds and
        turned round in the second of them: what changes steadily from phase to phase then adds nothing to their ratio.
        """
        factors = self.experiment.factors
        if THREADS not in factors:
            return self.experiment.combinations
        order = _Chance(self.experiment.seed, THREADS, index // 2).shuffled(factors[THREADS])
        drawn = tuple(reversed(order) if index % 2 else order)
        return replace(self.experiment, factors={**factors, THREADS: drawn}).combinations

    def _timed(
        self,
        chance: _Chance,
        index: int,
        every_arm: Sequence[str],
        arms: Sequence[str],
        levels: Mapping[str, str],
    ) -> Iterator[Block]:
        """The blocks of a timed phase of round ``index``. ``arms``: those whose clock is time."""
        quick = [arm for arm in arms if levels not in self.slow.get(arm, ())]
        # What is set against one another has the same parameters: arms in a block, numbers of threads and neighbours in a round.
        within = THREADS in levels or NEIGHBOUR in levels
        drawing = _Chance(self.experiment.seed, "parameters", index) if within else chance
        first = drawing.below(self.experiment.parameter_sets)
        for block in range(self.blocks_of(index)):
            # What is counted is what was timed, in all blocks.
            again = block == 0 or self.experiment.counts
            parameter_set = first if again else drawing.below(self.experiment.parameter_sets)
            # A count that does not change is taken once; of a statement that waits for a disk it means little.
            present = quick if block else arms if _cold(levels) else every_arm
            yield self._block(chance, present, self.queries, block, parameter_set)

    def _block(
        self,
        chance: _Chance,
        arms: Sequence[str],
        queries: Sequence[str],
        index: int,
        parameter_set: int,
    ) -> Block:
        """Order of queries random; within a query the arms in random order, so that drift hits all alike (DESIGN §1.3)."""
        visits = []
        for query in chance.shuffled(queries):
            visits += [Visit(arm, query) for arm in chance.shuffled(arms)]
        return Block(index, parameter_set, tuple(visits))


def _interleaved(chance: _Chance, phases: Sequence[Phase]) -> Iterator[Phase]:
    """Phases of one block each: those of a block that differ in their neighbour alone follow one another, in random order. So each
    is paired with the one without a neighbour a few windows away. A fault comes last, once: nothing can be measured after it."""
    by_others: dict[str, list[Phase]] = {}
    faults = [phase for phase in phases if phase.levels[NEIGHBOUR] in FAULTS]
    for phase in phases:
        if phase in faults:
            continue
        others = {name: level for name, level in phase.levels.items() if name != NEIGHBOUR}
        by_others.setdefault(str(others), []).append(phase)
    for alike in by_others.values():
        for number in range(max(len(phase.blocks) for phase in alike)):
            having = {phase.levels[NEIGHBOUR]: phase for phase in alike if number < len(phase.blocks)}
            for level in chance.shuffled(list(having)):
                yield Phase(having[level].levels, (having[level].blocks[number],))
    for phase in faults:
        yield Phase(phase.levels, phase.blocks[:1])


def _cold(levels: Mapping[str, str]) -> bool:
    return levels.get("cache") == "cold"


class _Chance:
    """Random choices that no later Python version may change.

    Only ``random.random`` is promised to stay the same for a seed (library reference, random, "Notes on
    Reproducibility"), so the shuffle is made from it here.
    """

    def __init__(self, *seed: object) -> None:
        digest = hashlib.sha256(" ".join(map(str, ("dbtoll plan", *seed))).encode()).digest()
        self._random = random.Random(int.from_bytes(digest, "little"))

    def below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def shuffled(self, items: Sequence[str]) -> list[str]:
        """Fisher and Yates; the bias of 53-bit fractions is below 2^-40 for any length used here."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result
