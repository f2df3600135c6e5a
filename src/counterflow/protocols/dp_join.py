"""DP-Join (Buono, De Matteis and Mencagli, HPCS 2014): a matrix of workers, windows both partitioned and replicated.

Worker (i, j) joins the i-th part of the left window with the j-th part of the right one. The emitter deals the tuples
of a stream out in turn: a left tuple to the first worker of a row, which hands it on along the row, a right one to the
first of a column (Section III-C). The workers of a row share one copy of their part of the left window (Section
III-D): the first of them writes it, what it hands on is a notification of one word, and the slowest of them decides
what may be overwritten. Indexes are each worker's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from counterflow.jit import compiled
from counterflow.lockfree.atomics import store_release
from counterflow.lockfree.message_ring import front, pop, waiting
from counterflow.lockfree.shared_words import Words
from counterflow.protocols import words as w
from counterflow.protocols.kang import EVERYTHING, outcome
from counterflow.protocols.node import ALL_FRESH, expire, hand_on, node_at, numbering, search, store, take_message
from counterflow.protocols.traits import DRIVER, Link, Protocol

if TYPE_CHECKING:
    from counterflow.protocols.design import Design

RECEIVE, KEEP, NOTIFY, MATCH = 0, 1, 2, 3
# FROM_LEFT and FROM_LEFT + 1: the queue of the row and that of the column; TO_RIGHT and TO_RIGHT - 1: their next ones


@compiled
def step(m: Words, k: int) -> int:
    node = node_at(m, k)
    worked = w.IDLE
    for side in range(2):
        if m[node + w.NODE_PHASE] == RECEIVE:
            worked = max(worked, receive(m, node, side))
        if m[node + w.NODE_PHASE] != RECEIVE:
            return process(m, node)
    return worked


@compiled
def receive(m: Words, node: int, side: int) -> int:
    """Take a message for the row (side 0: left tuples) or for the column."""
    ring = m[node + w.NODE_FROM_LEFT + side]
    if waiting(m, ring) == 0:
        return w.IDLE
    if front(m, ring, 0) == w.ARRIVAL:
        take_message(m, node, side, front(m, ring, 1), front(m, ring, 2), KEEP)
    else:  # opposite tuples that no later tuple of this side meets; each worker marks them for itself
        onward = m[node + w.NODE_TO_RIGHT - side]
        if not hand_on(m, onward, front(m, ring, 0), front(m, ring, 1), 0):
            return w.IDLE
        expire(m, m[node + w.NODE_SEGMENT + 1 - side], front(m, ring, 1))
    pop(m, ring)
    return w.WORKED


@compiled
def process(m: Words, node: int) -> int:
    side, first, count = m[node + w.NODE_KIND], m[node + w.NODE_FIRST], m[node + w.NODE_COUNT]
    if m[node + w.NODE_PHASE] == KEEP:
        if not store(m, node, m[node + w.NODE_SEGMENT + side], first, count):
            return outcome(m, node)
        m[node + w.NODE_PHASE] = NOTIFY
    if m[node + w.NODE_PHASE] == NOTIFY:
        onward = m[node + w.NODE_TO_RIGHT - side]
        if not hand_on(m, onward, w.ARRIVAL, first, count):
            return w.IDLE
        m[node + w.NODE_PHASE] = MATCH
    if not search(m, node, m[node + w.NODE_SEGMENT + 1 - side], first, count, EVERYTHING, ALL_FRESH):
        return outcome(m, node)
    every, begin = numbering(m[node + w.NODE_STAMPS + side])
    store_release(m, node + w.NODE_DONE + side, (first + count) * every + begin)
    m[node + w.NODE_PHASE] = RECEIVE
    return w.WORKED


def rows_and_columns(design: Design) -> Iterator[Link]:
    """Link the workers of a row from left to right, and those of a column from top to bottom."""
    columns = design.layout[1]
    for k in range(design.nodes):
        i, j = divmod(k, columns)
        yield Link(k - 1 if j else DRIVER, k, w.NODE_FROM_LEFT, w.NODE_TO_RIGHT)
        yield Link(k - columns if i else DRIVER, k, w.NODE_FROM_RIGHT, w.NODE_TO_LEFT)


def part_of_its_lane(design: Design, k: int, side: int) -> tuple[int, int]:
    """Let a worker store the tuples of its row or column."""
    return design.layout[side], design.lane(k, side)


def ring_of_the_first(design: Design, k: int, side: int) -> int:
    """Return the first worker of the row, or of the column: it writes, the others read."""
    columns = design.layout[1]
    return k - k % columns if side == w.LEFT else k % columns


PROTOCOL = Protocol(
    name="dpjoin",
    step=step,
    way=w.TO_LANES,
    links=rows_and_columns,
    stores=part_of_its_lane,
    ring_of=ring_of_the_first,
    readers_keep_rows=True,
    meets_later=True,
    matrix=True,
    hands_on_first=True,
    handles_all=False,
)
