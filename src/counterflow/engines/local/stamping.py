"""Each tuple's number and horizon, computed as the tuples come: what `arrivals` does for finite tables.

An *ordinal* counts all tuples of a side, a *number* only those that pass its one-sided conditions and are fed to the
core; the *rank* counts the tuples of both sides. Windows are defined on ordinals, cores work with numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.engines.local.merging import BEGINNING, END, Due
from counterflow.engines.local.sliding import Sliding
from counterflow.errors import CounterflowError
from counterflow.predicate.expression import Side, columns_of
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.evaluate import Columns
from counterflow.windows.store import Batch, passing
from counterflow.windows.times import horizon_of
from counterflow.windows.vectors import Array, from_arrow_column

NEVER = END + 1  # the time of what follows when nothing does: after all times, also after the last one


@dataclass(frozen=True)
class Stamped:
    """Rows of a side, in order. `kept` are the places of those that have a number; None: all of them."""

    times: Array
    batch: pa.RecordBatch
    rank: Array
    horizon: Array
    kept: Array | None
    tuples: Batch  # of the kept ones

    def __len__(self) -> int:
        return len(self.times)

    def cut(self, begin: int, end: int) -> Stamped:
        if begin == 0 and end == len(self):
            return self
        kept, tuples = None, self.tuples
        if self.kept is None:
            tuples = tuples.take(slice(begin, end))
        else:
            first, last = (int(i) for i in np.searchsorted(self.kept, [begin, end]))
            kept, tuples = self.kept[first:last] - begin, tuples.take(slice(first, last))
        rows = slice(begin, end)
        batch = self.batch.slice(begin, end - begin)
        return Stamped(self.times[rows], batch, self.rank[rows], self.horizon[rows], kept, tuples)


@dataclass(frozen=True)
class Mark:
    """What is certain once all pairs of the first `numbers` tuples are known.

    Further tuples have at least this `rank` and this `time`, and meet none before the `dead` ordinals and numbers.
    """

    numbers: tuple[int, int]
    rank: int
    time: int
    dead_ordinals: tuple[int, int]
    dead_numbers: tuple[int, int]

    def dead(self, side: int) -> tuple[int, int]:
        return self.dead_ordinals[side], self.dead_numbers[side]


@dataclass(frozen=True)
class Step:
    """Tuples for the core, their rows for the results, and what holds after them."""

    left: Stamped
    right: Stamped
    mark: Mark

    def __len__(self) -> int:
        return len(self.left) + len(self.right)


class _Side:
    """What has come of a side until now."""

    def __init__(self, spec: JoinSpec, side: Side) -> None:
        self.side, self.window = side, spec.side(side).window
        self.filters, self.required = spec.parts.filters(side), spec.required[side]
        self.columns = sorted({column.name for column in columns_of(spec.predicate) if column.side == side})
        self.ordinals = self.numbers = 0
        self.dead = 0  # ordinals before are met no more
        self._times = Sliding()  # by ordinal; searched for horizons, if the window is a duration
        self._passed: Sliding | None = None  # by number: its ordinal; None while all tuples have passed

    def vectors(self, batch: pa.RecordBatch) -> Columns:
        try:
            return {name: from_arrow_column(name, batch.column(name)) for name in self.columns}
        except CounterflowError as error:
            error.add_note(f"in a {self.side} stream")
            raise

    def add(self, times: Array, columns: Columns) -> Array | None:
        """Returns the places of those that can match at all; None: all."""
        kept = passing(self.filters, self.side, columns, len(times), self.required)
        count = len(times) if kept is None else len(kept)
        if self.window.kind == "duration":
            self._times.append({"time": times}, len(times))
        if kept is not None and self._passed is None:
            self._passed = Sliding(self.dead)
            self._passed.append({"ordinal": np.arange(self.dead, self.ordinals)}, self.ordinals - self.dead)
        if self._passed is not None:
            ordinals = self.ordinals + (np.arange(len(times)) if kept is None else kept)
            self._passed.append({"ordinal": ordinals}, count)
        self.ordinals += len(times)
        self.numbers += count
        return kept

    def horizon(self, times: Any, arrived: Any) -> Any:
        """Return the oldest ordinals in this side's window when opposite tuples arrive."""
        return horizon_of(self.window, times, arrived, lambda time: self._times.search("time", time))

    def number(self, ordinals: Any) -> Any:
        """How many before these ordinals have a number."""
        return ordinals if self._passed is None else self._passed.search("ordinal", ordinals)

    def bury(self, opposite_time: int | None) -> None:
        """Note what no further opposite tuple can meet: the next one has this time or a later one, if there is one."""
        dead = self.ordinals if opposite_time is None else int(self.horizon(opposite_time, self.ordinals))
        self.dead = max(self.dead, dead)

    def forget(self) -> None:
        self._times.drop(self.dead)
        if self._passed is not None:
            self._passed.drop(int(self.number(self.dead)))


class Stamping:
    """Tuples in the total order in, steps for the core out."""

    def __init__(self, spec: JoinSpec, rows_max: int) -> None:
        self.spec, self.rows_max = spec, rows_max
        self.sides = _Side(spec, "left"), _Side(spec, "right")
        self.mark = Mark((0, 0), 0, BEGINNING, (0, 0), (0, 0))
        nothing = np.empty(0, np.int64)
        batches = [pa.RecordBatch.from_pylist([], schema=spec.side(side.side).schema) for side in self.sides]
        empty = [side.vectors(batch) for side, batch in zip(self.sides, batches, strict=True)]
        self._nothing = [
            Stamped(nothing, batch, nothing, nothing, None, _tuples(side.side, columns, None, 0, nothing, nothing))
            for side, batch, columns in zip(self.sides, batches, empty, strict=True)
        ]

    def steps(self, due: Due, next_times: tuple[int | None, int | None]) -> Iterator[Step]:
        """The tuples that are due, at most `rows_max` at once. Those that follow have at least the given times."""
        first = [side.ordinals for side in self.sides]
        stamped = self._stamped(due)
        self._bury(next_times)
        rank, done, total = self.mark.rank, [0, 0], sum(map(len, stamped))
        for end in [*range(self.rows_max, total, self.rows_max), total]:
            if end == total:
                cut = [len(s) for s in stamped]
            else:
                cut = [int(np.searchsorted(s.rank, rank + end)) for s in stamped]
            parts = [s.cut(begin, end) for s, begin, end in zip(stamped, done, cut, strict=True)]
            times = list(next_times)
            dead = [side.dead for side in self.sides]
            for i, s in enumerate(stamped):  # what follows in this very call has times and horizons already
                if cut[i] < len(s):
                    times[i] = int(s.times[cut[i]])
                    dead[1 - i] = int(s.horizon[cut[i]])
            dead = [min(d, f + c) for d, f, c in zip(dead, first, cut, strict=True)]
            numbers = [n + len(p.tuples) for n, p in zip(self.mark.numbers, parts, strict=True)]
            self.mark = self._mark(numbers, rank + end, times, dead)
            yield Step(parts[0], parts[1], self.mark)
            done = cut
        for side in self.sides:
            side.forget()

    def idle(self, next_times: tuple[int | None, int | None]) -> Mark | None:
        """Nothing is due, but it is known better what can follow; None if it is not."""
        self._bury(next_times)
        mark = self._mark(self.mark.numbers, self.mark.rank, next_times, [side.dead for side in self.sides])
        if mark == self.mark:
            return None
        self.mark = mark
        for side in self.sides:
            side.forget()
        return mark

    def _bury(self, next_times: tuple[int | None, int | None]) -> None:
        for side, opposite_time in zip(self.sides, reversed(next_times), strict=True):
            side.bury(opposite_time)

    def _mark(self, numbers: Sequence[int], rank: int, next_times: Sequence[int | None], dead: Sequence[int]) -> Mark:
        time = min((t for t in next_times if t is not None), default=NEVER)
        dead_numbers = [int(side.number(d)) for side, d in zip(self.sides, dead, strict=True)]
        return Mark((numbers[0], numbers[1]), rank, time, (dead[0], dead[1]), (dead_numbers[0], dead_numbers[1]))

    def _stamped(self, due: Due) -> list[Stamped]:
        pieces = [due.left, due.right]
        times = [self._nothing[i].times if piece is None else piece[0] for i, piece in enumerate(pieces)]
        # At equal times the left tuple is the earlier one.
        arrived = [
            np.searchsorted(times[1], times[0], "left") + self.sides[1].ordinals,
            np.searchsorted(times[0], times[1], "right") + self.sides[0].ordinals,
        ]
        ordinals = [side.ordinals + np.arange(len(t)) for side, t in zip(self.sides, times, strict=True)]
        columns: list[Columns] = []
        kept: list[Array | None] = []
        numbers = [side.numbers for side in self.sides]
        for side, piece in zip(self.sides, pieces, strict=True):  # both, because they stamp each other
            columns.append({} if piece is None else side.vectors(piece[1]))
            kept.append(None if piece is None else side.add(piece[0], columns[-1]))
        found = []
        for i, piece in enumerate(pieces):
            if piece is None:
                found.append(self._nothing[i])
                continue
            met = self.sides[1 - i]
            horizon = met.horizon(times[i], arrived[i])
            low, high = met.number(horizon), met.number(arrived[i]) - 1
            tuples = _tuples(self.sides[i].side, columns[i], kept[i], numbers[i], low, high)
            found.append(Stamped(times[i], piece[1], ordinals[i] + arrived[i], horizon, kept[i], tuples))
        return found


def _tuples(side: Side, columns: Columns, kept: Array | None, first: int, low: Array, high: Array) -> Batch:
    if kept is not None:
        columns = {name: vector.take(kept) for name, vector in columns.items()}
        low, high = low[kept], high[kept]
    number = np.arange(first, first + len(low))
    return Batch(side, columns, number, number, low, high)
