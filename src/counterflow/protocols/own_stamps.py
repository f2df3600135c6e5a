"""ScaleJoin's nodes behind a gate that physical sources fill themselves (Section IV.B): each stamps every tuple.

    source 0 ─┐                       ┌► node 0: next_ready, count, horizons, copy ──► store, search
    source 1 ─┼► ScaleGate ── ready ──┤
    source 2 ─┘                       └► node 1: the same

No thread stands before the gate: what is ready is in the one order, and every node sees all of it. A tuple's number
and the opposite tuples it meets follow from what came before it (`past`). Its columns lie in its source's ring; a node
copies them to a ring of its own, where the tuples of a batch lie side by side whichever source they are from. Until its
next tuple the node stands on this one in the gate, so the source does not overwrite it meanwhile.

What has expired, a node knows as well: all that a tuple would not meet that came next. Where nothing is ready, that is
one after all that the sources have promised, so windows become empty also when no tuples come.
"""

from __future__ import annotations

from typing import Any

from numba import types

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import load_acquire
from counterflow.lockfree.gate_frontiers import last_source
from counterflow.lockfree.scale_gate import FIRST_TIME, LAST_TIME, NONE, TIE, TIME, VALUE, next_ready, read_until
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import notify
from counterflow.protocols import words as w
from counterflow.protocols.node import node_at, room_to_wrap, stamp_arrays, words_at
from counterflow.protocols.past import has_room, horizon, past_at, remember
from counterflow.protocols.sources import position_of, source_at, source_of, time_of
from counterflow.windows.compiled.intrinsics import viewer

NODE_STANDS_ON = w.NODE_MARK  # a tuple in the gate that begins the next batch; 0: none

bytes_at = viewer(types.uint8)


@compiled
def take_and_stamp(m: Words, k: int, node: int, most: int) -> int:
    """Take ready tuples (getNextReadyTuple, line 9) until there is none or the batch is full.

    Returns WORKED if there is a batch, be it an empty one after which something is forgotten.
    """
    gate, taken, latest = m[w.HEADER_GATE_IN], 0, m[node + w.NODE_LATEST]
    m[node + w.NODE_FIRST], m[node + w.NODE_FIRST_RIGHT] = m[node + w.NODE_DONE], m[node + w.NODE_DONE + 1]
    m[node + w.NODE_COUNT], m[node + w.NODE_COUNT_RIGHT] = 0, 0
    while taken < most:
        ready = m[node + NODE_STANDS_ON]
        if ready == 0:
            ready = next_ready(m, gate, k)
            if ready == NONE:
                last = last_source(m, gate)
                notify(m, m[source_at(m, last) + w.SOURCE_WAITER])  # all others wait for it; what it had was taken
                until = read_until(m, gate, k)
                if until > FIRST_TIME:  # until then nothing is promised of the times that the gate does not know
                    latest = max(latest, until + (until < LAST_TIME))
                break
            m[node + NODE_STANDS_ON] = ready
        side = m[source_at(m, source_of(m[ready + TIE])) + w.SOURCE_SIDE]
        if m[node + w.NODE_COUNT + 2 * side] == room_to_wrap(m, node, side, m[node + w.NODE_FIRST + 2 * side]):
            break  # it does not lie beside those before it
        if not has_room(m, past_at(m, node, side)):
            if taken == 0:
                m[node + w.NODE_NEED], m[node + w.NODE_NEED_AT] = w.NEED_PAST, past_at(m, node, side)
                return w.NEEDS
            break
        stamp(m, node, side, ready)
        latest = time_of(m[ready + TIME], m[ready + TIE])
        m[node + NODE_STANDS_ON] = 0
        taken += 1
    moved = taken > 0 or latest > m[node + w.NODE_LATEST]
    m[node + w.NODE_LATEST] = latest
    if not moved:
        return w.IDLE
    if not note_expired(m, node, latest) and taken == 0:
        return w.IDLE  # otherwise an empty batch: what has expired is forgotten after it
    m[node + w.NODE_UNTOLD] += taken
    if m[node + w.NODE_UNTOLD] >= m[w.HEADER_TELL]:  # after every batch each of many would be woken for a few tuples
        m[node + w.NODE_UNTOLD] = 0
        for s in range(m[w.HEADER_SOURCES]):
            notify(m, m[source_at(m, s) + w.SOURCE_WAITER])
    return w.WORKED


@inlined
def stamp(m: Words, node: int, side: int, ready: int) -> None:
    """Count a tuple of the gate; if it can match at all, write its stamps and copy it to the node's ring."""
    own, opposite = past_at(m, node, side), past_at(m, node, 1 - side)
    time, number, passes = time_of(m[ready + TIME], m[ready + TIE]), m[own + w.PAST_NUMBER], m[ready + VALUE] != 0
    low = horizon(m, opposite, time)
    remember(m, own, time, passes)
    if passes:
        lows, highs, mask = stamp_arrays(m[node + w.NODE_STAMPS + side])
        lows[number & mask], highs[number & mask] = low, m[opposite + w.PAST_NUMBER] - 1
        source = source_at(m, source_of(m[ready + TIE]))
        slot = position_of(m[ready + TIE]) & m[source + w.SOURCE_MASK]
        copy(m[source + w.SOURCE_COPIED], slot, m[own + w.PAST_COPIED], number & mask)
        m[node + w.NODE_COUNT + 2 * side] += 1


@inlined
def copy(source: int, source_slot: int, target: int, target_slot: int) -> None:
    """Copy a tuple from one ring to another; both have a table of the same arrays (`Incoming.copied`)."""
    arrays = words_at(source, 1)[0]
    sources, targets = words_at(source, 1 + 2 * arrays), words_at(target, 1 + 2 * arrays)
    for i in range(arrays):
        size = sources[2 + 2 * i]
        from_, to = sources[1 + 2 * i] + source_slot * size, targets[1 + 2 * i] + target_slot * size
        if size == 8:
            words_at(to, 1)[0] = words_at(from_, 1)[0]
        else:
            for b in range(size):
                bytes_at(to, size)[b] = bytes_at(from_, size)[b]


# --- what has expired


@inlined
def note_expired(m: Words, node: int, time: int) -> bool:
    """Note what no tuple of this time or a later one meets; whether that is more than before."""
    left, right = horizon(m, past_at(m, node, w.LEFT), time), horizon(m, past_at(m, node, w.RIGHT), time)
    more = left > m[node + w.NODE_EXPIRED] or right > m[node + w.NODE_EXPIRED + 1]
    m[node + w.NODE_EXPIRED], m[node + w.NODE_EXPIRED + 1] = left, right
    return more


# --- for the collector


@inlined
def slowest(m: Words) -> Any:
    """Return how many left and right tuples the slowest node is done with: all nodes have the same order.

    (-1, -1) if a node went on while it was looked at.
    """
    least, least_right = -1, -1
    for k in range(m[w.HEADER_NODES]):
        node = node_at(m, k)
        at = load_acquire(m, node + w.NODE_DONE_AT)  # with `invalidate`
        left, right = load_acquire(m, node + w.NODE_DONE), load_acquire(m, node + w.NODE_DONE + 1)
        if left + right != at:
            return -1, -1
        if k == 0 or at < least + least_right:
            least, least_right = left, right
    return least, least_right
