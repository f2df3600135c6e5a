"""DP-Join's layout where none is given: it follows windows and rates, `cf.explain` says why, and results stay."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.engines.local import parallel
from counterflow.engines.simulated import stepped_core
from inputs import table_of
from oracle import expected, results

SCHEMA = pa.schema({"ts": pa.int64(), "x": pa.int64()})
SIX = cf.Local("dpjoin", workers=6)
FOUR = cf.Local("dpjoin", workers=4)


def table(rows: int) -> pa.Table:
    return pa.table({"ts": range(rows), "x": [0] * rows}, SCHEMA)


def explained(left, right, window, engine=SIX) -> SimpleNamespace:
    details = cf.explain(left, right, where="l.x = r.x", time="ts", window=window, engine=engine, show=False).details
    return SimpleNamespace(**details)


@pytest.mark.parametrize(
    ("window", "layout", "because"),
    [
        (10, "2x3", "rows in the windows 1 : 1, rates taken as equal"),
        ((10, 15), "2x3", "rows in the windows 1 : 1.5"),
        ((15, 10), "3x2", "rows in the windows 1.5 : 1"),
        ((100, 1), "6x1", "100 : 1"),
        ((1, 100), "1x6", "1 : 100"),
        (cf.window(before=30, after=0), "1x6", "1 : 30"),  # zero counts as one
        (cf.window(0, closed=False), "2x3", "1 : 1"),
        ((cf.rows(1000), cf.rows(1)), "6x1", "1000 : 1"),
        ((cf.rows(1000), 1), "2x3", "as square as the workers allow: which window holds more rows is not known"),
    ],
)
def test_streams_by_their_windows(window, layout, because):
    found = explained(cf.stream(schema=SCHEMA), cf.stream(schema=SCHEMA), window)
    assert found.layout == layout and because in found.because


@pytest.mark.parametrize(
    ("rows", "window", "layout", "because"),
    [
        ((50, 50), 10, "2x3", "rows in the windows 1 : 1, rates 1 : 1 by the tables' row counts"),
        ((1, 100), 10, "1x6", "rows in the windows 1 : 100, rates 1 : 100"),
        ((100, 1), 10, "6x1", "rows in the windows 100 : 1, rates 100 : 1"),
        ((10, 1), (1, 10), "1x6", "rows in the windows 1 : 1, rates 10 : 1"),  # most results are of left rows
        ((1, 100), None, "1x6", "rows in the windows 1 : 100"),
        ((100, 50), (cf.rows(1000), cf.rows(10)), "6x1", "rows in the windows 10 : 1"),  # no more than there are
        ((100, 50), (None, cf.rows(10)), "6x1", "rows in the windows 10 : 1"),
        ((0, 0), None, "2x3", "rows in the windows 1 : 1"),
        ((1, 100), (10, cf.rows(5)), "2x3", "not known beforehand"),
    ],
)
def test_tables_by_their_rows(rows, window, layout, because):
    found = explained(table(rows[0]), table(rows[1]), window)
    assert found.layout == layout and because in found.because


def test_what_is_asked_for_stays():
    sides = cf.stream(schema=SCHEMA), cf.stream(schema=SCHEMA)
    found = explained(*sides, (100, 1), cf.Local("dpjoin", layout="2x3"))
    assert (found.layout, found.because) == ("2x3", "as asked")
    assert explained(*sides, (100, 1), cf.Local("dpjoin", workers=1)).because == "there is one worker"
    assert not vars(explained(*sides, (100, 1), cf.Local("llhj", workers=6)))
    simulated = explained(table(1), table(100), 10, cf.Simulated("dpjoin", nodes=6))
    assert simulated.layout == "1x6"


class Seen(Exception):
    """Enough is known: nothing needs to be compiled."""


@pytest.mark.parametrize(
    ("engine", "streaming", "window"),
    [
        (SIX, True, (100, 1)),
        (SIX, False, (100, 1)),
        (SIX, False, 10),
        (cf.Simulated("dpjoin", nodes=6), False, 10),
        (cf.Simulated("dpjoin", nodes=6), False, (cf.rows(2), cf.rows(50))),
    ],
)
def test_the_nodes_stand_as_explained(engine, streaming, window, monkeypatch):
    built = []

    def core(spec, design, *_, **__):
        built.append("x".join(map(str, design.layout)))
        raise Seen

    monkeypatch.setattr(parallel, "ParallelCore", core)
    monkeypatch.setattr(stepped_core, "SeededCore", core)
    left, right = table(5), table(60)
    if streaming:
        left, right = (cf.stream([side], schema=SCHEMA) for side in (left, right))
    said = explained(left, right, window, engine).layout
    with pytest.raises(Seen):
        list(cf.window_join(left, right, where="l.x = r.x", time="ts", window=window, engine=engine))
    assert built == [said] and said != "2x3"


@pytest.mark.parametrize("window", [("9 seconds", "1 second"), ("1 second", "9 seconds"), (cf.rows(1), cf.rows(12))])
def test_results_are_those_of_reference(window):
    """Oracle: lines of workers, along the left and along the right window, on tables and on streams."""
    left = table_of([(i // 2, i % 3, i % 7, 0.5 * i, f"l{i}") for i in range(40)])
    right = table_of([(i, i % 2, i % 5, 0.5 * i, f"r{i}") for i in range(20)])
    options = dict(where="l.x BETWEEN r.x - 2 AND r.x + 2", time="ts", window=window, ordered=True, how="full")
    want = expected(left, right, **options)
    assert len(want) > 20
    assert results(cf.window_join(left, right, engine=FOUR, **options), "full") == want
    with cf.window_join(cf.stream([left]), cf.stream([right]), engine=FOUR, **options) as joined:
        assert [row for batch in joined for row in results(batch, "full")] == want
    simulated = cf.window_join(left, right, engine=cf.Simulated("dpjoin", nodes=4, seed=3), **options)
    assert results(simulated, "full") == want
