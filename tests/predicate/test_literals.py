"""Constants that Python takes for equal and SQL does not, and their exact texts; joins' identities made of them."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.layout import Layout, choose_layout
from counterflow.engines.spark.state.identity import identity_of
from counterflow.engines.spark.state.migrations import migrated
from counterflow.predicate import types
from counterflow.predicate.expression import Column, Literal, quoted
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import JoinSpec, SideSpec, build_spec
from effort import examples
from interpreted import SEARCHES, searching

INT64 = st.integers(-(2**63), 2**63 - 1)
LITERALS = st.one_of(
    st.builds(Literal, st.booleans(), st.just(types.BOOLEAN)),
    *(
        st.builds(Literal, st.integers(-3, 3) | INT64, st.just(t))
        for t in (*map(types.SqlType, types.INTEGER_BITS), types.DATE, types.TIMESTAMP, types.TIMESTAMP_NTZ)
    ),
    st.builds(Literal, st.integers(-3, 3) | INT64 | st.integers(-(2**90), 2**90), st.just(types.INTERVAL)),
    *(
        st.builds(Literal, st.floats(width=w) | st.sampled_from([0.0, -0.0, 1.0, math.nan, -math.nan]), st.just(t))
        for w, t in ((32, types.FLOAT), (64, types.DOUBLE))
    ),
    st.builds(
        lambda unscaled, more, scale: Literal(
            Decimal(unscaled).scaleb(-scale), types.decimal_type(max(len(str(abs(unscaled))), scale) + more, scale)
        ),
        st.integers(-101, 101) | st.integers(-(10**20), 10**20),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    st.builds(Literal, st.text("'\\`aä\n, ", max_size=4) | st.text(max_size=3), st.just(types.STRING)),
    st.builds(Literal, st.binary(max_size=3), st.just(types.BINARY)),
    st.builds(Literal, st.none(), st.sampled_from([types.NULL, types.INT, types.DOUBLE, types.STRING, types.DATE])),
)


@settings(max_examples=examples(6000), deadline=None)
@given(a=LITERALS, b=LITERALS)
def test_the_text_is_exact(a, b):
    """Two constants are equal if and only if their texts are, and their hashes then too."""
    assert (a == b) == (str(a) == str(b)), (a, b)
    assert a != b or hash(a) == hash(b)


NEIGHBOURS = [
    [Literal(v, types.DOUBLE) for v in (0.0, -0.0, 5e-324, math.nan, math.inf, -math.inf, 0.1, 0.1 + 2**-55)],
    [Literal(v, t) for v in (0, 1) for t in (types.INT, types.BIGINT, types.DATE, types.TIMESTAMP, types.INTERVAL)],
    [Literal(Decimal(v), types.decimal_type(p, s)) for v, p, s in (("1", 1, 0), ("1.0", 2, 1), ("1.0", 9, 1))],
    [Literal(1, types.INT), Literal(1.0, types.DOUBLE), Literal(1.0, types.FLOAT), Literal(True, types.BOOLEAN)],
    [Literal(v, types.INTERVAL) for v in (1_209_600_000_000, 1_209_601_000_000, 86_400_000_001, 86_400_000_009, -1)],
    [Literal(v, types.STRING) for v in ("'", "\\", "\\'", "''", "', '", "")],
    [Column("left", name, types.INT) for name in ("x", "`x`", "x`", "x`.`y", "l.x", "x = 1", "")],
]


@pytest.mark.parametrize("group", NEIGHBOURS)
def test_neighbours_are_told_apart(group):
    assert len(set(group)) == len({str(one) for one in group}) == len(group)


def test_one_nan():
    assert Literal(math.nan, types.DOUBLE) == Literal(-math.nan, types.DOUBLE)


# --- in the split and in compiled code


def numbers(**columns: list[float]) -> pa.Table:
    n = len(next(iter(columns.values())))
    floats = {name: pa.array(values, pa.float64()) for name, values in columns.items()}
    return pa.table({"id": range(n), "t": [0] * n, "p": pa.array([Decimal("1.5")] * n, pa.decimal128(4, 1)), **floats})


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "where",
    [
        "cot(l.x * 0e0) > r.y AND cot(l.x * -0e0) < r.y",
        "cot(l.x * -0e0) < r.y AND cot(l.x * 0e0) > r.y",
        "r.y = 1 AND (cot(l.x * 0e0) < -3 OR cot(l.x * -0e0) < -3)",
        "r.y = 1 AND (cot(l.x * -(0e0)) < -3 OR cot(l.x * 0e0) < -3)",
        "cot(l.x * float(-0e0)) < -3 AND cot((r.y - 1) * float(0e0)) > 3",
        "cot((r.y - 1) * -0e0) = cot(l.x * 0e0) OR cot((r.y - 1) * -0e0) = cot(l.x * -0e0)",
        "CAST(l.x * -0e0 AS STRING) = '-0.0' AND CAST(l.x * 0e0 AS STRING) = '0.0' AND r.y > 0",
        "CAST(l.p * 1.0 AS STRING) = '1.50' AND CAST(l.p * 1.00 AS STRING) = '1.500' AND r.y > 0",
        "l.x = double('NaN') OR r.y = double('NaN') AND l.x = 1",
        "l.x / 3 = 1 / 3D AND l.x * 1.0 = 1 AND l.x = r.y OR l.x * 1D = 1F AND r.y = 9",
    ],
)
def test_each_constant_is_its_own(where, search):
    left, right = numbers(x=[0.0, -0.0, 1.0, math.nan]), numbers(y=[1.0, 9.0, math.nan])
    spec = build_spec(left.schema, right.schema, where=where, time="t", window=None)
    want = sorted((a, b) for a, b, _ in reference_pairs(spec, left, right))
    assert want
    with searching(search):
        joined = cf.window_join(left, right, where=where, time="t", window=None)
    assert sorted(zip(joined["id"].to_pylist(), joined["id_right"].to_pylist(), strict=True)) == want


# --- the identity of a join in a checkpoint: what differs in meaning differs in it

BASE = pa.schema({"id": pa.int64(), "ts": pa.timestamp("us", "UTC"), "x": pa.int32(), "s": pa.string()})


def join(where="l.x = r.x", schema=BASE, **options) -> tuple[JoinSpec, Layout]:
    spec = build_spec(
        schema, schema, **{"time": "ts", "window": "60 days", "streaming": True, "where": where, **options}
    )
    return spec, choose_layout(spec, Spark(layout="1x1"), 1)


def identity(*args, **options) -> dict:
    return identity_of(*join(*args, **options))


WHERES = [
    *(f"r.ts >= l.ts + INTERVAL {n}" for n in ("1209600 SECONDS", "1209601 SECONDS", "1209600000001 MICROSECONDS")),
    *(f"l.x > {n}" for n in ("1", "1L", "1S", "1Y", "1.0", "1.00", "1D", "1BD", "0e0", "-0e0", "true::double + 0")),
    *(f"l.x * {n} > r.x" for n in ("0.1D", "0.1F", "0.1", "0.10", "CAST(0.1 AS DECIMAL(9,1))", "0.1000000000000001D")),
    *(f"l.s = {s}" for s in (r"'a'", r"'a\''", r"'a\\'", r"'\\\''", "'a, b'", "'x\\', \\'y'")),
    "l.s IN ('x', 'y')",
    "l.s IN ('x\\', \\'y')",
    "CAST(l.s AS BINARY) = X'00FF'",
    "CAST(l.s AS BINARY) = X'00ff00'",
    "l.ts > TIMESTAMP '2024-01-01 00:00:00.000001'",
    "l.ts > TIMESTAMP '2024-01-01 00:00:00.000002'",
    "l.ts > DATE '2024-01-01'",
    "coalesce(l.x, CAST(NULL AS INT)) = r.x",
    "coalesce(l.x, NULL) + 0 = r.x",
    "l.x - (r.x - 1) = 0",
    "(l.x - r.x) - 1 = 0",
    "l.x = r.x AND l.s = r.s",
    "l.x = r.x OR l.s = r.s",
    "(l.x = r.x) = (l.s = r.s)",
    "TRY_CAST(l.s AS INT) = 1",
    "CAST(l.s AS INT) = 1",
    "CAST(l.s AS DECIMAL(9,2)) = 1",
    "CAST(l.s AS DECIMAL(9,3)) = 1",
]
WINDOWS = [
    *("1 second", "2 seconds", "1000001 microseconds", ("1 second", "2 seconds"), ("2 seconds", "1 second")),
    *(cf.window("1 second", closed=False), cf.window(before="1 second"), cf.window(after="1 second")),
    *(cf.rows(1), cf.rows(2), (cf.rows(1), "1 second"), cf.rows(1000), cf.rows(1_000_000)),
]
SCHEMAS = [
    *({"a": pa.int32(), "b": pa.int32()}, {"a int32, b": pa.int32()}, {"a": pa.int32(), "c": pa.int32()}),
    *({"a": pa.int64()}, {"a": pa.decimal128(9, 2)}, {"a": pa.decimal128(9, 3)}, {"`a`": pa.int32()}),
    *({"a": pa.timestamp("us")}, {"a": pa.timestamp("us", "UTC")}, {"a": pa.timestamp("us", "Europe/Berlin")}),
    {"a": pa.struct({"b": pa.int32(), "c": pa.int32()})},
    {"a": pa.struct({"b: int32, c": pa.int32()})},
    {"a": pa.list_(pa.struct({"b": pa.int32()}))},
    {"a": pa.map_(pa.string(), pa.struct({"b": pa.int32()}))},
    {"a": pa.map_(pa.string(), pa.struct({"c": pa.int32()}))},
]


JOINS = [
    *({"where": where} for where in WHERES),
    *({"window": window} for window in WINDOWS),
    *({"schema": pa.schema([*BASE, *pa.schema(more)])} for more in SCHEMAS),
    *({"how": how, "ordered": ordered} for how in ("left", "anti", "full") for ordered in (False, True)),
]


def test_joins_that_differ_have_different_identities():
    found = [identity(**options) for options in JOINS]
    same = [pair for pair in itertools.combinations(found, 2) if pair[0] == pair[1]]
    assert not same


def test_the_same_join_has_the_same_identity():
    """However it is written."""
    assert identity("l.x BETWEEN r.x - 1 AND 0.5") == identity("left.X >= right.x - 1 AND left.x <= .5")
    assert identity("l.ts > r.ts + INTERVAL 90 SECONDS") == identity("l.ts > r.ts + INTERVAL '1.5' MINUTES")
    assert identity() == identity(suffix="_r") == identity(schema=pa.schema(list(BASE)[::-1]))


def text_of_format_3(spec: JoinSpec, layout: Layout) -> str:
    """Return what a checkpoint of format 3 says of its join."""

    def type_text(type_: pa.DataType) -> str:
        if pa.types.is_struct(type_):
            return f"struct<{', '.join(f'{quoted(field.name)}: {type_text(field.type)}' for field in type_)}>"
        if pa.types.is_map(type_):
            return f"map<{type_text(type_.key_type)}, {type_text(type_.item_type)}>"
        if pa.types.is_list(type_):
            return f"list<{type_text(type_.value_type)}>"
        return str(type_)

    def side(s: SideSpec) -> str:
        columns = ", ".join(f"{quoted(field.name)} {type_text(field.type)}" for field in s.schema)
        return f"{quoted(s.time)}, window {s.window.kind} {s.window}, of ({columns})"

    how = f"{spec.how} ordered" if spec.ordered else spec.how
    return f"layout {layout}; how {how}; where {spec.predicate}; left {side(spec.left)}; right {side(spec.right)}"


NAMES = [  # of columns that look like what surrounds them
    *({"a; right": pa.int32()}, {"`; left `": pa.int32()}, {"b, of (": pa.int32(), ") x": pa.decimal128(9, 2)}),
    *({"'": pa.int32(), "it's; where": pa.int32()}, {"<": pa.string(), "é": pa.binary()}, {"[us, tz=x]": pa.int8()}),
]


@pytest.mark.parametrize(
    "options",
    [
        *JOINS,
        *({"schema": pa.schema([*BASE, *pa.schema(more)])} for more in NAMES),
        {"where": "l.`; right ` = r.x AND l.s = '; right `'", "schema": pa.schema([*BASE, ("; right ", pa.int32())])},
        {"schema": pa.schema([("a b", pa.timestamp("us", "UTC")), ("x", pa.int32())]), "time": "a b"},
        {"schema": pa.schema([("é", pa.timestamp("us")), ("x", pa.int32())]), "time": "É"},
    ],
    ids=str,
)
def test_the_text_of_format_3_is_taken_apart(options):
    """Into the parts that the same join has now; only what may be NULL was not noted."""
    spec, layout = join(**options)
    found = migrated({"format": 3, "fingerprint": text_of_format_3(spec, layout)})["identity"]
    want = identity_of(spec, layout)
    for columns in ("left columns", "right columns"):
        want[columns] = {name: [type_, None] for name, (type_, _) in want[columns].items()}
    assert found == want
