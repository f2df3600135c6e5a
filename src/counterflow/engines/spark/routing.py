"""Which cells of the layout a row goes to, and its packing for the way.

    layout 2x3         cell = row * columns + column
    left row  -> the three cells of one layout row        right row -> the two cells of one layout column

        columns  0   1   2
      row 0    [ 0   1   2 ]  <- one half of the left rows
      row 1    [ 3   4   5 ]  <- the other half

Any two rows meet in exactly one cell (DP-Join's matrix). A row's lane is a hash of its time and of what the
predicate sees of it: about as even as dealing rows out in turn, but a task that Spark runs again, perhaps on
rows in another order, sends each row where the first attempt sent it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.blobs import gathered, to_blob
from counterflow.kernels.keys import row_hashes
from counterflow.kernels.store import predicate_columns
from counterflow.kernels.times import time_values
from counterflow.spec.expression import Side
from counterflow.spec.join_spec import JoinSpec, SideSpec

PACKED = "cell INT NOT NULL, side STRING NOT NULL, payload BINARY"
PACKED_ARROW = pa.schema({"cell": pa.int32(), "side": pa.string(), "payload": pa.binary()})
MASK32 = 0xFFFFFFFF
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

    @cached_property
    def keys(self) -> list[int]:
        """What stands for each cell in the shuffle: the least number whose hash is the cell's, modulo the cells.

        So each cell has a partition of its own when there are as many partitions as cells (or a multiple), while
        the plain numbers 0, 1, 2, ... collide. They depend on the layout alone, so state is found after a restart; and
        0 is among them in every layout, so a checkpoint of another layout is always noticed.
        """
        found: dict[int, int] = {}
        for key in itertools.count():
            found.setdefault(spark_hash(key) % self.cells, key)
            if len(found) == self.cells:
                return [found[cell] for cell in range(self.cells)]
        raise AssertionError

    def cell(self, key: int) -> int:
        return self.keys.index(key)

    def lanes(self, side: Side) -> int:
        """Into how many parts a side is divided."""
        return self.rows if side == "left" else self.columns

    def lane_cells(self, side: Side, lane: int) -> list[int]:
        """The cells that a part of a side is sent to."""
        if side == "left":
            return [lane * self.columns + column for column in range(self.columns)]
        return [row * self.columns + lane for row in range(self.rows)]

    def counts(self, cell: int, side: Side) -> bool:
        """Whether this is the one cell, of those that see the same rows of a side, that counts them."""
        return (cell % self.columns if side == "left" else cell // self.columns) == 0


def spark_hash(number: int) -> int:
    """How Spark hashes an INT for a shuffle: 32-bit MurmurHash3 with seed 42."""

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & MASK32

    k = rotated(number * 0xCC9E2D51 & MASK32, 15) * 0x1B873593 & MASK32
    h = (rotated(42 ^ k, 13) * 5 + 0xE6546B64) & MASK32
    h ^= 4  # the length in bytes
    h = (h ^ (h >> 16)) * 0x85EBCA6B & MASK32
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & MASK32
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h  # as Java's int; `%` is then Spark's pmod


def pack(spec: JoinSpec, layout: Layout, side: Side) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A `mapInArrow` function: rows of one side in, (cell, side, blob) out."""
    side_spec = spec.left if side == "left" else spec.right

    def pack_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _packed(layout, list(range(layout.cells)), HEARTBEAT, [None] * layout.cells)
        for table in gathered(pa.Table.from_batches([batch]) for batch in batches):
            table = table if table.schema == side_spec.schema else table.cast(side_spec.schema)
            yield _messages(spec, layout, side_spec, table)

    return pack_partition


def _messages(spec: JoinSpec, layout: Layout, side: SideSpec, table: pa.Table) -> pa.RecordBatch:
    lanes = layout.lanes(side.side)
    times = time_values(side, table)  # a null time ends the query here, before anything is stored
    lane_of_row = row_hashes(times, predicate_columns(spec.predicate, side.side, table)) % np.uint64(lanes)
    cells: list[int] = []
    blobs: list[bytes | None] = []
    for lane in range(lanes):
        part = table if lanes == 1 else table.filter(pa.array(lane_of_row == lane))
        if len(part):
            targets = layout.lane_cells(side.side, lane)
            cells += targets
            blobs += [to_blob(part)] * len(targets)
    return _packed(layout, cells, side.side, blobs)


def _packed(layout: Layout, cells: list[int], side: str, blobs: list[bytes | None]) -> pa.RecordBatch:
    keys = [layout.keys[cell] for cell in cells]
    arrays = [pa.array(keys, pa.int32()), pa.array([side] * len(cells)), pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED_ARROW)
