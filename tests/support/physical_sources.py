"""Joins whose tuples several physical sources add to ScaleJoin's first gate: under a random schedule, or on threads."""

from __future__ import annotations

import random
import threading
import time
from collections import deque

import numpy as np

from counterflow.engines.local.stamps import stamp_tables
from counterflow.predicate.expression import SIDES, columns_of
from counterflow.protocols import threads
from counterflow.protocols import words as w
from counterflow.protocols.collect import collect
from counterflow.protocols.design import Sources
from counterflow.protocols.machine import Machine
from counterflow.protocols.sources import SourceFeed
from counterflow.windows.store import Batch, passing
from counterflow.windows.times import time_values
from counterflow.windows.vectors import from_arrow_column

STEPS_MAX = 300_000
HANG_S = 120


def sources_of(spec, left, right):
    return Sources(left, right, (spec.left.window, spec.right.window))


class SourcedJoin:
    """A machine, its sources' feeds, and what each source is going to offer: pieces of its tuples, in order."""

    def __init__(self, spec, left, right, design, rng):
        self.arrivals, self.design = stamp_tables(spec, left, right), design
        self.machine = Machine(spec.predicate, spec.parts, design)
        self.m = self.machine.m
        self.feeds = [SourceFeed(self.machine, k) for k in range(len(design.sources))]
        self.pieces = [deque() for _ in self.feeds]
        for i, table in enumerate((left, right)):
            self._deal_out(spec, i, table, rng)
        self.out = np.zeros(256 * w.RESULT_WORDS, np.int64)
        self.found, self.complete, self.last = [], (0, 0), (-1, -1)

    def _deal_out(self, spec, i, table, rng):
        """Give each tuple a source; at equal times the sources ascend, so that the order is that of the table."""
        side, sources = SIDES[i], self.design.sources
        first, count = (0, sources.left) if i == 0 else (sources.left, sources.right)
        times = time_values(spec.side(side), table)[self.arrivals.order[i]]
        drawn = np.array([first + rng.randrange(count) for _ in times], np.int64)
        owner = drawn[np.lexsort((drawn, times))]
        names = sorted({c.name for c in columns_of(spec.predicate) if c.side == side})
        vectors = {n: from_arrow_column(n, table.column(n)).take(self.arrivals.order[i]) for n in names}
        kept = passing(spec.parts.filters(side), side, vectors, len(times), spec.required[side])
        passes = np.ones(len(times), bool) if kept is None else np.isin(np.arange(len(times)), kept)
        nothing = np.zeros(len(times), np.int64)
        batch = Batch(side, vectors, np.arange(len(times)), nothing, nothing, nothing)
        for k in range(first, first + count):
            mine = np.flatnonzero(owner == k)
            while len(mine):
                some, mine = np.split(mine, [rng.randint(1, 9)])
                following = int(times[mine[0]]) if len(mine) else None
                self.pieces[k].append((times[some], batch.take(some), passes[some], following))

    def offer(self, k, rng):
        """Let source k offer its next piece; it may know when the one after it comes, or that there is none."""
        times, batch, passes, following = self.pieces[k].popleft()
        self.feeds[k].offer(times, batch, passes)
        if following is not None and rng.random() < 0.5:
            self.feeds[k].advance(following - 1)

    def step(self, k):
        if self.machine.step(self.m, k) == w.NEEDS:
            self.machine.attend(k)

    def collect(self):
        """Take what nodes have found; each pair is checked against the punctuation before it, and against the order."""
        self.add(collect(self.m, self.out, len(self.out) // w.RESULT_WORDS))

    def add(self, taken):
        for later, le, ri, unsure in self.out[: taken * w.RESULT_WORDS].reshape(-1, w.RESULT_WORDS).tolist():
            assert later >> 1 >= sum(self.complete), f"the pair {le}, {ri} comes after the punctuation {self.complete}"
            if self.design.gates_results:
                place = later >> 1, le if later & 1 else ri
                assert place > self.last, f"the pair {le}, {ri} comes after one at {self.last}"
                self.last = place
            pair = int(self.arrivals.left.rows[le]), int(self.arrivals.right.rows[ri])
            self.found.append((*pair, bool(unsure)))
        at = self.machine.collector + w.COLLECT_COMPLETE
        complete = int(self.m[at]), int(self.m[at + 1])
        assert complete >= self.complete
        self.complete = complete

    @property
    def ended(self):
        return self.complete == (len(self.arrivals.left), len(self.arrivals.right))


def found_by_schedule(spec, left, right, design, seed):
    """The join under a schedule that the seed decides: sources, nodes and collector move in any order."""
    rng = random.Random(seed)
    join = SourcedJoin(spec, left, right, design, rng)
    open_feeds = set(range(len(join.feeds)))
    nodes = [rng.random() ** 3 + 0.01 for _ in range(design.nodes)]
    sources = [rng.random() ** 3 + 0.01 for _ in join.feeds]
    for _ in range(STEPS_MAX):
        if not open_feeds and join.ended and all([feed.push() for feed in join.feeds]):
            join.collect()
            return join.found
        action = rng.random()
        if action < 0.4:
            (k,) = rng.choices(range(len(sources)), sources)
            if join.feeds[k].push() and k in open_feeds:
                if join.pieces[k]:
                    join.offer(k, rng)
                else:
                    join.feeds[k].close()
                    open_feeds.remove(k)
        elif action < 0.6:
            join.collect()
        else:
            join.step(rng.choices(range(design.nodes), nodes)[0])
    raise AssertionError("the join does not end")


def found_on_threads(spec, left, right, design, seed):
    """The join with a thread for each source and for each node."""
    rng = random.Random(seed)
    join = SourcedJoin(spec, left, right, design, rng)
    errors: list[BaseException] = []

    def guarded(work):
        def run():
            try:
                work()
            except BaseException as error:
                errors.append(error)
                threads.stop(join.m)

        return threading.Thread(target=run, daemon=True)

    def node(k):
        run = threads.runner(join.machine.step)

        def work():
            while run(join.m, k) == w.NEEDS:
                join.machine.attend(k)

        return work

    def source(k, chance):
        def work():
            while join.pieces[k]:
                join.offer(k, chance)
                if not join.feeds[k].flush():
                    return
            join.feeds[k].close()
            join.feeds[k].flush()

        return work

    sources = [guarded(source(k, random.Random(seed + k))) for k in range(len(join.feeds))]
    started = [*(guarded(node(k)) for k in range(design.nodes)), *sources]
    for thread in started:
        thread.start()
    deadline, capacity = time.monotonic() + HANG_S, len(join.out) // w.RESULT_WORDS
    try:
        while not join.ended and not errors:
            join.add(threads.await_results(join.m, join.out, capacity, 10**7))
            assert time.monotonic() < deadline, "the join does not end"
        for thread in sources:
            thread.join(HANG_S)
    finally:
        threads.stop(join.m)
        for thread in started:
            thread.join(HANG_S)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in started)
    return join.found
