"""Bounded queues between the sources' reader threads, or those who push rows, and whoever drives the join.

Driving is a role. Where the core is sequential, the consumer takes it while it waits for results: then a row that comes
alone wakes one thread, which joins it and has its pairs. The driver's own thread takes it when much has come, or when
the consumer stays away; elsewhere always.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from counterflow.engines.local.input.sources import Item, PushedSource, Source
from counterflow.engines.local.input.watermarks import Watermark
from counterflow.errors import InputError

STUCK_SECONDS = 5.0  # how long a push of the thread that takes results waits, with nothing going on
MUCH_ROWS = 1 << 10  # that wait: worth a second thread
LINGER_SECONDS = 0.002  # how long a consumer may be away, before the driver's thread joins the little that has come
AWAY, BUSY, WAITING = 0, 1, 2  # what the consumer does: something else; make results; wait for them
AWAKE, LINGERING, ASLEEP = 0, 1, 2  # what the driver's thread does


@dataclass(frozen=True)
class End:
    """The last item of a source; with the error that ended it."""

    error: BaseException | None = None


class Bell:
    """What one thread waits for, and others ring. A bell that was rung before is not waited for."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung already
            self._silent.release()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it rings, at most `timeout` seconds; return whether it did."""
        return self._silent.acquire(timeout=-1 if timeout is None else timeout)


class Intake:
    """A queue for each source, of at most `rows_max` rows (or one batch, if that has more).

    With `shed`, a batch that finds its queue full is dropped and counted; otherwise its source waits.

    One thread at a time takes items (the driver's role), one at a time adds to a queue (its reader, or who has the
    lock), and neither needs the lock: a deque's ends are safe, and each counts its own rows. Nobody sleeps while there
    is something to do: who goes to sleep first says so and then looks, who brings something first adds it and then
    looks whom to wake.
    """

    def __init__(self, sources: list[Source], rows_max: int, shed: bool) -> None:
        self.sources, self.rows_max, self.shed = sources, rows_max, shed
        # Reentrant: garbage collection may stop a join in a thread that is in here.
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)  # for those who wait for the first batches
        self._rooms = [threading.Condition(self._lock) for _ in sources]
        self._crowded = [False] * len(sources)  # whether somebody waits for room
        self._queues: list[deque[Item | End]] = [deque() for _ in sources]
        self._added = [0] * len(sources)  # rows
        self._taken = [0] * len(sources)
        self.dropped = [0] * len(sources)
        self.ended: list[End | None] = [None] * len(sources)
        self.inside: list[float | None] = [None] * len(sources)  # since when its reader is in a source's code
        self.heard = [time.monotonic()] * len(sources)  # when its last item came
        self.asked = 0  # how often the driver was asked where sources are
        self.stopped = False
        self.shared = False  # whether the consumer drives, too
        self.consumer_bell, self._driver_bell = Bell(), Bell()
        self._consumer, self._driver = AWAY, AWAKE
        self._resolving = False  # whether somebody waits for the first batches

    @property
    def rows(self) -> list[int]:
        """The rows that wait, of each source."""
        # Not strict: a source may just be added.
        return [added - taken for added, taken in zip(self._added, self._taken, strict=False)]

    def add(self, source: Source) -> int:
        """Make a queue for another source, which is then among `sources`, and return its rank."""
        with self._lock:
            self._rooms.append(threading.Condition(self._lock))
            self._queues.append(deque())
            self._crowded.append(False)
            self.ended.append(None)
            self.inside.append(None)
            self.heard.append(time.monotonic())
            for counts in (self.dropped, self._taken, self._added):
                counts.append(0)
            self.sources.append(source)
            return len(self.sources) - 1

    def begin(self) -> None:
        """Sources may be silent from now on."""
        with self._lock:
            self.heard = [time.monotonic()] * len(self.sources)

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
        self._end(rank, end)

    def _end(self, rank: int, end: End) -> None:
        with self._lock:
            self.ended[rank] = end
            self._queues[rank].append(end)
            self._ring()

    def _next(self, rank: int, items: Iterator[Item]) -> Item:
        self.inside[rank] = time.monotonic()
        try:
            return next(items)
        finally:
            self.inside[rank] = None

    def _put(self, rank: int, item: Item) -> bool:
        if isinstance(item, Watermark):
            return self._append_watermark(rank, item)
        n = item.num_rows
        if not n:  # it may have told the schema
            self._ring()
            return not self.stopped
        if self.shed and not self.sources[rank].finite:
            if not self._has_room(rank, n):
                self.dropped[rank] += n
                return not self.stopped
        elif n > self.rows_max:
            parts = (item.slice(begin, self.rows_max) for begin in range(0, n, self.rows_max))
            return all(self._append(rank, part) for part in parts)
        return self._append(rank, item)

    def _append(self, rank: int, batch: pa.RecordBatch) -> bool:
        """Append a batch when there is room for it."""
        n = batch.num_rows
        if not self._has_room(rank, n):
            with self._lock:
                self._rooms[rank].wait_for(lambda: self._finds_room(rank, n))
        if self.stopped:
            return False
        self._added[rank] += n
        self._queues[rank].append(batch)
        self._note_arrival(rank)
        return True

    def _append_watermark(self, rank: int, watermark: Watermark) -> bool:
        queue = self._queues[rank]
        with self._lock:
            if self.stopped:
                return False
            last = _end_of(queue, -1)
            if isinstance(last, Watermark) and _comparable(watermark, last):  # heartbeats do not pile up
                with contextlib.suppress(IndexError):  # it was taken meanwhile
                    queue.pop()
                watermark = max(last, watermark, key=lambda given: given.time)
            queue.append(watermark)
            self._note_arrival(rank)
            return True

    def _note_arrival(self, rank: int) -> None:
        if self.sources[rank].timeout is not None:
            self.heard[rank] = time.monotonic()
        self._ring()

    def _has_room(self, rank: int, rows: int) -> bool:
        waiting = self._added[rank] - self._taken[rank]
        return self.stopped or not waiting or waiting + rows <= self.rows_max

    def _finds_room(self, rank: int, rows: int) -> bool:
        """Return whether there is room, and say that somebody waits for it if there is none."""
        if not self._has_room(rank, rows):
            self._crowded[rank] = True  # before the next look: it sees what was taken, or who takes sees this
        return self._has_room(rank, rows)

    # --- for those who push

    def offer(self, rank: int, batch: pa.RecordBatch, timeout: float | None) -> bool | None:
        """Append a batch as it is: True; False if it was dropped; None if there was no room within the timeout."""
        with self._lock:
            self.check_open(rank)
            if not batch.num_rows:
                return True
            if self.shed and not self._has_room(rank, batch.num_rows):
                self.dropped[rank] += batch.num_rows
                return False
            if not self._has_room(rank, batch.num_rows):
                self._ring(always=True)
                if not self._rooms[rank].wait_for(
                    lambda: self._finds_room(rank, batch.num_rows) or self.ended[rank] is not None, timeout
                ):
                    return None
                self.check_open(rank)
            return self._append(rank, batch)

    def advance(self, rank: int, watermark: Watermark) -> None:
        """Append a watermark."""
        with self._lock:
            self.check_open(rank)
            self._append_watermark(rank, watermark)

    def end(self, rank: int) -> None:
        """Append the end of a source, if it has none."""
        with self._lock:
            if self.ended[rank] is None:
                self._end(rank, End())
                self._rooms[rank].notify_all()

    def check_open(self, rank: int) -> None:
        """Raise an error if nothing can be pushed any more."""
        label = self.sources[rank].label
        if self.stopped:
            raise InputError(f"{label}: the join was closed, so that nothing can be pushed to it")
        if self.ended[rank] is not None:
            raise InputError(f"{label} was closed: push rows before close()")

    def errors(self) -> list[BaseException]:
        """Return the errors that ended sources."""
        return [end.error for end in self.ended if end is not None and end.error is not None]

    def poll(self, ranks: Sequence[int], rows_max: int) -> tuple[int, Item | End] | None:
        """Return the next item of the first of these sources that has one.

        Batches that have piled up come as one, of at most `rows_max` rows (or the first of them, if that has more).
        """
        rank = next((rank for rank in ranks if self._queues[rank]), None)
        if rank is None:
            return None
        queue = self._queues[rank]
        try:
            item = queue.popleft()
        except IndexError:  # a watermark that is just being replaced by a newer one
            return None
        if not isinstance(item, pa.RecordBatch):
            return rank, item
        batches, rows = [item], item.num_rows
        while isinstance(following := _end_of(queue, 0), pa.RecordBatch) and rows + following.num_rows <= rows_max:
            queue.popleft()
            batches.append(following)
            rows += following.num_rows
        self._taken[rank] += rows
        if self._crowded[rank] and 2 * (self._added[rank] - self._taken[rank]) <= self.rows_max:
            with self._lock:  # waking its reader for each batch would take longer than joining it
                self._crowded[rank] = False
                self._rooms[rank].notify_all()
        return rank, item if len(batches) == 1 else pa.concat_batches(batches)

    def silent_since(self, rank: int) -> float | None:
        """Return when the last item of a source came, unless one is waiting to be taken."""
        with self._lock:
            return None if self._queues[rank] else self.heard[rank]

    def ask(self) -> int:
        """Ask the driver where all sources are; return how often that was done."""
        with self._lock:
            self.asked += 1
            self._ring(always=True)
            return self.asked

    # --- who drives

    def _ring(self, always: bool = False) -> None:
        """Tell those who wait that something has come; with `always`, the driver's thread, too."""
        if self._resolving:
            with self._lock:
                self._arrived.notify_all()
        if self._consumer == WAITING:
            self.consumer_bell.ring()
        if self._driver == AWAKE:
            return
        if always or not self.shared or self.is_much or (self._driver == ASLEEP and self._consumer == AWAY):
            self._driver_bell.ring()

    def wake_driver(self) -> None:
        """Let the driver's thread look again what there is to do."""
        self._driver_bell.ring()

    @property
    def is_much(self) -> bool:
        return sum(self._added) - sum(self._taken) >= MUCH_ROWS

    def has_items(self, ranks: Sequence[int]) -> bool:
        return any(self._queues[rank] for rank in ranks)

    def for_driver(self, ranks: Sequence[int]) -> bool:
        """Return whether one of these sources has an item that the driver's thread should join."""
        return self.has_items(ranks) and (not self.shared or self._consumer == AWAY or self.is_much)

    def sleep(self, ready: Callable[[], bool], timeout: float | None, lingers: bool = False) -> None:
        """Wait, in the driver's thread, until it is rung, unless it is ready; `lingers`: only much wakes it."""
        self._driver = LINGERING if lingers else ASLEEP
        if not (self.stopped or ready()):
            self._driver_bell.wait(timeout)
        self._driver = AWAKE

    @contextlib.contextmanager
    def consumer_waits(self, ranks: Sequence[int]) -> Iterator[bool]:
        """Be told of items by the consumer's bell; yield False if one of these sources has some already."""
        self._consumer = WAITING
        try:
            yield not self.stopped and not self.has_items(ranks)
        finally:
            self._consumer = BUSY

    def hand_back(self, ranks: Sequence[int]) -> None:
        """Let the consumer go on, if it waits, with the little that the driver's thread has left."""
        if self._consumer == WAITING and self.has_items(ranks):
            self.consumer_bell.ring()

    def consumer_comes(self) -> None:
        """Note that the consumer asks for results: it joins what comes, unless that is much."""
        self._consumer = BUSY

    def consumer_goes(self) -> None:
        """Note that the consumer does something else; the driver's thread joins what it leaves behind."""
        self._consumer = AWAY
        if self._driver == ASLEEP and any(self._queues):
            self._driver_bell.ring()

    def wait_for(self, what: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `what` is true, asking when something has come; return False if the join was stopped."""
        with self._lock:
            self._resolving = True
            self._arrived.wait_for(lambda: self.stopped or what(), timeout)
            self._resolving = False
            return not self.stopped

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            self._arrived.notify_all()
            self._driver_bell.ring()
            self.consumer_bell.ring()
            for room in self._rooms:
                room.notify_all()


class Taker(Protocol):
    """Who takes a join's results."""

    def takes_here(self) -> bool:
        """Return whether the calling thread is the one that takes them."""

    def take_ahead(self) -> bool:
        """Take some results, in that thread, before they are asked for; return whether something is going on."""


class Entrance:
    """The door (`pushed.Door`) through which rows are pushed into the queue of one source."""

    def __init__(self, intake: Intake, rank: int, source: PushedSource, taker: Taker) -> None:
        self._intake, self._rank, self._source, self._taker = intake, rank, source, taker

    def convert(self, rows: object) -> pa.RecordBatch:
        self._intake.check_open(self._rank)
        return self._source.convert(rows)

    def offer(self, batch: pa.RecordBatch, timeout: float | None) -> bool | None:
        alone = timeout is None and self._taker.takes_here()
        taken = self._intake.offer(self._rank, batch, 0.0 if alone else timeout)
        if taken is None and alone:
            taken = self._offer_alone(batch)
        self._source.rows_read += batch.num_rows if taken else 0
        return taken

    def _offer_alone(self, batch: pa.RecordBatch) -> bool:
        """Offer a batch in the thread that takes results: it cannot wait for itself, so it takes some to make room."""
        until = time.monotonic() + STUCK_SECONDS
        while (taken := self._intake.offer(self._rank, batch, 0.0)) is None:
            if not self._taker.takes_here():  # another thread has begun to
                return bool(self._intake.offer(self._rank, batch, None))
            if self._taker.take_ahead():
                until = time.monotonic() + STUCK_SECONDS
            elif time.monotonic() > until:
                raise InputError(
                    f"{self._source.label}: the join's buffers are full, and the thread that pushes is the one that "
                    "takes results: call joined.poll() between pushes, or take results in another thread; or push "
                    "rows to the other side, too, if this one is far ahead of it"
                )
        return taken

    def advance(self, watermark: Watermark) -> None:
        self._intake.advance(self._rank, watermark)

    def end(self) -> None:
        self._intake.end(self._rank)


def _end_of(queue: deque[Item | End], i: int) -> Item | End | None:
    """Return the first (0) or the last (-1) item, if there is one; others may take it meanwhile."""
    try:
        return queue[i]
    except IndexError:
        return None


def _comparable(a: Watermark, b: Watermark) -> bool:
    """Return whether two watermarks are of one kind. If not, one is wrong: its source finds out which."""
    zones = {getattr(time, "tzinfo", None) is None for time in (a.time, b.time)}
    return isinstance(a.time, int) == isinstance(b.time, int) and len(zones) == 1
