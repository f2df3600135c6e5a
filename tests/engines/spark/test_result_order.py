"""Results of cells, merged in order."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from counterflow.engines.spark.cell import result_order
from counterflow.engines.spark.cell.result_order import ORDER, merged_results, sorted_results

# Few values, so that many rows are equal in their first keys.
keys = st.tuples(*[st.integers(-1, 1)] * (1 + len(ORDER)))


def results_of(rows: list[tuple]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * (1 + len(ORDER))
    named = {
        name: pa.array(list(values), pa.int64()) for name, values in zip(("pair_time", *ORDER), columns, strict=True)
    }
    return pa.table({"row": pa.array([str(row) for row in rows], pa.string()), **named})


@pytest.mark.parametrize("compile_after", [0, 1_000_000])
@settings(deadline=None)
@given(runs=st.lists(st.lists(keys, min_size=1, max_size=40), min_size=1, max_size=9))
def test_merged_runs_are_what_sorting_gives(compile_after, runs):
    """Oracle test: the oracle sorts the rows of all runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_order, "COMPILE_AFTER", compile_after)
        merged = merged_results([sorted_results(results_of(run)) for run in runs])
    assert merged.column_names == ["row", "pair_time"]
    assert merged["row"].to_pylist() == [str(row) for row in sorted(row for run in runs for row in run)]


def test_equal_rows_stay_in_the_order_of_their_runs(monkeypatch):
    monkeypatch.setattr(result_order, "COMPILE_AFTER", 0)
    runs = [results_of([(0,) * (1 + len(ORDER))]).set_column(0, "row", pa.array([name])) for name in "abcde"]
    assert merged_results(runs)["row"].to_pylist() == list("abcde")
    assert np.array_equal(result_order._merged([np.array([3, 1, 2])], [1, 2]), [1, 2, 0])
