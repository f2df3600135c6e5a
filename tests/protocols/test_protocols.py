"""Every algorithm finds every pair exactly once: whatever the schedule, the batches, the workers and the window."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.local.stamps import stamp_tables
from counterflow.engines.simulated.stepped_core import SeededCore
from counterflow.protocols.design import Design
from counterflow.spec.join_spec import build_spec
from effort import THOROUGH
from inputs import joins
from nodes import pairs_by_schedule, pairs_on_threads
from schedules import EXPLORED, check

ALGORITHMS = ["kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin"]
# An index of each kind, a scan, texts that compiled code leaves to Python, NULLs that match, and nothing to compile.
KINDS = ["two bands", "two equalities", "inequality", "null-safe equality", "residual"]
EXAMPLES = 300 if THOROUGH else 12


@st.composite
def designs(draw, algorithm, kind):
    nodes, layout = draw(st.integers(1, 8)), (1, 1)
    if algorithm == "kang":
        nodes = 1
    if algorithm == "dpjoin":
        layout = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (1, 4), (2, 4), (8, 1)]))
        nodes = layout[0] * layout[1]
    return Design(
        algorithm,
        nodes,
        layout=layout,
        batch_rows=draw(st.sampled_from([1, 2, 3, 16, 1024])),
        access=draw(st.sampled_from(["auto", "scan", "merge"] if kind == "two bands" else ["auto", "scan"])),
        basic_block=4,  # so that few tuples fill several
        symmetric=draw(st.booleans()),
        in_flight=draw(st.sampled_from([4, 16, 64])),
        outbox_rows=draw(st.sampled_from([1, 4, 64])),
        ordered_output=algorithm == "scalejoin" and draw(st.booleans()),
        nullable=False,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=EXAMPLES, deadline=None, phases=EXPLORED)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_schedule(algorithm, kind, data, seed):
    check(pairs_by_schedule, data.draw(designs(algorithm, kind)), *data.draw(joins(24, [kind])), seed)


@pytest.mark.parametrize("kind", ["two bands", "two equalities", "inequality"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=EXAMPLES // 2, deadline=None, phases=EXPLORED)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_threads(algorithm, kind, data, seed):
    check(pairs_on_threads, data.draw(designs(algorithm, kind)), *data.draw(joins(60, [kind])), seed)


@pytest.mark.parametrize("where", ["l.k + r.k < 40", "l.k * r.k % 59 < 99"])  # compiled, and left to Python
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_windows_that_grow_in_the_middle_of_a_search(algorithm, where):
    """A search of more pairs than a call writes goes on in a ring that its owner has exchanged for a larger one."""
    rng, times = np.random.default_rng(7), np.concatenate([np.arange(600), 600 + np.arange(400) // 8])
    left, right = (pa.table({"t": times, "i": np.arange(1000), "k": rng.integers(0, 20, 1000)}) for _ in range(2))
    options = {"where": where, "time": "t", "window": 200}  # 200 rows, which go round their ring, and then many more
    spec, expected = build_spec(left.schema, right.schema, **options), cf.window_join(left, right, **options)
    layout = (1, 2) if algorithm == "dpjoin" else (1, 1)
    design = Design(
        algorithm, 1 if algorithm == "kang" else 2, 64, layout, access="scan", in_flight=256, outbox_rows=1 << 10,
        capacity_min=128, nullable=False,
    )  # fmt: skip
    for seed in range(5):
        core, arrivals = SeededCore(spec, design, random.Random(seed)), stamp_tables(spec, left, right)
        for at in range(0, arrivals.total, 128):
            core.feed(*arrivals.batch(at, at + 128))
            core.expire(*arrivals.horizons(at + 128))
        core.finish()
        while not core.finished:
            core.move()
        found = [np.concatenate(side) for side in zip(*core.pairs, strict=True)]
        pairs = np.sort(arrivals.left.rows[found[0]] * 1000 + arrivals.right.rows[found[1]])
        assert np.array_equal(pairs, np.sort(np.asarray(expected["i"]) * 1000 + np.asarray(expected["i_right"])))


ROUNDS = range(40 if THOROUGH else 6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tuples_that_go_round_their_ring_many_times(algorithm):
    """A user's join writes tuples into small rings while nodes lag behind; no message may go round a ring's end."""
    rng = np.random.default_rng(7)
    left, right = (pa.table({"t": np.sort(rng.integers(0, 300, 250)), "k": rng.integers(0, 9, 250)}) for _ in range(2))
    options = {"where": "l.k = r.k", "time": "t", "window": 9}
    nodes = 1 if algorithm == "kang" else 4
    for seed in ROUNDS:
        for in_flight, batch_rows in ((4, 3), (8, 7), (16, 5), (3, 16)):
            layout = (2, 2) if algorithm == "dpjoin" else (1, 1)
            design = Design(algorithm, nodes, batch_rows, layout, in_flight=in_flight, outbox_rows=64)
            check(pairs_by_schedule, design, left, right, options, seed)
