"""A driver without Python: tuples that lie in the arenas are released in their order, at given times or at once.

For measurements and for the simulator: a call from Python takes as long as a hundred tuples. What the nodes run is the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lab.replay.watching import BEGAN
from counterflow.lockfree.atomics import clock_ns, store_release
from counterflow.lockfree.message_ring import CAPACITY as RING_CAPACITY
from counterflow.lockfree.message_ring import room, try_send
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import notify
from counterflow.protocols import words as w
from counterflow.protocols.driver import IN_ORDER, check_horizons
from counterflow.protocols.machine import Machine
from counterflow.protocols.node import stamp_arrays
from counterflow.protocols.scale_join import add_tuples
from counterflow.protocols.threads import progress
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

# --- what is known of a feed, and how far it is: words of `state`
SENT, ENDS, EXPIRED = 0, 2, 4  # two each; SENT and ENDS are what `add_tuples` takes
AT, LAST = 6, 7  # the next rank, and the one before which to stop
AHEAD, BATCH = 8, 9  # how many tuples the nodes may be behind, and how many are released at once
EXPIRED_AT = 10  # the rank at which nodes were told last what has expired
FILLS = 11  # not 0: when all nodes are done with what was sent, everybody stops
STATE_WORDS = 12
TO_ALL, TO_GATE, TO_LANES = 0, 1, 2  # how tuples reach the nodes
BACKLOG = 2
RING, WAITER_OF = 0, 1  # a row of `heads`


@compiled
def release(m: Words, way: int, heads: Array, lanes: Words, state: Words, left_end: int, right_end: int) -> bool:
    """Send the tuples up to these numbers; False if there was no room for some message."""
    if way == TO_GATE:
        state[ENDS], state[ENDS + 1] = left_end, right_end
        return add_tuples(m, state)
    if way == TO_ALL:
        for i in range(len(heads)):
            if room(m, heads[i, RING]) < 2:
                return False
        for i in range(len(heads)):
            try_send(m, heads[i, RING], w.BATCH, left_end, right_end, 0)
            notify(m, heads[i, WAITER_OF])
        state[SENT], state[SENT + 1] = left_end, right_end
        return True
    return release_side(m, heads, lanes, state, 0, left_end) & release_side(m, heads, lanes, state, 1, right_end)


@compiled
def release_side(m: Words, heads: Array, lanes: Words, state: Words, side: int, end: int) -> bool:
    first, count = state[SENT + side], lanes[side]
    if end <= first:  # less is asked for than before, when only one side had room
        return True
    base = 0 if side == 0 else lanes[0]
    for lane in range(count):
        if room(m, heads[base + lane, RING]) < 2:
            return False
    before = oldest_opposite(m, heads, lanes, side, first)
    for lane in range(count):
        ring, waiter = heads[base + lane, RING], heads[base + lane, WAITER_OF]
        if before > state[EXPIRED + 1 - side]:
            try_send(m, ring, w.EXPIRY, before, 0, 0)
        place, stop = (first - lane + count - 1) // count, (end - lane + count - 1) // count
        if stop > place:
            try_send(m, ring, w.ARRIVAL, place, stop - place, 0)
        notify(m, waiter)
    state[EXPIRED + 1 - side] = max(before, state[EXPIRED + 1 - side])
    state[SENT + side] = end
    return True


@inlined
def oldest_opposite(m: Words, heads: Array, lanes: Words, side: int, number: int) -> int:
    """The `low` of a tuple; of its lane's stamps."""
    lane = number % lanes[side]
    node = heads[(0 if side == 0 else lanes[0]) + lane, 2]
    low, _, mask = stamp_arrays(m[node + w.STAMPS + side])
    return low[(number // lanes[side]) & mask]


@compiled
def expire_all(m: Words, heads: Array, left_before: int, right_before: int, rank: int) -> bool:
    """For nodes that get both streams in order."""
    for i in range(len(heads)):
        if room(m, heads[i, RING]) < 1:
            return False
    for i in range(len(heads)):
        try_send(m, heads[i, RING], w.EXPIRY, left_before, right_before, rank)
    return True


@compiled
def expire_lanes(m: Words, heads: Array, lanes: Words, state: Words, left_before: int, right_before: int) -> bool:
    """For the others: what a stream's tuples to come do not meet is told in its flow."""
    for i in range(len(heads)):
        if room(m, heads[i, RING]) < 1:
            return False
    for i in range(len(heads)):
        opposite, before = (w.RIGHT, right_before) if i < lanes[0] else (w.LEFT, left_before)
        if before > state[EXPIRED + opposite]:
            try_send(m, heads[i, RING], w.EXPIRY, before, 0, 0)
    state[EXPIRED] = max(state[EXPIRED], left_before)
    state[EXPIRED + 1] = max(state[EXPIRED + 1], right_before)
    return True


@inlined
def tell_expired(m: Words, way: int, heads: Array, lanes: Words, state: Words, ends: Array, rank: int) -> bool:
    """What no tuple from this rank on meets; False if there was no room for the messages."""
    if way == TO_LANES:
        return expire_lanes(m, heads, lanes, state, ends[rank, 2], ends[rank, 3])
    return expire_all(m, heads, ends[rank, 2], ends[rank, 3], rank)


@inlined
def backlog(m: Words, heads: Array) -> int:
    """The most messages that wait for a node at which tuples enter."""
    most = 0
    for i in range(len(heads)):
        ring = heads[i, RING]
        most = max(most, m[ring + RING_CAPACITY] - room(m, ring))
    return most


class Drive(NamedTuple):
    """What a turn of the driver looks at: rank i is due at due_ns[i] after the beginning; all at once where it is 0."""

    way: int
    heads: Array
    lanes: Words
    state: Words
    ends: Array
    due_ns: Words
    clock: Words


@compiled
def drive(m: Words, d: Drive) -> int:
    """A turn of the driver: release the tuples that are due, in their order, a batch of them at the most."""
    state, due_ns, batch = d.state, d.due_ns, d.state[BATCH]
    at = state[AT]
    if at == state[LAST]:
        if state[FILLS] != 0 and progress(m, 0) >= state[SENT] and progress(m, 1) >= state[SENT + 1]:
            store_release(m, w.STOP, 1)
        return w.IDLE
    to = min(at + batch, state[LAST])
    if to > progress(m, 0) + progress(m, 1) + state[AHEAD]:
        return w.IDLE  # not a few tuples at a time: small messages would keep the nodes from catching up
    if due_ns[at] > 0:
        now = clock_ns() - d.clock[BEGAN]
        while to > at and due_ns[to - 1] > now:
            to = at + (to - at) // 2 if due_ns[at + (to - at) // 2] > now else to - 1
        if to - at < batch and backlog(m, d.heads) > BACKLOG:
            return w.IDLE  # nodes take what is queued; more small messages would only slow them down
    if to == at or not release(m, d.way, d.heads, d.lanes, state, d.ends[to, 0], d.ends[to, 1]):
        return w.IDLE
    state[AT] = to
    due_again = d.way != TO_LANES and to - state[EXPIRED_AT] >= batch
    if due_again and expire_all(m, d.heads, d.ends[to, 2], d.ends[to, 3], to):
        state[EXPIRED_AT] = to
    return w.WORKED


class Feed:
    """What the compiled driver knows: tuples of both streams in a machine's arenas, and where they enter.

    `ends`: how many left and right tuples there are up to a rank, and which of them no tuple from it on meets.
    """

    def __init__(self, machine: Machine, left: Batch, right: Batch) -> None:
        self.machine, self.m = machine, machine.m
        design = machine.design
        check_horizons(left, right)
        for side, batch in enumerate((left, right)):
            machine.arenas[side].resize(len(batch))
            machine.arenas[side].write(batch)
            bands = machine.arenas[side].bands
            assert bands is not None
            machine.set_bands(side, bands)
        machine.publish_arenas()
        self.total = total = len(left) + len(right)
        is_left = np.zeros(total, bool)
        is_left[left.at + left.high + 1] = True
        lefts = np.concatenate([[0], np.cumsum(is_left)])
        # What no tuple from a rank on meets: the horizon of the next tuple of the other side.
        after_left, after_right = np.append(left.low, len(right)), np.append(right.low, len(left))
        rights = np.arange(total + 1) - lefts
        expired = np.minimum(after_right[rights], lefts), np.minimum(after_left[lefts], rights)
        self.ends = np.stack([lefts, rights, *expired], axis=1)
        self.totals = np.array([len(left), len(right)], np.int64)
        self.way = (
            TO_LANES if design.algorithm not in IN_ORDER else TO_GATE if design.algorithm == "scalejoin" else TO_ALL
        )
        self.lanes = np.array(design.lanes, np.int64)
        self.state = np.zeros(STATE_WORDS, np.int64)
        self.heads = np.array(list(self._heads()), np.int64)
        self.m[w.LANES : w.LANES + 2] = design.lanes
        columns = design.layout[1] if design.algorithm == "dpjoin" else 1
        self.m[w.HEADS : w.HEADS + 2] = columns, 1

    def _heads(self) -> Iterator[tuple[int, int, int]]:
        machine, design = self.machine, self.machine.design
        if self.way != TO_LANES:
            nodes = [0] if design.algorithm == "celljoin" else range(design.nodes)
            entries = [(k, w.FROM_LEFT) for k in nodes]
        elif design.algorithm == "dpjoin":
            rows, columns = design.layout
            entries = [(i * columns, w.FROM_LEFT) for i in range(rows)] + [(j, w.FROM_RIGHT) for j in range(columns)]
        else:
            entries = [(0, w.FROM_LEFT), (design.nodes - 1, w.FROM_RIGHT)]
        for node, inbox in entries:
            yield machine.inputs[node, inbox], machine.waiters[node], machine.nodes[node]
