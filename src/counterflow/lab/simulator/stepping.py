"""One actor moves at a time, the one that the schedule says: nodes, queues, the driver, the collector.

The nodes are those of the local engine: the same compiled steps over the same memory. A queue between two nodes has
two halves here, and delivers a message when it is chosen. After each move the checks look at what has changed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from counterflow.jit import compiled, inlined
from counterflow.lab.replay.feeding import SENT as SENT_TUPLES
from counterflow.lab.replay.feeding import release, tell_expired
from counterflow.lab.replay.watching import complete_rank
from counterflow.lab.simulator.checks import (
    check_all_found,
    check_forgotten,
    check_memory,
    check_result,
    check_turn,
)
from counterflow.lab.simulator.run_words import (
    CHOICES,
    FAILED_AT,
    FAILED_WITH,
    FAILURE,
    FINISHED,
    NEXT_RANK,
    NOTHING,
    PAIRS,
    PUNCTUATION,
    REPLAYED,
    RESTING,
    STUCK,
    TOLD,
    TOO_LONG,
)
from counterflow.lab.simulator.schedules import chance, choose
from counterflow.lockfree.message_ring import front, pop, room, try_send, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.node import words_at
from counterflow.protocols.threads import finish, progress, take_results
from counterflow.windows.vectors import Array

# --- what does not change during a run: words of `rules`
WAY, AHEAD, FORGETS, BOTH, ORDERED, MOST, TOTAL, RIGHTS, KIND, AMOUNT, LIMIT = 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11
TIDY = 12  # whether nodes that are at rest hold nothing that has expired
RULES = 16
RUNNING, ENDED, NEEDS, FAILED = 0, 1, 2, 3  # how far a run is
SENT, RECEIVED = 0, 1  # a row of `wires`


@compiled
def move_driver(
    m: Words,
    state: Words,
    rules: Words,
    heads: Array,
    lanes: Words,
    sent: Words,
    ends: Array,
    totals: Words,
    amount: int,
) -> bool:
    """Release some tuples, as far as the nodes may be behind; say what has expired; at the end, that it is the end."""
    rank = state[NEXT_RANK]
    if state[TOLD] < rank:
        told = tell_expired(m, rules[WAY], heads, lanes, sent, ends, rank)
        state[TOLD] = rank if told else state[TOLD]
        return told
    if rank < rules[TOTAL]:
        to = min(rank + amount, rules[TOTAL], progress(m, 0) + progress(m, 1) + rules[AHEAD])
        if to <= rank or not release(m, rules[WAY], heads, lanes, sent, ends[to, 0], ends[to, 1]):
            return False
        state[NEXT_RANK] = to
        return True
    if state[FINISHED] != 0:
        return False
    finish(m)
    state[FINISHED] = 1
    return True


@compiled
def move_wire(m: Words, state: Words, wires: Array, carried: Words, wire: int) -> bool:
    """Deliver the oldest message of a queue, if the receiver's half has room."""
    ring, target = wires[wire, SENT], wires[wire, RECEIVED]
    if waiting(m, ring) == 0 or room(m, target) == 0:
        return False
    state[FAILURE] = check_turn(m, ring, carried, wire)
    try_send(m, target, front(m, ring, 0), front(m, ring, 1), front(m, ring, 2), front(m, ring, 3))
    pop(m, ring)
    return True


@compiled
def move_collector(
    m: Words, state: Words, rules: Words, totals: Words, out: Words, expected: Words, counts: Words
) -> bool:
    """Take what the nodes have found. What was complete before is a punctuation after it."""
    complete = complete_rank(m, rules[BOTH] != 0, totals)
    taken = take_results(m, out, len(out) // w.RESULT_WORDS)
    for i in range(taken):
        result = out[i * w.RESULT_WORDS : (i + 1) * w.RESULT_WORDS]
        failure = check_result(m, result, state, expected, counts, rules[RIGHTS], rules[ORDERED] != 0)
        if failure != NOTHING and state[FAILURE] == NOTHING:
            state[FAILURE], state[FAILED_WITH] = failure, result[1] * rules[RIGHTS] + result[2]
    state[PAIRS] += taken
    news = taken > 0 or complete > state[PUNCTUATION]
    state[PUNCTUATION] = max(complete, state[PUNCTUATION])
    return news


@inlined
def most_held(state: Words, rules: Words, sent: Words, ends: Array, nodes: int, side: int) -> int:
    """Return how many tuples of a side the windows may hold now.

    When all nodes know what has expired, and none of them can do anything more, that is what has not expired.
    """
    rank = state[NEXT_RANK]
    if rules[TIDY] != 0 and state[RESTING] == (1 << nodes) - 1 and state[TOLD] == rank:
        return sent[SENT_TUPLES + side] - ends[rank, 2 + side]
    return rules[MOST + side]


@compiled
def check_end(state: Words, rules: Words, expected: Words, counts: Words) -> bool:
    """Whether the join has ended; then everything must have been found."""
    if state[FINISHED] == 0 or state[PUNCTUATION] < rules[TOTAL]:
        return False
    state[FAILURE] = check_all_found(expected, counts)
    return True


@compiled
def copy_arrays(table: Array) -> None:
    """Rows of `table`: from where, to where, and how many words."""
    for i in range(len(table)):
        source, target = words_at(table[i, 0], table[i, 2]), words_at(table[i, 1], table[i, 2])
        for word in range(table[i, 2]):
            target[word] = source[word]


@cache
def mover(step: Any) -> Any:
    """Of a protocol: let one actor move. Returns 0 if it could do nothing, or what a node's step says."""

    @compiled
    def move(
        m: Words,
        state: Words,
        rules: Words,
        heads: Array,
        lanes: Words,
        sent: Words,
        ends: Array,
        totals: Words,
        wires: Array,
        carried: Words,
        out: Words,
        expected: Words,
        counts: Words,
        actor: int,
        amount: int,
    ) -> int:
        nodes = m[w.NODES]
        if actor < nodes:
            moved = step(m, actor)
            if moved == w.WORKED:
                state[FAILURE] = check_forgotten(m, actor, rules[FORGETS], totals)
        elif actor < nodes + len(wires):
            moved = w.WORKED if move_wire(m, state, wires, carried, actor - nodes) else w.IDLE
        elif actor == nodes + len(wires):
            for side in range(2):
                most = most_held(state, rules, sent, ends, nodes, side)
                state[FAILURE] = max(state[FAILURE], check_memory(m, wires, side, most))
            worked = move_driver(m, state, rules, heads, lanes, sent, ends, totals, amount)
            moved = w.WORKED if worked else w.IDLE
        else:
            worked = move_collector(m, state, rules, totals, out, expected, counts)
            moved = w.WORKED if worked else w.IDLE
        if moved != w.IDLE:
            state[RESTING] = 0
        elif actor < nodes:
            state[RESTING] |= 1 << actor
        return moved

    return move


@cache
def scheduler(step: Any) -> Any:
    """Of a protocol: let actors move until the join has ended, something is wrong, or a node needs something."""
    move = mover(step)

    @compiled
    def run(
        m: Words,
        state: Words,
        rules: Words,
        heads: Array,
        lanes: Words,
        sent: Words,
        ends: Array,
        totals: Words,
        wires: Array,
        carried: Words,
        out: Words,
        expected: Words,
        counts: Words,
        weights: Array,
        lengths: Words,
        trace: Words,
        replayed: int,
    ) -> int:
        """`trace` is filled with the choices; the first `replayed` of them are taken from it instead."""
        actors, idle, sweeping = m[w.NODES] + len(wires) + 2, 0, 0
        while state[CHOICES] < rules[LIMIT]:
            at = state[CHOICES]
            if sweeping > 0:  # nothing has moved for long: look at all of them
                sweeping -= 1
                actor, amount = sweeping % actors, 1
                state[REPLAYED] = min(state[REPLAYED] + 1, replayed)  # these are in a trace, too
            elif state[REPLAYED] < replayed:
                actor, amount = trace[at] & 0xFFFF, trace[at] >> 16
                state[REPLAYED] += 1
            elif replayed > 0:
                actor, amount = at % actors, 1
            else:
                actor = choose(rules[KIND], state, weights, lengths)
                amount = 1 + chance(state, rules[AMOUNT])
            if at < len(trace):
                trace[at] = actor | amount << 16
            moved = move(m, state, rules, heads, lanes, sent, ends, totals, wires, carried, out, expected, counts,
                         actor, amount)  # fmt: skip
            if state[FAILURE] != NOTHING:
                state[FAILED_AT] = actor
                return FAILED
            if moved == w.NEEDS:
                state[FAILED_AT] = actor
                return NEEDS
            state[CHOICES] += 1
            if moved == w.WORKED:
                idle = sweeping = 0
                if check_end(state, rules, expected, counts):
                    return FAILED if state[FAILURE] != NOTHING else ENDED
                continue
            idle += 1
            if idle == 40 * actors:
                sweeping = 4 * actors  # a node that waits, for room or for another one, may have done something before
            elif idle > 40 * actors and sweeping == 0 and state[REPLAYED] >= replayed:
                state[FAILURE] = STUCK
                state[CHOICES] -= 1  # the last one has failed, as where a move does
                return FAILED
        state[FAILURE] = TOO_LONG
        return FAILED

    return run
