"""What numbers an expression can be, whatever its columns hold: an interval, too wide rather than too narrow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from counterflow.predicate.casts import never_fails
from counterflow.predicate.differences import CONSTANT_MAX
from counterflow.predicate.expression import Call, Column, Expression, Literal

ROUNDING, FLOAT_ROUNDING = 2.0**-40, 2.0**-18  # relative, of all that happens in one operation
TINY, FLOAT_TINY = 1e-300, 1e-37  # absolute, for what is below the least number with all its digits
INFINITE = math.inf
HALF_TURN = math.pi


@dataclass(frozen=True)
class Range:
    """An interval of numbers, its ends included. NaN and NULL are not in it, and are not said anything about."""

    low: float = -INFINITE
    high: float = INFINITE

    @property
    def is_empty(self) -> bool:
        return self.low > self.high

    @property
    def bounds(self) -> bool:
        """Whether it says anything."""
        return self.low > -INFINITE or self.high < INFINITE

    def widened(self, by: Expression | None = None) -> Range:
        """Return it with room for what an operation of this type rounds."""
        rough = by is not None and by.type.name == "FLOAT"
        relative, least = (FLOAT_ROUNDING, FLOAT_TINY) if rough else (ROUNDING, TINY)
        if by is not None:
            least = max(least, last_digit(by))
        return Range(self.low - abs(self.low) * relative - least, self.high + abs(self.high) * relative + least)

    def rounded(self, by: Expression) -> Range:
        """Return the same for a result: rounding never takes a number over zero."""
        wide = self.widened(by)
        return Range(self.low if self.low == 0 else wide.low, self.high if self.high == 0 else wide.high)

    def met(self, other: Range) -> Range:
        return Range(max(self.low, other.low), min(self.high, other.high))

    def joined(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Range:
        return Range(-self.high, -self.low)

    def __sub__(self, other: Range) -> Range:
        return self + -other

    def times(self, other: Range) -> Range:
        corners = [_product(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Range(min(corners), max(corners))

    def over(self, other: Range) -> Range:
        """Return the quotient, where the divisor is on one side of zero; otherwise it may be anything."""
        if not (other.low > 0 or other.high < 0):
            return ANYTHING
        return self.times(Range(1 / other.high, 1 / other.low))  # of an infinite end: 0


def last_digit(expression: Expression) -> float:
    """Return one in the last digit of a DECIMAL, which an operation rounds to; 0 for other types."""
    return 10.0**-expression.type.scale if expression.type.is_decimal else 0.0


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b  # an end that is infinite is not reached


ANYTHING, NOT_NEGATIVE = Range(), Range(0.0)
_KNOWN = {
    "sqrt": NOT_NEGATIVE,
    "exp": NOT_NEGATIVE,
    "hypot": NOT_NEGATIVE,
    "cosh": Range(1.0),
    "sin": Range(-1.0, 1.0),
    "cos": Range(-1.0, 1.0),
    "tanh": Range(-1.0, 1.0),
    "sign": Range(-1.0, 1.0),
    "signum": Range(-1.0, 1.0),
    "asin": Range(-HALF_TURN / 2, HALF_TURN / 2),
    "atan": Range(-HALF_TURN / 2, HALF_TURN / 2),
    "acos": Range(0.0, HALF_TURN),
    "atan2": Range(-HALF_TURN, HALF_TURN),
    "pi": Range(HALF_TURN, HALF_TURN),
    "e": Range(math.e, math.e),
    **dict.fromkeys(("length", "octet_length", "bit_length", "instr", "locate", "find_in_set", "ascii"), NOT_NEGATIVE),
    "bit_count": Range(0.0, 64.0),
    "levenshtein": NOT_NEGATIVE,
    "haversine": Range(0.0, 6_371_008.8 * HALF_TURN),
}


def number_of(literal: Expression) -> float | None:
    """Return the value of a constant that is a finite number, or None."""
    if not isinstance(literal, Literal) or literal.value is None or isinstance(literal.value, bool):
        return None
    try:
        value = float(literal.value)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def range_of(expression: Expression) -> Range:
    """Return an interval that has all numbers that an expression can be."""
    if isinstance(expression, Literal):
        value = number_of(expression)
        return ANYTHING if value is None else Range(value, value).widened()
    if isinstance(expression, Column):  # the limits of its type would be bounds that nothing is beyond
        return ANYTHING
    found = _range_of_call(expression)
    return found.rounded(expression) if found.bounds else found


def _range_of_call(call: Call) -> Range:
    if call.op in _KNOWN:
        return _KNOWN[call.op]
    known = _COMPUTED.get(call.op)
    return ANYTHING if known is None else known(call)


def _square_or_product(call: Call) -> Range:
    a, b = call.args
    found = range_of(a).times(range_of(b))
    return found.met(NOT_NEGATIVE) if a == b else found


def _power(call: Call) -> Range:
    """Of a negative zero, an odd power below zero is minus infinity."""
    least, exponent = range_of(call.args[0]).low, number_of(without_casts(call.args[1]))
    if least > 0 or (exponent is not None and (exponent % 2 == 0 or (least == 0 and exponent > 0))):
        return NOT_NEGATIVE
    return ANYTHING


def _absolute(call: Call) -> Range:
    inside = range_of(call.args[0])
    least = 0.0 if inside.low <= 0 <= inside.high else min(abs(inside.low), abs(inside.high))
    return Range(least, max(-inside.low, inside.high))


def _greatest(call: Call) -> Range:
    ranges = [range_of(arg) for arg in call.args]  # a NULL among the arguments is skipped
    return Range(min(r.low for r in ranges), max(r.high for r in ranges))


def _case(call: Call) -> Range:
    found = Range(INFINITE, -INFINITE)
    for value in branches_of(call):
        if not (isinstance(value, Literal) and value.value is None):
            found = found.joined(range_of(value))
    return ANYTHING if found.is_empty else found


_COMPUTED: dict[str, Callable[[Call], Range]] = {
    "+": lambda call: range_of(call.args[0]) + range_of(call.args[1]),
    "-": lambda call: range_of(call.args[0]) - range_of(call.args[1]),
    "neg": lambda call: -range_of(call.args[0]),
    "*": _square_or_product,
    "/": lambda call: range_of(call.args[0]).over(range_of(call.args[1])),
    "pow": _power,
    "power": _power,
    "abs": _absolute,
    "greatest": _greatest,
    "least": _greatest,
    "case": _case,
    "coalesce": _case,
    "cast": lambda call: range_of(call.args[0]) if _keeps_numbers(call) else ANYTHING,
    "radians": lambda call: range_of(call.args[0]).times(Range(math.pi / 180, math.pi / 180)),
    "degrees": lambda call: range_of(call.args[0]).times(Range(180 / math.pi, 180 / math.pi)),
}


def _keeps_numbers(cast: Call) -> bool:
    source, target = cast.args[0].type, cast.type
    return source.is_numeric and target.is_numeric and never_fails(source, target) and not target.is_decimal


def without_casts(expression: Expression) -> Expression:
    """Return a number without casts that keep it, up to rounding."""
    while isinstance(expression, Call) and expression.op == "cast" and _keeps_numbers(expression):
        expression = expression.args[0]
    return expression


def branches_of(call: Call) -> tuple[Expression, ...]:
    """Return the values among which CASE or coalesce chooses."""
    return (*call.args[1:-1:2], call.args[-1]) if call.op == "case" else call.args


def exact_bound(value: float) -> Fraction | None:
    """Return an end of a range as a bound; None where it does not bind, or could overflow on the way."""
    return Fraction(value) if abs(value) < CONSTANT_MAX else None
