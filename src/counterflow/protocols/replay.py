"""A driver without Python: tuples that lie in the arenas are released at given times, and results are timed.

For measurements: a call from Python takes as long as a hundred tuples. What the nodes run is the same.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.kernels.compiled import block
from counterflow.kernels.store import Batch
from counterflow.kernels.vectors import Array
from counterflow.lockfree.atomics import clock_ns, load_acquire, store_release
from counterflow.lockfree.ring import CAPACITY as RING_CAPACITY
from counterflow.lockfree.ring import room, try_send
from counterflow.lockfree.waiting import YIELD, busy, idle, notify
from counterflow.lockfree.words import Words
from counterflow.protocols import words as w
from counterflow.protocols.driver import IN_ORDER, finish, send_messages
from counterflow.protocols.machine import Machine
from counterflow.protocols.node import node_at, stamp_arrays
from counterflow.protocols.running import await_progress, let_others_run, progress, runner, take_results
from counterflow.protocols.scale_join import add_tuples

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
    if end == first:
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
        idle(
            m, m[w.DRIVER], turn + m[w.CROWDED], YIELD if due_ns[at] > 0 else m[w.STRATEGY]
        )  # nobody wakes it when time has come
        turn += 1
    busy(m, m[w.DRIVER])
    return at


@inlined
def complete_rank(m: Words, both: bool, totals: Words) -> int:
    """All pairs whose later tuple comes before this rank are found; `both`: a pair lives as long as both tuples do."""
    ranks = (rank_of(m, 0, progress(m, 0), totals), rank_of(m, 1, progress(m, 1), totals))
    return max(ranks[0], ranks[1]) if both else min(ranks[0], ranks[1])


@inlined
def rank_of(m: Words, side: int, number: int, totals: Words) -> int:
    if number >= totals[side]:
        return totals[0] + totals[1]
    lanes = m[w.LANES + side]
    node = node_at(m, m[w.HEADS + side] * (number % lanes))
    _, high, mask = stamp_arrays(m[node + w.STAMPS + side])
    return number + high[(number // lanes) & mask] + 1


@compiled
def watch(
    m: Words,
    both: bool,
    ordered: bool,
    totals: Words,
    due_ns: Words,
    out: Words,
    ready: Words,
    counts: Words,
    found: Words,
    histogram: Words,
) -> int:
    """Collect until all is complete. If `ordered`, results wait in `out` until they are, and are sorted to `ready`.

    `found`: how many, the sum over them, the most that waited, when it began, from which rank on they count, and how
    many came too late for their place. Ages go to `histogram`, 64 for each doubling of the nanoseconds.
    """
    waiting, turn, since, released = 0, 0, clock_ns(), 0
    last = totals[0] + totals[1]
    while True:
        complete = complete_rank(m, both, totals)
        taken = take_results(m, out[waiting * w.RESULT_WORDS :], len(out) // w.RESULT_WORDS - waiting)
        waiting += taken
        found[2] = max(found[2], waiting)
        if not ordered:
            age_results(out, waiting, due_ns, found, histogram)
            waiting, released = 0, complete
        elif complete > released and (complete - released >= waiting // 16 or taken == 0):
            to = min(complete, released + len(counts) - 1)
            kept = sort_complete(out, waiting, released, to, ready, counts, found)
            age_results(ready, waiting - kept, due_ns, found, histogram)
            waiting, released = kept, to
        if released >= last and taken == 0 and waiting == 0:
            store_release(m, w.STOP, 1)
            return complete
        if taken == 0 and released == complete:
            idle(m, m[w.COLLECTOR], turn + m[w.CROWDED], m[w.STRATEGY])
            turn += 1
        else:
            turn = 0
            since = let_others_run(m, since)


@compiled
def sort_complete(out: Words, waiting: int, first: int, end: int, ready: Words, counts: Words, found: Words) -> int:
    """Move the results of ranks from `first` to `end` to `ready`, in order; returns how many stay in `out`.

    By counting, as the ranks are few; results of one later tuple are then sorted by the earlier one.
    """
    for r in range(end - first + 1):
        counts[r] = 0
    for i in range(waiting):
        rank = out[i * w.RESULT_WORDS] >> 1
        if rank < first:
            found[5] += 1
        if rank < end:
            counts[max(rank - first, 0) + 1] += 1
    for r in range(end - first):
        counts[r + 1] += counts[r]
    kept = 0
    for i in range(waiting):
        at = i * w.RESULT_WORDS
        rank = out[at] >> 1
        to = kept
        if rank < end:
            to = counts[max(rank - first, 0)]
            counts[max(rank - first, 0)] = to + 1
            while to > 0 and ready[(to - 1) * w.RESULT_WORDS] == out[at] and earlier(ready, to - 1) > earlier(out, i):
                for k in range(w.RESULT_WORDS):
                    ready[to * w.RESULT_WORDS + k] = ready[(to - 1) * w.RESULT_WORDS + k]
                to -= 1
        else:
            kept += 1
        target = ready if rank < end else out
        for k in range(w.RESULT_WORDS):
            target[to * w.RESULT_WORDS + k] = out[at + k]
    return kept


@inlined
def earlier(results: Words, i: int) -> int:
    """The number of the earlier tuple of a result."""
    at = i * w.RESULT_WORDS
    return results[at + 1] if results[at] & 1 else results[at + 2]


@compiled
def age_results(results: Words, count: int, due_ns: Words, found: Words, histogram: Words) -> None:
    now = clock_ns() - found[3]
    for i in range(count):
        at = i * w.RESULT_WORDS
        rank = results[at] >> 1
        if rank >= found[4]:  # the others are of two tuples that filled the windows
            found[0] += 1
            found[1] += (results[at + 1] * 31 + results[at + 2] * 17) & 0xFFFFFF
            if due_ns[rank] > 0:
                histogram[bin_of(now - due_ns[rank])] += 1


@inlined
def bin_of(ns: int) -> int:
    value, shift = max(ns, 1), 0
    while value >= 128:
        value >>= 1
        shift += 1
    return min(shift * 64 + value, 64 * 40 - 1)


class Replay:
    """A machine whose arenas hold all tuples of a run; the first `warm` ranks fill the windows and look for nothing."""

    def __init__(self, machine: Machine, left: Batch, right: Batch, warm: int) -> None:
        self.machine, self.m = machine, machine.m
        design = machine.design
        for side, batch in enumerate((left, right)):
            machine.arenas[side].write(batch)
            bands = machine.arenas[side].bands
            assert bands is not None
            machine.set_bands(side, bands)
        machine.publish_arenas()
        total = len(left) + len(right)
        is_left = np.zeros(total, bool)
        is_left[left.at + left.high + 1] = True
        lefts = np.concatenate([[0], np.cumsum(is_left)])
        # What no tuple from a rank on meets: the horizon of the next tuple of the other side.
        after_left, after_right = np.append(left.low, len(right)), np.append(right.low, len(left))
        rights = np.arange(total + 1) - lefts
        self.ends = np.stack([lefts, rights, after_right[rights], after_left[lefts]], axis=1)
        self.totals = np.array([len(left), len(right)], np.int64)
        self.total, self.warm = total, warm
        self.way = (
            TO_LANES if design.algorithm not in IN_ORDER else TO_GATE if design.algorithm == "scalejoin" else TO_ALL
        )
        self.lanes = np.array(design.lanes, np.int64)
        self.state = np.zeros(STATE_WORDS, np.int64)
        self.heads = np.array(list(self._heads()), np.int64)
        self.m[w.LANES : w.LANES + 2] = design.lanes
        columns = design.layout[1] if design.algorithm == "dpjoin" else 1
        self.m[w.HEADS : w.HEADS + 2] = columns, 1

    def run(self, rate: float, ordered: bool) -> dict[str, Any]:
        """Fill the windows, then release the rest: at a rate, in tuples a second, or as fast as the nodes take it."""
        m, design = self.m, self.machine.design
        handshake = design.algorithm == "handshake"
        due = np.zeros(self.total + 1, np.int64)
        if rate:
            due[self.warm :] = np.arange(1, self.total - self.warm + 2) * (1e9 / rate)
        out, ready = np.empty((2, w.RESULT_WORDS << 20), np.int64)
        counts = np.empty((1 << 16) + 1, np.int64)
        found, histogram = np.zeros(6, np.int64), np.zeros(64 * 40, np.int64)
        ahead = self.total if handshake else design.in_flight
        plan = np.array([0, self.warm, ahead, design.batch_rows, 0], np.int64)
        threads = [threading.Thread(target=self._run_node, args=(k,)) for k in range(design.nodes)]
        for thread in threads:
            thread.start()
        arguments = (m, self.way, self.heads, self.lanes, self.state, self.ends, due)
        m[w.QUIET : w.QUIET + 2] = self.total
        replay(*arguments, plan)
        self._await_idle(handshake)
        m[w.QUIET : w.QUIET + 2] = 0
        before = self._comparisons()
        watching = threading.Thread(
            target=lambda: watch(m, handshake, ordered, self.totals, due, out, ready, counts, found, histogram)
        )
        found[4] = self.warm
        found[3] = plan[4] = time.monotonic_ns()
        watching.start()
        started = time.perf_counter()
        plan[:2] = self.warm, self.total
        replay(*arguments, plan)
        if handshake:  # the rate is that of comparisons while tuples come; what remains is pushed through after it
            self._await_idle(handshake)
        seconds, compared = time.perf_counter() - started, self._comparisons()
        if self.way == TO_LANES:
            m[w.QUIET : w.QUIET + 2] = self.ends[self.warm, :2]  # of the rest only what is checked
            self._finish()
        watching.join()
        if not handshake:
            seconds, compared = time.perf_counter() - started, self._comparisons()
        for thread in threads:
            thread.join()
        return {
            "seconds": seconds,
            "comparisons": [int(b - a) for a, b in zip(before, compared, strict=True)],
            "pairs": int(found[0]),
            "checksum": int(found[1]),
            "buffer": int(found[2]),
            "too_late": int(found[5]),
            "histogram": histogram,
        }

    def _run_node(self, k: int) -> None:
        run = runner(self.machine.step)
        while run(self.m, k) == w.NEEDS:
            self.machine.attend(k)

    def _comparisons(self) -> Array:
        return np.array([self.m[node + w.COMPARISONS] for node in self.machine.nodes])

    def _await_idle(self, handshake: bool) -> None:
        """Until the nodes have done what they were sent."""
        if not handshake:
            await_progress(self.m, w.LEFT, int(self.state[SENT]))
            await_progress(self.m, w.RIGHT, int(self.state[SENT + 1]))
            return
        quiet = 0
        while quiet < 3:  # tuples rest where they are when loads are even
            before = self._positions()
            time.sleep(0.02)
            quiet = quiet + 1 if (self._positions() == before).all() else 0

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
        messages = []
        for i, head in enumerate(self.heads):
            side = w.LEFT if i < self.lanes[0] else w.RIGHT
            messages.append([head[0], head[1], w.EXPIRY, self.totals[1 - side], 0, 0])
        sent = 0
        while sent < len(messages):
            sent = send_messages(self.m, np.array(messages, np.int64), sent)
        finish(self.m)

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
