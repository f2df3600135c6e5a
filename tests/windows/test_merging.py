"""Sorted pieces of rows merged by compiled code, against a sorted list."""

from __future__ import annotations

from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.local import pieces as merged_pieces
from counterflow.engines.local.pieces import merge_pieces

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "byte": pa.int8(),
        "short": pa.uint16(),
        "float": pa.float32(),
        "stamp": pa.timestamp("us"),
        "decimal": pa.decimal128(20, 2),
        "bit": pa.bool_(),
        "text": pa.string(),
        "nullable": pa.int64(),
        "list": pa.list_(pa.int64()),
    }
)


def batch_of(numbers):
    """Rows that differ, of every kind of column, as a slice of a larger batch."""
    rows = [
        (n, n % 100, n, n / 2, n, Decimal(n), n % 3 == 0, "x" * (n % 5), None if n % 4 == 0 else n, [n] * (n % 3))
        for n in [7, *numbers, 9]
    ]
    columns = [pa.array(values, field.type) for field, values in zip(SCHEMA, zip(*rows, strict=True), strict=True)]
    return pa.record_batch(columns, schema=SCHEMA).slice(1, len(numbers))


@settings(max_examples=150, deadline=None)
@given(
    given_times=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=40), min_size=1, max_size=9),
    first=st.sampled_from([-(2**63), -5, 0, 2**62, 2**63 - 41]),
    stretch=st.sampled_from([1, 2**40, 2**56]),
)
def test_pieces_are_merged_as_a_sorted_list(given_times, first, stretch):
    """Oracle: the rows sorted by time, at equal times by their piece. Times too far apart for keys are no exception."""
    if stretch > 1:
        first = -(2**62)
    parts, twin = [], []
    for times in map(sorted, given_times):
        numbers = range(len(twin), len(twin) + len(times))
        times = [first + stretch * t for t in times]
        twin += list(zip(times, numbers, strict=True))
        parts.append((np.array(times, np.int64), batch_of(numbers)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merged_pieces, "PIECE_ROWS_MIN", 0)
        times, rows = merge_pieces(parts, compiled=True)
    assert list(zip(times.tolist(), rows["n"].to_pylist(), strict=True)) == sorted(twin)
    assert rows.equals(batch_of([number for _, number in sorted(twin)]))
    rows.validate(full=True)


def test_what_compiled_code_merges(monkeypatch):
    """Only pieces with many rows, and only where they overlap; it has the same result as numpy and Arrow have."""
    calls = []
    monkeypatch.setattr(merged_pieces, "_merged", lambda *given: calls.append(given) or _merged(*given))
    few, many = (
        [(np.arange(k, 3 * n, 3), batch_of(range(k, 3 * n, 3))) for k in range(3)]
        for n in (10, merged_pieces.PIECE_ROWS_MIN)
    )
    for parts in (few, many):
        by_numpy = merge_pieces(parts)
        assert not calls
        times, rows = merge_pieces(parts, compiled=True)
        assert (times == by_numpy[0]).all() and rows.equals(by_numpy[1])
    assert len(calls) == 1
    following = [(times + 10**6 * k, rows) for k, (times, rows) in enumerate(many)]
    assert len(merge_pieces(following, compiled=True)[0]) == sum(len(times) for times, _ in many)
    assert len(calls) == 1


_merged = merged_pieces._merged


@pytest.mark.parametrize("algorithm", ["llhj", "scalejoin"])
def test_streams_of_several_sources_use_it(monkeypatch, algorithm):
    """Where nodes are compiled, whoever merges sources has compiled code do it; the results are those of tables."""
    calls = []
    monkeypatch.setattr(merged_pieces, "_merged", lambda *given: calls.append(given) or _merged(*given))
    monkeypatch.setattr(merged_pieces, "PIECE_ROWS_MIN", 1 << 6)
    rows = pa.table({"t": np.arange(30_000) // 2, "n": np.arange(30_000), "k": np.arange(30_000) % 701})
    streams = [[cf.stream(rows.take(pa.array(np.arange(k, 30_000, 3))).to_batches(500)) for k in range(3)]] * 2
    options = dict(where="l.k = r.k", time="t", window=900, ordered=True)
    want = cf.window_join(rows, rows, **options)
    joined = cf.window_join(*streams, **options, engine=cf.Local(algorithm))
    found = pa.Table.from_batches(joined, schema=joined.schema)
    assert found.num_rows == want.num_rows and calls
    assert found.sort_by([(name, "ascending") for name in ("pair_time", "n", "n_right")]).equals(
        want.combine_chunks().sort_by([(name, "ascending") for name in ("pair_time", "n", "n_right")])
    )
