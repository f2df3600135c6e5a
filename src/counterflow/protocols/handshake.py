"""Handshake join (Teubner and Mueller, SIGMOD 2011, and its first report).

The two windows lie along a row of nodes and flow by each other: left tuples (the papers' R) from left to right, right
ones (S) from right to left. Where a tuple enters a node, it is compared with all opposite tuples there (immediate
scan). Nodes hand their oldest tuples on while they have more than the next node, so load balances itself (Section
4.3). The driver puts tuples in at one end and takes them out at the other (Section 4.4).

Two-phase forwarding (Section 4.2): two tuples that are under way between the same two nodes must not miss each other.
So a right tuple stays, marked as forwarded, until the node to the left acknowledges it; left tuples go at once. The
first report keeps both. Taken literally, that finds the pair of two such tuples twice, once at each node; so in its
form (`VARIANT` 1) left tuples are acknowledged too, but no copy is kept, as nothing could be compared with it.

The driver's removals are numbers: everything before it may go. A tuple that arrives at the end after its removal goes
at once; a pair that meets too late is told by its stamps. When the input has ended, left tuples are pushed through to
the end, and so meet what is left of the others.
"""

from __future__ import annotations

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import load_acquire, store_release
from counterflow.lockfree.message_ring import CAPACITY as RING_CAPACITY
from counterflow.lockfree.message_ring import front, pop, room, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.kang import EVERYTHING, outcome
from counterflow.protocols.node import ALL_FRESH, expire, hand_on, node_at, room_to_wrap, search, store, take_message
from counterflow.protocols.traits import Protocol, along_a_row

NODE_FORWARDED = w.NODE_MARK  # right tuples before this one were handed on, and are kept until they are acknowledged
RECEIVE, MATCH, KEEP = 0, 1, 2


@compiled
def step(m: Words, k: int) -> int:
    """Figure 9: a message from the left, one from the right, then see whether tuples should move on."""
    node = node_at(m, k)
    worked = w.IDLE
    if m[node + w.NODE_PHASE] == RECEIVE:
        worked = process_left(m, k, node)
    if m[node + w.NODE_PHASE] == RECEIVE:
        worked = max(worked, process_right(m, k, node))
    if m[node + w.NODE_PHASE] != RECEIVE:
        worked = process_arrival(m, k, node)
        if m[node + w.NODE_PHASE] != RECEIVE:
            return worked
    return max(worked, forward_tuples(m, k, node))


@inlined
def half_empty(m: Words, ring: int) -> bool:
    """Say whether tuples may be sent: half of a queue is for acknowledgements, so two nodes never block each other."""
    return 2 * room(m, ring) > m[ring + RING_CAPACITY]


@inlined
def may_answer(m: Words, ring: int) -> bool:
    return ring == 0 or room(m, ring) > 0


@compiled
def process_left(m: Words, k: int, node: int) -> int:
    ring = m[node + w.NODE_FROM_LEFT]
    if waiting(m, ring) == 0:
        return w.IDLE
    kind, first, count = front(m, ring, 0), front(m, ring, 1), front(m, ring, 2)
    if kind == w.ARRIVAL:
        if not may_answer(m, m[node + w.NODE_TO_LEFT]):
            return w.IDLE
        take_message(m, node, w.LEFT, first, count, MATCH)
    elif kind == w.ACKNOWLEDGEMENT:
        expire(m, m[node + w.NODE_SEGMENT + w.RIGHT], first)
    else:  # the driver takes right tuples out at this end
        m[node + w.NODE_EXPIRED + w.RIGHT] = first
    pop(m, ring)
    return w.WORKED


@compiled
def process_right(m: Words, k: int, node: int) -> int:
    ring = m[node + w.NODE_FROM_RIGHT]
    if waiting(m, ring) == 0:
        return w.IDLE
    kind, first, count = front(m, ring, 0), front(m, ring, 1), front(m, ring, 2)
    if kind == w.ARRIVAL:
        if not may_answer(m, m[node + w.NODE_TO_RIGHT]):
            return w.IDLE
        take_message(m, node, w.RIGHT, first, count, MATCH)
    elif kind == w.EXPIRY:
        m[node + w.NODE_EXPIRED + w.LEFT] = first  # an acknowledgement of left tuples has nothing to remove
    pop(m, ring)
    return w.WORKED


@compiled
def process_arrival(m: Words, k: int, node: int) -> int:
    """Compare the tuples with all opposite ones here, insert them, acknowledge them."""
    side, first, count = m[node + w.NODE_KIND], m[node + w.NODE_FIRST], m[node + w.NODE_COUNT]
    if m[node + w.NODE_PHASE] == MATCH:
        if not search(m, node, m[node + w.NODE_SEGMENT + 1 - side], first, count, EVERYTHING, ALL_FRESH):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = KEEP
    if not store(m, node, m[node + w.NODE_SEGMENT + side], first, count):
        return outcome(m, node)
    if side == w.RIGHT and k < m[w.HEADER_NODES] - 1:
        hand_on(m, m[node + w.NODE_TO_RIGHT], w.ACKNOWLEDGEMENT, first + count, 0)
    if side == w.LEFT and k > 0 and m[w.HEADER_VARIANT] == 1:
        hand_on(m, m[node + w.NODE_TO_LEFT], w.ACKNOWLEDGEMENT, first + count, 0)
    m[node + w.NODE_PHASE] = RECEIVE
    return w.WORKED


@inlined
def excess(mine: int, forwarded: int, next_node_first: int, batch: int) -> int:
    """Return how many tuples to hand on: half of what this node has more than the next, counting those under way."""
    theirs = forwarded - next_node_first
    return min((mine - theirs + 1) // 2, batch) if mine > theirs else 0


@compiled
def forward_tuples(m: Words, k: int, node: int) -> int:
    worked = w.IDLE
    left, right = m[node + w.NODE_SEGMENT + w.LEFT], m[node + w.NODE_SEGMENT + w.RIGHT]
    first, end = m[left + w.SEGMENT_FIRST_ROW], m[left + w.SEGMENT_NEXT_ROW]
    if k == m[w.HEADER_NODES] - 1:  # the end: what the driver has declared expired goes
        if m[node + w.NODE_EXPIRED + w.LEFT] > first and end > first:
            expire(m, left, m[node + w.NODE_EXPIRED + w.LEFT])
            worked = w.WORKED
    elif end > first and half_empty(m, m[node + w.NODE_TO_RIGHT]):
        count = excess(
            end - first, first, load_acquire(m, node_at(m, k + 1) + w.NODE_SIZE + w.LEFT), m[w.HEADER_BATCH_ROWS]
        )
        if load_acquire(m, w.HEADER_FINISHED) != 0:
            count = min(end - first, m[w.HEADER_BATCH_ROWS])
        count = min(count, room_to_wrap(m, node, w.LEFT, first))
        if count > 0:
            hand_on(m, m[node + w.NODE_TO_RIGHT], w.ARRIVAL, first, count)
            expire(m, left, first + count)
            worked = w.WORKED
    oldest, end = m[right + w.SEGMENT_FIRST_ROW], m[right + w.SEGMENT_NEXT_ROW]
    forwarded = max(m[node + NODE_FORWARDED], oldest)
    if k == 0:
        if m[node + w.NODE_EXPIRED + w.RIGHT] > oldest and end > oldest:
            expire(m, right, m[node + w.NODE_EXPIRED + w.RIGHT])
            worked = w.WORKED
        forwarded = m[right + w.SEGMENT_FIRST_ROW]
    elif end > forwarded and half_empty(m, m[node + w.NODE_TO_LEFT]):
        count = excess(
            end - forwarded,
            forwarded,
            load_acquire(m, node_at(m, k - 1) + w.NODE_SIZE + w.RIGHT),
            m[w.HEADER_BATCH_ROWS],
        )
        count = min(count, room_to_wrap(m, node, w.RIGHT, forwarded))
        if count > 0:
            hand_on(m, m[node + w.NODE_TO_LEFT], w.ARRIVAL, forwarded, count)
            forwarded += count
            worked = w.WORKED
    m[node + NODE_FORWARDED] = forwarded
    store_release(m, node + w.NODE_SIZE + w.LEFT, m[left + w.SEGMENT_FIRST_ROW])
    store_release(m, node + w.NODE_SIZE + w.RIGHT, forwarded)
    # A right tuple is done with when its last copy is gone: it may be out at the left end, while the copy that it left
    # behind still meets a left tuple that was under way.
    store_release(m, node + w.NODE_DONE + w.LEFT, m[left + w.SEGMENT_FIRST_ROW])
    store_release(m, node + w.NODE_DONE + w.RIGHT, m[right + w.SEGMENT_FIRST_ROW])
    return worked


PROTOCOL = Protocol(
    name="handshake",
    step=step,
    way=w.TO_LANES,
    links=along_a_row,
    holds_incoming=True,
    forgets="at the end",
    meets_later=True,
    found_until_both_leave=True,
    symmetric_form=True,
    handles_all=False,
)
