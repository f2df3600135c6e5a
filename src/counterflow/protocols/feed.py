"""The feed (handshake join, Section 4.4; DP-Join's emitter): tuples in the total order out to the nodes.

    offered: written, in order                 sent
    ───────────────────────────► feed ────────────► the nodes' queues, or a gate
                                  └ what has expired, when all that was offered is sent (and between batches)

It alone knows the order of the tuples and their windows; nodes know numbers. Whoever drives a join calls `feed`: a
user's stream, a table, the simulator, the virtual clock and the benchmarks. It never waits: it sends what there is
room for. Its state lies in the machine's memory, so that a simulator can stop and repeat it like any node.

A tuple's rank, its place in the total order, follows from its stamps: number + high + 1. So the two sides need no
common list; what lies ready of each is merged here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import load_acquire, store_release
from counterflow.lockfree.message_ring import CAPACITY as RING_CAPACITY
from counterflow.lockfree.message_ring import room, try_send
from counterflow.lockfree.scale_gate import advance, try_insert
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import notify
from counterflow.protocols import words as w
from counterflow.protocols.machine import Machine
from counterflow.protocols.node import node_at, stamp_arrays, words_at
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

INT64_MAX = np.iinfo(np.int64).max
PER_ARRIVAL = 2  # messages to a head with each batch: what has expired, and what arrives


@compiled
def progress(m: Words, side: int) -> int:
    """Return how many tuples of a side all nodes are done with."""
    least = load_acquire(m, node_at(m, 0) + w.NODE_DONE + side)
    for k in range(1, m[w.HEADER_NODES]):
        least = min(least, load_acquire(m, node_at(m, k) + w.NODE_DONE + side))
    return least


@compiled
def feed(m: Words, most: int) -> int:
    """Send at most `most` of the tuples that are offered, and at most a batch; or tell what has expired.

    Returns IDLE where there is nothing to send, or no room for it. A batch is sent whole or not at all: small messages
    would keep the nodes from catching up.
    """
    f = m[w.HEADER_FEED]
    at, ahead, batch = m[f + w.FEED_AT], m[f + w.FEED_AHEAD], m[w.HEADER_BATCH_ROWS]
    offered = m[f + w.FEED_OFFERED] + m[f + w.FEED_OFFERED + 1]
    if at == offered:
        return tell_expired(m, f)
    to = at + min(min(most, batch), min(ahead, offered - at))
    if to - ahead > progress(m, w.LEFT) + progress(m, w.RIGHT):
        return w.IDLE
    to = before_wrap(m, f, w.LEFT, before_wrap(m, f, w.RIGHT, to))
    left = lefts_before(m, f, to)
    if not send(m, f, left, to - left):
        return w.WORKED if m[f + w.FEED_AT] > at else w.IDLE  # a gate may have taken some
    way = m[f + w.FEED_WAY]
    told = way != w.TO_LANES and to - m[f + w.FEED_TOLD] >= batch and tell_expired(m, f) == w.WORKED
    if way == w.TO_ALL and not told:  # once for both messages
        wake_heads(m, f)
    return w.WORKED


@inlined
def lane_head(m: Words, f: int, side: int, lane: int) -> int:
    """Return the head at which the tuples of a lane enter, or any one where every node gets them all."""
    lanes = m[f + w.FEED_WAY] == w.TO_LANES
    return f + w.FEED_TABLE + (lane + (m[f + w.FEED_LANES] if lanes and side == w.RIGHT else 0)) * w.HEAD_WORDS


@inlined
def low_of(m: Words, f: int, side: int, number: int) -> int:
    """Return a tuple's horizon."""
    lanes = m[f + w.FEED_LANES + side]
    node = m[lane_head(m, f, side, number % lanes) + w.HEAD_NODE]
    low, _, mask = stamp_arrays(m[node + w.NODE_STAMPS + side])
    return low[(number // lanes) & mask]


@inlined
def high_of(m: Words, f: int, side: int, number: int) -> int:
    """Return the newest opposite tuple that came before a tuple."""
    lanes = m[f + w.FEED_LANES + side]
    node = m[lane_head(m, f, side, number % lanes) + w.HEAD_NODE]
    _, high, mask = stamp_arrays(m[node + w.NODE_STAMPS + side])
    return load_acquire(high, (number // lanes) & mask)


@inlined
def slots_of_lane(m: Words, side: int) -> int:
    return words_at(m[node_at(m, 0) + w.NODE_STAMPS + side], w.STAMP_WORDS)[w.STAMP_MASK] + 1


@inlined
def before_wrap(m: Words, f: int, side: int, rank: int) -> int:
    """Return this rank, or that of the next tuple of a side in the first slot, if it is lower.

    Nodes take the tuples of a message to lie side by side.
    """
    slots = m[f + w.FEED_LANES + side] * slots_of_lane(m, side)
    first = (m[f + w.FEED_SENT + side] // slots + 1) * slots
    if first >= m[f + w.FEED_OFFERED + side]:
        return rank
    return min(rank, first + high_of(m, f, side, first) + 1)


@inlined
def lefts_before(m: Words, f: int, rank: int) -> int:
    """Return how many left tuples have a lower rank; it is among those that are offered and not yet sent."""
    first, lanes = m[f + w.FEED_SENT], m[f + w.FEED_LANES]
    end = min(m[f + w.FEED_OFFERED], first + rank - m[f + w.FEED_AT])
    node = m[lane_head(m, f, w.LEFT, 0) + w.HEAD_NODE]
    _, high, mask = stamp_arrays(m[node + w.NODE_STAMPS])
    while first < end:
        middle = (first + end) // 2
        newest = high[middle & mask] if lanes == 1 else high_of(m, f, w.LEFT, middle)
        if middle + newest + 1 < rank:
            first = middle + 1
        else:
            end = middle
    return first


# --- tuples


@compiled
def send(m: Words, f: int, left: int, right: int) -> bool:
    """Send the tuples before these numbers; False if there was no room for all of them."""
    way = m[f + w.FEED_WAY]
    if way == w.TO_GATE:
        return add_to_gate(m, f, left, right)
    heads = f + w.FEED_TABLE
    for i in range(m[f + w.FEED_HEADS]):
        if room(m, m[heads + i * w.HEAD_WORDS + w.HEAD_RING]) < PER_ARRIVAL:
            return False
    if way == w.TO_ALL:
        for i in range(m[f + w.FEED_HEADS]):
            try_send(m, m[heads + i * w.HEAD_WORDS + w.HEAD_RING], w.BATCH, left, right, 0)
    else:
        send_to_lanes(m, f, w.LEFT, left)
        send_to_lanes(m, f, w.RIGHT, right)
    note_sent(m, f, left, right)
    return True


@inlined
def wake_heads(m: Words, f: int) -> None:
    for i in range(m[f + w.FEED_HEADS]):
        notify(m, m[f + w.FEED_TABLE + i * w.HEAD_WORDS + w.HEAD_WAITER])


@inlined
def note_sent(m: Words, f: int, left: int, right: int) -> None:
    """Say how many tuples were sent. The sum comes last: who reads it and then the two knows whether they are one."""
    store_release(m, f + w.FEED_SENT, left)
    store_release(m, f + w.FEED_SENT + 1, right)
    store_release(m, f + w.FEED_AT, left + right)


@compiled
def send_to_lanes(m: Words, f: int, side: int, end: int) -> None:
    """Deal the next tuples of a side out; before them, say which opposite tuples they and later ones do not meet."""
    first, lanes = m[f + w.FEED_SENT + side], m[f + w.FEED_LANES + side]
    if end == first:
        return
    before = low_of(m, f, side, first)
    for lane in range(lanes):
        head = lane_head(m, f, side, lane)
        if before > m[f + w.FEED_EXPIRED + 1 - side]:
            try_send(m, m[head + w.HEAD_RING], w.EXPIRY, before, 0, 0)
        place, stop = (first - lane + lanes - 1) // lanes, (end - lane + lanes - 1) // lanes
        if stop > place:
            try_send(m, m[head + w.HEAD_RING], w.ARRIVAL, place, stop - place, 0)
        notify(m, m[head + w.HEAD_WAITER])
    m[f + w.FEED_EXPIRED + 1 - side] = max(before, m[f + w.FEED_EXPIRED + 1 - side])


@compiled
def add_to_gate(m: Words, f: int, left_end: int, right_end: int) -> bool:
    """Add tuples to ScaleJoin's gate, which sorts them by their ranks; False if it is full before the last one."""
    gate, full = m[w.HEADER_GATE_IN], False
    left, right = m[f + w.FEED_SENT], m[f + w.FEED_SENT + 1]
    _, left_high, mask = stamp_arrays(m[node_at(m, 0) + w.NODE_STAMPS])
    while left < left_end or right < right_end:
        is_left = right == right_end or (left < left_end and left_high[left & mask] < right)
        side, number = (w.LEFT, left) if is_left else (w.RIGHT, right)
        if not try_insert(m, gate, side, left + right, 0, number * 2 + side):
            full = True
            break
        if is_left:
            left += 1
        else:
            right += 1
    note_sent(m, f, left, right)
    # What was added comes before all that follows, on both sides; so readers can go on even if the gate is full.
    advance(m, gate, w.LEFT, left + right - 1)
    advance(m, gate, w.RIGHT, left + right - 1)
    for k in range(m[w.HEADER_NODES]):
        notify(m, m[node_at(m, k) + w.NODE_WAITER])
    return not full


# --- what has expired


@inlined
def bound_of(m: Words, f: int, side: int) -> int:
    """Return how many tuples of a side no tuple meets that is still to be sent: the next opposite tuple's horizon."""
    opposite = m[f + w.FEED_SENT + 1 - side]
    if opposite == m[f + w.FEED_OFFERED + 1 - side]:
        return min(m[f + w.FEED_BOUND + side], m[f + w.FEED_SENT + side])
    return min(low_of(m, f, 1 - side, opposite), m[f + w.FEED_SENT + side])


@compiled
def tell_expired(m: Words, f: int) -> int:
    """Tell the nodes what no tuple to come meets: in order, or to lanes in the flow of the tuples that do not."""
    left, right, heads = bound_of(m, f, w.LEFT), bound_of(m, f, w.RIGHT), f + w.FEED_TABLE
    if left <= m[f + w.FEED_EXPIRED] and right <= m[f + w.FEED_EXPIRED + 1]:
        return w.IDLE
    for i in range(m[f + w.FEED_HEADS]):
        if room(m, m[heads + i * w.HEAD_WORDS + w.HEAD_RING]) < 1:
            return w.IDLE
    for i in range(m[f + w.FEED_HEADS]):
        head = heads + i * w.HEAD_WORDS
        if m[f + w.FEED_WAY] != w.TO_LANES:
            try_send(m, m[head + w.HEAD_RING], w.EXPIRY, left, right, m[f + w.FEED_AT])
        else:
            opposite, before = (w.RIGHT, right) if i < m[f + w.FEED_LANES] else (w.LEFT, left)
            if before > m[f + w.FEED_EXPIRED + opposite]:
                try_send(m, m[head + w.HEAD_RING], w.EXPIRY, before, 0, 0)
        notify(m, m[head + w.HEAD_WAITER])
    m[f + w.FEED_EXPIRED] = max(left, m[f + w.FEED_EXPIRED])
    m[f + w.FEED_EXPIRED + 1] = max(right, m[f + w.FEED_EXPIRED + 1])
    m[f + w.FEED_TOLD] = m[f + w.FEED_AT]
    return w.WORKED


@compiled
def is_dry(m: Words) -> bool:
    """Whether all that was offered is sent, and nodes know what has expired."""
    f = m[w.HEADER_FEED]
    known = bound_of(m, f, w.LEFT) <= m[f + w.FEED_EXPIRED] and bound_of(m, f, w.RIGHT) <= m[f + w.FEED_EXPIRED + 1]
    return m[f + w.FEED_AT] == m[f + w.FEED_OFFERED] + m[f + w.FEED_OFFERED + 1] and known


@compiled
def feed_all(m: Words) -> bool:
    """Send what there is room for; True if nothing is left."""
    while feed(m, m[w.HEADER_BATCH_ROWS]) == w.WORKED:
        pass
    return is_dry(m)


@inlined
def backlog(m: Words) -> int:
    """Return the most messages that wait for a node at which tuples enter."""
    f, most = m[w.HEADER_FEED], 0
    for i in range(m[f + w.FEED_HEADS]):
        ring = m[f + w.FEED_TABLE + i * w.HEAD_WORDS + w.HEAD_RING]
        most = max(most, m[ring + RING_CAPACITY] - room(m, ring))
    return most


@compiled
def finish(m: Words) -> None:
    """Tell the nodes that nothing more comes."""
    store_release(m, w.HEADER_FINISHED, 1)
    for k in range(m[w.HEADER_NODES]):
        notify(m, m[node_at(m, k) + w.NODE_WAITER])


# --- from Python: tuples of a user's join, as they come


class Feed:
    """Tuples in the total order, written where nodes read them as soon as there is room, and sent."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.design, self.m = machine, machine.design, machine.m
        self._pending: deque[tuple[Batch, Batch]] = deque()
        self._bound = (0, 0)
        self._taken = (0, 0)

    @property
    def taken(self) -> tuple[int, int]:
        """The left and right tuples that were offered."""
        return self._taken

    def offer(self, left: Batch, right: Batch) -> None:
        """Take the next tuples of both sides in the total order, to be pushed."""
        check_horizons(left, right)
        ranks = left.at + left.high + 1, right.at + right.high + 1
        for (a, b), (c, d) in _pieces(ranks, self._cuts(ranks, (left, right))):
            self._pending.append((left.take(slice(a, b)), right.take(slice(c, d))))
        self._taken = self._taken[0] + len(left), self._taken[1] + len(right)

    def expire(self, left_before: int, right_before: int) -> None:
        """No tuple to come meets tuples before these numbers."""
        self._bound = min(left_before, self._taken[0]), min(right_before, self._taken[1])

    def push(self) -> bool:
        """Send what there is room for; True if nothing is left."""
        f = self.machine.feed
        while True:
            if not self._pending:
                bound = self.m[f + w.FEED_BOUND : f + w.FEED_BOUND + 2]
                np.maximum(bound, self._bound, out=bound)
            sent = bool(feed_all(self.m))
            if not self._pending:
                return sent
            left, right = self._pending[0]
            if not (self._has_room(w.LEFT, len(left)) and self._has_room(w.RIGHT, len(right))):
                return False
            for side, batch in enumerate((left, right)):
                self.machine.write(side, batch)
                self.m[f + w.FEED_OFFERED + side] += len(batch)
            self._pending.popleft()

    def done(self) -> bool:
        """Whether all nodes are done with all tuples."""
        sides = (w.LEFT,) if self.design.protocol.found_until_both_leave else (w.LEFT, w.RIGHT)
        return not self._pending and all(progress(self.m, side) >= self._taken[side] for side in sides)

    def _cuts(self, ranks: tuple[Array, Array], batches: tuple[Batch, Batch]) -> list[int]:
        """Return the ranks at which tuples are cut: into what there may be room for, side by side in memory."""
        begin = min((int(r[0]) for r in ranks if len(r)), default=0)
        size = max(self.design.in_flight // 2, 1)
        cuts = set(range(begin + size, begin + len(ranks[0]) + len(ranks[1]), size))
        for side, batch in enumerate(batches):
            if len(batch):
                round_ = self.machine.incoming[side].capacity * self.design.lanes[side]
                first, last = int(batch.at[0]), int(batch.at[-1])
                cuts |= {int(ranks[side][x - first]) for x in range(-(-first // round_) * round_, last + 1, round_)}
        return sorted(cuts)

    def _has_room(self, side: int, count: int) -> bool:
        """Whether nodes are far enough; what holds the whole window grows with it."""
        incoming, done = self.machine.incoming[side], int(progress(self.m, side))
        if count == 0:
            return True
        ahead = incoming.next + count - done
        if not self.design.protocol.holds_incoming:
            return ahead <= max(self.design.in_flight, count)
        expired = int(self.m[self.machine.feed + w.FEED_EXPIRED + side])
        if incoming.next + count - expired + self.design.in_flight > incoming.capacity:
            incoming.grow(done)
            self.machine.publish_incoming()
        return ahead <= incoming.capacity


def check_horizons(*batches: Batch) -> None:
    """Assert that no horizon (`low`) is beyond what came before its tuple.

    The feed tells nodes to forget everything before it: beyond, that would be tuples that are still to be met.
    """
    for batch in batches:
        assert (batch.low <= batch.high + 1).all(), f"a horizon of the {batch.side} side is beyond what has arrived"


def _pieces(ranks: tuple[Array, Array], cuts: list[int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the ranges of both sides between the cuts, where there are any tuples."""
    ends = [np.searchsorted(r, [*cuts, INT64_MAX]).tolist() for r in ranks]
    at = (0, 0)
    for to in zip(*ends, strict=True):
        if to != at:
            yield (at[0], to[0]), (at[1], to[1])
        at = to
