"""CAST on one row, with Spark's ANSI meaning: what does not fit is an error, never another value."""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from counterflow.errors import EvaluationError
from counterflow.spec.functions import EPOCH, US_PER_DAY, date_of, localised, unlocalised
from counterflow.spec.types import SqlType, integer_range

EXACT = Context(prec=200)  # wide enough that no DECIMAL operation of 38-digit operands is ever rounded by it

_TRUE = {"t", "true", "y", "yes", "1"}
_FALSE = {"f", "false", "n", "no", "0"}


def castable(source: SqlType, target: SqlType) -> bool:
    """Whether Spark allows the CAST at all."""
    kinds = (_kind(source), _kind(target))
    return source.name in ("NULL", target.name) or kinds in _ALLOWED


def _kind(type_: SqlType) -> str:
    if type_.is_numeric:
        return "number"
    return {"DATE": "time", "TIMESTAMP": "time", "TIMESTAMP_NTZ": "time"}.get(type_.name, type_.name)


_ALLOWED = {
    ("number", "number"),
    ("number", "BOOLEAN"),
    ("BOOLEAN", "number"),
    ("number", "STRING"),
    ("STRING", "number"),
    ("BOOLEAN", "STRING"),
    ("STRING", "BOOLEAN"),
    ("time", "time"),
    ("time", "STRING"),
    ("STRING", "time"),
    ("STRING", "BINARY"),
    ("BINARY", "STRING"),
}


def cast_value(value: Any, source: SqlType, target: SqlType) -> Any:
    if value is None or source == target:
        return value
    try:
        return _cast(value, source, target)
    except (ValueError, OverflowError, InvalidOperation) as error:
        raise EvaluationError(
            f"cannot cast {value!r} ({source}) to {target}; use TRY_CAST to get NULL instead of this error"
        ) from error


def _cast(value: Any, source: SqlType, target: SqlType) -> Any:
    if target.is_integer:
        return _to_integer(value, source, target)
    if target.is_decimal:
        return to_decimal(Decimal(value.strip() if isinstance(value, str) else _exact(value)), target)
    if target.is_float:
        number = _parse_float(value) if isinstance(value, str) else float(value)
        return round_to_float32(number) if target.name == "FLOAT" else number
    match target.name:
        case "BOOLEAN":
            return _to_boolean(value)
        case "STRING":
            return to_string(value, source)
        case "BINARY":
            return value.encode()
        case "DATE":
            return _to_date(value, source)
        case _:
            return _to_timestamp(value, source, target)


def _exact(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value


def _to_integer(value: Any, source: SqlType, target: SqlType) -> int:
    if isinstance(value, str):
        text = value.strip()
        if not re.fullmatch(r"[+-]?\d+", text):
            raise ValueError(text)
        number = int(text)
    elif isinstance(value, float) and not math.isfinite(value):
        raise OverflowError(value)
    else:
        number = int(value)  # truncates, as Java does
    low, high = integer_range(target)
    if not low <= number <= high:
        raise OverflowError(number)
    return number


def to_decimal(number: Decimal, target: SqlType) -> Decimal:
    """Round half up to the target's scale. More digits than 38 before the point is an error."""
    if not number.is_finite():
        raise OverflowError(number)
    rounded = number.quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP, EXACT)
    if rounded and rounded.adjusted() >= target.precision - target.scale:
        raise OverflowError(number)
    return rounded


def round_to_float32(number: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def _parse_float(text: str) -> float:
    named = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "+inf": math.inf, "+infinity": math.inf}
    named |= {"-inf": -math.inf, "-infinity": -math.inf}
    text = text.strip().lower()
    if text in named:
        return named[text]
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?", text):
        raise ValueError(text)
    return float(text.rstrip("df"))


def _to_boolean(value: Any) -> bool:
    if not isinstance(value, str):
        return value != 0
    text = value.strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(value)
    return text in _TRUE


def to_string(value: Any, source: SqlType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_float(value, source)
    if source.name == "DATE":
        return date_of(value).isoformat()
    if source.is_timestamp:
        wall = EPOCH + dt.timedelta(microseconds=localised(value, source.zone))
        text = wall.isoformat(sep=" ")
        return text.rstrip("0") if wall.microsecond else text
    if isinstance(value, bytes):
        return value.decode()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _java_float(value: float, source: SqlType) -> str:
    """The shortest digits that round-trip, laid out as `Double.toString` does."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if source.name == "FLOAT":
        import numpy as np

        shortest = Decimal(str(np.float32(value)))
    else:
        shortest = Decimal(repr(value))
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, _ = shortest.normalize().as_tuple()
    text, exponent = "".join(map(str, digits)), shortest.adjusted()
    if -3 <= exponent < 7:
        plain = format(shortest.normalize(), "f")
        return plain if "." in plain else plain + ".0"
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{exponent}"


def _to_date(value: Any, source: SqlType) -> int:
    if isinstance(value, str):
        return (dt.date.fromisoformat(_padded_date(value.strip()[:10])) - dt.date(1970, 1, 1)).days
    return localised(value, source.zone) // US_PER_DAY


def _to_timestamp(value: Any, source: SqlType, target: SqlType) -> int:
    if source.name == "DATE":
        return unlocalised(value * US_PER_DAY, target.zone)
    if source.name == "TIMESTAMP":
        return localised(value, source.zone)  # to TIMESTAMP_NTZ: the wall clock
    if source.name == "TIMESTAMP_NTZ":
        return unlocalised(value, target.zone)
    text = value.strip()
    if len(text) <= 10:
        text = _padded_date(text)
    parsed = dt.datetime.fromisoformat(text)
    us = (parsed.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)
    if parsed.tzinfo is None:
        return unlocalised(us, target.zone)
    offset = parsed.utcoffset()
    assert offset is not None
    return us - offset // dt.timedelta(microseconds=1) if target.name == "TIMESTAMP" else us


def _padded_date(text: str) -> str:
    """`2024`, `2024-3` and `2024-3-1` are dates for Spark."""
    parts = text.split("-") if not text.startswith("-") else [text]
    parts += ["1"] * (3 - len(parts))
    return f"{parts[0]:0>4}-{parts[1]:0>2}-{parts[2]:0>2}"
