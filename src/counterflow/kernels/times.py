"""Time columns as int64: microseconds for timestamps, the column's own unit for integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterflow.errors import TimeError
from counterflow.kernels.vectors import Array
from counterflow.spec.expression import Side
from counterflow.spec.join_spec import JoinSpec, SideSpec

INT64 = np.iinfo(np.int64)


def time_values(side: SideSpec, table: pa.Table | pa.RecordBatch) -> Array:
    """The times of a table's rows. A null is an error: such a row would be in no window, or in every one."""
    column = table.column(side.time)
    if column.null_count:
        row = int(pc.index(column.is_null(), True).as_py())
        raise TimeError(
            f"time column '{side.time}' of the {side.side} input is null in row {row} ({column.null_count} in all): "
            "filter such rows out before the join"
        )
    try:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz))
        return column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise TimeError(
            f"time column '{side.time}' of the {side.side} input ({column.type}) does not fit: times are 64-bit "
            f"integers or timestamps in whole microseconds; round or convert it first ({error})"
        ) from error


def saturating_subtract(times: Array, distance: int) -> Array:
    """times - distance, held at the ends of the range."""
    if distance >= 0:
        return np.maximum(times, min(INT64.min + distance, INT64.max)) - distance
    return np.minimum(times, INT64.max + distance) - distance


def time_bounds(spec: JoinSpec, side: Side, times: Array) -> tuple[Array, Array]:
    """For tuples of `side`: the least and greatest time of the opposite tuples they may meet, before or after them.

    A left tuple meets right ones in [t - right window, t + left window]; a tie is decided by the left window alone,
    because at equal times the left tuple is the earlier one.
    """
    left, right = spec.left.window, spec.right.window
    assert "rows" not in (left.kind, right.kind)
    after = left.reach
    before = None if right.reach is None else max(right.reach, 0)
    if side == "right":
        before, after = after, before
    low = np.full(len(times), INT64.min) if before is None else saturating_subtract(times, before)
    high = np.full(len(times), INT64.max) if after is None else saturating_subtract(times, -after)
    return low, high
