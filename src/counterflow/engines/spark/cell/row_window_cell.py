"""A cell with row windows, on one side or both: rows wait until the watermark passes them, then get their number.

The coordinate of a row is its number. A row notes its position (the number that the next row of the other side had
when it came) and its horizon (the number of the oldest row that was in the other side's window then). Both grow with
the number, so what a row can meet is always a range of numbers:

    earlier rows of the other side    horizon <= number < position
    later ones                        those whose own horizon is not beyond this row
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.cell.cell import END, Cell, NewRows
from counterflow.engines.spark.cell.grid import Grid
from counterflow.engines.spark.cell.row_order import has_row_windows
from counterflow.engines.spark.cell.side_window import SideRows, clipped, rows_of
from counterflow.predicate.expression import SIDES, Side, opposite
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.row_ring import Ring
from counterflow.windows.times import INT64, horizon_of
from counterflow.windows.vectors import Array


def new_cell(spec: JoinSpec, grid: Grid, threads: int = 1) -> Cell:
    """Return an empty cell of the kind that the join's windows need; so many threads share its work."""
    return RowWindowCell(spec, grid, threads) if has_row_windows(spec) else Cell(spec, grid, threads)


class RowWindowCell(Cell):
    """A cell in which the coordinate of a row is its number."""

    def __init__(self, spec: JoinSpec, grid: Grid, threads: int = 1) -> None:
        super().__init__(spec, grid, threads)
        self.eager = False
        self.waiting: dict[Side, list[pa.Table]] = {"left": [], "right": []}

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(table.nbytes for tables in self.waiting.values() for table in tables)

    # --- rows

    def load(self, tables: list[tuple[Side, pa.Table]], watermark: int) -> None:
        for _ in self._admit([NewRows(side, table) for side, table in tables], watermark):
            raise AssertionError("rows that are read back give no result")

    def _admit(self, new: list[NewRows], watermark: int) -> Iterator[pa.Table]:
        firsts = {side: self.window(side).next for side in SIDES}
        for side in SIDES:
            self.waiting[side] += [n.table for n in new if n.side == side and len(n.table)]
            self._append_ready(side, watermark)
        for side in SIDES:
            self._stamp(side, firsts[side])
        return iter(())

    def _append_ready(self, side: Side, watermark: int) -> None:
        if not self.waiting[side]:
            return
        rows = rows_of(self.spec, side, pa.concat_tables(self.waiting[side]))
        ready = 0 if watermark < INT64.min else int(np.searchsorted(rows.times, clipped(watermark), "right"))
        self.waiting[side] = [] if ready == len(rows) else [rows.table[ready:]]
        window = self.window(side)
        first = window.next
        window.append(rows[:ready], by_number=True)
        window.store.ring.write("time", first, rows.times[:ready])

    def _stamp(self, side: Side, first: int) -> None:
        """Give the rows from number `first` on their position and their horizon."""
        ring, other = self._ring(side), self._ring(opposite(side))
        if first == ring.next:
            return
        times = self._noted(side, "time", np.arange(first, ring.next))
        position = other.search(times, "left" if side == "left" else "right", "time")  # the left row comes first
        met = self.spec.side(opposite(side)).window
        horizon = horizon_of(met, times, position, lambda time: other.search(time, "left", "time"))
        ring.write("position", first, position)
        ring.write("horizon", first, horizon)

    def _ring(self, side: Side) -> Ring:
        return self.window(side).store.ring

    def _noted(self, side: Side, what: str, numbers: Array) -> Array:
        ring = self._ring(side)
        return ring.columns[what][numbers & (ring.capacity - 1)]

    def _first_after(self, side: Side, time: int) -> int:
        """Return the number of the first row after this time."""
        if time < INT64.min:
            return self._ring(side).first
        return int(self._ring(side).search(np.array([clipped(time)]), "right", "time")[0])

    # --- what rows look for

    def _earlier(self, rows: SideRows) -> SideRows:
        if not len(rows):
            return rows
        horizon, position = (self._noted(rows.side, what, rows.batch.rows) for what in ("horizon", "position"))
        return rows.within(horizon, position - 1)

    def _anywhere(self, rows: SideRows) -> SideRows:
        rows = self._earlier(rows)
        last = self._ring(opposite(rows.side)).search(rows.batch.rows, "right", "horizon") - 1
        return rows.within(rows.batch.low, np.maximum(rows.batch.high, last))

    def _before(self, rows: SideRows, time: int) -> SideRows:
        rows = self._anywhere(rows)
        upto = np.where((rows.times <= clipped(time)) & (time >= INT64.min), self._first_after("right", time) - 1, -1)
        return rows.within(rows.batch.low, np.minimum(rows.batch.high, upto))

    def _undecided(self, side: Side, before: int, watermark: int) -> SideRows:
        first, end = (self._first_undecided(side, w) for w in (before, watermark))
        return self._anywhere(self.window(side).rows(np.arange(first, max(first, end))))

    # --- frontiers: functions of the watermark and of the rows that are ready

    def emitted(self, watermark: int) -> int:
        times = [watermark]
        for side in self.grid.decides if self.spec.ordered else ():
            first = self._first_in_doubt(side, watermark)
            if first < self._first_after(side, watermark):
                times.append(int(self._noted(side, "time", np.array([first]))[0]) - 1)
        return min(times)

    def _first_in_doubt(self, side: Side, watermark: int) -> int:
        """Return the number of the first row that rows to come may still meet."""
        ready = self._first_after(side, watermark)
        if watermark >= END:
            return ready
        window = self.spec.side(side).window
        first = ready - window.size if window.kind == "rows" else self._first_after(side, watermark - self.reach[side])
        return max(first, self._ring(side).first)

    def _first_undecided(self, side: Side, watermark: int) -> int:
        if self.spec.ordered:
            return self._first_after(side, self.emitted(watermark))
        return self._first_in_doubt(side, watermark)

    def forget(self, watermark: int) -> dict[Side, int]:
        emitted = self.emitted(watermark)
        needed = {side: self._first_in_doubt(side, emitted) for side in SIDES}  # by later rows whose pairs are not out
        for side in self.grid.decides:
            undecided = self._first_undecided(side, watermark)
            needed[side] = min(needed[side], undecided)
            self._need_horizon(needed, side, undecided)
        if self.spec.how == "semi":
            self._need_horizon(needed, "left", needed["left"])
        needless: dict[Side, int] = {}
        for side in SIDES:
            number = max(needed[side], self._ring(side).first)
            is_there = number < self._ring(side).next
            needless[side] = int(self._noted(side, "time", np.array([number]))[0]) - 1 if is_there else watermark
            self.window(side).expire(number)
        return needless

    def _need_horizon(self, needed: dict[Side, int], side: Side, number: int) -> None:
        """Add to `needed` what the row with this number looks back to."""
        if self._ring(side).first <= number < self._ring(side).next:
            other = opposite(side)
            needed[other] = min(needed[other], int(self._noted(side, "horizon", np.array([number]))[0]))
