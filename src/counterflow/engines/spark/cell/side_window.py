"""One side's window in a cell: what the predicate needs is in a store, the payload in segments beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.cell.grid import padded_sides
from counterflow.engines.spark.cell.row_order import SOURCE, TIE, has_row_windows
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.crew import Crew
from counterflow.windows.store import Batch, WindowStore, passing, predicate_columns
from counterflow.windows.times import INT64, time_bounds, time_values
from counterflow.windows.vectors import Array

SEGMENT_ROWS_MAX = 1 << 16  # small segments are merged up to this


def clipped(time: int) -> int:
    """Return a time held inside 64 bits, for numpy: the frontiers' ends of time are outside."""
    return max(int(INT64.min), min(time, int(INT64.max)))


@dataclass(frozen=True)
class SideRows:
    """Rows of one side in their order: the payload as a table, and what the predicate needs as a batch."""

    side: Side
    table: pa.Table
    times: Array
    batch: Batch

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, part: slice) -> SideRows:
        return SideRows(self.side, self.table[part], self.times[part], self.batch.take(part))

    def within(self, low: Array, high: Array) -> SideRows:
        """Return the same rows, looking for partners in this range of coordinates."""
        return replace(self, batch=replace(self.batch, low=low, high=high))


def rows_of(spec: JoinSpec, side: Side, table: pa.Table, numbers: Array | None = None) -> SideRows:
    """Return a table's rows in the order of time, without those that a one-sided condition keeps from any result.

    `numbers` are the rows' numbers in their window, if they are in one.
    """
    side_spec = spec.side(side)
    table = table.combine_chunks()
    columns = predicate_columns(spec.predicate, side, table)
    times = time_values(side_spec, table)
    by_number = has_row_windows(spec)  # then each row counts, whether it can match or not
    padded = side in padded_sides(spec)
    order = None if padded or by_number else passing(spec.parts.filters(side), side, columns, len(table))
    if order is None:
        order = np.arange(len(table))
    kept = times[order]
    if TIE in table.schema.names:
        source, tie = (table.column(name).to_numpy()[order] for name in (SOURCE, TIE))
        order = order[np.lexsort((tie, source, kept))]
    elif (kept[1:] < kept[:-1]).any():
        order = order[np.argsort(kept, kind="stable")]
    numbers = np.arange(len(table)) if numbers is None else numbers
    if len(order) != len(table) or (order != np.arange(len(order))).any():
        table, times, numbers = table.take(pa.array(order)), times[order], numbers[order]
        columns = {name: vector.take(order) for name, vector in columns.items()}
    low = high = times
    if not by_number:
        low, high = time_bounds(spec, side, times)
    return SideRows(side, table, times, Batch(side, columns, numbers, times, low, high))


@dataclass(frozen=True)
class PayloadSegment:
    """The payload of consecutive rows of a window, from number `first` on."""

    first: int
    table: pa.Table
    times: Array

    @property
    def end(self) -> int:
        return self.first + len(self.times)

    @cached_property
    def span(self) -> tuple[int, int]:
        return int(self.times.min()), int(self.times.max())


class SideWindow:
    """The rows of one side. Store and segments number them alike, in the order in which they come."""

    def __init__(self, spec: JoinSpec, side: Side, crew: Crew) -> None:
        self.spec, self.side = spec, side
        self.store = WindowStore(side, spec.predicate, spec.parts, threads=crew)
        self.segments: list[PayloadSegment] = []

    @property
    def nbytes(self) -> int:
        return self.store.nbytes + sum(s.table.nbytes + s.times.nbytes for s in self.segments)

    @property
    def next(self) -> int:
        return self.store.ring.next

    def append(self, rows: SideRows, by_number: bool = False) -> None:
        """Add rows. Their coordinate in the store is their time, or their number."""
        if not len(rows):
            return
        first = self.next
        numbers = np.arange(first, first + len(rows))
        self.store.append(replace(rows.batch, rows=numbers, at=numbers if by_number else rows.times))
        for begin in range(0, len(rows), SEGMENT_ROWS_MAX):
            part = slice(begin, begin + SEGMENT_ROWS_MAX)
            self.segments.append(PayloadSegment(first + begin, rows.table[part], rows.times[part]))
        self._merge_small()

    def _merge_small(self) -> None:
        """Merge the last segments as in a binary counter: tiny batches leave few, and a row is seldom copied."""
        while len(self.segments) > 1:
            a, b = self.segments[-2:]
            if len(a.times) > 2 * len(b.times) or len(a.times) + len(b.times) > SEGMENT_ROWS_MAX:
                return
            table = pa.concat_tables([a.table, b.table]).combine_chunks()
            self.segments[-2:] = [PayloadSegment(a.first, table, np.concatenate([a.times, b.times]))]

    def expire(self, before: int) -> None:
        """Forget the rows whose coordinate is less than `before`."""
        self.store.expire(clipped(before))
        self.segments = [s for s in self.segments if s.end > self.store.ring.first]

    def probe(self, rows: SideRows) -> Iterator[tuple[Array, Array]]:
        """Yield the pairs of opposite rows with the window: places in `rows`, and numbers in the window."""
        return self.store.probe(rows.batch)

    def between(self, after: int, upto: int) -> SideRows:
        """Return the rows with after < time <= upto, ready to look for partners."""
        numbers = [np.empty(0, np.int64)]
        for segment in self.segments:
            oldest, newest = segment.span
            if after < newest and oldest <= upto:
                inside = (segment.times <= clipped(upto)) & ((segment.times > clipped(after)) | (after < oldest))
                numbers.append(segment.first + np.flatnonzero(inside))
        return self.rows(np.concatenate(numbers))

    def rows(self, numbers: Array) -> SideRows:
        """Return rows by their numbers, ready to look for partners."""
        order, table, _ = self.payload(numbers)
        return rows_of(self.spec, self.side, table, numbers[order])

    def payload(self, numbers: Array) -> tuple[Array, pa.Table, Array]:
        """Return rows by their numbers, ordered by segment: that order of `numbers`, the rows, and their times."""
        if not len(numbers):
            schema = self.spec.side(self.side).schema
            return numbers, schema.empty_table(), np.empty(0, np.int64)
        firsts = np.array([s.first for s in self.segments])
        segment = np.searchsorted(firsts, numbers, "right") - 1
        order = np.argsort(segment, kind="stable")
        numbers, segment = numbers[order], segment[order]
        cuts = np.flatnonzero(np.diff(segment, prepend=-1))
        tables, times = [], []
        for begin, end in zip(cuts, [*cuts[1:], len(numbers)], strict=True):
            found = self.segments[segment[begin]]
            index = numbers[begin:end] - found.first
            tables.append(found.table.take(pa.array(index)))
            times.append(found.times[index])
        return order, pa.concat_tables(tables), np.concatenate(times)
