"""Where rows go by their values: a grid over the keys of one or two bands, some times wider than the bands.

    key      0          g          2g         3g
    kept     |    o     |          |    o     |     a row is in the one grid cell that its key is in,
    copied   |  [===]   |       [==|==]       |     and in those that its band touches: one, seldom two

So a kept row meets all its partners in one place, and nearly nothing is copied, however many cells there are. Grid cells
are dealt out to the join's cells one after the other, in another turn every so often, as values may come in steps. A
grid cell that a sample shows to be crowded is dealt out further: its kept rows to several cells, of which each gets all
its copied rows.

What a key says nothing about is not lost: a NaN that compares with everything, or a NULL that the condition passes
over, is sent to all cells; where a kept row is (`wild`), a copied row counts for it in one of its cells only (`HOME`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, gcd

import numpy as np
import pyarrow as pa

from counterflow.predicate.differences import Inequality
from counterflow.predicate.expression import SIDES, Expression, Side, columns_of, opposite
from counterflow.predicate.implied import may_fail
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.evaluate import Columns
from counterflow.windows.keys import as_float, computed, key_bounds, mixed, row_hashes
from counterflow.windows.store import predicate_columns
from counterflow.windows.vectors import Array, Vector

AXES_MAX = 2
BANDS_A_CELL = {1: 4, 2: 8}  # how many times wider than its band a grid cell is: a copied row has 1.25 copies at most
SPAN_MAX = 8  # a row that touches more grid cells along an axis is sent to all cells
LAST = 1 << 60  # the grid cell of infinity and NaN; indices are held between -LAST and LAST
GOLDEN = 0.618  # neighbours in the second direction are as far apart as can be
CROWDED = 3  # a grid cell with more than this part of a cell's load is dealt out

Place = tuple[int, ...]  # a grid cell: its index along each axis


@dataclass(frozen=True)
class Axis:
    """A band, and the size of a grid cell along its key."""

    band: Inequality
    bands_a_cell: int

    @property
    def exact(self) -> bool:
        """Whether both keys are whole numbers that no step rounds."""
        whole = all(not k.type.is_float and not k.type.is_decimal for k in (self.band.left, self.band.right))
        return whole and self.band.rounds == "exact"

    @cached_property
    def size(self) -> float:
        assert self.band.low is not None and self.band.high is not None
        width = max(self.band.high - self.band.low, 0) * self.bands_a_cell
        return max(int(width), 1) if self.exact else float(width) or 1.0

    def may_be_wild(self, side: Side) -> bool:
        """Return whether a row of this side may satisfy the condition whatever its key and the other one's are."""
        return self.band.nulls_meet or (side in self.band.nan_sides and self.band.key(side).type.is_float)

    def wild(self, side: Side, key: Vector) -> Array:
        found = ~key.mask() if self.band.nulls_meet else np.zeros(len(key), bool)
        if side in self.band.nan_sides and key.type.is_float:
            found |= np.isnan(key.values) & key.mask()
        return found

    def place(self, key: Vector) -> Array:
        """Return the grid cells' indices of kept rows."""
        return self._index(key.values if self.exact and key.values.dtype != object else as_float(key))

    def touched(self, side: Side, key: Vector) -> tuple[Array, Array]:
        """Return the first and the last index that a copied row's band touches; of a NULL that meets all, all."""
        bounds = key_bounds(self.band, opposite(side), key, side in self.band.nan_sides, not self.exact)
        assert bounds[0] is not None and bounds[1] is not None
        first, last = map(self._index, bounds)
        everything = ~key.mask() if self.band.nulls_meet else np.zeros(len(key), bool)
        return np.where(everything, -LAST, first), np.where(everything, LAST, last)

    def _index(self, values: Array) -> Array:
        if values.dtype == np.int64:
            return np.clip(values // np.int64(self.size), -LAST, LAST)
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.clip(np.floor(values / self.size), -float(LAST), float(LAST))
        return np.where(np.isnan(values), float(LAST), found).astype(np.int64)


@dataclass(frozen=True)
class Crowd:
    """A crowded grid cell: its kept rows are dealt out to these cells, and its copied rows sent to all of them."""

    place: Place
    cells: tuple[int, ...]


@dataclass(frozen=True)
class Sent:
    """Which rows go to which cells, one by one. Each row has one cell, its home, that counts it."""

    rows: Array
    cells: Array
    home: Array

    def parts(self, cells: int) -> Iterator[tuple[int, bool, Array]]:
        """Yield for each cell the rows whose home it is, and the others that it gets."""
        order = np.argsort(self.cells * 2 + self.home, kind="stable")
        kinds = (self.cells * 2 + self.home)[order]
        ends = np.searchsorted(kinds, np.arange(2 * cells + 1))
        for kind, (begin, end) in enumerate(zip(ends, ends[1:], strict=False)):
            if begin < end:
                yield kind // 2, bool(kind % 2), np.sort(self.rows[order[begin:end]])


@dataclass(frozen=True)
class ValueGrid:
    """A grid over the keys of some bands; `kept` is the side whose rows are in one place."""

    axes: tuple[Axis, ...]
    kept: Side
    cells: int
    crowds: tuple[Crowd, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        keys = " and ".join(f"{axis.band.key(self.kept)} by {axis.size:g}" for axis in self.axes)
        crowds = f", {len(self.crowds)} crowded" if self.crowds else ""
        return f"{self.cells} on {keys}, {opposite(self.kept)} rows copied{crowds}"

    @property
    def may_be_wild(self) -> bool:
        return any(axis.may_be_wild(self.kept) for axis in self.axes)

    @property
    def copies(self) -> float:
        """The cells that a copied row is sent to on average, where nothing is crowded."""
        parts = 1.0
        for axis in self.axes:
            assert axis.band.low is not None and axis.band.high is not None
            parts *= 1 + float(max(axis.band.high - axis.band.low, 0)) / axis.size
        return min(parts, float(self.cells))

    # --- rows to cells

    def sent(self, side: Side, times: Array, columns: Columns) -> Sent:
        """Return where the rows of a side go."""
        n = len(times)
        keys = [self._key(axis, side, columns, n) for axis in self.axes]
        hashes = row_hashes(times, columns)
        anywhere = (hashes % np.uint64(self.cells)).astype(np.int64)
        lost = np.zeros(n, bool)  # a NULL that meets nobody
        for axis, key in zip(self.axes, keys, strict=True):
            if not axis.band.nulls_meet:
                lost |= ~key.mask()
        if side == self.kept:
            everywhere = self.wild(side, columns, n)
            first = last = [axis.place(key) for axis, key in zip(self.axes, keys, strict=True)]
        else:
            touched = [axis.touched(side, key) for axis, key in zip(self.axes, keys, strict=True)]
            first, last = [a for a, _ in touched], [b for _, b in touched]
            # Beyond -LAST..LAST nothing overflows, and what is below LAST + 1 is a span.
            everywhere = np.logical_or.reduce([b - a >= SPAN_MAX for a, b in touched])
            lost |= np.logical_or.reduce([b < a for a, b in touched])
        lost &= ~everywhere
        placed = np.flatnonzero(~lost & ~everywhere)
        found = [self._in_cells(np.flatnonzero(lost), anywhere[lost]), self._everywhere(everywhere, anywhere)]
        found.append(self._placed(side, placed, [a[placed] for a in first], [b[placed] for b in last], hashes[placed]))
        return Sent(*(np.concatenate([getattr(part, name) for part in found]) for name in ("rows", "cells", "home")))

    def wild(self, side: Side, columns: Columns, n: int) -> Array:
        """Return which kept rows may have partners anywhere, so that they are in all cells."""
        found = np.zeros(n, bool)
        if side == self.kept:
            for axis in self.axes:
                found |= axis.wild(side, self._key(axis, side, columns, n))
        return found

    def _key(self, axis: Axis, side: Side, columns: Columns, n: int) -> Vector:
        key = computed(axis.band.key(side), side, columns, n)
        assert key is not None, "a key that may fail is not taken for a grid"
        return key

    def _in_cells(self, rows: Array, cells: Array) -> Sent:
        return Sent(rows, cells, np.ones(len(rows), bool))

    def _everywhere(self, which: Array, home: Array) -> Sent:
        rows = np.repeat(np.flatnonzero(which), self.cells)
        cells = np.tile(np.arange(self.cells), int(which.sum()))
        return Sent(rows, cells, cells == home[rows])

    def _placed(self, side: Side, rows: Array, first: list[Array], last: list[Array], hashes: Array) -> Sent:
        """Return where rows go whose band touches few grid cells."""
        at, places = self._grid_cells(first, last)
        crowd = self._crowd_of(places)
        plain = crowd < 0
        found_at, found_cells = [at[plain]], [self._cell(places)[plain]]
        for number, one in enumerate(self.crowds):
            inside, lanes = at[crowd == number], np.array(one.cells)
            if side == self.kept:
                found_at.append(inside)
                found_cells.append(lanes[mixed(hashes[inside]) % np.uint64(len(lanes))])
            else:
                found_at.append(np.repeat(inside, len(lanes)))
                found_cells.append(np.tile(lanes, len(inside)))
        at, cells = np.concatenate(found_at), np.concatenate(found_cells)
        at, cells = np.divmod(np.unique(at * self.cells + cells), self.cells)  # two grid cells may be in one cell
        firsts = np.searchsorted(at, np.arange(len(rows)))
        home = np.zeros(len(at), bool)
        home[firsts[: len(rows)]] = True
        return Sent(rows[at], cells, home)

    def _grid_cells(self, first: list[Array], last: list[Array]) -> tuple[Array, list[Array]]:
        """Return all grid cells between first and last: whose row, and the indices along the axes."""
        at, places = np.arange(len(first[0])), [a.copy() for a in first]
        for axis in range(len(first)):
            spans = (last[axis] - first[axis])[at] + 1
            repeated = np.repeat(np.arange(len(at)), spans)
            within = np.arange(len(repeated)) - np.repeat(np.cumsum(spans) - spans, spans)
            at, places = at[repeated], [p[repeated] for p in places]
            places[axis] = places[axis] + within
        return at, places

    def _cell(self, places: list[Array]) -> Array:
        """Return the join's cells of grid cells: in turn along each axis, and in another turn after each round."""
        rounds, turn = np.zeros(len(places[0]), np.uint64), np.zeros(len(places[0]), np.int64)
        for place, stride in zip(places, (1, self._stride), strict=False):
            rounds = mixed(rounds + (place // self.cells).view(np.uint64))
            turn += place % self.cells * stride
        return (turn + (rounds % np.uint64(self.cells)).astype(np.int64)) % self.cells

    @cached_property
    def _stride(self) -> int:
        about = max(round(self.cells * GOLDEN), 1)
        return min((s for s in range(1, self.cells + 1) if gcd(s, self.cells) == 1), key=lambda s: abs(s - about))

    def _crowd_of(self, places: list[Array]) -> Array:
        found = np.full(len(places[0]), -1)
        for number, one in enumerate(self.crowds):
            found[np.logical_and.reduce([p == at for p, at in zip(places, one.place, strict=True)])] = number
        return found

    # --- crowds

    def with_crowds(self, spec: JoinSpec, sample: dict[Side, pa.Table], weights: dict[Side, float]) -> ValueGrid:
        """Return the grid in which what is crowded in a sample is dealt out. `weights`: each side's part of all rows."""
        plain, shares = replace(self, crowds=()), dict[Place, list[float]]()
        for k, side in enumerate((self.kept, opposite(self.kept))):
            table = sample[side]
            for place, rows in plain._counts(spec, side, table).items():
                shares.setdefault(place, [0.0, 0.0])[k] = weights[side] * rows / len(table)
        limit = sum(map(sum, shares.values())) / self.cells / CROWDED
        crowded = [place for place, parts in shares.items() if sum(parts) > limit]
        loads = np.zeros(self.cells)
        others = [place for place in shares if place not in set(crowded)]
        if others:
            cells = self._cell([np.array(index) for index in zip(*others, strict=True)])
            np.add.at(loads, cells, [sum(shares[place]) for place in others])
        found = []
        for place in sorted(crowded, key=lambda place: (-sum(shares[place]), place)):
            kept, copied = shares[place]
            lanes = min(ceil(kept / max(limit - copied, copied, kept / self.cells)), self.cells)
            cells = np.argsort(loads, kind="stable")[:lanes]
            loads[cells] += kept / lanes + copied
            found.append(Crowd(place, tuple(int(c) for c in cells)))
        return replace(self, crowds=tuple(found))

    def _counts(self, spec: JoinSpec, side: Side, table: pa.Table) -> dict[Place, int]:
        """Return how many rows of a sample are in each grid cell, or touch it."""
        columns = predicate_columns(spec.predicate, side, table)
        keys = [self._key(axis, side, columns, len(table)) for axis in self.axes]
        usual = np.ones(len(table), bool)
        if side == self.kept:
            first = last = [axis.place(key) for axis, key in zip(self.axes, keys, strict=True)]
        else:
            touched = [axis.touched(side, key) for axis, key in zip(self.axes, keys, strict=True)]
            first, last = [a for a, _ in touched], [b for _, b in touched]
            usual = np.logical_and.reduce([(b >= a) & (b - a < SPAN_MAX) for a, b in touched])
        for key in keys:
            usual = usual & key.mask()
        _, places = self._grid_cells([a[usual] for a in first], [b[usual] for b in last])
        found, counts = np.unique(np.stack(places, axis=1), axis=0, return_counts=True)
        return {tuple(int(i) for i in place): int(n) for place, n in zip(found, counts, strict=True)}


# --- which bands a grid may have


def grid_of(spec: JoinSpec, kept: Side, cells: int) -> ValueGrid | None:
    """Return the grid of a join's first bands; None if it has none that rows can be dealt out by."""
    bands = [bound for bound in spec.parts.bounds if bound.is_band and _serves(spec, bound)]
    bands = [band for i, band in enumerate(bands) if band.key(kept) not in [b.key(kept) for b in bands[:i]]][:AXES_MAX]
    if not bands:
        return None
    return ValueGrid(tuple(Axis(band, BANDS_A_CELL[len(bands)]) for band in bands), kept, cells)


def _serves(spec: JoinSpec, band: Inequality) -> bool:
    """Return whether every row has a value for its key, and the key is not just the row's time.

    Rows come in the order of time: all that are new would crowd one place.
    """
    return not any(may_fail(band.key(side)) or _is_time(spec, side, band.key(side)) for side in SIDES)


def _is_time(spec: JoinSpec, side: Side, key: Expression) -> bool:
    return spec.side(side).time in {column.name for column in columns_of(key)}
