"""Few rows at a time: the same windows as for many, without the work that only pays for many.

A batch of one row through `WindowStore` makes some hundred small objects and numpy calls, which take ten times as long
as the search. Here one call of compiled code (`compiled.few`) stores and looks for it, on the same rings and indexes:
each batch may go one way or the other. What is not plain goes the long way: `FewRows.refresh` says when.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.predicate.expression import SIDES, Column, Expression
from counterflow.windows.compiled import block
from counterflow.windows.compiled.compiled_predicate import BY_KEY
from counterflow.windows.compiled.compiled_window import CompiledWindow
from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.pair_buffers import PAIRS_MIN
from counterflow.windows.row_ring import of_predicate
from counterflow.windows.store import Batch, WindowStore
from counterflow.windows.times import is_plain_time
from counterflow.windows.two_windows import TwoWindows
from counterflow.windows.vectors import Array, from_arrow_column, kernel_dtype

ROWS_MAX = 256
_NOTHING = np.empty(0, np.int64)

_pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _is_plain_number(type_: pa.DataType) -> bool:
    """Return whether compiled code reads columns of this type where Arrow has them."""
    return pa.types.is_signed_integer(type_) or type_ in (pa.float32(), pa.float64()) or is_plain_time(type_)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _words(*values: int) -> Array:
    return np.array([*values, 0], np.int64)  # not empty


class _Arena:
    """Where the rows of a side are copied to: the predicate's columns, the equality's hash, the bands' keys."""

    def __init__(self, store: WindowStore, schema: pa.Schema) -> None:
        path, bands = store.path, len(store.path.bands)
        equal = [equality.key(store.side) for equality in path.equalities]
        keys = [band.key(store.side) for band in path.bands]
        self.names = list(store.types)
        self.children = [schema.get_field_index(name) for name in self.names]
        types = [schema.field(child).type for child in self.children]
        self.plain = (
            len(equal) <= 1
            and not path.overlaps
            and len(equal) + bands > 0
            and all(map(_is_plain_number, types))
            and all(_is_plain(key, exact=True) for key in equal)
            and all(_is_plain(key, exact=False) for key in keys)
        )
        if not self.plain:
            return
        self.columns = {name: np.zeros(ROWS_MAX, kernel_dtype(store.types[name])) for name in self.names}
        self.usable = np.full(ROWS_MAX, BY_KEY, np.uint8)
        self.hashes, self.keys = np.zeros(ROWS_MAX, np.uint64), np.zeros((bands, ROWS_MAX))
        self.widths = [type_.bit_width // 8 for type_ in types]
        self.floats = [pa.types.is_floating(type_) for type_ in types]
        self.hashed = self.names.index(_name(equal[0])) if equal else -1
        self.keyed = _words(*(self.names.index(_name(key)) for key in keys))

    def descriptor(self, names: Sequence[str], keys: Array) -> Array:
        """Return its arrays as `compiled.block` describes them, with these columns and keys."""
        arrays: list[Array] = [self.hashes, self.usable, keys, *(self.columns[name] for name in names)]
        return _words(ROWS_MAX - 1, *(_address(array) for array in arrays))

    def table(self, ring: dict[str, Array]) -> Array:
        """Return `COLUMNS` of `compiled.few`, for a ring with these columns."""
        kept = [(_address(ring[of_predicate(name)]), _address(self.columns[name])) for name in self.names]
        rows = zip(self.children, self.widths, self.floats, kept, strict=True)
        return _words(*(word for child, width, is_float, at in rows for word in (child, width, is_float, *at)))


class FewRows:
    """Arrivals of one side, at most ROWS_MAX at a time: stored in its window, and looked for in the other one.

    `reach` says for each side how much earlier and later than its tuples those are that they meet.
    """

    def __init__(
        self, windows: TwoWindows, schemas: Sequence[pa.Schema], times: Sequence[str], reach: Sequence[tuple[int, int]]
    ) -> None:
        self._stores = windows.left, windows.right
        self._arenas = [_Arena(store, schema) for store, schema in zip(self._stores, schemas, strict=True)]
        self.plain = all(arena.plain for arena in self._arenas) and all(
            is_plain_time(schema.field(time).type) for schema, time in zip(schemas, times, strict=True)
        )
        self._children = [schema.get_field_index(time) for schema, time in zip(schemas, times, strict=True)]
        self._reach = reach
        self._kernels: Any = None
        self._of: list[CompiledWindow | None] = [None, None]  # the windows that the blocks are made for
        self._blocks = [np.zeros(block.BLOCK_WORDS, np.int64) for _ in SIDES]
        self._kept: dict[Any, Any] = {}  # what compiled code knows by address
        self._out = np.zeros((2, PAIRS_MIN), np.int64)
        self._range = np.zeros((2, ROWS_MAX), np.int64)

    # --- where all lies

    def refresh(self) -> bool:
        """Learn where windows and indexes are now; return whether rows can go this way.

        It is to be called whenever rows may have gone the long way.
        """
        if not self.plain or not all(store.takes_few for store in self._stores):
            return False
        if self._kernels is None:
            self._kernels = few = compiled_module("few")
            assert few.ROWS_MAX == ROWS_MAX
            self.words = np.zeros(few.WORDS, np.int64)
            self.words[[few.OLDEST, few.NEWEST]] = [_address(row) for row in self._range]
            self.words[[few.OUT_PROBE, few.OUT_ROW]] = [_address(row) for row in self._out]
        for i, store in enumerate(self._stores):
            if self._of[i] is not store.one_window:
                self._make_block(i)
            self._point(i)
        return True

    def _make_block(self, i: int) -> None:
        """Write what stays as long as a window's kernels do."""
        few, window = self._kernels, self._stores[i].one_window
        assert window is not None
        self._of[i], shape = window, window.kernels.shape
        own, other = self._arenas[i], self._arenas[1 - i]
        stored, probing = ([column.name for column in c] for c in (shape.stored_columns, shape.probe_columns))
        staged = np.zeros_like(own.keys)  # side by side for as many rows as there are, so not where the arena has them
        kept: dict[int, Array] = {
            block.STORED: own.descriptor(stored, own.keys),
            block.PROBING: other.descriptor(probing, other.keys),
            block.STAGE: own.descriptor(stored, staged),
            block.RING: np.zeros(block.RING_COLUMNS + len(stored) + 3, np.int64),  # it is written here, not there
            block.CONSTANTS: _words(*(int(np.array([c]).view(np.int64)[0]) for c in window.constants)),
            block.OLDEST: self._range[0],
            block.NEWEST: self._range[1],
            block.WORK: np.zeros(block.WORK_SHAPE, np.int64),
            block.CHOSEN: np.zeros(ROWS_MAX, np.int64),
            block.PROBE_KEYS: np.zeros_like(other.keys),
            block.OUT_PROBE: self._out[0],
            block.OUT_ROW: self._out[1],
        }
        b = self._blocks[i]
        b[list(kept)] = [_address(array) for array in kept.values()]
        b[block.OUT_SIZE], b[block.COPIES], b[block.DONE] = PAIRS_MIN, 0, 0
        at, words = i * few.SIDE_WORDS, self.words
        words[at + few.BLOCK] = _address(b)
        words[at + few.STORE], words[at + few.PROBE] = (
            window.kernels.indexed.store.address,
            window.kernels.indexed.probe.address,
        )
        words[at + few.HASHES], words[at + few.KEYS] = _address(own.hashes), _address(own.keys)
        words[at + few.HASHED] = own.hashed
        words[at + few.KEYED], words[at + few.KEYED_COUNT] = _address(own.keyed), len(own.keyed) - 1
        words[at + few.COLUMNS_COUNT], words[at + few.TIME_CHILD] = len(own.names), self._children[i]
        words[at + few.BEFORE], words[at + few.AFTER] = self._reach[i]
        self._kept[i] = kept, staged

    def _point(self, i: int) -> None:
        """Say where the rows of a window and their index lie."""
        few, store, at, words = self._kernels, self._stores[i], i * self._kernels.SIDE_WORDS, self.words
        ring = store.ring
        assert ring.offset is not None
        words[at + few.OFFSET], words[at + few.RING_AT] = ring.offset, _address(ring.columns["at"])
        words[at + few.FIRST_ROW], words[at + few.NEXT_ROW] = ring.first, ring.next
        words[at + few.RING_MASK] = ring.capacity - 1
        table = self._kept["columns", i] = self._arenas[i].table(ring.columns)
        words[at + few.COLUMNS] = _address(table)
        self._point_index(i)

    def _point_index(self, i: int) -> None:
        window, b = self._stores[i].one_window, self._blocks[i]
        assert window is not None and window.bands is not None
        b[block.HEADS], b[block.HEADS_SIZE] = _address(window.heads), len(window.heads)
        b[block.RECORDS], b[block.RECORDS_SIZE] = _address(window.records), len(window.records)
        b[block.POOL], b[block.NUMBERS] = _address(window.pool), _address(window.numbers)
        b[block.BANDS], b[block.FIRST_ROW] = _address(window.bands), self._stores[i].ring.first

    def point_times(self, i: int, times: Array, begin: int, end: int, first: int, frontier: int) -> None:
        """Say where a side's known times lie: from `begin` up to `end` of an array, from the number `first` on."""
        few, at, words = self._kernels, i * self._kernels.SIDE_WORDS, self.words
        words[at + few.TIMES], words[at + few.TIMES_SIZE] = _address(times), len(times)
        words[at + few.TIMES_BEGIN], words[at + few.TIMES_END], words[at + few.TIMES_FIRST] = begin, end, first
        words[at + few.FRONTIER] = frontier

    def point_records(
        self, i: int, address: int, width: int, size: int, span: tuple[int, int], fields: Sequence[tuple[int, int, int]]
    ) -> None:
        """Say where the records of a side's rows lie: `size` of `width` bytes, the rows of a `span` among them.

        `fields`: of which columns they consist, where each begins in a record, and how many bytes it has.
        """
        few, at, words = self._kernels, i * self._kernels.SIDE_WORDS, self.words
        words[at + few.RECORDS], words[at + few.RECORDS_WIDTH], words[at + few.RECORDS_SIZE] = address, width, size
        words[at + few.RECORDS_FIRST], words[at + few.RECORDS_NEXT] = span
        table = self._kept["fields", i] = _words(*(word for field in fields for word in field))
        words[at + few.FIELDS], words[at + few.FIELDS_COUNT] = _address(table), len(fields)

    # --- rows

    def take(self, i: int, batch: pa.RecordBatch, keeps: bool) -> int | None:
        """Store and look for the rows of a side's batch; with `keeps`, write their records, too.

        Return how many pairs are ready for `give`; -1 if they are to be searched for (`search`); None if nothing was
        done, because the batch cannot go this way.
        """
        few, (_, capsule) = self._kernels, batch.__arrow_c_array__()
        pointer, counted = _pointer_of(capsule, b"arrow_array"), self._blocks[1 - i]
        counted[block.CANDIDATES] = 0
        while (pairs := few.take(self.words, i, pointer, keeps)) == few.INDEX_FULL:
            window = self._stores[i].one_window
            assert window is not None
            window.grow()
            self._point_index(i)
        if pairs in (few.NOT_PLAIN, few.NO_ROOM):
            return None
        self._stores[i].ring.next += batch.num_rows
        if pairs >= 0:
            self._stores[1 - i].looked_at[self._stores[1 - i].path.name] += int(counted[block.CANDIDATES])
        return max(pairs, -1)

    def newest(self, i: int) -> int:
        """Return the time of the last row of a side."""
        return int(self.words[i * self._kernels.SIDE_WORDS + self._kernels.FRONTIER])

    def pairs(self, i: int, count: int) -> tuple[Array, Array]:
        """Return the left and right numbers of the pairs that were found for rows of side `i`."""
        own, other = self._out[:, :count].copy()
        return (own, other) if i == 0 else (other, own)

    def search(self, i: int, batch: pa.RecordBatch) -> tuple[Array, Array]:
        """Look for rows that are stored, by everything that windows can do; return their pairs' numbers."""
        store, n = self._stores[1 - i], batch.num_rows
        offset, first = store.ring.offset, self._stores[i].ring.next - n + (self._stores[i].ring.offset or 0)
        columns = {name: from_arrow_column(name, batch.column(name)) for name in self._arenas[i].names}
        number = np.arange(n)
        low, high = self._range[:, :n] + (offset or 0)
        parts = list(store.probe(Batch(SIDES[i], columns, number, number, low, high)))
        own = np.concatenate([_NOTHING, *(part[0] for part in parts)]) + first
        other = np.concatenate([_NOTHING, *(part[1] for part in parts)])
        return (own, other) if i == 0 else (other, own)

    def give(self, i: int, count: int, message: Array, columns: Array, target: int) -> None:
        """Write the results of the pairs of side `i`'s rows: see `compiled.few.give`."""
        self._kernels.give(self.words, i, count, message, columns, target)


def _name(key: Expression) -> str:
    assert isinstance(key, Column)
    return key.name


def _is_plain(key: Expression, exact: bool) -> bool:
    """Return whether a key is a column of whole numbers, or else also of floating-point ones."""
    if not isinstance(key, Column) or key.type.is_decimal:
        return False
    return key.type.is_exact or (key.type.is_float and not exact)
