"""Functions of dates and timestamps, on one row (Spark's meaning)."""

from __future__ import annotations

import calendar
import datetime as dt
import math
from decimal import Decimal

from counterflow.predicate.registry import function
from counterflow.predicate.types import BIGINT, BOOLEAN, DATE, DOUBLE, INT, STRING, TIMESTAMP, decimal_type
from counterflow.predicate.wall_clock import US_PER_DAY, date_of, days_of


def date_part(unit: str, days: int) -> int:
    date = date_of(days)
    match unit:
        case "quarter":
            return (date.month + 2) // 3
        case "dayofweek":
            return date.isoweekday() % 7 + 1
        case "dayofyear":
            return date.timetuple().tm_yday
        case "weekday":
            return date.weekday()
        case "weekofyear":
            return date.isocalendar().week
        case "last_day":
            return days - date.day + calendar.monthrange(date.year, date.month)[1]
    return int(getattr(date, unit))


_MONTHS = {"YEAR": 12, "YYYY": 12, "YY": 12, "QUARTER": 3, "MONTH": 1, "MON": 1, "MM": 1}
UNIT_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": US_PER_DAY,
    "DD": US_PER_DAY,
}
_WEEKDAYS = {
    name: i for i, day in enumerate(calendar.day_name) for name in (day[:2].upper(), day[:3].upper(), day.upper())
}


def truncated_date(days: int, unit: str) -> int | None:
    """Return the first day of a week, month, quarter or year; NULL for any other unit."""
    unit = unit.upper()
    if unit == "WEEK":
        return days - (days + 3) % 7  # the epoch was a Thursday
    if unit not in _MONTHS:
        return None
    date = date_of(days)
    return days_of(date.replace(month=(date.month - 1) // _MONTHS[unit] * _MONTHS[unit] + 1, day=1))


def truncated_time(unit: str, us: int) -> int | None:
    """Return a wall clock's time without what is smaller than a unit; NULL for what is no unit."""
    size = UNIT_US.get(unit.upper())
    if size is not None:
        return us - us % size
    days = truncated_date(us // US_PER_DAY, unit)
    return None if days is None else days * US_PER_DAY


def add_months(days: int, months: int) -> int:
    """Return the same day of another month, or its last one if it has no such day."""
    date = date_of(days)
    year, month = divmod(date.year * 12 + date.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise OverflowError(f"year {year} is not between 1 and 9999")
    last = calendar.monthrange(year, month + 1)[1]
    return days_of(dt.date(year, month + 1, min(date.day, last)))


def months_between(days: int, after_us: int, other_days: int, other_after_us: int, rounded: bool) -> float:
    """Return the months between two moments, each a day and the time since it began; a month has 31 days.

    Two equal days of a month, or two last ones, are whole months apart, whatever the time.
    """
    date, other = date_of(days), date_of(other_days)
    months = float((date.year - other.year) * 12 + date.month - other.month)
    if date.day == other.day or (_ends_month(date) and _ends_month(other)):
        return months
    seconds = (date.day - other.day) * 86_400 + after_us // 1_000_000 - other_after_us // 1_000_000
    found = months + seconds / (31 * 86_400)
    if not rounded:
        return found
    scaled = found * 1e8
    return (math.floor(scaled) + (scaled - math.floor(scaled) >= 0.5)) / 1e8


def _ends_month(date: dt.date) -> bool:
    return date.day == calendar.monthrange(date.year, date.month)[1]


def next_day(days: int, weekday: str) -> int:
    wanted = _WEEKDAYS.get(weekday.upper())
    if wanted is None:
        raise ValueError("it is no day of the week: give one such as 'MON'")
    return days + 1 + (wanted - (days + 4)) % 7  # the day after is (days + 4) % 7, from Monday on


for _name, _unit in {
    "year": "year",
    "month": "month",
    "day": "day",
    "dayofmonth": "day",
    "quarter": "quarter",
    "dayofweek": "dayofweek",
    "dayofyear": "dayofyear",
    "weekday": "weekday",
    "weekofyear": "weekofyear",
}.items():
    function(_name, DATE, returns=INT)(lambda days, unit=_unit: date_part(unit, days))
function("last_day", DATE, returns=DATE)(lambda days: date_part("last_day", days))
function("add_months", DATE, INT, returns=DATE)(add_months)
function("next_day", DATE, STRING, returns=DATE)(next_day)
function("make_date", INT, INT, INT, returns=DATE)(lambda year, month, day: days_of(dt.date(year, month, day)))
function("trunc", DATE, STRING, returns=DATE)(truncated_date)
# The forms of these two read the wall clock, and hand over other arguments.
function("date_trunc", STRING, TIMESTAMP, returns=TIMESTAMP)(truncated_time)
function("months_between", TIMESTAMP, TIMESTAMP, BOOLEAN, returns=DOUBLE, optional=1)(months_between)
function("date_add dateadd", DATE, INT, returns=DATE)(lambda days, n: days + n)
function("date_sub", DATE, INT, returns=DATE)(lambda days, n: days - n)
function("datediff date_diff", DATE, DATE, returns=INT)(lambda end, start: end - start)
# These read the wall clock: the binder hands them microseconds local to the timestamp's zone.
function("hour", TIMESTAMP, returns=INT)(lambda us: us // 3_600_000_000 % 24)
function("minute", TIMESTAMP, returns=INT)(lambda us: us // 60_000_000 % 60)
function("second", TIMESTAMP, returns=INT)(lambda us: us // 1_000_000 % 60)
function("extract_second", TIMESTAMP, returns=decimal_type(8, 6))(lambda us: Decimal(us % 60_000_000).scaleb(-6))
function("unix_seconds", TIMESTAMP, returns=BIGINT)(lambda us: us // 1_000_000)
function("unix_timestamp", TIMESTAMP, returns=BIGINT)(
    lambda us: us // 1_000_000 if us >= 0 else -(-us // 1_000_000)  # towards zero, unlike unix_seconds
)
function("unix_millis", TIMESTAMP, returns=BIGINT)(lambda us: us // 1_000)
function("unix_micros", TIMESTAMP, returns=BIGINT)(lambda us: us)
function("timestamp_seconds", BIGINT, returns=TIMESTAMP)(lambda n: n * 1_000_000)
function("timestamp_millis", BIGINT, returns=TIMESTAMP)(lambda n: n * 1_000)
function("timestamp_micros", BIGINT, returns=TIMESTAMP)(lambda n: n)
