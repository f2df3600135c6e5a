"""What is computed of each tuple that arrives, compiled: how many came before it, and what it has to look at.

Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterflow.jit import OPTIONS, inlined, njit
from counterflow.windows.vectors import Array

LEAST, MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@inlined
def first_from(times: Array, time: int) -> int:
    """Return the place of the first of these times, which are in order, that is not before `time`."""
    begin, size = 0, len(times)
    while size > 0:
        half = size >> 1
        if times[begin + half] < time:
            begin, size = begin + half + 1, size - half - 1
        else:
            size = half
    return begin


@inlined
def within(time: int, before: int, after: int, known: Array) -> Any:
    """Return the places in `known`, which is in order, from and up to which its times are near enough to `time`.

    A reach of -1 leaves out the time itself, so that at the end of all times nothing is left.
    """
    if (before < 0 and time > MOST + before) or (after < 0 and time < LEAST - after):
        return 0, 0
    oldest = time - before if before < 0 or time >= LEAST + before else LEAST
    newest = time + after if after < 0 or time <= MOST - after else MOST
    return first_from(known, oldest), len(known) if newest == MOST else first_from(known, newest + 1)


@njit("void(int64[::1], int64[::1], int64[::1], int64[::1])", **OPTIONS)
def count_before(left_times: Array, right_times: Array, before_left: Array, before_right: Array) -> None:
    """Count the opposite tuples before each one; both sides are in order, and at equal times the left one is first."""
    i, j, lefts, rights = 0, 0, len(left_times), len(right_times)
    while i < lefts and j < rights:
        if left_times[i] <= right_times[j]:
            before_left[i] = j
            i += 1
        else:
            before_right[j] = i
            j += 1
    before_left[i:] = rights
    before_right[j:] = lefts


@njit("void(int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1])", **OPTIONS)
def rows_between(low: Array, high: Array, offset: int, first: int, end: int, oldest: Array, newest: Array) -> None:
    """Find the first and the last row of a ring whose coordinate is from `low` up to `high`.

    Its rows are those from `first` up to `end`, and the coordinate of each is `offset` more than its number.
    """
    least, most = first + offset, end - 1 + offset  # what lies beyond them may have no number in 64 bits
    for i in range(len(low)):
        oldest[i] = end if low[i] > most else max(low[i], least) - offset
        newest[i] = first - 1 if high[i] < least else min(high[i], most) - offset


@njit("void(int64[::1], int64, int64, int64[::1], int64, int64[::1], int64[::1], int64[::1])", **OPTIONS)
def ordinals_between(
    times: Array, before: int, after: int, known: Array, first: int, arrived: Array, low: Array, high: Array
) -> None:
    """Find the opposite ordinals, from `low` up to `high`, that are at most `before` earlier or `after` later.

    `known` are the opposite tuples' times from the ordinal `first` on; only the `arrived` ones count.
    """
    for i in range(len(times)):
        begin, end = within(times[i], before, after, known)
        high[i] = min(first + end, arrived[i])
        low[i] = min(first + begin, high[i])


@njit("void(int64[::1], int64, int64, int64[::1], int64, int64, int64, int64, int64[::1], int64[::1])", **OPTIONS)
def rows_within(
    times: Array, before: int, after: int, known: Array, of: int,
    offset: int, first: int, end: int, oldest: Array, newest: Array,
) -> None:  # fmt: skip
    """Find the first and the last row of a ring that are at most `before` earlier or `after` later.

    `known` are the times of the tuples from number `of` on. The ring has the rows from `first` up to `end`; the number
    of each is `offset` more.
    """
    for i in range(len(times)):
        begin, after_last = within(times[i], before, after, known)
        newest[i] = min(of + after_last - offset, end) - 1
        oldest[i] = max(of + begin - offset, first)
