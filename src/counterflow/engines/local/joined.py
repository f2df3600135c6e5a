"""The joined stream: its threads, how they end, and what the user sees of them.

    source -> reader thread -> intake ┐
    source -> reader thread -> intake ┴ driver thread -> core -> results, in the consumer's own thread

All queues between them are bounded. Nothing starts before the first result is asked for.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from counterflow.engines.local.core import Core, make_core
from counterflow.engines.local.driver import SIDES, Driver, Inbox
from counterflow.engines.local.intake import Intake
from counterflow.engines.local.merging import BEGINNING, END
from counterflow.engines.local.options import Local
from counterflow.engines.local.results import Results, make_results
from counterflow.engines.local.sources import Columns, Source, TableSource, open_side, running_loop
from counterflow.engines.local.streams import Punctuation, delay_ticks, time_of
from counterflow.engines.local.threads import start_thread
from counterflow.errors import InputError, OptionError, UnsupportedError
from counterflow.spec.join_spec import JoinSpec, build_spec
from counterflow.spec.window_sizes import WindowPair, rows

CLOSE_SECONDS = 1.0  # how long threads are waited for
SOURCE_SECONDS = 0.3  # how long one may be in a source's code and be waited for: nobody can stop it there
STARTING_SECONDS = 0.001
COLLECT_SECONDS = 0.05
Plan = Callable[[pa.Schema, pa.Schema], JoinSpec]
Out: TypeAlias = pa.RecordBatch | Punctuation


def join_streams(left: Any, right: Any, options: dict[str, Any], engine: Local) -> JoinedStream:
    """Options of the call, of which as much is checked at once as the known schemas allow."""
    check_options(options)
    (left_sources, left_columns), (right_sources, right_columns) = open_side(left, "left"), open_side(right, "right")
    plan = partial(build_spec, streaming=True, **options)
    columns = left_columns, right_columns
    return JoinedStream(Run(left_sources + right_sources, columns, plan, engine, options["ordered"]))


def check_options(options: dict[str, Any]) -> None:
    """What is wrong whatever the columns are."""
    window = options["window"]
    sizes = (window.left, window.right) if isinstance(window, WindowPair) else window
    sizes = sizes if isinstance(sizes, tuple | list) else (sizes, sizes)
    bounds = tuple(None if size is None else rows(1) for size in sizes) if len(sizes) == 2 else window
    some = pa.schema({"t": pa.int64()})
    build_spec(some, some, streaming=True, **{**options, "where": "true", "time": "t", "window": bounds})


class JoinedStream:
    """Two streams joined: an iterator of Arrow batches.

    Closing it, or forgetting it, ends its threads and closes sources that are generators; so does an error, which is
    raised as itself, and an interrupt. It is a context manager and exports an Arrow stream. One thread at a time
    iterates; `close`, `late` and `metrics` may be called from any.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._items = run.items()
        # Without a reference to self, and without waiting: garbage collection may come at any moment.
        self._forgotten = weakref.finalize(self, run.stop)
        self._forgotten.atexit = False

    def __iter__(self) -> JoinedStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            item = self._next()
            if isinstance(item, pa.RecordBatch):
                return item

    def punctuated(self) -> Iterator[pa.RecordBatch | Punctuation]:
        """The batches, and between them `cf.Punctuation(time)`: no result with a pair_time <= time comes after it."""
        self._run.punctuate()
        while True:
            try:
                item = self._next()
            except StopIteration:
                return
            yield item

    def _next(self) -> Out:
        if self._run.intake.stopped:
            raise StopIteration
        self._check_loop()
        self._run.check_process()
        try:
            return next(self._items)
        except BaseException:  # the end too, and an interrupt
            self.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The result's columns. Waits for the first batches if only they can tell (see `schema=` of `cf.stream`)."""
        if self._run.spec is None:
            self._check_loop()
            self._run.check_process()
        try:
            return self._run.resolve().output_schema
        except BaseException:
            self.close()
            raise

    def _check_loop(self) -> None:
        """Refuse to block the event loop that a source needs: it would wait for ever."""
        loop = running_loop()
        if loop is not None and (label := self.waits_for(loop)) is not None:
            raise InputError(
                f"{label} is asynchronous and belongs to the event loop that this call would block: take results in "
                "another thread, `batch = await asyncio.to_thread(next, joined, None)`, or make the join outside of "
                "the loop"
            )

    def waits_for(self, loop: Any) -> str | None:
        """Return the name of the first source that needs this event loop to run, or None."""
        return next((source.label for source in self._run.sources if source.needs(loop)), None)

    @property
    def known_schema(self) -> pa.Schema | None:
        """The schema, if it is known without waiting."""
        return None if self._run.spec is None else self._run.spec.output_schema

    @property
    def ordered(self) -> bool:
        return self._run.ordered

    def late(self, side: str) -> pa.Table:
        """The last late rows of a side, at most `late_rows` of `cf.Local`; `metrics` has their number."""
        if side not in SIDES:
            raise OptionError(f"late({side!r}): 'left' or 'right'")
        return self._run.late(0 if side == "left" else 1)

    def metrics(self) -> dict[str, Any]:
        """Rows read, late and dropped, pairs and results until now, rows in buffers now, and the watermark."""
        return self._run.metrics()

    def close(self) -> None:
        """End it; the next result asked for is the end."""
        self._run.close()
        self._forgotten.detach()  # it holds the run, which may hold an error, whose traceback holds us

    def stop(self) -> None:
        """Like `close`, but do not wait for the threads."""
        self._run.stop()

    def __enter__(self) -> JoinedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self).__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        spec = self._run.spec
        return f"JoinedStream({'' if spec is None else f'{spec.how}: {spec.where}'})"


class Run:
    """One execution. Its threads know this, not the object that the user holds: so that may be forgotten."""

    def __init__(
        self, sources: list[Source], columns: tuple[Columns, Columns], plan: Plan, engine: Local, ordered: bool
    ) -> None:
        self.sources, self.columns, self.plan, self.engine, self.ordered = sources, columns, plan, engine, ordered
        self.punctuating = False
        self.spec: JoinSpec | None = None
        self.intake = Intake(sources, engine.buffer_rows, shed=engine.overflow == "drop_newest")
        self.inbox = Inbox(engine.buffer_rows)
        self.driver: Driver | None = None
        self._core: Core | None = None
        self._results: Results | None = None
        self._output = Output(engine.buffer_rows)
        self.process = os.getpid()
        self._threads: dict[threading.Thread, int | None] = {}  # and the rank of the source that it reads
        self._reading: set[int] = set()
        if all(side.schema is not None for side in columns):
            self._settle()

    # --- start

    def resolve(self) -> JoinSpec:
        """The join's definition; waits for the first batches of streams without a schema."""
        if self.spec is None:
            for rank, source in enumerate(self.sources):
                if source.columns.schema is None:
                    self._read(rank)
            if not self.intake.wait_for(lambda: all(map(self._told, self.columns))):
                raise InputError("the join was closed before its columns were known")
            for error in self.intake.errors():
                raise error
            for side, columns in zip(SIDES, self.columns, strict=True):
                if columns.schema is None:
                    raise InputError(
                        f"the {side} stream ended before its first batch, so that its columns are unknown: name them "
                        "with schema= of cf.stream()"
                    )
            self._settle()
        assert self.spec is not None
        return self.spec

    def _told(self, columns: Columns) -> bool:
        """Whether a side's columns are known, or never will be."""
        ends = [self.intake.ended[i] for i, source in enumerate(self.sources) if source.columns is columns]
        return columns.schema is not None or bool(self.intake.errors()) or all(end is not None for end in ends)

    def _settle(self) -> None:
        spec = self.plan(self.columns[0].schema, self.columns[1].schema)
        for source in self.sources:
            side = spec.side(source.side)
            delay_ticks(source.delay, side.schema.field(side.time).type, source.label)
            if isinstance(source, TableSource):
                source.order_by = side
        self.spec = spec

    def _start(self) -> None:
        spec = self.resolve()
        self._core = make_core(spec, self.engine)
        self._results = make_results(spec, self._core.in_order)
        self.driver = Driver(spec, self.engine, self.intake, self.inbox, self._core)
        if self.punctuating:
            self.punctuate()
        if self.intake.stopped:  # in the meantime
            self._core.close()
        for rank in range(len(self.sources)):
            self._read(rank)
        self._thread(self.driver.run, "driver")
        if self.engine.overflow == "drop_results":
            self._thread(lambda: self._output.fill(self._produce()), "results")

    def punctuate(self) -> None:
        self.punctuating = True
        if self.driver is not None:
            self.driver.marks_matter = True

    def _read(self, rank: int) -> None:
        if rank not in self._reading:
            self._reading.add(rank)
            self._thread(lambda: self.intake.read(rank), f"reader of {self.sources[rank].label}", rank)

    def _thread(self, target: Callable[[], None], name: str, rank: int | None = None) -> None:
        # A daemon, because a reader may be in a source's code for ever; all are stopped and waited for at exit.
        thread = threading.Thread(target=target, name=f"counterflow {name}", daemon=True)
        if not self._threads:
            self.process = os.getpid()  # it may have been made in another one
        _runs.add(self)
        self._threads[thread] = rank  # before its start, which an interrupt may cut short
        try:
            start_thread(thread, name, "join fewer streams at once")
        except UnsupportedError:
            del self._threads[thread]
            raise

    # --- results

    def items(self) -> Iterator[Out]:
        """In the consumer's thread; the first call of next() starts everything."""
        if self.intake.stopped:
            return
        try:
            self._start()
        except InputError:
            if self.intake.stopped:  # meanwhile
                return
            raise
        yield from self._output if self.engine.overflow == "drop_results" else self._produce()

    def _produce(self) -> Iterator[Out]:
        assert self._core is not None and self._results is not None and self.driver is not None
        core, results, limit = self._core, self._results, BEGINNING
        finished = False
        while not finished:
            finished = core.finished  # asked first, so that nothing is left behind
            found = core.collect(COLLECT_SECONDS)
            self.inbox.drain(results.add)
            if self.intake.stopped:
                return
            yield from results.found(found)
            if self.punctuating and limit < (reached := results.limit) < END:
                limit = reached
                yield Punctuation(time_of(limit - 1, results.spec.pair_time_type))
        if self.driver.failure is not None:
            raise self.driver.failure

    # --- end

    def check_process(self) -> None:
        """Raise an error in a process that was forked off, which has none of the threads."""
        if self._threads and self.process != os.getpid():
            raise InputError(
                "this joined stream runs in the process that started it, and not in one that was forked off: make the "
                "join in the process that takes its results"
            )

    def stop(self) -> None:
        """From any thread, without waiting."""
        if self.process != os.getpid():
            return  # its locks may be those of threads that are not here
        self.intake.stop()
        self.inbox.stop()
        self._output.stop()
        for source in self.sources:
            source.interrupt()
        if self._core is not None:
            self._core.close()

    def close(self) -> None:
        self.stop()
        self.wait(time.monotonic() + CLOSE_SECONDS)
        for rank, source in enumerate(self.sources):
            if rank not in self._reading:
                source.abandon()

    def wait(self, deadline: float) -> None:
        """Wait for the threads' ends; not for one that waits in a source's own code, where it hears nothing."""
        for thread, rank in list(self._threads.items()):
            if thread is threading.current_thread():
                continue
            while thread.ident is None and time.monotonic() < deadline:  # an interrupt came while it was started
                time.sleep(STARTING_SECONDS)
            while thread.is_alive():
                since = None if rank is None or self.sources[rank].interruptible else self.intake.inside[rank]
                left = (deadline if since is None else min(deadline, since + SOURCE_SECONDS)) - time.monotonic()
                if left <= 0:
                    break
                thread.join(left)

    # --- what it says of itself

    def late(self, i: int) -> pa.Table:
        if self.driver is not None:
            return self.driver.late[SIDES[i]].table()
        schema = self.columns[i].schema
        return pa.table({}) if schema is None else schema.empty_table()

    def metrics(self) -> dict[str, Any]:
        driver, results = self.driver, self._results
        found: dict[str, Any] = {}
        for i, side in enumerate(SIDES):
            ranks = [rank for rank, source in enumerate(self.sources) if source.side == side]
            progress = [] if driver is None else [driver.merging.sources[rank] for rank in ranks]
            found |= {
                f"rows_{side}": sum(source.rows for source in progress),
                f"late_{side}": 0 if driver is None else driver.late[side].count,
                f"dropped_{side}": sum(self.intake.dropped[rank] for rank in ranks),
                f"queued_rows_{side}": sum(self.intake.rows[rank] for rank in ranks),
                f"waiting_rows_{side}": sum(len(source.waiting) for source in progress),
                f"state_rows_{side}": 0 if results is None else len(results.rows[i].facts),
            }
        found |= {
            "pairs": 0 if results is None else results.pairs,
            "results": 0 if results is None else results.results - self._output.dropped,
            "results_dropped": self._output.dropped,
            "watermark": None,
        }
        if driver is not None and self.spec is not None and driver.frontier > BEGINNING:
            newest = max(source.newest for source in driver.merging.sources)  # at the end, there is nothing to wait for
            reached = newest if driver.frontier == END else driver.frontier - 1
            found["watermark"] = None if reached == BEGINNING else time_of(reached, self.spec.pair_time_type)
        return found


class Output:
    """Results that wait for the consumer; those that find it full are dropped."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max, self.dropped = rows_max, 0
        self._changed = threading.Condition()
        self._items: deque[Out] = deque()
        self._rows = 0
        self._ended = self._stopped = False
        self._error: BaseException | None = None

    def fill(self, items: Iterator[Out]) -> None:
        """In a thread of its own."""
        try:
            for item in items:
                with self._changed:
                    self._put(item)
                    self._changed.notify_all()
        except BaseException as error:  # it belongs to the consumer
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, item: Out) -> None:
        if isinstance(item, Punctuation):
            if self._items and isinstance(self._items[-1], Punctuation):
                self._items.pop()
            self._items.append(item)
        elif self._rows and self._rows + item.num_rows > self.rows_max:
            self.dropped += item.num_rows
        else:
            self._items.append(item)
            self._rows += item.num_rows

    def __iter__(self) -> Iterator[Out]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._ended or self._stopped)
                if self._stopped:
                    return
                if not self._items:
                    break
                item = self._items.popleft()
                self._rows -= item.num_rows if isinstance(item, pa.RecordBatch) else 0
            yield item
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


_runs: weakref.WeakSet[Run] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    runs = list(_runs)
    for run in runs:
        run.stop()
    deadline = time.monotonic() + CLOSE_SECONDS
    for run in runs:
        run.wait(deadline)
