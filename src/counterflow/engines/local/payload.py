"""The rows that results are made of, as long as a result may need them.

Columns of a fixed width live in a ring of numpy arrays, where gathering is one indexing and old rows are overwritten;
all others (texts, lists, dictionaries, ...) in Arrow chunks, of which small ones are merged as they pile up.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from counterflow.engines.local.stamping import Stamped
from counterflow.kernels.ring import Ring
from counterflow.kernels.vectors import Array
from counterflow.spec.expression import Side
from counterflow.spec.join_spec import JoinSpec

CHUNK_ROWS_MAX = 1 << 18
OPEN, MATCHED, HOPELESS = 0, 1, 2  # states of a row: may get its first match; has one; fails a one-sided condition
_BY_WIDTH = {1: "i1", 2: "i2", 4: "i4", 8: "i8", 16: "V16"}


class Rows:
    """One side's rows. A row's *place* counts those that are kept here: all of a side that may be padded, otherwise
    those that have a number; then place and number are the same.
    """

    def __init__(self, spec: JoinSpec, side: Side) -> None:
        own = spec.side(side)
        self.padded = spec.pads_left if side == "left" else spec.pads_right
        self.places = self.numbers = self.dead = 0
        self.ring = Ring()
        self._renumbered = Ring() if self.padded and spec.parts.filters(side) else None
        wanted = side == "left" or spec.has_right_columns
        fields = [f for f, out in zip(own.schema, own.output_names, strict=True) if out is not None and wanted]
        self._fields = fields
        self._fixed = [field for field in fields if dtype_of(field.type) is not None]
        others = [field for field in fields if dtype_of(field.type) is None]
        self._chunks = Chunks(pa.schema(others)) if others else None

    def append(self, rows: Stamped, **columns: Array) -> None:
        """`columns` are further ones, one value for each row that is kept here."""
        kept = None if self.padded else rows.kept
        times, rank, batch = rows.times, rows.rank, rows.batch
        if kept is not None:
            times, rank, batch = times[kept], rank[kept], batch.take(pa.array(kept))
        if self._renumbered is not None and len(rows.tuples):
            places = np.arange(len(times)) if rows.kept is None else rows.kept
            self._renumbered.append(rows.tuples.at, {"place": self.places + places})
        self.numbers += len(rows.tuples)
        if not len(times):
            return
        values = {"time": times, "rank": rank, **columns}
        if self.padded:
            values["state"] = np.full(len(times), OPEN, np.int8)
            if rows.kept is not None:
                values["state"][:] = HOPELESS
                values["state"][rows.kept] = OPEN
        for field in self._fixed:
            column = batch.column(batch.schema.get_field_index(field.name))
            values[f"value {field.name}"] = fixed_values(column)
            if column.null_count or f"null {field.name}" in self.ring.columns:
                values[f"null {field.name}"] = null_mask(column)
        self.ring.append(np.arange(self.places, self.places + len(times)), values)
        if self._chunks is not None:
            self._chunks.append(batch.select(self._chunks.schema.names))
        self.places += len(times)

    def place_of(self, numbers: Array) -> Array:
        if self._renumbered is None or not len(numbers):
            return numbers
        ring = self._renumbered
        return ring.columns["place"][numbers & (ring.capacity - 1)]

    def get(self, name: str, places: Array) -> Array:
        return self.ring.columns[name][places & (self.ring.capacity - 1)]

    def put(self, name: str, places: Array, values: Array | int) -> None:
        self.ring.columns[name][places & (self.ring.capacity - 1)] = values

    def place_at_rank(self, rank: int) -> int:
        """The first place with at least this rank."""
        return int(self.ring.search(np.array([rank]), "left", "rank")[0])

    def least(self, name: str, places: Array, values: Array) -> None:
        """Lower a column's values to the given ones; a place may occur several times."""
        np.minimum.at(self.ring.columns[name], places & (self.ring.capacity - 1), values)

    def bury(self, dead_ordinal: int, dead_number: int) -> Array:
        """Rows before get no match any more. Returns those among the newly dead that may have had one, but had not."""
        dead = dead_ordinal if self.padded else dead_number
        places = np.arange(self.dead, dead)
        self.dead = max(self.dead, dead)
        return places[self.get("state", places) == OPEN] if self.padded and len(places) else places[:0]

    def drop(self, dead_ordinal: int, dead_number: int) -> None:
        """Forget the rows before, which no result needs any more."""
        before = dead_ordinal if self.padded else dead_number
        if before > self.ring.first:
            self.ring.expire(before)
            if self._chunks is not None:
                self._chunks.drop(before)
        if self._renumbered is not None:
            self._renumbered.expire(dead_number)

    def gather(self, places: Array) -> list[pa.Array]:
        """The columns that results have of this side; -1 stands for a missing row."""
        missing = places < 0
        absent = missing if missing.any() else None
        if absent is not None and absent.all():
            return [pa.nulls(len(places), field.type) for field in self._fields]
        slots = places & (self.ring.capacity - 1)
        found = {} if self._chunks is None else self._chunks.take(places, absent)
        for field in self._fixed:
            null = self.ring.columns.get(f"null {field.name}")
            mask = absent if null is None else null[slots] if absent is None else null[slots] | absent
            found[field.name] = fixed_array(field.type, self.ring.columns[f"value {field.name}"][slots], mask)
        return [found[field.name] for field in self._fields]


class Chunks:
    """Rows of columns without a fixed width, oldest first."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._next = 0

    def append(self, batch: pa.RecordBatch) -> None:
        if batch.get_total_buffer_size() > 2 * batch.nbytes:  # a slice of a larger batch would keep all of that
            batch = pa.concat_batches([batch])
        self._batches.append(batch)
        self._starts.append(self._next)
        self._next += batch.num_rows
        while len(self._batches) > 1:
            a, b = self._batches[-2:]
            if a.num_rows >= 2 * b.num_rows or a.num_rows + b.num_rows > CHUNK_ROWS_MAX:
                return
            self._batches[-2:] = [pa.concat_batches([a, b])]
            self._starts.pop()

    def drop(self, before: int) -> None:
        gone = 0
        while gone < len(self._batches) and self._starts[gone] + self._batches[gone].num_rows <= before:
            gone += 1
        del self._batches[:gone], self._starts[:gone]
        if self._batches and before - self._starts[0] > self._batches[0].num_rows // 2:
            self._batches[0] = pa.concat_batches([self._batches[0].slice(before - self._starts[0])])
            self._starts[0] = before

    def take(self, places: Array, absent: Array | None) -> dict[str, pa.Array]:
        present = places if absent is None else places[~absent]
        rows = self._take(present)
        if absent is not None:
            index = np.cumsum(~absent) - 1
            rows = rows.take(pa.array(index, mask=absent))
        return dict(zip(self.schema.names, rows.columns, strict=True))

    def _take(self, places: Array) -> pa.RecordBatch:
        which = np.searchsorted(self._starts, places, "right") - 1
        if (which == which[0]).all():
            return self._batches[which[0]].take(pa.array(places - self._starts[which[0]]))
        order = np.argsort(which, kind="stable")
        chunks, begins = np.unique(which[order], return_index=True)
        parts = [
            self._batches[chunk].take(pa.array(places[order[begin:end]] - self._starts[chunk]))
            for chunk, begin, end in zip(chunks, begins, [*begins[1:], len(places)], strict=True)
        ]
        back = np.empty(len(places), np.int64)
        back[order] = np.arange(len(places))
        return pa.concat_batches(parts).take(pa.array(back))


def dtype_of(type_: pa.DataType) -> np.dtype | None:
    """What holds the type's values; None if they have no fixed width that numpy knows."""
    if pa.types.is_boolean(type_):
        return np.dtype(bool)
    if pa.types.is_primitive(type_) or pa.types.is_decimal128(type_):
        return np.dtype(_BY_WIDTH[type_.byte_width])
    return None


def fixed_values(column: pa.Array) -> Array:
    """The values as they lie in memory; at nulls anything."""
    values = column.buffers()[1]
    if pa.types.is_boolean(column.type):
        return _bits(values, column.offset, len(column))
    return np.frombuffer(values, dtype_of(column.type), len(column), column.offset * column.type.byte_width)


def null_mask(column: pa.Array) -> Array:
    valid = column.buffers()[0]
    return np.zeros(len(column), bool) if valid is None else ~_bits(valid, column.offset, len(column))


def fixed_array(type_: pa.DataType, values: Array, null: Array | None) -> pa.Array:
    """The inverse of both."""
    if null is not None and not null.any():
        null = None
    valid = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    data = np.packbits(values, bitorder="little") if values.dtype == bool else values
    return pa.Array.from_buffers(type_, len(values), [valid, pa.py_buffer(data)])


def _bits(buffer: pa.Buffer, offset: int, n: int) -> Array:
    begin = offset // 8
    packed = np.frombuffer(buffer, np.uint8, (offset + n + 7) // 8 - begin, begin)
    return np.unpackbits(packed, count=offset % 8 + n, bitorder="little")[offset % 8 :].view(bool)
