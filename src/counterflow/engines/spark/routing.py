"""Which cells of the layout a row goes to, and its packing for the way.

    layout 2x3         cell = row * columns + column
    left row  -> the three cells of one layout row        right row -> the two cells of one layout column

        columns  0   1   2
      row 0    [ 0   1   2 ]  <- left rows 0, 2, 4, ...
      row 1    [ 3   4   5 ]  <- left rows 1, 3, 5, ...

Rows are dealt out in turn, so cells are even whatever the data. Any two rows meet in exactly one cell
(DP-Join's matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from counterflow.engines.spark.blobs import BLOB_ROWS_MAX, to_blob
from counterflow.kernels.times import time_values
from counterflow.spec.expression import Side
from counterflow.spec.join_spec import JoinSpec

PACKED = "cell INT NOT NULL, side STRING NOT NULL, payload BINARY"
PACKED_ARROW = pa.schema({"cell": pa.int32(), "side": pa.string(), "payload": pa.binary()})
HEARTBEAT = "none"  # the side of a message that carries no rows: it only lets every cell see every batch


@dataclass(frozen=True)
class Layout:
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def lanes(self, side: Side) -> int:
        """Into how many parts a side is dealt."""
        return self.rows if side == "left" else self.columns

    def lane_cells(self, side: Side, lane: int) -> list[int]:
        """The cells that a part of a side is sent to."""
        if side == "left":
            return [lane * self.columns + column for column in range(self.columns)]
        return [row * self.columns + lane for row in range(self.rows)]

    def counts(self, cell: int, side: Side) -> bool:
        """Whether this is the one cell, of those that see the same rows of a side, that counts them."""
        return (cell % self.columns if side == "left" else cell // self.columns) == 0


def pack(spec: JoinSpec, layout: Layout, side: Side) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A `mapInArrow` function: rows of one side in, (cell, side, blob) out."""
    side_spec = spec.left if side == "left" else spec.right

    def pack_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for table in _large_tables(batches):
            table = table if table.schema == side_spec.schema else table.cast(side_spec.schema)
            time_values(side_spec, table)  # a null time ends the query here, before anything is stored
            yield _messages(table, layout, side, seen)
            seen += len(table)
        if seen:
            cells = list(range(layout.cells))
            yield _packed(cells, HEARTBEAT, [None] * len(cells))

    return pack_partition


def _large_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Spark's Arrow batches gathered to larger tables."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= BLOB_ROWS_MAX:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting)


def _messages(table: pa.Table, layout: Layout, side: Side, seen: int) -> pa.RecordBatch:
    lanes = layout.lanes(side)
    cells: list[int] = []
    blobs: list[bytes | None] = []
    for lane in range(lanes):
        first = (lane - seen) % lanes
        if first >= len(table):
            continue
        part = table if lanes == 1 else table.take(pa.array(range(first, len(table), lanes), pa.int64()))
        blob = to_blob(part)
        targets = layout.lane_cells(side, lane)
        cells += targets
        blobs += [blob] * len(targets)
    return _packed(cells, side, blobs)


def _packed(cells: list[int], side: str, blobs: list[bytes | None]) -> pa.RecordBatch:
    arrays = [pa.array(cells, pa.int32()), pa.array([side] * len(cells)), pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED_ARROW)
