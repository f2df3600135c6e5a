"""Functions of numbers, on one row (Spark's meaning)."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np

from counterflow.predicate.casts import EXACT
from counterflow.predicate.great_circle import haversine
from counterflow.predicate.registry import accepts, function, typed_function
from counterflow.predicate.types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    INTERVAL,
    SqlType,
    bounded_decimal,
    decimal_type,
)

BIGINT_MAX = 2**63 - 1


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


def _reciprocal(call: Callable[[float], float]) -> Callable[[float], float]:
    def reciprocal(x: float) -> float:
        value = _real(call)(x)
        return 1.0 / value if value else math.copysign(math.inf, value)

    return reciprocal


def logarithm(base: float, x: float | None = None) -> float | None:
    """Return log(base, x), or log(x) of one argument alone: NULL where one is not positive."""
    if x is None:
        base, x = math.e, base
    if base <= 0.0 or x <= 0.0:
        return None
    if base == math.e:
        return _real(math.log)(x)
    above, below = _real(math.log)(x), _real(math.log)(base)
    return above / below if below else above * math.inf  # 0 * inf is NaN, as 0 / 0 in Java


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
    "ln": _log(math.log, 0.0),
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
    "asinh": _real(math.asinh),
    "acosh": _real(math.acosh),
    "atanh": lambda x: math.copysign(math.inf, x) if abs(x) == 1 else _real(math.atanh)(x),
    "cot": _reciprocal(math.tan),
    "sec": _reciprocal(math.cos),
    "csc": _reciprocal(math.sin),
    "rint": lambda x: float(np.rint(x)),
    "radians": math.radians,
    "degrees": math.degrees,
    "sign signum": sign,
}
for _names, _scalar in _REALS.items():
    function(_names, DOUBLE, returns=DOUBLE)(_scalar)
function("pow power", DOUBLE, DOUBLE, returns=DOUBLE)(power)
function("atan2", DOUBLE, DOUBLE, returns=DOUBLE)(lambda y, x: math.atan2(y + 0.0, x + 0.0))  # -0.0 is 0.0, as in Spark
function("hypot", DOUBLE, DOUBLE, returns=DOUBLE)(lambda x, y: float(np.hypot(x, y)))  # C's, as in compiled code
function("haversine", DOUBLE, DOUBLE, DOUBLE, DOUBLE, returns=DOUBLE)(haversine)
function("log", DOUBLE, DOUBLE, returns=DOUBLE, optional=1)(logarithm)
function("pi", returns=DOUBLE)(lambda: math.pi)
function("e", returns=DOUBLE)(lambda: math.e)
function("isnan", DOUBLE, returns=BOOLEAN)(math.isnan)


# --- numbers of any type


def _same_number(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    kept = given[0] if given[0].name != "NULL" else DOUBLE
    return ((kept,), kept) if kept.is_numeric or kept == INTERVAL else None


def _whole(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    if given[0].is_decimal:
        return given, bounded_decimal(given[0].precision - given[0].scale + 1, 0)
    if given[0].is_integer:
        return given, BIGINT
    return ((DOUBLE,), BIGINT) if accepts(DOUBLE, given[0]) else None


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


def _to_places(how: str) -> Callable[..., Any]:
    """Return what rounds to a number of digits after the point, or before it."""

    def rounded(x: Any, places: int = 0) -> Any:
        if isinstance(x, float):
            return x if not math.isfinite(x) else float(_round_digits(Decimal(repr(x)), places, how))
        return _round_digits(x, places, how) if isinstance(x, Decimal) else int(_round_digits(Decimal(x), places, how))

    return rounded


def _round_digits(x: Decimal, places: int, how: str) -> Decimal:
    if places >= -int(x.as_tuple().exponent):
        return x
    rounded = x.quantize(Decimal(1).scaleb(-places), how, EXACT)
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


typed_function("abs", (1, 1), _same_number, "(number) -> number")(
    lambda x: x.copy_abs() if isinstance(x, Decimal) else abs(x)  # Python's abs would round to 28 digits
)
typed_function("floor", (1, 1), _whole, "(number) -> BIGINT")(_to_whole(math.floor))
typed_function("ceil ceiling", (1, 1), _whole, "(number) -> BIGINT")(_to_whole(math.ceil))
typed_function("round", (1, 2), _rounded, "(number[, places]) -> number")(_to_places(ROUND_HALF_UP))
typed_function("bround", (1, 2), _rounded, "(number[, places]) -> number")(_to_places(ROUND_HALF_EVEN))


def width_bucket(value: float, low: float, high: float, buckets: int) -> int | None:
    """Return in which of the equal parts of an interval a value is; its ends may be given in falling order."""
    if not 0 < buckets < BIGINT_MAX or math.isnan(value) or not (math.isfinite(low) and math.isfinite(high)):
        return None
    if low == high:
        return None
    if value < low if low < high else value > low:
        return 0
    if value >= high if low < high else value <= high:
        return buckets + 1
    share = buckets * abs(value - low) / abs(high - low)
    return 1 if math.isnan(share) else int(share) + 1


function("width_bucket", DOUBLE, DOUBLE, DOUBLE, BIGINT, returns=BIGINT)(width_bucket)
function("factorial", INT, returns=BIGINT)(lambda n: math.factorial(n) if 0 <= n <= 20 else None)


# --- bits


def _countable(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    kept = given[0] if given[0].name != "NULL" else INT
    return ((kept,), INT) if kept.is_integer or kept == BOOLEAN else None


def _shifted_type(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    kept = BIGINT if given[0] == BIGINT else INT
    return ((kept, INT), kept) if all(t.is_integer or t.name == "NULL" for t in given) else None


def _bit_position(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    fits = all(t.is_integer or t.name == "NULL" for t in given)
    return ((given[0] if given[0].name != "NULL" else INT, INT), SqlType("TINYINT")) if fits else None


def _in_bits(x: int, bits: int) -> int:
    """Return an integer, which must be one of so many bits: of wider ones these would be other bits."""
    if not -(1 << bits - 1) <= x < 1 << bits - 1:
        raise OverflowError(f"it has more than {bits} bits")
    return x


def shift_left(x: int, places: int, bits: int) -> int:
    moved = _in_bits(x, bits) << places % bits & (1 << bits) - 1
    return moved - (1 << bits) if moved >> bits - 1 else moved


def shift_right_unsigned(x: int, places: int, bits: int) -> int:
    moved = (_in_bits(x, bits) & (1 << bits) - 1) >> places % bits
    return moved - (1 << bits) if moved >> bits - 1 else moved


def bit_get(x: int, position: int, bits: int) -> int:
    if not 0 <= position < bits:
        raise ValueError(f"the bits are those from 0 to {bits - 1}")
    return _in_bits(x, bits) >> position & 1


typed_function("bit_count", (1, 1), _countable, "(BIGINT) -> INT")(
    lambda x: (_in_bits(x, 64) & (1 << 64) - 1).bit_count()
)
# The form adds how many bits the first argument's type has.
for _name, _shift in {
    "shiftleft": shift_left,
    "shiftright": lambda x, places, bits: _in_bits(x, bits) >> places % bits,
    "shiftrightunsigned": shift_right_unsigned,
}.items():
    typed_function(_name, (2, 2), _shifted_type, "(BIGINT, INT) -> BIGINT")(_shift)
typed_function("bit_get getbit", (2, 2), _bit_position, "(BIGINT, INT) -> TINYINT")(bit_get)
