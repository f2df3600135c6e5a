"""Rows that slide along: what is picked of them, compiled or not, is what was appended."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from counterflow.engines.local import sliding
from counterflow.engines.local.sliding import Sliding
from counterflow.windows.compiled import picking

DTYPES = [np.int64, np.int32, np.int16, np.int8, np.bool_, np.dtype("V16"), np.float64]


def values(dtype, n, seed):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 if dtype.kind == "b" else 256, n * dtype.itemsize, np.uint8).view(dtype)


@pytest.mark.parametrize("compiled", [None, picking], ids=["numpy", "compiled"])
@settings(max_examples=60, deadline=None)
@given(
    dtypes=st.lists(st.sampled_from(DTYPES), max_size=5),
    searched=st.booleans(),
    moves=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=12),
    late=st.integers(0, 12),
    seed=st.integers(0, 1000),
)
def test_what_is_picked_is_what_was_appended(compiled, dtypes, searched, moves, late, seed):
    """Against lists; a column that comes later has zeros before. The arrays are small, so that rows move."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliding, "CAPACITY_MIN", 8)
        kept = Sliding(searched=["rank"] if searched else [])
    kept.compiled = compiled
    names = {"rank": np.int64, **{f"value {k}": dtype for k, dtype in enumerate(dtypes)}}
    known = {name: np.zeros(0, dtype) for name, dtype in names.items()}
    first = 0
    for step, (n, dropped) in enumerate(moves):
        new = {name: values(dtype, n, seed + step + 7 * k) for k, (name, dtype) in enumerate(names.items())}
        if step >= late:  # as a mask of NULLs does
            new["late"] = values(np.bool_, n, seed + step)
            known.setdefault("late", np.zeros(kept.next, bool))
        kept.append(new, n)
        known = {name: np.concatenate([column, new[name]]) for name, column in known.items()}
        kept.drop(dropped)
        first = max(first, min(dropped, kept.next))
        assert (kept.first, len(kept)) == (first, len(known["rank"]) - first)
        rows = np.random.default_rng(seed + step).integers(first, max(kept.next, first + 1), 30 if len(kept) else 0)
        picked = kept.pick(rows)
        for name, column in known.items():
            assert np.array_equal(picked[name].tobytes(), column[rows].tobytes())
            assert np.array_equal(kept.get(name, rows).tobytes(), column[rows].tobytes())
            assert np.array_equal(kept.live(name).tobytes(), column[first:].tobytes())
        assert picked.get("nothing") is None
