"""ScaleJoin with its gate where the paper has it: sources are carried there in parallel, and no driver is before it.

    sources 0, 1 -> carrier ─┬──► gate ──► nodes: stamps, pairs ──┐ numbers
    sources 2, 3 -> carrier ─┤                                    ├──► results
                             └──► driver: rows, ranks, marks ─────┘

Nodes stamp what they get (`protocols.own_stamps`). What results need besides pairs of numbers, the driver puts
together behind the gate: it merges the rows that carriers have handed to it, all in order and on time, and stamps them
with the same numbers, as the order is the same. Nodes may be ahead of it; pairs then wait here for their rows.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from counterflow.engines.local.checkpoint import CheckpointFolder
from counterflow.engines.local.core import Core, Found
from counterflow.engines.local.driver import Driver, Inbox
from counterflow.engines.local.input.carriers import PASSES, CarriedIntake, Carrier, Frontiers
from counterflow.engines.local.input.intake import Intake
from counterflow.engines.local.input.sources import Source
from counterflow.engines.local.input.watermarks import Watermark
from counterflow.engines.local.options import Local
from counterflow.engines.local.order import BEGINNING, END, Merging, SortedQueue, SourceProgress
from counterflow.engines.local.parallel import COLLECTED_MAX, ParallelCore, design_of
from counterflow.engines.local.stamps import Mark, Step
from counterflow.predicate.expression import Column, Side
from counterflow.predicate.types import BOOLEAN
from counterflow.protocols import threads
from counterflow.protocols import words as w
from counterflow.protocols.design import Design, Sources
from counterflow.protocols.sources import SourceFeed
from counterflow.spec.join_spec import JoinSpec, SideSpec
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

IN_FLIGHT_MIN = 1 << 11  # tuples of one source in the gate: fewer would let nodes wait for it
WAITING_ROWS = 1 << 13  # those that lie ready: a batch of this size is written at once
CARRIED_MIN = 1 << 11  # rows that a carrier takes at once, if there are so many


def gated_core(spec: JoinSpec, engine: Local, intake: Intake) -> GatedCore:
    """Return a core to whose gate the carriers of this intake add tuples, as the gate's sources."""
    assert isinstance(intake, CarriedIntake)
    design, carriers = design_of(spec, engine), len(intake.shares)
    left = sum(intake.sources[share[0]].side == "left" for share in intake.shares)
    right = carriers - left
    # Many carriers together are not much further ahead of the nodes than two would be.
    in_flight = min(4 * design.in_flight // carriers, design.in_flight, engine.buffer_rows)
    in_flight = max(in_flight, IN_FLIGHT_MIN)
    windows = spec.left.window, spec.right.window
    return GatedCore(spec, replace(design, in_flight=in_flight, sources=Sources(left, right, windows, WAITING_ROWS)))


class GatedCore(ParallelCore):
    """Nodes that take tuples from a gate. Whoever feeds it only says which tuples results know by now."""

    def __init__(self, spec: JoinSpec, design: Design, pin: bool = True) -> None:
        self._known = (0, 0)  # the left and right tuples that results know
        self._found = (0, 0)  # the same that nodes are done with
        self._held = np.empty((0, w.RESULT_WORDS), np.int64)  # pairs that results do not know both tuples of
        self._news = threading.Event()  # of the driver, while nodes are ahead of it
        super().__init__(spec, design, pin)

    # --- the driver's side

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


class Following(SourceProgress):
    """How far a carrier is: what it hands on is in order and on time, whatever its sources are."""

    def __init__(self, source: Source, side: SideSpec, rank: int) -> None:
        super().__init__(source, side, rank)
        self.in_order, self._behind, self.waiting = True, 0, SortedQueue()

    def heartbeat(self, watermark: Watermark) -> None:
        self._reach(watermark.time)


class FollowingAll(Merging):
    """All carriers of a join, each by the name of its first source."""

    def __init__(self, spec: JoinSpec, sources: Sequence[Source]) -> None:
        super().__init__(spec, sources)
        following = [Following(s, spec.side(s.side), number) for number, s in enumerate(sources)]
        self._sides = [[f for f in following if f.source.side == side] for side in ("left", "right")]
        self.sources = list(following)


class GatedDriver(Driver):
    """A driver behind the gate: it merges the rows of results. It has the carriers, which others run."""

    def __init__(
        self,
        spec: JoinSpec,
        engine: Local,
        intake: Intake,
        inbox: Inbox,
        core: Core,
        folder: CheckpointFolder | None = None,
    ) -> None:
        assert isinstance(intake, CarriedIntake) and isinstance(core, GatedCore) and folder is None
        super().__init__(spec, engine, intake.behind, inbox, core)
        self._gate, self._front = core, intake
        self.merging = FollowingAll(spec, intake.behind.sources)
        self.may_be_silent = False  # carriers excuse their sources
        self.sources = [SourceProgress(s, spec.side(s.side), rank) for rank, s in enumerate(intake.sources)]
        self._frontiers = frontiers = Frontiers(intake, self.sources)
        # Many carriers together take as many rows at once as two would.
        carried = min(self.step_rows, max(2 * self.step_rows // len(intake.shares), CARRIED_MIN))
        self.carriers = [
            Carrier(
                spec,
                [self.sources[rank] for rank in share],
                SourceFeed(core.machine, number),
                intake,
                frontiers,
                carried,
                self.late[intake.sources[share[0]].side].add,
                self._fail,
            )
            for number, share in enumerate(intake.shares)
        ]
        for side in self.stamping.sides:  # carriers have decided who passes, and nodes go by it
            columns = side.columns if core.unsure is not None else []
            if side.filters or side.required:
                side.filters, side.required = [Column(side.side, PASSES, BOOLEAN)], []
                columns = [*columns, PASSES]
            side.columns = columns

    def add_source(self, source: Source) -> int | None:
        """Let the last open carrier of its side take another source; return its rank, or None if that side has ended.

        So it comes after all others of its side at equal times. Those of a carrier that has ended had later places:
        what the source sends comes after all of them.
        """
        carriers = [carrier for carrier in self.carriers if carrier.side == source.side]
        with self._front.adding:
            if all(carrier.closed for carrier in carriers) or self.done or self._front.stopped:
                return None
            last = max(k for k, carrier in enumerate(carriers) if not carrier.closed)
            rank = self._front.add(source, carriers[last].number)
            progress = SourceProgress(source, self.spec.side(source.side), rank)
            times = [carrier.last_time for carrier in carriers[last + 1 :] if carrier.last_time > BEGINNING]
            if times:
                progress.excuse(min(max(times) + 1, END))
            self._frontiers.add(progress)
            self.sources.append(progress)
            carriers[last].invite(progress)
        return rank

    def waiting_rows(self, side: Side) -> int:
        waiting = sum(len(source.waiting) for source in self.sources if source.source.side == side)
        carried = sum(self.intake.rows[f.rank] for f in self.merging.sources if f.source.side == side)
        return waiting + carried + super().waiting_rows(side)

    def _hand_over(self, step: Step | None, mark: Mark) -> None:
        self._gate.let_collect_return()  # there may be no room for the step before that
        super()._hand_over(step, mark)

    def _fail(self, error: BaseException) -> None:
        """End the join: what was handed to the driver will not be in the gate."""
        self.failure = self.failure or error
        self.core.close()
