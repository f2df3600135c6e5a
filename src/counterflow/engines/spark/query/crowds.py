"""Where a sample shows that values crowd: crowded places are cut into parts, and the cells that get them get less else.

A place with too many rows for one cell is cut in two where that balances, along the axis along which fewer copies
follow; so are its halves. What cannot be cut, as its rows have nearly the same values, is dealt out as a small matrix:
the kept rows over some cells, the copied rows to all of these. Then the parts, the heaviest first, go to the cells that
have least, and the turns in which all other places are dealt out fill the cells up.

How finely to cut is a choice between evenness and copies: of some limits the one is taken by which the fullest cell and
the average one together have least. Only the sample decides, and the same one gives the same grid.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.query.value_axis import axes_of
from counterflow.engines.spark.query.value_grid import TOUCHED_MAX, Bound, Crowd, Part, ValueGrid, places_between
from counterflow.errors import OptionError
from counterflow.predicate.expression import SIDES, Side, columns_of, opposite
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.vectors import Array, from_arrow_column

BANDS_A_PLACE = {1: 16, 2: 32}  # by the number of axes: places may be wide where those that crowd are known
SAMPLE_ROWS_MAX = 20_000  # of each side
TURNS_A_CELL = 8
LIMITS = tuple(0.5 * 1.1**k for k in range(25))  # of a part, in loads of an even cell: up to 4.9
PARTS_A_CELL_MAX = 8
GAIN = 0.8  # both halves of a cut have less than this of the rows
UNSEEN = 0.1  # of an even turn's load: what a turn is taken to have at least


@dataclass(frozen=True)
class Points:
    """A sample's rows in a place, or in a part of it: the kept ones' numbers, and between which the copied ones look.

    `weights` are those of a kept row and of a copied one: all rows of the sample together weigh 1.
    """

    kept: list[Array]
    low: list[Array]
    high: list[Array]
    weights: tuple[float, float]
    begin: tuple[Bound, ...]
    end: tuple[Bound, ...]

    @property
    def loads(self) -> tuple[float, float]:
        return self.weights[0] * len(self.kept[0]), self.weights[1] * len(self.low[0])

    @property
    def load(self) -> float:
        return sum(self.loads)

    def halves(self, parts: int) -> tuple[Points, Points] | None:
        """Return the best cut in two, if `parts` parts are to come of it; None if no cut helps."""
        found = []
        for axis, kept in enumerate(self.kept):
            values = np.unique(kept[np.isfinite(kept)])[1:]  # from each of them on the part above could begin
            if len(values):
                below = self.weights[0] * np.searchsorted(np.sort(kept), values)
                below += self.weights[1] * np.searchsorted(np.sort(self.low[axis]), values)
                above = self.load - self.weights[0] * np.searchsorted(np.sort(kept), values)
                above -= self.weights[1] * np.searchsorted(np.sort(self.high[axis]), values)
                uneven = np.abs(below * (parts - parts // 2) - above * (parts // 2))
                at = int(np.argmin(uneven))
                if max(below[at], above[at]) < GAIN * self.load:
                    found.append((below[at] + above[at], axis, values[at].item()))
        return self._cut(*min(found)[1:]) if found else None

    def _cut(self, axis: int, at: Bound) -> tuple[Points, Points]:
        """Return the part below a number, and the one from it on: a copied row may be in both."""
        kept, low, high = self.kept[axis], self.low[axis], self.high[axis]
        below, above = self._only(kept < at, low < at), self._only(kept >= at, high >= at)
        end = tuple(at if k == axis else bound for k, bound in enumerate(self.end))
        begin = tuple(at if k == axis else bound for k, bound in enumerate(self.begin))
        return replace(below, end=end), replace(above, begin=begin)

    def _only(self, kept: Array, copied: Array) -> Points:
        low, high = ([ends[copied] for ends in side] for side in (self.low, self.high))
        return replace(self, kept=[values[kept] for values in self.kept], low=low, high=high)


@dataclass(frozen=True)
class Sampled:
    """A sample's rows, and which of them are in each place of a grid, or touch it."""

    whole: Points
    kept_places: Array  # a row for each kept row, a column for each axis
    copied_places: Array  # a row for each place that a copied row touches
    copied_rows: Array  # and the copied row

    @cached_property
    def by_place(self) -> tuple[Array, Array, Array]:
        """All places, and the number of the place of each kept row and of each touch of a copied one."""
        both = np.concatenate([self.kept_places, self.copied_places])
        places, numbers = np.unique(both, axis=0, return_inverse=True)
        numbers = numbers.reshape(-1)
        return places, numbers[: len(self.kept_places)], numbers[len(self.kept_places) :]

    @cached_property
    def loads(self) -> Array:
        places, kept, copied = self.by_place
        of_kept, of_copied = (np.bincount(numbers, minlength=len(places)) for numbers in (kept, copied))
        return self.whole.weights[0] * of_kept + self.whole.weights[1] * of_copied

    @cached_property
    def _grouped(self) -> list[tuple[Array, Array]]:
        """The kept rows and the touches of copied ones, in the order of their places, and where each place begins."""
        places, *numbers = self.by_place
        orders = [np.argsort(of_rows, kind="stable") for of_rows in numbers]
        ends = np.arange(len(places) + 1)
        return [(order, np.searchsorted(of[order], ends)) for of, order in zip(numbers, orders, strict=True)]

    def points(self, number: int) -> Points:
        """Return the rows of a place."""
        kept, touches = (order[begin[number] : begin[number + 1]] for order, begin in self._grouped)
        rows, whole = self.copied_rows[touches], self.whole
        low, high = ([ends[rows] for ends in side] for side in (whole.low, whole.high))
        return replace(whole, kept=[values[kept] for values in whole.kept], low=low, high=high)


def with_crowds(grid: ValueGrid, sample: Mapping[Side, pa.Table], rates: Mapping[Side, float]) -> ValueGrid:
    """Return the grid that suits a sample of both sides, whose rows come at these rates."""
    axes = tuple(replace(axis, bands_a_place=BANDS_A_PLACE[len(grid.axes)]) for axis in grid.axes)
    wide = replace(grid, axes=axes, turns=tuple(range(TURNS_A_CELL * grid.cells)))
    sampled = _sampled(wide, sample, rates)
    tried = [_dealt(wide, sampled, limit / grid.cells) for limit in LIMITS]
    found, loads = min(tried, key=lambda one: one[1].max() + one[1].mean())
    of_kept, of_copied = sampled.whole.loads
    return replace(found, sampled_copies=float((loads.sum() - of_kept) / of_copied))


def sample_of(spec: JoinSpec, given: Sequence[Any]) -> dict[Side, pa.Table]:
    """Return the rows of a user's sample, a table or a static DataFrame of each side, with the columns of the keys."""
    axes, found = axes_of(spec), dict[Side, pa.Table]()
    for side, one in zip(SIDES, given, strict=True):
        used = {column.name for axis in axes for column in columns_of(axis.band.key(side))}
        names = [name for name in spec.side(side).schema.names if name in used]
        if getattr(one, "isStreaming", False):
            raise OptionError(f"sample: the {side} one is a stream: give a table or a static DataFrame")
        is_frame = hasattr(one, "toArrow")
        try:
            table = one if is_frame else pa.table(one)
        except TypeError as error:
            raise OptionError(f"sample: {type(one).__name__} is neither a table nor a static DataFrame") from error
        missing = [name for name in names if name not in (one.columns if is_frame else table.column_names)]
        if missing:
            raise OptionError(f"sample: the {side} one has no column '{missing[0]}', by which rows are dealt out")
        if is_frame:
            quoted = (f"`{name.replace('`', '``')}`" for name in names)
            table = one.select(*quoted).limit(SAMPLE_ROWS_MAX).toArrow()
        schema = pa.schema([spec.side(side).schema.field(name) for name in names])
        try:
            found[side] = table.select(names).slice(0, SAMPLE_ROWS_MAX).cast(schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise OptionError(f"sample: the {side} one has other types than the input ({error})") from error
    return found


def _sampled(grid: ValueGrid, sample: Mapping[Side, pa.Table], rates: Mapping[Side, float]) -> Sampled:
    """Return where the rows of a sample are that have all their keys."""
    copied = opposite(grid.kept)
    keys = {}
    for side in SIDES:
        table = sample[side]
        columns = {name: from_arrow_column(name, table[name]) for name in table.column_names}
        of_side = [axis.key(side, columns, len(table)) for axis in grid.axes]
        usable = np.flatnonzero(np.logical_and.reduce([key.mask() for key in of_side]))
        keys[side] = [key.take(usable) for key in of_side]
    numbers = [axis.numbers(key) for axis, key in zip(grid.axes, keys[grid.kept], strict=True)]
    reach = [axis.reach(copied, key) for axis, key in zip(grid.axes, keys[copied], strict=True)]
    first, last = ([axis.place(ends[k]) for axis, ends in zip(grid.axes, reach, strict=True)] for k in (0, 1))
    spans = [np.clip(b - a + 1, 0, TOUCHED_MAX + 1) for a, b in zip(first, last, strict=True)]
    placed = np.flatnonzero((np.prod(spans, axis=0) <= TOUCHED_MAX) & np.logical_and.reduce([s > 0 for s in spans]))
    if not len(numbers[0]) or not len(placed):
        raise OptionError("sample: none of its rows of one side has values by which it could be told where rows crowd")
    low, high = ([ends[k][placed] for ends in reach] for k in (0, 1))
    at, touched = places_between([a[placed] for a in first], [b[placed] for b in last])
    total = sum(rates.values())
    weights = rates[grid.kept] / total / len(numbers[0]), rates[copied] / total / len(placed)
    open_ends: tuple[Bound, ...] = (None,) * len(grid.axes)
    whole = Points(numbers, low, high, weights, open_ends, open_ends)
    kept_places = np.stack([axis.place(values) for axis, values in zip(grid.axes, numbers, strict=True)], axis=1)
    return Sampled(whole, kept_places, np.stack(touched, axis=1), at)


def _dealt(grid: ValueGrid, sampled: Sampled, limit: float) -> tuple[ValueGrid, Array]:
    """Return the grid whose parts have at most `limit`, where that can be, and what each of its cells has."""
    places, loads = sampled.by_place[0], sampled.loads
    crowded = np.flatnonzero(loads > limit)
    parts = [(number, part) for number in crowded for part in _parts(sampled.points(int(number)), limit, grid.cells)]
    cell_loads = np.zeros(grid.cells)
    chosen: dict[int, list[Part]] = {int(number): [] for number in crowded}
    for number, part in sorted(parts, key=lambda one: -one[1].load):
        kept, copied = part.loads
        lanes = 1
        if part.load > limit:
            lanes = min(ceil(kept / max(limit - copied, copied, kept / grid.cells)), grid.cells) or 1
        cells = np.argsort(cell_loads, kind="stable")[:lanes]
        cell_loads[cells] += kept / lanes + copied
        chosen[int(number)].append(Part(part.begin, part.end, tuple(cells.tolist())))
    crowds = tuple(Crowd(tuple(places[number].tolist()), tuple(found)) for number, found in chosen.items())
    plain = np.setdiff1d(np.arange(len(places)), crowded)
    turn_loads = np.zeros(len(grid.turns))
    np.add.at(turn_loads, grid.turn(list(places[plain].T)), loads[plain])
    turns = _filled_up(cell_loads, turn_loads)
    np.add.at(cell_loads, turns, turn_loads)
    return replace(grid, crowds=crowds, turns=tuple(turns.tolist())), cell_loads


def _parts(place: Points, limit: float, cells: int) -> list[Points]:
    """Return the parts into which a place is cut."""
    heap, done = [(-place.load, 0, place)], list[Points]()
    pushed = 1
    while heap:
        load, _, part = heapq.heappop(heap)
        halves = part.halves(ceil(-load / limit)) if -load > limit and pushed < PARTS_A_CELL_MAX * cells else None
        if halves is None:
            done.append(part)
            continue
        for half in halves:
            heapq.heappush(heap, (-half.load, pushed, half))
            pushed += 1
    return done


def _filled_up(cell_loads: Array, turn_loads: Array) -> Array:
    """Return the cell of each turn: the heaviest turns first, to the cells that have least."""
    loads = np.maximum(turn_loads, UNSEEN * turn_loads.mean()) + 1e-9
    heap = [(load, cell) for cell, load in enumerate(cell_loads.tolist())]
    heapq.heapify(heap)
    turns = np.zeros(len(turn_loads), np.int64)
    for turn in np.argsort(-loads, kind="stable"):
        load, cell = heap[0]
        turns[turn] = cell
        heapq.heapreplace(heap, (load + loads[turn], cell))
    return turns
