"""Typed expressions: what a predicate is after its columns are found and its types agree.

Three kinds of node suffice. Every implicit conversion is an explicit `cast` call by then, so that an
evaluator never has to know the widening rules.

Values, wherever a single row is computed: integers are `int` (exact, of any size), DECIMAL is
`decimal.Decimal`, FLOAT and DOUBLE are `float`, STRING `str`, BINARY `bytes`, BOOLEAN `bool`, DATE the day
number since 1970, TIMESTAMP and INTERVAL microseconds as `int`, NULL is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

from counterflow.spec.types import SqlType
from counterflow.spec.wall_clock import date_of, timestamp_text

Side = OneOf["left", "right"]


def opposite(side: Side) -> Side:
    return "right" if side == "left" else "left"


@dataclass(frozen=True)
class Column:
    side: Side
    name: str
    type: SqlType

    def __str__(self) -> str:
        name = self.name if self.name.isidentifier() else f"`{self.name}`"
        return f"{self.side[0]}.{name}"


@dataclass(frozen=True)
class Literal:
    value: Any
    type: SqlType

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        if self.type.name == "STRING":
            return "'" + self.value.replace("'", "\\'") + "'"
        if self.type.name == "DATE":
            return f"DATE '{date_of(self.value)}'"
        if self.type.is_timestamp:
            return f"{self.type.name} '{timestamp_text(self.value, self.type.zone)}'"
        if self.type.name.startswith("INTERVAL"):
            return f"INTERVAL {self.value / 1_000_000:g} SECONDS"
        return str(self.value).lower() if self.type.name == "BOOLEAN" else str(self.value)


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
    """The operands of the outermost AND, left to right."""
    if isinstance(expression, Call) and expression.op == "and":
        return [c for arg in expression.args for c in conjuncts_of(arg)]
    return [expression]
