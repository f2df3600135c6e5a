"""The joined stream: what the user holds of a join of streams (`stream_join` runs it)."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from html import escape
from typing import Any

import pyarrow as pa

from counterflow.engines.local.core import SIDES
from counterflow.engines.local.input.pushed import PushedStream
from counterflow.engines.local.input.sources import running_loop
from counterflow.engines.local.input.streams import Stream
from counterflow.engines.local.input.watermarks import Punctuation
from counterflow.engines.local.output.shedding import StreamItem
from counterflow.engines.local.stream_join import CLOSED, StreamJoin
from counterflow.errors import InputError, OptionError
from counterflow.predicate.expression import Side

FETCH_SECONDS = 0.1  # how long a thread waits for the next item of `async for`, before it looks whether it is wanted


class JoinedStream:
    """Two streams joined: an iterator of Arrow batches, for `for` and for `async for`.

    Closing it, or forgetting it, ends its threads and closes sources that are generators; so does an error, which is
    raised as itself, and an interrupt. It is a context manager and exports an Arrow stream. One thread at a time
    iterates; `close`, `late` and `metrics` may be called from any.

    >>> import counterflow as cf
    >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
    >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
    >>> [batch.to_pylist() for batch in joined]
    [[{'t': 1, 'x': 5, 't_right': 2, 'x_right': 5, 'pair_time': 2}]]
    """

    def __init__(self, join: StreamJoin) -> None:
        self._join = join
        self._fetched: deque[StreamItem | BaseException] = deque()  # by `async for`: what a thread has taken
        self._fetching = threading.Lock()
        self._ended = False
        found = None if join.folder is None else join.folder.found
        self._positions = join.positions() if found is None else found.positions()
        self._output_position = 0 if found is None else found.output_position
        # Without a reference to self, and without waiting: garbage collection may come at any moment.
        self._forgotten = weakref.finalize(self, join.forget)
        self._forgotten.atexit = False

    def __iter__(self) -> JoinedStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            item = self._next()
            if isinstance(item, pa.RecordBatch):
                return item

    def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """Return the next batch of results, or None if there is none within `timeout` seconds; `ended` says why.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> joined.poll(timeout=10).num_rows, joined.poll(timeout=10)
        (1, None)
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
            raise OptionError(f"poll(timeout={timeout!r}): give seconds, zero or more")
        deadline = time.monotonic() + timeout
        try:
            while True:
                item = self._next(max(deadline - time.monotonic(), 0.0))
                if item is None or isinstance(item, pa.RecordBatch):
                    return item
        except StopIteration:
            return None

    @property
    def ended(self) -> bool:
        """Whether there are no more results: all was handed out, or it was closed.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> joined.ended, len(list(joined)), joined.ended
        (False, 1, True)
        """
        return self._ended or self._join.intake.stopped

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the results as dicts, row by row.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> next(joined.rows())
        {'t': 1, 'x': 5, 't_right': 2, 'x_right': 5, 'pair_time': 2}
        """
        for batch in self:
            yield from batch.to_pylist()

    def __aiter__(self) -> JoinedStream:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        import asyncio  # takes its time

        loop = asyncio.get_running_loop()
        while True:
            while self._fetched:
                item = self._fetched.popleft()
                if isinstance(item, pa.RecordBatch):
                    return self._handed_out(item)
                if isinstance(item, BaseException):
                    raise item
            if self.ended:
                raise StopAsyncIteration
            await loop.run_in_executor(None, self._fetch)

    def _fetch(self) -> None:
        """Take the next item, in a thread beside the event loop.

        It is kept here until somebody asks for it: whoever began to wait for it may have been cancelled.
        """
        with self._fetching:
            if not self._fetched:
                try:
                    item = self._taken(FETCH_SECONDS)
                except StopIteration:
                    return
                except BaseException as error:  # it belongs to the consumer
                    self._fetched.append(error)
                    return
                if item is not None:
                    self._fetched.append(item)

    def punctuated(self) -> Iterator[pa.RecordBatch | Punctuation]:
        """Yield the batches, and `cf.Punctuation(time)` between them: no result with a pair_time <= time follows it.

        >>> import counterflow as cf, pyarrow as pa
        >>> left, right = (cf.stream(schema=pa.schema({"t": pa.int64(), "x": pa.int64()})) for _ in range(2))
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> left.push({"t": 1, "x": 5}), right.push({"t": 2, "x": 5}), left.advance(20), right.advance(20)
        (True, True, None, None)
        >>> found = 0
        >>> for item in joined.punctuated():
        ...     if item == cf.Punctuation(20):
        ...         break
        ...     found += item.num_rows if isinstance(item, pa.RecordBatch) else 0
        >>> found
        1
        """
        self._join.punctuate()
        while True:
            try:
                item = self._next()
            except StopIteration:
                return
            assert item is not None
            yield item

    def _next(self, timeout: float | None = None) -> StreamItem | None:
        """Return the next item, or None after the timeout; StopIteration is the end."""
        if self._fetched:
            item: StreamItem | BaseException | None = self._fetched.popleft()
            if isinstance(item, BaseException):
                raise item
        else:
            self._check_loop()
            item = self._taken(timeout)
        return self._handed_out(item) if isinstance(item, pa.RecordBatch) else item

    def _handed_out(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._output_position += batch.num_rows
        return batch

    def _taken(self, timeout: float | None) -> StreamItem | None:
        if self.ended:
            raise StopIteration
        self._join.check_process()
        try:
            return self._join.take(timeout)
        except StopIteration:
            self._ended = True
            self._join.close()
            raise
        except BaseException:  # an interrupt, too
            self._ended = True
            self.close()
            raise

    def add_source(self, side: str, stream: Stream | PushedStream | JoinedStream) -> None:
        """Join another stream to one side of a join that runs, with `algorithm="scalejoin"`; it leaves by ending.

        The rows of the stream count from where the join's watermark is, or from where the streams of its side have
        come to if that is further; earlier ones are late (`late`, `metrics`). At equal times they come after those of
        the side's other streams. May be called from any thread.

        >>> import counterflow as cf, pyarrow as pa
        >>> schema = pa.schema({"t": pa.int64(), "x": pa.int64()})
        >>> ships, more, radar = (cf.stream(schema=schema) for _ in range(3))
        >>> engine = cf.Local(algorithm="scalejoin")
        >>> joined = cf.window_join(ships, radar, where="l.x = r.x", time="t", window=10, engine=engine)
        >>> joined.add_source("left", more)  # now, or while results are taken
        >>> more.push({"t": 3, "x": 5}), joined.metrics()["queued_rows_left"]
        (True, 1)
        >>> joined.close()
        """
        if side not in SIDES:
            raise OptionError(f"add_source({side!r}, ...): 'left' or 'right'")
        self._join.check_process()
        self._join.add_source(side, stream)

    # --- durable joins

    def checkpoint(self) -> int:
        """Write the join's state, after the results that were handed out, and return their number (`output_position`).

        The same join with the same `cf.Local(checkpoint=folder)` goes on from there, in another process too. Call it
        in the thread that takes the results.

        >>> import counterflow as cf, pyarrow as pa, tempfile
        >>> rows = pa.table({"t": range(9), "x": range(9)})
        >>> def join(folder):
        ...     source = cf.stream(lambda position: rows.slice(position).to_batches(2), schema=rows.schema)
        ...     engine = cf.Local(checkpoint=folder)
        ...     return cf.window_join(source, source, where="l.x = r.x", time="t", window=3, engine=engine)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with join(folder) as joined:
        ...         first = next(joined).num_rows
        ...         joined.checkpoint() == first
        ...     with join(folder) as joined:  # in the next process, too
        ...         first + sum(batch.num_rows for batch in joined)
        True
        9
        """
        folder = self._join.folder
        if folder is None:
            raise OptionError("checkpoint(): say where to, with engine=cf.Local(checkpoint='folder')")
        if folder.closed:
            raise InputError(CLOSED)
        self._check_loop()
        self._join.check_process()
        with self._fetching:
            for item in self._fetched:
                if isinstance(item, BaseException):
                    raise item
            taken = [item for item in self._fetched if isinstance(item, pa.RecordBatch)]
            checkpoint = self._join.checkpoint(taken, self._output_position)
            folder.write(checkpoint)
        self._positions = checkpoint.positions()
        return self._output_position

    @property
    def positions(self) -> dict[Side, list[int]]:
        """How many rows of each stream the last checkpoint has: where they begin when the join goes on from it.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> joined.positions
        {'left': [0], 'right': [0]}
        """
        return {side: list(rows) for side, rows in self._positions.items()}

    @property
    def output_position(self) -> int:
        """How many results were handed out, those before the checkpoint that the join went on from included.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> next(joined).num_rows, joined.output_position
        (1, 1)
        """
        return self._output_position

    @property
    def schema(self) -> pa.Schema:
        """The result's columns; waits for the first batches if only they can tell (see `schema=` of `cf.stream`).

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> joined.schema.names
        ['t', 'x', 't_right', 'x_right', 'pair_time']
        """
        if self._join.spec is None:
            self._check_loop()
            self._join.check_process()
        try:
            return self._join.resolve().output_schema
        except BaseException:
            self.close()
            raise

    def _check_loop(self) -> None:
        """Refuse to block the event loop that a source needs: it would wait for ever."""
        loop = running_loop()
        if loop is not None and (label := self.waits_for(loop)) is not None:
            raise InputError(
                f"{label} is asynchronous and belongs to the event loop that this call would block: take results "
                "with `async for batch in joined`, or in another thread, `await asyncio.to_thread(next, joined, "
                "None)`, or make the join outside of the loop"
            )

    def waits_for(self, loop: Any) -> str | None:
        """Return the name of the first source that needs this event loop to run, or None."""
        return next((source.label for source in self._join.sources if source.needs(loop)), None)

    @property
    def known_schema(self) -> pa.Schema | None:
        """The schema, if it is known without waiting.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> joined.known_schema.names  # of streams that are lists; of generators it is None at first
        ['t', 'x', 't_right', 'x_right', 'pair_time']
        """
        return None if self._join.spec is None else self._join.spec.output_schema

    @property
    def ordered(self) -> bool:
        """Whether results come in order.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10, ordered=True)
        >>> joined.ordered
        True
        """
        return self._join.ordered

    def late(self, side: str) -> pa.Table:
        """Return the last late rows of a side, at most `late_rows` of `cf.Local`; `metrics` has their number.

        >>> import counterflow as cf, pyarrow as pa
        >>> schema = pa.schema({"t": pa.int64(), "x": pa.int64()})
        >>> left, right = cf.stream(schema=schema, delay=0), cf.stream(schema=schema)
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> left.advance(8), right.advance(8), left.push({"t": 3, "x": 5}), left.close(), right.close()
        (None, None, True, None, None)
        >>> list(joined), joined.late("left").to_pylist()
        ([], [{'t': 3, 'x': 5}])
        """
        if side not in SIDES:
            raise OptionError(f"late({side!r}): 'left' or 'right'")
        return self._join.late(0 if side == "left" else 1)

    def metrics(self) -> dict[str, Any]:
        """Return rows read, late and dropped, pairs and results until now, rows in buffers now, and the watermark.

        `compiling`: with 'auto', whether it goes on with numpy, slower, while its predicate is being compiled.
        `candidates`: how many pairs were looked at, and `candidates_by` what found them; None where several nodes do.
        `chosen`: how it is joined now, with 'auto' also why; `changes`: how often that changed.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> len(list(joined)), joined.metrics()["rows_left"], joined.metrics()["pairs"]
        (1, 1, 1)
        """
        return self._join.metrics()

    def rescale(self, workers: int | None = None) -> None:
        """Go on with another number of workers, from the next rows on; None: one for each core. Results are the same.

        The windows' rows are handed to the new workers, which takes about as long as bringing them without looking for
        pairs; `metrics` counts the `changes`. A layout is chosen anew. It may be called from any thread, at any time.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> engine = cf.Local("llhj", workers=1)
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10, engine=engine)
        >>> joined.rescale(workers=2)
        >>> joined.metrics()["chosen"]
        'algorithm llhj, 2 workers'
        """
        self._join.check_process()
        self._join.rescale(workers)

    def close(self) -> None:
        """End it; the next result asked for is the end.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> joined.close()
        >>> list(joined)
        []
        """
        self._join.close()
        self._join.forget()
        self._forgotten.detach()  # it holds the join, which may hold an error, whose traceback holds us

    def stop(self) -> None:
        """End it like `close`, but do not wait for the threads.

        >>> import counterflow as cf
        >>> left, right = cf.stream([[{"t": 1, "x": 5}]]), cf.stream([[{"t": 2, "x": 5}]])
        >>> joined = cf.window_join(left, right, where="l.x = r.x", time="t", window=10)
        >>> joined.stop()
        >>> joined.ended
        True
        """
        self._join.forget()

    def __enter__(self) -> JoinedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self).__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """What a notebook shows: the join, and where it is."""
        facts = {"state": "ended" if self.ended else "open", **self.metrics()}
        cells = "".join(f"<tr><td>{name}</td><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
        return f"<b>{escape(repr(self))}</b><table>{cells}</table>"

    def __repr__(self) -> str:
        spec = self._join.spec
        return f"JoinedStream({'' if spec is None else f'{spec.how}: {spec.where}'})"
