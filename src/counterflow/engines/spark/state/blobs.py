"""Rows as blobs: many rows in one Arrow IPC message, so that Spark shuffles and stores few, large values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from counterflow.predicate.expression import Side

BLOB_ROWS_MAX = 1 << 16
BLOB_BYTES_MAX = 64 << 20  # rows may be wide, and Arrow's binary columns end at 2 GiB


class NewBlob(NamedTuple):
    """New rows of one side for a cell, and whether it stores them or only looks for their partners."""

    side: Side
    blob: bytes
    stored: bool


def to_blob(table: pa.Table | pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()


def from_blob(blob: bytes) -> pa.Table:
    """Return the rows without copying them: the table keeps the blob alive."""
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        return reader.read_all()


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of tables of any size in tables of about BLOB_ROWS_MAX rows or BLOB_BYTES_MAX bytes."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in chain.from_iterable(map(pieces, tables)):
        waiting.append(table)
        rows, size = rows + len(table), size + table.nbytes
        if rows >= BLOB_ROWS_MAX or size >= BLOB_BYTES_MAX:
            yield pa.concat_tables(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.concat_tables(waiting)


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a table in parts of at most BLOB_ROWS_MAX rows and about BLOB_BYTES_MAX bytes."""
    rows = max(1, min(BLOB_ROWS_MAX, len(table) * BLOB_BYTES_MAX // max(table.nbytes, 1)))
    for begin in range(0, len(table), rows):
        yield table.slice(begin, rows)
