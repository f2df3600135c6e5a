"""Stamps: each tuple's number, rank and horizon, computed once, in the total order, for streams and for tables.

A tuple may meet the opposite tuples from its *horizon* (the oldest one still in the window when it arrives) up to the
last one that came before it. Duration, row and unbounded windows differ only in how the horizon is computed.

An *ordinal* counts all tuples of a side, a *number* only those that pass its one-sided conditions and are fed to the
core; the *rank* counts the tuples of both sides. Windows are defined on ordinals, cores work with numbers.

`Stamping` stamps the tuples of streams as they come; `stamp_tables` stamps two finite tables at once.

Stamped `by_side`, tuples of the two sides need not come in one order: a tuple then meets the opposite ones that were
stamped before it, earlier or later ones, whose times are in its window. Whichever of a pair is stamped second finds the
other, so nobody waits for the total order; but windows of rows are defined by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from counterflow.engines.local.order import BEGINNING, END, Due, sorting
from counterflow.engines.local.pieces import Piece
from counterflow.engines.local.sliding import Sliding
from counterflow.errors import CounterflowError
from counterflow.predicate.expression import Side, columns_of, opposite
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.evaluate import Columns
from counterflow.windows.store import Batch, passing
from counterflow.windows.times import horizon_of, saturating_subtract, time_bounds, time_reach, time_values
from counterflow.windows.vectors import Array, Vector, contiguous, from_arrow_column

UNMARKED_ROWS_MAX = 256
NEVER = END + 1  # the time of what follows when nothing does: after all times, also after the last one
Given: TypeAlias = tuple[Array, Columns]  # tuples in order: their times, and the columns that the predicate uses


@dataclass(frozen=True)
class Stamped:
    """Tuples of one side, in order. `kept` are the places of those that have a number; None: all of them."""

    times: Array
    rank: Array
    horizon: Array  # an ordinal
    kept: Array | None
    tuples: Batch  # the kept ones, with numbers for coordinates

    def __len__(self) -> int:
        return len(self.times)

    def cut(self, begin: int, end: int) -> Stamped:
        """Return the tuples at the places from `begin` up to `end`."""
        if begin == 0 and end == len(self):
            return self
        kept, tuples = None, self.tuples
        if self.kept is None:
            tuples = tuples.take(slice(begin, end))
        else:
            first, last = (int(i) for i in np.searchsorted(self.kept, [begin, end]))
            kept, tuples = self.kept[first:last] - begin, tuples.take(slice(first, last))
        places = slice(begin, end)
        return Stamped(self.times[places], self.rank[places], self.horizon[places], kept, tuples)


class _Side:
    """What has come of a side until now."""

    def __init__(self, spec: JoinSpec, side: Side) -> None:
        self.spec, self.side, self.window = spec, side, spec.side(side).window
        self.filters, self.required = spec.parts.filters(side), spec.required[side]
        self.columns = sorted({column.name for column in columns_of(spec.predicate) if column.side == side})
        self.ordinals = self.numbers = 0
        self.dead = 0  # ordinals before are met no more
        self._times = Sliding()  # by ordinal; searched for horizons, if the window is a duration
        self._passed: Sliding | None = None  # by number: its ordinal; None while all tuples have passed

    def vectors(self, rows: pa.RecordBatch | pa.Table) -> Columns:
        """Return the columns that the predicate uses."""
        return {name: from_arrow_column(name, rows.column(name)) for name in self.columns}

    def add(self, times: Array, columns: Columns) -> Array | None:
        """Note tuples that have come, and return the places of those that can match at all; None: all."""
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

    def take_few(self, n: int) -> None:
        """Note tuples that have come, and that all pass; their times are written to the room there is."""
        self._times.note(n)
        self.ordinals += n
        self.numbers += n

    def room(self, more: int) -> tuple[Array, int, int, int]:
        """Return the array of known times, with room for more; where they begin and end, and the first ordinal."""
        return *self._times.room("time", more), self._times.first

    def horizon(self, times: Any, arrived: Any) -> Any:
        """Return the oldest ordinals in this side's window when opposite tuples arrive."""
        return horizon_of(self.window, times, arrived, lambda time: self._times.search("time", time))

    def within(self, times: Array, arrived: Array, compiled: bool) -> tuple[Array, Array]:
        """Return the ordinals of this side that opposite tuples meet, from the first up to the second.

        They are among the `arrived` ones, and may be earlier or later than the opposite tuple.
        """
        if compiled:
            low, high = np.empty((2, len(times)), np.int64)
            reach, known = time_reach(self.spec, opposite(self.side)), contiguous(self._times.live("time"))
            arrivals = compiled_module("arrivals")
            arrivals.ordinals_between(contiguous(times), *reach, known, self._times.first, arrived, low, high)
            return low, high
        oldest, newest = time_bounds(self.spec, opposite(self.side), times)
        end = np.minimum(self._times.search("time", newest, "right"), arrived)
        return np.minimum(self._times.search("time", oldest), end), end

    def number(self, ordinals: Any) -> Any:
        """Return how many tuples before these ordinals have a number."""
        return ordinals if self._passed is None else self._passed.search("ordinal", ordinals)

    def bury(self, opposite_time: int | None, by_side: bool) -> None:
        """Note what no further opposite tuple can meet: the next one has this time or a later one, if there is one."""
        if opposite_time is None:
            dead = self.ordinals
        elif by_side:  # those of its own time and later ones can be met, however short this side's window is
            dead = int(self._times.search("time", saturating_subtract(opposite_time, max(self.window.reach or 0, 0))))
        else:
            dead = int(self.horizon(opposite_time, self.ordinals))
        self.dead = max(self.dead, dead)

    def ahead(self, time: int) -> int:
        """Return how many tuples have this time or a later one."""
        return self.ordinals - int(self._times.search("time", time))

    def forget(self) -> None:
        """Drop what was kept of tuples that are met no more."""
        self._times.drop(self.dead)
        if self._passed is not None:
            self._passed.drop(int(self.number(self.dead)))


@dataclass(frozen=True)
class Stretch:
    """A stretch of the total order: consecutive tuples of both sides, stamped. It can be cut at any rank."""

    left: Stamped
    right: Stamped
    first: tuple[int, int]  # the ordinals of its first tuples
    sides: tuple[_Side, _Side]

    def __len__(self) -> int:
        return len(self.left) + len(self.right)

    def before(self, rank: int) -> tuple[int, int]:
        """Return how many of its left and right tuples come before this rank."""
        if rank >= sum(self.first) + len(self):
            return len(self.left), len(self.right)
        return int(np.searchsorted(self.left.rank, rank)), int(np.searchsorted(self.right.rank, rank))

    def dead(self, done: tuple[int, int]) -> tuple[int, int]:
        """Return the first left and right ordinals that tuples after the first `done` ones may still meet.

        Horizons never go back, so the next tuple of a side has the least of all that follow.
        """
        left, right = self.sides[0].dead, self.sides[1].dead
        if done[0] < len(self.left):
            right = int(self.left.horizon[done[0]])
        if done[1] < len(self.right):
            left = int(self.right.horizon[done[1]])
        return min(left, self.first[0] + done[0]), min(right, self.first[1] + done[1])


class Stamper:
    """Stamps stretch after stretch; the sides of each may be at different times, if it is done `by_side`."""

    def __init__(self, spec: JoinSpec, by_side: bool = False) -> None:
        self.by_side = by_side
        self.compiled = False  # whether to use compiled code
        self.sides = _Side(spec, "left"), _Side(spec, "right")
        self.no_rows = [pa.RecordBatch.from_pylist([], schema=s.schema) for s in (spec.left, spec.right)]
        empty = np.empty(0, np.int64)
        self._nothing = [
            Stamped(empty, empty, empty, None, _tuples(side.side, side.vectors(rows), None, 0, empty, empty))
            for side, rows in zip(self.sides, self.no_rows, strict=True)
        ]

    def stamp(self, left: Given | None, right: Given | None) -> Stretch:
        """Stamp the next tuples of both sides, which come after all that were stamped before; None: there are none."""
        first = self.sides[0].ordinals, self.sides[1].ordinals
        numbers = self.sides[0].numbers, self.sides[1].numbers
        given = left, right
        times = [self._nothing[i].times if part is None else part[0] for i, part in enumerate(given)]
        arrived = _arrived(times[0], times[1], self.compiled)
        # Both are added before one is stamped, because they stamp each other.
        kept = [None if part is None else side.add(*part) for side, part in zip(self.sides, given, strict=True)]
        stamped = []
        for i, part in enumerate(given):
            if part is None:
                stamped.append(self._nothing[i])
                continue
            met, came = self.sides[1 - i], arrived[i] + first[1 - i]
            horizon, end = (
                met.within(times[i], came, self.compiled) if self.by_side else (met.horizon(times[i], came), came)
            )
            low, high = met.number(horizon), met.number(end) - 1
            tuples = _tuples(self.sides[i].side, part[1], kept[i], numbers[i], low, high)
            rank = np.arange(first[i], first[i] + len(came)) + came
            stamped.append(Stamped(times[i], rank, horizon, kept[i], tuples))
        return Stretch(stamped[0], stamped[1], first, self.sides)


def _arrived(left_times: Array, right_times: Array, compiled: bool) -> tuple[Array, Array]:
    """Return how many opposite tuples are before each tuple; at equal times the left one is earlier."""
    n = len(right_times)
    if not n or not len(left_times):
        return np.zeros(len(left_times), np.int64), np.zeros(n, np.int64)
    if compiled:
        before = np.empty(len(left_times), np.int64), np.empty(n, np.int64)
        compiled_module("arrivals").count_before(contiguous(left_times), contiguous(right_times), *before)
        return before
    left = np.searchsorted(right_times, left_times, "left")
    # A left tuple is before all right ones from that place on.
    return left, np.cumsum(np.bincount(left, minlength=n)[:n])


def _numbers(sides: tuple[_Side, _Side], ordinals: tuple[int, int]) -> tuple[int, int]:
    """Return how many left and right tuples before these ordinals have a number."""
    return int(sides[0].number(ordinals[0])), int(sides[1].number(ordinals[1]))


def _tuples(side: Side, columns: Columns, kept: Array | None, first: int, low: Array, high: Array) -> Batch:
    if kept is not None:
        columns = {name: vector.take(kept) for name, vector in columns.items()}
        low, high = low[kept], high[kept]
    number = np.arange(first, first + len(low))
    return Batch(side, columns, number, number, low, high)


# --- tables


@dataclass(frozen=True)
class StampedTables:
    """Two finite tables, stamped. The tuples' row ids are the rows of the tables."""

    stretch: Stretch
    times: tuple[Array, Array]  # by row
    order: tuple[Array | slice, Array | slice]  # the rows in order

    @property
    def left(self) -> Batch:
        return self.stretch.left.tuples

    @property
    def right(self) -> Batch:
        return self.stretch.right.tuples

    @property
    def total(self) -> int:
        return len(self.stretch)

    def batch(self, begin: int, end: int) -> tuple[Batch, Batch]:
        """Return the tuples whose rank is in [begin, end)."""
        (left_begin, right_begin), (left_end, right_end) = self.stretch.before(begin), self.stretch.before(end)
        left, right = self.stretch.left.cut(left_begin, left_end), self.stretch.right.cut(right_begin, right_end)
        return left.tuples, right.tuples

    def horizons(self, rank: int) -> tuple[int, int]:
        """Return the first left and right numbers that tuples from this rank on may still meet."""
        return _numbers(self.stretch.sides, self.stretch.dead(self.stretch.before(rank)))

    def window_rows(self) -> tuple[int, int]:
        """Return the most rows that the left and the right window hold at any time."""
        left, right = (int((probing.high - probing.low).max(initial=-1)) + 1 for probing in (self.right, self.left))
        return left, right

    def ranks(self) -> tuple[Array, Array]:
        """Return the ranks of the left and the right tuples by row."""
        left, right = (np.empty(len(times), np.int64) for times in self.times)
        left[self.order[0]], right[self.order[1]] = self.stretch.left.rank, self.stretch.right.rank
        return left, right


def stamp_tables(spec: JoinSpec, left: pa.Table, right: pa.Table) -> StampedTables:
    """Put the rows of both tables in order, and stamp them."""
    stamper = Stamper(spec)
    times = time_values(spec.left, left), time_values(spec.right, right)
    order = sorting(times[0]), sorting(times[1])
    given = []
    for side, table, time, rows in zip(stamper.sides, (left, right), times, order, strict=True):
        columns = {name: vector.take(rows) for name, vector in side.vectors(table).items()}
        given.append((time[rows], columns))
    stretch = stamper.stamp(given[0], given[1])
    for side in stamper.sides:
        side.bury(None, by_side=False)
    stretch = replace(stretch, left=_of_rows(stretch.left, order[0]), right=_of_rows(stretch.right, order[1]))
    return StampedTables(stretch, times, order)


def _of_rows(stamped: Stamped, order: Array | slice) -> Stamped:
    """Return the same with a table's rows for row ids."""
    rows = np.arange(len(stamped))[order]
    return replace(stamped, tuples=replace(stamped.tuples, rows=rows if stamped.kept is None else rows[stamped.kept]))


# --- streams


class Mark(NamedTuple):
    """What is certain once all pairs of the first `numbers` tuples are known.

    Further tuples have at least this `rank` and this `time`, and meet none before the `dead` ordinals and numbers.
    """

    numbers: tuple[int, int]
    rank: int
    time: int
    dead_ordinals: tuple[int, int]
    dead_numbers: tuple[int, int]

    def dead(self, side: int) -> tuple[int, int]:
        """Return a side's dead ordinal and dead number."""
        return self.dead_ordinals[side], self.dead_numbers[side]


@dataclass(frozen=True)
class Step:
    """Tuples for the core, their rows for the results, and what holds after them."""

    left: Stamped
    right: Stamped
    rows: tuple[pa.RecordBatch, pa.RecordBatch]
    mark: Mark

    def __len__(self) -> int:
        return len(self.left) + len(self.right)


class Sieve:
    """The one-sided conditions of a side, taken from it: what fails them is left out before it is stamped."""

    def __init__(self, side: _Side) -> None:
        self.side = side
        self.filters, self.required = side.filters, side.required
        self.conditions = bool(self.filters)  # whether more than NULLs is looked for
        side.filters, side.required = [], []

    def passing(self, columns: Columns, n: int) -> Array | None:
        """Return the places of the tuples that can match; None: all of them."""
        if not self.filters and not self.required:
            return None
        return passing(self.filters, self.side.side, columns, n, self.required)


class Stamping:
    """Tuples in the total order (or `by_side`) in, steps for the core out."""

    def __init__(self, spec: JoinSpec, rows_max: int, by_side: bool = False) -> None:
        self.rows_max, self.by_side = rows_max, by_side
        self.mark = Mark((0, 0), 0, BEGINNING, (0, 0), (0, 0))
        self._unmarked = 0  # rows since it was looked up what is dead
        self._stamper = Stamper(spec, by_side)
        self.sides = self._stamper.sides
        # Which tuples come to be stamped at all: where neither their order nor what has no match counts, those that
        # can match. So ordinals and numbers are the same.
        self.sieves = [Sieve(side) for side in self.sides] if by_side and spec.how == "inner" else [None, None]

    def use_compiled(self) -> None:
        """Stamp by compiled code from now on."""
        self._stamper.compiled = True

    def steps(self, due: Due, next_times: tuple[int | None, int | None], at_leisure: bool = False) -> Iterator[Step]:
        """Yield the tuples that are due, at most `rows_max` at a time; those that follow have at least `next_times`.

        With `at_leisure`, what is dead is looked up only once for some steps: where they have few rows, that would
        take longer than joining them.
        """
        given, rows = zip(self._given(0, due.left), self._given(1, due.right), strict=True)
        stretch = self._stamper.stamp(*given)
        self._unmarked += len(stretch)
        follows = next_times != (None, None)
        if at_leisure and follows and not self.is_due(0) and len(stretch) <= self.rows_max:
            numbers = self.mark.numbers[0] + len(stretch.left.tuples), self.mark.numbers[1] + len(stretch.right.tuples)
            self.mark = self.mark._replace(numbers=numbers, rank=self.mark.rank + len(stretch))
            yield Step(stretch.left, stretch.right, rows, self.mark)
            return
        self._unmarked = 0
        self._bury(next_times)
        rank, done = self.mark.rank, (0, 0)
        for end in [*range(rank + self.rows_max, rank + len(stretch), self.rows_max), rank + len(stretch)]:
            until = stretch.before(end)
            left, right = stretch.left.cut(done[0], until[0]), stretch.right.cut(done[1], until[1])
            times = list(next_times)
            for i, stamped in enumerate((stretch.left, stretch.right)):  # what follows in this very call is known
                if until[i] < len(stamped):
                    times[i] = int(stamped.times[until[i]])
            numbers = self.mark.numbers[0] + len(left.tuples), self.mark.numbers[1] + len(right.tuples)
            self.mark = self._mark(numbers, end, times, stretch.dead(until))
            parts = rows[0].slice(done[0], len(left)), rows[1].slice(done[1], len(right))
            yield Step(left, right, parts, self.mark)
            done = until
        for side in self.sides:
            side.forget()

    def is_due(self, more: int) -> bool:
        """Return whether it should be looked up what is dead, with this many tuples more."""
        return self._unmarked + more >= UNMARKED_ROWS_MAX

    def take_few(self, i: int, n: int) -> None:
        """Count `n` tuples of one side that have come in order, and all pass; their times are in its `room`."""
        (left, right), rank, *_ = known = self.mark
        self._unmarked += n
        numbers = (left + n, right) if i == 0 else (left, right + n)
        self.mark = Mark(numbers, rank + n, known.time, known.dead_ordinals, known.dead_numbers)
        self.sides[i].take_few(n)

    def room(self, i: int, more: int) -> tuple[Array, int, int, int]:
        """Return where the times of a side's known tuples are; see `_Side.room`."""
        return self.sides[i].room(more)

    def idle(self, next_times: tuple[int | None, int | None]) -> Mark | None:
        """Return a new mark if, with nothing due, it is known better what can follow; otherwise None."""
        self._bury(next_times)
        mark = self._mark(self.mark.numbers, self.mark.rank, next_times, (self.sides[0].dead, self.sides[1].dead))
        if mark == self.mark:
            return None
        self.mark = mark
        for side in self.sides:
            side.forget()
        return mark

    def ahead(self, frontier: int) -> dict[Side, int]:
        """Return how many tuples of each side were stamped although they are not before the join's frontier."""
        return {side.side: side.ahead(frontier) if self.by_side else 0 for side in self.sides}

    def _given(self, i: int, piece: Piece | None) -> tuple[Given | None, pa.RecordBatch]:
        """Return a side's tuples that are to be stamped, and their rows."""
        if piece is None:
            return None, self._stamper.no_rows[i]
        return self.sifted(i, *piece)

    def sifted(self, i: int, times: Array, batch: pa.RecordBatch) -> tuple[Given, pa.RecordBatch]:
        """Return a side's tuples that pass its sieve, and their rows."""
        try:
            columns = self.sides[i].vectors(batch)
        except CounterflowError as error:
            error.add_note(f"in a {self.sides[i].side} stream")
            raise
        sieve = self.sieves[i]
        kept = None if sieve is None else sieve.passing(columns, len(times))
        if sieve is None or kept is None:
            return (times, columns), batch
        passed = {name: vector.take(kept) for name, vector in columns.items()}
        passed |= {name: Vector(passed[name].type, passed[name].values) for name in sieve.required}  # without NULLs
        return (times[kept], passed), batch.take(pa.array(kept))

    def _bury(self, next_times: tuple[int | None, int | None]) -> None:
        for side, opposite_time in zip(self.sides, reversed(next_times), strict=True):
            side.bury(opposite_time, self.by_side)

    def _mark(
        self, numbers: tuple[int, int], rank: int, next_times: Sequence[int | None], dead: tuple[int, int]
    ) -> Mark:
        time = min((t for t in next_times if t is not None), default=NEVER)
        return Mark(numbers, rank, time, dead, _numbers(self.sides, dead))
