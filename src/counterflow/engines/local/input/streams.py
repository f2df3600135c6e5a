"""What a user says of a stream: where its batches come from, and how far out of order they may be."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from typing import Any, overload

import pyarrow as pa

from counterflow.engines.local.input.pushed import PushedStream
from counterflow.errors import InputError, OptionError
from counterflow.predicate.durations import duration_us
from counterflow.windows.times import INT64

TIMEOUT_MAX = 366 * 86_400.0


@dataclass(frozen=True)
class Stream:
    """One physical stream; see `stream`.

    >>> import counterflow as cf
    >>> cf.stream([[{"t": 1, "x": 5}]], delay=3).delay
    3
    """

    batches: Any
    delay: Any = None
    schema: pa.Schema | None = None
    timeout: Any = None


@overload
def stream(
    batches: None = None,
    delay: str | dt.timedelta | int | None = None,
    schema: pa.Schema | None = None,
    timeout: str | dt.timedelta | float | None = None,
) -> PushedStream: ...


@overload
def stream(
    batches: Any,
    delay: str | dt.timedelta | int | None = None,
    schema: pa.Schema | None = None,
    timeout: str | dt.timedelta | float | None = None,
) -> Stream: ...


def stream(
    batches: Any = None,
    delay: str | dt.timedelta | int | None = None,
    schema: pa.Schema | None = None,
    timeout: str | dt.timedelta | float | None = None,
) -> Stream | PushedStream:
    """Return one physical stream for `window_join`.

    Parameters
    ----------
    batches
        An iterable, iterator or generator of Arrow batches or tables, pandas or polars frames, or lists of dicts; a
        `pyarrow.RecordBatchReader` or anything else that exports an Arrow stream; the result of another
        `window_join`; a path or a list of paths (Parquet, CSV, Arrow IPC), read in this order; a `queue.Queue`, which
        None ends; or an asynchronous iterator, which runs in the event loop in which `window_join` is called, or
        where none runs in one of its own; or a function that returns one of these, and is called with the number of
        rows at which it shall begin: 0, or where a checkpoint was written. An item may also be `cf.watermark(time)`,
        the sign of life of a source that has no rows. Left out: a `PushedStream`, to which rows are pushed; it needs a
        schema.
    delay
        None: rows come in order of time, and one that goes back is an error. Otherwise how far a row may be behind
        the newest one before it, and still be on time: "10 seconds", a timedelta, or an integer for integer times.
    schema
        The columns, if the first batch shall not be waited for, or if it does not tell them. Rows that are dicts
        all have the same keys, and values that fit these columns, or those of the first rows; None is NULL.
    timeout
        None: the join waits for a stream that is silent. Otherwise how long, on the wall clock: "5 seconds", a
        timedelta, or seconds. After that it goes on without it; rows that then come behind the others are late.

    Examples
    --------
    >>> import counterflow as cf, pyarrow as pa
    >>> schema = pa.schema({"ts": pa.int64(), "x": pa.int64()})
    >>> left, right = cf.stream(schema=schema), cf.stream(schema=schema)
    >>> joined = cf.window_join(left, right, where="abs(l.x - r.x) <= 1", time="ts", window=10)
    >>> left.push({"ts": 1, "x": 5}), right.push([{"ts": 2, "x": 6}, {"ts": 3, "x": 9}])
    (True, True)
    >>> left.close(), right.close()
    (None, None)
    >>> [(row["x"], row["x_right"]) for row in joined.rows()]
    [(5, 6)]
    """
    if isinstance(batches, Stream | PushedStream):
        raise InputError("cf.stream(...) of a cf.stream(...): give its batches")
    if isinstance(batches, dict | bytes | int | float):
        raise InputError(
            f"cf.stream() of a {type(batches).__name__}: expected an iterable of batches, a reader, paths, a queue or "
            "an asynchronous iterator"
        )
    if schema is not None and not isinstance(schema, pa.Schema):
        raise OptionError(f"schema={schema!r}: give a pyarrow.Schema")
    if delay is not None:
        _check_delay(delay)
    seconds = None if timeout is None else _timeout_seconds(timeout)
    if batches is not None:
        return Stream(batches, delay, schema, seconds)
    if schema is None:
        raise InputError(
            "cf.stream() without batches is a stream that rows are pushed to: name its columns with schema=, or give "
            "an iterable of batches, a reader, paths, a queue or an asynchronous iterator"
        )
    return PushedStream(schema, delay, seconds)


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


def _timeout_seconds(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | str | dt.timedelta):
        raise OptionError(f"timeout={timeout!r}: give a duration such as '5 seconds', a timedelta, or seconds")
    seconds = float(timeout) if isinstance(timeout, int | float) else duration_us(timeout) / 1e6
    if not 0 < seconds <= TIMEOUT_MAX:
        raise OptionError(f"timeout={timeout!r}: must be longer than zero, and at most a year")
    return seconds


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
