"""Time columns as int64: microseconds for timestamps, the column's own unit for integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterflow.errors import TimeError
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec, SideSpec
from counterflow.spec.window_sizes import Window
from counterflow.windows.vectors import Array

INT64 = np.iinfo(np.int64)


def time_values(side: SideSpec, table: pa.Table | pa.RecordBatch) -> Array:
    """Return the times of a table's rows. A null is an error: such a row would be in no window, or in every one.

    The rows of a table without a time are before all others.
    """
    if side.time is None:
        return np.full(table.num_rows, INT64.min)
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
        times = column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise TimeError(
            f"time column '{side.time}' of the {side.side} input ({column.type}) does not fit: times are 64-bit "
            f"integers or timestamps in whole microseconds; round or convert it first ({error})"
        ) from error
    check_after_table(side, times)
    return times


def check_after_table(side: SideSpec, times: Array) -> None:
    """Raise an error for a time before which there is none: the rows of a table beside the stream have that place."""
    if side.beside_table and len(times) and int(times.min()) == INT64.min:
        raise TimeError(
            f"time column '{side.time}' of the {side.side} input has the least 64-bit integer, and nothing is before "
            "it: but the rows of a table without a time come before every row of the stream. Shift the times by one"
        )


def horizon_of(window: Window, times: Any, arrived: Any, first_from: Callable[[Any], Any]) -> Any:
    """Return the oldest opposite ordinals that are in the opposite `window` when tuples with these `times` arrive.

    `arrived` opposite tuples came before; `first_from` returns the first opposite ordinal at a time or after it. All
    may be arrays or single values. A horizon is at most `arrived`: whoever takes it for a bound of what has expired
    must not forget opposite tuples that are still to come. A window that is zero and open holds nothing, not even
    what comes at the same time, so its horizon is `arrived` itself.
    """
    if window.kind == "rows":
        return np.maximum(arrived - window.size, 0)
    if window.reach is None:
        return np.zeros_like(arrived)
    if window.reach < 0:
        return arrived
    return first_from(saturating_subtract(times, window.reach))


def saturating_subtract(times: Any, distance: int) -> Any:
    """Return times - distance, held at the ends of the range: a bound there is right only if it includes its time."""
    if distance >= 0:
        return np.maximum(times, min(INT64.min + distance, INT64.max)) - distance
    return np.minimum(times, INT64.max + distance) - distance


def is_plain_time(type_: pa.DataType) -> bool:
    """Return whether times of this type lie in Arrow's memory as they are computed with."""
    return bool(type_ == pa.int64() or (pa.types.is_timestamp(type_) and type_.unit == "us"))


def time_reach(spec: JoinSpec, side: Side) -> tuple[int | None, int | None]:
    """Return how far before and after a tuple of `side` the opposite tuples are that it may meet; None: any distance.

    A window that is zero and open reaches -1 far.
    """
    left, right = spec.left.window, spec.right.window
    assert "rows" not in (left.kind, right.kind)
    after = left.reach
    before = None if right.reach is None else max(right.reach, 0)
    return (before, after) if side == "left" else (after, before)


def time_bounds(spec: JoinSpec, side: Side, times: Array) -> tuple[Array, Array]:
    """Return, for tuples of `side`, the least and greatest time of the opposite tuples they may meet.

    A left tuple meets right ones in [t - right window, t + left window]; a tie is decided by the left window alone,
    because at equal times the left tuple is the earlier one. If that is zero and open, a tuple at the end of time
    may have nothing on one side of it: its range is empty.
    """
    before, after = time_reach(spec, side)
    left = spec.left.window
    low = np.full(len(times), INT64.min) if before is None else saturating_subtract(times, before)
    high = np.full(len(times), INT64.max) if after is None else saturating_subtract(times, -after)
    if left.reach is not None and left.reach < 0:
        nothing = times == (INT64.min if side == "left" else INT64.max)
        low[nothing], high[nothing] = INT64.max, INT64.min
    return low, high
