"""Bounded queues between the sources' reader threads and the one driver thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from counterflow.engines.local.input.sources import Item, Source
from counterflow.engines.local.input.streams import Watermark


@dataclass(frozen=True)
class End:
    """The last item of a source; with the error that ended it."""

    error: BaseException | None = None


class Intake:
    """A queue for each source, of at most `rows_max` rows (or one batch, if that has more).

    With `shed`, a batch that finds its queue full is dropped and counted; otherwise its source waits.
    """

    def __init__(self, sources: Sequence[Source], rows_max: int, shed: bool) -> None:
        self.sources, self.rows_max, self.shed = sources, rows_max, shed
        # Reentrant: garbage collection may stop a join in a thread that is in here.
        self._lock = threading.RLock()
        self._arrived, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._queues: list[deque[Item | End]] = [deque() for _ in sources]
        self.rows = [0] * len(sources)
        self.dropped = [0] * len(sources)
        self.ended: list[End | None] = [None] * len(sources)
        self.inside: list[float | None] = [None] * len(sources)  # since when its reader is in a source's code
        self.stopped = False

    def read(self, rank: int) -> None:
        """Put a source's items into its queue, in a thread of its own, until it ends or the join is stopped."""
        source = self.sources[rank]
        end = End()
        try:
            items = source.items(lambda: self.stopped)
            try:
                while self._put(rank, self._next(rank, items)):  # no variable keeps an item while it waits for more
                    pass
            except StopIteration:
                pass
            finally:
                items.close()
        except BaseException as error:  # it belongs to the consumer, whatever it is
            error.add_note(f"in {source.label}, after {source.rows_read:,} rows")
            end = End(error)
        with self._lock:
            self.ended[rank] = end
            self._queues[rank].append(end)
            self._arrived.notify_all()

    def _next(self, rank: int, items: Iterator[Item]) -> Item:
        self.inside[rank] = time.monotonic()
        try:
            return next(items)
        finally:
            self.inside[rank] = None

    def _put(self, rank: int, item: Item) -> bool:
        if isinstance(item, Watermark):
            return self._append(rank, item, 0)
        if not item.num_rows:  # it may have told the schema
            with self._lock:
                self._arrived.notify_all()
            return not self.stopped
        if self.shed and not self.sources[rank].finite:
            with self._lock:
                if self.rows[rank] and self.rows[rank] + item.num_rows > self.rows_max:
                    self.dropped[rank] += item.num_rows
                    return not self.stopped
                return self._append(rank, item, item.num_rows)
        parts = range(0, item.num_rows, self.rows_max)
        return all(self._append(rank, _slice(item, begin, self.rows_max), None) for begin in parts)

    def _append(self, rank: int, item: Item, rows: int | None) -> bool:
        """Append an item that counts as `rows`; with None wait for room, and count the rows it has."""
        queue = self._queues[rank]
        with self._lock:
            if rows is None:
                assert isinstance(item, pa.RecordBatch)
                rows = item.num_rows
                self._room.wait_for(
                    lambda: self.stopped or not self.rows[rank] or self.rows[rank] + item.num_rows <= self.rows_max
                )
            if self.stopped:
                return False
            last = queue[-1] if queue else None
            if isinstance(item, Watermark) and isinstance(last, Watermark) and _comparable(item, last):
                queue[-1] = max(last, item, key=lambda watermark: watermark.time)  # heartbeats do not pile up
            else:
                queue.append(item)
            self.rows[rank] += rows
            self._arrived.notify_all()
            return True

    def errors(self) -> list[BaseException]:
        """Return the errors that ended sources."""
        return [end.error for end in self.ended if end is not None and end.error is not None]

    def poll(self, ranks: Sequence[int]) -> tuple[int, Item | End] | None:
        """Return the next item of the first of these sources that has one."""
        with self._lock:
            for rank in ranks:
                if self._queues[rank]:
                    item = self._queues[rank].popleft()
                    if isinstance(item, pa.RecordBatch):
                        self.rows[rank] -= item.num_rows
                        self._room.notify_all()
                    return rank, item
            return None

    def wait(self, ranks: Sequence[int]) -> bool:
        """Wait until one of these sources has an item; return False if the join was stopped."""
        return self.wait_for(lambda: any(self._queues[rank] for rank in ranks))

    def wait_for(self, what: Callable[[], bool]) -> bool:
        """Wait until `what` is true, asking when something has come; return False if the join was stopped."""
        with self._lock:
            self._arrived.wait_for(lambda: self.stopped or what())
            return not self.stopped

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            self._arrived.notify_all()
            self._room.notify_all()


def _comparable(a: Watermark, b: Watermark) -> bool:
    """Return whether two watermarks are of one kind. If not, one is wrong: its source finds out which."""
    zones = {getattr(time, "tzinfo", None) is None for time in (a.time, b.time)}
    return isinstance(a.time, int) == isinstance(b.time, int) and len(zones) == 1


def _slice(batch: pa.RecordBatch, begin: int, rows: int) -> pa.RecordBatch:
    return batch if batch.num_rows <= rows else batch.slice(begin, rows)
