"""A case set up in memory, to be run again and again, each time under another schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.engines.local.stamps import stamp_tables
from counterflow.lab.replay.loaded import Loaded, LoadedSources
from counterflow.lab.simulator import checks, schedules, stepping
from counterflow.lab.simulator import run_words as s
from counterflow.lab.simulator.cases import Case
from counterflow.protocols import words as w
from counterflow.protocols.incoming import address
from counterflow.protocols.machine import Machine
from counterflow.reference import reference_pairs
from counterflow.windows.vectors import Array

FORGETS = {"own": checks.OWN, "whole": checks.WHOLE, "at the end": checks.MOVE}
OFFERED_BATCHES = 3  # how many batches of tuples come at once, at most
CHOICES_MAX = 10_000_000  # a sprint of many nodes through short queues takes long
TRACED_MAX = 1 << 20


@dataclass(frozen=True)
class Schedule:
    """Who moves next: `kind` is one of `schedules.KINDS`."""

    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `trace`: who moved, and how many tuples a driver would release then."""

    failure: int
    detail: str
    choices: int
    pairs: int
    trace: Array

    @property
    def ok(self) -> bool:
        return self.failure == s.NOTHING


class Simulation:
    def __init__(self, case: Case, parts: stepping.Parts | None = None) -> None:
        """`parts`: others than the algorithm's step, the feed and the collector, to see that they are caught."""
        self.case, self._parts = case, parts
        spec = case.spec
        left, right = case.tables()
        self.arrivals = arrivals = stamp_tables(spec, left, right)
        self.left, self.right = arrivals.left, arrivals.right
        self.expected = np.zeros(len(self.left) * len(self.right), np.int64)
        numbers = [np.argsort(batch.rows) for batch in (self.left, self.right)]
        for le, ri, _ in reference_pairs(spec, left, right):
            self.expected[numbers[0][le] * len(self.right) + numbers[1][ri]] = 1
        self.lows = np.zeros((2, max(len(self.left), len(self.right)) + 1), np.int64)
        self.lows[0, : len(self.left)], self.lows[1, : len(self.right)] = self.left.low, self.right.low
        self._set_up()

    def _set_up(self) -> None:
        case, spec = self.case, self.case.spec
        window_rows = self.arrivals.window_rows()
        self.machine = machine = Machine(spec.predicate, spec.parts, case.design(window_rows))
        self.loaded = loaded = self._loaded()
        for segment in machine.segments.values():
            segment.load_scan()
        self.parts = self._parts or stepping.Parts(machine.step)
        nodes, wires = case.nodes, machine.wires
        self.wires = np.array([[wire.sent, wire.received] for wire in wires], np.int64).reshape(-1, 2)
        drivers = [1] * case.sources[0] + [-1] * case.sources[1] or [0]
        queues = [1 if wire.rightwards else -1 for wire in wires]
        self.directions = np.array([0] * nodes + queues + drivers + [0], np.int64)
        actors = len(self.directions)
        self.state, self.carried = np.zeros(s.STATE_WORDS, np.int64), np.zeros(len(wires), np.int64)
        self.counts = np.zeros(len(self.expected), np.int64)
        self.out = np.zeros(max(len(self.expected), 1) * w.RESULT_WORDS * 2, np.int64)
        self.weights, self.lengths = (
            np.zeros((schedules.PHASES, actors), np.int64),
            np.zeros(schedules.PHASES, np.int64),
        )
        self.rules = rules = np.zeros(stepping.RULES, np.int64)
        protocol = machine.design.protocol
        rules[stepping.FORGETS] = FORGETS[protocol.forgets]
        rules[stepping.ORDERED] = machine.design.gates_results
        rules[stepping.TOTAL], rules[stepping.RIGHTS] = loaded.total, len(self.right)
        rules[stepping.DRIVERS] = len(drivers)
        rules[stepping.LIMIT], rules[stepping.AMOUNT] = CHOICES_MAX, OFFERED_BATCHES * case.batch_rows
        # Tuples leave a row when others push them on, so it may hold all of them; but at rest only live ones.
        rules[stepping.TIDY] = protocol.forgets == "at the end"
        ahead = machine.design.ahead * len(drivers)  # so far are the fastest nodes ahead of the slowest
        spare = min(ahead, loaded.total) + (1 + OFFERED_BATCHES) * case.batch_rows
        if protocol.way == w.TO_GATE and machine.design.sources is None:
            # A node takes what has expired when it has time, and forgets it with its next batch: until then it holds
            # what a queue of such messages can tell.
            spare += 8 * case.in_flight * case.batch_rows
        for side in (0, 1):
            rules[stepping.MOST + side] = window_rows[side] + spare
        self.m = machine.m
        self._remember()

    def _loaded(self) -> Loaded:
        """Write all tuples where a driver, or where sources, have them."""
        if not any(self.case.sources):
            self.source_totals = np.zeros(0, np.int64)
            return Loaded(self.machine, self.left, self.right)
        times = self.arrivals.times[0][self.left.rows], self.arrivals.times[1][self.right.rows]
        loaded = LoadedSources(self.machine, self.left, self.right, self.case.owners(), times)
        self.source_totals = loaded.source_totals
        return loaded

    def _remember(self) -> None:
        """Keep the memory as it is now, to begin from it again."""
        arrays = [self.m]
        for segment in self.machine.segments.values():
            if segment.indexed:
                arrays += [segment.heads, segment.pool]
        self._saved = [array.copy() for array in arrays]
        rows = [[address(a), address(b), a.size] for a, b in zip(self._saved, arrays, strict=True)]
        self._copies = np.array(rows, np.int64)
        self._grown = False

    def run(self, schedule: Schedule) -> Outcome:
        """Run from the beginning, under a schedule."""
        kind = schedules.KINDS.index(schedule.kind)
        self.state[:] = 0
        self.state[s.RANDOM] = (schedule.seed * 0x9E3779B97F4A7C15 + 0x1234567) % (1 << 63)
        schedules.make_schedule(
            kind, self.state, self.weights, self.lengths, self.case.nodes, self.drivers, self.directions
        )
        self.rules[stepping.KIND] = kind
        return self._run(np.zeros(TRACED_MAX, np.int64), 0)

    def replay(self, trace: Array) -> Outcome:
        """Run from the beginning: these moves, then everybody in turn."""
        self.state[:] = 0
        moves = np.zeros(max(TRACED_MAX, len(trace)), np.int64)
        moves[: len(trace)] = trace
        return self._run(moves, max(len(trace), 1))

    def begin(self) -> None:
        """Make all but the schedule as at the beginning."""
        if self._grown:
            self._set_up_again()
        stepping.copy_arrays(self._copies)
        self.carried[:] = self.counts[:] = 0
        self.state[s.LAST_RANK] = -1

    def _run(self, trace: Array, replayed: int) -> Outcome:
        self.begin()
        run = stepping.scheduler(self.parts)
        while (ended := run(self.stage, self.weights, self.lengths, trace, replayed)) == stepping.NEEDS:
            self.attend(int(self.state[s.FAILED_AT]))
            self.state[s.REPLAYED] -= replayed > 0  # the same choice again
        failure = int(self.state[s.FAILURE]) if ended == stepping.FAILED else s.NOTHING
        choices = int(self.state[s.CHOICES]) + (ended == stepping.FAILED)
        return Outcome(failure, self.detail(failure), choices, int(self.state[s.PAIRS]), trace[:choices])

    def attend(self, k: int) -> None:
        """Give a node what it needs."""
        self.machine.attend(k)
        self._grown = True

    def _set_up_again(self) -> None:
        """Begin anew after a node has got more room: its old arrays are gone."""
        state, weights, lengths, kind = self.state, self.weights, self.lengths, self.rules[stepping.KIND]
        self._set_up()
        self.state[:], self.weights[:], self.lengths[:], self.rules[stepping.KIND] = state, weights, lengths, kind

    @property
    def drivers(self) -> int:
        """How many actors bring tuples: the driver, or all sources."""
        return int(self.rules[stepping.DRIVERS])

    @property
    def stage(self) -> stepping.Stage:
        """What the compiled functions in `stepping` take."""
        loaded = self.loaded
        return stepping.Stage(
            self.m, self.state, self.rules, loaded.ends, loaded.totals, self.lows, self.source_totals, self.wires,
            self.carried, self.out, self.expected, self.counts,
        )  # fmt: skip

    def detail(self, failure: int) -> str:
        if failure == s.NOTHING:
            return ""
        text = s.MEANINGS[failure]
        if failure in (s.WRONG_PAIR, s.TWICE, s.TOO_LATE, s.OUT_OF_ORDER):
            text += ": left {}, right {}".format(*divmod(int(self.state[s.FAILED_WITH]), len(self.right)))
        elif failure == s.MISSED:
            missed = np.flatnonzero((self.expected != 0) & (self.counts == 0))
            text += ": left {}, right {}".format(*divmod(int(missed[0]), len(self.right)))
        elif failure == s.EXPIRED_EARLY:
            text += f": node {int(self.state[s.FAILED_AT])}"
        return text
