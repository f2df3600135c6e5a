"""One cell's join.

A cell is told the rows of a micro-batch and how far the watermark has moved, and emits what follows from them:

- an unordered join emits a pair when the second of the two rows comes, whatever their times;
- an ordered one emits the pairs whose later row the watermark has passed since (ScaleJoin's ready tuples);
- an unmatched row is emitted when the watermark has passed the last row it could have met: it looks for its partners
  once more then, and if it has none it never will;
- a row of a semi join is emitted when the watermark passes its first pair.

What has been emitted is thus a function of the rows and of the watermark, and nothing else has to be remembered.

A cell's threads share its work, on one window a side. They search it as `windows/crew.py` says; and while some search,
others store new rows in the window that is not searched, and gather the results of what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.cell.grid import Grid, padded_sides
from counterflow.engines.spark.cell.result_order import Half, sorted_results, with_order
from counterflow.engines.spark.cell.row_order import HOME
from counterflow.engines.spark.cell.side_window import SideRows, SideWindow, clipped, rows_of
from counterflow.predicate.expression import SIDES, Side, opposite
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.crew import Crew
from counterflow.windows.gather import gather
from counterflow.windows.times import INT64, saturating_subtract
from counterflow.windows.vectors import Array

# The pairs of which one thread gathers the results. Each segment of a window costs a call that holds Python's lock, so
# there should be as many as one search finds, if they are not too many for memory.
PAIRS_AT_ONCE, PAIRS_AT_ONCE_MAX = 1 << 14, 1 << 17

# Ends of time, and a reach without bound: far enough outside 64 bits that sums of them stay apart.
BEGIN, END, UNBOUNDED = -(1 << 80), 1 << 80, 1 << 66


@dataclass(frozen=True)
class NewRows:
    """Rows of a side as they come. Rows that are not stored here (layout `home`) only look for partners."""

    side: Side
    table: pa.Table
    stored: bool = True


class Cell:
    """A cell with windows of durations: the coordinate of a row is its time, so rows may come in any order."""

    def __init__(self, spec: JoinSpec, grid: Grid, threads: int = 1) -> None:
        self.spec, self.grid, self.crew = spec, grid, Crew(threads)
        self.left, self.right = SideWindow(spec, "left", self.crew), SideWindow(spec, "right", self.crew)
        # An eager cell emits a pair as soon as its second row comes, whatever the watermark.
        self.eager = grid.pairs and spec.how not in ("semi", "anti") and not spec.ordered
        reaches = [(s.side, s.window.reach) for s in (spec.left, spec.right)]
        self.reach = {side: UNBOUNDED if reach is None else max(reach, 0) for side, reach in reaches}

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @property
    def waits(self) -> bool:
        """Whether the watermark alone can make results due."""
        return not self.eager or bool(self.grid.decides)

    def window(self, side: Side) -> SideWindow:
        return self.left if side == "left" else self.right

    def load(self, tables: list[tuple[Side, pa.Table]], watermark: int) -> None:
        """Put rows that came in earlier batches back into the windows, without a result."""
        stored = {side: [table for s, table in tables if s == side] for side in SIDES}
        with self.crew.beside(partial(self._put_back, "right", stored["right"])):
            self._put_back("left", stored["left"])

    def _put_back(self, side: Side, tables: list[pa.Table]) -> None:
        if tables:
            self.window(side).append(rows_of(self.spec, side, pa.concat_tables(tables)))

    def step(self, new: list[NewRows], before: int, watermark: int) -> Iterator[pa.Table]:
        """Yield the results that are due when these rows come and the watermark moves on from `before`.

        Those of an ordered join are one table, in order.
        """
        results = self._step(new, before, watermark)
        if not self.spec.ordered:
            yield from results
        elif found := list(results):
            yield sorted_results(pa.concat_tables(found))

    def _step(self, new: list[NewRows], before: int, watermark: int) -> Iterator[pa.Table]:
        yield from self._admit(new, watermark)
        if self.spec.how == "semi":
            yield from self._first_pairs(self.emitted(before), self.emitted(watermark))
        elif self.spec.how != "anti" and self.grid.pairs and not self.eager:
            yield from self._ready_pairs(self.emitted(before), self.emitted(watermark))
        for side in SIDES:
            if side in self.grid.decides:
                yield from self._unmatched(side, before, watermark)

    def forget(self, watermark: int) -> dict[Side, int]:
        """Drop the rows that no result needs any more. Return, for each side, the time up to which none is needed."""
        needless = {side: self.needless(side, watermark) for side in SIDES}
        for side in SIDES:
            self.window(side).expire(needless[side] + 1)
        return needless

    # --- frontiers: functions of the watermark

    def emitted(self, watermark: int) -> int:
        """Return the time up to which pairs are out, by their later row.

        In an ordered join no unmatched row up to then may be in doubt.
        """
        if not self.spec.ordered:
            return watermark
        return watermark - max(
            (self.reach[side] for side in padded_sides(self.spec)), default=0
        )  # the same in every cell

    def decided(self, side: Side, watermark: int) -> int:
        """Return the time up to which a side's rows are known to be matched or unmatched, and are out either way."""
        return self.emitted(watermark) if self.spec.ordered else watermark - self.reach[side]

    def needless(self, side: Side, watermark: int) -> int:
        """Return the time up to which a side's rows are needed by no result to come."""
        reach, other = self.reach[side], opposite(side)
        times = [(watermark if self.eager else self.emitted(watermark)) - reach]
        if side in self.grid.decides:
            times.append(self.decided(side, watermark))
        if other in self.grid.decides:
            times.append(self.decided(other, watermark) - reach)
        if self.spec.how == "semi" and side == "right":
            times.append(self.emitted(watermark) - self.reach["left"] - reach)
        return min(times)

    # --- rows

    def _admit(self, new: list[NewRows], watermark: int) -> Iterator[pa.Table]:
        """Store the rows. If the join is eager, yield the pairs that they make with the windows and with each other."""
        found = list(self.crew.in_turn(partial(self._rows, n) for n in new))
        rows = {side: [(r, n.stored) for r, n in zip(found, new, strict=True) if r.side == side] for side in SIDES}
        stores = {side: partial(self._store, side, [r for r, stored in rows[side] if stored]) for side in SIDES}
        if not self.eager:
            with self.crew.beside(stores["right"]):
                stores["left"]()
            return
        for side in ("right", "left"):  # the right rows look before the left ones are stored: a new pair is found once
            with self.crew.beside(stores[side]):
                for probing, _ in rows[side]:
                    yield from self._pairs(probing, self.window(opposite(side)))

    def _store(self, side: Side, rows: list[SideRows]) -> None:
        for some in rows:
            self.window(side).append(some)

    def _rows(self, new: NewRows) -> SideRows:
        return rows_of(self.spec, new.side, new.table)

    def _earlier(self, rows: SideRows) -> SideRows:
        """Return the rows, looking only for partners before them; at equal times the left row is the earlier one."""
        newest = saturating_subtract(rows.times, 1) if rows.side == "left" else rows.times
        nothing = (rows.times == INT64.min) & (rows.side == "left")
        return rows.within(np.where(nothing, INT64.max, rows.batch.low), np.minimum(rows.batch.high, newest))

    def _before(self, rows: SideRows, time: int) -> SideRows:
        """Return left rows, looking only for pairs with a `pair_time` up to `time`."""
        nothing = (rows.times > clipped(time)) | (time < INT64.min)
        return rows.within(np.where(nothing, INT64.max, rows.batch.low), np.minimum(rows.batch.high, clipped(time)))

    def _undecided(self, side: Side, before: int, watermark: int) -> SideRows:
        """Return the rows that can be told to be matched or unmatched now, but could not before."""
        return self.window(side).between(self.decided(side, before), self.decided(side, watermark))

    # --- results

    def _ready_pairs(self, after: int, upto: int) -> Iterator[pa.Table]:
        for side in SIDES:
            rows = self.window(side).between(after, upto)
            yield from self._pairs(self._earlier(rows), self.window(opposite(side)))

    def _pairs(self, rows: SideRows, window: SideWindow) -> Iterator[pa.Table]:
        found = _some_at_once(window.probe(rows))
        yield from self.crew.in_turn(partial(self._paired, rows, window, p, numbers) for p, numbers in found)

    def _paired(self, rows: SideRows, window: SideWindow, p: Array, numbers: Array) -> pa.Table:
        """Return the results of pairs: places in `rows`, and numbers in the window."""
        order, stored, times = window.payload(numbers)
        if HOME in stored.column_names:
            at_home = [t.column(HOME).to_numpy() for t in (rows.table, stored)]
            here = at_home[0][p[order]] | at_home[1]
            order, stored, times = order[here], stored.filter(pa.array(here)), times[here]
        halves = Half(rows.table, rows.times[p[order]], p[order]), Half(stored, times)
        left, right = halves if rows.side == "left" else halves[::-1]
        return self._results(left, right, np.maximum(left.times, right.times))

    def _unmatched(self, side: Side, before: int, watermark: int) -> Iterator[pa.Table]:
        rows = self._undecided(side, before, watermark)
        alone = np.ones(len(rows), bool)
        for p, _ in self.window(opposite(side)).probe(rows):
            alone[p] = False
        yield from self._single(rows, np.flatnonzero(alone))

    def _first_pairs(self, after: int, upto: int) -> Iterator[pa.Table]:
        """Yield the left rows whose first pair has a time after `after` and up to `upto`, with that time."""
        found, first = np.empty(0, np.int64), np.empty(0, np.int64)
        for side in SIDES:
            rows = self.window(side).between(after, upto)
            for p, stored in self.window(opposite(side)).probe(self._earlier(rows)):
                numbers = np.concatenate([found, rows.batch.rows[p] if side == "left" else stored])
                times = np.concatenate([first, rows.times[p]])
                order = np.lexsort((times, numbers))
                found, index = np.unique(numbers[order], return_index=True)
                first = times[order][index]
        rows = self.left.rows(found)
        pair_time = first[np.searchsorted(found, rows.batch.rows)]
        is_first = np.ones(len(rows), bool)
        for p, _ in self.right.probe(self._before(rows, after)):
            is_first[p] = False
        yield from self._single(rows, np.flatnonzero(is_first), pair_time)

    def _single(self, rows: SideRows, index: Array, pair_time: Array | None = None) -> Iterator[pa.Table]:
        """Yield results of one row each, for the rows at `index`."""
        if len(index):
            half = Half(rows.table, rows.times[index], index)
            left, right = (half, None) if rows.side == "left" else (None, half)
            yield self._results(left, right, half.times if pair_time is None else pair_time[index])

    def _results(self, left: Half | None, right: Half | None, pair_time: Array) -> pa.Table:
        missing = np.full(len(pair_time), -1)
        table = gather(
            self.spec,
            self.spec.left.schema.empty_table() if left is None else left.table,
            self.spec.right.schema.empty_table() if right is None else right.table,
            missing if left is None else left.index,
            missing if right is None else right.index,
            pair_time,
        )
        return with_order(table, left, right) if self.spec.ordered else table


def _some_at_once(parts: Iterator[tuple[Array, Array]]) -> Iterator[tuple[Array, Array]]:
    """Yield the pairs of small parts together, at least PAIRS_AT_ONCE, and those of large parts in pieces."""
    waiting: list[tuple[Array, Array]] = []
    count = 0
    for part in chain(parts, [None]):
        if part is not None:
            waiting.append(part)
            count += len(part[0])
        if waiting and (part is None or count >= PAIRS_AT_ONCE):
            p, numbers = waiting[0] if len(waiting) == 1 else map(np.concatenate, zip(*waiting, strict=True))
            for begin in range(0, count, PAIRS_AT_ONCE_MAX):
                piece = slice(begin, begin + PAIRS_AT_ONCE_MAX)
                yield p[piece], numbers[piece]
            waiting, count = [], 0
