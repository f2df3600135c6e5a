"""The driver's thread: items of all sources in, tuples in the total order out to the core and to the results."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from counterflow.engines.local.checkpoint import CheckpointFolder, SourceState
from counterflow.engines.local.choosing import rescale
from counterflow.engines.local.core import SIDES, Core, sides_are_independent
from counterflow.engines.local.input.intake import LINGER_SECONDS, End, Intake
from counterflow.engines.local.input.watermarks import Watermark
from counterflow.engines.local.options import Local
from counterflow.engines.local.order import BEGINNING, Due, Merging, SourceProgress
from counterflow.engines.local.short_way import ShortWay
from counterflow.engines.local.stamps import Mark, Stamping, Step
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.times import time_values

if TYPE_CHECKING:
    from counterflow.engines.local.input.carriers import Carrier
    from counterflow.engines.local.input.sources import Source

COUNT_SECONDS = 0.1  # how long `metrics` waits for whoever drives; then it tells what was counted last


@dataclass(frozen=True)
class Snapshot:
    """Where all sources are, after the steps that came before it: what the driver adds to a checkpoint."""

    asked: int  # how often it was asked for one
    sources: list[SourceState]
    last: bool  # nothing more comes


Handed: TypeAlias = Step | Mark | Snapshot


class Inbox:
    """Steps on their way from the driver to the results; blocks the driver when they have too many rows."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._steps: deque[Handed] = deque()
        self._rows = 0
        self._stopped = False

    def put(self, step: Handed, patient: bool = True) -> bool:
        """Hand a step over, if `patient` when there is room for it; return False if the join was stopped."""
        rows = len(step) if isinstance(step, Step) else 0
        with self._lock:
            if isinstance(step, Mark) and self._steps and isinstance(self._steps[-1], Mark):
                self._steps.pop()  # the newer one says more
            if rows and patient and self._rows + rows > self.rows_max:
                self._room.wait_for(lambda: self._stopped or not self._rows or self._rows + rows <= self.rows_max)
            self._steps.append(step)
            self._rows += rows
            return not self._stopped

    def drain(self, into: Callable[[Handed], None]) -> None:
        """Hand all steps that are there to `into`."""
        if not self._steps:
            return
        with self._lock:
            steps, self._steps, self._rows = self._steps, deque(), 0
            self._room.notify_all()
        while steps:
            into(steps.popleft())

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._room.notify_all()


class LateRows:
    """The last late rows of a side, and how many there were in all."""

    def __init__(self, schema: pa.Schema, rows_max: int) -> None:
        self.schema, self.rows_max, self.count = schema, rows_max, 0
        self._lock = threading.RLock()
        self._batches: deque[pa.RecordBatch] = deque()
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            self.count += batch.num_rows
            self._batches.append(batch)
            self._rows += batch.num_rows
            while self._rows > self.rows_max:
                oldest = self._batches.popleft()
                excess = min(self._rows - self.rows_max, oldest.num_rows)
                self._rows -= excess
                if excess < oldest.num_rows:
                    self._batches.appendleft(pa.concat_batches([oldest.slice(excess)]))

    def table(self) -> pa.Table:
        """Return the rows that are kept."""
        with self._lock:
            return pa.Table.from_batches(self._batches, schema=self.schema)


class Driver:
    """What the driver's thread does until all sources have ended, one of them fails, or the join is stopped."""

    def __init__(
        self,
        spec: JoinSpec,
        engine: Local,
        intake: Intake,
        inbox: Inbox,
        core: Core,
        folder: CheckpointFolder | None = None,
    ) -> None:
        self.spec, self.intake, self.inbox, self.core, self.folder = spec, intake, inbox, core, folder
        self._answered = 0  # how often a snapshot was asked for, and given
        self.buffer_rows, self.step_rows = engine.buffer_rows, min(engine.batch_rows, engine.buffer_rows)
        by_side = core.takes_any_order and sides_are_independent(spec)
        self.merging = Merging(spec, intake.sources, by_side)
        self.sources = self.merging.sources  # as they come
        self.carriers: list[Carrier] = []  # of a join whose sources reach the core by themselves
        self.stamping = Stamping(spec, self.step_rows, by_side)
        self.short_way = ShortWay.of(spec, self.merging, self.stamping, core)
        self.made: deque[pa.RecordBatch] = deque()  # results of rows that took it
        self.late = {side: LateRows(spec.side(side).schema, engine.late_rows) for side in SIDES}
        self.failure: BaseException | None = None
        self.failed_in_core = False
        self.frontier = BEGINNING  # the first time that is not yet late
        # Rows of each side that were joined before the other side was there; more of them came since that was counted.
        self.ahead: dict[Side, int] = {"left": 0, "right": 0}
        self._since_counted = 0
        self._expired = (0, 0)  # numbers before are met no more, as the core was told
        self._role = threading.Lock()  # of whoever drives
        self._begun, self._patient = False, True
        self._all_joined = False  # whether all that came in this round took the short way
        self.done = False
        self.wanted = list(range(len(intake.sources)))  # the sources to read from
        self.may_be_silent = any(source.timeout is not None for source in intake.sources)
        # Whether a mark without tuples may make results certain: they are woken for it then.
        self.marks_matter = spec.how != "inner"

    def add_source(self, source: Source) -> int | None:
        """Take another source in, from any thread; return its rank, or None if its side has ended."""
        raise NotImplementedError("only carriers take sources in")

    def rescale(self, engine: Local) -> None:
        """Go on with the workers that the engine says, from any thread."""
        rescale(self.core, self.spec, engine)

    def waiting_rows(self, side: Side) -> int:
        """Return how many rows of a side have come and are not joined, or are joined ahead of the other side."""
        return self.count_ahead()[side] + sum(len(s.waiting) for s in self.merging.sources if s.source.side == side)

    def run(self) -> None:
        """Drive whenever it is this thread's turn, until the end."""
        while not self.done:
            if self._await_turn():
                with self._role:
                    self._drive()
                self.intake.hand_back(self.wanted)

    def step_in(self) -> bool:
        """Do a round in the thread of the consumer, if there is something to join and nobody joins it.

        Return whether it was done. The consumer has collected everything, so there is room, and it is not waited for.
        """
        if self.done or not self.intake.has_items(self.wanted) or not self._role.acquire(blocking=False):
            return False
        try:
            self._patient = self.core.patient = False
            self._drive()
        finally:
            self._patient = self.core.patient = True
            self._role.release()
        return True

    @property
    def driving(self) -> bool:
        """Whether some thread is driving."""
        return self._role.locked()

    def _await_turn(self) -> bool:
        """Wait until the driver's thread may have something to do; return whether it has."""
        if not self._begun:
            return True
        intake, patience = self.intake, self._patience()

        def ready() -> bool:
            return self.done or self._answered < intake.asked or intake.for_driver(self.wanted)

        intake.sleep(ready, patience)
        if not intake.shared or patience is not None or intake.is_much:
            return True
        # Little has come, and the consumer is away: it may come back, and then joins that itself.
        intake.sleep(lambda: self.done or self._answered < intake.asked or intake.is_much, LINGER_SECONDS, lingers=True)
        return intake.stopped or ready()

    def _drive(self) -> None:
        """Do a round. What was due before a failure is joined; then the consumer gets the failure."""
        if self.done:
            return
        try:
            try:
                if not self._begun:
                    self._begun = True
                    self.resume()
                if self._round():
                    self.wanted = self._wanted()
                    return
                self._give_snapshot(last=True)
            except BaseException as error:
                self.failure = error
                if self.failed_in_core:
                    raise
            self.core.finish()
        except BaseException as error:
            self.failure = self.failure or error
            self.core.close()
        self.done = True
        self.intake.wake_driver()

    def _round(self) -> bool:
        """Take what has come, at most some of it, and join what is due; False at the end."""
        rows = 0
        if self.intake.stopped:
            return False
        if self._answered < self.intake.asked:
            self._give_snapshot()
        self._all_joined = True
        while rows < self.step_rows:
            polled = self.intake.poll(self.wanted, self.step_rows)
            if polled is None:
                break
            rows += max(self.take(*polled), 1)
            del polled  # or it would be kept while the next one is waited for
            if self.made:  # somebody waits for them
                break
            if not self._all_joined:
                self.wanted = self._wanted()  # the slowest source first: others may be late by what it says
        if self._all_joined and rows and not self.may_be_silent:  # by the short way, and nothing else can be due
            self.frontier = self.merging.frontier
            return True
        self._excuse_silent()
        self.join_due()
        return bool(self.merging.live) and not self.intake.stopped

    def _wanted(self) -> list[int]:
        """Return the sources to read from. Which of them are too far ahead is counted when some may be."""
        if self._since_counted + max(self.ahead.values()) >= self.buffer_rows:
            self._count_ahead()
        return self.merging.wanted(self.buffer_rows, self.ahead)

    def count_ahead(self) -> dict[Side, int]:
        """Return the rows of each side that were joined before the other side was there, from any thread."""
        if self._since_counted and self._role.acquire(timeout=COUNT_SECONDS):
            try:
                self._count_ahead()
            finally:
                self._role.release()
        return self.ahead

    def _count_ahead(self) -> None:
        self.ahead = self.stamping.ahead(self.merging.frontier)
        self._since_counted = sum(len(source.waiting) for source in self.merging.sources)  # and are not yet stamped

    # --- checkpoints

    def resume(self) -> None:
        """Feed the rows of a checkpoint first, and let sources go on where they were."""
        found = None if self.folder is None else self.folder.found
        if found is None:
            return
        for source, state in zip(self.merging.sources, found.sources, strict=True):
            source.resume(state)
        left, right = (
            (time_values(side, saved.rows), saved.rows) if saved.rows.num_rows else None
            for side, saved in zip((self.spec.left, self.spec.right), found.sides, strict=True)
        )
        self._join(Due(left, right))

    def _give_snapshot(self, last: bool = False) -> None:
        """Say where all sources are, among the steps."""
        if self.folder is not None:
            self._answered = self.intake.asked
            self.inbox.put(Snapshot(self._answered, [source.saved() for source in self.merging.sources], last))
            self.core.wake()

    # --- sources that are silent

    def _silent(self) -> Iterator[tuple[SourceProgress, float]]:
        """Yield the live sources with a timeout that have nothing to take, and when it is over."""
        for source in self.merging.live:
            since = self.intake.silent_since(source.rank)
            if since is not None and source.source.timeout is not None:
                yield source, since + source.source.timeout

    def _patience(self) -> float | None:
        """Return how many seconds may be waited until the next source is silent for too long; None: any."""
        if not self.may_be_silent:
            return None
        if any(others > source.frontier for source, others in self._excusable()):
            return 0.0
        now = time.monotonic()
        return min((end - now for _, end in self._silent() if end > now), default=None)

    def _excusable(self) -> list[tuple[SourceProgress, int]]:
        """Return the sources that are silent for too long, and how far all others are."""
        now = time.monotonic()
        silent = [source for source, end in self._silent() if end <= now]
        if not silent:
            return []
        others = min((source.frontier for source in self.merging.live if source not in silent), default=BEGINNING)
        return [(source, others) for source in silent]

    def _excuse_silent(self) -> None:
        """Let the join go on without sources that are silent for too long."""
        for source, others in self._excusable() if self.may_be_silent else ():
            source.excuse(others)

    def take(self, rank: int, item: pa.RecordBatch | Watermark | End) -> int:
        """Take an item of a source in, and return how many rows it has."""
        source = self.merging.sources[rank]
        if isinstance(item, pa.RecordBatch):
            self._since_counted += item.num_rows
            if self._join_few(source, item):
                return int(item.num_rows)
        self._all_joined = False
        if isinstance(item, Watermark):
            source.heartbeat(item)
            return 0
        if isinstance(item, End):
            if item.error is not None:
                self.join_due()
                raise item.error
            source.live = False
            return 0
        late = self.merging.accept(rank, item)
        if late is not None:
            self.late[source.source.side].add(late)
        return int(item.num_rows)

    def _join_few(self, source: SourceProgress, batch: pa.RecordBatch) -> bool:
        """Join a batch the short way; return False if it cannot take that.

        Only whoever takes the results can go it, and not where marks matter, which only the long way makes. Rows
        behind something that goes the long way in this round, such as a watermark, follow it.
        """
        if self.short_way is None or self.marks_matter or self._patient or not self._all_joined:
            return False
        results = self.short_way.take(source, batch)
        if results is None:
            return False
        self.made += results
        return True

    def join_due(self) -> None:
        """Hand what is due to the core and to the results, or a mark if nothing is due but more is certain."""
        if self.core.compiled:
            self.merging.compiled = True
            self.stamping.use_compiled()
        self._join(self.merging.due())

    def _join(self, due: Due) -> None:
        if self.short_way is not None:
            self.short_way.stale = True
        next_times = self.merging.next_time("left"), self.merging.next_time("right")
        self.frontier = self.merging.frontier
        if due:
            for step in self.stamping.steps(due, next_times, at_leisure=not self.marks_matter):
                self._hand_over(step, step.mark)
        elif (mark := self.stamping.idle(next_times)) is not None:
            self._hand_over(None, mark)

    def _hand_over(self, step: Step | None, mark: Mark) -> None:
        # The results hear of the tuples first, so that they know all that the core may answer with.
        if not self.inbox.put(step or mark, patient=self._patient):
            return
        self.failed_in_core = True  # unless it returns
        if step is not None:
            self.core.feed(step.left.tuples, step.right.tuples)
        if mark.dead_numbers != self._expired:
            self._expired = mark.dead_numbers
            self.core.expire(*mark.dead_numbers)
        if step is None and self.marks_matter:
            self.core.wake()
        self.failed_in_core = False
