"""From pairs of row numbers to the result table: the payload is touched once, here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from counterflow.spec.join_spec import JoinSpec, SideSpec
from counterflow.windows.vectors import Array


def gather(
    spec: JoinSpec,
    left: pa.Table,
    right: pa.Table,
    left_rows: Array | None,
    right_rows: Array | None,
    pair_time: Array,
) -> pa.Table:
    """Return the result for the given rows (None: all of them); -1 stands for an unmatched row's missing side."""
    columns = _side_columns(spec.left, left, left_rows)
    if spec.has_right_columns:
        columns += _side_columns(spec.right, right, right_rows)
    columns.append(_pair_time(spec, pair_time))
    return pa.Table.from_arrays(columns, schema=spec.output_schema)


def _side_columns(side: SideSpec, table: pa.Table, rows: Array | None) -> list[pa.ChunkedArray]:
    names = [n for n, out in zip(side.schema.names, side.output_names, strict=True) if out is not None]
    if rows is None:
        return [table.column(name) for name in names]
    missing = rows < 0
    index = pa.array(np.where(missing, 0, rows), mask=missing if missing.any() else None)
    if not len(table):
        index = pa.nulls(len(rows), pa.int64())
    return [table.column(name).combine_chunks().take(index) for name in names]


def _pair_time(spec: JoinSpec, times: Array) -> pa.Array:
    target = spec.pair_time_type
    if pa.types.is_timestamp(target):
        return pa.array(times, pa.timestamp("us", target.tz)).cast(target)
    return pa.array(times).cast(target)
