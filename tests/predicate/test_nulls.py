"""NULLs: columns that a predicate cannot be true without, and more nullable columns than a kernel has bits for."""

import itertools

import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.predicate.expression import columns_of
from counterflow.reference import reference_pairs
from counterflow.reference.one_pair import evaluate
from counterflow.reference.table_rows import tuples_of
from counterflow.spec.join_spec import build_spec
from counterflow.windows.compiled import predicate_source as source
from inputs import PREDICATES, SCHEMA, table_of
from interpreted import SEARCHES, searching


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
    "greatest(l.x, r.x) = 4",
    "l.s IS DISTINCT FROM r.s",
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


# --- many nullable columns


def with_columns(n: int) -> pa.Table:
    columns = {f"c{i}": pa.array([None if i % 3 else i, i, i, None], pa.int32()) for i in range(n)}
    return pa.table({"id": range(4), "t": pa.array([0, 1, 2, 3], pa.int64()), **columns})


def many(n: int) -> list[str]:
    safe = [f"l.c{i} <=> r.c{i}" for i in range(n)]
    last = f"l.c{n - 1} IS NULL OR l.c{n - 1} >= r.c{n - 1}"
    return [" AND ".join(safe), " OR ".join(safe[::-1]), " AND ".join([*safe[:-1], f"({last})"])]


def assert_same(table: pa.Table, where: str, engine: cf.Local) -> None:
    spec = build_spec(table.schema, table.schema, where=where, time="t", window=5)
    want = sorted((a, b) for a, b, _ in reference_pairs(spec, table, table))
    joined = cf.window_join(table, table, where=where, time="t", window=5, engine=engine)
    assert sorted(zip(joined["id"].to_pylist(), joined["id_right"].to_pylist(), strict=True)) == want
    assert want


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("columns", [63, 64, 65, 70, 130])
def test_more_nullable_columns_than_bits(columns, search):
    for where in many(columns):
        with searching(search):
            assert_same(with_columns(columns), where, cf.Local("kang"))


@pytest.mark.parametrize("columns", [64, 65, 200])
@pytest.mark.parametrize("narrow", [False, True])
def test_what_has_no_bit_is_left_out(columns, narrow):
    table = with_columns(columns)
    for where, left_out in zip(many(columns), [columns - 64, columns > 64, columns - 64], strict=True):
        predicate = build_spec(table.schema, table.schema, where=where, time="t", window=5).predicate
        accept = source.compile_predicate(predicate, nullable=True, narrow=narrow)
        assert len(accept.left_out) == left_out
        assert all(len(found) <= 64 for found in accept.columns.values())
        assert not source.compile_predicate(predicate, nullable=False, narrow=narrow).left_out


@pytest.mark.parametrize("where", many(3))
def test_on_threads(where, monkeypatch):
    """With so few bits that the machine code is small."""
    monkeypatch.setattr(source, "NULL_BITS", 2)
    assert_same(with_columns(3), where, cf.Local("llhj", workers=2))
