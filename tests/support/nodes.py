"""Joins on the compiled protocols: stepped one node at a time under a random schedule, or on threads."""

from __future__ import annotations

import random
import threading
import time

import numpy as np

from counterflow.engines.local.parallel import ParallelCore
from counterflow.engines.local.stamps import stamp_tables
from counterflow.engines.simulated.stepped_core import SteppedCore
from counterflow.protocols import words as w
from counterflow.protocols.feed import finish, progress

STEPS_MAX = 300_000  # a slow node with a small gate needs many


class Pairs:
    """What a join has found, as row numbers of the tables; each pair is checked against the punctuation before it.

    And against the pair before it, where the core says that they come in order.
    """

    def __init__(self, arrivals, in_order):
        self.arrivals, self.found, self.complete = arrivals, [], (0, 0)
        self.in_order, self.last = in_order, (-1, -1)

    def add(self, found):
        left, right = self.arrivals.left, self.arrivals.right
        for le, ri in zip(found.left.tolist(), found.right.tolist(), strict=True):
            later_is_left = ri <= left.high[le]
            number, done = (le, self.complete[0]) if later_is_left else (ri, self.complete[1])
            assert number >= done, f"the pair {le}, {ri} comes after the punctuation {self.complete}"
            if self.in_order:
                place = (le + left.high[le] + 1, ri) if later_is_left else (ri + right.high[ri] + 1, le)
                assert place > self.last, f"the pair {le}, {ri} at {place} comes after one at {self.last}"
                self.last = place
            self.found.append((int(left.rows[le]), int(right.rows[ri])))
        assert found.complete >= self.complete
        self.complete = found.complete


def feeding(core, arrivals, rng):
    """Feed batches of any size; yields whenever the nodes have to move first."""
    rank = 0
    while rank < arrivals.total:
        end = min(rank + rng.randint(1, 12), arrivals.total)
        left, right = arrivals.batch(rank, end)
        if core.unsure is not None:
            core.unsure.append(left, right)
        core.feeder.offer(left, right)
        if rng.random() < 0.7:
            core.feeder.expire(*arrivals.horizons(end))
        while not core.feeder.push():
            yield
        rank = end
        yield
    core.feeder.expire(*core.feeder.taken)
    while not core.feeder.push():
        yield
    finish(core.machine.m)
    core._ended = True


def pairs_by_schedule(spec, left, right, design, seed):
    """The join under a schedule that the seed decides; nodes, driver and collector move in any order."""
    rng = random.Random(seed)
    arrivals = stamp_tables(spec, left, right)
    core = SteppedCore(spec, design)
    pairs = Pairs(arrivals, core.in_order)
    source = feeding(core, arrivals, rng)
    favourites = [rng.random() ** 3 + 0.01 for _ in range(design.nodes)]  # some nodes are slow
    for _ in range(STEPS_MAX):
        if core.finished:
            break
        action = rng.random()
        if action < 0.2:
            next(source, None)
        elif action < 0.4:
            found = core.collect(0)
            if found is not None:
                pairs.add(found)
        else:
            core.step(rng.choices(range(design.nodes), favourites)[0])
    assert core.finished, "the join does not end"
    return sorted(pairs.found)


def pairs_on_threads(spec, left, right, design, seed):
    rng = random.Random(seed)
    arrivals = stamp_tables(spec, left, right)
    core = ParallelCore(spec, design)
    pairs = Pairs(arrivals, core.in_order)

    def feed():
        rank = 0
        while rank < arrivals.total:
            end = min(rank + rng.randint(1, 12), arrivals.total)
            core.feed(*arrivals.batch(rank, end))
            core.expire(*arrivals.horizons(end))
            rank = end
            if rng.random() < 0.1:
                time.sleep(1e-4)
        core.finish()

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        deadline = time.monotonic() + 120
        while not core.finished:
            found = core.collect(0.05)
            if found is not None:
                pairs.add(found)
            assert time.monotonic() < deadline, "the join does not end"
    finally:
        core.close()
        feeder.join()
    assert progress(core.machine.m, w.LEFT) == len(arrivals.left)
    return sorted(pairs.found)


def counts_of(machine):
    return np.array([int(machine.m[node + w.NODE_COMPARISONS]) for node in machine.nodes])
