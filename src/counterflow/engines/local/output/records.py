"""Rows of a fixed width that results pick from anywhere in a window: one ring of records.

All that a result has of a row lies in one or two cache lines, and a row never moves until it is forgotten. A row keeps
its number for ever; numbers count from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.windows.vectors import Array, contiguous

CAPACITY_MIN = 1 << 10
WORD = 8  # bytes
CACHE_LINE = 64
GROWTH = 5, 4  # of what a ring must hold, it has room for this much: fresh memory costs more than old one
SPARSE = 8  # a ring that is so many times larger than what it holds is made smaller


class Records:
    """Columns of equal length, as fields of records.

    A column that is new has zeros for the rows before it, and is given with all rows from then on.
    """

    def __init__(self) -> None:
        self.first = self.next = 0  # the numbers of the oldest live row and of the row to come
        self.compiled: Any = None  # the module `picking`, once it is there
        self._ring = np.zeros(0, _record({}))
        self._address = 0
        self.fields: tuple[str, ...] = ()
        self._tables: dict[tuple[str, ...], tuple[Array, list[int]]] = {}  # for compiled code, by the fields it copies

    def __len__(self) -> int:
        return self.next - self.first

    def __contains__(self, column: str) -> bool:
        return column in self.fields

    def append(self, columns: dict[str, Array], n: int) -> None:
        """Add `n` rows."""
        if not n:
            return
        if len(columns) > len(self.fields) or not self._fits(n):
            self._make(columns, n)
        done = 0
        while done < n:  # twice, if they go round the ring's end
            slot = self.next % len(self._ring)
            count = min(n - done, len(self._ring) - slot)
            self._write(slot, count, columns if count == n else {k: v[done : done + count] for k, v in columns.items()})
            self.next += count
            done += count

    def room(self, more: int) -> tuple[int, int, int]:
        """Return where the ring begins, with room for `more` rows, a record's bytes, and how many records it has."""
        if self.fields and not self._fits(more):
            self._make({}, more)
        return self._address, self._ring.dtype.itemsize, len(self._ring)

    def place(self, field: str) -> tuple[int, int]:
        """Return where a field begins in a record, and how many bytes it has."""
        assert self._ring.dtype.fields is not None
        dtype, offset = self._ring.dtype.fields[field][:2]
        return offset, dtype.itemsize

    def note(self, n: int) -> None:
        """Count `n` rows that were written to the room there is."""
        self.next += n

    def drop(self, before: int) -> None:
        """Forget the rows before this number."""
        self.first = max(self.first, min(before, self.next))

    def _fits(self, n: int) -> bool:
        needed = len(self) + n
        return needed <= len(self._ring) <= max(SPARSE * needed, CAPACITY_MIN)

    def _make(self, columns: dict[str, Array], n: int) -> None:
        """Make a ring with room for `n` more rows and for new columns, and move the live rows there."""
        before, fields = self._ring, {name: self._ring.dtype[name] for name in self.fields}
        fields |= {name: values.dtype for name, values in columns.items() if name not in fields}
        capacity = max((len(self) + n) * GROWTH[0] // GROWTH[1], CAPACITY_MIN)
        record = _record(fields)
        # numpy's memory, as it has huge pages; aligned, so that no small record lies in two cache lines
        memory = np.empty(capacity * record.itemsize + CACHE_LINE, np.uint8)
        begin = -memory.ctypes.data % CACHE_LINE
        self._address = memory.ctypes.data + begin
        self._ring = memory[begin : begin + capacity * record.itemsize].view(record)
        self.fields, self._tables = tuple(fields), {}
        row = self.first
        while row < self.next:  # in pieces that lie side by side here and there
            old, new = row % len(before), row % capacity
            n = min(self.next - row, len(before) - old, capacity - new)
            for name in fields:
                known = name in (before.dtype.names or ())
                self._ring[name][new : new + n] = before[name][old : old + n] if known else np.zeros((), fields[name])
            row += n

    def _write(self, slot: int, n: int, columns: dict[str, Array]) -> None:
        if self.compiled is None:
            for name, values in columns.items():
                self._ring[name][slot : slot + n] = values
            return
        table, sizes = self._table(tuple(columns))
        sources = [values if values.flags.c_contiguous else np.ascontiguousarray(values) for values in columns.values()]
        assert all(source.itemsize == size for source, size in zip(sources, sizes, strict=True))
        table[:, 2] = [source.__array_interface__["data"][0] for source in sources]
        self.compiled.write_fields(self._address, self._width, slot, n, table)

    def pick(self, rows: Array, names: tuple[str, ...]) -> list[pa.Buffer]:
        """Return the values that these rows have in some columns."""
        if self.compiled is None:
            slots = rows % len(self._ring)
            return [pa.py_buffer(np.ascontiguousarray(self._ring[name][slots])) for name in names]
        table, sizes = self._table(names)
        picked = [pa.allocate_buffer(len(rows) * size) for size in sizes]
        table[:, 2] = [buffer.address for buffer in picked]
        size = len(self._ring) or 1
        self.compiled.pick_fields(
            self._address, self._width, size, self.first - self.first % size, contiguous(rows), table
        )
        return picked

    def get(self, name: str, rows: Array) -> Array:
        """Return a column's values of some rows."""
        return np.frombuffer(self.pick(rows, (name,))[0], self._ring.dtype[name])

    def at(self, name: str, row: int) -> int:
        return int(self._ring[name][row % len(self._ring)])

    @property
    def _width(self) -> int:
        return self._ring.dtype.itemsize // WORD

    def _table(self, names: tuple[str, ...]) -> tuple[Array, list[int]]:
        """Return what compiled code needs to know of fields, with a place for their columns' addresses; their sizes."""
        if names not in self._tables:
            known = self._ring.dtype.fields or {}
            sizes = [known[name][0].itemsize for name in names]
            table = [(known[name][1], size, 0) for name, size in zip(names, sizes, strict=True)]
            self._tables[names] = np.array(table, np.int64).reshape(-1, 3), sizes
        return self._tables[names]


def _record(fields: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the type of records with these fields: the wide ones first, so that all are aligned.

    A record that is shorter than a cache line has a power of two of bytes, so that it lies in one; others whole words.
    """
    names = sorted(fields, key=lambda name: -fields[name].itemsize)
    sizes = [fields[name].itemsize for name in names]
    offsets = [sum(sizes[:k]) for k in range(len(sizes))]
    size = -(-max(sum(sizes), 1) // WORD) * WORD
    if size < CACHE_LINE:
        size = 1 << (size - 1).bit_length()
    return np.dtype({"names": names, "formats": [fields[n] for n in names], "offsets": offsets, "itemsize": size})
