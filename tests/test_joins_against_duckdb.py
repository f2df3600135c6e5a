"""Every `how` against DuckDB on random tables (differential test)."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest
from hypothesis import given, settings

import counterflow as cf
from inputs import tables

IN_WINDOW = (
    """((r.ts >= l.ts AND r.ts <= l.ts + INTERVAL 2 SECONDS) OR (r.ts < l.ts AND r.ts >= l.ts - INTERVAL 4 SECONDS))"""
)
PREDICATES = ["l.k = r.k", "l.x BETWEEN r.x - 2 AND r.x + 2", "l.x < r.x AND l.k > 0", "l.s = r.s OR l.k IS NULL"]
JOINS = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "SEMI JOIN",
    "anti": "ANTI JOIN",
}


@pytest.mark.parametrize("where", PREDICATES)
@settings(max_examples=15, deadline=None)
@given(left=tables(), right=tables())
def test_every_how(where, left, right):
    connection = duckdb.connect()
    connection.register("left_in", left)
    connection.register("right_in", right)
    for how, keyword in JOINS.items():
        got = cf.window_join(left, right, where=where, time="ts", window=("2 seconds", "4 seconds"), how=how)
        one_sided = how in ("semi", "anti")
        select = "l.id" if one_sided else "l.id, r.id"
        query = f"SELECT {select} FROM left_in l {keyword} right_in r ON ({where}) AND {IN_WINDOW}"
        names = ["id"] if one_sided else ["id", "id_right"]
        ours = Counter(zip(*(got[name].to_pylist() for name in names), strict=True))
        assert ours == Counter(connection.execute(query).fetchall())
