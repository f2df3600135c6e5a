"""Few rows at a time take a short way (`short_way`): the same pairs as by the long one, whichever each batch takes."""

from __future__ import annotations

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
from counterflow.engines.local.output.results import make_results
from counterflow.engines.local.short_way import ShortWay
from counterflow.spec.join_spec import build_spec

SCHEMA = pa.schema({"ts": pa.int64(), "k": pa.int64(), "x": pa.int32(), "y": pa.float32(), "name": pa.string()})
EQUI, BAND = "l.k = r.k", "abs(l.x - r.x) <= 10 AND abs(l.y - r.y) <= 10"
windows = st.one_of(
    st.integers(0, 40),
    st.builds(
        lambda before, after, closed: cf.window(before=before, after=after, closed=closed),
        st.integers(0, 30),
        st.integers(0, 30),
        st.booleans(),
    ),
)


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "always")


@pytest.fixture
def taken(monkeypatch) -> list[bool]:
    """For each batch that was tried, whether it took the short way."""
    found: list[bool] = []
    take = ShortWay.take

    def noted(self, source, batch):
        few = take(self, source, batch)
        found.append(few is not None)
        return few

    monkeypatch.setattr(ShortWay, "take", noted)
    return found


def rows_of(n: int, seed: int, nulls: float) -> pa.RecordBatch:
    """Rows in order, several of each time and with few values, so that many match."""
    rng = np.random.default_rng(seed)
    ts = np.sort(rng.integers(0, max(n // 2, 1), n)) - n // 4
    columns = [ts, rng.integers(-3, 4, n), rng.integers(-40, 40, n), rng.uniform(-40, 40, n), rng.integers(0, 9, n)]
    columns[4] = columns[4].astype(str)
    missing = [None] + [rng.random(n) < nulls for _ in range(4)]
    arrays = [pa.array(c, f.type, mask=m) for c, f, m in zip(columns, SCHEMA, missing, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Pushed:
    """A join whose batches are taken one by one, without threads."""

    def __init__(self, where: str, window, **options) -> None:
        self.spec = build_spec(SCHEMA, SCHEMA, where=where, time="ts", window=window, streaming=True, **options)
        sources = [source for side in ("left", "right") for source in open_side(cf.stream(schema=SCHEMA), side)[0]]
        self.core, self.inbox = SequentialCore(self.spec, 1 << 30), Inbox(1 << 30)
        self.driver = Driver(self.spec, cf.Local(), Intake(sources, 1 << 30, False), self.inbox, self.core)
        self.results, self.found = make_results(self.spec), []

    def take(self, i: int, batch: pa.RecordBatch) -> None:
        self.driver.take(i, batch)
        self.driver.join_due()
        found = self.core.collect(0.0)
        self.inbox.drain(self.results.add)
        if self.core.compiled:
            self.results.use_compiled()
        self.found += list(self.results.found(found))

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


@pytest.mark.parametrize("where", [EQUI, BAND])
@settings(max_examples=25, deadline=None)
@given(
    window=windows,
    sizes=st.lists(st.sampled_from([1, 1, 1, 2, 3, 7, 60, 300]), min_size=1, max_size=6),
    rows=st.tuples(st.integers(0, 700), st.integers(0, 700)),
    nulls=st.sampled_from([0.0, 0.0, 0.0, 0.01]),
    seed=st.integers(0, 1 << 30),
)
def test_the_same_pairs(where, window, sizes, rows, nulls, seed):
    """Against the join of both tables, with windows of every form, sizes of both ways, and NULLs now and then."""
    sides = [rows_of(n, seed + i, nulls) for i, n in enumerate(rows)]
    join = Pushed(where, window)
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


def test_results_hear_of_rows_before_of_their_pairs(monkeypatch):
    """Another thread may take pairs as soon as the core has them, and looks for their rows then."""
    join = Pushed(EQUI, 30)
    known = []
    take_pairs = SequentialCore.take_pairs

    def noted(core, i, n, pairs):
        known.append(len(join.inbox._steps))
        take_pairs(core, i, n, pairs)

    monkeypatch.setattr(SequentialCore, "take_pairs", noted)
    for i, batch in interleaved([rows_of(200, seed, 0.0) for seed in (1, 2)], [1], 3):
        join.take(i, batch)
    assert len(known) > 300 and set(known) == {1}


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
        dict(where=f"{EQUI} AND l.x > 0"),
    ],
    ids=repr,
)
def test_what_does_not_take_it(options):
    """Where a row has to wait, or may have no number, there is no short way."""
    join = Pushed(**{**dict(where=EQUI, window=5), **options})
    assert join.driver._short_way is None


@pytest.mark.parametrize("where", ["l.k = r.k + 1", "l.name = r.name", "abs(l.k - r.k) < abs(l.x)"])
def test_keys_that_are_no_plain_columns(taken, where):
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
