"""One cell's join: new rows against the windows, and the windows themselves. It knows nothing of Spark.

Rows come in any order up to the watermark's delay, so coordinates are times: a new row meets the opposite
rows within its window, earlier or later. A pair is found once, when the second of the two comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from counterflow.kernels.gather import gather
from counterflow.kernels.store import Batch, WindowStore, passing, predicate_columns
from counterflow.kernels.times import time_bounds, time_values
from counterflow.kernels.vectors import Array
from counterflow.spec.expression import Side
from counterflow.spec.join_spec import JoinSpec

CHUNK_ROWS_MAX = 1 << 16


@dataclass(frozen=True)
class Rows:
    """Rows of one side, sorted by time: the payload as a table, and what the predicate needs of it as a batch."""

    side: Side
    table: pa.Table
    batch: Batch

    @property
    def times(self) -> Array:
        return self.batch.at

    def __getitem__(self, part: slice) -> Rows:
        return Rows(self.side, self.table[part], self.batch.take(part))


def rows_of(spec: JoinSpec, side: Side, table: pa.Table) -> Rows:
    """Sorted by time, without the rows that a one-sided condition keeps from matching anything."""
    side_spec = spec.left if side == "left" else spec.right
    columns = predicate_columns(spec.predicate, side, table)
    times = time_values(side_spec, table)
    order = passing(spec.parts.filters(side), side, columns, len(table))
    if order is None:
        order = np.arange(len(table))
    if (times[order][1:] < times[order][:-1]).any():
        order = order[np.argsort(times[order], kind="stable")]
    if len(order) != len(table) or (order != np.arange(len(order))).any():
        table, times = table.take(pa.array(order)), times[order]
        columns = {name: vector.take(order) for name, vector in columns.items()}
    low, high = time_bounds(spec, side, times)
    batch = Batch(side, columns, np.arange(len(times)), times, low, high)
    return Rows(side, table, batch)


def split_rows(spec: JoinSpec, side: Side, tables: list[pa.Table]) -> list[Rows]:
    """The tables' rows in pieces of at most CHUNK_ROWS_MAX."""
    if not tables:
        return []
    whole = rows_of(spec, side, pa.concat_tables(tables))
    return [whole[i : i + CHUNK_ROWS_MAX] for i in range(0, len(whole.times), CHUNK_ROWS_MAX)]


class SideWindow:
    """One side's window: what the predicate needs in a store, the payload in segments beside it.

    The store numbers its rows in the order in which they come, and so do the segments.
    """

    def __init__(self, spec: JoinSpec, side: Side) -> None:
        self.spec, self.side = spec, side
        self.store = WindowStore(side, spec.predicate, spec.parts)
        self.segments: list[tuple[int, pa.Table, Array]] = []  # number of the first row, payload, times

    @property
    def nbytes(self) -> int:
        return self.store.nbytes + sum(table.nbytes + times.nbytes for _, table, times in self.segments)

    def append(self, rows: Rows) -> None:
        first = self.store.ring.next
        self.store.append(replace(rows.batch, rows=np.arange(first, first + len(rows.times))))
        self.segments.append((first, rows.table, rows.times))

    def expire(self, before: int) -> None:
        self.store.expire(before)
        oldest = self.store.ring.first
        self.segments = [s for s in self.segments if s[0] + len(s[2]) > oldest]

    def probe(self, rows: Rows) -> Iterator[pa.Table]:
        """The results of the pairs that these opposite rows make with the window."""
        for p, numbers in self.store.probe(rows.batch):
            p, stored, times = self._payload(p, numbers)
            pair_time = np.maximum(rows.times[p], times)
            everything = np.arange(len(p))
            if rows.side == "left":
                yield gather(self.spec, rows.table, stored, p, everything, pair_time)
            else:
                yield gather(self.spec, stored, rows.table, everything, p, pair_time)

    def _payload(self, p: Array, numbers: Array) -> tuple[Array, pa.Table, Array]:
        """The stored rows with these numbers; their order, and so that of the probes, is that of the segments."""
        firsts = np.array([first for first, _, _ in self.segments])
        segment = np.searchsorted(firsts, numbers, "right") - 1
        order = np.argsort(segment, kind="stable")
        p, numbers, segment = p[order], numbers[order], segment[order]
        cuts = np.flatnonzero(np.diff(segment, prepend=-1))
        tables, times = [], []
        for begin, end in zip(cuts, [*cuts[1:], len(p)], strict=True):
            first, table, table_times = self.segments[segment[begin]]
            index = numbers[begin:end] - first
            tables.append(table.take(pa.array(index)))
            times.append(table_times[index])
        return p, pa.concat_tables(tables), np.concatenate(times)


class CellWindows:
    """Both windows of a cell."""

    def __init__(self, spec: JoinSpec) -> None:
        self.left, self.right = SideWindow(spec, "left"), SideWindow(spec, "right")

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    def side(self, side: Side) -> SideWindow:
        return self.left if side == "left" else self.right

    def join(self, new: list[Rows]) -> Iterator[pa.Table]:
        """The pairs that new rows make with the windows and with each other; the new rows are in the windows then."""
        new_left, new_right = ([rows for rows in new if rows.side == side] for side in ("left", "right"))
        for rows in new_right:  # before they are in the right window, so that a new pair is found once
            yield from self.left.probe(rows)
        for rows in new_right:
            self.right.append(rows)
        for rows in new_left:
            yield from self.right.probe(rows)
        for rows in new_left:
            self.left.append(rows)
