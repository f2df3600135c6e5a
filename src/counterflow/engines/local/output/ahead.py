"""Results that were made before they were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pyarrow as pa

from counterflow.engines.local.output.shedding import StreamItem


class ResultsAhead:
    """Items in their order, and errors among them. Batches that have piled up are handed out as one.

    At most `rows_max` rows are made ahead. That is as much as a join has under way beside them (rows that wait, steps,
    pairs), and more rows pushed since: so a program with one thread that polls once for each of its buffers' rows
    never gets stuck, whenever its polls find little because the driver was busy.
    """

    def __init__(self, rows_max: int, pending: Iterable[StreamItem] = ()) -> None:
        self.rows_max = rows_max
        self._items: deque[StreamItem | BaseException] = deque(pending)

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: StreamItem | BaseException) -> None:
        self._items.append(item)

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The batches that wait."""
        return [item for item in self._items if isinstance(item, pa.RecordBatch)]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @property
    def full(self) -> bool:
        return self.rows >= self.rows_max

    def take(self) -> StreamItem:
        """Return the next item, a batch with all batches that follow it at once; raise it if it is an error."""
        item = self._items.popleft()
        if isinstance(item, BaseException):
            raise item
        if not isinstance(item, pa.RecordBatch):
            return item
        batches = [item]
        while self._items and isinstance(following := self._items[0], pa.RecordBatch):
            batches.append(following)
            self._items.popleft()
        return item if len(batches) == 1 else pa.concat_batches(batches)
