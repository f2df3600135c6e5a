"""Streams in process: what comes out, whatever the batches, the interleaving, the disorder and the sources.

Oracle tests: which rows are late is recomputed row by row, and their join by `reference`. The driver, the core and the
results run here in one thread, so that hypothesis decides what comes when; `test_local_threads.py` has the threads.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.local.core import Found
from counterflow.engines.local.input.intake import End
from counterflow.engines.local.input.watermarks import time_of, watermark_ticks
from counterflow.engines.local.order import Due
from counterflow.engines.local.output.results import make_results
from counterflow.engines.local.stamps import Stamping
from counterflow.spec.join_spec import build_spec
from inputs import table_of
from interpreted import SEARCHES, searching
from live import after_left
from oracle import HOWS
from stepped import (
    BASE,
    DRAWN,
    Fed,
    Stepped,
    events_of,
    expected_results,
    expected_rows,
    one_batch,
    tables_of,
)

SECOND = 1_000_000


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=60, deadline=None)
@given(
    **DRAWN,
    batch_rows=st.integers(1, 12),
    search=st.sampled_from(SEARCHES),
)
def test_every_interleaving(how, ordered, left, right, chosen, where, window, batch_rows, search):
    """Late rows are as defined, all others are joined as `reference` does; order, punctuation and schema hold."""
    fed = left + right
    happened = events_of(fed, chosen)
    options = dict(where=where, time="ts", window=window, how=how, ordered=ordered)
    tables = tables_of(fed)
    kept, late = expected_rows(fed, happened)
    with searching(search):
        join = Stepped(fed, engine=cf.Local(batch_rows=batch_rows), **options)
        join.feed(happened, tables)
    for side in ("left", "right"):
        want = {tables[i]["id"][p].as_py() for i, f in enumerate(fed) if f.side == side for p in late[i]}
        assert set(join.driver.late[side].table()["id"].to_pylist()) == want
        assert join.driver.late[side].count == len(want)
    want = expected_results(fed, tables, kept, **options)
    assert join.out == want if ordered else Counter(join.out) == Counter(want)
    assert join.results.results == len(want)
    assert [len(rows.facts) for rows in join.results.rows] == [0, 0], "all rows are forgotten in the end"
    assert not any(len(source.waiting) for source in join.driver.merging.sources)


def test_semi_rows_at_the_end_of_time_wait_for_each_other():
    """The last time is a time like others: while a tuple is not complete there, an earlier row may still be found."""
    schema = pa.schema({"id": pa.int64(), "ts": pa.int64()})
    spec = build_spec(schema, schema, where="true", time="ts", window=1, how="semi", ordered=True, streaming=True)
    times = np.full(2, 2**63 - 1)
    rows = pa.record_batch([pa.array([0, 1]), pa.array(times)], schema=schema)
    (step,) = Stamping(spec, 10).steps(Due((times, rows), (times[:1], rows[:1])), (None, None))
    results = make_results(spec)
    results.add(step)
    found = [Found(np.array([1]), np.array([0]), (0, 0)), Found(np.array([0]), np.array([0]), (2, 1))]
    assert [[row for batch in results.found(f) for row in batch["id"].to_pylist()] for f in found] == [[], [0, 1]]


def seconds(*values, ids=None):
    return one_batch(table_of([(v, 1, v, float(v), "a") for v in values])).set_column(
        0, "id", pa.array(list(values if ids is None else ids), pa.int64())
    )


def steps_of(left_delay=None, right_delay=None, **options):
    fed = [Fed("left", left_delay, []), Fed("right", right_delay, [])]
    return Stepped(fed, **{**dict(where="true", time="ts", window="3 seconds"), **options})


def test_timeline_of_results():
    """
    left   1       4           20
    right      2           9        end
               in order, the row of 2 is due when the left stream has passed it; otherwise it meets that of 1 at once;
               that of 4 is out of reach when 9 has come; no right row is to come for that of 20
    """
    items = ((0, seconds(1)), (1, seconds(2)), (0, seconds(4)), (1, seconds(9)), (0, seconds(20)), (1, End()))
    for ordered, expected in (
        (True, [[], [], [(1, 2)], [(4, None)], [], [(20, None)]]),
        (False, [[], [(1, 2)], [], [(4, None)], [], [(20, None)]]),
    ):
        join = steps_of(how="left", where="l.x = 1 AND r.x = 2 OR l.x = 99", ordered=ordered)
        took = []
        for i, item in items:
            join.take(i, item)
            join.join()
            took.append([row[:2] for row in join.out])
            join.out.clear()
        assert took == expected


def test_rows_of_one_time_are_due_as_soon_as_nothing_can_come_before_them():
    """Left rows of time 5 come before right ones of time 5; those have to wait until no left row of 5 can follow."""
    join = steps_of(ordered=True)
    join.take(1, seconds(5))
    join.take(0, seconds(5))
    join.join()
    assert (join.results.rows[0].places, join.results.rows[1].places) == (1, 0)
    join.take(0, seconds(5, ids=[50]))
    join.take(0, seconds(6))
    join.join()
    assert [row[:2] for row in join.out] == [(5, 5), (50, 5)]


def test_heartbeats_move_an_idle_join():
    join = steps_of(how="left", right_delay=2, window="1 second")
    join.take(0, seconds(1, 2, 9))
    join.join()
    assert join.out == []
    join.take(1, cf.watermark(BASE + dt.timedelta(seconds=5)))
    join.join()
    assert [row[:2] for row in join.out] == [(1, None), (2, None)]
    assert join.limit == int(BASE.timestamp()) * SECOND + 5 * SECOND + 1  # one tick after the watermark
    join.take(1, seconds(5, 6))
    assert join.driver.late["right"].table()["id"].to_pylist() == [5]


def test_an_ended_side_decides_at_once():
    """No right row will come: a left row is unmatched as soon as it is known to match none that came."""
    join = steps_of(how="left", where="l.x > r.x", window="1 hour")
    join.take(1, seconds(3))
    join.take(1, End())
    join.take(0, seconds(1, 2, 3))
    join.take(0, seconds(4))
    join.join()
    assert sorted(row[:2] for row in join.out) == [(1, None), (2, None), (3, None), (4, 3)]
    assert len(join.results.rows[0].facts) == 0


def test_hopeless_rows_do_not_wait():
    """A left row that fails a condition of its own side comes unmatched at once, and in its place if ordered."""
    join = steps_of(how="left", where="l.x > 5 AND l.x <> r.x", window="1 hour")
    join.take(1, seconds(100))
    join.take(0, seconds(1, 2, 7))
    join.join()
    assert sorted(row[:2] for row in join.out if row[1] is None) == [(1, None), (2, None)]
    assert [row[:2] for row in join.out if row[1] is not None] == [(7, 100)]  # which need not wait either
    ordered = steps_of(how="left", where="l.x > 1 AND l.x <> r.x", window="1 hour", ordered=True)
    ordered.take(1, seconds(100))
    ordered.take(0, seconds(1, 2, 7))
    ordered.join()
    assert [row[:2] for row in ordered.out] == [(1, None)]  # the row of 2 may still get a match, and 7 waits for it


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=12), st.data())
def test_sorted_runs_against_a_sorted_list(batches, data):
    """Oracle test of `Runs`: what is due comes once, in order of arrival at equal keys."""
    from counterflow.engines.local.order import batch_runs
    from counterflow.engines.local.pieces import merge_pieces

    runs, twin, number = batch_runs(), [], 0
    for keys in [*batches, []]:
        rows = pa.record_batch({"n": pa.array(range(number, number + len(keys)), pa.int64())})
        runs.add(np.array(keys, np.int64), rows)
        twin += [(k, number + i) for i, k in enumerate(keys)]
        number += len(keys)
        bound, inclusive = data.draw(st.integers(0, 31)), data.draw(st.booleans())
        assert runs.least == min((k for k, _ in twin), default=None)
        due = sorted(row for row in twin if row[0] < bound + inclusive)
        twin = [row for row in twin if row not in due]
        piece = merge_pieces(runs.take(bound, inclusive))
        got = [] if piece is None else list(zip(piece[0].tolist(), piece[1]["n"].to_pylist(), strict=True))
        assert got == due
        assert len(runs) == len(twin)


def test_the_ends_of_time():
    """Integer times at both ends of 64 bits: nothing wraps around."""
    ends = [-(2**63), -(2**63) + 1, 0, 2**63 - 2, 2**63 - 1]
    schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    batches = [pa.record_batch([[i], [t]], schema=schema) for i, t in enumerate(ends)]
    for delay in (None, 0, 5, 2**63 - 1):
        for how in ("inner", "full", "semi"):
            options = dict(where="true", time="t", window=1, how=how, ordered=True)
            joined = cf.window_join(cf.stream(batches, delay=delay), cf.stream(batches, delay=delay), **options)
            table = pa.concat_tables([pa.Table.from_batches([b]) for b in batches])
            want = cf.window_join(table, table, **options)
            assert pa.Table.from_batches(joined, schema=joined.schema) == want, (delay, how)


@pytest.mark.parametrize("delay", [0, 1, 5, 2**62])
@pytest.mark.parametrize("low", [-(2**63), -(2**63) + 1, -3, 2**63 - 1 - 2**62 - 1, 2**63 - 7, 2**63 - 1])
def test_a_row_exactly_its_delay_behind_is_on_time(delay, low):
    """
    delay d:   low + d   low   low + d   low - 1   low
               the second row is exactly d behind, as are the last one and, with a delay of zero, the ties; low - 1,
               where there is one, is late
    """
    newest = min(low + delay, 2**63 - 1)
    low = newest - delay
    times = [newest, low, newest, *([low - 1] if low > -(2**63) else []), low]
    schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    whole = pa.record_batch([list(range(len(times))), times], schema=schema)
    on_time = [i for i, time in enumerate(times) if time >= low]
    for size in (1, 2, len(times)):
        pieces = [whole.slice(i, size) for i in range(0, len(times), size)]
        left, right = cf.stream([], schema=schema), cf.stream(after_left(pieces), delay=delay)
        joined = cf.window_join(left, right, where="l.id = r.id", time="t", window=1, how="right")
        assert sorted(i for part in joined for i in part["id_right"].to_pylist()) == on_time
        assert joined.metrics()["late_right"] == len(times) - len(on_time)


def test_time_of_reads_watermarks_back():
    assert time_of(5, pa.int32()) == 5
    assert time_of(5, pa.timestamp("us")) == dt.datetime(1970, 1, 1, 0, 0, 0, 5)
    assert time_of(2**62, pa.timestamp("us")) == 2**62  # beyond what datetime reaches
    for unit in ("s", "ms", "us", "ns"):
        for tz in (None, "Europe/Berlin"):
            for ticks in (0, 1_720_000_000_000_000, 2**58 * 1_000_000 // 1_000_000_000):
                type_ = pa.timestamp(unit, tz)
                assert watermark_ticks(time_of(ticks, type_), type_, "") == ticks
