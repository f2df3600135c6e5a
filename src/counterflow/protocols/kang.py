"""Kang's three-step procedure (Kang, Naughton and Viglas, ICDE 2003) at one node, for tuples that come in order.

    When a tuple r arrives from stream R:
      1. scan S's window for the tuples that match r, and emit the pairs;
      2. insert r into R's window;
      3. invalidate all expired tuples in R's window.

A batch of both streams takes the three steps at once: inserting first changes nothing, as a tuple looks only at those
that came before it. `kang` is one such node with both windows; ScaleJoin's processing threads are several, each with
every n-th tuple.
"""

from __future__ import annotations

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import store_release
from counterflow.lockfree.message_ring import front, pop, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols.node import ALL_FRESH, expire, fits, node_at, search, store
from counterflow.protocols.words import (
    BATCH,
    BATCH_ROWS,
    COUNT,
    COUNT_RIGHT,
    DONE,
    EXPIRED,
    FIRST,
    FIRST_RIGHT,
    FROM_LEFT,
    IDLE,
    NEED,
    NEEDS,
    PHASE,
    SEGMENT,
    WORKED,
)

RECEIVE, STORE_LEFT, STORE_RIGHT, SCAN_RIGHT, SCAN_LEFT, INVALIDATE = 0, 1, 2, 3, 4, 5
EVERYTHING = 1 << 60


@compiled
def receive(m: Words, node: int) -> bool:
    """Take what is queued, up to a full batch. Messages say up to which tuples the streams have come, or expired."""
    ring = m[node + FROM_LEFT]
    m[node + FIRST], m[node + FIRST_RIGHT] = m[node + DONE], m[node + DONE + 1]
    m[node + COUNT], m[node + COUNT_RIGHT] = 0, 0
    taken = False
    while waiting(m, ring) > 0:
        left, right = front(m, ring, 1), front(m, ring, 2)
        if front(m, ring, 0) == BATCH:
            lefts, rights = left - m[node + FIRST], right - m[node + FIRST_RIGHT]
            small = lefts + rights <= m[BATCH_ROWS] and fits(m, node, 0, lefts) and fits(m, node, 1, rights)
            if m[node + COUNT] + m[node + COUNT_RIGHT] > 0 and not small:
                break
            m[node + COUNT], m[node + COUNT_RIGHT] = lefts, rights
        else:
            m[node + EXPIRED], m[node + EXPIRED + 1] = left, right
        pop(m, ring)
        taken = True
    return taken


@inlined
def outcome(m: Words, node: int) -> int:
    """Of a step that could not go on."""
    return NEEDS if m[node + NEED] != 0 else IDLE


@compiled
def store_and_scan(m: Words, node: int) -> int:
    """Go on with the batch that was received; WORKED when all its pairs are found."""
    left, right = m[node + SEGMENT], m[node + SEGMENT + 1]
    first_left, lefts = m[node + FIRST], m[node + COUNT]
    first_right, rights = m[node + FIRST_RIGHT], m[node + COUNT_RIGHT]
    if m[node + PHASE] == STORE_LEFT:
        if not store(m, node, left, first_left, lefts):
            return outcome(m, node)
        m[node + PHASE] = STORE_RIGHT
    if m[node + PHASE] == STORE_RIGHT:
        if not store(m, node, right, first_right, rights):
            return outcome(m, node)
        m[node + PHASE] = SCAN_RIGHT
    if m[node + PHASE] == SCAN_RIGHT:
        if not search(m, node, right, first_left, lefts, EVERYTHING, ALL_FRESH):
            return outcome(m, node)
        m[node + PHASE] = SCAN_LEFT
    if m[node + PHASE] == SCAN_LEFT:
        if not search(m, node, left, first_right, rights, EVERYTHING, ALL_FRESH):
            return outcome(m, node)
        m[node + PHASE] = INVALIDATE
    return WORKED


@compiled
def invalidate(m: Words, node: int) -> None:
    """The batch is done with."""
    expire(m, m[node + SEGMENT], m[node + EXPIRED])
    expire(m, m[node + SEGMENT + 1], m[node + EXPIRED + 1])
    store_release(m, node + DONE, m[node + FIRST] + m[node + COUNT])
    store_release(m, node + DONE + 1, m[node + FIRST_RIGHT] + m[node + COUNT_RIGHT])
    m[node + PHASE] = RECEIVE


@compiled
def three_steps(m: Words, node: int) -> int:
    """Go on with the batch that was received."""
    state = store_and_scan(m, node)
    if state == WORKED:
        invalidate(m, node)
    return state


@compiled
def step(m: Words, k: int) -> int:
    node = node_at(m, k)
    if m[node + PHASE] == RECEIVE:
        if not receive(m, node):
            return IDLE
        m[node + PHASE] = STORE_LEFT
    return three_steps(m, node)
