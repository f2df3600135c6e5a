"""Where rows go by their values: a grid over the keys of one or two bands, some times wider than the bands.

    key      0          g          2g         3g
    kept     |    o     |          |    o     |     a row is in the one place that its key is in,
    copied   |  [===]   |       [==|==]       |     and in those that its band touches: one, seldom two

So a kept row meets all its partners in one cell, and once, and nearly nothing is copied, however many cells there are.
Places (the parts of the grid) are dealt out to the cells in turn along each axis, so that a dense stretch of values is
in all cells alike; after each round in another turn, as values may come in steps. A place that a sample shows to be
crowded is cut into parts (`crowds.py`).

Of some rows a key says nothing: a NaN that satisfies the condition whatever its partner is, or a NULL that it passes
over. If it is a copied row, it is sent to all cells. A kept one, a wild row, is sent to all cells too, and then a pair
counts only where the copied row is at home (`HOME`); or, if kept rows may be emitted unmatched, all wild rows are in
one cell (`REST`), to which all copied rows are sent as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import gcd, prod

import numpy as np

from counterflow.engines.spark.query.value_axis import Axis, axes_of, places_at_most
from counterflow.predicate.expression import Side, opposite
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.evaluate import Columns
from counterflow.windows.keys import mixed, row_hashes
from counterflow.windows.vectors import Array, Vector

TOUCHED_MAX = 64  # a row that touches more places is sent to all cells
REST = 0  # the cell of the wild rows, where they must be in one
GOLDEN = 0.618  # neighbours along the second axis are as far apart as can be

Place = tuple[int, ...]  # its number along each axis
Bound = int | float | None  # None: no bound
Homes = tuple[Array, Array, Array]  # rows, their cells, and whether these are their homes


@dataclass(frozen=True)
class Part:
    """A part of a crowded place: numbers from `low` up to, not including, `high` along each axis.

    Its kept rows are dealt out to `cells`; its copied rows are sent to all of them.
    """

    low: tuple[Bound, ...]
    high: tuple[Bound, ...]
    cells: tuple[int, ...]


@dataclass(frozen=True)
class Crowd:
    """A crowded place, in parts that cover it."""

    place: Place
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Sent:
    """Which rows go to which cells, one by one. Each row has one cell, its home, that counts it.

    Two rows that meet may be a pair there if one of them is `at_home`: a copied row in its home, a kept one that is
    not wild wherever it is.
    """

    rows: Array
    cells: Array
    home: Array
    at_home: Array

    def by_cell(self, cells: int) -> Iterator[tuple[int, bool, Array]]:
        """Yield the indices of what each cell gets: of rows whose home it is, and of others."""
        kinds = (self.cells * 2 + self.home).astype(np.uint16)  # numpy sorts these by counting
        order = np.argsort(kinds, kind="stable")
        ends = np.searchsorted(kinds[order], np.arange(2 * cells + 1, dtype=np.uint16))
        for kind, (begin, end) in enumerate(pairwise(ends)):
            if begin < end:
                yield kind // 2, bool(kind % 2), order[begin:end]


@dataclass(frozen=True)
class ValueGrid:
    """A grid over the keys of some bands; `kept` is the side whose rows are in one place."""

    axes: tuple[Axis, ...]
    kept: Side
    cells: int
    decisive: bool  # kept rows may be emitted unmatched, or once, so that each has to be in one cell
    turns: tuple[int, ...]  # the cells to which places are dealt out in turn
    crowds: tuple[Crowd, ...] = ()
    sampled_copies: float | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Return what decides where rows go, so that a checkpoint knows it."""
        keys = " and ".join(f"{axis.band.key(self.kept)} by {axis.size!r}" for axis in self.axes)
        said = f"{self.cells} on {keys}, {opposite(self.kept)} rows copied"
        if self.crowds or self.turns != tuple(range(self.cells)):
            digest = hashlib.blake2b(repr((self.turns, self.crowds)).encode(), digest_size=6).hexdigest()
            said += f", as sampled {digest}"
        return said

    @property
    def may_be_wild(self) -> bool:
        return any(axis.may_be_wild(self.kept) for axis in self.axes)

    @property
    def has_rest(self) -> bool:
        """Whether one cell is told all copied rows, because wild rows are there."""
        return self.may_be_wild and self.decisive

    @property
    def marks_home(self) -> bool:
        """Whether rows say whether they are at home, because a pair may meet in several cells."""
        return self.may_be_wild and not self.decisive

    def copies(self, side: Side) -> float:
        """Return the number of cells to which a row of this side is sent, on average."""
        if side == self.kept:
            return 1.0
        placed = prod(axis.copies for axis in self.axes) if self.sampled_copies is None else self.sampled_copies
        return min(placed + self.has_rest, float(self.cells))

    # --- rows to cells

    def sent(self, side: Side, times: Array, columns: Columns) -> Sent:
        """Return where the rows of a side go."""
        n = len(times)
        hashes = row_hashes(times, columns)
        home = (hashes % np.uint64(self.cells)).astype(np.int64)  # of those that their keys send nowhere
        keys = [axis.key(side, columns, n) for axis in self.axes]
        nowhere = np.logical_or.reduce([axis.meets_nobody(key) for axis, key in zip(self.axes, keys, strict=True)])
        if side == self.kept:
            everywhere, placed = self._kept(keys, nowhere, hashes)
            if self.decisive:
                home[everywhere] = REST
                nowhere, everywhere = nowhere | everywhere, np.zeros(n, bool)
        else:
            everywhere, nowhere, placed = self._copied(keys, nowhere)
            if self.has_rest:
                home[nowhere] = REST
        alone = np.flatnonzero(nowhere)
        anywhere = np.repeat(np.flatnonzero(everywhere), self.cells)
        all_cells = np.tile(np.arange(self.cells), int(everywhere.sum()))
        parts = [placed, (alone, home[alone], nowhere[alone]), (anywhere, all_cells, all_cells == home[anywhere])]
        rows, cells, is_home = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Sent(rows, cells, is_home, ~everywhere[rows] if side == self.kept else is_home)

    def _kept(self, keys: list[Vector], nowhere: Array, hashes: Array) -> tuple[Array, Homes]:
        """Return which kept rows are wild, and the one cell of each of the others that may meet somebody."""
        wild = np.logical_or.reduce([axis.wild(self.kept, key) for axis, key in zip(self.axes, keys, strict=True)])
        wild &= ~nowhere
        rows = np.flatnonzero(~nowhere & ~wild)
        numbers = [axis.numbers(key)[rows] for axis, key in zip(self.axes, keys, strict=True)]
        places = [axis.place(values) for axis, values in zip(self.axes, numbers, strict=True)]
        cells = self._cell(places)
        for crowd in self.crowds:
            inside = np.flatnonzero(_at(crowd.place, places))
            of_crowd = [values[inside] for values in numbers]
            for part in crowd.parts:
                within = inside[_reached(part, of_crowd, of_crowd)]
                lanes = mixed(hashes[rows[within]]) % np.uint64(len(part.cells))
                cells[within] = np.array(part.cells)[lanes.astype(np.int64)]
        return wild, (rows, cells, np.ones(len(rows), bool))

    def _copied(self, keys: list[Vector], nowhere: Array) -> tuple[Array, Array, Homes]:
        """Return which copied rows may have partners anywhere, which have none, and the cells of the others."""
        side = opposite(self.kept)
        reach = [axis.reach(side, key) for axis, key in zip(self.axes, keys, strict=True)]
        first = [axis.place(low) for axis, (low, _) in zip(self.axes, reach, strict=True)]
        last = [axis.place(high) for axis, (_, high) in zip(self.axes, reach, strict=True)]
        nowhere = nowhere | np.logical_or.reduce([low > high for low, high in reach])
        spans = [np.clip(b - a + 1, 0, TOUCHED_MAX + 1) for a, b in zip(first, last, strict=True)]
        touched = np.prod(spans, axis=0)
        everywhere = (touched > TOUCHED_MAX) & ~nowhere
        single = (touched == 1) & ~nowhere & (not self.has_rest)  # most rows: they need no search for copies
        for crowd in self.crowds:
            single &= ~_at(crowd.place, first)
        one, several = np.flatnonzero(single), np.flatnonzero(~nowhere & ~everywhere & ~single)
        rows, cells = self._touched(several, first, last, reach)
        codes = np.sort(rows * self.cells + cells)
        rows, cells = np.divmod(codes[np.diff(codes, prepend=-1) > 0], self.cells)  # two places may be in one cell
        is_home = np.concatenate([np.ones(len(one), bool), np.diff(rows, prepend=-1) > 0])
        cells = np.concatenate([self._cell([a[one] for a in first]), cells])
        return everywhere, nowhere, (np.concatenate([one, rows]), cells, is_home)

    def _touched(
        self, rows: Array, first: list[Array], last: list[Array], reach: list[tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        """Return the cells of all places from `first` to `last`, with the row that each is for; some more than once."""
        at, places = places_between([a[rows] for a in first], [b[rows] for b in last])
        cells, plain = self._cell(places), np.ones(len(at), bool)
        found = []
        for crowd in self.crowds:
            inside = np.flatnonzero(_at(crowd.place, places))
            plain[inside] = False
            low, high = ([ends[k][rows[at[inside]]] for ends in reach] for k in (0, 1))
            for part in crowd.parts:
                within = at[inside[_reached(part, low, high)]]
                found.append((np.repeat(within, len(part.cells)), np.tile(part.cells, len(within))))
        found.append((at[plain], cells[plain]))
        if self.has_rest:
            found.append((np.arange(len(rows)), np.full(len(rows), REST)))
        at, cells = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows[at], cells

    def turn(self, places: list[Array]) -> Array:
        """Return in which turn places are dealt out."""
        turns = len(self.turns)
        rounds, turn = np.zeros(len(places[0]), np.uint64), np.zeros(len(places[0]), np.int64)
        for place, stride in zip(places, (1, self._stride), strict=False):
            rounds = mixed(rounds + (place // turns).view(np.uint64) + np.uint64(1))
            turn += place % turns * stride
        return (turn + (rounds % np.uint64(turns)).astype(np.int64)) % turns

    def _cell(self, places: list[Array]) -> Array:
        return np.array(self.turns)[self.turn(places)]

    @cached_property
    def _stride(self) -> int:
        turns = len(self.turns)
        about = max(round(turns * GOLDEN), 1)
        return min((s for s in range(1, turns + 1) if gcd(s, turns) == 1), key=lambda s: abs(s - about))


def places_between(first: list[Array], last: list[Array]) -> tuple[Array, list[Array]]:
    """Return all places from `first` to `last`: the index of whose they are, and their numbers along the axes."""
    at, places = np.arange(len(first[0])), list(first)
    for axis in range(len(first)):
        spans = (last[axis] - first[axis])[at] + 1
        repeated = np.repeat(np.arange(len(at)), spans)
        within = np.arange(len(repeated)) - np.repeat(np.cumsum(spans) - spans, spans)
        at, places = at[repeated], [p[repeated] for p in places]
        places[axis] = places[axis] + within
    return at, places


def _at(place: Place, places: list[Array]) -> Array:
    return np.logical_and.reduce([p == number for p, number in zip(places, place, strict=True)])


def _reached(part: Part, low: list[Array], high: list[Array]) -> Array:
    """Return which stretches from `low` to `high` a part has something of."""
    found = np.ones(len(low[0]), bool)
    for least, most, part_low, part_high in zip(low, high, part.low, part.high, strict=True):
        if part_low is not None:
            found &= most >= part_low
        if part_high is not None:
            found &= least < part_high
    return found


def grid_of(spec: JoinSpec, kept: Side, cells: int) -> ValueGrid | None:
    """Return the grid of a join's first bands; None if it has none that rows can be dealt out by."""
    axes = axes_of(spec)
    return ValueGrid(axes, kept, cells, spec.how != "inner", tuple(range(cells))) if axes else None


def spreads(grid: ValueGrid, places_a_cell: int) -> bool:
    """Return whether values can be in so many places for each cell, as far as the keys tell."""
    return prod(places_at_most(axis) for axis in grid.axes) >= places_a_cell * grid.cells
