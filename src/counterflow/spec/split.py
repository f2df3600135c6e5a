"""Taking a predicate apart: what an access path can use of it.

The conjunction is split into equalities (`f(left) = g(right)`), inequalities (`f(left) - g(right) <= c`; two
of them make a band), filters on one side, and the rest. The split only finds candidates: every path checks
the whole predicate, so the split may be generous, but it must never reject a pair the predicate accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any
from typing import Literal as OneOf

from counterflow.spec.expression import (
    MIRRORED,
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
    # Floating-point steps may round: how roughly (the coarsest type on the way), and among how large constants.
    rounds: Rounding = "exact"
    magnitude: float = 0.0

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
    op, (a, b) = conjunct.op, conjunct.args
    if isinstance(a, Literal) and not isinstance(b, Literal):
        op, a, b = MIRRORED[op], b, a
    width = _constant(b)
    if width is not None and op in ("<", "<=") and isinstance(a, Call):
        inner = _strip_cast(a)
        if isinstance(inner, Call) and inner.op == "abs":  # abs(f - g) <= c
            difference = _difference(inner.args[0])
            if difference is None or abs(width) >= CONSTANT_MAX:
                return None
            difference.types |= {a.type.name, b.type.name}
            difference.magnitude += abs(float(width))
            return _bounded(difference, -width, width)
    difference = _difference(Call("-", (a, b), a.type))  # a <= b is a - b <= 0
    if difference is None:
        return None
    zero = Fraction(0)
    return _bounded(difference, None, zero) if op in ("<", "<=") else _bounded(difference, zero, None)


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


def _difference(expression: Expression) -> _Sum | None:
    """`expression` as f(left) - g(right) + c, or as its negative; None where it is not of that form."""
    total = _Sum()
    if not _collect(expression, 1, total) or len(total.terms) != 2:
        return None
    (sign_a, a), (sign_b, b) = total.terms
    if sign_a == sign_b or {frozenset(sides_of(a)), frozenset(sides_of(b))} != {frozenset({"left"}), frozenset({"right"})}:
        return None
    return total


def _collect(expression: Expression, sign: int, total: _Sum) -> bool:
    constant = _constant(expression)
    total.types.add(expression.type.name)
    if constant is not None:
        total.constant += sign * constant
        total.magnitude += abs(float(constant))
        return total.magnitude < CONSTANT_MAX
    inner = _strip_cast(expression)
    total.types.add(inner.type.name)
    if isinstance(inner, Call) and inner.op in ("+", "-") and len(inner.args) == 2 and _is_ordered(inner):
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


def _strip_cast(expression: Expression) -> Expression:
    """Without widening casts between numbers: they keep the value up to rounding, which candidates allow for."""
    while (
        isinstance(expression, Call)
        and expression.op == "cast"
        and expression.type.is_numeric
        and expression.args[0].type.is_numeric
        and (expression.type.is_float or expression.args[0].type.is_integer)
    ):
        expression = expression.args[0]
    return expression


def _constant(expression: Expression) -> Fraction | None:
    if not isinstance(expression, Literal) or expression.value is None or not _is_ordered(expression):
        return None
    value: Any = expression.value
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return Fraction(value) if isinstance(value, int | float | Decimal) else None


def _bounded(total: _Sum, low: Fraction | None, high: Fraction | None) -> Inequality:
    """low <= left - right + c <= high, turned round if the sum has right - left."""
    low = None if low is None else low - total.constant
    high = None if high is None else high - total.constant
    by_side = {next(iter(sides_of(term))): (sign, term) for sign, term in total.terms}
    left_sign, left = by_side["left"]
    right = by_side["right"][1]
    if left_sign < 0:
        low, high = (None if high is None else -high), (None if low is None else -low)
    return Inequality(left, right, low, high, total.rounds, total.magnitude)


def _merge(inequalities: list[Inequality], new: Inequality) -> None:
    """Two inequalities over the same expressions are one band."""
    for i, old in enumerate(inequalities):
        if (old.left, old.right) == (new.left, new.right):
            lows = [b for b in (old.low, new.low) if b is not None]
            highs = [b for b in (old.high, new.high) if b is not None]
            rounds = max(old.rounds, new.rounds, key=("exact", "double", "float").index)
            low, high = max(lows, default=None), min(highs, default=None)
            inequalities[i] = Inequality(new.left, new.right, low, high, rounds, max(old.magnitude, new.magnitude))
            return
    inequalities.append(new)
