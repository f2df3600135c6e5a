"""The benchmark's collector, which hands results out in order from shelves, and its threads."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterflow.lab.bench.benchmark_inputs import make_inputs
from counterflow.lab.bench.replay_runs import MeasuredJoin
from counterflow.lab.replay import replay, watching
from counterflow.lab.replay.watching import DEEP, NONE, SHELF_WORDS, SHELVES, empty_shelf, new_watch
from counterflow.protocols import words as w
from counterflow.protocols.machine import Machine
from effort import examples


def test_the_sorting_network():
    """What sorts all sequences of zeros and ones sorts everything (Knuth's 0-1 principle); few values, many, none."""
    for count in range(DEEP + 1):
        for values in itertools.product((0, 1), repeat=count):
            shelf = np.array([5 * SHELF_WORDS + count, *values, *[NONE] * (DEEP - count)])
            earlier, later = np.zeros((2, DEEP), np.int64)
            empty_shelf(shelf, 0, earlier, later, 0)
            assert earlier[:count].tolist() == sorted(values) and (later[:count] == 5).all()
            assert shelf.tolist() == [0, *[NONE] * DEEP]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 5, 40]), st.sampled_from([10, 2 * SHELVES]))
def test_results_come_in_order(seed, most, span):
    """Each result goes to its shelf or its list, in any order; all of them come back by rank and partner."""
    rng = random.Random(seed)
    first = rng.randrange(3 * SHELVES)
    ranks = sorted(rng.sample(range(first, first + span), 8))
    wanted = [(r, partner) for r in ranks for partner in sorted(rng.sample(range(1000), rng.randint(1, most)))]
    due, clock = np.zeros(first + span + 1, np.int64), np.zeros(1, np.int64)
    watch = new_watch(True, np.zeros(2, np.int64), due, clock, first)
    for rank, partner in rng.sample(wanted, len(wanted)):
        assert watching.shelve(watch, first, rank, partner, 2 * rank)
    seen, at = [], first
    while at < first + span:
        end = min(at + watching.AT_ONCE, first + span)
        before = watch.found[watching.PAIRS]
        watching.empty_shelves(watch, at, end)
        count = watch.found[watching.PAIRS] - before
        seen += zip(watch.out[watching.OUT_PLACES :][:count] >> 1, watch.out[:count], strict=True)
        at = end
    assert seen == wanted


@pytest.mark.parametrize("algorithm", ["llhj", "handshake"])
def test_a_failing_node_ends_the_replay(algorithm, monkeypatch):
    """The other threads stop too, and the error arrives."""

    def fail(self, k):
        raise MemoryError("no room")

    monkeypatch.setattr(Machine, "attend", fail)
    run = MeasuredJoin(algorithm, 2, make_inputs("band", 9_000, 6_000), 6_000, 3_000, 16, "auto")
    for segment in run.replay.machine.segments.values():
        run.replay.m[segment.at + w.SEGMENT_CAPACITY] = 1000  # so that a node asks for more
    with pytest.raises(MemoryError, match="no room"):
        run.take()


def test_scalejoin_is_ordered_by_its_own_gate():
    """As through the public call; the benchmark's collector orders for the others, and every row says who did."""
    inputs = make_inputs("hash", 900, 300)
    for algorithm, ordered, who in (
        ("scalejoin", True, "gate"),
        ("scalejoin", False, None),
        ("llhj", True, "collector"),
    ):
        run = MeasuredJoin(algorithm, 2, inputs, 300, 600, 16, "auto", ordered)
        row = run.take()
        assert row["verified"] and row["pairs"] > 0 and row.get("ordered_by") == who
        assert run.design.gates_results == (who == "gate") and run.replay.watch.ordered == (who == "collector")


@pytest.mark.parametrize("cores", [1, 2, 4, 8])
@pytest.mark.parametrize("algorithm", ["kang", "handshake", "llhj", "scalejoin"])
def test_any_number_of_cores(algorithm, cores, monkeypatch):
    """Fewer than nodes, as many as parts, and more."""
    monkeypatch.setattr(replay, "usable_cores", lambda: list(range(cores)))
    nodes = 1 if algorithm == "kang" else 3
    row = MeasuredJoin(algorithm, nodes, make_inputs("hash", 900, 300), 300, 600, 16, "auto", rate=20_000).take()
    assert row["verified"] and row["pairs"] > 0 and row["latency_us_max"] > 0
