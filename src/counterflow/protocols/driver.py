"""The driver (handshake join, Section 4.4; DP-Join's emitter): it writes tuples to the arenas, and sends messages.

It alone knows the order of the tuples and their windows; nodes know numbers. It never waits by itself: `push` sends
what there is room for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from counterflow.protocols import words as w
from counterflow.protocols.machine import Machine
from counterflow.protocols.scale_join import add_tuples
from counterflow.protocols.threads import finish, progress, send_messages
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

MESSAGE = 6  # the ring, the receiver's waiter, kind and three words
IN_ORDER = ("kang", "celljoin", "scalejoin")  # their nodes get both streams in one order
INT64_MAX = np.iinfo(np.int64).max


class Driver:
    """`sent` are the tuples of both sides that the nodes have been told of, or will be by the next `push`."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.design, self.m = machine, machine.design, machine.m
        self.sent = (0, 0)
        self._pending: deque[tuple[Batch, Batch] | tuple[int, int]] = deque()  # tuples, or bounds of expired ones
        self._offered = [0, 0]
        self._expired = [0, 0]
        self._banded = [False, False]
        self._messages = np.empty((0, MESSAGE), np.int64)
        self._at = 0  # the next message to be sent
        self._added = np.zeros(4, np.int64)  # to ScaleJoin's gate: the next left and right tuple, and up to which

    # --- what the engine calls

    def offer(self, left: Batch, right: Batch) -> None:
        """The next tuples of both sides in the total order: take them, to be pushed."""
        check_horizons(left, right)
        ranks = left.at + left.high + 1, right.at + right.high + 1
        for (a, b), (c, d) in _pieces(ranks, self._chunk_cuts(ranks, (left, right))):
            self._pending.append((left.take(slice(a, b)), right.take(slice(c, d))))
        self._offered = [self._offered[0] + len(left), self._offered[1] + len(right)]

    def expire(self, left_before: int, right_before: int) -> None:
        """No tuple to come meets tuples before these numbers."""
        self._pending.append((min(left_before, self._offered[0]), min(right_before, self._offered[1])))

    def finish(self) -> None:
        """No more tuples come: all that are there expire."""
        self.expire(*self._offered)

    def push(self) -> bool:
        """Send what there is room for; True if nothing is left."""
        while True:
            if self._at < len(self._messages):
                self._at = send_messages(self.m, self._messages, self._at)
                if self._at < len(self._messages):
                    return False
            if self._added[:2].sum() < self._added[2:].sum() and not add_tuples(self.m, self._added):
                return False
            if not self._pending:
                return True
            first, second = self._pending[0]
            if isinstance(first, int) or isinstance(second, int):
                assert isinstance(first, int) and isinstance(second, int)
                messages = list(self._expiries(first, second))
            else:
                if not (self._has_room(w.LEFT, len(first)) and self._has_room(w.RIGHT, len(second))):
                    return False
                messages = list(self._arrivals(first, second))
            self._messages = np.array(messages, np.int64).reshape(-1, MESSAGE)
            self._at = 0
            self._pending.popleft()

    def flush(self) -> None:
        """All is sent: handshake join now pushes on the tuples that it holds."""
        finish(self.m)

    def done(self) -> bool:
        """Whether all nodes are done with all tuples."""
        if self._pending or self._at < len(self._messages) or self._added[:2].sum() < self._added[2:].sum():
            return False
        sides = (w.LEFT,) if self.design.algorithm == "handshake" else (w.LEFT, w.RIGHT)
        return all(progress(self.m, side) >= self.sent[side] for side in sides)

    # --- tuples to the arenas

    def _chunk_cuts(self, ranks: tuple[Array, Array], batches: tuple[Batch, Batch]) -> list[int]:
        """Ranks at which tuples are cut: into what there may be room for, side by side in the arenas."""
        begin = min((int(r[0]) for r in ranks if len(r)), default=0)
        size = max(self.design.in_flight // 2, 1)
        cuts = set(range(begin + size, begin + len(ranks[0]) + len(ranks[1]), size))
        for side, batch in enumerate(batches):
            if len(batch):
                round_ = self.machine.arenas[side].capacity * self.design.lanes[side]
                first, last = int(batch.at[0]), int(batch.at[-1])
                cuts |= {int(ranks[side][x - first]) for x in range(-(-first // round_) * round_, last + 1, round_)}
        return sorted(cuts)

    def _has_room(self, side: int, count: int) -> bool:
        """Whether the nodes are far enough; handshake join's arena holds the whole window, and grows with it."""
        if count == 0:
            return True
        arena, done = self.machine.arenas[side], int(progress(self.m, side))
        ahead = arena.next + count - done
        if self.design.algorithm != "handshake":
            return ahead <= max(self.design.in_flight, count)
        if arena.next + count - self._expired[side] + self.design.in_flight > arena.capacity:
            arena.grow(done)
            self.machine.publish_arenas()
        return ahead <= arena.capacity

    def _write(self, side: int, batch: Batch) -> None:
        arena = self.machine.arenas[side]
        arena.write(batch)
        if not self._banded[side]:
            assert arena.bands is not None
            self.machine.set_bands(side, arena.bands)
            self._banded[side] = True

    # --- messages

    def _arrivals(self, left: Batch, right: Batch) -> Iterator[tuple[int, ...]]:
        """Messages of at most a batch each."""
        for side, batch in enumerate((left, right)):
            if len(batch):
                self._write(side, batch)
        before = self.sent
        self.sent = (before[0] + len(left), before[1] + len(right))
        if self.design.algorithm == "scalejoin":
            self._added[2:] = self.sent
            return
        ranks = (left.at + left.high + 1, right.at + right.high + 1)
        begin = min(int(r[0]) for r in ranks if len(r))
        cuts = list(range(begin + self.design.batch_rows, begin + len(left) + len(right), self.design.batch_rows))
        for (a, b), (c, d) in _pieces(ranks, cuts):
            if self.design.algorithm in IN_ORDER:
                yield from self._to_nodes(w.BATCH, before[0] + b, before[1] + d)
                continue
            for side, batch, first, end in ((w.LEFT, left, a, b), (w.RIGHT, right, c, d)):
                if end > first:
                    yield from self._expiry_of_opposite(side, int(batch.low[first]))
                    yield from self._arrival(side, before[side] + first, before[side] + end)

    def _arrival(self, side: int, first: int, end: int) -> Iterator[tuple[int, ...]]:
        lanes = self.design.lanes[side]
        for lane in range(lanes):
            place, stop = ((x - lane + lanes - 1) // lanes for x in (first, end))
            if stop > place:
                yield self._message(*self._head(side, lane), w.ARRIVAL, place, stop - place)

    def _expiries(self, left_before: int, right_before: int) -> Iterator[tuple[int, ...]]:
        if self.design.algorithm in IN_ORDER:
            yield from self._to_nodes(w.EXPIRY, left_before, right_before)
            return
        yield from self._expiry_of_opposite(w.RIGHT, left_before)
        yield from self._expiry_of_opposite(w.LEFT, right_before)

    def _expiry_of_opposite(self, side: int, before: int) -> Iterator[tuple[int, ...]]:
        """Tuples of the other side that those of `side` from now on do not meet: told in the flow of `side`."""
        if before > self._expired[1 - side]:
            self._expired[1 - side] = before
            for lane in range(self.design.lanes[side]):
                yield self._message(*self._head(side, lane), w.EXPIRY, before, 0)

    def _to_nodes(self, kind: int, a: int, b: int) -> Iterator[tuple[int, ...]]:
        """To all nodes; CellJoin's coordinator tells the others."""
        for k in range(1 if self.design.algorithm == "celljoin" else self.design.nodes):
            yield self._message(k, w.FROM_LEFT, kind, a, b)

    def _head(self, side: int, lane: int) -> tuple[int, int]:
        """The node at which tuples of a side enter, and its inbox."""
        if side == w.LEFT:
            return lane * self.design.layout[1], w.FROM_LEFT
        return (lane if self.design.algorithm == "dpjoin" else self.design.nodes - 1), w.FROM_RIGHT

    def _message(self, node: int, inbox: int, kind: int, a: int, b: int) -> tuple[int, ...]:
        return self.machine.inputs[node, inbox], self.machine.waiters[node], kind, a, b, sum(self.sent)


def check_horizons(*batches: Batch) -> None:
    """Assert that no horizon (`low`) is beyond what came before its tuple.

    A driver tells nodes to forget everything before it: beyond, that would be tuples that are still to be met.
    """
    for batch in batches:
        assert (batch.low <= batch.high + 1).all(), f"a horizon of the {batch.side} side is beyond what has arrived"


def _pieces(ranks: tuple[Array, Array], cuts: list[int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The ranges of both sides between the cuts, where there are any tuples."""
    ends = [np.searchsorted(r, [*cuts, INT64_MAX]).tolist() for r in ranks]
    at = (0, 0)
    for to in zip(*ends, strict=True):
        if to != at:
            yield (at[0], to[0]), (at[1], to[1])
        at = to
