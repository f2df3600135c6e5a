"""The protocols under the virtual clock: the same pairs, and times that follow from the costs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from counterflow.lab.bench.benchmark_inputs import band_inputs
from counterflow.lab.reproduce.virtual_runs import stamped
from counterflow.lab.simulator.timed_join import Costs, TimedJoin
from counterflow.protocols.design import Design

WINDOW, TUPLES = 400, 300
SLOW = Costs(step=0, tuple=0, comparison=100.0, result=0, message=0, hop=0)  # nothing but comparisons takes time
ALGORITHMS = ["kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin"]


@cache
def inputs():
    return band_inputs(2 * WINDOW + TUPLES, domain=60.0)


def timed(algorithm, nodes, costs, warm=WINDOW, tuples=TUPLES, batch=8, **run):
    left, right = stamped(inputs(), warm + tuples, WINDOW, WINDOW)
    design = Design(
        algorithm, nodes, batch_rows=batch, layout=(1, nodes) if algorithm == "dpjoin" else (1, 1), in_flight=64
    )
    return TimedJoin(inputs().spec, design, left, right, costs, warm=2 * warm).run(**run)


def expected_ranks(first, tuples):
    """The rank of the later tuple, of each pair of the benchmark join with row windows, found with numpy."""
    columns = [np.array(c) for c in (*inputs().left, *inputs().right)]
    x, y, a, b = (c[: first + tuples].astype(float) for c in columns)
    near = (np.abs(x[:, None] - a[None, :]) <= 10) & (np.abs(y[:, None] - b[None, :]) <= 10)
    left, right = np.nonzero(near)
    in_window = np.where(left <= right, left > right - WINDOW, right >= left - WINDOW)
    rank = np.where(left <= right, 2 * right + 1, 2 * left)
    return np.sort(rank[in_window & (rank >= 2 * first)])


@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if a != "handshake"])
def test_the_same_pairs(algorithm):
    run = timed(algorithm, 1 if algorithm == "kang" else 3, Costs())
    assert np.array_equal(np.sort(run.result_rank), expected_ranks(WINDOW, TUPLES))
    assert (run.latency >= 0).all() and run.seconds > 0


def test_handshake_join_finds_what_has_met():
    """Pairs whose tuples are still on their way to each other are found when more tuples push them on."""
    found = timed("handshake", 3, Costs(), warm=0).result_rank
    wanted = expected_ranks(0, TUPLES)
    assert 0.2 * len(wanted) < len(found) <= len(wanted)
    assert not set(found.tolist()) - set(wanted.tolist())


@pytest.mark.parametrize("algorithm", ["celljoin", "llhj", "dpjoin", "scalejoin"])
def test_as_many_nodes_as_much_faster(algorithm):
    one, four = timed(algorithm, 1, SLOW), timed(algorithm, 4, SLOW)
    assert one.comparisons.sum() == pytest.approx(2 * TUPLES * WINDOW, rel=0.01)
    assert four.comparisons.sum() == pytest.approx(2 * TUPLES * WINDOW, rel=0.05)  # llhj: also tuples in transit
    assert one.tuples_per_s == pytest.approx(1e9 / 100 / WINDOW, rel=0.02)
    assert four.tuples_per_s == pytest.approx(4 * one.tuples_per_s, rel=0.2)


def test_latency_of_the_two_handshake_joins():
    """Below the bound W_R W_S / (W_R + W_S) there, and far below it here."""
    rate = 1000.0  # of both streams: a window lasts 0.8 s
    due = (np.arange(2 * (WINDOW + TUPLES)) + 1) / rate
    slow, fast = (
        timed(name, 4, Costs(), warm=0, tuples=WINDOW + TUPLES, batch=1, due_s=due).latency
        for name in ("handshake", "llhj")
    )
    bound = WINDOW / (rate / 2) / 2
    assert 0.3 * bound < slow.max() < 1.1 * bound
    assert fast.max() < bound / 1000
