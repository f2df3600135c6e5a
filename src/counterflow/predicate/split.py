"""A predicate taken apart into what access paths can use.

The conjunction is split into equalities (`f(left) = g(right)`), inequalities (`f(left) - g(right) <= c`; two
of them make a band), filters on one side, and the rest. The split only finds candidates: every path checks
the whole predicate, so the split may be generous, but it must never reject a pair that the predicate accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Any
from typing import Literal as OneOf

from counterflow.predicate.casts import never_fails
from counterflow.predicate.expression import (
    Call,
    Expression,
    Literal,
    Side,
    conjuncts_of,
    sides_of,
)

Rounding = OneOf["exact", "double", "float"]
CONSTANT_MAX = 1e30  # larger constants could overflow on the way: then it is a residual


@dataclass(frozen=True)
class Equality:
    """`left = right`; `null_safe` if two NULLs are equal too."""

    left: Expression
    right: Expression
    null_safe: bool = False

    def __str__(self) -> str:
        return f"{self.left} {'<=>' if self.null_safe else '='} {self.right}"

    def key(self, side: Side) -> Expression:
        return self.left if side == "left" else self.right


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

    def __str__(self) -> str:
        low = "" if self.low is None else f"{_number(self.low)} <= "
        high = "" if self.high is None else f" <= {_number(self.high)}"
        return f"{low}{self.left} - {self.right}{high}"

    @property
    def is_band(self) -> bool:
        return self.low is not None and self.high is not None

    def key(self, side: Side) -> Expression:
        return self.left if side == "left" else self.right


@dataclass(frozen=True)
class Split:
    """The conjuncts of a predicate, by what they are good for."""

    equalities: list[Equality] = field(default_factory=list)
    inequalities: list[Inequality] = field(default_factory=list)
    left_filters: list[Expression] = field(default_factory=list)
    right_filters: list[Expression] = field(default_factory=list)
    residual: list[Expression] = field(default_factory=list)

    def filters(self, side: Side) -> list[Expression]:
        return self.left_filters if side == "left" else self.right_filters

    @property
    def bands(self) -> list[Inequality]:
        return [i for i in self.inequalities if i.is_band]


def _number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else str(float(value))


def split(predicate: Expression) -> Split:
    """Return a predicate taken apart."""
    result = Split()
    for conjunct in conjuncts_of(predicate):
        sides = sides_of(conjunct)
        if sides == {"left"}:
            result.left_filters.append(conjunct)
        elif sides == {"right"}:
            result.right_filters.append(conjunct)
        elif equality := _as_equality(conjunct):
            result.equalities.append(equality)
        elif inequality := _as_inequality(conjunct):
            _merge(result.inequalities, inequality)
        else:
            result.residual.append(conjunct)
    return result


def _as_equality(conjunct: Expression) -> Equality | None:
    if not (isinstance(conjunct, Call) and conjunct.op in ("=", "<=>")):
        return None
    a, b = conjunct.args
    null_safe = conjunct.op == "<=>"
    if sides_of(a) == {"left"} and sides_of(b) == {"right"}:
        return Equality(a, b, null_safe)
    if sides_of(a) == {"right"} and sides_of(b) == {"left"}:
        return Equality(b, a, null_safe)
    return None


def _as_inequality(conjunct: Expression) -> Inequality | None:
    if not (isinstance(conjunct, Call) and conjunct.op in ("<", "<=", ">", ">=")):
        return None
    smaller, larger = conjunct.args if conjunct.op in ("<", "<=") else conjunct.args[::-1]
    width = _constant(larger)
    distance = without_widening(smaller)
    if width is not None and isinstance(distance, Call) and distance.op == "abs":  # abs(f - g) <= c
        total = _difference((distance.args[0], 1), (larger, 0))
        return None if total is None else _bounded(total, -width, width)
    total = _difference((smaller, 1), (larger, -1))  # smaller - larger <= 0
    return None if total is None else _bounded(total, None, Fraction(0), _sides_where_nan_is_larger(larger))


def _sides_where_nan_is_larger(larger: Expression) -> frozenset[Side]:
    """Return the sides that `larger` subtracts: NaN there makes it NaN, which exceeds everything."""
    parts = _Sum()
    _collect(larger, 1, parts)
    return frozenset(side for sign, term in parts.terms if sign < 0 and term.type.is_float for side in sides_of(term))


@dataclass
class _Sum:
    """`left - right + constant`, each side's part one expression with a sign, and what was met on the way."""

    terms: list[tuple[int, Expression]] = field(default_factory=list)
    constant: Fraction = field(default_factory=Fraction)
    magnitude: float = 0.0
    types: set[str] = field(default_factory=set)

    @property
    def rounds(self) -> Rounding:
        if "FLOAT" in self.types:
            return "float"
        return "double" if self.types & {"DOUBLE", "DECIMAL"} else "exact"


def _difference(*parts: tuple[Expression, int]) -> _Sum | None:
    """Return the sum of the signed parts as f(left) - g(right) + c, or its negative; None if it is not of that form."""
    total = _Sum()
    if not all(_collect(expression, sign, total) for expression, sign in parts) or len(total.terms) != 2:
        return None
    (sign_a, a), (sign_b, b) = total.terms
    return total if sign_a == -sign_b and sides_of(a) != sides_of(b) else None


def _collect(expression: Expression, sign: int, total: _Sum) -> bool:
    """Add an expression to the sum. With sign 0 only its type and size count."""
    constant = _constant(expression)
    total.types.add(expression.type.name)
    if constant is not None:
        if abs(constant) >= CONSTANT_MAX:  # it may be beyond a DOUBLE
            return False
        total.constant += sign * constant
        total.magnitude += abs(float(constant))
        return total.magnitude < CONSTANT_MAX
    inner = without_widening(expression)
    total.types.add(inner.type.name)
    if isinstance(inner, Call) and inner.op in ("+", "-") and _is_ordered(inner) and not _drops_digits(inner):
        first, second = inner.args
        if len(sides_of(inner)) == 2 or _constant(first) is not None or _constant(second) is not None:
            return _collect(first, sign, total) and _collect(second, sign if inner.op == "+" else -sign, total)
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


def _constant(expression: Expression) -> Fraction | None:
    """Return the exact value of a constant that is a number or a time; None if it is neither."""
    expression = without_widening(expression)
    if not _is_ordered(expression):
        return None
    if isinstance(expression, Literal):
        value: Any = expression.value
        finite = isinstance(value, int | Decimal) or (isinstance(value, float) and isfinite(value))
        return Fraction(value) if finite else None
    if not isinstance(expression, Call) or expression.op not in ("+", "-", "*", "neg") or _drops_digits(expression):
        return None
    values = [_constant(arg) for arg in expression.args]
    if any(v is None for v in values):
        return None
    a, b = values[0], values[-1]
    assert a is not None and b is not None
    return {"+": a + b, "-": a - b, "*": a * b, "neg": -a}[expression.op]


def _bounded(
    total: _Sum, low: Fraction | None, high: Fraction | None, nan_sides: frozenset[Side] = frozenset()
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


def _merge(inequalities: list[Inequality], new: Inequality) -> None:
    """Add an inequality. Two over the same expressions become one band."""
    for i, old in enumerate(inequalities):
        if (old.left, old.right) == (new.left, new.right):
            lows = [b for b in (old.low, new.low) if b is not None]
            highs = [b for b in (old.high, new.high) if b is not None]
            inequalities[i] = replace(
                new,
                low=max(lows, default=None),
                high=min(highs, default=None),
                rounds=max(old.rounds, new.rounds, key=("exact", "double", "float").index),
                magnitude=max(old.magnitude, new.magnitude),
                nan_sides=old.nan_sides | new.nan_sides,
            )
            return
    inequalities.append(new)
