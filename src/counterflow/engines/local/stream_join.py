"""A join of streams while it runs: its threads, how they start and how they end.

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
from dataclasses import replace
from typing import Any

import pyarrow as pa

from counterflow.engines.local.checkpoint import Checkpoint, CheckpointFolder, SavedSide, identity_of
from counterflow.engines.local.choosing import ChoosingCore, core_of_streams
from counterflow.engines.local.core import SIDES, Core, Found, SequentialCore, auto_reason, make_core
from counterflow.engines.local.driver import Driver, Handed, Inbox, Snapshot
from counterflow.engines.local.input.intake import Entrance, Intake
from counterflow.engines.local.input.sources import PushedSource, SideSchema, Source, open_added
from counterflow.engines.local.input.watermarks import Punctuation, time_of
from counterflow.engines.local.join_threads import JoinThreads
from counterflow.engines.local.matrix import lay_out
from counterflow.engines.local.options import Local
from counterflow.engines.local.order import BEGINNING, END
from counterflow.engines.local.output.ahead import ResultsAhead
from counterflow.engines.local.output.results import Results, make_results
from counterflow.engines.local.output.shedding import SheddingBuffer, StreamItem
from counterflow.errors import InputError, UnsupportedError
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec

CLOSE_SECONDS = 1.0  # how long threads are waited for
COLLECT_SECONDS = 0.05
AHEAD_BUFFERS = 4  # how many times `buffer_rows` results are made ahead: one for each buffer on their way, and new rows
AHEAD_SECONDS = 0.01  # how long a push that finds no room waits for results, before it looks again
CLOSED = "the join was closed: write a checkpoint before that"
Plan = Callable[[pa.Schema, pa.Schema], JoinSpec]


class StreamJoin:
    """One join of streams, and its threads. They know this, not what the user holds: so that may be forgotten."""

    def __init__(
        self,
        sources: list[Source],
        columns: tuple[SideSchema, SideSchema],
        plan: Plan,
        engine: Local,
        ordered: bool,
        folder: CheckpointFolder | None = None,
    ) -> None:
        self.sources, self.columns, self.plan, self.engine, self.ordered = sources, columns, plan, engine, ordered
        self.folder = folder
        self.punctuating = False
        self.spec: JoinSpec | None = None
        # Durable joins are fed in one order: a checkpoint is a place in it.
        self.gated = folder is None and engine.has_gate
        intake: type[Intake] = Intake
        if self.gated:
            from counterflow.engines.local.input.carriers import CarriedIntake as intake  # compiled, so only if needed
        self.intake = intake(sources, engine.buffer_rows, shed=engine.overflow == "drop_newest")
        self.inbox = Inbox(engine.buffer_rows)
        self.driver: Driver | None = None
        self._core: Core | None = None
        self._results: Results | None = None
        self._output = SheddingBuffer(engine.buffer_rows)
        self._threads = JoinThreads(self._stuck_since)
        self._reading: set[int] = set()
        self._adding = threading.RLock()  # held by who adds a source
        self._taken: Iterator[StreamItem | None] | None = None
        self._found: deque[Found] = deque()  # collected, and not yet made into results
        found = None if folder is None else folder.found
        self._ahead = ResultsAhead(AHEAD_BUFFERS * engine.buffer_rows, () if found is None else found.pending)
        self._snapshot: Snapshot | None = None  # the last one, and the results' part of that checkpoint
        self._saved: tuple[tuple[SavedSide, SavedSide], int]
        self._deadline: float | None = None  # of the call that waits for a result
        self._taker = threading.get_ident()  # the thread that takes results
        self._taking = threading.Lock()  # held by who takes results or makes them ahead
        self._changing = threading.Lock()  # of `engine`, and of the core that it says
        if all(side.schema is not None for side in columns):
            self._settle()
        for rank, source in enumerate(sources):  # of a join that is not refused
            if isinstance(source, PushedSource):
                source.stream.attach(Entrance(self.intake, rank, source, self))

    # --- start

    def resolve(self) -> JoinSpec:
        """Return the join's definition; wait for the first batches of streams without a schema."""
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

    def _told(self, columns: SideSchema) -> bool:
        """Return whether a side's columns are known, or never will be."""
        ends = [self.intake.ended[i] for i, source in enumerate(self.sources) if source.columns is columns]
        return columns.schema is not None or bool(self.intake.errors()) or all(end is not None for end in ends)

    def _settle(self) -> None:
        spec = self.plan(self.columns[0].schema, self.columns[1].schema)
        for source in self.sources:
            source.take_side(spec.side(source.side))
        if self.folder is not None:
            self.folder.check(identity_of(spec, self.sources))
        self.spec = spec

    def _start(self) -> None:
        spec = self.resolve()
        with self._changing:  # nobody changes the number of workers meanwhile
            engine = self.engine
            core = make_core(spec, engine, intake=self.intake) if self.gated else core_of_streams(spec, engine)
            self._core = core
            if core.bell is not None and engine.overflow != "drop_results":
                self.intake.shared, self.intake.consumer_bell = True, core.bell
            self.intake.begin()
            self._results = make_results(spec, core.in_order, self.folder)
            driver: type[Driver] = Driver
            if self.gated:
                from counterflow.engines.local.gated import GatedDriver as driver  # compiled, so only if needed
            with self._adding:
                self.driver = driver(spec, engine, self.intake, self.inbox, core, self.folder)
        if self.driver.short_way is not None:
            self.driver.short_way.lead_to(self._results, lambda: self.inbox.drain(self._hear))
        if self.punctuating:
            self.punctuate()
        if self.intake.stopped:  # in the meantime
            core.close()
        with self._adding:
            for rank in range(len(self.sources)):
                self._read(rank)
        for carrier in self.driver.carriers:
            self._thread(carrier.run, f"carrier of {carrier.label}")
        self._allow_second_thread()
        self._thread(self.driver.run, "driver")
        if self.engine.overflow == "drop_results":
            self._thread(lambda: self._output.fill(self._produce(lambda: COLLECT_SECONDS)), "results")

    def add_source(self, side: Side, stream: object) -> None:
        """Take another source in, from any thread; the join's own threads let it take part when they get to that."""
        if self.folder is not None or not self.gated:
            raise UnsupportedError(
                f"add_source({side!r}, ...): only a join with cf.Local(algorithm='scalejoin'), without checkpoint=, "
                "takes streams in while it runs; otherwise give window_join a stream that rows are pushed to, "
                "cf.stream(schema=...), and advance() it until its rows come"
            )
        if self.spec is None:
            raise InputError(
                f"add_source({side!r}, ...): the columns of the join are not known yet: name them with schema= of "
                "cf.stream(), or ask for a result before"
            )
        with self._adding:
            if self.intake.stopped or (self.driver is not None and self.driver.done):
                raise InputError(f"add_source({side!r}, ...): the join has ended")
            number = 1 + sum(source.side == side for source in self.sources)
            columns = self.columns[SIDES.index(side)]
            source = open_added(stream, side, number, columns)
            source.take_side(self.spec.side(side))
            rank = self.intake.add(source) if self.driver is None else self.driver.add_source(source)
            if rank is None:
                raise InputError(
                    f"add_source({side!r}, ...): all streams of that side have ended, and with them its part in the "
                    "order: add a stream before the last one ends"
                )
            if isinstance(source, PushedSource):
                try:
                    source.stream.attach(Entrance(self.intake, rank, source, self))
                except InputError:  # it is a side of a join already
                    self.intake.end(rank)
                    raise
            elif self.driver is not None:
                self._read(rank)

    def punctuate(self) -> None:
        """Put punctuations between the results from now on."""
        self.punctuating = True
        if self.driver is not None:
            self.driver.marks_matter = True

    def _read(self, rank: int) -> None:
        if rank not in self._reading and not isinstance(self.sources[rank], PushedSource):
            self._reading.add(rank)
            self._thread(lambda: self.intake.read(rank), f"reader of {self.sources[rank].label}", rank)

    def _allow_second_thread(self) -> None:
        """Let a second thread search windows by their index beside the driver's, if the engine has two for it."""
        core = self._core
        if isinstance(core, SequentialCore) and core.has_index:
            core.beside.start = lambda: self._thread(core.beside.run, "other window")
            core.beside.available = self.engine.threads > 1

    def _thread(self, target: Callable[[], None], name: str, rank: int | None = None) -> None:
        _started.add(self)
        self._threads.start(target, name, rank)

    def _stuck_since(self, rank: int) -> float | None:
        return None if self.sources[rank].interruptible else self.intake.inside[rank]

    # --- results

    def take(self, timeout: float | None = None) -> StreamItem | None:
        """Return the next result, in the consumer's thread; the first call starts everything.

        None if there is none within the timeout (seconds); StopIteration at the end.
        """
        self._taker = threading.get_ident()  # from now on, so that whoever makes results ahead lets us in
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._taking.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            return None
        try:
            self._deadline = deadline
            if self._ahead:
                return self._ahead.take()
            self.intake.consumer_comes()
            try:
                for item in self._running():
                    if item is not None or (deadline is not None and time.monotonic() >= deadline):
                        return item
                raise StopIteration
            finally:
                self.intake.consumer_goes()
        finally:
            self._taking.release()

    def _running(self) -> Iterator[StreamItem | None]:
        if self._taken is None:
            self._taken = self._items()
        return self._taken

    def takes_here(self) -> bool:
        """Return whether the calling thread is the one that takes results."""
        return self._taker == threading.get_ident()

    def take_ahead(self) -> bool:
        """Make results before they are asked for, unless too many wait already; return whether something is going on.

        An error is kept for whoever asks for results. Another thread may be taking them: that makes room, too.
        """
        if not self._taking.acquire(blocking=False):
            time.sleep(AHEAD_SECONDS)
            return True
        try:
            if self._ahead.full:
                time.sleep(AHEAD_SECONDS)
                return False
            made, self._deadline = len(self._ahead), time.monotonic() + AHEAD_SECONDS
            self.intake.consumer_comes()
            try:
                self._make()
            except Exception as error:
                self._ahead.append(error)
            finally:
                self.intake.consumer_goes()
            return len(self._ahead) > made or (self.driver is not None and self.driver.driving)
        finally:
            self._taking.release()

    def _patience(self) -> float:
        """Return how many seconds may be waited before it is asked again."""
        if self._deadline is None:
            return COLLECT_SECONDS
        return min(max(self._deadline - time.monotonic(), 0.0), COLLECT_SECONDS)

    def _items(self) -> Iterator[StreamItem | None]:
        """Yield the results, and None where there is nothing new for a while."""
        if self.intake.stopped:
            return
        try:
            self._start()
        except InputError:
            if self.intake.stopped:  # meanwhile
                return
            raise
        sheds = self.engine.overflow == "drop_results"
        yield from self._output.items(self._patience) if sheds else self._produce(self._patience)

    def _produce(self, patience: Callable[[], float]) -> Iterator[StreamItem | None]:
        assert self._core is not None and self._results is not None and self.driver is not None
        core, results, limit, finished = self._core, self._results, BEGINNING, False
        while not finished:
            finished = core.finished and not self._found  # asked first, so that nothing is left behind
            found = self._found.popleft() if self._found else self._collect(patience)
            self.inbox.drain(self._hear)
            if self.intake.stopped:
                return
            if core.compiled:
                results.use_compiled()
            while self.driver.made:
                yield self.driver.made.popleft()
            yield from results.found(found)
            if self.punctuating and limit < (reached := results.limit) < END:
                limit = reached
                yield Punctuation(time_of(limit - 1, results.spec.pair_time_type))
            yield None
        if self.driver.failure is not None:
            raise self.driver.failure

    def _collect(self, patience: Callable[[], float]) -> Found | None:
        """Collect pairs; where there are none, join what has come, or wait for one or the other."""
        core, driver = self._core, self.driver
        assert core is not None and driver is not None
        if not self.intake.shared:
            return core.collect(patience())
        found = core.collect(0.0)
        if found is None and driver.step_in():
            return core.collect(0.0)
        if found is None and (timeout := patience()) > 0:
            with self.intake.consumer_waits(driver.wanted) as nothing_there:
                if nothing_there or driver.driving:
                    found = core.collect(timeout)
        return found

    def _hear(self, handed: Handed) -> None:
        assert self._results is not None
        if isinstance(handed, Snapshot):
            self._snapshot = handed
            if not handed.last:
                self._saved = self._results.saved()  # before the next step comes
        else:
            self._results.add(handed)

    # --- changes

    def rescale(self, workers: int | None) -> None:
        """Go on with another number of workers, from the next rows on."""
        with self._changing:
            engine = replace(self.engine, workers=workers, layout=None)
            if (engine.nodes, engine.threads) == (self.engine.nodes, self.engine.threads):
                return
            if self.driver is not None:
                self.driver.rescale(engine)
            self.engine = engine
            self._allow_second_thread()

    # --- checkpoints

    def checkpoint(self, taken: list[pa.RecordBatch], position: int) -> Checkpoint:
        """Return the join's state after what was taken of it, in the thread that takes its results.

        `taken`: results that were taken and not handed out; `position` of them were.
        """
        with self._taking:
            self._deadline = time.monotonic()
            sides, rank = self._settled_sides()
        assert self._snapshot is not None and self.spec is not None
        pending = [*taken, *self._ahead.batches]
        return Checkpoint(identity_of(self.spec, self.sources), self._snapshot.sources, sides, rank, pending, position)

    def _settled_sides(self) -> tuple[tuple[SavedSide, SavedSide], int]:
        """Return the rows of both sides, and how far results are, at a snapshot that comes from now on."""
        if self.driver is None:
            self._make()
        core, results, driver = self._core, self._results, self.driver
        assert core is not None and results is not None and driver is not None
        while not results.settled:
            self._make()
        asked = self.intake.ask()
        while self._snapshot is None or not (self._snapshot.asked >= asked or self._snapshot.last):
            if self.intake.stopped:
                raise InputError(CLOSED)
            if driver.failure is not None:
                raise driver.failure
            found = core.collect(COLLECT_SECONDS)  # the driver may wait for room
            self.inbox.drain(self._hear)
            if found is not None:
                self._found.append(found)
        return results.saved() if self._snapshot.last else self._saved

    def _make(self) -> None:
        """Make the next result, if there is one, to be taken later."""
        item = next(self._running(), None)
        if item is not None:
            self._ahead.append(item)

    # --- end

    def check_process(self) -> None:
        """Raise an error in a process that was forked off, which has none of the threads."""
        if self._threads.are_elsewhere:
            raise InputError(
                "this joined stream runs in the process that started it, and not in one that was forked off: make the "
                "join in the process that takes its results"
            )

    def stop(self) -> None:
        """End it, from any thread, without waiting for its threads."""
        if self._threads.process != os.getpid():
            return  # its locks may be those of threads that are not here
        self.intake.stop()
        self.inbox.stop()
        self._output.stop()
        for source in self.sources:
            source.interrupt()
        if self._core is not None:
            self._core.close()

    def forget(self) -> None:
        """End it like `stop`, and let another join go on from its checkpoint."""
        self.stop()
        if self.folder is not None and self._threads.process == os.getpid():
            self.folder.close()

    def close(self) -> None:
        """End it, and wait for its threads."""
        self.stop()
        self.wait(time.monotonic() + CLOSE_SECONDS)
        for rank, source in enumerate(self.sources):
            if rank not in self._reading:
                source.abandon()

    def wait(self, deadline: float) -> None:
        """Wait for the threads' ends."""
        self._threads.wait(deadline)

    # --- what it says of itself

    def positions(self) -> dict[Side, list[int]]:
        """Return where the sources have begun."""
        return {side: [source.position for source in self.sources if source.side == side] for side in SIDES}

    def late(self, i: int) -> pa.Table:
        if self.driver is not None:
            return self.driver.late[SIDES[i]].table()
        schema = self.columns[i].schema
        return pa.table({}) if schema is None else schema.empty_table()

    def _chosen(self, spec: JoinSpec) -> str:
        """Return how it is joined, and why."""
        if isinstance(self._core, ChoosingCore):
            return self._core.because
        if self.engine.algorithm == "auto":
            return auto_reason(spec, self.engine, streaming=True)
        return lay_out(self.engine, spec).described

    def metrics(self) -> dict[str, Any]:
        driver, results = self.driver, self._results
        looked_at = {} if self._core is None else self._core.looked_at
        found: dict[str, Any] = {}
        for i, side in enumerate(SIDES):
            ranks = [rank for rank, source in enumerate(self.sources) if source.side == side]
            progress = [] if driver is None else [known for known in driver.sources if known.source.side == side]
            found |= {
                f"rows_{side}": sum(source.rows for source in progress),
                f"late_{side}": 0 if driver is None else driver.late[side].count,
                f"dropped_{side}": sum(self.intake.dropped[rank] for rank in ranks),
                f"queued_rows_{side}": sum(self.intake.rows[rank] for rank in ranks),
                f"waiting_rows_{side}": 0 if driver is None else driver.waiting_rows(side),
                f"state_rows_{side}": 0 if results is None else len(results.rows[i].records),
            }
        found |= {
            "candidates": None if looked_at is None else sum(looked_at.values()),
            "candidates_by": looked_at,
            "pairs": 0 if results is None else results.pairs,
            "results": 0 if results is None else results.results - self._output.dropped,
            "results_dropped": self._output.dropped,
            "compiling": self._core is not None and self._core.compiling,
            "chosen": None if self.spec is None else self._chosen(self.spec),
            "changes": 0 if self._core is None else self._core.changes,
            "watermark": None,
        }
        if driver is not None and self.spec is not None and driver.frontier > BEGINNING:
            newest = max(source.newest for source in driver.sources)  # at the end, there is nothing to wait for
            reached = newest if driver.frontier == END else driver.frontier - 1
            found["watermark"] = None if reached == BEGINNING else time_of(reached, self.spec.pair_time_type)
        return found


_started: weakref.WeakSet[StreamJoin] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    joins = list(_started)
    for join in joins:
        join.stop()
    deadline = time.monotonic() + CLOSE_SECONDS
    for join in joins:
        join.wait(deadline)
