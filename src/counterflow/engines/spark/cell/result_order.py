"""The order of results: columns that say it, each cell's results in it, and many cells' results merged.

cell 0:  sorted run ┐
cell 1:  sorted run ┼──► merged, without sorting anything again
cell 2:  sorted run ┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.cell.row_order import RESERVED, SOURCE, TIE
from counterflow.windows.compiled.forking import compiled_module
from counterflow.windows.times import INT64
from counterflow.windows.vectors import Array

# The columns that put results in order, after `pair_time`; an unmatched row has no earlier one and comes first.
ORDER = tuple(
    f"{RESERVED}{name}"
    for name in (
        "later_time",
        "later_side",
        "later_source",
        "later_tie",
        "earlier_time",
        "earlier_source",
        "earlier_tie",
    )
)
COMPILE_AFTER = 20_000  # results: numpy sorts fewer of them while the compiled code is loaded


@dataclass(frozen=True)
class Half:
    """One side of some results: the rows of a table, or those at `index`."""

    table: pa.Table
    times: Array
    index: Array | None = None


def with_order(table: pa.Table, left: Half | None, right: Half | None) -> pa.Table:
    """Return the results with the columns that put them in order."""

    def order_of(half: Half) -> tuple[Array, Array, Array]:
        columns = [half.table.column(name).to_numpy() for name in (SOURCE, TIE)]
        return half.times, *(c if half.index is None else c[half.index] for c in columns)

    n = len(table)
    if left is not None and right is not None:
        a, b = order_of(left), order_of(right)
        right_later = b[0] >= a[0]
        later = [np.where(right_later, y, x) for x, y in zip(a, b, strict=True)]
        earlier = [np.where(right_later, x, y) for x, y in zip(a, b, strict=True)]
    else:
        half = left or right
        assert half is not None
        right_later = np.full(n, left is None)
        later, earlier = list(order_of(half)), [np.full(n, INT64.min), np.zeros(n, np.int64), np.zeros(n, np.int64)]
    values = [later[0], right_later.astype(np.int64), *later[1:], *earlier]
    for name, column in zip(ORDER, values, strict=True):
        table = table.append_column(name, pa.array(column))
    return table


def sorted_results(table: pa.Table) -> pa.Table:
    """Return the results ascending by (pair_time, later tuple, earlier tuple)."""
    return table.combine_chunks().take(pa.array(np.lexsort(_keys(table)[::-1])))


def merged_results(runs: Sequence[pa.Table]) -> pa.Table:
    """Return the results of several runs as one, each in order, without the columns that say it."""
    table = pa.concat_tables(runs).combine_chunks()
    if len(runs) > 1:
        table = table.take(pa.array(_merged(_keys(table), [len(run) for run in runs])))
    return table.drop_columns(list(ORDER))


def _keys(table: pa.Table) -> list[Array]:
    """Return the columns by which results are in order, the first one first."""
    times = table.column("pair_time").cast(pa.int64()).to_numpy()
    return [times, *(table.column(name).to_numpy() for name in ORDER)]


def _merged(keys: list[Array], rows: list[int]) -> Array:
    """Return the rows of runs of these lengths in the order of all."""
    if len(keys[0]) < COMPILE_AFTER:
        return np.lexsort(keys[::-1])
    order, spare = np.arange(len(keys[0])), np.empty(len(keys[0]), np.int64)
    merge_runs = compiled_module("run_merging").merge_runs
    merge_runs(np.stack(keys, axis=1), np.cumsum(rows), order, spare)
    return order
