"""ScaleJoin's nodes change while physical sources add to its gate: the results are those of a join that never did.

left source 0     1   3 │   7   9     ─┐
left source 1       2   │ 5       8   ─┼─► old gate │ new gate         each carrier goes over at the same time
right source 0    2   3 │     6   8   ─┘            └ begins with the rows that may still be met
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
from counterflow.engines.local.changing_gate import FEW_PIECES, FEW_ROWS, LiveRows
from counterflow.engines.local.input import carriers
from counterflow.engines.local.input.carriers import PASSES
from counterflow.engines.local.input.crossing import Crossings
from counterflow.engines.local.order import END
from counterflow.lab.simulator.window_forms import BOUNDED
from counterflow.spec.join_spec import build_spec
from dealt import SCHEMA, by_reference, dealt, rows_in_order
from effort import THOROUGH
from inputs import windows
from live import ours, threads_end, wait_until  # noqa: F401  the fixture runs after each test
from oracle import HOWS
from schedules import EXPLORED
from stepped import rows_of

pytestmark = pytest.mark.timeout(100)
EXAMPLES = 200 if THOROUGH else 25
WHERE = "l.k = r.k AND l.k > 0"
SAME = dict(where="l.k = r.k", time="t", window=3, ordered=True)


def rescaling(batches, joined, rng):
    """The batches; before some of them the number of workers changes, in the thread that reads them."""
    for batch in batches:
        if rng.random() < 0.2:
            joined[0].rescale(workers=rng.randint(1, 4))
        yield batch


@settings(max_examples=4 * EXAMPLES, deadline=None, phases=EXPLORED)
@given(
    seed=st.integers(0, 2**32),
    span=st.sampled_from([1, 30, 400]),
    sources=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    delay=st.sampled_from([None, 0, 5]),
    window=windows(forms=BOUNDED, unit=""),
    how=st.sampled_from(HOWS),
    ordered=st.booleans(),
    batch_rows=st.sampled_from([1, 7, 1024]),
    cores=st.sampled_from([2, 16]),
)
def test_changes_at_any_moment(seed, span, sources, delay, window, how, ordered, batch_rows, cores):
    """Oracle: the results are those of `reference`, in its order, whatever the workers, and whenever they change."""
    rng = np.random.default_rng(seed)
    sides = [rows_in_order(int(rng.integers(0, 300)), rng, span) for _ in range(2)]
    options = dict(where=WHERE, window=window, how=how, ordered=ordered)
    joined: list = []
    streams = [
        [
            cf.stream(rescaling(batches, joined, random.Random(f"{seed} {i} {k}")), delay=delay, schema=SCHEMA)
            for k, batches in enumerate(dealt(table, n, rng, delay or 0))
        ]
        for i, (table, n) in enumerate(zip(sides, sources, strict=True))
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(carriers, "usable_cores", lambda: list(range(cores)))
        joined.append(
            cf.window_join(*streams, time="t", engine=cf.Local("scalejoin", batch_rows=batch_rows), **options)
        )
    found, want = [row for batch in joined[0] for row in rows_of(batch)], by_reference(sides, dict(time="t", **options))
    assert found == want if ordered else Counter(found) == Counter(want)
    assert joined[0].metrics()["late_left"] == joined[0].metrics()["late_right"] == 0
    wait_until(lambda: not ours())


@pytest.mark.parametrize("cores", [2, 16])
@pytest.mark.parametrize("delay", [None, 20])
@pytest.mark.parametrize("seed", range(20 if THOROUGH else 2))
def test_many_sources_and_many_changes(seed, delay, cores, monkeypatch):
    """Small buffers and batches: who waits for the others, and whoever waits for room, goes over none the less."""
    monkeypatch.setattr(carriers, "usable_cores", lambda: list(range(cores)))
    rng = np.random.default_rng(seed)
    sides = [rows_in_order(4_000, rng, 3_000) for _ in range(2)]
    options = dict(where="l.k = r.k", window=random.Random(seed).choice([9, cf.rows(30), (cf.rows(20), 15)]))
    want = rows_of(cf.window_join(*sides, time="t", ordered=True, **options))
    joined: list = []

    def changing(batches):
        for n, batch in enumerate(batches):
            if n % 5 == 2:
                joined[0].rescale(workers=1 + n // 5 % 4)
            yield batch

    parts = [dealt(table, 8, rng, delay or 0) for table in sides]
    streams = [[cf.stream(changing(batches), delay=delay, schema=SCHEMA) for batches in part] for part in parts]
    engine = cf.Local("scalejoin", workers=3, batch_rows=32, buffer_rows=256)
    joined.append(cf.window_join(*streams, time="t", ordered=True, engine=engine, **options))
    found = [row for batch in joined[0] for row in rows_of(batch)]
    assert found == want
    assert joined[0].metrics()["changes"] >= 1


def rows_at(times, first_id=0):
    """Rows of these times, all with one key."""
    return pa.table([range(first_id, first_id + len(times)), times, [1] * len(times)], schema=SCHEMA)


def take(joined, count):
    """Results, at least this many."""
    found: list = []
    while len(found) < count:
        batch = joined.poll(timeout=30)
        assert batch is not None
        found += rows_of(batch)
    return found


def test_sources_come_between_changes():
    """A source that is added goes on with its carrier, over to the new gate."""
    left, right = cf.stream(schema=SCHEMA), cf.stream(schema=SCHEMA)
    joined = cf.window_join(left, right, **SAME, engine=cf.Local("scalejoin", workers=1))
    left.push(rows_at([1, 2, 4]))
    right.push(rows_at([2, 3]))
    found = take(joined, 2)
    more = cf.stream(schema=SCHEMA)
    joined.rescale(workers=3)
    joined.add_source("left", more)
    more.push(rows_at([5], 10))
    left.push(rows_at([6], 3))
    right.push(rows_at([6, 7], 2))
    for stream in (more, left, right):
        stream.advance(8)
    wait_until(lambda: joined.metrics()["changes"] == 1)  # two wishes at once are one change
    joined.rescale(workers=2)
    more.push(rows_at([9], 11))
    left.close(), right.close(), more.close()
    found += [row for batch in joined for row in rows_of(batch)]
    lefts = [(0, 1), (1, 2), (2, 4), (10, 5), (3, 6), (11, 9)]
    rights = [(0, 2), (1, 3), (2, 6), (3, 7)]
    pairs = [(i, j, max(t, u)) for i, t in lefts for j, u in rights if abs(t - u) <= 3]
    assert sorted(found) == sorted(pairs) and [t for *_, t in found] == sorted(t for *_, t in pairs)
    assert joined.metrics()["changes"] == 2


def test_a_change_waits_for_the_slowest_source():
    """A carrier that is there waits for the others, which know nothing of it; closing the join ends that."""
    left, right = cf.stream(schema=SCHEMA), cf.stream(schema=SCHEMA)
    joined = cf.window_join(left, right, **SAME, engine=cf.Local("scalejoin", workers=2))
    left.push(rows_at([1, 5]))
    right.push(rows_at([1]))
    found = take(joined, 1)
    joined.rescale(workers=3)
    left.push(rows_at([6, 7], 2))
    right.push(rows_at([2, 3, 4], 1))
    found += take(joined, 3)
    assert [row[:2] for row in found[:4]] == [(0, 0), (0, 1), (0, 2), (0, 3)] and joined.metrics()["changes"] == 0
    joined.close()
    wait_until(lambda: not ours())


def test_an_error_of_a_source_that_is_before_the_crossing():
    """What was due comes out, then the error; a carrier that waits for the other one ends."""
    fails = threading.Event()

    def failing():
        yield rows_at([1, 4])
        fails.wait()
        raise OSError("the line is dead")

    right = cf.stream(schema=SCHEMA)
    joined = cf.window_join(cf.stream(failing()), right, **SAME, engine=cf.Local("scalejoin", workers=2))
    right.push(rows_at([2, 50]))
    found = take(joined, 1)
    joined.rescale(workers=1)
    right.push(rows_at([60], 2))
    fails.set()
    with pytest.raises(OSError, match="the line is dead"):
        found += [row for batch in joined for row in rows_of(batch)]
    assert found == [(0, 0, 2), (1, 0, 4)][: len(found)]
    wait_until(lambda: not ours())


# --- where all go over


def test_a_crossing_is_after_all_that_somebody_may_have():
    crossings, feeds = Crossings(3), [None] * 3
    assert crossings.enter(0, 5, False) is None
    assert crossings.enter(1, 9, False) is None
    assert crossings.enter(2, None, True) is None
    crossing = crossings.begin(feeds)
    assert crossing.time == 10 and crossing.over == {2}
    assert crossings.begin(feeds) is None, "one at a time"
    assert crossings.enter(0, 12, False) is crossing
    crossings.passed(0)
    assert crossings.enter(0, 13, False) is None and crossings.enter(1, 11, False) is crossing
    crossings.passed(1)
    assert crossings.begin(feeds).time == 14


def test_there_is_no_crossing_after_all_times():
    crossings = Crossings(2)
    crossings.enter(0, END, False)
    assert crossings.begin([None, None]) is None


# --- what the new gate begins with


@pytest.mark.parametrize("sizes", [[1] * 200, [5, FEW_ROWS, 3, 2 * FEW_ROWS], [FEW_ROWS]])
def test_live_rows_are_those_that_may_be_met(sizes):
    """Small pieces are put together, so that many of them take no more memory than their rows."""
    spec = build_spec(SCHEMA, SCHEMA, streaming=True, where=WHERE, time="t", window=9)
    live = LiveRows(spec, "left")
    assert len(live.all().numbered) == len(live) == 0
    n = 0
    for size in sizes:
        at = np.arange(n, n + size)
        rows = pa.record_batch([at, at, at % 3], schema=SCHEMA)
        live.append(at, rows.append_column(PASSES, pa.array(at % 3 > 0)))
        n += size
    live.expire(n - 2)
    found = live.all()
    assert len(live) == len(found.times) and found.times.tolist() == list(range(n - len(live), n)) and len(live) >= 2
    assert len(live) <= 2 + max(FEW_PIECES, 2 * FEW_ROWS)
    passing = [t % 3 for t in found.times.tolist() if t % 3]
    assert found.numbered.columns["k"].values.tolist() == passing
    assert found.numbered.at.tolist() == list(range(len(passing)))
