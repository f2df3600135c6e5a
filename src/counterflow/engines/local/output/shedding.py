"""Results that nobody takes in time, and that are dropped then: `overflow='drop_results'`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa

from counterflow.engines.local.input.watermarks import Punctuation

StreamItem: TypeAlias = pa.RecordBatch | Punctuation  # of a joined stream


class SheddingBuffer:
    """Results that wait for the consumer; those that find it full are dropped."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max, self.dropped = rows_max, 0
        self._changed = threading.Condition()
        self._items: deque[StreamItem] = deque()
        self._rows = 0
        self._ended = self._stopped = False
        self._error: BaseException | None = None

    def fill(self, items: Iterator[StreamItem | None]) -> None:
        """Take items in, in a thread of its own, until there are no more."""
        try:
            for item in items:
                if item is None:
                    continue
                with self._changed:
                    self._put(item)
                    self._changed.notify_all()
        except BaseException as error:  # it belongs to the consumer
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, item: StreamItem) -> None:
        if isinstance(item, Punctuation):
            if self._items and isinstance(self._items[-1], Punctuation):
                self._items.pop()
            self._items.append(item)
        elif self._rows and self._rows + item.num_rows > self.rows_max:
            self.dropped += item.num_rows
        else:
            self._items.append(item)
            self._rows += item.num_rows

    def items(self, patience: Callable[[], float]) -> Iterator[StreamItem | None]:
        """Yield them as they come; None if there is none within `patience()` seconds."""
        while True:
            item = None
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._ended or self._stopped, patience())
                if self._stopped:
                    return
                if self._items:
                    item = self._items.popleft()
                    self._rows -= item.num_rows if isinstance(item, pa.RecordBatch) else 0
                elif self._ended:
                    break
            yield item
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
