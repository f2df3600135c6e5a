"""`cf.condition`: Python functions as conditions say what a plain Python loop says, compiled or not.

Oracle tests: joins are held to `reference` and to a loop over both tables. Differential tests: compiled and Python
forms of a function agree on the numbers where they could differ, or the compiled one leaves it to Python.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import math
import operator
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from decimal import Decimal
from itertools import product

import numba
import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.predicate.conditions import PythonFunction
from counterflow.predicate.function_digest import digest_of
from counterflow.predicate.types import BIGINT, DOUBLE
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from counterflow.windows.compiled import functions
from counterflow.windows.compiled.functions import compiled_condition
from counterflow.windows.vectors import Vector
from effort import THOROUGH
from interpreted import SEARCHES, searching

MOMENT = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
VALUES = {
    "x": pa.array([1, 2, -3, 2**62, None, 2], pa.int64()),
    "i": pa.array([7, 2**31 - 1, -(2**31), 0, 5, None], pa.int32()),
    "t": pa.array([127, -128, 3, None, 0, 1], pa.int8()),
    "u": pa.array([0, 255, 7, 1, None, 2], pa.uint8()),
    "big": pa.array([2**64 - 1, 0, None, 7, 2**63, 1], pa.uint64()),
    "f": pa.array([0.1, 1.5, None, math.nan, math.inf, -2.5], pa.float32()),
    "d": pa.array([0.1, None, math.nan, -math.inf, 1e308, 0.0], pa.float64()),
    "s": pa.array(["a", "", "ab", None, "日本", "b"]),
    "bin": pa.array([b"a", b"", None, b"\xff", b"ab", b"b"]),
    "b": pa.array([True, False, None, True, False, True]),
    "day": pa.array([dt.date(2024, 2, 29), dt.date(1969, 12, 31), None] * 2),
    "at": pa.array([MOMENT, MOMENT + dt.timedelta(seconds=1), None] * 2, pa.timestamp("us", "UTC")),
    "dec": pa.array([Decimal("1.50"), Decimal("-7.25"), None] * 2, pa.decimal128(10, 2)),
    "v": pa.array([[1.0, 0.0], [0.6, 0.8], [], None, [1.0, None], [3.0, 4.0]], pa.list_(pa.float32())),
    "w": pa.array([[1, 2], [127, 127], [], None, [0, 1], [3]], pa.list_(pa.int8())),
    "fixed": pa.array([[1.0, 0.0], [0.6, 0.8], None] * 2, pa.list_(pa.float64(), 2)),
}
ROWS = 6
TABLE = pa.table({"ts": pa.array([1] * ROWS), "id": pa.array(range(ROWS)), **VALUES})


def joined(where, left=TABLE, right=TABLE, **options) -> list[tuple[int, int]]:
    found = cf.window_join(left, right, where=where, time="ts", window=None, engine=cf.Local(batch_rows=4), **options)
    return sorted(zip(found["id"].to_pylist(), found["id_right"].to_pylist(), strict=True))


def expected(where) -> list[tuple[int, int]]:
    spec = build_spec(TABLE.schema, TABLE.schema, where=where, time="ts", window=None)
    return sorted((le, ri) for le, ri, _ in reference_pairs(spec, TABLE, TABLE))


def looped(function, left: str, right: str) -> list[tuple[int, int]]:
    """A plain loop over columns whose Python values are what functions see."""
    found = []
    for (i, a), (j, b) in product(enumerate(TABLE[left].to_pylist()), enumerate(TABLE[right].to_pylist())):
        if a is not None and b is not None and function(a, b):
            found.append((i, j))
    return found


def near(x, y):
    return abs(x - y) <= 5


def cosine(v, w):
    if len(v) != len(w) or len(v) == 0:
        return False
    dot = a = b = 0.0
    for i in range(len(v)):
        dot += v[i] * w[i]
        a += v[i] * v[i]
        b += w[i] * w[i]
    return dot >= 0.9 * math.sqrt(a * b)


def cosine_of_arrays(v, w):
    return len(v) == len(w) > 0 and float(v @ w) >= 0.9 * float(np.linalg.norm(v) * np.linalg.norm(w))


class Within:
    """An object that is called, and has a method."""

    def __init__(self, width):
        self.width = width
        self.lock = threading.Lock()  # which cannot be copied

    def __call__(self, x, y):
        return abs(x - y) <= self.width

    def beyond(self, x, y):
        return abs(x - y) > self.width


def closure(width):
    return lambda x, y: abs(x - y) <= width


FUNCTIONS = {
    "integers": (near, "x", "i"),
    "narrow integers": (lambda x, y: x * y > 300, "i", "i"),
    "integers of 8 bits": (lambda x, y: x * y == 127 * 127 or x - y == 255, "t", "t"),
    "unsigned": (lambda x, y: x - y < 0, "u", "u"),
    "beyond 64 bits": (lambda x, y: x * y > 2**70, "x", "x"),
    "unsigned of 64 bits": (lambda x, y: x - y < 0, "big", "big"),
    "of 32 bits": (lambda x, y: x * 3.0 == 0.30000000447034836 or x > y, "f", "f"),
    "floats": (lambda x, y: x != x or x * y > 1e300, "d", "f"),
    "texts": (lambda x, y: x.startswith(y), "s", "s"),
    "bytes": (lambda x, y: x + y == b"aab", "bin", "bin"),
    "booleans": (lambda x, y: x and not y, "b", "b"),
    "Python's own": (operator.lt, "x", "i"),
    "a method of texts": (str.startswith, "s", "s"),
    "a partial": (functools.partial(lambda width, x, y: abs(x - y) <= width, 3), "x", "i"),
    "an object": (Within(4), "x", "i"),
    "a method": (Within(4).beyond, "x", "i"),
    "a closure": (closure(6), "x", "i"),
    "of numba": (numba.njit(near), "x", "i"),
    "an integer": (lambda x, y: x & y, "x", "i"),
    "of numpy": (lambda x, y: np.bool_(x < y), "x", "i"),
    "None": (lambda x, y: None if x > y else x < y, "x", "i"),
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions(kind, search):
    function, left, right = FUNCTIONS[kind]
    where = cf.condition(function, f"l.{left}", f"r.{right}")
    with searching(search):
        got = joined(where)
    assert got == expected(where) == looped(function, left, right)
    assert 0 < len(got) < ROWS * ROWS


@pytest.mark.parametrize("column", ["day", "at", "dec", "v", "w", "fixed"])
def test_types_that_python_has_otherwise(column):
    """Days and moments are integers, decimals are exact, lists are arrays of 64-bit numbers that cannot be changed."""
    seen = []

    def note(x, y):
        seen.append((x, y))
        return True

    where = cf.condition(note, f"l.{column}", f"r.{column}")
    assert joined(where) == looped(lambda x, y: True, column, column)
    values = [value for pair in seen for value in pair]
    if column in ("day", "at"):
        first = (dt.date(2024, 2, 29) - dt.date(1970, 1, 1)).days if column == "day" else int(MOMENT.timestamp() * 1e6)
        assert first in values and {type(v) for v in values} == {int}
    elif column == "dec":
        assert set(values) == {Decimal("1.50"), Decimal("-7.25")}
    else:
        assert {v.dtype for v in values} <= {np.dtype(np.int64), np.dtype(np.float64)}
        assert not any(v.flags.writeable for v in values)
        assert {tuple(v.tolist()) for v in values} >= {
            (1.0, 0.0),
            (0.6000000238418579, 0.800000011920929),
        } or column != "v"


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("function", [cosine, cosine_of_arrays])
@pytest.mark.parametrize("column", ["v", "fixed", "w"])
def test_embeddings(column, function, search):
    where = cf.condition(function, f"l.{column}", f"r.{column}")

    def of_lists(x, y):
        return function(*(np.array([math.nan if e is None else e for e in v], np.float64) for v in (x, y)))

    with searching(search):
        got = joined(where)
    assert got == expected(where) == looped(of_lists, column, column) and got


COMBINED = [
    ("a & b", lambda c, band: c & band, lambda c, band: c and band),
    ("a | b", lambda c, band: c | band, lambda c, band: c or band),
    ("~a & b", lambda c, band: ~c & band, lambda c, band: not c and band),
    ("~(a | ~b)", lambda c, band: ~(c | ~band), lambda c, band: not (c or not band)),
]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(("name", "combine", "meaning"), COMBINED, ids=[c[0] for c in COMBINED])
def test_combined_with_a_band(name, combine, meaning, search):
    where = combine(cf.condition(lambda x, y: x % 2 == y % 2, "l.x", "r.i"), cf.band("x", "i", 3))
    with searching(search):
        got = joined(where)
    assert got == expected(where) == looped(lambda x, y: meaning(x % 2 == y % 2, abs(x - y) <= 3), "x", "i")


def test_the_rest_of_the_predicate_finds_the_candidates():
    n = 2000
    table = pa.table({"ts": range(n), "id": range(n), "x": [(7919 * i) % n for i in range(n)]})
    calls = []

    def even(x, y):
        calls.append((x, y))
        return (x + y) % 2 == 0

    where = cf.band("x", "x", 1) & cf.condition(even, "l.x", "r.x")
    streams = [cf.stream(table.to_batches(max_chunksize=100)) for _ in range(2)]
    found = cf.window_join(*streams, where=where, time="ts", window=n)
    assert sum(len(batch) for batch in found) == n
    assert len(calls) <= 3 * n  # of 4 million pairs
    assert found.metrics()["candidates"] >= len(calls)
    explained = cf.explain(table, table, where=where, time="ts", window=100, show=False).to_dict()
    assert explained["access_path"] == {"left": "band on l.x", "right": "band on r.x"}
    used, left_over = explained["conditions"]
    assert used["found_by"] == "band index" and left_over["found_by"] == "nothing"
    assert left_over["checked"] == "numba, or Python" and left_over["condition"].startswith("even@")


def test_one_side():
    """It is a filter; on the preserved side of an outer join it pads."""
    where = cf.condition(lambda x: x > 1, "l.x") & cf.condition(lambda y: y != 7, "r.i") & cf.band("x", "i", 7)
    assert joined(where) == expected(where) == looped(lambda x, y: x > 1 and y != 7 and abs(x - y) <= 7, "x", "i")
    padded = cf.window_join(TABLE, TABLE, where=where, time="ts", window=None, how="left")
    assert sorted(set(padded["id"].to_pylist())) == list(range(ROWS))


def test_constants_and_expressions_are_arguments_too():
    where = cf.condition(lambda x, y, z: x + y == z, cf.left.x + 1, "r.i", "9")
    assert joined(where) == expected(where) == looped(lambda x, y: x + 1 + y == 9, "x", "i")
    for null in ("NULL", "CAST(NULL AS INT)"):
        where = cf.condition(lambda x, y: True, "l.x", null)
        assert joined(where) == expected(where) == []


# --- errors


@pytest.mark.parametrize("search", SEARCHES)
def test_a_function_that_raises(search):
    """The error names function, values and cause, and is the same whether or not the function was compiled."""
    said = []
    for hidden in (lambda x: x, str):  # numba cannot compile the second one's str()

        def inverse(x, y, hidden=hidden):
            return 1 / (x - 1) > y or (hidden is str and hidden(x) == "")

        with searching(search), pytest.raises(cf.EvaluationError) as error:
            joined(cf.condition(inverse, "l.x", "r.x"))
        said.append(str(error.value))
    assert said == ["inverse(1, 1) raised ZeroDivisionError: division by zero"] * 2


def test_a_guard_before_it():
    where = (cf.left.x != 1) & cf.condition(lambda x, y: 1 / (x - 1) > y, "l.x", "r.i")
    assert joined(where) == expected(where) == looped(lambda x, y: x != 1 and 1 / (x - 1) > y, "x", "i")


@pytest.mark.parametrize(("value", "said"), [(0.5, "0.5"), ("yes", "'yes'"), ([], "[]"), (np.zeros(2), "array")])
def test_what_is_neither_yes_nor_no(value, said):
    """A number such as a similarity would always be true: a comparison was forgotten."""

    def answer(x, y):
        return value

    where = cf.condition(answer, "l.x", "r.x")
    for call in (joined, expected):
        with pytest.raises(cf.EvaluationError, match=r"answer\(1, 1\) returned .*: a condition returns True, False or"):
            call(where)
    with pytest.raises(cf.EvaluationError, match=r"returned -?[0-9.]+: a condition"):
        joined(cf.condition(lambda x, y: x * 0.5 - y, "l.x", "r.x"))  # numba could compile this one


def test_an_index_out_of_bounds():
    """Compiled code would read the next row's elements."""
    for function in (lambda v, w: v[1] > w[0], lambda v, w: v[5] > 0):
        where = cf.condition(function, "l.w", "r.w")
        for call in (joined, expected):
            with pytest.raises(cf.EvaluationError, match="IndexError: index"):
                call(where)


def test_arguments_cannot_be_changed():
    def change(v, w):
        v[0] = 7.0
        return True

    with pytest.raises(cf.EvaluationError, match=r"change\(array.*raised ValueError: .*read-only"):
        joined(cf.condition(change, "l.fixed", "r.fixed"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cf.condition("x > 1", "l.x"), "the first argument is a Python function"),
        (lambda: cf.condition(near), "name the columns it is called with"),
        (lambda: cf.condition(near, "l.x"), r"condition\(near, ...\): it cannot take 1 columns: missing"),
        (lambda: cf.condition(near, "l.x", "r.x", "r.i"), "it cannot take 3 columns: too many"),
        (lambda: joined(cf.condition(near, "l.x", "r.nothing")), "no column 'nothing' in the right input"),
        (lambda: joined(cf.condition(near, "l.x", 3)), "a column is 'l.x' or 'r.a', or an expression"),
        (lambda: joined(cf.condition(near, "l.x", "r.v") & (cf.left.v == cf.right.v)), "cannot use"),
    ],
)
def test_what_is_no_condition(make, message):
    with pytest.raises(cf.CounterflowError, match=message):
        make()


# --- compiled and Python forms


INTEGERS = [0, 1, -1, 2, 7, -5, 63, 2**31 - 1, -(2**31), 2**32, 2**53, 2**53 + 1, 3 * 10**9, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 0.5, -1.5, 3.0, 5e-324, 2.0**53, 1e154, 1e308, -1e308, math.inf, -math.inf, math.nan]


def repeated(x, y):
    total = 0
    for _ in range(3):
        total += x * y
        total *= 2
    return total > 10


ARITHMETIC = {
    "x + y": lambda x, y: x + y > 7,
    "x - y": lambda x, y: x - y > 0,
    "x * y": lambda x, y: x * y > 7,
    "x / y": lambda x, y: x / y > 1,
    "x // y": lambda x, y: x // y == 1,
    "x % y": lambda x, y: x % y == 1,
    "x ** 2": lambda x, y: x**2 > y,
    "x ** 3": lambda x, y: pow(x, 3) > y,
    "x ** -1": lambda x, y: x**-1 > y,
    "-x": lambda x, y: -x > y,
    "abs": lambda x, y: abs(x) > y,
    "==": lambda x, y: x == y,
    "<": lambda x, y: x < y,
    "sqrt of a sum": lambda x, y: math.sqrt(x * x + y * y) > 5,
    "sqrt": lambda x, y: math.sqrt(x) > y,
    "log": lambda x, y: math.log(x) > y,
    "exp": lambda x, y: math.exp(x) > y,
    "int": lambda x, y: int(x) > y,
    "floor": lambda x, y: math.floor(x) == y,
    "round": lambda x, y: round(x) == y,
    "round to digits": lambda x, y: round(x, 2) == y,
    "min": lambda x, y: min(x, y) == x,
    "max": lambda x, y: max(x, y) == y,
    "float": lambda x, y: float(x) == y,
    "sum": lambda x, y: sum([x, y]) > 3,
    "in steps": repeated,
    "a chain": lambda x, y: 0 < x < y < 10,
    "not": lambda x, y: not x,
    "the number itself": lambda x, y: x,
    "str": lambda x, y: str(x) == str(y),
    "f-string": lambda x, y: f"{x}" == f"{y}",
    "type": lambda x, y: type(x) is int and type(y) is int,
    "isinstance": lambda x, y: isinstance(x, int) and not isinstance(y, bool),
    "is": lambda x, y: x is y and x is not None,
    "of booleans": lambda x, y: ~(x > 1) == -(y > 1) - 1,
    "is None": lambda x, y: x is not None and (None if x > y else y) is None,
}
NEVER_COMPILED = {"round to digits", "sum", "str", "f-string", "type", "isinstance", "is", "of booleans"}
OFTEN = (
    *("x * y", "x % y", "sqrt of a sum", "exp", "int", "max", "in steps", "==", "sum"),
    *("str", "f-string", "type", "isinstance", "is", "of booleans", "is None"),
)


def answer(function, x, y):
    """What Python says: True or False, or that it is for Python to say."""
    try:
        found = function(x, y)
    except Exception:
        return "an error"
    return "an error" if isinstance(found, float) else bool(found)


@pytest.mark.parametrize("name", ARITHMETIC if THOROUGH else OFTEN)
def test_compiled_and_python_forms_agree(name):
    """Where they might not, the compiled form leaves it to Python; of ordinary numbers it does not."""
    function = PythonFunction(ARITHMETIC[name], "f", digest_of(ARITHMETIC[name]))
    kinds = {BIGINT: INTEGERS, DOUBLE: FLOATS}
    compiled = 0
    for a, b in product(kinds, repeat=2) if THOROUGH else ((BIGINT, BIGINT), (DOUBLE, BIGINT)):
        for x, y in product(kinds[a], kinds[b]):
            args = [Vector(a, np.array([x])), Vector(b, np.array([y]))]
            got = compiled_condition(function, args, np.ones(1, bool))
            if got is not None:
                assert bool(got[0]) is answer(ARITHMETIC[name], x, y), (x, y)
                compiled += 1
    assert compiled == 0 if name in NEVER_COMPILED else compiled > 100 or name == "x ** -1"


def test_python_is_asked_only_about_what_is_in_doubt():
    """Of ordinary numbers compiled code says it all."""
    called = []

    def product_of(x, y):
        return x * y > 10

    def python(x, y):
        called.append(x)
        return product_of(x, y)

    function = PythonFunction(product_of, "f", digest_of(product_of))
    x = Vector(BIGINT, np.arange(1000))
    assert compiled_condition(function, [x, x], np.ones(1000, bool)).tolist() == [i * i > 10 for i in range(1000)]
    large = Vector(BIGINT, np.arange(1000) + 2**62)
    assert compiled_condition(function, [x, large], np.ones(1000, bool)) is None
    assert compiled_condition(function, [x, large], np.arange(1000) < 2)[:2].tolist() == [False, True]


# --- which function it is


THRESHOLD = 5


def below_threshold(x, y):
    return x + y < THRESHOLD


def with_default(x, y, width=2):
    return abs(x - y) <= width


def with_keyword(x, y, *, width=2):
    return abs(x - y) <= width


def test_two_functions_of_the_same_code_are_not_confused(monkeypatch):
    wheres = [cf.condition(closure(width), "l.x", "r.i") for width in (1, 6)]
    assert [joined(where) for where in wheres] == [looped(closure(w), "x", "i") for w in (1, 6)]
    for function in (with_default, with_keyword):
        with_ten = functools.partial(function, width=10)
        assert joined(cf.condition(function, "l.x", "r.i")) != joined(cf.condition(with_ten, "l.x", "r.i"))
    for threshold in (5, 1, 5, 100):
        monkeypatch.setattr(sys.modules[__name__], "THRESHOLD", threshold)
        got = joined(cf.condition(below_threshold, "l.x", "r.i"))
        assert got == looped(lambda x, y, t=threshold: x + y < t, "x", "i")
    near_or_far = cf.condition(Within(1), "l.x", "r.i") | cf.condition(Within(9), "l.x", "r.i")
    assert joined(near_or_far) == looped(Within(9), "x", "i")


def test_a_value_that_changes_before_the_function_is_called(monkeypatch):
    """It is taken when the function is first called, not when it became a condition, and by nobody else."""
    first = cf.condition(below_threshold, "l.x", "r.i")
    monkeypatch.setattr(sys.modules[__name__], "THRESHOLD", 1)
    assert joined(first) == looped(lambda x, y: x + y < 1, "x", "i")
    monkeypatch.setattr(sys.modules[__name__], "THRESHOLD", 5)
    assert joined(cf.condition(below_threshold, "l.x", "r.i")) == looped(lambda x, y: x + y < 5, "x", "i")


def unset():
    def function(x):
        return later

    return function
    later = 1  # so that it is of the function around


def different() -> list:
    """Functions that are all different."""

    def array(values):
        return lambda x: x in values

    return [
        *(closure(width) for width in (1, 2, 1.0, True, None, "1", b"1", (1,), [1], {1}, {1: 1})),
        *(array(np.array(values, dtype)) for values, dtype in (([1, 2], "i8"), ([1, 2], "i4"), ([2, 1], "i8"))),
        *(array(np.arange(5000) + (np.arange(5000) == at)) for at in (1000, 4000)),  # whose texts are the same
        *(array({f"{i}" for i in range(n)}) for n in (5, 6)),
        *(functools.partial(near, y) for y in (1, 2)),
        *(Within(width) for width in (1, 2)),
        *(Within(width).beyond for width in (1, 2)),
        *("abc".startswith, "abd".startswith, str.startswith, str.endswith, operator.lt, operator.le, np.less),
        *(lambda x, y: x in {"p", "q"}, lambda x, y: x in {"p", "r"}, lambda x: x, lambda x, /: x, lambda *x: x),
        *(lambda x: (lambda y: y + 1)(x), lambda x: (lambda y: y + 2)(x), lambda x: math.sin(x), lambda x: math.cos(x)),
        *(unset(), below_threshold, with_default, with_keyword, cosine, cosine_of_arrays),
    ]


def test_digests():
    functions_ = different()
    digests = [digest_of(function) for function in functions_]
    assert len(set(digests)) == len(functions_)
    assert digests == [digest_of(function) for function in different()]
    assert digest_of(numba.njit(near)) == digest_of(near)


def test_a_digest_is_the_same_in_another_process():
    """Whatever the order of sets is there, and wherever objects lie."""
    code = "import test_conditions as t; print([t.digest_of(f) for f in t.different()])"
    folder, said = os.path.dirname(__file__), set()
    for seed in ("1", "2"):
        path = os.pathsep.join([folder, *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        said.add(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout)
    assert len(said) == 1 and said.pop().count(",") > 40


def test_a_digest_knows_nothing_of_where_and_how_it_is_written(tmp_path):
    texts = ["def f(x):\n    return x > 1\n", "# moved\n\n\ndef f(x):\n    '''Say.'''\n    return (x > 1)  # so\n"]
    texts += ["def f(x):\n    '''Tell.'''\n    return x > 1", "def f(x):\n    return x > 2"]
    digests = []
    for text in texts:
        scope: dict = {"__name__": "written"}
        exec(textwrap.dedent(text), scope)
        digests.append(digest_of(scope["f"]))
    assert digests[1] == digests[2] and digests[0] != digests[3]


def test_a_checkpoint_in_process_refuses_another_function(tmp_path):
    engine = cf.Local(checkpoint=tmp_path / "folder")

    def join(width):
        streams = [cf.stream(schema=TABLE.select(["ts", "id", "x"]).schema) for _ in range(2)]
        where = cf.condition(closure(width), "l.x", "r.x")
        return cf.window_join(*streams, where=where, time="ts", window=5, engine=engine)

    with join(1) as first:
        first.checkpoint()
    with join(1) as again:
        assert again.output_position == 0
    with pytest.raises(cf.StateError, match="functions"):
        join(2)


# --- copies, threads, processes


def test_copied_and_pickled():
    for function in (near, Within(2)):
        where = cf.condition(function, "l.x", "r.i")
        assert joined(where & cf.band("x", "i", 100)) == joined(copy.deepcopy(where) & cf.band("x", "i", 100))
    spec = build_spec(TABLE.schema, TABLE.schema, where=cf.condition(near, "l.x", "r.i"), time="ts", window=None)
    again = pickle.loads(pickle.dumps(spec))
    assert again.predicate == spec.predicate and again.predicate.function(3, 4) is True


def test_threads():
    wheres = [cf.condition(closure(width), "l.x", "r.i") for width in range(8)]
    found: dict[int, list] = {}
    threads = [threading.Thread(target=lambda w=w: found.update({w: joined(wheres[w % 8])})) for w in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[w] for w in range(16)] == [looped(closure(w % 8), "x", "i") for w in range(16)]


def test_a_fork_while_a_function_is_compiled():
    """The child has no lock that nobody would open."""
    begun, go_on = threading.Event(), threading.Event()

    def hold():
        with functions.compiling:
            begun.set()
            go_on.wait(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait()
    child = os.fork()  # waits for the lock
    if child == 0:
        os._exit(0 if functions.compiling.acquire(timeout=5) else 1)
    go_on.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_loops_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(functions, "LOOPS_MAX", 3)
    monkeypatch.setattr(functions, "_compiled", {})
    monkeypatch.setattr(functions, "_compile", lambda function, kinds: None)
    for width in range(10):
        joined(cf.condition(closure(width), "l.x", "r.i"))
    assert len(functions._compiled) == 3
