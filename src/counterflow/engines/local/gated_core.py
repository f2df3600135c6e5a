"""The nodes behind a gate that carriers fill: what they find waits until results know its rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from counterflow.engines.local.core import Found
from counterflow.engines.local.input.carriers import CarriedIntake
from counterflow.engines.local.options import Local
from counterflow.engines.local.parallel import COLLECTED_MAX, ParallelCore, design_of
from counterflow.protocols import threads
from counterflow.protocols import words as w
from counterflow.protocols.design import Design, Sources
from counterflow.protocols.sources import SourceFeed
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

IN_FLIGHT_MIN = 1 << 11  # tuples of one source in the gate: fewer would let nodes wait for it
WAITING_ROWS = 1 << 13  # those that lie ready: a batch of this size is written at once
REFILL_SECONDS = 0.0002  # how long nodes are waited for that have no room for more live rows


def gated_core(
    spec: JoinSpec, engine: Local, intake: CarriedIntake, expected_rows: tuple[int, int] = (0, 0)
) -> GatedCore:
    """Return a core to whose gate the carriers of this intake add tuples, as the gate's sources."""
    design, carriers = design_of(spec, engine, expected_rows), len(intake.shares)
    left = sum(intake.sources[share[0]].side == "left" for share in intake.shares)
    right = carriers - left
    # Many carriers together are not much further ahead of the nodes than two would be.
    in_flight = min(4 * design.in_flight // carriers, design.in_flight, engine.buffer_rows)
    in_flight = max(in_flight, IN_FLIGHT_MIN)
    windows = spec.left.window, spec.right.window
    return GatedCore(spec, replace(design, in_flight=in_flight, sources=Sources(left, right, windows, WAITING_ROWS)))


@dataclass(frozen=True)
class LiveTuples:
    """Tuples of a side that may still be met, in order. `passes`: those that can match at all, None: all of them."""

    times: Array
    tuples: Batch
    passes: Array | None

    @cached_property
    def numbered(self) -> Batch:
        """The ones that can match, numbered from 0 on."""
        batch = self.tuples if self.passes is None else self.tuples.take(np.flatnonzero(self.passes))
        number = np.arange(len(batch))
        return replace(batch, rows=number, at=number)


class GatedCore(ParallelCore):
    """Nodes that take tuples from a gate. Whoever feeds it only says which tuples results know by now."""

    def __init__(self, spec: JoinSpec, design: Design, pin: bool = True) -> None:
        self._known = (0, 0)  # the left and right tuples that results know
        self._found = (0, 0)  # the same that nodes are done with
        self._held = np.empty((0, w.RESULT_WORDS), np.int64)  # pairs that results do not know both tuples of
        self._news = threading.Event()  # of the driver, while nodes are ahead of it
        super().__init__(spec, design, pin)
        self.feeds = [SourceFeed(self.machine, number) for number in range(len(self.machine.sources))]

    # --- the driver's side

    def refill_gate(self, live: Sequence[LiveTuples], until: int, over: Collection[int]) -> None:
        """Take the rows that are in the windows, before carriers add any: the pairs among them are known.

        They come by the first source of their side. All sources promise that no others come before `until`, and those
        that are `over` that none come at all.
        """
        self.feed(live[0].numbered, live[1].numbered)
        f = self.machine.feed
        self.machine.m[f + w.FEED_REFILLED : f + w.FEED_REFILLED + 2] = self._known
        first: set[int] = set()
        for feed in self.feeds:
            if feed.side not in first:
                feed.offer(live[feed.side].times, live[feed.side].tuples, live[feed.side].passes)
                first.add(feed.side)
            feed.reach(until)
            if feed.number in over:
                feed.close()
        while not all([feed.push() for feed in self.feeds]):  # all of them: each waits for what others promise
            if self._closed or self._error is not None:
                return
            time.sleep(REFILL_SECONDS)

    def feed(self, left: Batch, right: Batch) -> None:
        if self.unsure is not None:
            self.unsure.append(left, right)
        self._known = self._known[0] + len(left), self._known[1] + len(right)
        self._news.set()

    def expire(self, left_before: int, right_before: int) -> None:
        if self.unsure is not None:
            self._expiries.append(((left_before, right_before), self._known))

    def wake(self) -> None:
        self._news.set()
        super().wake()

    def let_collect_return(self) -> None:
        """Let a call of `collect` return that waits for the driver: this one waits for whoever collects."""
        self._news.set()

    def finish(self) -> None:
        self._ended = True
        self.wake()

    # --- the collector's side

    def collect(self, timeout: float) -> Found | None:
        if self._error is not None:
            raise self._error
        if self.finished:
            return None
        m, ended, before = self.machine.m, self._ended, self._complete
        if self._is_ahead and not ended:
            self._news.wait(timeout)
            timeout = 0.0
        self._news.clear()  # before it is looked what the driver has done
        taken = 0
        if len(self._held) < COLLECTED_MAX:
            taken = threads.await_results(m, self._out, COLLECTED_MAX, int(timeout * 1e9))
        if self._error is not None:
            raise self._error
        at = self.machine.collector + w.COLLECT_COMPLETE
        self._found = int(m[at]), int(m[at + 1])
        known = self._known
        self._complete = min(self._found[0], known[0]), min(self._found[1], known[1])
        left, right = self._pairs(self._out[: taken * w.RESULT_WORDS].reshape(-1, w.RESULT_WORDS), known)
        if ended:
            self._collected_all = self._complete == known
        if not len(left) and self._complete == before and not threads.take_wake(m):
            return None
        return Found(left, right, self._complete)

    @property
    def _is_ahead(self) -> bool:
        """Whether nodes are done with more than results know."""
        return self._found[0] > self._known[0] or self._found[1] > self._known[1] or len(self._held) > 0

    def _pairs(self, new: Array, known: tuple[int, int]) -> tuple[Array, Array]:
        """Return the pairs whose tuples are known; the others are held. What comes in order stays in order."""
        results = np.concatenate([self._held, new]) if len(self._held) else new
        ready = (results[:, 1] < known[0]) & (results[:, 2] < known[1])
        if not ready.all():
            self._held, results = results[~ready].copy(), results[ready]
        elif len(self._held):
            self._held = self._held[:0]
        left, right = results[:, 1].copy(), results[:, 2].copy()
        if self.unsure is not None and len(left):
            left, right = self.unsure.checked(left, right, results[:, 3] != 0)
            self._forget()
        return left, right
