"""ScaleJoin's gate where the paper has it: each physical source of a stream brings its own rows there.

left source 0   1     3 3     7  ─┐
left source 1     2   3     6    ─┼─► gate: one order ─► nodes       late? in order? each source's carrier says so
right source 0    2   3   5      ─┘
"""

from __future__ import annotations

import random
import threading
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.local.gated import GatedDriver
from counterflow.engines.local.input import carriers
from counterflow.engines.local.input.carriers import CarriedIntake, shares_of
from counterflow.engines.local.input.sources import open_side
from counterflow.lab.simulator.window_forms import BOUNDED
from dealt import SCHEMA, by_reference, dealt, rows_in_order
from effort import THOROUGH
from gated import SteppedCarriers
from inputs import PREDICATES, windows
from live import ours, threads_end, wait_until  # noqa: F401  the fixture runs after each test
from oracle import HOWS
from schedules import EXPLORED
from stepped import choices, events_of, expected_results, expected_rows, feeds, rows_of, tables_of

pytestmark = pytest.mark.timeout(100)
# Few, as each is compiled: an index of each kind, one-sided conditions (rows that count in windows and match nothing).
KINDS = [PREDICATES[kind] for kind in ("two bands", "two equalities", "filters")]
EXAMPLES = 200 if THOROUGH else 12


# --- what comes when


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=EXAMPLES, deadline=None, phases=EXPLORED)
@given(
    left=feeds("left"),
    right=feeds("right"),
    chosen=choices,
    where=st.sampled_from(KINDS),
    window=windows(forms=BOUNDED),
    workers=st.integers(1, 3),
    batch_rows=st.sampled_from([1, 3, 64]),
    cores=st.sampled_from([2, 4, 16]),
)
def test_every_interleaving(how, ordered, left, right, chosen, where, window, workers, batch_rows, cores):
    """Oracle: late rows are as defined, row by row, and all others are joined as `reference` does."""
    fed = left + right
    happened, tables = events_of(fed, chosen), tables_of(fed)
    options = dict(where=where, time="ts", window=window, how=how, ordered=ordered)
    kept, late = expected_rows(fed, happened)
    join = SteppedCarriers(fed, workers=workers, batch_rows=batch_rows, cores=cores, **options)
    try:
        seen = [0] * len(tables)
        for event in happened:
            join.happen(event, tables, seen)
        join.join()
        join.end()
    finally:
        join.close()
    for side in ("left", "right"):
        want = {tables[i]["id"][p].as_py() for i, f in enumerate(fed) if f.side == side for p in late[i]}
        assert set(join.driver.late[side].table()["id"].to_pylist()) == want
        assert join.driver.late[side].count == len(want)
    want = expected_results(fed, tables, kept, **options)
    assert join.out == want if ordered else Counter(join.out) == Counter(want)
    assert [len(rows.facts) for rows in join.results.rows] == [0, 0], "all rows are forgotten in the end"
    assert not any(len(source.waiting) for source in join.driver.sources)


# --- many sources through the public call


def joined_rows(parts, delay=None, batch_rows=64, **options):
    """The results of streams of these batches, and their join."""
    streams = [[cf.stream(batches, delay=delay, schema=SCHEMA) for batches in side] for side in parts]
    joined = cf.window_join(*streams, time="t", engine=cf.Local("scalejoin", batch_rows=batch_rows), **options)
    return [row for batch in joined for row in rows_of(batch)], joined


@settings(max_examples=2 * EXAMPLES, deadline=None, phases=EXPLORED)
@given(
    seed=st.integers(0, 2**32),
    span=st.sampled_from([1, 30, 400]),
    delay=st.sampled_from([None, 0, 5]),
    window=windows(forms=BOUNDED, unit=""),
    how=st.sampled_from(HOWS),
    batch_rows=st.sampled_from([1, 7, 1024]),
)
def test_eight_sources_a_side_are_as_one(seed, span, delay, window, how, batch_rows):
    """Oracle: the sequence of results is that of `reference`, with one source a side and with eight."""
    rng = np.random.default_rng(seed)
    sides = [rows_in_order(int(rng.integers(0, 120)), rng, span) for _ in range(2)]
    options = dict(where="l.k = r.k AND l.k > 0", window=window, how=how, ordered=True)
    want = by_reference(sides, dict(time="t", **options))
    for sources in (1, 8):
        found, joined = joined_rows([dealt(t, sources, rng, delay or 0) for t in sides], delay, batch_rows, **options)
        assert found == want
        assert joined._join.gated and isinstance(joined._join.driver, GatedDriver)
        assert joined.metrics()["late_left"] == joined.metrics()["late_right"] == 0
        assert joined.metrics()["rows_left"] == len(sides[0])


def rows_at(times, first_id=0):
    """Rows of these times, all with one key."""
    return pa.table([range(first_id, first_id + len(times)), times, [1] * len(times)], schema=SCHEMA)


def test_ties_between_sources():
    """All rows are at one time: left before right, then by source, then by position; a window of one row sees it."""
    parts = [[[rows_at([5] * 3, 10 * s)] for s in range(8)] for _ in range(2)]
    found, _ = joined_rows(parts, batch_rows=2, where="l.k = r.k", window=cf.rows(1), ordered=True)
    assert found == [(72, 10 * s + i, 5) for s in range(8) for i in range(3)]


# --- sources that end, fail, hang, are silent; that are pushed to


SAME = dict(where="l.k = r.k", time="t", window=3, ordered=True)


def scalejoin(left, right, **options):
    return cf.window_join(left, right, **SAME, engine=cf.Local("scalejoin", **options))


def test_sources_that_end_early_hold_nothing_back():
    left = [cf.stream([], schema=SCHEMA), cf.stream([rows_at([1])]), cf.stream([rows_at([1, 5, 9], 10)])]
    right = [cf.stream([rows_at([2])]), cf.stream([rows_at([5, 10], 10)])]
    found = [row for batch in scalejoin(left, right) for row in rows_of(batch)]
    assert found == [(0, 0, 2), (10, 0, 2), (11, 0, 5), (11, 10, 5), (12, 11, 10)]


def test_an_error_of_a_source_comes_after_what_was_due():
    def failing():
        yield rows_at([1, 4])
        raise OSError("the line is dead")

    right = [cf.stream([rows_at([2, 4, 50])]), cf.stream([rows_at([3, 60], 10)])]
    joined, found = scalejoin([cf.stream(failing()), cf.stream([rows_at([1, 70], 10)])], right), []
    with pytest.raises(OSError, match="the line is dead") as raised:
        for batch in joined:
            found += rows_of(batch)
    assert "in left stream 1 of 2, after 2 rows" in raised.value.__notes__
    want = [(0, 0, 2), (10, 0, 2), (0, 10, 3), (10, 10, 3), (1, 0, 4), (1, 10, 4)]
    assert found == want[: len(found)]  # as much as the other sources had brought by then
    wait_until(lambda: not ours())


@pytest.mark.parametrize(
    "items, error, message",
    [
        ([rows_at([5]), rows_at([4], 1)], cf.TimeError, "row 1 of the left stream goes back in time: 4 after 5"),
        ([rows_at([5]), cf.watermark(9), rows_at([8], 1)], cf.TimeError, "although cf.watermark.9. came before it"),
        ([rows_at([5, None])], cf.TimeError, "time column 't' is null in row 1"),
    ],
    ids=["back in time", "before a watermark", "null"],
)
def test_rows_that_are_refused(items, error, message):
    with pytest.raises(error, match=message):
        list(scalejoin(cf.stream(items), cf.stream([rows_at([5])])))
    wait_until(lambda: not ours())


def test_a_source_that_hangs_does_not_keep_the_others():
    """What is before all that it may still send comes out, and closing does not wait for it."""
    hangs = threading.Event()

    def hanging():
        yield rows_at([4])
        hangs.wait()

    left = [cf.stream(hanging()), cf.stream([rows_at([1, 2, 9], 10)])]
    joined = scalejoin(left, cf.stream([rows_at([1, 3, 9])]))
    found = []
    while len(found) < 3:
        found += rows_of(next(joined))
    assert found[:3] == [(10, 0, 1), (11, 0, 2), (10, 1, 3)]
    joined.close()
    hangs.set()


def test_a_silent_source_is_excused():
    talks = threading.Event()

    def silent():
        yield rows_at([1])
        talks.wait()
        yield rows_at([2, 90], 1)

    def staying(rows):
        yield rows
        talks.wait()

    left = [cf.stream(silent(), timeout="20 milliseconds"), cf.stream(staying(rows_at([1, 50], 10)))]
    with scalejoin(left, cf.stream(staying(rows_at([3, 40, 80])))) as joined:
        found = rows_of(next(joined))
        while len(found) < 2:
            found += rows_of(next(joined))
        talks.set()
        found += [row for batch in joined for row in rows_of(batch)]
        assert found == [(0, 0, 3), (10, 0, 3)]
        assert joined.late("left")["id"].to_pylist() == [1] and joined.metrics()["late_left"] == 1


def test_a_row_out_of_order_comes_out_when_the_others_have_passed_it():
    """Nothing more comes of its source: that it is due, others say."""
    left, right = (cf.stream(schema=SCHEMA, delay=d) for d in (10, None))
    joined = scalejoin(left, right)
    left.push(rows_at([5, 3, 20]))
    right.push(rows_at([4, 6], 10))
    found = []
    while len(found) < 2:
        batch = joined.poll(timeout=30)
        assert batch is not None
        found += rows_of(batch)
    assert found == [(1, 10, 4), (0, 10, 5)]
    left.close(), right.close()
    assert [row for batch in joined for row in rows_of(batch)] == [(1, 11, 6), (0, 11, 6)]


def test_pushed_rows_at_the_time_that_the_other_side_has_reached():
    left, right = (cf.stream(schema=SCHEMA) for _ in range(2))
    joined = scalejoin(left, right)
    right.push(rows_at([4]))
    right.advance(5)
    left.push(rows_at([6]))
    batch = joined.poll(timeout=30)
    assert batch is not None and rows_of(batch) == [(0, 0, 6)]
    joined.close()


def test_closing_while_everything_is_full():
    """Nobody takes results: carriers wait for nodes, nodes for whoever collects."""

    def endless(first):
        while True:
            yield rows_at(list(range(first, first + 500)))
            first += 500

    left, right = ([cf.stream(endless(0)) for _ in range(4)] for _ in range(2))
    joined = cf.window_join(
        left, right, where="l.k = r.k", time="t", window=50, engine=cf.Local("scalejoin", buffer_rows=1000)
    )
    assert next(joined).num_rows
    joined.close()
    wait_until(lambda: not ours())


def test_durable_joins_are_fed(tmp_path):
    """A checkpoint is a place in the one order: the driver has it, and the gate has not."""
    engine = cf.Local("scalejoin", checkpoint=tmp_path)
    with cf.window_join(cf.stream([rows_at([1])]), cf.stream([rows_at([2])]), **SAME, engine=engine) as joined:
        assert [row for batch in joined for row in rows_of(batch)] == [(0, 0, 2)]
        assert not joined._join.gated and not isinstance(joined._join.intake, CarriedIntake)


# --- who carries them


@pytest.mark.parametrize(
    "left, right, cores, shares",
    [
        (1, 1, 16, [(0,), (1,)]),
        (3, 2, 1, [(0, 1, 2), (3, 4)]),
        (3, 2, 2, [(0, 1, 2), (3, 4)]),
        (3, 2, 4, [(0,), (1, 2), (3,), (4,)]),
        (5, 1, 6, [(0,), (1, 2), (3, 4), (5,)]),
        (3, 2, 16, [(0,), (1,), (2,), (3,), (4,)]),
    ],
)
def test_neighbours_share_a_carrier_where_there_are_fewer_cores(left, right, cores, shares):
    """A carrier has sources of one side that follow each other in the order of ties; no more carriers than cores."""
    sources = open_side([cf.stream([], schema=SCHEMA)] * left, "left")[0]
    sources += open_side([cf.stream([], schema=SCHEMA)] * right, "right")[0]
    assert [tuple(share) for share in shares_of(sources, cores)] == shares


# --- stress


@pytest.mark.parametrize("cores", [2, 16])
@pytest.mark.parametrize("delay", [None, 20])
@pytest.mark.parametrize("seed", range(20 if THOROUGH else 3))
def test_many_sources_on_threads(seed, delay, cores, monkeypatch):
    """Eight sources a side, small buffers and batches: each waits for all others in turn, and nothing is lost."""
    monkeypatch.setattr(carriers, "usable_cores", lambda: list(range(cores)))
    rng = np.random.default_rng(seed)
    sides = [rows_in_order(4_000, rng, 3_000) for _ in range(2)]
    options = dict(where="l.k = r.k", window=random.Random(seed).choice([9, cf.rows(30), (cf.rows(20), 15)]))
    want = rows_of(cf.window_join(*sides, time="t", ordered=True, **options))
    streams = [
        [cf.stream(iter(batches), delay=delay, schema=SCHEMA) for batches in dealt(table, 8, rng, delay or 0)]
        for table in sides
    ]
    engine = cf.Local("scalejoin", workers=3, batch_rows=32, buffer_rows=256)
    joined = cf.window_join(*streams, time="t", ordered=True, engine=engine, **options)
    assert [row for batch in joined for row in rows_of(batch)] == want
    assert len(joined._join.driver.carriers) == cores


def test_many_threads_push():
    rng = np.random.default_rng(1)
    sides = [rows_in_order(2_000, rng, 1_500) for _ in range(2)]
    want = rows_of(cf.window_join(*sides, **SAME))
    parts = [dealt(table, 4, rng) for table in sides]
    streams = [[cf.stream(schema=SCHEMA) for _ in side] for side in parts]
    joined = scalejoin(*streams, buffer_rows=200)

    def push(stream, batches):
        for batch in batches:
            stream.push(batch)
        stream.close()

    threads = [
        threading.Thread(target=push, args=pair)
        for side in zip(streams, parts, strict=True)
        for pair in zip(*side, strict=True)
    ]
    for thread in threads:
        thread.start()
    assert [row for batch in joined for row in rows_of(batch)] == want
    for thread in threads:
        thread.join()
