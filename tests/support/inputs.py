"""Inputs that the tests share: hypothesis strategies for tables, and predicates of every kind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa

import counterflow as cf
from counterflow.lab.simulator.window_forms import FORMS, LEAVING, Form, draw_window
from counterflow.spec.window_sizes import Window, resolve

# One predicate of each kind that the split knows, over the columns of `tables()`.
PREDICATES = {
    "equality": "l.k = r.k",
    "null-safe equality": "l.k <=> r.k",
    "equality of strings": "l.s = r.s",
    "two equalities": "l.k = r.k AND l.s = r.s",
    "band": "l.x BETWEEN r.x - 2 AND r.x + 2",
    "two bands": "abs(l.x - r.x) <= 3 AND l.f BETWEEN r.f - 1.5 AND r.f + 1.5",
    "two bands of one column": "abs(l.x - r.x) <= 3 AND l.x BETWEEN r.k - 3 AND r.k + 3",
    "float band": "abs(l.f - r.f) <= 1",
    "inequality": "l.x < r.x - 1",
    "interval overlap": "l.x <= r.x + r.k AND r.x <= l.x + l.k",
    "filters": "l.x > 0 AND r.k IS NOT NULL AND l.k = r.k",
    "residual": "l.x * r.x % 3 = 1 OR l.s LIKE r.s || '%'",
    "time in the predicate": "r.ts >= l.ts + INTERVAL 2 SECONDS OR l.k = r.k",
    "everything": "true",
    "nothing": "l.x <> l.x",
    "distance": "sqrt(pow(l.x - r.x, 2) + pow(l.f - r.f, 2)) < 2.5",
    "distance by row": "greatest(abs(l.x - r.x), abs(l.f - r.f)) <= l.k",
    "case": "CASE WHEN l.k = r.k THEN l.x >= r.x WHEN l.x > 2 THEN true END",
    "distance in three dimensions": "pow(l.x - r.x, 2) + pow(l.f - r.f, 2) + pow(l.k - r.k, 2) <= 6",
    "distance on a sphere": "haversine(l.x * 18, l.f * 60, r.x * 18, r.f * 60) <= 3000000",
    "Manhattan distance": "abs(l.x - r.x) + abs(l.f - r.f) <= 2",
    "radius by row": "hypot(l.x - r.x, l.f - r.f) <= r.k",
    "point in interval": "l.f BETWEEN r.x AND r.x + r.k",
    "one below, one above": "l.x < r.k AND l.f > r.x",
    "OR of two equalities": "l.k = r.k OR l.s = r.s",
    "OR of a band and an overlap": "abs(l.x - r.x) <= 1 OR (l.k <= r.f AND r.k <= l.f)",
    "one of a list": "l.k IN (r.k, r.x, 2)",
    "ratio": "l.f / nullif(r.x, 0) BETWEEN 0.5 AND 1.5",
    "prefix": "startswith(l.s, r.s) AND l.x <> r.x",
    "levenshtein": "levenshtein(l.s, r.s) <= 1",
    "agreeing branches": "CASE WHEN l.s = r.s THEN abs(l.x - r.x) ELSE 2 * abs(l.x - r.x) END <= 3",
    "function with a band": cf.condition(lambda x, k: (x + k) % 2 == 0, "l.x", "r.k") & cf.band("x", "x", 3),
}

# Of those that find candidates by what a condition implies: what runs in every engine, where more would take too long.
IMPLYING = ["distance on a sphere", "radius by row", "OR of two equalities", "function with a band"]

# One window of most kinds, for tests that cannot try many; the others draw from `windows()`.
WINDOWS = {
    "duration": "3 seconds",
    "asymmetric": ("1 second", "4 seconds"),
    "zero": "0 seconds",
    "rows": (cf.rows(3), cf.rows(3)),
    "mixed": (cf.rows(2), "2 seconds"),
    "unbounded": None,
    "one side unbounded": (None, "2 seconds"),
    "open": cf.window("3 seconds", closed=False),
    "before only": cf.window(before="3 seconds"),
    "zero and open": cf.window("0 seconds", closed=False),
    "before only, open": cf.window(before="3 seconds", closed=False),
    "after only, open": cf.window(after="3 seconds", closed=False),
    "rows, then zero and open": cf.window(after=cf.rows(2), closed=False),
}


def window_of(name: str) -> Any:
    return WINDOWS[name]


def windows(unit: str = "seconds", forms: tuple[Form, ...] = FORMS) -> st.SearchStrategy[Any]:
    """Any window that a call can ask for: of timestamps, or without a unit of integer times.

    Half of them are such that rows leave both sides.
    """
    leaving = st.sampled_from([form for form in forms if form in LEAVING])
    chance = st.randoms(use_true_random=False)
    return st.builds(partial(draw_window, unit=unit), st.one_of(leaving, st.sampled_from(forms)), chance)


def form_of(given: Any, integer_time: bool = True) -> Form:
    """Return the form of a value of `window=`, from what the product makes of it."""
    left, right = resolve(given, integer_time=integer_time)

    def kind(side: Window) -> str:
        if side.kind == "rows":
            return "one row" if side.size == 1 else "few rows" if side.size < 100 else "many rows"
        if side.kind == "unbounded":
            return "unbounded"
        return "zero" if side.size == 0 else "huge" if side.size > 10**15 else "short"

    return Form(kind(left), kind(right), left.closed and right.closed)


SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "ts": pa.timestamp("us", "UTC"),
        "k": pa.int32(),
        "x": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
    }
)

START_S = 1_704_067_200  # the beginning of 2024
SECONDS_MAX = 8

_floats = st.one_of(
    st.none(), st.sampled_from([0.0, -0.0, 1.0, 1.5, 2.5, -3.0, float("nan"), float("inf"), -float("inf"), 1e300])
)
_row = st.tuples(
    st.integers(0, SECONDS_MAX),
    st.one_of(st.none(), st.integers(-1, 3)),
    st.one_of(st.none(), st.integers(-5, 5)),
    _floats,
    st.one_of(st.none(), st.sampled_from(["", "a", "ab", "b"])),
)


@st.composite
def tables(draw: st.DrawFn, rows_max: int = 14) -> pa.Table:
    """A small table with ties, nulls, NaN and duplicates, not sorted by time."""
    rows = draw(st.lists(_row, max_size=rows_max))
    return table_of(rows)


def table_of(rows: list[tuple]) -> pa.Table:
    base = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 5
    data = {"id": range(len(rows)), "ts": [base + dt.timedelta(seconds=s) for s in columns[0]]}
    data |= dict(zip(("k", "x", "f", "s"), columns[1:], strict=True))
    return pa.table({n: pa.array(list(v), SCHEMA.field(n).type) for n, v in data.items()}, schema=SCHEMA)


# Where on the line of 64 bits the seconds of `tables()` are; None: they are timestamps.
END = 2**63 - 1 - SECONDS_MAX
CLOCKS: dict[str, Any] = {
    "timestamps": None,
    "integers": lambda second: second,
    "the beginning of time": lambda second: second - 2**63,
    "the end of time": lambda second: END + second,
    "both ends of time": lambda second: END + second if second > SECONDS_MAX // 2 else second - 2**63,
}


def retimed(table: pa.Table, clock: str) -> pa.Table:
    """The table with its times on this clock: in the same order, with the same ties."""
    if CLOCKS[clock] is None:
        return table
    seconds = [int(time.timestamp()) - START_S for time in table["ts"].to_pylist()]
    return table.set_column(1, "ts", pa.array([CLOCKS[clock](second) for second in seconds], pa.int64()))


@st.composite
def joins(
    draw: st.DrawFn,
    rows_max: int = 14,
    kinds: Sequence[str] = tuple(PREDICATES),
    forms: tuple[Form, ...] = FORMS,
) -> tuple[pa.Table, pa.Table, dict[str, Any]]:
    """Two tables on any clock, and what a call needs to join them: a predicate, and a window of any form."""
    clock = draw(st.sampled_from(list(CLOCKS)))
    is_integer = CLOCKS[clock] is not None
    kind = draw(st.sampled_from([kind for kind in kinds if not (is_integer and kind == "time in the predicate")]))
    left, right = (retimed(draw(tables(rows_max)), clock) for _ in range(2))
    window = draw(windows("" if is_integer else "seconds", forms))
    return left, right, dict(where=PREDICATES[kind], time="ts", window=window)


BENCHMARK = "l.x BETWEEN r.a - 10 AND r.a + 10 AND l.y BETWEEN r.b - 10 AND r.b + 10"


def benchmark_inputs(rows: int, seconds: int, seed: int = 7, domain: int = 300) -> tuple[pa.Table, pa.Table]:
    """The field's benchmark join: R(ts, x int, y float, z string) and S(ts, a int, b float, c double, d bool)."""
    rng = np.random.default_rng(seed)

    def times() -> pa.Array:
        us = np.sort(rng.integers(0, seconds * 1_000_000, rows)) + 1_700_000_000_000_000
        return pa.array(us, pa.timestamp("us", "UTC"))

    left = {
        "ts": times(),
        "x": pa.array(rng.integers(1, domain, rows), pa.int32()),
        "y": pa.array(rng.uniform(1, domain, rows), pa.float32()),
        "z": pa.array([f"r{i:019d}" for i in range(rows)]),
    }
    right = {
        "ts": times(),
        "a": pa.array(rng.integers(1, domain, rows), pa.int32()),
        "b": pa.array(rng.uniform(1, domain, rows), pa.float32()),
        "c": pa.array(np.arange(rows), pa.float64()),
        "d": pa.array(rng.integers(0, 2, rows).astype(bool)),
    }
    return pa.table(left), pa.table(right)


# Columns of every type a predicate can compare, with their edges: (name, Arrow type, values).
TYPED_COLUMNS = [
    ("i8", pa.int8(), [-128, -1, 0, 1, 127, None]),
    ("i16", pa.int16(), [-32768, 0, 3, 32767, None]),
    ("i32", pa.int32(), [-(2**31), -1, 0, 7, 2**31 - 1, None]),
    ("i64", pa.int64(), [-(2**63), -1, 0, 2**53 + 1, 2**60 + 2**36 + 1, 2**63 - 1, None]),
    ("f32", pa.float32(), [0.0, -0.0, 0.1, 0.35, 1.5, -2.5, 3.0e38, float("nan"), float("inf"), None]),
    ("f64", pa.float64(), [0.0, 0.1, 1.0, 1.5, -2.5, 1e308, -1000.0, float("nan"), float("inf"), float("-inf"), None]),
    ("dec", pa.decimal128(10, 2), [Decimal("0.00"), Decimal("1.50"), Decimal("-99999999.99"), None]),
    ("b", pa.bool_(), [True, False, None]),
    ("s", pa.string(), ["", "a", "B", "abc", "äöü", "a%", " a ", "it's", None]),
    ("d", pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(2024, 3, 1), None]),
    (
        "t",
        pa.timestamp("us", "UTC"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 5, dt.UTC), dt.datetime(2024, 2, 29, 13, 45, 6, 700_000, dt.UTC), None],
    ),
    ("n", pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 5), dt.datetime(2024, 2, 29, 1, 5, 6), None]),
    ("iv", pa.duration("us"), [dt.timedelta(0), dt.timedelta(seconds=1.5), dt.timedelta(days=-2, hours=5), None]),
    ("bin", pa.binary(), [b"", b"\x0a\xff", b"a", None]),
    ("wide", pa.decimal128(38, 18), [Decimal("1E-18"), Decimal("-12345678901234567890.5"), None, Decimal(3)]),
    # Small values, whose sums and products stay in their types' ranges: there Spark stops with an error.
    ("a", pa.int32(), [-7, -1, 0, 1, 2, 10, None]),
    ("k", pa.int16(), [5, 0, -3, None, 1]),
    ("f", pa.float32(), [0.5, -1.25, 0.1, None, 3.0, 0.0]),
    ("g", pa.float64(), [0.5, -0.25, 0.1, None, 3.0, 0.0]),
    ("p", pa.decimal128(7, 3), [Decimal("0.500"), Decimal("-1.005"), Decimal("12.345"), None, Decimal("0.000")]),
]

# Texts that Spark reads as numbers, booleans, dates or timestamps; and some that look like it.
TEXTS = (
    """
1|+1|-1| 1 |\x001\t|1.5|.5|5.|1e3|1e-3|1e400|-1e400|nan|NaN|inf|-INF|Infinity|infinit|1d|1.5f|1L|0x10|1_000|1,000||-
--1|1 2|127|128|9223372036854775807|9223372036854775808|99999999999999999999999999999999999999|16777217|9.995|-9.995
1.00000005960464477540|1e|00012|-0|-0.0|true|TRUE| t |yes|n|0|2|f|off|on|2024|2024-3|2024-3-1|2024-03-01 |2024-03-01 13
2024-03-01 1:2|2024-03-01 1:2:3|2024-03-01T01:02:03.5|2024-03-01 01:02:03.|2024-03-01 01:02:03.1234567
2024-03-01T01:02:03Z|2024-03-01 01:02:03+01:00|2024-03-01 01:02:03 +01:00|2024-03-01 01:02:03+1|2024-03-01 01:02:03+0100
2024-03-01 01:02:03 UTC|2024-03-01 01:02:03GMT+1|2024-03-01 01:02:03 America/New_York|2024-03-01 01:02:03 Mars|20240301
2024-W09-4|2024-13-01|2024-02-30|02024-03-01|+2024-03-01|24-03-01|0001-01-01|9999-12-31|2024-03-01x|2024-03-01 x
2024-03-01Tx|2024-03-01T|2024-03-01 24:00:00|2024-03-01 23:59:60|2024/03/01|2024-03-01 01:02:03,5|2024-03-01 010203
2024-003-01|2024-03-01  01:02:03|2024-03-01 01:02Z|2024-03-01Z|2024-03-01t01:02:03|epoch
""".strip()
    .replace("\n", "|")
    .split("|")
)

# Texts with words, parts, numbers and letters beyond ASCII; what functions of texts take apart.
WORDS = [
    "", "a", "hello wORLD", "ab-cd Ef'gh 1ab", "ǆa ŉb ßc ﬁd", "ΑΣ bΣ Σ", "İx ıI", "a  b\tc", "a.b.c", "..", "aaaaa",
    "aa", "100-200", "x1y22", "ab,c,,ab", ",", "🦆a日", "日本", "Tymczak", "Ashcraft", "a1b", "[x]", "äb", "616",
    "0aFF", "6 ", "xxaxx", "  a ", "a%_\\", "MO", "tuesday", "$1", "\0a", "e\u0301a", "b" * 100, None,
]  # fmt: skip
FEW_WORDS = ["", "a", "aa", ".", "b", "🦆", "ab", "xa", None]

# Around the two changes of New York's clocks in 2024.
NEW_YORK = "America/New_York"
ZONED_COLUMNS = [
    (
        "w",
        pa.timestamp("us", NEW_YORK),
        [
            *(
                dt.datetime(2024, 3, d, h, m, tzinfo=dt.UTC)
                for d, h, m in ((9, 7, 30), (10, 6, 30), (10, 7, 0), (11, 6, 0))
            ),
            *(dt.datetime(2024, 11, d, h, 30, tzinfo=dt.UTC) for d, h in ((2, 5), (3, 4), (3, 5), (3, 6), (4, 6))),
            None,
        ],
    ),
    ("d", pa.date32(), [dt.date(2024, 3, 9), dt.date(2024, 3, 10), dt.date(2024, 11, 3), dt.date(2024, 11, 4), None]),
    (
        "x",
        pa.timestamp("us"),
        [dt.datetime(2024, 3, 10, 2, 30), dt.datetime(2024, 11, 3, 1, 30), dt.datetime(2024, 7, 1)],
    ),
    ("iv", pa.duration("us"), [dt.timedelta(days=1), dt.timedelta(days=-1, hours=-1), dt.timedelta(hours=5), None]),
]


def typed_table(columns: list[tuple] = TYPED_COLUMNS) -> pa.Table:
    """Each column's values over and over; two such tables hold every pair of values of any two columns."""
    rows = max(len(values) for _, _, values in columns)
    data = {name: pa.array([values[i % len(values)] for i in range(rows)], kind) for name, kind, values in columns}
    return pa.table({"id": pa.array(range(rows), pa.int64()), **data})
