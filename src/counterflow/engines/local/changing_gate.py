"""ScaleJoin goes on with other nodes while sources add to its gate themselves.

    carriers ──┬── rows before the crossing ──► old gate ──► old nodes ──► their pairs, to the end ┐
               └── rows from it on ───────────► new gate ──► new nodes ──► collect: first the old ─┴─► results
    driver   ──── live rows, through the same sources ┘

A gate's readers are counted when it is made, so other nodes have another gate. Carriers go over to it at one place in
the total order (`input.crossing`), as a core that is fed goes on with another one between two steps (`changing`). The
driver, which is behind the gate, has all rows before that place when its frontier has passed it; it hands those that
may still be met to the new gate, by the sources that rows of that side come from anyway. Then it lets the carriers go
on. The new nodes stamp everything anew; they know of the first tuples that pairs of two of them were found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from counterflow.engines.local.changing import Stage, StagedCore
from counterflow.engines.local.gated_core import GatedCore, LiveTuples, gated_core
from counterflow.engines.local.input.carriers import PASSES, CarriedIntake
from counterflow.engines.local.input.crossing import Crossing, Crossings
from counterflow.engines.local.input.intake import Intake
from counterflow.engines.local.options import Local
from counterflow.predicate.expression import Side, columns_of
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array, from_arrow_column

FEW_ROWS, FEW_PIECES = 1 << 10, 1 << 6  # smaller pieces are put together when there are as many


def changing_gate(spec: JoinSpec, engine: Local, intake: Intake) -> ChangingGate:
    """Return a core to whose gate the carriers of this intake add tuples, and that can be changed while they do."""
    assert isinstance(intake, CarriedIntake)
    return ChangingGate(spec, gated_core(spec, engine, intake))


class ChangingGate(StagedCore):
    """A core behind a gate, which carriers fill, that goes on as another one when it is told to."""

    def __init__(self, spec: JoinSpec, core: GatedCore) -> None:
        super().__init__(core, core.in_order)
        self.crossings = Crossings(len(core.machine.sources))
        self._under_way: tuple[Crossing, GatedCore] | None = None
        self._live = LiveRows(spec, "left"), LiveRows(spec, "right")
        self._numbers = (0, 0)  # of the tuples that were fed

    @property
    def gate(self) -> GatedCore:
        """The core whose gate gets the rows that the driver knows now."""
        assert isinstance(self.core, GatedCore)
        return self.core

    # --- the change

    def change_to(self, make: Callable[[tuple[int, int]], GatedCore]) -> None:
        """Make another core, in the calling thread, and let carriers go over to it with the next rows.

        If there was another one to change to, and carriers are not on their way to it, it is forgotten.
        """
        self._go_on_with(make((len(self._live[0]), len(self._live[1]))))
        self.begin_crossing()

    def begin_crossing(self) -> None:
        """Let carriers go over to the next core, if there is one and they are not on their way to another one."""
        with self._lock:
            core = self._next
            if self._under_way is not None or not isinstance(core, GatedCore):
                return
            crossing = self.crossings.begin(core.feeds)
            if crossing is not None:
                self._next, self._under_way = None, (crossing, core)

    @property
    def crossing(self) -> int | None:
        """The time of the crossing that is under way, if there is one.

        Who has got a row after it sees it here: it begins under the lock.
        """
        with self._lock:
            return None if self._under_way is None else self._under_way[0].time

    def cross(self) -> None:
        """Go on with the next core, in the driver's thread: all rows before the crossing were fed, and no others."""
        with self._lock:
            assert self._under_way is not None
            crossing, core = self._under_way
        live = [side.all() for side in self._live]
        left, right = (known - len(side.numbered) for known, side in zip(self._numbers, live, strict=True))
        stage = Stage(core, (left, right), self._numbers)
        if not self._begin_stage(stage):
            crossing.give_up()
            return
        core.refill_gate(live, crossing.time, crossing.over)
        crossing.open()
        self.changes += 1
        with self._lock:
            self._under_way = None

    # --- the driver's side

    def keep(self, i: int, times: Array, rows: pa.RecordBatch, dead: int) -> None:
        """Keep a side's next rows, and forget those before the ordinal `dead`."""
        self._live[i].append(times, rows)
        self._live[i].expire(dead)

    def feed(self, left: Batch, right: Batch) -> None:
        self._numbers = self._numbers[0] + len(left), self._numbers[1] + len(right)
        stage = self._fed
        if self.gate.unsure is not None:  # otherwise they are only counted
            left, right = stage.rebased(left), stage.rebased(right)
        stage.core.feed(left, right)

    def let_collect_return(self) -> None:
        """Let a call of `collect` return that waits for the driver: this one waits for whoever collects."""
        for stage in self._stages:
            assert isinstance(stage.core, GatedCore)
            stage.core.let_collect_return()

    def finish(self) -> None:
        self.crossings.close()
        super().finish()

    def close(self) -> None:
        self.crossings.close()
        with self._lock:
            known = self._under_way
        super().close()
        if known is not None:
            known[1].close()


class LiveRows:
    """The rows of a side that may still be met: their times, and the columns that nodes need. Nothing is copied.

    They are counted by ordinals: rows that can match nothing count in windows, too.
    """

    def __init__(self, spec: JoinSpec, side: Side) -> None:
        self.side = side
        self._columns = sorted({column.name for column in columns_of(spec.predicate) if column.side == side})
        schema = spec.side(side).schema
        none = pa.RecordBatch.from_pylist([], schema=schema)
        self._filtered = bool(spec.parts.filters(side) or spec.required[side])
        self._none = self._taken(none.append_column(PASSES, pa.array([], pa.bool_())))
        self._pieces: deque[tuple[Array, list[pa.Array]]] = deque()
        self._few: list[tuple[Array, list[pa.Array]]] = []  # the last ones, if they are small
        self._first = self._next = 0

    def __len__(self) -> int:
        return self._next - self._first

    def _taken(self, rows: pa.RecordBatch) -> list[pa.Array]:
        names = [*self._columns, PASSES] if self._filtered else self._columns
        return [rows.column(name) for name in names]

    def append(self, times: Array, rows: pa.RecordBatch) -> None:
        if not len(times):
            return
        self._next += len(times)
        self._few.append((times, self._taken(rows)))
        if len(times) >= FEW_ROWS or len(self._few) == FEW_PIECES:
            self._put_together()

    def _put_together(self) -> None:
        """Make one piece of small ones, which would take more memory than their rows."""
        last = self._few.pop() if len(self._few[-1][0]) >= FEW_ROWS else None
        if self._few:
            self._pieces.append(self._one(self._few))
        if last is not None:
            self._pieces.append(last)
        self._few = []

    def _one(self, pieces: list[tuple[Array, list[pa.Array]]]) -> tuple[Array, list[pa.Array]]:
        times = np.concatenate([times for times, _ in pieces])
        return times, [pa.concat_arrays(parts) for parts in zip(*(columns for _, columns in pieces), strict=True)]

    def expire(self, before: int) -> None:
        """Forget rows before this ordinal, where a whole piece is."""
        while self._pieces and self._first + len(self._pieces[0][0]) <= before:
            self._first += len(self._pieces.popleft()[0])

    def all(self) -> LiveTuples:
        """Return all of them; more than those that may be met do no harm."""
        times, columns = self._one([(np.empty(0, np.int64), self._none), *self._pieces, *self._few])
        vectors = {name: from_arrow_column(name, column) for name, column in zip(self._columns, columns, strict=False)}
        number = np.arange(len(times))
        passes = columns[-1].to_numpy(zero_copy_only=False) if self._filtered else None
        return LiveTuples(times, Batch(self.side, vectors, number, number, number, number), passes)
