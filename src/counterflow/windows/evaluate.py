"""Predicates on many candidate pairs at once: the vectorised twin of `reference.evaluate`.

Integers and decimals are exact whatever their size: an operation runs in int64 when its operands' extremes
show that it cannot overflow, and on Python integers otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from counterflow.errors import EvaluationError
from counterflow.predicate.arithmetic import arithmetic, division_by_zero
from counterflow.predicate.casts import cast_value
from counterflow.predicate.conditions import Condition
from counterflow.predicate.expression import COMPARISONS, Call, Column, Expression, Literal, Side, columns_of
from counterflow.predicate.functions import FUNCTIONS, TEXT_MAX, call_function
from counterflow.predicate.ranges import number_of, without_casts
from counterflow.predicate.registry import FAILURES
from counterflow.predicate.types import BOOLEAN, SqlType, integer_range
from counterflow.predicate.wall_clock import US_PER_DAY, UTC_NAMES
from counterflow.windows.key_columns import KEY_COLUMNS
from counterflow.windows.text_columns import TEXT_COLUMNS, levenshtein
from counterflow.windows.time_columns import TIME_COLUMNS
from counterflow.windows.vectors import Array, Vector, dtype_of, filler_of, from_python, literal, to_python

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Columns = Mapping[str, Vector]


class Frame:
    """The rows an expression is evaluated on: for each side its columns, and which of their rows (None: all)."""

    def __init__(self, n: int, **sides: tuple[Columns, Array | None]) -> None:
        self.n = n
        self._sides = sides
        self._cache: dict[Column, Vector] = {}

    def column(self, column: Column) -> Vector:
        """Return a column's rows, of the type that the predicate gives it: that has the zone in which it is read."""
        if column not in self._cache:
            columns, index = self._sides[column.side]
            found = columns[column.name]
            vector = Vector(column.type, found.values, found.valid)
            self._cache[column] = vector if index is None else vector.take(index)
        return self._cache[column]

    def select(self, rows: Array) -> Frame:
        sides = {s: (cols, rows if index is None else index[rows]) for s, (cols, index) in self._sides.items()}
        return Frame(len(rows), **sides)


def one_sided(expression: Expression, side: Side, columns: Columns, n: int) -> Vector:
    """Evaluate an expression of one side's columns on all its rows."""
    return evaluate(expression, Frame(n, **{side: (columns, None)})).broadcast(n)


def matches(predicate: Expression, left: Columns, right: Columns, left_index: Array, right_index: Array) -> Array:
    """Return which of the candidate pairs (given as row numbers) satisfy the predicate."""
    frame = Frame(len(left_index), left=(left, left_index), right=(right, right_index))
    return np.broadcast_to(evaluate(predicate, frame).is_true(), frame.n)


def calls_python(expression: Expression) -> bool:
    """Return whether a function is called row by row in Python, which takes as long as a hundred vectorised ones."""
    if not isinstance(expression, Call):
        return False
    by_row = isinstance(expression, Condition)
    by_row |= expression.op in FUNCTIONS and expression.op not in _FAST_FUNCTIONS
    return by_row or any(map(calls_python, expression.args))


def candidate_cost(predicate: Expression) -> int:
    """Return how many comparisons of numbers take as long as a predicate on one candidate, about."""
    if calls_python(predicate):
        return 64
    return 16 if any(column.type.name in ("STRING", "BINARY") for column in columns_of(predicate)) else 1


def evaluate(expression: Expression, frame: Frame) -> Vector:
    if isinstance(expression, Literal):
        return literal(expression.type, expression.value)
    if isinstance(expression, Column):
        return frame.column(expression)
    special = _SPECIAL.get(expression.op)
    if special is not None:
        return special(expression, frame)
    limit = _distance_limit(expression)
    args = [evaluate(arg, frame) if limit is None else _distance(arg, frame, limit) for arg in expression.args]
    if expression.op in COMPARISONS:
        return _null_if_any_null(BOOLEAN, compare(expression.op, args[0], args[1]), args)
    if expression.op in ("cast", "try_cast"):
        return _cast(args[0], expression)
    fast = _FAST_FUNCTIONS.get(expression.op)
    if fast is not None:
        with suppress(*FAILURES):  # some row has no value, perhaps one with a NULL; or it is not made for these
            return _null_if_any_null(expression.type, fast(*[a.values for a in args]), args)
    return _called(expression, args) if expression.op in FUNCTIONS else _arithmetic(expression, args)


def _distance_limit(call: Call) -> int | None:
    """Return beyond what all edit distances are alike for a comparison with a constant; None if it is none of that."""
    numbers = [number_of(without_casts(arg)) for arg in call.args] if call.op in COMPARISONS else []
    known = [number for number in numbers if number is not None]
    if len(known) != 1 or not any(isinstance(arg, Call) and arg.op == "levenshtein" for arg in call.args):
        return None
    return int(min(max(known[0], 0), TEXT_MAX)) + 1


def _distance(arg: Expression, frame: Frame, limit: int) -> Vector:
    """Return one operand of such a comparison: the edit distance as far as the limit."""
    if not (isinstance(arg, Call) and arg.op == "levenshtein"):
        return evaluate(arg, frame)
    texts = [evaluate(text, frame) for text in arg.args]
    return _null_if_any_null(arg.type, levenshtein(texts[0].values, texts[1].values, limit), texts)


def _null_if_any_null(type_: SqlType, values: Array, args: list[Vector]) -> Vector:
    valid: Array | None = None
    for arg in args:
        if arg.valid is not None:
            valid = arg.valid if valid is None else valid & arg.valid
    if valid is not None and len(valid) != len(values):
        values, valid = np.broadcast_arrays(values, valid)
    return Vector(type_, values, valid)


def _called(call: Call, args: list[Vector]) -> Vector:
    """Call a function of one row for all that have no NULL; only if one has no value, again to say which."""
    n = max((len(a) for a in args), default=0)
    args = [a.broadcast(n) for a in args]
    valid = _null_if_any_null(call.type, np.empty(n, bool), args).valid
    rows = np.arange(n) if valid is None else np.flatnonzero(valid)
    columns = [to_python(a if valid is None else a.take(rows)) for a in args]
    try:
        found = list(map(FUNCTIONS[call.op].scalar, *columns)) if columns else [FUNCTIONS[call.op].scalar()]
    except FAILURES:
        return _elementwise(call.type, partial(call_function, call.op), args)
    if valid is None:
        return from_python(call.type, found)
    values: list[Any] = [None] * n
    for row, value in zip(rows.tolist(), found, strict=True):
        values[row] = value
    return from_python(call.type, values)


def _elementwise(type_: SqlType, scalar: Callable[..., Any], args: list[Vector]) -> Vector:
    """Call a function row by row, for what numpy has no equal of; still only on candidate pairs."""
    n = max((len(a) for a in args), default=1)
    args = [a.broadcast(n) for a in args]
    valid = _null_if_any_null(type_, np.empty(n, bool), args).mask()
    columns = [to_python(a) for a in args]
    return from_python(type_, [scalar(*row) if ok else None for ok, *row in zip(valid.tolist(), *columns, strict=True)])


# --- logic: the second operand is evaluated only where the first leaves it open


def _and_or(call: Call, frame: Frame) -> Vector:
    decisive = call.op == "or"
    values, valid = np.full(frame.n, not decisive), np.ones(frame.n, bool)
    open_rows: Array | None = None  # None: all
    for arg in call.args:
        part = evaluate(arg, frame if open_rows is None else frame.select(open_rows))
        part = part.broadcast(frame.n if open_rows is None else len(open_rows))
        rows = np.arange(frame.n) if open_rows is None else open_rows
        known = part.mask()
        decided = known & (part.values == decisive)
        values[rows[decided]] = decisive
        valid[rows[decided]] = True
        valid[rows[~known]] = False
        open_rows = rows[~decided]
        if not len(open_rows):
            break
    return Vector(BOOLEAN, values, None if valid.all() else valid)


def _not(call: Call, frame: Frame) -> Vector:
    arg = evaluate(call.args[0], frame)
    return Vector(BOOLEAN, ~arg.values, arg.valid)


def _is_null(call: Call, frame: Frame) -> Vector:
    return Vector(BOOLEAN, ~evaluate(call.args[0], frame).mask())


def _null_safe_equal(call: Call, frame: Frame) -> Vector:
    a, b = (evaluate(arg, frame) for arg in call.args)
    equal = compare("=", a, b)
    known_a, known_b = a.mask(), b.mask()
    return Vector(BOOLEAN, (equal & known_a & known_b) | (~known_a & ~known_b))


def _in(call: Call, frame: Frame) -> Vector:
    tests = tuple(Call("=", (call.args[0], option), BOOLEAN) for option in call.args[1:])
    return _and_or(Call("or", tests, BOOLEAN), frame)


def _case(call: Call, frame: Frame) -> Vector:
    *branches, default = call.args
    open_rows, parts = np.arange(frame.n), []
    for condition, value in zip(branches[::2], branches[1::2], strict=True):
        if not len(open_rows):
            break
        taken = evaluate(condition, frame.select(open_rows)).broadcast(len(open_rows)).is_true()
        parts.append((open_rows[taken], value))
        open_rows = open_rows[~taken]
    return _assemble(call.type, frame, [*parts, (open_rows, default)])


def _coalesce(call: Call, frame: Frame) -> Vector:
    open_rows, parts = np.arange(frame.n), []
    for arg in call.args:
        if not len(open_rows):
            break
        known = evaluate(arg, frame.select(open_rows)).broadcast(len(open_rows)).mask()
        parts.append((open_rows[known], arg))
        open_rows = open_rows[~known]
    return _assemble(call.type, frame, [*parts, (open_rows, Literal(None, call.type))])


def _assemble(type_: SqlType, frame: Frame, parts: list[tuple[Array, Expression]]) -> Vector:
    """Make one vector of expressions that each give some of the rows."""
    pieces = [(rows, evaluate(e, frame.select(rows)).broadcast(len(rows))) for rows, e in parts if len(rows)]
    dtype = np.dtype(object) if any(p.values.dtype == object for _, p in pieces) else dtype_of(type_)
    values, valid = np.full(frame.n, filler_of(type_), dtype), np.zeros(frame.n, bool)
    for rows, piece in pieces:
        values[rows], valid[rows] = piece.values, piece.mask()
    return Vector(type_, values, valid)


def _extreme(call: Call, frame: Frame) -> Vector:
    """Compute `least` or `greatest`, which skip NULLs."""
    op = "<" if call.op == "least" else ">"
    best, *rest = (evaluate(arg, frame).broadcast(frame.n) for arg in call.args)
    for other in rest:
        better = other.mask() & (~best.mask() | compare(op, other, best))
        best = Vector(call.type, np.where(better, other.values, best.values), best.mask() | other.mask())
    return best


def _condition(call: Call, frame: Frame) -> Vector:
    """Call a Python function of columns, compiled where that is possible."""
    from counterflow.windows.compiled.functions import compiled_condition

    assert isinstance(call, Condition)
    args = [evaluate(arg, frame).broadcast(frame.n) for arg in call.args]
    known = _null_if_any_null(BOOLEAN, np.zeros(frame.n, bool), args)
    values = compiled_condition(call.function, args, known.mask())
    return _elementwise(BOOLEAN, call.function, args) if values is None else Vector(BOOLEAN, values, known.valid)


_SPECIAL: dict[str, Callable[[Call, Frame], Vector]] = {
    "and": _and_or,
    "or": _and_or,
    "not": _not,
    "is_null": _is_null,
    "<=>": _null_safe_equal,
    "in": _in,
    "case": _case,
    "coalesce": _coalesce,
    "condition": _condition,
    "least": _extreme,
    "greatest": _extreme,
}


# --- comparison


def compare(op: str, a: Vector, b: Vector) -> Array:
    """Compare values, whatever the validity. NaN equals itself and is larger than any number."""
    x, y = a.values, b.values
    if a.type.is_exact and b.type.is_exact and a.type.scale != b.type.scale:
        scale = max(a.type.scale, b.type.scale)
        x, y = (exact("*", v.values, np.array([10 ** (scale - v.type.scale)], object)) for v in (a, b))
    if a.type.is_float and (np.isnan(x).any() or np.isnan(y).any()):
        x_nan, y_nan = np.isnan(x), np.isnan(y)
        equal, less = (x == y) | (x_nan & y_nan), (x < y) | (~x_nan & y_nan)
        result = {"=": equal, "<>": ~equal, "<": less, "<=": less | equal, ">": ~(less | equal), ">=": ~less}[op]
    else:
        result = _NUMPY_COMPARE[op](x, y)
    return np.asarray(result, bool)


_NUMPY_COMPARE = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


# --- arithmetic


def _arithmetic(call: Call, args: list[Vector]) -> Vector:
    if call.op in ("/", "%", "div"):
        zero = _null_if_any_null(BOOLEAN, args[1].values == 0, args)
        if zero.is_true().any():
            raise division_by_zero(call)
    if call.type.is_float:
        with np.errstate(all="ignore"):
            values = _NUMPY_FLOAT[call.op](*[a.values for a in args])
        return _null_if_any_null(call.type, values.astype(dtype_of(call.type), copy=False), args)
    if call.type.is_decimal:
        return _decimal_arithmetic(call, args)
    operands = [a.values for a in args]
    if call.op in ("div", "%"):  # NULL rows may hold a zero divisor
        operands[1] = np.where(operands[1] == 0, 1, operands[1])
    return _null_if_any_null(call.type, exact(call.op, *operands), args)


_NUMPY_FLOAT: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "neg": np.negative,
}


def _decimal_arithmetic(call: Call, args: list[Vector]) -> Vector:
    if call.op == "neg":
        return Vector(call.type, exact("neg", args[0].values), args[0].valid)
    a, b = args
    if call.op == "*":
        scale, values = a.type.scale + b.type.scale, exact("*", a.values, b.values)
    elif call.op in ("+", "-"):
        scale = max(a.type.scale, b.type.scale)
        aligned = [exact("*", v.values, np.array([10 ** (scale - v.type.scale)], object)) for v in (a, b)]
        values = exact(call.op, *aligned)
    else:  # / and %
        return _elementwise(call.type, lambda *row: arithmetic(call, list(row)), args)
    return _null_if_any_null(call.type, _rescale(values, scale, call.type.scale), args)


def _rescale(values: Array, scale: int, target: int) -> Array:
    """Round half up (away from zero) to fewer digits after the point."""
    if scale <= target:
        return exact("*", values, np.array([10 ** (target - scale)], object)) if scale < target else values
    factor = 10 ** (scale - target)
    magnitude = (abs(values.astype(object)) * 2 + factor) // (2 * factor)
    return _narrow(np.where(values < 0, -magnitude, magnitude))


def exact(op: str, a: Array, b: Array | None = None) -> Array:
    """Compute with integers, without overflow."""
    if not len(a) or (b is not None and not len(b)):
        return a if b is None or len(b) else b
    if op == "neg":
        return exact("-", np.zeros(1, np.int64), a)
    assert b is not None
    if _fits_int64(op, a, b):
        a, b = a.astype(np.int64, copy=False), b.astype(np.int64, copy=False)
        return _INT64[op](a, b)
    return _narrow(np.asarray(_PYTHON_INTEGERS[op](a.astype(object), b.astype(object))))


def _fits_int64(op: str, a: Array, b: Array) -> bool:
    corners = [(int(x), int(y)) for x in (a.min(), a.max()) for y in (b.min(), b.max())]
    if any(not INT64_MIN <= v <= INT64_MAX for corner in corners for v in corner):
        return False
    bound = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y}.get(op)
    if bound is None:
        return INT64_MIN not in (a.min(), b.min())  # its magnitude does not fit
    return all(INT64_MIN <= bound(x, y) <= INT64_MAX for x, y in corners)


def _narrow(values: Array) -> Array:
    """Return to int64 where possible, so that one large value does not slow down what follows for ever."""
    if values.dtype == object and len(values) and values.min() >= INT64_MIN and values.max() <= INT64_MAX:
        return values.astype(np.int64)
    return values


def _truncated_division(a: Array, b: Array) -> Array:
    quotient = abs(a) // abs(b)
    return np.where((a < 0) == (b < 0), quotient, -quotient)


_INT64: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "div": _truncated_division,
    "%": np.fmod,
}
_PYTHON_INTEGERS: dict[str, Callable[[Array, Array], Array]] = {
    **_INT64,
    "%": lambda a, b: a - b * _truncated_division(a, b),
}


def _power(x: Array, y: Array) -> Array:
    with np.errstate(all="ignore"):
        if (y == 2.0).all():
            return x * x
        return np.asarray(np.frompyfunc(FUNCTIONS["pow"].scalar, 2, 1)(x, y), np.float64)


def _absolute(x: Array) -> Array:
    return np.abs(x.astype(object) if x.dtype == np.int64 and len(x) and x.min() == INT64_MIN else x)


def _sqrt(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


def _hypot(x: Array, y: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(np.hypot(x, y))


# Only operations that IEEE 754 defines to the last bit: the others must not differ from the oracle's libm.
_FAST_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "abs": _absolute,
    "sqrt": _sqrt,
    "pow": _power,
    "power": _power,
    "isnan": np.isnan,
    "radians": lambda x: x * (math.pi / 180.0),
    "degrees": lambda x: x * (180.0 / math.pi),
    "hypot": _hypot,
    **TEXT_COLUMNS,
    **TIME_COLUMNS,
    **KEY_COLUMNS,
}


# --- casts


def _cast(arg: Vector, call: Call) -> Vector:
    source, target = arg.type, call.type
    if source.is_integer and target.is_integer:
        low, high = integer_range(target)
        if not len(arg) or (low <= arg.values.min() and arg.values.max() <= high):
            return Vector(target, arg.values, arg.valid)
    elif source.is_integer and target.is_decimal:
        limit = 10 ** (target.precision - target.scale)
        if not len(arg) or (-limit < arg.values.min() and arg.values.max() < limit):
            return Vector(target, _rescale(arg.values, 0, target.scale), arg.valid)
    elif target.is_float and (source.is_float or (source.is_integer and arg.values.dtype == np.int64)):
        with np.errstate(over="ignore"):
            return Vector(target, arg.values.astype(dtype_of(target)), arg.valid)
    elif source.is_decimal and target.name == "DOUBLE" and _is_exact_double(arg):
        return Vector(target, arg.values / 10.0**source.scale, arg.valid)
    elif source.is_time and target.is_time and arg.values.dtype == np.int64:
        moved = _cast_time(arg.values, source, target)
        if moved is not None:
            return Vector(target, moved, arg.valid)
    if call.op == "try_cast":
        return _elementwise(target, lambda v: _try_cast(v, source, target), [arg])
    return _elementwise(target, lambda v: cast_value(v, source, target), [arg])


def _is_exact_double(decimals: Vector) -> bool:
    """Return whether digits and power of ten are exact as DOUBLEs, so that their quotient is rounded only once."""
    values, scale = decimals.values, decimals.type.scale
    return bool(values.dtype == np.int64 and scale <= 22 and (np.abs(values) < 2**53).all())


def _cast_time(values: Array, source: SqlType, target: SqlType) -> Array | None:
    """Cast between dates and timestamps; None where arithmetic is not enough: from a wall clock with a zone to UTC."""
    if source.name == "DATE":
        values = exact("*", values, np.array([US_PER_DAY]))
    elif source.zone not in UTC_NAMES:
        if len(values) and values.max() >= 2**31 * 1_000_000:
            return None  # from 2038 on Arrow knows no summer time
        try:
            local = pc.local_timestamp(pa.array(values, pa.timestamp("us", source.zone)))
        except pa.ArrowInvalid:  # a zone that Arrow does not find
            return None
        values = local.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if target.zone not in UTC_NAMES:
        return None
    return values // US_PER_DAY if target.name == "DATE" else values


def _try_cast(value: Any, source: SqlType, target: SqlType) -> Any:
    try:
        return cast_value(value, source, target)
    except EvaluationError:
        return None
