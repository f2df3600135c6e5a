"""What a join must return, recomputed by `reference`, and what it did return, in the same form."""

from __future__ import annotations

from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec

HOWS = ["inner", "left", "right", "full", "semi", "anti"]


def expected(left, right, **options):
    """The reference's results as (left id, right id, pair_time in microseconds)."""
    spec = build_spec(left.schema, right.schema, **options)
    left_ids, right_ids = left["id"].to_pylist(), right["id"].to_pylist()
    return [
        (None if le is None else left_ids[le], None if ri is None else right_ids[ri], time)
        for le, ri, time in reference_pairs(spec, left, right)
    ]


def results(table, how):
    right_ids = table["id_right"].to_pylist() if "id_right" in table.column_names else [None] * len(table)
    times = table["pair_time"].cast("int64").to_pylist()
    return list(zip(table["id"].to_pylist(), right_ids, times, strict=True))
