"""The rows that results are made of, as long as a result may need them.

Values of a fixed width are fields of records, and texts lie in one array of bytes: Arrow arrays are gathered from them.
All others (lists, structs, ...) are kept in Arrow chunks; small ones are merged as they pile up.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from counterflow.engines.local.order import BEGINNING
from counterflow.engines.local.output.records import Records
from counterflow.engines.local.sliding import CAPACITY_MIN, Sliding, moved, roomy
from counterflow.engines.local.stamps import Stamped
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.times import is_plain_time
from counterflow.windows.vectors import Array

CHUNK_ROWS_MAX = 1 << 18
FEW_TEXTS = 16  # of a column: put together one by one
OPEN, MATCHED, HOPELESS = 0, 1, 2  # states of a row: may get its first match; has one; fails a one-sided condition
_BY_WIDTH = {1: "i1", 2: "i2", 4: "i4", 8: "i8", 16: "V16"}
Picked: TypeAlias = dict[str, pa.Buffer]  # values of some rows, by field


class KeptRows:
    """One side's rows, as long as a result may need them.

    A row's *place* counts those that are kept here: all of a side that may be padded, otherwise those that have a
    number; then place and number are the same. With `ranked` their ranks are known, too.
    """

    def __init__(self, spec: JoinSpec, side: Side, ranked: bool = False) -> None:
        own = spec.side(side)
        self.padded = spec.pads_left if side == "left" else spec.pads_right
        self._may_be_absent = spec.pads_right if side == "left" else spec.pads_left
        self.numbers = 0
        self.dead = 0  # no place before gets a match any more
        self._ordinals = 0  # rows until now, kept or not
        self._restored: dict[str, Array] = {}
        self._ranked = ranked
        self.records = Records()  # times, and values of a fixed width
        self.facts = Sliding()  # what is searched or may change
        left_out = bool(spec.parts.filters(side) or spec.required[side])  # rows that have no number
        self._place_of = Sliding() if self.padded and left_out else None  # by number
        wanted = [out is not None and (side == "left" or spec.has_right_columns) for out in own.output_names]
        self._columns = [_column(i, field.type) for i, field in enumerate(own.schema) if wanted[i]]
        time = -1 if own.time is None else own.schema.get_field_index(own.time)
        plain = not own.is_table and is_plain_time(own.time_type)
        # A column that lies there as times do here is not written twice.
        self.time_field = f"value {time}" if plain and wanted[time] else "time"
        self._time_index = time
        self._known: tuple[str, ...] = ()  # the records' fields, and those that results want of them
        self._wanted: tuple[str, ...] = ()

    @property
    def places(self) -> int:
        """The number of rows until now."""
        return self.records.next

    @property
    def first(self) -> int:
        """The oldest place that is kept."""
        return self.records.first

    def times(self, places: Array) -> Array:
        """Return the times of some rows."""
        return self.records.get(self.time_field, places)

    def time_at(self, place: int) -> int:
        return self.records.at(self.time_field, place)

    def ranks(self, places: Array) -> Array:
        """Return the ranks of some rows."""
        return self.facts.get("rank", places) if self.padded else self.records.get("rank", places)

    def rank_at(self, place: int) -> int:
        return (self.facts if self.padded else self.records).at("rank", place)

    def restore(self, facts: dict[str, Array]) -> None:
        """Say what was known of the first rows to come, by ordinal, when a checkpoint was written."""
        self._restored = facts

    def append(self, rows: Stamped, batch: pa.RecordBatch, **facts: Array) -> None:
        """Add rows that were stamped. `facts` are further ones, a value for each row that is kept here."""
        begin, self._ordinals = self._ordinals, self._ordinals + len(rows)
        times, rank = rows.times, rows.rank
        if rows.kept is not None and not self.padded:
            times, rank, batch = times[rows.kept], rank[rows.kept], batch.take(pa.array(rows.kept))
        if self._place_of is not None:
            places = np.arange(len(times)) if rows.kept is None else rows.kept
            self._place_of.append({"place": self.places + places}, len(places))
        self.numbers += len(rows.tuples)
        if not len(times):
            return
        if self.padded:
            state = np.full(len(times), OPEN if rows.kept is None else HOPELESS, np.int8)
            if rows.kept is not None:
                state[rows.kept] = OPEN
            facts["state"] = state
        for name, saved in self._restored.items():
            if begin < len(saved):  # then all of a step's rows are among them
                known = saved[begin : self._ordinals]
                facts[name] = known if self.padded or rows.kept is None else known[rows.kept]
        self._keep(times, batch.columns, {"rank": rank} if self._ranked and not self.padded else {})
        if self._ranked and self.padded:
            facts["rank"] = rank
        if facts:
            self.facts.append(facts, len(times))

    def append_few(self, times: Array, columns: list[pa.Array]) -> None:
        """Add rows that have a number each, and of which nothing else is to be known."""
        self._ordinals += len(times)
        self.numbers += len(times)
        self._keep(times, columns, {})

    def note_few(self, n: int) -> None:
        """Count such rows, whose records compiled code has written."""
        self._ordinals += n
        self.numbers += n
        self.records.note(n)

    @property
    def plain_fields(self) -> list[tuple[int, str]] | None:
        """The fields of records and which columns of a batch they have; None if compiled code cannot write them.

        The first ones are the columns that results have, in their order.
        """
        if not self.records.fields or not all(isinstance(c, FixedColumn) and not c.is_bit for c in self._columns):
            return None
        fields = [(column.index, column.fields[0]) for column in self._columns]
        if self.time_field == "time":
            fields.append((self._time_index, "time"))
        return fields if len(fields) == len(self.records.fields) else None  # others: NULLs

    def _keep(self, times: Array, columns: list[pa.Array], values: dict[str, Array]) -> None:
        if self.time_field == "time":
            values["time"] = times
        for column in self._columns:
            column.append(columns[column.index], values, self.records)
        self.records.append(values, len(times))

    def place_of(self, numbers: Array) -> Array:
        """Return the places of the rows that have these numbers."""
        return numbers if self._place_of is None or not len(numbers) else self._place_of.get("place", numbers)

    def bury(self, dead_ordinal: int, dead_number: int) -> Array:
        """Note that rows before get no match any more; return those that have become unmatched rows by that."""
        dead, before = dead_ordinal if self.padded else dead_number, self.dead
        self.dead = max(before, dead)
        if not self.padded or dead <= before:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.facts.live("state", before, dead) == OPEN) + before

    def drop(self, dead_ordinal: int, dead_number: int) -> None:
        """Forget the rows before, which no result needs any more."""
        before = dead_ordinal if self.padded else dead_number
        if self._place_of is not None:
            self._place_of.drop(dead_number)
        if before > self.first:
            self.facts.drop(before)
            self.records.drop(before)
            for column in self._columns:
                column.drop(before)

    def gather(self, places: Array) -> tuple[list[pa.Array], Array | None]:
        """Return the columns that results have of this side, for these rows, and their times.

        -1 stands for a missing row; it has no time, that is, the least there is. None: all are missing.
        """
        absent: Array | None = places < 0 if self._may_be_absent else None
        if absent is not None and not absent.any():
            absent = None
        if absent is not None:
            if absent.all():
                return [pa.nulls(len(places), column.type) for column in self._columns], None
            places = np.where(absent, self.first, places)
        if self._known != self.records.fields:
            self._known = self.records.fields
            own = (name for column in self._columns for name in column.fields)
            self._wanted = tuple(dict.fromkeys(name for name in (self.time_field, *own) if name in self._known))
        picked = dict(zip(self._wanted, self.records.pick(places, self._wanted), strict=True))
        times = np.frombuffer(picked[self.time_field], np.int64)
        columns = [column.take(places, absent, picked) for column in self._columns]
        return columns, times if absent is None else np.where(absent, BEGINNING, times)


class FixedColumn:
    """A column whose values have a fixed width: they are a field of the records."""

    def __init__(self, index: int, type_: pa.DataType) -> None:
        self.index, self.type = index, type_
        self.is_bit = pa.types.is_boolean(type_)
        self._width = 1 if self.is_bit else type_.byte_width
        self._dtype = np.dtype(bool if self.is_bit else _BY_WIDTH[self._width])
        self._value, self._null = self.fields = f"value {index}", f"null {index}"

    def append(self, column: pa.Array, values: dict[str, Array], known: Records) -> None:
        data = column.buffers()[1]
        if self.is_bit:
            values[self._value] = _bits(data, column.offset, len(column))
        else:
            values[self._value] = np.frombuffer(data, self._dtype, len(column), column.offset * self._width)
        if column.null_count or self._null in known:
            values[self._null] = null_mask(column)

    def drop(self, before: int) -> None:
        """Do nothing: its values go with the records."""

    def take(self, places: Array, absent: Array | None, picked: Picked) -> pa.Array:
        data, valid = picked[self._value], None
        if self.is_bit:
            data = pa.py_buffer(np.packbits(np.frombuffer(data, bool), bitorder="little"))
        if absent is not None or self._null in picked:
            valid = _validity(either(_mask(picked, self._null), absent))
        return pa.Array.from_buffers(self.type, len(places), [valid, data])


class TextColumn:
    """A column of texts or bytes, laid out as Arrow does it: all bytes in one array, and where each text begins."""

    def __init__(self, index: int, type_: pa.DataType) -> None:
        self.index, self.type = index, type_
        self._null = f"null {index}"
        self.fields = (self._null,)
        self._wide = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
        is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
        self._kept = pa.large_string() if is_text else pa.large_binary()
        self._first = 0  # the oldest live row
        self._begin = self._end = 0  # where the live rows lie
        self._offsets = np.zeros(CAPACITY_MIN, np.int64)  # where each text begins, and the end of the last one
        self._bytes = np.empty(CAPACITY_MIN, np.uint8)

    def append(self, column: pa.Array, values: dict[str, Array], known: Records) -> None:
        if column.null_count or self._null in known:
            values[self._null] = null_mask(column)
        _, offsets, data = column.buffers()
        given = np.frombuffer(offsets, np.int64 if self._wide else np.int32)
        given = given[column.offset : column.offset + len(column) + 1]
        first, size = int(given[0]), int(given[-1]) - int(given[0])
        if self._end + len(column) + 1 > len(self._offsets):
            live = slice(self._begin, self._end + 1)
            self._offsets = moved(self._offsets, live, roomy(len(self._offsets), live.stop - live.start + len(column)))
            self._begin, self._end = 0, self._end - self._begin
        used = int(self._offsets[self._end])
        if used + size > len(self._bytes):
            begin = int(self._offsets[self._begin])
            self._bytes = moved(self._bytes, slice(begin, used), roomy(len(self._bytes), used - begin + size))
            self._offsets[self._begin : self._end + 1] -= begin
            used -= begin
        if size:
            self._bytes[used : used + size] = np.frombuffer(data, np.uint8, size, first)
        np.add(given, used - first, out=self._offsets[self._end : self._end + len(given)], dtype=np.int64)
        self._end += len(column)

    def drop(self, before: int) -> None:
        step = min(max(before - self._first, 0), self._end - self._begin)
        self._first += step
        self._begin += step

    def take(self, places: Array, absent: Array | None, picked: Picked) -> pa.Array:
        null = either(_mask(picked, self._null), absent)
        if len(places) <= FEW_TEXTS:
            return self._few(places, null)
        offsets = self._offsets[self._begin : self._end + 1]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._bytes)]
        texts = pa.Array.from_buffers(self._kept, len(offsets) - 1, buffers)
        index = places - self._first
        found = texts.take(pa.array(index) if null is None else pa.array(np.where(null, 0, index), mask=null))
        return found if self._kept == self.type else found.cast(self.type)

    def _few(self, places: Array, null: Array | None) -> pa.Array:
        """Return a few texts, put together here: Arrow's functions take longer to be called."""
        at = places + (self._begin - self._first)
        begins, ends = self._offsets[at], self._offsets[at + 1]
        if null is not None:
            ends = np.where(null, begins, ends)
        offsets = np.zeros(len(places) + 1, np.int64 if self._wide else np.int32)
        np.cumsum(ends - begins, out=offsets[1:])
        texts = b"".join(self._bytes[a:b].tobytes() for a, b in zip(begins.tolist(), ends.tolist(), strict=True))
        buffers = [_validity(null), pa.py_buffer(offsets), pa.py_buffer(texts)]
        return pa.Array.from_buffers(self.type, len(places), buffers)


class ChunkedColumn:
    """A column of any other type: Arrow arrays, oldest first."""

    fields = ()

    def __init__(self, index: int, type_: pa.DataType) -> None:
        self.index, self.type = index, type_
        self._arrays: list[pa.Array] = []
        self._starts: list[int] = []
        self._next = 0

    def append(self, column: pa.Array, values: dict[str, Array], known: Records) -> None:
        if column.get_total_buffer_size() > 2 * column.nbytes:  # a slice of a larger array would keep all of that
            column = pa.concat_arrays([column])
        self._arrays.append(column)
        self._starts.append(self._next)
        self._next += len(column)
        while len(self._arrays) > 1:
            a, b = self._arrays[-2:]
            if len(a) >= 2 * len(b) or len(a) + len(b) > CHUNK_ROWS_MAX:
                return
            self._arrays[-2:] = [pa.concat_arrays([a, b])]
            self._starts.pop()

    def drop(self, before: int) -> None:
        gone = 0
        while gone < len(self._arrays) and self._starts[gone] + len(self._arrays[gone]) <= before:
            gone += 1
        del self._arrays[:gone], self._starts[:gone]
        if self._arrays and before - self._starts[0] > len(self._arrays[0]) // 2:
            self._arrays[0] = pa.concat_arrays([self._arrays[0].slice(before - self._starts[0])])
            self._starts[0] = before

    def take(self, places: Array, absent: Array | None, picked: Picked) -> pa.Array:
        which = np.searchsorted(self._starts, places, "right") - 1
        order = np.argsort(which, kind="stable")
        chunks, begins = np.unique(which[order], return_index=True)
        parts = [
            self._arrays[chunk].take(pa.array(places[order[begin:end]] - self._starts[chunk]))
            for chunk, begin, end in zip(chunks, begins, [*begins[1:], len(places)], strict=True)
        ]
        back = np.empty(len(places), np.int64)
        back[order] = np.arange(len(places))
        return pa.concat_arrays(parts).take(pa.array(back, mask=absent))


class DictionaryColumn:
    """A column of dictionaries, which may differ from batch to batch: plain values here, encoded in each result."""

    def __init__(self, index: int, type_: pa.DataType) -> None:
        self.index, self.type = index, type_
        self._plain = _column(index, type_.value_type)
        self.fields = self._plain.fields

    def append(self, column: pa.Array, values: dict[str, Array], known: Records) -> None:
        self._plain.append(column.dictionary_decode(), values, known)

    def drop(self, before: int) -> None:
        self._plain.drop(before)

    def take(self, places: Array, absent: Array | None, picked: Picked) -> pa.Array:
        return self._plain.take(places, absent, picked).dictionary_encode()


def _column(index: int, type_: pa.DataType) -> Any:
    if pa.types.is_primitive(type_) or pa.types.is_decimal128(type_):
        return FixedColumn(index, type_)
    if type_ in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return TextColumn(index, type_)
    if pa.types.is_dictionary(type_):
        return DictionaryColumn(index, type_)
    return ChunkedColumn(index, type_)


def either(a: Array | None, b: Array | None) -> Array | None:
    """Return the mask of what one of two masks has; None is a mask of nothing."""
    return b if a is None else a if b is None else a | b


def _mask(picked: Picked, field: str) -> Array | None:
    """Return a mask of NULLs that was picked, if there is one."""
    return np.frombuffer(picked[field], bool) if field in picked else None


def null_mask(column: pa.Array) -> Array:
    """Return where a column is null."""
    valid = column.buffers()[0]
    return np.zeros(len(column), bool) if valid is None else ~_bits(valid, column.offset, len(column))


def _validity(null: Array | None) -> pa.Buffer | None:
    """Return Arrow's bitmap of what is not null; None where nothing is."""
    return None if null is None or not null.any() else pa.py_buffer(np.packbits(~null, bitorder="little"))


def _bits(buffer: pa.Buffer, offset: int, n: int) -> Array:
    """Return Arrow's packed bits as an array of booleans."""
    begin = offset // 8
    packed = np.frombuffer(buffer, np.uint8, (offset + n + 7) // 8 - begin, begin)
    return np.unpackbits(packed, count=offset % 8 + n, bitorder="little")[offset % 8 :].view(bool)
