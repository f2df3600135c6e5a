"""Sliding windows: how long a tuple of each side can still be met.

`cf.window(before=B, after=A)` is seen from the left tuple: it meets right tuples from B before it to A after
it. So a right tuple lives for B (the right window) and a left tuple for A (the left window).
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from counterflow.errors import WindowError
from counterflow.predicate.expression import Side

Kind = Literal["duration", "rows", "unbounded"]
INT64_MAX = 2**63 - 1

_UNIT_US = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "second": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
    "w": 604_800_000_000,
    "week": 604_800_000_000,
}

_DURATION = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*([a-z]+)")
DURATION_MAX = 200  # characters
SHOWN_MAX = 60  # characters of a value in a message


@dataclass(frozen=True)
class Rows:
    """A window of the last `n` rows of its side."""

    n: int


@dataclass(frozen=True)
class WindowPair:
    """What the user said of both windows, not yet checked against the time columns."""

    left: Any
    right: Any
    closed: bool = True


def window(size: Any = None, *, before: Any = None, after: Any = None, closed: bool = True) -> WindowPair:
    """A window of `size` both ways, or from `before` to `after` as seen from the left tuple.

    A bound that is not given is zero. `closed=False` leaves out tuples exactly at the bound.
    """
    if not isinstance(closed, bool):
        raise WindowError(f"window(closed={closed!r}): use True or False")
    if size is not None and (before is not None or after is not None):
        raise WindowError("window(): give either one size, or before= and after=, not both")
    if size is None and before is None and after is None:
        raise WindowError("window(): give a size, or before= and/or after=; for no bound at all use window=None")
    if size is not None:
        return WindowPair(size, size, closed)
    return WindowPair(after if after is not None else 0, before if before is not None else 0, closed)


def rows(n: int) -> Rows:
    """A window of the last `n` rows."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= INT64_MAX:
        raise WindowError(f"rows({_shown(n)}): the number of rows must be a positive integer of at most 64 bits")
    return Rows(n)


@dataclass(frozen=True)
class Window:
    """One side's window, checked. `size` is in microseconds, in the integer time's unit, or in rows."""

    kind: Kind
    size: int = 0
    closed: bool = True

    @property
    def reach(self) -> int | None:
        """The largest time distance to a later tuple that is still inside; None if time does not bound it."""
        return None if self.kind != "duration" else self.size - (not self.closed)

    def __str__(self) -> str:
        if self.kind == "unbounded":
            return "unbounded"
        return f"{self.size:,} rows" if self.kind == "rows" else f"{'<=' if self.closed else '<'} {self.size:,}"


UNBOUNDED = Window("unbounded")


def resolve(given: Any, *, integer_time: bool) -> tuple[Window, Window]:
    """The (left, right) windows that `window=` asks for."""
    if isinstance(given, tuple | list):
        if len(given) != 2:
            raise WindowError(f"window={given!r}: a pair is (left_window, right_window)")
        given = WindowPair(given[0], given[1])
    elif not isinstance(given, WindowPair):
        given = WindowPair(given, given)
    left = _side_window(given.left, "left", given.closed, integer_time)
    return left, _side_window(given.right, "right", given.closed, integer_time)


def _side_window(given: Any, side: Side, closed: bool, integer_time: bool) -> Window:
    if given is None:
        return UNBOUNDED
    if isinstance(given, Rows):
        return Window("rows", given.n)
    if hasattr(given, "item"):  # numpy's integers and durations
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, int | str | dt.timedelta):
        raise WindowError(
            f"{side} window {given!r}: expected a duration such as '15 minutes', a timedelta, an integer (for an "
            "integer time column), cf.rows(n), or None for no bound"
        )
    if isinstance(given, int):
        if not integer_time and given != 0:
            raise WindowError(
                f"{side} window {_shown(given)}: the time column is a timestamp, so the window needs a unit, "
                f"for example '{_shown(given)} seconds'"
            )
        size = given
    else:
        if integer_time:
            raise WindowError(
                f"{side} window {_shown(given)}: the time column is an integer, so the window is one of the same unit"
            )
        size = duration_us(given)
    if size > INT64_MAX:
        raise WindowError(f"{side} window {_shown(given)} is longer than 64-bit time: for no bound at all use None")
    if size < 0:
        raise WindowError(f"{side} window {_shown(given)} is negative: a window is zero or longer")
    return Window("duration", size, closed)


def _shown(value: Any) -> str:
    """Return how a value is written, or the beginning of it. Python refuses to write an int of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def duration_us(given: str | dt.timedelta) -> int:
    """A duration in microseconds: a timedelta, or text such as '15 minutes', '1 hour 30 minutes', '500ms'."""
    if isinstance(given, dt.timedelta):
        return given // dt.timedelta(microseconds=1)
    text = given.strip().lower().removeprefix("interval").strip()
    parts = _DURATION.findall(text) if len(text) <= DURATION_MAX else []
    if not parts or _DURATION.sub("", text).replace(",", "").strip():
        raise WindowError(
            f"cannot read the duration {_shown(given)}: write for example '15 minutes' or '1 hour 30 seconds'"
        )
    total = Fraction(0)
    for number, unit in parts:
        factor = _UNIT_US.get(unit) or _UNIT_US.get(unit.removesuffix("s"))
        if factor is None:
            raise WindowError(
                f"unknown unit '{unit}' in {_shown(given)}: use weeks, days, hours, minutes, seconds, ms or us"
            )
        total += Fraction(number) * factor
    if total.denominator != 1:
        raise WindowError(f"{_shown(given)} is not a whole number of microseconds")
    return int(total)
