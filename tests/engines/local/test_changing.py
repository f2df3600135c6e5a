"""A running join goes on with other cores, at any moment: its results are those of a join that never did.

rows    1 2 3 │ 4 5 6 7 │ 8 9
core      a   │    b    │  c     b begins with the rows of a that may still be met, and finds no pair of two of them
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.local import choosing
from counterflow.engines.local.changing import ChangingCore, KeptTuples
from counterflow.engines.local.core import make_core
from counterflow.engines.local.driver import Driver, Inbox
from counterflow.engines.local.input.intake import Intake
from counterflow.engines.local.input.sources import open_side
from counterflow.engines.local.output.results import make_results
from counterflow.engines.local.stamps import stamp_tables
from counterflow.errors import OptionError
from counterflow.lab.simulator.window_forms import BOUNDED
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from counterflow.windows.store import Batch, predicate_columns
from effort import THOROUGH
from inputs import PREDICATES, joins, table_of, windows
from live import threads_end, wait_until  # noqa: F401  the fixture runs after each test
from oracle import HOWS
from schedules import EXPLORED
from stepped import Stepped, choices, events_of, expected_results, expected_rows, feeds, rows_of, tables_of

pytestmark = pytest.mark.timeout(100)
HANG_SECONDS = 60
EXAMPLES = 100 if THOROUGH else 8
ALGORITHMS = ["auto", "kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin"]
# Few, as each is compiled: an index of each kind, one-sided conditions, and what numpy alone can decide.
KINDS = [PREDICATES[kind] for kind in ("two bands", "two equalities", "filters", "residual")]
engines = st.builds(
    lambda algorithm, workers, batch_rows: cf.Local(
        algorithm, workers=None if algorithm in ("auto", "kang") else workers, batch_rows=batch_rows
    ),
    st.sampled_from(ALGORITHMS),
    st.integers(1, 4),
    st.sampled_from([1, 3, 64]),
)


class SteppedChanges(Stepped):
    """A join of streams of which only nodes have threads: `change` says with which engine it goes on."""

    def __init__(self, fed, engine, **options):
        left, right = ([f.stream for f in fed if f.side == side] for side in ("left", "right"))
        sources = open_side(left, "left")[0] + open_side(right, "right")[0]
        schema = table_of([]).schema
        self.spec = build_spec(schema, schema, streaming=True, **options)
        self.core = ChangingCore(self.spec, make_core(self.spec, engine), in_order=False)
        self.inbox = Inbox(1 << 30)
        self.driver = Driver(self.spec, engine, Intake(sources, 1 << 30, False), self.inbox, self.core)
        self.results, self.out, self.limit = make_results(self.spec), [], None

    def change(self, engine):
        self.core.change_to(lambda rows: make_core(self.spec, engine, rows))

    def end(self):
        self.core.finish()
        deadline = time.monotonic() + HANG_SECONDS
        while not self.core.finished:
            assert time.monotonic() < deadline, "a core does not finish"
            found = self.core.collect(0.01)
            self.inbox.drain(self.results.add)
            for batch in self.results.found(found):
                self.out += rows_of(batch)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=EXAMPLES, deadline=None, phases=EXPLORED)
@given(
    left=feeds("left", 12),
    right=feeds("right", 12),
    chosen=choices,
    where=st.sampled_from(KINDS),
    window=windows(forms=BOUNDED),
    first=engines,
    changes=st.lists(st.tuples(st.integers(0, 99), engines), min_size=1, max_size=3),
)
def test_changes_at_any_moment(how, ordered, left, right, chosen, where, window, first, changes):
    """Oracle: late rows are as defined, row by row, and all others are joined as `reference` does."""
    fed = left + right
    happened, tables = events_of(fed, chosen), tables_of(fed)
    options = dict(where=where, time="ts", window=window, how=how, ordered=ordered)
    kept, late = expected_rows(fed, happened)
    join = SteppedChanges(fed, first, **options)
    try:
        seen = [0] * len(tables)
        for k, event in enumerate(happened):
            for at, engine in changes:
                if at % len(happened) == k:
                    join.change(engine)
            join.happen(event, tables, seen)
        join.join()
        join.end()
    finally:
        join.core.close()
    for side in ("left", "right"):
        want = {tables[i]["id"][p].as_py() for i, f in enumerate(fed) if f.side == side for p in late[i]}
        assert set(join.driver.late[side].table()["id"].to_pylist()) == want
    want = expected_results(fed, tables, kept, **options)
    assert join.out == want if ordered else Counter(join.out) == Counter(want)
    assert [len(rows.facts) for rows in join.results.rows] == [0, 0], "all rows are forgotten in the end"


@settings(max_examples=10 * EXAMPLES, deadline=None, phases=EXPLORED)
@given(
    inputs=joins(40, ["two bands", "two equalities", "filters", "residual"], BOUNDED),
    first=engines,
    steps=st.lists(st.tuples(st.integers(1, 12), st.one_of(st.none(), engines)), min_size=1),
)
def test_a_changing_core_keeps_its_word(inputs, first, steps):
    """Every pair is found once, and none of which it was said that it is out already."""
    left, right, options = inputs
    spec = build_spec(left.schema, right.schema, **options)
    stamped = stamp_tables(spec, left, right)
    core, complete, got = ChangingCore(spec, make_core(spec, first), in_order=False), (0, 0), []

    def collect(timeout):
        nonlocal complete
        if (found := core.collect(timeout)) is None:
            return
        pairs = list(zip(found.left.tolist(), found.right.tolist(), strict=True))
        for pair in pairs:
            later = int(stamped.right.high[pair[1]] >= pair[0])
            assert pair[later] >= complete[later], "after it was said to be complete"
        got.extend(pairs)
        assert found.complete[0] >= complete[0] and found.complete[1] >= complete[1]
        complete = found.complete

    try:
        begin = 0
        for rows, engine in itertools.cycle(steps):
            if begin >= stamped.total:
                break
            if engine is not None:
                core.change_to(lambda rows, engine=engine: make_core(spec, engine, rows))
            core.feed(*(replace(batch, rows=batch.at) for batch in stamped.batch(begin, begin + rows)))
            begin += rows
            core.expire(*stamped.horizons(min(begin, stamped.total)))
            collect(0)
        core.finish()
        while not core.finished:
            collect(0.01)
    finally:
        core.close()
    ids = [(int(stamped.left.rows[x]), int(stamped.right.rows[y])) for x, y in got]
    assert sorted(ids) == sorted((x, y) for x, y, _ in reference_pairs(spec, left, right))
    assert complete == (len(stamped.left), len(stamped.right))


# --- long streams, through the public call

SCHEMA = pa.schema({"t": pa.int64(), "i": pa.int64(), "k": pa.int64()})
ROWS, WINDOW = 20_000, 500


def rows_in_order(seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = [np.sort(rng.integers(0, ROWS, ROWS)), np.arange(ROWS), rng.integers(0, 60, ROWS)]
    return pa.table(columns, schema=SCHEMA)


@pytest.mark.parametrize("where", ["l.k = r.k", "abs(l.k - r.k) <= 1", "l.k * r.k = 12", "l.k * r.k % 59 = 3"])
@pytest.mark.parametrize("algorithm", ["celljoin", "handshake", "llhj", "dpjoin", "scalejoin"])
def test_workers_come_and_go(algorithm, where, tmp_path):
    """Differential: the same rows in the same order as tables give; a durable join counts on that order."""
    tables = rows_in_order(1), rows_in_order(2)
    options = dict(where=where, time="t", window=WINDOW, ordered=True)
    engine = cf.Local(algorithm, workers=2, batch_rows=256, buffer_rows=1024)
    workers = iter([3, 1, 4, None, 2, 5])

    def batches(table):
        for k, batch in enumerate(table.to_batches(97)):
            if table is tables[0] and k % 30 == 29 and (more := next(workers, 0)) != 0:
                joined.rescale(workers=more)
            yield batch

    joined = cf.window_join(*(cf.stream(batches(t), schema=SCHEMA) for t in tables), engine=engine, **options)
    got = pa.Table.from_batches(list(joined), schema=joined.schema)
    assert got.equals(cf.window_join(*tables, **options))
    assert joined.metrics()["changes"] >= 3


def test_a_durable_scalejoin_is_fed_and_can_be_rescaled(tmp_path):
    tables = rows_in_order(1), rows_in_order(2)
    options = dict(where="l.k = r.k", time="t", window=50, ordered=True)
    engine = cf.Local("scalejoin", workers=1, batch_rows=256, checkpoint=tmp_path)
    joined = cf.window_join(*(cf.stream(t.to_batches(97), schema=SCHEMA) for t in tables), engine=engine, **options)
    got = [next(joined)]
    joined.rescale(workers=3)
    got += list(joined)
    assert pa.Table.from_batches(got).equals(cf.window_join(*tables, **options))


def pushed(**options):
    streams = [cf.stream(schema=SCHEMA) for _ in range(2)]
    return streams, cf.window_join(*streams, where="l.k = r.k", time="t", window=50, **options)


@pytest.mark.parametrize("algorithm", ["llhj", "scalejoin"])
def test_the_next_rows_are_joined_by_the_new_workers(algorithm, threads_end):  # noqa: F811
    """The old nodes end when all they have found is taken."""
    (left, right), joined = pushed(engine=cf.Local(algorithm, workers=3))

    def names():
        return {thread.name for thread in threading.enumerate()}

    left.push({"t": 1, "i": 1, "k": 5})
    right.push({"t": 2, "i": 2, "k": 5})
    left.push({"t": 3, "i": 3, "k": 6})
    assert joined.poll(timeout=30).num_rows == 1
    assert "counterflow-node-2" in names()
    joined.rescale(workers=1)
    assert joined.metrics()["chosen"] == f"algorithm {algorithm}, 1 workers"
    assert joined.metrics()["changes"] == 0, "nothing has come since"
    right.push({"t": 4, "i": 4, "k": 5})
    left.push({"t": 5, "i": 5, "k": 7})
    assert joined.poll(timeout=30).to_pylist()[0]["i_right"] == 4
    assert joined.metrics()["changes"] == 1
    wait_until(lambda: joined.poll() is None and "counterflow-node-2" not in names())
    joined.close()


def test_before_the_first_result_nothing_has_to_change():
    (left, right), joined = pushed(engine=cf.Local("dpjoin", layout="2x2"))
    joined.rescale(workers=3)
    assert joined.metrics()["chosen"] == "algorithm dpjoin, layout 1x3"
    for stream in (left, right):
        stream.push({"t": 1, "i": 1, "k": 5})
        stream.close()
    assert len(list(joined)) == 1 and joined.metrics()["changes"] == 0


@pytest.mark.parametrize(
    "engine, workers, said",
    [
        (cf.Local("kang"), 2, "'kang' is sequential"),
        (cf.Local(), 2, "'auto' is sequential"),
        (cf.Local("llhj"), 0, "workers=0"),
        (cf.Local("llhj"), True, "workers=True"),
    ],
)
def test_what_cannot_be_is_refused(engine, workers, said):
    _, joined = pushed(engine=engine)
    with joined, pytest.raises(OptionError, match=said.replace("(", r"\(")):
        joined.rescale(workers=workers)


def test_auto_can_be_told_to_use_one_core(monkeypatch):
    monkeypatch.setattr("counterflow.engines.local.options.usable_cores", lambda: [0, 1])
    streams = [cf.stream(schema=SCHEMA) for _ in range(2)]
    joined = cf.window_join(*streams, where="l.k * r.k = 12", time="t", window=50)
    assert joined.poll() is None
    joined.rescale(workers=1)
    assert "workers=1" in joined.metrics()["chosen"] and joined.metrics()["changes"] == 1
    joined.rescale()
    assert "dealt out" in joined.metrics()["chosen"] and joined.metrics()["changes"] == 2
    joined.close()


@pytest.mark.parametrize("algorithm", ["llhj", "scalejoin"])
def test_a_core_that_is_never_needed_is_closed(algorithm, threads_end):  # noqa: F811
    (left, right), joined = pushed(engine=cf.Local(algorithm, workers=2))
    assert joined.poll() is None
    for workers in (3, 4, 3):
        joined.rescale(workers=workers)
    left.close(), right.close()
    assert list(joined) == []
    joined.rescale(workers=2)  # after its end
    assert joined.metrics()["changes"] == 0


# --- what is kept


def test_kept_tuples_are_those_that_may_be_met():
    """Values are kept as they came, with NULLs from the first one on."""
    table = pa.table({"t": [1, 2, 3, 4], "k": [5, 6, None, 8]})
    spec = build_spec(table.schema, table.schema, streaming=True, where="l.k <=> r.k", time="t", window=9)
    kept = KeptTuples(spec, "left")
    assert len(kept.batch()) == 0 and kept.batch().columns["k"].values.dtype == np.int64
    numbers = np.arange(4)
    batch = Batch("left", predicate_columns(spec.predicate, "left", table), numbers, numbers, numbers, numbers)
    for part in (slice(0, 2), slice(2, 4)):
        kept.append(batch.take(part))
    kept.expire(1)
    found = kept.batch()
    assert (kept.first, kept.next, len(kept)) == (1, 4, 3)
    assert found.at.tolist() == [1, 2, 3] and found.columns["k"].mask().tolist() == [True, False, True]
    assert found.columns["k"].values[[0, 2]].tolist() == [6, 8]


def test_what_nobody_can_change_is_not_kept():
    spec = build_spec(SCHEMA, SCHEMA, streaming=True, where="l.k = r.k", time="t", window=9)
    for algorithm, wrapped in (("auto", False), ("kang", False), ("llhj", True)):
        core = choosing.core_of_streams(spec, cf.Local(algorithm))
        assert isinstance(core, ChangingCore) == wrapped
        core.close()
