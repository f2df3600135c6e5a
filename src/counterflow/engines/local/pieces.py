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
    pieces = np.array([(times.__array_interface__["data"][0], len(times)) for times in given], np.int64)
    ends, keys, times = np.empty(len(parts), np.int64), np.empty((2, rows), np.int64), np.empty(rows, np.int64)
    lies = merging.merge_times(pieces, least, row_bits, piece_bits, ends, keys, times)
    return times, _gathered([batch for _, batch in parts], keys[lies], row_bits, piece_bits)


def _gathered(batches: list[pa.RecordBatch], keys: Array, row_bits: int, piece_bits: int) -> pa.RecordBatch:
    """Return the rows of several batches in the order of keys (see `merging`)."""
    n, schema = len(keys), batches[0].schema
    columns: list[pa.Array] = []
    told: list[list[int]] = []  # of each column that compiled code gathers
    order: pa.Array | None = None
    for index, field in enumerate(schema):
        parts = [batch.column(index) for batch in batches]
        if _is_plain(field.type) and not any(part.null_count for part in parts):
            size = field.type.bit_width // 8
            values = pa.allocate_buffer(n * size)
            told.append([size, values.address, *(part.buffers()[1].address + part.offset * size for part in parts)])
            columns.append(pa.Array.from_buffers(field.type, n, [None, values]))
            continue
        if order is None:
            starts = np.cumsum([0, *(len(batch) for batch in batches[:-1])])
            piece, row = keys >> row_bits & (1 << piece_bits) - 1, keys & (1 << row_bits) - 1
            order = pa.array(starts[piece] + row)
        columns.append(pa.concat_arrays(parts).take(order))
    if told:
        compiled_module("merging").gather(keys, row_bits, piece_bits, np.array(told, np.int64))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_plain(type_: pa.DataType) -> bool:
    """Return whether values have a fixed width of whole bytes, and lie in one buffer."""
    return (pa.types.is_primitive(type_) and type_.bit_width >= 8) or pa.types.is_decimal128(type_)
