"""The contract: every engine returns what `reference` returns, for every window kind, `how` and predicate kind.

Oracle test: the expected pairs are recomputed from scratch for every input that hypothesis thinks of.
"""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import counterflow as cf
from effort import THOROUGH, examples
from inputs import PREDICATES, joins, table_of, tables
from interpreted import SEARCHES, searching
from oracle import HOWS, expected, results

TIME_US = 1_000_000


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=examples(600), deadline=None)
@given(inputs=joins(), batch_rows=st.integers(1, 20), search=st.sampled_from(SEARCHES))
def test_in_process_every_window_and_how(how, inputs, batch_rows, search):
    left, right, options = inputs
    options |= dict(how=how, ordered=True)
    with searching(search):
        got = cf.window_join(left, right, engine=cf.Local(batch_rows=batch_rows), **options)
    assert results(got, how) == expected(left, right, **options)


@pytest.mark.parametrize("predicate", PREDICATES)
@settings(max_examples=30, deadline=None)
@given(left=tables(), right=tables(), search=st.sampled_from(SEARCHES))
def test_in_process_every_predicate(predicate, left, right, search):
    options = dict(where=PREDICATES[predicate], time="ts", window="3 seconds", how="full")
    with searching(search):
        got = cf.window_join(left, right, engine=cf.Local(batch_rows=5), **options)
    assert Counter(results(got, "full")) == Counter(expected(left, right, **options))


@pytest.mark.parametrize("algorithm", ["kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin"])
@settings(max_examples=examples(60), deadline=None)
@given(
    inputs=joins(kinds=list(PREDICATES) if THOROUGH else ["two bands", "two equalities", "inequality", "residual"]),
    how=st.sampled_from(HOWS),
    nodes=st.integers(1, 5),
    seed=st.integers(0, 1 << 32),
)
def test_simulated(algorithm, inputs, how, nodes, seed):
    left, right, options = inputs
    options |= dict(how=how, ordered=True)
    engine = cf.Simulated(algorithm, nodes=None if algorithm == "kang" else nodes, seed=seed)
    assert results(cf.window_join(left, right, engine=engine, **options), how) == expected(left, right, **options)


@settings(max_examples=30, deadline=None)
@given(left=tables(), right=tables())
def test_integer_time_is_the_same_join(left, right):
    """Any unit: here seconds as int16 on one side and uint32 on the other."""
    import pyarrow as pa

    def with_integer_time(table, type_):
        seconds = [int(t.timestamp()) - 1_704_067_200 for t in table["ts"].to_pylist()]
        return table.set_column(1, "ts", pa.array(seconds, type_))

    options = dict(where="l.k = r.k", time="ts", how="left", ordered=True)
    want = expected(left, right, window=("1 second", "4 seconds"), **options)
    got = cf.window_join(
        with_integer_time(left, pa.int16()), with_integer_time(right, pa.uint32()), window=(1, 4), **options
    )
    base = 1_704_067_200
    assert [(a, b, (t + base) * TIME_US) for a, b, t in results(got, "left")] == want


def test_timeline():
    """
    left    a(0)        b(4)
    right         c(3)        d(7)
                         window 3 seconds, inclusive: a-c and b-c (1 apart), b-d; a-d is 7 apart
    """
    left, right = (
        table_of([(0, 1, 1, 0.0, "a"), (4, 1, 1, 0.0, "b")]),
        table_of([(3, 1, 1, 0.0, "c"), (7, 1, 1, 0.0, "d")]),
    )
    pairs = cf.window_join(left, right, where="true", time="ts", window="3 seconds", ordered=True)
    assert list(zip(pairs["s"].to_pylist(), pairs["s_right"].to_pylist(), strict=True)) == [
        ("a", "c"),
        ("b", "c"),
        ("b", "d"),
    ]
    opened = cf.window_join(left, right, where="true", time="ts", window=cf.window("3 seconds", closed=False))
    assert opened["s"].to_pylist() == ["b"] and opened["s_right"].to_pylist() == ["c"]
    before = cf.window_join(left, right, where="true", time="ts", window=cf.window(before="3 seconds"))
    assert list(zip(before["s"].to_pylist(), before["s_right"].to_pylist(), strict=True)) == [("b", "c")]


def test_left_is_before_right_at_equal_times():
    """At a tie the left tuple is the earlier one: it needs the left window, here of zero length but closed."""
    left, right = table_of([(1, 1, 1, 0.0, "a")]), table_of([(1, 1, 1, 0.0, "b")])
    assert len(cf.window_join(left, right, where="true", time="ts", window="0 seconds")) == 1
    assert len(cf.window_join(left, right, where="true", time="ts", window=cf.window(0, closed=False))) == 0
    open_left = cf.window(before="5 seconds", after="0 seconds", closed=False)
    assert len(cf.window_join(left, right, where="true", time="ts", window=open_left)) == 0
