"""Access paths: which stored rows a probe has to look at.

A path only narrows the candidates; the whole predicate is checked on each of them. Every path is one sorted
index over a chunk: of the hashes of the equality's keys, or of the key that inequalities bound. A probe takes
whichever promises fewer candidates, the index or the plain window range, so a hot key or a band that matches
everything costs what a scan costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Protocol

import numpy as np

from counterflow.errors import EvaluationError
from counterflow.kernels.evaluate import INT64_MAX, INT64_MIN, Columns, exact, one_sided
from counterflow.kernels.vectors import Array, Vector
from counterflow.spec.expression import Expression, Side
from counterflow.spec.split import Equality, Inequality, Split

# Relative error allowed for rounding in a predicate's own arithmetic.
_SLACK = {"double": 2.0**-48, "float": 2.0**-20}


@dataclass(frozen=True)
class SortedIndex:
    """Row numbers in the order of their keys; rows whose key is NULL are left out."""

    keys: Array
    rows: Array


class AccessPath(Protocol):
    """How the rows stored for one side are indexed and found."""

    @property
    def name(self) -> str: ...

    def index(self, columns: Columns, n: int) -> SortedIndex | None:
        """The index over a chunk of the stored side; None where it cannot be computed."""

    def ranges(self, index: SortedIndex, columns: Columns, n: int) -> tuple[Array, Array] | None:
        """For each probing row, the range of the index that holds its candidates."""


@dataclass(frozen=True)
class Scan:
    """No index: every row in the window is a candidate."""

    name: str = "scan"

    def index(self, columns: Columns, n: int) -> SortedIndex | None:
        return None

    def ranges(self, index: SortedIndex, columns: Columns, n: int) -> tuple[Array, Array] | None:
        return None


@dataclass(frozen=True)
class HashPath:
    """Equalities: candidates have the same hash of all keys."""

    stored: Side
    equalities: tuple[Equality, ...]

    @property
    def name(self) -> str:
        return f"hash on {', '.join(str(e.key(self.stored)) for e in self.equalities)}"

    def index(self, columns: Columns, n: int) -> SortedIndex | None:
        hashed = self._hashes(self.stored, columns, n)
        return None if hashed is None else _sorted_index(*hashed)

    def ranges(self, index: SortedIndex, columns: Columns, n: int) -> tuple[Array, Array] | None:
        hashed = self._hashes("right" if self.stored == "left" else "left", columns, n)
        if hashed is None:
            return None
        codes, usable = hashed
        begin, end = np.searchsorted(index.keys, codes, "left"), np.searchsorted(index.keys, codes, "right")
        return begin, np.where(usable, end, begin)

    def _hashes(self, side: Side, columns: Columns, n: int) -> tuple[Array, Array] | None:
        codes, usable = np.zeros(n, np.uint64), np.ones(n, bool)
        for equality in self.equalities:
            key = _computed(equality.key(side), side, columns, n)
            if key is None:
                return None
            scale = max(equality.left.type.scale, equality.right.type.scale)
            code = np.where(key.mask(), _hash(key, scale), np.uint64(0x9E37))
            codes = _mix(codes + code)
            if not equality.null_safe:
                usable &= key.mask()
        return codes, usable


@dataclass(frozen=True)
class RangePath:
    """Inequalities that bound one key of the stored side: candidates lie in a range of that key."""

    stored: Side
    key: Expression
    inequalities: tuple[Inequality, ...]

    @property
    def name(self) -> str:
        return f"{'band' if _bound_count(self.inequalities) == 2 else 'range'} on {self.key}"

    @property
    def rounds(self) -> bool:
        return any(i.rounds != "exact" for i in self.inequalities)

    def index(self, columns: Columns, n: int) -> SortedIndex | None:
        key = _computed(self.key, self.stored, columns, n)
        if key is None:
            return None
        keys = _as_float(key) if self.rounds or key.values.dtype == object else key.values
        return _sorted_index(keys, key.mask())

    def ranges(self, index: SortedIndex, columns: Columns, n: int) -> tuple[Array, Array] | None:
        probing: Side = "right" if self.stored == "left" else "left"
        begin, end = np.zeros(n, np.int64), np.full(n, len(index.keys), np.int64)
        has_nan = bool(index.keys.dtype == np.float64 and len(index.keys) and np.isnan(index.keys[-1]))
        for inequality in self.inequalities:
            key = _computed(inequality.key(probing), probing, columns, n)
            if key is None:
                return None
            low, high = self._bounds(inequality, key, probing in inequality.nan_sides, index.keys.dtype == np.float64)
            if has_nan and self.stored in inequality.nan_sides:
                low = high = None
            if low is not None:
                begin = np.maximum(begin, np.searchsorted(index.keys, low, "left"))
            if high is not None:
                end = np.minimum(end, np.searchsorted(index.keys, high, "right"))
            end = np.where(key.mask(), end, begin)
        return begin, np.maximum(begin, end)

    def _bounds(
        self, inequality: Inequality, probe: Vector, nan_meets_all: bool, as_float: bool
    ) -> tuple[Array | None, Array | None]:
        """The stored key's least and greatest value: left in [r + low, r + high], right in [l - high, l - low]."""
        low, high = inequality.low, inequality.high
        if self.stored == "right":
            low, high = (None if high is None else -high), (None if low is None else -low)
        if not as_float and probe.values.dtype != object:
            return (
                None if low is None else _shifted(probe.values, ceil(low)),
                None if high is None else _shifted(probe.values, floor(high)),
            )
        values = _as_float(probe)
        size = np.abs(values) + inequality.magnitude + abs(float(low or 0)) + abs(float(high or 0))
        slack = size * _SLACK["float" if inequality.rounds == "float" else "double"]
        # NaN is at the end of the order: as a lower bound it leaves only NaN, as an upper bound everything.
        lowest = np.where(np.isnan(values) & (not nan_meets_all), np.nan, -np.inf)
        return (
            None if low is None else _widened(values, low, -slack, lowest),
            None if high is None else _widened(values, high, slack, np.full(len(values), np.nan)),
        )


def _widened(values: Array, bound: Fraction, slack: Array, beyond: Array) -> Array:
    """value + bound, widened by the slack; `beyond` where that is no number."""
    with np.errstate(invalid="ignore", over="ignore"):
        result = values + float(bound) + slack
    return np.where(np.isfinite(result), result, beyond)


def _shifted(values: Array, by: int) -> Array:
    """values + by, held at the ends of int64: a bound beyond them binds nothing."""
    moved = exact("+", values, np.array([by], object))
    return moved if moved.dtype != object else np.clip(moved, INT64_MIN, INT64_MAX).astype(np.int64)


def _as_float(key: Vector) -> Array:
    with np.errstate(over="ignore"):
        values = key.values.astype(np.float64)
    return values / 10.0**key.type.scale if key.type.is_decimal else values


def _computed(expression: Expression, side: Side, columns: Columns, n: int) -> Vector | None:
    """A key, or None where some row has none (a division by zero that the predicate may guard against)."""
    try:
        return one_sided(expression, side, columns, n)
    except EvaluationError:
        return None


def _sorted_index(keys: Array, usable: Array) -> SortedIndex:
    rows = np.flatnonzero(usable)
    order = np.argsort(keys[rows], kind="stable")
    return SortedIndex(keys[rows][order], rows[order])


def _hash(key: Vector, scale: int) -> Array:
    """64 bits that are equal where Spark's `=` holds."""
    if key.type.is_float:
        values = key.values.astype(np.float64) + 0.0  # -0.0 equals 0.0
        return np.where(np.isnan(values), np.nan, values).view(np.uint64)
    if key.values.dtype != object:
        values = key.values.astype(np.int64)
        if key.type.is_exact and scale > key.type.scale:
            values = exact("*", values, np.array([10 ** (scale - key.type.scale)], object))
    elif key.type.is_exact:
        values = key.values * 10 ** (scale - key.type.scale)
    else:
        values = np.fromiter(map(hash, key.values), np.int64, len(key.values))
    if values.dtype == object:
        return np.array([v & 0xFFFFFFFFFFFFFFFF for v in values], np.uint64)
    return values.view(np.uint64)


def row_hashes(times: Array, columns: Columns) -> Array:
    """64 bits a row, which depend on nothing but the row: of its time and of its columns with 64-bit values.

    A text's hash differs by process, and how a DECIMAL is held depends on the other rows: they are left out.
    """
    codes = _mix(times.view(np.uint64))
    for _, column in sorted(columns.items()):
        if column.type.name not in ("STRING", "BINARY", "DECIMAL"):
            codes = _mix(codes + np.where(column.mask(), _hash(column, column.type.scale), np.uint64(0)))
    return codes


def _mix(x: Array) -> Array:
    """splitmix64's finaliser, so that several keys combine without cancelling each other."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def choose_path(split: Split, stored: Side) -> AccessPath:
    """Equalities first; then the stored key with most bounds; otherwise the scan."""
    if split.equalities:
        return HashPath(stored, tuple(split.equalities))
    by_key: dict[Expression, list[Inequality]] = {}
    for inequality in split.inequalities:
        by_key.setdefault(inequality.key(stored), []).append(inequality)
    if not by_key:
        return Scan()
    key = max(by_key, key=lambda k: _bound_count(by_key[k]))
    return RangePath(stored, key, tuple(by_key[key]))


def _bound_count(inequalities: Sequence[Inequality]) -> int:
    return any(i.low is not None for i in inequalities) + any(i.high is not None for i in inequalities)
