"""Rows that come at one end and go at the other: columns in numpy arrays whose live part slides along.

A row keeps its number for ever; numbers count from 0. The live part of a column is in one piece. When it has reached
the end of its array it is moved to the beginning, which moves a row less than once on average.

The columns that come first are the fields of one array of records: results pick rows from anywhere in a window, and
then all that is wanted of a row is in one or two cache lines. Columns that are searched lie apart, each in an array of
its own, and so do those that come later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from counterflow.windows.vectors import Array

CAPACITY_MIN = 1 << 10
WORD = 8  # bytes


class Sliding:
    """Named columns of equal length. A column that is new has zeros for the rows before it.

    `searched` are the columns that `search` is called with.
    """

    def __init__(self, first: int = 0, searched: Sequence[str] = ()) -> None:
        self._searched = searched
        self.first = self.next = first  # the numbers of the oldest live row and of the row to come
        self._begin = 0  # where the oldest live row lies
        self._capacity = CAPACITY_MIN
        self.compiled: Any = None  # the module `picking`, once it is there
        self._records = np.zeros(0, _record({}))
        self._apart: dict[str, Array] = {}
        self._columns: dict[str, Array] = {}

    def __len__(self) -> int:
        return self.next - self.first

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def append(self, columns: dict[str, Array], n: int) -> None:
        """Add `n` rows."""
        end = self._begin + len(self)
        if end + n > self._capacity:
            self._move(n)
            end = self._begin + len(self)
        if not self._columns:
            fields = {name: values.dtype for name, values in columns.items() if name not in self._searched}
            self._records = np.zeros(self._capacity, _record(fields))
        for name, values in columns.items():
            if name not in self._columns:
                if name not in (self._records.dtype.names or ()):
                    self._apart[name] = np.zeros(self._capacity, values.dtype)
                self._see_columns()
            self._columns[name][end : end + n] = values
        self.next += n

    def _see_columns(self) -> None:
        fields = {name: self._records[name] for name in self._records.dtype.names or ()}
        self._columns = fields | self._apart

    def drop(self, before: int) -> None:
        """Forget the rows before this number."""
        step = min(before, self.next) - self.first
        if step > 0:
            self.first += step
            self._begin += step

    def _places(self, rows: Array) -> Array:
        """Return where rows lie, until more are appended."""
        return np.ascontiguousarray(rows) - (self.first - self._begin)

    def pick(self, rows: Array) -> Picked:
        """Return these rows, with all columns."""
        places, records = self._places(rows), self._records
        if self.compiled is None:
            picked = records.take(places)
        else:
            picked, width = np.empty(len(places), records.dtype), records.dtype.itemsize // WORD
            self.compiled.pick_records(records.view(np.int64), width, places, picked.view(np.int64))
        return Picked(picked, self._apart, places)

    def get(self, name: str, rows: Array) -> Array:
        """Return a column's values of some rows."""
        places, column = self._places(rows), self._columns[name]
        if self.compiled is None or column.dtype != np.int64:
            return column[places]
        records, picked = self._apart.get(name, self._records), np.empty(len(places), np.int64)
        word = 0 if name in self._apart else records.dtype.fields[name][1] // WORD
        self.compiled.pick_words(records.view(np.int64), records.dtype.itemsize // WORD, word, places, picked)
        return picked

    def at(self, name: str, row: int) -> int:
        return int(self._columns[name][row - (self.first - self._begin)])

    def put(self, name: str, rows: Array, values: Array | int) -> None:
        self._columns[name][self._places(rows)] = values

    def least(self, name: str, rows: Array, values: Array) -> None:
        """Lower a column's values to the given ones; a row may occur several times."""
        np.minimum.at(self._columns[name], self._places(rows), values)

    def live(self, name: str, begin: int | None = None, end: int | None = None) -> Array:
        """Return a column's values of the rows from number `begin` up to `end`, not copied."""
        offset = self.first - self._begin
        begin, end = self.first if begin is None else begin, self.next if end is None else end
        column = self._columns.get(name)
        return np.empty(0, np.int64) if column is None else column[begin - offset : end - offset]

    def search(self, name: str, values: Any, side: str = "left") -> Any:
        """Return the first row whose (ordered) value is at least, or with side "right" above, each given one."""
        return np.searchsorted(self.live(name), values, side) + self.first  # type: ignore[call-overload]

    def _move(self, n: int) -> None:
        live, capacity = slice(self._begin, self._begin + len(self)), roomy(self._capacity, len(self) + n)
        if self._columns:
            self._records = moved(self._records, live, capacity)
            self._apart = {name: moved(array, live, capacity) for name, array in self._apart.items()}
            self._see_columns()
        self._begin, self._capacity = 0, capacity


def _record(fields: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the type of records with these fields: the wide ones first, so that all are aligned, and whole words."""
    names = sorted(fields, key=lambda name: -fields[name].itemsize)
    sizes = [fields[name].itemsize for name in names]
    offsets = [sum(sizes[:k]) for k in range(len(sizes))]
    size = -(-sum(sizes) // WORD) * WORD
    return np.dtype({"names": names, "formats": [fields[n] for n in names], "offsets": offsets, "itemsize": size})


class Picked:
    """Some rows: their records, and where they lie in the columns apart."""

    def __init__(self, records: Array, apart: dict[str, Array], places: Array) -> None:
        self._records, self._apart, self._places = records, apart, places

    def __getitem__(self, column: str) -> Array:
        apart = self._apart.get(column)
        return self._records[column] if apart is None else apart[self._places]

    def get(self, column: str) -> Array | None:
        """Return a column, or None if there is none of this name."""
        known = column in self._apart or column in (self._records.dtype.names or ())
        return self[column] if known else None


def roomy(capacity: int, needed: int) -> int:
    """Return a capacity that leaves at least half free, and not much more."""
    while capacity < 2 * needed:
        capacity *= 2
    while capacity > 8 * needed and capacity > CAPACITY_MIN:
        capacity //= 2
    return capacity


def moved(array: Array, live: slice, capacity: int) -> Array:
    """Return an array of this capacity that begins with the live part: the same array, if it has that capacity.

    Nothing overlaps then, because the live part has reached the end and is less than half of the array.
    """
    target = array if capacity == len(array) else np.empty(capacity, array.dtype)
    raw = np.dtype((np.void, array.dtype.itemsize))  # as bytes: numpy would copy records field by field
    target[: live.stop - live.start].view(raw)[:] = array[live].view(raw)
    return target
