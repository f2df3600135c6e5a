"""The total order: from several streams, each out of order up to its delay, to one sequence of rows that are due.

A source's *frontier* is the first time at which it may still send a row: its watermark and one tick. That of the
join is the least of all sources that have not ended. A row before the join's frontier is late; the others wait until
the frontier has passed them. A source's watermark is just below its newest time minus its delay, so its frontier is
that very time: a row exactly that far behind is on time. A source in order is one with a delay of zero (equal times
may follow), except that a row that goes back is an error.

Rows that come out of order wait in sorted runs, and so do results that are found out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterflow.engines.local.checkpoint import SourceState
from counterflow.engines.local.input.sources import Source
from counterflow.engines.local.input.streams import delay_ticks
from counterflow.engines.local.input.watermarks import Watermark, time_of, watermark_ticks
from counterflow.engines.local.pieces import Piece, merge_pieces
from counterflow.errors import TimeError
from counterflow.predicate.expression import SIDES, Side
from counterflow.spec.join_spec import JoinSpec, SideSpec
from counterflow.windows.times import INT64, check_after_table, is_plain_time, saturating_subtract, time_values
from counterflow.windows.vectors import Array

BEGINNING, END = int(INT64.min), int(INT64.max)
RowsT = TypeVar("RowsT")
SPARSE = 4  # a run with less than a fourth of its rows left is copied, so that the others' memory is freed


# --- rows that wait


class Waiting(Protocol):
    """Rows of a source that are not due yet."""

    def __len__(self) -> int: ...

    @property
    def least(self) -> int | None: ...

    @property
    def pieces(self) -> list[Piece]: ...

    def add(self, keys: Array, rows: pa.RecordBatch) -> None: ...

    def take(self, bound: int, inclusive: bool = False) -> list[Piece]: ...


class SortedQueue:
    """Rows that come in order wait without being moved."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def least(self) -> int | None:
        return int(self._pieces[0][0][0]) if self._pieces else None

    @property
    def pieces(self) -> list[Piece]:
        return list(self._pieces)

    def add(self, keys: Array, rows: pa.RecordBatch) -> None:
        if len(keys):
            self._pieces.append((keys, rows))
            self._rows += len(keys)

    def take(self, bound: int, inclusive: bool = False) -> list[Piece]:
        due = []
        while self._pieces:
            times, batch = self._pieces[0]
            end = len(times)
            if times[-1] > bound or (times[-1] == bound and not inclusive):
                end = int(times.searchsorted(bound, "right" if inclusive else "left"))
            if not end:
                break
            self._pieces.popleft()
            self._rows -= end
            if end < len(times):
                due.append((times[:end], batch.slice(0, end)))
                self._pieces.appendleft((times[end:], batch.slice(end)))
                break
            due.append((times, batch))
        return due


@dataclass
class _Run(Generic[RowsT]):
    keys: Array
    rows: RowsT
    first: int = 0  # the ones before are taken

    def __len__(self) -> int:
        return len(self.keys) - self.first


class Runs(Generic[RowsT]):
    """Sorted runs: rows that come out of order, taken out in order.

    Each batch is a run, sorted by its key; neighbouring runs are merged such that each is at least twice as long as
    the next. So there are few of them, each row is moved a logarithmic number of times, and what is due is a prefix of
    each run. Merging is stable and joins only neighbours, so rows with equal keys stay in the order of their arrival.

    `concat`, `pick` and `cut` do with rows of this kind what their names say.
    """

    def __init__(
        self,
        concat: Callable[[list[RowsT]], RowsT],
        pick: Callable[[RowsT, Array], RowsT],
        cut: Callable[[RowsT, int, int], RowsT],
    ) -> None:
        self._concat, self._pick, self._cut = concat, pick, cut
        self._runs: list[_Run[RowsT]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def least(self) -> int | None:
        return min((int(run.keys[run.first]) for run in self._runs), default=None)

    @property
    def pieces(self) -> list[tuple[Array, RowsT]]:
        """All rows, as sorted pieces; earlier arrivals first among equals."""
        return [(run.keys[run.first :], self._live(run)) for run in self._runs]

    def add(self, keys: Array, rows: RowsT) -> None:
        """Take rows in, in any order."""
        if not len(keys):
            return
        if (keys[1:] < keys[:-1]).any():
            order = np.argsort(keys, kind="stable")
            keys, rows = keys[order], self._pick(rows, order)
        self._runs.append(_Run(keys, rows))
        self._merge()

    def take(self, bound: int, inclusive: bool = False) -> list[tuple[Array, RowsT]]:
        """Take out sorted pieces with keys below the bound (or equal to it); earlier arrivals first among equals."""
        pieces = []
        for run in self._runs:
            end = int(np.searchsorted(run.keys, bound, "right" if inclusive else "left"))
            if end > run.first:
                pieces.append((run.keys[run.first : end], self._cut(run.rows, run.first, end)))
                run.first = end
        if pieces:
            self._runs = [run for run in self._runs if len(run)]
            self._merge()
        return pieces

    def _merge(self) -> None:
        runs = self._runs
        i = len(runs) - 2
        while i >= 0:
            if len(runs[i]) < 2 * len(runs[i + 1]):
                runs[i : i + 2] = [self._merged(runs[i], runs[i + 1])]
                i = min(i, len(runs) - 2)
            else:
                i -= 1
        for i, run in enumerate(runs):
            if len(run) * SPARSE < len(run.keys):
                runs[i] = _Run(run.keys[run.first :].copy(), self._concat([self._live(run)]))

    def _merged(self, a: _Run[RowsT], b: _Run[RowsT]) -> _Run[RowsT]:
        keys = np.concatenate([a.keys[a.first :], b.keys[b.first :]])
        rows = self._concat([self._live(a), self._live(b)])
        if a.keys[-1] <= b.keys[b.first]:
            return _Run(keys, rows)
        order = np.argsort(keys, kind="stable")
        return _Run(keys[order], self._pick(rows, order))

    def _live(self, run: _Run[RowsT]) -> RowsT:
        return self._cut(run.rows, run.first, len(run.keys))


def sorting(*keys: Array) -> Array | slice:
    """Return what sorts rows by the last key, then by the one before: `np.lexsort`, unless they are sorted already.

    Where all keys fit into 64 bits they are sorted as one: that takes little time if they consist of a few sorted runs.
    """
    equal = np.ones(max(len(keys[0]) - 1, 0), bool)
    for key in reversed(keys):
        if (equal & (key[1:] < key[:-1])).any():
            packed = _packed(keys)
            return np.lexsort(keys) if packed is None else np.argsort(packed, kind="stable")
        equal &= key[1:] == key[:-1]
    return slice(None)


def _packed(keys: Sequence[Array]) -> Array | None:
    """Return one key for several, the last one first; None if they do not fit."""
    packed, bits = np.zeros(len(keys[0]), np.int64), 0
    for key in keys:
        least = int(key.min())
        width = (int(key.max()) - least).bit_length()
        if bits + width > 63:
            return None
        packed |= (key - least) << bits
        bits += width
    return packed


def batch_runs() -> Runs[pa.RecordBatch]:
    """Return runs of Arrow batches."""
    return Runs(
        pa.concat_batches,
        lambda batch, order: batch.take(pa.array(order)),
        lambda batch, begin, end: batch.slice(begin, end - begin),
    )


def array_runs() -> Runs[Array]:
    """Return runs of two-dimensional arrays, whose columns are the rows."""
    return Runs(
        lambda parts: np.concatenate(parts, axis=1),
        lambda rows, order: rows[:, order],
        lambda rows, begin, end: rows[:, begin:end],
    )


# --- sources, merged


class SourceProgress:
    """How far a source is, and its rows that wait."""

    def __init__(self, source: Source, side: SideSpec, rank: int) -> None:
        self.source, self.side, self.rank = source, side, rank
        self.time_type: pa.DataType = pa.int64() if side.is_table else side.time_type
        self._column = -1 if side.time is None else side.schema.get_field_index(side.time)
        self._plain = not side.is_table and is_plain_time(self.time_type)
        delay = delay_ticks(source.delay, self.time_type, source.label)
        self.in_order = delay is None and not source.by_punctuation
        # The distance from the newest row's time to the frontier; None if only watermarks move it.
        self._behind = None if source.by_punctuation else delay or 0
        self._reached = BEGINNING  # by its own rows and watermarks
        self.frontier = BEGINNING  # the first time at which a row of it may still come, and be on time
        self.live = True
        self.rows = 0
        self.newest = BEGINNING
        self._promised: int | None = None  # by the last watermark
        self._excused = BEGINNING  # rows before are late, as the join has gone on without this source
        self.waiting: Waiting = SortedQueue() if self.in_order else batch_runs()

    def _reach(self, time: int) -> None:
        """Note that no row before this time comes any more, and is on time."""
        self._reached = max(self._reached, time)
        self.frontier = max(self._reached, self._excused)

    def plain_times(self, columns: list[pa.Array]) -> Array | None:
        """Return the times among a batch's columns, if they need no conversion, no check and no copy."""
        return self._plain_times(columns[self._column])

    def _plain_times(self, column: pa.Array) -> Array | None:
        if not self._plain or column.null_count or not len(column):
            return None
        return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)

    def times(self, batch: pa.RecordBatch) -> Array:
        """Return the times of a batch's rows; a null is an error that names the source."""
        if self.side.is_table:
            return time_values(self.side, batch)
        column = batch.column(self._column)
        if column.null_count:
            row = self.rows + int(pc.index(column.is_null(), True).as_py())
            raise TimeError(
                f"{self.source.label}: time column '{self.side.time}' is null in row {row}: filter such rows out "
                "before the join"
            )
        if (plain := self._plain_times(column)) is not None:
            check_after_table(self.side, plain)
            return plain
        try:
            return time_values(self.side, batch)
        except TimeError as error:
            error.add_note(f"in {self.source.label}, the batch at row {self.rows}")
            raise

    def accept(self, batch: pa.RecordBatch, others: int) -> pa.RecordBatch | None:
        """Take a batch in, while the other sources' frontiers are at `others`, and return its late rows."""
        times = self.times(batch)
        if not len(times):
            return None
        before, frontiers, first = self._reached, None, not self.rows
        if self.in_order:
            self._check_order(times)
        newest = int(times[-1] if self.in_order else times.max())
        if self._behind is not None:
            self._reach(max(newest - self._behind, BEGINNING))
        self.rows += len(times)
        # Row by row, so that it makes no difference where a batch ends.
        least = int(times[0] if self.in_order else times.min())
        if not self.in_order and least < min(self._reached, others):
            frontiers = np.full(len(times), before)
            if self._behind is not None:
                reached = np.maximum.accumulate(np.concatenate([[self.newest], times[:-1]]))
                frontiers = np.maximum(saturating_subtract(reached, self._behind), before)
                frontiers[: int(first)] = before  # before its first row a source has reached nothing
        self.newest = max(self.newest, newest)
        if frontiers is not None or least < self._excused:
            late = times < self._excused
            if frontiers is not None:
                late |= times < np.minimum(frontiers, others)
            if late.any():
                kept = np.flatnonzero(~late)
                self.waiting.add(times[kept], batch.take(pa.array(kept)))
                return batch.take(pa.array(np.flatnonzero(late)))
        self.waiting.add(times, batch)
        return None

    def pass_through(self, n: int, newest: int) -> None:
        """Count `n` rows that are in order, the last one at this time, and need not wait for any others."""
        self.newest = newest
        self._reach(newest)
        self.rows += n

    def heartbeat(self, watermark: Watermark) -> None:
        """Move the frontier past a watermark."""
        ticks = watermark_ticks(watermark.time, self.time_type, self.source.label)
        self._promised = ticks if self._promised is None else max(ticks, self._promised)
        self._reach(min(ticks, END - 1) + 1)

    def excuse(self, others: int) -> bool:
        """Let the join go on without it, up to the others' frontier; return whether that is further."""
        further = others > self.frontier
        self._excused = max(self._excused, others)
        self.frontier = max(self._reached, self._excused)
        return further

    def saved(self) -> SourceState:
        """Return what a checkpoint needs of it."""
        piece = merge_pieces(self.waiting.pieces)
        rows = None if piece is None else piece[1]
        return SourceState(self.source.side, self.rows, self._reached, self.newest, self._promised, self._excused, rows)

    def resume(self, state: SourceState) -> None:
        """Go on where a checkpoint was written."""
        self.newest, self._promised, self._excused = state.newest, state.promised, state.excused
        self._reach(state.reached)
        if state.waiting is not None:
            self.waiting.add(self.times(state.waiting), state.waiting)
        self.rows = state.rows

    def _check_order(self, times: Array) -> None:
        """Raise an error for a row that goes back in time, or that a watermark has ruled out."""
        if times[0] >= self._reached and (len(times) == 1 or not (times[1:] < times[:-1]).any()):
            return
        reached = np.maximum.accumulate(np.concatenate([[self.newest], times]))[:-1]
        row = int(np.flatnonzero(times < np.maximum(reached, self._reached))[0])
        name, at = f"row {self.rows + row} of {self.source.label}", time_of(int(times[row]), self.time_type)
        if times[row] < reached[row]:
            raise TimeError(
                f"{name} goes back in time: {at} after {time_of(int(reached[row]), self.time_type)}. A stream that is "
                'out of order needs a delay: cf.stream(..., delay="10 seconds")'
            )
        assert self._promised is not None
        raise TimeError(
            f"{name} has time {at}, although cf.watermark({time_of(self._promised, self.time_type)}) came before it: a "
            "watermark says that no row up to its time follows"
        )


@dataclass(frozen=True)
class Taken:
    """What was due of some sources, in the order of their ranks, and before which time nothing more of them comes."""

    frontier: int
    pieces: dict[Side, list[Piece]]


def take_due(sources: Sequence[SourceProgress], join_frontier: int) -> Taken:
    """Take out the rows that these sources' frontier has passed; they are in the order of their ranks.

    At the frontier's own time those are due, too, that come before all that may still be sent then.
    """
    live = [source for source in sources if source.live]
    # A row out of order is on time, if it is not before the join's frontier.
    frontier = min((s.frontier if s.in_order else join_frontier for s in live), default=END)
    first = min((s.rank for s in live if not s.in_order or s.frontier == frontier), default=None)
    taken: dict[Side, list[Piece]] = {"left": [], "right": []}
    for source in sources:
        if len(source.waiting):
            inclusive = first is None or source.rank <= first
            taken[source.source.side] += source.waiting.take(frontier, inclusive=inclusive)
    return Taken(frontier, taken)


@dataclass(frozen=True)
class Due:
    """What the frontier has passed: both sides' next rows in the total order."""

    left: Piece | None
    right: Piece | None

    def __bool__(self) -> bool:
        return self.left is not None or self.right is not None


class Merging:
    """All sources of a join; a source's rank is its place in the order of tuples at equal times: left ones first.

    With `by_side` the rows of a side are due once their order among that side's own is certain. It then does not wait
    for the other side: rows of both come out in order, but not in an order of both.
    """

    def __init__(self, spec: JoinSpec, sources: Sequence[Source], by_side: bool = False) -> None:
        self.by_side = by_side
        self.compiled = False  # whether to use compiled code
        self.sources = [SourceProgress(s, spec.side(s.side), rank) for rank, s in enumerate(sources)]
        self._sides = [[source for source in self.sources if source.source.side == side] for side in SIDES]

    @property
    def live(self) -> list[SourceProgress]:
        return [source for source in self.sources if source.live]

    @property
    def frontier(self) -> int:
        return min((source.frontier for source in self.sources if source.live), default=END)

    def wanted(self, rows_max: int, ahead: dict[Side, int]) -> list[int]:
        """Return the sources to read from: the one all others wait for, and those that are not too far ahead of it.

        `ahead`: how many rows of each side were due already, although the other side has not come so far.
        """
        live = sorted((source.frontier, source.rank) for source in self.sources if source.live)
        sources = self.sources
        return [
            rank
            for i, (_, rank) in enumerate(live)
            if not i or len(sources[rank].waiting) + ahead[sources[rank].source.side] < rows_max
        ]

    def accept(self, rank: int, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take a batch of a source in, and return its late rows."""
        others = min((s.frontier for s in self.sources if s.live and s.rank != rank), default=END)
        return self.sources[rank].accept(batch, others)

    def next_time(self, side: Side) -> int | None:
        """Return a time before which no further row of this side will be due; None if there will be none at all."""
        own = self._sides[0 if side == "left" else 1]
        sent = [source.frontier if source.in_order else self.frontier for source in own if source.live]
        waiting = [source.waiting.least for source in own]
        return min((time for time in (*sent, *waiting) if time is not None), default=None)

    def due(self) -> Due:
        """Take out the rows that are due: those that the sources' frontier has passed (`take_due`)."""
        groups = [take_due(group, self.frontier) for group in (self._sides if self.by_side else [self.sources])]
        left, right = ([piece for group in groups for piece in group.pieces[side]] for side in SIDES)
        return Due(merge_pieces(left, self.compiled), merge_pieces(right, self.compiled))
