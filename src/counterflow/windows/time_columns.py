"""Functions of dates and timestamps on whole columns. Where some row has no value they raise, as `text_columns` do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import numpy as np

from counterflow.predicate.wall_clock import days_of
from counterflow.windows.vectors import Array

FIRST_DAY, LAST_DAY = days_of(dt.date.min), days_of(dt.date.max)


def _of_dates(part: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function of days as numpy's dates, which are those of Python's calendar in its years."""

    def of_days(days: Array) -> Array:
        if len(days) and not FIRST_DAY <= days.min() <= days.max() <= LAST_DAY:
            raise ValueError("a year is not between 1 and 9999")
        return part(days.astype("datetime64[D]")).astype(np.int64)

    return of_days


def _of_clock(us: int, count: int) -> Callable[[Array], Array]:
    return lambda times: (times // us % count).astype(np.int64)


def _month(dates: Array) -> Array:
    return dates.astype("datetime64[M]").astype(np.int64) % 12 + 1


def _last_day(dates: Array) -> Array:
    following = dates.astype("datetime64[M]") + 1
    return following.astype("datetime64[D]") - 1


def _weekday(dates: Array) -> Array:
    """Return days of the week from Monday, 0, on; the epoch was a Thursday."""
    return (dates.astype(np.int64) + 3) % 7


TIME_COLUMNS: dict[str, Callable[..., Array]] = {
    "year": _of_dates(lambda dates: dates.astype("datetime64[Y]").astype(np.int64) + 1970),
    "quarter": _of_dates(lambda dates: (_month(dates) + 2) // 3),
    "month": _of_dates(_month),
    "day": _of_dates(lambda dates: (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1),
    "dayofyear": _of_dates(lambda dates: (dates - dates.astype("datetime64[Y]")).astype(np.int64) + 1),
    "weekday": _of_dates(_weekday),
    "dayofweek": _of_dates(lambda dates: (_weekday(dates) + 1) % 7 + 1),
    "last_day": _of_dates(_last_day),
    "hour": _of_clock(3_600_000_000, 24),
    "minute": _of_clock(60_000_000, 60),
    "second": _of_clock(1_000_000, 60),
}
