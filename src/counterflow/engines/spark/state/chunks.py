"""Chunks: immutable blobs of one side's rows, each with the checksum by which it is believed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.cell.row_order import HOME, SOURCE, TIE
from counterflow.engines.spark.state.blobs import BLOB_ROWS_MAX, from_blob, to_blob
from counterflow.errors import StateError
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec, SideSpec
from counterflow.windows.times import time_values
from counterflow.windows.vectors import Array

MERGE_CHUNKS = 8  # this many chunks of a size become one
MERGE_SPAN = 4  # a merged chunk spans at most this part of the window, so little is kept too long
DIGEST_BYTES = 16
CHUNK_ID = re.compile(r"[0-9]{8,19}-(left|right)-[0-9]{4,10}")
DIGEST = re.compile(r"[0-9a-f]{32}")
START_ANEW = "start with a new checkpointLocation"


@dataclass(frozen=True)
class ChunkEntry:
    """What the directory says of a chunk."""

    id: str
    side: Side
    rows: int
    bytes: int
    time_min: int
    time_max: int
    digest: str

    @property
    def tier(self) -> int:
        """The size class: chunks of one tier differ by less than a factor of MERGE_CHUNKS in their rows."""
        return self.rows.bit_length() // (MERGE_CHUNKS.bit_length() - 1)


def digest_of(content: bytes, key: str = "") -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=key.encode()).hexdigest()


def in_one_order(side: SideSpec, table: pa.Table) -> pa.Table:
    """Return the rows in an order, and as arrays, that depend on the rows alone, not on when and by whom they came.

    They are ordered by time, physical stream and the hash that each row brings. Rows that are alike in all of these are
    ordered by what the hash may not see: the bits of floating-point numbers (zeros of both signs), and nested values.
    `take` writes fresh arrays, with zeros where there are NULLs.
    """
    table = table.combine_chunks()
    names = [name for name in (SOURCE, TIE) if name in table.schema.names]
    keys = [time_values(side, table), *(table.column(name).to_numpy() for name in names)]
    order = _ordered(keys)
    alike = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    if alike.any():
        keys += [key for column in table.columns for key in _hidden_order(column)]
        order = np.lexsort(keys[::-1])
    return table.take(pa.array(order))


def _ordered(keys: list[Array]) -> Array:
    """Return the order of rows by these keys, the first one first: rows that come by time nearly have it already."""
    order = np.argsort(keys[0], kind="stable")
    same = np.diff(keys[0][order]) == 0
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    rows = order[tied]
    order[tied] = rows[np.lexsort([key[rows] for key in keys[::-1]])]
    return order


def merged(tables: list[pa.Table]) -> pa.Table:
    """Return the rows of several chunks, in their order, as fresh arrays."""
    table = pa.concat_tables(tables).combine_chunks()
    return table.take(pa.array(np.arange(len(table))))


def _hidden_order(column: pa.ChunkedArray) -> list[Array]:
    """Return sort keys for what a row's hash may not see; none if it sees all of the column."""
    if pa.types.is_floating(column.type):
        values = column.fill_null(0).to_numpy()
        return [column.is_null().to_numpy(), values.view(f"i{values.itemsize}")]
    if pa.types.is_nested(column.type):
        return [np.unique([repr(value) for value in column.to_pylist()], return_inverse=True)[1]]
    return []


def new_chunk(side: SideSpec, table: pa.Table, batch: int = 0, position: int = 0) -> tuple[ChunkEntry, bytes]:
    """Return a chunk of these rows and its entry. `batch` and `position` name it among the cell's chunks."""
    name = f"{batch:08d}-{side.side}-{position:04d}"
    blob = to_blob(table)
    times = time_values(side, table)
    span = int(times.min()), int(times.max())
    return ChunkEntry(name, side.side, len(table), len(blob), *span, digest_of(blob, name)), blob


def is_whole(entry: ChunkEntry, blob: bytes) -> bool:
    """Return whether these are the bytes that the chunk was written with."""
    return len(blob) == entry.bytes and digest_of(blob, entry.id) == entry.digest


def decode_chunk(entry: ChunkEntry, blob: bytes | None) -> pa.Table:
    """Return the rows of a chunk that comes from the state store, or from a copy of it."""
    if blob is None:
        raise StateError(f"chunk {entry.id} of the join's state is missing in the checkpoint: {START_ANEW}")
    if not is_whole(entry, blob):
        raise StateError(
            f"chunk {entry.id} of the join's state is not the one that was written: the checkpoint is damaged, or its "
            f"batch ran again and read other rows than the first time (a source or an expression before the join does "
            f"not repeat itself): {START_ANEW}"
        )
    try:
        table = from_blob(blob)
    except (pa.ArrowInvalid, OSError) as error:
        raise StateError(f"chunk {entry.id} of the join's state cannot be read ({error}): {START_ANEW}") from error
    if len(table) != entry.rows:
        raise StateError(f"chunk {entry.id} of the join's state has {len(table)} rows instead of {entry.rows}")
    return table


def conformed(side: SideSpec, table: pa.Table) -> pa.Table:
    """Return a chunk's rows with the side's columns of today: one that came since the chunk was written is NULL."""
    own = [table.schema.field(name) for name in (TIE, SOURCE, HOME) if name in table.schema.names]
    schema = pa.schema([*side.schema, *own])
    if table.schema.equals(schema):
        return table
    columns = [table.column(f.name) if f.name in table.schema.names else pa.nulls(len(table), f.type) for f in schema]
    try:
        return pa.table(dict(zip(schema.names, columns, strict=True))).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
        raise StateError(
            f"rows of the {side.side} input from before the restart do not fit its columns of today ({error}): give "
            "them the same types, and let them be NULL where they could be"
        ) from error


def mergeable(entries: list[ChunkEntry], spec: JoinSpec, needless: int) -> Iterator[list[ChunkEntry]]:
    """Yield groups of small chunks that should become one, so that a cell never has many of them.

    A row is rewritten once for each tier, so writing stays proportional to the rows; and since a chunk is kept
    until its last row expires, a merged one must not span more than a part of the window.
    """
    groups: dict[tuple[Side, int], list[ChunkEntry]] = {}
    delay = max((entry.time_max for entry in entries), default=0) - needless  # rows also wait for the watermark
    for entry in entries:
        if entry.rows * MERGE_CHUNKS > BLOB_ROWS_MAX:
            continue
        window = spec.side(entry.side).window
        group = groups.setdefault((entry.side, entry.tier), [])
        times = [t for e in (*group, entry) for t in (e.time_min, e.time_max)]
        if window.kind == "duration" and max(times) - min(times) > max(window.size, delay) // MERGE_SPAN:
            group.clear()
        group.append(entry)
        if len(group) == MERGE_CHUNKS:
            yield group
            groups[entry.side, entry.tier] = []
