"""A running join goes on with another core: another algorithm, or another number of workers.

    tuples 0 .. m  ──► old core ──► its pairs, to the end ┐
    live rows      ──► new core    (their pairs are known)├──► collect: first all of the old core's, then the new one's
    tuples m ..    ──► new core ──► its pairs ────────────┘

The mark m is a place in the total order, between two steps of whoever drives. The old core gets nothing after it and
finishes; the new one is filled with the rows that are live at the mark, and goes on. Every pair has a later tuple: if
that came before the mark the old core finds the pair, otherwise the new one does. So none is lost or found twice, and
the order stays what it was, whatever the two cores are.

A core counts its tuples from 0. Here the numbers of the join become those of a core, and its pairs are told in numbers
of the join again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from counterflow.engines.local.core import Core, Found
from counterflow.predicate.expression import Side, columns_of
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.row_ring import Ring, of_predicate, validity_of
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array, Vector, dtype_of

Numbers = tuple[int, int]


class RefillableCore(Core, Protocol):
    """A core that can go on where another one stopped."""

    def refill(self, left: Batch, right: Batch) -> None:
        """Take the rows that are in the windows, before any others: the pairs among them are known."""


MakeCore = Callable[[Numbers], RefillableCore]  # of the rows that the left and the right window hold


@dataclass(frozen=True)
class Stage:
    """A core, the join's numbers of its first tuples, and how many tuples had come when it took over."""

    core: RefillableCore
    first: Numbers = (0, 0)
    mark: Numbers = (0, 0)

    def rebased(self, batch: Batch) -> Batch:
        """Return tuples with the numbers that the core knows."""
        if self.first == (0, 0):
            return batch
        own, opposite = self.first if batch.side == "left" else self.first[::-1]
        number = batch.at - own
        low, high = np.maximum(batch.low - opposite, 0), np.maximum(batch.high - opposite, -1)
        return Batch(batch.side, batch.columns, number, number, low, high)

    def found(self, found: Found) -> Found:
        """Return what the core has found in numbers of the join: all that came before the mark is complete."""
        if self.mark == (0, 0):
            return found
        left, right = (max(c + f, m) for c, f, m in zip(found.complete, self.first, self.mark, strict=True))
        return Found(found.left + self.first[0], found.right + self.first[1], (left, right))


class StagedCore:
    """A core that holds cores: whoever drives feeds the last one, whoever collects empties the first.

    There are two while a change is under way, or more if changes follow each other.
    """

    takes_any_order = False  # ranks are what a change is a place in
    patient, bell = True, None  # it is fed in a thread of its own, which can wait while live rows are handed over

    def __init__(self, core: RefillableCore, in_order: bool) -> None:
        self.in_order = in_order
        self._lock = threading.RLock()  # reentrant: garbage collection may close it in a thread that is in here
        self._stages: tuple[Stage, ...] = (Stage(core),)  # replaced as a whole, under the lock
        self._next: RefillableCore | None = None  # the one to change to
        self._closed = False
        self.changes = 0

    @property
    def _fed(self) -> Stage:
        return self._stages[-1]

    @property
    def core(self) -> RefillableCore:
        """The core that is fed now."""
        return self._fed.core

    @property
    def compiled(self) -> bool:
        return self.core.compiled

    @property
    def compiling(self) -> bool:
        return self.core.compiling

    @property
    def looked_at(self) -> dict[str, int] | None:
        return self.core.looked_at

    # --- the change

    def _go_on_with(self, core: RefillableCore) -> None:
        """Take another core to change to; if there was one already, it is forgotten."""
        with self._lock:
            unused = core if self._closed else self._next
            self._next = None if self._closed else core
        if unused is not None:
            unused.close()
        if self._closed:  # meanwhile
            core.close()

    def _begin_stage(self, stage: Stage) -> bool:
        """Feed another core from now on, and finish the one before; return False if all is closed."""
        before = self.core
        with self._lock:
            if not self._closed:
                self._stages = (*self._stages, stage)  # before the old one may be finished
        if self._closed:  # maybe meanwhile
            stage.core.close()
            return False
        before.finish()
        return True

    # --- the driver's side

    def expire(self, left_before: int, right_before: int) -> None:
        first, core = self._fed.first, self.core
        core.expire(max(left_before - first[0], 0), max(right_before - first[1], 0))

    def wake(self) -> None:
        for stage in self._stages:
            stage.core.wake()

    def finish(self) -> None:
        self.core.finish()

    # --- the collector's side

    @property
    def finished(self) -> bool:
        stages = self._stages
        return self._closed or (len(stages) == 1 and stages[0].core.finished)

    def collect(self, timeout: float) -> Found | None:
        stage = self._stages[0]
        found = stage.core.collect(timeout)
        if stage.core.finished and len(self._stages) > 1 and not self._closed:
            with self._lock:
                self._stages = self._stages[1:]
            stage.core.close()
        return None if found is None else stage.found(found)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            cores = [stage.core for stage in self._stages]
            if self._next is not None:
                cores.append(self._next)
                self._next = None
        for core in cores:
            core.close()


class ChangingCore(StagedCore):
    """A core that is fed, and goes on as another one when it is told to."""

    def __init__(self, spec: JoinSpec, core: RefillableCore, in_order: bool) -> None:
        super().__init__(core, in_order)
        self._kept = KeptTuples(spec, "left"), KeptTuples(spec, "right")

    # --- the change

    def change_to(self, make: MakeCore) -> None:
        """Make another core, in the calling thread, and go on with it from the next tuples on.

        If there was another one to change to, it is forgotten.
        """
        self._go_on_with(make((len(self._kept[0]), len(self._kept[1]))))

    def _change(self) -> None:
        """Go on with the next core: in the thread that drives, which may wait until there is room for live rows."""
        with self._lock:
            core, self._next = self._next, None
        if core is None:
            return
        left, right = self._kept
        stage = Stage(core, (left.first, right.first), (left.next, right.next))
        if not self._begin_stage(stage):
            return
        if len(left) or len(right):
            core.refill(stage.rebased(left.batch()), stage.rebased(right.batch()))
        self.changes += 1

    # --- the driver's side

    def feed(self, left: Batch, right: Batch) -> None:
        if self._next is not None:
            self._change()
        for kept, batch in zip(self._kept, (left, right), strict=True):
            kept.append(batch)
        stage = self._fed
        stage.core.feed(stage.rebased(left), stage.rebased(right))

    def expire(self, left_before: int, right_before: int) -> None:
        for kept, before in zip(self._kept, (left_before, right_before), strict=True):
            kept.expire(before)
        super().expire(left_before, right_before)


class KeptTuples:
    """What a core is filled with: the live tuples of a side, their stamps and the columns that the predicate uses."""

    def __init__(self, spec: JoinSpec, side: Side) -> None:
        self.side = side
        self._types = {c.name: c.type for c in columns_of(spec.predicate) if c.side == side}
        self._ring = Ring()
        self.next = 0  # the number to come

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def first(self) -> int:
        """The number of the oldest one."""
        return self.next - len(self._ring)

    def append(self, batch: Batch) -> None:
        if not len(batch):
            return
        columns: dict[str, Array] = {of_predicate(name): array for name, array in batch.arrays.items()}
        for name, vector in batch.columns.items():
            if vector.valid is None and validity_of(name) not in self._ring.columns:
                continue
            if validity_of(name) not in self._ring.columns:  # no NULL until now
                self._ring.columns[validity_of(name)] = np.ones(self._ring.capacity, bool)
            columns[validity_of(name)] = vector.mask()
        self._ring.append(batch.at, {**columns, "low": batch.low, "high": batch.high})
        self.next += len(batch)

    def expire(self, before: int) -> None:
        """Forget the tuples before this number."""
        if len(self._ring):
            self._ring.expire(before)

    def batch(self) -> Batch:
        """Return all of them."""
        ring = self._ring
        if not len(ring):
            none = {name: Vector(type_, np.empty(0, dtype_of(type_))) for name, type_ in self._types.items()}
            return Batch(self.side, none, *[np.empty(0, np.int64)] * 4)
        slots = np.arange(ring.first, ring.next) & (ring.capacity - 1)
        at, low, high = (ring.columns[name][slots] for name in ("at", "low", "high"))
        return Batch(self.side, ring.vectors(self._types, slots), at, at, low, high)
