"""How the rows of physical sources reach ScaleJoin's gate: each source has a thread that carries its own there.

    source -> reader, or who pushes -> intake -> carrier: late? in order? ──► gate ──► nodes
                                                                        └──► the driver, for results only

No thread stands between the sources: carriers share nothing but the gate, and where each of them is (`Frontiers`). What
is carried is on time and in order of its source; the gate orders it among the others. A source without a delay promises
the gate what it has reached itself. One that is out of order may send a row as long as the join's frontier has not
passed it, so its rows wait here for that frontier, and it promises no more.

The driver gets rows before the gate does. So whatever nodes find, the driver can go on to the rows of it without any
further move of a source: it never waits for a carrier that waits for nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.engines.local.input.intake import End, Intake
from counterflow.engines.local.input.sources import Item, Source
from counterflow.engines.local.input.watermarks import Watermark
from counterflow.engines.local.order import BEGINNING, END, Piece, SourceProgress, merge_pieces
from counterflow.errors import CounterflowError
from counterflow.predicate.expression import columns_of
from counterflow.protocols.sources import SourceFeed
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.store import Batch, passing
from counterflow.windows.vectors import Array, from_arrow_column

PASSES = "\0passes"  # a column of carried rows: whether they can match at all, and have a number
ENDED = END + 1  # the frontier of a source that has ended


@dataclass(frozen=True)
class Reached(Watermark):
    """Says to the driver that no row before this time is carried any more; the time is in ticks."""

    time: int


class CarriedIntake(Intake):
    """An intake whose queues are emptied by carriers, each its own; `behind` has what they have carried.

    A carrier waits for its own bell, so that an item wakes nobody else.
    """

    def __init__(self, sources: Sequence[Source], rows_max: int, shed: bool) -> None:
        super().__init__(sources, rows_max, shed)
        self._bells = [threading.Condition(self._lock) for _ in sources]
        self.behind = Intake(sources, rows_max, shed=False)

    def _note_arrival(self, rank: int) -> None:
        super()._note_arrival(rank)
        self.ring(rank)

    def _end(self, rank: int, end: End) -> None:
        super()._end(rank, end)
        self.ring(rank)

    def ring(self, *ranks: int) -> None:
        """Let these sources' carriers look again."""
        with self._lock:
            for rank in ranks:
                self._bells[rank].notify_all()

    def wait_at(self, rank: int, wanted: Callable[[], bool], what: Callable[[], bool], timeout: float | None) -> None:
        """Wait until a source has an item that is `wanted`, `what` is true, time is up, or the join was stopped."""
        with self._lock:
            self._bells[rank].wait_for(
                lambda: self.stopped or (bool(self._queues[rank]) and wanted()) or what(), timeout
            )

    def stop(self) -> None:
        super().stop()
        self.ring(*range(len(self.sources)))
        self.behind.stop()

    # --- what was carried

    def hand_on(self, rank: int, item: Item) -> bool:
        """Give the driver what the gate gets next; wait for room. Return False if the join was stopped."""
        if isinstance(item, Watermark):
            return self.behind._append_watermark(rank, item)
        return self.behind._append(rank, item)

    def hand_on_end(self, rank: int, end: End) -> None:
        """Tell the driver that nothing more is carried of a source."""
        self.behind._end(rank, end)


class Frontiers:
    """Where all sources are, for each other. A carrier writes its own; they never go back."""

    def __init__(self, intake: CarriedIntake, sources: Sequence[SourceProgress]) -> None:
        self._intake, self._all = intake, [BEGINNING] * len(sources)
        self._timeouts = [source.source.timeout for source in sources]
        # Who has to know when others move: their rows wait for the join's frontier, or they may be excused up to there.
        self._watching = [s.rank for s in sources if not s.in_order or s.source.timeout is not None]
        self._any_timeout = any(timeout is not None for timeout in self._timeouts)

    @property
    def least(self) -> int:
        """The join's frontier."""
        return min(min(self._all), END)

    def others(self, rank: int) -> int:
        """Return the least frontier of the others."""
        return min((frontier for k, frontier in enumerate(self._all) if k != rank and frontier < END), default=END)

    def is_last(self, rank: int) -> bool:
        """Return whether all others wait for this source."""
        return min((frontier, k) for k, frontier in enumerate(self._all))[1] == rank

    def move(self, rank: int, frontier: int) -> None:
        """Note where a source is; those who wait for the last one hear of it."""
        before = self._all[rank]
        if frontier <= before:
            return
        was_last = before == self.least
        self._all[rank] = frontier
        if self._watching and (was_last or self._any_timeout):
            self._intake.ring(*self._watching)

    def silent_for(self, rank: int) -> float | None:
        """Return for how many seconds a source is silent beyond its timeout (less than 0: not yet); None: it is not."""
        timeout, since = self._timeouts[rank], self._intake.silent_since(rank)
        if timeout is None or since is None or self._all[rank] == ENDED:
            return None
        return time.monotonic() - since - timeout

    def without_silent(self) -> int:
        """Return the least frontier of the sources that are not silent for too long."""
        silent = [self.silent_for(rank) for rank in range(len(self._all))]
        talking = (
            frontier
            for frontier, over in zip(self._all, silent, strict=True)
            if frontier < ENDED and not (over is not None and over >= 0)
        )
        return min(talking, default=BEGINNING)


class Carrier:
    """What the thread of one source does until the source ends or fails, or the join is stopped.

    `note_late` gets rows that are late, `fail` an error after which the join cannot go on.
    """

    def __init__(
        self,
        spec: JoinSpec,
        progress: SourceProgress,
        feed: SourceFeed,
        intake: CarriedIntake,
        frontiers: Frontiers,
        step_rows: int,
        note_late: Callable[[pa.RecordBatch], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.progress, self.feed, self.intake, self.frontiers = progress, feed, intake, frontiers
        self.rank, self.side, self.step_rows = progress.rank, progress.source.side, step_rows
        self._note_late, self._fail = note_late, fail
        self._filters, self._required = spec.parts.filters(self.side), spec.required[self.side]
        self._columns = sorted({column.name for column in columns_of(spec.predicate) if column.side == self.side})
        self._released = BEGINNING  # nothing before is carried any more
        self._told = BEGINNING  # what the driver knows of that

    def run(self) -> None:
        """Carry item after item. An error of the source comes after all that was carried before it."""
        try:
            while self._round():
                pass
        except BaseException as error:  # it belongs to the consumer
            self._fail(error)

    def _round(self) -> bool:
        """Wait for the next item, or until more can be released, and carry that; return whether more may come."""
        item = self._next()
        if self.intake.stopped:
            return False
        try:
            ended = self._take(item)
            rows = self._due(ended)
            carried = None if rows is None else self._prepared(rows)
        except BaseException as error:
            self.intake.hand_on_end(self.rank, End(error))
            return False
        return self._carry(carried, ended) and not ended

    # --- what comes

    def _next(self) -> Item | End | None:
        """Return the source's next item; None if there is none that is wanted, but there is something else to do."""
        while not self.intake.stopped:
            if self._wanted():
                polled = self.intake.poll([self.rank], self.step_rows)
                if polled is not None:
                    return polled[1]
            if self._excuse() or self._lags():
                return None
            over = self.frontiers.silent_for(self.rank)
            self.intake.wait_at(
                self.rank, self._wanted, self._has_news, -over if over is not None and over < 0 else None
            )
        return None

    def _wanted(self) -> bool:
        """Return whether more is to be read: not of a source whose rows wait for others that are far behind."""
        return len(self.progress.waiting) < self.intake.rows_max or self.frontiers.is_last(self.rank)

    def _lags(self) -> bool:
        """Return whether the join's frontier has passed what was released of rows out of order."""
        return not self.progress.in_order and self.frontiers.least > self._released

    def _has_news(self) -> bool:
        over = self.frontiers.silent_for(self.rank)
        is_silent = over is not None and over >= 0
        return self._lags() or (is_silent and self.frontiers.without_silent() > self.progress.frontier)

    def _excuse(self) -> bool:
        """Let the join go on without a source that is silent for too long; return whether it can go on by that."""
        over = self.frontiers.silent_for(self.rank)
        if over is None or over < 0 or not self.progress.excuse(self.frontiers.without_silent()):
            return False
        self.frontiers.move(self.rank, self.progress.frontier)
        return True

    def _take(self, item: Item | End | None) -> bool:
        """Take an item in, without its late rows; return whether it is the end."""
        progress = self.progress
        if isinstance(item, End):
            if item.error is not None:
                raise item.error
            progress.live = False
            self.frontiers.move(self.rank, ENDED)
            return True
        if isinstance(item, Watermark):
            progress.heartbeat(item)
        elif item is not None:
            late = progress.accept(item, self.frontiers.others(self.rank))
            if late is not None:
                self._note_late(late)
        self.frontiers.move(self.rank, progress.frontier)
        return False

    # --- what goes on

    def _due(self, ended: bool) -> Piece | None:
        """Take out the rows that no row of this source can precede any more, in order."""
        if ended:
            self._released = END
        else:
            self._released = self.progress.frontier if self.progress.in_order else self.frontiers.least
        return merge_pieces(self.progress.waiting.take(self._released, inclusive=True))

    def _prepared(self, piece: Piece) -> tuple[Array, Batch, Array | None, pa.RecordBatch]:
        """Return times, tuples and who passes for the gate, and the rows for the driver."""
        times, rows = piece
        try:
            columns = {name: from_arrow_column(name, rows.column(name)) for name in self._columns}
        except CounterflowError as error:
            error.add_note(f"in a {self.side} stream")
            raise
        n, passes = len(times), None
        if self._filters or self._required:
            kept = passing(self._filters, self.side, columns, n, self._required)
            passes = np.ones(n, bool)
            if kept is not None:
                passes = np.zeros(n, bool)
                passes[kept] = True
            rows = rows.append_column(PASSES, pa.array(passes))
        nothing = np.zeros(n, np.int64)
        return times, Batch(self.side, columns, nothing, nothing, nothing, nothing), passes, rows

    def _carry(self, carried: tuple[Array, Batch, Array | None, pa.RecordBatch] | None, ended: bool) -> bool:
        """Hand rows to the driver and to the gate, with what is promised; return False if the join was stopped."""
        if carried is not None and not self.intake.hand_on(self.rank, carried[3]):
            return False
        self._told = self._told if carried is None else int(carried[0][-1])  # rows say so themselves
        if ended:
            self.intake.hand_on_end(self.rank, End())
        elif self._released > self._told:
            self._told = self._released
            if not self.intake.hand_on(self.rank, Reached(self._released)):
                return False
        if carried is not None:
            times, tuples, passes, _ = carried
            self.feed.offer(times, tuples, passes)
        if ended:
            self.feed.close()
        else:
            self.feed.reach(self._released)
        return self.feed.flush()
