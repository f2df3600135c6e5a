"""Sorted runs of rows merged by several keys, compiled: neighbours two and two, until one run is left.

Importing this module compiles it, or loads it from the cache.
"""

from __future__ import annotations

from counterflow.jit import OPTIONS, compiled, njit
from counterflow.windows.vectors import Array


@compiled
def _is_before(keys: Array, a: int, b: int) -> bool:
    """Return whether row `a` comes before row `b`."""
    for k in range(keys.shape[1]):
        if keys[a, k] != keys[b, k]:
            return bool(keys[a, k] < keys[b, k])
    return False


@compiled
def _merge_two(keys: Array, begin: int, middle: int, end: int, rows: Array, into: Array) -> None:
    i, j = begin, middle
    for place in range(begin, end):
        if j == end or (i < middle and not _is_before(keys, rows[j], rows[i])):
            into[place] = rows[i]
            i += 1
        else:
            into[place] = rows[j]
            j += 1


@njit("void(int64[:, ::1], int64[::1], int64[::1], int64[::1])", **OPTIONS)
def merge_runs(keys: Array, ends: Array, rows: Array, spare: Array) -> None:
    """Put `rows`, which are in runs that end at `ends`, in one order: by the first of each row's `keys`, then the next.

    Rows that are equal stay in the order of their runs. `ends` is used up; `spare` is memory of the size of `rows`.
    """
    runs = len(ends)
    while runs > 1:
        begin = merged = 0
        for k in range(0, runs, 2):
            last = min(k + 1, runs - 1)
            end = ends[last]
            _merge_two(keys, begin, ends[k], end, rows, spare)
            ends[merged] = begin = end
            merged += 1
        for i in range(len(rows)):
            rows[i] = spare[i]
        runs = merged
