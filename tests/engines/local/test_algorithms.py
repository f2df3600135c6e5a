"""Streams and tables through every algorithm, on threads: what `reference` returns, in its order."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings

import counterflow as cf
from counterflow.lab.simulator.window_forms import BOUNDED, draw_window
from counterflow.protocols.machine import Segment
from effort import THOROUGH
from inputs import PREDICATES, joins, table_of
from oracle import HOWS, expected, results

ALGORITHMS = ["kang", "celljoin", "handshake", "llhj", "dpjoin", "scalejoin"]
EXPLORED = [Phase.explicit, Phase.reuse, Phase.generate]


def shifts(window):
    """Left row i (time 2 i) meets right row i + d (time 2 i + 2 d + 1)."""
    return range(-window, window)


def engine_of(algorithm, workers, batch_rows, **options):
    return cf.Local(algorithm, workers=None if algorithm == "kang" else workers, batch_rows=batch_rows, **options)


def stream_of(table, cuts):
    """The rows in order of time, in batches."""
    table = table.sort_by([("ts", "ascending")])  # stable: the order of equal times is kept
    edges = [0, *sorted({c for c in cuts if c < len(table)}), len(table)]
    return cf.stream([table.slice(a, b - a) for a, b in pairwise(edges)], schema=table.schema)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60 if THOROUGH else 4, deadline=None, phases=EXPLORED)
@given(
    inputs=joins(30, list(PREDICATES) if THOROUGH else ["two bands", "two equalities", "inequality"], BOUNDED),
    workers=st.integers(1, 4),
    batch_rows=st.sampled_from([1, 5, 64]),
    waiting=st.sampled_from(["park", "yield", "spin"]),
    cuts=st.lists(st.integers(1, 30), max_size=6),
)
def test_streams(algorithm, how, inputs, workers, batch_rows, waiting, cuts):
    left, right, options = inputs
    options |= dict(how=how, ordered=True)
    engine = engine_of(algorithm, workers, batch_rows, waiting=waiting)
    with cf.window_join(stream_of(left, cuts), stream_of(right, cuts[1:]), engine=engine, **options) as joined:
        got = [row for batch in joined for row in results(batch, how)]
    assert got == expected(left, right, **options)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "auto"])
def test_streams_that_go_round_every_ring(algorithm):
    """Longer than all that is bounded, in batches of odd lengths with a pause in between, so that nodes lag behind."""
    rows, window = 200_000, 700
    rng = np.random.default_rng(3)
    keys = rng.integers(0, window, (2, rows))
    paused = threading.Barrier(2, lambda: time.sleep(0.05))

    def batches(side):
        table = pa.table({"ts": 2 * np.arange(rows) + side, "i": np.arange(rows), "k": keys[side]})
        yield from table.slice(0, 1003).to_batches(251)
        paused.wait()
        yield from table.slice(1003).to_batches(1024)

    engine = cf.Local(algorithm)
    left, right = (cf.stream(batches(side)) for side in (0, 1))
    joined = cf.window_join(left, right, where="l.k = r.k", time="ts", window=2 * window, ordered=True, engine=engine)
    got = [(batch["i"].to_numpy(), batch["i_right"].to_numpy()) for batch in joined]
    found = np.sort(np.concatenate([i for i, _ in got]) * rows + np.concatenate([j for _, j in got]))
    near = [np.flatnonzero(keys[0][window:-window] == keys[1][window + d : rows - window + d]) for d in shifts(window)]
    inner = [(i + window) * rows + i + window + d for i, d in zip(near, shifts(window), strict=True)]
    lefts = found // rows
    assert (np.diff(found) > 0).all()
    assert np.array_equal(found[(lefts >= window) & (lefts < rows - window)], np.sort(np.concatenate(inner)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_window_grows_of_which_nodes_store_no_column(algorithm):
    """Nothing of this predicate is compiled: nodes know the rows' numbers alone, and numpy decides."""
    rows = 3000
    tables = [pa.table({"ts": 2 * np.arange(rows) + side, "k": np.arange(rows) % 97}) for side in (0, 1)]
    options = dict(where="l.k * r.k % 89 = 3", time="ts", window=2600, ordered=True)
    engine = engine_of(algorithm, 2, 256)
    joined = cf.window_join(*(cf.stream(t.to_batches(500), schema=t.schema) for t in tables), engine=engine, **options)
    got = pa.Table.from_batches(list(joined), schema=joined.schema)
    assert got.equals(cf.window_join(*tables, **options)) and len(got) > 10_000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60 if THOROUGH else 5, deadline=None, phases=EXPLORED)
@given(
    inputs=joins(40, ["two bands", "residual"]),
    how=st.sampled_from(HOWS),
    workers=st.integers(1, 8),
    access=st.sampled_from(["auto", "scan", "merge"]),
)
def test_tables(algorithm, inputs, how, workers, access):
    left, right, options = inputs
    access = "auto" if access == "merge" and options["where"] == PREDICATES["residual"] else access  # it has no band
    options |= dict(how=how, ordered=True)
    got = cf.window_join(left, right, engine=engine_of(algorithm, workers, 7, access=access), **options)
    assert results(got, how) == expected(left, right, **options)


@pytest.mark.parametrize("kind", ["tables", "streams"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ties_where_a_window_is_zero_and_open(algorithm, kind):
    """A tuple of that side leaves as soon as it comes, but not before it has met those of its own time.

    left    a b c       d e f
    right         A B C       D E F
    time    0     0     1     1          right ones leave at once; A meets a, b and c
    """
    rows = [(i // 5, 1, 5, 1.0, "a") for i in range(25)]
    left = right = table_of(rows)
    for form in [form for form in BOUNDED if "zero" in form.kinds and not form.closed]:
        options = dict(where=PREDICATES["two bands"], time="ts", window=draw_window(form, random.Random(1), "seconds"))
        inputs = (left, right) if kind == "tables" else (stream_of(left, [7, 13]), stream_of(right, [4]))
        joined = cf.window_join(*inputs, engine=engine_of(algorithm, 3, 4), **options)
        batches = [joined] if kind == "tables" else joined
        got = Counter(row for batch in batches for row in results(batch, "inner"))
        assert got == Counter(expected(left, right, **options)), form


@pytest.mark.parametrize("where", ["l.k = r.k", "l.x < r.x - 1", "l.s LIKE r.s"])
def test_merging_needs_a_band(where):
    engine = cf.Local("handshake", access="merge")
    with pytest.raises(cf.OptionError, match=r"the predicate has none: add one"):
        cf.window_join(table_of([]), table_of([]), where=where, time="ts", window="1 second", engine=engine)
    with pytest.raises(cf.OptionError, match="algorithm='handshake'"):
        cf.Local(access="merge")


def test_layouts():
    assert cf.Local("dpjoin", workers=6).matrix == (2, 3) and cf.Local("dpjoin", layout="3x1").nodes == 3
    for wrong in (dict(layout="2"), dict(layout="2x2", workers=3), dict(layout="0x1")):
        with pytest.raises(cf.OptionError, match="layout"):
            cf.Local("dpjoin", **wrong)
    with pytest.raises(cf.OptionError, match="DP-Join"):
        cf.Local("llhj", layout="2x2")
    with pytest.raises(cf.OptionError, match="sequential"):
        cf.Local("kang", workers=2)


def test_explain_names_the_algorithm(capsys):
    left, right = table_of([]), table_of([])
    options = dict(where="l.k = r.k", time="ts", window="1 second")
    cf.explain(left, right, engine=cf.Local("dpjoin", layout="2x3"), **options)
    assert "algorithm dpjoin, layout 2x3" in capsys.readouterr().out
    with pytest.raises(cf.OptionError, match="handshake"):
        cf.Local("llhj", symmetric=True)


@pytest.mark.parametrize("algorithm", ["llhj", "dpjoin", "scalejoin"])
def test_an_index_that_soon_does_not_help(algorithm, monkeypatch):
    """Keys are spread at first and then near each other, so that nodes go over to the scan, while tuples are under way.

    Those that came before have no bounds for it.
    """
    loaded, load = [], Segment.load_scan
    monkeypatch.setattr(Segment, "load_scan", lambda segment: (loaded.append(segment), load(segment)))
    rng, n = np.random.default_rng(5), 9_000

    def table(x, y, odd):
        spread = np.where(np.arange(n) < n // 2, rng.integers(0, 100_000, n), rng.integers(0, 30, n))
        return pa.table({"ts": 2 * np.arange(n) + odd, x: spread, y: rng.integers(0, 1000, n)})

    left, right = table("x", "y", 0), table("a", "b", 1)
    where = "abs(l.x - r.a) <= 10 AND (l.y * 31 + r.b * 17) % 997 = 0"
    options = dict(where=where, time="ts", window=cf.rows(3_500), ordered=True)
    got = cf.window_join(left, right, engine=engine_of(algorithm, 2, 64), **options)
    assert loaded and len(got) > 100
    assert got.equals(cf.window_join(left, right, **options))
