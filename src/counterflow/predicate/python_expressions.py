"""Predicates as Python expressions: `(cf.left.x - cf.right.a).abs() <= 10`.

An `Expr` only holds the SQL syntax tree it stands for, so both spellings meet in one binder and mean the
same. `str(expr)` is the SQL.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from counterflow.errors import PredicateError


class Expr:
    """A SQL expression under construction. Use `&`, `|`, `~` for AND, OR, NOT.

    >>> import counterflow as cf
    >>> print((cf.left.x + 1 < cf.right.a) | ~(cf.left.k == cf.right.k))
    ((l.x + 1) < r.a) OR (NOT (l.k = r.k))
    """

    def __init__(self, node: Any) -> None:
        self._node = node

    def __str__(self) -> str:
        return self._node.sql(dialect="spark")

    def __repr__(self) -> str:
        return f"<counterflow expression {self}>"

    def __bool__(self) -> bool:
        raise PredicateError(
            f"'{self}' has no truth value in Python: combine conditions with & | ~ (each in parentheses), "
            "not with and/or/not, and write a < b and b < c as (a < b) & (b < c)"
        )

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return self._binary(exp.EQ, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return self._binary(exp.NEQ, other)

    def __lt__(self, other: object) -> Expr:
        return self._binary(exp.LT, other)

    def __le__(self, other: object) -> Expr:
        return self._binary(exp.LTE, other)

    def __gt__(self, other: object) -> Expr:
        return self._binary(exp.GT, other)

    def __ge__(self, other: object) -> Expr:
        return self._binary(exp.GTE, other)

    def __add__(self, other: object) -> Expr:
        return self._binary(exp.Add, other)

    def __radd__(self, other: object) -> Expr:
        return to_expr(other) + self

    def __sub__(self, other: object) -> Expr:
        return self._binary(exp.Sub, other)

    def __rsub__(self, other: object) -> Expr:
        return to_expr(other) - self

    def __mul__(self, other: object) -> Expr:
        return self._binary(exp.Mul, other)

    def __rmul__(self, other: object) -> Expr:
        return to_expr(other) * self

    def __truediv__(self, other: object) -> Expr:
        return self._binary(exp.Div, other)

    def __rtruediv__(self, other: object) -> Expr:
        return to_expr(other) / self

    def __mod__(self, other: object) -> Expr:
        return self._binary(exp.Mod, other)

    def __pow__(self, other: object) -> Expr:
        return function("pow", self, other)

    def __neg__(self) -> Expr:
        return Expr(exp.Neg(this=_operand(self)))

    def __abs__(self) -> Expr:
        return function("abs", self)

    def __and__(self, other: object) -> Expr:
        return self._binary(exp.And, other)

    def __rand__(self, other: object) -> Expr:
        return to_expr(other) & self

    def __or__(self, other: object) -> Expr:
        return self._binary(exp.Or, other)

    def __ror__(self, other: object) -> Expr:
        return to_expr(other) | self

    def __invert__(self) -> Expr:
        return Expr(exp.Not(this=_operand(self)))

    def abs(self) -> Expr:
        """Return the absolute value.

        >>> import counterflow as cf
        >>> print((cf.left.x - cf.right.a).abs() <= 3)
        ABS(l.x - r.a) <= 3
        """
        return function("abs", self)

    def between(self, low: object, high: object) -> Expr:
        """Return the condition that it lies between the two, both included.

        >>> import counterflow as cf
        >>> print(cf.left.x.between(cf.right.low, cf.right.high))
        l.x BETWEEN r.low AND r.high
        """
        return Expr(exp.Between(this=_operand(self), low=_operand(low), high=_operand(high)))

    def isin(self, *values: object) -> Expr:
        """Return the condition that it is one of the values, given one by one or as one list.

        >>> import counterflow as cf
        >>> print(cf.left.kind.isin("cargo", "tanker"))
        l.kind IN ('cargo', 'tanker')
        """
        if len(values) == 1 and isinstance(values[0], list | tuple | set | frozenset):
            values = tuple(values[0])
        return Expr(exp.In(this=_operand(self), expressions=[to_expr(v)._node for v in values]))

    def is_null(self) -> Expr:
        """Return the condition that it is NULL.

        >>> import counterflow as cf
        >>> print(cf.left.x.is_null())
        l.x IS NULL
        """
        return Expr(exp.Is(this=_operand(self), expression=exp.Null()))

    def is_not_null(self) -> Expr:
        """Return the condition that it is not NULL.

        >>> import counterflow as cf
        >>> print(cf.left.x.is_not_null())
        NOT (l.x IS NULL)
        """
        return ~self.is_null()

    def eq_null_safe(self, other: object) -> Expr:
        """Return the condition that both are equal, or both NULL.

        >>> import counterflow as cf
        >>> print(cf.left.k.eq_null_safe(cf.right.k))
        l.k IS NOT DISTINCT FROM r.k
        """
        return self._binary(exp.NullSafeEQ, other)

    def like(self, pattern: object) -> Expr:
        """Return the condition that a text has a pattern's form: `%` is any text, `_` any character.

        >>> import counterflow as cf
        >>> print(cf.left.name.like("MS %"))
        l.name LIKE 'MS %'
        """
        return self._binary(exp.Like, pattern)

    def cast(self, type_: str) -> Expr:
        """Return it as another SQL type.

        >>> import counterflow as cf
        >>> print(cf.left.x.cast("DOUBLE") / 2)
        CAST(l.x AS DOUBLE) / 2
        """
        try:
            return Expr(exp.cast(self._node.copy(), type_, dialect="spark"))
        except (ValueError, SqlglotError) as error:
            raise PredicateError(f"cast({type_!r}): not a SQL type; write for example cast('DOUBLE')") from error

    def _binary(self, kind: type[exp.Expression], other: object) -> Expr:
        return Expr(kind(this=_operand(self), expression=_operand(other)))


def _operand(value: object) -> Any:
    """Return a copy of a value's syntax tree, in parentheses if it has operators of its own."""
    node = to_expr(value)._node.copy()
    return exp.paren(node) if isinstance(node, exp.Binary | exp.Unary | exp.Between | exp.In) else node


def to_expr(value: object) -> Expr:
    """Return a Python value as a literal, and an `Expr` as it is."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, dt.timedelta):
        us = value // dt.timedelta(microseconds=1)
        return Expr(exp.Interval(this=exp.Literal.string(str(us)), unit=exp.var("MICROSECONDS")))
    if isinstance(value, dt.datetime):
        text = exp.Literal.string(value.isoformat(sep=" "))
        # Without a zone it is on the wall clock of what it meets: a text, as in SQL, becomes that type.
        return Expr(text if value.tzinfo is None else exp.cast(text, "TIMESTAMP", dialect="spark"))
    if isinstance(value, dt.date):
        return Expr(exp.cast(exp.Literal.string(value.isoformat()), "DATE", dialect="spark"))
    if isinstance(value, float):
        return Expr(exp.cast(exp.Literal.string(repr(value)), "DOUBLE", dialect="spark"))
    if isinstance(value, Decimal) and value.is_finite():
        digits = exp.Literal.number(format(value.copy_abs(), "f"))
        return Expr(exp.Neg(this=digits) if value.is_signed() else digits)
    if isinstance(value, int) and value.bit_length() > 127:  # 38 digits; Python itself cannot write thousands
        raise PredicateError(f"an integer of {value.bit_length():,} bits is too large for a DECIMAL: use a float")
    if value is None or isinstance(value, bool | int | str):
        return Expr(exp.convert(value))
    if isinstance(value, bytes):
        return Expr(exp.HexString(this=value.hex()))
    if hasattr(value, "item"):  # a numpy scalar
        return to_expr(value.item())
    raise PredicateError(f"cannot use {value!r} ({type(value).__name__}) in a predicate: it is not a SQL value")


def function(name: str, *args: object) -> Expr:
    """Call a SQL function.

    >>> import counterflow as cf
    >>> print(cf.function("levenshtein", cf.left.name, cf.right.name) <= 2)
    LEVENSHTEIN(l.name, r.name) <= 2
    """
    if not isinstance(name, str):
        raise PredicateError(f"function({name!r}, ...): the first argument is the function's name, a text")
    return Expr(exp.Anonymous(this=name, expressions=[to_expr(a)._node.copy() for a in args]))


class SideColumns:
    """`cf.left` and `cf.right`: `cf.left.x`, or `cf.left["a b"]` where the name is not an identifier.

    >>> import counterflow as cf
    >>> print((cf.left.x < cf.right["a b"]) & (cf.left.k == cf.right.k))
    (l.x < r.`a b`) AND (l.k = r.k)
    """

    def __init__(self, qualifier: str) -> None:
        self._qualifier = qualifier

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Expr:
        if not isinstance(name, str):
            raise PredicateError(f"{name!r} is not a column: give its name as a text, for example cf.left['a b']")
        return Expr(exp.column(exp.to_identifier(name), table=self._qualifier))


left = SideColumns("l")
right = SideColumns("r")


def band(left_column: str | Expr, right_column: str | Expr, width: object) -> Expr:
    """Return the condition that the two differ by at most `width`: `abs(left - right) <= width`.

    >>> import counterflow as cf
    >>> print(cf.band("x", "a", 10))
    ABS(l.x - r.a) <= 10
    """
    a = left_column if isinstance(left_column, Expr) else left[left_column]
    b = right_column if isinstance(right_column, Expr) else right[right_column]
    if isinstance(width, dt.timedelta) or not isinstance(width, (int, float, Decimal)):
        return a.between(b - width, b + width)
    return (a - b).abs() <= width


def haversine(lat1: str | Expr, lon1: str | Expr, lat2: str | Expr, lon2: str | Expr) -> Expr:
    """Return the metres between two points on a sphere of 6,371,008.8 m, given in degrees.

    >>> import counterflow as cf
    >>> print(cf.haversine("l.lat", "l.lon", "r.lat", "r.lon") <= 10_000)
    HAVERSINE(l.lat, l.lon, r.lat, r.lon) <= 10000
    """
    return function("haversine", *(_column(value) for value in (lat1, lon1, lat2, lon2)))


def _column(value: object) -> object:
    """Return a column that is named as in SQL: "l.x" or "right.a"."""
    if not isinstance(value, str):
        return value
    side, dot, name = value.partition(".")
    if not dot or side not in ("l", "left", "r", "right") or not name:
        raise PredicateError(f"{value!r} is not a column of one side: write l.{value} or r.{value}")
    return SideColumns(side)[name]
