"""The live rows of a window as columns in rings: row number n lies in slot n modulo the capacity.

Rows come in the order of their arrival and get consecutive numbers; the oldest go first. A row has a coordinate
`at` (its ordinal or its time). Where coordinates come slightly out of order, `reached` (the largest so far) tells
from which row on a coordinate can occur at all: so the old end is kept a little longer, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from counterflow.predicate.types import SqlType
from counterflow.windows.vectors import Array, Vector, dtype_of

CAPACITY_MIN = 1 << 10
INT64 = np.iinfo(np.int64)
SHRINK = 8  # when no more than this part of the capacity is used, it is halved until more than a quarter is


def of_predicate(name: str) -> str:
    """Return what a predicate's column is called in the ring, beside the ring's own."""
    return f"column {name}"


def validity_of(name: str) -> str:
    """Return what the validity of a predicate's column is called there."""
    return f"valid {name}"


class Ring:
    """Named columns of equal capacity, a power of two."""

    def __init__(self, expected_rows: int = 0) -> None:
        self.capacity_min = max(CAPACITY_MIN, 1 << max(expected_rows - 1, 0).bit_length())
        self.capacity = self.capacity_min
        self.first = 0  # the oldest live row
        self.next = 0  # the row to come
        self.in_order = True  # coordinates never went back
        self.offset: int | None = None  # at - row, while that is the same for all rows
        self.columns: dict[str, Array] = {"at": np.empty(self.capacity, np.int64)}

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    @property
    def reached(self) -> str:
        return "at" if self.in_order else "reached"

    def append(self, at: Array, columns: dict[str, Array]) -> bool:
        """Add rows; columns that are new get zeros for earlier rows. Return whether the rows moved to new slots."""
        n = len(at)
        moved = self._resize(n)
        for name, values in columns.items():
            kept = self.columns.get(name)
            if kept is None:
                self.columns[name] = np.zeros(self.capacity, values.dtype)
            elif values.dtype == object and kept.dtype != object:  # integers that need more than 64 bits
                self.columns[name] = kept.astype(object)
        self._note_order(at)
        for name, values in {"at": at, **columns}.items():
            self.write(name, self.next, values)
        if "reached" in self.columns:
            newest = self._newest_before(self.next)
            self.write("reached", self.next, np.maximum(np.maximum.accumulate(at), newest))
        self.next += n
        return moved

    def expire(self, before: int) -> None:
        """Forget the rows up to the last one before which no coordinate reaches `before`."""
        self.first = int(self.search(np.array([before]), "left", self.reached)[0])

    def search(self, values: Array, side: str, column: str = "at") -> Array:
        """Return the first rows whose (ordered) column is at least the values, or with side "right" above them."""
        if self.offset is not None and column in ("at", "reached"):
            # held between the ends, so that far bounds do not overflow
            lowest, highest = max(self.first + self.offset - 1, INT64.min), min(self.next + self.offset, INT64.max)
            rows = np.minimum(np.maximum(values, lowest), highest) - self.offset
            return np.minimum(np.maximum(rows + (side == "right"), self.first), self.next)
        result = np.full(len(values), self.first)
        for begin, part in self.spans(column):
            beyond = result == begin
            result[beyond] += np.searchsorted(part, values[beyond], side)  # type: ignore[call-overload]
        return result

    def spans(self, column: str) -> Iterator[tuple[int, Array]]:
        """Yield the live part of a column in at most two pieces, each with the number of its first row."""
        row = self.first
        while row < self.next:
            slot = row & (self.capacity - 1)
            end = min(self.next, row + self.capacity - slot)
            yield row, self.columns[column][slot : slot + end - row]
            row = end

    def vectors(self, types: Mapping[str, SqlType], slots: Array) -> dict[str, Vector]:
        """Return the predicate's columns (`types`, by name) of the rows in these slots, for `windows.evaluate`."""
        found = {}
        for name, type_ in types.items():
            values, valid = self.columns[of_predicate(name)][slots], self.columns.get(validity_of(name))
            if values.dtype != object:
                values = values.astype(dtype_of(type_), copy=False)
            found[name] = Vector(type_, values, None if valid is None else valid[slots])
        return found

    def live(self, column: str) -> Array:
        parts = [part for _, part in self.spans(column)]
        return np.concatenate(parts) if parts else self.columns[column][:0]

    def _note_order(self, at: Array) -> None:
        if not len(at):
            return
        newest = self._newest_before(self.next)
        dense = int(at[-1]) - int(at[0]) == len(at) - 1 and bool((at[1:] - at[:-1] == 1).all())
        if self.in_order and (at[0] < newest or not (dense or (at[1:] >= at[:-1]).all())):
            self.in_order = False
            self.columns["reached"] = self.columns["at"].copy()  # in order until now
        offset, dense = int(at[0]) - self.next, dense and self.in_order
        if self.first == self.next:
            self.offset = offset if dense else None
        elif not dense or offset != self.offset:
            self.offset = None

    def _newest_before(self, row: int) -> int:
        if row == self.first:
            return int(np.iinfo(np.int64).min)
        return int(self.columns[self.reached][(row - 1) & (self.capacity - 1)])

    def write(self, name: str, row: int, values: Array) -> None:
        """Set a column of the rows from number `row` on."""
        if name not in self.columns:
            self.columns[name] = np.zeros(self.capacity, values.dtype)
        slot = row & (self.capacity - 1)
        head = min(len(values), self.capacity - slot)
        column = self.columns[name]
        column[slot : slot + head] = values[:head]
        column[: len(values) - head] = values[head:]

    def _resize(self, more: int) -> bool:
        needed, capacity = len(self) + more, self.capacity
        while capacity < needed:
            capacity *= 2
        if needed * SHRINK <= capacity:
            while capacity > self.capacity_min and needed * 4 <= capacity:
                capacity //= 2
        if capacity == self.capacity:
            return False
        slots = np.arange(self.first, self.next) & (capacity - 1)
        for name, column in list(self.columns.items()):
            moved = np.empty(capacity, column.dtype)  # not zeros: large arrays get huge pages this way
            moved[slots] = self.live(name)
            self.columns[name] = moved
        self.capacity = capacity
        return True
