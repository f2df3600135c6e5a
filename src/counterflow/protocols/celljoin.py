"""CellJoin (Gedik, Yu and Bordawekar, VLDB 2007, as the papers describe it): the three steps with a parallel scan.

Node 0 coordinates. For every batch it inserts the tuples into the windows, which all nodes share, partitions them anew
among the nodes, and waits until each has scanned its part; then it invalidates what has expired. Where an index is
used, the window cannot be cut: the new tuples are partitioned instead, and all nodes probe the one index, which nobody
changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import load_acquire, store_release
from counterflow.lockfree.message_ring import front, pop, room, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.kang import EVERYTHING, outcome, receive
from counterflow.protocols.node import ALL_FRESH, batch_ends, expire, hand_on, node_at, search, store
from counterflow.protocols.traits import DRIVER, Link, Protocol

if TYPE_CHECKING:
    from counterflow.protocols.design import Design

RECEIVE, STORE_LEFT, STORE_RIGHT, DISPATCH, SCAN_RIGHT, SCAN_LEFT, WAIT = 0, 1, 2, 3, 4, 5, 6
SHARED = (
    w.SEGMENT_RING,
    w.SEGMENT_HEADS,
    w.SEGMENT_HEADS_SIZE,
    w.SEGMENT_RECORDS,
    w.SEGMENT_RECORDS_SIZE,
    w.SEGMENT_POOL,
    w.SEGMENT_BANDS,
)


@inlined
def share_of(k: int, nodes: int, first: int, end: int) -> Any:
    """Return the k-th of equal parts."""
    size = end - first
    return first + size * k // nodes, first + size * (k + 1) // nodes


@compiled
def scan_part(m: Words, k: int, side: int, first: int, count: int) -> bool:
    """Search node k's part of the window of `side` for partners of the tuples; True when all pairs are out."""
    node, segment = node_at(m, k), m[node_at(m, k) + w.NODE_SEGMENT + side]
    if m[segment + w.SEGMENT_PROBE] != 0:
        begin, end = share_of(k, m[w.HEADER_NODES], first, first + count)
        return end == begin or search(m, node, segment, begin, end - begin, EVERYTHING, ALL_FRESH)
    return search(m, node, segment, first, count, EVERYTHING, ALL_FRESH)


@compiled
def take_part(m: Words, k: int, side: int) -> None:
    """See the coordinator's window as it is now; of a window that is scanned, a part of its rows."""
    mine, whole = m[node_at(m, k) + w.NODE_SEGMENT + side], m[node_at(m, 0) + w.NODE_SEGMENT + side]
    for word in SHARED:
        m[mine + word] = m[whole + word]
    first, end = m[node_at(m, 0) + w.NODE_MARK + 2 * side], m[node_at(m, 0) + w.NODE_MARK + 2 * side + 1]
    if m[mine + w.SEGMENT_PROBE] == 0:
        first, end = share_of(k, m[w.HEADER_NODES], first, end)
    m[mine + w.SEGMENT_FIRST_ROW], m[mine + w.SEGMENT_NEXT_ROW] = first, end


@compiled
def scan_both(m: Words, k: int) -> bool:
    """Take step 1 for all tuples of the batch, as far as it is node k's; True when done."""
    node = node_at(m, k)
    if m[node + w.NODE_PHASE] == SCAN_RIGHT:
        if not scan_part(m, k, 1, m[node + w.NODE_FIRST], m[node + w.NODE_COUNT]):
            return False
        m[node + w.NODE_PHASE] = SCAN_LEFT
    return scan_part(m, k, 0, m[node + w.NODE_FIRST_RIGHT], m[node + w.NODE_COUNT_RIGHT])


@inlined
def all_done(m: Words, node: int, lefts: int, rights: int) -> bool:
    """Whether a node is done with the tuples before these."""
    left, right = load_acquire(m, node + w.NODE_DONE), load_acquire(m, node + w.NODE_DONE + 1)
    return left >= lefts and right >= rights


@compiled
def coordinate(m: Words) -> int:
    node, nodes = node_at(m, 0), m[w.HEADER_NODES]
    left, right = m[node + w.NODE_SEGMENT], m[node + w.NODE_SEGMENT + 1]
    if m[node + w.NODE_PHASE] == RECEIVE:
        if not receive(m, node):
            return w.IDLE
        m[node + w.NODE_PHASE] = STORE_LEFT
    if m[node + w.NODE_PHASE] == STORE_LEFT:
        if not store(m, node, left, m[node + w.NODE_FIRST], m[node + w.NODE_COUNT]):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = STORE_RIGHT
    if m[node + w.NODE_PHASE] == STORE_RIGHT:
        if not store(m, node, right, m[node + w.NODE_FIRST_RIGHT], m[node + w.NODE_COUNT_RIGHT]):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = DISPATCH
    if m[node + w.NODE_PHASE] == DISPATCH:
        for k in range(1, nodes):
            if room(m, m[node_at(m, k) + w.NODE_FROM_RIGHT]) == 0:
                return w.IDLE
        for side in range(2):
            segment = m[node + w.NODE_SEGMENT + side]
            m[node + w.NODE_MARK + 2 * side], m[node + w.NODE_MARK + 2 * side + 1] = (
                m[segment + w.SEGMENT_FIRST_ROW],
                m[segment + w.SEGMENT_NEXT_ROW],
            )
        lefts, rights = batch_ends(m, node)
        for k in range(1, nodes):
            hand_on(m, m[node_at(m, k) + w.NODE_FROM_RIGHT], w.TASK, lefts, rights)
        take_part(m, 0, 0)
        take_part(m, 0, 1)
        m[node + w.NODE_PHASE] = SCAN_RIGHT
    if m[node + w.NODE_PHASE] < WAIT:
        if not scan_both(m, 0):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = WAIT
    lefts, rights = batch_ends(m, node)
    for k in range(1, nodes):
        if not all_done(m, node_at(m, k), lefts, rights):
            return w.IDLE
    for side in range(2):  # the whole window again
        segment = m[node + w.NODE_SEGMENT + side]
        m[segment + w.SEGMENT_FIRST_ROW], m[segment + w.SEGMENT_NEXT_ROW] = (
            m[node + w.NODE_MARK + 2 * side],
            m[node + w.NODE_MARK + 2 * side + 1],
        )
        expire(m, segment, m[node + w.NODE_EXPIRED + side])
    store_release(m, node + w.NODE_DONE, lefts)
    store_release(m, node + w.NODE_DONE + 1, rights)
    m[node + w.NODE_PHASE] = RECEIVE
    return w.WORKED


@compiled
def work(m: Words, k: int) -> int:
    node, ring = node_at(m, k), m[node_at(m, k) + w.NODE_FROM_RIGHT]
    if m[node + w.NODE_PHASE] == RECEIVE:
        if waiting(m, ring) == 0:
            return w.IDLE
        m[node + w.NODE_FIRST], m[node + w.NODE_FIRST_RIGHT] = m[node + w.NODE_DONE], m[node + w.NODE_DONE + 1]
        m[node + w.NODE_COUNT] = front(m, ring, 1) - m[node + w.NODE_FIRST]
        m[node + w.NODE_COUNT_RIGHT] = front(m, ring, 2) - m[node + w.NODE_FIRST_RIGHT]
        pop(m, ring)
        take_part(m, k, 0)
        take_part(m, k, 1)
        m[node + w.NODE_PHASE] = SCAN_RIGHT
    if not scan_both(m, k):
        return outcome(m, node)
    m[node + w.NODE_PHASE] = RECEIVE
    lefts, rights = batch_ends(m, node)
    store_release(m, node + w.NODE_DONE, lefts)
    store_release(m, node + w.NODE_DONE + 1, rights)
    return w.WORKED


@compiled
def step(m: Words, k: int) -> int:
    return coordinate(m) if k == 0 else work(m, k)


def coordinator_and_workers(design: Design) -> Iterator[Link]:
    """Link the coordinator to the driver, and the others to the coordinator."""
    yield Link(DRIVER, 0, w.NODE_FROM_LEFT, 0)
    for k in range(1, design.nodes):
        yield Link(0, k, w.NODE_FROM_RIGHT, 0)


def the_coordinators_ring(design: Design, k: int, side: int) -> int:
    return 0


PROTOCOL = Protocol(
    name="celljoin",
    step=step,
    way=w.TO_ALL,
    links=coordinator_and_workers,
    ring_of=the_coordinators_ring,
    forgets="whole",
)
