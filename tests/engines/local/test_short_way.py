"""Few rows at a time take a short way (`short_way`): the same pairs as by the long one, whichever each batch takes."""

from __future__ import annotations

import datetime as dt

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.local.core import SequentialCore
from counterflow.engines.local.driver import Driver, Inbox
from counterflow.engines.local.input.intake import Intake
from counterflow.engines.local.input.sources import open_side
from counterflow.engines.local.output.messages import Messages
from counterflow.engines.local.output.results import make_results
from counterflow.engines.local.short_way import ShortWay
from counterflow.spec.join_spec import build_spec

KEYS = {"ts": pa.int64(), "k": pa.int64(), "x": pa.int32(), "y": pa.float32()}
SCHEMA = pa.schema({**KEYS, "name": pa.string()})
# Columns that results copy as they are, of every width; then results are Arrow's messages.
FIXED = pa.schema(
    {**KEYS, "a": pa.int8(), "b": pa.float16(), "c": pa.decimal128(30, 2), "d": pa.date32(), "e": pa.timestamp("ns")}
)
SMALL = pa.schema({"ts": pa.int64(), "k": pa.int64(), "x": pa.int32()})
SHORT = pa.schema({"ts": pa.timestamp("us"), "k": pa.int16(), "x": pa.int8(), "y": pa.float64(), "e": pa.uint64()})
EQUI, BAND = "l.k = r.k", "abs(l.x - r.x) <= 10 AND abs(l.y - r.y) <= 10"
windows = st.tuples(st.integers(0, 40), st.integers(0, 30), st.booleans())  # before, after, closed


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "always")


@pytest.fixture
def taken(monkeypatch) -> list[bool]:
    """For each batch that was tried, whether it took the short way."""
    found: list[bool] = []
    take = ShortWay.take

    def noted(self, source, batch):
        results = take(self, source, batch)
        found.append(results is not None)
        return results

    monkeypatch.setattr(ShortWay, "take", noted)
    return found


def rows_of(n: int, seed: int, nulls: float, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Rows in order, several of each time and with few values, so that many match."""
    rng = np.random.default_rng(seed)
    ts = np.sort(rng.integers(0, max(n // 2, 1), n)) - n // 4
    columns = [ts, rng.integers(-3, 4, n), rng.integers(-40, 40, n), rng.uniform(-40, 40, n)]
    arrays = []
    for k, field in enumerate(schema):
        values = columns[k] if k < len(columns) else rng.integers(0, 9, n)
        missing = (rng.random(n) < nulls) & (k > 0)
        if pa.types.is_string(field.type):
            values = values.astype(str)
        elif pa.types.is_float16(field.type):
            values = values.astype(np.float16)
        elif pa.types.is_date(field.type):
            values = values.astype(np.int32)
        arrays.append(pa.array(values, mask=missing).cast(field.type, safe=False))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Pushed:
    """A join whose batches are taken one by one, without threads."""

    def __init__(self, where: str, window, schema: pa.Schema = SCHEMA, **options) -> None:
        self.spec = build_spec(schema, schema, where=where, time="ts", window=window, streaming=True, **options)
        sources = [source for side in ("left", "right") for source in open_side(cf.stream(schema=schema), side)[0]]
        self.core, self.inbox = SequentialCore(self.spec, 1 << 30), Inbox(1 << 30)
        self.driver = Driver(self.spec, cf.Local(), Intake(sources, 1 << 30, False), self.inbox, self.core)
        self.driver._patient = False  # as if whoever takes results drives
        self.results, self.found = make_results(self.spec), []
        if self.driver.short_way is not None:
            self.driver.short_way.lead_to(self.results, lambda: self.inbox.drain(self.results.add))

    def take(self, i: int, batch: pa.RecordBatch) -> None:
        self.driver._all_joined = True
        self.driver.take(i, batch)
        if not self.driver._all_joined:
            self.driver.join_due()
        found = self.core.collect(0.0)
        self.inbox.drain(self.results.add)
        if self.core.compiled:
            self.results.use_compiled()
        self.found += [*self.driver.made, *self.results.found(found)]
        self.driver.made.clear()

    def rows(self) -> list[dict]:
        return sorted_rows(pa.Table.from_batches(self.found, schema=self.spec.output_schema))


def sorted_rows(table: pa.Table) -> list[dict]:
    return sorted(table.to_pylist(), key=repr)


def interleaved(sides: list[pa.RecordBatch], sizes: list[int], seed: int):
    """Yield the rows of both sides in batches of these sizes, in turns that the seed decides."""
    rng, at, k = np.random.default_rng(seed), [0, 0], 0
    while any(begin < side.num_rows for begin, side in zip(at, sides, strict=True)):
        i = int(rng.integers(2))
        n = sizes[k % len(sizes)]
        if at[i] < sides[i].num_rows:
            yield i, sides[i].slice(at[i], n)
            at[i], k = at[i] + n, k + 1


@pytest.mark.parametrize("schema", [SCHEMA, FIXED, SHORT], ids=["text", "fixed", "short"])
@pytest.mark.parametrize("where", [EQUI, BAND])
@settings(max_examples=25, deadline=None)
@given(
    window=windows,
    sizes=st.lists(st.sampled_from([1, 1, 1, 2, 3, 7, 60, 300]), min_size=1, max_size=6),
    rows=st.tuples(st.integers(0, 700), st.integers(0, 700)),
    nulls=st.sampled_from([0.0, 0.0, 0.0, 0.01]),
    seed=st.integers(0, 1 << 30),
)
def test_the_same_pairs(where, schema, window, sizes, rows, nulls, seed):
    """Against the join of both tables, with windows of every form, sizes of both ways, and NULLs now and then."""
    sides = [rows_of(n, seed + i, nulls, schema) for i, n in enumerate(rows)]
    unit = dt.timedelta(microseconds=1) if pa.types.is_timestamp(schema.field("ts").type) else 1
    before, after, closed = window
    window = cf.window(before=before * unit, after=after * unit, closed=closed)
    join = Pushed(where, window, schema)
    for i, batch in interleaved(sides, sizes, seed):
        join.take(i, batch)
    tables = [pa.Table.from_batches([side]) for side in sides]
    expected = cf.window_join(*tables, where=where, time="ts", window=window)
    assert join.rows() == sorted_rows(expected)


@pytest.mark.parametrize("where", [EQUI, BAND])
def test_single_rows_take_it(taken, where):
    """All but those with which it is looked up what is dead, and the first ones, before the index is there."""
    sides = [rows_of(1000, seed, 0.0) for seed in (1, 2)]
    join = Pushed(where, 30)
    for i, batch in interleaved(sides, [1], 3):
        join.take(i, batch)
    assert len(taken) == 2000 and sum(taken) > 1900
    assert len(join.results.rows[0].records) < 600  # of 1000: what is dead is forgotten


def test_only_who_takes_results_goes_it(taken):
    """Results belong to the thread that takes them; the driver's own goes the long way."""
    join = Pushed(EQUI, 30)
    join.driver._patient = True
    for i, batch in interleaved([rows_of(200, seed, 0.0) for seed in (1, 2)], [1], 3):
        join.take(i, batch)
    assert not taken


@pytest.mark.parametrize("schema, read", [(SCHEMA, False), (FIXED, True)], ids=["text", "fixed"])
def test_results_of_fixed_width_are_messages(monkeypatch, schema, read):
    given = []
    give = Messages.give

    def noted(messages, few, side, pairs):
        given.append(pairs)
        return give(messages, few, side, pairs)

    monkeypatch.setattr(Messages, "give", noted)
    join = Pushed(EQUI, 30, schema)
    for i, batch in interleaved([rows_of(300, seed, 0.0, schema) for seed in (1, 2)], [1], 3):
        join.take(i, batch)
    assert bool(given) == read


def test_a_null_that_only_results_have(taken):
    """It takes the short way, too: its record is written as before."""
    sides = [rows_of(600, seed, 0.0, FIXED) for seed in (1, 2)]
    sides[1] = sides[1].set_column(
        4, FIXED.field("a"), pa.array([None if k == 450 else 1 for k in range(600)], pa.int8())
    )
    join = Pushed(EQUI, 30, FIXED)
    for i, batch in interleaved(sides, [1], 3):
        join.take(i, batch)
    expected = cf.window_join(*map(pa.Table.from_batches, ([s] for s in sides)), where=EQUI, time="ts", window=30)
    assert join.rows() == sorted_rows(expected) and sum(taken) > 1100
    assert expected["a_right"].null_count > 0


def test_not_where_marks_matter(taken):
    """The short way makes none, and what follows a join of joins waits for its punctuations."""
    join = Pushed(EQUI, 30)
    join.driver.marks_matter = True
    for i, batch in interleaved([rows_of(200, seed, 0.0) for seed in (1, 2)], [1], 3):
        join.take(i, batch)
    assert not taken and join.results.limit >= 0  # half of the times are below


@pytest.mark.parametrize(
    "options",
    [
        dict(ordered=True),
        dict(how="left"),
        dict(how="semi"),
        dict(window=cf.rows(5)),
    ],
    ids=repr,
)
def test_what_does_not_take_it(options):
    """Where a row has to wait, there is no short way."""
    join = Pushed(**{**dict(where=EQUI, window=5), **options})
    assert join.driver.short_way is None


def test_more_pairs_than_a_call_writes(taken):
    """A row that meets 20,000 others takes the short way, and is searched for again."""
    many = pa.RecordBatch.from_pydict({"ts": [5] * 20_000, "k": [1] * 20_000, "x": [0] * 20_000}, schema=SMALL)
    join = Pushed(EQUI, 30, SMALL)
    for _ in range(2):
        join.take(0, many)
        join.take(1, many.slice(0, 1))
    assert taken[-1] and join.results.pairs == 20_000 + 20_000 + 40_000


def test_nan_and_far_values(taken):
    """NaN equals itself and is last; what lies beyond all cells is found, too."""
    odd = [float("nan"), float("inf"), -1e30, 0.0, 5.0]
    sides = [rows_of(400, seed, 0.0, SHORT) for seed in (1, 2)]
    for i, side in enumerate(sides):
        sides[i] = side.set_column(3, SHORT.field("y"), pa.array(np.resize(odd, 400)))
    unit = dt.timedelta(microseconds=1)
    join = Pushed(BAND, 30 * unit, SHORT)
    for i, batch in interleaved(sides, [1], 3):
        join.take(i, batch)
    tables = [pa.Table.from_batches([side]) for side in sides]
    expected = cf.window_join(*tables, where=BAND, time="ts", window=30 * unit)
    assert join.rows() == sorted_rows(expected) and len(expected) > 100 and sum(taken) > 700


@pytest.mark.parametrize("sizes", [[1], [1, 5, 40]], ids=repr)
@pytest.mark.parametrize("where", [f"{EQUI} AND l.x > 0", f"{BAND} AND l.k < 2 AND r.y <> 0", f"{EQUI} AND l.x > 99"])
def test_one_sided_conditions(taken, where, sizes):
    """What fails them is left out before anything else is known of it, on both ways; NULLs go the long one."""
    sides = [rows_of(900, seed, nulls) for seed, nulls in ((1, 0.0), (2, 0.01))]
    join = Pushed(where, 30)
    for i, batch in interleaved(sides, sizes, 3):
        join.take(i, batch)
    tables = [pa.Table.from_batches([side]) for side in sides]
    assert join.rows() == sorted_rows(cf.window_join(*tables, where=where, time="ts", window=30))
    assert any(taken) == ("99" not in where)
    assert [source.rows for source in join.driver.sources] == [900, 900]


@pytest.mark.parametrize("where", ["l.k = r.k + 1", "l.name = r.name", "abs(l.k - r.k) < abs(l.x)"])
def test_keys_that_are_no_plain_columns(taken, where):
    """Neither an expression nor a text is read where Arrow has it."""
    sides = [rows_of(100, seed, 0.0) for seed in (1, 2)]
    join = Pushed(where, 30)
    for i, batch in interleaved(sides, [1], 3):
        join.take(i, batch)
    tables = [pa.Table.from_batches([side]) for side in sides]
    assert join.rows() == sorted_rows(cf.window_join(*tables, where=where, time="ts", window=30))
    assert not any(taken)


def test_a_row_that_goes_back_is_an_error():
    join = Pushed(EQUI, 30)
    batch = rows_of(1000, 1, 0.0)
    for k in range(50):
        join.take(0, batch.slice(k, 1))
    join.take(0, batch.slice(900, 1))
    with pytest.raises(cf.TimeError, match="goes back in time"):
        join.take(0, batch.slice(60, 1))


@pytest.mark.parametrize("apart", [True, False])
def test_a_row_that_a_watermark_rules_out_is_an_error(apart):
    """Also where both come in one round."""
    left, right = cf.stream(schema=SCHEMA), cf.stream(schema=SCHEMA)
    joined = cf.window_join(left, right, where=EQUI, time="ts", window=30)
    batch = rows_of(1000, 1, 0.0)
    times = batch.column("ts").to_pylist()
    for k in range(60):
        left.push(batch.slice(k, 1))
        right.push(batch.slice(k, 1))
        joined.poll(0.02)
    left.advance(times[500])
    if apart:
        joined.poll(0.02)
    left.push(batch.slice(400, 1))
    with pytest.raises(cf.TimeError, match="came before it"):
        while joined.poll(1) is not None:
            pass
    joined.close()
