"""What `cf.explain` says of each condition, its estimate, and the candidates that a join counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.lab.bench.predicate_inputs import CASES, table_of
from counterflow.spec.join_spec import build_spec
from counterflow.windows.access import choose_path
from counterflow.windows.estimate import estimate
from counterflow.windows.evaluate import matches
from counterflow.windows.store import predicate_columns
from inputs import table_of as small_table
from interpreted import SEARCHES, searching

ROWS, WINDOW = 300, 200  # of a side
POINT = "unit_{}(radians({s}.lat), radians({s}.lon))"
# By the name of the case: where left rows are found, and for each condition how it is found and checked.
BAND, IMPLIED = ("band index", "compiled"), ("implied band", "compiled")
INTERVAL = ("interval index", "compiled")
SAID = {
    "plain band": ("band on l.x, l.y", [BAND, BAND]),
    "Euclid 2-D": ("band on l.x, l.y", [IMPLIED]),
    "Euclid 3-D": ("band on l.x, l.y, l.z", [IMPLIED]),
    "haversine": ("band on " + ", ".join(POINT.format(axis, s="l") for axis in "xyz"), [IMPLIED]),
    "Manhattan": ("band on l.x, l.y", [IMPLIED]),
    "radius by row": ("overlap on l.x, then overlap on l.y", [("implied interval", "compiled")]),
    "overlap": ("overlap on l.s to l.e", [INTERVAL, INTERVAL]),
    "point in interval": ("overlap on l.p", [INTERVAL, INTERVAL]),
    "two inequalities": ("overlap on l.a to l.c", [INTERVAL, INTERVAL]),
    "OR of two equalities": ("hash on l.a; or hash on l.b", [("an index for each alternative", "compiled")]),
    "ratio": ("band on log_size(l.p)", [IMPLIED, IMPLIED]),
    "prefix": ("overlap on text_place(l.s)", [("implied interval", "compiled")]),
    "levenshtein": ("pieces of l.s", [("pieces of texts", "numpy")]),
    "function with a band": ("band on l.x", [BAND, ("nothing", "numba, or Python")]),
}
CASES_BY_NAME = {case.name: case for case in CASES}


def inputs(name: str, rows: int = ROWS, window: int = WINDOW) -> tuple[pa.Table, pa.Table]:
    drawn = CASES_BY_NAME[name].draw(np.random.default_rng(1), rows, window)
    return table_of(drawn[0], right=False), table_of(drawn[1], right=True)


def said_of(where, left=None, right=None, **options) -> dict:
    table = small_table([(1, 1, 1, 1.0, "a")])
    left, right = (table if given is None else given for given in (left, right))
    return cf.explain(left, right, where=where, time="ts", window=None, show=False, **options).to_dict()


def test_every_case_of_the_benchmark_is_here():
    assert set(SAID) == set(CASES_BY_NAME)


@pytest.mark.parametrize("name", SAID)
def test_each_case(name):
    left, right = inputs(name)
    said, where = said_of(CASES_BY_NAME[name].where, left, right), CASES_BY_NAME[name].where
    path, conditions = SAID[name]
    assert said["access_path"]["left"] == path
    assert [(one["found_by"], one["checked"]) for one in said["conditions"]] == conditions
    shown = str(cf.explain(left, right, where=where, time="ts", window=5, show=False))
    assert all(f"{found_by}; checked: {checked}" in shown for found_by, checked in conditions)


OTHERS = {
    "l.x > 0 AND l.k = r.k": [("filter", "once a row"), ("hash index", "compiled")],
    "l.x < r.x": [("bound", "compiled")],
    "l.x * r.x % 3 = 1": [("nothing", "numpy")],
    "l.k = r.k AND upper(l.s) <> lower(r.s)": [("hash index", "compiled"), ("nothing", "numpy")],
    "abs(l.x - r.x) <= 1 OR abs(l.x - r.x) <= l.k": [("an index for each alternative", "compiled")],
    "abs(l.x - r.x) <= 1 OR abs(l.x - r.x) <= 3": [("implied band", "compiled")],
    "l.k IN (r.k, r.x)": [("an index for each alternative", "compiled")],
    "(l.k = r.k OR l.s = r.s) AND l.x <> r.x": [("an index for each alternative", "compiled"), ("nothing", "compiled")],
    "l.k = r.k OR l.x < r.x": [("nothing", "compiled")],
    "l.s LIKE r.s": [("implied interval", "numpy")],
    "upper(l.s) = lower(r.s)": [("hash index", "numpy")],
    "abs(l.x - r.x) + length(l.s) <= 3": [("implied band", "numpy")],
}


@pytest.mark.parametrize("where", OTHERS)
def test_other_conditions(where):
    assert [(one["found_by"], one["checked"]) for one in said_of(where)["conditions"]] == OTHERS[where]


# --- the estimate


def pairs_of(where, left: pa.Table, right: pa.Table) -> np.ndarray:
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window=None)
    columns = predicate_columns(spec.predicate, "left", left), predicate_columns(spec.predicate, "right", right)
    rows = [a.ravel() for a in np.indices((len(left), len(right)))]
    return matches(spec.predicate, *columns, *rows).reshape(len(left), len(right))


@pytest.mark.parametrize("name", SAID)
def test_the_estimate(name):
    left, right = inputs(name)
    where, spec = CASES_BY_NAME[name].where, None
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window=None)
    found = estimate(spec, left, right)
    true = int(pairs_of(where, left, right).sum())
    assert found.pairs == ROWS * ROWS and round(found.matches * found.pairs) == true
    # A square around a circle, and the like.
    most = {"function with a band": 3 * true / ROWS**2}.get(name, 2.5 * true / ROWS**2)
    assert true / ROWS**2 <= found.candidates <= most
    said = said_of(where, left, right, estimate=True)["candidates"]
    assert said == str(found) and f"of {ROWS**2:,} pairs" in said


@pytest.mark.parametrize(
    ("where", "candidates"),
    [
        ("l.k = r.k", 1 * 1 + 2 * 1),  # 1 and 1, 2 and 2; NULL equals nothing
        ("l.k <=> r.k", 1 * 1 + 2 * 1 + 1 * 2),
        ("abs(l.k - r.k) <= 0", 1 * 1 + 2 * 1),
        ("greatest(abs(l.k - r.k), 0) <= 0", 3 + 4 + 8 - 2),  # greatest() skips a NULL
        ("abs(l.f - r.f) <= 1", 1 + 1 + 1),  # 1 and 1.5; NaN only with NaN, infinity with infinity
        ("hypot(l.f - r.f, 0) <= 1", 1 + 1 + 1),
        ("l.k * r.k % 2 = 7", 16),
        ("l.x < r.x", 16),
    ],
)
def test_the_estimate_of_null_nan_and_infinity(where, candidates):
    nan, inf = float("nan"), float("inf")
    left = small_table([(1, 1, 1, 1.0, "a"), (1, 2, 1, nan, "a"), (1, 2, 1, inf, "a"), (1, None, 1, None, "a")])
    right = small_table([(1, 1, 1, 1.5, "a"), (1, 2, 1, nan, "a"), (1, None, 1, inf, "a"), (1, None, 1, -3.0, "a")])
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window=None)
    found = estimate(spec, left, right)
    assert round(found.candidates * found.pairs) == candidates


def test_the_estimate_reads_some_rows_of_tables_only():
    left, right = inputs("plain band", rows=5000)
    spec = build_spec(left.schema, right.schema, where=CASES_BY_NAME["plain band"].where, time="ts", window=None)
    assert estimate(spec, left, right).pairs == 1_000_000
    assert estimate(spec, left[:0], right) is None
    where = CASES_BY_NAME["plain band"].where
    assert said_of(where, left[:0], right, estimate=True)["candidates"] == "not known: a table is empty"
    streams = [cf.stream(table.to_batches()) for table in (left, right)]
    with pytest.raises(cf.OptionError, match="estimate=True reads tables"):
        cf.explain(*streams, where=where, time="ts", window=5, estimate=True, show=False)


# --- what a join counts


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", SAID)
def test_candidates_of_a_join(name, search):
    """Every pair was a candidate, found by the path that `cf.explain` names; the index leaves few of a window."""
    left, right = inputs(name)
    where = CASES_BY_NAME[name].where
    spec = build_spec(left.schema, right.schema, where=where, time="ts", window=cf.rows(WINDOW))
    streams = [cf.stream(table.to_batches(max_chunksize=64)) for table in (left, right)]
    with searching(search), cf.window_join(*streams, where=where, time="ts", window=cf.rows(WINDOW)) as joined:
        found = Counter((i, j) for batch in joined for i, j in zip(*_ids(batch), strict=True))
        metrics = joined.metrics()
    wanted = {(int(i), int(j)) for i, j in np.argwhere(pairs_of(where, left, right) & IN_WINDOW)}
    assert set(found) == wanted and set(found.values()) <= {1}
    by = metrics["candidates_by"]
    assert metrics["candidates"] == sum(by.values()) >= metrics["pairs"] == len(wanted)
    if search == "numpy":
        assert set(by) == {"numpy"}
        return
    paths = [choose_path(spec.parts, side) for side in ("left", "right")]
    names = {name for path in paths for name in (path.name, *(way.path.name for way in path.ways))}
    assert set(by) <= names | {"scan"}  # a probe that would look into very many cells scans
    share = metrics["candidates"] / int(IN_WINDOW.sum())
    assert share < (0.9 if name == "levenshtein" else 0.3), by  # a small window has few cells


# The sides take turns, left first: which pairs are within WINDOW rows.
_I, _J = np.indices((ROWS, ROWS))
IN_WINDOW = np.where(_I <= _J, _J - _I < WINDOW, _I - _J <= WINDOW)


def _ids(batch):
    return batch["i"].to_pylist(), batch["i_right"].to_pylist()
