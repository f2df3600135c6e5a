"""Physical sources that add their own tuples to ScaleJoin's first gate, each from its own thread (Section IV.B).

    source's thread: offer ──► its ring: times, columns ──► add ──► gate: (time, tie) ──► nodes (`own_stamps`)
                                                        └─► promise: nothing before the last one follows

Sources share nothing but the gate: none waits for another, and nobody merges them beforehand. The order of tuples is
that of their times, then left before right, then of the sources' numbers, then of their positions in the source. Left
sources have the lower numbers, so a tie is a source's number and a position, and says where the tuple lies as well.

A source's ring has room for all that its pool in the gate can hold, and for what is written and not yet added. So a
slot is overwritten only when its tuple is out of the gate: no node stands on it any more, and all have copied it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from counterflow.jit import compiled, inlined
from counterflow.lockfree.atomics import fence, load_acquire
from counterflow.lockfree.gate_frontiers import holds_back, promised
from counterflow.lockfree.scale_gate import FIRST_TIME, LAST_TIME, advance_to, close, try_insert
from counterflow.lockfree.shared_words import Words
from counterflow.lockfree.waiting import SPIN_ROUNDS, YIELD_ROUNDS, busy, idle, notify
from counterflow.protocols import words as w
from counterflow.protocols.incoming import Incoming, address
from counterflow.protocols.node import node_at, words_at
from counterflow.protocols.past import FIRST_OF_ALL
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

if TYPE_CHECKING:
    from counterflow.protocols.machine import Machine

POSITION_BITS = 44  # of a tie; those above have the source's number
EARLY_BITS = 61  # those above say that a tuple is earlier than the gate's times
ADDED_MAX = 256  # tuples between two promises


@inlined
def source_at(m: Words, source: int) -> int:
    return m[w.HEADER_FIRST_SOURCE] + source * w.SOURCE_WORDS


@inlined
def tie_of(source: int, position: int) -> int:
    """Return what orders tuples of one time: by source, then by position."""
    return (source << POSITION_BITS) | position


@inlined
def gate_time(time: int) -> int:
    """Return the time that a tuple has in the gate, which does not know the first two of 64 bits."""
    return max(time, FIRST_TIME + 1)


@inlined
def early(time: int) -> int:
    """Return what is added to a tie so that tuples of the first two times come before those of the third."""
    return (time - FIRST_TIME - 1) << EARLY_BITS if time <= FIRST_TIME else 0


@inlined
def time_of(gate_time: int, tie: int) -> int:
    """Return the time of a tuple in the gate."""
    return gate_time + (tie >> EARLY_BITS)


@inlined
def source_of(tie: int) -> int:
    return (tie & ((1 << EARLY_BITS) - 1)) >> POSITION_BITS


@inlined
def position_of(tie: int) -> int:
    return tie & ((1 << POSITION_BITS) - 1)


@compiled
def step_source(m: Words, k: int, most: int) -> int:
    """Add the next tuples of source k to the gate, at most `most`; or, after that, promise what follows from them.

    IDLE where there is nothing to add or to promise, or no room.
    """
    source = source_at(m, k)
    if m[source + w.SOURCE_OWES] != 0:
        promise(m, k, source)
        return w.WORKED
    first, mask = m[source + w.SOURCE_ADDED], m[source + w.SOURCE_MASK]
    end, at = min(m[source + w.SOURCE_WRITTEN], first + most), first
    times, passes = words_at(m[source + w.SOURCE_TIMES], mask + 1), words_at(m[source + w.SOURCE_PASSES], mask + 1)
    while at < end:
        time = times[at & mask]
        tie = tie_of(k, at) + early(time)
        if not try_insert(m, m[w.HEADER_GATE_IN], k, gate_time(time), tie, passes[at & mask]):
            break
        at += 1
    if at == first:
        if at < end:
            wake_nodes(m)  # who is refused has promised more
        return w.IDLE
    m[source + w.SOURCE_ADDED], m[source + w.SOURCE_OWES] = at, 1
    return w.WORKED


@inlined
def promise(m: Words, k: int, source: int) -> None:
    """Promise that nothing before the last added tuple follows; when all are added, nothing before the frontier."""
    added, mask = m[source + w.SOURCE_ADDED], m[source + w.SOURCE_MASK]
    time, tie = promised(m, m[w.HEADER_GATE_IN], k)
    if added > 0:
        last = words_at(m[source + w.SOURCE_TIMES], mask + 1)[(added - 1) & mask]
        reach(m, k, last, added)
    if added == m[source + w.SOURCE_WRITTEN]:
        reach(m, k, m[source + w.SOURCE_FRONTIER], added)
        if m[source + w.SOURCE_ENDED] != 0:
            close(m, m[w.HEADER_GATE_IN], k)
    m[source + w.SOURCE_OWES] = 0
    fence()  # with that of another source that promises at the same time: one of the two sees both promises
    if not holds_back(m, m[w.HEADER_GATE_IN], time, tie):
        wake_nodes(m)


@inlined
def reach(m: Words, k: int, time: int, position: int) -> None:
    """Promise that what source k still adds has at least this time and this position.

    So tuples of this very time are ready that other sources have added, if their sources come before this one.
    """
    advance_to(m, m[w.HEADER_GATE_IN], k, gate_time(time), tie_of(k, position) + early(time))


@inlined
def wake_nodes(m: Words) -> None:
    for k in range(m[w.HEADER_NODES]):
        notify(m, m[node_at(m, k) + w.NODE_WAITER])


@compiled
def add_all(m: Words, k: int, most: int) -> bool:
    """Add what there is room for, and promise; True if nothing is left."""
    while step_source(m, k, most) == w.WORKED:
        pass
    source = source_at(m, k)
    return m[source + w.SOURCE_ADDED] == m[source + w.SOURCE_WRITTEN]


@compiled
def add_or_wait(m: Words, k: int, most: int) -> bool:
    """Add everything that is written, and wait for nodes where there is no room; False if the join was stopped."""
    source = source_at(m, k)
    turn, before = 0, m[source + w.SOURCE_ADDED]
    while not add_all(m, k, most):
        if load_acquire(m, w.HEADER_STOP) != 0:
            return False
        turn, before = turn + 1 if m[source + w.SOURCE_ADDED] == before else 0, m[source + w.SOURCE_ADDED]
        # A source that parks does so at once: nodes wake it when there is much room, or when they have nothing to do.
        idle(m, m[source + w.SOURCE_WAITER], turn + SPIN_ROUNDS + YIELD_ROUNDS, m[w.HEADER_STRATEGY])
    busy(m, m[source + w.SOURCE_WAITER])
    return True


# --- from Python, in the source's own thread


class SourceFeed:
    """One physical source's way into a join: its tuples in order of time, and what it promises of those to come."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.m, self.number, self.side = machine, machine.m, number, machine.source_side(number)
        self.at, self.ring = machine.sources[number], machine.source_rings[number]
        self._pending: deque[tuple[Array, Array, Batch]] = deque()
        self._frontier = FIRST_OF_ALL  # tuples to come have at least this time
        self._ended = False

    def offer(self, times: Array, batch: Batch, passes: Array | None = None) -> None:
        """Take the next tuples, to be pushed. `passes`: those that can match at all (None: all); others only count."""
        if not len(times):
            return
        if (times[1:] < times[:-1]).any() or times[0] < self._frontier or self._ended:
            raise ValueError(f"tuples of source {self.number} are out of order, or late: sort them, and drop late ones")
        self._frontier = int(times[-1])
        can_match = np.ones(len(times), np.int64) if passes is None else passes.astype(np.int64)
        self._pending.append((times, can_match, batch))

    def advance(self, time: int) -> None:
        """Promise that no tuple up to this time is offered any more."""
        if time == LAST_TIME:
            self.close()
        else:
            self.reach(time + 1)

    def reach(self, time: int) -> None:
        """Promise that no tuple before this time is offered any more."""
        self._frontier = max(self._frontier, time)

    def close(self) -> None:
        """Promise that no tuple is offered any more."""
        self._ended = True

    def push(self) -> bool:
        """Add what there is room for; True if nothing is left."""
        while True:
            if not self._pending:
                self._note_promises()
            added = bool(add_all(self.m, self.number, ADDED_MAX))
            if not self._pending:
                return added
            if not self._write_next():
                return False

    def _note_promises(self) -> None:
        """Let what is promised be said once all tuples are added."""
        m, at = self.m, self.at
        if self._frontier > m[at + w.SOURCE_FRONTIER] or self._ended != m[at + w.SOURCE_ENDED]:
            m[at + w.SOURCE_FRONTIER], m[at + w.SOURCE_ENDED], m[at + w.SOURCE_OWES] = self._frontier, self._ended, 1

    def flush(self) -> bool:
        """Add everything, and wait for nodes where there is no room; False if the join was stopped before."""
        while True:
            while self._pending and self._write_next():
                pass
            if not self._pending:
                self._note_promises()
            if not add_or_wait(self.m, self.number, ADDED_MAX):
                return False
            if not self._pending:
                return True

    def _write_next(self) -> bool:
        """Write what there is room for of the tuples that were offered first; return False if there is none."""
        times, passes, batch = self._pending.popleft()
        count = min(self._room(), len(times))
        if count < len(times):
            self._pending.appendleft((times[count:], passes[count:], batch.take(slice(count, None))))
        if count > 0:
            self._write(times[:count], passes[:count], batch.take(slice(0, count)))
        return count > 0

    def _room(self) -> int:
        """Return how many tuples can be written now, side by side."""
        written, added = (int(self.m[self.at + word]) for word in (w.SOURCE_WRITTEN, w.SOURCE_ADDED))
        free = self.ring.capacity - pool_slots(self.machine.design.in_flight) - (written - added)
        return min(free, self.ring.capacity - written % self.ring.capacity)

    def _write(self, times: Array, passes: Array, batch: Batch) -> None:
        written, n = int(self.m[self.at + w.SOURCE_WRITTEN]), len(times)
        slots = slice(written % self.ring.capacity, written % self.ring.capacity + n)
        self.ring.times[slots], self.ring.passes[slots] = times, passes
        if not passes.any():
            self.ring.next += n
        else:
            self.machine.write_source(self.number, batch if passes.all() else _of_passing(batch, passes))
        self.m[self.at + w.SOURCE_WRITTEN] = written + n


class SourceRing(Incoming):
    """The ring of a source: the columns of its tuples, their times, and whether they pass."""

    def _allocate(self) -> None:
        super()._allocate()
        self.times, self.passes = np.zeros((2, self.capacity), np.int64)
        self.table = self.copied()
        self.kept += [self.times, self.passes]

    def publish(self, m: Words, source: int) -> None:
        """Let nodes and the source's steps know where the tuples lie."""
        m[source + w.SOURCE_MASK], m[source + w.SOURCE_COPIED] = self.capacity - 1, address(self.table)
        m[source + w.SOURCE_TIMES], m[source + w.SOURCE_PASSES] = address(self.times), address(self.passes)

    def write(self, batch: Batch) -> None:
        """Write the next tuples, of one round; the ring has no stamps, as sources know none."""
        nothing = np.zeros(len(batch), np.int64)
        super().write(replace(batch, low=nothing, high=nothing))


def _of_passing(batch: Batch, passes: Array) -> Batch:
    """Return a batch that has any passing tuple in the place of each other one.

    Nobody looks at what does not pass, and it may be something of which no key can be computed.
    """
    places = np.arange(len(passes))
    places[passes == 0] = np.argmax(passes)
    return batch.take(places)


def pool_slots(in_flight: int) -> int:
    """Return how many tuples of a source the gate may hold (`gate_init`)."""
    return in_flight + 1


def ring_capacity(in_flight: int, waiting_rows: int = 0) -> int:
    """Return a power of two with room for a full pool, and for as many tuples again, or more, that wait to be added."""
    return 1 << (pool_slots(in_flight) + max(pool_slots(in_flight), waiting_rows) - 1).bit_length()
