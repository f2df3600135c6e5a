"""Alternatives of an OR: an index for each, no pair twice, and an error only where SQL has one."""

from __future__ import annotations

import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.predicate.expression import conjuncts_of
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from interpreted import SEARCHES, searching

TABLE = pa.table(
    {
        "ts": [1] * 5,
        "id": range(5),
        "k": pa.array([1, 2, 3, None, 1], pa.int32()),
        "x": [1.0, 2.0, 3.0, float("nan"), None],
        "s": ["abcdefgh", "abcdefgi", "a", None, "abcdefg"],
    }
)


def alternatives(where: str) -> list[list[str]]:
    """The conditions of each alternative, in their order."""
    spec = build_spec(TABLE.schema, TABLE.schema, where=where, time="ts", window=None)
    return [[str(c) for c in conjuncts_of(one.predicate)] for one in spec.parts.alternatives]


def test_each_says_that_those_before_it_are_not_true():
    a, b, c = "(l.k = r.k)", "(l.x = r.x)", "(l.s = r.s)"
    first, last = "((l.k + r.k) > 0)", "((l.x * r.x) <> 1.0D)"
    not_a, not_b = (f"not(({one} <=> true))" for one in (a, b))
    found = alternatives(f"l.k + r.k > 0 AND ({a} OR {b} OR {c}) AND l.x * r.x <> 1D")
    assert found == [[first, a, last], [first, not_a, b, last], [first, not_a, not_b, c, last]]
    assert alternatives("l.k IN (r.k, 2, l.x, r.x)") == []  # `l.k = 2` has no index
    assert len(alternatives("l.x IN (r.k, r.x)")) == 2
    assert alternatives(f"{a} OR l.x < r.x") == [] and alternatives(f"({a} OR {b}) AND {c}") == []


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "where",
    [
        "l.k = r.k OR l.x = r.x OR l.s = r.s",
        "l.s = r.s OR (l.x = r.x AND 1 / (length(l.s) - length(r.s)) > 0)",  # the first operand is a guard
        "(l.k = r.k OR l.x = r.x) AND (l.s = r.s OR startswith(l.s, r.s))",
        # Texts whose first bytes are equal are candidates: the OR is a guard of what comes after it.
        "(startswith(l.s, r.s || 'x') OR startswith(r.s, l.s || 'x')) AND 1 / (length(l.s) - length(r.s)) > 0",
        "abs(l.x - r.x) <= 0.5 OR (l.k <= r.x AND r.k <= l.x)",
        "NOT (l.k <> r.k AND l.s <> r.s)",
        "l.k <=> r.k OR l.x <=> r.x",
    ],
)
def test_joins(where, search):
    spec = build_spec(TABLE.schema, TABLE.schema, where=where, time="ts", window=None)
    want = sorted((le, ri) for le, ri, _ in reference_pairs(spec, TABLE, TABLE))
    with searching(search):
        got = cf.window_join(TABLE, TABLE, where=where, time="ts", window=None, engine=cf.Local(batch_rows=2))
    assert sorted(zip(got["id"].to_pylist(), got["id_right"].to_pylist(), strict=True)) == want
