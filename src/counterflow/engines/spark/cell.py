"""One cell's join: new rows against stored chunks. It knows nothing of Spark.

Rows come in any order up to the watermark's delay, so coordinates are times: a new row meets the opposite
rows within its window, earlier or later. A pair is found once, when the second of the two comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from counterflow.kernels.access import choose_path
from counterflow.kernels.gather import gather
from counterflow.kernels.store import Batch, Chunk, WindowStore, passing, predicate_columns
from counterflow.kernels.times import time_bounds, time_values
from counterflow.kernels.vectors import Array
from counterflow.spec.expression import Side
from counterflow.spec.join_spec import JoinSpec

CHUNK_ROWS_MAX = 1 << 16


@dataclass(frozen=True)
class Rows:
    """Rows of one side, sorted by time: the payload as a table, and what the predicate needs of it as a chunk."""

    side: Side
    table: pa.Table
    times: Array
    chunk: Chunk


def rows_of(spec: JoinSpec, side: Side, table: pa.Table) -> Rows:
    """Sorted by time, without the rows that a one-sided condition keeps from matching anything."""
    side_spec = spec.left if side == "left" else spec.right
    columns = predicate_columns(spec.predicate, side, table)
    times = time_values(side_spec, table)
    order = passing(spec.parts.filters(side), side, columns, len(table))
    if order is None:
        order = np.arange(len(table))
    if (times[order][1:] < times[order][:-1]).any():
        order = order[np.argsort(times[order], kind="stable")]
    if len(order) != len(table) or (order != np.arange(len(order))).any():
        table, times = table.take(pa.array(order)), times[order]
        columns = {name: vector.take(order) for name, vector in columns.items()}
    low, high = time_bounds(spec, side, times)
    batch = Batch(side, columns, np.arange(len(times)), times, low, high)
    return Rows(side, table, times, Chunk(batch, choose_path(spec.parts, side)))


def split_rows(spec: JoinSpec, side: Side, tables: list[pa.Table]) -> list[Rows]:
    """The tables' rows in pieces of at most CHUNK_ROWS_MAX."""
    if not tables:
        return []
    whole = rows_of(spec, side, pa.concat_tables(tables))
    cuts = [slice(i, i + CHUNK_ROWS_MAX) for i in range(0, len(whole.times), CHUNK_ROWS_MAX)]
    return [
        Rows(side, whole.table[cut], whole.times[cut], Chunk(whole.chunk.batch.take(cut), whole.chunk.path))
        for cut in cuts
    ]


def join_rows(spec: JoinSpec, new: list[Rows], stored: list[Rows]) -> Iterator[pa.Table]:
    """The pairs that the new rows make with the stored ones and with each other, in tables of some rows."""
    new_left, new_right = ([r for r in new if r.side == side] for side in ("left", "right"))
    old_left, old_right = ([r for r in stored if r.side == side] for side in ("left", "right"))
    yield from _probe(spec, new_left, [*old_right, *new_right])
    yield from _probe(spec, new_right, old_left)


def _probe(spec: JoinSpec, probing: Iterable[Rows], targets: list[Rows]) -> Iterator[pa.Table]:
    if not targets:
        return
    store = WindowStore(targets[0].side, targets[0].chunk.path, spec.predicate)
    by_chunk = {id(rows.chunk): rows for rows in targets}
    for rows in targets:
        store.add(rows.chunk)
    for rows in probing:
        for chunk, p, s in store.probe(rows.chunk.batch):
            target = by_chunk[id(chunk)]
            pair_time = np.maximum(rows.times[p], target.times[s])
            if rows.side == "left":
                yield gather(spec, rows.table, target.table, p, s, pair_time)
            else:
                yield gather(spec, target.table, rows.table, s, p, pair_time)
