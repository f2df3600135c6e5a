"""What a user says of a stream: where its batches come from, and how far out of order they may be."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from counterflow.errors import InputError, OptionError, TimeError
from counterflow.predicate.durations import duration_us
from counterflow.windows.times import INT64

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class Stream:
    """One physical stream; see `stream`."""

    batches: Any
    delay: Any = None
    schema: pa.Schema | None = None


@dataclass(frozen=True)
class Watermark:
    """An item of a stream: no row with a time up to and including `time` comes after it."""

    time: Any


@dataclass(frozen=True)
class Punctuation:
    """An item of a joined stream: no result with a `pair_time` up to and including `time` comes after it."""

    time: Any


def stream(batches: Any, delay: str | dt.timedelta | int | None = None, schema: pa.Schema | None = None) -> Stream:
    """Return one physical stream for `window_join`.

    Parameters
    ----------
    batches
        An iterable, iterator or generator of Arrow batches or tables, pandas or polars frames, or lists of dicts; a
        `pyarrow.RecordBatchReader` or anything else that exports an Arrow stream; the result of another
        `window_join`; a path or a list of paths (Parquet, CSV, Arrow IPC), read in this order; a `queue.Queue`, which
        None ends; or an asynchronous iterator, which runs in the event loop in which `window_join` is called, or
        where none runs in one of its own. An item may also be `cf.watermark(time)`, the sign of life of a source that
        has no rows.
    delay
        None: rows come in order of time, and one that goes back is an error. Otherwise how far a row may be behind
        the newest one before it, and still be on time: "10 seconds", a timedelta, or an integer for integer times.
    schema
        The columns, if the first batch shall not be waited for, or if it does not tell them. Rows that are dicts
        all have the same keys, and values that fit these columns, or those of the first rows; None is NULL.
    """
    if isinstance(batches, Stream):
        raise InputError("cf.stream(...) of a cf.stream(...): give its batches")
    if isinstance(batches, dict | bytes | int | float) or batches is None:
        raise InputError(
            f"cf.stream() of a {type(batches).__name__}: expected an iterable of batches, a reader, paths, a queue or "
            "an asynchronous iterator"
        )
    if schema is not None and not isinstance(schema, pa.Schema):
        raise OptionError(f"schema={schema!r}: give a pyarrow.Schema")
    if delay is not None:
        _check_delay(delay)
    return Stream(batches, delay, schema)


def watermark(time: dt.datetime | int) -> Watermark:
    """Return an item of a stream that says: no row with a time up to and including `time` comes after this.

    It keeps a join going while a source is idle. `time` is a datetime, or an integer in the time column's unit.
    """
    if hasattr(time, "item"):  # numpy's integers and times
        time = time.item()
    if isinstance(time, bool) or not isinstance(time, int | dt.datetime):
        raise TimeError(f"cf.watermark({time!r}): give a datetime, or an integer in the time column's unit")
    return Watermark(time)


def is_path(data: Any) -> bool:
    """Return whether this names a file."""
    return isinstance(data, str | os.PathLike)


def _check_delay(delay: Any) -> int:
    if isinstance(delay, bool) or not isinstance(delay, int | str | dt.timedelta):
        raise OptionError(f"delay={delay!r}: give a duration such as '10 seconds', a timedelta, or an integer")
    ticks = delay if isinstance(delay, int) else duration_us(delay)
    if ticks < 0 or ticks > INT64.max:
        raise OptionError(f"delay={delay!r}: must be zero or longer, and fit into 64 bits")
    return ticks


def delay_ticks(delay: Any, time: pa.DataType, label: str) -> int | None:
    """Return the delay in microseconds, or in an integer time's unit."""
    if delay is None:
        return None
    ticks = _check_delay(delay)
    if pa.types.is_integer(time) != isinstance(delay, int) and ticks != 0:
        kind = "an integer, so the delay is one of the same unit" if pa.types.is_integer(time) else "a timestamp"
        example = "" if pa.types.is_integer(time) else f": write for example '{delay} seconds'"
        raise OptionError(f"{label}: delay={delay!r}, but its time column is {kind}{example}")
    return ticks


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
