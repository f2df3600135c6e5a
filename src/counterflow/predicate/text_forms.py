"""Forms of texts: they skip NULLs, choose among values, or are another function with other arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterflow.predicate.expression import Call, Expression, Literal
from counterflow.predicate.form import Form, need
from counterflow.predicate.types import BOOLEAN, INT, STRING

if TYPE_CHECKING:
    from counterflow.predicate.binding import Binder


def _concat_with_separator(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return concat_ws(), which skips NULLs: each value with a separator before it, and then without the first one."""
    need(name, args, 1, 99)
    separator, *values = [binder.cast_to("cast", arg, STRING) for arg in args]
    nothing = Literal("", STRING)
    parts = [Call("coalesce", (Call("concat", (separator, v), STRING), nothing), STRING) for v in values]
    begin = Call("+", (Call("length", (separator,), INT), Literal(1, INT)), INT)
    return Call("substring", (Call("concat", tuple(parts), STRING), begin), STRING)


def _locate(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return locate(part, text) as instr(text, part); where the begin is NULL it is 0, as in Hive."""
    if len(args) == 2 or (len(args) == 3 and args[2] == Literal(1, INT)):
        return binder.function("instr", [args[1], args[0]])
    call = binder.function(name, args)
    begin = call.args[2]
    if isinstance(begin, Literal) and begin.value is not None:
        return call
    return Call("case", (Call("is_null", (begin,), BOOLEAN), Literal(0, INT), call), INT)


def _element(binder: Binder, name: str, args: list[Expression]) -> Expression:
    """Return elt(n, first, second, ...): only the chosen one is computed; n out of bounds is an error."""
    call = binder.function(name, args)
    number, *values = call.args
    branches: list[Expression] = []
    for i, value in enumerate(values, 1):
        branches += [binder.binary("=", number, Literal(i, INT)), value]
    refusal = Call("elt", (number, Literal(len(values), INT)), call.type)
    return Call("case", (*branches, refusal), call.type)


TEXT_FORMS: dict[str, Form] = {
    "concat_ws": _concat_with_separator,
    "locate": _locate,
    "position": _locate,
    "elt": _element,
}
