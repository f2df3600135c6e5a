"""Bounds that a condition implies for the difference of a left and a right expression inside it.

    sqrt(pow(l.x - r.a, 2) + pow(l.y - r.b, 2)) <= 5

holds only where `l.x - r.a` is between -5 and 5, and `l.y - r.b` too: a bound is taken backwards through the
expression, step by step, with what the other operands can be at least (interval constraint propagation; HC4). Every
step widens the interval a little, by more than what it could round, so nothing is rejected that the predicate accepts.

A bound may be an expression of one side, as in `... <= r.radius`: then there are two inequalities, each with the
expression in its key. Where a NULL inside does not decide (`greatest` skips it), the bound says so (`nulls_meet`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce

from counterflow.predicate.casts import never_fails
from counterflow.predicate.differences import (
    Bounds,
    Inequality,
    all_of,
    as_inequality,
    bounded,
    constant_of,
    difference_of,
    merge,
)
from counterflow.predicate.expression import COMPARISONS, Call, Expression, Literal, sides_of
from counterflow.predicate.great_circle import AXES, Points, chord_of_sum, chord_within, points_of_call
from counterflow.predicate.prefixes import bounds_of_equal_text, bounds_of_text
from counterflow.predicate.ranges import (
    ANYTHING,
    Range,
    branches_of,
    exact_bound,
    number_of,
    range_of,
    without_casts,
)
from counterflow.predicate.types import BOOLEAN, DOUBLE, INT
from counterflow.predicate.widths import BOTH_SIDES, as_double, within

NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
LOGARITHM_SIZE = 1024.0  # the same of a logarithm
COORDINATE_SIZE = 64.0  # what a coordinate's rounding is relative to: angles go round several times

NUMBER = Range(high=sys.float_info.max)  # of what is no NaN
Known = dict[Expression, Range]  # the values that an expression has, where the whole predicate is true


def implied_by(conjunct: Expression, known: Known | None = None) -> list[Inequality]:
    """Return what bounds a difference wherever the conjunct is true; nothing, if it might end in an error.

    `known` is what all conjuncts together say of an expression (`known_from`).
    """
    if isinstance(conjunct, Call) and conjunct.op in ("like", "ilike"):
        return [] if any(map(may_fail, conjunct.args)) else list((bounds_of_text(conjunct) or {}).values())
    if may_fail(conjunct) and not _fails_by_ratio(conjunct):
        return []
    found = _Conditions(known or {}).of(conjunct)
    return [] if found is None else list(found.values())


def _fails_by_ratio(conjunct: Expression) -> bool:
    """Return whether a comparison can only fail by dividing by zero: rows that are zero are looked at in any case."""
    if not isinstance(conjunct, Call) or conjunct.op not in NEGATED:
        return False
    ratios = [arg for arg in conjunct.args if isinstance(arg, Call) and arg.op == "/" and len(sides_of(arg)) == 2]
    parts = [part for ratio in ratios for part in ratio.args] + [arg for arg in conjunct.args if arg not in ratios]
    return len(ratios) == 1 and not any(map(may_fail, parts))


def may_fail(expression: Expression) -> bool:
    """Return whether an expression has no value on some rows: such a row must be looked at, and end in an error."""
    if not isinstance(expression, Call):
        return False
    op, args = expression.op, expression.args
    if op in ("/", "%", "div"):
        divisor = number_of(without_casts(args[1]))
        if not divisor:
            return True
    elif op == "cast":
        if not never_fails(args[0].type, expression.type):
            return True
    elif op not in _SAFE and op not in COMPARISONS:
        return True
    return any(map(may_fail, args))


_SAFE = {
    "and", "or", "not", "in", "is_null", "case", "coalesce", "greatest", "least", "try_cast", "isnan", "+", "-", "*",
    "neg", "abs", "sqrt", "cbrt", "exp", "ln", "log", "log10", "log2", "sin", "cos", "tan", "asin", "acos", "atan",
    "atan2", "tanh", "radians", "degrees", "sign", "signum", "pow", "power", "hypot", "pi", "haversine", "length",
    "upper", "lower", "trim", "levenshtein", "startswith", "endswith", "contains", "concat", "left", "right",
    "substring", "reverse", "ltrim", "rtrim", "btrim", "initcap", "replace", "translate", "overlay", "instr", "locate",
    "substring_index", "find_in_set", "octet_length", "bit_length", "ascii", "chr", "soundex", "md5", "sha1", "sha2",
    "crc32", "unhex", "base64", "rint", "cot", "sec", "csc", "asinh", "acosh", "atanh", "e", "factorial",
    *AXES, "log_size",
}  # fmt: skip


# --- conditions: None where it can never be true


@dataclass(frozen=True)
class _Conditions:
    """What conditions imply where the whole is true; what has an upper end in `known` is no NaN then."""

    known: Known

    def of(self, condition: Expression) -> Bounds | None:
        if not isinstance(condition, Call):
            return {}
        if condition.op == "and":
            inner = _Conditions(_met(self.known, known_from(condition.args)))
            return all_of(map(inner.of, condition.args))
        if condition.op == "or":
            return _any_of(map(self.of, condition.args))
        if condition.op == "not":
            return self.of_negated(condition.args[0])
        if condition.op == "in":
            return _any_of(self.of_equal(condition.args[0], option) for option in condition.args[1:])
        if (of_text := bounds_of_text(condition)) is not None:
            return of_text
        if condition.op == "=" or (condition.op == "<=>" and any(map(_is_value, condition.args))):
            return self.of_equal(*condition.args)
        ordered = _in_order(condition)
        return {} if ordered is None else self.at_most(*ordered)

    def of_negated(self, condition: Expression) -> Bounds | None:
        if isinstance(condition, Call):
            if condition.op in NEGATED:
                return self.of(Call(NEGATED[condition.op], condition.args, BOOLEAN))
            if condition.op in ("and", "or"):
                parts = tuple(Call("not", (arg,), BOOLEAN) for arg in condition.args)
                return self.of(Call("or" if condition.op == "and" else "and", parts, BOOLEAN))
            if condition.op == "not":
                return self.of(condition.args[0])
        return {}

    def of_equal(self, a: Expression, b: Expression) -> Bounds | None:
        """Return what equality implies: each is at most the other; both are NaN, or none."""
        if not sides_of(a) and not sides_of(b):
            return {}
        for truth, tested in ((a, b), (b, a)):
            if isinstance(truth, Literal) and isinstance(truth.value, bool):
                return self.of(tested) if truth.value else self.of_negated(tested)
        if (of_text := bounds_of_equal_text(a, b)) is not None:
            return of_text
        inner = self
        if not (self.may_be_nan(a) and self.may_be_nan(b)):
            inner = _Conditions(_met(self.known, {a: NUMBER, b: NUMBER}))
        return all_of([inner.at_most(a, b), inner.at_most(b, a)])

    def at_most(self, smaller: Expression, larger: Expression) -> Bounds | None:
        """Return what `smaller <= larger` implies. Beyond all numbers is NaN: only NaN is not at most a number."""
        explicit = as_inequality(Call("<=", (smaller, larger), BOOLEAN))
        if explicit is not None:
            return {(explicit.left, explicit.right): explicit}
        if not (smaller.type.is_numeric and larger.type.is_numeric):
            return {}
        found: Bounds | None = {}
        if not self.may_be_nan(larger):
            if len(sides_of(smaller)) == 2:
                most = Range(high=_constant_or(larger, range_of(larger).high))
                found = _narrow(smaller, most.met(self.known.get(smaller, ANYTHING)))
            if len(sides_of(larger)) == 2:
                least = Range(low=_constant_or(smaller, range_of(smaller).low))
                found = all_of([found, _narrow(larger, least.met(self.known.get(larger, ANYTHING)))])
        if len(sides_of(smaller)) == 2 and len(sides_of(larger)) == 1 and range_of(smaller).low >= 0:
            found = all_of([found, within(smaller, larger)])
        return found

    def may_be_nan(self, expression: Expression) -> bool:
        is_number = expression in self.known and self.known[expression].high < math.inf
        return expression.type.is_float and not is_number and number_of(expression) is None


def known_from(conjuncts: Iterable[Expression]) -> Known:
    """Return the values of expressions that conditions compare with numbers, where all of them are true."""
    known: Known = {}
    for conjunct in conjuncts:
        ordered = _in_order(conjunct) if isinstance(conjunct, Call) else None
        if ordered is not None:
            smaller, larger = ordered
            if (most := constant_of(larger)) is not None:
                known = _met(known, {smaller: Range(high=float(most))})
            elif (least := constant_of(smaller)) is not None:
                known = _met(known, {larger: Range(low=float(least))})
    return known


def _met(a: Known, b: Known) -> Known:
    return {**a, **{key: a.get(key, ANYTHING).met(values) for key, values in b.items()}}


def _in_order(comparison: Call) -> tuple[Expression, Expression] | None:
    """Return what is smaller and what is larger, or equal, by a comparison that puts them in order."""
    if comparison.op not in NEGATED:
        return None
    a, b = comparison.args
    return (a, b) if comparison.op in ("<", "<=") else (b, a)


def _any_of(parts: Iterable[Bounds | None]) -> Bounds | None:
    possible = [part for part in parts if part is not None]
    return reduce(_hull, possible) if possible else None


def _hull(a: Bounds, b: Bounds) -> Bounds:
    """Return what both say: the wider bound of each difference that is in both."""
    joined = {}
    for key in a.keys() & b.keys():
        x, y = a[key], b[key]
        low = None if x.low is None or y.low is None else min(x.low, y.low)
        high = None if x.high is None or y.high is None else max(x.high, y.high)
        if low is not None or high is not None:
            joined[key] = replace(merge(x, y), low=low, high=high, nulls_meet=x.nulls_meet or y.nulls_meet)
    return joined


def _constant_or(expression: Expression, bound: float) -> float:
    value = constant_of(expression)
    return bound if value is None else float(value)


# --- values: what it implies that an expression is a number in a range, neither NaN nor NULL


def _narrow(expression: Expression, values: Range) -> Bounds | None:
    """Return what bounds differences inside an expression that has one of these values; None: it never has."""
    if isinstance(expression, Literal):
        known = range_of(expression)
        return None if expression.value is None or known.met(values.widened(expression)).is_empty else {}
    if len(sides_of(expression)) < 2 or not isinstance(expression, Call):
        return {}
    values = values.widened(expression)
    if values.met(range_of(expression)).is_empty:
        return None
    if not values.bounds:
        return {}
    difference = difference_of((expression, 1))
    if difference is not None:
        found = bounded(difference, exact_bound(values.low), exact_bound(values.high))
        return {} if found.low is None and found.high is None else {(found.left, found.right): found}
    rule = _RULES.get(expression.op)
    return {} if rule is None else rule(expression, values)


def _narrow_all(parts: Iterable[tuple[Expression, Range]]) -> Bounds | None:
    return all_of([_narrow(expression, values) for expression, values in parts])


def _sum(call: Call, values: Range) -> Bounds | None:
    circle = chord_of_sum(call, values.met(range_of(call)))
    if circle is not None:
        return _on_sphere(*circle)
    a, b = call.args
    return _narrow_all([(a, values - range_of(b)), (b, values - range_of(a))])


def _subtraction(call: Call, values: Range) -> Bounds | None:
    a, b = call.args
    return _narrow_all([(a, values + range_of(b)), (b, range_of(a) - values)])


def _product(call: Call, values: Range) -> Bounds | None:
    a, b = call.args
    if a == b:
        return _narrow(a, _square_roots(values))
    return _narrow_all([(a, values.over(range_of(b))), (b, values.over(range_of(a)))])


def _quotient(call: Call, values: Range) -> Bounds | None:
    a, b = call.args
    if values.low > 0 and [len(sides_of(e)) for e in (a, b)] == [1, 1] and call.type.is_float:
        return _ratio(a, b, values)
    return _narrow(a, values.times(range_of(b)))


def _ratio(a: Expression, b: Expression, values: Range) -> Bounds:
    """Return the band of the logarithms: a ratio above zero is between numbers of one sign. Zero says nothing."""
    low, high = (end if math.isinf(end) else math.log(end) for end in (values.low, values.high))
    logs = [Call("log_size", (as_double(e),), DOUBLE) for e in (a, b)]
    if sides_of(a) == {"right"}:
        logs, low, high = logs[::-1], -high, -low
    bounds = exact_bound(low), exact_bound(high)
    return {(logs[0], logs[1]): Inequality(logs[0], logs[1], *bounds, "double", LOGARITHM_SIZE, BOTH_SIDES)}


def _power(call: Call, values: Range) -> Bounds | None:
    base, exponent = call.args[0], number_of(without_casts(call.args[1]))
    if exponent is None or exponent <= 0:
        return {}
    if exponent % 2 == 0:
        return _narrow(base, _even_roots(values, exponent))
    if exponent % 2 == 1:
        return _narrow(base, Range(_root(values.low, exponent), _root(values.high, exponent)))
    return _narrow(base, Range(0.0, _root(max(values.high, 0.0), exponent)))  # of what is negative it is NaN


def _square_roots(values: Range) -> Range:
    return _even_roots(values, 2.0)


def _even_roots(values: Range, exponent: float) -> Range:
    most = _root(max(values.high, 0.0), exponent)
    return Range(-most, most)


def _root(value: float, exponent: float) -> float:
    if math.isinf(value):
        return value
    try:
        return math.copysign(abs(value) ** (1.0 / exponent), value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _absolute(call: Call, values: Range) -> Bounds | None:
    return _narrow(call.args[0], Range(-values.high, values.high))


def _square_root(call: Call, values: Range) -> Bounds | None:
    return _narrow(call.args[0], Range(max(values.low, 0.0) * values.low, values.high * values.high))


def _hypotenuse(call: Call, values: Range) -> Bounds | None:
    return _narrow_all([(arg, Range(-values.high, values.high)) for arg in call.args])


def _greatest(call: Call, values: Range) -> Bounds | None:
    """Each argument is at most that, if it is not NULL: then it is skipped."""
    found = _narrow_all([(arg, Range(high=values.high)) for arg in call.args if not _is_null(arg)])
    return None if found is None else {key: replace(bound, nulls_meet=True) for key, bound in found.items()}


def _least(call: Call, values: Range) -> Bounds | None:
    """Each argument is at least that, or NaN, which is larger than any number: then nothing is known of it."""
    parts = [(arg, Range(low=values.low)) for arg in call.args if not arg.type.is_float]
    circles = [_cosine_at_least(arg, values.low) for arg in call.args if arg.type.is_float]
    found = all_of([_narrow_all(parts), *circles])
    return None if found is None else {key: replace(bound, nulls_meet=True) for key, bound in found.items()}


def _cosine_at_least(expression: Expression, low: float) -> Bounds:
    """Return the bounds of points on a sphere: a NaN among their angles meets everything in any case."""
    inner = without_casts(expression)
    circle = chord_of_sum(inner, Range(low, 1.0)) if isinstance(inner, Call) and inner.op == "+" else None
    return {} if circle is None else _on_sphere(*circle)


def _branches(call: Call, values: Range) -> Bounds | None:
    """One of the branches has the value; which one a NULL decides, or a condition."""
    found = _any_of(_narrow(branch, values) for branch in branches_of(call))
    return None if found is None else {key: replace(bound, nulls_meet=True) for key, bound in found.items()}


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is None


def _is_value(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is not None


def _increasing(inverse: Callable[[float], float], domain: Range = ANYTHING) -> Callable[[Call, Range], Bounds | None]:
    """Return the rule of a function that increases; `domain` are its values."""

    def rule(call: Call, values: Range) -> Bounds | None:
        low, high = (inverse(end) if domain.low < end < domain.high else None for end in (values.low, values.high))
        return _narrow(call.args[0], Range(-math.inf if low is None else low, math.inf if high is None else high))

    return rule


_natural_logarithm = _increasing(lambda x: math.exp(min(x, 700.0)), Range(-700.0, 700.0))


def _logarithm(call: Call, values: Range) -> Bounds | None:
    return _natural_logarithm(call, values) if len(call.args) == 1 else {}  # others have a base


def _sine(call: Call, values: Range) -> Bounds | None:
    """Where the angle is known to be less than a quarter turn, the sine increases."""
    angle = range_of(call.args[0])
    if angle.low < -math.pi / 2 or angle.high > math.pi / 2:
        return {}
    return _increasing(math.asin, Range(-1.0, 1.0))(call, values)


def _arc_sine(call: Call, values: Range) -> Bounds | None:
    least, most = (max(min(end, math.pi / 2), -math.pi / 2) for end in (values.low, values.high))
    return _narrow(call.args[0], Range(math.sin(least), math.sin(most)))


def _arc_cosine(call: Call, values: Range) -> Bounds | None:
    least, most = (max(min(end, math.pi), 0.0) for end in (values.low, values.high))
    return _narrow(call.args[0], Range(math.cos(most), math.cos(least)))


def _arc_tangent_2(call: Call, values: Range) -> Bounds | None:
    """Of sqrt(a) and sqrt(1 - a) it is asin(sqrt(a)): so the haversine formula is often written."""
    rise, run = (without_casts(arg) for arg in call.args)
    if not (isinstance(rise, Call) and isinstance(run, Call) and rise.op == run.op == "sqrt"):
        return {}
    rest = without_casts(run.args[0])
    if not (isinstance(rest, Call) and rest.op == "-" and number_of(without_casts(rest.args[0])) == 1):
        return {}
    return _arc_sine(Call("asin", (rise,), DOUBLE), values) if rest.args[1] == rise.args[0] else {}


def _haversine(call: Call, values: Range) -> Bounds | None:
    points = points_of_call(call)
    return {} if points is None else _on_sphere(points, chord_within(max(values.high, 0.0)))


def _on_sphere(points: Points, chord: float) -> Bounds:
    """Return the bounds of the coordinates' differences. A coordinate that is NaN says nothing."""
    most = Range(-chord, chord).widened().widened()
    if chord >= 2.0:
        return {}
    found: Bounds = {}
    for axis in AXES:
        left, right = (point.coordinate(axis) for point in points)
        low, high = exact_bound(most.low), exact_bound(most.high)
        found[left, right] = Inequality(left, right, low, high, "double", COORDINATE_SIZE, BOTH_SIDES)
    return found


# --- texts: how long they are (`predicate.prefixes` says how they begin)


def _levenshtein(call: Call, values: Range) -> Bounds | None:
    """Texts differ in length by at most their distance."""
    lengths = tuple(Call("length", (arg,), INT) for arg in call.args)
    return _narrow(Call("-", lengths, INT), Range(-values.high, values.high))


_RULES: dict[str, Callable[[Call, Range], Bounds | None]] = {
    "+": _sum,
    "-": _subtraction,
    "*": _product,
    "/": _quotient,
    "neg": lambda call, values: _narrow(call.args[0], -values),
    "abs": _absolute,
    "sqrt": _square_root,
    "pow": _power,
    "power": _power,
    "hypot": _hypotenuse,
    "greatest": _greatest,
    "least": _least,
    "case": _branches,
    "coalesce": _branches,
    "cast": lambda call, values: _narrow(call.args[0], values) if without_casts(call) is not call else {},
    "radians": _increasing(math.degrees),
    "degrees": _increasing(math.radians),
    "sin": _sine,
    "asin": _arc_sine,
    "acos": _arc_cosine,
    "atan": _increasing(math.tan, Range(-math.pi / 2, math.pi / 2)),
    "atan2": _arc_tangent_2,
    "exp": _increasing(math.log, Range(0.0, math.inf)),
    "ln": _natural_logarithm,
    "log": _logarithm,
    "cbrt": _increasing(lambda x: x * x * x),
    "haversine": _haversine,
    "levenshtein": _levenshtein,
}
