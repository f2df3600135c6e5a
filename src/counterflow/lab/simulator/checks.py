"""What must be true at every moment of a join, and at its end. Each check says what is wrong, or NOTHING.

They look at a machine's memory and at what came out of it, and know nothing of schedules; of protocols only where
tuples are looked at.
"""

from __future__ import annotations

from counterflow.jit import compiled, inlined
from counterflow.lab.simulator.run_words import (
    EXPIRED_EARLY,
    LAST_EARLIER,
    LAST_RANK,
    MISSED,
    NOT_IN_TURN,
    NOTHING,
    OUT_OF_ORDER,
    PUNCTUATION,
    TOO_LATE,
    TOO_MUCH,
    TWICE,
    WRONG_PAIR,
)
from counterflow.lockfree.message_ring import HEAD, TAIL, front
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.node import node_at
from counterflow.windows.vectors import Array

# How a protocol's nodes forget tuples: WHOLE windows of a coordinator that lends parts of them; tuples that MOVE on,
# and are forgotten at the end of the row; or each node its OWN.
WHOLE, MOVE, OWN = 0, 1, 2


@compiled
def check_result(m: Words, at: Words, state: Words, expected: Words, counts: Words, rights: int, ordered: bool) -> int:
    """Check a result that the collector takes: a pair that is asked for, for the first time, and not too late."""
    rank, pair = at[0] >> 1, at[1] * rights + at[2]
    if expected[pair] == 0:
        return WRONG_PAIR
    counts[pair] += 1
    if counts[pair] > 1:
        return TWICE
    if rank < state[PUNCTUATION]:
        return TOO_LATE
    if ordered:
        earlier = at[1] if at[0] & 1 else at[2]
        if rank < state[LAST_RANK] or (rank == state[LAST_RANK] and earlier <= state[LAST_EARLIER]):
            return OUT_OF_ORDER
        state[LAST_RANK], state[LAST_EARLIER] = rank, earlier
    return NOTHING


@compiled
def check_all_found(expected: Words, counts: Words) -> int:
    """Check at the end that every pair was found."""
    for pair in range(len(expected)):
        if expected[pair] != 0 and counts[pair] == 0:
            return MISSED
    return NOTHING


@inlined
def check_turn(m: Words, ring: int, carried: Words, wire: int) -> int:
    """Check a message that a wire carries: arrivals follow each other without a gap."""
    if front(m, ring, 0) == w.ARRIVAL:
        first, count = front(m, ring, 1), front(m, ring, 2)
        if first != carried[wire]:
            return NOT_IN_TURN
        carried[wire] = first + count
    return NOTHING


@compiled
def check_forgotten(m: Words, k: int, way: int, totals: Words, lows: Array) -> int:
    """Check after a node's step: what it has forgotten, no tuple that is still to come here meets.

    `lows`: the horizons of the left and of the right tuples, by number.
    """
    node = node_at(m, k)
    if way == WHOLE and (k > 0 or m[node + w.NODE_PHASE] != 0):
        return NOTHING
    for side in range(2):
        if way == MOVE and k != (m[w.HEADER_NODES] - 1 if side == w.LEFT else 0):
            continue
        segment = m[node + w.NODE_SEGMENT + side]
        forgotten = (m[segment + w.SEGMENT_FIRST_ROW] - 1) * m[segment + w.SEGMENT_STRIDE] + m[
            segment + w.SEGMENT_OFFSET
        ]
        to_come = m[node + w.NODE_DONE + 1 - side]
        if way == MOVE:
            to_come = m[m[node + w.NODE_SEGMENT + 1 - side] + w.SEGMENT_NEXT_ROW]
        some = to_come < totals[1 - side] and m[segment + w.SEGMENT_FIRST_ROW] > 0
        if some and forgotten >= lows[1 - side, to_come]:
            return EXPIRED_EARLY
    return NOTHING


@compiled
def check_memory(m: Words, wires: Array, side: int, most: int) -> int:
    """Check that nodes which are done with all messages hold at most `most` tuples of a side together."""
    for wire in range(len(wires)):
        for half in range(2):
            if m[wires[wire, half] + HEAD] != m[wires[wire, half] + TAIL]:
                return NOTHING
    held = 0
    for k in range(m[w.HEADER_NODES]):
        if m[node_at(m, k) + w.NODE_PHASE] != 0:  # an expiry that was taken with an arrival waits for its end
            return NOTHING
        segment = m[node_at(m, k) + w.NODE_SEGMENT + side]
        if m[segment + w.SEGMENT_COPIES] != 0:
            held += m[segment + w.SEGMENT_NEXT_ROW] - m[segment + w.SEGMENT_FIRST_ROW]
    return TOO_MUCH if held > most else NOTHING
