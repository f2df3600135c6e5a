"""Durations as users write them: '15 minutes', '1 hour 30 seconds', a timedelta."""

from __future__ import annotations

import datetime as dt
import re
from fractions import Fraction
from typing import Any

from counterflow.errors import WindowError

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


def duration_us(given: str | dt.timedelta) -> int:
    """Return the microseconds of a timedelta, or of text such as '15 minutes', '1 hour 30 minutes', '500ms'."""
    if isinstance(given, dt.timedelta):
        return given // dt.timedelta(microseconds=1)
    text = given.strip().lower().removeprefix("interval").strip()
    parts = _DURATION.findall(text) if len(text) <= DURATION_MAX else []
    if not parts or _DURATION.sub("", text).replace(",", "").strip():
        raise WindowError(
            f"cannot read the duration {shown(given)}: write for example '15 minutes' or '1 hour 30 seconds'"
        )
    total = Fraction(0)
    for number, unit in parts:
        factor = _UNIT_US.get(unit) or _UNIT_US.get(unit.removesuffix("s"))
        if factor is None:
            raise WindowError(
                f"unknown unit '{unit}' in {shown(given)}: use weeks, days, hours, minutes, seconds, ms or us"
            )
        total += Fraction(number) * factor
    if total.denominator != 1:
        raise WindowError(f"{shown(given)} is not a whole number of microseconds")
    return int(total)


def shown(value: Any) -> str:
    """Return a value as messages show it, cut if it is long. Python refuses to write an int of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
