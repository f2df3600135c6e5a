"""The sizes of sliding windows: how long a tuple of each side can still be met.

`cf.window(before=B, after=A)` is seen from the left tuple: it meets right tuples from B before it to A after
it. So a right tuple lives for B (the right window) and a left tuple for A (the left window).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Literal

from counterflow.errors import WindowError
from counterflow.predicate.durations import duration_us, shown
from counterflow.predicate.expression import Side

Kind = Literal["duration", "rows", "unbounded"]
INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Rows:
    """A window of the last `n` rows of its side."""

    n: int


@dataclass(frozen=True)
class WindowPair:
    """Both windows as the user gave them, not yet checked against the time columns."""

    left: Any
    right: Any
    closed: bool = True


def window(size: Any = None, *, before: Any = None, after: Any = None, closed: bool = True) -> WindowPair:
    """Return a window of `size` both ways, or from `before` to `after` as seen from the left tuple.

    A bound that is not given is zero. `closed=False` leaves out tuples exactly at the bound.

    >>> import counterflow as cf, pyarrow as pa
    >>> left, right = pa.table({"t": [10], "x": [1]}), pa.table({"t": [6, 8, 12], "y": [1, 1, 1]})
    >>> cf.window_join(left, right, where="l.x = r.y", time="t", window=cf.window(before=3))["t_right"].to_pylist()
    [8]
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
    """Return a window of the last `n` rows.

    >>> import counterflow as cf, pyarrow as pa
    >>> left, right = pa.table({"t": [5], "x": [1]}), pa.table({"t": [1, 2, 3], "y": [1, 1, 1]})
    >>> cf.window_join(left, right, where="l.x = r.y", time="t", window=cf.rows(2))["t_right"].to_pylist()
    [2, 3]
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= INT64_MAX:
        raise WindowError(f"rows({shown(n)}): the number of rows must be a positive integer of at most 64 bits")
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
AT_ONCE = Window("duration")  # only what comes at the same time


def resolve(given: Any, *, integer_time: bool) -> tuple[Window, Window]:
    """Return the (left, right) windows that `window=` asks for."""
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
                f"{side} window {shown(given)}: the time column is a timestamp, so the window needs a unit, "
                f"for example '{shown(given)} seconds'"
            )
        size = given
    else:
        if integer_time:
            raise WindowError(
                f"{side} window {shown(given)}: the time column is an integer, so the window is one of the same unit"
            )
        size = duration_us(given)
    if size > INT64_MAX:
        raise WindowError(f"{side} window {shown(given)} is longer than 64-bit time: for no bound at all use None")
    if size < 0:
        raise WindowError(f"{side} window {shown(given)} is negative: a window is zero or longer")
    return Window("duration", size, closed)
