"""Keys: what an equality or an inequality compares, computed for all rows of one side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np

from counterflow.errors import EvaluationError
from counterflow.predicate.differences import Inequality
from counterflow.predicate.expression import Column, Expression, Side
from counterflow.predicate.split import Equality
from counterflow.windows.evaluate import INT64_MAX, INT64_MIN, Columns, exact, one_sided
from counterflow.windows.vectors import Array, Vector

# Relative error allowed for rounding in a predicate's own arithmetic.
SLACK = {"exact": 2.0**-48, "double": 2.0**-48, "float": 2.0**-20}


def computed(expression: Expression, side: Side, columns: Columns, n: int) -> Vector | None:
    """Return a key, or None where some row has none (a division by zero that the predicate may guard against)."""
    if isinstance(expression, Column):
        found = columns[expression.name]
        return Vector(expression.type, found.values, found.valid).broadcast(n)
    try:
        return one_sided(expression, side, columns, n)
    except EvaluationError:
        return None


def key_codes(key: Vector, scale: int, text_code: Callable[[Any], int] = hash) -> Array:
    """Return 64 bits a row that are equal where Spark's `=` holds."""
    if key.type.is_float:
        values = key.values.astype(np.float64) + 0.0  # -0.0 equals 0.0
        return np.where(np.isnan(values), np.nan, values).view(np.uint64)
    if key.values.dtype != object:
        values = key.values.astype(np.int64)
        if key.type.is_exact and scale > key.type.scale:
            values = exact("*", values, np.array([10 ** (scale - key.type.scale)], object))
    elif key.type.name in ("STRING", "BINARY"):
        values = np.fromiter(map(text_code, key.values), np.int64, len(key.values))
    else:  # numbers and times beyond 64 bits, among others that are not
        values = key.values * 10 ** (scale - key.type.scale)
    if values.dtype == object:
        return np.array([v & 0xFFFFFFFFFFFFFFFF for v in values], np.uint64)
    return values.view(np.uint64)


def lasting_text_code(text: str | bytes) -> int:
    """Return a hash that is the same in every process and on every machine, which `hash` is not."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def row_hashes(times: Array, columns: Columns) -> Array:
    """Return 64 bits a row that depend on nothing but its time and its columns with 64-bit values.

    A text's hash differs by process, and how a DECIMAL is held depends on the other rows: they are left out.
    """
    codes = mixed(times.view(np.uint64))
    for _, column in sorted(columns.items()):
        if column.type.name not in ("STRING", "BINARY", "DECIMAL", "ARRAY"):
            codes = mixed(codes + np.where(column.mask(), key_codes(column, column.type.scale), np.uint64(0)))
    return codes


def mixed(x: Array) -> Array:
    """Apply splitmix64's finaliser, so that several keys combine without cancelling each other."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def as_float(key: Vector) -> Array:
    """Return a key as the DOUBLEs that it stands for."""
    with np.errstate(over="ignore"):
        values = key.values.astype(np.float64)
    return values / 10.0**key.type.scale if key.type.is_decimal else values


def equality_hashes(
    equalities: tuple[Equality, ...],
    side: Side,
    columns: Columns,
    n: int,
    text_code: Callable[[Any], int] = hash,
) -> tuple[Array, Array] | None:
    """Return one hash of all keys for each row, and which rows can equal any; None where a key has no value."""
    codes, usable = np.zeros(n, np.uint64), np.ones(n, bool)
    for equality in equalities:
        key = computed(equality.key(side), side, columns, n)
        if key is None:
            return None
        scale = max(equality.left.type.scale, equality.right.type.scale)
        code = key_codes(key, scale, text_code)
        if key.valid is not None:
            code = np.where(key.valid, code, np.uint64(0x9E37))
            if not equality.null_safe:
                usable &= key.valid
        codes = code if equality is equalities[0] else mixed(mixed(codes) + code)
    return codes, usable


def stored_range(inequality: Inequality, stored: Side) -> tuple[Fraction | None, Fraction | None]:
    """Return the bounds of the stored key's difference from the probing one: low <= key - probe <= high."""
    low, high = inequality.low, inequality.high
    if stored == "right":
        low, high = (None if high is None else -high), (None if low is None else -low)
    return low, high


def key_bounds(
    inequality: Inequality, stored: Side, probe: Vector, nan_meets_all: bool, in_float: bool
) -> tuple[Array | None, Array | None]:
    """Return the stored key's least and greatest value: left in [r + low, r + high], right in [l - high, l - low]."""
    low, high = stored_range(inequality, stored)
    if not in_float and probe.values.dtype != object:
        return (
            None if low is None else _shifted(probe.values, ceil(low)),
            None if high is None else _shifted(probe.values, floor(high)),
        )
    values = as_float(probe)
    size = np.abs(values) + inequality.magnitude + abs(float(low or 0)) + abs(float(high or 0))
    slack = size * SLACK[inequality.rounds]
    # NaN is at the end of the order: as a lower bound it leaves only NaN, as an upper bound everything.
    lowest = np.where(np.isnan(values) & (not nan_meets_all), np.nan, -np.inf)
    return (
        None if low is None else _widened(values, low, -slack, lowest),
        None if high is None else _widened(values, high, slack, np.full(len(values), np.nan)),
    )


def _widened(values: Array, bound: Fraction, slack: Array, beyond: Array) -> Array:
    """Return value + bound, widened by the slack; `beyond` where that is no number."""
    with np.errstate(invalid="ignore", over="ignore"):
        result = values + float(bound) + slack
    return np.where(np.isfinite(result), result, beyond)


def _shifted(values: Array, by: int) -> Array:
    """Return values + by, held at the ends of int64: a bound beyond them binds nothing."""
    moved = exact("+", values, np.array([by], object))
    return moved if moved.dtype != object else np.clip(moved, INT64_MIN, INT64_MAX).astype(np.int64)
