"""Columns that a predicate cannot be true without: with NULL there, the oracle never says true."""

import itertools

import pytest

from counterflow.reference.evaluate import evaluate
from counterflow.reference.tables import tuples_of
from counterflow.spec.expression import columns_of
from counterflow.spec.join_spec import build_spec
from inputs import PREDICATES, SCHEMA, table_of


@pytest.mark.parametrize(
    ("where", "required"),
    [
        ("l.x = r.x", {"l.x", "r.x"}),
        ("l.x <=> r.x", set()),
        ("l.x = r.x OR l.k = r.k", set()),
        ("l.x = r.x OR l.x = r.k", {"l.x"}),
        ("l.x = r.x AND (l.k IS NULL OR r.k > 1)", {"l.x", "r.x"}),
        ("coalesce(l.x, 0) = r.x", {"r.x"}),
        ("NOT (l.x = r.x)", {"l.x", "r.x"}),
        ("abs(l.x - r.x) <= 3 AND l.s LIKE 'a%'", {"l.x", "r.x", "l.s"}),
    ],
)
def test_required(where, required):
    spec = build_spec(SCHEMA, SCHEMA, where=where, time="ts", window="1 second")
    assert {f"{side[0]}.{name}" for side, names in spec.required.items() for name in names} == required


MAKE_SOMETHING_OF_NULL = [
    "l.k <=> r.k AND l.x = r.x",
    "coalesce(l.k, r.k) = r.x",
    "l.k IS NULL AND r.x > 0",
    "least(l.k, r.k) = 1",
    "greatest(l.x, r.x) = 4 OR l.s IS DISTINCT FROM r.s",
    "CASE WHEN l.k = r.k THEN l.x = r.x ELSE r.s = 'a' END",
    "l.k IN (r.k, NULL, 1)",
    "nullif(l.k, r.k) IS NULL",
    "isnan(l.f) = isnan(r.f)",
    "try_divide(l.x, r.k) > 0 OR nvl2(l.s, r.x, l.x) = 1",
    "TRY_CAST(l.s AS INT) IS NULL AND r.k > 0",
]
ROWS = list(itertools.product([0], [None, 1], [None, 1, 4], [None, 1.0], [None, "a"]))


@pytest.mark.parametrize("where", [*PREDICATES.values(), *MAKE_SOMETHING_OF_NULL])
def test_null_there_is_never_true(where):
    spec = build_spec(SCHEMA, SCHEMA, where=where, time="ts", window="1 second")
    left, right = (tuples_of(spec, side, table_of(ROWS)) for side in (spec.left, spec.right))
    required = {c for c in columns_of(spec.predicate) if c.name in spec.required[c.side]}
    with_null = []
    for le, ri in itertools.product(left, right):
        rows = {"left": le.row, "right": ri.row}
        if any(rows[c.side][c.name] is None for c in required):
            with_null.append(evaluate(spec.predicate, le.row, ri.row))
    assert True not in with_null
    assert bool(with_null) == bool(required)
