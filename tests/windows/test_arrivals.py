"""What is computed of tuples that arrive: compiled code against counting by hand, and against the ring's own search."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given, settings

import counterflow as cf
from counterflow.spec.join_spec import build_spec
from counterflow.windows.compiled import arrivals
from counterflow.windows.row_ring import Ring
from counterflow.windows.times import time_bounds, time_reach

ENDS = np.iinfo(np.int64)
TIMES = st.lists(st.integers(0, 6) | st.sampled_from([ENDS.min, ENDS.max]), max_size=12).map(sorted)
REACHES = st.integers(0, 4) | st.just(ENDS.max)
BOUNDS = st.lists(st.tuples(*[st.integers(-5, 40) | st.sampled_from([ENDS.min, ENDS.max])] * 2), max_size=12)


def found_by_numpy(spec, side, times, known, first, arrived):
    oldest, newest = time_bounds(spec, side, np.array(times, np.int64))
    end = np.minimum(np.searchsorted(known, newest, "right") + first, arrived)
    return [range(*both) for both in zip(np.searchsorted(known, oldest) + first, end, strict=True)]


@settings(max_examples=200, deadline=None)
@given(left=TIMES, right=TIMES)
def test_tuples_before_each_one_are_counted(left, right):
    before = np.full(len(left), -1), np.full(len(right), -1)
    arrivals.count_before(np.array(left, np.int64), np.array(right, np.int64), *before)
    assert before[0].tolist() == [sum(r < time for r in right) for time in left]
    assert before[1].tolist() == [sum(lf <= time for lf in left) for time in right]


@settings(max_examples=200, deadline=None)
@given(first=st.integers(0, 20), rows=st.integers(1, 20), expired=st.integers(0, 45), bounds=BOUNDS)
def test_rows_between_bounds_are_those_that_the_ring_finds(first, rows, expired, bounds):
    ring = Ring()
    ring.append(np.arange(first, first + rows), {})
    ring.expire(expired)
    low, high = np.array(bounds, np.int64).reshape(-1, 2).T.copy()
    oldest, newest = np.empty((2, len(low)), np.int64)
    arrivals.rows_between(low, high, ring.offset, ring.first, ring.next, oldest, newest)
    assert oldest.tolist() == ring.search(low, "left").tolist()
    assert newest.tolist() == (ring.search(high, "right") - 1).tolist()


@given(rows=st.integers(1, 5), number=st.integers(0, 9), at_end=st.booleans(), data=st.data())
def test_rows_at_the_ends_of_all_times(rows, number, at_end, data):
    first = arrivals.MOST - rows + 1 if at_end else arrivals.LEAST
    times = [first + i for i in range(rows)]
    some = st.sampled_from([*times, arrivals.LEAST, 0, arrivals.MOST])
    low, high = (np.array(data.draw(st.lists(some, min_size=4, max_size=4)), np.int64) for _ in range(2))
    oldest, newest = np.empty((2, 4), np.int64)
    if arrivals.LEAST <= first - number <= arrivals.MOST:
        arrivals.rows_between(low, high, first - number, number, number + rows, oldest, newest)
        assert oldest.tolist() == [number + sum(time < bound for time in times) for bound in low.tolist()]
        assert newest.tolist() == [number - 1 + sum(time <= bound for time in times) for bound in high.tolist()]


@settings(max_examples=300, deadline=None)
@given(
    times=TIMES,
    known=TIMES,
    window=st.builds(cf.window, before=REACHES, after=REACHES, closed=st.booleans()),
    first=st.integers(0, 12),
    side=st.sampled_from(["left", "right"]),
)
def test_opposite_tuples_in_a_window_are_those_that_numpy_finds(times, known, window, first, side):
    """Windows may be zero and open, and times at the ends of what there is."""
    schema = pa.schema({"t": pa.int64()})
    spec = build_spec(schema, schema, where="true", time="t", window=window)
    arrived = np.minimum(np.arange(len(times)) + first, first + len(known))
    low, high = np.empty((2, len(times)), np.int64)
    given, there = np.array(times, np.int64), np.array(known, np.int64)
    arrivals.ordinals_between(given, *time_reach(spec, side), there, first, arrived, low, high)
    assert (low <= high).all()
    found = [range(*both) for both in zip(low, high, strict=True)]
    assert found == found_by_numpy(spec, side, times, there, first, arrived)  # empty ranges are equal
