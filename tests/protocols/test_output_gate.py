"""ScaleJoin's second gate: results come in the one order, none is lost, and nobody waits for ever.

`Pairs` (nodes.py) checks the order of what the collector gets, as it gets it: nothing sorts in between.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from counterflow.engines.local.stamps import stamp_tables
from counterflow.engines.simulated.stepped_core import SteppedCore
from counterflow.protocols import scale_join
from counterflow.protocols import words as w
from counterflow.protocols.design import Design
from counterflow.protocols.output_gate import sort_results
from counterflow.protocols.segment import Outbox
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from effort import THOROUGH
from inputs import joins, table_of, window_of
from nodes import Pairs, feeding, pairs_by_schedule, pairs_on_threads
from schedules import EXPLORED, check

KINDS = ["everything", "two bands", "residual"]  # more results of one tuple than a pool holds; few; unsure ones


@st.composite
def gates(draw):
    return Design(
        "scalejoin",
        draw(st.integers(1, 8)),
        batch_rows=draw(st.sampled_from([1, 2, 3, 16, 1024])),
        access=draw(st.sampled_from(["auto", "scan"])),
        in_flight=draw(st.sampled_from([4, 16, 64])),
        outbox_rows=draw(st.sampled_from([1, 2, 5, 64])),
        ordered_output=True,
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300 if THOROUGH else 15, deadline=None, phases=EXPLORED)
@given(design=gates(), data=st.data(), seed=st.integers(0, 2**32))
def test_any_schedule(kind, design, data, seed):
    check(pairs_by_schedule, design, *data.draw(joins(24, [kind])), seed)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100 if THOROUGH else 6, deadline=None, phases=EXPLORED)
@given(design=gates(), data=st.data(), seed=st.integers(0, 2**32))
def test_threads(kind, design, data, seed):
    check(pairs_on_threads, design, *data.draw(joins(60, [kind])), seed)


@pytest.mark.parametrize("outbox_rows", [1, 3])
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_the_slowest_thread_can_always_add(slow, outbox_rows):
    """One node moves only when all others are stuck: these have filled their pools, and wait for its results."""
    rows = [(i // 3, i % 2, 0, 0.0, "") for i in range(30)]
    left, right = table_of(rows), table_of(rows)
    spec = build_spec(left.schema, right.schema, where="l.k = r.k", time="ts", window=window_of("unbounded"))
    design = Design("scalejoin", 3, batch_rows=7, in_flight=16, outbox_rows=outbox_rows, ordered_output=True)
    arrivals = stamp_tables(spec, left, right)
    core, pairs = SteppedCore(spec, design), Pairs(arrivals, in_order=True)
    source = feeding(core, arrivals, random.Random(slow))
    others, stuck = [k for k in range(3) if k != slow], 0
    for _ in range(10_000):
        if core.finished:
            break
        next(source, None)
        moved = [core.step(k) for k in others]
        found = core.collect(0)
        if found is not None:
            pairs.add(found)
        stuck = stuck + 1 if found is None and set(moved) == {w.IDLE} else 0
        if stuck > 3:
            core.step(slow)
    assert core.finished, "the join does not end"
    assert sorted(pairs.found) == sorted((le, ri) for le, ri, _ in reference_pairs(spec, left, right))


def test_a_thread_without_results_holds_nobody_back():
    """Only node 0 stores a left tuple that matches; its results are ready once the others have passed their ranks."""
    left = table_of([(0, None, x, 0.0, "") for x in (1, 100, 100)])
    right = table_of([(1 + i, None, 1, 0.0, "") for i in range(9)])
    spec = build_spec(left.schema, right.schema, where="l.x = r.x", time="ts", window=window_of("unbounded"))
    arrivals = stamp_tables(spec, left, right)
    core = SteppedCore(spec, Design("scalejoin", 3, ordered_output=True))
    core.feeder.offer(*arrivals.batch(0, arrivals.total))
    assert core.feeder.push()
    for k in range(3):
        assert core.collect(0) is None  # what node 0 has found waits for the others
        while core.step(k) != w.IDLE:
            pass
    assert core.collect(0).right.tolist() == list(range(9))
    assert [int(core.machine.m[node + w.NODE_PAIRS]) for node in core.machine.nodes] == [9, 0, 0]


def test_batches_with_many_results_become_smaller():
    """The results of a batch wait for all of it, so it is chosen such that they are about as many as the outbox has."""
    rows = [(0, i % 2, 0, 0.0, "") for i in range(400)]
    left, right = table_of(rows), table_of(rows)
    spec = build_spec(left.schema, right.schema, where="l.k = r.k", time="ts", window=window_of("unbounded"))
    design = Design("scalejoin", 2, batch_rows=64, in_flight=512, outbox_rows=512, ordered_output=True)
    arrivals = stamp_tables(spec, left, right)
    core, pairs = SteppedCore(spec, design), Pairs(arrivals, in_order=True)
    source, most = feeding(core, arrivals, random.Random(1)), 0
    while not core.finished:
        for k in range(2):
            next(source, None)
            core.step(k)
            most = max(most, int(core.machine.m[core.machine.nodes[k] + scale_join.NODE_HALVED]))
            found = core.collect(0)
            if found is not None:
                pairs.add(found)
    assert len(pairs.found) == 400 * 400 // 2
    assert most >= 3  # one tuple has up to 100 results at a node
    assert max(len(outbox.results) for outbox in core.machine.outboxes) <= 8 * 512 * w.RESULT_WORDS


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), unique=True, max_size=60), st.randoms())
def test_results_of_a_batch_are_sorted(keys, rng):
    """Oracle: `sorted`. Of each rank, the later tuple is of one side, and the results differ in the other one."""
    results = [
        (rank * 2 + rank % 2, *((rank, e) if rank % 2 == 0 else (e, rank)), rng.randrange(2)) for rank, e in keys
    ]
    box, m = w.NODE_WORDS, np.zeros(w.NODE_WORDS + w.OUTBOX_WORDS, np.int64)
    m[w.HEADER_GATE_OUT], m[w.NODE_OUTBOX] = 1, box
    outbox = Outbox(m, box, 64)
    outbox.results[: 4 * len(results)] = np.array(results, np.int64).ravel()
    m[box + w.OUTBOX_SENT] = len(results)
    sort_results(m, 0)
    found = outbox.results[: 4 * len(results)].reshape(-1, 4).tolist()
    assert found == [list(r) for r in sorted(results)]
