"""Values that Spark 4.3 gives, on Java 17: both evaluators give the same, row by row and of columns."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.predicate.expression import Call, Expression
from counterflow.predicate.pattern_functions import java_regex
from counterflow.reference import one_pair
from counterflow.reference.table_rows import row_values
from counterflow.spec.join_spec import build_spec
from counterflow.windows.evaluate import Frame, evaluate
from counterflow.windows.store import predicate_columns
from counterflow.windows.vectors import to_python
from interpreted import SEARCHES, searching

TYPES = {  # by a column's first letter
    "d": pa.float64(),
    "g": pa.float32(),
    "i": pa.int32(),
    "p": pa.decimal128(9, 2),
    "q": pa.decimal128(9, 2),
    "s": pa.string(),
    "t": pa.timestamp("us", "UTC"),
}
RIGHT = pa.table({"id": pa.array([0])})


def bound(text: str, table: pa.Table) -> Expression:
    predicate = build_spec(table.schema, RIGHT.schema, where=f"({text}) IS NULL", time="id", window=None).predicate
    assert isinstance(predicate, Call)
    return predicate.args[0]


def values_of(text: str, **columns: list[Any]) -> list[Any]:
    """Return an expression's values, row by row, after it was computed of the whole columns, too."""
    n = len(next(iter(columns.values()))) if columns else 1
    given = {name: pa.array(values, TYPES[name[0]]) for name, values in columns.items()}
    table = pa.table({"id": pa.array(range(n)), **given})
    expression = bound(text, table)
    rows = [dict(zip(given, row, strict=True)) for row in zip(*map(row_values, table.columns[1:]), strict=True)]
    one_by_one = [one_pair.evaluate(expression, row, {}) for row in rows or [{}]]
    vector = evaluate(expression, Frame(n, left=(predicate_columns(expression, "left", table), None))).broadcast(n)
    at_once = [v if ok else None for v, ok in zip(to_python(vector), vector.mask(), strict=True)]
    assert list(map(repr, at_once)) == list(map(repr, one_by_one))
    return one_by_one


# --- a quotient that may be NULL has the type of the quotient


def test_a_quotient_has_the_digits_of_its_operands():
    p = [Decimal("0.01"), Decimal("1.25"), Decimal("-1.35"), None]
    assert values_of("try_divide(p, 7)", p=p) == [Decimal("0.001429"), Decimal("0.178571"), Decimal("-0.192857"), None]
    for name, op in (("try_divide", "/"), ("try_mod", "%")):
        for divisor in ("7", "-7", "0.7", "3L", "2D", "i", "q"):
            columns = {"p": p, "q": [Decimal("0.30")] * 4, "i": [7] * 4}
            assert values_of(f"{name}(p, {divisor})", **columns) == values_of(f"p {op} {divisor}", **columns)
        assert values_of(f"{name}(p, 0)", p=p) == values_of(f"{name}(p, NULL)", p=p) == [None] * 4


@pytest.mark.parametrize("divisor", ["0", "7", "-7L", "0.0", "0.70", "i", "i + 0.5", "d"])
def test_a_quotient_that_may_be_null_has_the_type_of_the_quotient(divisor):
    table = pa.table({"id": [0], **{name: pa.array([1], type_) for name, type_ in TYPES.items() if name in "dgpqi"}})
    for name, op in (("try_divide", "/"), ("try_mod", "%")):
        for dividend in ("p", "i", "d", "g"):
            want = bound(f"{dividend} {op} ({divisor})", table).type
            assert bound(f"{name}({dividend}, {divisor})", table).type == want


def test_where_a_divisor_is_zero():
    p, i, d = [Decimal(5), Decimal(1), Decimal(1), None], [0, 3, None, 0], [-0.0, 0.5, math.nan, 0.0]
    assert values_of("try_divide(p, i)", p=p, i=i) == [None, Decimal("0.3333333333333"), None, None]
    assert values_of("try_mod(p, i)", p=p, i=i) == [None, Decimal(1), None, None]
    assert [str(v) for v in values_of("try_divide(i, d)", i=i, d=d)] == ["None", "6.0", "None", "None"]


# --- the arc tangent has no negative zero

ZEROS = [(0.0, -0.0, 0.0), (-0.0, -0.0, 0.0), (-0.0, -1.5, math.pi), (0.0, -1.5, math.pi), (-0.0, 1.5, 0.0)]


def test_the_arc_tangent_of_negative_zero():
    y, x, want = zip(*ZEROS, strict=True)
    assert values_of("atan2(d, d2)", d=[*y], d2=[*x]) == [*want]
    assert values_of("atan2(0D, -0D)") == [0.0]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    ("condition", "holds"), [("= l.want", lambda v: True), ("> 3", lambda v: v > 3), ("<= 1e-9", lambda v: v < 1)]
)
def test_a_join_by_the_arc_tangent_of_negative_zero(condition, holds, search):
    y, x, want = zip(*ZEROS, strict=True)
    left = pa.table({"t": [0] * 5, "id": range(5), "d": y, "want": want})
    right = pa.table({"t": [0] * 5, "id": range(5), "d": x})
    with searching(search):
        where = f"l.id = r.id AND atan2(l.d, r.d) {condition}"
        found = cf.window_join(left, right, where=where, time="t", window=None)
    assert sorted(found["id"].to_pylist()) == [i for i, v in enumerate(want) if holds(v)]


# --- casts

BEYOND, BELOW = 2.0**63, math.nextafter(-(2.0**63), -math.inf)


@pytest.mark.parametrize("column", ["d", "g"])
def test_the_double_after_the_last_bigint_is_the_last_bigint(column):
    given = [BEYOND, -BEYOND, 2.0**62, -(2.0**64), 2.0**64, math.inf, math.nan]
    want = [2**63 - 1, -(2**63), 2**62, None, None, None, None]
    assert values_of(f"TRY_CAST({column} AS BIGINT)", **{column: given}) == want
    assert values_of(f"CAST({column} AS BIGINT)", **{column: given[:3]}) == want[:3]
    assert values_of(f"bigint({column} * 1)", **{column: given[:3]}) == want[:3]
    for value in given[3:]:
        with pytest.raises(cf.EvaluationError, match="use TRY_CAST"):
            values_of(f"CAST({column} AS BIGINT)", **{column: [value]})


def test_doubles_around_the_ends_of_integers():
    d = [BELOW, math.nextafter(BEYOND, 0), 2147483647.9, 2147483648.0, -2147483648.9, -2147483649.0]
    assert values_of("TRY_CAST(d AS BIGINT)", d=d)[:2] == [None, 2**63 - 1024]
    assert values_of("TRY_CAST(d AS INT)", d=d) == [None, None, 2**31 - 1, None, -(2**31), None]
    assert values_of("TRY_CAST(d AS TINYINT)", d=[127.9, 128.0, -128.9, -129.0]) == [127, None, -128, None]
    assert values_of("TRY_CAST(CAST(d AS DECIMAL(19,0)) AS BIGINT)", d=[BEYOND]) == [None]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_join_by_the_last_bigint(search):
    left = pa.table({"t": [0, 0], "d": [BEYOND, 1.0]})
    right = pa.table({"t": [0, 0], "b": pa.array([2**63 - 1, 2**63 - 2], pa.int64())})
    with searching(search):
        found = cf.window_join(left, right, where="CAST(l.d AS BIGINT) = r.b", time="t", window=None)
    assert found["b"].to_pylist() == [2**63 - 1]


def test_a_timestamp_as_a_decimal_is_exact():
    utc = dt.UTC
    t = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999, utc), dt.datetime(1, 1, 1, 0, 0, 0, 1, utc), None]
    exact = [Decimal("253402300799.999999"), Decimal("-62135596799.999999"), None]
    assert values_of("CAST(t AS DECIMAL(20,6))", t=t) == exact
    assert values_of("CAST(t AS DECIMAL(38,18))", t=t) == exact
    assert values_of("TRY_CAST(t AS DECIMAL(13,1))", t=t) == [
        Decimal("253402300800.0"),
        Decimal("-62135596800.0"),
        None,
    ]
    assert values_of("TRY_CAST(t AS DECIMAL(8,2))", t=t) == [None] * 3


# --- regular expressions


ENDS = "\n\r\x85\u2028\u2029"
TEXTS = ["".join(letters) for n in range(5) for letters in product("a\r\n\u2028", repeat=n)] + [*ENDS, "a\x85", "\x85a"]


def between(text: str, i: int) -> bool:
    return 0 < i < len(text) and text[i - 1 : i + 1] == "\r\n"


def ends_line(text: str, i: int) -> bool:
    """Say whether Java's $ is at a place, under (?m)."""
    return i == len(text) or (text[i] in ENDS and not between(text, i))


def ends_text(text: str, i: int) -> bool:
    """Say whether Java's $ is at a place."""
    return ends_line(text, i) and (i >= len(text) - 1 or text[i:] == "\r\n")


def begins_line(text: str, i: int) -> bool:
    """Say whether Java's ^ is at a place, under (?m)."""
    return i < len(text) and (i == 0 or (text[i - 1] in ENDS and not between(text, i)))


@pytest.mark.parametrize(
    ("pattern", "is_there"),
    [
        ("$", ends_text),
        ("(?:$)", ends_text),
        ("(?m:a)*?$", ends_text),
        ("(?m)$", ends_line),
        ("(?m)(?i:$)", ends_line),
        ("(?m)(?:(?-m:$))", ends_text),
        ("(?m)^", begins_line),
        ("(?m:^)", begins_line),
        ("(?im)^", begins_line),
        ("^", lambda text, i: i == 0),
        (r"\A", lambda text, i: i == 0),
        (r"(?=\$|.)", lambda text, i: i < len(text) and text[i] not in ENDS),
        ("(?=.)", lambda text, i: i < len(text) and text[i] not in ENDS),
        ("(?s)(?=.)", lambda text, i: i < len(text)),
        ("(?s:(?=.))", lambda text, i: i < len(text)),
        ("(?s:b?)(?=.)", lambda text, i: i < len(text) and text[i] not in ENDS),
        ("(?s)(?-s:(?=.))", lambda text, i: i < len(text) and text[i] not in ENDS),
        (r"(?=[.$^{])", lambda text, i: False),
        (r"(?=\r|[^a\r])", lambda text, i: i < len(text) and text[i] != "a"),
    ],
)
def test_where_lines_begin_and_end(pattern, is_there):
    for text in TEXTS:
        found = {match.end() for match in java_regex(pattern).finditer(text)}
        assert found == {i for i in range(len(text) + 1) if is_there(text, i)}, repr(text)


def test_patterns_at_line_ends():
    s = ["a\r", "a\r\n", "\u2028", "a\x85", "\r", "a", "ab"]
    assert values_of("s RLIKE '^.$'", s=s) == [True, True, False, True, False, True, False]
    assert values_of("s RLIKE 'a.'", s=s) == [False, False, False, False, False, False, True]
    assert values_of("s RLIKE 'a$'", s=s) == [True, True, False, True, False, True, False]
    assert values_of("regexp_replace(s, '$', 'x')", s=s[:4]) == ["ax\rx", "ax\r\nx", "x\u2028x", "ax\x85x"]
    assert values_of("regexp_replace(s, '.', 'X')", s=s[:4]) == ["X\r", "X\r\n", "\u2028", "X\x85"]
    assert values_of("regexp_count(s, '$')", s=s) == [2, 2, 2, 2, 2, 1, 1]
    assert values_of("regexp_instr(s, '$')", s=s) == [2, 2, 1, 2, 1, 2, 3]
    assert values_of("regexp_extract(s, '.*', 0)", s=s) == ["a", "a", "", "a", "", "a", "ab"]
    assert values_of("regexp_substr(s, '.')", s=s)[2] is None


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\0101", r"\01", r"a\\\0", r"()\101", r"()\123", r"[\1]", r"[\b]", r"[\\\b]", r"[a\v]", r"\v", r"\Z"),
        *(r"\U00000041", r"\N{DIGIT ONE}", r"\p{L}", r"\Qa\E", r"\R", r"\h", "x{,3}", "{", "a{", "a{x}", "{,}", "a{,}"),
        *("[a[b]]", "[a&&b]", "[[a]]", r"[\[[b]]", "(?P<n>a)", "(?P<n>a)(?P=n)", "(a)?(?(1)b|c)", "(?#a)b", "(?x)a b"),
        *("(?a)b", "(?x:a)", "(?i-x:a)", "(?u)a", "(?d)a", "(?U)a", "a(?s)b", "(?i-s)a", "(", "[a", "a**"),
    ],
)
def test_patterns_that_are_refused(pattern):
    with pytest.raises(cf.EvaluationError, match="has no value"):
        values_of(f"s RLIKE r'{pattern}'", s=["a"])


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a{2}b{1,}c{0,2}", "aabcc", "aabcc"),
        (r"\{\}}]", "{}}]", "{}}]"),
        (r"\\.", "\\a", "\\a"),
        (r"\\\\v", "\\\\v", "\\\\v"),
        (r"[]a]+", "a]", "a]"),
        (r"[^]a]", "a]b", "b"),
        (r"[\]a]+", "]a", "]a"),
        (r"[a\[]+", "[a", "[a"),
        (r"(.)\1", "abb", "bb"),
        (r"\u0041\x41\t", "AA\t", "AA\t"),
        (r"(?i)K", "k", "k"),
        (r"a(?!.)", "a\rab", "a"),
        (r"(?<=\r)a", "a\ra", "a"),
        (r"(?>a+)b", "aab", "aab"),
        (r"a++b", "aab", "aab"),
        (r"\Ba", "ba", "a"),
    ],
)
def test_patterns_that_are_taken(pattern, text, found):
    assert values_of(f"regexp_extract(s, r'{pattern}', 0)", s=[text]) == [found]


def test_no_border_of_a_word_in_an_empty_text():
    assert values_of(r"s RLIKE r'\B'", s=["", "a", "ab"]) == [True, False, True]


def test_like_knows_no_lines():
    assert values_of("s LIKE '_'", s=[*ENDS]) == [True] * len(ENDS)
