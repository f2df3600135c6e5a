"""Forms that look like functions but are not: they see NULL, name a type or a unit, or rewrite themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from counterflow.errors import PredicateError
from counterflow.predicate.expression import Call, Expression, Literal
from counterflow.predicate.functions import rounded_type
from counterflow.predicate.parsing import check_collation
from counterflow.predicate.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    SqlType,
    decimal_type,
)

if TYPE_CHECKING:
    from counterflow.predicate.binding import Binder

Form = Callable[["Binder", str, list[Expression]], Expression]

AGGREGATES = {
    "any", "any_value", "avg", "bool_and", "bool_or", "collect_list", "collect_set", "count", "every", "first",
    "last", "max", "mean", "median", "min", "mode", "percentile", "some", "stddev", "sum", "variance",
}  # fmt: skip


def _need(name: str, args: list[Expression], low: int, high: int) -> None:
    if not low <= len(args) <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}" if high < 99 else f"{low} or more"
        raise PredicateError(f"{name}() takes {wanted} argument{'s' if high > 1 else ''}, not {len(args)}")


def _coalesce(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 1, 99) if name == "coalesce" else _need(name, args, 2, 2)
    values = binder.same_type(name, args)
    return Call("coalesce", tuple(values), values[0].type)


def _extreme(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 99)
    values = binder.same_type(name, args)
    return Call(name, tuple(values), values[0].type)


def _if(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 3, 3)
    return binder.case([binder.condition(args[0]), args[1], args[2]])


def _nullif(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    return binder.case([binder.binary("=", args[0], args[1]), Literal(None, NULL), args[0]])


def _nvl2(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 3, 3)
    return binder.case([Call("is_null", (args[0],), BOOLEAN), args[2], args[1]])


def _is_null(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 1, 1)
    test = Call("is_null", (args[0],), BOOLEAN)
    return test if name == "isnull" else Call("not", (test,), BOOLEAN)


def _is_nan(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return isnan(), which is false for NULL, unlike a function."""
    return _coalesce(binder, "coalesce", [binder.function("isnan", args), Literal(False, BOOLEAN)])


def _try_divide(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    divisor = _nullif(binder, name, [args[1], Literal(0, INT)])
    return binder.binary("/", args[0], divisor)


def _operator(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    return binder.binary({"equal_null": "<=>", "mod": "%"}[name], args[0], args[1])


def _pmod(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    a, b = args
    remainder = binder.binary("%", a, b)
    again = binder.binary("%", binder.binary("+", remainder, b), b)
    return binder.case([binder.binary("<", remainder, Literal(0, INT)), again, remainder])


def _round(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 1, 2)
    places = args[1] if len(args) == 2 else Literal(0, INT)
    if not isinstance(places, Literal) or not isinstance(places.value, int):
        raise PredicateError(f"round({args[0]}, {places}): the number of places must be a constant integer")
    if args[0].type == FLOAT:  # its digits are those of the same DOUBLE
        wide = _round(binder, name, [Call("cast", (args[0],), DOUBLE), places])
        return Call("cast", (wide,), FLOAT)
    binder.function("round", args)  # checks the types
    return Call("round", (args[0], places), rounded_type(args[0].type, places.value))


_FIELDS = {
    "DOW": "dayofweek",
    "DOY": "dayofyear",
    "WEEK": "weekofyear",
    "SECOND": "extract_second",
    **{f.upper(): f for f in ("year", "quarter", "month", "day", "dayofweek", "dayofyear", "hour", "minute")},
}


def extract(binder: Binder, field: str, source: Expression) -> Expression:
    """Return EXTRACT(field FROM source)."""
    name = _FIELDS.get(field.upper()) or _FIELDS.get(field.upper().removesuffix("S"))
    if name is None:
        raise PredicateError(f"EXTRACT({field} FROM {source}): unknown field; use one of {', '.join(sorted(_FIELDS))}")
    return binder.function(name, [source])


def _date_part(binder: Binder, name: str, args: list[Expression]) -> Expression:
    _need(name, args, 2, 2)
    if not isinstance(args[0], Literal) or args[0].type != STRING:
        raise PredicateError(f"{name}({args[0]}, ...): the field must be a constant such as 'hour'")
    return extract(binder, args[0].value, args[1])


def collate(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Accept the collation that every text here has; any other would be another comparison."""
    _need(name, args, 2, 2)
    value, collation = args
    if not isinstance(collation, Literal) or collation.type != STRING or value.type not in (STRING, NULL):
        raise PredicateError(f"{name}({value}, {collation}): give a text and a constant name such as 'UTF8_BINARY'")
    check_collation(str(value), collation.value)
    return value


def _cast_to(target: SqlType) -> Form:
    def form(binder: Binder, name: str, args: list[Expression]) -> Expression:
        _need(name, args, 1, 1)
        return binder.cast_to("cast", args[0], target)

    return form


_CASTS = {
    "boolean": BOOLEAN,
    "tinyint": SqlType("TINYINT"),
    "smallint": SqlType("SMALLINT"),
    "int": INT,
    "bigint": BIGINT,
    "float": FLOAT,
    "double": DOUBLE,
    "decimal": decimal_type(10, 0),
    "string": STRING,
    "binary": BINARY,
    "date": DATE,
    "to_date": DATE,
    "timestamp": TIMESTAMP,
    "to_timestamp": TIMESTAMP,
}

FORMS: dict[str, Form] = {
    "coalesce": _coalesce,
    "nvl": _coalesce,
    "ifnull": _coalesce,
    "least": _extreme,
    "greatest": _extreme,
    "if": _if,
    "nullif": _nullif,
    "nvl2": _nvl2,
    "isnull": _is_null,
    "isnotnull": _is_null,
    "isnan": _is_nan,
    "equal_null": _operator,
    "mod": _operator,
    "pmod": _pmod,
    "try_divide": _try_divide,
    "round": _round,
    "collate": collate,
    "date_part": _date_part,
    "datepart": _date_part,
    **{name: _cast_to(target) for name, target in _CASTS.items()},
}
