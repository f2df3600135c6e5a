"""How the rows of physical sources reach ScaleJoin's gate: threads carry them there, as many as there are cores for.

    source -> reader, or who pushes -> intake ┐
    source -> reader, or who pushes -> intake ┴ carrier: late? in order? ──► gate ──► nodes
                                                                         └──► the driver, for results only

Where there is a core for each source, each has a carrier of its own. Otherwise neighbours of one side share one, which
merges their rows: more threads than cores only wait for each other, and a gate that finds its place for every tuple
among those of 15 others takes longer than a merge of batches. What a carrier adds is in the total order, so the gate
knows it as one source; that of its first source is its place among ties.

No thread stands between the carriers: they share nothing but the gate, and where each source is (`Frontiers`). What
is carried is on time and in order; the gate orders it among the others. A source without a delay promises what it has
reached itself. One that is out of order may send a row as long as the join's frontier has not passed it, so its rows
wait here for that frontier, and it promises no more.

The driver gets rows before the gate does. So whatever nodes find, the driver can go on to the rows of it without any
further move of a source: it never waits for a carrier that waits for nodes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.cores import usable_cores
from counterflow.engines.local.input.crossing import Crossing, Crossings
from counterflow.engines.local.input.intake import Bell, End, Intake
from counterflow.engines.local.input.sources import Item, Source
from counterflow.engines.local.input.watermarks import Watermark
from counterflow.engines.local.order import BEGINNING, END, SourceProgress, take_due
from counterflow.engines.local.pieces import Piece, merge_pieces
from counterflow.errors import CounterflowError
from counterflow.predicate.expression import SIDES, columns_of
from counterflow.protocols.sources import SourceFeed
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.store import Batch, passing
from counterflow.windows.vectors import Array, from_arrow_column

PASSES = "\0passes"  # a column of carried rows: whether they can match at all, and have a number
ENDED = END + 1  # the frontier of a source that has ended
POLLED_MIN = 1 << 10  # rows that are taken from a source at once, if there are so many


@dataclass(frozen=True)
class Reached(Watermark):
    """Says to the driver that no row before this time is carried any more; the time is in ticks."""

    time: int


def shares_of(sources: Sequence[Source], cores: int | None = None) -> list[list[int]]:
    """Return the ranks that each carrier has: neighbours of one side, as evenly as can be."""
    a_side, first = max((cores or len(usable_cores())) // 2, 1), 0
    shares: list[list[int]] = []
    for side in SIDES:
        count = sum(source.side == side for source in sources)
        carriers = min(count, a_side)
        ends = [first + count * k // carriers for k in range(carriers + 1)]
        shares += [list(range(ends[k], ends[k + 1])) for k in range(carriers)]
        first += count
    return shares


class CarriedIntake(Intake):
    """An intake whose queues are emptied by carriers; `behind` has what they have carried, a queue for each.

    A carrier waits for its own bell, so that an item wakes nobody else.
    """

    def __init__(self, sources: list[Source], rows_max: int, shed: bool, cores: int | None = None) -> None:
        super().__init__(sources, rows_max, shed)
        self.shares = shares_of(sources, cores)
        self._carrier_of = [number for number, share in enumerate(self.shares) for _ in share]
        self.bells = [Bell() for _ in self.shares]
        self.behind = Intake([sources[share[0]] for share in self.shares], rows_max, shed=False)
        self.adding = self._lock  # held by who adds a source, and by a carrier that makes sure that it was the last one

    def add(self, source: Source, number: int | None = None) -> int:
        """Make a queue for another source, which a carrier gets (None: the last one of its side); return its rank."""
        with self.adding:
            if number is None:
                sides = [self.sources[share[0]].side for share in self.shares]
                number = max(k for k, side in enumerate(sides) if side == source.side)
            rank = super().add(source)
            self._carrier_of.append(number)
            self.shares[number].append(rank)
            return rank

    def _note_arrival(self, rank: int) -> None:
        super()._note_arrival(rank)
        self.ring(rank)

    def _end(self, rank: int, end: End) -> None:
        super()._end(rank, end)
        self.ring(rank)

    def ring(self, *ranks: int) -> None:
        """Let the carriers of these sources look again."""
        for number in {self._carrier_of[rank] for rank in ranks}:
            self.bells[number].ring()

    def stop(self) -> None:
        super().stop()
        for bell in self.bells:
            bell.ring()
        self.behind.stop()

    # --- what was carried

    def hand_on(self, number: int, item: Item) -> bool:
        """Give the driver what the gate gets next; wait for room. Return False if the join was stopped."""
        if isinstance(item, Watermark):
            return self.behind._append_watermark(number, item)
        return self.behind._append(number, item)

    def hand_on_end(self, number: int, end: End) -> None:
        """Tell the driver that nothing more is carried by this carrier."""
        self.behind._end(number, end)


class Frontiers:
    """Where all sources are, for each other. A carrier writes its own; they never go back."""

    def __init__(self, intake: CarriedIntake, sources: Sequence[SourceProgress]) -> None:
        self._intake, self._all = intake, [BEGINNING] * len(sources)
        self._timeouts = [source.source.timeout for source in sources]
        # Who has to know when others move: their rows wait for the join's frontier, or they may be excused up to there.
        self._watching = [s.rank for s in sources if not s.in_order or s.source.timeout is not None]
        self._any_timeout = any(timeout is not None for timeout in self._timeouts)

    def add(self, source: SourceProgress) -> None:
        """Make room for a source that comes later; it counts once it was admitted."""
        self._timeouts.append(source.source.timeout)
        if not source.in_order or source.source.timeout is not None:
            self._watching.append(source.rank)
        self._any_timeout = self._any_timeout or source.source.timeout is not None
        self._all.append(ENDED)

    def admit(self, source: SourceProgress, released: int) -> None:
        """Let a source that was added take part from here on, or from `released` if that is later."""
        least = min((frontier for frontier in self._all if frontier < END), default=BEGINNING)
        source.excuse(max(least, released))
        self._all[source.rank] = source.frontier

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
        tells = self._watching and (self._any_timeout or before == self.least)
        self._all[rank] = frontier
        if tells:
            self._intake.ring(*self._watching)

    def silent_for(self, rank: int) -> float | None:
        """Return for how many seconds a source is silent beyond its timeout (less than 0: not yet); None: it is not."""
        timeout, since = self._timeouts[rank], self._intake.silent_since(rank)
        if timeout is None or since is None or self._all[rank] == ENDED:
            return None
        return time.monotonic() - since - timeout

    def without_silent(self) -> int:
        """Return the least frontier of the sources that are not silent for too long."""
        known = list(self._all)  # one may just be added
        silent = [self.silent_for(rank) for rank in range(len(known))]
        talking = (
            frontier
            for frontier, over in zip(known, silent, strict=True)
            if frontier < ENDED and not (over is not None and over >= 0)
        )
        return min(talking, default=BEGINNING)


@dataclass(frozen=True)
class Carried:
    """Rows in order: tuples for the gate, with who of them passes (None: all), and what the driver gets."""

    times: Array
    tuples: Batch
    passes: Array | None
    rows: pa.RecordBatch

    @property
    def last_time(self) -> int:
        return int(self.times[-1])

    def part(self, begin: int | None, end: int | None) -> Carried | None:
        """Return those from a time on, or before a time, if there are any."""
        first = 0 if begin is None else int(self.times.searchsorted(begin))
        last = len(self.times) if end is None else int(self.times.searchsorted(end))
        if first >= last:
            return None
        part = slice(first, last)
        passes = None if self.passes is None else self.passes[part]
        return Carried(self.times[part], self.tuples.take(part), passes, self.rows.slice(first, last - first))


class Carrier:
    """What a thread does for some sources until they end, one of them fails, or the join is stopped.

    `note_late` gets rows that are late, `fail` an error after which the join cannot go on.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Sequence[SourceProgress],
        feed: SourceFeed,
        crossings: Crossings,
        intake: CarriedIntake,
        frontiers: Frontiers,
        step_rows: int,
        note_late: Callable[[pa.RecordBatch], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.sources = {source.rank: source for source in sources}
        self.feed, self._crossings = feed, crossings
        self.intake, self.frontiers, self.step_rows = intake, frontiers, step_rows
        self.number, self.side, self._bell = feed.number, sources[0].source.side, intake.bells[feed.number]
        self.label = sources[0].source.label + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
        self._note_late, self._fail = note_late, fail
        self._filters, self._required = spec.parts.filters(self.side), spec.required[self.side]
        self._columns = sorted({column.name for column in columns_of(spec.predicate) if column.side == self.side})
        self._released = BEGINNING  # nothing before is carried any more
        self._told = BEGINNING  # what the driver knows of that
        self.last_time = BEGINNING  # of what was carried
        self._coming: deque[SourceProgress] = deque()  # sources that were added, and are not yet admitted
        self.closed = False  # whether no source can be added any more

    def run(self) -> None:
        """Carry item after item. An error of a source comes after all that was carried before it."""
        try:
            while self._round():
                pass
        except BaseException as error:  # it belongs to the consumer
            self._fail(error)

    @property
    def live(self) -> list[SourceProgress]:
        return [source for source in self.sources.values() if source.live]

    # --- sources that come

    def invite(self, source: SourceProgress) -> None:
        """Let a source take part as soon as this carrier's thread gets to that; it must not be closed."""
        self._coming.append(source)
        self._bell.ring()

    def _admit(self) -> None:
        """Let sources take part that were added: from here on, as what was released is out of the order already."""
        while self._coming:
            source = self._coming.popleft()
            self.frontiers.admit(source, self._released)
            self.sources[source.rank] = source

    def _closes(self) -> bool:
        """Return whether all sources have ended; from then on none is added."""
        while not self.live:
            with self.intake.adding:
                if not self._coming:
                    self.closed = True
                    return True
            self._admit()
        return False

    def _round(self) -> bool:
        """Wait for items, or until more can be released, and carry that; return whether more may come."""
        self._await_news()
        if self.intake.stopped:
            return False
        error: BaseException | None = None
        carried = None
        self._admit()
        try:
            self._take_some()
        except BaseException as raised:
            error = raised
        ended = error is None and self._closes()
        try:
            rows = self._due()
            carried = None if rows is None else self._prepared(rows)
        except BaseException as raised:
            error = error or raised
        if not self._carry(carried, ended and error is None):
            return False
        if error is not None:
            self.closed = True
            self.intake.hand_on_end(self.number, End(error))
        return error is None and not ended

    # --- what comes

    def _await_news(self) -> None:
        """Wait until there is an item that is wanted, or something else to do."""
        while not (
            self.intake.stopped
            or self._coming
            or self.intake.has_items(self._wanted())
            or self._excuse()
            or self._lags()
        ):
            over = [self.frontiers.silent_for(source.rank) for source in self.live]
            self._bell.wait(min((-seconds for seconds in over if seconds is not None and seconds < 0), default=None))

    def _wanted(self) -> list[int]:
        """Return the sources to read from, the slowest first: not those whose rows wait for others far behind."""
        live = sorted((source.frontier, source.rank) for source in self.live)
        return [rank for _, rank in live if self._has_room(rank) or self.frontiers.is_last(rank)]

    def _has_room(self, rank: int) -> bool:
        return len(self.sources[rank].waiting) < self.intake.rows_max

    def _lags(self) -> bool:
        """Return whether the join's frontier has passed what was released of rows out of order."""
        return any(not source.in_order for source in self.live) and self._release() > self._released

    def _excuse(self) -> bool:
        """Let the join go on without sources that are silent for too long; return whether it can go on by that."""
        further = False
        for source in self.live:
            over = self.frontiers.silent_for(source.rank)
            if over is not None and over >= 0 and source.excuse(self.frontiers.without_silent()):
                self.frontiers.move(source.rank, source.frontier)
                further = True
        return further

    def _take_some(self) -> None:
        """Take in what has come, at most some of it."""
        rows, at_once = 0, max(self.step_rows // max(len(self.sources), 1), min(POLLED_MIN, self.step_rows))
        while rows < self.step_rows:
            polled = self.intake.poll(self._wanted(), at_once)
            if polled is None:
                return
            rows += max(self._take(*polled), 1)

    def _take(self, rank: int, item: Item | End) -> int:
        """Take an item in, without its late rows, and return how many rows it has."""
        source, rows = self.sources[rank], 0
        if isinstance(item, End):
            if item.error is not None:
                raise item.error
            source.live = False
            self.frontiers.move(rank, ENDED)
            return 0
        if isinstance(item, Watermark):
            source.heartbeat(item)
        else:
            rows = item.num_rows
            late = source.accept(item, END if source.in_order else self._others(rank))
            if late is not None:
                self._note_late(late)
        self.frontiers.move(rank, source.frontier)
        return rows

    def _others(self, rank: int) -> int:
        """Return before which time a row is late, whatever its own source has said.

        A source that is just admitted may be behind what was released while it was.
        """
        return max(self.frontiers.others(rank), self._released)

    # --- what goes on

    def _release(self) -> int:
        """Return before which time no row comes any more that is on time."""
        least = self.frontiers.least
        return min((source.frontier if source.in_order else least for source in self.live), default=END)

    def _due(self) -> Piece | None:
        """Take out the rows that no row of these sources can precede any more, in order."""
        due = take_due(list(self.sources.values()), self.frontiers.least)
        self.sources = {rank: source for rank, source in self.sources.items() if source.live or len(source.waiting)}
        self._released = max(self._released, due.frontier)
        return merge_pieces(due.pieces[self.side], compiled=True)

    def _prepared(self, piece: Piece) -> Carried:
        """Return rows as the gate and the driver want them."""
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
        return Carried(times, Batch(self.side, columns, nothing, nothing, nothing, nothing), passes, rows)

    def _carry(self, carried: Carried | None, ended: bool) -> bool:
        """Hand rows to the driver and to the gate, with what is promised; return False if the join was stopped."""
        crossing = self._crossings.enter(self.number, None if carried is None else carried.last_time, ended)
        if carried is not None and not self.intake.hand_on(self.number, carried.rows):
            return False
        if carried is not None:  # rows say so themselves
            self._told = self.last_time = carried.last_time
        if ended:
            self.intake.hand_on_end(self.number, End())
        elif self._released > self._told:
            self._told = self._released
            if not self.intake.hand_on(self.number, Reached(self._released)):
                return False
        if crossing is not None and (ended or self._released >= crossing.time):
            if not self._cross(crossing, carried):
                return False
            carried = None if carried is None else carried.part(crossing.time, None)
        if carried is not None:
            self.feed.offer(carried.times, carried.tuples, carried.passes)
        if ended:
            self.feed.close()
        else:
            self.feed.reach(self._released)
        return self.feed.flush()

    def _cross(self, crossing: Crossing, carried: Carried | None) -> bool:
        """Go over to another gate, as soon as it is open: no row before the crossing comes any more, after these.

        Return False if the join was stopped, or ends without crossing.
        """
        before = None if carried is None else carried.part(None, crossing.time)
        if before is not None:
            self.feed.offer(before.times, before.tuples, before.passes)
        self.feed.close()
        if not self.feed.flush() or not crossing.wait():
            return False
        self.feed = crossing.feeds[self.number]
        self._crossings.passed(self.number)
        return True
