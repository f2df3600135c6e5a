"""CAST on one row, with Spark's ANSI meaning: what does not fit is an error, never another value."""

from __future__ import annotations

import math
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import numpy as np

from counterflow.errors import EvaluationError
from counterflow.predicate.types import INTEGER_BITS, SqlType, as_decimal, integer_range
from counterflow.predicate.wall_clock import (
    US_PER_DAY,
    date_of,
    localised,
    parse_date,
    parse_timestamp,
    timestamp_text,
    unlocalised,
)

EXACT = Context(prec=1000)  # wide enough that it never rounds: a DOUBLE has at most 767 digits

_TRUE = {"t", "true", "y", "yes", "1"}
_FALSE = {"f", "false", "n", "no", "0"}
_BLANKS = "".join(map(chr, range(0x21)))  # what Spark trims: blanks and control characters
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_FLOAT = re.compile(_DECIMAL.pattern + "[df]?", re.ASCII | re.IGNORECASE)
_NAMED_FLOAT = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


def castable(source: SqlType, target: SqlType) -> bool:
    """Return whether the CAST is allowed at all."""
    kinds = (_kind(source), _kind(target))
    return source.name in ("NULL", target.name) or kinds in _ALLOWED or kinds[::-1] in _ALLOWED


def _kind(type_: SqlType) -> str:
    return "number" if type_.is_numeric else type_.name


_ALLOWED = {
    ("number", "number"),
    ("number", "BOOLEAN"),
    ("number", "TIMESTAMP"),
    ("STRING", "number"),
    ("STRING", "BOOLEAN"),
    ("STRING", "BINARY"),
    ("STRING", "DATE"),
    ("STRING", "TIMESTAMP"),
    ("STRING", "TIMESTAMP_NTZ"),
    ("DATE", "TIMESTAMP"),
    ("DATE", "TIMESTAMP_NTZ"),
    ("TIMESTAMP", "TIMESTAMP_NTZ"),
}  # and each the other way round


def never_fails(source: SqlType, target: SqlType) -> bool:
    """Return whether a CAST has a value on every row; False where that depends on the row, or is not known."""
    if source == target or source.name == "NULL":
        return True
    if not all(t.is_numeric or t.name == "BOOLEAN" for t in (source, target)):
        return False
    if not target.is_exact:
        return True  # what is too large for a FLOAT is infinite
    if source.is_integer and target.is_integer:
        return INTEGER_BITS[source.name] <= INTEGER_BITS[target.name]
    if source.name == "BOOLEAN":
        return target.is_integer or target.precision > target.scale
    if source.is_float or target.is_integer:
        return False
    digits = as_decimal(source)
    carried = digits.scale > target.scale  # 9.9 may be rounded to 10
    return digits.precision - digits.scale + carried <= target.precision - target.scale


def cast_value(value: Any, source: SqlType, target: SqlType) -> Any:
    """Return a value as another type. Raises an EvaluationError if it does not fit."""
    if value is None or source == target:
        return value
    try:
        return _cast(value, source, target)
    except (ValueError, OverflowError, InvalidOperation) as error:
        raise EvaluationError(
            f"cannot cast {value!r} ({source}) to {target}; use TRY_CAST to get NULL instead of this error"
        ) from error


def _cast(value: Any, source: SqlType, target: SqlType) -> Any:
    if target.name == "BINARY":
        return value.encode()
    if isinstance(value, str):
        value = value.strip(_BLANKS)
    if source.name == "TIMESTAMP" and target.is_numeric:  # seconds since 1970
        if target.is_decimal:
            value = Decimal(value).scaleb(-6, EXACT)
        else:
            value = value // 1_000_000 if target.is_integer else value / 1e6
    if target.is_integer:
        return _to_integer(value, target)
    if target.is_decimal:
        return to_decimal(_as_decimal(value), target)
    if target.is_float:
        return _to_float(value, target)
    match target.name:
        case "BOOLEAN":
            return _to_boolean(value)
        case "STRING":
            return to_string(value, source)
        case "DATE":
            return parse_date(value) if isinstance(value, str) else localised(value, source.zone) // US_PER_DAY
        case _:
            return _to_timestamp(value, source, target)


def _to_integer(value: Any, target: SqlType) -> int:
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise ValueError(value)
    number = int(value)  # a fraction is cut off, as in Java; NaN and infinities are errors
    low, high = integer_range(target)
    if isinstance(value, float) and number == high + 1 == 2**63:
        return high  # Java compares as DOUBLEs, and then takes the nearest BIGINT
    if not low <= number <= high:
        raise OverflowError(number)
    return number


def _as_decimal(value: Any) -> Decimal:
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise ValueError(value)
    return Decimal(repr(value) if isinstance(value, float) else value)


def to_decimal(number: Decimal, target: SqlType) -> Decimal:
    """Round half up to the target's scale. More digits before the point than the target has is an error."""
    if not number.is_finite():
        raise OverflowError(number)
    rounded = number.quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP, EXACT)
    if rounded and rounded.adjusted() >= target.precision - target.scale:
        raise OverflowError(number)
    return rounded if rounded else rounded.copy_abs()  # a DECIMAL has no negative zero


def _to_float(value: Any, target: SqlType) -> float:
    if isinstance(value, str):
        if _NAMED_FLOAT.fullmatch(value):
            return float(value)
        if not _FLOAT.fullmatch(value):
            raise ValueError(value)
        value = Decimal(value.rstrip("dDfF"))
    return to_float32(value) if target.name == "FLOAT" else float(value)


def to_float32(number: int | float | Decimal) -> float:
    """Return a number as a FLOAT, rounded once.

    The DOUBLE on the way may look like a tie that the number is not: its last bit is set to tell the two apart.
    """
    double = float(number)
    if not isinstance(number, float) and double and math.isfinite(double):
        error = Fraction(number) - Fraction(double)
        if error and not struct.unpack("<q", struct.pack("<d", double))[0] & 1:
            double = math.nextafter(double, math.copysign(math.inf, error))
    with np.errstate(over="ignore"):
        return float(np.float32(double))


def _to_boolean(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value != 0)
    text = value.lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(value)
    return text in _TRUE


def _to_timestamp(value: Any, source: SqlType, target: SqlType) -> int:
    if isinstance(value, str):
        return parse_timestamp(value, target.zone)
    if source.is_numeric:
        return int(Fraction(value) * 1_000_000 if source.is_exact else value * 1e6)
    if source.name == "TIMESTAMP":
        return localised(value, source.zone)  # to TIMESTAMP_NTZ: the wall clock
    return unlocalised(value * US_PER_DAY if source.name == "DATE" else value, target.zone)


def to_string(value: Any, source: SqlType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_float(value, source)
    if source.name == "DATE":
        return date_of(value).isoformat()
    if source.is_timestamp:
        return timestamp_text(value, source.zone)
    if isinstance(value, bytes):
        return value.decode()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _java_float(value: float, source: SqlType) -> str:
    """Return the shortest digits that round-trip, laid out as Java's `Double.toString` does."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    shortest = Decimal(str(np.float32(value)) if source.name == "FLOAT" else repr(value)).normalize()
    sign, digits, _ = shortest.as_tuple()
    text, exponent = "".join(map(str, digits)), shortest.adjusted()
    if -3 <= exponent < 7:
        plain = format(shortest, "f")
        return plain if "." in plain else plain + ".0"
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{exponent}"
