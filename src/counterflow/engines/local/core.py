"""The border between the streams' driver and what finds the pairs: numbered tuples in, pairs of numbers out.

A tuple's number counts those of its side that pass the predicate's one-sided conditions, in the total order from 0
on; the others can match nothing and are not fed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from counterflow.engines.local.beside import Beside
from counterflow.engines.local.choice import nodes_may_gain
from counterflow.engines.local.input.intake import Bell, Intake
from counterflow.engines.local.matrix import lay_out
from counterflow.engines.local.options import Local
from counterflow.predicate.expression import SIDES
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.access import choose_path
from counterflow.windows.compiled.background import BackgroundCompiler
from counterflow.windows.pair_order import StepPairs
from counterflow.windows.store import Batch
from counterflow.windows.two_windows import TwoWindows
from counterflow.windows.vectors import Array

T = TypeVar("T")
Search: TypeAlias = Iterator[tuple[Array, Array]]  # pairs as numbers, as they are found


@dataclass(frozen=True)
class Found:
    """Some pairs, as numbers of their tuples.

    All pairs whose later tuple is among the first `complete[0]` left or `complete[1]` right numbers have now been
    handed out.
    """

    left: Array
    right: Array
    complete: tuple[int, int]


class Core(Protocol):
    """One thread feeds, expires and wakes; another one collects at the same time; any thread may close.

    `patient`: whether `feed` waits while buffers are full; not in the thread that collects.
    """

    patient: bool

    @property
    def bell(self) -> Bell | None:
        """What is rung when there is something to collect, where whoever collects may also drive."""

    @property
    def in_order(self) -> bool:
        """Whether pairs are handed out in the order of their later tuples, and of the earlier ones of each."""

    @property
    def takes_any_order(self) -> bool:
        """Whether the sides may be fed independently: each in order, but not in an order of both."""

    @property
    def compiled(self) -> bool:
        """Whether windows are searched by compiled code; nothing has to be compiled then for what comes after it."""

    @property
    def compiling(self) -> bool:
        """Whether it goes on with numpy while its kernels are being compiled."""

    @property
    def finished(self) -> bool:
        """Whether all was fed and all was collected, or it was closed."""

    @property
    def changes(self) -> int:
        """How often it has gone on in another way: with other nodes, or with another number of threads."""

    @property
    def looked_at(self) -> dict[str, int] | None:
        """How many candidates were looked at, by what found them; None where nobody counts."""

    def feed(self, left: Batch, right: Batch) -> None:
        """The next tuples of both sides in the total order; blocks while buffers are full."""

    def expire(self, left_before: int, right_before: int) -> None:
        """No tuple fed from now on meets left numbers below `left_before`, or right ones below `right_before`.

        A side that is silent does not say so with horizons of its own.
        """

    def wake(self) -> None:
        """Let `collect` return soon, even with nothing new: the driver has news of its own."""

    def finish(self) -> None:
        """No more tuples come."""

    def collect(self, timeout: float) -> Found | None:
        """What is new, be it pairs or only `complete`; None if there is nothing new within the timeout (seconds)."""

    def close(self) -> None:
        """Stop: `feed` and `collect` return at once, in whatever thread they wait."""


def make_core(
    spec: JoinSpec,
    engine: Local,
    expected_rows: tuple[int, int] = (0, 0),
    intake: Intake | None = None,
) -> Core:
    """Return what finds the pairs.

    `expected_rows`: how many the left and the right window will hold, where that is known. `intake`: that of
    sources which add their tuples themselves; None: the core is fed.
    """
    if intake is not None:
        from counterflow.engines.local.changing_gate import changing_gate  # compiled, too

        return changing_gate(spec, engine, intake)
    if engine.algorithm == "auto":
        return SequentialCore(spec, pairs_max=engine.buffer_rows, threads=scan_threads(spec, engine))
    from counterflow.engines.local.parallel import parallel_core  # compiled: not before it is needed

    return parallel_core(spec, lay_out(engine, spec), expected_rows)


def scan_threads(spec: JoinSpec, engine: Local) -> int:
    """Return how many threads search a window for 'auto': one asks an index, a scan is dealt out over all cores."""
    path = choose_path(spec.parts, "left")
    return 1 if path.narrows else engine.threads


def auto_reason(spec: JoinSpec, engine: Local, streaming: bool) -> str:
    """Say what 'auto' does with a join, and why."""
    path = choose_path(spec.parts, "left")
    if streaming and path.narrows:
        if engine.threads == 1:
            return "auto: one thread asks the index, as workers=1 asks for"
        return "auto: one thread asks the index, and of many rows at once a second one that of the other window"
    if engine.workers == 1:
        return "auto: one core, as workers=1 asks for"
    if streaming:
        dealt = "auto: there is no index, so long scans are dealt out over all cores"
        return f"{dealt}; nodes take over if steps are too small for that" if may_change(spec, engine) else dealt
    return "auto: tables lie ready, and are searched on all cores"


def may_change(spec: JoinSpec, engine: Local) -> bool:
    """Return whether 'auto' may change to nodes while it joins streams."""
    if scan_threads(spec, engine) == 1 or sides_are_independent(spec):
        return False
    windows = spec.left.window, spec.right.window
    known = max(window.size for window in windows) if all(window.kind == "rows" for window in windows) else None
    return nodes_may_gain(engine.threads, min(engine.batch_rows, engine.buffer_rows), known)


def sides_are_independent(spec: JoinSpec) -> bool:
    """Return whether each side may be joined in an order of its own: whichever of a pair comes second finds it."""
    return not spec.ordered and spec.left.window.kind == spec.right.window.kind == "duration"


BESIDE_ROWS = 1 << 11  # of each side: worth a second thread


class SequentialCore:
    """Kang's procedure in the feeding thread; a long scan is dealt out over `threads`, as CellJoin does it.

    Of many arrivals at once, each window is searched by a thread of its own, if `beside` has one: the two windows have
    nothing to do with each other.

    At most `pairs_max` pairs, and those of one probe (of one batch, where they are ordered), wait for `collect`.
    """

    takes_any_order = True  # a tuple is looked for where its stamps say, whatever came before

    def __init__(self, spec: JoinSpec, pairs_max: int, threads: int = 1) -> None:
        paths = [choose_path(spec.parts, side) for side in SIDES]
        self._compiler = BackgroundCompiler(paths, spec.predicate, "auto")
        self.join = TwoWindows(spec.predicate, spec.parts, compiler=self._compiler, threads=threads)
        self.pairs_max = pairs_max
        # Ordered pairs wait for the last one of their batch; what is only matched, and has no pairs to show, does not.
        self.in_order = spec.ordered and spec.has_right_columns
        self.changes = 0
        self.patient = True  # whether `feed` waits for room: not in the thread that makes it
        self.bell = Bell()  # rung when there is something to collect
        self.beside = Beside()  # for whoever gives it a thread
        self.has_index = paths[0].narrows
        self._changed = threading.Condition()
        self._found: list[StepPairs | tuple[Array, Array]] = []
        self._pairs = 0
        self._complete = (0, 0)
        self._news = self._ended = self._closed = False

    @property
    def compiled(self) -> bool:
        return self.join.left.is_compiled or self.join.right.is_compiled

    @property
    def compiling(self) -> bool:
        return self._compiler.busy

    @property
    def finished(self) -> bool:
        return self._closed or (self._ended and not self._news)

    @property
    def looked_at(self) -> dict[str, int] | None:
        left, right = dict(self.join.left.looked_at), dict(self.join.right.looked_at)
        return {name: left.get(name, 0) + right.get(name, 0) for name in left | right}

    def feed(self, left: Batch, right: Batch) -> None:
        many = min(len(left), len(right)) >= BESIDE_ROWS and self.beside.available
        apart = many and self.join.is_settled(left, right)
        searches = self.join.meet_right_window(left, right), self.join.meet_left_window(left, right)
        if self.in_order:
            found = StepPairs(left, right, self._complete, *self._both(list, *searches, apart))
            self._add(found, len(found))
        else:
            self._both(self._hand_over, *searches, apart)
        if self._closed:
            return
        with self._changed:
            self._complete = self._complete[0] + len(left), self._complete[1] + len(right)
            self._tell()

    def refill(self, left: Batch, right: Batch) -> None:
        """Take the rows that are in the windows, before any others: the pairs among them are known."""
        for window, batch in ((self.join.left, left), (self.join.right, right)):
            window.append(batch)
            window.expect_many()
        with self._changed:
            self._complete = len(left), len(right)

    def use_threads(self, threads: int) -> None:
        """Search with this many threads from the next rows on."""
        self.join.use_threads(threads)
        self.changes += 1

    def take_few(self, i: int, n: int) -> tuple[int, int]:
        """Count the next `n` tuples of one side, which were joined elsewhere (`short_way`); return what is complete."""
        left, right = self._complete
        self._complete = (left + n, right) if i == 0 else (left, right + n)
        return self._complete

    def _both(self, take: Callable[[Search], T], right_window: Search, left_window: Search, apart: bool) -> tuple[T, T]:
        """Take what the searches of both windows find; `apart`: each in a thread of its own."""
        if not apart:
            return take(right_window), take(left_window)
        self.beside.begin(partial(take, right_window))
        by_right = take(left_window)
        return self.beside.result(), by_right

    def _hand_over(self, found: Search) -> None:
        """Hand pairs over as they are found."""
        for pairs in found:
            if not self._add(pairs, len(pairs[0])):
                return
            self.wake()

    def _add(self, pairs: StepPairs | tuple[Array, Array], count: int) -> bool:
        """Hand pairs over, when there is room for them; return False if it was closed."""
        with self._changed:
            if self.patient and self._pairs >= self.pairs_max:
                self._changed.wait_for(lambda: self._pairs < self.pairs_max or self._closed)
            self._found.append(pairs)
            self._pairs += count
            return not self._closed

    def expire(self, left_before: int, right_before: int) -> None:
        self.join.invalidate(left_before, right_before)

    def wake(self) -> None:
        with self._changed:
            self._tell()

    def finish(self) -> None:
        self.beside.close()
        with self._changed:
            self._ended = True
            self._tell()

    def collect(self, timeout: float) -> Found | None:
        if timeout > 0 and not (self._news or self._ended or self._closed):
            self.bell.wait(timeout)
        if not self._news or self._closed:
            return None
        with self._changed:
            found, full = self._found, self._pairs >= self.pairs_max
            self._found, self._pairs, self._news = [], 0, False
            complete = self._complete
            if full:
                self._changed.notify_all()
        if not found:
            return Found(np.empty(0, np.int64), np.empty(0, np.int64), complete)
        # In this thread: the other one has more to do.
        pairs = [some.in_order(self.compiled) if isinstance(some, StepPairs) else some for some in found]
        if len(pairs) == 1:
            return Found(*pairs[0], complete)
        return Found(np.concatenate([f[0] for f in pairs]), np.concatenate([f[1] for f in pairs]), complete)

    def close(self) -> None:
        self._compiler.close()
        self.join.stop()
        self.beside.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.bell.ring()

    def _tell(self) -> None:
        self._news = True
        if self.patient:  # otherwise this is the thread that collects
            self.bell.ring()
