"""DP-Join (Buono, De Matteis and Mencagli, HPCS 2014): a matrix of workers, windows both partitioned and replicated.

Worker (i, j) joins the i-th part of the left window with the j-th part of the right one. The emitter deals the tuples
of a stream out in turn: a left tuple to the first worker of a row, which hands it on along the row, a right one to the
first of a column (Section III-C). The workers of a row share one copy of their part of the left window (Section
III-D): the first of them writes it, what it hands on is a notification of one word, and the slowest of them decides
what may be overwritten. Indexes are each worker's own.
"""

from __future__ import annotations

from counterflow.jit import compiled
from counterflow.lockfree.atomics import store_release
from counterflow.lockfree.message_ring import front, pop, try_send, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols.kang import EVERYTHING, outcome
from counterflow.protocols.node import ALL_FRESH, expire, node_at, numbering, search, store
from counterflow.protocols.words import (
    ARRIVAL,
    COUNT,
    DONE,
    FIRST,
    FROM_LEFT,
    IDLE,
    KIND,
    PHASE,
    SEGMENT,
    STAMPS,
    TO_RIGHT,
    WORKED,
)

RECEIVE, KEEP, NOTIFY, MATCH = 0, 1, 2, 3
# FROM_LEFT and FROM_LEFT + 1: the queue of the row and that of the column; TO_RIGHT and TO_RIGHT - 1: their next ones


@compiled
def step(m: Words, k: int) -> int:
    node = node_at(m, k)
    worked = IDLE
    for side in range(2):
        if m[node + PHASE] == RECEIVE:
            worked = max(worked, receive(m, node, side))
        if m[node + PHASE] != RECEIVE:
            return process(m, node)
    return worked


@compiled
def receive(m: Words, node: int, side: int) -> int:
    """A message for the row (side 0: left tuples) or for the column."""
    ring = m[node + FROM_LEFT + side]
    if waiting(m, ring) == 0:
        return IDLE
    if front(m, ring, 0) == ARRIVAL:
        m[node + KIND], m[node + FIRST], m[node + COUNT] = side, front(m, ring, 1), front(m, ring, 2)
        m[node + PHASE] = KEEP
    else:  # opposite tuples that no later tuple of this side meets; each worker marks them for itself
        onward = m[node + TO_RIGHT - side]
        if onward != 0 and not try_send(m, onward, front(m, ring, 0), front(m, ring, 1), 0, 0):
            return IDLE
        expire(m, m[node + SEGMENT + 1 - side], front(m, ring, 1))
    pop(m, ring)
    return WORKED


@compiled
def process(m: Words, node: int) -> int:
    side, first, count = m[node + KIND], m[node + FIRST], m[node + COUNT]
    if m[node + PHASE] == KEEP:
        if not store(m, node, m[node + SEGMENT + side], first, count):
            return outcome(m, node)
        m[node + PHASE] = NOTIFY
    if m[node + PHASE] == NOTIFY:
        onward = m[node + TO_RIGHT - side]
        if onward != 0 and not try_send(m, onward, ARRIVAL, first, count, 0):
            return IDLE
        m[node + PHASE] = MATCH
    if not search(m, node, m[node + SEGMENT + 1 - side], first, count, EVERYTHING, ALL_FRESH):
        return outcome(m, node)
    every, begin = numbering(m[node + STAMPS + side])
    store_release(m, node + DONE + side, (first + count) * every + begin)
    m[node + PHASE] = RECEIVE
    return WORKED
