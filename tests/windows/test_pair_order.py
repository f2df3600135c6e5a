"""Pairs in the order of results: compiled or not, as Python's own sort puts them."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from counterflow.windows.compiled.ordering import FEW
from counterflow.windows.pair_order import StepPairs
from counterflow.windows.store import Batch


def batch(side, first, high):
    at = np.arange(first, first + len(high))
    return Batch(side, {}, at, at, np.zeros(len(high), np.int64), high)


def step(is_left, first, pairs_of):
    """Return a step of tuples in this order, and its pairs in order: tuple k has `pairs_of[k]` earlier partners."""
    is_left = np.array(is_left, bool)
    lefts, rights = np.cumsum(is_left), np.cumsum(~is_left)
    left = batch("left", first[0], (first[1] + rights - 1)[is_left])
    right = batch("right", first[1], (first[0] + lefts - 1)[~is_left])
    expected, found = [], {True: [], False: []}
    for k, own in enumerate(is_left):
        number = first[0] + int(lefts[k]) - 1 if own else first[1] + int(rights[k]) - 1
        earlier = int(right.at[0] - 1 + rights[k]) if own and len(right) else int(first[1] - 1)
        if not own:
            earlier = first[0] + int(lefts[k]) - 1
        partners = sorted({partner for partner in pairs_of[k] if partner <= earlier})
        expected += [(number, p) if own else (p, number) for p in partners]
        found[bool(own)] += [(number, p) if own else (p, number) for p in partners]
    return left, right, found, expected


def columns(pairs, cut):
    parts = [pairs[:cut], pairs[cut:]]
    return [tuple(np.array(part, np.int64).reshape(-1, 2).T.copy()) for part in parts if part]


@pytest.mark.parametrize("compiled", [False, True])
@settings(max_examples=150, deadline=None)
@given(data=st.data(), tuples=st.lists(st.booleans(), max_size=12), first=st.tuples(*[st.integers(0, 60)] * 2))
def test_pairs_are_in_the_order_of_their_later_then_their_earlier_tuples(compiled, data, tuples, first):
    """A tuple has few partners or many, found in any order, in one piece or in two."""
    partners = st.lists(st.integers(0, 72), max_size=2 * FEW) | st.just(range(72, -1, -1))
    left, right, found, expected = step(tuples, first, [data.draw(partners) for _ in tuples])
    by_left, by_right = data.draw(st.permutations(found[True])), data.draw(st.permutations(found[False]))
    cut = data.draw(st.integers(0, len(by_left)))
    pairs = StepPairs(left, right, first, columns(by_left, cut), columns(by_right, 0))
    assert len(pairs) == len(expected)
    ordered = pairs.in_order(compiled)
    assert list(zip(*(part.tolist() for part in ordered), strict=True)) == expected
