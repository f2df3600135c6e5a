"""Oracle tests of evaluators and access paths: random predicates on random rows, recomputed by the reference."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from decimal import Decimal
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings

import counterflow as cf
import interpreted
from counterflow.predicate.binding import bind
from counterflow.predicate.expression import Expression, columns_of
from counterflow.predicate.types import from_arrow
from counterflow.reference import reference_pairs
from counterflow.reference.one_pair import evaluate as evaluate_row
from counterflow.reference.table_rows import row_values
from counterflow.spec.join_spec import build_spec
from counterflow.windows.compiled.compiled_predicate import kernel_array, predicate_array
from counterflow.windows.compiled.predicate_source import Accept, compile_predicate
from counterflow.windows.evaluate import Frame
from counterflow.windows.evaluate import evaluate as evaluate_vectors
from counterflow.windows.store import predicate_columns
from counterflow.windows.vectors import to_python
from effort import examples
from interpreted import SEARCHES, searching

LOW, HIGH = -(2**63), 2**63 - 1
FLOATS = [0.0, -0.0, 0.1, 1.0, -1.5, 2.5, 7.0, 1e20, -1e20, math.inf, -math.inf, math.nan]
MOMENTS = [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2024, 2, 29, 12), dt.datetime(2024, 3, 10, 7)]
IN_UTC = [m.replace(tzinfo=dt.UTC) for m in MOMENTS]


def decimals(*texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts]


COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 7, 127]),
    "i64": (pa.int64(), [LOW, -7, -1, 0, 1, 2, 2**53 + 1, HIGH]),
    "u64": (pa.uint64(), [0, 1, 7, 2**63, 2**64 - 1]),
    "f32": (pa.float32(), FLOATS),
    "f64": (pa.float64(), [*FLOATS, 1e300]),
    "dec": (pa.decimal128(10, 2), decimals("0", "0.01", "1.50", "-1.50", "7", "99999999.99")),
    "wide": (pa.decimal128(38, 5), decimals("0", "1.50001", "-7", "123456789012345678901234567890123.00001")),
    "b": (pa.bool_(), [True, False]),
    "s": (pa.string(), ["", "a", "ab", "B", "7", "-1.5", "1e20", "2024-02", "2024-02-29", "2024-02-29 12:00"]),
    "d": (pa.date32(), [m.date() for m in MOMENTS]),
    "t": (pa.timestamp("us", "UTC"), IN_UTC),
    "n": (pa.timestamp("us"), MOMENTS),
}
IN_NEW_YORK = COLUMNS | {"t": (pa.timestamp("us", "America/New_York"), IN_UTC)}


@st.composite
def tables(draw: st.DrawFn, columns: dict[str, tuple[pa.DataType, list[Any]]], expression: Expression) -> pa.Table:
    """Some rows of the columns that the expression uses."""
    size = draw(st.integers(1, 6))
    data = {"id": pa.array(range(size), pa.int64())}
    for name in sorted({column.name for column in columns_of(expression)}):
        kind, values = columns[name]
        cells = st.one_of(st.none(), st.sampled_from(values))
        data[name] = pa.array(draw(st.lists(cells, min_size=size, max_size=size)), kind)
    return pa.table(data)


# --- random expressions, as text


def _pick(*texts: str) -> st.SearchStrategy[str]:
    return st.sampled_from(texts)


def _fill(template: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(template.format, *parts)


def _column(*names: str) -> st.SearchStrategy[str]:
    return _fill("{}.{}", _pick("l", "r"), _pick(*names))


TYPE = _pick("TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,10)")
INTERVAL = _pick("INTERVAL 1 DAY", "INTERVAL 90 SECONDS", "INTERVAL -36 HOURS", "(l.t - r.t)", "(l.d - r.d)")
DEPTH = 3


@cache
def numbers(depth: int = DEPTH) -> st.SearchStrategy[str]:
    columns = _column("i8", "i64", "u64", "f32", "f64", "dec", "wide")
    constants = _pick(
        "0", "1", "-7", "2147483648", "9223372036854775807", "0.1", "1.50", "0.1D", "1.5F", "1e20", "NULL"
    )
    if depth == 0:
        return columns | constants
    n, text, condition = numbers(depth - 1), texts(depth - 1), conditions(depth - 1)
    return st.one_of(
        columns,
        _fill("({} {} {})", n, _pick("+", "-", "*", "%", "/"), n),
        _fill("({} {} {})", _column("i8", "i64"), _pick("&", "|", "^", "div"), _column("i8", "i64")),
        _fill("{}({})", _pick("abs", "-", "floor", "round", "sqrt", "sign"), n),
        _fill("{}({} AS {})", _pick("CAST", "TRY_CAST"), n, TYPE),
        _fill("TRY_CAST({} AS {})", text, TYPE),
        _fill("{}({}, {})", _pick("least", "greatest", "coalesce", "nullif", "try_divide", "pmod", "pow"), n, n),
        _fill("CASE WHEN {} THEN {} WHEN {} THEN {} END", condition, n, condition, n),
        _fill("if({}, {}, {})", condition, n, n),
        _fill("length({})", text),
        _fill("{}({})", _pick("year", "hour", "dayofweek", "unix_micros", "month"), moments(depth - 1)),
    )


@cache
def texts(depth: int = DEPTH) -> st.SearchStrategy[str]:
    if depth == 0:
        return _column("s") | _pick("''", "'a'", "NULL")
    text = texts(depth - 1)
    return st.one_of(
        _column("s"),
        _fill("upper({})", text),
        _fill("concat({}, {})", text, text),
        _fill("substring({}, {}, 2)", text, _column("i8")),
        _fill("CAST({} AS STRING)", numbers(depth - 1) | moments(depth - 1) | _column("b")),
        _fill("CASE WHEN {} THEN {} END", conditions(depth - 1), text),
        _fill("coalesce({}, {})", text, text),
    )


@cache
def moments(depth: int = DEPTH) -> st.SearchStrategy[str]:
    if depth == 0:
        return _column("d", "t")
    moment = moments(depth - 1)
    return st.one_of(
        _fill("({} {} {})", _column("d", "t", "n"), _pick("+", "-"), INTERVAL),
        _fill("date_add({}, {})", _column("d"), _column("i8")),
        _fill("CAST({} AS DATE)", moment),
        _fill("greatest({}, {})", moment, moment),
    )


@cache
def conditions(depth: int = DEPTH) -> st.SearchStrategy[str]:
    if depth == 0:
        return _column("b")
    n, text, moment, condition = (kind(depth - 1) for kind in (numbers, texts, moments, conditions))
    return st.one_of(
        _fill("({} {} {})", n, _pick("=", "<>", "<", "<=", ">", ">=", "<=>"), n),
        _fill("({} {} {})", text, _pick("=", "<", ">=", "<=>"), text),
        _fill("({} {} {})", moment, _pick("=", "<", ">=", "<=>"), moment),
        _fill("({} {} {})", condition, _pick("AND", "OR", "=", "<=>"), condition),
        _fill("(NOT {})", condition),
        _fill("({} IS NULL)", n),
        _fill("({} IN ({}, {}, {}))", n, n, n, n),
        _fill("({} BETWEEN {} AND {})", n, n, n),
        _fill("({} LIKE {})", text, _pick("'a%'", "'_b'", "l.s", "'%'")),
    )


@pytest.mark.parametrize("columns", [COLUMNS, IN_NEW_YORK], ids=["UTC", "New York"])
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), where=conditions())
def test_vectorised_is_the_reference(columns, data, where):
    try:
        predicate = bind(where, types_of(columns), types_of(columns))
    except cf.PredicateError:
        assume(False)
    left, right = data.draw(tables(columns, predicate)), data.draw(tables(columns, predicate))
    assert_same_values(predicate, left, right)


@pytest.mark.parametrize("columns", [COLUMNS, IN_NEW_YORK], ids=["UTC", "New York"])
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), value=st.one_of(numbers(), texts(), moments()))
def test_values_are_the_reference_s(columns, data, value):
    """Not only conditions: the numbers, texts and times themselves."""
    from counterflow.predicate.binding import Binder
    from counterflow.predicate.columns import zone_of
    from counterflow.predicate.parsing import parse

    schemas, node = [types_of(columns)] * 2, parse(value)
    try:
        expression = Binder(*schemas, zone_of(node, *schemas)).expression(node)
    except cf.PredicateError:
        assume(False)
    left, right = data.draw(tables(columns, expression)), data.draw(tables(columns, expression))
    assert_same_values(expression, left, right)


@cache
def plain_numbers(depth: int) -> st.SearchStrategy[str]:
    """Of what has a compiled form."""
    leaves = _column("i8", "i64", "f32", "f64", "dec") | _pick(
        "0", "3", "-7", "9223372036854775807", "0.5D", "1.5F", "1.50"
    )
    if depth == 0:
        return leaves
    n = plain_numbers(depth - 1)
    return st.one_of(
        leaves,
        _fill("({} {} {})", n, _pick("+", "-", "*", "/"), n),
        _fill("{}({})", _pick("abs", "-", "sqrt", "sin"), n),
        _fill("CAST({} AS {})", n, _pick("BIGINT", "DOUBLE", "FLOAT")),
        _fill("pow({}, 2)", n),
    )


@cache
def plain_conditions(depth: int = 2) -> st.SearchStrategy[str]:
    n = plain_numbers(depth)
    compared = st.one_of(
        _fill("({} {} {})", n, _pick("=", "<>", "<", "<=", ">", ">=", "<=>"), n),
        _fill("({} {} {} + INTERVAL 1 DAY)", _column("t"), _pick("=", "<", ">=", "<=>"), _column("t")),
        _fill("({} {} {})", _column("d"), _pick("=", "<", ">=", "<=>"), _column("d")),
        _fill("({} {} {})", _column("s"), _pick("=", "<", ">=", "<>", "<=>"), _column("s") | _pick("'2024-02-29'")),
        _fill("startswith({}, {})", _column("s"), _column("s") | _pick("'2024-02'")),
        _column("b"),
    )
    if depth == 0:
        return compared
    condition = plain_conditions(depth - 1)
    return st.one_of(
        compared,
        _fill("({} {} {})", condition, _pick("AND", "OR", "=", "<=>"), condition),
        _fill("(NOT {})", condition),
        _fill("({} IS NULL)", n),
    )


@settings(max_examples=examples(600), deadline=None)
@given(data=st.data(), where=plain_conditions())
def test_compiled_source_is_never_wrong(data, where):
    """Its "no" and its "yes" are the reference's; "unsure" may be either."""
    try:
        predicate = bind(where, types_of(COLUMNS), types_of(COLUMNS))
    except cf.PredicateError:
        assume(False)
    accept = compile_predicate(predicate, nullable=True)
    assume(any(accept.columns.values()))
    left, right = data.draw(tables(COLUMNS, predicate)), data.draw(tables(COLUMNS, predicate))
    vectors = {side: predicate_columns(predicate, side, t) for side, t in (("left", left), ("right", right))}
    assume(not any(v.values.dtype == object and v.type.is_exact for found in vectors.values() for v in found.values()))
    run = interpreted_accept(accept)
    for i, j in itertools.product(range(len(left)), range(len(right))):
        try:
            expected = row_by_row(predicate, left[i : i + 1], right[j : j + 1])[0]
        except cf.EvaluationError:
            expected = "error"
        verdict = run(vectors, i, j)
        assert verdict == 2 or (expected is True) == (verdict == 1), (where, left[i : i + 1], right[j : j + 1])


def interpreted_accept(accept: Accept) -> Any:
    """The compiled conditions as plain Python on row i of the left and row j of the right side."""
    names = dict(interpreted.NAMES)
    exec(
        "def accept(V, constants):\n    "
        + "\n    ".join(["globals().update(V)", *accept.lines, f"return {accept.verdict}"]),
        names,
    )

    def run(vectors: dict[str, Any], i: int, j: int) -> int:
        values: dict[str, Any] = {}
        for side, row in (("left", i), ("right", j)):
            nulls = 0
            for k, column in enumerate(accept.columns[side]):
                vector = vectors[side][column.name]
                values[f"{side[0]}{k}"] = predicate_array(column, {column.name: kernel_array(vector)})[row]
                nulls |= (not vector.mask()[row]) << k
            values[f"{side[0]}_nulls"] = np.uint64(nulls)
        with np.errstate(all="ignore"):
            return int(names["accept"](values, accept.constants))

    return run


def types_of(columns: dict[str, tuple[pa.DataType, list[Any]]]) -> dict[str, Any]:
    return {name: from_arrow(kind) for name, (kind, _) in columns.items()}


def assert_same_values(expression: Expression, left: pa.Table, right: pa.Table) -> None:
    """The same value on every pair, or an error in both."""
    expected = outcome(row_by_row, expression, left, right)
    found = outcome(all_at_once, expression, left, right)
    assert found == expected, str(expression)


def outcome(evaluator: Any, *args: Any) -> Any:
    try:
        return ["NaN" if isinstance(v, float) and math.isnan(v) else v for v in evaluator(*args)]
    except cf.EvaluationError:
        return "error"


def row_by_row(expression: Expression, left: pa.Table, right: pa.Table) -> list[Any]:
    sides = []
    for table in (left, right):
        columns = [row_values(table[name]) for name in table.column_names]
        sides.append([dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)])
    return [evaluate_row(expression, a, b) for a in sides[0] for b in sides[1]]


def all_at_once(expression: Expression, left: pa.Table, right: pa.Table) -> list[Any]:
    n, m = len(left), len(right)
    frame = Frame(
        n * m,
        left=(predicate_columns(expression, "left", left), np.repeat(np.arange(n), m)),
        right=(predicate_columns(expression, "right", right), np.tile(np.arange(m), n)),
    )
    vector = evaluate_vectors(expression, frame).broadcast(n * m)
    return [v if known else None for v, known in zip(to_python(vector), vector.mask(), strict=True)]


# --- guards and errors


def test_a_guard_protects_what_follows():
    left, right = pa.table({"x": [4, 5]}), pa.table({"x": [0, 2]})
    types = {"x": from_arrow(pa.int64())}
    for guarded in (
        "r.x <> 0 AND l.x / r.x > 1",
        "r.x = 0 OR l.x % r.x > 1",
        "CASE WHEN r.x = 0 THEN false ELSE l.x div r.x = 2 END",
        "if(r.x = 0, NULL, l.x / r.x) > 1",
        "coalesce(nullif(r.x, 0), l.x / 1) > 1",
        "r.x IN (0, l.x / nullif(r.x, 0))",
        "try_divide(l.x, r.x) > 1",
    ):
        predicate = bind(guarded, types, types)
        assert outcome(all_at_once, predicate, left, right) == outcome(row_by_row, predicate, left, right) != "error"
    for unguarded in ("l.x / r.x > 1 AND r.x <> 0", "r.x > 0 OR 1 / r.x > 0", "greatest(l.x / r.x, 1) > 1"):
        predicate = bind(unguarded, types, types)
        assert outcome(all_at_once, predicate, left, right) == outcome(row_by_row, predicate, left, right) == "error"
        with pytest.raises(cf.EvaluationError, match="division by zero"):
            all_at_once(predicate, left, right)


def test_integers_of_any_size():
    """Beyond 64 bits Python's integers take over, only where needed, and the result is exact."""
    table = pa.table({"x": pa.array([LOW, HIGH, 3, None])})
    types = {"x": from_arrow(pa.int64())}
    for where in (
        "l.x * r.x * l.x > r.x",
        "l.x - r.x - 1 < 0",
        "-l.x = abs(r.x)",
        "l.x + r.x = -1",
        "l.x * l.x % 7 = 1",
    ):
        predicate = bind(where, types, types)
        assert_same_values(predicate, table, table)
    assert cf.window_join(
        table.append_column("i", [range(4)]), table.append_column("i", [range(4)]), where="l.x * r.x = 9", time="i"
    )["x"].to_pylist() == [3]


# --- access paths never lose a pair


def pairs_of(where: str, left: pa.Table, right: pa.Table) -> list[tuple[int, int]]:
    spec = build_spec(left.schema, right.schema, where=where, time="id", window=None)
    return sorted((le, ri) for le, ri, _ in reference_pairs(spec, left, right))


def joined_pairs(where: str, left: pa.Table, right: pa.Table, batch_rows: int) -> list[tuple[int, int]]:
    engine = cf.Local(batch_rows=batch_rows)
    joined = cf.window_join(left, right, where=where, time="id", window=None, engine=engine)
    return sorted(zip(joined["id"].to_pylist(), joined["id_right"].to_pylist(), strict=True))


SHAPES = [
    "l.x BETWEEN r.y - {c} AND r.y + {c}",
    "abs(l.x - r.y) <= {c}",
    "{c} > abs(r.y - l.x)",
    "l.x < r.y",
    "l.x >= r.y + {c}",
    "l.x + {c} <= r.y",
    "l.x - r.y <= {c}",
    "l.x - r.y > -({c})",
    "r.y - l.x >= {c}",
    "{c} <= r.y - l.x AND l.x - {c} <= r.y",
    "{c} > r.y - l.x",
    "l.x + {c} <= r.y + {c}",
    "l.x - {c} + {c} < r.y",
    "l.x = r.y",
    "l.x <=> r.y AND l.x - r.y <= {c}",
    "l.x + {c} = r.y",
]
NARROWED = ["CAST(l.x AS FLOAT) <= CAST(r.y AS FLOAT)", "CAST(l.x AS FLOAT) - CAST(r.y AS FLOAT) >= {c}"]
TINY = [5e-324, 1e-300]
HUGE = [2.0**24, 2.0**53, 1e20, 1e300, 1.7e308, math.inf]
REALS = [0.0, -0.0, 0.1, 0.3, -1.5, 7.0, math.nan, math.nan, *TINY, *HUGE]
WIDE = decimals("0", "1e-20", "2e-20", "-1e-20", "1.5", "99999999999999999")
DECIMAL = decimals("0", "0.01", "-1.50", "1.5", "9999999999.99")
UNSIGNED = {kind: [0, 1, 2, 2**kind.bit_width - 1] for kind in (pa.uint8(), pa.uint16(), pa.uint32())}

# kind: (Arrow type, values, widths of bands)
FLOAT_KINDS = {
    "float32": (pa.float32(), [*REALS, 3.4e38], ["0.1", "0.1F", "1F", "1e20", "16777216F", "1e-300"]),
    "float64": (pa.float64(), REALS, ["0.1", "0.1D", "1D", "1e20", "1e300", "1e-300"]),
}
EXACT_KINDS = {
    "int8": (pa.int8(), [-128, -1, 0, 1, 127], ["1", "200", "1.5F"]),
    "int64": (
        pa.int64(),
        [LOW, LOW + 1, -5, 0, 1, 2**53 + 1, HIGH - 1, HIGH],
        ["0", "5", str(HIGH), "2.5", "0.1D", "1e20"],
    ),
    "uint64": (pa.uint64(), [0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1], ["1", "9223372036854775808", "0.1D"]),
    "decimal": (pa.decimal128(12, 2), DECIMAL, ["0.01", "1", "0.1D", "1e20"]),
    "wide decimal": (pa.decimal128(38, 20), WIDE, ["0", "0.00000000000000000001", "1.5"]),
    **{str(kind): (kind, values, ["1", "0.5D", "3.0"]) for kind, values in UNSIGNED.items()},
}
TIME_KINDS = {
    "timestamp": (pa.timestamp("us", "UTC"), IN_UTC, ["INTERVAL 1 MICROSECOND", "INTERVAL 20000 DAYS"]),
    "new york": (pa.timestamp("us", "America/New_York"), IN_UTC, ["INTERVAL 23 HOURS", "INTERVAL 10 DAYS"]),
    "date": (pa.date32(), [m.date() for m in MOMENTS], ["INTERVAL 10 DAYS", "INTERVAL 1 HOUR"]),
}
MEETINGS = {
    "floats": (FLOAT_KINDS, [*SHAPES, *NARROWED]),
    "exact numbers": (EXACT_KINDS, SHAPES),
    "all numbers": (FLOAT_KINDS | EXACT_KINDS, [*SHAPES, *NARROWED]),
    "times": (TIME_KINDS, SHAPES),
}


@st.composite
def columns_near(draw: st.DrawFn, kinds: dict[str, Any], width: str) -> tuple[pa.Table, pa.Table]:
    """Two columns; the floats of the second are often just a width beside the first's, where rounding decides."""
    left_kind, right_kind = draw(st.sampled_from(list(kinds))), draw(st.sampled_from(list(kinds)))
    x = draw(st.lists(st.none() | st.sampled_from(kinds[left_kind][1]), min_size=1, max_size=8))
    y = draw(st.lists(st.none() | st.sampled_from(kinds[right_kind][1]), min_size=1, max_size=8))
    if left_kind in FLOAT_KINDS and right_kind in FLOAT_KINDS:
        w = float(width.rstrip("DF"))
        moves = [lambda v: v, lambda v: v + w, lambda v: v - w, lambda v: math.nextafter(v, math.inf)]
        y += [draw(st.sampled_from(moves))(v) for v in x if v is not None]
    return column_table("x", kinds[left_kind][0], x), column_table("y", kinds[right_kind][0], y)


def column_table(name: str, kind: pa.DataType, values: list[Any]) -> pa.Table:
    if kind == pa.float32():
        with np.errstate(over="ignore"):
            values = [None if v is None else float(np.float32(v)) for v in values]
    return pa.table({"id": pa.array(range(len(values)), pa.int64()), name: pa.array(values, kind)})


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("meeting", MEETINGS)
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), batch_rows=st.integers(1, 20))
def test_access_paths_lose_no_pair(meeting, search, data, batch_rows):
    kinds, shapes = MEETINGS[meeting]
    width = data.draw(st.sampled_from([c for _, _, widths in kinds.values() for c in widths]))
    where = data.draw(st.sampled_from(shapes)).format(c=width)
    left, right = data.draw(columns_near(kinds, width))
    try:
        expected = pairs_of(where, left, right)
    except cf.PredicateError:
        assume(False)  # a date beside an interval
    with searching(search):
        assert joined_pairs(where, left, right, batch_rows) == expected


F64, WIDE_TYPE = pa.float64(), pa.decimal128(38, 20)


@pytest.mark.parametrize(
    ("where", "kind", "x", "y"),
    [
        ("l.x + 1D <= r.y", F64, 2.0**53, 2.0**53),  # the sum is rounded to 2**53
        ("l.x + 1e20 <= r.y + 1e20", F64, 5.0, 3.0),  # both sums are 1e20
        ("l.x - r.y <= 0", WIDE_TYPE, Decimal("2e-20"), Decimal("1e-20")),  # the difference has 19 digits: 0
        ("CAST(l.x AS FLOAT) <= CAST(r.y AS FLOAT)", F64, 2e-60, 1e-60),  # both are 0
        ("r.y - l.x >= 5", F64, math.nan, 1.0),  # NaN exceeds everything
        ("l.x - r.y >= 5", F64, math.inf, math.inf),  # infinity minus infinity is NaN
        ("l.x <= r.y", F64, math.inf, math.nan),
        ("l.x = r.y", F64, math.nan, math.nan),
        ("l.x = r.y", F64, 0.0, -0.0),
        ("l.x - r.y > 0", pa.int64(), HIGH, LOW),  # beyond 64 bits
        ("abs(l.x - r.y) <= 18446744073709551615", pa.int64(), LOW, HIGH),
        ("l.x > r.y", pa.uint64(), 2**64 - 1, 2**63),
    ],
)
def test_pairs_that_an_index_could_lose(where, kind, x, y):
    left, right = column_table("x", kind, [x]), column_table("y", kind, [y])
    for search in SEARCHES:
        with searching(search):
            assert pairs_of(where, left, right) == joined_pairs(where, left, right, 10) == [(0, 0)]


def test_equal_times_among_times_beyond_64_bits():
    """One side's batch is held in 64 bits, the other's, which has a time beyond them, is not: equal keys meet."""
    seconds = [3 * 10**12, 9 * 10**12, -3 * 10**12, 5]
    left, right = column_table("x", pa.int64(), seconds), column_table("y", pa.int64(), [*seconds, HIGH])
    for where in (
        "timestamp_seconds(l.x) = timestamp_seconds(r.y)",
        "l.x * INTERVAL 1 SECOND <=> r.y * INTERVAL 1 SECOND",
    ):
        for search in SEARCHES:
            with searching(search):
                assert joined_pairs(where, left, right, 10) == [(i, i) for i in range(len(seconds))]
