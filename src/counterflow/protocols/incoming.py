"""Where arriving tuples are written, and nodes read them: rings of columns by place, one for each lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from counterflow.protocols import words as w
from counterflow.windows.compiled.compiled_predicate import CompiledPredicate
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array


def address(array: Array) -> int:
    return int(array.ctypes.data)


def descriptor(mask: int, *arrays: Array) -> Array:
    """A mask and the addresses of arrays, in words that compiled code reads."""
    return np.array([mask, *map(address, arrays), *[0] * w.STAMP_WORDS], np.int64)


@dataclass(frozen=True)
class Place:
    """Where the tuples of one lane are, as descriptors."""

    stamps: Array
    stored: Array
    probing: Array


class Incoming:
    """The tuples of one side that are under way. Tuple x is in lane x % lanes, at place x // lanes."""

    def __init__(
        self, side: int, own: CompiledPredicate, opposite: CompiledPredicate, lanes: int, capacity: int
    ) -> None:
        self.side, self.own, self.opposite, self.lanes = side, own, opposite, lanes
        self.capacity = capacity  # of a lane
        self.next = 0  # the tuple to come
        self.bands: Array | None = None
        self.scanned = False  # whether nodes compare these tuples with whole windows; then they are bounded
        sides = own.path.stored
        self.same_keys = own.path.keys(sides) == opposite.path.keys(sides)
        self.kept: list[object] = []
        self._allocate()

    def _allocate(self) -> None:
        lanes, n, shape = self.lanes, self.capacity, self.own.kernels.shape
        other = self.opposite.kernels.shape
        self.low, self.high = np.zeros((2, lanes, n), np.int64)
        self.columns = [np.zeros((lanes, n), d) for d in shape.dtypes(shape.stored_columns)]
        keys = [dtype for dtype, _ in other.scan_keys] * 2
        self.bounds = [np.full((lanes, n), end, d) for d, end in zip(keys, self.opposite.no_bounds, strict=True)]
        self.keyed = self._key_arrays(shape.key_rows)
        self.probe_keyed = self.keyed if self.same_keys else self._key_arrays(other.key_rows)
        self.places = []
        for lane in range(lanes):
            stamps = np.zeros(w.STAMP_WORDS, np.int64)
            stamps[:5] = n - 1, address(self.low[lane]), address(self.high[lane]), lanes, lane
            columns = [c[lane] for c in self.columns]
            stored = descriptor(n - 1, *(k[lane] for k in self.keyed), *columns)
            probing = descriptor(n - 1, *(k[lane] for k in self.probe_keyed), *columns, *(b[lane] for b in self.bounds))
            self.places.append(Place(stamps, stored, probing))
        self.kept += [self.low, self.high, self.columns, self.bounds, self.keyed, self.probe_keyed, self.places]

    def _key_arrays(self, dimensions: int) -> tuple[Array, Array, Array]:
        lanes, n = self.lanes, self.capacity
        return np.zeros((lanes, n), np.uint64), np.zeros((lanes, n), np.uint8), np.zeros((lanes, dimensions, n))

    def copied(self) -> Array:
        """Return a table for compiled code of the arrays that make a tuple, the first lane's: addresses and bytes."""
        arrays = [*(c[0] for c in self.columns), *(b[0] for b in self.bounds)]
        for hashes, usable, keys in [self.keyed, *([] if self.same_keys else [self.probe_keyed])]:
            arrays += [hashes[0], usable[0], *keys[0]]
        table = np.array([len(arrays), *(word for a in arrays for word in (address(a), a.itemsize))], np.int64)
        self.kept.append(table)
        return table

    def resize(self, rows: int) -> None:
        """Make room for this many tuples; nothing may have been written yet."""
        assert self.next == 0
        self.capacity = max(self.capacity, 1 << max(-(-rows // self.lanes) - 1, 0).bit_length())
        self._allocate()

    def grow(self, oldest: int) -> None:
        """Double the capacity; tuples from `oldest` on move."""
        before = [self.low, self.high, *self.columns, *self.bounds, *self.keyed]
        other = [] if self.same_keys else list(self.probe_keyed)
        old, self.capacity = self.capacity, 2 * self.capacity
        self._allocate()
        after = [self.low, self.high, *self.columns, *self.bounds, *self.keyed]
        after += [] if self.same_keys else list(self.probe_keyed)
        for lane in range(self.lanes):
            places = np.arange(oldest // self.lanes, -(-self.next // self.lanes))
            for a, b in zip(before + other, after, strict=True):
                b[lane, ..., places & (self.capacity - 1)] = a[lane, ..., places & (old - 1)]

    def write(self, batch: Batch) -> None:
        """Write the next tuples, of one round through the ring; there must be room for them."""
        n, side = len(batch), batch.side
        own = self.own.keyed(side, batch.columns, batch.arrays, n)
        if self.bands is None:
            self.bands = self.own.band_table(own.keys)
        self._put([self.low, self.high, *self.columns], [batch.low, batch.high, *own.columns])
        if self.scanned:
            lower, upper = self.opposite.scan_bounds(batch.columns, n)
            self._put(self.bounds, [*lower, *upper])
        self._put(self.keyed, (own.hashes, own.usable, own.keys))
        if not self.same_keys:
            probe = self.opposite.keyed(side, batch.columns, batch.arrays, n)
            self._put(self.probe_keyed, (probe.hashes, probe.usable, probe.keys))
        self.next += n

    def _put(self, arrays: Sequence[Array], values: Sequence[Array]) -> None:
        for lane in range(self.lanes):
            first = (lane - self.next) % self.lanes  # of the values, in this lane
            slot = ((self.next + first) // self.lanes) & (self.capacity - 1)
            for array, value in zip(arrays, values, strict=True):
                part = value[..., first :: self.lanes]
                array[lane, ..., slot : slot + part.shape[-1]] = part
