"""A join under the virtual clock, and what it shows: rates, latencies, how busy the nodes are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from counterflow.lab.replay.loaded import Loaded
from counterflow.lab.replay.quiet import end_quiet, quieten
from counterflow.lab.simulator import virtual_clock as clock
from counterflow.protocols import words as w
from counterflow.protocols.design import Design
from counterflow.protocols.machine import Machine
from counterflow.protocols.traits import Protocol
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array

MARKS_MAX = 1 << 20


@dataclass(frozen=True)
class Costs:
    """What a node's work takes, in nanoseconds; of this machine (`calibrated`) or of a paper's."""

    step: float = 150.0  # to look at the queues and to take what is there, once for each batch
    tuple: float = 15.0  # to take a tuple, keep or index it, and pass it on
    comparison: float = 0.12  # by a nested loop
    result: float = 10.0
    message: float = 20.0  # to send one
    hop: float = 150.0  # until it arrives

    def words(self, protocol: Protocol) -> Array:
        found = np.zeros(clock.COST_WORDS, np.int64)
        for field in fields(self):
            found[getattr(clock, field.name.upper())] = round(1000 * getattr(self, field.name))
        found[clock.EARLY], found[clock.PASSING] = protocol.hands_on_first, protocol.handles_all
        return found


@dataclass(frozen=True)
class Timed:
    """One run: times are virtual seconds from the first measured tuple on."""

    seconds: float
    tuples: int
    comparisons: Array  # of each node
    busy: Array  # the share of the time that each node was
    result_time: Array
    result_rank: Array
    mark_time: Array  # when the driver looked how far the nodes were, and the rank up to which all was found then
    mark_rank: Array
    due: Array  # of each rank
    stages: Array  # comparisons of each node, from one stop to the next

    @property
    def tuples_per_s(self) -> float:
        return self.tuples / self.seconds

    @property
    def comparisons_per_s(self) -> float:
        return float(self.comparisons.sum()) / self.seconds

    @property
    def latency(self) -> Array:
        """The age of each result: from the arrival of its later tuple on."""
        return self.result_time - self.due[self.result_rank]


class TimedJoin:
    """A machine with its tuples; the first `warm` of both streams fill the windows, which takes no time."""

    def __init__(
        self,
        spec: JoinSpec,
        design: Design,
        left: Batch,
        right: Batch,
        costs: Costs,
        warm: int = 0,
        results: int = 1 << 20,
    ) -> None:
        design = Design(**{**vars(design), "wired": True})
        self.design, self.costs, self.warm = design, costs, warm
        self.machine = machine = Machine(spec.predicate, spec.parts, design)
        self.loaded = Loaded(machine, left, right)
        self.m = machine.m
        for segment in machine.segments.values():
            segment.load_scan()
        nodes, wires = design.nodes, machine.wires
        self.wires = np.array([[x.sent, x.received, x.sender, x.receiver] for x in wires], np.int64).reshape(-1, 4)
        self.wire_due = np.zeros((len(wires), clock.DUE_SLOTS), np.int64)
        assert all(machine.m[x.sent] <= clock.DUE_SLOTS for x in wires)
        self.seen, self.busy, self.free = (
            np.zeros(len(wires), np.int64),
            np.zeros(nodes, np.int64),
            np.zeros(nodes, np.int64),
        )
        self.outgoing = _table(nodes, ((x.sender, i) for i, x in enumerate(wires) if x.sender >= 0))
        self.incoming = _table(nodes, ((x.receiver, i) for i, x in enumerate(wires)))
        pairs = {(x.sender, x.receiver) for x in wires if x.sender >= 0}
        self.around = _table(nodes, sorted(pairs | {(b, a) for a, b in pairs}))
        self.result_time, self.result_rank = np.zeros(results, np.int64), np.zeros(results, np.int64)

    def run(
        self,
        due_s: Array | None = None,
        whole_batches: bool = False,
        ahead: int | None = None,
        stops: Sequence[int] = (),
    ) -> Timed:
        """Release tuple by tuple at these times (of each rank after the warm ones), or as fast as they are taken.

        `stops`: ranks before which the nodes finish what they have, and their comparisons are counted.
        """
        loaded, m, warm = self.loaded, self.m, self.warm
        due = np.zeros(loaded.total + 1, np.int64)
        if due_s is not None:
            due[warm : warm + len(due_s)] = np.asarray(due_s) * 1e12
        plan = np.zeros(clock.PLAN_WORDS, np.int64)
        feed, traits = self.machine.feed, self.design.protocol
        m[feed + w.FEED_AHEAD] = ahead or self.design.ahead
        plan[clock.BACKLOG] = 2 if traits.holds_incoming else 1 << 40
        marks = np.zeros((2, MARKS_MAX), np.int64)
        quieten(self.machine, *loaded.ends[warm, :2])
        loaded.offer(warm)
        self._go_on(plan, np.zeros_like(due), np.zeros(clock.COST_WORDS, np.int64), marks)
        assert m[feed + w.FEED_AT] == warm, "the windows could not be filled"
        end_quiet(self.machine)
        self.free[:] = self.busy[:] = 0
        counted = [self._comparisons()]
        plan[clock.NOW] = plan[clock.RESULTS] = plan[clock.MARKS] = 0
        plan[clock.WHOLE_BATCHES] = whole_batches
        for stop in (*stops, loaded.total):
            loaded.offer(stop)
            self._go_on(plan, due, self.costs.words(traits), marks)
            counted.append(self._comparisons())
        assert m[feed + w.FEED_AT] == loaded.total, "the join stands still"
        ended = int(self.free.max())
        found, seen = int(plan[clock.RESULTS]), int(plan[clock.MARKS])
        return Timed(
            seconds=ended / 1e12,
            tuples=loaded.total - warm,
            comparisons=counted[-1] - counted[0],
            busy=self.busy / max(ended, 1),
            result_time=self.result_time[:found] / 1e12,
            result_rank=self.result_rank[:found].copy(),
            mark_time=marks[0][:seen] / 1e12,
            mark_rank=marks[1][:seen].copy(),
            due=due / 1e12,
            stages=np.diff(counted, axis=0),
        )

    def _comparisons(self) -> Array:
        return np.array([self.m[node + w.NODE_IN_WINDOW] for node in self.machine.nodes])

    def _go_on(self, plan: Array, due: Array, costs: Array, marks: Array) -> None:
        at = np.full(self.design.nodes + len(self.wires) + 1, clock.NEVER)
        at[-1] = plan[clock.NOW]
        run = clock.timer(self.machine.step)
        clockwork = clock.Clockwork(
            self.m, plan, costs, due, self.wires, self.wire_due, self.seen, at, self.free, self.busy, self.outgoing,
            self.incoming, self.around, self.result_time, self.result_rank, *marks,
        )  # fmt: skip
        while run(clockwork) == clock.NEEDS:
            self.machine.attend(int(plan[clock.NEEDY]))


def _table(nodes: int, pairs: Iterable[tuple[int, int]]) -> Array:
    """Return each node's numbers in a row, filled up with -1."""
    rows: list[list[Any]] = [[] for _ in range(nodes)]
    for node, number in pairs:
        rows[node].append(number)
    found = np.full((nodes, max(1, *map(len, rows))), -1, np.int64)
    for node, row in enumerate(rows):
        found[node, : len(row)] = row
    return found
