"""Layouts: which cells there are, and which of them a row is sent to.

    matrix 2x3 (DP-Join)    a left row goes to the three cells of one layout row, a right row to the two cells of one
                            layout column: any two rows meet in exactly one cell

        columns  0   1   2
      row 0    [ 0   1   2 ]  <- one half of the left rows
      row 1    [ 3   4   5 ]  <- the other half

    home 4 (LLHJ, ScaleJoin)  every row is sent to every cell, which searches its windows for it; one stores it
    hash 4                    with an equality in the predicate: rows with equal keys meet in one cell, no copies
    band 4                    with a band in the predicate: a row of one side is in the cell of its values, one of the
                              other side in those that its band touches: few copies, of one side (`value_grid.py`)

A row that may be emitted unmatched has to meet all its partners in one cell. So `left`, `semi` and `anti` joins lay
their cells out as Mx1, `right` ones as 1xN, and a `full` one has both matrices: the first emits pairs and unmatched
left rows, the second unmatched right rows. `band` copies the other side, and has two grids for a `full` join. With
`hash` none of this is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from counterflow.engines.spark.cell.grid import Grid, padded_sides
from counterflow.engines.spark.cell.row_order import has_row_windows
from counterflow.engines.spark.options import Spark, parse_layout
from counterflow.engines.spark.query.crowds import sample_of, with_crowds
from counterflow.engines.spark.query.value_grid import ValueGrid, grid_of, spreads
from counterflow.errors import OptionError
from counterflow.plan.model import least_copies
from counterflow.predicate.casts import never_fails
from counterflow.predicate.expression import SIDES, Call, Column, Expression, Side
from counterflow.predicate.split import Equality
from counterflow.spec.join_spec import JoinSpec

MASK32 = 0xFFFFFFFF
BAND_CELLS_MIN = 4  # for `auto`: with fewer, a matrix copies a row into two cells at most on average
PLACES_A_CELL = 4  # for `auto`: what a grid of values needs at least to be even


@dataclass(frozen=True)
class Target:
    """A cell that gets a lane's rows, whether it stores them, and whether it is the one that counts them."""

    cell: int
    stored: bool
    counted: bool


@dataclass(frozen=True)
class Route:
    """How a side's rows are divided into lanes, by a hash of the row or of its key, and the targets of each lane."""

    by: Literal["row", "key"]
    lanes: list[list[Target]]

    @property
    def copies(self) -> float:
        return len(self.lanes[0])


@dataclass(frozen=True)
class ValueRoute:
    """How a side's rows are sent to the cells of a grid of values, and whether these cells count them."""

    side: Side
    values: ValueGrid
    first_cell: int
    counts: bool

    @property
    def copies(self) -> float:
        return self.values.copies(self.side)


@dataclass(frozen=True)
class Layout:
    """The cells of a join, and why there are these."""

    kind: Literal["matrix", "home", "hash", "band"]
    grids: tuple[Grid, ...]
    reason: str = field(default="", compare=False)
    values: tuple[ValueGrid, ...] = ()  # of `band`: one for each grid

    def __str__(self) -> str:
        if self.kind == "band":
            return " + ".join(f"band {values}" for values in self.values)
        if self.kind != "matrix":
            return f"{self.kind} {self.cells}"
        return " + ".join(f"{grid.rows}x{grid.columns}" for grid in self.grids)

    @property
    def cells(self) -> int:
        return sum(grid.cells for grid in self.grids)

    def grid(self, cell: int) -> Grid:
        """Return the grid that a cell belongs to."""
        return next(grid for grid in self.grids if cell < grid.first + grid.cells)

    def routes(self, side: Side) -> Sequence[Route | ValueRoute]:
        """Return the ways on which a side's rows reach their cells: each row takes all of them."""
        everyone = range(self.cells)
        if self.kind == "band":
            grids = zip(self.grids, self.values, strict=True)
            return [ValueRoute(side, values, grid.first, grid is self.grids[0]) for grid, values in grids]
        if self.kind == "hash":
            return [Route("key", [[Target(cell, True, True)] for cell in everyone])]
        if self.kind == "home":
            return [Route("row", [[Target(c, c == home, c == home) for c in everyone] for home in everyone])]
        routes = []
        for grid in self.grids:
            lanes = [grid.lane_cells(side, lane) for lane in range(grid.rows if side == "left" else grid.columns)]
            counted = grid is self.grids[0]
            routes.append(
                Route("row", [[Target(c, True, counted and c == cells[0]) for c in cells] for cells in lanes])
            )
        return routes

    @property
    def copies(self) -> dict[Side, float]:
        """The number of cells to which a row of each side is sent; with `band` on average."""
        return {side: sum(route.copies for route in self.routes(side)) for side in SIDES}

    @cached_property
    def keys(self) -> list[int]:
        """The number that stands for each cell in the shuffle: the least whose hash, modulo the cells, is the cell.

        So each cell has a partition of its own when there are as many partitions as cells (or a multiple), while
        the plain numbers 0, 1, 2, ... collide. The keys depend on the number of cells alone, so state is found after
        a restart; and 0 is always among them, so a checkpoint of another layout is always noticed.
        """
        found: dict[int, int] = {}
        for key in itertools.count():
            found.setdefault(spark_hash(key) % self.cells, key)
            if len(found) == self.cells:
                return [found[cell] for cell in range(self.cells)]
        raise AssertionError

    def cell(self, key: int) -> int:
        """Return the cell that a key stands for."""
        return self.keys.index(key)


def spark_hash(number: int) -> int:
    """Return Spark's hash of an INT in a shuffle: 32-bit MurmurHash3 with seed 42."""

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & MASK32

    k = rotated(number * 0xCC9E2D51 & MASK32, 15) * 0x1B873593 & MASK32
    h = (rotated(42 ^ k, 13) * 5 + 0xE6546B64) & MASK32
    h ^= 4  # the length in bytes
    h = (h ^ (h >> 16)) * 0x85EBCA6B & MASK32
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & MASK32
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h  # as Java's int; `%` is then Spark's pmod


# --- choosing


def choose_layout(spec: JoinSpec, engine: Spark, cores: int) -> Layout:
    """Return the layout that the user asked for, or one that suits the join; bent where the join requires it."""
    kind, size = parse_layout(engine.layout)
    if has_row_windows(spec):
        reason = "one cell, because a row's rank in its stream is known only where all rows are seen"
        return _matrix(spec, 1, 1, reason)
    cells = size[0] if size else cores
    if kind == "hash" and not hashable(spec):
        raise OptionError(
            f"layout='hash' needs an equality of plain columns in the predicate, and {spec.where!r} has none: use "
            "'auto' or a matrix such as '2x3'"
        )
    if kind == "auto":
        return _auto(spec, engine, cores)
    if kind == "band":
        return _band(spec, engine, cells, "as asked")
    if kind == "hash":
        return _hash(spec, cells, "as asked")
    if kind == "home":
        if spec.how == "inner" and not spec.ordered:
            return _cells(spec, "home", cells, "as asked: every cell searches for every row, one stores it")
        bent = "'home' is for unordered inner joins: a row that waits for others has to be stored where it is searched"
        return _decisive(spec, cells, bent) or _matrix(spec, *least_copies(cells, 1, 1), bent)
    rows, columns = size
    asked = _matrix(spec, rows, columns, "as asked")
    decisive = _decisive(spec, rows * columns, f"'{asked}' was asked for, but ")
    return asked if decisive is None or decisive == asked else decisive


def possible_layouts(spec: JoinSpec, engine: Spark, cells: int) -> list[Layout]:
    """Return the layouts among which `auto` chooses, for as many cells: `hash`, `band` and a matrix, if possible."""
    if has_row_windows(spec):
        return [_matrix(spec, 1, 1, "")]
    found = [_hash(spec, cells, "")] if hashable(spec) else []
    if _kept_sides(spec, engine, cells):
        found.append(_band(spec, engine, cells, ""))
    return [*found, _best_matrix(spec, engine, cells, "")]


def hashable(spec: JoinSpec) -> tuple[Equality, ...]:
    """Return the equalities whose keys every row has, so that its cell can be told from the row alone."""
    return tuple(e for e in spec.parts.equalities if _cannot_fail(e.left) and _cannot_fail(e.right))


def _cannot_fail(key: Expression) -> bool:
    """Return whether the key is a column, or a CAST of one that every row survives. A guard may protect other CASTs."""
    while isinstance(key, Call) and key.op == "cast" and never_fails(key.args[0].type, key.type):
        key = key.args[0]
    return isinstance(key, Column)


def _auto(spec: JoinSpec, engine: Spark, cores: int) -> Layout:
    if hashable(spec):
        return _hash(spec, cores, f"{hashable(spec)[0]}")
    but = ""
    if _kept_sides(spec, engine, cores):
        if cores >= BAND_CELLS_MIN and _spreads(spec, engine, cores):
            return _band(spec, engine, cores, f"a cell for each of {cores} tasks at once")
        few = f"with fewer than {BAND_CELLS_MIN} cells a matrix copies little, and is even whatever the values are"
        narrow = "the values of its keys are too few for so many cells"
        but = f"; not 'band': {few if cores < BAND_CELLS_MIN else narrow}"
    return _best_matrix(spec, engine, cores, but)


def _hash(spec: JoinSpec, cells: int, reason: str) -> Layout:
    return _cells(spec, "hash", cells, f"{reason}: rows with equal keys meet in one of {cells} cells, none is copied")


def _best_matrix(spec: JoinSpec, engine: Spark, cells: int, but: str) -> Layout:
    """Return the matrix that copies least; `but` is what else there is to say about it."""
    decisive = _decisive(spec, cells, "", but)
    if decisive is not None:
        return decisive
    rows, columns = least_copies(cells, *_sizes(spec, engine).values())
    said = "window times rate" if engine.rates else "window, rates taken as equal"
    return _matrix(spec, rows, columns, f"a cell for each of {cells} tasks at once with the least copied ({said}){but}")


def _sizes(spec: JoinSpec, engine: Spark) -> dict[Side, float]:
    """Return how many rows of each side are held, or what is in proportion to it if no rates are known."""
    return {side: rate * (spec.side(side).window.size or 1) for side, rate in _rates(engine).items()}


def _rates(engine: Spark) -> dict[Side, float]:
    return dict(zip(SIDES, engine.rates or (1.0, 1.0), strict=True))


# --- by values


def _band(spec: JoinSpec, engine: Spark, cells: int, reason: str) -> Layout:
    kept = _kept_sides(spec, engine, cells)
    if not kept:
        raise OptionError(
            "layout='band' needs a band, such as abs(l.x - r.a) <= 10 or a distance, of keys that are not made of the "
            f"time and have a value in every row; {spec.where!r} has none: use 'auto' or a matrix such as '2x3'"
        )
    grids, values = [], []
    for number, side in enumerate(kept):
        grid = grid_of(spec, side, cells)
        assert grid is not None
        if engine.sample is not None:
            grid = with_crowds(grid, sample_of(spec, engine.sample), _rates(engine))
        decides = padded_sides(spec) if len(kept) == 1 else frozenset({side})
        grids.append(Grid(cells, 1, number * cells, pairs=not number, decides=decides))
        values.append(grid)
    where = "each side's rows in turn are" if len(kept) > 1 else f"{kept[0]} rows are"
    said = f"{reason}: {where} in the cell of their values, and the other side's in those that their bands touch"
    if engine.sample is None:
        said += "; where values crowd within a few bands, give a sample= of them"
    return Layout("band", tuple(grids), said, tuple(values))


def _kept_sides(spec: JoinSpec, engine: Spark, cells: int) -> list[Side]:
    """Return the sides whose rows stay in one place, for each grid of values that a join needs; none, if it has none.

    Rows that are emitted unmatched, or once, must meet all their partners in one cell. Of an inner join it is the side
    that has more rows, or of which no row has to be sent everywhere.
    """
    grids = {side: grid_of(spec, side, cells) for side in SIDES}
    if None in grids.values():
        return []
    if spec.how == "inner":
        tame = {side: grid is not None and not grid.may_be_wild for side, grid in grids.items()}
        sizes = _sizes(spec, engine)
        return [max(SIDES, key=lambda side: (tame[side], sizes[side]))]
    return list(SIDES) if spec.how == "full" else ["right" if spec.how == "right" else "left"]


def _spreads(spec: JoinSpec, engine: Spark, cells: int) -> bool:
    grids = [grid_of(spec, side, cells) for side in _kept_sides(spec, engine, cells)]
    return all(grid is not None and spreads(grid, PLACES_A_CELL) for grid in grids)


# --- matrices


def _cells(spec: JoinSpec, kind: Literal["home", "hash"], cells: int, reason: str) -> Layout:
    return Layout(kind, (Grid(cells, 1, decides=padded_sides(spec)),), reason)


def _matrix(spec: JoinSpec, rows: int, columns: int, reason: str) -> Layout:
    return Layout("matrix", (Grid(rows, columns, decides=padded_sides(spec)),), reason)


def _decisive(spec: JoinSpec, cells: int, asked: str, but: str = "") -> Layout | None:
    """Return the matrix in which a row has all its partners in one cell; None for an inner join, which needs none."""
    if spec.how == "inner":
        return None
    reason = f"{asked}a row of a {spec.how} join has to meet all its partners in one cell{but}"
    if spec.how == "full" and cells > 1:
        left = Grid(cells, 1, decides=frozenset({"left"}))
        return Layout("matrix", (left, Grid(1, cells, cells, pairs=False, decides=frozenset({"right"}))), reason)
    return _matrix(spec, *((1, cells) if spec.how == "right" else (cells, 1)), reason)
