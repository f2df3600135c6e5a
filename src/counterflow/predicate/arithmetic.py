"""Arithmetic on one row: integers and DECIMALs exactly, of any size; FLOAT rounded to 32 bits."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

from counterflow.errors import EvaluationError
from counterflow.predicate.casts import EXACT, to_float32
from counterflow.predicate.expression import Call


def division_by_zero(call: Call) -> EvaluationError:
    return EvaluationError(f"division by zero in '{call}': guard it, or use try_divide or nullif(divisor, 0)")


def arithmetic(call: Call, values: list[Any]) -> Any:
    """Return the value of an arithmetic operator; a DECIMAL is rounded half up to its type's scale."""
    if call.op in ("/", "%", "div") and values[1] == 0:
        raise division_by_zero(call)
    if call.type.is_float:
        result = _float_arithmetic(call.op, values)
        return to_float32(result) if call.type.name == "FLOAT" else result
    if call.type.is_decimal:
        exact = _exact_arithmetic(call.op, [Fraction(v) for v in values])
        digits = EXACT.divide(Decimal(exact.numerator), Decimal(exact.denominator))
        return digits.quantize(Decimal(1).scaleb(-call.type.scale), ROUND_HALF_UP, EXACT)
    return int(_exact_arithmetic(call.op, values))


def _float_arithmetic(op: str, values: list[float]) -> float:
    match op:
        case "neg":
            return -values[0]
        case "+":
            return values[0] + values[1]
        case "-":
            return values[0] - values[1]
        case "*":
            return values[0] * values[1]
        case "/":
            return values[0] / values[1]
        case _:
            return math.fmod(*values) if math.isfinite(values[0]) and not math.isnan(values[1]) else math.nan


def _exact_arithmetic(op: str, values: list[Any]) -> Any:
    a, b = values[0], values[-1]
    match op:
        case "neg":
            return -a
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return a / b
        case "div":
            return truncated_division(a, b)
        case "%":
            return a - b * truncated_division(a, b)  # the sign of the dividend, as in Java
        case "&":
            return a & b
        case "|":
            return a | b
        case _:
            return a ^ b


def truncated_division(a: Any, b: Any) -> int:
    quotient = abs(a) // abs(b)
    return int(quotient if (a < 0) == (b < 0) else -quotient)
