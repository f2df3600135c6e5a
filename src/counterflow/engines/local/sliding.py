"""Rows that come at one end and go at the other: columns in numpy arrays whose live part slides along.

A row keeps its number for ever; numbers count from 0. The live part of a column is in one piece, so that it can be
searched. When it has reached the end of its array it is moved to the beginning, which moves a row less than once on
average.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterflow.windows.vectors import Array

CAPACITY_MIN = 1 << 10


class Sliding:
    """Named columns of equal length. A column that is new has zeros for the rows before it."""

    def __init__(self, first: int = 0) -> None:
        self.first = self.next = first  # the numbers of the oldest live row and of the row to come
        self._begin = 0  # where the oldest live row lies
        self._capacity = CAPACITY_MIN
        self._columns: dict[str, Array] = {}

    def __len__(self) -> int:
        return self.next - self.first

    def append(self, columns: dict[str, Array], n: int) -> None:
        """Add `n` rows."""
        end = self._begin + len(self)
        if end + n > self._capacity:
            self._move(n)
            end = self._begin + len(self)
        for name, values in columns.items():
            if name not in self._columns:
                self._columns[name] = np.zeros(self._capacity, values.dtype)
            self._columns[name][end : end + n] = values
        self.next += n

    def room(self, name: str, more: int) -> tuple[Array, int, int]:
        """Return a column's array, with room for `more` rows, and where its live part begins and ends there."""
        if self._begin + len(self) + more > self._capacity:
            self._move(more)
        return self._columns[name], self._begin, self._begin + len(self)

    def note(self, n: int) -> None:
        """Count `n` rows that were written to the room there is."""
        self.next += n

    def drop(self, before: int) -> None:
        """Forget the rows before this number."""
        step = min(before, self.next) - self.first
        if step > 0:
            self.first += step
            self._begin += step

    def _places(self, rows: Array) -> Array:
        """Return where rows lie, until more are appended."""
        return rows - (self.first - self._begin)

    def get(self, name: str, rows: Array) -> Array:
        """Return a column's values of some rows."""
        return self._columns[name][self._places(rows)]

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
        self._columns = {name: moved(array, live, capacity) for name, array in self._columns.items()}
        self._begin, self._capacity = 0, capacity


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
    target[: live.stop - live.start] = array[live]
    return target
