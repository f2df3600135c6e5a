"""A cell without Spark: any batches, any watermarks, any loss of the hot windows; every window, `how` and order.

Oracle test: over all steps the results are those of `reference` on the rows that were not late, and with `ordered`
in its sequence. Each step also checks that nothing comes before it is due, or after.
"""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.spark.cell import cell as cell_module
from counterflow.engines.spark.cell.cell import BEGIN, END, NewRows
from counterflow.engines.spark.cell.result_order import merged_results
from counterflow.engines.spark.cell.row_order import SOURCE, TIE, is_order_sensitive
from counterflow.engines.spark.cell.row_window_cell import new_cell
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.layout import choose_layout
from counterflow.lab.simulator.window_forms import BOUNDED
from counterflow.spec.join_spec import build_spec
from counterflow.windows.compiled import compiled_window, similar_texts
from counterflow.windows.pair_buffers import Pairs
from effort import examples
from inputs import START_S, joins, table_of
from interpreted import searching
from oracle import HOWS, expected, results


def with_order(table: pa.Table) -> pa.Table:
    """The row's position as its tie, so that the order is the reference's."""
    table = table.append_column(TIE, table["id"])
    return table.append_column(SOURCE, pa.array(np.zeros(len(table), np.int64)))


def times_of(table: pa.Table) -> np.ndarray:
    return table["ts"].cast("int64").to_numpy()


class Run:
    """One cell through micro-batches, with what is durable of it kept beside."""

    def __init__(self, spec, how, threads=1):
        self.spec, self.how, self.threads = spec, how, threads
        self.layout = choose_layout(spec, Spark(layout="1x1"), 1)
        self.cell = new_cell(spec, self.layout.grids[0], threads)
        self.chunks: list[tuple[str, pa.Table]] = []
        self.watermark = BEGIN
        self.out: list[tuple] = []

    def rebuild(self) -> None:
        self.cell = new_cell(self.spec, self.layout.grids[0], self.threads)
        self.cell.load(self.chunks, self.watermark)

    def step(self, left: pa.Table, right: pa.Table, watermark: int) -> None:
        new = [(s, t) for s, t in (("left", left), ("right", right)) if len(t)]
        if is_order_sensitive(self.spec):
            new = [(s, with_order(t)) for s, t in new]
        found = list(self.cell.step([NewRows(s, t) for s, t in new], self.watermark, watermark))
        if found:
            table = merged_results(found) if self.spec.ordered else pa.concat_tables(found)
            self.out += results(table, self.how)
        needless = self.cell.forget(watermark)
        self.chunks = [(s, t) for s, t in [*self.chunks, *new] if times_of(t).max() > needless[s]]
        self.watermark = watermark


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=examples(600), deadline=None)
@given(inputs=joins(20, forms=BOUNDED), ordered=st.booleans(), data=st.data())
def test_any_batches_and_watermarks(how, inputs, ordered, data):
    left, right, options = inputs
    options |= dict(how=how, ordered=ordered)
    times = st.sampled_from([0, *times_of(left).tolist(), *times_of(right).tolist()])
    run = Run(build_spec(left.schema, right.schema, **options), how)
    kept: tuple[list, list] = ([], [])
    start = (0, 0)
    cuts = sorted(data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=8)))
    for end in [*cuts, (len(left), len(right))]:
        parts = [t.slice(a, max(0, b - a)) for t, a, b in zip((left, right), start, end, strict=True)]
        parts = [t.filter(pa.array(times_of(t) > run.watermark)) if run.watermark > BEGIN else t for t in parts]
        start = tuple(max(a, b) for a, b in zip(start, end, strict=True))
        for side, part in enumerate(parts):
            kept[side].append(part)
        if data.draw(st.booleans()):
            run.rebuild()
        moved = data.draw(st.one_of(st.just(BEGIN), st.builds(int.__add__, times, st.integers(-1, 1))))
        run.step(*parts, max(run.watermark, moved))
    run.step(left.slice(0, 0), right.slice(0, 0), END)
    want = expected(pa.concat_tables(kept[0]), pa.concat_tables(kept[1]), **options)
    if ordered:
        assert run.out == want
    assert Counter(run.out) == Counter(want)


@settings(max_examples=examples(450), deadline=None)
@given(
    inputs=joins(16, forms=BOUNDED),
    how=st.sampled_from(HOWS),
    ordered=st.booleans(),
    threads=st.sampled_from([1, 2, 3]),
    data=st.data(),
)
def test_threads_change_nothing(inputs, how, ordered, threads, data):
    """In kernels, where windows are scanned and where they have an index; all work is worth a thread here."""
    left, right, options = inputs
    options |= dict(how=how, ordered=ordered)
    with searching("kernels"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_window, "PART_COMPARISONS", 1)
        patch.setattr(similar_texts, "PART_TEXTS", 1)
        patch.setattr(cell_module, "PAIRS_AT_ONCE", 2)
        patch.setattr(cell_module, "PAIRS_AT_ONCE_MAX", 3)
        patch.setattr(Pairs.__init__, "__defaults__", (2,))
        patch.setattr(compiled_window, "PAIRS_MAX", data.draw(st.sampled_from([2, 1000])))
        run = Run(build_spec(left.schema, right.schema, **options), how, threads)
        middle = max([0, *times_of(left).tolist()]) - 2_000_000
        cuts = data.draw(st.tuples(st.integers(0, 16), st.integers(0, 16)))
        run.step(left[: cuts[0]], right[: cuts[1]], BEGIN)
        if data.draw(st.booleans()):
            run.rebuild()
        run.step(left[cuts[0] :], right[cuts[1] :], middle)
        run.step(left[:0], right[:0], END)
    want = expected(left, right, **options)
    assert run.out == want if ordered else Counter(run.out) == Counter(want)


def one(second: float, x: int = 1) -> pa.Table:
    table = table_of([(0, 1, x, 1.0, "a")])
    at = pa.array([int((START_S + second) * 1_000_000)], table.schema.field("ts").type)
    return table.set_column(1, "ts", at)


NONE = one(0).slice(0, 0)


@pytest.mark.parametrize(("ordered", "due"), [(False, 13), (True, 13)])
def test_an_unmatched_row_comes_as_soon_as_it_is_due(ordered, due):
    """A left row at 10 s with a window of 3 s can be met until 13 s: out when the watermark is there, not before."""
    options = dict(where="l.x = r.x", time="ts", window="3 seconds", how="left", ordered=ordered)
    run = Run(build_spec(NONE.schema, NONE.schema, **options), "left")
    run.step(one(10), NONE, START_S * 1_000_000)
    for second in range(1, 20):
        run.step(NONE, NONE, (START_S + second) * 1_000_000)
        assert len(run.out) == (second >= due)


@pytest.mark.parametrize("how", HOWS)
def test_a_tie_is_a_match_where_the_right_window_is_zero_and_open(how):
    """The right row leaves at once, but not before it has met the left one of its own time."""
    options = dict(where="l.x = r.x", time="ts", window=cf.window(after=cf.rows(2), closed=False), how=how)
    run = Run(build_spec(NONE.schema, NONE.schema, **options), how)
    run.step(one(10), one(10), START_S * 1_000_000)
    run.step(NONE, NONE, END)
    assert run.out == expected(one(10), one(10), **options)


def test_a_semi_row_comes_with_its_first_pair():
    """Of two partners that come in the wrong order the earlier one counts, and the row comes once."""
    options = dict(where="l.x = r.x", time="ts", window="9 seconds", how="semi")
    run = Run(build_spec(NONE.schema, NONE.schema, **options), "semi")
    run.step(one(1), one(8), START_S * 1_000_000)
    run.step(NONE, one(5), (START_S + 1) * 1_000_000)
    run.step(NONE, NONE, (START_S + 5) * 1_000_000)
    assert run.out == [(0, None, (START_S + 5) * 1_000_000)]
    run.step(NONE, one(6), (START_S + 20) * 1_000_000)
    assert len(run.out) == 1


def test_rows_of_a_long_window_leave_few_segments():
    """Batches of one row, without end: the number of segments grows with the logarithm of the window."""
    options = dict(where="l.x = r.x", time="ts", window="200 seconds")
    run = Run(build_spec(NONE.schema, NONE.schema, **options), "inner")
    for second in range(400):
        run.step(one(second), NONE, (START_S + second) * 1_000_000)
    assert len(run.cell.left.segments) < 20 and len(run.cell.left.store) < 300
