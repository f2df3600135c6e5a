"""Bounds that are an expression of one side, as in `hypot(l.x - r.a, l.y - r.b) <= r.radius`: they go into its key."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from counterflow.predicate.differences import Bounds, Difference, Inequality, Rounding, all_of, bounded, difference_of
from counterflow.predicate.expression import SIDES, Call, Expression, Literal, Side, sides_of
from counterflow.predicate.ranges import FLOAT_ROUNDING, ROUNDING, last_digit, number_of, range_of, without_casts
from counterflow.predicate.types import BIGINT, DOUBLE, INTERVAL

BOTH_SIDES: frozenset[Side] = frozenset(SIDES)


def within(value: Expression, most: Expression) -> Bounds:
    """Return what it implies that a value, which is never negative, is at most an expression of one side."""
    inner = without_casts(value)
    if not isinstance(inner, Call):
        return {}
    if inner.type.is_decimal and inner.op in ("+", "*", "/"):  # each rounds to its last digit
        most = Call("+", (as_double(most), Literal(last_digit(inner), DOUBLE)), DOUBLE)
    if inner.op == "abs":
        return _around(inner.args[0], most)
    if inner.op == "hypot":
        return all_of([_around(arg, most) for arg in inner.args]) or {}
    if inner.op == "greatest":
        found = all_of([within(arg, most) for arg in inner.args]) or {}
        return {key: replace(bound, nulls_meet=True) for key, bound in found.items()}
    if inner.op == "sqrt" and range_of(inner.args[0]).low >= 0:
        wide = as_double(most)
        return within(inner.args[0], Call("*", (wide, wide), DOUBLE))
    if inner.op == "+" and all(range_of(arg).low >= 0 for arg in inner.args):
        return all_of([within(arg, most) for arg in inner.args]) or {}
    exponent = number_of(without_casts(inner.args[1])) if inner.op in ("pow", "power") else None
    if exponent == 2 or (inner.op == "*" and inner.args[0] == inner.args[1]):
        return _around(inner.args[0], Call("sqrt", (Call("abs", (as_double(most),), DOUBLE),), DOUBLE))
    factor = number_of(without_casts(inner.args[1])) if inner.op in ("*", "/") else None
    if factor is not None and factor > 0:
        other = Call("/" if inner.op == "*" else "*", (as_double(most), Literal(factor, DOUBLE)), DOUBLE)
        return within(inner.args[0], other)
    return {}


def _around(value: Expression, width: Expression) -> Bounds:
    """Return the two inequalities of abs(value) <= width, where the value is a difference."""
    difference = difference_of((without_casts(value), 1))
    if difference is None:
        return {}
    centre = bounded(difference, Fraction(0), Fraction(0))
    rounds: Rounding = difference.rounds
    if rounds != "exact" or not (width.type.is_integer or width.type == INTERVAL):
        width, rounds = _roomy(width, centre, difference), "float" if rounds == "float" else "double"
    found: Bounds = {}
    for most in (True, False):
        # left - right is at most centre + width, and at least centre - width: the width goes to its own side.
        left, right = centre.left, centre.right
        if sides_of(width) == {"left"}:
            left = _moved(left, width, not most)
        else:
            right = _moved(right, width, most)
        low, high = (None, centre.high) if most else (centre.low, None)
        found[left, right] = Inequality(left, right, low, high, rounds, centre.magnitude, BOTH_SIDES)
    return found


def _moved(key: Expression, width: Expression, up: bool) -> Expression:
    op = "+" if up else "-"
    if width.type == DOUBLE:
        return Call(op, (as_double(key), width), DOUBLE)
    return Call(op, (key, width), key.type if width.type == INTERVAL else BIGINT)


def _roomy(width: Expression, centre: Inequality, difference: Difference) -> Expression:
    """Return a width with room for what the difference rounds, which is relative to its operands."""
    rough = "FLOAT" in difference.types or width.type.name == "FLOAT"
    own = centre.left if sides_of(width) == {"left"} else centre.right
    size: Expression = Literal(difference.magnitude + 1.0, DOUBLE)
    for part in (own, width):
        size = Call("+", (size, Call("abs", (as_double(part),), DOUBLE)), DOUBLE)
    spare = Call("*", (size, Literal(FLOAT_ROUNDING if rough else ROUNDING, DOUBLE)), DOUBLE)
    return Call("+", (as_double(width), spare), DOUBLE)


def as_double(expression: Expression) -> Expression:
    return expression if expression.type == DOUBLE else Call("cast", (expression,), DOUBLE)
