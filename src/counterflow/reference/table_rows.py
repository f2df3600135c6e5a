"""Arrow tables for the oracle: rows out of tables, and results as positions in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.predicate.expression import columns_of
from counterflow.predicate.types import ARRAY, from_arrow
from counterflow.reference.join import Tuple, window_join
from counterflow.spec.join_spec import JoinSpec, SideSpec

Position = int | None


def reference_pairs(spec: JoinSpec, left: pa.Table, right: pa.Table) -> list[tuple[Position, Position, int]]:
    """Return every result as (left row number, right row number, pair_time), in order; a missing side is None."""
    results = window_join(spec, tuples_of(spec, spec.left, left), tuples_of(spec, spec.right, right))
    return [
        (None if r.left is None else r.left.position, None if r.right is None else r.right.position, r.pair_time)
        for r in results
    ]


def tuples_of(spec: JoinSpec, side: SideSpec, table: pa.Table) -> list[Tuple]:
    names = sorted({c.name for c in columns_of(spec.predicate) if c.side == side.side})
    columns = [row_values(table.column(name)) for name in names]
    times = [None] * len(table) if side.time is None else row_values(table.column(side.time))
    rows = zip(*columns, strict=True) if columns else ((),) * len(times)
    return [
        Tuple(side.side, time, position, dict(zip(names, row, strict=True)))
        for position, (time, row) in enumerate(zip(times, rows, strict=True))
    ]


def row_values(column: pa.ChunkedArray) -> list[Any]:
    """Return Python values as `predicate/expression.py` describes them: times as microseconds, dates as day numbers."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return row_values(column.cast(type_.value_type))
    if from_arrow(type_) == ARRAY:
        element = type_.value_type.to_pandas_dtype()
        return [None if values is None else _array(values, element) for values in column.to_pylist()]
    if pa.types.is_timestamp(type_):
        return column.cast(pa.timestamp("us", type_.tz)).cast(pa.int64()).to_pylist()
    if pa.types.is_duration(type_):
        return column.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
    if pa.types.is_date(type_):
        return column.cast(pa.date32()).cast(pa.int32()).to_pylist()
    if pa.types.is_uint64(type_):
        return column.cast(pa.decimal128(20, 0)).to_pylist()
    return column.to_pylist()


def _array(values: list[Any], element: Any) -> np.ndarray:
    """Return a list of numbers as Python functions see it; a NULL among them is NaN."""
    if None in values:
        return np.array([math.nan if value is None else value for value in values])
    return np.array(values, element)
