"""The register of functions that predicates may call: for each its types, and its meaning on one row.

A function sees no NULL: any NULL argument makes the result NULL. What treats NULL specially (`coalesce`,
`least`, `if`, ...) is an operator of the evaluators or a form (`predicate.forms`) instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from counterflow.errors import EvaluationError
from counterflow.predicate.types import BIGINT, BINARY, DATE, DOUBLE, INT, STRING, TIMESTAMP, SqlType

# From the arguments' types to those that they are converted to, and the result's; None if they do not fit.
Signature = Callable[[tuple[SqlType, ...]], "tuple[tuple[SqlType, ...], SqlType] | None"]


@dataclass(frozen=True)
class Function:
    """A function that predicates may call: `scalar` computes it on one row, `usage` is shown where it does not fit.

    It is called `name`, whichever of its names a predicate uses.
    """

    name: str
    arity: tuple[int, int]
    signature: Signature
    scalar: Callable[..., Any]
    usage: str


FUNCTIONS: dict[str, Function] = {}
TEXT_MAX = 1 << 24  # characters that repeat, space, lpad and rpad may make: a wrong number must not fill the memory
TEXT_OR_BINARY = SqlType("STRING|BINARY")  # a parameter that takes both
FAILURES = (ValueError, ArithmeticError, re.error, FutureWarning)  # what a function raises where it has no value


def call_function(name: str, *args: Any) -> Any:
    """Return a function's value on one row. Raises an EvaluationError if it has none."""
    try:
        return FUNCTIONS[name].scalar(*args)
    except FAILURES as error:
        raise EvaluationError(f"{name}({', '.join(map(repr, args))}) has no value: {error}") from error


def function(names: str, *params: SqlType, returns: SqlType, optional: int = 0) -> Callable[[Callable], Callable]:
    """Register a function with fixed parameter types; numbers convert to DOUBLE, dates and timestamps freely."""

    def signature(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
        targets = [accepts(param, type_) for param, type_ in zip(params, given, strict=False)]
        if any(target is None for target in targets):
            return None
        return tuple(t for t in targets if t is not None), returns

    return typed_function(names, (len(params) - optional, len(params)), signature, _usage(params, optional, returns))


def typed_function(
    names: str, arity: tuple[int, int], signature: Signature, usage: str
) -> Callable[[Callable], Callable]:
    """Register a function whose types `signature` decides."""

    def register(scalar: Callable) -> Callable:
        own, *_ = names.split()
        for name in names.split():
            FUNCTIONS[name] = Function(own, arity, signature, scalar, usage)
        return scalar

    return register


def _usage(params: tuple[SqlType, ...], optional: int, returns: SqlType) -> str:
    needed, others = params[: len(params) - optional], params[len(params) - optional :]
    return f"({', '.join(map(str, needed))}{''.join(f'[, {param}]' for param in others)}) -> {returns}"


def accepts(param: SqlType, given: SqlType) -> SqlType | None:
    """Return the type that an argument is converted to for a parameter; None if it does not fit."""
    if param == TEXT_OR_BINARY:
        return given if given in (STRING, BINARY) else STRING if given.name == "NULL" else None
    if given == param or given.name == "NULL":
        return param if given.zone is None else given
    if param == DOUBLE and given.is_numeric:
        return DOUBLE
    if param in (INT, BIGINT) and given.is_integer:
        return given
    if param == TIMESTAMP and (given.is_timestamp or given == DATE):
        return TIMESTAMP
    if param == DATE and given.is_timestamp:
        return DATE
    return None
