"""Few rows at a time: the same windows as for many, without the work that only pays for many.

A batch of one row through `WindowStore` makes some hundred small objects and numpy calls, which take ten times as long
as the search. Here are the calls of compiled code alone, on the same rings and indexes: each batch may go one way or
the other. What is not plain goes the long way: `FewRows.ready` says when.
"""

from __future__ import annotations

import numpy as np

from counterflow.predicate.expression import Column, Expression, Side
from counterflow.windows.compiled.block import AT, FOUND, LEFT_OVER, STATUS_WORDS, UNSURE, WAITING, WORK_SHAPE
from counterflow.windows.compiled.compiled_predicate import BY_KEY, Keyed, kernel_array
from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.evaluate import Columns
from counterflow.windows.pair_buffers import Pairs
from counterflow.windows.row_ring import of_predicate
from counterflow.windows.store import Batch, WindowStore
from counterflow.windows.two_windows import TwoWindows
from counterflow.windows.vectors import Array

ROWS_MAX = 256


class FewRows:
    """Arrivals of one side, at most ROWS_MAX at a time: stored in its window, and looked for in the other one."""

    def __init__(self, windows: TwoWindows) -> None:
        self._stores = windows.left, windows.right
        path = windows.left.path
        self._equal = [equality.key for equality in path.equalities]
        self._bands = [band.key for band in path.bands]
        sides: tuple[Side, Side] = ("left", "right")
        self._plain = (
            len(self._equal) + len(self._bands) > 0
            and len(self._equal) <= 1
            and all(_is_plain(key(side), exact=True) for key in self._equal for side in sides)
            and all(_is_plain(key(side), exact=False) for key in self._bands for side in sides)
        )
        self._usable = np.full(ROWS_MAX, BY_KEY, np.uint8)
        self._no_hashes = np.zeros(ROWS_MAX, np.uint64)
        self._status, self._work = np.zeros(STATUS_WORDS, np.int64), np.empty(WORK_SHAPE, np.int64)
        self._over, self._pairs = np.empty(ROWS_MAX, np.int64), Pairs()
        self._range = np.empty((2, ROWS_MAX), np.int64)

    def ready(self, i: int, n: int) -> bool:
        """Return whether `n` rows of a side, the left one for 0, can go this way: its ring has room side by side."""
        if not self._plain or n > ROWS_MAX:
            return False
        ring = self._stores[i].ring
        slot = ring.next & (ring.capacity - 1)
        return (
            all(map(_is_plain_window, self._stores))
            and ring.next - ring.first + n <= ring.capacity
            and slot + n <= ring.capacity
        )

    def join(
        self,
        i: int,
        columns: Columns,
        first: int,
        times: Array,
        reach: tuple[int, int],
        known: Array,
        of: int,
    ) -> tuple[Array, Array]:
        """Store and look for the rows of a side, numbered from `first` on; return their pairs' left and right numbers.

        `known` are the times of the opposite rows from number `of` on: those are met whose distance is within `reach`.
        """
        n, own, other = len(times), self._stores[i], self._stores[1 - i]
        arrays = {name: kernel_array(vector) for name, vector in columns.items()}
        keyed = self._keyed(own, arrays, n)
        self._append(own, arrays, keyed, first, n)
        ring = other.ring
        if ring.first == ring.next:
            return _NOTHING, _NOTHING
        assert ring.offset is not None
        oldest, newest = self._range[0, :n], self._range[1, :n]
        rows_within = compiled_module("arrivals").rows_within
        rows_within(times, *reach, known, of, ring.offset, ring.first, ring.next, oldest, newest)
        probes, met = self._probe(other, keyed, columns, oldest, newest)
        return (probes + first, met) if i == 0 else (met, probes + first)

    def _keyed(self, own: WindowStore, arrays: dict[str, Array], n: int) -> Keyed:
        hashes, keys = self._no_hashes[:n], np.empty((len(self._bands), n), np.float64)
        for key in self._equal:
            hashes = arrays[_name(key(own.side))].astype(np.int64, copy=False).view(np.uint64)
        for k, key in enumerate(self._bands):
            keys[k] = arrays[_name(key(own.side))]
        assert own._compiled is not None
        wanted = own._compiled.kernels.shape.stored_columns
        return Keyed(hashes, keys, self._usable[:n], tuple(arrays[column.name] for column in wanted))

    def _append(self, own: WindowStore, arrays: dict[str, Array], keyed: Keyed, first: int, n: int) -> None:
        ring, window = own.ring, own._compiled
        assert window is not None
        slot = ring.next & (ring.capacity - 1)
        ring.columns["at"][slot : slot + n] = np.arange(first, first + n)
        for name, array in arrays.items():
            ring.columns[of_predicate(name)][slot : slot + n] = array
        begin = ring.next
        ring.next += n
        window.append(keyed, begin)

    def _probe(
        self, other: WindowStore, keyed: Keyed, columns: Columns, oldest: Array, newest: Array
    ) -> tuple[Array, Array]:
        window, status, n = other._compiled, self._status, len(oldest)
        assert window is not None and other.ring.offset is not None
        status[:] = 0
        window.kernels.index.probe(
            n, keyed.hashes, keyed.keys, keyed.usable, window.bands, oldest, newest, keyed.columns, window.constants,
            window.heads, window.records, other.ring.first, self._work, self._pairs.probes, self._pairs.rows,
            self._over, status,
        )  # fmt: skip
        words = status.tolist()
        at, found, left_over, unsure, waiting = (words[k] for k in (AT, FOUND, LEFT_OVER, UNSURE, WAITING))
        if at == n and not (left_over or unsure or waiting):
            return self._pairs.probes[:found].copy(), self._pairs.rows[:found] + other.ring.offset
        offset, number = other.ring.offset, np.arange(n)
        side: Side = "right" if other.side == "left" else "left"
        parts = list(other.probe(Batch(side, columns, number, number, oldest + offset, newest + offset)))
        return (
            np.concatenate([_NOTHING, *(part[0] for part in parts)]),
            np.concatenate([_NOTHING, *(part[1] for part in parts)]),
        )


_NOTHING = np.empty(0, np.int64)


def _name(key: Expression) -> str:
    assert isinstance(key, Column)
    return key.name


def _is_plain(key: Expression, exact: bool) -> bool:
    """Return whether a key is a column of whole numbers, or else also of floating-point ones."""
    if not isinstance(key, Column) or key.type.is_decimal:
        return False
    return key.type.is_exact or (key.type.is_float and not exact)


def _is_plain_window(store: WindowStore) -> bool:
    """Return whether a window is searched by a compiled index, holds no NULL, and knows a row's number by its place."""
    window, ring = store._compiled, store.ring
    return (
        window is not None
        and window.access == "index"
        and window.bands is not None
        and not window.nullable
        and not window.kernels.shape.hashed
        and store._rows_are_coordinates
        and ring.offset is not None
        and ring.in_order
    )
