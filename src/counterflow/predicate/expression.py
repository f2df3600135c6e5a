"""Typed expressions: what a predicate is after its columns are found and its types agree.

Three kinds of node suffice. Every implicit conversion has become an explicit `cast` call, so that no evaluator has
to know the widening rules.

Values, wherever a single row is computed: integers are `int` (exact, of any size), DECIMAL is
`decimal.Decimal`, FLOAT and DOUBLE are `float`, STRING `str`, BINARY `bytes`, BOOLEAN `bool`, DATE the day
number since 1970, TIMESTAMP and INTERVAL microseconds as `int`, NULL is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Any
from typing import Literal as OneOf

from counterflow.predicate.types import SqlType
from counterflow.predicate.wall_clock import UTC_NAMES, date_of, timestamp_text

Side = OneOf["left", "right"]
SIDES: tuple[Side, Side] = ("left", "right")


def opposite(side: Side) -> Side:
    return "right" if side == "left" else "left"


def quoted(name: str) -> str:
    """Return a column's name as SQL writes it: two names that differ are two texts."""
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Column:
    """A column of one side, by the name that its input has."""

    side: Side
    name: str
    type: SqlType

    def __str__(self) -> str:
        return f"{self.side[0]}.{quoted(self.name)}"


@dataclass(frozen=True, eq=False)
class Literal:
    """A constant. Two are equal if they cannot be told apart: 0.0 and -0.0 are two, though Python says 0.0 == -0.0."""

    value: Any
    type: SqlType

    @property
    def _identity(self) -> tuple[SqlType, str]:
        return self.type, repr(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __str__(self) -> str:
        """Return it exactly, with its type: a checkpoint knows a join by the text of its predicate."""
        if self.value is None:
            return "NULL" if self.type.name == "NULL" else f"cast(NULL AS {self.type})"
        return _WRITERS[self.type.name](self.value, self.type)


def _decimal_text(value: Decimal, type_: SqlType) -> str:
    digits, scale = value.as_tuple().digits, type_.scale
    text = f"{value:f}" if scale else f"{value:f}BD"
    own = scale == -int(value.as_tuple().exponent) and type_.precision == max(len(digits), scale)
    return text if own else f"cast({text} AS {type_})"


def _float_text(value: float, type_: SqlType) -> str:
    if not isfinite(value):
        return f"{type_.name.lower()}('{value}')"
    text = repr(value)
    return text if "e" in text and type_.name == "DOUBLE" else text + type_.name[0]


def _date_text(value: int, type_: SqlType) -> str:
    try:
        return f"DATE '{date_of(value)}'"
    except OverflowError:
        return f"date_add(DATE '1970-01-01', {value})"


def _timestamp_text(value: int, type_: SqlType) -> str:
    """Return it in UTC: where the clock is put back, a wall clock shows two moments alike."""
    try:
        return f"{type_.name} '{timestamp_text(value, None)}{'' if type_.zone in UTC_NAMES else 'Z'}'"
    except OverflowError:
        return f"cast(timestamp_micros({value}) AS {type_})"


def _interval_text(value: int, type_: SqlType) -> str:
    seconds, fraction = divmod(abs(value), 1_000_000)
    text = f"{seconds}.{fraction:06}".rstrip("0") if fraction else f"{seconds}"
    return f"INTERVAL {'-' * (value < 0)}{text} SECONDS"


_WRITERS: dict[str, Callable[[Any, SqlType], str]] = {
    "BOOLEAN": lambda value, _: str(value).lower(),
    "TINYINT": lambda value, _: f"{value}Y",
    "SMALLINT": lambda value, _: f"{value}S",
    "INT": lambda value, _: str(value),
    "BIGINT": lambda value, _: f"{value}L",
    "FLOAT": _float_text,
    "DOUBLE": _float_text,
    "DECIMAL": _decimal_text,
    "STRING": lambda value, _: "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'",
    "BINARY": lambda value, _: f"X'{value.hex().upper()}'",
    "DATE": _date_text,
    "TIMESTAMP": _timestamp_text,
    "TIMESTAMP_NTZ": _timestamp_text,
    "INTERVAL DAY TO SECOND": _interval_text,
}


@dataclass(frozen=True)
class Call:
    """An operator or function. `op` is the SQL symbol (`+`, `and`, `<=>`) or the function's name."""

    op: str
    args: tuple[Expression, ...]
    type: SqlType

    def __str__(self) -> str:
        args = [str(a) for a in self.args]
        if self.op in ("cast", "try_cast"):
            return f"{self.op}({args[0]} AS {self.type})"
        if self.op in INFIX:
            return "(" + f" {self.op.upper()} ".join(args) + ")"
        if self.op == "in":
            return f"({args[0]} IN ({', '.join(args[1:])}))"
        return f"{self.op}({', '.join(args)})"


Expression = Column | Literal | Call

INFIX = {"and", "or", "=", "<=>", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "div", "&", "|", "^"}
COMPARISONS = {"=", "<=>", "<>", "<", "<=", ">", ">="}


def columns_of(expression: Expression) -> Iterator[Column]:
    if isinstance(expression, Column):
        yield expression
    elif isinstance(expression, Call):
        for arg in expression.args:
            yield from columns_of(arg)


def sides_of(expression: Expression) -> set[Side]:
    return {column.side for column in columns_of(expression)}


def conjuncts_of(expression: Expression) -> list[Expression]:
    """Return the operands of the outermost AND, left to right."""
    if isinstance(expression, Call) and expression.op == "and":
        return [c for arg in expression.args for c in conjuncts_of(arg)]
    return [expression]
