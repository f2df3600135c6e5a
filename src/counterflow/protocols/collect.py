"""The collector (low-latency handshake join, 6.1.3): results out of the nodes' queues, and what is complete with them.

It reads how far all nodes are before it empties their queues, so whatever they had found by then is among what it
takes. Every driver of a join collects with this code, like with `feed`.
"""

from __future__ import annotations

from typing import Any

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import load_acquire, store_release
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import notify
from counterflow.protocols import words as w
from counterflow.protocols.feed import high_of, progress, slots_of_lane
from counterflow.protocols.node import node_at, words_at
from counterflow.protocols.output_gate import take_ready_results
from counterflow.protocols.own_stamps import slowest


@compiled
def collect(m: Words, out: Words, capacity: int) -> int:
    """Move results to `out`; returns how many. COLLECT_COMPLETE then says what is complete with them."""
    if m[w.HEADER_SOURCES] != 0:
        return collect_in_order(m, out, capacity)
    f, c = m[w.HEADER_FEED], m[w.HEADER_COLLECT]
    at = load_acquire(m, f + w.FEED_AT)  # with `note_sent`
    left, right = load_acquire(m, f + w.FEED_SENT), load_acquire(m, f + w.FEED_SENT + 1)
    for side in range(2):
        m[c + w.COLLECT_DONE + side] = progress(m, side)
    taken = take_results(m, out, capacity)
    if taken < capacity and left + right == at:  # otherwise there may be more results, or more was sent meanwhile
        note_complete(m, f, c, left, right)
    return taken


@compiled
def collect_in_order(m: Words, out: Words, capacity: int) -> int:
    """Do the same where all nodes get all tuples in one order: complete is what the slowest of them is done with."""
    c = m[w.HEADER_COLLECT]
    left, right = slowest(m)
    taken = take_results(m, out, capacity)
    if left >= 0:
        m[c + w.COLLECT_DONE], m[c + w.COLLECT_DONE + 1] = left, right
        if taken < capacity:
            m[c + w.COLLECT_COMPLETE], m[c + w.COLLECT_COMPLETE + 1] = left, right
    return taken


@inlined
def complete_rank(m: Words) -> int:
    """Return the rank before which no later tuple of a pair is incomplete: all those pairs were collected."""
    c = m[w.HEADER_COLLECT]
    return m[c + w.COLLECT_COMPLETE] + m[c + w.COLLECT_COMPLETE + 1]


@inlined
def note_complete(m: Words, f: int, c: int, left: int, right: int) -> None:
    """Advance what is complete, given the left and right tuples that were sent before nodes were looked at.

    A pair is found when both tuples have passed all nodes. So everything is complete before the first tuple in the
    total order that has not. Where a pair may be found until both tuples have left, it is before the second of the
    first left and the first right tuple that have not.
    """
    of_left = first_missing(m, f, w.LEFT, m[c + w.COLLECT_DONE], left, right)
    of_right = first_missing(m, f, w.RIGHT, m[c + w.COLLECT_DONE + 1], left, right)
    if of_left[0] < 0 or of_right[0] < 0:
        return  # nodes are further already: the next look will tell
    sooner = of_left[0] + of_left[1] < of_right[0] + of_right[1]
    chosen = of_left if sooner == (m[c + w.COLLECT_BOTH] == 0) else of_right
    m[c + w.COLLECT_COMPLETE] = max(chosen[0], m[c + w.COLLECT_COMPLETE])
    m[c + w.COLLECT_COMPLETE + 1] = max(chosen[1], m[c + w.COLLECT_COMPLETE + 1])


@inlined
def first_missing(m: Words, f: int, side: int, number: int, left: int, right: int) -> Any:
    """Return how many left and right tuples come before this one, or all that were sent if it was not.

    (-1, -1) if another tuple has its slot by now.
    """
    if number >= (left if side == w.LEFT else right):
        return left, right
    opposite = high_of(m, f, side, number) + 1
    slots = m[f + w.FEED_LANES + side] * slots_of_lane(m, side)
    if load_acquire(m, f + w.FEED_CLAIMED + side) > number + slots:  # with `Incoming.write`
        return -1, -1
    return (number, opposite) if side == w.LEFT else (opposite, number)


@compiled
def take_results(m: Words, out: Words, capacity: int) -> int:
    """Move results to `out`, from the gate where there is one, or from the nodes' queues; returns how many."""
    if m[w.HEADER_GATE_OUT] != 0:
        return take_ready_results(m, out, capacity)
    taken = 0
    for k in range(m[w.HEADER_NODES]):
        node = node_at(m, k)
        box = m[node + w.NODE_OUTBOX]
        sent, at = load_acquire(m, box + w.OUTBOX_SENT), m[box + w.OUTBOX_TAKEN]
        size = m[box + w.OUTBOX_SIZE]
        results = words_at(m[box + w.OUTBOX_DATA], size * w.RESULT_WORDS)
        moved = min(sent - at, capacity - taken)
        for i in range(moved):
            place = ((at + i) & (size - 1)) * w.RESULT_WORDS
            for word in range(w.RESULT_WORDS):
                out[(taken + i) * w.RESULT_WORDS + word] = results[place + word]
        if moved > 0:
            store_release(m, box + w.OUTBOX_TAKEN, at + moved)
            notify(m, m[node + w.NODE_WAITER])
        taken += moved
    return taken
