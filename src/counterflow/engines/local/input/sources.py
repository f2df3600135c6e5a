"""The physical streams of a join, opened: whatever they are, they become batches of one schema, and watermarks."""

from __future__ import annotations

import contextlib
import inspect
import queue
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from counterflow.engines.local.input.dict_rows import REFUSALS, DictRows
from counterflow.engines.local.input.files import file_batches, file_schema
from counterflow.engines.local.input.pushed import PushedStream
from counterflow.engines.local.input.streams import Stream, delay_ticks, is_path
from counterflow.engines.local.input.tables import as_table, plain_schema, to_arrow
from counterflow.engines.local.input.watermarks import Punctuation, Watermark
from counterflow.errors import ColumnError, InputError, TimeError, UnsupportedError
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import SideSpec
from counterflow.windows.times import time_values

if TYPE_CHECKING:
    from counterflow.engines.local.checkpoint import CheckpointFolder

POLL_SECONDS = 0.1  # how soon a reader that waits for a user's queue notices that the join was closed, at the latest
WAKE_SECONDS = 0.01  # how long whoever stops a join waits for the lock of a user's queue
TABLE_ROWS = 1 << 16  # of a finite table, handed on at once
Item: TypeAlias = pa.RecordBatch | Watermark
Stopped = Callable[[], bool]
Given = Generator[Any, None, None]
_FRAMES = ("pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame")
_ENDED = getattr(queue, "ShutDown", queue.Empty)  # from Python 3.13 on


class SideSchema:
    """A side's schema, once it is known: all its sources have the same."""

    def __init__(self) -> None:
        self.schema: pa.Schema | None = None
        self.given = False  # by the user: then batches are converted to it

    def settle(self, schema: pa.Schema | None, given: bool = False) -> None:
        if self.schema is None and schema is not None:
            self.schema, self.given = _stream_schema(schema), given


class Source:
    """One physical stream of a side. `items` runs in a thread of its own."""

    finite = False  # a table: it can wait, so nothing of it is ever dropped

    def __init__(self, stream: Stream, side: Side, label: str, columns: SideSchema, position: int = 0) -> None:
        self.side, self.label, self.columns, self.position = side, label, columns, position
        self.delay, self.timeout, self._data = stream.delay, stream.timeout, _opened(stream.batches, label, position)
        # Where the join is made in a running event loop, an asynchronous source belongs to that loop.
        self._loop = running_loop() if hasattr(self._data, "__aiter__") else None
        self.rows_read = position
        self._interrupt: Callable[[], object] = lambda: None
        columns.settle(stream.schema, given=True)
        if stream.schema is None:
            columns.settle(_schema_of(self._data, label))
        if columns.schema is None and isinstance(self._data, list | tuple):  # no need to wait for the first batch
            first: Any = next((item for item in self._data if not isinstance(item, Watermark | Punctuation)), [])
            columns.settle(next((batch.schema for batch in self._batches(first, 0)), None))

    @property
    def by_punctuation(self) -> bool:
        """Whether it is the unordered result of another join, which says itself how far it is."""
        return self.delay is None and _is_joined(self._data) and not self._data.ordered

    def items(self, stopped: Stopped) -> Generator[Item, None, None]:
        """Yield batches and watermarks until the source ends, or `stopped` says that the join was stopped."""
        with contextlib.closing(self._given(stopped)) as given:
            for number, item in enumerate(given):
                if isinstance(item, Watermark | Punctuation):
                    yield Watermark(item.time)
                    continue
                batches = deque(self._batches(item, number))
                del item  # a variable here must not keep a batch while the next one is waited for
                while batches:
                    batch = self._conforming(batches.popleft())
                    self.rows_read += batch.num_rows
                    yield batch
                    del batch

    def needs(self, loop: Any) -> bool:
        """Return whether this event loop must run for items to come."""
        return self._loop is loop or (_is_joined(self._data) and self._data.waits_for(loop) is not None)

    @property
    def interruptible(self) -> bool:
        """Whether `interrupt` ends a wait for the next item; nobody can end one in a generator's own code."""
        return _is_joined(self._data) or _is_queue(self._data) or hasattr(self._data, "__aiter__")

    def interrupt(self) -> None:
        """Make `items` stop waiting, from another thread, where that is in our hands."""
        if _is_joined(self._data):
            self._data.stop()
        self._interrupt()

    def take_side(self, side: SideSpec) -> None:
        """Hear of the side that it is a part of; raise an error if it cannot be."""
        if side.is_table:
            raise TimeError(
                f"time= is missing for {self.label}: only a table can be without one. Name the stream's time column, "
                "or give the table itself instead of cf.stream(...)"
            )
        delay_ticks(self.delay, side.time_type, self.label)

    def check_columns(self, given: pa.Schema | None) -> None:
        """Raise an error if its columns, where they are known before the first batch, do not fit those of its side."""
        schema = given or _schema_of(self._data, self.label)
        if schema is not None:
            self._conforming(pa.RecordBatch.from_pylist([], schema=schema))

    def abandon(self) -> None:
        """Close the source, if `items` never ran."""
        if inspect.isgenerator(self._data) or _is_joined(self._data):
            self._data.close()

    # --- what the user gave, item by item

    def _given(self, stopped: Stopped) -> Given:
        data = self._data
        if _is_joined(data):
            return _closing(data.punctuated(), data)
        if _is_queue(data):
            return self._queued(data, stopped)
        if hasattr(data, "__aiter__"):
            return self._asynchronous(data, stopped)
        if _are_paths(data):
            batches = (batch for path in data for batch in file_batches(path, self.columns.schema, self.label))
            return _from_row(batches, self.position)
        if isinstance(data, pa.RecordBatchReader):
            return _closing(iter(data), data)
        return _closing(iter(data))

    def _queued(self, data: Any, stopped: Stopped) -> Given:
        """Yield the items of a queue. `interrupt` ends the wait for a `queue.Queue`; others are asked often."""
        wakes = isinstance(data, queue.Queue)
        if wakes:
            self._interrupt = partial(_wake, data)
        while not stopped():
            try:
                if wakes:
                    _wait_for_item(data, stopped)
                item = data.get_nowait() if wakes else data.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            except _ENDED:
                return
            if item is None:
                return
            yield item
            del item

    def _asynchronous(self, data: Any, stopped: Stopped) -> Given:
        """Wait for each next item in the event loop of the source, or in one that runs only meanwhile."""
        from counterflow.engines.local.input.event_loops import CANCELLED, OwnLoop, TheirLoop  # asyncio takes its time

        end = object()

        async def begin() -> Any:
            return aiter(data)  # there, because it may need the running loop

        async def following() -> Any:
            return await anext(iterator, end)

        given = self._loop
        with TheirLoop(given, self.label) if given is not None and given.is_running() else OwnLoop() as loop:
            self._interrupt = loop.interrupt
            try:
                iterator = loop.run(begin())
                loop.iterator = iterator
                while not stopped():
                    item = loop.run(following())
                    if item is end:
                        return
                    yield item
                    del item
            except CANCELLED:
                if not stopped():
                    raise

    # --- as batches of the side's schema

    def _batches(self, item: Any, number: int) -> list[pa.RecordBatch]:
        if isinstance(item, pa.RecordBatch):
            return [item]
        try:
            if isinstance(item, list | tuple) and not item:
                return []
            rows = [item] if isinstance(item, Mapping) else item
            if isinstance(rows, list | tuple) and isinstance(rows[0], Mapping):
                named = f"{self.label}: item {number} ({type(item).__name__})"
                return [DictRows(named, self.rows_read, self.columns.schema, self.columns.given).batch(rows)]
            table = to_arrow(item)
        except REFUSALS as error:
            raise InputError(
                f"{self.label}: item {number} ({type(item).__name__}) cannot be converted to Arrow: {error}; "
                "schema= of cf.stream() says what its columns are"
            ) from error
        if table is None:
            raise InputError(
                f"{self.label}: item {number} is a {type(item).__name__}: expected an Arrow batch or table, a pandas "
                "or polars frame, a list of dicts, or cf.watermark(time)"
            )
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches or [pa.RecordBatch.from_pylist([], schema=table.schema)]

    def _conforming(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.columns.settle(batch.schema)
        schema = self.columns.schema
        assert schema is not None
        if batch.schema.equals(schema):
            return batch
        where = f"{self.label}, the batch at row {self.rows_read}"
        names = batch.schema.names
        for missing in (name for name in schema.names if name not in names):
            raise ColumnError(f"{where}: no column '{missing}' any more (it has {', '.join(names)}): add it there")
        for extra in (name for name in names if names.count(name) > 1 or name not in schema.names):
            raise ColumnError(
                f"{where}: a column '{extra}' that the stream did not have ({', '.join(schema.names)}): leave it out, "
                "or name all columns with schema= of cf.stream()"
            )
        columns = [self._column(batch.column(field.name), field, where) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, column: pa.Array, field: pa.Field, where: str) -> pa.Array:
        if column.type == field.type:
            return column
        if not (self.columns.given or _means_the_same(column.type, field.type)):
            raise ColumnError(
                f"{where}: column '{field.name}' is {column.type}, but was {field.type} before: convert it, or say "
                "what it shall be with schema= of cf.stream()"
            )
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise ColumnError(
                f"{where}: column '{field.name}' is {column.type} and does not convert to {field.type}: {error}"
            ) from error


class TableSource(Source):
    """A finite table beside streams: its rows come in order of time, whatever their order in the table."""

    finite = True

    def __init__(self, table: pa.Table, side: Side, label: str, columns: SideSchema, position: int = 0) -> None:
        super().__init__(Stream([table]), side, label, columns, position)
        self.table = table
        self.order_by: SideSpec | None = None  # set before it is read

    def take_side(self, side: SideSpec) -> None:
        self.order_by = side

    def items(self, stopped: Stopped) -> Generator[Item, None, None]:
        assert self.order_by is not None
        times = time_values(self.order_by, self.table)
        in_order = bool((times[1:] >= times[:-1]).all())
        order = None if in_order else np.argsort(times, kind="stable")
        table = self.table if in_order else self.table.combine_chunks()
        for begin in range(self.position, len(times), TABLE_ROWS):
            part = table.slice(begin, TABLE_ROWS) if order is None else table.take(order[begin : begin + TABLE_ROWS])
            for batch in part.to_batches():
                yield self._conforming(batch)
                self.rows_read += batch.num_rows


class PushedSource(Source):
    """A stream that rows are pushed to: they come in the pusher's own thread (`intake.Entrance`)."""

    def __init__(self, stream: PushedStream, side: Side, label: str, columns: SideSchema, position: int = 0) -> None:
        super().__init__(Stream((), stream.delay, stream.schema, stream.timeout), side, label, columns, position)
        self.stream, self._pushes = stream, 0

    def convert(self, rows: Any) -> pa.RecordBatch:
        """Return what was pushed as one batch of the side's schema."""
        batches = [self._conforming(batch) for batch in self._batches(rows, self._pushes)]
        self._pushes += 1
        if len(batches) == 1:
            return batches[0]
        return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=self.columns.schema)


def open_side(given: Any, side: Side, folder: CheckpointFolder | None = None) -> tuple[list[Source], SideSchema]:
    """Return the sources of a side, which is a stream, a joined stream or a table, or a list of them.

    Those of a durable join begin at the positions that the folder's checkpoint has.
    """
    parts = list(given) if isinstance(given, list | tuple) else [given]
    if not parts:
        raise InputError(f"the {side} side is an empty list: give a stream, or a list of one or more")
    columns = SideSchema()
    sources: list[Source] = []
    positions = [0] * len(parts) if folder is None else folder.positions(side, len(parts))
    for number, (part, position) in enumerate(zip(parts, positions, strict=True), 1):
        label = f"the {side} stream" if len(parts) == 1 else f"{side} stream {number} of {len(parts)}"
        if _is_joined(part):
            part = Stream(part)
        if folder is not None and _is_joined(getattr(part, "batches", None)):
            raise UnsupportedError(
                f"{label} is another join's result, which cannot begin in its middle: give checkpoint= to that one, "
                "write its results to where they can be read from a position, and join those"
            )
        sources.append(_open(part, side, label, columns, position))
    if folder is not None and folder.found is not None:
        columns.settle(folder.found.schema(side))
    return sources, columns


def _open(part: Any, side: Side, label: str, columns: SideSchema, position: int = 0) -> Source:
    if isinstance(part, PushedStream):
        return PushedSource(part, side, label, columns, position)
    if isinstance(part, Stream):
        return Source(part, side, label, columns, position)
    return TableSource(as_table(part, side), side, label, columns, position)


def open_added(part: Any, side: Side, number: int, columns: SideSchema) -> Source:
    """Return a source that is added to a side; what it says of its columns must fit those that the side has."""
    if not is_stream(part):
        raise InputError(
            f"add_source({side!r}, ...) of a {type(part).__name__}: give a stream, cf.stream(...), or a joined stream"
        )
    label = f"added {side} stream {number}"
    source = _open(Stream(part) if _is_joined(part) else part, side, label, columns)
    source.check_columns(part.schema if isinstance(part, Stream | PushedStream) else None)
    return source


def is_stream(data: Any) -> bool:
    """Return whether a side is a stream, or one of several is."""
    if isinstance(data, list | tuple):
        return any(map(is_stream, data))
    return isinstance(data, Stream | PushedStream) or _is_joined(data)


def _opened(data: Any, label: str, position: int) -> Any:
    """Open what needs no thread yet: paths become a list, frames and tables one item, exported streams readers.

    A function is called with the position, a number of rows, at which it shall begin.
    """
    if inspect.isroutine(data) or isinstance(data, partial):
        data = data(position)
    if is_path(data):
        data = [data]
    if isinstance(data, list | tuple) and data and all(map(is_path, data)):
        return [Path(path) for path in data]
    if _is_queue(data) and inspect.iscoroutinefunction(data.get):
        raise InputError(f"{label}: an asyncio.Queue belongs to another loop: use a queue.Queue")
    if isinstance(data, pa.RecordBatchReader) or _is_joined(data) or _is_queue(data) or hasattr(data, "__aiter__"):
        return data
    kind = f"{type(data).__module__.split('.')[0]}.{type(data).__name__}"
    if isinstance(data, pa.Table | pa.RecordBatch) or kind in _FRAMES:
        return [data]
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if not hasattr(data, "__iter__"):
        raise InputError(
            f"{label}: cf.stream() of a {type(data).__name__}: expected an iterable of batches, a reader, paths, a "
            "queue or an asynchronous iterator"
        )
    return data


def _from_row(batches: Iterator[pa.RecordBatch], position: int) -> Given:
    """Yield batches without their first rows."""
    for batch in batches:
        if position < batch.num_rows:
            yield batch.slice(position) if position else batch
        position = max(position - batch.num_rows, 0)


def _schema_of(data: Any, label: str) -> pa.Schema | None:
    """Return the schema, if it can be known without waiting for a batch."""
    if _are_paths(data):
        return file_schema(data[0], label)
    if _is_joined(data):
        return data.known_schema
    if isinstance(data, pa.RecordBatchReader):
        return data.schema
    return None


def _stream_schema(schema: pa.Schema) -> pa.Schema:
    """Return plain types, and dictionaries with wide indexes, because each batch brings values of its own."""
    fields = []
    for field in plain_schema(schema.remove_metadata()):
        if pa.types.is_dictionary(field.type):
            value = plain_schema(pa.schema({"value": field.type.value_type})).field(0).type
            field = field.with_type(pa.dictionary(pa.int32(), value))
        fields.append(field)
    return pa.schema(fields)


def _means_the_same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type is only nulls, texts in another of Arrow's layouts, or a dictionary of such."""
    if pa.types.is_dictionary(found) and pa.types.is_dictionary(wanted):
        return found.value_type == wanted.value_type or _means_the_same(found.value_type, wanted.value_type)
    alike = (pa.string(), pa.large_string(), pa.string_view()), (pa.binary(), pa.large_binary(), pa.binary_view())
    return pa.types.is_null(found) or any(found in kinds and wanted in kinds for kinds in alike)


def _are_paths(data: Any) -> bool:
    return isinstance(data, list) and bool(data) and isinstance(data[0], Path)


def _is_joined(data: Any) -> bool:
    return hasattr(data, "punctuated")  # a JoinedStream, which is made of sources itself


def _is_queue(data: Any) -> bool:
    return hasattr(data, "get") and hasattr(data, "put") and not hasattr(data, "__iter__")


def _wait_for_item(data: queue.Queue[Any], stopped: Stopped) -> None:
    """Wait until the queue has an item, was shut down, or `_wake` says that the join was stopped."""
    with data.not_empty:
        data.not_empty.wait_for(
            lambda: data._qsize() or getattr(data, "is_shutdown", False) or stopped(), timeout=POLL_SECONDS
        )


def _wake(data: queue.Queue[Any]) -> None:
    """Let `_wait_for_item` look again.

    Garbage collection may call this in a thread that has the queue's lock: then it is not waited for, and the reader
    looks again by itself.
    """
    if data.mutex.acquire(timeout=WAKE_SECONDS):
        try:
            data.not_empty.notify_all()
        finally:
            data.mutex.release()


def running_loop() -> Any:
    """Return the event loop that runs in this thread, or None; without importing asyncio, which takes its time."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def _closing(iterator: Iterator[Any], owner: Any = None) -> Given:
    """Yield what the iterator yields; in the end close it, if it is a generator, and its owner."""
    try:
        yield from iterator
    finally:
        for part in (iterator, owner):
            if inspect.isgenerator(part) or (part is owner and owner is not None):
                part.close()
