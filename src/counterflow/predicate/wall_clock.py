"""Dates and timestamps on the wall clock: time zones, and the texts that Spark reads and writes.

A DATE is a day number since 1970, a TIMESTAMP microseconds since 1970 in UTC, a TIMESTAMP_NTZ microseconds on
a wall clock. Years 1 to 9999 can be read and written, as SQL defines them.
"""

from __future__ import annotations

import datetime as dt
import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

US_PER_DAY = 86_400_000_000
EPOCH = dt.datetime(1970, 1, 1)
UTC_NAMES = (None, "UTC", "Etc/UTC", "Z", "GMT", "+00:00")
MICROSECOND = dt.timedelta(microseconds=1)

_DAY = r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})%s)?)?"
_DATE = re.compile(_DAY % r"(?:[ T].*)?", re.ASCII | re.DOTALL)
_TIMESTAMP = re.compile(_DAY % r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(.*))?)?)?", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2}))?(?::?(\d{2}))?", re.ASCII)


def date_of(days: int) -> dt.date:
    return dt.date(1970, 1, 1) + dt.timedelta(days=days)


def days_of(date: dt.date) -> int:
    return (date - dt.date(1970, 1, 1)).days


def wall_clock(us: int, zone: str | None = None) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=localised(us, zone))


def localised(us: int, zone: str | None) -> int:
    """Return the microseconds that the wall clock of `zone` shows at a moment."""
    if zone in UTC_NAMES:
        return us
    moment = (EPOCH + dt.timedelta(microseconds=us)).replace(tzinfo=dt.UTC)
    offset = moment.astimezone(zone_info(zone)).utcoffset()
    assert offset is not None
    return us + offset // MICROSECOND


def unlocalised(us: int, zone: str | None) -> int:
    """Return the inverse of `localised`; in a gap or overlap with the earlier offset, as in Java."""
    if zone in UTC_NAMES:
        return us
    offset = (EPOCH + dt.timedelta(microseconds=us)).replace(tzinfo=zone_info(zone)).utcoffset()
    assert offset is not None
    return us - offset // MICROSECOND


def zone_info(zone: str | None) -> dt.tzinfo:
    """Return a time zone by its name or offset (`Europe/Berlin`, `+01:00`, `UTC+3`)."""
    if zone in UTC_NAMES or zone is None:
        return dt.UTC
    if fixed := _OFFSET.fullmatch(zone):
        hours, minutes, seconds = (int(part or 0) for part in fixed.groups()[1:])
        offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return dt.timezone(-offset if fixed[1] == "-" else offset)
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # a name is a path: it may be none, or too long
        raise ValueError(f"no time zone '{zone}'") from error


def parse_date(text: str) -> int:
    """Return the day number of `2024-03-01`, `2024-3-1`, `2024-3` or `2024`; what follows a blank or T is ignored."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return days_of(dt.date(*(int(part or 1) for part in found.groups())))


def parse_timestamp(text: str, zone: str | None) -> int:
    """Return the microseconds of `2024-03-01 13:45:06.789+01:00` or a shorter form, in `zone` if the text names none.

    With `zone` None the wall clock is read, and a zone in the text is ignored.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, named = found.groups()
    date = dt.datetime(int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0))
    us = (date - EPOCH) // MICROSECOND + int(f"{fraction or '':0<6.6}")
    named = (named or "").strip()
    if named:
        zone_info(named)  # an unknown one is an error in any case
    return us if zone is None else unlocalised(us, named or zone)


def timestamp_text(us: int, zone: str | None) -> str:
    wall = wall_clock(us, zone)
    text = wall.isoformat(sep=" ")
    return text.rstrip("0") if wall.microsecond else text
