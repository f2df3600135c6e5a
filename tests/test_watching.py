"""The benchmark's collector: shelves hand results out in order, however many of a tuple there are and how far ahead."""

from __future__ import annotations

import itertools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from counterflow.protocols import watching
from counterflow.protocols.watching import DEEP, NONE, SHELF_WORDS, SHELVES, empty_shelf, new_watch
from streams import examples


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
    watch = new_watch(False, True, np.zeros(2, np.int64), due, clock, first)
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
