"""Forms of dates and timestamps: they name a field or a unit, and read the wall clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterflow.errors import PredicateError
from counterflow.predicate.expression import Call, Expression, Literal
from counterflow.predicate.form import Form, need
from counterflow.predicate.time_functions import UNIT_US
from counterflow.predicate.types import BOOLEAN, DATE, INTERVAL, STRING, TIMESTAMP, TIMESTAMP_NTZ
from counterflow.predicate.wall_clock import UTC_NAMES

if TYPE_CHECKING:
    from counterflow.predicate.binding import Binder


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
    need(name, args, 2, 2)
    if not isinstance(args[0], Literal) or args[0].type != STRING:
        raise PredicateError(f"{name}({args[0]}, ...): the field must be a constant such as 'hour'")
    return extract(binder, args[0].value, args[1])


def _date_trunc(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return date_trunc(unit, moment), on the wall clock.

    Where the clock is put back, a moment keeps its offset within a day, as in Spark; weeks and more do not.
    """
    call = binder.function(name, args)
    unit, moment = call.args
    if not isinstance(unit, Literal):
        raise PredicateError(f"{name}({unit}, ...): the unit must be a constant such as 'hour'")
    local = binder.cast_to("cast", moment, TIMESTAMP_NTZ)
    whole = Call(name, (unit, local), TIMESTAMP_NTZ)
    moved = binder.cast_to("cast", whole, TIMESTAMP)
    if binder.zone in UTC_NAMES or (unit.value or "").upper() not in UNIT_US:
        return moved
    elapsed = Call("-", (moment, Call("-", (local, whole), INTERVAL)), call.type)
    same = Call("=", (binder.cast_to("cast", elapsed, TIMESTAMP_NTZ), whole), BOOLEAN)
    return Call("case", (same, elapsed, moved), call.type)


def _months_between(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return months_between(), of two days and the time since each began; without a third argument it is rounded."""
    call = binder.function(name, args)
    moments, rounded = call.args[:2], call.args[2:] or (Literal(True, BOOLEAN),)
    parts: list[Expression] = []
    for moment in moments:
        day = binder.cast_to("cast", moment, DATE)
        parts += [day, Call("-", (moment, binder.cast_to("cast", day, TIMESTAMP)), INTERVAL)]
    return Call(name, (*parts, *rounded), call.type)


TIME_FORMS: dict[str, Form] = {
    "date_part": _date_part,
    "datepart": _date_part,
    "date_trunc": _date_trunc,
    "months_between": _months_between,
}
