"""What is computed of each tuple that arrives, compiled: how many came before it, and what it has to look at.

Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

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
    least, most = first + offset, end + offset  # held between them, so that far bounds do not overflow
    for i in range(len(low)):
        oldest[i] = min(max(low[i], least), most) - offset
        newest[i] = min(max(high[i], least - 1), most - 1) - offset


@njit("void(int64[::1], int64, int64, int64[::1], int64, int64[::1], int64[::1], int64[::1])", **OPTIONS)
def ordinals_between(
    times: Array, before: int, after: int, known: Array, first: int, arrived: Array, low: Array, high: Array
) -> None:
    """Find the opposite ordinals, from `low` up to `high`, that are at most `before` earlier or `after` later.

    `known` are the opposite tuples' times from the ordinal `first` on; only the `arrived` ones count. A reach of -1
    leaves out the time itself, so that at the end of all times nothing is left.
    """
    for i in range(len(times)):
        time = times[i]
        begin = end = first
        if not ((before < 0 and time > MOST + before) or (after < 0 and time < LEAST - after)):
            oldest = time - before if before < 0 or time >= LEAST + before else LEAST
            newest = time + after if after < 0 or time <= MOST - after else MOST
            begin = first + first_from(known, oldest)
            end = first + (len(known) if newest == MOST else first_from(known, newest + 1))
        high[i] = min(end, arrived[i])
        low[i] = min(begin, high[i])
