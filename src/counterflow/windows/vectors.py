"""Columns as numpy arrays with a validity mask: what vectorised predicates compute on.

| SQL type                  | values                                                                       |
| ------------------------- | ---------------------------------------------------------------------------- |
| integers, dates, times    | int64; Python integers (dtype object) where 64 bits do not suffice            |
| DECIMAL(p, s)             | the number times 10**s, as an integer in the same way                         |
| FLOAT, DOUBLE             | float32, float64                                                             |
| BOOLEAN                   | bool                                                                         |
| STRING, BINARY            | object                                                                       |

A vector of length 1 stands for a constant of any length (numpy's broadcasting). Compiled kernels hold columns as narrow
as their types allow, and no objects: `DTYPES` has both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterflow.errors import ColumnError
from counterflow.predicate.casts import EXACT
from counterflow.predicate.lists import arrays_of
from counterflow.predicate.types import ARRAY, SqlType, from_arrow

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Vector:
    """A column's values; `valid` is None where there is no NULL. Values at NULLs are any of the right dtype."""

    type: SqlType
    values: Array
    valid: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Array | slice) -> Vector:
        if len(self.values) == 1 and not isinstance(index, slice):
            index = np.zeros_like(index)
        return Vector(self.type, self.values[index], None if self.valid is None else self.valid[index])

    def mask(self) -> Array:
        """Return the validity as an array."""
        return np.ones(len(self.values), bool) if self.valid is None else self.valid

    def is_true(self) -> Array:
        """Return where a BOOLEAN is true, not false and not NULL."""
        return self.values if self.valid is None else self.values & self.valid

    def broadcast(self, n: int) -> Vector:
        if len(self.values) == n:
            return self
        valid = None if self.valid is None else np.broadcast_to(self.valid, n)
        return Vector(self.type, np.broadcast_to(self.values, n), valid)


# By the type's name: the dtype of a vector's values, and the dtype of a kernel's column (None: kernels cannot hold it)
DTYPES: dict[str, tuple[Any, Any]] = {
    "NULL": (np.int64, None),
    "BOOLEAN": (np.bool_, np.uint8),
    "TINYINT": (np.int64, np.int32),
    "SMALLINT": (np.int64, np.int32),
    "INT": (np.int64, np.int32),
    "BIGINT": (np.int64, np.int64),
    "DECIMAL": (np.int64, np.int64),
    "FLOAT": (np.float32, np.float32),
    "DOUBLE": (np.float64, np.float64),
    "DATE": (np.int64, np.int32),
    "TIMESTAMP": (np.int64, np.int64),
    "TIMESTAMP_NTZ": (np.int64, np.int64),
    "INTERVAL DAY TO SECOND": (np.int64, np.int64),
    "ARRAY": (object, None),
    "STRING": (object, None),
    "BINARY": (object, None),
}


def dtype_of(type_: SqlType) -> np.dtype[Any]:
    """Return the dtype of a vector's values."""
    return np.dtype(DTYPES[type_.name][0])


def kernel_dtype(type_: SqlType) -> np.dtype[Any] | None:
    """Return how compiled kernels hold a column; None if they cannot."""
    dtype = DTYPES[type_.name][1]
    return None if dtype is None else np.dtype(dtype)


def filler_of(type_: SqlType) -> Any:
    """Return what stands at a NULL."""
    return {"STRING": "", "BINARY": b"", "BOOLEAN": False}.get(type_.name, 0)


def from_arrow_column(name: str, column: pa.Array | pa.ChunkedArray) -> Vector:
    """Return a column as a vector. The caller has checked that its type is one that predicates can use."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if (plain := _PLAIN.get(column.type)) is not None and len(column) and not column.null_count:
        sql_type, lies, wanted = plain
        values = np.frombuffer(column.buffers()[1], lies, len(column), column.offset * lies.itemsize)
        return Vector(sql_type, values.astype(wanted, copy=False))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    type_ = from_arrow(column.type)
    assert type_ is not None, f"column {name} has type {column.type}"
    valid = None if column.null_count == 0 else column.is_valid().to_numpy(zero_copy_only=False)
    if type_.name == "NULL":
        return Vector(type_, np.zeros(len(column), bool), np.zeros(len(column), bool))
    if pa.types.is_decimal(column.type):
        return Vector(type_, _unscaled(column), valid)
    if pa.types.is_uint64(column.type):
        return Vector(type_, exact_integers(column.fill_null(0).to_pylist()), valid)
    dtype = dtype_of(type_)
    if type_ == ARRAY:
        return Vector(type_, arrays_of(column), valid)
    if dtype == np.dtype(object):
        values = column.to_numpy(zero_copy_only=False)
        return Vector(type_, values if valid is None else np.where(valid, values, filler_of(type_)), valid)
    if dtype == np.dtype(np.int64):
        column = _as_int64(name, column)
    filled = column if valid is None else column.fill_null(filler_of(type_))
    return Vector(type_, filled.to_numpy(zero_copy_only=False).astype(dtype, copy=False), valid)


# Numbers that lie in Arrow's memory as they do in numpy's: the type, the dtype there, and that of a vector's values.
_PLAIN = {
    arrow: (type_, np.dtype(arrow.to_pandas_dtype()), dtype_of(type_))
    for arrow in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
    if (type_ := from_arrow(arrow)) is not None
}


def contiguous(values: Array, dtype: Any = np.int64) -> Array:
    """Return values as compiled code takes them: of this dtype, side by side, writable; copied only if they are not."""
    if values.dtype == dtype and values.flags.carray:
        return values
    return np.require(values, dtype, ["C", "W", "A"])


def _as_int64(name: str, column: pa.Array) -> pa.Array:
    try:
        if pa.types.is_date(column.type):
            return column.cast(pa.date32()).cast(pa.int32())
        if pa.types.is_timestamp(column.type):
            return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        if pa.types.is_duration(column.type):
            return column.cast(pa.duration("us")).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ColumnError(
            f"column '{name}' ({column.type}) has values finer than a microsecond (a date: than a day), or out of "
            "range: round it first"
        ) from error
    return column


def _unscaled(column: pa.Array) -> Array:
    """Return the integers behind a decimal column, as int64 where they all fit."""
    if not len(column):
        return np.zeros(0, np.int64)
    if not pa.types.is_decimal128(column.type):
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(Decimal(0)).cast(column.type))
    buffer = column.buffers()[1]
    halves = np.frombuffer(buffer, np.int64)[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    if np.array_equal(high, low >> 63):
        return low.copy()
    return high.astype(object) * (1 << 64) + low.view(np.uint64).astype(object)


def exact_integers(values: Iterable[int]) -> Array:
    """Return integers as int64 where all fit, as Python integers otherwise."""
    numbers = list(values)
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return np.array(numbers, object)


def to_python(vector: Vector) -> list[Any]:
    """Return row values as `predicate.expression` describes them; at a NULL anything."""
    values = vector.values.tolist()
    if vector.type.is_decimal:
        return [EXACT.scaleb(Decimal(v), -vector.type.scale) for v in values]
    return values


def from_python(type_: SqlType, values: list[Any]) -> Vector:
    """Return the vector of row values, where None is NULL: the inverse of `to_python`."""
    present = np.array([v is not None for v in values], bool)
    valid = None if present.all() else present
    filled: list[Any] = [filler_of(type_) if v is None else v for v in values]
    if type_.is_decimal:
        filled = [int(EXACT.scaleb(Decimal(v), type_.scale)) for v in filled]
    dtype = dtype_of(type_)
    if dtype == np.dtype(np.int64):
        return Vector(type_, exact_integers(filled), valid)
    array = np.empty(len(filled), dtype)
    array[:] = filled
    return Vector(type_, array, valid)


def literal(type_: SqlType, value: Any) -> Vector:
    return from_python(type_, [value])
