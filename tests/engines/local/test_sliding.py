"""Rows that slide along, and rings of records: what is picked of them, compiled or not, is what was appended."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from counterflow.engines.local import sliding
from counterflow.engines.local.output import records
from counterflow.engines.local.output.records import Records
from counterflow.engines.local.sliding import Sliding
from counterflow.windows.compiled import picking

DTYPES = [np.int64, np.int32, np.int16, np.int8, np.bool_, np.dtype("V16"), np.float64]
moves = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=12)


def values(dtype, n, seed):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 if dtype.kind == "b" else 256, n * dtype.itemsize, np.uint8).view(dtype)


def appended(kept, dtypes, moves, late, seed):
    """Append and drop rows; yield, after each step, all columns until then and some rows that are live.

    A column that comes later has zeros before.
    """
    known = {f"value {k}": np.zeros(0, dtype) for k, dtype in enumerate(dtypes)}
    first = 0
    for step, (n, dropped) in enumerate(moves):
        new = {name: values(column.dtype, n, seed + step + 7 * k) for k, (name, column) in enumerate(known.items())}
        if step >= late:  # as a mask of NULLs does
            new["late"] = values(np.bool_, n, seed + step)
            known.setdefault("late", np.zeros(kept.next, bool))
        kept.append(new, n)
        known = {name: np.concatenate([column, new[name]]) for name, column in known.items()}
        kept.drop(dropped)
        first = max(first, min(dropped, kept.next))
        total = sum(n for n, _ in moves[: step + 1])
        assert (kept.first, len(kept)) == (first, total - first)
        rows = np.random.default_rng(seed + step).integers(first, max(kept.next, first + 1), 200 if len(kept) else 0)
        yield known, rows


@settings(max_examples=60, deadline=None)
@given(dtypes=st.lists(st.sampled_from(DTYPES), max_size=3), moves=moves, late=st.integers(0, 12), seed=st.integers(0))
def test_sliding_columns(dtypes, moves, late, seed):
    """Against lists. The arrays are small, so that rows move."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliding, "CAPACITY_MIN", 8)
        kept = Sliding()
        for known, rows in appended(kept, dtypes, moves, late, seed):
            for name, column in known.items():
                assert np.array_equal(kept.get(name, rows).tobytes(), column[rows].tobytes())
                assert np.array_equal(kept.live(name).tobytes(), column[kept.first :].tobytes())


@pytest.mark.parametrize("compiled", [None, picking], ids=["numpy", "compiled"])
@settings(max_examples=60, deadline=None)
@given(
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=12),
    moves=moves,
    late=st.integers(0, 12),
    seed=st.integers(0),
)
def test_records(compiled, dtypes, moves, late, seed):
    """Against lists. The ring is small, so that rows go round its end, and it grows and shrinks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "CAPACITY_MIN", 8)
        kept = Records()
        kept.compiled = compiled
        assert "late" not in kept
        for known, rows in appended(kept, dtypes, moves, late, seed):
            names = tuple(name for name in known if name in kept)
            for name, picked in zip(names, kept.pick(rows, names), strict=True):
                assert picked.to_pybytes() == known[name][rows].tobytes()
            for name in names if len(rows) else ():
                assert np.array_equal(kept.get(name, rows).tobytes(), known[name][rows].tobytes())
                if known[name].dtype.kind == "i":
                    assert kept.at(name, rows[0]) == known[name][rows[0]]
