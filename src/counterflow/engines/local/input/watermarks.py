"""How far a stream is: watermarks among its items, punctuations among results, and their times as ticks."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from counterflow.errors import TimeError
from counterflow.windows.times import INT64

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class Watermark:
    """An item of a stream: no row with a time up to and including `time` comes after it."""

    time: Any


@dataclass(frozen=True)
class Punctuation:
    """An item of a joined stream: no result with a `pair_time` up to and including `time` comes after it.

    >>> import counterflow as cf
    >>> cf.Punctuation(5) == cf.Punctuation(time=5)
    True
    """

    time: Any


def watermark(time: dt.datetime | int) -> Watermark:
    """Return an item of a stream that says: no row with a time up to and including `time` comes after this.

    It keeps a join going while a source is idle. `time` is a datetime, or an integer in the time column's unit.

    >>> import counterflow as cf
    >>> left, right = [[{"t": 1, "x": 5}], cf.watermark(30)], [[{"t": 2, "x": 5}]]
    >>> joined = cf.window_join(cf.stream(left), cf.stream(right), where="l.x = r.x", time="t", window=10)
    >>> [row["pair_time"] for row in joined.rows()]
    [2]
    """
    if hasattr(time, "item"):  # numpy's integers and times
        time = time.item()
    if isinstance(time, bool) or not isinstance(time, int | dt.datetime):
        raise TimeError(f"cf.watermark({time!r}): give a datetime, or an integer in the time column's unit")
    return Watermark(time)


def watermark_ticks(given: Any, time: pa.DataType, label: str) -> int:
    """Return a watermark's time as the column's values are kept: in microseconds, or an integer time's own unit."""
    if pa.types.is_integer(time):
        if isinstance(given, int):
            return _held(given)
        raise TimeError(f"{label}: cf.watermark({given!r}), but its time column is {time}: give an integer")
    if isinstance(given, int):
        return _held(given * 1_000_000 // _PER_SECOND[time.unit])
    if (given.tzinfo is None) != (time.tz is None):
        raise TimeError(
            f"{label}: cf.watermark({given!r}), but its time column is {time}: give a datetime "
            f"{'without' if time.tz is None else 'with'} a zone"
        )
    epoch = dt.datetime(1970, 1, 1, tzinfo=None if time.tz is None else dt.UTC)
    return (given - epoch) // dt.timedelta(microseconds=1)


def _held(ticks: int) -> int:
    return max(int(INT64.min), min(ticks, int(INT64.max)))


def time_of(ticks: int, time: pa.DataType) -> Any:
    """Return the inverse: a datetime; or an integer, for integer times and where datetime does not reach."""
    if pa.types.is_integer(time):
        return ticks
    try:
        return pa.scalar(ticks, pa.timestamp("us", time.tz)).as_py()
    except (ValueError, OverflowError):
        return ticks * _PER_SECOND[time.unit] // 1_000_000
