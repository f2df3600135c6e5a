"""A join of two tables whose nodes move one at a time, in an order that a seed decides."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa

from counterflow.engines.local.engine import join_tables
from counterflow.engines.local.matrix import lay_out, rows_of
from counterflow.engines.local.parallel import NodesCore
from counterflow.engines.local.stamps import StampedTables
from counterflow.engines.simulated.options import Simulated
from counterflow.protocols import words as w
from counterflow.protocols.design import Design
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.vectors import Array

FED_MAX = 24  # tuples at once
MOVES_MAX = 40  # between two batches
COLLECTED = 0.1  # how often it is the collector's turn
SMALL = (1, 3, 16)
IN_FLIGHT = (4, 16, 64)


class SteppedCore(NodesCore):
    """The nodes of the local engine without their threads: they move when they are told to."""

    def step(self, k: int) -> int:
        """Let node k move, and give it what it needs; returns what its step says."""
        state = int(self.machine.step(self.machine.m, k))
        if state == w.NEEDS:
            self.machine.attend(k)
        return state


class SeededCore(SteppedCore):
    """A core whose moves a seed decides."""

    def __init__(self, spec: JoinSpec, design: Design, chance: random.Random) -> None:
        super().__init__(spec, design)
        self._chance = chance
        self._eager = [chance.random() ** 3 + 0.01 for _ in range(design.nodes)]  # some nodes are slow
        self.pairs = [(np.empty(0, np.int64), np.empty(0, np.int64))]

    def _let_nodes_move(self, turn: int) -> None:
        self.move()

    def move(self) -> None:
        """Let a node step, or collect what was found."""
        if self._chance.random() < COLLECTED:
            found = self.collect(0)
            if found is not None:
                self.pairs.append((found.left, found.right))
            return
        (k,) = self._chance.choices(range(self.design.nodes), self._eager)
        self.step(k)


def join_simulated(spec: JoinSpec, left: pa.Table, right: pa.Table, engine: Simulated) -> pa.Table:
    def find_pairs(spec: JoinSpec, arrivals: StampedTables, _: object) -> tuple[Array, Array]:
        chance = random.Random(engine.seed)
        design = _design(spec, engine, arrivals.window_rows(), chance)
        layout = lay_out(engine.local, spec, rows_of(arrivals)).matrix
        core = SeededCore(spec, replace(design, layout=layout), chance)
        at = 0
        while at < arrivals.total:
            end = min(at + chance.randint(1, FED_MAX), arrivals.total)
            core.feed(*arrivals.batch(at, end))
            core.expire(*arrivals.horizons(end))
            for _ in range(chance.randrange(MOVES_MAX)):
                core.move()
            at = end
        core.finish()
        while not core.finished:
            core.move()
        found = [np.concatenate(side) for side in zip(*core.pairs, strict=True)]
        return arrivals.left.rows[found[0]], arrivals.right.rows[found[1]]

    return join_tables(spec, left, right, engine.local, find_pairs)


def _design(spec: JoinSpec, engine: Simulated, window_rows: tuple[int, int], chance: random.Random) -> Design:
    """Return a design of small sizes, so that nodes have to wait for each other."""
    local = engine.local
    return Design(
        local.algorithm,
        local.nodes,
        batch_rows=chance.choice(SMALL),
        in_flight=chance.choice(IN_FLIGHT),
        outbox_rows=chance.choice(IN_FLIGHT),
        ordered_output=spec.ordered,
        expected_rows=chance.choice([window_rows, (0, 0)]),  # windows that have room, and such that grow
        capacity_min=chance.choice(IN_FLIGHT),
        nullable=spec.has_null_matches,
    )
