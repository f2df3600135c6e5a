"""ScaleJoin with its gate where the paper has it: sources are carried there in parallel, and no driver is before it.

    sources 0, 1 -> carrier ─┬──► gate ──► nodes: stamps, pairs ──┐ numbers
    sources 2, 3 -> carrier ─┤                                    ├──► results
                             └──► driver: rows, ranks, marks ─────┘

Nodes stamp what they get (`protocols.own_stamps`). What results need besides pairs of numbers, the driver puts
together behind the gate: it merges the rows that carriers have handed to it, all in order and on time, and stamps them
with the same numbers, as the order is the same. Nodes may be ahead of it; then pairs wait for it (`gated_core`).
"""

from __future__ import annotations

from collections.abc import Sequence

from counterflow.engines.local.changing_gate import ChangingGate
from counterflow.engines.local.checkpoint import CheckpointFolder
from counterflow.engines.local.core import Core
from counterflow.engines.local.driver import Driver, Inbox
from counterflow.engines.local.gated_core import gated_core
from counterflow.engines.local.input.carriers import PASSES, CarriedIntake, Carrier, Frontiers
from counterflow.engines.local.input.intake import Intake
from counterflow.engines.local.input.sources import Source
from counterflow.engines.local.input.watermarks import Watermark
from counterflow.engines.local.options import Local
from counterflow.engines.local.order import BEGINNING, END, Due, Merging, SortedQueue, SourceProgress
from counterflow.engines.local.pieces import merge_pieces
from counterflow.engines.local.stamps import Mark, Step
from counterflow.predicate.expression import Column, Side
from counterflow.predicate.types import BOOLEAN
from counterflow.spec.join_spec import JoinSpec, SideSpec

CARRIED_MIN = 1 << 11  # rows that a carrier takes at once, if there are so many


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

    def due_before(self, time: int) -> Due:
        """Take out the rows before a time that all carriers have passed."""
        left, right = ([piece for follows in side for piece in follows.waiting.take(time)] for side in self._sides)
        return Due(merge_pieces(left, self.compiled), merge_pieces(right, self.compiled))


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
        assert isinstance(intake, CarriedIntake) and isinstance(core, ChangingGate) and folder is None
        super().__init__(spec, engine, intake.behind, inbox, core)
        self._gate, self._front = core, intake
        self.merging = self._following = FollowingAll(spec, intake.behind.sources)
        self.may_be_silent = False  # carriers excuse their sources
        self.sources = [SourceProgress(s, spec.side(s.side), rank) for rank, s in enumerate(intake.sources)]
        self._frontiers = frontiers = Frontiers(intake, self.sources)
        # Many carriers together take as many rows at once as two would.
        carried = min(self.step_rows, max(2 * self.step_rows // len(intake.shares), CARRIED_MIN))
        self.carriers = [
            Carrier(
                spec,
                [self.sources[rank] for rank in share],
                core.gate.feeds[number],
                core.crossings,
                intake,
                frontiers,
                carried,
                self.late[intake.sources[share[0]].side].add,
                self._fail,
            )
            for number, share in enumerate(intake.shares)
        ]
        for side in self.stamping.sides:  # carriers have decided who passes, and nodes go by it
            columns = side.columns if core.gate.unsure is not None else []
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

    def rescale(self, engine: Local) -> None:
        """Let carriers go over to nodes as the engine says, with the next rows."""
        self._gate.change_to(lambda rows: gated_core(self.spec, engine, self._front, rows))
        self.intake.wake_driver()  # it may have all rows before the crossing already

    def join_due(self) -> None:
        self._gate.begin_crossing()  # to what was to be changed to while there was another one
        crossing = self._gate.crossing
        if crossing is not None and self.merging.frontier >= crossing:
            self._join(self._following.due_before(crossing))
            if self.merging.live or any(len(source.waiting) for source in self.merging.sources):
                self.failed_in_core = True  # unless it returns
                self._gate.cross()
                self.failed_in_core = False
        super().join_due()

    def _hand_over(self, step: Step | None, mark: Mark) -> None:
        self._gate.let_collect_return()  # there may be no room for the step before that
        super()._hand_over(step, mark)
        if step is not None:
            for i, (stamped, rows) in enumerate(zip((step.left, step.right), step.rows, strict=True)):
                self._gate.keep(i, stamped.times, rows, mark.dead_ordinals[i])

    def _fail(self, error: BaseException) -> None:
        """End the join: what was handed to the driver will not be in the gate."""
        self.failure = self.failure or error
        self.core.close()
