"""Who moves next: schedules that chance decides, and such as try to do harm. A schedule is a kind and a seed.

It is a table of weights, one row for each phase and one column for each actor, and how long each phase lasts. Phases
follow each other for ever, and the last one lets everybody move: so every actor moves in the end, which is all that
the protocols ask of a schedule.
"""

from __future__ import annotations

from counterflow.jit import compiled, inlined
from counterflow.lab.simulator.run_words import CHOICES, PHASE, PHASE_LEFT, RANDOM
from counterflow.lockfree.shared_words import Words
from counterflow.windows.vectors import Array

ANY, STARVE, DELAY, BURST, SLOW_COLLECTOR, IN_TURN, SPRINT = range(7)
KINDS = ("any", "starve", "delay", "burst", "slow collector", "in turn", "sprint")
MEANINGS = {
    "any": "actors move by chance, some often and some rarely",
    "starve": "one node or source after the other gets no time for a while",
    "delay": "the queues of one direction, or the sources of one side, deliver nothing for a while",
    "burst": "the driver, or all sources, send all that fits, then nothing for a while",
    "slow collector": "results are not taken for a long while",
    "in turn": "everybody moves once in each round",
    "sprint": "one actor after the other moves as far as it can",
}
PHASES = 8
ORDINARY = 16  # a weight


@inlined
def chance(state: Words, below: int) -> int:
    """Return a number from 0 to `below` - 1, by chance."""
    state[RANDOM] = state[RANDOM] * 6364136223846793005 + 1442695040888963407
    return ((state[RANDOM] >> 33) & 0x7FFFFFFF) % below


@compiled
def make_schedule(
    kind: int, state: Words, weights: Array, lengths: Words, nodes: int, drivers: int, directions: Words
) -> None:
    """Fill the table. `directions`: of each actor, 1 for a queue to the right, -1 for one to the left, 0 for others.

    The actors are the nodes, the queues between them, the drivers and the collector. There is one driver, or there are
    several sources: then those of the left side count as queues to the right, and one of them may starve, too.
    """
    actors = weights.shape[1]
    collector = actors - 1
    first_driver = collector - drivers
    for phase in range(PHASES):
        last = phase == PHASES - 1
        lengths[phase] = 20 + chance(state, 20 if last else 120)
        victim, direction = chance(state, nodes if drivers == 1 else nodes + drivers), 1 - 2 * (phase % 2)
        if victim >= nodes:
            victim += first_driver - nodes
        for actor in range(actors):
            weight = ORDINARY
            stopped = (
                (kind == STARVE and actor == victim)
                or (kind == DELAY and directions[actor] == direction)
                or (kind == BURST and (first_driver <= actor < collector) == (phase % 2 == 1))
                or (kind == SLOW_COLLECTOR and actor == collector)
            )
            if kind == ANY:
                weight = 1 + ORDINARY * chance(state, 8) * chance(state, 8) // 8
            elif stopped and not last:
                weight = 0
            elif kind == SPRINT and actor == (victim + phase * 7) % actors:
                weight = ORDINARY * actors * 20
            weights[phase, actor] = weight + (weights[phase, actor - 1] if actor > 0 else 0)
    state[PHASE], state[PHASE_LEFT] = 0, lengths[0]


@inlined
def choose(kind: int, state: Words, weights: Array, lengths: Words) -> int:
    actors = weights.shape[1]
    if kind == IN_TURN:
        return state[CHOICES] % actors
    if state[PHASE_LEFT] == 0:
        state[PHASE] = (state[PHASE] + 1) % PHASES
        state[PHASE_LEFT] = lengths[state[PHASE]]
    state[PHASE_LEFT] -= 1
    phase = state[PHASE]
    drawn = chance(state, weights[phase, actors - 1])
    low, high = 0, actors - 1
    while low < high:  # the first actor whose sum is larger
        middle = (low + high) // 2
        if weights[phase, middle] > drawn:
            high = middle
        else:
            low = middle + 1
    return low
