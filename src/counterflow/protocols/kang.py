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
from counterflow.protocols import words as w
from counterflow.protocols.node import ALL_FRESH, batch_ends, expire, fits, node_at, search, store
from counterflow.protocols.traits import Protocol, from_driver_to_all

RECEIVE, STORE_LEFT, STORE_RIGHT, SCAN_RIGHT, SCAN_LEFT, INVALIDATE = 0, 1, 2, 3, 4, 5
EVERYTHING = 1 << 60


@compiled
def receive(m: Words, node: int) -> bool:
    """Take what is queued, up to a full batch. Messages say up to which tuples the streams have come, or expired."""
    ring = m[node + w.NODE_FROM_LEFT]
    m[node + w.NODE_FIRST], m[node + w.NODE_FIRST_RIGHT] = m[node + w.NODE_DONE], m[node + w.NODE_DONE + 1]
    m[node + w.NODE_COUNT], m[node + w.NODE_COUNT_RIGHT] = 0, 0
    taken = False
    while waiting(m, ring) > 0:
        left, right = front(m, ring, 1), front(m, ring, 2)
        if front(m, ring, 0) == w.BATCH:
            lefts, rights = left - m[node + w.NODE_FIRST], right - m[node + w.NODE_FIRST_RIGHT]
            small = lefts + rights <= m[w.HEADER_BATCH_ROWS] and fits(m, node, 0, lefts) and fits(m, node, 1, rights)
            if m[node + w.NODE_COUNT] + m[node + w.NODE_COUNT_RIGHT] > 0 and not small:
                break
            m[node + w.NODE_COUNT], m[node + w.NODE_COUNT_RIGHT] = lefts, rights
        else:
            m[node + w.NODE_EXPIRED], m[node + w.NODE_EXPIRED + 1] = left, right
        pop(m, ring)
        taken = True
    return taken


@inlined
def outcome(m: Words, node: int) -> int:
    """Return what a step says that could not go on."""
    return w.NEEDS if m[node + w.NODE_NEED] != 0 else w.IDLE


@compiled
def store_and_scan(m: Words, node: int) -> int:
    """Go on with the batch that was received; WORKED when all its pairs are found."""
    left, right = m[node + w.NODE_SEGMENT], m[node + w.NODE_SEGMENT + 1]
    first_left, lefts = m[node + w.NODE_FIRST], m[node + w.NODE_COUNT]
    first_right, rights = m[node + w.NODE_FIRST_RIGHT], m[node + w.NODE_COUNT_RIGHT]
    if m[node + w.NODE_PHASE] == STORE_LEFT:
        if not store(m, node, left, first_left, lefts):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = STORE_RIGHT
    if m[node + w.NODE_PHASE] == STORE_RIGHT:
        if not store(m, node, right, first_right, rights):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = SCAN_RIGHT
    if m[node + w.NODE_PHASE] == SCAN_RIGHT:
        if not search(m, node, right, first_left, lefts, EVERYTHING, ALL_FRESH):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = SCAN_LEFT
    if m[node + w.NODE_PHASE] == SCAN_LEFT:
        if not search(m, node, left, first_right, rights, EVERYTHING, ALL_FRESH):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = INVALIDATE
    return w.WORKED


@compiled
def invalidate(m: Words, node: int) -> None:
    """The batch is done with."""
    expire(m, m[node + w.NODE_SEGMENT], m[node + w.NODE_EXPIRED])
    expire(m, m[node + w.NODE_SEGMENT + 1], m[node + w.NODE_EXPIRED + 1])
    left, right = batch_ends(m, node)
    store_release(m, node + w.NODE_DONE, left)
    store_release(m, node + w.NODE_DONE + 1, right)
    store_release(m, node + w.NODE_DONE_AT, left + right)  # with `slowest`
    m[node + w.NODE_PHASE] = RECEIVE


@compiled
def three_steps(m: Words, node: int) -> int:
    """Go on with the batch that was received."""
    state = store_and_scan(m, node)
    if state == w.WORKED:
        invalidate(m, node)
    return state


@compiled
def step(m: Words, k: int) -> int:
    node = node_at(m, k)
    if m[node + w.NODE_PHASE] == RECEIVE:
        if not receive(m, node):
            return w.IDLE
        m[node + w.NODE_PHASE] = STORE_LEFT
    return three_steps(m, node)


PROTOCOL = Protocol(name="kang", step=step, way=w.TO_ALL, links=from_driver_to_all, sequential=True)
