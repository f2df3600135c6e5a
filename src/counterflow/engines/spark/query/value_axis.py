"""One direction of a grid of values: a band's key as numbers, and which parts of a grid these numbers are in.

Only the row decides, never the rows beside it: two runs of a task must send it the same way. So whole numbers beyond 64
bits, which make a batch's keys Python integers, are held at the ends of 64 bits in every batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, inf

import numpy as np

from counterflow.predicate.differences import Inequality
from counterflow.predicate.expression import Call, Column, Expression, Side, columns_of, opposite
from counterflow.predicate.great_circle import AXES as COORDINATES
from counterflow.predicate.implied import may_fail
from counterflow.predicate.ranges import without_casts
from counterflow.predicate.types import integer_range
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.evaluate import INT64_MAX, INT64_MIN, Columns, exact
from counterflow.windows.keys import as_float, computed, key_bounds, stored_range
from counterflow.windows.vectors import Array, Vector

LAST = 1 << 60  # the place of infinity and NaN; places are held between -LAST and LAST
AXES_MAX = 2
BANDS_A_PLACE = {1: 4, 2: 8}  # by the number of axes: so a copied row is in 1.25 places on average, or in 1.27
FEW_VALUES = ("length", "octet_length", "bit_length", "log_size", "instr", "locate", "ascii", "bit_count")


@dataclass(frozen=True)
class Axis:
    """A band, and how many times wider than it a place (a part of the grid along its key) is."""

    band: Inequality
    bands_a_place: int

    @cached_property
    def exact(self) -> bool:
        """Whether both keys are whole numbers that no step rounds."""
        rounded = (k.type.is_float or k.type.is_decimal for k in (self.band.left, self.band.right))
        return self.band.rounds == "exact" and not any(rounded)

    @cached_property
    def width(self) -> float:
        assert self.band.low is not None and self.band.high is not None
        return max(float(self.band.high - self.band.low), 0.0)

    @cached_property
    def size(self) -> float:
        """The size of a place; an integer where keys are exact."""
        size = self.width * self.bands_a_place
        return min(max(int(size), 1), LAST) if self.exact else size or 1.0

    @property
    def copies(self) -> float:
        """The number of places that a band touches, on average."""
        return 1 + self.width / self.size

    def key(self, side: Side, columns: Columns, n: int) -> Vector:
        key = computed(self.band.key(side), side, columns, n)
        assert key is not None, "a key that may fail is not taken for a grid"
        return key

    # --- keys as numbers: int64 where they are exact, else float64 without NaN, which is at the end with infinity

    def numbers(self, key: Vector) -> Array:
        return _held(key.values) if self.exact else _ordered(as_float(key))

    def reach(self, side: Side, key: Vector) -> tuple[Array, Array]:
        """Return between which numbers the partners of a side's rows have theirs; of a NULL that says nothing, all."""
        other = opposite(side)
        least, most = stored_range(self.band, other)
        assert least is not None and most is not None
        if self.exact:
            low, high = _moved(key.values, ceil(least)), _moved(key.values, floor(most))
            ends: tuple[float, float] = (INT64_MIN, INT64_MAX)
        else:
            bounds = key_bounds(self.band, other, key, side in self.band.nan_sides, in_float=True)
            low, high = (_ordered(bound) for bound in bounds if bound is not None)
            ends = (-np.inf, np.inf)
        silent = ~key.mask() & self.band.nulls_meet
        return np.where(silent, ends[0], low), np.where(silent, ends[1], high)

    def place(self, numbers: Array) -> Array:
        """Return the places of numbers: a greater number never has a lower place."""
        if self.exact:
            return np.clip(numbers // np.int64(self.size), -LAST, LAST)
        with np.errstate(over="ignore"):
            return np.clip(np.floor(numbers / self.size), -float(LAST), float(LAST)).astype(np.int64)

    # --- keys that say nothing

    def may_be_wild(self, side: Side) -> bool:
        """Return whether a row of this side may satisfy the condition whatever its key and the other one's are."""
        return self.band.nulls_meet or (side in self.band.nan_sides and self.band.key(side).type.is_float)

    def wild(self, side: Side, key: Vector) -> Array:
        """Return which rows may."""
        found = ~key.mask() if self.band.nulls_meet else np.zeros(len(key), bool)
        if side in self.band.nan_sides and key.type.is_float:
            found |= np.isnan(key.values) & key.mask()
        return found

    def meets_nobody(self, key: Vector) -> Array:
        """Return which rows have a NULL by which the condition is never true."""
        return np.zeros(len(key), bool) if self.band.nulls_meet else ~key.mask()


def _held(values: Array) -> Array:
    return np.clip(values, INT64_MIN, INT64_MAX).astype(np.int64)


def _moved(values: Array, by: int) -> Array:
    return _held(exact("+", values, np.array([by], object)))


def _ordered(values: Array) -> Array:
    return np.where(np.isnan(values), np.inf, values)


# --- which bands may be axes


def axes_of(spec: JoinSpec) -> tuple[Axis, ...]:
    """Return the axes of a join's first bands, with each key once; none, if rows cannot be dealt out by any."""
    bands: list[Inequality] = []
    for bound in spec.parts.bounds:
        new = all(bound.left != band.left and bound.right != band.right for band in bands)
        if bound.is_band and new and _serves(spec, bound):
            bands.append(bound)
    chosen = bands[:AXES_MAX]
    return tuple(Axis(band, BANDS_A_PLACE[len(chosen)]) for band in chosen)


def _serves(spec: JoinSpec, band: Inequality) -> bool:
    """Return whether every row has a value for its key, and the key is not made of the row's time.

    Rows come in the order of time: all that are new would crowd one place.
    """
    return not any(
        may_fail(band.key(side)) or spec.side(side).time in {column.name for column in columns_of(band.key(side))}
        for side in ("left", "right")
    )


def places_at_most(axis: Axis) -> float:
    """Return how many places the values of an axis' keys can be in, as far as the keys tell; often without bound."""
    return min(_span(key) for key in (axis.band.left, axis.band.right)) / axis.size + 1


def _span(key: Expression) -> float:
    inner = without_casts(key)
    if isinstance(inner, Column):
        if not inner.type.is_integer:
            return inf
        low, high = integer_range(inner.type)
        return float(high - low)
    if isinstance(inner, Call) and inner.op in COORDINATES:
        return 2.0
    return 0.0 if isinstance(inner, Call) and inner.op in FEW_VALUES else inf
