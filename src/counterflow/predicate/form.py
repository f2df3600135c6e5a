"""What a form is: a function of the binder and its arguments that returns what the call means."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from counterflow.errors import PredicateError
from counterflow.predicate.expression import Expression

if TYPE_CHECKING:
    from counterflow.predicate.binding import Binder

Form = Callable[["Binder", str, list[Expression]], Expression]


def need(name: str, args: list[Expression], low: int, high: int) -> None:
    if not low <= len(args) <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}" if high < 99 else f"{low} or more"
        raise PredicateError(f"{name}() takes {wanted} argument{'s' if high > 1 else ''}, not {len(args)}")
