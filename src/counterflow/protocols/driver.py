"""The driver (Section 4.4 of handshake join, DP-Join's emitter): it writes tuples to the arenas, and sends messages.

It alone knows the order of the tuples and their windows; nodes know numbers. It never waits by itself: `push` sends what
there is room for.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from counterflow.kernels.store import Batch
from counterflow.kernels.vectors import Array
from counterflow.lockfree.atomics import store_release
from counterflow.lockfree.ring import room, try_send
from counterflow.lockfree.waiting import notify
from counterflow.jit import compiled
from counterflow.protocols import words as w
from counterflow.protocols.machine import Machine
from counterflow.protocols.running import progress


@compiled
def send(m, ring, waiter, kind, a, b):
    """From Python: a message and a wake-up."""
    if not try_send(m, ring, kind, a, b, 0):
        return False
    notify(m, waiter)
    return True


@compiled
def finish(m):
    store_release(m, w.FINISHED, 1)
    for k in range(m[w.NODES]):
        notify(m, m[m[w.FIRST_NODE] + k * w.NODE_WORDS + w.WAITER])


@compiled
def room_of(m, ring):
    return room(m, ring)


class Driver:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.design, self.m = machine, machine.design, machine.m
        self.pending: deque[tuple[Batch, Batch]] = deque()
        self.messages: deque[tuple[int, int, int, int, int]] = deque()  # node, inbox, kind and two words
        self.sent = [0, 0]  # tuples of the sides
        self.expired = [0, 0]
        self.banded = [False, False]

    # --- what the engine calls

    def offer(self, left: Batch, right: Batch) -> None:
        """The next tuples of both sides in the total order: take them to be pushed."""
        for begin, end in self._pieces(left, right):
            self.pending.append((left.take(slice(*begin)), right.take(slice(*end))))

    def expire(self, left_before: int, right_before: int) -> None:
        """No tuple to come meets tuples before these numbers."""
        self.pending.append((left_before, right_before))  # type: ignore[arg-type]

    def push(self) -> bool:
        """Send what there is room for; True if nothing is left."""
        while True:
            while self.messages:
                node, inbox, kind, a, b = self.messages[0]
                ring = self.machine.inputs[node, inbox]
                if not send(self.m, ring, self.machine.waiters[node], kind, a, b):
                    return False
                self.messages.popleft()
            if not self.pending:
                return True
            left, right = self.pending[0]
            if isinstance(left, int):
                self._send_expired(left, right)
            else:
                if not (self._make_room(w.LEFT, len(left)) and self._make_room(w.RIGHT, len(right))):
                    return False
                self._send_tuples(left, right)
            self.pending.popleft()

    def finish(self) -> None:
        """No more tuples: all that are there expire."""
        pending = [p for p in self.pending if not isinstance(p[0], int)]
        totals = [self.machine.arenas[side].next + sum(len(p[side]) for p in pending) for side in (0, 1)]
        self.expire(totals[0], totals[1])

    def flush(self) -> None:
        """All is sent: handshake join has to push on those that it holds."""
        finish(self.m)

    def done(self) -> bool:
        """Whether all nodes are done with all tuples that were sent."""
        if self.pending or self.messages:
            return False
        sides = (w.LEFT,) if self.design.algorithm == "handshake" else (w.LEFT, w.RIGHT)
        return all(progress(self.m, side) >= self.sent[side] for side in sides)

    # --- pieces

    def _pieces(self, left: Batch, right: Batch):
        """Cut tuples into messages: not too many, in order, and side by side in the arenas."""
        ranks = left.at + left.high + 1, right.at + right.high + 1
        n = len(left) + len(right)
        if n == 0:
            return
        begin = min(int(r[0]) for r in ranks if len(r))
        cuts = set(range(begin + self.design.batch_rows, begin + n, self.design.batch_rows))
        for side, batch in enumerate((left, right)):
            capacity = self.machine.arenas[side].capacity * self.design.lanes[side]
            if len(batch):
                for number in range(-(-int(batch.at[0]) // capacity) * capacity, int(batch.at[-1]) + 1, capacity):
                    cuts.add(int(ranks[side][number - int(batch.at[0])]))
        at = (0, 0)
        for cut in [*sorted(cuts), np.iinfo(np.int64).max]:
            to = tuple(int(np.searchsorted(r, cut)) for r in ranks)
            if to != at:
                yield (at[0], to[0]), (at[1], to[1])
            at = to

    def _make_room(self, side: int, count: int) -> bool:
        arena, design = self.machine.arenas[side], self.design
        if count == 0:
            return True
        done = int(progress(self.m, side))
        ahead = arena.next + count - done
        if design.algorithm == "handshake":
            window = arena.next + count - self.expired[side]
            if window + design.in_flight > arena.capacity:
                arena.grow(done)
                self.machine.publish_arenas()
            return ahead <= arena.capacity
        return ahead <= max(design.in_flight, count)

    # --- messages

    def _send_tuples(self, left: Batch, right: Batch) -> None:
        arenas, design, last = self.machine.arenas, self.design, self.design.nodes - 1
        for side, batch in enumerate((left, right)):
            if len(batch):
                arenas[side].write(batch)
                if arenas[side].bands is not None and not self.banded[side]:
                    self.machine.set_bands(side, arenas[side].bands)
                    self.banded[side] = True
        firsts = self.sent
        self.sent = [firsts[0] + len(left), firsts[1] + len(right)]
        if design.algorithm in ("kang", "scalejoin", "celljoin"):
            for k in range(design.nodes if design.algorithm == "scalejoin" else 1):
                self.messages.append((k, w.FROM_LEFT, w.BATCH, *self.sent))
            return
        for side, batch in enumerate((left, right)):
            if not len(batch):
                continue
            self._expire_opposite(side, int(batch.low[0]))
            if design.algorithm == "dpjoin":
                for lane in range(design.lanes[side]):
                    first, end = (-((lane - x) // design.lanes[side]) for x in (firsts[side], self.sent[side]))
                    if end > first:
                        self.messages.append((*self._lane_head(side, lane), w.ARRIVAL, first, end - first))
            else:
                head = (0, w.FROM_LEFT) if side == w.LEFT else (last, w.FROM_RIGHT)
                self.messages.append((*head, w.ARRIVAL, firsts[side], len(batch)))

    def _lane_head(self, side: int, lane: int) -> tuple[int, int]:
        return (lane * self.design.layout[1], w.FROM_LEFT) if side == w.LEFT else (lane, w.FROM_RIGHT)

    def _expire_opposite(self, side: int, before: int) -> None:
        """Tuples of the other side that those of `side` from now on do not meet: told in the flow of `side`."""
        other = 1 - side
        if before <= self.expired[other]:
            return
        self.expired[other] = before
        if self.design.algorithm == "dpjoin":
            heads = [self._lane_head(side, lane) for lane in range(self.design.lanes[side])]
        else:
            heads = [(0, w.FROM_LEFT) if side == w.LEFT else (self.design.nodes - 1, w.FROM_RIGHT)]
        for head in heads:
            self.messages.append((*head, w.EXPIRY, before, 0))

    def _send_expired(self, left_before: int, right_before: int) -> None:
        design = self.design
        bounds = [min(b, n) for b, n in zip((left_before, right_before), self.sent, strict=True)]
        if design.algorithm in ("kang", "scalejoin", "celljoin"):
            self.expired = bounds
            for k in range(design.nodes if design.algorithm == "scalejoin" else 1):
                self.messages.append((k, w.FROM_LEFT, w.EXPIRY, *bounds))
            return
        self._expire_opposite(w.RIGHT, bounds[0])
        self._expire_opposite(w.LEFT, bounds[1])
