"""The types that a predicate computes with, and Spark's rules for widening them.

Arrow types map to the types that Spark gives the same data: an unsigned integer becomes the next wider
signed type (as Spark's Parquet reader does), `uint64` becomes DECIMAL(20,0). Widening follows Spark 4's
default (ANSI) rules; in particular an integer meets a FLOAT in DOUBLE.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

DECIMAL_PRECISION_MAX = 38


@dataclass(frozen=True)
class SqlType:
    """A scalar SQL type. `zone` is the time zone in which a TIMESTAMP is read by `hour`, `date` and the like."""

    name: str
    precision: int = 0
    scale: int = 0
    zone: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})" if self.is_decimal else self.name

    @property
    def is_integer(self) -> bool:
        return self.name in INTEGER_BITS

    @property
    def is_decimal(self) -> bool:
        return self.name == "DECIMAL"

    @property
    def is_float(self) -> bool:
        return self.name in ("FLOAT", "DOUBLE")

    @property
    def is_exact(self) -> bool:
        return self.is_integer or self.is_decimal

    @property
    def is_numeric(self) -> bool:
        return self.is_exact or self.is_float

    @property
    def is_timestamp(self) -> bool:
        return self.name in ("TIMESTAMP", "TIMESTAMP_NTZ")

    @property
    def is_time(self) -> bool:
        return self.is_timestamp or self.name == "DATE"


INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
INTEGER_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}

NULL = SqlType("NULL")
BOOLEAN = SqlType("BOOLEAN")
INT = SqlType("INT")
BIGINT = SqlType("BIGINT")
FLOAT = SqlType("FLOAT")
DOUBLE = SqlType("DOUBLE")
STRING = SqlType("STRING")
BINARY = SqlType("BINARY")
DATE = SqlType("DATE")
TIMESTAMP = SqlType("TIMESTAMP", zone="UTC")
TIMESTAMP_NTZ = SqlType("TIMESTAMP_NTZ")
INTERVAL = SqlType("INTERVAL DAY TO SECOND")
ARRAY = SqlType("ARRAY")  # lists of numbers, which only Python functions take


def decimal_type(precision: int, scale: int) -> SqlType:
    return SqlType("DECIMAL", precision, scale)


def integer_range(type_: SqlType) -> tuple[int, int]:
    bits = INTEGER_BITS[type_.name]
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


_FROM_ARROW = {
    pa.null(): NULL,
    pa.bool_(): BOOLEAN,
    pa.int8(): SqlType("TINYINT"),
    pa.int16(): SqlType("SMALLINT"),
    pa.int32(): INT,
    pa.int64(): BIGINT,
    pa.uint8(): SqlType("SMALLINT"),
    pa.uint16(): INT,
    pa.uint32(): BIGINT,
    pa.uint64(): decimal_type(20, 0),
    pa.float16(): FLOAT,
    pa.float32(): FLOAT,
    pa.float64(): DOUBLE,
    pa.string(): STRING,
    pa.large_string(): STRING,
    pa.string_view(): STRING,
    pa.binary(): BINARY,
    pa.large_binary(): BINARY,
    pa.binary_view(): BINARY,
    pa.date32(): DATE,
    pa.date64(): DATE,
}


def from_arrow(type_: pa.DataType) -> SqlType | None:
    """Return the SQL type of an Arrow type; None where a predicate cannot use it (lists, structs, maps, times)."""
    if pa.types.is_dictionary(type_):
        return from_arrow(type_.value_type)
    if pa.types.is_timestamp(type_):
        return TIMESTAMP_NTZ if type_.tz is None else SqlType("TIMESTAMP", zone=type_.tz)
    if pa.types.is_duration(type_):
        return INTERVAL
    if pa.types.is_decimal(type_):
        fits = type_.precision <= DECIMAL_PRECISION_MAX and type_.scale >= 0
        return decimal_type(type_.precision, type_.scale) if fits else None
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        element = type_.value_type
        return ARRAY if pa.types.is_integer(element) or pa.types.is_floating(element) else None
    return _FROM_ARROW.get(type_)


def as_decimal(type_: SqlType) -> SqlType:
    """Return the DECIMAL that holds every value of an exact numeric type."""
    return type_ if type_.is_decimal else decimal_type(INTEGER_DIGITS[type_.name], 0)


def wider(a: SqlType, b: SqlType) -> SqlType | None:
    """Return the common type of two operands (Spark's `AnsiTypeCoercion`), or None where they do not fit."""
    if a == b or b == NULL:
        return a
    if a == NULL:
        return b
    if a.is_integer and b.is_integer:
        return max(a, b, key=lambda t: INTEGER_BITS[t.name])
    if a.is_exact and b.is_exact:
        a, b = as_decimal(a), as_decimal(b)
        whole = max(a.precision - a.scale, b.precision - b.scale)
        scale = min(max(a.scale, b.scale), DECIMAL_PRECISION_MAX - whole)  # the fraction is cut rather than the number
        return decimal_type(whole + scale, scale)
    if a.is_numeric and b.is_numeric:
        return DOUBLE
    if {a.name, b.name} == {"DATE", "TIMESTAMP"}:
        return a if a.is_timestamp else b
    if {a.name, b.name} == {"DATE", "TIMESTAMP_NTZ"}:
        return TIMESTAMP_NTZ
    return None


def bounded_decimal(precision: int, scale: int) -> SqlType:
    """Return a DECIMAL cut to 38 digits as Spark does: the fraction first, but not below 6 digits."""
    if precision <= DECIMAL_PRECISION_MAX:
        return decimal_type(precision, scale)
    whole = precision - scale
    return decimal_type(DECIMAL_PRECISION_MAX, max(DECIMAL_PRECISION_MAX - whole, min(scale, 6)))


def arithmetic_decimal(op: str, a: SqlType, b: SqlType) -> SqlType:
    """Return the type of a DECIMAL operation (Spark's `DecimalPrecision`)."""
    p1, s1, p2, s2 = a.precision, a.scale, b.precision, b.scale
    if op in ("+", "-"):
        scale = max(s1, s2)
        return bounded_decimal(max(p1 - s1, p2 - s2) + scale + 1, scale)
    if op == "*":
        return bounded_decimal(p1 + p2 + 1, s1 + s2)
    if op == "/":
        scale = max(6, s1 + p2 + 1)
        return bounded_decimal(p1 - s1 + s2 + scale, scale)
    scale = max(s1, s2)  # %
    return bounded_decimal(min(p1 - s1, p2 - s2) + scale, scale)
