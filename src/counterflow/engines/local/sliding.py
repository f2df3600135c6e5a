"""Rows that come at one end and go at the other: columns in numpy arrays whose live part slides along.

A row keeps its number for ever; numbers count from 0. The live part of a column is contiguous, so that it can be
searched and handed to Arrow as it is. When it has reached the end of its array it is moved to the beginning, which
moves a row less than once on average.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.windows.vectors import Array

CAPACITY_MIN = 1 << 10


class Sliding:
    """Named columns of equal length. A column that is new has zeros for the rows before."""

    def __init__(self, first: int = 0) -> None:
        self.first = self.next = first  # the numbers of the oldest live row and of the row to come
        self._begin = 0  # where the oldest live row lies
        self._capacity = CAPACITY_MIN
        self._columns: dict[str, Array] = {}

    def __len__(self) -> int:
        return self.next - self.first

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def append(self, columns: dict[str, Array], n: int) -> None:
        end = self._begin + len(self)
        if end + n > self._capacity:
            self._move(n)
            end = self._begin + len(self)
        for name, values in columns.items():
            if name not in self._columns:
                self._columns[name] = np.zeros(self._capacity, values.dtype)
            self._columns[name][end : end + n] = values
        self.next += n

    def drop(self, before: int) -> None:
        step = min(before, self.next) - self.first
        if step > 0:
            self.first += step
            self._begin += step

    def places(self, rows: Array) -> Array:
        """Where rows lie, until more are appended."""
        return rows - (self.first - self._begin)

    def column(self, name: str) -> Array:
        """A column's array, to be used with `places`."""
        return self._columns[name]

    def get(self, name: str, rows: Array) -> Array:
        return self._columns[name][self.places(rows)]

    def at(self, name: str, row: int) -> int:
        return int(self._columns[name][row - (self.first - self._begin)])

    def put(self, name: str, rows: Array, values: Array | int) -> None:
        self._columns[name][self.places(rows)] = values

    def least(self, name: str, rows: Array, values: Array) -> None:
        """Lower a column's values to the given ones; a row may occur several times."""
        np.minimum.at(self._columns[name], self.places(rows), values)

    def live(self, name: str, begin: int | None = None, end: int | None = None) -> Array:
        """A column's values of the rows from number `begin` up to `end`, not copied."""
        offset = self.first - self._begin
        begin, end = self.first if begin is None else begin, self.next if end is None else end
        column = self._columns.get(name)
        return np.empty(0, np.int64) if column is None else column[begin - offset : end - offset]

    def search(self, name: str, values: Any, side: str = "left") -> Any:
        """The number of the first row whose (ordered) value is at least, or with side "right" above, each given one."""
        return np.searchsorted(self.live(name), values, side) + self.first  # type: ignore[call-overload]

    def _move(self, n: int) -> None:
        live, capacity = slice(self._begin, self._begin + len(self)), roomy(self._capacity, len(self) + n)
        for name, column in self._columns.items():
            self._columns[name] = moved(column, live, capacity)
        self._begin, self._capacity = 0, capacity


class Texts:
    """A column of texts or bytes, laid out as Arrow does it: all bytes in one array, and where each text begins."""

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        self._wide = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
        is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
        self._kept = pa.large_string() if is_text else pa.large_binary()
        self._first = self._begin = self._end = 0  # the oldest live row's number; the live rows' places
        self._offsets = np.zeros(CAPACITY_MIN, np.int64)  # by place, and the end of the last one
        self._bytes = np.empty(CAPACITY_MIN, np.uint8)

    def append(self, column: pa.Array) -> None:
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

    def take(self, rows: Array, null: Array | None) -> pa.Array:
        """The texts of these rows; null where the mask says so."""
        offsets = self._offsets[self._begin : self._end + 1]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._bytes)]
        texts = pa.Array.from_buffers(self._kept, len(offsets) - 1, buffers)
        index = rows - self._first
        found = texts.take(pa.array(index) if null is None else pa.array(np.where(null, 0, index), mask=null))
        return found if self._kept == self.type else found.cast(self.type)


def roomy(capacity: int, needed: int) -> int:
    """A capacity of which at least half is free then, and not much more."""
    while capacity < 2 * needed:
        capacity *= 2
    while capacity > 8 * needed and capacity > CAPACITY_MIN:
        capacity //= 2
    return capacity


def moved(array: Array, live: slice, capacity: int) -> Array:
    """The live part at the beginning of an array of this capacity, the same one if it has it.

    Then nothing overlaps: the live part has reached the end, and is less than half of the array.
    """
    target = array if capacity == len(array) else np.empty(capacity, array.dtype)
    target[: live.stop - live.start] = array[live]
    return target
