"""The short way of few rows: from a source's batch to pairs, past the order of sources, stamps and steps.

Where a row need not wait for any other, nothing of that has something to decide: durations for windows, pairs in any
order, one stream in order a side, no one-sided conditions, and an index that is compiled (`windows.few_rows`). The
state is that of the long way, and every batch takes the one or the other; the long way also says what is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from counterflow.engines.local.core import SequentialCore
from counterflow.engines.local.order import Merging, SourceProgress
from counterflow.engines.local.stamps import Stamping
from counterflow.predicate.expression import SIDES
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.few_rows import ROWS_MAX, FewRows
from counterflow.windows.times import time_reach
from counterflow.windows.vectors import Array, contiguous, from_arrow_column


class Few(NamedTuple):
    """Rows of one side, 0 for the left one, that took the short way, and their pairs as left and right numbers."""

    side: int
    times: Array
    columns: list[pa.Array]
    pairs: tuple[Array, Array]

    def __len__(self) -> int:
        return len(self.times)


class ShortWay:
    """What few rows of a source take, if they can."""

    def __init__(self, spec: JoinSpec, stamping: Stamping, core: SequentialCore) -> None:
        self._stamping, self._few = stamping, FewRows(core.join)
        self._reach = [time_reach(spec, side) for side in SIDES]
        # The columns that the predicate uses of each side, and where they are in a batch
        self._columns = [
            [(name, spec.side(side).schema.get_field_index(name)) for name in own.columns]
            for side, own in zip(SIDES, stamping.sides, strict=True)
        ]

    @classmethod
    def of(cls, spec: JoinSpec, merging: Merging, stamping: Stamping, core: object) -> ShortWay | None:
        """Return the short way of a join, if it has one."""
        alone = len(merging.sources) == 2 and all(source.in_order for source in merging.sources)
        every = not any(spec.parts.filters(side) for side in SIDES)
        if isinstance(core, SequentialCore) and merging.by_side and spec.how == "inner" and alone and every:
            return cls(spec, stamping, core)
        return None

    def take(self, source: SourceProgress, batch: pa.RecordBatch) -> Few | None:
        """Join the rows of a batch, if they can go this way; otherwise do nothing, and return None."""
        i, n = SIDES.index(source.source.side), batch.num_rows
        if not 0 < n <= ROWS_MAX or not self._few.ready(i, n):
            return None
        if not self._stamping.all_have_numbers:
            return None
        arrays = batch.columns
        columns = {name: from_arrow_column(name, arrays[k]) for name, k in self._columns[i]}
        times = source.plain_times(arrays)
        if times is None or any(vector.valid is not None for vector in columns.values()):
            return None
        if self._stamping.is_due(n) or not source.pass_through(times):
            return None
        first, known, of = self._stamping.take_few(i, times)
        before, after = self._reach[i]
        assert before is not None and after is not None  # durations
        pairs = self._few.join(i, columns, first, contiguous(times), (before, after), known, of)
        return Few(i, times, arrays, pairs)
