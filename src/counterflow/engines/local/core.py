"""The border between the streams' driver and what finds the pairs: numbered tuples in, pairs of numbers out.

A tuple's number counts those of its side that pass the predicate's one-sided conditions, in the total order from 0
on; the others can match nothing and are not fed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from counterflow.engines.local.input.intake import Bell
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

if TYPE_CHECKING:
    from counterflow.engines.local.input.sources import Source


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
    sources: Sequence[Source] | None = None,
) -> Core:
    """Return what finds the pairs.

    `expected_rows`: how many the left and the right window will hold, where that is known. `sources`: those that add
    their tuples themselves; None: the core is fed.
    """
    if sources is not None:
        from counterflow.engines.local.gated import gated_core  # compiled, too

        return gated_core(spec, engine, sources)
    if engine.algorithm == "auto":
        return SequentialCore(spec, pairs_max=engine.buffer_rows, threads=scan_threads(spec, engine))
    from counterflow.engines.local.parallel import parallel_core  # compiled: not before it is needed

    return parallel_core(spec, lay_out(engine, spec), expected_rows)


def scan_threads(spec: JoinSpec, engine: Local) -> int:
    """Return how many threads search a window for 'auto': one asks an index, a scan is dealt out over all cores."""
    path = choose_path(spec.parts, "left")
    return 1 if path.equalities or path.bands else engine.threads


def auto_reason(spec: JoinSpec, engine: Local, streaming: bool) -> str:
    """Say what 'auto' does with a join, and why."""
    path = choose_path(spec.parts, "left")
    if streaming and (path.equalities or path.bands):
        return "auto: one core asks the index, which takes less time than telling others; another one makes the results"
    if engine.workers == 1:
        return "auto: one core, as workers=1 asks for"
    if streaming:
        return "auto: there is no index, so long scans are dealt out over all cores"
    return "auto: tables lie ready, and are searched on all cores"


class SequentialCore:
    """Kang's procedure in the feeding thread; a long scan is dealt out over `threads`, as CellJoin does it.

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
        self.patient = True  # whether `feed` waits for room: not in the thread that makes it
        self.bell = Bell()  # rung when there is something to collect
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

    def feed(self, left: Batch, right: Batch) -> None:
        if self.in_order:
            found = StepPairs(left, right, self._complete, *map(list, self.join.meet_both(left, right)))
            if not self._add(found, len(found)):
                return
        else:
            for pairs in self.join.process(left, right):
                if not self._add(pairs, len(pairs[0])):
                    return
                self.wake()
        with self._changed:
            self._complete = self._complete[0] + len(left), self._complete[1] + len(right)
            self._tell()

    def take_pairs(self, i: int, n: int, pairs: tuple[Array, Array]) -> None:
        """Take the pairs of the next `n` tuples of one side, which were joined elsewhere (`short_way`)."""
        with self._changed:
            self._complete = (self._complete[0] + n * (i == 0), self._complete[1] + n * (i == 1))
            if len(pairs[0]):
                self._found.append(pairs)
                self._pairs += len(pairs[0])
                self._tell()

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
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.bell.ring()

    def _tell(self) -> None:
        self._news = True
        if self.patient:  # otherwise this is the thread that collects
            self.bell.ring()
