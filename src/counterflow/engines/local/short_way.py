"""The short way of few rows: from a source's batch to its results, past the order of sources, stamps and steps.

Where a row need not wait for any other, nothing of that has something to decide: durations for windows, pairs in any
order, one stream in order a side, and an index that is compiled. One compiled call then does it all
(`windows.few_rows`), in the thread that takes the results. The state is that of the long way, and every batch takes the
one or the other; the long way also says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from counterflow.engines.local.core import Found, SequentialCore
from counterflow.engines.local.order import Merging, SourceProgress
from counterflow.engines.local.output.messages import ROWS_MAX as MESSAGE_ROWS_MAX
from counterflow.engines.local.output.messages import Messages
from counterflow.engines.local.output.results import Results
from counterflow.engines.local.stamps import Stamping
from counterflow.predicate.expression import SIDES
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.few_rows import ROWS_MAX, FewRows
from counterflow.windows.times import time_reach


class ShortWay:
    """What few rows of a source take, if they can.

    Whoever lets rows take the long way, or moves a source by something else than rows, sets `stale`.
    """

    def __init__(self, spec: JoinSpec, merging: Merging, stamping: Stamping, core: SequentialCore) -> None:
        self.stale = True
        self._spec, self._sources, self._stamping, self._core = spec, merging.sources, stamping, core
        sides = spec.left, spec.right
        reach = [(before or 0, after or 0) for before, after in (time_reach(spec, side) for side in SIDES)]
        self._few = FewRows(core.join, [side.schema for side in sides], [side.time_column for side in sides], reach)
        self._keeps = False  # whether records are written, and results read, by compiled code
        self._results: Results | None = None

    @classmethod
    def of(cls, spec: JoinSpec, merging: Merging, stamping: Stamping, core: object) -> ShortWay | None:
        """Return the short way of a join, if it has one."""
        alone = len(merging.sources) == 2 and all(source.in_order for source in merging.sources)
        if isinstance(core, SequentialCore) and merging.by_side and spec.how == "inner" and alone:
            way = cls(spec, merging, stamping, core)
            return way if way._few.plain else None
        return None

    def lead_to(self, results: Results, hear: Callable[[], None]) -> None:
        """Say where results are made, by the thread that drives; `hear` lets them know all that came the long way."""
        self._results, self._hear = results, hear
        self._messages = Messages(self._spec, results.rows)

    def take(self, source: SourceProgress, batch: pa.RecordBatch) -> list[pa.RecordBatch] | None:
        """Join the rows of a batch, and return their results, if they can go this way; otherwise do nothing."""
        n = batch.num_rows
        if self._results is None or not 0 < n <= ROWS_MAX or self._stamping.is_due(n):
            return None
        if self.stale and not self._refresh():
            return None
        i, keeps, rows, newest = source.rank, self._keeps, batch, None
        if (sieve := self._stamping.sieves[i]) is not None and sieve.conditions:
            if (sifted := self._sifted(source, batch)) is None:
                return None
            rows, newest = sifted
        pairs = self._few.take(i, rows, keeps) if rows.num_rows else 0
        if pairs is None and keeps:  # perhaps for NULLs that only results have
            keeps, self.stale = False, True  # what records consist of changes by that
            pairs = self._few.take(i, rows, keeps)
        if pairs is None:
            return None
        source.pass_through(n, self._few.newest(i) if newest is None else newest)
        return self._made(source, rows, pairs, keeps) if rows.num_rows else []

    def _sifted(self, source: SourceProgress, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int] | None:
        """Return the rows that pass the one-sided conditions, and the last time of all; None if it cannot be told."""
        times = source.plain_times(batch.columns)
        if times is None or times[0] < source.frontier or (times[1:] < times[:-1]).any():
            return None
        return self._stamping.sifted(source.rank, times, batch)[1], int(times[-1])

    def _made(self, source: SourceProgress, batch: pa.RecordBatch, pairs: int, keeps: bool) -> list[pa.RecordBatch]:
        """Return the results of rows that are in their window."""
        i, n, results = source.rank, batch.num_rows, self._results
        assert results is not None
        if keeps:
            results.rows[i].note_few(n)
        else:
            times = source.plain_times(batch.columns)
            assert times is not None
            results.rows[i].append_few(times, batch.columns)
        self._stamping.take_few(i, n)
        complete = self._core.take_few(i, n)
        if 0 <= pairs <= MESSAGE_ROWS_MAX and keeps:
            results.note_few(pairs, complete)
            return [self._messages.give(self._few, i, pairs)] if pairs else []
        found = self._few.search(i, batch) if pairs < 0 else self._few.pairs(i, pairs)
        return list(results.found(Found(*found, complete)))

    def _refresh(self) -> bool:
        """Learn where everything lies now; return whether rows can go this way."""
        results = self._results
        assert results is not None
        if any(len(source.waiting) for source in self._sources):
            return False
        self._hear()
        if not self._few.refresh():
            return False
        results.use_compiled()
        for i, source in enumerate(self._sources):
            self._few.point_times(i, *self._stamping.room(i, ROWS_MAX), source.frontier)
        self._keeps = self._messages.settle()
        if self._keeps:
            for i, rows in enumerate(results.rows):
                fields = rows.plain_fields
                assert fields is not None
                span = rows.records.first, rows.records.next
                room = rows.records.room(ROWS_MAX)
                self._few.point_records(i, *room, span, [(c, *rows.records.place(name)) for c, name in fields])
        self.stale = False
        return True
