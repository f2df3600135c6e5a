"""A driver without Python: tuples that lie in the arenas are released at given times, and results are timed.

For measurements: a call from Python takes as long as a hundred tuples. What the nodes run is the same.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from counterflow.cores import pin_thread
from counterflow.jit import compiled, inlined
from counterflow.kernels.compiled import block
from counterflow.kernels.store import Batch
from counterflow.kernels.vectors import Array
from counterflow.lockfree.atomics import clock_ns, load_acquire
from counterflow.lockfree.ring import CAPACITY as RING_CAPACITY
from counterflow.lockfree.ring import room, try_send
from counterflow.lockfree.waiting import busy, idle, notify
from counterflow.lockfree.words import Words
from counterflow.protocols import words as w
from counterflow.protocols.driver import IN_ORDER
from counterflow.protocols.machine import Machine
from counterflow.protocols.node import stamp_arrays
from counterflow.protocols.running import await_progress, finish, let_others_run, progress, runner
from counterflow.protocols.scale_join import add_tuples
from counterflow.protocols.watching import Watcher

# --- what is known of a replay, and how far it is: words of `state`
SENT, ENDS, EXPIRED = 0, 2, 4  # two each; SENT and ENDS are what `add_tuples` takes
TO_ALL, TO_GATE, TO_LANES = 0, 1, 2  # how tuples reach the nodes
STATE_WORDS = 8
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


@compiled
def replay(
    m: Words, way: int, heads: Array, lanes: Words, state: Words, ends: Array, due_ns: Words, plan: Words
) -> int:
    """Release tuples in their order: rank i is due at due_ns[i] after the beginning; all at once where it is 0.

    `ends`: how many left and right tuples there are up to a rank, and which have expired then. `plan`: the first rank,
    the last, how many tuples the nodes may be behind, how many to release at once, and when it began.
    """
    at, last, ahead, batch = plan[0], plan[1], plan[2], plan[3]
    started, turn, expired_at, since = plan[4], 0, at, clock_ns()
    while at < last and load_acquire(m, w.STOP) == 0:
        to = min(at + batch, last)
        if to > progress(m, 0) + progress(m, 1) + ahead:
            to = at  # not a few tuples at a time: small messages would keep the nodes from catching up
        if to > at and due_ns[at] > 0:
            now = clock_ns() - started
            while to > at and due_ns[to - 1] > now:
                to = at + (to - at) // 2 if due_ns[at + (to - at) // 2] > now else to - 1
            if to - at < batch and backlog(m, heads) > BACKLOG:
                to = at  # nodes take what is queued; more small messages would only slow them down
        if to > at and release(m, way, heads, lanes, state, ends[to, 0], ends[to, 1]):
            at, turn = to, 0
            since = let_others_run(m, since)
            if way != TO_LANES and at - expired_at >= batch and expire_all(m, heads, ends[at, 2], ends[at, 3], at):
                expired_at = at
            continue
        idle(m, m[w.DRIVER], turn + m[w.CROWDED], m[w.STRATEGY])
        turn += 1
    busy(m, m[w.DRIVER])
    return at


class Feed:
    """What the compiled driver knows: tuples of both streams in a machine's arenas, and where they enter.

    `ends`: how many left and right tuples there are up to a rank, and which of them no tuple from it on meets.
    """

    def __init__(self, machine: Machine, left: Batch, right: Batch) -> None:
        self.machine, self.m = machine, machine.m
        design = machine.design
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

    def _heads(self):  # type: ignore[no-untyped-def]
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


class Replay:
    """A machine whose arenas hold all tuples of a run; the first `warm` ranks fill the windows and look for nothing."""

    def __init__(self, machine: Machine, left: Batch, right: Batch, warm: int) -> None:
        self.feed = feed = Feed(machine, left, right)
        self.machine, self.m, self.totals = machine, machine.m, feed.totals
        self.total, self.warm = feed.total, warm
        self.handshake = machine.design.algorithm == "handshake"
        self.threads: list[threading.Thread] = []

    def fill(self) -> None:
        """Start the nodes, and fill the windows."""
        self.threads = [threading.Thread(target=self._run_node, args=(k,)) for k in range(self.machine.design.nodes)]
        for thread in self.threads:
            thread.start()
        self.m[w.QUIET : w.QUIET + 2] = self.total
        self._replay(0, self.warm, np.zeros(self.warm + 1, np.int64), 0)
        self._await_idle()
        self.m[w.QUIET : w.QUIET + 2] = 0

    def run(self, rate: float, ordered: bool) -> dict[str, Any]:
        """Release the rest: at a rate, in tuples a second, or as fast as the nodes take it."""
        if not self.threads:
            self.fill()
        m, due = self.m, np.zeros(self.total + 1, np.int64)
        if rate:
            due[self.warm :] = np.arange(1, self.total - self.warm + 2) * (1e9 / rate)
        watcher = Watcher(m, self.handshake, ordered, self.totals, due, self.warm)
        before = self._comparisons()
        began = watcher.start()
        started = time.perf_counter()
        self._replay(self.warm, self.total, due, began)
        if self.handshake:  # the rate is that of comparisons while tuples come; what remains is pushed through after it
            self._await_idle()
        seconds, compared = time.perf_counter() - started, self._comparisons()
        if self.feed.way == TO_LANES:
            m[w.QUIET : w.QUIET + 2] = self.feed.ends[self.warm, :2]  # of the rest only what is checked
            self._finish()
        found = watcher.join()
        if not self.handshake:
            seconds, compared = time.perf_counter() - started, self._comparisons()
        for thread in self.threads:
            thread.join()
        return {
            "seconds": seconds,
            "comparisons": [int(b - a) for a, b in zip(before, compared, strict=True)],
            **found,
        }

    def _replay(self, first: int, last: int, due_ns: Array, began: int) -> None:
        feed, design = self.feed, self.machine.design
        ahead = self.total if self.handshake else design.in_flight
        plan = np.array([first, last, ahead, design.batch_rows, began], np.int64)
        replay(self.m, feed.way, feed.heads, feed.lanes, feed.state, feed.ends, due_ns, plan)

    def _run_node(self, k: int) -> None:
        pin_thread(k)  # threads that yield look busy to the system: it would let two nodes share a core
        run = runner(self.machine.step)
        while run(self.m, k) == w.NEEDS:
            self.machine.attend(k)

    def _comparisons(self) -> Array:
        return np.array([self.m[node + w.COMPARISONS] for node in self.machine.nodes])

    def _await_idle(self) -> None:
        """Until the nodes have done what they were sent."""
        if not self.handshake:
            await_progress(self.m, w.LEFT, int(self.feed.state[SENT]))
            await_progress(self.m, w.RIGHT, int(self.feed.state[SENT + 1]))
            return
        quiet = 0
        while quiet < 3:  # tuples rest where they are when loads are even
            before = self._positions()
            time.sleep(0.02)
            quiet = quiet + 1 if self._entered() and (self._positions() == before).all() else 0

    def _entered(self) -> bool:
        """Whether all tuples have been taken at the row's ends; at first the nodes may still be compiled."""
        ends = self.machine.segment_at(0, w.LEFT), self.machine.segment_at(self.machine.design.nodes - 1, w.RIGHT)
        return all(self.m[at + block.NEXT_ROW] >= self.feed.state[SENT + side] for side, at in enumerate(ends))

    def _positions(self) -> Array:
        words = [
            self.machine.segment_at(k, s) + at
            for k in range(self.machine.design.nodes)
            for s in (0, 1)
            for at in (block.FIRST_ROW, block.NEXT_ROW)
        ]
        return self.m[words].copy()

    def _finish(self) -> None:
        """Everything expires, and handshake join pushes on what it holds."""
        feed = self.feed
        while not expire_lanes(self.m, feed.heads, feed.lanes, feed.state, *self.totals):
            time.sleep(1e-3)
        finish(self.m)
