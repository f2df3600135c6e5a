"""Forms that look like functions but are not: they see NULL, name a type or a unit, or rewrite themselves."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from counterflow.errors import PredicateError
from counterflow.predicate.casts import EXACT
from counterflow.predicate.expression import Call, Expression, Literal
from counterflow.predicate.form import Form, need
from counterflow.predicate.number_functions import rounded_type
from counterflow.predicate.parsing import check_collation
from counterflow.predicate.ranges import number_of
from counterflow.predicate.text_forms import TEXT_FORMS
from counterflow.predicate.time_forms import TIME_FORMS
from counterflow.predicate.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL_PRECISION_MAX,
    DOUBLE,
    FLOAT,
    INT,
    INTEGER_BITS,
    NULL,
    STRING,
    TIMESTAMP,
    SqlType,
    decimal_type,
    integer_range,
)

if TYPE_CHECKING:
    from counterflow.predicate.binding import Binder

AGGREGATES = {
    "any", "any_value", "avg", "bool_and", "bool_or", "collect_list", "collect_set", "count", "every", "first",
    "last", "max", "mean", "median", "min", "mode", "percentile", "some", "stddev", "sum", "variance",
}  # fmt: skip


def _coalesce(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 1, 99) if name == "coalesce" else need(name, args, 2, 2)
    values = binder.same_type(name, args)
    return Call("coalesce", tuple(values), values[0].type)


def _extreme(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 2, 99)
    values = binder.same_type(name, args)
    return Call(name, tuple(values), values[0].type)


def _if(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 3, 3)
    return binder.case([binder.condition(args[0]), args[1], args[2]])


def _nullif(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 2, 2)
    return binder.case([binder.binary("=", args[0], args[1]), Literal(None, NULL), args[0]])


def _nvl2(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 3, 3)
    return binder.case([Call("is_null", (args[0],), BOOLEAN), args[2], args[1]])


def _is_null(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 1, 1)
    test = Call("is_null", (args[0],), BOOLEAN)
    return test if name == "isnull" else Call("not", (test,), BOOLEAN)


def _is_nan(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return isnan(), which is false for NULL, unlike a function."""
    return _coalesce(binder, "coalesce", [binder.function("isnan", args), Literal(False, BOOLEAN)])


def _try_divide(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return a quotient or remainder, and NULL where the divisor is zero; its type is that of the operator."""
    need(name, args, 2, 2)
    found = binder.binary({"try_divide": "/", "try_mod": "%"}[name], *args)
    if number_of(args[1]):
        return found
    assert isinstance(found, Call)
    dividend, divisor = found.args
    return Call(found.op, (dividend, _nullif(binder, name, [divisor, Literal(0, INT)])), found.type)


def _try_arithmetic(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return a sum, difference or product, and NULL where that does not fit its type."""
    need(name, args, 2, 2)
    value = binder.binary({"try_add": "+", "try_subtract": "-", "try_multiply": "*"}[name], *args)
    type_ = value.type
    if type_.is_integer:
        ends = [Literal(end, type_) for end in integer_range(type_)]
    elif type_.is_decimal and type_.precision == DECIMAL_PRECISION_MAX:
        most = Decimal("9" * type_.precision).scaleb(-type_.scale, EXACT)
        ends = [Literal(end, type_) for end in (most.copy_negate(), most)]
    else:
        return value
    fits = Call("and", (Call("<=", (ends[0], value), BOOLEAN), Call("<=", (value, ends[1]), BOOLEAN)), BOOLEAN)
    return Call("case", (fits, value, Literal(None, type_)), type_)


def _null_if_zero(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 1, 1)
    return _nullif(binder, name, [args[0], Literal(0, INT)])


def _zero_if_null(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 1, 1)
    return _coalesce(binder, "coalesce", [args[0], Literal(0, INT)])


def _of_bits(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return a function that has to know how many bits its first argument has."""
    call = binder.function(name, args)
    bits = Literal(INTEGER_BITS[call.args[0].type.name], INT)
    return Call(call.op, (*call.args, bits), call.type)


def _operator(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 2, 2)
    return binder.binary({"equal_null": "<=>", "mod": "%"}[name], args[0], args[1])


def _pmod(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 2, 2)
    a, b = args
    remainder = binder.binary("%", a, b)
    again = binder.binary("%", binder.binary("+", remainder, b), b)
    return binder.case([binder.binary("<", remainder, Literal(0, INT)), again, remainder])


def _round(binder: Binder, name: str, args: list[Expression]) -> Expression:
    need(name, args, 1, 2)
    places = args[1] if len(args) == 2 else Literal(0, INT)
    if not isinstance(places, Literal) or not isinstance(places.value, int):
        raise PredicateError(f"{name}({args[0]}, {places}): the number of places must be a constant integer")
    if args[0].type == FLOAT:  # its digits are those of the same DOUBLE
        wide = _round(binder, name, [Call("cast", (args[0],), DOUBLE), places])
        return Call("cast", (wide,), FLOAT)
    binder.function(name, args)  # checks the types
    return Call(name, (args[0], places), rounded_type(args[0].type, places.value))


def collate(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Accept the collation that every text here has; any other would be another comparison."""
    need(name, args, 2, 2)
    value, collation = args
    if not isinstance(collation, Literal) or collation.type != STRING or value.type not in (STRING, NULL):
        raise PredicateError(f"{name}({value}, {collation}): give a text and a constant name such as 'UTF8_BINARY'")
    check_collation(str(value), collation.value)
    return value


def _cast_to(target: SqlType) -> Form:
    def form(binder: Binder, name: str, args: list[Expression]) -> Expression:
        need(name, args, 1, 1)
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
    **dict.fromkeys(("try_divide", "try_mod"), _try_divide),
    "round": _round,
    "bround": _round,
    "collate": collate,
    "nullifzero": _null_if_zero,
    "zeroifnull": _zero_if_null,
    **dict.fromkeys(("try_add", "try_subtract", "try_multiply"), _try_arithmetic),
    **dict.fromkeys(("shiftleft", "shiftright", "shiftrightunsigned", "bit_get", "getbit"), _of_bits),
    **TEXT_FORMS,
    **TIME_FORMS,
    **{name: _cast_to(target) for name, target in _CASTS.items()},
}
