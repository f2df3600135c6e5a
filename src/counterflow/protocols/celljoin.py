"""CellJoin (Gedik, Yu and Bordawekar, VLDB 2007, as the papers describe it): the three steps with a parallel scan.

Node 0 coordinates. For every batch it inserts the tuples into the windows, which all nodes share, partitions them anew
among the nodes, and waits until each has scanned its part; then it invalidates what has expired. Where an index is
used, the window cannot be cut: the new tuples are partitioned instead, and all nodes probe the one index, which nobody
changes meanwhile.
"""

from __future__ import annotations

from typing import Any

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import load_acquire, store_release
from counterflow.lockfree.message_ring import front, pop, room, try_send, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols.kang import EVERYTHING, outcome, receive
from counterflow.protocols.node import ALL_FRESH, expire, node_at, search, store
from counterflow.protocols.words import (
    COUNT,
    COUNT_RIGHT,
    DONE,
    EXPIRED,
    FIRST,
    FIRST_RIGHT,
    FROM_RIGHT,
    IDLE,
    MARK,
    NODES,
    PHASE,
    PROBE,
    SEGMENT,
    TASK,
    WORKED,
)
from counterflow.windows.compiled import block
from counterflow.windows.compiled.block import FIRST_ROW, NEXT_ROW

RECEIVE, STORE_LEFT, STORE_RIGHT, DISPATCH, SCAN_RIGHT, SCAN_LEFT, WAIT = 0, 1, 2, 3, 4, 5, 6
SHARED = (block.RING, block.HEADS, block.HEADS_SIZE, block.RECORDS, block.RECORDS_SIZE, block.POOL, block.BANDS)


@inlined
def share_of(k: int, nodes: int, first: int, end: int) -> Any:
    """The k-th of equal parts."""
    size = end - first
    return first + size * k // nodes, first + size * (k + 1) // nodes


@compiled
def scan_part(m: Words, k: int, side: int, first: int, count: int) -> bool:
    """The tuples against node k's part of the opposite window of `side`; True when all pairs are out."""
    node, segment = node_at(m, k), m[node_at(m, k) + SEGMENT + side]
    if m[segment + PROBE] != 0:
        begin, end = share_of(k, m[NODES], first, first + count)
        return end == begin or search(m, node, segment, begin, end - begin, EVERYTHING, ALL_FRESH)
    return search(m, node, segment, first, count, EVERYTHING, ALL_FRESH)


@compiled
def take_part(m: Words, k: int, side: int) -> None:
    """See the coordinator's window as it is now; of a window that is scanned, a part of its rows."""
    mine, whole = m[node_at(m, k) + SEGMENT + side], m[node_at(m, 0) + SEGMENT + side]
    for word in SHARED:
        m[mine + word] = m[whole + word]
    first, end = m[node_at(m, 0) + MARK + 2 * side], m[node_at(m, 0) + MARK + 2 * side + 1]
    if m[mine + PROBE] == 0:
        first, end = share_of(k, m[NODES], first, end)
    m[mine + FIRST_ROW], m[mine + NEXT_ROW] = first, end


@compiled
def scan_both(m: Words, k: int) -> bool:
    """Steps 1 of all tuples of the batch, as far as they are node k's; True when done."""
    node = node_at(m, k)
    if m[node + PHASE] == SCAN_RIGHT:
        if not scan_part(m, k, 1, m[node + FIRST], m[node + COUNT]):
            return False
        m[node + PHASE] = SCAN_LEFT
    return scan_part(m, k, 0, m[node + FIRST_RIGHT], m[node + COUNT_RIGHT])


@compiled
def coordinate(m: Words) -> int:
    node, nodes = node_at(m, 0), m[NODES]
    left, right = m[node + SEGMENT], m[node + SEGMENT + 1]
    if m[node + PHASE] == RECEIVE:
        if not receive(m, node):
            return IDLE
        m[node + PHASE] = STORE_LEFT
    if m[node + PHASE] == STORE_LEFT:
        if not store(m, node, left, m[node + FIRST], m[node + COUNT]):
            return outcome(m, node)
        m[node + PHASE] = STORE_RIGHT
    if m[node + PHASE] == STORE_RIGHT:
        if not store(m, node, right, m[node + FIRST_RIGHT], m[node + COUNT_RIGHT]):
            return outcome(m, node)
        m[node + PHASE] = DISPATCH
    if m[node + PHASE] == DISPATCH:
        for k in range(1, nodes):
            if room(m, m[node_at(m, k) + FROM_RIGHT]) == 0:
                return IDLE
        for side in range(2):
            segment = m[node + SEGMENT + side]
            m[node + MARK + 2 * side], m[node + MARK + 2 * side + 1] = m[segment + FIRST_ROW], m[segment + NEXT_ROW]
        for k in range(1, nodes):
            lefts, rights = m[node + FIRST] + m[node + COUNT], m[node + FIRST_RIGHT] + m[node + COUNT_RIGHT]
            try_send(m, m[node_at(m, k) + FROM_RIGHT], TASK, lefts, rights, 0)
        take_part(m, 0, 0)
        take_part(m, 0, 1)
        m[node + PHASE] = SCAN_RIGHT
    if m[node + PHASE] < WAIT:
        if not scan_both(m, 0):
            return outcome(m, node)
        m[node + PHASE] = WAIT
    lefts, rights = m[node + FIRST] + m[node + COUNT], m[node + FIRST_RIGHT] + m[node + COUNT_RIGHT]
    for k in range(1, nodes):
        if load_acquire(m, node_at(m, k) + DONE) < lefts or load_acquire(m, node_at(m, k) + DONE + 1) < rights:
            return IDLE
    for side in range(2):  # the whole window again
        segment = m[node + SEGMENT + side]
        m[segment + FIRST_ROW], m[segment + NEXT_ROW] = m[node + MARK + 2 * side], m[node + MARK + 2 * side + 1]
        expire(m, segment, m[node + EXPIRED + side])
    store_release(m, node + DONE, lefts)
    store_release(m, node + DONE + 1, rights)
    m[node + PHASE] = RECEIVE
    return WORKED


@compiled
def work(m: Words, k: int) -> int:
    node, ring = node_at(m, k), m[node_at(m, k) + FROM_RIGHT]
    if m[node + PHASE] == RECEIVE:
        if waiting(m, ring) == 0:
            return IDLE
        m[node + FIRST], m[node + FIRST_RIGHT] = m[node + DONE], m[node + DONE + 1]
        m[node + COUNT] = front(m, ring, 1) - m[node + FIRST]
        m[node + COUNT_RIGHT] = front(m, ring, 2) - m[node + FIRST_RIGHT]
        pop(m, ring)
        take_part(m, k, 0)
        take_part(m, k, 1)
        m[node + PHASE] = SCAN_RIGHT
    if not scan_both(m, k):
        return outcome(m, node)
    m[node + PHASE] = RECEIVE
    store_release(m, node + DONE, m[node + FIRST] + m[node + COUNT])
    store_release(m, node + DONE + 1, m[node + FIRST_RIGHT] + m[node + COUNT_RIGHT])
    return WORKED


@compiled
def step(m: Words, k: int) -> int:
    return coordinate(m) if k == 0 else work(m, k)
