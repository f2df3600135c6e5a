"""Sorted pieces of rows, merged to one: by compiled code where it is there, unless they have few rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.vectors import Array

Piece: TypeAlias = tuple[Array, pa.RecordBatch]  # rows in order, and their times
PIECE_ROWS_MIN = 1 << 10  # on average: with fewer, it takes longer to tell compiled code where all columns lie


def merge_pieces(pieces: Iterable[Piece], compiled: bool = False) -> Piece | None:
    """Return sorted pieces as one; at equal times the rows of the first piece come first.

    `compiled`: whether compiled code may be used.
    """
    parts = list(pieces)
    if len(parts) < 2:
        return parts[0] if parts else None
    if all(a[0][-1] <= b[0][0] for a, b in pairwise(parts)):
        return np.concatenate([times for times, _ in parts]), pa.concat_batches([batch for _, batch in parts])
    rows = sum(len(times) for times, _ in parts)
    if compiled and rows >= PIECE_ROWS_MIN * len(parts) and (merged := _merged(parts, rows)) is not None:
        return merged
    times = np.concatenate([times for times, _ in parts])
    order = np.argsort(times, kind="stable")
    return times[order], pa.concat_batches([batch for _, batch in parts]).take(pa.array(order))


def _merged(parts: list[Piece], rows: int) -> Piece | None:
    """Merge by compiled code; None if the times are too far apart for that."""
    merging = compiled_module("merging")
    least, last = min(int(times[0]) for times, _ in parts), max(int(times[-1]) for times, _ in parts)
    row_bits, piece_bits = max(len(times) - 1 for times, _ in parts).bit_length(), (len(parts) - 1).bit_length()
    if (last - least).bit_length() + row_bits + piece_bits > merging.KEY_BITS:
        return None
    given = [np.require(times, np.int64, ["C", "A"]) for times, _ in parts]
    lies = [int(times.__array_interface__["data"][0]) for times in given]
    columns = Gathered([batch for _, batch in parts], rows, lies)
    times = np.empty(rows, np.int64) if columns.times is None else columns.times
    pieces = np.array([(at, len(times), 0) for at, times in zip(lies, given, strict=True)], np.int64)
    ends, keys = np.empty(len(parts), np.int64), np.empty((2, merging.BLOCK + len(parts)), np.uint64)
    merging.merge(pieces, least, row_bits, piece_bits, ends, keys, times, columns.told, columns.places)
    return times, columns.batch()


class Gathered:
    """The columns of several batches on their way into one: those of a fixed width are gathered by compiled code.

    A column that is nothing but the rows' times, which lie at the addresses `times_at`, is not gathered: whoever merges
    writes the times there.
    """

    def __init__(self, batches: list[pa.RecordBatch], rows: int, times_at: list[int]) -> None:
        self.batches, self.rows = batches, rows
        self.times: Array | None = None  # where the times go, if they are a column
        self._columns: list[pa.Array | None] = []  # None: rows are taken of it once their places are known
        told: list[list[int]] = []
        for index, field in enumerate(batches[0].schema):
            parts = [batch.column(index) for batch in batches]
            if not _is_plain(field.type) or any(part.null_count for part in parts):
                self._columns.append(None)
                continue
            size = field.type.bit_width // 8
            values = pa.allocate_buffer(rows * size)
            lies = [part.buffers()[1].address + part.offset * size for part in parts]
            if self.times is None and size == 8 and lies == times_at:
                self.times = np.frombuffer(values, np.int64)
            else:
                told.append([size, values.address, *lies])
            self._columns.append(pa.Array.from_buffers(field.type, rows, [None, values]))
        self.told = np.array(told, np.int64).reshape(-1, 2 + len(batches))  # as `merging.merge` reads it
        self.places = np.empty(rows if None in self._columns else 0, np.int64)

    def batch(self) -> pa.RecordBatch:
        """Return all columns, once they and the places are written."""
        places = pa.array(self.places)
        columns = [
            pa.concat_arrays([batch.column(index) for batch in self.batches]).take(places) if column is None else column
            for index, column in enumerate(self._columns)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.batches[0].schema)


def _is_plain(type_: pa.DataType) -> bool:
    """Return whether values have a fixed width of whole bytes, and lie in one buffer."""
    return (pa.types.is_primitive(type_) and type_.bit_width >= 8) or pa.types.is_decimal128(type_)
