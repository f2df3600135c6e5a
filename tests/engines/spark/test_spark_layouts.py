"""Whole queries without Spark: rows are packed, sent to the cells of any layout, joined and unpacked.

Oracle test: the same results as `reference` for every layout, window and `how`, and with `ordered` in its sequence;
whatever the batches and watermarks, also if attempts of tasks are lost and hosts end.
"""

from __future__ import annotations

import copy
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from cells import FakeHandle
from counterflow.engines.spark.cell.result_order import merged_results
from counterflow.engines.spark.cell.row_order import TIE, has_row_windows
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.cell_operator import CounterflowCell
from counterflow.engines.spark.query.layout import choose_layout
from counterflow.engines.spark.query.routing import pack
from counterflow.engines.spark.query.value_axis import BANDS_A_PLACE
from counterflow.engines.spark.state import hosts
from counterflow.engines.spark.state.blobs import from_blob
from counterflow.lab.simulator.window_forms import BOUNDED
from counterflow.spec.join_spec import build_spec
from effort import examples
from inputs import PREDICATES, form_of, table_of, tables, windows
from oracle import HOWS, expected, results

START_MS = 1_704_067_200_000
LAYOUTS = ["auto", "1x1", "2x2", "1x3", "3x1", "home:3", "hash:3", "band:2", "band:5"]
BANDS = [
    "greatest(abs(l.x - r.x), abs(l.f - r.f)) <= 2",
    "l.f - r.f BETWEEN -1 AND 2",
    *(
        PREDICATES[name]
        for name in PREDICATES
        if any(word in name for word in ("band", "distance", "levenshtein", "ratio")) and "OR" not in name
    ),
]
KEYS = ["l.f = r.f", "l.x = r.f", "l.k <=> r.x AND l.f = r.f", "l.s <=> r.s", "l.k = r.x AND l.ts = r.ts"]


class Query:
    """As Spark runs it: in each batch every cell gets its rows, then its timers; some attempts are lost."""

    def __init__(self, left: pa.Schema, right: pa.Schema, layout: str, lose, **options: Any) -> None:
        self.spec = build_spec(left, right, streaming=True, **options)
        self.layout = choose_layout(self.spec, Spark(layout=layout), 2)
        self.handles = [FakeHandle() for _ in range(self.layout.cells)]
        self.lose = lose
        self.out: list[tuple] = []
        self.watermark_ms = 0

    def batch(self, left: pa.Table, right: pa.Table, watermark_ms: int) -> None:
        self.watermark_ms = max(watermark_ms, self.watermark_ms)
        messages = self._messages({"left": left, "right": right}) if len(left) + len(right) else {}
        found = []
        for cell, handle in enumerate(self.handles):
            rows = messages.get(self.layout.keys[cell], [])
            if self.lose():
                self._attempt(cell, copy.deepcopy(handle), rows)
            if self.lose():
                hosts.HOST.clear()
            found += self._attempt(cell, handle, rows)
        if found:
            table = merged_results(found) if self.spec.ordered else pa.concat_tables(found)
            self.out += results(table, self.spec.how)

    def _messages(self, sides: dict[str, pa.Table]) -> dict[int, list[tuple]]:
        found: dict[int, list[tuple]] = {}
        for side, table in sides.items():
            table = table.append_column(TIE, table["id"])
            packing = pack(self.spec, self.layout, side, tied=True)  # type: ignore[arg-type]
            for packed in packing(iter(table.combine_chunks().to_batches())):
                for row in packed.to_pylist():
                    found.setdefault(row.pop("cell"), []).append(tuple(row.values()))
        return found

    def _attempt(self, cell: int, handle: FakeHandle, rows: list[tuple]) -> list[pa.Table]:
        operator, key = CounterflowCell(self.spec, self.layout), (self.layout.keys[cell],)
        clock = SimpleNamespace(getCurrentWatermarkInMs=lambda: self.watermark_ms)
        operator.init(handle)  # type: ignore[arg-type]
        frames = []
        if rows:
            frame = pd.DataFrame(rows, columns=["side", "stored", "counted", "payload"])
            frames += list(operator.handleInputRows(key, iter([frame]), clock))
        for timer in [t for t in handle.timers if t <= self.watermark_ms]:
            frames += list(operator.handleExpiredTimer(key, clock, None))
            handle.timers.remove(timer)
        return [from_blob(payload) for frame in frames for payload in frame["payload"] if payload is not None]


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=examples(60), deadline=None)
@given(
    left=tables(16),
    right=tables(16),
    window=windows(forms=BOUNDED),
    how=st.sampled_from(HOWS),
    ordered=st.booleans(),
    data=st.data(),
)
def test_every_layout(layout, left, right, window, how, ordered, data):
    is_band = layout.startswith("band")
    where = data.draw(st.sampled_from(BANDS if is_band else [*PREDICATES.values(), *KEYS]))
    options = dict(where=where, time="ts", window=window, how=how, ordered=ordered)
    lossy = data.draw(st.booleans())
    try:
        with mock.patch.dict(BANDS_A_PLACE, {1: 1, 2: 1} if is_band else {}):  # the tables' values are in few places
            query = Query(left.schema, right.schema, layout, lambda: lossy and data.draw(st.booleans()), **options)
    except cf.OptionError:
        assert layout == "hash:3" or "greatest(abs(l.x - r.x), abs(l.f - r.f)) <= l.k" in where  # no equality, no band
        return
    kept: tuple[list, list] = ([], [])
    start, late_us, watermark = (0, 0), 0, 0
    cuts = sorted(data.draw(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=5)))
    for end in [*cuts, (len(left), len(right))]:
        parts = [t.slice(a, max(0, b - a)) for t, a, b in zip((left, right), start, end, strict=True)]
        start = tuple(max(a, b) for a, b in zip(start, end, strict=True))
        for side, part in enumerate(parts):
            on_time = [t > late_us for t in part["ts"].cast("int64").to_pylist()]
            kept[side].append(part.filter(pa.array(on_time, pa.bool_())))
        ran = len(parts[0]) + len(parts[1]) or query.handles[0].value is not None
        query.batch(*parts, watermark)
        late_us = watermark * 1000 if ran else late_us
        watermark = max(watermark, START_MS + data.draw(st.integers(-1, 10)) * 500)
    query.batch(left[:0], right[:0], START_MS + 10**8)
    want = expected(pa.concat_tables(kept[0]), pa.concat_tables(kept[1]), **options)
    waits = has_row_windows(query.spec) or "huge" in form_of(window, integer_time=False).kinds
    if waits and (query.spec.pads_left or query.spec.pads_right):
        assert not Counter(query.out) - Counter(want)  # the last rows are never due
        assert query.out == want[: len(query.out)] or not ordered
    else:
        assert Counter(query.out) == Counter(want)
        assert query.out == want or not ordered


def test_an_ordered_full_join_waits_for_the_longer_window():
    """The cells that decide left rows and those that decide right ones must not run ahead of each other."""
    left, right = (
        table_of([(1, 1, 1, 1.0, "a"), (3, 2, 1, 1.0, "a")]),
        table_of([(9, 7, 1, 1.0, "a"), (2, 9, 1, 1.0, "a")]),
    )
    options = dict(where="l.k < r.k - 9", time="ts", window=("8 seconds", "1 second"), how="full", ordered=True)
    query = Query(left.schema, right.schema, "2x1", lambda: False, **options)
    query.batch(left, right, 0)
    for second in range(30):
        query.batch(left[:0], right[:0], START_MS + second * 1000)
    assert query.out == expected(left, right, **options)


def test_a_semi_join_does_not_hold_all_pairs():
    """4000 x 4000 pairs: the rows are out, and memory is that of rows."""
    import tracemalloc

    rows = table_of([(0, 1, 1, 1.0, "a")] * 4000)
    query = Query(
        rows.schema, rows.schema, "1x1", lambda: False, where="l.x <= r.x", time="ts", window="1 s", how="semi"
    )
    query.batch(rows, rows, 0)
    tracemalloc.start()
    query.batch(rows[:0], rows[:0], START_MS + 10**6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(query.out) == 4000 and peak < 200 << 20


def test_a_short_window_far_behind_its_watermark_leaves_few_chunks():
    one = table_of([(0, 1, 1, 1.0, "a")])
    query = Query(one.schema, one.schema, "1x1", lambda: False, where="l.x = r.x", time="ts", window="1 s")
    for i in range(300):
        row = one.set_column(1, "ts", pa.array([(START_MS + 500 * i) * 1000], one.schema.field("ts").type))
        query.batch(row, row, START_MS + 500 * max(0, i - 250))
    operator = CounterflowCell(query.spec, query.layout)
    operator.init(query.handles[0])  # type: ignore[arg-type]
    directory = operator._read_directory()
    assert directory is not None and len(directory.chunks) < 60


GUARDED = [
    "l.x < 1000 AND CAST(l.x AS INT) = r.k",
    "l.x < 100 AND CAST(l.x AS TINYINT) = r.x AND l.s = r.s",
    "abs(l.f) < 9 AND CAST(l.f AS INT) = r.k",
    "r.x < 1000 AND l.k <=> CAST(CAST(r.x AS SMALLINT) AS BIGINT)",
    "l.x < 1000 AND CAST(l.x AS DECIMAL(5,2)) = r.x",
    "l.s RLIKE '^[0-9]$' AND CAST(l.s AS INT) = r.k",
]


@pytest.mark.parametrize("where", GUARDED)
def test_a_guard_protects_a_key(where):
    """A CAST that fails on some row is no key: rows are routed before their guard is looked at."""
    rows = [(1, 1, 5, 5.0, "5"), (1, 5, 2**40, 1e300, "a"), (2, None, 3, 3.5, None), (2, 3, 2**40, float("nan"), "5")]
    left, right = table_of(rows), table_of(rows[::-1])
    options = dict(where=where, time="ts", window="3 seconds")
    query = Query(left.schema, right.schema, "auto", lambda: False, **options)
    assert query.layout.kind == ("hash" if "l.s = r.s" in where else "matrix")
    query.batch(left, right, 0)
    want = expected(left, right, **options)
    assert want and Counter(query.out) == Counter(want)


@pytest.mark.parametrize("where", ["l.k = r.x", "CAST(l.k AS BIGINT) = r.x", "l.k = r.f", "l.k = CAST(r.f AS FLOAT)"])
def test_a_cast_that_every_row_survives_is_a_key(where):
    assert (
        Query(table_of([]).schema, table_of([]).schema, "auto", bool, where=where, time="ts", window="3 s").layout.kind
        == "hash"
    )


@pytest.mark.parametrize("name", ["later_time", "earlier_tie", "side", "payload", "row", "at", "time"])
def test_columns_may_have_any_name(name):
    rows = table_of([(1, 1, 1, 1.0, "a")]).rename_columns([name if c == "f" else c for c in table_of([]).column_names])
    where = f"l.`{name}` = r.`{name}`"
    query = Query(rows.schema, rows.schema, "1x1", lambda: False, where=where, time="ts", window="1 s", ordered=True)
    query.batch(rows, rows, 0)
    query.batch(rows[:0], rows[:0], START_MS + 10**6)
    assert len(query.out) == 1
