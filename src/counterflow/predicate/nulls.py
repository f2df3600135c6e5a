"""Columns without which a predicate cannot be true: a row that has NULL there matches nothing."""

from __future__ import annotations

from counterflow.predicate.expression import COMPARISONS, Call, Column, Expression

# Operators that are NULL if any operand is; others may make something of a NULL.
STRICT = (COMPARISONS - {"<=>"}) | {
    "+",
    "-",
    "*",
    "/",
    "%",
    "neg",
    "abs",
    "not",
    "cast",
    "like",
    "sqrt",
    "pow",
    "power",
}


def required_columns(predicate: Expression) -> set[Column]:
    """Return the columns whose NULL makes the predicate false or NULL."""
    if isinstance(predicate, Call) and predicate.op == "and":
        return set().union(*map(required_columns, predicate.args))
    if isinstance(predicate, Call) and predicate.op == "or":
        return set.intersection(*map(required_columns, predicate.args))
    return _decisive(predicate)


def _decisive(expression: Expression) -> set[Column]:
    """Return the columns whose NULL makes the expression NULL."""
    if isinstance(expression, Column):
        return {expression}
    if isinstance(expression, Call) and expression.op in STRICT:
        return set().union(*map(_decisive, expression.args))
    return set()
