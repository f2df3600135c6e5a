"""The driver's part: put the tuples in order and stamp each with its ordinal and its horizon.

A tuple may meet the opposite tuples with ordinals from `horizon` (the oldest still in the window when it
arrives) up to, not including, `arrived` (how many came before it). Duration, row and unbounded windows differ
only in how the horizon is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.store import Batch, passing, predicate_columns
from counterflow.windows.times import horizon_of, time_values
from counterflow.windows.vectors import Array


@dataclass(frozen=True)
class Ordered:
    """One side in order. A tuple's ordinal is its place in its own stream, its rank that among both streams."""

    batch: Batch  # what may match; coordinates are ordinals
    batch_rank: Array
    horizon: Array  # of all tuples, also of those that a one-sided condition keeps out of the batch
    rank: Array
    time_by_row: Array
    rank_by_row: Array


@dataclass(frozen=True)
class Arrivals:
    left: Ordered
    right: Ordered

    @property
    def total(self) -> int:
        return len(self.left.time_by_row) + len(self.right.time_by_row)

    def batch(self, begin: int, end: int) -> tuple[Batch, Batch]:
        """The tuples whose rank is in [begin, end)."""
        return _between(self.left, begin, end), _between(self.right, begin, end)

    def window_rows(self) -> tuple[int, int]:
        """The most rows that the left and the right window hold at any time."""
        return _most_in_window(self.right), _most_in_window(self.left)

    def numbered(self) -> Arrivals:
        """The same with numbers for ordinals: counting only the tuples that may match."""
        return Arrivals(_numbered(self.left, self.right), _numbered(self.right, self.left))

    def horizons(self, rank: int) -> tuple[int, int]:
        """The first (left, right) ordinals that tuples from this rank on may still meet."""
        return _next_horizon(self.right, rank), _next_horizon(self.left, rank)


def _numbered(side: Ordered, opposite: Ordered) -> Ordered:
    at, batch = opposite.batch.at, side.batch
    low, high = np.searchsorted(at, batch.low), np.searchsorted(at, batch.high, "right") - 1
    numbers = Batch(batch.side, batch.columns, batch.rows, np.arange(len(batch)), low, high)
    return replace(side, batch=numbers, horizon=np.searchsorted(at, side.horizon))


def _between(side: Ordered, begin: int, end: int) -> Batch:
    first, last = np.searchsorted(side.batch_rank, [begin, end])
    return side.batch.take(slice(int(first), int(last)))


def _most_in_window(probing: Ordered) -> int:
    return int((probing.batch.high - probing.batch.low).max(initial=-1)) + 1


def _next_horizon(side: Ordered, rank: int) -> int:
    """Horizons never go back, so the next tuple of a side has the least of all that follow."""
    following = int(np.searchsorted(side.rank, rank))
    return int(side.horizon[following]) if following < len(side.horizon) else np.iinfo(np.int64).max


def arrivals_of(spec: JoinSpec, left: pa.Table, right: pa.Table) -> Arrivals:
    left_time, right_time = time_values(spec.left, left), time_values(spec.right, right)
    left_order, right_order = _order(left_time), _order(right_time)
    lt, rt = left_time[left_order], right_time[right_order]
    left_arrived, right_arrived = _arrived(lt, rt)
    left_horizon = horizon_of(spec.right.window, lt, left_arrived, partial(np.searchsorted, rt))
    right_horizon = horizon_of(spec.left.window, rt, right_arrived, partial(np.searchsorted, lt))
    return Arrivals(
        _ordered(spec, "left", left, left_time, left_order, left_horizon, left_arrived),
        _ordered(spec, "right", right, right_time, right_order, right_horizon, right_arrived),
    )


def _order(times: Array) -> Array | slice:
    """The rows in order of time; all as they are where they are in order, which then costs no copies."""
    return slice(None) if (times[1:] >= times[:-1]).all() else np.argsort(times, kind="stable")


def _arrived(left_times: Array, right_times: Array) -> tuple[Array, Array]:
    """How many opposite tuples are before each tuple; at equal times the left one is earlier."""
    order = np.argsort(np.concatenate([left_times, right_times]), kind="stable")  # merges two sorted runs
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    n = len(left_times)
    return rank[:n] - np.arange(n), rank[n:] - np.arange(len(right_times))


def _ordered(
    spec: JoinSpec, side: Side, table: pa.Table, time: Array, order: Array | slice, horizon: Array, arrived: Array
) -> Ordered:
    ordinal = np.arange(len(time))
    rank = ordinal + arrived
    rank_by_row = np.empty(len(time), np.int64)
    rank_by_row[order] = rank
    columns = {n: v.take(order) for n, v in predicate_columns(spec.predicate, side, table).items()}
    batch = Batch(side, columns, rows=ordinal[order], at=ordinal, low=horizon, high=arrived - 1)
    # the others can match nothing
    kept = passing(spec.parts.filters(side), side, columns, len(time), spec.required[side])
    if kept is not None:
        return Ordered(batch.take(kept), rank[kept], horizon, rank, time, rank_by_row)
    return Ordered(batch, rank, horizon, rank, time, rank_by_row)
