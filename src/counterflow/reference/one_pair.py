"""A predicate's value for one pair, computed the slow and obvious way: the oracle of every other evaluator.

NULL is None. AND and OR stop as soon as they are decided, left to right; CASE computes only the branch it
takes; so a guard such as `r.b <> 0 AND l.a / r.b > 2` protects what follows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from counterflow.errors import EvaluationError
from counterflow.predicate.arithmetic import arithmetic
from counterflow.predicate.casts import cast_value
from counterflow.predicate.conditions import Condition
from counterflow.predicate.expression import COMPARISONS, Call, Column, Expression, Literal
from counterflow.predicate.functions import FUNCTIONS, call_function

Row = Mapping[str, Any]


def evaluate(expression: Expression, left: Row, right: Row) -> Any:
    """Return the value of an expression for one left and one right row."""
    if isinstance(expression, Literal):
        return expression.value
    if isinstance(expression, Column):
        return (left if expression.side == "left" else right)[expression.name]
    return _call(expression, left, right)


def _call(call: Call, left: Row, right: Row) -> Any:
    def value(arg: Expression) -> Any:
        return evaluate(arg, left, right)

    match call.op:
        case "and" | "or":
            decisive = call.op == "or"
            unknown = False
            for arg in call.args:
                v = value(arg)
                if v is decisive:
                    return decisive
                unknown |= v is None
            return None if unknown else not decisive
        case "not":
            v = value(call.args[0])
            return None if v is None else not v
        case "is_null":
            return value(call.args[0]) is None
        case "case":
            *branches, default = call.args
            for condition, result in zip(branches[::2], branches[1::2], strict=True):
                if value(condition) is True:
                    return value(result)
            return value(default)
        case "coalesce":
            return next((v for arg in call.args if (v := value(arg)) is not None), None)
        case "least" | "greatest":
            present = [v for arg in call.args if (v := value(arg)) is not None]
            pick = min if call.op == "least" else max
            return pick(present, key=sort_key) if present else None
        case "in":
            return _is_in(value(call.args[0]), map(value, call.args[1:]))
        case "<=>":
            a, b = map(value, call.args)
            return a is b if a is None or b is None else compare("=", a, b)
        case "try_cast":
            v = value(call.args[0])  # only the cast itself is tried
            try:
                return cast_value(v, call.args[0].type, call.type)
            except EvaluationError:
                return None

    values = [value(arg) for arg in call.args]
    if any(v is None for v in values):
        return None
    if call.op in COMPARISONS:
        return compare(call.op, values[0], values[1])
    if call.op == "cast":
        return cast_value(values[0], call.args[0].type, call.type)
    if isinstance(call, Condition):
        return call.function(*values)
    if call.op in FUNCTIONS:
        return call_function(call.op, *values)
    return arithmetic(call, values)


def sort_key(value: Any) -> Any:
    """Return a key in Spark's order: NaN equals itself and is larger than any other number."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value


def compare(op: str, a: Any, b: Any) -> bool:
    a, b = sort_key(a), sort_key(b)
    match op:
        case "=":
            return a == b
        case "<>":
            return a != b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case _:
            return a >= b


def _is_in(value: Any, options: Iterable[Any]) -> bool | None:
    """Return True as soon as one is equal, otherwise None if some comparison was unknown."""
    unknown = False
    for option in options:
        if value is None or option is None:
            unknown = True
        elif compare("=", value, option):
            return True
    return None if unknown else False
