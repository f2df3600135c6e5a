"""Results that were made before they were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pyarrow as pa

from counterflow.engines.local.output.shedding import StreamItem


class ResultsAhead:
    """Items in their order, and errors among them. Small batches that have piled up are handed out as one."""

    def __init__(self, pending: Iterable[StreamItem] = ()) -> None:
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

    def take(self, rows_enough: int) -> StreamItem:
        """Return the next item, or raise it if it is an error.

        A batch comes with those that follow it, until there are `rows_enough` rows: who takes some now and then
        takes at least as fast as rows are made ahead.
        """
        item = self._items.popleft()
        if isinstance(item, BaseException):
            raise item
        if not isinstance(item, pa.RecordBatch):
            return item
        batches, rows = [item], item.num_rows
        while rows < rows_enough and self._items and isinstance(following := self._items[0], pa.RecordBatch):
            batches.append(following)
            rows += following.num_rows
            self._items.popleft()
        return item if len(batches) == 1 else pa.concat_batches(batches)
