"""Low-latency handshake join (Roy, Teubner and Gemulla, VLDB 2014).

Nodes stand in a row. Left tuples (the paper's R) rush from left to right, right ones (S) from right to left; each node
hands a tuple on at once and then looks for its partners among what is stored here. A tuple is stored at its home node
only. Three kinds of messages besides arrivals make sure that each pair is found exactly once (Section 4.2, Table 1):
acknowledgements (right tuples between two nodes are kept in TRANSIT until the next node has them), expedition ends (a
right tuple looks only at left ones that have reached the end of the row), and the driver's expiries.

Differences from the paper, both for exactness: a pair is checked against the window (tuples wait in queues, so one may
meet another that has expired meanwhile), and every node has a high-water mark of its own (Section 6.1 has one at each
end of the row, but a tuple is handed on before it is looked for partners of, so it may be at the end while a node
before is still searching).
"""

from __future__ import annotations

from counterflow.jit import compiled
from counterflow.lockfree.atomics import store_release
from counterflow.lockfree.message_ring import front, pop, room, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.kang import EVERYTHING, outcome
from counterflow.protocols.node import ALL_FRESH, expire, hand_on, node_at, room_to_wrap, search, store, take_message
from counterflow.protocols.traits import Protocol, along_a_row, every_nth

NODE_EXPEDITED = w.NODE_MARK  # left tuples that have reached the end of the row, as far as this node knows
# And the next: opposite tuples that have expired after the arrival that is being processed.
NODE_EXPIRED_AFTER = w.NODE_EXPIRED
RECEIVE, MATCH, MATCH_TRANSIT, KEEP, KEEP_TRANSIT = 0, 1, 2, 3, 4
SPARE = 2  # room in a queue for what one arrival causes


@compiled
def step(m: Words, k: int) -> int:
    """Figure 12: an arrival from the left, then one from the right, and what comes before them in their queues.

    An acknowledgement stands between two arrivals from the left, and they are not taken together over it; if it had a
    step of its own, a node would be behind with left tuples as soon as they come in small numbers.
    """
    node = node_at(m, k)
    if m[node + w.NODE_PHASE] != RECEIVE:
        left = m[node + w.NODE_KIND] == w.LEFT
        return process_left_arrival(m, k, node) if left else process_right_arrival(m, k, node)
    worked = w.IDLE
    for side in range(2):
        state = w.WORKED
        m[node + w.NODE_COUNT] = 0
        while state == w.WORKED and m[node + w.NODE_COUNT] == 0:
            state = process_left(m, k, node) if side == w.LEFT else process_right(m, k, node)
            if m[node + w.NODE_PHASE] != RECEIVE:
                return state
            worked = max(worked, state)
    return worked


@compiled
def take_arrivals(m: Words, node: int, side: int, ring: int, onward: int) -> None:
    """Take an arrival, and with it those that are queued behind it, up to a batch; hand them on (line 7).

    An expiry among them may wait until they are processed: it only says what later tuples do not need.
    """
    first, count, expired = front(m, ring, 1), front(m, ring, 2), m[node + NODE_EXPIRED_AFTER + side]
    limit = min(m[w.HEADER_BATCH_ROWS], room_to_wrap(m, node, side, first))
    pop(m, ring)
    while waiting(m, ring) > 0:
        if front(m, ring, 0) == w.EXPIRY:
            expired = front(m, ring, 1)
        elif front(m, ring, 0) == w.ARRIVAL and count + front(m, ring, 2) <= limit:
            count += front(m, ring, 2)
        else:
            break
        pop(m, ring)
    hand_on(m, onward, w.ARRIVAL, first, count)
    if expired > m[node + NODE_EXPIRED_AFTER + side]:
        hand_on(m, onward, w.EXPIRY, expired, 0)
    m[node + NODE_EXPIRED_AFTER + side] = expired
    take_message(m, node, side, first, count, MATCH)


@compiled
def process_left(m: Words, k: int, node: int) -> int:
    """Figure 13."""
    ring, onward = m[node + w.NODE_FROM_LEFT], m[node + w.NODE_TO_RIGHT]
    if waiting(m, ring) == 0:
        return w.IDLE
    kind, first = front(m, ring, 0), front(m, ring, 1)
    if kind == w.ARRIVAL:
        if (onward != 0 and room(m, onward) < SPARE) or (
            m[node + w.NODE_TO_LEFT] != 0 and room(m, m[node + w.NODE_TO_LEFT]) < SPARE
        ):
            return w.IDLE
        take_arrivals(m, node, w.LEFT, ring, onward)
        return process_left_arrival(m, k, node)
    if kind == w.ACKNOWLEDGEMENT:
        pop(m, ring)
        expire(m, m[node + w.NODE_TRANSIT], first)
        return w.WORKED
    if not hand_on(m, onward, w.EXPIRY, first, 0):
        return w.IDLE
    pop(m, ring)
    expire(m, m[node + w.NODE_SEGMENT + w.RIGHT], first)
    return w.WORKED


@compiled
def process_left_arrival(m: Words, k: int, node: int) -> int:
    """Lines 8 to 12: look for partners here and in transit, keep the tuples whose home this is."""
    first, count = m[node + w.NODE_FIRST], m[node + w.NODE_COUNT]
    if m[node + w.NODE_PHASE] == MATCH:
        if not search(m, node, m[node + w.NODE_SEGMENT + w.RIGHT], first, count, EVERYTHING, ALL_FRESH):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = MATCH_TRANSIT
    if m[node + w.NODE_PHASE] == MATCH_TRANSIT:
        # Only fresh ones: their home is still to come.
        if k > 0 and not search(m, node, m[node + w.NODE_TRANSIT], first, count, EVERYTHING, k):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = KEEP
    if not store(m, node, m[node + w.NODE_SEGMENT + w.LEFT], first, count):
        return outcome(m, node)
    if k == m[w.HEADER_NODES] - 1:
        m[node + NODE_EXPEDITED] = first + count
        if k > 0:
            hand_on(m, m[node + w.NODE_TO_LEFT], w.EXPEDITION_END, first + count, 0)
    expire(m, m[node + w.NODE_SEGMENT + w.RIGHT], m[node + NODE_EXPIRED_AFTER + w.LEFT])
    store_release(m, node + w.NODE_DONE + w.LEFT, first + count)
    m[node + w.NODE_PHASE] = RECEIVE
    return w.WORKED


@compiled
def process_right(m: Words, k: int, node: int) -> int:
    """Figure 14."""
    ring, onward = m[node + w.NODE_FROM_RIGHT], m[node + w.NODE_TO_LEFT]
    if waiting(m, ring) == 0:
        return w.IDLE
    kind, first = front(m, ring, 0), front(m, ring, 1)
    if kind == w.ARRIVAL:
        back = m[node + w.NODE_TO_RIGHT]
        if (onward != 0 and room(m, onward) < SPARE) or (back != 0 and room(m, back) < SPARE):
            return w.IDLE
        take_arrivals(m, node, w.RIGHT, ring, onward)
        return process_right_arrival(m, k, node)
    if not hand_on(m, onward, kind, first, 0):
        return w.IDLE
    pop(m, ring)
    if kind == w.EXPEDITION_END:
        m[node + NODE_EXPEDITED] = first
    else:
        expire(m, m[node + w.NODE_SEGMENT + w.LEFT], first)
    return w.WORKED


@compiled
def process_right_arrival(m: Words, k: int, node: int) -> int:
    """Lines 8 to 13: look at left tuples whose expedition is over, keep the tuples, acknowledge them."""
    first, count = m[node + w.NODE_FIRST], m[node + w.NODE_COUNT]
    if m[node + w.NODE_PHASE] == MATCH:
        if not search(m, node, m[node + w.NODE_SEGMENT + w.LEFT], first, count, m[node + NODE_EXPEDITED], ALL_FRESH):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = KEEP_TRANSIT
    if m[node + w.NODE_PHASE] == KEEP_TRANSIT:
        if k > 0 and not store(m, node, m[node + w.NODE_TRANSIT], first, count):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = KEEP
    if not store(m, node, m[node + w.NODE_SEGMENT + w.RIGHT], first, count):
        return outcome(m, node)
    if k < m[w.HEADER_NODES] - 1:
        hand_on(m, m[node + w.NODE_TO_RIGHT], w.ACKNOWLEDGEMENT, first + count, 0)
    expire(m, m[node + w.NODE_SEGMENT + w.LEFT], m[node + NODE_EXPIRED_AFTER + w.RIGHT])
    store_release(m, node + w.NODE_DONE + w.RIGHT, first + count)
    m[node + w.NODE_PHASE] = RECEIVE
    return w.WORKED


PROTOCOL = Protocol(
    name="llhj",
    step=step,
    way=w.TO_LANES,
    links=along_a_row,
    stores=every_nth,
    keeps_transit=True,
    meets_later=True,
    hands_on_first=True,
)
