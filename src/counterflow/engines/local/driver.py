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
from counterflow.engines.local.core import SIDES, Core
from counterflow.engines.local.input.intake import End, Intake
from counterflow.engines.local.input.watermarks import Watermark
from counterflow.engines.local.options import Local
from counterflow.engines.local.order import BEGINNING, Due, Merging, SourceProgress
from counterflow.engines.local.stamps import Mark, Stamping, Step
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.times import time_values

if TYPE_CHECKING:
    from counterflow.engines.local.input.carriers import Carrier


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

    def put(self, step: Handed) -> bool:
        """Hand a step over; return False if the join was stopped."""
        rows = len(step) if isinstance(step, Step) else 0
        with self._lock:
            if isinstance(step, Mark) and self._steps and isinstance(self._steps[-1], Mark):
                self._steps.pop()  # the newer one says more
            if rows:
                self._room.wait_for(lambda: self._stopped or not self._rows or self._rows + rows <= self.rows_max)
            self._steps.append(step)
            self._rows += rows
            return not self._stopped

    def drain(self, into: Callable[[Handed], None]) -> None:
        """Hand all steps that are there to `into`."""
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
        by_side = (
            core.takes_any_order and not spec.ordered and spec.left.window.kind == spec.right.window.kind == "duration"
        )
        self.merging = Merging(spec, intake.sources, by_side)
        self.sources = self.merging.sources  # as they come
        self.carriers: list[Carrier] = []  # of a join whose sources reach the core by themselves
        self.stamping = Stamping(spec, self.step_rows, by_side)
        self.late = {side: LateRows(spec.side(side).schema, engine.late_rows) for side in SIDES}
        self.failure: BaseException | None = None
        self.failed_in_core = False
        self.frontier = BEGINNING  # the first time that is not yet late
        # Rows of each side that were joined before the other side was there; more of them came since that was counted.
        self.ahead: dict[Side, int] = {"left": 0, "right": 0}
        self._since_counted = 0
        self._expired = (0, 0)  # numbers before are met no more, as the core was told
        self.may_be_silent = any(source.timeout is not None for source in intake.sources)
        # Whether a mark without tuples may make results certain: they are woken for it then.
        self.marks_matter = spec.how != "inner"

    def waiting_rows(self, side: Side) -> int:
        """Return how many rows of a side have come and are not joined, or are joined ahead of the other side."""
        return self.ahead[side] + sum(len(s.waiting) for s in self.merging.sources if s.source.side == side)

    def run(self) -> None:
        """Do round after round. What was due before a failure is joined; then the consumer gets the failure."""
        try:
            try:
                self.resume()
                while self._round():
                    pass
                self._give_snapshot(last=True)
            except BaseException as error:
                self.failure = error
                if self.failed_in_core:
                    raise
            self.core.finish()
        except BaseException as error:
            self.failure = self.failure or error
            self.core.close()

    def _round(self) -> bool:
        """Take what has come, at most a batch of it, and join what is due; False at the end."""
        rows = 0
        if self._answered < self.intake.asked:
            self._give_snapshot()
        while self.merging.live and rows < self.step_rows:
            wanted = self._wanted()
            polled = self.intake.poll(wanted, self.step_rows)
            if polled is not None:
                rows += max(self.take(*polled), 1)
                del polled  # or it would be kept while the next one is waited for
            elif rows or self._excuse_silent():
                break
            elif not self._wait(wanted):
                return False
            elif self._answered < self.intake.asked:
                break
        self._excuse_silent()
        self.join_due()
        return bool(self.merging.live) and not self.intake.stopped

    def _wait(self, wanted: list[int]) -> bool:
        """Wait for one of these sources; return False if the join was stopped."""
        if self._since_counted:
            self._count_ahead()
        return self.intake.wait(wanted, self._patience(), self._answered)

    def _wanted(self) -> list[int]:
        """Return the sources to read from. Which of them are too far ahead is counted when some may be."""
        if self._since_counted + max(self.ahead.values()) >= self.buffer_rows:
            self._count_ahead()
        return self.merging.wanted(self.buffer_rows, self.ahead)

    def _count_ahead(self) -> None:
        self.ahead, self._since_counted = self.stamping.ahead(self.merging.frontier), 0

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
        for source in self.merging.live if self.may_be_silent else ():
            since = self.intake.silent_since(source.rank)
            if since is not None and source.source.timeout is not None:
                yield source, since + source.source.timeout

    def _patience(self) -> float | None:
        """Return how many seconds may be waited until the next source is silent for too long; None: any."""
        now = time.monotonic()
        return min((end - now for _, end in self._silent() if end > now), default=None)

    def _excuse_silent(self) -> bool:
        """Let the join go on without sources that are silent for too long; return whether it can go on by that."""
        now = time.monotonic()
        silent = [source for source, end in self._silent() if end <= now]
        if not silent:
            return False
        others = min((source.frontier for source in self.merging.live if source not in silent), default=BEGINNING)
        return any([source.excuse(others) for source in silent])

    def take(self, rank: int, item: pa.RecordBatch | Watermark | End) -> int:
        """Take an item of a source in, and return how many rows it has."""
        source = self.merging.sources[rank]
        if isinstance(item, Watermark):
            source.heartbeat(item)
            return 0
        if isinstance(item, End):
            if item.error is not None:
                self.join_due()
                raise item.error
            source.live = False
            return 0
        self._since_counted += item.num_rows
        late = self.merging.accept(rank, item)
        if late is not None:
            self.late[source.source.side].add(late)
        return int(item.num_rows)

    def join_due(self) -> None:
        """Hand what is due to the core and to the results, or a mark if nothing is due but more is certain."""
        self._join(self.merging.due())

    def _join(self, due: Due) -> None:
        next_times = self.merging.next_time("left"), self.merging.next_time("right")
        self.frontier = self.merging.frontier
        if due:
            if self.core.compiled:
                self.stamping.use_compiled()
            for step in self.stamping.steps(due, next_times, at_leisure=not self.marks_matter):
                self._hand_over(step, step.mark)
        elif (mark := self.stamping.idle(next_times)) is not None:
            self._hand_over(None, mark)

    def _hand_over(self, step: Step | None, mark: Mark) -> None:
        # The results hear of the tuples first, so that they know all that the core may answer with.
        if not self.inbox.put(step or mark):
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
