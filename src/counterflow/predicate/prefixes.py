"""Where a text lies in the order of texts, by a condition that says how it begins or ends.

A text that begins with another one lies between that and the last text that begins so; of how it ends, the same holds
for what is read backwards. The keys are the places of texts' first bytes in that order.
"""

from __future__ import annotations

from counterflow.predicate.differences import Bounds, as_inequality
from counterflow.predicate.expression import Call, Expression, Literal, sides_of
from counterflow.predicate.ranges import number_of, without_casts
from counterflow.predicate.types import BIGINT, BOOLEAN, STRING


def bounds_of_text(condition: Call) -> Bounds | None:
    """Return what a condition on a text's begin or end implies; None if it is none."""
    if condition.op == "startswith":
        return _begins_with(*condition.args)
    if condition.op == "endswith":
        return _ends_with(*condition.args)
    if condition.op in ("like", "ilike"):
        return _of_pattern(condition)
    return None


def bounds_of_equal_text(a: Expression, b: Expression) -> Bounds | None:
    """Return what `a = b` implies for a text; None if it says nothing of a begin or an end."""
    return _of_equal(a, b) or _of_equal(b, a)


def _of_equal(a: Expression, b: Expression) -> Bounds | None:
    """Return what it implies that a part is found at the begin, or that as much of a text is equal to a part."""
    if not isinstance(a, Call):
        return None
    if a.op == "instr" and number_of(without_casts(b)) == 1:
        return _begins_with(*a.args)
    if a.op == "left" and _is_length(a.args[1], b):
        return _begins_with(a.args[0], b)
    if a.op == "right" and _is_length(a.args[1], b):
        return _ends_with(a.args[0], b)
    if a.op == "substring" and len(a.args) == 3 and number_of(a.args[1]) in (0, 1) and _is_length(a.args[2], b):
        return _begins_with(a.args[0], b)
    return None


def _is_length(number: Expression, text: Expression) -> bool:
    return isinstance(number, Call) and number.op == "length" and number.args[0] == text


def _begins_with(text: Expression, prefix: Expression) -> Bounds:
    """Return where a text lies in the order of texts: between its prefix and all that begins so."""
    if [len(sides_of(e)) for e in (text, prefix)] != [1, 1] or sides_of(text) == sides_of(prefix):
        return {}
    place = Call("text_place", (text,), BIGINT)
    first, last = (Call(name, (prefix,), BIGINT) for name in ("text_place", "text_place_last"))
    after, before = (as_inequality(Call("<=", pair, BOOLEAN)) for pair in ((first, place), (place, last)))
    return {(bound.left, bound.right): bound for bound in (after, before) if bound is not None}


def _ends_with(text: Expression, suffix: Expression) -> Bounds:
    return _begins_with(Call("reverse", (text,), STRING), Call("reverse", (suffix,), STRING))


def _of_pattern(like: Call) -> Bounds:
    """Return the bounds of what comes before a pattern's first wildcard; if it begins with one, after its last."""
    text, pattern, *escape = like.args
    if len(sides_of(pattern)) != 1:
        return {}
    is_open = _begins_wild(pattern)
    if like.op == "ilike":
        text, pattern = Call("lower", (text,), STRING), Call("lower", (pattern,), STRING)
    part = Call("like_suffix" if is_open else "like_prefix", (pattern, *escape), STRING)
    return _ends_with(text, part) if is_open else _begins_with(text, part)


def _begins_wild(pattern: Expression) -> bool:
    if isinstance(pattern, Literal):
        return isinstance(pattern.value, str) and pattern.value[:1] in ("%", "_")
    return isinstance(pattern, Call) and pattern.op in ("concat", "lower", "upper") and _begins_wild(pattern.args[0])
