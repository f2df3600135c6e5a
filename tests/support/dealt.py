"""Rows dealt out to several physical sources of a side, and the results that they have together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from counterflow.predicate.expression import SIDES
from counterflow.reference import window_join as reference_join
from counterflow.reference.table_rows import tuples_of
from counterflow.spec.join_spec import build_spec

SCHEMA = pa.schema({"id": pa.int64(), "t": pa.int64(), "k": pa.int64()})


def dealt(table, sources, rng, disorder=0):
    """The table's rows by source, each up to `disorder` behind the newest before it; batches of random sizes.

    At equal times the sources ascend, and rows of one source stay in order: all together have the table's order.
    """
    times = table["t"].to_numpy()
    drawn = rng.integers(0, sources, len(table))
    owner, late_by = drawn[np.lexsort((drawn, times))], rng.integers(0, disorder + 1, int(times.max(initial=0)) + 1)
    parts = []
    for source in range(sources):
        mine = np.flatnonzero(owner == source)
        arrived = mine[np.argsort(times[mine] + late_by[times[mine]], kind="stable")]
        rows, batches = table.take(pa.array(arrived)).combine_chunks(), []
        while len(rows):
            size = int(rng.integers(1, 40))
            batches += rows.slice(0, size).to_batches()
            rows = rows.slice(size)
        parts.append(batches)
    return parts


def rows_in_order(count, rng, span):
    columns = [np.arange(count), np.sort(rng.integers(0, span, count)), rng.integers(0, 5, count)]
    return pa.table(columns, schema=SCHEMA)


def by_reference(sides, options):
    spec = build_spec(SCHEMA, SCHEMA, **options)
    left, right = (list(tuples_of(spec, spec.side(side), t)) for side, t in zip(SIDES, sides, strict=True))
    return [
        (None if r.left is None else r.left.position, None if r.right is None else r.right.position, r.pair_time)
        for r in reference_join(spec, left, right)
    ]
