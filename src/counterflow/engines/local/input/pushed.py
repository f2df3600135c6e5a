"""A stream without a source: the program pushes rows to it, and they are on their way to the join at once."""

from __future__ import annotations

import datetime as dt
from typing import Any, Protocol

import pyarrow as pa

from counterflow.engines.local.input.watermarks import Watermark, watermark
from counterflow.errors import InputError, OptionError

FIRST_PAUSE_S, LAST_PAUSE_S = 0.0002, 0.01  # between two looks of `apush` whether there is room


class Door(Protocol):
    """Where pushed rows enter a join."""

    def convert(self, rows: Any) -> pa.RecordBatch: ...

    def offer(self, batch: pa.RecordBatch, timeout: float | None) -> bool | None: ...

    def advance(self, watermark: Watermark) -> None: ...

    def end(self) -> None: ...


class PushedStream:
    """A stream that rows are pushed to, once it is a side of a join; see `stream`. Any thread may push.

    >>> import counterflow as cf, pyarrow as pa
    >>> schema = pa.schema({"t": pa.int64(), "x": pa.int64()})
    >>> ships, radar = cf.stream(schema=schema), cf.stream(schema=schema)
    >>> joined = cf.window_join(ships, radar, where="l.x = r.x", time="t", window=10)
    >>> ships.push({"t": 1, "x": 5}), radar.push({"t": 2, "x": 5})
    (True, True)
    >>> joined.poll(timeout=10).to_pylist()
    [{'t': 1, 'x': 5, 't_right': 2, 'x_right': 5, 'pair_time': 2}]
    """

    def __init__(self, schema: pa.Schema, delay: Any, timeout: float | None) -> None:
        self.schema, self.delay, self.timeout = schema, delay, timeout
        self._door: Door | None = None

    def attach(self, door: Door) -> None:
        """Let what is pushed go through this door from now on. A join does it."""
        if self._door is not None:
            raise InputError("this pushed stream is a side of a join already: make another cf.stream(schema=...)")
        self._door = door

    def push(self, rows: Any, timeout: float | None = None) -> bool:
        """Push rows: a dict, a list of dicts, an Arrow batch or table, a pandas or polars frame.

        Returns True when the join has taken them, all of them. While its buffers are full it waits, at most `timeout`
        seconds if that is given; or, with `overflow='drop_newest'`, drops them, counts them and returns False. In the
        thread that takes results it makes room by taking some, which `poll` hands out later. Rows that do not fit the
        schema are an error, and none of them is taken.

        >>> import counterflow as cf, pyarrow as pa
        >>> ships, radar = (cf.stream(schema=pa.schema({"t": pa.int64(), "x": pa.int64()})) for _ in range(2))
        >>> joined = cf.window_join(ships, radar, where="l.x = r.x", time="t", window=10)
        >>> ships.push([{"t": 1, "x": 5}, {"t": 4, "x": 6}])
        True
        >>> ships.push({"t": 5, "y": 6})
        Traceback (most recent call last):
        counterflow.errors.ColumnError: the left stream: item 1 (dict): row 2 has no key 'x', and a key 'y' that ...
        >>> joined.close()
        """
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0
        ):
            raise OptionError(f"push(..., timeout={timeout!r}): give seconds, zero or more, or None to wait")
        door = self._opened()
        taken = door.offer(door.convert(rows), timeout)
        if taken is None:
            raise InputError(
                f"the join's buffers were full for {timeout:g} s, so the rows were not taken: take results faster, "
                "push again later, or use cf.Local(buffer_rows=...) or overflow='drop_newest'"
            )
        return taken

    async def apush(self, rows: Any) -> bool:
        """Push like `push`, without blocking the event loop. If it is cancelled, nothing was taken.

        >>> import asyncio, counterflow as cf, pyarrow as pa
        >>> ships, radar = (cf.stream(schema=pa.schema({"t": pa.int64(), "x": pa.int64()})) for _ in range(2))
        >>> joined = cf.window_join(ships, radar, where="l.x = r.x", time="t", window=10)
        >>> async def run():
        ...     await ships.apush({"t": 1, "x": 5})
        ...     await radar.apush({"t": 2, "x": 5})
        ...     ships.close(), radar.close()
        ...     return [batch.num_rows async for batch in joined]
        >>> asyncio.run(run())
        [1]
        """
        import asyncio  # takes its time

        door, pause = self._opened(), FIRST_PAUSE_S
        batch = door.convert(rows)
        while (taken := door.offer(batch, 0.0)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_S)
        return taken

    def advance(self, time: dt.datetime | int) -> None:
        """Say that no row with a time up to and including this one will be pushed: a watermark.

        >>> import counterflow as cf, pyarrow as pa
        >>> ships, radar = (cf.stream(schema=pa.schema({"t": pa.int64(), "x": pa.int64()})) for _ in range(2))
        >>> joined = cf.window_join(ships, radar, where="l.x = r.x", time="t", window=10, how="left")
        >>> ships.push({"t": 1, "x": 5})
        True
        >>> ships.advance(20), radar.advance(20)  # the window of the ship is over
        (None, None)
        >>> joined.poll(timeout=10).to_pylist()
        [{'t': 1, 'x': 5, 't_right': None, 'x_right': None, 'pair_time': 1}]
        """
        self._opened().advance(watermark(time))

    def close(self) -> None:
        """Say that no more rows come. Closing it again does nothing.

        >>> import counterflow as cf, pyarrow as pa
        >>> ships, radar = (cf.stream(schema=pa.schema({"t": pa.int64(), "x": pa.int64()})) for _ in range(2))
        >>> joined = cf.window_join(ships, radar, where="l.x = r.x", time="t", window=10)
        >>> ships.close(), radar.close()
        (None, None)
        >>> list(joined)
        []
        """
        self._opened().end()

    def _opened(self) -> Door:
        if self._door is None:
            raise InputError("this pushed stream is no side of a join yet: call cf.window_join(...) with it first")
        return self._door

    def __repr__(self) -> str:
        return f"PushedStream({', '.join(f'{field.name}: {field.type}' for field in self.schema)})"
