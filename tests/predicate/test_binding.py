"""What a predicate may be: errors that say what is wrong, Python expressions, and how a predicate is split."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow import left, right

NOON = dt.datetime(2024, 2, 29, 12)
TABLE = pa.table(
    {
        "id": pa.array(range(4), pa.int64()),
        "x": pa.array([-7, 1, 8, None], pa.int64()),
        "k": pa.array([1, 2, 2, None], pa.int32()),
        "price": pa.array([0.1, 1.5, float("nan"), None], pa.float64()),
        "g": pa.array([0.1, 1.5, 7.0, None], pa.float32()),
        "name": pa.array(["a", "ab", "it's", None]),
        "ok": pa.array([True, False, True, None]),
        "ts": pa.array([NOON, NOON + dt.timedelta(seconds=5), NOON, None], pa.timestamp("us", "UTC")),
        "n": pa.array([NOON, NOON + dt.timedelta(seconds=5), NOON, None], pa.timestamp("us")),
        "day": pa.array([dt.date(2024, 2, 29), dt.date(2024, 3, 1), dt.date(1969, 1, 1), None]),
        "dec": pa.array([Decimal("1.50"), Decimal("-0.25"), Decimal("7.00"), None], pa.decimal128(10, 2)),
        "wide": pa.array([Decimal(1), Decimal(2), Decimal(3), None], pa.decimal128(38, 20)),
        "raw": pa.array([b"a", b"\x00", b"", None]),
        "tags": pa.array([["a"], [], ["b"], None]),
        "at": pa.array([dt.time(1), dt.time(2), dt.time(3), None]),
        "a b": pa.array([1, 2, 3, None], pa.int32()),
    }
)
ONLY_RIGHT = TABLE.rename_columns([f"r_{n}" if n != "id" else n for n in TABLE.column_names])


def pairs(where) -> list[tuple[int, int]]:
    joined = cf.window_join(TABLE, TABLE, where=where, time="id", window=None)
    return sorted(zip(joined["id"].to_pylist(), joined["id_right"].to_pylist(), strict=True))


# --- bad predicates

COLUMN_ERRORS = {
    "l.prise > 1": "no column 'prise' in the left input; did you mean 'price'",
    "r.nam = 'a'": "no column 'nam' in the right input; did you mean 'name'",
    "nosuch > 1": "no column 'nosuch' in either input .there are: id, x",
    "x > 1": r"column 'x' is in both inputs: write l\.x or r\.x",
    "m.x = 1": r"unknown qualifier 'm'; use l\. \(or left\.\) and r\.",
    "l.tags = r.tags": "column 'tags' of the left input has a type that a predicate cannot use",
    "l.at = r.at": "column 'at' of the left input has a type",
    "l.tags.field = 1": r"'l\.tags\.field': nested fields .* select the field as a column",
    "l.a.b.c.d = 1": r"'l\.a\.b\.c\.d': nested fields",
    "l.tags[0] = 'a'": r"'l\.tags\[0\]': nested fields",
}
PREDICATE_ERRORS = {
    # not one condition
    "": "empty: give a condition, or where='true'",
    " \n": "empty",
    "x > AND": "cannot parse where='x > AND': line 1, column 7",
    "l.x = = 3": "cannot parse .* at the end of 'l.x = ='",
    "(l.x > 3": "cannot parse",
    "l.x = 'a": "cannot parse",
    "l.x = 1; r.x = 2": "holds 2 statements: give one",
    "SELECT 1": r"'SELECT 1' \(Select\) cannot be used",
    "l.x > 3 foo": "'l.x > 3 AS foo'",
    "l.x IN (SELECT 1)": "IN needs a list of values; a subquery cannot be used",
    "(SELECT 1) = l.x": "Subquery",
    "EXISTS (SELECT 1)": "Exists",
    "sum(l.x) > 1": r"sum\(\) is an aggregate.*aggregate an input before the join",
    "count(*) > 1": "aggregate",
    "row_number() OVER (ORDER BY l.x) = 1": "Window",
    "l.x": r"must be a condition, but 'l\.x' is BIGINT.*compare it",
    "l.x + r.x": "is BIGINT, not BOOLEAN",
    "l.x AND r.ok": r"'l\.x' is BIGINT, where a condition .* is needed",
    "NOT l.name": "'l.name' is STRING",
    "*": "Star",
    "l.* = 1": "name the columns",
    # functions
    "levenstein(l.name, r.name) < 2": r"unknown function levenstein\(\).*did you mean 'levenshtein'",
    "now() > l.ts": r"unknown function now\(\): compute it as a column",
    "upper(l.name, r.name) = 'A'": r"upper\(l.name: STRING, r.name: STRING\) does not fit its usage upper\(STRING\)",
    "substring(l.name) = 'a'": r"does not fit its usage substring\(STRING, INT\[, INT\]\)",
    "nullif(l.x) = 1": r"nullif\(\) takes 2 arguments, not 1",
    "coalesce() = 1": "takes 1 or more arguments",
    "isnull(l.x, 1)": "takes 1 argument, not 2",
    "abs(l.name) = 1": r"abs\(l.name: STRING\) does not fit .* CAST",
    "hour(l.x) = 1": r"hour\(l.x: BIGINT\)",
    "round(l.price, r.x) = 1": "places must be a constant integer",
    "EXTRACT(ERA FROM l.ts) = 1": "unknown field; use one of DAY",
    "date_part(l.name, l.ts) = 1": "must be a constant such as 'hour'",
    "l.name LIKE 'a' ESCAPE 'ab'": "ESCAPE 'ab': give one character",
    "l.name || INTERVAL 1 DAY = 'a'": r"concat\(l.name: STRING, INTERVAL 86400 SECONDS: INTERVAL DAY TO SECOND\)",
    "date_trunc(l.name, l.ts) = r.ts": "must be a constant such as 'hour'",
    "shiftleft(l.x, 1.5) = 1": r"does not fit its usage shiftleft\(BIGINT, INT\)",
    "elt(l.x) = 'a'": r"does not fit its usage elt\(INT, STRING, ...\)",
    "l.name COLLATE UTF8_LCASE = r.name": r"'l\.name' with the collation UTF8_LCASE: .* byte by byte .* lower\(",
    "l.name = collate(r.name, 'UNICODE_CI')": r"'r\.name' with the collation UNICODE_CI",
    "CAST(l.name AS STRING COLLATE UTF8_LCASE) = 'a'": "collation UTF8_LCASE: predicates compare texts byte by byte",
    "collate(l.name, r.name) = 'a'": "give a text and a constant name such as 'UTF8_BINARY'",
    "l.x COLLATE UTF8_BINARY = 1": r"COLLATE\(l\.x, 'UTF8_BINARY'\): give a text",
    # types that do not fit
    "l.name = r.x": r"cannot compare 'l\.name' \(STRING\) = 'r\.x' \(BIGINT\): a text is only .* CAST one of them",
    "l.x > '5'": "cannot compare 'l.x'",
    "l.x IN (1, 'a')": "cannot compare 'l.x'",
    "l.x BETWEEN 'a' AND 'b'": "cannot compare",
    "l.ok = r.x": r"cannot compare 'l\.ok' \(BOOLEAN\) = 'r\.x' \(BIGINT\): compare values of one kind",
    "l.price > r.ts": "cannot compare",
    "l.ts > r.n": "one has a time zone and the other has none",
    "l.ts > 'tomorrow'": "cannot cast 'tomorrow'",
    "l.day > '2024-02-30'": "cannot cast '2024-02-30' .* to DATE",
    "DATE '2024-13-01' < l.day": "cannot cast '2024-13-01'",
    "l.ts + r.ts > 1": r"cannot compute 'l\.ts' \+ 'r\.ts'",
    "l.name + 1 > 2": "cannot compute 'l.name'",
    "-l.name = 'a'": r"cannot negate 'l\.name' \(STRING\)",
    "l.x & r.price = 1": "bit operations take integers",
    "l.x div r.price = 1": r"use floor\(a / b\)",
    "CAST(l.day AS INT) = 1": r"cannot CAST 'l\.day' \(DATE\) to INT",
    "CAST(l.x AS ARRAY<INT>) = 1": "cannot CAST to ARRAY<INT>",
    "CAST(l.x AS DECIMAL(50,2)) > 1": r"DECIMAL\(50,2\): at most 38 digits",
    "CAST(l.x AS DECIMAL(x)) > 1": r"cannot CAST to DECIMAL\(X\): write DECIMAL\(digits, scale\)",
    "CAST(l.x AS DECIMAL(9,2,1)) > 1": r"write DECIMAL\(digits, scale\)",
    "CAST('a' AS INT) = 1": "cannot cast 'a'",
    "CASE WHEN l.x THEN true END": "where a condition",
    "CASE WHEN l.ok THEN 1 ELSE 'a' END = 1": "CASE: INT and ''a'' .STRING. do not fit",
    "l.x > 1e400": "1e400 is too large",
    "l.x > 1e": "1e is not a number",
    "l.x > 1234567890123456789012345678901234567890": "more than 38 digits",
    "l.ts > r.ts + INTERVAL 3 MONTHS": "INTERVAL '3' MONTHS.*fixed length",
    "l.ts > r.ts + INTERVAL l.x SECONDS": r"l\.x \* INTERVAL 1 SECOND",
    "l.x BETWEEN SYMMETRIC 1 AND 2": "not Spark SQL: write BETWEEN least",
    # what Spark would read otherwise than it looks
    "l.ok = r.ok IN (true)": "put parentheses around 'r.ok IN",
    "l.x | r.x & 1 = 1": "put parentheses around",
    "l.ok = NOT r.ok": "put parentheses",
}


@pytest.mark.parametrize("where", COLUMN_ERRORS)
def test_column_errors(where):
    with pytest.raises(cf.ColumnError, match=COLUMN_ERRORS[where]):
        pairs(where)


@pytest.mark.parametrize("where", PREDICATE_ERRORS)
def test_predicate_errors(where):
    with pytest.raises(cf.PredicateError, match=PREDICATE_ERRORS[where]):
        pairs(where)


@pytest.mark.parametrize("where", [None, 5, ["l.x = 1"], lambda: True])
def test_a_predicate_is_text_or_an_expression(where):
    with pytest.raises(cf.PredicateError, match="must be SQL text or a Counterflow expression"):
        pairs(where)


MISUSES = {
    "and": (lambda: (left.x > 1) and (right.x > 1), "no truth value.*combine conditions with &"),
    "chained comparison": (lambda: 1 < left.x < 3, r"write a < b and b < c as \(a < b\) & \(b < c\)"),
    "not": (lambda: not left.ok, "no truth value"),
    "in": (lambda: left.x in [1, 2], "no truth value"),
    "an object": (lambda: left.x > object(), "not a SQL value"),
    "a decimal that is none": (lambda: left.x > Decimal("nan"), "not a SQL value"),
    "a column by number": (lambda: left[5] > 1, "5 is not a column: give its name"),
    "a band of numbers": (lambda: cf.band(5, "x", 1), "5 is not a column"),
    "a function by number": (lambda: cf.function(5, left.x), "the function's name"),
    "a type that is none": (lambda: left.x.cast("nonsense?"), "not a SQL type"),
    "no options": (lambda: pairs(left.x.isin()), "IN needs a list"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_of_python_expressions(misuse):
    call, message = MISUSES[misuse]
    with pytest.raises(cf.PredicateError, match=message):
        call()


# --- names


def test_names():
    assert pairs("left.x = RIGHT.X AND L.x = r.`x`") == pairs("l.x = r.x")
    joined = cf.window_join(TABLE, ONLY_RIGHT, where="x = r_x AND `a b` = 2 AND ok = (r_ok IS NOT NULL)", time="id")
    assert joined["id"].to_pylist() == []
    joined = cf.window_join(TABLE, ONLY_RIGHT, where="x = r_x AND `a b` = 3", time="id")
    assert joined["r_name"].to_pylist() == ["it's"]


def test_a_name_that_differs_only_in_case_is_taken_exactly():
    table = pa.table({"id": [1], "X": [1]})
    assert len(cf.window_join(table, table, where="l.x = r.X", time="ID")) == 1


# --- Python expressions are the same predicates

SAME = {
    "l.x = r.x": left.x == right.x,
    "l.x <> r.x": left.x != right.x,
    "l.x < r.x - 1": left.x < right.x - 1,
    "l.`a b` >= r.`a b`": left["a b"] >= right["a b"],
    "abs(l.x - r.x) <= 8": cf.band("x", "x", 8),
    "abs(l.price - r.g) <= 0.1D": cf.band("price", "g", 0.1),
    "l.ts BETWEEN r.ts - INTERVAL 5 SECONDS AND r.ts + INTERVAL 5 SECONDS": cf.band(
        "ts", "ts", dt.timedelta(seconds=5)
    ),
    "l.x + 1 BETWEEN r.x AND r.x + r.k": (left.x + 1).between(right.x, right.x + right.k),
    "l.x IN (1, 8, r.k)": left.x.isin(1, 8, right.k),
    "l.x IN (1, 8)": left.x.isin([1, 8]),
    "l.x IS NULL AND r.x IS NOT NULL": left.x.is_null() & right.x.is_not_null(),
    "l.x <=> r.x": left.x.eq_null_safe(right.x),
    "l.name LIKE 'a%' OR NOT r.ok": left.name.like("a%") | ~right.ok,
    "l.name = 'it\\'s'": left.name == "it's",
    "CAST(l.g AS DOUBLE) = CAST(r.dec AS DOUBLE)": left.g.cast("double") == right.dec.cast("DOUBLE"),
    "CAST(l.dec AS DECIMAL(4,1)) = 7": left.dec.cast("decimal(4,1)") == 7,
    "upper(l.name) = 'AB'": cf.function("upper", left.name) == "AB",
    "abs(l.x) = 7 AND pow(r.x, 2) = 49": (left.x.abs() == 7) & (right.x**2 == 49),
    "-l.x = 7": -left.x == 7,
    "(l.x + r.x) * 2 - 1 > 3 / (l.k + 1)": (left.x + right.x) * 2 - 1 > 3 / (left.k + 1),
    "10 - l.x > 2 * r.x": 10 - left.x > 2 * right.x,
    "8 % nullif(r.k, 0) = l.x % 2": cf.function("mod", 8, right.k) == left.x % 2,
    "l.dec > -0.250": left.dec > Decimal("-0.250"),
    "l.dec < 100": left.dec < Decimal("1E+2"),
    "l.price = 0.1D": left.price == 0.1,
    "l.price >= CAST('NaN' AS DOUBLE)": left.price >= float("nan"),
    "l.x > -5": left.x > np.int64(-5),
    "l.ts > TIMESTAMP '2024-02-29 12:00:01Z'": left.ts
    > dt.datetime(2024, 2, 29, 13, 0, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
    "l.ts > '2024-02-29 12:00:01'": left.ts > dt.datetime(2024, 2, 29, 12, 0, 1),
    "l.n - r.n > TIMESTAMP_NTZ '2024-01-01' - TIMESTAMP_NTZ '2024-01-01'": left.n - dt.datetime(2024, 1, 1)
    > right.n - dt.datetime(2024, 1, 1),
    "l.day = DATE '2024-02-29'": left.day == dt.date(2024, 2, 29),
    "l.ts - r.ts = INTERVAL 5 SECONDS": left.ts - right.ts == dt.timedelta(seconds=5),
    "l.raw = X'00'": left.raw == b"\x00",
    "l.ok = true": left.ok == True,  # noqa: E712
    "l.x = NULL": left.x == None,  # noqa: E711
    "l.ok AND (r.ok OR l.x = 1)": left.ok & (right.ok | (left.x == 1)),
    "true": cf.function("coalesce", True),
}


@pytest.mark.parametrize("sql", SAME)
def test_python_expressions_mean_the_same(sql):
    assert pairs(SAME[sql]) == pairs(sql)
    assert pairs(str(SAME[sql])) == pairs(sql)  # and they print as the SQL they mean


# --- the split

EMPTY = {k: [] for k in ("equalities", "bands", "inequalities", "left_filters", "right_filters", "residual")}
SPLITS = {
    "l.x = r.x": {"equalities": ["l.x = r.x"]},
    "r.k + 1 = l.x AND l.name <=> r.name": {"equalities": ["l.x = (r.k + 1)", "l.name <=> r.name"]},
    "upper(l.name) = r.name": {"equalities": ["upper(l.name) = r.name"]},
    "l.x BETWEEN r.k - 10 AND r.k + 10": {"bands": ["-10 <= l.x - r.k <= 10"]},
    "abs(r.x - l.x) < 2 * 5": {"bands": ["-10 <= l.x - r.x <= 10"]},
    "1.5 >= abs(l.price - r.g)": {"bands": ["-1.5 <= l.price - r.g <= 1.5"]},
    "r.x >= l.x AND r.x <= l.x + 5": {"bands": ["-5 <= l.x - r.x <= 0"]},
    "l.ts - r.ts <= INTERVAL 5 SECONDS": {"inequalities": ["l.ts - r.ts <= 5000000"]},
    "l.x - (r.x - 3) < 4": {"inequalities": ["l.x - r.x <= 1"]},
    "r.price - l.price >= 1": {"inequalities": ["l.price - r.price <= -1"]},
    "l.x <= r.k AND l.k <= r.x": {"inequalities": ["l.x - r.k <= 0", "l.k - r.x <= 0"]},
    "l.day + 3 > r.day": {"inequalities": ["-3 <= l.day - r.day"]},
    "l.day BETWEEN r.day - 2 AND r.day + INTERVAL 3 DAYS": {"bands": ["-2 <= l.day - r.day <= 3"]},
    "abs(datediff(l.day, r.day)) <= 2": {"bands": ["-2 <= l.day - r.day <= 2"]},
    "l.x > 0 AND r.k IS NULL AND l.k = r.k": {
        "equalities": ["l.k = r.k"],
        "left_filters": ["(l.x > 0)"],
        "right_filters": ["is_null(r.k)"],
    },
    "l.x = r.x OR l.k = r.k": {"residual": ["((l.x = r.x) OR (l.k = r.k))"]},
    "l.x <> r.x": {"residual": ["(l.x <> r.x)"]},
    "l.x + r.x < 10": {"residual": ["((l.x + r.x) < 10)"]},
    "l.name < r.name": {"residual": ["(l.name < r.name)"]},
    "l.price + 1e40 < r.price": {"residual": ["((l.price + 1e+40) < r.price)"]},  # too large to be subtracted again
    "l.wide - r.wide <= 0.5": {"residual": ["((l.wide - r.wide) <= 0.5)"]},  # the difference is rounded to 19 digits
    "true": {"residual": ["true"]},
    "l.day + 1 > '2024-02-29' AND r.ts < TIMESTAMP '2024-02-29 12:00:00.5'": {
        "left_filters": ["(date_add(l.day, 1) > DATE '2024-02-29')"],
        "right_filters": ["(r.ts < TIMESTAMP '2024-02-29 12:00:00.5')"],
    },
}


@pytest.mark.parametrize("where", SPLITS)
def test_split(where):
    facts = cf.explain(TABLE, TABLE, where=where, time="id", show=False).to_dict()
    assert {k: facts[k] for k in EMPTY} == EMPTY | SPLITS[where]


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("l.x = r.x AND l.k < r.k", "hash on l.x"),
        ("l.k < r.k AND abs(l.x - r.x) <= 3", "band on l.x"),
        ("l.k < r.k", "range on l.k"),
        ("l.x <= r.x + r.k AND r.x <= l.x + l.k", "overlap on l.x to (l.x + l.k)"),
        ("l.x <> r.x", "scan"),
    ],
)
def test_access_path(where, path):
    assert cf.explain(TABLE, TABLE, where=where, time="id", show=False).to_dict()["access_path"]["left"] == path
