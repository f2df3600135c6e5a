"""The operator without Spark: its handle is a stand-in, so that hypothesis can try many batch borders.

Oracle test: whatever the batches, the watermarks, the merging of chunks and the loss of hot copies, the pairs are
those of `reference` on the rows that were not late.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import hypothesis.strategies as st
import pandas as pd
import pyarrow as pa
from hypothesis import given, settings

import counterflow as cf
from cells import Cell, hashed, layout_of
from counterflow.engines.spark.cell.row_order import TIE
from counterflow.engines.spark.query.cell_operator import CounterflowCell, _lasting_name
from counterflow.engines.spark.query.routing import pack
from counterflow.engines.spark.state import blobs, hosts
from counterflow.engines.spark.state.blobs import from_blob
from counterflow.engines.spark.state.directory import Directory
from counterflow.engines.spark.state.identity import origin_of
from counterflow.lab.simulator.window_forms import BOUNDED
from counterflow.spec.join_spec import build_spec
from inputs import benchmark_inputs, table_of, tables, windows
from oracle import expected


def pairs_of(parts: list[pa.Table]) -> Counter:
    rows = [r for part in parts for r in part.to_pylist()]
    return Counter((r["id"], r["id_right"], int(r["pair_time"].timestamp()) * 1_000_000) for r in rows)


@settings(max_examples=60, deadline=None)
@given(left=tables(40), right=tables(40), window=windows(forms=BOUNDED), data=st.data())
def test_any_batches_and_watermarks(left, right, window, data):
    options = dict(where="l.k = r.k OR l.x > r.x", time="ts", window=window)
    cell = Cell(build_spec(left.schema, right.schema, **options))
    cuts = sorted(data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)))
    watermark, late_before, kept = 0, 0, ([], [])
    start = (0, 0)
    for end in [*cuts, (len(left), len(right))]:
        parts = [t.slice(a, max(0, b - a)) for t, a, b in zip((left, right), start, end, strict=True)]
        start = tuple(max(a, b) for a, b in zip(start, end, strict=True))
        if data.draw(st.booleans()):
            hosts.HOST.clear()  # another worker: everything is read back
        if data.draw(st.booleans()):  # a first attempt of the task, whose state is never committed
            cell.attempt().batch(*parts, watermark, stop_early=data.draw(st.booleans()))
        cell.batch(*parts, watermark)
        for side, part in enumerate(parts):
            times = part["ts"].cast("int64").to_pylist()
            kept[side].append(part.filter(pa.array([t > late_before for t in times], pa.bool_())))
        late_before, watermark = (
            watermark * 1000,
            max(watermark, data.draw(st.integers(1_704_067_195_000, 1_704_067_206_000))),
        )
    cell.batch(left[:0], right[:0], watermark + 10**8)  # rows of a row window wait for it
    # At equal times the hash decides the order of rows, which matters to windows of rows.
    left, right = (hashed(cell.spec, pa.concat_tables(parts)).sort_by(TIE) for parts in kept)
    want = expected(left, right, **options)
    assert pairs_of(cell.pairs) == Counter(want)


def test_an_attempt_that_stores_nothing_new_is_not_believed():
    """All rows of the batch expire in it, so the live chunks are the same after the lost attempt as before."""
    options = dict(where="l.k = r.k", time="ts", window="2 seconds")
    rows = [table_of([(second, 1, 1, 1.0, "a")]) for second in (1000, 50)]
    cell = Cell(build_spec(rows[0].schema, rows[0].schema, **options))
    start = 1_704_067_200_000
    cell.batch(rows[0], rows[0], start)
    cell.attempt().batch(rows[1], rows[1], start + 500_000)
    cell.batch(rows[1], rows[1], start + 500_000)
    assert sum(len(part) for part in cell.pairs) == 2


def test_small_batches_do_not_pile_up():
    """Two thousand rows a side in 500 micro-batches over four windows: few chunks, little more than the window."""
    left, right = benchmark_inputs(rows=2000, seconds=3600)
    spec = build_spec(left.schema, right.schema, where="l.x = r.a", time="ts", window="15 minutes")
    cell = Cell(spec)
    begin = min(t["ts"][0].value // 1000 for t in (left, right)) - 1
    most = 0
    for i in range(500):
        parts = [t.slice(4 * i, 4) for t in (left, right)]
        newest_ms = min(t["ts"][max(4 * i - 1, 0)].value // 1000 for t in (left, right))
        cell.batch(*parts, max(begin, newest_ms - 60_000))
        most = max(most, len(cell.directory.chunks))
    want = cf.window_join(left, right, where="l.x = r.a", time="ts", window="15 minutes")
    found = pa.concat_tables(cell.pairs)
    assert sorted(zip(*(found[n].to_pylist() for n in "zc"), strict=True)) == sorted(
        zip(*(want[n].to_pylist() for n in "zc"), strict=True)
    )
    live = cell.directory
    assert most < 60
    assert set(cell.handle.map) == {(entry.id,) for entry in live.chunks}
    held = sum(entry.rows for entry in live.chunks)
    assert 2 * 500 <= held <= 2 * 500 * 1.5 + 100  # a window holds 500 rows a side


def test_large_inputs_are_cut_into_pieces(monkeypatch):
    monkeypatch.setattr(blobs, "BLOB_ROWS_MAX", 100)
    left, right = (t.take(list(reversed(range(len(t))))) for t in benchmark_inputs(rows=350, seconds=600))
    options = dict(where="abs(l.x - r.a) <= 2", time="ts", window="1 minute")
    cell = Cell(build_spec(left.schema, right.schema, **options))
    cell.batch(left, right, 0)
    assert [entry.rows for entry in cell.directory.chunks] == [100, 100, 100, 50] * 2
    want = cf.window_join(left, right, **options)
    assert len(want) > 50
    assert sorted(map(str, pa.concat_tables(cell.pairs).to_pylist())) == sorted(map(str, want.to_pylist()))


def test_a_row_s_lane_depends_on_nothing_but_the_row():
    """A DECIMAL beyond 64 bits in the same table must not send the other rows elsewhere."""
    times = pa.array(range(20), pa.timestamp("us", "UTC"))
    small = pa.table({"ts": times, "d": pa.array([Decimal(i) for i in range(20)], pa.decimal128(38, 0))})
    large = pa.table({"ts": times[:1], "d": pa.array([Decimal(10) ** 30], pa.decimal128(38, 0))})
    spec = build_spec(small.schema, small.schema, where="l.d < r.d", time="ts", window="1 second")

    def lanes(table):
        found = {}
        for message in pack(spec, layout_of(spec, "4x1"), "left")(iter(table.combine_chunks().to_batches())):
            for cell, payload in zip(message["cell"].to_pylist(), message["payload"].to_pylist(), strict=True):
                found |= {d: cell for d in from_blob(payload)["d"].to_pylist()} if payload else {}
        return found

    alone, together = lanes(small), lanes(pa.concat_tables([small, large]))
    assert alone == {d: cell for d, cell in together.items() if d < 20} and len(set(alone.values())) > 1


def test_rows_without_a_time_are_counted_once():
    """Whatever the layout: the first cell is told how many there were."""
    times = pa.array([1, None, 3, None], pa.timestamp("us", "UTC"))
    table = pa.table({"ts": times, "k": [1, 2, 3, 4]})
    spec = build_spec(table.schema, table.schema, where="l.k < r.k", time="ts", window="1 second")
    for name in ("1x1", "2x3", "home:3"):
        layout, counted = layout_of(spec, name), []
        for side in ("left", "right"):
            messages = pack(spec, layout, side, drop_null_times=True)(iter(table.to_batches()))
            rows = [row for batch in messages for row in batch.to_pylist()]
            for cell in range(layout.cells):
                frame = pd.DataFrame([row for row in rows if row["cell"] == layout.keys[cell]])
                batch = CounterflowCell(spec, layout)._receive(iter([frame]), None)
                counted.append((side, batch.totals))
        for side in ("left", "right"):
            of_side = [totals for given, totals in counted if given == side]
            assert [getattr(t, f"null_times_{side}") for t in of_side] == [2] + [0] * (layout.cells - 1)
            assert sum(getattr(t, f"rows_{side}") for t in of_side) == 2


def test_late_rows_of_two_joins_have_different_files():
    """Two joins of a query may write to one folder; a restart makes the operator anew, and goes on with its names."""
    schema = table_of([(1, 1, 1, 1.0, "a")]).schema

    def name(where: str, cell: int = 0) -> str:
        spec = build_spec(schema, schema, where=where, time="ts", window="1 second")
        identity = CounterflowCell(spec, layout_of(spec, "1x2")).identity
        return _lasting_name(Directory(identity, origin_of(identity)), cell)

    assert name("l.k = r.k") == name("l.k = r.k")
    assert len({name("l.k = r.k"), name("l.k < r.k"), name("l.k = r.k", 1)}) == 3
