"""Differences: conditions of the form `low <= f(left) - g(right) <= high`, and what the two keys are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Any
from typing import Literal as OneOf

import numpy as np

from counterflow.predicate.casts import never_fails
from counterflow.predicate.expression import Call, Expression, Literal, Side, sides_of

Rounding = OneOf["exact", "double", "float"]
_SUMS = {"+": 1, "-": -1, "date_add": 1, "dateadd": 1, "date_sub": -1, "datediff": -1, "date_diff": -1}
CONSTANT_MAX = 1e30  # larger constants could overflow on the way: then it is a residual


@dataclass(frozen=True)
class Inequality:
    """`low <= left - right <= high`; a bound that is None does not bind. Strictness is left to the whole check."""

    left: Expression
    right: Expression
    low: Fraction | None
    high: Fraction | None
    # Floating-point steps may round: the coarsest type on the way, and the size of the constants among them.
    rounds: Rounding = "exact"
    magnitude: float = 0.0
    nan_sides: frozenset[Side] = frozenset()  # the sides whose NaN may satisfy it whatever the bounds
    nulls_meet: bool = False  # whether a key that is NULL says nothing, instead of that there is no match

    def __str__(self) -> str:
        low = "" if self.low is None else f"{_number(self.low)} <= "
        high = "" if self.high is None else f" <= {_number(self.high)}"
        return f"{low}{self.left} - {self.right}{high}"

    @property
    def is_band(self) -> bool:
        return self.low is not None and self.high is not None

    def key(self, side: Side) -> Expression:
        return self.left if side == "left" else self.right


def _number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.9g}"


def as_inequality(conjunct: Expression) -> Inequality | None:
    if not (isinstance(conjunct, Call) and conjunct.op in ("<", "<=", ">", ">=")):
        return None
    smaller, larger = conjunct.args if conjunct.op in ("<", "<=") else conjunct.args[::-1]
    width = constant_of(larger)
    distance = without_widening(smaller)
    if width is not None and isinstance(distance, Call) and distance.op == "abs":  # abs(f - g) <= c
        total = difference_of((distance.args[0], 1), (larger, 0))
        return None if total is None else bounded(total, -width, width)
    total = difference_of((smaller, 1), (larger, -1))  # smaller - larger <= 0
    return None if total is None else bounded(total, None, Fraction(0), _sides_where_nan_is_larger(larger))


def _sides_where_nan_is_larger(larger: Expression) -> frozenset[Side]:
    """Return the sides that `larger` subtracts: NaN there makes it NaN, which exceeds everything."""
    parts = Difference()
    _collect(larger, 1, parts)
    return frozenset(side for sign, term in parts.terms if sign < 0 and term.type.is_float for side in sides_of(term))


Bounds = dict[tuple[Expression, Expression], Inequality]  # by the keys of both sides


@dataclass
class Difference:
    """A sum `left - right + constant`: each side's part is one expression with a sign. And what was met on the way."""

    terms: list[tuple[int, Expression]] = field(default_factory=list)
    constant: Fraction = field(default_factory=Fraction)
    magnitude: float = 0.0
    types: set[str] = field(default_factory=set)

    @property
    def rounds(self) -> Rounding:
        if "FLOAT" in self.types:
            return "float"
        return "double" if self.types & {"DOUBLE", "DECIMAL"} else "exact"


def difference_of(*parts: tuple[Expression, int]) -> Difference | None:
    """Return the sum of the signed parts as f(left) - g(right) + c, or its negative; None if it is not of that form."""
    total = Difference()
    if not all(_collect(expression, sign, total) for expression, sign in parts) or len(total.terms) != 2:
        return None
    (sign_a, a), (sign_b, b) = total.terms
    return total if sign_a == -sign_b and sides_of(a) != sides_of(b) else None


def _collect(expression: Expression, sign: int, total: Difference) -> bool:
    """Add an expression to the sum. With sign 0 only its type and size count."""
    constant = constant_of(expression)
    total.types.add(expression.type.name)
    if constant is not None:
        if abs(constant) >= CONSTANT_MAX:  # it may be beyond a DOUBLE
            return False
        total.constant += sign * constant
        total.magnitude += abs(float(constant))
        return total.magnitude < CONSTANT_MAX
    inner = without_widening(expression)
    total.types.add(inner.type.name)
    if isinstance(inner, Call) and inner.op in _SUMS and _is_ordered(inner) and not _drops_digits(inner):
        first, second = inner.args
        if len(sides_of(inner)) == 2 or constant_of(first) is not None or constant_of(second) is not None:
            return _collect(first, sign, total) and _collect(second, _SUMS[inner.op] * sign, total)
    if len(sides_of(inner)) != 1 or not _is_ordered(inner):
        return False
    total.terms.append((sign, inner))
    return True


def _is_ordered(expression: Expression) -> bool:
    type_ = expression.type
    return type_.is_numeric or type_.is_timestamp or type_.name in ("DATE", "INTERVAL DAY TO SECOND")


def _drops_digits(call: Call) -> bool:
    """Return whether a DECIMAL sum or product loses digits after the point: an error that is not relative."""
    scales = [arg.type.scale for arg in call.args]
    return call.type.is_decimal and call.type.scale < (sum(scales) if call.op == "*" else max(scales))


def without_widening(expression: Expression) -> Expression:
    """Return a number without the casts that keep its value up to rounding, which candidates allow for.

    A cast that fails on some row stays: where nothing guards it, that row has to end in an error. Integers are computed
    exactly, so a result may exceed its own type, and then does not fit a wider one either.
    """
    while isinstance(expression, Call) and expression.op == "cast" and expression.type.is_numeric:
        inner = expression.args[0]
        kept = inner.type.is_integer or (inner.type.is_numeric and expression.type.name == "DOUBLE")
        may_exceed = expression.type.is_exact and isinstance(inner, Call) and inner.op != "cast"
        if not kept or may_exceed or not never_fails(inner.type, expression.type):
            break
        expression = inner
    return expression


def constant_of(expression: Expression) -> Fraction | None:
    """Return the exact value of a constant that is a number or a time; None if it is neither, or beyond a DOUBLE."""
    expression = without_widening(expression)
    if not _is_ordered(expression):
        return None
    if isinstance(expression, Literal):
        value: Any = expression.value
        finite = isinstance(value, int | Decimal) or (isinstance(value, float) and isfinite(value))
        return _held(Fraction(value), expression) if finite else None
    if not isinstance(expression, Call) or expression.op not in ("+", "-", "*", "neg") or _drops_digits(expression):
        return None
    values = [constant_of(arg) for arg in expression.args]
    if any(v is None for v in values):
        return None
    a, b = values[0], values[-1]
    assert a is not None and b is not None
    return _held({"+": a + b, "-": a - b, "*": a * b, "neg": -a}[expression.op], expression)


def _held(value: Fraction, expression: Expression) -> Fraction | None:
    """Return an exact result as the expression's type holds it; None if a DOUBLE cannot."""
    with np.errstate(over="ignore"):
        try:
            number = float(np.float32(float(value))) if expression.type.name == "FLOAT" else float(value)
        except OverflowError:
            return None
    if not isfinite(number):
        return None
    return Fraction(number) if expression.type.is_float else value


def bounded(
    total: Difference, low: Fraction | None, high: Fraction | None, nan_sides: frozenset[Side] = frozenset()
) -> Inequality:
    """Return low <= left - right + c <= high, turned round if the sum has right - left."""
    low = None if low is None else low - total.constant
    high = None if high is None else high - total.constant
    by_side = {next(iter(sides_of(term))): (sign, term) for sign, term in total.terms}
    left_sign, left = by_side["left"]
    right = by_side["right"][1]
    if left_sign < 0:
        low, high = (None if high is None else -high), (None if low is None else -low)
    return Inequality(left, right, low, high, total.rounds, total.magnitude, nan_sides)


def merge(a: Inequality, b: Inequality) -> Inequality:
    """Return two inequalities over the same keys as one: a band, if they bind on both sides."""
    lows = [i.low for i in (a, b) if i.low is not None]
    highs = [i.high for i in (a, b) if i.high is not None]
    return replace(
        b,
        low=max(lows, default=None),
        high=min(highs, default=None),
        rounds=max(a.rounds, b.rounds, key=("exact", "double", "float").index),
        magnitude=max(a.magnitude, b.magnitude),
        nan_sides=a.nan_sides | b.nan_sides,
        nulls_meet=a.nulls_meet and b.nulls_meet,
    )


def all_of(parts: Iterable[Bounds | None]) -> Bounds | None:
    """Return the bounds where all of some conditions are true; None where one of them never is."""
    met: Bounds = {}
    for part in parts:
        if part is None:
            return None
        for key, bound in part.items():
            met[key] = merge(met[key], bound) if key in met else bound
    return met
