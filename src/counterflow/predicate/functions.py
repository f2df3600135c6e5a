"""The functions a predicate may call: their types, and their meaning on one row (Spark's meaning).

A function sees no NULL: any NULL argument makes the result NULL. What treats NULL specially (`coalesce`,
`least`, `if`, ...) is an operator of the evaluators instead.
"""

from __future__ import annotations

import calendar
import functools
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np

from counterflow.errors import EvaluationError
from counterflow.predicate.casts import EXACT
from counterflow.predicate.great_circle import haversine
from counterflow.predicate.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    INTERVAL,
    STRING,
    TIMESTAMP,
    SqlType,
    bounded_decimal,
    decimal_type,
)
from counterflow.predicate.wall_clock import date_of

# From the arguments' types to those that they are converted to, and the result's; None if they do not fit.
Signature = Callable[[tuple[SqlType, ...]], "tuple[tuple[SqlType, ...], SqlType] | None"]


@dataclass(frozen=True)
class Function:
    """A function that predicates may call: `scalar` computes it on one row, `usage` is shown where it does not fit."""

    arity: tuple[int, int]
    signature: Signature
    scalar: Callable[..., Any]
    usage: str


FUNCTIONS: dict[str, Function] = {}
TEXT_MAX = 1 << 24  # characters that repeat, lpad and rpad may make: a wrong number must not fill the memory


def call_function(name: str, *args: Any) -> Any:
    """Return a function's value on one row. Raises an EvaluationError if it has none."""
    try:
        return FUNCTIONS[name].scalar(*args)
    except (ValueError, ArithmeticError, re.error, FutureWarning) as error:
        raise EvaluationError(f"{name}({', '.join(map(repr, args))}) has no value: {error}") from error


def _function(names: str, *params: SqlType, returns: SqlType, optional: int = 0) -> Callable[[Callable], Callable]:
    """Register a function with fixed parameter types; numbers convert to DOUBLE, dates and timestamps freely."""

    def signature(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
        targets = [_accepts(param, type_) for param, type_ in zip(params, given, strict=False)]
        if any(target is None for target in targets):
            return None
        return tuple(t for t in targets if t is not None), returns

    return _typed_function(names, (len(params) - optional, len(params)), signature, _usage(params, returns))


def _typed_function(
    names: str, arity: tuple[int, int], signature: Signature, usage: str
) -> Callable[[Callable], Callable]:
    def register(scalar: Callable) -> Callable:
        for name in names.split():
            FUNCTIONS[name] = Function(arity, signature, scalar, usage)
        return scalar

    return register


def _usage(params: tuple[SqlType, ...], returns: SqlType) -> str:
    return f"({', '.join(map(str, params))}) -> {returns}"


def _accepts(param: SqlType, given: SqlType) -> SqlType | None:
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


# --- real functions: DOUBLE in, DOUBLE out; outside their domain NaN, too large is infinite, as in Java


def _real(call: Callable[..., float]) -> Callable[..., float]:
    def guarded(*args: float) -> float:
        try:
            return float(call(*args))
        except ValueError:
            return math.nan
        except OverflowError:
            return math.copysign(math.inf, args[0]) if call is math.sinh else math.inf

    return guarded


def _log(call: Callable[[float], float], lower: float) -> Callable[[float], float | None]:
    return lambda x: None if x <= lower else _real(call)(x)  # Spark: NULL outside the domain


def power(x: float, y: float) -> float:
    if y == 2.0:
        return x * x  # exactly rounded, as the JVM computes it
    if math.isnan(y) or (abs(x) == 1 and math.isinf(y)):
        return math.nan  # Java's rule; in C it is 1
    try:
        return math.pow(x, y)
    except ValueError:
        return math.copysign(math.inf, x) if x == 0 and y % 2 == 1 else (math.inf if x == 0 else math.nan)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf


def sign(x: float) -> float:
    return x if math.isnan(x) or x == 0 else math.copysign(1.0, x)


_REALS: dict[str, Callable] = {
    "sqrt": _real(math.sqrt),
    "cbrt": _real(math.cbrt),
    "exp": _real(math.exp),
    "expm1": _real(math.expm1),
    "ln log": _log(math.log, 0.0),
    "log10": _log(math.log10, 0.0),
    "log2": _log(math.log2, 0.0),
    "log1p": _log(math.log1p, -1.0),
    "sin": _real(math.sin),
    "cos": _real(math.cos),
    "tan": _real(math.tan),
    "asin": _real(math.asin),
    "acos": _real(math.acos),
    "atan": _real(math.atan),
    "sinh": _real(math.sinh),
    "cosh": _real(math.cosh),
    "tanh": _real(math.tanh),
    "radians": math.radians,
    "degrees": math.degrees,
    "sign signum": sign,
}
for _names, _scalar in _REALS.items():
    _function(_names, DOUBLE, returns=DOUBLE)(_scalar)
_function("pow power", DOUBLE, DOUBLE, returns=DOUBLE)(power)
_function("atan2", DOUBLE, DOUBLE, returns=DOUBLE)(math.atan2)
_function("hypot", DOUBLE, DOUBLE, returns=DOUBLE)(lambda x, y: float(np.hypot(x, y)))  # C's, as in compiled code
_function("haversine", DOUBLE, DOUBLE, DOUBLE, DOUBLE, returns=DOUBLE)(haversine)
_function("pi", returns=DOUBLE)(lambda: math.pi)
_function("isnan", DOUBLE, returns=BOOLEAN)(math.isnan)


# --- numbers of any type


def _same_number(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    kept = given[0] if given[0].name != "NULL" else DOUBLE
    return ((kept,), kept) if kept.is_numeric or kept == INTERVAL else None


def _whole(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    if given[0].is_decimal:
        return given, bounded_decimal(given[0].precision - given[0].scale + 1, 0)
    if given[0].is_integer:
        return given, BIGINT
    return ((DOUBLE,), BIGINT) if _accepts(DOUBLE, given[0]) else None


def rounded_type(type_: SqlType, places: int) -> SqlType:
    """Return the type of `round(x, places)`: a DECIMAL keeps the digits that are left, and one more for the carry."""
    if not type_.is_decimal:
        return type_
    whole, scale = type_.precision - type_.scale + 1, min(type_.scale, max(places, 0))
    return decimal_type(min(max(whole, 1 - places) + scale, 38), scale)


def _rounded(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    if not given[0].is_numeric or not all(t.is_integer for t in given[1:]):
        return None
    return given, rounded_type(given[0], 0)  # the binder knows the places, and the exact type


def round_half_up(x: Any, places: int = 0) -> Any:
    if isinstance(x, float):
        return x if not math.isfinite(x) else float(_round_digits(Decimal(repr(x)), places))
    return _round_digits(x, places) if isinstance(x, Decimal) else int(_round_digits(Decimal(x), places))


def _round_digits(x: Decimal, places: int) -> Decimal:
    if places >= -int(x.as_tuple().exponent):
        return x
    rounded = x.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, EXACT)
    return rounded if rounded else rounded.copy_abs()  # a DECIMAL has no negative zero


def _to_whole(towards: Callable[[Any], int]) -> Callable[[Any], Any]:
    def whole(x: Any) -> Any:
        if isinstance(x, Decimal):
            return Decimal(towards(x))
        if isinstance(x, float) and math.isnan(x):
            return 0  # as in Java
        number = towards(x)  # an infinite x is an OverflowError
        if isinstance(x, float) and not -(2**63) <= number < 2**63:
            raise OverflowError("it does not fit a BIGINT")
        return number

    return whole


_typed_function("abs", (1, 1), _same_number, "(number) -> number")(
    lambda x: x.copy_abs() if isinstance(x, Decimal) else abs(x)  # Python's abs would round to 28 digits
)
_typed_function("floor", (1, 1), _whole, "(number) -> BIGINT")(_to_whole(math.floor))
_typed_function("ceil ceiling", (1, 1), _whole, "(number) -> BIGINT")(_to_whole(math.ceil))
_typed_function("round", (1, 2), _rounded, "(number[, places]) -> number")(round_half_up)


# --- strings


def substring(s: str, start: int, length: int = 2**31 - 1) -> str:
    begin = start - 1 if start > 0 else (len(s) + start if start < 0 else 0)
    end = begin + max(length, 0)
    return s[max(begin, 0) : max(end, 0)]


def _repeated(s: str, n: int) -> str:
    _check_length(len(s) * n)
    return s * max(n, 0)


def _check_length(characters: int) -> None:
    if characters > TEXT_MAX:
        raise ValueError(f"it would have {characters:,} characters, more than {TEXT_MAX:,}")


def _pad(s: str, width: int, fill: str, *, left: bool) -> str:
    if width <= len(s) or not fill:
        return s[: max(width, 0)]
    _check_length(width)
    padding = (fill * (width - len(s)))[: width - len(s)]
    return padding + s if left else s + padding


def levenshtein(a: str, b: str) -> int:
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def like(s: str, pattern: str, escape: str = "\\") -> bool:
    return like_regex(pattern, escape).fullmatch(s) is not None


@functools.lru_cache(1000)
def like_regex(pattern: str, escape: str) -> re.Pattern[str]:
    if len(escape) != 1:
        raise ValueError(f"ESCAPE needs one character, not {escape!r}")
    parts, chars = [], iter(pattern)
    for c in chars:
        if c == escape:
            c = next(chars, "")
            if c not in ("%", "_", escape):
                raise ValueError(f"in a pattern the escape character {escape} comes only before %, _ or itself")
            parts.append(re.escape(c))
        else:
            parts.append({"%": ".*", "_": "."}.get(c) or re.escape(c))
    return re.compile("".join(parts), re.DOTALL)


@functools.lru_cache(1000)
def java_regex(pattern: str) -> re.Pattern[str]:
    """Return a Java pattern as Python's. Raises a ValueError or FutureWarning for what the two read differently."""
    if re.search(r"(?<!\\)(\\\\)*\\[vZ]", pattern):
        raise ValueError("\\v and \\Z are not supported in a pattern")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # sets in sets: Python takes the brackets literally
        return re.compile(pattern, re.ASCII)


def _concat(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    if any(t not in (STRING,) and t.name != "NULL" for t in given):
        return None
    return tuple(STRING for _ in given), STRING


_function("upper ucase", STRING, returns=STRING)(str.upper)
_function("lower lcase", STRING, returns=STRING)(str.lower)
_function("length len char_length character_length", STRING, returns=INT)(len)
_function("trim", STRING, returns=STRING)(lambda s: s.strip(" "))
_function("ltrim", STRING, returns=STRING)(lambda s: s.lstrip(" "))
_function("rtrim", STRING, returns=STRING)(lambda s: s.rstrip(" "))
_function("reverse", STRING, returns=STRING)(lambda s: s[::-1])
_function("substring substr", STRING, INT, INT, returns=STRING, optional=1)(substring)
_function("left", STRING, INT, returns=STRING)(lambda s, n: s[: max(n, 0)])
_function("right", STRING, INT, returns=STRING)(lambda s, n: s[-n:] if n > 0 else "")
_function("replace", STRING, STRING, STRING, returns=STRING, optional=1)(
    lambda s, old, new="": s.replace(old, new) if old else s
)
_function("repeat", STRING, INT, returns=STRING)(_repeated)
_function("lpad", STRING, INT, STRING, returns=STRING, optional=1)(lambda s, n, f=" ": _pad(s, n, f, left=True))
_function("rpad", STRING, INT, STRING, returns=STRING, optional=1)(lambda s, n, f=" ": _pad(s, n, f, left=False))
_function("startswith", STRING, STRING, returns=BOOLEAN)(str.startswith)
_function("endswith", STRING, STRING, returns=BOOLEAN)(str.endswith)
_function("contains", STRING, STRING, returns=BOOLEAN)(lambda s, part: part in s)
_function("instr", STRING, STRING, returns=INT)(lambda s, part: s.find(part) + 1)
_function("levenshtein", STRING, STRING, returns=INT)(levenshtein)
_function("like", STRING, STRING, STRING, returns=BOOLEAN, optional=1)(like)
_function("ilike", STRING, STRING, STRING, returns=BOOLEAN, optional=1)(
    lambda s, pattern, escape="\\": like(s.lower(), pattern.lower(), escape)
)
_function("rlike regexp regexp_like", STRING, STRING, returns=BOOLEAN)(
    lambda s, pattern: java_regex(pattern).search(s) is not None
)
_typed_function("concat", (1, 99), _concat, "(STRING, ...) -> STRING")(lambda *parts: "".join(parts))


# --- dates and timestamps


def date_part(unit: str, days: int) -> int:
    date = date_of(days)
    match unit:
        case "quarter":
            return (date.month + 2) // 3
        case "dayofweek":
            return date.isoweekday() % 7 + 1
        case "dayofyear":
            return date.timetuple().tm_yday
        case "weekday":
            return date.weekday()
        case "weekofyear":
            return date.isocalendar().week
        case "last_day":
            return days - date.day + calendar.monthrange(date.year, date.month)[1]
    return int(getattr(date, unit))


for _name, _unit in {
    "year": "year",
    "month": "month",
    "day": "day",
    "dayofmonth": "day",
    "quarter": "quarter",
    "dayofweek": "dayofweek",
    "dayofyear": "dayofyear",
    "weekday": "weekday",
    "weekofyear": "weekofyear",
}.items():
    _function(_name, DATE, returns=INT)(lambda days, unit=_unit: date_part(unit, days))
_function("last_day", DATE, returns=DATE)(lambda days: date_part("last_day", days))
_function("date_add dateadd", DATE, INT, returns=DATE)(lambda days, n: days + n)
_function("date_sub", DATE, INT, returns=DATE)(lambda days, n: days - n)
_function("datediff date_diff", DATE, DATE, returns=INT)(lambda end, start: end - start)
# These read the wall clock: the binder hands them microseconds local to the timestamp's zone.
_function("hour", TIMESTAMP, returns=INT)(lambda us: us // 3_600_000_000 % 24)
_function("minute", TIMESTAMP, returns=INT)(lambda us: us // 60_000_000 % 60)
_function("second", TIMESTAMP, returns=INT)(lambda us: us // 1_000_000 % 60)
_function("extract_second", TIMESTAMP, returns=decimal_type(8, 6))(lambda us: Decimal(us % 60_000_000).scaleb(-6))
_function("unix_seconds", TIMESTAMP, returns=BIGINT)(lambda us: us // 1_000_000)
_function("unix_timestamp", TIMESTAMP, returns=BIGINT)(
    lambda us: us // 1_000_000 if us >= 0 else -(-us // 1_000_000)  # towards zero, unlike unix_seconds
)
_function("unix_millis", TIMESTAMP, returns=BIGINT)(lambda us: us // 1_000)
_function("unix_micros", TIMESTAMP, returns=BIGINT)(lambda us: us)
_function("timestamp_seconds", BIGINT, returns=TIMESTAMP)(lambda n: n * 1_000_000)
_function("timestamp_millis", BIGINT, returns=TIMESTAMP)(lambda n: n * 1_000)
_function("timestamp_micros", BIGINT, returns=TIMESTAMP)(lambda n: n)

WALL_CLOCK_FUNCTIONS = {"hour", "minute", "second", "extract_second"}
